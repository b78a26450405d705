"""Readers beside strangers that recover ledgers as the stock client does (H1, H2): their
write-backs show entries before the end of the ledger is decided, and it may be below them."""

from __future__ import annotations

import pytest

from dlog.errors import Unavailable
from dlog.options import TailMode
from dlog.reader.core import ReaderState
from dlog.testing.sim.log_readers import SimReader
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.log import PLANTS
from dlog.testing.sim.world import Violation
from tests.scenarios.stage import Stage


def _shown(tail: TailMode) -> tuple[Stage, SimWriter, SimReader]:
    """One message is acknowledged and read; a second one reached bookies and was never confirmed,
    and a stranger's write-back shows it."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on()
    reader = stage.reader(tail=tail)
    stage.until(lambda: reader.next_seq == 1)
    stage.newest().held = True
    writer.submit(1)
    stage.go_on(20)
    writer.crash()
    stage.show_by_a_stranger(stage.newest())
    stage.go_on(3_000)
    return stage, writer, reader


def _decide_below(stage: Stage) -> None:
    ledger = stage.newest()
    stage.close_by_a_stranger(ledger, ledger.committed)


def test_a_normal_tail_can_be_fooled_by_a_stranger() -> None:
    """H1, H2: what it delivered is gone; nothing that it could see told it."""
    stage, _, reader = _shown("normal")
    assert reader.next_seq == 2
    with pytest.raises(Violation, match="I9: a ledger was closed below a delivered entry"):
        _decide_below(stage)


def test_a_strict_tail_waits_for_the_end_and_takes_that() -> None:
    """H1, H2."""
    stage, _, reader = _shown("strict")
    assert reader.next_seq == 1
    assert reader.core is not None
    assert reader.core.state is ReaderState.TAILING
    events = stage.world.events
    stage.go_on(10_000)
    assert stage.world.events - events < 500, "it waits, and does not ask again and again"
    _decide_below(stage)
    new = stage.opened("new")
    new.submit(2)
    stage.until(lambda: reader.next_seq == 3)


def test_a_strict_tail_takes_what_the_recovery_keeps() -> None:
    """An end decided above is as good as a word of the writer."""
    stage, _, reader = _shown("strict")
    stage.close_by_a_stranger(stage.newest())
    stage.until(lambda: reader.next_seq == 2)


@pytest.mark.parametrize("follow", [True, False])
def test_a_strict_reader_that_opens_meanwhile_waits_for_the_end(follow: bool) -> None:
    """Its first place, and its bound, are behind all that was acknowledged and before all that may
    vanish."""
    stage, _, _ = _shown("strict")
    late = stage.reader("late", "latest" if follow else "earliest", follow=follow, tail="strict")
    stage.go_on(2_000)
    assert late.next_seq is None
    _decide_below(stage)
    if not follow:
        stage.until(lambda: late.ended)
        assert late.next_seq == 1
        return
    new = stage.opened("new")
    new.submit(1)
    stage.until(lambda: late.next_seq == 2)


def test_a_strict_tail_that_cannot_be_known_says_so() -> None:
    """A recovery that never ends: whoever asks where the log ends is told why nobody knows."""
    stage, _, _ = _shown("strict")
    late = SimReader(stage.scene, "late", follow=False, tail="strict")
    told: list[object] = []
    late._failed = told.append  # type: ignore[method-assign]
    late.begin("earliest")
    stage.until(lambda: bool(told))
    (error,) = told
    assert isinstance(error, Unavailable)
    assert "is being recovered" in str(error)
    assert stage.world.now_ms < 60_000


def test_without_its_look_a_strict_tail_is_fooled_as_well() -> None:
    with planted(PLANTS["strict_tail_believes_what_it_is_shown"]):
        _, _, reader = _shown("strict")
    assert reader.next_seq == 2

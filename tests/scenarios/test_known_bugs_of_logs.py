"""Bugs that other logs had, each as a story that ours must get through. `test_catalogue.py` has the
list of all."""

from __future__ import annotations

from typing import Any

from dlog.testing.sim.planted import all_plants, planted
from dlog.testing.sim.runs import run_seed
from tests.scenarios.stage import Stage


def test_reader_without_recovery() -> None:
    """A ledger whose writer died was opened without recovery, and its tail missed: a reader stays
    in front of an open ledger for as long as nobody has ended it."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(2)
    stage.go_on()
    stage.newest().held = True
    writer.submit(1)  # stored, and confirmed by nobody
    stage.go_on()
    writer.crash()
    reader = stage.reader()
    stage.go_on(5_000)
    assert reader.next_seq == 2
    assert not reader.ended
    new = stage.opened("new")
    new.submit(1)
    stage.go_on(5_000)
    new.close()
    stage.go_on(5_000)
    log = stage.oracle.truth()
    assert reader.next_seq == len(log) >= 3
    assert [message.seq for message in log] == list(range(len(log)))


def test_reader_skips_segment() -> None:
    """A reader passed a segment that it should have read: here it meets every one of twelve, though
    it hears of nothing by itself and comes back to a place in the middle now and then."""
    stage = Stage(rotate_every=1, leaves=0.2, meta_watch_lost=1.0, ledger_watch_lost=1.0)
    writer = stage.opened("w")
    reader = stage.reader()
    for _ in range(12):
        writer.submit(1)
        stage.go_on(100)
    assert len(stage.log.segments) + len(stage.log.pages) >= 12
    stage.until(lambda: reader.next_seq == 12)


def test_empty_in_progress() -> None:
    """The number of an empty segment was used again: here each of five takeovers without a message
    takes a new one, whatever becomes of the empty segments."""
    stage = Stage()
    numbers = []
    for name in ("a", "b", "c", "d", "e"):
        writer = stage.opened(name)
        numbers.append(stage.log.segments[-1].number)
        stage.go_on()
        writer.crash()
    assert numbers == sorted(set(numbers)), "none came twice"
    last = stage.opened("last")
    last.submit(1)
    stage.go_on()
    last.close()
    stage.go_on()
    assert len(stage.read()) == 1


def test_two_owners() -> None:
    """Two owners at once, and positions acknowledged that nobody can find: of two that believe to
    own the log only one is told that anything was kept."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on()
    old.freeze()
    new = stage.opened("new")
    new.submit(2)
    stage.go_on(50)
    old.thaw()
    old.submit(3)
    new.submit(1)
    stage.go_on(5_000)
    assert stage.outcomes(old)[0] == "acked"
    assert "acked" not in stage.outcomes(old)[1:]
    assert stage.outcomes(new) == ["acked"] * 3
    new.close()
    stage.go_on()
    assert len(stage.read()) == 4


def test_lock_check_then_act() -> None:
    """Ownership was checked, and then acted upon. Here whoever looks is overtaken between the look
    and the act, again and again, and the act is refused every time but once."""
    stage = Stage(meta_reply_lost=0.2)
    writers = [stage.writer(f"w{number}") for number in range(6)]
    stage.until(lambda: all(each.handle is not None or each.error for each in writers))
    owners = [each for each in writers if each.takes_messages]
    for each in owners:
        each.submit(1)
    stage.go_on(10_000)
    acked = [each for each in owners if stage.outcomes(each) == ["acked"]]
    assert len(acked) <= len({each.handle.epoch for each in acked if each.handle is not None})
    epochs = [each.handle.epoch for each in writers if each.handle is not None]
    assert len(epochs) == len(set(epochs)), "an epoch has one owner"


def test_a_ledger_whose_listing_is_unknown_is_not_deleted() -> None:
    """Rule: "Never delete a ledger whose listing was sent and is not known to have been refused †".
    Openers that hear of two thirds of what they did; the oracle looks whether a ledger that is
    deleted was ever listed."""
    plant = all_plants()["a_ledger_is_deleted_though_its_listing_is_unknown"]
    histories = range(200)
    assert [seed for seed in histories if _breaks(seed, plant.fixed)] == []
    with planted(plant):
        assert any(_breaks(seed, plant.fixed) for seed in histories)


def _breaks(seed: int, weather: dict[str, Any]) -> bool:
    return run_seed("log-abstract", seed, **weather)[1] is not None

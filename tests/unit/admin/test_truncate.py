"""How far a truncation goes, by each kind of place, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import limits
from dlog.admin.truncate import aim, is_full, known_head_seq
from dlog.clock import us_datetime
from dlog.effects import Effect, LastReadable, LookAtLedger, ReadEntries, ReadRun
from dlog.errors import ConfigError, Corrupt, DlogError, FormatError, Timeout, Unavailable
from dlog.ids import MessageId, Position
from dlog.meta.listed import Doomed, DoomedPage, Point
from dlog.reader.places import LATEST, Start
from tests.unit.admin.scripted import Scripted
from tests.unit.reader.small_log import seven_segments


class Silent(Scripted):
    """No bookie answers."""

    error: DlogError = Unavailable("no bookie answers")

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, (LastReadable, LookAtLedger, ReadEntries, ReadRun)):
            raise self.error
        return super().perform(effect)


def aimed(log: Scripted, before: Start) -> tuple[Point, str, tuple[str, ...]]:
    found = log.run(aim(log.view(), before))
    return found.point, found.asked, found.reasons


@pytest.fixture
def log() -> Scripted:
    """Segments 1 to 6 are sealed, 7 is open."""
    return Scripted.of(seven_segments())


@pytest.fixture(
    params=[Unavailable("no bookie answers"), Timeout("no reply")], ids=["away", "slow"]
)
def silent(request: pytest.FixtureRequest) -> Silent:
    found = Silent.of(seven_segments())
    assert isinstance(found, Silent)
    found.error = request.param
    return found


def test_a_seq_truncates_to_itself_and_never_behind_the_tail(log: Scripted) -> None:
    count = len(log.messages)
    for seq in range(count + 4):
        point, asked, reasons = aimed(log, seq)
        assert (point, asked) == (Point(min(seq, count)), f"seq {seq}")
        assert reasons == (() if seq <= count else (f"the log ends at seq {count}",))
    assert aimed(log, LATEST) == (Point(count), "everything", ())


def test_a_position_truncates_to_what_comes_next(log: Scripted) -> None:
    after = log.messages[7].id
    point, asked, _ = aimed(log, Position("uid", 8, after))
    assert (point, asked) == (Point(8), "the position at seq 8")
    with pytest.raises(ConfigError, match="another log"):
        aimed(log, Position("another", 8, after))


def test_a_message_id_truncates_by_itself_up_to_the_last_entry(log: Scripted) -> None:
    """Which seq it has, nobody has to look up."""
    for message in log.messages:
        assert aimed(log, message.id) == (Point(0, *message.id), f"the message {message.id}", ())
    ledger_id = log.messages[-1].id.ledger_id
    last_entry = len(log.ledgers[ledger_id]) - 1
    assert aimed(log, MessageId(ledger_id, last_entry, 9))[0] == Point(0, ledger_id, last_entry, 9)
    count = len(log.messages)
    for behind in (MessageId(ledger_id, last_entry + 1, 0), MessageId(ledger_id + 1, 0, 0)):
        point, _, reasons = aimed(log, behind)
        assert (point, reasons) == (Point(count), (f"the log ends at seq {count}",))


def test_a_time_truncates_what_was_written_before_it(log: Scripted) -> None:
    for time_us in range(90, log.messages[-1].time_us + 10):
        seq = next((each.seq for each in log.messages if each.time_us >= time_us), None)
        when = us_datetime(time_us)
        wanted = len(log.messages) if seq is None else seq
        assert aimed(log, when) == (Point(wanted), when.isoformat(), ())


# --- while no bookie answers


def test_without_bookies_what_is_sealed_is_truncated(silent: Silent) -> None:
    sealed = silent.meta.end.next_seq
    for seq in range(sealed + 1):
        assert aimed(silent, seq) == (Point(seq), f"seq {seq}", ())
    for behind in (sealed + 1, LATEST, MessageId(70, 1, 0)):
        point, _, (reason,) = aimed(silent, behind)
        assert point == Point(sealed)
        assert reason.startswith("only what is sealed, since the end of the log cannot be looked")
    last = MessageId(60, silent.meta.end.last_entry, 0)
    assert aimed(silent, last)[0] == Point(0, *last)


def test_without_bookies_a_time_truncates_whole_segments(silent: Silent) -> None:
    """Those whose last message was written before it: in pages and in the list."""
    log = Scripted.of(seven_segments())
    found = [log.run(_segment(log, number)) for number in range(1, 7)]
    times = sorted({t + by for _, t in found for by in (-1, 0, 1)})
    for time_us in times:
        wanted = next((base for base, t in found if t >= time_us), silent.meta.end.next_seq)
        point, _, (reason,) = aimed(silent, us_datetime(time_us))
        assert point == Point(wanted), time_us
        assert reason.startswith("to where a segment ends")


def _segment(log: Scripted, number: int) -> Any:
    """Where a sealed segment begins, and when its last message was written."""
    found = yield from log.view().find(
        lambda s: s.number >= number, lambda p: p.last_number >= number
    )
    assert found is not None
    assert found.sealed is not None
    return found.sealed.base_seq, found.sealed.last_time_us


@pytest.mark.parametrize(
    "error", [Unavailable("away"), Timeout("slow"), Corrupt("damaged"), FormatError("newer")]
)
def test_a_head_that_cannot_be_looked_up_is_not_known(error: DlogError) -> None:
    """What was done is done."""
    log = Silent.of(seven_segments())
    assert isinstance(log, Silent)
    log.error = error
    assert log.run(known_head_seq(log.view())) == 0
    log.change(truncate_before=Point(0, *log.messages[3].id))
    assert log.run(known_head_seq(log.view())) is None
    whole = Scripted.of(seven_segments())
    whole.change(truncate_before=log.meta.truncate_before)
    assert whole.run(known_head_seq(whole.view())) == 3


# --- room where ledgers wait for their deletion


def test_a_list_is_full_if_what_is_to_leave_it_finds_no_room(
    log: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the segments, or of the pages that are first."""
    monkeypatch.setattr(limits, "META_DELETING_MAX", 2)
    monkeypatch.setattr(limits, "META_DELETING_PAGES_MAX", 1)
    first = log.meta.pages[0]
    behind_page, behind_segment = Point(first.next_seq), Point(log.meta.end.next_seq)
    two, pages = (Doomed(1, 0), Doomed(2, 0)), (DoomedPage(1, 0, 0),)

    def full(point: Point, **changes: Any) -> bool:
        log.change(**{"deleting": (), "deleting_pages": (), **changes}, truncate_before=point)
        return is_full(log.meta)

    assert not full(behind_page)
    assert not full(behind_page, deleting=two), "a page finds room"
    assert full(behind_page, deleting_pages=pages)
    assert not full(Point(first.next_seq - 1), deleting_pages=pages), "nothing is to leave it"
    log.change(pages=())
    assert not full(behind_segment, deleting=two[:1])
    assert full(behind_segment, deleting=two)
    assert not full(behind_segment, deleting_pages=pages)
    assert not full(Point(1), deleting=two)
    log.change(segments=())
    assert not full(behind_segment, deleting=two)

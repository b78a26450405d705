"""The walk of a reader through a small log: what is delivered from every start to every end, beside
what stands there."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from dlog.effects import Deliver, Effect, Procedure, ReadRun, WaitNode, WaitPast
from dlog.errors import Corrupt, NotFound, Truncated
from dlog.ids import MessageId, Position
from dlog.meta.listed import Point
from dlog.options import ReaderOptions
from dlog.reader.core import Bounds, ReaderCore, ReaderState
from dlog.reader.message import Message
from dlog.reader.places import Place, Start
from dlog.reason import ReasonCode
from dlog.writer.segments import seam_entry
from tests.unit.reader.small_log import SmallLog, seven_segments


class Waits(Exception):
    """A walk that waits for more, where nobody will write."""


class Walked(SmallLog):
    """Keeps what is delivered."""

    def perform(self, effect: Effect) -> Any:
        match effect:
            case Deliver(batches=batches):
                for batch in batches:
                    self.delivered += batch.to_pylist()
                return None
            case WaitNode() | WaitPast():
                raise Waits
            case _:
                return super().perform(effect)

    delivered: list[Message]


def playing_of(log: SmallLog, kind: type[Walked]) -> Walked:
    playing = kind(**{name: getattr(log, name) for name in SmallLog.__dataclass_fields__})
    playing.delivered = []
    return playing


def walk(core: ReaderCore, start: Start | Place, end: Start | None = None) -> Procedure[None]:
    yield from core.find(Bounds(start, end))
    yield from core.walk()


def walked(
    log: SmallLog, start: Start | Place, end: Start | None = None, **options: Any
) -> tuple[list[Message], ReaderCore]:
    playing, core = playing_of(log, Walked), ReaderCore(log.view(), ReaderOptions(**options))
    try:
        playing.run(walk(core, start, end))
    except Waits:
        assert core.state in (ReaderState.TAILING, ReaderState.CROSSING)
    return playing.delivered, core


def check_delivered(told: list[Message], log: SmallLog, first: int, end: int) -> None:
    """Exactly the messages from seq to seq that are left, with all that they have."""
    wanted = [each for each in log.left() if first <= each.seq < end]
    assert [(m.seq, m.id, m.value, m.timestamp_us, m.epoch) for m in told] == [
        (each.seq, each.id, each.value, each.time_us, each.epoch) for each in wanted
    ]


@pytest.mark.parametrize("read_run_bytes", [4096, 1 << 20])
def test_from_every_message_to_the_tail(read_run_bytes: int) -> None:
    log = seven_segments()
    count = len(log.messages)
    for message in log.messages[::2]:
        starts: list[Start] = [message.seq, message.id, Position("uid", message.seq, None)]
        for start in starts[message.seq // 2 % 3 :][:1]:
            told, core = walked(log, start, follow=False, read_run_bytes=read_run_bytes)
            check_delivered(told, log, message.seq, count)
            assert core.state is ReaderState.ENDED
    assert walked(log, "latest", follow=False)[0] == []


def test_from_a_message_to_another() -> None:
    log = seven_segments()
    seqs = [0, 1, 2, 7, 20, 21, 39, 40, 46, 47, 48]
    for first, end in itertools.product(seqs, seqs):
        told, core = walked(log, first, end, follow=True)
        check_delivered(told, log, first, end)
        assert core.state is ReaderState.ENDED
        if end < len(log.messages) and first % 2:
            told, _ = walked(log, first, log.messages[end].id, follow=False)
            check_delivered(told, log, first, end)


def test_a_follower_waits_behind_the_last_message() -> None:
    log = seven_segments()
    told, core = walked(log, "earliest", follow=True)
    check_delivered(told, log, 0, len(log.messages))
    assert core.state is ReaderState.TAILING
    assert core.place.seq == len(log.messages)


def test_a_follower_waits_behind_what_is_closed_for_what_follows() -> None:
    log = seven_segments()
    log.seal()
    told, core = walked(log, 40, follow=True)
    check_delivered(told, log, 40, len(log.messages))
    assert core.state is ReaderState.CROSSING
    assert core.blocked is not None
    assert core.blocked.code is ReasonCode.AT_TAIL
    evidence = core.blocked.evidence
    assert (evidence["ledger_id"], evidence["is_closed"], evidence["writer"]) == (70, True, "w")


def test_a_log_that_nobody_wrote_to_says_so() -> None:
    told, core = walked(SmallLog(), "earliest", follow=True)
    assert (told, core.state) == ([], ReaderState.CROSSING)
    assert core.blocked is not None
    assert "has no segment to read yet" in core.blocked.sentence


def test_a_segment_that_begins_before_what_was_read_is_damage() -> None:
    """Its messages would come twice."""
    log = seven_segments()
    end = log.meta.end
    for base_seq in (end.next_seq - 1, 0):
        seam = seam_entry(
            log.meta,
            number=7,
            epoch=1,
            predecessor=(end.ledger_id, end.last_entry),
            base_seq=base_seq,
            now_us=0,
        )
        log.ledgers[70][1] = b"".join(seam)
        with pytest.raises(Corrupt, match=f"begins at seq {base_seq}, not at {end.next_seq}"):
            walked(log, end.next_seq - 3, follow=True)


@pytest.mark.parametrize("sweep", [False, True], ids=["listed", "swept"])
def test_nothing_that_was_truncated_is_delivered_and_nothing_else_is_left_out(sweep: bool) -> None:
    whole = seven_segments()
    points = [Point(seq=seq) for seq in range(0, len(whole.messages) + 1, 5)]
    points += [Point(0, *each.id) for each in whole.messages[::8]]
    points += [Point(0, 40, 1, 0), Point(0, 30, 4, 9), Point(0, 70, 99, 0), Point(5, 10, 2, 1)]
    for point in points:
        log = seven_segments()
        log.truncate(point, sweep=sweep)
        told, _ = walked(log, "earliest", follow=False)
        check_delivered(told, log, 0, len(log.messages))
        jumped, _ = walked(log, 0, follow=False, on_truncated="jump")
        assert jumped == told
        if log.left() != log.messages:
            with pytest.raises(Truncated):
                walked(log, 0, follow=False)


def test_a_start_behind_the_tail_waits_for_it() -> None:
    log = seven_segments()
    count = len(log.messages)
    told, core = walked(log, count + 5, follow=True)
    assert told == []
    assert core.first_seq == count + 5
    log.write(*range(900, 910))
    told, _ = walked(log, count + 5, follow=True)
    check_delivered(told, log, count + 5, count + 10)


def test_an_entry_that_begins_elsewhere_is_damage() -> None:
    log = seven_segments()
    entries = log.ledgers[70]
    entries[3], entries[4] = entries[4], entries[3]
    with pytest.raises(Corrupt, match="begins at seq"):
        walked(log, "earliest")


def test_what_is_good_before_an_entry_that_is_not_is_delivered_first() -> None:
    log = seven_segments()
    broken = MessageId(50, 3, 0)
    log.ledgers[50][3] = b"\xd1" + bytes(60)
    playing, core = playing_of(log, Walked), ReaderCore(log.view(), ReaderOptions())
    with pytest.raises(Corrupt) as told:
        playing.run(walk(core, "earliest"))
    good = [each.seq for each in log.messages if each.id < broken]
    assert [message.seq for message in playing.delivered] == good
    assert (told.value.about["ledger_id"], told.value.about["entry_id"]) == (50, 3)
    assert told.value.about["raw"] == log.ledgers[50][3]


# --- behind an entry that was skipped, whose seqs nobody knows


def skipped(log: SmallLog, ledger_id: int, entry_id: int, **options: Any) -> list[Message]:
    """What comes behind the entry, while the list is as it is by now."""
    return walked(log, Place(ledger_id // 10, entry_id + 1, 0, None), follow=False, **options)[0]


def test_what_follows_a_skipped_entry_is_delivered() -> None:
    log = seven_segments()
    for message in log.messages:
        told = skipped(log, *message.id[:2])
        behind = [each.seq for each in log.messages if each.id[:2] > message.id[:2]]
        assert [each.seq for each in told] == behind


@pytest.mark.parametrize("keeps", [True, False], ids=["a later one", "nothing"])
def test_where_the_segment_of_a_skipped_entry_is_truncated_nobody_knows_what_is_missed(
    keeps: bool,
) -> None:
    """The next segment may be of any distance: that is refused, or jumped over when asked for."""
    log = seven_segments()
    if not keeps:
        log.seal()
    sixth = next(each.seq for each in log.messages if each.id.ledger_id == 60)
    point = Point(sixth if keeps else len(log.messages))
    log.truncate(point, sweep=True)
    with pytest.raises(Truncated, match="what was to come next was truncated") as caught:
        skipped(log, 50, 3)
    assert caught.value.new_head == point.seq
    told = skipped(log, 50, 3, on_truncated="jump")
    assert [each.seq for each in told] == [each.seq for each in log.messages[point.seq :]]


def test_a_seq_that_was_truncated_meanwhile_is_told_by_its_number() -> None:
    log = seven_segments()
    log.truncate(Point(20), sweep=True)
    with pytest.raises(Truncated, match="seq 3 was truncated; the head is at seq 20"):
        walked(log, Place(1, 3, 0, 3), follow=False)


class Misnames(Walked):
    """Reads of its ledgers name one that is in no list."""

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, ReadRun) and effect.point == "read.run":
            assert self.asked.count(effect) <= 3, "the same read, again and again"
            raise NotFound("no ledger 999", ledger_id=999)
        return super().perform(effect)


def test_a_missing_ledger_that_no_list_names_ends_the_reader() -> None:
    log = seven_segments()
    playing, core = playing_of(log, Misnames), ReaderCore(log.view(), ReaderOptions())
    with pytest.raises(NotFound, match="no ledger 999"):
        playing.run(walk(core, "earliest"))


@pytest.mark.parametrize("changes", [True, False])
def test_a_missing_ledger_is_looked_for_once_more_in_each_list(changes: bool) -> None:
    """It may have been one that left the list, as the one before ours; and the reader may have read
    the new list already."""
    log = seven_segments()

    class Misnames(Walked):
        def perform(self, effect: Effect) -> Any:
            if isinstance(effect, ReadRun) and effect.point == "read.run" and not struck:
                struck.append(effect)
                if changes:
                    self.meta = dataclasses.replace(self.meta, hand_over="somebody")
                raise NotFound("no ledger 999", ledger_id=999)
            return super().perform(effect)

    struck: list[Effect] = []
    playing, core = playing_of(log, Misnames), ReaderCore(log.view(), ReaderOptions())
    playing.run(walk(core, "earliest"))
    assert [each.seq for each in playing.delivered] == [each.seq for each in log.messages]

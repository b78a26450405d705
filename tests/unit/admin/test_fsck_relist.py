"""A page is written again, and an end corrected, if what is left proves it, and not otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog.admin.fsck.relist import (
    LostPage,
    Weighed,
    find_lost_page,
    read_there,
    reseal,
    weigh,
    write_page,
)
from dlog.admin.fsck.report import Ended
from dlog.effects import (
    CreateNode,
    Effect,
    LastReadable,
    ListNodes,
    Pause,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
    ReplaceNode,
)
from dlog.errors import AlreadyExists, Conflict, Corrupt, DlogError, NotFound, Timeout, Unavailable
from dlog.ledger.store import LedgerInfo
from dlog.meta.listed import PageRef, Sealed
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import Cut
from dlog.meta.published import Published, PublishedBatch
from dlog.meta.store import Versioned
from dlog.wire.batch import ControlKind, encode_control
from tests.scenarios.by_hand import NoChance
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog, seven_segments

PATH = LAYOUT.log(NAME)


class Damaged(SmallLog):
    """A small log whose nodes can be changed, and whose ledgers say whose they are."""

    custom: dict[int, dict[str, bytes]]
    refused: dict[type[Effect], DlogError]
    version: int
    unknown: bool  # the reply to the next change of the log is lost

    @classmethod
    def of(cls, log: SmallLog) -> Damaged:
        found = cls(log.meta, log.ledgers, log.closed, log.nodes)
        found.custom, found.refused, found.version, found.unknown = {}, {}, 1, False
        return found

    def change(self, **changes: Any) -> None:
        self.meta = dataclasses.replace(self.meta, **changes)
        self.version += 1

    def list_end(self, number: int, **changes: int) -> Sealed:
        """What the list says of a segment's end, in place of what it did."""
        segment = self.meta.segment(number)
        assert segment is not None
        assert segment.sealed is not None
        sealed = dataclasses.replace(segment.sealed, **changes)
        wrong = dataclasses.replace(segment, sealed=sealed)
        self.change(segments=tuple(wrong if s == segment else s for s in self.meta.segments))
        return segment.sealed

    def run(self, procedure: Procedure[Any]) -> Any:
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            answer, error = None, None
            try:
                answer = self.perform(effect)
            except DlogError as failed:
                error = failed

    def perform(self, effect: Effect) -> Any:
        if type(effect) in self.refused:
            raise self.refused[type(effect)]
        match effect:
            case Pause():
                return None
            case ListNodes():
                below = LAYOUT.pages(NAME) + "/"
                return [path.removeprefix(below) for path in self.nodes if path.startswith(below)]
            case ReadNode(path=path) if path == PATH:
                return Versioned(self.meta.to_bytes(), self.version)
            case CreateNode(path=path, value=value):
                if path in self.nodes:
                    raise AlreadyExists(f"there is {path}")
                self.nodes[path] = value
                return 1
            case ReplaceNode(path=path, value=value, version=version) if path == PATH:
                if version != self.version:
                    raise Conflict("it is another one")
                self.meta = LogMeta.from_bytes(value, where=path)
                self.version += 1
                if self.unknown:
                    self.unknown = False
                    raise Timeout("no reply")
                return self.version
            case ReplaceNode(path=path, value=value):
                self.nodes[path] = value
                return 2
            case _:
                return super().perform(effect)

    def _info(self, ledger_id: int) -> LedgerInfo:
        info = super()._info(ledger_id)
        custom = self.custom.get(ledger_id, {"application": b"dlog", "log": b"uid"})
        return dataclasses.replace(info, spec=dataclasses.replace(info.spec, custom=custom))

    # --- what is tried

    def lost(self, path: str) -> Any:
        return self.run(find_lost_page(NAME, LAYOUT, path))

    def written(self, path: str, ledger_ids: list[int] | None = None) -> tuple[Ended, str]:
        lost = self.lost(path)
        assert isinstance(lost, LostPage)
        ids = sorted(self.ledgers) if ledger_ids is None else ledger_ids
        told: tuple[Ended, str] = self.run(write_page(NAME, LAYOUT, lost, ids))
        return told

    def weighed(self, number: int, ledger_id: int | None = None) -> Any:
        ledger_id = 10 * number if ledger_id is None else ledger_id
        return self.run(weigh(NAME, LAYOUT, number, ledger_id))

    def resealed(self, number: int) -> tuple[Ended, str]:
        weighed = self.weighed(number)
        assert isinstance(weighed, Weighed)
        told: tuple[Ended, str] = self.run(reseal(NAME, LAYOUT, weighed, NoChance()))
        return told


@pytest.fixture
def log() -> Damaged:
    """Segments 1 and 2 in a page below a page, 3 and 4 in a page, 5 to 7 in the list; 7 is open."""
    return Damaged.of(seven_segments())


def deep() -> Damaged:
    """Eight segments in four pages, those in two pages, and both in one; and an open one."""
    log = SmallLog()
    for number in range(1, 10):
        log.begin(at_us=100 * number)
        log.write(100 * number + 5, 100 * number + 7)
        if number < 9:
            log.seal()
    for _ in range(4):
        log.page(2)
    for first in (0, 1):
        held = log.meta.pages[first : first + 2]
        log._cut(Cut(PageRef.of_pages(held), held, first))
    log.page_of_pages(2)
    return Damaged.of(log)


# --- pages


def test_each_lost_page_of_a_deep_list_is_written_as_it_was() -> None:
    paths = list(deep().nodes)
    assert len(paths) == 7
    for path in paths:
        for damage in (None, b"nonsense"):
            log = deep()
            was = log.nodes.pop(path)
            if damage is not None:
                log.nodes[path] = damage
            ended, _ = log.written(path)
            assert (ended, log.nodes[path]) == (Ended.DONE, was), path
            assert log.lost(path)[0] is Ended.NOT_NEEDED


def test_a_page_of_pages_is_proven_by_the_pages_right_below_it_alone() -> None:
    log = deep()
    path = LAYOUT.page(NAME, 1, 2)
    was = log.nodes.pop(path)
    for number in (1, 3, 5, 7):
        del log.nodes[LAYOUT.page(NAME, number, 0)]
    assert log.written(path, [])[0] is Ended.DONE
    assert log.nodes[path] == was


def test_pages_of_all_kinds_of_segments_are_written_as_they_were(log: Damaged) -> None:
    """One that holds a segment without messages, too; ledgers of others do not disturb."""
    log.ledgers[35] = log.ledgers[30]
    log.ledgers[25] = [b"nonsense", b"nonsense", b"nonsense"]
    log.closed |= {35, 25}
    log.custom[35] = {"application": b"dlog", "log": b"another"}
    for path in list(log.nodes):
        was = log.nodes.pop(path)
        ended, _ = log.written(path)
        assert (ended, log.nodes[path]) == (Ended.DONE, was)


def test_only_the_page_that_is_damaged_is_to_be_written(log: Damaged) -> None:
    leaf, other = LAYOUT.page(NAME, 3, 0), LAYOUT.page(NAME, 1, 0)
    del log.nodes[leaf]
    assert isinstance(log.lost(leaf), LostPage)
    assert log.lost(other)[0] is Ended.NOT_NEEDED
    assert log.lost(LAYOUT.page(NAME, 99, 0))[0] is Ended.NOT_NEEDED


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.ledgers.pop(30),
        lambda log: log.closed.discard(30),
        lambda log: log.custom.update({30: {"application": b"dlog", "log": b"another"}}),
        lambda log: log.custom.update({30: {}}),
        lambda log: log.ledgers[30].pop(),
        lambda log: log.ledgers.update({30: log.ledgers[30][:1]}),
    ],
    ids=["gone", "open", "of another log", "of nobody", "shorter", "without seam"],
)
def test_a_page_is_not_written_without_each_of_its_ledgers(
    log: Damaged, spoil: Callable[[Damaged], object]
) -> None:
    path = LAYOUT.page(NAME, 3, 0)
    del log.nodes[path]
    spoil(log)
    ended, told = log.written(path)
    assert ended is Ended.REFUSED
    assert "segments 3 to 4, seqs " in told
    assert "jobs published" not in told
    assert path not in log.nodes


def test_where_jobs_published_it_is_said_that_their_segments_tell_no_place(log: Damaged) -> None:
    batch = PublishedBatch("q", 1, "t", 1, 0, 1)
    log.change(published=Published().noted(batch))
    path = LAYOUT.page(NAME, 3, 0)
    del log.nodes[path], log.ledgers[30]
    assert "jobs published" in log.written(path)[1]


def test_a_page_that_somebody_else_writes_meanwhile_is_left_to_them(log: Damaged) -> None:
    path = LAYOUT.page(NAME, 3, 0)
    del log.nodes[path]
    log.refused[CreateNode] = AlreadyExists("there is one")
    assert log.written(path)[0] is Ended.NOT_NEEDED
    log.nodes[path] = b"nonsense"
    log.refused[ReplaceNode] = Conflict("it is another one")
    assert log.written(path)[0] is Ended.NOT_NEEDED


@pytest.mark.parametrize("state", [LogState.DELETING, LogState.DELETED])
def test_a_log_that_was_removed_is_not_repaired(log: Damaged, state: LogState) -> None:
    log.change(state=state)
    with pytest.raises(NotFound):
        log.run(read_there(NAME, LAYOUT))
    log.change(state=LogState.TERMINATED)
    assert log.run(read_there(NAME, LAYOUT)).meta.state is LogState.TERMINATED


# --- what is known of an end


def ends(log: Damaged, number: int) -> tuple[int, int]:
    ledger_id = 10 * number
    return ledger_id, len(log.ledgers[ledger_id]) - 1


@pytest.mark.parametrize("number", [5, 6])
def test_an_end_is_weighed_by_its_ledger_and_the_seam_behind_it(log: Damaged, number: int) -> None:
    found = log.weighed(number)
    assert isinstance(found, Weighed)
    assert found.segment == log.meta.segment(number)
    assert found.told is not None
    assert found.told.segment == found.segment
    assert found.after is not None
    assert found.after.number == number + 1
    assert found.seam is not None
    assert (found.seam.predecessor_ledger, found.seam.predecessor_last) == ends(log, number)
    assert found.may_be_right


def test_a_seam_alone_is_a_seam(log: Damaged) -> None:
    """The next segment was begun just now."""
    del log.ledgers[70][2:]
    assert log.weighed(6).seam is not None


@pytest.mark.parametrize(("number", "ledger_id"), [(3, 30), (7, 70), (5, 60), (8, 80)])
def test_only_a_sealed_segment_in_the_node_of_the_log_is_weighed(
    log: Damaged, number: int, ledger_id: int
) -> None:
    """Pages prove each other; and it has to be the segment that was checked."""
    ended, _ = log.weighed(number, ledger_id)
    assert ended is Ended.REFUSED


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.ledgers.pop(60),
        lambda log: log.ledgers.update({60: log.ledgers[60][:1]}),
        lambda log: log.ledgers[60].__setitem__(1, b"nonsense"),
    ],
    ids=["gone", "born", "damaged"],
)
def test_a_seam_that_cannot_be_read_is_none(
    log: Damaged, spoil: Callable[[Damaged], object]
) -> None:
    spoil(log)
    found = log.weighed(5)
    assert isinstance(found, Weighed)
    assert (found.seam, found.after) == (None, log.meta.segment(6))


@pytest.mark.parametrize("error", [Unavailable("away"), Corrupt("damaged")])
def test_a_ledger_whose_entries_nobody_gives_tells_nothing(log: Damaged, error: DlogError) -> None:
    log.refused[ReadEntries] = error
    found = log.weighed(5)
    assert isinstance(found, Weighed)
    assert found.told is None
    assert found.may_be_right
    assert log.resealed(5)[0] is Ended.REFUSED


def test_the_list_may_be_right_unless_its_ledger_has_more_that_nobody_cut_off(
    log: Damaged,
) -> None:
    """Whoever continues the segment at the listed end proves the list."""
    last_entry = ends(log, 5)[1]
    log.list_end(5, last_entry=last_entry - 1)
    assert not log.weighed(5).may_be_right
    log.refused[ReadRun] = Corrupt("the seam behind it is damaged")
    assert not log.weighed(5).may_be_right
    log.list_end(5, last_entry=last_entry)
    assert log.weighed(5).may_be_right, "the ledger has no more"
    log.refused.clear()
    log.list_end(5, last_entry=last_entry + 1)
    assert log.weighed(5).may_be_right
    log.list_end(5, last_entry=last_entry)
    log.ledgers[50].append(log.ledgers[50][-1])
    assert log.weighed(5).may_be_right, "the next segment continues there"


# --- ends are corrected


WRONG: list[dict[str, int]] = [{"bytes": 1}, {"last_entry": 2}, {"first_time_us": 3}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("number", [5, 6])
def test_an_end_is_corrected_to_what_the_ledger_says(
    log: Damaged, number: int, wrong: dict[str, int]
) -> None:
    """And with the newest sealed segment the end of the log."""
    was = log.meta
    log.list_end(number, **wrong)
    if number == 6 and "last_entry" in wrong:
        log.change(end=dataclasses.replace(was.end, last_entry=wrong["last_entry"]))
    ended, _ = log.resealed(number)
    assert ended is Ended.DONE
    assert log.meta.segments == was.segments
    assert log.meta.end == was.end
    assert log.resealed(number)[0] is Ended.NOT_NEEDED


def test_a_later_time_that_is_listed_stays(log: Damaged) -> None:
    """A writer that lost its last messages listed their time, which no ledger tells."""
    was = log.list_end(6, bytes=1, last_time_us=10_000)
    assert log.resealed(6)[0] is Ended.DONE
    now = log.meta.segment(6)
    assert now is not None
    assert now.sealed == dataclasses.replace(was, last_time_us=10_000)
    assert log.meta.end.last_time_us == 10_000
    earlier = log.list_end(5, last_time_us=0)
    assert log.resealed(5)[0] is Ended.DONE
    assert log.weighed(5).segment.sealed == earlier
    assert log.meta.end.last_time_us == 10_000, "the clock of the log does not go back"


@pytest.mark.parametrize("name", ["base_seq", "next_seq"])
def test_an_end_whose_seqs_differ_is_not_corrected(log: Damaged, name: str) -> None:
    seq = getattr(log.list_end(5), name)
    log.list_end(5, **{name: seq + 1})
    before = log.meta
    ended, told = log.resealed(5)
    assert (ended, log.meta) == (Ended.REFUSED, before)
    assert "nothing proves" in told


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_end_of_a_ledger_that_says_another_epoch_is_not_corrected(
    log: Damaged, epoch: int
) -> None:
    log.list_end(5, bytes=1)
    fifth, *rest = log.meta.segments
    log.change(segments=(dataclasses.replace(fifth, epoch=epoch), *rest))
    assert log.resealed(5)[0] is Ended.REFUSED


def test_an_end_is_not_moved_while_the_seam_behind_it_cannot_be_read(log: Damaged) -> None:
    """It may continue the listed end. Where only the bytes differ it says nothing of that."""
    log.refused[LastReadable] = NotFound("there is no such ledger")
    log.list_end(5, last_entry=2)
    assert log.resealed(5)[0] is Ended.REFUSED
    log.list_end(5, last_entry=ends(log, 5)[1], bytes=1)
    assert log.resealed(5)[0] is Ended.DONE


def test_an_end_that_the_seam_behind_it_contradicts_is_not_corrected(log: Damaged) -> None:
    """Its ledger has one entry more, without messages: all seqs are as listed."""
    sealed = log.list_end(5)
    table = encode_control(
        ControlKind.PRODUCERS,
        b"{}",
        first_seq=sealed.next_seq - sealed.base_seq,
        timestamp_us=sealed.last_time_us,
    )
    log.ledgers[50].append(b"".join(table))
    before = log.meta
    ended, told = log.resealed(5)
    assert (ended, log.meta) == (Ended.REFUSED, before)
    assert f"continues entry {sealed.last_entry} of ledger 50" in told


def test_the_end_of_a_log_without_an_open_segment_is_corrected(log: Damaged) -> None:
    was = log.meta
    log.change(segments=was.segments[:-1])
    log.list_end(6, last_entry=2, bytes=1)
    log.change(end=dataclasses.replace(was.end, last_entry=2))
    assert log.resealed(6)[0] is Ended.DONE
    assert (log.meta.segments, log.meta.end) == (was.segments[:-1], was.end)


def test_an_end_that_changes_while_it_is_weighed_is_left_alone(log: Damaged) -> None:
    log.list_end(5, bytes=1)
    weighed = log.weighed(5)
    log.list_end(5, bytes=2)
    before = log.meta
    with pytest.raises(NotFound, match="changed meanwhile"):
        log.run(reseal(NAME, LAYOUT, weighed, NoChance()))
    assert log.meta == before


def test_a_lost_reply_to_a_correction_is_resolved_by_reading(log: Damaged) -> None:
    was = log.meta
    log.list_end(5, bytes=1)
    log.unknown = True
    assert log.resealed(5)[0] is Ended.DONE
    assert log.meta.segments == was.segments


def test_a_correction_whose_request_is_lost_is_sent_again(log: Damaged) -> None:
    was = log.meta
    log.list_end(5, bytes=1)
    steps = reseal(NAME, LAYOUT, log.weighed(5), NoChance())
    effect = steps.send(None)
    while not isinstance(effect, ReplaceNode):
        effect = steps.send(log.perform(effect))
    effect = steps.throw(Timeout("no reply"))
    while isinstance(effect, (ReadNode, Pause)):
        effect = steps.send(log.perform(effect))
    assert isinstance(effect, ReplaceNode), "it is sent again"
    log.perform(effect)
    assert log.meta.segments == was.segments

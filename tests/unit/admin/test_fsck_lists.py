"""What is told of a list as it stands in the metadata store, also while others change it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.fsck.lists import Walk, walk_list
from dlog.admin.fsck.report import Action, Finding, Kind, Severity
from dlog.effects import Effect, ListNodes, ReadNode
from dlog.meta.layout import Layout
from dlog.meta.listed import Doomed, DoomedPage, PageRef
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_to_bytes
from dlog.meta.store import Versioned
from dlog.options import LogOptions
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog, seven_segments

OTHER_LAYOUT = Layout("/dlog")
PAGE = OTHER_LAYOUT.page("log", 7).rpartition("/")[2]


def walked(*listings: list[str]) -> Walk:
    """What is found of a log without pages, each time its pages are listed with other names."""
    told = iter(listings)
    procedure = walk_list("log", OTHER_LAYOUT)
    answer: object = None
    try:
        while True:
            match procedure.send(answer):
                case ListNodes(path=path):
                    assert path == OTHER_LAYOUT.pages("log")
                    answer = next(told)
                case ReadNode():
                    answer = Versioned(LogMeta("u", LogOptions(), next_number=10).to_bytes(), 3)
    except StopIteration as end:
        walk = end.value
    assert next(told, None) is None, "each listing was asked for"
    assert isinstance(walk, Walk)
    return walk


def test_a_page_that_nothing_refers_to_is_found() -> None:
    (finding,) = walked([PAGE], [PAGE]).findings
    assert finding.kind is Kind.PAGE_UNUSED


def test_a_page_that_was_deleted_meanwhile_is_not() -> None:
    assert walked([PAGE], []).findings == []


@pytest.mark.parametrize("kept", [0, 1])
def test_each_page_is_asked_for_by_itself(kept: int) -> None:
    names = [OTHER_LAYOUT.page("log", number).rpartition("/")[2] for number in (7, 9)]
    (finding,) = walked(names, [names[kept]]).findings
    assert (finding.where.path or "").endswith(names[kept])


# --- what a list says of itself


class Listed(SmallLog):
    """A small log whose page nodes can be listed."""

    def perform(self, effect: Effect) -> object:
        if isinstance(effect, ListNodes):
            below = LAYOUT.pages(NAME) + "/"
            return [path.removeprefix(below) for path in self.nodes if path.startswith(below)]
        return super().perform(effect)

    def walked(self) -> Walk:
        return self.run(walk_list(NAME, LAYOUT))

    def change(self, **changes: Any) -> None:
        self.meta = dataclasses.replace(self.meta, **changes)


def listed() -> Listed:
    """Segments 1 and 2 in a page below a page, 3 and 4 in a page, 5 to 7 in the list; 7 is open."""
    log = seven_segments()
    return Listed(log.meta, log.ledgers, log.closed, log.nodes)


LEAF_BELOW, LEAF, ABOVE = (
    LAYOUT.page(NAME, 1, 0),
    LAYOUT.page(NAME, 3, 0),
    LAYOUT.page(NAME, 1, 1),
)


def kinds(walk: Walk) -> list[Kind]:
    return [finding.kind for finding in walk.findings]


def test_a_sound_list_is_walked_from_its_oldest_segment_on() -> None:
    walk = listed().walked()
    assert [segment.number for segment in walk.segments] == [1, 2, 3, 4, 5, 6, 7]
    before = [None if each is None else each.number for each in walk.before]
    assert before == [None, 1, 2, 3, 4, 5, 6]
    assert walk.pages == {(1, 1), (0, 1), (0, 3)}
    assert (walk.findings, walk.not_checked, walk.doomed) == ([], [], set())
    assert walk.is_sound


@pytest.mark.parametrize("how", ["missing", "unreadable", "stale"])
@pytest.mark.parametrize(
    ("path", "known"),
    [(LEAF_BELOW, [3, 4, 5, 6, 7]), (LEAF, [1, 2, 5, 6, 7]), (ABOVE, [3, 4, 5, 6, 7])],
)
def test_a_lost_page_is_one_finding_and_what_stands_behind_it_is_none(
    path: str, known: list[int], how: str
) -> None:
    log = listed()
    if how == "missing":
        del log.nodes[path]
    elif how == "unreadable":
        log.nodes[path] = b"nonsense"
    else:  # it holds another segment or page than it is named for
        log.nodes[path] = log.nodes[path].replace(b'"bytes":', b'"bytes":1')
    ref = log.meta.pages[1 if path == LEAF else 0]
    walk = log.walked()
    (found,) = (each for each in walk.findings if each.is_damage)
    wanted = {"missing": Kind.PAGE_MISSING, "unreadable": Kind.PAGE_UNREADABLE}
    assert found.kind is wanted.get(how, Kind.PAGE_STALE)
    assert how != "stale" or "bytes is 1" in found.told
    assert (found.severity, found.action) == (Severity.BAD, Action.WRITE_PAGE)
    assert (found.where.log, found.where.path) == (NAME, path)
    assert (found.where.first_seq, found.where.next_seq) == (ref.base_seq, ref.next_seq)
    assert [segment.number for segment in walk.segments] == known
    behind = known.index(5 if path == LEAF else 3)
    assert walk.before[behind] is None, "nobody knows what it follows"
    assert not walk.is_sound


def test_a_segment_behind_a_lost_page_has_to_begin_where_the_page_ends() -> None:
    log = listed()
    del log.nodes[LEAF]
    first, second = log.meta.pages
    log.change(pages=(first, dataclasses.replace(second, next_seq=second.next_seq + 1)))
    assert kinds(log.walked()) == [Kind.PAGE_MISSING, Kind.LIST_BROKEN]


def test_a_page_of_pages_of_several_levels_is_stale() -> None:
    """Though all else that refers to it is as it says."""
    log = listed()
    leaves = [PageRef.of_segments(tuple(log.walked().segments[at : at + 2])) for at in (0, 2)]
    held = leaves[0], dataclasses.replace(leaves[1], level=1)
    log.nodes[ABOVE] = page_to_bytes(held)
    log.change(pages=(PageRef.of_pages(held),))
    found = next(each for each in log.walked().findings if each.is_damage)
    assert (found.kind, found.action) == (Kind.PAGE_STALE, Action.WRITE_PAGE)
    assert "pages of several levels" in found.told


@pytest.mark.parametrize(
    "wrong",
    [
        lambda end: {"base_seq": end.base_seq - 1},
        lambda end: {"base_seq": end.base_seq + 1},
        lambda end: {"next_seq": end.base_seq - 1},
        lambda end: {"last_time_us": end.first_time_us - 1},
        lambda end: {"first_time_us": end.last_time_us + 1},
    ],
)
def test_a_segment_continues_the_one_before_it_and_ends_behind_its_begin(wrong: Any) -> None:
    log = listed()
    fifth, *rest = log.meta.segments
    assert fifth.sealed is not None
    sealed = dataclasses.replace(fifth.sealed, **wrong(fifth.sealed))
    log.change(segments=(dataclasses.replace(fifth, sealed=sealed), *rest))
    walk = log.walked()
    assert walk.findings
    assert set(kinds(walk)) == {Kind.LIST_BROKEN}
    assert walk.findings[0].where.segment == 5
    assert walk.findings[0].where.ledger_id == 50


def test_a_segment_without_messages_and_time_is_sound() -> None:
    log = listed()
    empty = log.walked().segments[3].sealed
    assert empty is not None
    assert empty.base_seq == empty.next_seq
    assert empty.first_time_us == empty.last_time_us
    assert log.walked().is_sound


@pytest.mark.parametrize("behind", [(4, 50), (5, 40), (3, 55)])
def test_numbers_and_ledgers_rise_from_a_page_to_the_next(behind: tuple[int, int]) -> None:
    """Within one node they are checked by whoever reads it."""
    log = listed()
    fifth, *rest = log.meta.segments
    number, ledger_id = behind
    log.change(segments=(dataclasses.replace(fifth, number=number, ledger_id=ledger_id), *rest))
    walk = log.walked()
    assert kinds(walk)[0] is Kind.LIST_BROKEN
    assert "behind segment 4 on ledger 40" in walk.findings[0].told


@pytest.mark.parametrize("changes", [{"next_number": 7}, {"ledger_floor": 69}], ids=str)
def test_the_newest_segment_is_below_the_next_number_and_not_above_the_floor(
    changes: dict[str, int],
) -> None:
    log = listed()
    assert (log.meta.next_number, log.meta.ledger_floor) == (8, 70)
    log.change(**changes)
    (found,) = log.walked().findings
    assert found.kind is Kind.LIST_BROKEN
    assert (found.where.path, found.where.segment) == (LAYOUT.log(NAME), 7)


@pytest.mark.parametrize("name", ["number", "ledger_id", "last_entry", "next_seq"])
def test_the_log_ends_where_its_newest_sealed_segment_does(name: str) -> None:
    log = listed()
    end = log.meta.end
    log.change(end=dataclasses.replace(end, **{name: getattr(end, name) + 1}))
    (found,) = log.walked().findings
    assert found.kind is Kind.LIST_BROKEN
    assert (found.where.path, found.where.segment) == (LAYOUT.log(NAME), 6)


# --- what waits for its deletion


def doomed() -> Listed:
    """Its pages, and ledger 50, were truncated and wait for their deletion."""
    log = listed()
    log.change(
        pages=(),
        segments=log.meta.segments[1:],
        deleting=(Doomed(50, 0),),
        deleting_pages=(DoomedPage(1, 1, 0), DoomedPage(3, 0, 0)),
    )
    return log


def test_ledgers_that_wait_for_their_deletion_are_known() -> None:
    walk = doomed().walked()
    assert walk.doomed == {10, 20, 30, 40, 50}
    assert walk.pages == {(1, 1), (0, 1), (0, 3)}
    (found,) = walk.findings
    assert (found.kind, found.severity) == (Kind.WAITS_FOR_DELETION, Severity.NOTE)
    assert found.told.startswith("1 ledgers and 2 pages")
    assert walk.is_sound


def test_a_page_that_is_deleted_already_is_no_finding() -> None:
    log = doomed()
    del log.nodes[LEAF]
    walk = log.walked()
    assert walk.doomed == {10, 20, 50}
    assert kinds(walk) == [Kind.WAITS_FOR_DELETION]


@pytest.mark.parametrize("path", [LEAF, ABOVE, LEAF_BELOW])
def test_a_page_that_waits_for_its_deletion_and_cannot_be_read_is_to_be_deleted(path: str) -> None:
    log = doomed()
    log.nodes[path] = b"nonsense"
    found = next(each for each in log.walked().findings if each.kind is Kind.PAGE_UNREADABLE)
    assert (found.where.path, found.action) == (path, Action.DELETE_PAGE)


@pytest.mark.parametrize(
    ("deleting", "pages"), [((Doomed(5, 0),), ()), ((), (DoomedPage(3, 0, 0),)), ((), ())]
)
def test_what_waits_is_noted_if_there_is_any(deleting: Any, pages: Any) -> None:
    log = listed()
    log.change(deleting=deleting, deleting_pages=pages)
    assert (Kind.WAITS_FOR_DELETION in kinds(log.walked())) == bool(deleting or pages)


# --- nodes that nothing refers to


def unused(log: Listed, number: int, level: int = 0) -> Finding:
    path = LAYOUT.page(NAME, number, level)
    log.nodes[path] = b"of somebody"
    (found,) = (each for each in log.walked().findings if each.where.path == path)
    assert found.kind is Kind.PAGE_UNUSED
    return found


@pytest.mark.parametrize("level", [0, 1])
def test_a_page_below_the_head_can_be_deleted_and_another_may_be_about_to_be_named(
    level: int,
) -> None:
    log = listed()
    log.change(pages=log.meta.pages[1:])
    log.nodes.clear()
    log.nodes.update(listed().nodes)
    del log.nodes[LEAF_BELOW], log.nodes[ABOVE]
    below, at_head, above = (unused(log, number, level) for number in (2, 4 - level, 5))
    assert (below.severity, below.action) == (Severity.WARNING, Action.DELETE_PAGE)
    for each in (at_head, above):
        assert (each.severity, each.action) == (Severity.NOTE, None)


def test_a_page_at_the_head_of_a_list_without_pages_may_be_about_to_be_named() -> None:
    log = listed()
    log.change(pages=())
    log.nodes.clear()
    assert unused(log, 4).action is Action.DELETE_PAGE
    assert unused(log, 5).action is None
    log.change(segments=())
    assert unused(log, 7).action is Action.DELETE_PAGE
    assert unused(log, 8).action is None


@pytest.mark.parametrize("state", [LogState.DELETING, LogState.DELETED])
def test_pages_of_a_log_that_was_removed_can_be_deleted(state: LogState) -> None:
    log = listed()
    log.change(state=state)
    assert unused(log, 9).action is Action.DELETE_PAGE


@pytest.mark.parametrize("name", ["page", "0000000007x", "7", "0000000007.0", "0000000007."])
def test_a_node_with_another_name_is_left_alone(name: str) -> None:
    log = listed()
    path = f"{LAYOUT.pages(NAME)}/{name}"
    log.nodes[path] = b""
    (found,) = log.walked().findings
    assert (found.kind, found.severity, found.action) == (Kind.PAGE_UNUSED, Severity.NOTE, None)
    assert found.where.path == path


# --- beside others


class Restless(Listed):
    """Of another version each time it is read, up to a last one."""

    versions = 0
    last_version = 0

    def perform(self, effect: Effect) -> object:
        found = super().perform(effect)
        if isinstance(effect, ReadNode) and effect.path == LAYOUT.log(NAME):
            assert isinstance(found, Versioned)
            self.versions += 1
            return Versioned(found.value, min(self.versions, self.last_version))
        return found


def restless(last_version: int) -> Restless:
    log = listed()
    found = Restless(log.meta, log.ledgers, log.closed, log.nodes)
    found.last_version = last_version
    del found.nodes[LEAF]
    return found


def test_damage_counts_if_the_list_stays_the_same_while_it_is_read() -> None:
    walk = restless(3).walked()
    assert kinds(walk) == [Kind.PAGE_MISSING]
    assert walk.not_checked == []


def test_a_list_that_never_stays_the_same_is_not_checked() -> None:
    walk = restless(1_000).walked()
    assert walk.findings == []
    (left,) = walk.not_checked
    assert left.where.log == NAME
    assert not walk.is_sound
    assert [segment.number for segment in walk.segments] == [1, 2, 5, 6, 7]


def test_a_node_that_cannot_be_read_is_told_and_its_log_is_not_walked() -> None:
    log = listed()
    log.nodes[LAYOUT.log(NAME)] = b"nonsense"

    class Unreadable(Listed):
        def perform(self, effect: Effect) -> object:
            if isinstance(effect, ReadNode):
                return Versioned(self.nodes[effect.path], 1)
            return super().perform(effect)

    walk = Unreadable(log.meta, log.ledgers, log.closed, log.nodes).walked()
    assert kinds(walk) == [Kind.META_UNREADABLE]
    assert (walk.seen, walk.segments) == (None, [])

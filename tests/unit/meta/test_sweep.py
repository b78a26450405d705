"""Bringing a list up to its truncation point, for each point of many shapes of pages: what
leaves the list, what waits for its deletion, and which pages are left."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import limits
from dlog.effects import CreateNode, DeleteNode, Effect, Pause, ReplaceNode
from dlog.errors import AlreadyExists, NotFound
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Point, Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_from_bytes, refs_from_bytes
from dlog.meta.sweep import Site, foresee, shorten, sweep
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog


class NoChance:
    def fraction(self) -> float:
        return 0.0

    def token(self) -> str:
        return "token"


SITE = Site(NAME, Layout(), "uid", NoChance())
COUNT, NOW_US = 9, 77


class Swept(SmallLog):
    """Also written to."""

    def perform(self, effect: Effect) -> Any:
        match effect:
            case ReplaceNode(path=path, value=value) if path == LAYOUT.log(NAME):
                self.meta = LogMeta.from_bytes(value, where=path)
                return 1
            case CreateNode(path=path, value=value):
                if path in self.nodes:
                    raise AlreadyExists(path)
                self.nodes[path] = value
                return 1
            case DeleteNode(path=path):
                if self.nodes.pop(path, None) is None:
                    raise NotFound(path)
                return None
            case Pause():
                return None
            case _:
                return super().perform(effect)


def paged(shape: str) -> Swept:
    """Nine sealed segments of five messages, one of them without any, and one that is written.
    Each digit moves as many to a page; `a` puts two pages into one above them."""
    log = Swept()
    seq = 0
    for number in range(1, COUNT + 1):
        end = seq if number == 4 else seq + 5
        log.meta = log.meta.listed(10 * number)
        log.meta = log.meta.sealed(number, Sealed(9, 100, seq, end, seq, end))
        seq = end
    for each in shape:
        if each == "a":
            log.page_of_pages(2)
        else:
            log.page(int(each))
    log.meta = log.meta.listed(10 * (COUNT + 1))
    return log


def segments_of(log: Swept) -> list[Segment]:
    """In pages and in the node."""
    found: list[Segment] = []

    def below(ref: PageRef) -> None:
        path = LAYOUT.page(NAME, ref.number, ref.level)
        if ref.level == 0:
            held = page_from_bytes(log.nodes[path], where=path)
            assert PageRef.of_segments(held) == ref
            found.extend(held)
            return
        refs = refs_from_bytes(log.nodes[path], where=path)
        assert PageRef.of_pages(refs) == ref
        for each in refs:
            below(each)

    for ref in log.meta.pages:
        below(ref)
    return [*found, *log.meta.segments]


def ledgers_waiting(log: Swept) -> set[int]:
    waiting = {each.ledger_id for each in log.meta.deleting}
    for doomed in log.meta.deleting_pages:
        todo = [(doomed.level, doomed.number)]
        while todo:
            level, number = todo.pop()
            raw = log.nodes[LAYOUT.page(NAME, number, level)]
            if level == 0:
                waiting |= {each.ledger_id for each in page_from_bytes(raw, where="")}
            else:
                todo += [(each.level, each.number) for each in refs_from_bytes(raw, where="")]
    return waiting


def nodes_named(log: Swept) -> set[str]:
    named = set()
    todo = [(ref.level, ref.number) for ref in log.meta.pages]
    todo += [(doomed.level, doomed.number) for doomed in log.meta.deleting_pages]
    while todo:
        level, number = todo.pop()
        path = LAYOUT.page(NAME, number, level)
        named.add(path)
        if level > 0:
            below = refs_from_bytes(log.nodes[path], where="")
            todo += [(each.level, each.number) for each in below]
    return named


POINTS = [
    *(Point(seq) for seq in range(42)),
    *(Point(0, ledger_id, 5, 1) for ledger_id in range(5, 105, 5)),
    Point(12, 60, 0, 0),
    Point(36, 20, 0, 0),
]


@pytest.mark.parametrize("shape", ["", "2", "9", "33", "33a", "333a", "1111aa", "2222aa", "12a3"])
def test_what_is_covered_leaves_the_list_and_nothing_else(shape: str) -> None:
    for point in POINTS:
        log = paged(shape)
        before = segments_of(log)
        log.truncate(point)
        planned = log.run(foresee(SITE, Seen(log.meta, 1), log.meta, NOW_US))
        seen = log.run(sweep(SITE, Seen(log.meta, 1), NOW_US))
        assert seen.meta == log.meta == planned, (shape, point)
        left = segments_of(log)
        gone = before[: len(before) - len(left)]
        assert before[len(gone) :] == left
        for segment in gone:  # one without messages may leave with the page that it is in
            end = segment.sealed
            assert end is not None
            assert point.covers(segment) or end.base_seq == end.next_seq <= point.seq
        assert not point.covers(left[0]), (shape, point)
        assert ledgers_waiting(log) == {segment.ledger_id for segment in gone}
        assert {each.since_us for each in log.meta.deleting} <= {NOW_US}
        assert set(log.nodes) == nodes_named(log), "no page is left that nothing names"
        log.asked.clear()
        again = log.run(sweep(SITE, seen, NOW_US + 5))
        assert again.meta == seen.meta
        assert not any(isinstance(each, ReplaceNode) for each in log.asked)


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_no_more_leaves_a_page_than_has_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """All of what a page loses at once, or nothing."""
    monkeypatch.setattr(limits, "META_DELETING_MAX", room)
    log = paged("9")
    log.truncate(Point(10))  # two segments of the page
    log.run(sweep(SITE, Seen(log.meta, 1), NOW_US))
    assert len(log.meta.deleting) == (2 if room >= 2 else 0)


@pytest.mark.parametrize("kept_from", range(1, COUNT + 2))
@pytest.mark.parametrize("shape", ["9", "33", "33a", "333a"])
def test_what_is_kept_from_a_number_on_stays_in_its_page(shape: str, kept_from: int) -> None:
    log = paged(shape)
    for point in (Point(14), Point(20), Point(33), Point(0, 65, 0, 0)):
        first = log.meta.pages[0]
        cut = log.run(shorten(SITE, first, point, kept_from))
        held = [
            each for each in segments_of(log) if first.number <= each.number <= first.last_number
        ]
        if cut is None:
            stay = held
        else:
            pages = [ref.number for ref in cut.by]
            stay = [each for each in held if pages and each.number >= pages[0]]
            assert {each.number for each in held if each.ledger_id in cut.gone} <= set(
                range(1, kept_from)
            )
        assert all(each in stay for each in held if each.number >= kept_from), (point, cut)
        assert all(each in stay for each in held if not point.covers(each) and each.number != 4)


def test_a_log_that_was_made_anew_is_not_swept() -> None:
    log = paged("3")
    log.truncate(Point(10))
    another = Site(NAME, Layout(), "another", NoChance())
    with pytest.raises(NotFound, match="was removed"):
        log.run(sweep(another, Seen(log.meta, 1), NOW_US))

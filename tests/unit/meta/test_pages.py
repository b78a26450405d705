"""History of any length behind a small node: when pages are cut, what they hold, how they are found
again, and what is left of them behind a truncation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.effects import Procedure, ReadNode
from dlog.errors import Broken, Corrupt, FormatError, NotFound
from dlog.meta.layout import Layout
from dlog.meta.listed import Doomed, DoomedPage, PageRef, Point, Sealed, Segment, WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import (
    Held,
    page_from_bytes,
    page_to_bytes,
    refs_from_bytes,
    refs_of,
    segments_of,
)
from dlog.meta.store import Versioned
from dlog.options import LogOptions
from dlog.reader.segments import SegmentView
from tests.tiers import in_full

VECTORS = Path(__file__).parents[2] / "vectors" / "log_meta"
MARK = WriterMark("token-a", "ada@host:1", 1_700_000_000_000_000)
LAYOUT = Layout()
PATH = LAYOUT.log("orders")


class Log:
    """A log that only rotates: ten messages a segment, in ledgers 10, 20, 30 …"""

    def __init__(self) -> None:
        self.meta = LogMeta("uid-1", LogOptions()).claimed(MARK)
        self.nodes: dict[str, bytes] = {}
        self.written: dict[tuple[int, int], Held] = {}

    def rotate(self) -> None:
        meta = self.meta.listed(10 * self.meta.next_number)
        number, seq = meta.segments[-1].number, meta.end.next_seq
        meta = meta.sealed(number, Sealed(9, 100, seq, seq + 10, seq, seq + 9))
        planned = meta
        while (cut := planned.next_cut()) is not None:
            self.nodes[LAYOUT.page("orders", cut.ref.number, cut.ref.level)] = cut.to_bytes()
            self.written[cut.ref.level, cut.ref.number] = cut.held
            planned = planned.without(cut)
        self.meta = meta.paged(self.written)

    def ask(self, procedure: Procedure[Segment | None]) -> tuple[Segment | None, int]:
        """The answer, and how many nodes were read for it."""
        reads = 0
        answer: object = None
        try:
            effect = next(procedure)
            while True:
                assert isinstance(effect, ReadNode)
                reads += 1
                if effect.path in self.nodes:
                    answer = Versioned(self.nodes[effect.path], len(self.nodes[PATH]))
                    effect = procedure.send(answer)
                else:
                    effect = procedure.throw(NotFound(f"no {effect.path}"))
        except StopIteration as stop:
            return stop.value, reads

    def view(self) -> SegmentView:
        self.nodes[PATH] = self.meta.to_bytes()
        view = SegmentView("orders", LAYOUT)
        self.ask(view.refresh())  # type: ignore[arg-type]
        return view


def rotated(times: int) -> Log:
    log = Log()
    for _ in range(times):
        log.rotate()
    return log


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 3)
    return 3


def test_a_page_is_cut_at_twice_its_size_and_takes_the_oldest(small_pages: int) -> None:
    assert rotated(5).meta.pages == ()
    log = rotated(6)
    (ref,) = log.meta.pages
    assert ref == PageRef(1, 3, 0, 30, 0, 29, 10, 30, 3, 300)
    assert [segment.number for segment in log.meta.segments] == [4, 5, 6]


def test_pages_of_pages(small_pages: int) -> None:
    log = rotated(21)  # six pages, and three segments
    assert [(ref.level, ref.number, ref.last_number) for ref in log.meta.pages] == [
        (1, 1, 9),
        (0, 10, 12),
        (0, 13, 15),
        (0, 16, 18),
    ]
    top = log.meta.pages[0]
    assert (top.segments, top.bytes, top.base_seq, top.next_seq) == (9, 900, 0, 90)
    path = LAYOUT.page("orders", 1, 1)
    assert path.endswith("/pages/0000000001.1")
    assert [ref.number for ref in refs_from_bytes(log.nodes[path], where=path)] == [1, 4, 7]


def test_what_is_not_sealed_is_not_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 1)
    assert LogMeta("u", LogOptions()).listed(1).listed(2).next_cut() is None


def test_a_page_that_was_not_written_is_not_named(small_pages: int) -> None:
    log = rotated(5)
    meta = log.meta.listed(60)
    meta = meta.sealed(6, Sealed(9, 100, 50, 60, 50, 59))
    assert meta.paged({}) is meta
    cut = meta.next_cut()
    assert cut is not None
    key = cut.ref.level, cut.ref.number
    assert meta.paged({key: cut.held}).pages
    assert meta.paged({key: cut.held[:-1]}) is meta, "it says something else than the list"


@given(st.integers(1, 200), st.integers(1, 220))
def test_every_segment_is_found_and_the_node_stays_small(count: int, wanted: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "META_PAGE_ITEMS", 3)
        log = rotated(count)
        levels = 1 + max((ref.level for ref in log.meta.pages), default=0)
        assert len(log.meta.segments) < 2 * 3
        assert len(log.meta.pages) < levels * 2 * 3
        view = log.view()
        found, reads = log.ask(
            view.find(lambda s: s.number >= wanted, lambda p: p.last_number >= wanted)
        )
        assert found == (log_segment(wanted) if wanted <= count else None)
        assert reads <= levels
        later, _ = log.ask(view.after(wanted - 1))
        assert later == found
        earlier, _ = log.ask(view.before(wanted))
        assert earlier == (log_segment(min(wanted - 1, count)) if wanted > 1 else None)
        first, _ = log.ask(log.view().first())
        assert first == log_segment(1)


def log_segment(number: int) -> Segment:
    seq = 10 * (number - 1)
    return Segment(number, 10 * number, 1, Sealed(9, 100, seq, seq + 10, seq, seq + 9))


@pytest.mark.parametrize("segments", in_full((20_000, 100_000), but=(20_000,), seconds=5))
def test_a_hundred_thousand_segments_fit_into_a_small_node(segments: int) -> None:
    """DL flaw 6: no node outgrows what a metadata store takes well, and none has to be written anew
    for what is long past."""
    log = rotated(segments)
    view = log.view()
    sizes = {path: len(raw) for path, raw in log.nodes.items()}
    assert sizes[PATH] < 64 << 10
    assert max(sizes.values()) < 64 << 10
    found, reads = log.ask(view.find(lambda s: s.number >= 4711, lambda p: p.last_number >= 4711))
    assert found == log_segment(4711)
    assert reads == 2


def test_a_view_keeps_few_pages(small_pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.reader.segments.PAGES_KEPT", 2)
    log = rotated(40)
    view = log.view()
    for number in range(1, 41):
        assert log.ask(view.after(number - 1))[0] == log_segment(number)
    assert len(view._pages) == 2


def test_a_page_that_a_truncation_replaced_is_looked_for_in_the_newest_list(
    small_pages: int,
) -> None:
    log = rotated(6)
    view = log.view()
    log.meta = log.meta.truncated(Point(seq=30)).swept(7)
    log.nodes[PATH] = log.meta.to_bytes()
    del log.nodes[LAYOUT.page("orders", 1)]
    assert log.ask(view.after(0))[0] == log_segment(4)


def test_a_page_that_is_missing_is_damage(small_pages: int) -> None:
    log = rotated(6)
    del log.nodes[LAYOUT.page("orders", 1)]
    with pytest.raises(Corrupt, match="a page of its list is missing"):
        log.ask(log.view().first())


# --- the other end


def test_what_is_wholly_before_the_point_waits_for_its_deletion(small_pages: int) -> None:
    log = rotated(21)
    meta = log.meta.truncated(Point(seq=125)).swept(7)
    assert meta.deleting_pages == (DoomedPage(1, 1, 7), DoomedPage(10, 0, 7))
    assert [ref.number for ref in meta.pages] == [13, 16]
    assert meta.deleting == ()  # segment 13 of the next page holds seq 125
    everything = meta.truncated(Point(seq=210)).swept(8)
    assert (everything.pages, everything.segments) == ((), ())
    assert [doomed.ledger_id for doomed in everything.deleting] == [190, 200, 210]
    assert everything.end == log.meta.end


@pytest.mark.parametrize("field", ["next_seq", "bytes", "segments"])
def test_a_page_that_says_something_else_is_refused(small_pages: int, field: str) -> None:
    log = rotated(21)
    above, ref = log.meta.pages[0], log.meta.pages[-1]
    assert (above.level, ref.level) == (1, 0)
    for of, page in ((refs_of, above), (segments_of, ref)):
        raw = log.nodes[LAYOUT.page("orders", page.number, page.level)]
        assert of(page, raw, where="a page")  # type: ignore[operator]
        other = dataclasses.replace(page, **{field: getattr(page, field) + 1})
        with pytest.raises(Corrupt, match="something else"):
            of(other, raw, where="a page")  # type: ignore[operator]


def test_a_point_by_id_sweeps_what_is_before_that_ledger(small_pages: int) -> None:
    meta = rotated(5).meta.truncated(Point(0, 30, 4, 1)).swept(7)
    assert [doomed.ledger_id for doomed in meta.deleting] == [10, 20]
    behind_its_end = rotated(5).meta.truncated(Point(0, 30, 10, 0)).swept(7)
    assert behind_its_end.deleting[-1] == Doomed(20, 7), "the list may be wrong about that end"


def test_the_numbers_of_producers_outlive_a_truncation_of_everything(small_pages: int) -> None:
    """The newest sealed segment with messages holds their table, and what is behind it may have
    nothing but a seam; so does the newest page, if no segment behind it has messages."""
    log = rotated(5).meta.numbered()
    meta = log.truncated(Point(seq=50)).swept(7)
    assert [segment.number for segment in meta.segments] == [5]
    for ledger_id in (60, 70):
        number, seq = meta.next_number, meta.end.next_seq
        meta = meta.listed(ledger_id).sealed(number, Sealed(1, 100, seq, seq, seq, seq))
    meta = meta.swept(8)
    assert [segment.number for segment in meta.segments] == [5, 6, 7]
    meta = meta.listed(80).sealed(8, Sealed(9, 100, 50, 51, 50, 50))
    assert [segment.number for segment in meta.swept(9).segments] == [6, 7, 8], "5 alone had any"
    assert [segment.number for segment in meta.swept(9).truncated(Point(seq=51)).swept(9).segments]
    ended = dataclasses.replace(meta, state=LogState.TERMINATED).truncated(Point(seq=51))
    assert ended.swept(9).segments == ()
    empty = tuple(
        dataclasses.replace(each, sealed=Sealed(1, 100, 210, 210, 0, 0))
        for each in rotated(21).meta.segments
    )
    paged = dataclasses.replace(rotated(21).meta.numbered(), segments=empty)
    swept = paged.truncated(Point(seq=210)).swept(9)
    assert [ref.number for ref in swept.pages] == [paged.pages[-1].number]
    assert swept.segments == empty


def test_a_point_never_goes_back() -> None:
    point = Point(5, 9, 1, 0).joined(Point(3, 12, 0, 0))
    assert point == Point(5, 12, 0, 0)
    assert point.joined(Point()) == point
    assert point.is_past(4, 99, 0, 0)
    assert point.is_past(99, 11, 99, 0)
    assert not point.is_past(5, 12, 0, 0)


def test_an_open_segment_is_never_swept() -> None:
    meta = LogMeta("u", LogOptions()).claimed(MARK).listed(1).truncated(Point(seq=1_000)).swept(7)
    assert [segment.ledger_id for segment in meta.segments] == [1]


def test_no_more_waits_for_deletion_than_the_node_has_room_for(
    monkeypatch: pytest.MonkeyPatch, small_pages: int
) -> None:
    monkeypatch.setattr(limits, "META_DELETING_MAX", 2)
    monkeypatch.setattr(limits, "META_DELETING_PAGES_MAX", 1)
    log = rotated(21)
    meta = log.meta.truncated(Point(seq=210)).swept(7)
    assert meta.deleting_pages == (DoomedPage(1, 1, 7),)
    meta = meta.forgotten((), {(1, 1)}).swept(8).forgotten((), {(0, 10)}).swept(9)
    meta = meta.forgotten((), {(0, 13)}).swept(10).forgotten((), {(0, 16)}).swept(11)
    assert [doomed.ledger_id for doomed in meta.deleting] == [190, 200]
    assert [segment.number for segment in meta.segments] == [21]
    assert meta.forgotten({190}, ()).swept(12).segments == ()


def test_only_the_first_page_is_trimmed(small_pages: int) -> None:
    meta = rotated(21).meta
    with pytest.raises(Broken, match="only the first page"):
        meta.trimmed(meta.pages[1], (), (), (), 7)


# --- bytes


@pytest.mark.parametrize("newer", [2, 0, -1])
def test_another_format_is_refused(newer: int) -> None:
    raw = page_to_bytes((log_segment(1),)).replace(b'"format":1', b'"format":%d' % newer)
    with pytest.raises(FormatError, match=f"format {newer}"):
        page_from_bytes(raw, where="page")


def test_a_page_of_pages_has_the_bytes_of_its_vector() -> None:
    refs = (
        PageRef(1, 3, 0, 30, 0, 29, 10, 30, 3, 300),
        PageRef(4, 6, 30, 60, 30, 59, 40, 60, 3, 300),
    )
    raw = (VECTORS / "page_of_pages.json").read_bytes()
    assert page_to_bytes(refs) == raw
    assert refs_from_bytes(raw, where="vector") == refs


def test_pages_of_one_kind_are_not_taken_for_the_other() -> None:
    ref = PageRef(1, 3, 0, 30, 0, 29, 10, 30, 3, 300)
    with pytest.raises(FormatError, match="sealed segments only"):
        page_from_bytes(page_to_bytes((ref,)), where="page")
    with pytest.raises(FormatError, match="pages only"):
        refs_from_bytes(page_to_bytes((log_segment(1),)), where="page")


def test_pages_out_of_order_are_refused() -> None:
    ref = PageRef(1, 3, 0, 30, 0, 29, 10, 30, 3, 300)
    later = dataclasses.replace(ref, number=3)
    with pytest.raises(FormatError, match="does not follow"):
        refs_from_bytes(page_to_bytes((ref, later)), where="page")

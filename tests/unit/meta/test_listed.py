"""What the list of a log says: what a truncation point covers, entry by entry and page by page,
beside a look at each message; and what the reference to a page sums up."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from dlog.errors import FormatError
from dlog.meta.listed import (
    ANY_TIME,
    CopyOf,
    PageRef,
    Point,
    Sealed,
    Segment,
    refs_from,
    segment_fields,
    segments_from,
)
from tests.unit.reader.small_log import seven_segments

LOG = seven_segments()
LEDGERS = sorted(LOG.ledgers)
POINTS = [
    Point(seq, ledger_id, entry_id, idx)
    for seq in (0, 1, 2, 6, 7, 20, 47, 48)
    for ledger_id, entry_id, idx in [
        (-1, -1, 0),
        (10, 2, 0),
        (10, 2, 1),
        (10, 3, 2),
        (15, 0, 0),
        (30, 4, 1),
        (40, 1, 0),
        (40, 2, 0),
        (70, 2, 1),
        (70, 5, 0),
        (70, 99, 0),
    ]
]


def test_the_first_messages_of_an_entry_that_are_before_a_point_are_cut() -> None:
    for point in POINTS:
        of_entry = itertools.groupby(LOG.messages, lambda m: (m.id.ledger_id, m.id.entry_id))
        for (ledger_id, entry_id), group in of_entry:
            messages = list(group)
            gone = [point.is_past(each.seq, *each.id) for each in messages]
            assert gone == sorted(gone, reverse=True)
            count = len(messages)
            assert point.cut(messages[0].seq, ledger_id, entry_id, count) == sum(gone)


def test_a_message_is_past_by_its_seq_or_by_its_id() -> None:
    for point in POINTS:
        for each in LOG.messages:
            by_id = tuple(each.id) < (point.ledger_id, point.entry_id, point.batch_idx)
            assert point.is_past(each.seq, *each.id) == (each.seq < point.seq or by_id)


def test_a_segment_is_covered_when_nothing_is_left_of_it() -> None:
    view = LOG.view()
    for number in range(1, 8):
        segment = LOG.run(view.find(lambda s: s.number == number, lambda p: True))  # noqa: B023
        assert segment is not None
        end = segment.sealed
        for point in POINTS:
            if end is None:
                assert not point.covers(segment)
            elif end.next_seq == end.base_seq:  # without messages, and no head behind it by seq
                by_seq = end.next_seq < point.seq
                assert point.covers(segment) == (by_seq or segment.ledger_id < point.ledger_id)
            else:
                by_seq = end.next_seq <= point.seq
                assert point.covers(segment) == (by_seq or segment.ledger_id < point.ledger_id)


def of(*segments: tuple[int, int, int]) -> tuple[Segment, ...]:
    """Sealed segments of these ledgers, from seq to seq."""
    return tuple(
        Segment(i, ledger_id, 1, Sealed(9, 10 * i, base, end, 100 * base, 100 * end - 1))
        for i, (ledger_id, base, end) in enumerate(segments, 1)
    )


def _is_empty_at(segment: Segment, seq: int) -> bool:
    end = segment.sealed
    return end is not None and end.base_seq == end.next_seq == seq


SEGMENTS = of((10, 0, 5), (20, 5, 5), (30, 5, 9), (44, 9, 20))


def test_a_page_is_covered_when_each_of_its_segments_is_and_reached_when_one_may_be() -> None:
    points = [Point(seq) for seq in range(22)]
    points += [
        Point(0, ledger_id, entry_id, 0) for ledger_id in range(9, 47) for entry_id in (0, 5)
    ]
    points += [Point(9, 30, 0, 0), Point(5, 31, 0, 0)]
    for first, end in itertools.combinations(range(len(SEGMENTS) + 1), 2):
        held = SEGMENTS[first:end]
        ref = PageRef.of_segments(held)
        for point in points:
            covered = [point.covers(each) for each in held]
            # An empty segment at the head stays by itself, and goes with the page that it is in.
            left = [each for each, gone in zip(held, covered, strict=True) if not gone]
            empty_at_head = all(_is_empty_at(each, point.seq) for each in left)
            by_id = ref.last_ledger < point.ledger_id
            assert point.covers_page(ref) == (
                by_id or (empty_at_head and point.seq > ref.base_seq and ref.next_seq <= point.seq)
            ), (point, ref)
            if any(covered):
                assert point.reaches_into(ref), (point, ref)
        assert not Point().reaches_into(ref)
        assert not Point().covers_page(ref)


def test_a_page_sums_up_what_it_holds() -> None:
    assert PageRef.of_segments(SEGMENTS) == PageRef(1, 4, 0, 20, 0, 1999, 10, 44, 4, 100)
    assert PageRef.of_segments(SEGMENTS[1:3]) == PageRef(2, 3, 5, 9, 500, 899, 20, 30, 2, 50)
    refs = PageRef.of_segments(SEGMENTS[:1]), PageRef.of_segments(SEGMENTS[1:])
    assert PageRef.of_pages(refs) == PageRef(1, 4, 0, 20, 0, 1999, 10, 44, 4, 100, level=1)
    above = PageRef.of_pages((PageRef.of_pages(refs),))
    assert above == dataclasses.replace(PageRef.of_pages(refs), level=2)


def test_of_two_points_either_truncates() -> None:
    for one, other in itertools.product(POINTS, repeat=2):
        joined = one.joined(other)
        assert joined == other.joined(one)
        for each in LOG.messages[::5]:
            at = each.seq, *each.id
            assert joined.is_past(*at) == (one.is_past(*at) or other.is_past(*at))


def test_only_what_a_job_published_counts_as_written_at_a_time_of_its_own() -> None:
    sealed = Sealed(3, 10, 0, 5, 70, 90)
    assert Segment(1, 10, 1, sealed, is_job=True).not_before_us == 70
    assert Segment(1, 10, 1, sealed).not_before_us == ANY_TIME
    assert Segment(1, 10, 1).not_before_us == ANY_TIME


def test_a_copy_is_gone_on_with_until_somebody_opened_it_for_messages_of_their_own() -> None:
    assert CopyOf("uid", "orders", 5).may_go_on("uid")
    assert not CopyOf("uid", "orders", 5).may_go_on("another")
    assert not CopyOf("uid", "orders", 5, 0).may_go_on("uid")


@pytest.mark.parametrize("field", ["number", "ledger_id"])
def test_segments_rise(field: str) -> None:
    fields = [segment_fields(each) for each in SEGMENTS[:2]]
    assert segments_from(fields, "here") == SEGMENTS[:2]
    fields[1][field] = fields[0][field]
    with pytest.raises(FormatError, match=r"here: segment \d does not follow"):
        segments_from(fields, "here")


def test_what_is_sealed_does_not_stand_behind_what_is_not() -> None:
    fields = [segment_fields(each) for each in SEGMENTS[:2]]
    open_one = segment_fields(Segment(1, 10, 1))
    with pytest.raises(FormatError, match="segment 2 is sealed before 1"):
        segments_from([open_one, fields[1]], "here")
    open_behind = segment_fields(Segment(2, 20, 1))
    assert len(segments_from([fields[0], open_behind], "here")) == 2
    assert len(segments_from([open_one, open_behind], "here")) == 2


@pytest.mark.parametrize("field", ["number", "first_ledger"])
def test_pages_rise(field: str) -> None:
    refs = [
        dataclasses.asdict(PageRef.of_segments(SEGMENTS[:2])),
        dataclasses.asdict(PageRef.of_segments(SEGMENTS[2:])),
    ]
    assert len(refs_from(refs, "here")) == 2
    refs[1][field] = refs[0][field.replace("number", "last_number").replace("first", "last")]
    with pytest.raises(FormatError, match=r"here: page \d does not follow 1"):
        refs_from(refs, "here")


def test_a_job_is_sealed_and_says_so() -> None:
    fields = segment_fields(dataclasses.replace(SEGMENTS[0], is_job=True))
    assert fields["job"] is True
    assert segments_from([fields], "here")[0].is_job
    for wrong in ({**fields, "job": False}, {**segment_fields(Segment(1, 10, 1)), "job": True}):
        with pytest.raises(FormatError, match="a segment of a job"):
            segments_from([wrong], "here")

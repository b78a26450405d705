"""A page is proven by every field of what refers to it, or not at all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.fsck.rebuild import (
    Told,
    find_ref,
    proven_refs,
    proven_segments,
    refs_below,
    told_by,
)
from dlog.effects import Effect, ReadNode
from dlog.errors import Unavailable
from dlog.meta.listed import PageRef, Sealed, Segment
from dlog.wire.batch import Birth, ControlKind, Seam, encode, encode_control
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog, seven_segments


def told(
    number: int, *, ledger_id: int | None = None, before: tuple[int, int] | None = None
) -> Told:
    ledger_id = 10 * number if ledger_id is None else ledger_id
    sealed = Sealed(4, 100, 3 * number, 3 * number + 3, number, number)
    segment = Segment(number, ledger_id, 1, sealed)
    return Told(segment, before or (10 * (number - 1), 4))


CHAIN = [told(number) for number in range(1, 5)]
SEGMENTS = tuple(each.segment for each in CHAIN)
REF = PageRef.of_segments(SEGMENTS)


def test_a_chain_of_seams_from_end_to_end_is_proof() -> None:
    noise = [told(3, ledger_id=35), told(9), told(2, ledger_id=15)]
    assert proven_segments(REF, [*noise, *reversed(CHAIN)]) == SEGMENTS


@pytest.mark.parametrize("missing", range(4))
def test_a_gap_is_none(missing: int) -> None:
    assert proven_segments(REF, [*CHAIN[:missing], *CHAIN[missing + 1 :]]) is None


def test_a_seam_that_continues_another_end_is_none() -> None:
    cut = dataclasses.replace(CHAIN[2], predecessor=(20, 3))
    assert proven_segments(REF, [*CHAIN[:2], cut, CHAIN[3]]) is None


def test_a_seam_that_continues_itself_ends() -> None:
    knot = dataclasses.replace(CHAIN[2], predecessor=(30, 4))
    assert proven_segments(REF, [*CHAIN[:2], knot, CHAIN[3]]) is None


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(PageRef)])
def test_one_field_that_differs_is_no_proof(field: str) -> None:
    for other in (getattr(REF, field) + 1, getattr(REF, field) - 1):
        wrong = dataclasses.replace(REF, **{field: other})
        is_proven = field == "last_time_us" and other > REF.last_time_us
        assert (proven_segments(wrong, CHAIN) is not None) == is_proven
    above = PageRef.of_pages((REF,))
    assert proven_refs(above, [REF]) == (REF,)
    wrong = dataclasses.replace(above, **{field: getattr(above, field) + 1})
    assert proven_refs(wrong, [REF]) is None


def test_pages_below_prove_a_page_of_pages() -> None:
    first, second = PageRef.of_segments(SEGMENTS[:2]), PageRef.of_segments(SEGMENTS[2:])
    ref = PageRef.of_pages((first, second))
    other = dataclasses.replace(second, level=1)
    assert proven_refs(ref, [second, other, first]) == (first, second)
    assert proven_refs(ref, [first]) is None
    gap = dataclasses.replace(second, base_seq=second.base_seq + 1)
    assert proven_refs(ref, [first, gap]) is None


def test_a_segment_that_lost_its_end_was_listed_by_what_it_lost() -> None:
    """Its writer lists the time of the first message that was lost: no ledger has it."""
    later = dataclasses.replace(REF, last_time_us=REF.last_time_us + 7)
    proven = proven_segments(later, CHAIN)
    assert proven is not None
    assert PageRef.of_segments(proven) == later
    assert proven[:-1] == SEGMENTS[:-1]


def test_a_page_below_that_nobody_ever_named_is_passed_over() -> None:
    """Somebody cut the list elsewhere, and lost."""
    first, second = PageRef.of_segments(SEGMENTS[:2]), PageRef.of_segments(SEGMENTS[2:])
    ref = PageRef.of_pages((first, second))
    across = PageRef.of_segments(SEGMENTS[1:3])
    assert proven_refs(ref, [first, across, second]) == (first, second)
    assert proven_refs(ref, [first, across]) is None


def test_what_is_proven_reaches_from_the_first_ledger_to_the_last_one() -> None:
    """Ledgers of another run of the log, or a part of them, prove nothing."""
    assert proven_segments(REF, []) is None
    assert proven_segments(REF, [CHAIN[3]]) is None
    assert proven_segments(REF, CHAIN[1:]) is None
    (alone,) = (PageRef.of_segments(SEGMENTS[:1]),)
    assert proven_segments(alone, CHAIN) == SEGMENTS[:1]


def test_what_is_outside_of_the_page_is_no_part_of_its_proof() -> None:
    inner = PageRef.of_segments(SEGMENTS[1:3])
    assert proven_segments(inner, CHAIN) == SEGMENTS[1:3]
    refs = [PageRef.of_segments((segment,)) for segment in SEGMENTS]
    assert proven_refs(PageRef.of_pages(tuple(refs[1:3])), refs) == tuple(refs[1:3])
    across = PageRef.of_segments(SEGMENTS[2:])  # it was cut elsewhere, and reaches too far
    assert proven_refs(PageRef.of_pages(tuple(refs[:2])), [*refs[:2], across]) == tuple(refs[:2])
    longer = PageRef.of_segments(SEGMENTS[1:])
    assert proven_refs(PageRef.of_pages((refs[1],)), [longer, refs[0]]) is None


# --- what a ledger says of itself


def control(kind: ControlKind, body: bytes, at_us: int) -> bytes:
    return b"".join(encode_control(kind, body, first_seq=0, timestamp_us=at_us))


BIRTH = control(ControlKind.BIRTH, Birth("u", "segment", 3, 7, "t").to_bytes(), 5)
SEAM = control(ControlKind.SEAM, Seam(20, 4, 100, 7, 3, "u").to_bytes(), 10)


def last(first_seq: int, count: int, at_us: int) -> bytes:
    return b"".join(encode([b"x"] * count, first_seq=first_seq, timestamp_us=at_us))


def test_a_ledger_tells_its_place_by_its_seam_and_its_end_by_its_last_entry() -> None:
    found = told_by(30, 999, 6, [BIRTH, SEAM, last(4, 3, 25)], "u")
    assert found is not None
    assert found.segment == Segment(3, 30, 7, Sealed(6, 999, 100, 107, 10, 25))
    assert found.predecessor == (20, 4)
    assert found.end == (30, 6)


def test_a_ledger_without_messages_ends_with_its_seam() -> None:
    found = told_by(30, 50, 1, [BIRTH, SEAM, SEAM], "u")
    assert found is not None
    assert found.segment.sealed == Sealed(1, 50, 100, 100, 10, 10)


@pytest.mark.parametrize(
    ("entries", "uid"),
    [
        ([SEAM, SEAM, last(0, 1, 20)], "u"),
        ([BIRTH, BIRTH, last(0, 1, 20)], "u"),
        ([BIRTH, last(0, 1, 20), last(0, 1, 20)], "u"),
        ([BIRTH, SEAM, last(0, 1, 20)], "v"),
    ],
    ids=["no birth", "no seam", "messages", "another log"],
)
def test_what_is_no_segment_of_the_log_tells_nothing(entries: list[bytes], uid: str) -> None:
    assert told_by(30, 999, 6, entries, uid) is None


# --- in the list


def found_at(log: SmallLog, path: str) -> PageRef | None:
    def is_wanted(ref: PageRef) -> bool:
        return LAYOUT.page(NAME, ref.number, ref.level) == path

    return log.run(find_ref(NAME, LAYOUT, log.meta, is_wanted))


def test_a_page_is_found_by_way_of_the_pages_above_it() -> None:
    log = seven_segments()
    above, leaf = log.meta.pages
    assert found_at(log, LAYOUT.page(NAME, 1, 1)) == above
    assert found_at(log, LAYOUT.page(NAME, 3, 0)) == leaf
    below = found_at(log, LAYOUT.page(NAME, 1, 0))
    assert below is not None
    assert (below.level, below.number, below.last_number) == (0, 1, 2)
    assert found_at(log, LAYOUT.page(NAME, 2, 0)) is None


@pytest.mark.parametrize("damage", [None, b"nonsense"])
def test_a_page_below_one_that_is_lost_is_not_found_and_all_others_are(
    damage: bytes | None,
) -> None:
    log = seven_segments()
    path = LAYOUT.page(NAME, 1, 1)
    if damage is None:
        del log.nodes[path]
    else:
        log.nodes[path] = damage
    assert found_at(log, LAYOUT.page(NAME, 1, 0)) is None
    for number, level in ((1, 1), (3, 0)):
        ref = found_at(log, LAYOUT.page(NAME, number, level))
        assert ref is not None
        assert (ref.number, ref.level) == (number, level)


def test_pages_that_can_be_read_tell_how_they_are_named() -> None:
    log = seven_segments()
    above, leaf = log.meta.pages
    log.nodes[LAYOUT.page(NAME, 9, 0)] = b"nonsense"
    found = log.run(refs_below(NAME, LAYOUT, 0, [1, 2, 3, 9]))
    assert [(each.number, each.last_number, each.level) for each in found] == [(1, 2, 0), (3, 4, 0)]
    assert found[1] == leaf
    assert log.run(refs_below(NAME, LAYOUT, 1, [1])) == [above]


def test_a_page_that_cannot_be_asked_for_now_is_not_passed_over() -> None:
    """It may be the one that the proof needs."""

    class Away(SmallLog):
        def perform(self, effect: Effect) -> Any:
            if isinstance(effect, ReadNode):
                raise Unavailable("the metadata store is away", missing="zookeeper")
            return super().perform(effect)

    with pytest.raises(Unavailable):
        Away().run(refs_below(NAME, LAYOUT, 0, [1]))

"""A page is proven by every field of what refers to it, or not at all."""

from __future__ import annotations

import dataclasses

import pytest

from dlog.admin.fsck.rebuild import Told, proven_refs, proven_segments
from dlog.meta.listed import PageRef, Sealed, Segment


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

"""What a page of the list must have said, proven by what is left.

A page is named by a reference that says how many segments it holds, from which number, ledger, seq
and time to which, and how many bytes in all. Closed ledgers of the log say the same of themselves:
number and epoch in their seams, where they continue which ledger, how far their last entry goes. If
the chain of seams leads from the first to the last, and its sum is the reference in every field,
then that is what stood there. A page of pages is proven by the pages below it in the same way.
Anything less is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dlog.effects import Procedure, ReadNode
from dlog.errors import DlogError, FormatError, NotFound
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_from_bytes, refs_from_bytes
from dlog.wire.batch import ControlKind, Seam, decode, decode_header
from dlog.writer.segments import BIRTH_ENTRY, SEAM_ENTRY


@dataclass(frozen=True, slots=True)
class Told:
    """What a closed ledger says of itself."""

    segment: Segment
    predecessor: tuple[int, int]

    @property
    def end(self) -> tuple[int, int]:
        assert self.segment.sealed is not None
        return self.segment.ledger_id, self.segment.sealed.last_entry


def told_by(
    ledger_id: int, closed_bytes: int, last_entry: int, entries: Sequence[bytes], uid: str
) -> Told | None:
    """From its birth, seam and last entry. None: it is no segment of this log."""
    where = f"ledger {ledger_id}"
    birth, seam_entry = decode(entries[0], where=where), decode(entries[1], where=where)
    if birth.control is not ControlKind.BIRTH or seam_entry.control is not ControlKind.SEAM:
        return None
    seam = Seam.from_bytes(seam_entry.control_body, where=where)
    if seam.log_uid != uid:
        return None
    last = decode_header(entries[2], where=where)
    sealed = Sealed(
        last_entry,
        closed_bytes,
        seam.base_seq,
        seam.base_seq + last.next_seq,
        seam_entry.base_timestamp_us,
        max(last.last_timestamp_us, seam_entry.base_timestamp_us),
    )
    segment = Segment(seam.number, ledger_id, seam.epoch, sealed)
    return Told(segment, (seam.predecessor_ledger, seam.predecessor_last))


ENTRIES_TOLD = (BIRTH_ENTRY, SEAM_ENTRY)


def proven_segments(ref: PageRef, told: Iterable[Told]) -> tuple[Segment, ...] | None:
    """The segments of a page of level 0, or None."""
    candidates = [each for each in told if ref.number <= each.segment.number <= ref.last_number]
    by_ledger = {each.segment.ledger_id: each for each in candidates}
    last = by_ledger.get(ref.last_ledger)
    chain: list[Segment] = []
    while last is not None:  # backwards: each says what it continues
        chain.append(last.segment)
        if last.segment.ledger_id == ref.first_ledger:
            break
        before = by_ledger.get(last.predecessor[0])
        if before is not None and before.end != last.predecessor:
            return None
        last = before
        if len(chain) > ref.segments:
            return None
    segments = tuple(reversed(chain))
    if last is None or not segments:
        return None
    segments = (*segments[:-1], _until(segments[-1], ref.last_time_us))
    return segments if PageRef.of_segments(segments) == ref else None


def _until(segment: Segment, time_us: int) -> Segment:
    """Who lost the end of what it had sent listed the time of the first message that was lost,
    which no ledger tells."""
    sealed = segment.sealed
    assert sealed is not None
    last_time_us = max(sealed.last_time_us, time_us)
    return replace(segment, sealed=replace(sealed, last_time_us=last_time_us))


def proven_refs(ref: PageRef, below: Iterable[PageRef]) -> tuple[PageRef, ...] | None:
    """The refs of a page of a higher level, or None. A page that does not continue the one before
    it was written by a writer that cut the list elsewhere, and died before the list named it."""
    by_number = {each.number: each for each in below if each.level == ref.level - 1}
    chain: list[PageRef] = []
    for number in sorted(by_number):
        each = by_number[number]
        if ref.number <= each.number and each.last_number <= ref.last_number:
            if chain and (
                each.base_seq != chain[-1].next_seq or each.number <= chain[-1].last_number
            ):
                continue
            chain.append(each)
    refs = tuple(chain)
    if not refs or PageRef.of_pages(refs) != ref:
        return None
    return refs


def find_ref(
    name: str, layout: Layout, meta: LogMeta, is_wanted: Callable[[PageRef], bool]
) -> Procedure[PageRef | None]:
    """The reference in the list, by way of pages that can be read."""
    waiting = list(meta.pages)
    while waiting:
        ref = waiting.pop()
        if is_wanted(ref):
            return ref
        if ref.level > 0:
            path = layout.page(name, ref.number, ref.level)
            try:
                node = yield ReadNode(path, fresh=False)
                waiting += refs_from_bytes(node.value, where=path)
            except (NotFound, FormatError):
                continue
    return None


def refs_below(
    name: str, layout: Layout, level: int, numbers: Iterable[int]
) -> Procedure[list[PageRef]]:
    """Those pages of a level as refs, as far as they can be read."""
    found: list[PageRef] = []
    for number in numbers:
        path = layout.page(name, number, level)
        try:
            node = yield ReadNode(path)
            if level > 0:
                found.append(PageRef.of_pages(refs_from_bytes(node.value, where=path)))
            else:
                found.append(PageRef.of_segments(page_from_bytes(node.value, where=path)))
        except DlogError as error:
            if not isinstance(error, (NotFound, FormatError)):
                raise
    return found

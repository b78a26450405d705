"""The pages of a log's history: immutable nodes of sealed segments, and pages of pages above them.

The log meta holds the newest segments itself. When they grow long, the oldest of them move to a
page, and when refs to pages grow long, the oldest of those move to a page of the next level: so
however long a log gets, its node stays small, and a search reads one page for each level. A page is
written before the node names it, and it is a pure function of what it holds, so that one that was
written by a try that lost its compare-and-set is the very page the next try needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog import limits
from dlog.errors import Corrupt, FormatError
from dlog.meta.json_fields import dump, flat, load, the_int, the_list
from dlog.meta.listed import PageRef, Segment, refs_from, segment_fields, segments_from

FORMAT = 1


Held = tuple[Segment, ...] | tuple[PageRef, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """What the next page holds: refs `first` … `last - 1` of the meta, or as many segments."""

    ref: PageRef
    held: Held
    first: int = 0

    def to_bytes(self) -> bytes:
        return page_to_bytes(self.held)


def next_cut(segments: tuple[Segment, ...], pages: tuple[PageRef, ...]) -> Cut | None:
    """The page that is due, lowest level first."""
    count = limits.META_PAGE_ITEMS
    if len(segments) >= 2 * count and all(s.sealed is not None for s in segments[:count]):
        held = segments[:count]
        return Cut(PageRef.of_segments(held), held)
    end = len(pages)
    while end > 0:  # runs of one level, from the newest on; those that a truncation left at the
        first = end - 1  # head may be of any level
        while first > 0 and pages[first - 1].level == pages[end - 1].level:
            first -= 1
        if end - first >= 2 * count:
            refs = pages[first : first + count]
            return Cut(PageRef.of_pages(refs), refs, first)
        end = first
    return None


def page_to_bytes(held: Held) -> bytes:
    segments = [segment_fields(each) for each in held if isinstance(each, Segment)]
    pages = [flat(each) for each in held if isinstance(each, PageRef)]
    return dump({"format": FORMAT, "segments": segments, "pages": pages})


def page_from_bytes(raw: bytes, *, where: str) -> tuple[Segment, ...]:
    """Of level 0."""
    fields = _fields(raw, where)
    segments = segments_from(the_list(fields, "segments", where), where)
    if not segments or any(segment.sealed is None for segment in segments) or fields["pages"]:
        raise FormatError(f"{where}: a page holds sealed segments only")
    return segments


def refs_from_bytes(raw: bytes, *, where: str) -> tuple[PageRef, ...]:
    """Of a page of a higher level."""
    fields = _fields(raw, where)
    refs = refs_from(the_list(fields, "pages", where), where)
    if not refs or fields.get("segments") != []:
        raise FormatError(f"{where}: a page of pages holds pages only")
    return refs


def segments_of(ref: PageRef, raw: bytes, *, where: str) -> tuple[Segment, ...]:
    """Of the page of level 0 that a reference names. `Corrupt` when it holds anything else than the
    reference says: what is not there would be skipped, and nobody the wiser."""
    held = page_from_bytes(raw, where=where)
    _refuse_another(ref, PageRef.of_segments(held), where)
    return held


def refs_of(ref: PageRef, raw: bytes, *, where: str) -> tuple[PageRef, ...]:
    """The same, of a higher level."""
    held = refs_from_bytes(raw, where=where)
    _refuse_another(ref, PageRef.of_pages(held), where)
    return held


def _refuse_another(ref: PageRef, found: PageRef, where: str) -> None:
    if found != ref:
        raise Corrupt(
            f"{where} holds something else than what refers to it says: segments {found.number} to "
            f"{found.last_number}, seqs {found.base_seq} to {found.next_seq - 1}, {found.bytes} "
            f"bytes, not segments {ref.number} to {ref.last_number}, seqs {ref.base_seq} to "
            f"{ref.next_seq - 1}, {ref.bytes} bytes; `dlog fsck` says what can be done"
        )


def _fields(raw: bytes, where: str) -> dict[str, object]:
    fields = load(raw, where)
    if the_int(fields, "format", where) != FORMAT:
        raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
    the_list(fields, "pages", where)
    return fields

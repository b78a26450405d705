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
from dlog.errors import FormatError
from dlog.meta.json_fields import dump, flat, load, the_int, the_list
from dlog.meta.listed import PageRef, Segment, refs_from, segment_fields, segments_from

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """What the next page holds: refs `first` … `last - 1` of the meta, or as many segments."""

    ref: PageRef
    held: tuple[Segment, ...] | tuple[PageRef, ...]
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


def page_to_bytes(held: tuple[Segment, ...] | tuple[PageRef, ...]) -> bytes:
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


def _fields(raw: bytes, where: str) -> dict[str, object]:
    fields = load(raw, where)
    if the_int(fields, "format", where) != FORMAT:
        raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
    the_list(fields, "pages", where)
    return fields

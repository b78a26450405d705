"""Which segments a log has, and which of them may be entered. A view of one log meta, with its
pages.

A segment may be entered, by crossing or by any start, only if it is sealed in the list; or if its
seam is visible and its listed predecessor is CLOSED at exactly what the seam says. Otherwise the
log ends in the predecessor, even though entries can be seen behind it: a takeover may yet drop
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlog.effects import LastReadable, LookAtLedger, Procedure, ReadNode, ReadRun
from dlog.errors import Corrupt, NotFound
from dlog.meta.cas import Seen, read_log
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState, PageRef, Segment, page_from_bytes
from dlog.wire.batch import Header, decode_header
from dlog.writer.segments import SEAM_ENTRY, decode_seam


@dataclass(frozen=True, slots=True)
class Entered:
    """A segment that may be read, and where its seqs begin."""

    segment: Segment
    base_seq: int


class SegmentView:
    """The segments of a log as one read of its meta shows them. Pages are immutable, so they are
    kept."""

    def __init__(self, name: str, layout: Layout, uid: str | None = None) -> None:
        self.name = name
        self.uid = uid
        self.seen: Seen | None = None
        self._layout = layout
        self._pages: dict[int, tuple[Segment, ...]] = {}

    def again(self) -> SegmentView:
        """Another view of the same log, for another walk: refreshing it does not touch this one."""
        view = SegmentView(self.name, self._layout, self.uid)
        view._pages = self._pages
        return view

    @property
    def meta(self) -> LogMeta:
        assert self.seen is not None
        return self.seen.meta

    @property
    def path(self) -> str:
        return self._layout.log(self.name)

    def refresh(self) -> Procedure[LogMeta]:
        """The newest meta, behind a sync. `NotFound` when the log is not there, or is another one
        by now."""
        try:
            self.seen = yield from read_log(self.path)
        except NotFound:
            raise NotFound(f"there is no log {self.name!r}", log=self.name) from None
        meta = self.seen.meta
        gone = meta.state in (LogState.DELETED, LogState.DELETING)
        if gone or (self.uid is not None and self.uid != meta.uid):
            raise NotFound(f"the log {self.name!r} was removed", log=self.name)
        self.uid = meta.uid
        return meta

    def first(self) -> Procedure[Segment | None]:
        if self.meta.pages:
            return (yield from self._page(self.meta.pages[0]))[0]
        return self.meta.segments[0] if self.meta.segments else None

    def after(self, number: int) -> Procedure[Segment | None]:
        """The first segment with a larger number."""
        return (yield from self.find(lambda s: s.number > number, lambda p: p.last_number > number))

    def before(self, number: int) -> Procedure[Segment | None]:
        """The last segment with a smaller number."""
        inline = [segment for segment in self.meta.segments if segment.number < number]
        if inline:
            return inline[-1]
        for ref in reversed(self.meta.pages):
            if ref.number < number:
                page = yield from self._page(ref)
                return [segment for segment in page if segment.number < number][-1]
        return None

    def find(
        self, wanted: Callable[[Segment], bool], maybe: Callable[[PageRef], bool]
    ) -> Procedure[Segment | None]:
        """The first segment that is `wanted`; pages that are not `maybe` are not read."""
        for ref in self.meta.pages:
            if maybe(ref):
                for segment in (yield from self._page(ref)):
                    if wanted(segment):
                        return segment
        return next(filter(wanted, self.meta.segments), None)

    def _page(self, ref: PageRef) -> Procedure[tuple[Segment, ...]]:
        if ref.number not in self._pages:
            path = self._layout.page(self.name, ref.number)
            node = yield ReadNode(path, fresh=False)
            self._pages[ref.number] = page_from_bytes(node.value, where=path)
        return self._pages[ref.number]

    def enter(self, segment: Segment) -> Procedure[Entered | None]:
        """None while the segment may not be entered."""
        if segment.sealed is not None:
            return Entered(segment, segment.sealed.base_seq)
        if (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY:
            return None
        raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
        seam, _ = decode_seam(raw[0], segment)
        predecessor = yield from self.before(segment.number)
        if predecessor is not None:
            if predecessor.ledger_id != seam.predecessor_ledger:
                return None
            last_entry = yield from self._closed_end(predecessor)
            if last_entry != seam.predecessor_last:
                return None
        return Entered(segment, seam.base_seq)

    def _closed_end(self, segment: Segment) -> Procedure[int | None]:
        """Where the segment ends for good; None while it may still grow."""
        if segment.sealed is not None:
            return segment.sealed.last_entry
        info = yield LookAtLedger(segment.ledger_id)
        return None if info.closed is None else info.closed.last_entry

    def last_entered(self) -> Procedure[Entered | None]:
        """Where the log ends now: the last segment that may be entered."""
        segment: Segment | None = self.meta.segments[-1] if self.meta.segments else None
        while segment is not None:
            entered = yield from self.enter(segment)
            if entered is not None:
                return entered
            segment = yield from self.before(segment.number)
        return None


def last_entry_of(entered: Entered) -> Procedure[int]:
    """The last entry of the segment that may be read now."""
    if entered.segment.sealed is not None:
        return entered.segment.sealed.last_entry
    last_entry: int = yield LastReadable(entered.segment.ledger_id)
    return last_entry


def header_of(ledger_id: int, entry_id: int) -> Procedure[Header]:
    raw = yield ReadRun(ledger_id, entry_id, entry_id, 1)
    return decode_header(raw[0], where=f"ledger {ledger_id} entry {entry_id}")


def misplaced(ledger_id: int, entry_id: int, found_seq: int, wanted_seq: int) -> Corrupt:
    return Corrupt(
        f"ledger {ledger_id} entry {entry_id} begins at seq {found_seq}, not at {wanted_seq}",
        ledger_id=ledger_id,
        entry_id=entry_id,
    )

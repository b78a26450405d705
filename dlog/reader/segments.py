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

from dlog.effects import Answer, LookAtLedger, Procedure, ReadNode, ReadRun
from dlog.errors import Corrupt, NotFound
from dlog.meta.cas import Seen, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import Held, refs_of, segments_of
from dlog.options import TailMode
from dlog.reader.horizon import Horizon
from dlog.wire.batch import Header, decode_header
from dlog.writer.segments import SEAM_ENTRY, decode_seam

NO_END = -2  # unlike any last entry
PAGES_KEPT = 64  # of a view: what a walk and a search go by


@dataclass(frozen=True, slots=True)
class Entered:
    """A segment that may be read, and where its seqs begin."""

    segment: Segment
    base_seq: int


class SegmentView:
    """The segments of a log as one read of its meta shows them. Pages are immutable, so they are
    kept."""

    def __init__(
        self, name: str, layout: Layout, uid: str | None = None, *, tail: TailMode = "normal"
    ) -> None:
        self.name = name
        self.horizon = Horizon(tail)
        self.uid = uid
        self.seen: Seen | None = None
        self._layout = layout
        self._pages: dict[tuple[int, int], Held] = {}  # by level and number

    def again(self) -> SegmentView:
        """Another view of the same log, for another walk: refreshing it does not touch this one."""
        view = SegmentView(self.name, self._layout, self.uid, tail=self.horizon.tail)
        view._pages = self._pages
        return view

    @property
    def meta(self) -> LogMeta:
        assert self.seen is not None
        return self.seen.meta

    @property
    def digest(self) -> str:
        """What every ledger of the log was made with."""
        return self.meta.digest

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
        meta = self.seen.meta.is_here(self.name)
        gone = meta.state in (LogState.DELETED, LogState.DELETING)
        if gone or (self.uid is not None and self.uid != meta.uid):
            raise NotFound(f"the log {self.name!r} was removed", log=self.name)
        self.uid = meta.uid
        return meta

    def changes(self) -> Procedure[bool]:
        """As `refresh`; whether the list is another than it was."""
        assert self.seen is not None
        version = self.seen.version
        yield from self.refresh()
        return self.seen.version != version

    def first(self) -> Procedure[Segment | None]:
        """The oldest segment of which something is left."""
        point = self.meta.truncate_before
        return (
            yield from self.find(lambda s: not point.covers(s), lambda p: not point.covers_page(p))
        )

    def count_left(self) -> Procedure[tuple[int, int]]:
        """How many segments there are of which something is left, and the bytes of those that are
        sealed."""
        return (yield from self.in_pages(self._count_left))

    def _count_left(self) -> Procedure[tuple[int, int]]:
        point = self.meta.truncate_before
        segments, size = yield from self._count_in(self.meta.pages)
        left = [each for each in self.meta.segments if not point.covers(each)]
        sealed = [each.sealed.bytes for each in left if each.sealed is not None]
        return segments + len(left), size + sum(sealed)

    def _count_in(self, refs: tuple[PageRef, ...]) -> Procedure[tuple[int, int]]:
        point = self.meta.truncate_before
        segments = size = 0
        for ref in refs:
            if point.covers_page(ref):
                continue
            count, bytes_in = ref.segments, ref.bytes
            if point.reaches_into(ref):
                if ref.level > 0:
                    count, bytes_in = yield from self._count_in((yield from self.refs_below(ref)))
                else:
                    below = yield from self.segments_below(ref)
                    sizes = [s.sealed.bytes for s in below if s.sealed and not point.covers(s)]
                    count, bytes_in = len(sizes), sum(sizes)
            segments, size = segments + count, size + bytes_in
        return segments, size

    def after(self, number: int) -> Procedure[Segment | None]:
        """The first segment with a larger number."""
        return (yield from self.find(lambda s: s.number > number, lambda p: p.last_number > number))

    def before(self, number: int) -> Procedure[Segment | None]:
        """The last segment with a smaller number."""
        inline = [segment for segment in self.meta.segments if segment.number < number]
        if inline:
            return inline[-1]
        return (
            yield from self._in_pages(
                lambda s: s.number < number, lambda p: p.number < number, newest=True
            )
        )

    def find(
        self, wanted: Callable[[Segment], bool], maybe: Callable[[PageRef], bool]
    ) -> Procedure[Segment | None]:
        """The first segment that is `wanted`; pages that are not `maybe` are not read."""
        found = yield from self._in_pages(wanted, maybe)
        return found or next(filter(wanted, self.meta.segments), None)

    def _in_pages(
        self,
        wanted: Callable[[Segment], bool],
        maybe: Callable[[PageRef], bool],
        *,
        newest: bool = False,
    ) -> Procedure[Segment | None]:
        """The oldest one, or the newest."""
        return (
            yield from self.in_pages(lambda: self._descend(self.meta.pages, wanted, maybe, newest))
        )

    def in_pages(self, look: Callable[[], Procedure[Answer]]) -> Procedure[Answer]:
        """What `look` finds in pages of the list, which may be replaced meanwhile: then it looks
        again, into those of the newest meta."""
        is_newest = False
        while True:
            try:
                return (yield from look())
            except (NotFound, Corrupt) as error:
                # A truncation puts others in the place of pages: what we go by is old. Or it is our
                # own doing, or a repair's, and newer than our last sync.
                if not (yield from self.changes()):
                    if is_newest:
                        if isinstance(error, Corrupt):
                            raise
                        raise Corrupt(
                            f"log {self.name!r}: a page of its list is missing: {error}",
                            log=self.name,
                        ) from error
                    is_newest = True

    def _descend(
        self,
        refs: tuple[PageRef, ...],
        wanted: Callable[[Segment], bool],
        maybe: Callable[[PageRef], bool],
        newest: bool,
    ) -> Procedure[Segment | None]:
        for ref in reversed(refs) if newest else refs:
            if not maybe(ref):
                continue
            if ref.level > 0:
                below = yield from self.refs_below(ref)
                found = yield from self._descend(below, wanted, maybe, newest)
            else:
                segments = yield from self.segments_below(ref)
                found = next(filter(wanted, reversed(segments) if newest else segments), None)
            if found is not None:
                return found
        return None

    def segments_below(self, ref: PageRef) -> Procedure[tuple[Segment, ...]]:
        """Of a page of level 0."""
        held = self._pages.get((0, ref.number))
        if held is None:
            path, raw = yield from self._read(ref)
            held = self._keep(ref, segments_of(ref, raw, where=path))
        return held  # type: ignore[return-value]

    def refs_below(self, ref: PageRef) -> Procedure[tuple[PageRef, ...]]:
        """Of a page of another level."""
        held = self._pages.get((ref.level, ref.number))
        if held is None:
            path, raw = yield from self._read(ref)
            held = self._keep(ref, refs_of(ref, raw, where=path))
        return held  # type: ignore[return-value]

    def _read(self, ref: PageRef) -> Procedure[tuple[str, bytes]]:
        path = self._layout.page(self.name, ref.number, ref.level)
        node = yield ReadNode(path, fresh=False)
        return path, node.value

    def _keep(self, ref: PageRef, held: Held) -> Held:
        if len(self._pages) >= PAGES_KEPT:
            del self._pages[next(iter(self._pages))]
        self._pages[ref.level, ref.number] = held
        return held

    def enter(self, segment: Segment) -> Procedure[Entered | None]:
        """None while the segment may not be entered."""
        if segment.sealed is not None:
            return Entered(segment, segment.sealed.base_seq)
        if (yield from self.horizon.last_entry(segment.ledger_id, SEAM_ENTRY)) < SEAM_ENTRY:
            return None
        raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
        seam, _ = decode_seam(raw[0], segment)
        predecessor = yield from self.before(segment.number)
        if predecessor is None:  # what was before it is sealed, and was truncated
            end = self.meta.end
            ledger_id, last_entry = end.ledger_id, end.last_entry
        else:
            ledger_id = predecessor.ledger_id
            last_entry = yield from self._closed_end(predecessor)
        if (ledger_id, last_entry) != (seam.predecessor_ledger, seam.predecessor_last):
            return None
        return Entered(segment, seam.base_seq)

    def _closed_end(self, segment: Segment) -> Procedure[int]:
        """Where the segment ends for good; NO_END while it may still grow."""
        if segment.sealed is not None:
            return segment.sealed.last_entry
        info = yield LookAtLedger(segment.ledger_id)
        return NO_END if info.closed is None else info.closed.last_entry

    def last_entered(self) -> Procedure[Entered | None]:
        """Where the log ends now: the last segment that may be entered."""
        segment: Segment | None = self.meta.segments[-1] if self.meta.segments else None
        while segment is not None:
            entered = yield from self.enter(segment)
            if entered is not None:
                return entered
            segment = yield from self.before(segment.number)
        return None


def by_the_newest_list(
    view: SegmentView, look: Callable[[], Procedure[Answer]]
) -> Procedure[Answer]:
    """What `look` finds. A ledger that it read may leave the list, and be deleted, meanwhile: then
    it looks again."""
    while True:
        try:
            return (yield from look())
        except NotFound as error:
            if error.ledger_id is None or not (yield from view.changes()):
                raise


def last_entry_of(view: SegmentView, entered: Entered, wanted: int | None = None) -> Procedure[int]:
    """The last entry of the segment that may be read now; see `Horizon.last_entry`."""
    if entered.segment.sealed is not None:
        return entered.segment.sealed.last_entry
    return (yield from view.horizon.last_entry(entered.segment.ledger_id, wanted))


def header_of(ledger_id: int, entry_id: int) -> Procedure[Header]:
    raw = yield ReadRun(ledger_id, entry_id, entry_id, 1)
    return decode_header(raw[0], where=f"ledger {ledger_id} entry {entry_id}")


def ends_short(view: SegmentView, segment: Segment, next_seq: int) -> Corrupt:
    """The list says that the segment ends before what it says that it holds. Else what is missing
    would pass for truncated, or for never written."""
    sealed = segment.sealed
    assert sealed is not None
    return Corrupt(
        f"log {view.name!r}: segment {segment.number} is listed up to seq {sealed.next_seq - 1}, "
        f"entry {sealed.last_entry}, and ledger {segment.ledger_id} has up to there only what is "
        f"before seq {next_seq}; `dlog fsck` says what can be done",
        log=view.name,
        ledger_id=segment.ledger_id,
        entry_id=sealed.last_entry,
    )


def misplaced(ledger_id: int, entry_id: int, found_seq: int, wanted_seq: int) -> Corrupt:
    return Corrupt(
        f"ledger {ledger_id} entry {entry_id} begins at seq {found_seq}, not at {wanted_seq}",
        ledger_id=ledger_id,
        entry_id=entry_id,
    )

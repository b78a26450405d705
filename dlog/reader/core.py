"""The walk of a reader from its first place to its end, as a procedure without IO.

    FINDING ──► READING ──► TAILING ──► CROSSING ──► READING …
       ▲           │            │            │
       └───────────┴── list ────┘            └──► ENDED (bound reached), or an error by name

READING delivers what is readable now, in runs. TAILING waits for more of an open ledger. CROSSING
looks for what follows a closed one: the next segment whose seam fits our ledger and its end, or
that is sealed in the list and continues our seq. No seam yet, or no fit, is not the end and not an
error: a takeover may be deciding; we wait on that ledger *and* on the list, since either may
change. Each entry must begin at the seq that we expect; a gap is never skipped in silence.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from dlog import trace
from dlog.effects import Deliver, LastReadable, LookAtLedger, Procedure, ReadRun, WaitNode, WaitPast
from dlog.errors import DlogError, NotFound, Truncated
from dlog.meta.log_meta import Segment
from dlog.options import ReaderOptions
from dlog.reader.message import MessageBatch
from dlog.reader.places import (
    EARLIEST,
    Place,
    Start,
    find_tail,
    locate,
)
from dlog.reader.segments import Entered, SegmentView, last_entry_of, misplaced
from dlog.wire.batch import decode
from dlog.writer.segments import SEAM_ENTRY, ledger_gone

WAIT_MS = 1_000.0  # watches and nudges are hints: look again this often


class ReaderState(enum.Enum):
    FINDING = "finding"
    READING = "reading"
    TAILING = "tailing"
    CROSSING = "crossing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where to start, and where to stop: before `end` if given, else at the tail seen at the start,
    else never."""

    start: Start | Place
    end: Start | None


class ReaderCore:
    """State of one walk; `find`, then `walk`, are its procedures. A seek begins another one."""

    def __init__(self, view: SegmentView, options: ReaderOptions) -> None:
        self.view = view
        self.state = ReaderState.FINDING
        self.place = Place(None)
        self.end_seq: int | None = None
        self._options = options

    def walk(self) -> Procedure[None]:
        """From the place found to the end, delivering on the way."""
        while not self._is_done():
            entered = yield from self._enter()
            if entered is not None:
                yield from self._read_segment(entered)
        self.state = ReaderState.ENDED

    def _is_done(self) -> bool:
        seq = self.place.seq
        return self.end_seq is not None and seq is not None and seq >= self.end_seq

    # --- finding

    def find(self, bounds: Bounds) -> Procedure[None]:
        """Set `place` and `end_seq`; a wrong start is refused here."""
        self.state = ReaderState.FINDING
        view = self.view
        yield from view.refresh()
        self.end_seq = None
        if bounds.end is not None:
            self.end_seq = yield from self._seq_of_end(bounds.end)
        tail = None
        if not self._options.follow:
            tail = yield from find_tail(view)
            end_seq = tail.next_seq if self.end_seq is None else self.end_seq
            self.end_seq = min(end_seq, tail.next_seq)
        if isinstance(bounds.start, Place):
            self.place = bounds.start
            if tail is not None and tail.is_before(bounds.start):
                self.place = dataclasses.replace(bounds.start, seq=tail.next_seq)
            return
        try:
            self.place = yield from locate(view, bounds.start)
        except Truncated:
            if self._options.on_truncated != "jump":
                raise
            self.place = yield from locate(view, EARLIEST)

    def _seq_of_end(self, end: Start) -> Procedure[int]:
        if type(end) is int:
            return end
        place = yield from locate(self.view, end)
        return place.seq if place.seq is not None else (yield from find_tail(self.view)).next_seq

    def _enter(self) -> Procedure[Entered | None]:
        """The segment of our place; None after waiting, to look again."""
        self.state = ReaderState.FINDING
        view, place = self.view, self.place
        if place.number is None:
            segment = yield from view.first()
        else:
            wanted = place.number
            segment = yield from view.find(
                lambda s: s.number >= wanted, lambda p: p.last_number >= wanted
            )
        if segment is not None:
            trace.before("read.entered")
            try:
                entered = yield from view.enter(segment)
                if entered is not None:
                    trace.after("read.entered")
                    if segment.number != place.number:
                        self._begin(entered)
                    return entered
                yield from self._wait_to_enter(segment)
            except NotFound as error:
                yield from self._check_unlisted(segment, error)
        else:
            yield WaitNode(view.path, WAIT_MS)
        yield from view.refresh()
        return None

    def _wait_to_enter(self, segment: Segment) -> Procedure[None]:
        """For its seam while that may come, and for the list: a takeover may drop it. A ledger that
        has its seam, or never will, has nothing to wait for: it would answer at once, for ever."""
        info = yield LookAtLedger(segment.ledger_id)
        if info.closed is None and (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY:
            yield WaitPast(segment.ledger_id, SEAM_ENTRY - 1, WAIT_MS, self.view.path)
        else:
            yield WaitNode(self.view.path, WAIT_MS)

    def _begin(self, entered: Entered) -> None:
        """At the first entry of a segment that follows ours, or that is the first there is."""
        seq = self.place.seq
        if seq is not None and entered.base_seq > seq and self._options.on_truncated != "jump":
            raise self._truncated(entered.base_seq)
        if seq is not None and entered.base_seq < seq:
            raise misplaced(entered.segment.ledger_id, 0, entered.base_seq, seq)
        self.place = Place(entered.segment.number, SEAM_ENTRY, 0, entered.base_seq)

    def _truncated(self, head_seq: int | None) -> Truncated:
        now = "nothing is left" if head_seq is None else f"the head is at seq {head_seq}"
        return Truncated(
            f"log {self.view.name!r}: seq {self.place.seq} was truncated away; {now}",
            log=self.view.name,
            new_head=head_seq,
        )

    # --- reading

    def _read_segment(self, entered: Entered) -> Procedure[None]:
        """Read to the segment's end, then cross; returns early when done or to look again."""
        ledger_id = entered.segment.ledger_id
        try:
            while not self._is_done():
                last_entry = yield from last_entry_of(entered)
                if self.place.entry_id <= last_entry:
                    self.state = ReaderState.READING
                    yield from self._read_run(entered, last_entry)
                    continue
                if entered.segment.sealed is None and (yield from self._wait(ledger_id)):
                    continue
                closed_at = yield from self._closed_at(entered)
                if closed_at is not None and self.place.entry_id > closed_at:
                    if (yield from self._cross(entered)):
                        return
        except NotFound:
            yield from self._ledger_gone(entered)

    def _wait(self, ledger_id: int) -> Procedure[bool]:
        """For more of an open ledger. False when none came: then its metadata has to be asked,
        which is not asked as long as messages flow."""
        self.state = ReaderState.TAILING
        entry_id = self.place.entry_id
        yield WaitPast(ledger_id, entry_id - 1, WAIT_MS)
        last_entry: int = yield LastReadable(ledger_id)
        return last_entry >= entry_id

    def _closed_at(self, entered: Entered) -> Procedure[int | None]:
        if entered.segment.sealed is not None:
            return entered.segment.sealed.last_entry
        info = yield LookAtLedger(entered.segment.ledger_id)
        return None if info.closed is None else info.closed.last_entry

    def _read_run(self, entered: Entered, last_entry: int) -> Procedure[None]:
        segment, first = entered.segment, self.place.entry_id
        raw = yield ReadRun(
            segment.ledger_id, first, last_entry, self._options.read_run_bytes, point="read.run"
        )
        batches: list[MessageBatch] = []
        for entry_id, buffer in enumerate(raw, first):
            try:
                self._take_entry(entered, entry_id, buffer, batches)
            except DlogError as error:
                if batches:  # first what is good; the next run meets the bad entry first
                    break
                error.about.update(
                    ledger_id=segment.ledger_id, entry_id=entry_id, raw=bytes(buffer)
                )
                raise
            if self._is_done():
                break
        if batches:
            yield Deliver(batches, point="read.delivered")

    def _take_entry(
        self, entered: Entered, entry_id: int, buffer: memoryview, batches: list[MessageBatch]
    ) -> None:
        segment, place = entered.segment, self.place
        entry = decode(buffer, where=f"ledger {segment.ledger_id} entry {entry_id}")
        entry_seq = entered.base_seq + entry.first_seq
        if place.seq is not None and entry_seq + place.idx != place.seq:
            raise misplaced(segment.ledger_id, entry_id, entry_seq + place.idx, place.seq)
        end = entry.count
        if self.end_seq is not None:
            end = min(end, self.end_seq - entry_seq)
        if end > place.idx:
            batches.append(
                MessageBatch(
                    entry,
                    ledger_id=segment.ledger_id,
                    entry_id=entry_id,
                    epoch=segment.epoch,
                    entry_seq=entry_seq,
                    start=place.idx,
                    end=end,
                    size=len(buffer),
                )
            )
        self.place = Place(segment.number, entry_id + 1, 0, entry_seq + max(end, place.idx))

    # --- crossing

    def _cross(self, entered: Entered) -> Procedure[bool]:
        """Into the segment that follows; False after waiting, to look again."""
        self.state = ReaderState.CROSSING
        trace.before("read.crossed")
        view, number = self.view, entered.segment.number
        yield from view.refresh()
        following = yield from view.after(number)
        if following is None:
            yield WaitNode(view.path, WAIT_MS)
            return False
        try:
            into = yield from view.enter(following)
            if into is None:
                yield from self._wait_to_enter(following)
                return False
        except NotFound as error:
            yield from self._check_unlisted(following, error)
            return False
        self._begin(into)
        trace.after("read.crossed")
        return True

    def _check_unlisted(self, segment: Segment, error: NotFound | None = None) -> Procedure[None]:
        """A ledger that is gone may be, if the list says so by now. A ledger that the error says is
        not this segment's is somebody else's question."""
        if error is not None and error.ledger_id not in (None, segment.ledger_id):
            raise error
        meta = yield from self.view.refresh()
        if any(each.number == segment.number for each in meta.segments):
            raise ledger_gone(segment, self.view.name)

    def _ledger_gone(self, entered: Entered) -> Procedure[None]:
        """Truncated, removed, or lost: the list knows."""
        number = entered.segment.number
        yield from self._check_unlisted(entered.segment)
        following = yield from self.view.after(number)
        into = None if following is None else (yield from self.view.enter(following))
        if into is None or self._options.on_truncated != "jump":
            raise self._truncated(None if into is None else into.base_seq)
        self.place = Place(into.segment.number, SEAM_ENTRY, 0, into.base_seq)

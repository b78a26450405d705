"""The walk of a reader from its first place to its end, as a procedure without IO.

    FINDING ──► READING ──► TAILING ──► CROSSING ──► READING …
       ▲           │            │            │
       └───────────┴── list ────┘            └──► ENDED (bound reached), or an error by name

READING delivers what is readable now, in runs. TAILING waits for more of an open ledger. CROSSING
looks for what follows a closed one: the next segment whose seam fits our ledger and its end, or
that is sealed in the list and continues our seq. No seam yet, or no fit, is not the end and not an
error: a takeover may be deciding; we wait on that ledger *and* on the list, since either may
change. Each entry must begin at the seq that we expect; a gap is never skipped in silence.

A truncation may pass our place. What the list that we go by says is before its truncation point is
not delivered: then, and where our segment left the list, the walk raises `Truncated` with the new
head, or goes on there if it was told to.

An error that may pass (`retry=NOW`) does not end a reader that follows: it waits, says why
(`trouble`), and goes on where it stands. Any other reader is told; a new `walk` goes on where this
one stood.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from dlog import trace
from dlog.effects import (
    Deliver,
    LastReadable,
    LookAtLedger,
    Pause,
    Procedure,
    ReadRun,
    WaitNode,
    WaitPast,
)
from dlog.errors import Corrupt, DlogError, NotFound, Retry, Timeout, Truncated, Unavailable
from dlog.ids import Position
from dlog.ledger.store import LedgerState
from dlog.meta.listed import Point, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import ReaderOptions
from dlog.reader.horizon import AWAY_S
from dlog.reader.message import MessageBatch
from dlog.reader.places import Place, Start, find_head, find_tail, locate
from dlog.reader.segments import (
    Entered,
    SegmentView,
    by_the_newest_list,
    ends_short,
    last_entry_of,
    misplaced,
)
from dlog.reason import Plain, ReasonCode, Wait, told_of
from dlog.wire.batch import decode
from dlog.writer.segments import SEAM_ENTRY, ledger_gone

WAIT_MS = 1_000.0  # watches and nudges are hints: look again this often
# Between two tries of a reader that follows: within the last one it goes on once the trouble ends.
TROUBLE_PAUSE_MIN_S, TROUBLE_PAUSE_MAX_S = 0.02, 1.0


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
    first_seq: int = 0  # nothing before it is delivered, wherever the tail was seen
    # Of a range that was planned: the segment and the entry where `end` is, which must be there,
    # and the copy to read.
    last_entry: tuple[int, int] | None = None
    copy: int | None = None


class ReaderCore:
    """State of one walk; `find`, then `walk`, are its procedures. A seek begins another one."""

    def __init__(self, view: SegmentView, options: ReaderOptions) -> None:
        self.view = view
        self.state = ReaderState.FINDING
        self.place = Place(None)
        self.first_seq = 0
        self.end_seq: int | None = None
        self.copy: int | None = None  # of its ledgers, to begin with; any if None
        self._planned: tuple[int, int] | None = None  # the segment and entry before `end_seq`
        self.blocked: Wait | None = None  # at a border between segments, or before the first
        self.recovering: Wait | None = None  # the ledger that we read
        self.trouble: Wait | None = None  # the last try failed, and nothing was found out since
        self.unsure: Wait | None = None  # whether the ledger that we read has ended cannot be asked
        self._failures = 0  # since something was read, or waited for to its end
        self._options = options
        self._from = Point()  # what is before it was not asked for
        self._missed: tuple[LogMeta, int] | None = None  # the list, and the ledger it did not name
        self._passed = False  # the next message was truncated
        self._is_over = False  # of a log that takes no more

    def reconfigure(self, options: ReaderOptions) -> None:
        """Only what may change during a walk: how much is asked for at a time."""
        self._options = options

    def walk(self) -> Procedure[None]:
        """From where it stands to the end, delivering on the way."""
        self.view.horizon.waits_for_recoveries = False
        while not self._is_done():
            try:
                entered = yield from self._enter()
                if entered is not None:
                    yield from self._read_segment(entered)
            except DlogError as error:
                if error.retry is not Retry.NOW:
                    raise
                self.trouble = _trouble(self.place, error)
                if not self._waits_out_trouble:
                    raise
                pause_s = min(TROUBLE_PAUSE_MIN_S * 2**self._failures, TROUBLE_PAUSE_MAX_S)
                self._failures = min(self._failures + 1, 16)
                yield Pause(pause_s, wait=self.trouble)
        self.state = ReaderState.ENDED

    @property
    def _waits_out_trouble(self) -> bool:
        """A range that was planned can be read now: its reader follows for the tail's sake only."""
        return self._options.follow and self._planned is None

    def _is_done(self) -> bool:
        seq = self.place.seq
        return self._is_over or (
            self.end_seq is not None and seq is not None and seq >= self.end_seq
        )

    # --- finding

    def find(self, bounds: Bounds) -> Procedure[None]:
        """Set `place` and `end_seq`; a wrong start is refused here."""
        self.state = ReaderState.FINDING
        self.view.horizon.waits_for_recoveries = True
        yield from self.view.refresh()
        yield from by_the_newest_list(self.view, lambda: self._find(bounds))

    def _find(self, bounds: Bounds) -> Procedure[None]:
        view = self.view
        self.first_seq = max(bounds.first_seq, _seq_of_start(bounds.start))
        self.copy, self._planned = bounds.copy, bounds.last_entry
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
            self.place = yield from find_head(view)
        # Whoever is asked next may know of less than was truncated: its rest is not wanted.
        self._from = view.meta.truncate_before

    def _seq_of_end(self, end: Start) -> Procedure[int]:
        if type(end) is int:
            return end
        try:
            place = yield from locate(self.view, end)
        except Truncated:
            if self._options.on_truncated != "jump":
                raise
            place = yield from find_head(self.view)
        return place.seq if place.seq is not None else (yield from find_tail(self.view)).next_seq

    def _enter(self) -> Procedure[Entered | None]:
        """The segment of our place; None to look again, after waiting or a jump."""
        self.state = ReaderState.FINDING
        view, place = self.view, self.place
        if place.number is None:
            segment = yield from view.first()
        else:
            wanted = place.number
            segment = yield from view.find(
                lambda s: s.number >= wanted, lambda p: p.last_number >= wanted
            )
        if segment is None:
            if place.seq is None:
                yield from self._go_to_head()
            elif not (yield from self._at_the_end()):
                yield from view.refresh()
            return None
        trace.before("read.entered")
        try:
            entered = yield from view.enter(segment)
            if entered is None:
                entered = yield from self._wait_to_enter(segment)
        except NotFound as error:
            yield from self._look_again(segment, error)
            return None
        if entered is None:
            yield from view.refresh()
            return None
        trace.after("read.entered")
        self.blocked = None
        if segment.number != place.number:
            # Our segment left the list, or there was none: of a place without seq, only the former.
            if place.seq is None or not self._begin(entered):
                yield from self._go_to_head()
                return None
        return entered

    def _at_the_end(self, last: Segment | None = None) -> Procedure[bool]:
        """Nothing stands in the list behind our place, or behind the `last` segment: wait, unless
        what we want was there and is gone, or nothing comes any more; then True."""
        meta, wanted = self.view.meta, self._wanted_seq()
        left_seq = meta.truncate_before.seq
        if not meta.segments:
            left_seq = max(left_seq, meta.end.next_seq)
        if wanted is not None and wanted < left_seq:
            yield from self._go_to_head()
            return True
        if meta.state is LogState.TERMINATED:
            self._is_over = True
            return True
        self.state, self.trouble = ReaderState.CROSSING, None
        self.blocked = _nothing_yet(self.view.name) if last is None else _all_read(last, meta)
        yield WaitNode(self.view.path, WAIT_MS)
        self._failures = 0
        return False

    def _wanted_seq(self) -> int | None:
        """Of the message that is to be delivered next."""
        seq = self.place.seq
        return None if seq is None else max(seq, self.first_seq, self._from.seq)

    def _wait_to_enter(self, segment: Segment) -> Procedure[Entered | None]:
        """For its seam while that may come, and for the list: a takeover may drop it. A ledger that
        has its seam, or never will, has nothing to wait for: it would answer at once, for ever.
        But the seam may have come since we asked for it, and no list changes then."""
        info = yield LookAtLedger(segment.ledger_id)
        has_no_seam = info.closed is None and (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY
        if not has_no_seam:
            entered = yield from self.view.enter(segment)
            if entered is not None:
                return entered
        self.blocked, self.trouble = _not_enterable(segment, info.state, has_no_seam), None
        if has_no_seam:
            yield WaitPast(segment.ledger_id, SEAM_ENTRY - 1, WAIT_MS, self.view.path)
        else:
            yield WaitNode(self.view.path, WAIT_MS)
        self._failures = 0
        return None

    def _begin(self, entered: Entered) -> bool:
        """At the first entry of a segment that follows ours, or that is the first there is. False
        when what we want was before it."""
        seq, wanted = self.place.seq, self._wanted_seq()
        if wanted is not None and entered.base_seq > wanted:
            return False
        if seq is not None and entered.base_seq < seq:
            raise misplaced(entered.segment.ledger_id, 0, entered.base_seq, seq)
        self.place = Place(entered.segment.number, SEAM_ENTRY, 0, entered.base_seq)
        self.blocked = None
        return True

    def _go_to_head(self) -> Procedure[None]:
        """What we want was truncated: raise, or jump."""
        self._passed = False
        view = self.view
        yield from view.refresh()
        head = yield from by_the_newest_list(view, lambda: find_head(view))
        if self._options.on_truncated != "jump":
            what = "what was to come next" if self.place.seq is None else f"seq {self.place.seq}"
            raise Truncated(
                f"log {view.name!r}: {what} was truncated; the head is at seq {head.seq}",
                log=view.name,
                new_head=head.seq,
            )
        self.place = head
        self._from = view.meta.truncate_before

    # --- reading

    def _read_segment(self, entered: Entered) -> Procedure[None]:
        """Read to the segment's end, then cross; returns early when done or to look again.

        What may be read is asked once; from then on the waits tell, so that a message at the tail
        costs a wait and a read."""
        try:
            last_entry = yield from last_entry_of(self.view, entered, self.place.entry_id)
            while not self._is_done():
                if self.place.entry_id <= last_entry:
                    self.state = ReaderState.READING
                    yield from self._read_run(entered, last_entry)
                    if self._passed:
                        yield from self._go_to_head()
                        return
                    continue
                if entered.segment.sealed is None:
                    last_entry = yield from self._wait(entered)
                    if self.place.entry_id <= last_entry:
                        continue
                closed_at = yield from self._closed_at(entered)
                if closed_at is None:  # else the wait came back at once, and proves nothing
                    self.trouble, self._failures = None, 0
                if closed_at is not None and self.place.entry_id > closed_at:
                    if self._lacks_some(entered.segment):
                        yield from self._refuse_short(entered.segment)
                        return
                    # What was planned had been published: if it is not there, it was lost.
                    if self._planned is not None and entered.segment.number >= self._planned[0]:
                        raise self._ends_early(entered.segment, closed_at)
                    if (yield from self._cross(entered)):
                        return
        except NotFound as error:
            yield from self._look_again(entered.segment, error)

    def _wait(self, entered: Entered) -> Procedure[int]:
        """For more of an open ledger; the last entry that may be read then. When none came its
        metadata has to be asked, which is not asked as long as messages flow."""
        self.state = ReaderState.TAILING
        ledger_id = entered.segment.ledger_id
        last_entry = self.place.entry_id - 1
        return (yield from self.view.horizon.wait(ledger_id, last_entry, WAIT_MS))

    def _closed_at(self, entered: Entered) -> Procedure[int | None]:
        if entered.segment.sealed is not None:
            return entered.segment.sealed.last_entry
        try:
            info = yield LookAtLedger(entered.segment.ledger_id)
        except (Unavailable, Timeout) as error:
            if not self._options.follow:
                raise
            self.unsure = _trouble(self.place, error)
            # A quiet tail stays one while metadata is away. Of a ledger that has ended, the wait
            # comes back at once.
            yield Pause(AWAY_S)
            return None
        self.unsure = None
        yield from self._mind_recovery(entered, info.state)
        return None if info.closed is None else info.closed.last_entry

    def _mind_recovery(self, entered: Entered, state: LedgerState) -> Procedure[None]:
        """Whoever takes over claimed the log before: its list says who, and is asked once."""
        if state is not LedgerState.IN_RECOVERY:
            self.recovering = None
        elif self.recovering is None:
            claimed = self.view.meta
            try:
                claimed = yield from self.view.refresh()
            except (Unavailable, Timeout):
                self.recovering = _in_recovery(entered.segment, None)
                return
            self.recovering = _in_recovery(entered.segment, claimed)

    def _read_run(self, entered: Entered, last_entry: int) -> Procedure[None]:
        segment, first = entered.segment, self.place.entry_id
        if self._planned is not None and segment.number == self._planned[0]:
            last_entry = min(last_entry, self._planned[1])
            if first > last_entry:
                raise self._ends_early(segment, last_entry)
        raw = yield ReadRun(
            segment.ledger_id, first, last_entry, self._options.read_run_bytes, point="read.run"
        )
        self.trouble, self.unsure, self._failures = None, None, 0
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
            if self._is_done() or self._passed:
                break
        if batches:
            yield Deliver(batches, point="read.delivered")

    def _take_entry(
        self, entered: Entered, entry_id: int, buffer: memoryview, batches: list[MessageBatch]
    ) -> None:
        segment, place = entered.segment, self.place
        entry = decode(buffer, where=f"ledger {segment.ledger_id} entry {entry_id}")
        if segment.is_job:
            entry.not_before(segment.not_before_us)
        entry_seq = entered.base_seq + entry.first_seq
        if place.seq is not None and entry_seq + place.idx != place.seq:
            raise misplaced(segment.ledger_id, entry_id, entry_seq + place.idx, place.seq)
        end = entry.count
        if self.end_seq is not None:
            end = min(end, self.end_seq - entry_seq)
        at = entry_seq, segment.ledger_id, entry_id, entry.count
        start = max(place.idx, self.first_seq - entry_seq, self._from.cut(*at))
        if end > start:
            if self.view.meta.truncate_before.cut(*at) > start:
                self._passed = True
                return
            batches.append(
                MessageBatch(
                    entry,
                    ledger_id=segment.ledger_id,
                    entry_id=entry_id,
                    epoch=segment.epoch,
                    entry_seq=entry_seq,
                    start=start,
                    end=end,
                    size=len(buffer),
                )
            )
        self.place = Place(segment.number, entry_id + 1, 0, entry_seq + max(end, place.idx))

    def _lacks_some(self, segment: Segment) -> bool:
        """All that it is listed with was read, and that is not all that it should hold."""
        sealed, seq = segment.sealed, self.place.seq
        return sealed is not None and seq is not None and seq < sealed.next_seq

    def _refuse_short(self, segment: Segment) -> Procedure[None]:
        """Unless the list was repaired since we read it."""
        view, number = self.view, segment.number
        yield from view.refresh()
        now = yield from view.find(
            lambda s: s.number == number, lambda p: p.number <= number <= p.last_number
        )
        if now == segment:
            assert self.place.seq is not None
            raise ends_short(view, segment, self.place.seq)

    def _ends_early(self, segment: Segment, last_entry: int) -> Corrupt:
        return Corrupt(
            f"ledger {segment.ledger_id} was to have what is before seq {self.end_seq}, and has "
            f"only what is before seq {self.place.seq} up to entry {last_entry}",
            ledger_id=segment.ledger_id,
            entry_id=last_entry,
        )

    # --- crossing

    def _cross(self, entered: Entered) -> Procedure[bool]:
        """Into the segment that follows. False: it waited; look at this segment again."""
        self.state = ReaderState.CROSSING
        self.recovering = None
        trace.before("read.crossed")
        view, number = self.view, entered.segment.number
        yield from view.refresh()
        following = yield from view.after(number)
        if following is None:
            return (yield from self._at_the_end(entered.segment))
        try:
            into = yield from view.enter(following)
            if into is None:
                into = yield from self._wait_to_enter(following)
            if into is None:
                return False
        except NotFound as error:
            yield from self._look_again(following, error)
            return True  # it may be this segment's ledger that is gone: find both anew
        if self.place.seq is None:  # what cannot be counted may still be seen to follow
            before = yield from view.before(following.number)
            follows = before is not None and before.number == number
        else:
            follows = True
        if follows and self._begin(into):
            trace.after("read.crossed")
        else:
            yield from self._go_to_head()
        return True

    def _look_again(self, segment: Segment, error: NotFound) -> Procedure[None]:
        """A ledger may be gone that left the list meanwhile: truncated, or dropped. The list may
        have been read again before this; where it is the one in which we missed that ledger
        already, looking again would find the same, for ever."""
        view = self.view
        gone = segment.ledger_id if error.ledger_id is None else error.ledger_id
        yield from view.refresh()
        listed = yield from view.find(
            lambda s: s.ledger_id >= gone, lambda p: p.last_ledger >= gone
        )
        if listed is not None and listed.ledger_id == gone:
            raise ledger_gone(listed, view.name) from error
        if self._missed == (view.meta, gone):
            raise error
        self._missed = view.meta, gone


def _trouble(place: Place, error: DlogError) -> Wait:
    """The code of a place, which gives way to what the stores know."""
    where: dict[str, Plain] = {"segment": place.number, "entry_id": place.entry_id}
    if error.ledger_id is not None:
        where["ledger_id"] = error.ledger_id
    sentence = f"reading failed, and is tried again: {error}"
    return Wait(ReasonCode.READING, sentence, {**where, **told_of(error)})


def _not_enterable(segment: Segment, state: LedgerState, has_no_seam: bool) -> Wait:
    why = "its seam cannot be read yet"
    if not has_no_seam:
        why = "the segment before it is not closed where its seam says, so a takeover may drop it"
    return Wait(
        ReasonCode.SEGMENT_NOT_ENTERABLE,
        f"segment {segment.number} (ledger {segment.ledger_id}) is listed, and {why}",
        {
            "segment": segment.number,
            "ledger_id": segment.ledger_id,
            "ledger_state": state.value,
            "has_seam": not has_no_seam,
        },
    )


def _in_recovery(segment: Segment, claimed: LogMeta | None) -> Wait:
    """`claimed`: the log as its list says by now."""
    evidence: dict[str, Plain] = {"ledger_id": segment.ledger_id, "segment": segment.number}
    who = "somebody"
    if claimed is not None and claimed.epoch > segment.epoch:
        mark = claimed.writer or claimed.left_by
        who = "another writer" if mark is None else mark.name
        evidence |= {"recovered_by": who, "epoch": claimed.epoch}
        who = f"{who}, who takes over with epoch {claimed.epoch}"
    return Wait(
        ReasonCode.IN_RECOVERY,
        f"ledger {segment.ledger_id} is being recovered by {who}; where it ends is being decided",
        evidence,
    )


def _nothing_yet(name: str) -> Wait:
    told = f"log {name!r} has no segment to read yet: nobody wrote to it"
    return Wait(ReasonCode.AT_TAIL, told)


def _all_read(segment: Segment, meta: LogMeta) -> Wait:
    """Behind the last segment, which is closed."""
    told = "the log has no writer" if meta.writer is None else f"{meta.writer.name} has the log"
    return Wait(
        ReasonCode.AT_TAIL,
        f"all was read; ledger {segment.ledger_id} is closed and no segment follows yet: {told}",
        {
            "ledger_id": segment.ledger_id,
            "segment": segment.number,
            "is_closed": True,
            "writer": None if meta.writer is None else meta.writer.name,
        },
    )


def _seq_of_start(start: Start | Place) -> int:
    """A seq may be asked for that is not readable yet, or not as far as the bookie knows that is
    asked where the tail is: readers that follow wait for it."""
    if isinstance(start, Position):
        return start.next_seq
    return start if type(start) is int else 0

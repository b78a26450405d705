"""What happens to a message between `submit` and its acknowledgement. No IO, no waiting.

The writer owns one *pipe* per ledger it writes: the current one and, for a short while after a
switch, the one before, draining. Messages are numbered when their entry is built. An entry's
tickets resolve when it is confirmed, and visible (published, unless the writer was told that later
will do), and when every earlier pipe is CLOSED at exactly the last entry pushed to it: that is the
*barrier*, and without it a crash could keep a later message and lose an earlier one.

    facts in:  push (from the batcher), on_confirmed, on_published, on_failed (from appenders)
    duties:    procedures that the driver runs, one at a time: see `rotation` and `healing`

    OPEN ──failure──► HEALING ──► OPEN      a ledger that cannot go on is replaced
      │                  └──────► DEAD      lost to another writer, or nothing to heal with
      └──close──► CLOSING ──► CLOSED        from the first close on, the handle takes nothing more

The driver asks `room()` before each push, and `duty()` whenever something changed. A dead core
stays dead: whoever lost the log never tries to come back (DL-30, DL-31).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from dlog.chance import Chance
from dlog.errors import DlogError, check
from dlog.ledger.store import Buffer, ClosedLedger
from dlog.meta.layout import Layout
from dlog.meta.listed import Sealed
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import Held
from dlog.meta.retention import is_limited
from dlog.options import LogOptions, WriterOptions, visible_within_ms
from dlog.writer.batch import UNSENT, Batch
from dlog.writer.pipe import CODECS, Pipe, PipeState
from dlog.writer.policy import Advice, BySizeAndAge, RotationPolicy
from dlog.writer.segments import SEAM_ENTRY
from dlog.writer.takeover import Opened


class WriterState(enum.Enum):
    OPEN = "open"
    HEALING = "healing"
    CLOSING = "closing"
    CLOSED = "closed"
    DEAD = "dead"


MOVES = frozenset(
    {
        (WriterState.OPEN, WriterState.HEALING),
        (WriterState.OPEN, WriterState.CLOSING),
        (WriterState.OPEN, WriterState.DEAD),
        (WriterState.HEALING, WriterState.OPEN),
        (WriterState.HEALING, WriterState.DEAD),
        (WriterState.CLOSING, WriterState.CLOSED),
        (WriterState.CLOSING, WriterState.DEAD),
    }
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which handle this is, and where its log is kept."""

    name: str
    token: str
    layout: Layout
    now_us: Callable[[], int]
    now_s: Callable[[], float]
    chance: Chance
    is_copy: bool = False  # messages keep the times that they have in another log

    @property
    def path(self) -> str:
        return self.layout.log(self.name)


class WriterCore:
    def __init__(
        self,
        identity: Identity,
        opened: Opened,
        options: WriterOptions,
        *,
        policy: RotationPolicy | None = None,
    ) -> None:
        self.identity = identity
        self.seen = opened.seen
        self.epoch = opened.seen.meta.epoch
        self.state = WriterState.OPEN
        self.error: DlogError | None = None
        self.digest = opened.seen.meta.digest  # of every ledger of the log
        self._policy = policy or BySizeAndAge(opened.seen.meta.options)
        self.options_wanted: LogOptions | None = None  # what the list is to say, and does not yet
        self._codec = CODECS[options.codec]
        self.waits_for_visibility = visible_within_ms(options.visible) is None
        self._window_entries = options.window_entries
        self.opened_end = opened.end  # where the messages of earlier writers end
        self._last_time_us = opened.end.last_time_us
        self._released: list[Batch] = []
        self.rebuilding: deque[Batch] = deque()  # of a ledger that failed, for its successor
        self.producers = opened.producers  # of what is released
        self.numbers_asked = False  # somebody wants to append with the number of a producer
        # What the list does not know yet; the next compare-and-set tells it.
        self.closed: list[tuple[int, Sealed]] = []
        self.dropped: list[int] = []  # segments of ours that ended without a seam
        self.spare: int | None = None  # a born ledger of ours, perhaps listed, not switched to
        self.spare_is_private = False  # it is certainly not listed
        # Pages that are written, and that the list does not name yet: by level and number.
        self.pages: dict[tuple[int, int], Held] = {}
        self._failed_spares: dict[int, DlogError] = {}  # told before there was a pipe
        self.retention_due = is_limited(opened.seen.meta.options)
        end = opened.end
        self.pipes: deque[Pipe] = deque()
        self._by_ledger: dict[int, Pipe] = {}
        self.add_pipe(
            opened.number, opened.ledger_id, end.next_seq, (end.ledger_id, end.last_entry)
        )

    def reconfigure(self, options: WriterOptions, log_options: LogOptions) -> None:
        """From the next entry on. What the log's own options say of rotation holds from now on, and
        the list is to say it; what its ledgers are made with stays."""
        self._codec = CODECS[options.codec]
        self._window_entries = options.window_entries
        if log_options != self.log_options:
            listed = self.seen.meta.options
            self.options_wanted = None if log_options == listed else log_options
            if isinstance(self._policy, BySizeAndAge):
                self._policy = BySizeAndAge(log_options)

    @property
    def log_options(self) -> LogOptions:
        """As they hold for what this writer does."""
        return self.options_wanted or self.seen.meta.options

    # --- messages

    @property
    def current(self) -> Pipe:
        return self.pipes[-1]

    def room(self) -> bool:
        """May another entry be pushed now?"""
        if self.state is not WriterState.OPEN or self.current.last_pushed < SEAM_ENTRY:
            return False
        if sum(pipe.in_flight_entries for pipe in self.pipes) >= self._window_entries:
            return False
        return self.advice() is not Advice.WAIT

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way: the next message need not wait for company."""
        return all(pipe.is_drained for pipe in self.pipes)

    def push(self, batch: Batch) -> tuple[int, list[Buffer]]:
        """Number a batch and build its entry, for the ledger named."""
        check(self.state is WriterState.OPEN, "only an open writer pushes", self.state)
        pipe = self.current
        check(pipe.last_pushed >= SEAM_ENTRY, "the seam comes before data", pipe.ledger_id)
        if batch.first_seq == UNSENT:
            batch.first_seq = pipe.next_seq
        batch.sent_s = self.identity.now_s()
        return pipe.ledger_id, pipe.push(batch, self.stamp(batch), self._codec)

    @property
    def table_due(self) -> bool:
        pipe = self.current
        return pipe.bytes >= pipe.table_at_bytes or pipe.last_pushed >= pipe.table_at_entry

    def push_table(self, now_us: int) -> tuple[int, list[Buffer]]:
        """The table of producers as the next entry of the ledger named: of all that stands before
        it, settled or only sent, for whoever keeps this entry keeps that as well."""
        sent = (batch for pipe in self.pipes for batch in pipe.sent)
        pipe = self.current
        return pipe.ledger_id, pipe.push_table(self.producers, sent, now_us)

    def push_again(self, batch: Batch) -> list[Buffer]:
        """A batch that its first ledger did not keep: same seqs, same time, the current ledger."""
        return self.current.push(batch, batch.timestamp_us, self._codec)

    def stamp(self, batch: Batch | None = None) -> int:
        """Now, but never earlier than any stamp of this log before. In a copy it is the time of the
        message that was copied last: what is written by now is not newer than what follows it."""
        if not self.identity.is_copy:
            self._last_time_us = max(self.identity.now_us(), self._last_time_us)
        elif batch is not None:
            self._last_time_us = max(batch.timestamp_us, self._last_time_us)
        return self._last_time_us

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        pipe = self._hearing(ledger_id)
        if pipe is None:
            return
        check(
            pipe.last_confirmed <= last_entry <= pipe.last_pushed,
            "confirmations grow and never pass what was pushed",
            (pipe.last_confirmed, last_entry, pipe.last_pushed),
        )
        pipe.last_confirmed = last_entry
        if not self.waits_for_visibility:
            self._collect()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pipe = self._hearing(ledger_id)
        if pipe is None:
            return
        check(last_entry <= pipe.last_confirmed, "only what is confirmed is visible", last_entry)
        pipe.last_published = max(pipe.last_published, last_entry)
        if self.waits_for_visibility:
            self._collect()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        """An appender of ours is finished. Whether that ends the handle, healing finds out."""
        if ledger_id > self.current.ledger_id:  # told once: it counts when we switch to it
            self._failed_spares[ledger_id] = error
            return
        pipe = self._hearing(ledger_id)
        if pipe is None or pipe.state is PipeState.CLOSED:
            return
        pipe.failed = error
        if self.state is WriterState.OPEN:
            self.move(WriterState.HEALING)

    def _hearing(self, ledger_id: int) -> Pipe | None:
        """The pipe a fact is about, if facts about it still count."""
        pipe = self._by_ledger.get(ledger_id)
        if pipe is None or pipe.failed is not None or self.state is WriterState.DEAD:
            return None
        return pipe

    def unpublished(self, ledger_id: int) -> bool:
        """Is something confirmed that readers cannot see yet?"""
        pipe = self._hearing(ledger_id)
        return pipe is not None and pipe.last_published < pipe.last_confirmed

    def is_ledger_idle(self, ledger_id: int) -> bool:
        pipe = self._hearing(ledger_id)
        return pipe is not None and pipe.is_drained

    def drained(self, ledger_id: int) -> bool:
        """Is all that was pushed confirmed? Raises what ended the appender if it cannot be."""
        pipe = self._by_ledger[ledger_id]
        if pipe.failed is not None:
            raise pipe.failed.again()
        return pipe.is_drained

    def _collect(self) -> None:
        """Move what may be acknowledged to `_released`: in order, and not past the barrier."""
        for pipe in self.pipes:
            if pipe.failed is not None:
                return
            upto = pipe.last_published if self.waits_for_visibility else pipe.last_confirmed
            self._release(pipe.released(upto))
            if pipe.state is not PipeState.CLOSED:
                return

    def _release(self, batches: list[Batch]) -> None:
        self._released += batches
        if self.seen.meta.producers:
            self.producers.note_batches(batches)

    def take_released(self) -> list[Batch]:
        """Batches to acknowledge now, in order."""
        released, self._released = self._released, []
        return released

    # --- pipes (for the procedures)

    def advice(self) -> Advice:
        pipe = self.current
        if not pipe.holds_messages:
            return Advice.STAY
        return self._policy.advise(
            segment_bytes=pipe.bytes,
            entries=pipe.last_pushed,
            age_s=self.identity.now_s() - pipe.opened_s,
        )

    def add_pipe(
        self, number: int, ledger_id: int, base_seq: int, predecessor: tuple[int, int]
    ) -> Pipe:
        pipe = Pipe(number, ledger_id, base_seq, predecessor, self.identity.now_s())
        self.pipes.append(pipe)
        self._by_ledger[ledger_id] = pipe
        failed, self._failed_spares = self._failed_spares, {}
        for spare, error in failed.items():
            self.on_failed(spare, error)
        return pipe

    def remove_pipe(self, pipe: Pipe) -> None:
        self.pipes.remove(pipe)
        del self._by_ledger[pipe.ledger_id]

    def on_closed(self, pipe: Pipe, closed: ClosedLedger) -> None:
        """CLOSED counts as published: release what it keeps, and lift the barrier behind it."""
        check(pipe is self.pipes[0], "ledgers are closed in order", pipe.ledger_id)
        pipe.failed = None
        pipe.last_confirmed = pipe.last_published = closed.last_entry
        self._release(pipe.released(closed.last_entry))
        sealed = pipe.sealed(last_entry=closed.last_entry, ledger_bytes=closed.bytes)
        self.closed.append((pipe.number, sealed))
        pipe.state = PipeState.CLOSED
        if len(self.pipes) > 1:
            self.remove_pipe(pipe)
        self._collect()

    def settled(self, meta: LogMeta) -> LogMeta:
        """`meta` with the segments sealed that we closed, and without those that got no seam."""
        for number in self.dropped:
            if meta.segment(number) is not None:
                meta = meta.dropped(number, self.identity.now_us())
        for number, sealed in self.closed:
            segment = meta.segment(number)
            if segment is not None and segment.sealed is None:
                meta = meta.sealed(number, sealed)
        return meta

    def settle(self) -> None:
        """What the list knows by now need not be told again."""
        unsealed = {segment.number for segment in self.seen.meta.unsealed}
        self.closed = [each for each in self.closed if each[0] in unsealed]
        self.dropped = [number for number in self.dropped if number in unsealed]

    # --- the end

    def die(self, error: DlogError) -> None:
        """The end of the handle; a second error changes nothing."""
        if self.state not in (WriterState.CLOSED, WriterState.DEAD):
            self.error = error
            self.move(WriterState.DEAD)

    def forget(self) -> None:
        """Of a dead core: what only its duties needed. A program may keep many dead handles, and a
        log has many segments."""
        check(self.state is WriterState.DEAD, "only a dead core forgets", self.state)
        bare = replace(self.seen.meta, segments=(), pages=(), deleting=(), deleting_pages=())
        self.seen = self.seen._replace(meta=bare)

    def take_unacknowledged(self) -> list[Batch]:
        """What a dead core had sent and not acknowledged, oldest first: its fate is unknown."""
        check(self.state is WriterState.DEAD, "only a dead core gives up", self.state)
        left = self.take_released() + [batch for pipe in self.pipes for batch in pipe.sent]
        left += self.rebuilding
        self.rebuilding.clear()
        for pipe in self.pipes:
            pipe.sent.clear()
        return left

    def move(self, state: WriterState) -> None:
        check((self.state, state) in MOVES, "no such move", self.state, state)
        self.state = state

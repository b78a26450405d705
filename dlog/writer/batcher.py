"""Where messages become batches: the one place that user threads and the event loop share.

Threads put messages into the *open* batch under a lock. A batch that is full is *sealed* and queues
for the loop, which takes sealed batches first, and the open one when nothing is in flight: so an
idle writer sends at once, and a busy one gathers. The loop is woken only when it has something to
do, not for every message.

The window bounds what was taken and not yet acknowledged: it takes messages while it is not full,
so only the last one may exceed it (or an atomic run, which is taken as a whole). Waiting for room
is first come, first served, and wakes one waiter at a time: a freed place never stampedes.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate

from dlog import limits
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import BufferFull, Conflict, DlogError, Outcome, Retry, Timeout
from dlog.ids import MessageId
from dlog.writer.arguments import (
    EMPTY,
    EventTime,
    HeadersArg,
    Producer,
    as_bytes,
    as_event_time_us,
    as_headers,
    payload_bytes,
    refuse_too_large,
)
from dlog.writer.batch import UNSENT, Batch, Origin
from dlog.writer.producers import Dedup, Producers
from dlog.writer.tickets import Ticket

MESSAGE_BYTES = 16  # what a message counts beside its payload, so that empty ones are bounded too
RUN_BYTES = 512  # what a batch of one producer counts more: where many take turns, each is small

Room = Callable[[], None]


class Batcher:
    """Takes messages from any thread; the loop side is marked so."""

    def __init__(
        self, *, entry_bytes: int, window_bytes: int, wake_loop: Callable[[], None]
    ) -> None:
        self.entry_bytes = entry_bytes
        self._window_bytes = window_bytes
        self._wake_loop = wake_loop
        self._lock = threading.Lock()
        self._origin = Origin("", 0)
        self._next_seq = 0  # of the message behind all sealed batches
        self._open = self._fresh()
        self._last: Batch | None = None  # the one before the open one
        self._tail: MessageId | None = None  # the last message of the log before our first one
        self._tail_known = False
        self._dedup = Dedup(Producers())
        self._sealed: deque[Batch] = deque()
        self._taken_bytes = 0  # of sealed batches
        # Up to here a plain message needs no second look: so few bytes of the open batch are in the
        # window, and never too many messages.
        self._quick_bytes = self._quick_bytes_max
        self._waiting: deque[Room] = deque()
        self._refusal: DlogError | None = None
        self._hungry = True  # the loop wants the open batch even if it is not full
        self._woken = False

    def begin(self, origin: Origin, next_seq: int, producers: Producers) -> None:
        """Before the first offer: whose messages will be taken, where their seqs begin, and which
        numbers of producers are there."""
        self._origin, self._next_seq = origin, next_seq
        self._open = self._fresh()
        self._dedup = Dedup(producers)

    @property
    def log_uid(self) -> str:
        return self._origin.log_uid

    @property
    def is_empty(self) -> bool:
        """No message was ever in the log."""
        return self._next_seq == 0

    def reconfigure(self, entry_bytes: int, window_bytes: int) -> None:
        """From now on; what is in the open batch stays there. At any time, on the loop."""
        with self._lock:
            self.entry_bytes = entry_bytes
            self._window_bytes = window_bytes
            self._look_quickly()
        self._wake_one()  # who finds room wakes the next one

    @property
    def _quick_bytes_max(self) -> int:
        most = min(self.entry_bytes, MESSAGE_BYTES * limits.ENTRY_MESSAGES_MAX)
        return min(most, self._window_bytes - self._taken_bytes)

    def _look_quickly(self) -> None:
        """The window has more room, or less. Under the lock."""
        if self._open.producer is None and self._refusal is None:
            self._quick_bytes = self._quick_bytes_max

    def _fresh(self) -> Batch:
        batch = Batch([], 0)
        batch.origin, batch.first_seq = self._origin, self._next_seq
        return batch

    # --- any thread

    def offer(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
    ) -> Ticket | None:
        """A ticket, or None when the window is full: then wait for room and offer again."""
        if type(value) is bytes and key is None and headers is None and event_time is None:
            size = len(value) + MESSAGE_BYTES
            with self._lock:
                batch = self._open
                filled_bytes = batch.bytes + size
                if filled_bytes <= self._quick_bytes:
                    batch.bytes = filled_bytes
                    values = batch.values
                    idx = len(values)
                    values.append(value)
                    if self._hungry and not self._woken:
                        self._woken = True
                        self._wake_loop()
                    return Ticket(batch, idx)
        return self.offer_marked(value, key, headers, event_time)

    def offer_marked(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        *,
        if_tail: MessageId | str | None = None,
        producer: Producer | None = None,
    ) -> Ticket | None:
        """A message that is taken only behind `if_tail`, or only if its number is new; one that is
        on its way already gives the same ticket."""
        value = as_bytes("a value", value)
        key = as_bytes("a key", key)
        pairs = as_headers(headers)
        at_us = as_event_time_us(event_time)
        payload = payload_bytes(value, key, pairs)
        refuse_too_large(1, payload, len(pairs or ()))
        size = payload + MESSAGE_BYTES
        with self._lock:
            self._refuse()
            if producer is not None:
                found = self._dedup.find(*producer)
                if found is not None:
                    return Ticket(*found)
            if if_tail is not None:
                self._check_tail(if_tail)
            batch = self._room_for(size, producer)
            if batch is None:
                return None
            if producer is not None and not batch.values:
                batch.producer = producer
                batch.bytes += RUN_BYTES
                self._quick_bytes = -1  # a plain message may not come into this batch
                self._dedup.add(batch)
            idx = batch.append(value, key, pairs, at_us)
            batch.bytes += size
            self._knock()
            return Ticket(batch, idx)

    @property
    def knows_tail(self) -> bool:
        return self._tail_known or self._last is not None or bool(self._open.values)

    def tail_was(self, tail: MessageId | None) -> None:
        """The last message before our first one."""
        with self._lock:
            self._tail, self._tail_known = tail, True

    def _check_tail(self, wanted: MessageId | str) -> None:
        """Under the lock: whoever passes is the next one in line."""
        last = self._open if self._open.values else self._last
        if last is None:
            tail = self._tail
            told = "the log is empty" if tail is None else f"the last message is {tail}"
        elif last.ledger_id != UNSENT:
            tail = MessageId(last.ledger_id, last.entry_id, len(last.values) - 1)
            told = f"the last message is {tail}"
        else:
            tail = None
            told = "the last message is still on its way"
        if (last is None and tail is None and wanted == EMPTY) or wanted == tail:
            return
        raise Conflict(
            f"appended only if the last message is {wanted}, but {told}; nothing was sent",
            retry=Retry.NEVER,
            tail=tail,
        )

    def settle(self, batch: Batch) -> None:
        """A batch of a producer is acknowledged."""
        with self._lock:
            self._dedup.settle(batch)

    def offer_run(
        self,
        values: list[bytes],
        sizes: list[int],
        start: int,
        pieces: list[tuple[Batch, int, int]],
    ) -> int:
        """Takes plain values from index `start` on, as many as there is room for, and notes in
        `pieces` which batch took which; the index of the first that it did not take."""
        ends = list(accumulate(sizes[start:]))
        count = len(values)
        taken = 0
        with self._lock:
            while start + taken < count:
                done_bytes = ends[taken - 1] if taken else 0
                batch = self._room_for(sizes[start + taken])
                if batch is None:
                    break
                window = self._window_bytes - self._taken_bytes - batch.bytes
                room = max(min(self.entry_bytes - batch.bytes, window), sizes[start + taken])
                idx = len(batch.values)
                most = taken + limits.ENTRY_MESSAGES_MAX - idx
                upto = min(max(bisect_right(ends, done_bytes + room), taken + 1), most)
                batch.values.extend(values[start + taken : start + upto])
                batch.bytes += ends[upto - 1] - done_bytes
                pieces.append((batch, idx, upto - taken))
                taken = upto
            if taken:
                self._knock()
        return start + taken

    def offer_whole(self, batch: Batch) -> Batch | None:
        """A batch of its own, sealed: an atomic run. None when the window is full; another batch if
        this very run is on its way."""
        with self._lock:
            self._refuse()
            if batch.producer is not None and not batch.is_copy:
                found = self._dedup.find_run(*batch.producer, len(batch.values))
                if found is not None:
                    return found
            if self._has_no_room():
                return None
            self._seal_open()
            if batch.producer is not None:
                self._dedup.add(batch)
            batch.origin, batch.first_seq = self._origin, self._next_seq
            self._add_sealed(batch)
            self._open.first_seq = self._next_seq
            self._knock()
            return batch

    def _room_for(self, size: int, producer: Producer | None = None) -> Batch | None:
        """The open batch, if need be a fresh one; None when the window is full. Under the lock."""
        self._refuse()
        if self._has_no_room():
            return None
        batch = self._open
        if not batch.values:
            return batch
        fits = batch.bytes + size <= self.entry_bytes and batch.continues_with(producer)
        if fits and len(batch.values) < limits.ENTRY_MESSAGES_MAX:
            return batch
        self._seal_open()
        self._knock()
        return self._open

    def _is_full(self) -> bool:
        return self._taken_bytes + self._open.bytes >= self._window_bytes

    def _has_no_room(self) -> bool:
        """The window is full. An open batch that fills it alone goes out: it waits for no company.
        Under the lock."""
        is_full = self._is_full()
        if is_full and self._taken_bytes == 0:
            self._seal_open()
            self._knock()
        return is_full

    def _seal_open(self) -> None:
        if self._open.values:
            sealed, self._open = self._open, self._fresh()
            self._add_sealed(sealed)
            self._open.first_seq = self._next_seq

    def _add_sealed(self, batch: Batch) -> None:
        self._sealed.append(batch)
        self._last = batch
        self._next_seq += len(batch.values)
        self._taken_bytes += batch.bytes
        self._look_quickly()

    def _knock(self) -> None:
        if (self._hungry or self._sealed) and not self._woken:
            self._woken = True
            self._wake_loop()

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise self._refusal.again()

    def call_when_room(self, room: Room) -> None:
        """Calls `room` once there may be room, or the batcher refuses: on whatever thread makes it
        so."""
        with self._lock:
            if not self._is_full() or self._refusal is not None:
                ready = True
            else:
                self._waiting.append(room)
                ready = False
        if ready:
            room()

    def forget_waiter(self, room: Room) -> None:
        """A waiter that gave up. If it had been woken meanwhile, its place goes to the next."""
        with self._lock:
            try:
                self._waiting.remove(room)
                return
            except ValueError:
                pass
        self._wake_one()

    def wait_room(self, deadline_s: float | None) -> None:
        """Block this thread until there may be room."""
        gate = threading.Lock()
        gate.acquire()
        self.call_when_room(gate.release)
        timeout = -1 if deadline_s is None else max(deadline_s - SYSTEM_CLOCK.monotonic_s(), 0.0)
        arrived = False
        try:
            arrived = gate.acquire(timeout=timeout)
        finally:
            if not arrived:
                self.forget_waiter(gate.release)
        if not arrived:
            raise window_timeout()

    @property
    def pending(self) -> list[Batch]:
        """Batches that the loop has not taken yet, oldest first; resolve-waiters may be added to
        them."""
        with self._lock:
            batches = list(self._sealed)
            if self._open.values:
                batches.append(self._open)
            return batches

    # --- the loop

    def take(self, *, partial: bool) -> Batch | None:
        """The next batch to send: a sealed one, or the open one if `partial`; None when there is
        none now."""
        with self._lock:
            self._woken = False
            if self._sealed:
                return self._sealed.popleft()
            if partial and self._open.values:
                self._seal_open()
                return self._sealed.popleft()
            return None

    def has_open(self) -> bool:
        return bool(self._open.values)

    def set_hungry(self, hungry: bool) -> bool:
        """Whether a message that arrives now should wake the loop. True when some are here already:
        they may have arrived before the change, and nobody would look at them."""
        with self._lock:
            self._hungry = hungry
            return bool(self._open.values or self._sealed)

    def seal(self) -> None:
        """What is here goes out as it is."""
        with self._lock:
            self._seal_open()
            self._knock()

    def release(self, size: int) -> None:
        """So many taken bytes are acknowledged, or failed."""
        with self._lock:
            self._taken_bytes -= size
            self._look_quickly()
            self._has_no_room()
        self._wake_one()

    def _wake_one(self) -> None:
        with self._lock:
            if not self._waiting or (self._is_full() and self._refusal is None):
                return
            room = self._waiting.popleft()
        room()

    def passed_on(self) -> None:
        """A waiter got its place in; if there is room left, the next may come."""
        self._wake_one()

    def close(self, error: DlogError) -> None:
        """From now on every offer raises `error`; what was taken by now still goes out."""
        with self._lock:
            if self._refusal is None:
                self._refusal = error
            self._quick_bytes = -1  # whoever offers goes the long way, and hears it
            self._seal_open()
            waiting, self._waiting = self._waiting, deque()
        for room in waiting:
            room()

    def refuse(self, error: DlogError) -> list[Batch]:
        """From now on every offer raises `error`; what was not taken yet is returned to be
        failed."""
        self.close(error)
        with self._lock:
            left = list(self._sealed)
            self._sealed.clear()
        return left

    def forked(self, error: DlogError) -> list[Batch]:
        """In the child of a fork, where no other thread lives: whoever held the lock is gone,
        too."""
        self._lock = threading.Lock()
        self._waiting.clear()
        return self.refuse(error)

    @property
    def taken_bytes(self) -> int:
        """Taken and not acknowledged, those of the open batch included."""
        return self._taken_bytes + self._open.bytes

    @property
    def is_full(self) -> bool:
        return self._is_full()

    @property
    def refusal(self) -> DlogError | None:
        return self._refusal


def window_timeout() -> Timeout:
    return Timeout("no room in the window in time; nothing was sent", outcome=Outcome.NOT_HAPPENED)


def window_full() -> BufferFull:
    return BufferFull("the window is full; nothing was sent (on_full='raise')")

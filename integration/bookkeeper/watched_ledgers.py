"""Ledgers whose history is kept while everything around them breaks, and the audit of what is left
when all is well again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any

from dlog.errors import DlogError, check
from dlog.ids import MessageId
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger
from dlog.limits import MIB
from dlog.testing.checkers import assert_holds
from dlog.testing.history import Event, Op, Phase, digest_of
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata
from integration.bookkeeper.fault_tools import PATIENCE_S, Stores, patience, pause

# Entries in flight, and the pause between two bursts of them: a load that goes on for as long as a
# server takes to start shall fill neither the disk nor the audit.
BURST = 10
PAUSE_S = 0.05
RUN_BYTES = MIB
READS_FAILED_MAX, READ_AGAIN_S = 50, 0.1
READ_MS = 5_000.0


def payload(ledger_id: int, number: int) -> bytes:
    """Like no other entry's, of up to 500 bytes; the first one is empty."""
    word = b"%d/%d " % (ledger_id, number)
    size = 0 if number == 0 else max(number * 373 % 501, len(word))
    return (word * (size // len(word) + 1))[:size]


class Written:
    """A ledger that is written, and all that anybody saw of it, for the checkers: to them it is a
    log of one writer. A listener of its appender."""

    def __init__(self, appender: BookKeeperAppender, *, burst: int = BURST) -> None:
        self.appender = appender
        self.ledger_id = appender.ledger_id
        self.events: list[Event] = []
        self.confirmed = -1
        self.published = -1
        self.failed: DlogError | None = None
        self.longest_gap_s = 0.0  # between confirmations while one is awaited
        self._handle = f"writer of {self.ledger_id}"
        self._burst = burst
        self._sent = 0
        self._goes_on = False
        self._heard_s = time.monotonic()
        self._readers = 0
        self._news = asyncio.Event()
        self.note(op=Op.OPEN, phase=Phase.INVOKE)
        self.note(op=Op.OPEN, phase=Phase.OK, epoch=1)
        appender.listen(self)

    def note(self, *, op: Op, phase: Phase, handle: str = "", **about: Any) -> None:
        event = Event(
            op=op, phase=phase, t_ns=time.monotonic_ns(), handle=handle or self._handle, **about
        )
        self.events.append(event)

    # --- Writing

    async def be_born(self) -> None:
        self._invoke()
        await self.appender.birth([payload(self.ledger_id, 0)])

    def send(self, count: int) -> int:
        if self.confirmed == self._sent - 1:
            self._heard_s = time.monotonic()  # nothing was awaited until now
        for _ in range(count):
            number = self._sent
            self._invoke()
            entry_id = self.appender.submit([payload(self.ledger_id, number)])
            check(entry_id == number, "entries count from 0", entry_id, number)
        return self._sent - 1

    def _invoke(self) -> None:
        number, self._sent = self._sent, self._sent + 1
        told = digest_of(payload(self.ledger_id, number))
        self.note(op=Op.APPEND, phase=Phase.INVOKE, name=str(number), number=number, digest=told)

    def go(self) -> None:
        """Burst after burst, until it is stopped or fails."""
        self._goes_on = True
        self.measure()
        self._next_burst()

    def measure(self) -> None:
        """The longest gap counts from now on."""
        self._heard_s, self.longest_gap_s = time.monotonic(), 0.0

    def stop(self) -> None:
        self._goes_on = False

    def _next_burst(self) -> None:
        if self._goes_on and self.failed is None and self.confirmed == self._sent - 1:
            self.send(self._burst)

    def _publish(self) -> None:
        if self.failed is None:
            self.appender.publish()

    async def until_confirmed(self, entry_id: int) -> None:
        """Raises what ended the appender, if it did before."""
        await self.until(lambda: self.confirmed >= entry_id or self.failed is not None)
        if self.failed is not None:
            raise self.failed

    async def until_failed(self) -> DlogError:
        await self.until(lambda: self.failed is not None)
        assert self.failed is not None
        return self.failed

    async def until(self, holds: Callable[[], bool]) -> None:
        async with patience():
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def close(self) -> ClosedLedger:
        self.stop()
        await self.until_confirmed(self._sent - 1)
        closed = await self.appender.close()
        self.note_closed(closed, "its writer")
        return closed

    # --- What the appender says

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        for number in range(self.confirmed + 1, last_entry + 1):
            self.note(
                op=Op.APPEND,
                phase=Phase.OK,
                name=str(number),
                number=number,
                id=MessageId(ledger_id, number, 0),
            )
        self.confirmed = last_entry
        self._note_gap()
        self._news.set()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._publish)
        if last_entry == self._sent - 1:
            loop.call_later(PAUSE_S, self._next_burst)

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        self.published = last_entry
        self._news.set()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        for number in range(self.confirmed + 1, self._sent):
            self.note(
                op=Op.APPEND,
                phase=Phase.UNKNOWN,
                name=str(number),
                number=number,
                error=type(error).__name__,
            )
        self.failed = error
        self._news.set()

    def _note_gap(self) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._heard_s)
        self._heard_s = now_s

    # --- What others see

    def begin_reading(self) -> str:
        self._readers += 1
        handle = f"reader {self._readers} of {self.ledger_id}"
        self.note(op=Op.READ, phase=Phase.INVOKE, handle=handle, seq=0)
        return handle

    def note_delivered(self, handle: str, first_entry: int, run: Sequence[memoryview]) -> None:
        for number, entry in enumerate(run, first_entry):
            self.note(
                op=Op.DELIVER,
                phase=Phase.OK,
                handle=handle,
                name=str(number),
                digest=digest_of(bytes(entry)),
                id=MessageId(self.ledger_id, number, 0),
                seq=number,
                epoch=1,
            )

    def end_reading(self, handle: str) -> None:
        self.note(op=Op.READ, phase=Phase.OK, handle=handle, seq=0)

    def note_closed(self, closed: ClosedLedger, by: str) -> None:
        self.note(
            op=Op.CLOSED,
            phase=Phase.OK,
            handle=by,
            ledger_id=self.ledger_id,
            entry_id=closed.last_entry,
            bytes=closed.bytes,
        )


class Following:
    """A reader at the tail of a ledger, which notes what it is given."""

    def __init__(self, written: Written, reader: BookKeeperReader) -> None:
        self.written = written
        self.reader = reader
        self.known = -1
        self._handle = written.begin_reading()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.go_on()

    @property
    def is_over(self) -> bool:
        """The ledger is closed, and all of it was delivered."""
        tail = self.reader._tail.core
        return tail.is_ended and self.known >= tail.readable

    async def go_on(self) -> None:
        last = await self.reader.wait_past(self.known, 1_000)
        while self.known < last:
            run = await self.reader.read(self.known + 1, last, bytes_max=RUN_BYTES)
            self.written.note_delivered(self._handle, self.known + 1, run)
            self.known += len(run)
            self._news.set()

    async def until_known(self, entry_id: int) -> None:
        async with patience():
            while self.known < entry_id:
                self._news.clear()
                await self._news.wait()


async def read_whole(store: BookKeeperLedgerStore, written: Written, last_entry: int) -> str:
    """By a new reader, to the end; its name."""
    handle = written.begin_reading()
    reader = await store.open(written.ledger_id)
    known = -1
    while known < last_entry:
        run = await reader.read(known + 1, last_entry, bytes_max=RUN_BYTES)
        written.note_delivered(handle, known + 1, run)
        known += len(run)
    written.end_reading(handle)
    await reader.close()
    return handle


# --- The audit


async def audit(
    stores: Stores, ledgers: Sequence[Written], *, lost: AbstractSet[str] = frozenset()
) -> None:
    """When all faults are over: recovered by two strangers at once each ledger has one end, and all
    that was promised holds. The bookies in `lost` may have lost what they had before."""
    first, second, reading = stores.make(), stores.make(), stores.make()

    async def one(written: Written) -> None:
        ends = await asyncio.gather(
            first.recover(written.ledger_id), second.recover(written.ledger_id)
        )
        for end in ends:
            written.note_closed(end, "a stranger")
        assert await first.recover(written.ledger_id) == ends[0]
        final = await read_whole(reading, written, ends[0].last_entry)
        assert_holds(written.events, final=final)
        await check_copies(reading, written.ledger_id, lost=lost)

    async with asyncio.timeout(2 * PATIENCE_S):
        await asyncio.gather(*map(one, ledgers))


async def check_copies(
    store: BookKeeperLedgerStore, ledger_id: int, *, lost: AbstractSet[str]
) -> None:
    """Fragments are well-formed (I12), and each entry is on at least A of the bookies that metadata
    names for it (I11): each is asked alone."""
    metadata = (await store._nodes.read_fresh(ledger_id)).metadata
    fragments = metadata.fragments
    assert fragments[0].first_entry_id == 0
    assert all(
        one.first_entry_id < next_one.first_entry_id for one, next_one in pairwise(fragments)
    )
    assert fragments[-1].first_entry_id <= metadata.last_entry_id + 1
    ends = [each.first_entry_id for each in fragments[1:]] + [metadata.last_entry_id + 1]
    for fragment, end in zip(fragments, ends, strict=True):
        assert len(set(fragment.ensemble)) == metadata.ensemble_size
        await _check_fragment(store, ledger_id, metadata, fragment, end, lost)


async def _check_fragment(
    store: BookKeeperLedgerStore,
    ledger_id: int,
    metadata: LedgerMetadata,
    fragment: Fragment,
    end: int,
    lost: AbstractSet[str],
) -> None:
    copies: Counter[int] = Counter()
    for bookie_id in fragment.ensemble:
        if bookie_id in lost:
            copies.update(range(fragment.first_entry_id, end))
        else:
            copies.update(
                await _held_by(store, ledger_id, metadata, bookie_id, fragment.first_entry_id, end)
            )
    few = [n for n in range(fragment.first_entry_id, end) if copies[n] < metadata.ack_quorum]
    assert not few, f"ledger {ledger_id}: too few copies of {few[:10]} in {fragment}"


async def _held_by(
    store: BookKeeperLedgerStore,
    ledger_id: int,
    metadata: LedgerMetadata,
    bookie_id: str,
    first: int,
    end: int,
) -> set[int]:
    """Which entries of a range this one bookie has, intact."""
    assert metadata.digest_type is not None
    assert metadata.password is not None
    digest = EntryDigest(metadata.digest_type, metadata.password)
    link = await store._links.data(bookie_id)
    held: set[int] = set()
    at, failed = first, 0
    while at < end:
        batch = await link.batch_read(
            ledger_id, at, count_max=end - at, frame_bytes_max=MIB, timeout_ms=READ_MS
        )
        if batch.answer is Answer.NO_LEDGER:
            break
        if batch.answer is Answer.NO_ENTRY:
            at += 1
            continue
        if batch.answer is Answer.IO_FAILED and failed < READS_FAILED_MAX:
            failed += 1  # as one does for a moment that turns read-only under load
            await pause(READ_AGAIN_S)
            continue
        said = f"{link.where} to entry {at} of ledger {ledger_id}: {batch.answer}"
        assert batch.answer is Answer.OK, said
        for entry in batch.entries:
            digest.verify(entry, ledger_id=ledger_id, entry_id=at, where=link.where)
            held.add(at)
            at += 1
    return held

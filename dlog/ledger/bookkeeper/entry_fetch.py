"""Fetches entries of one ledger from bookies: the driver of `core.entry_read`.

A task for each request to a bookie, and a request brings thousands of entries. A bookie that was
overtaken is not cancelled: its answer, if it comes, still tells how long answers take.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

from dlog.clock import Clock
from dlog.errors import DlogError, ReaderClosed
from dlog.ledger.bookkeeper.core.entry_read import (
    READ_DEADLINE_MS,
    Ask,
    BookieHabits,
    EntryRead,
    asking_order,
)
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.ledger.bookkeeper.core.reasons import why_read
from dlog.ledger.bookkeeper.links import DataLink, Links
from dlog.reason import Wait
from dlog.together import together
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import LedgerMetadata

_log = logging.getLogger("dlog.ledger")

# Entries that one call reads side by side where there are no batches: from a bookie that is too old
# for them, or of a ledger that is striped over its bookies.
SINGLES_MAX = 32
_ATTENTION_S = 0.5  # so often, at least, we look at the time; one that comes later has slept
_SINGLES_FIRST = 4  # while nothing is known of how large the entries are


class EntryFetch:
    """One for a reader, which tells what may be read. Reads may go on side by side."""

    def __init__(
        self,
        ledger_id: int,
        *,
        links: Links,
        digest: EntryDigest,
        habits: BookieHabits,
        clock: Clock,
        first_place: int,
    ) -> None:
        self.hedges = 0
        self._ledger_id = ledger_id
        self._links = links
        self._digest = digest
        self._habits = habits
        self._clock = clock
        self._first_place = first_place
        self._closed = False
        self._home: str | None = None
        self._in_flight: Counter[str] = Counter()
        self._usual_bytes: float | None = None  # of an entry that was not read in a batch
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads: set[EntryRead] = set()  # under way

    def why(self) -> Wait | None:
        return why_read(self._reads, self._clock.monotonic_s())

    def prefer(self, place: int) -> None:
        """Begin there in the ensemble, instead of anywhere."""
        self._first_place = place

    async def read(
        self, metadata: LedgerMetadata, first_entry: int, last_entry: int, *, bytes_max: int
    ) -> list[memoryview]:
        """Of one fragment, at least one entry."""
        if metadata.ensemble_size > metadata.write_quorum:
            return await self._read_striped(metadata, first_entry, last_entry, bytes_max)
        bookies = metadata.fragment_of(first_entry).ensemble
        if self._home is None:
            self._home = bookies[self._first_place % len(bookies)]
        read = self._new_read(bookies, first_entry, last_entry, bytes_max, in_batches=True)
        await self._run(read)
        self._home = read.winner
        if read.winner is not None and not self._habits.reads_batches(
            read.winner, self._clock.monotonic_s()
        ):
            self._learn_size(read.payloads)
        return read.payloads

    def _singles(self, bytes_max: int) -> int:
        """As many as fit, so that little is fetched in vain."""
        if self._usual_bytes is None:
            return _SINGLES_FIRST
        return min(max(1, int(bytes_max / max(self._usual_bytes, 1.0))), SINGLES_MAX)

    def _learn_size(self, payloads: list[memoryview]) -> None:
        self._usual_bytes = sum(map(len, payloads)) / len(payloads)

    async def _read_striped(
        self, metadata: LedgerMetadata, first_entry: int, last_entry: int, bytes_max: int
    ) -> list[memoryview]:
        """Every entry from its own bookies, side by side, handed out as far as they are there in
        order."""
        ensemble = metadata.fragment_of(first_entry).ensemble
        last_entry = min(last_entry, first_entry + self._singles(bytes_max) - 1)
        reads = [
            self._new_read(
                [ensemble[place] for place in write_set(metadata, entry_id)],
                entry_id,
                entry_id,
                bytes_max,
                in_batches=False,
            )
            for entry_id in range(first_entry, last_entry + 1)
        ]
        results = await asyncio.gather(*map(self._run, reads), return_exceptions=True)
        payloads: list[memoryview] = []
        taken_bytes = 0
        for read, error in zip(reads, results, strict=True):
            if error is not None:
                if payloads:
                    break
                raise error
            taken_bytes += len(read.payloads[0])
            if payloads and taken_bytes > bytes_max:
                break
            payloads += read.payloads
        self._learn_size(payloads)
        return payloads

    def _new_read(
        self,
        bookies: Sequence[str],
        first_entry: int,
        last_entry: int,
        bytes_max: int,
        *,
        in_batches: bool,
    ) -> EntryRead:
        now_s = self._clock.monotonic_s()
        return EntryRead(
            self._ledger_id,
            first_entry,
            last_entry,
            bytes_max=bytes_max,
            bookies=asking_order(
                bookies,
                home=self._home,
                in_flight=self._in_flight,
                habits=self._habits,
                now_s=now_s,
            ),
            in_batches=in_batches,
            singles_max=self._singles(bytes_max),
            digest=self._digest,
            habits=self._habits,
            deadline_s=now_s + READ_DEADLINE_MS / 1000,
        )

    async def _run(self, read: EntryRead) -> None:
        self._reads.add(read)
        try:
            await self._run_to_its_end(read)
        finally:
            self._reads.discard(read)

    async def _run_to_its_end(self, read: EntryRead) -> None:
        loop = asyncio.get_running_loop()
        asking: set[asyncio.Task[None]] = set()
        while not read.is_over:
            now_s = self._clock.monotonic_s()
            ask = read.asks(now_s)
            if ask is not None:
                task = loop.create_task(self._ask(read, ask))
                asking.add(task)
                # Counted now: the next read chooses its bookie before this task has run.
                self._in_flight[ask.bookie_id] += 1
                self._tasks.add(task)
                task.add_done_callback(partial(self._on_asked, ask.bookie_id))
            elif not read.is_over:
                timeout_s = min(max(0.0, read.look_again_s() - now_s), _ATTENTION_S)
                done, asking = await asyncio.wait(
                    asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                self._check_open()
                late_s = self._clock.monotonic_s() - now_s - timeout_s
                if late_s > _ATTENTION_S:
                    read.on_stall(late_s)
                for task in done:
                    task.result()  # a defect must be seen; whatever a bookie did is an answer
        self.hedges += read.hedges
        for bookie_id in read.damaged_at:  # others may have it whole, but one copy less
            _log.warning(
                "entry %d of ledger %d is damaged at bookie %s",
                read.first_entry,
                read.ledger_id,
                bookie_id,
            )
        if read.winner is None:
            raise read.error()

    async def _ask(self, read: EntryRead, ask: Ask) -> None:
        try:
            link = self._links.data_now(ask.bookie_id) or await self._links.data(ask.bookie_id)
            answer, entries = await self._answer(link, read, ask)
        except DlogError:  # of connecting: what a bookie does is an answer
            read.on_unreached(ask, self._clock.monotonic_s())
        else:
            read.on_answer(ask, answer, entries, self._clock.monotonic_s())

    def _on_asked(self, bookie_id: str, task: asyncio.Task[None]) -> None:
        self._in_flight[bookie_id] -= 1
        self._tasks.discard(task)

    async def _answer(
        self, link: DataLink, read: EntryRead, ask: Ask
    ) -> tuple[Answer, Sequence[memoryview]]:
        if not ask.as_batch:
            return await self._read_singly(link, read, ask)
        reply = await link.batch_read(
            read.ledger_id,
            read.first_entry,
            count_max=ask.count_max,
            frame_bytes_max=ask.frame_bytes_max,
            timeout_ms=ask.timeout_ms,
        )
        return reply.answer, reply.entries

    async def _read_singly(
        self, link: DataLink, read: EntryRead, ask: Ask
    ) -> tuple[Answer, Sequence[memoryview]]:
        replies = await together(
            *(
                link.read(read.ledger_id, entry_id, timeout_ms=ask.timeout_ms)
                for entry_id in range(read.first_entry, read.first_entry + ask.count_max)
            )
        )
        entries: list[memoryview] = []
        for reply in replies:
            if reply.entry is None:
                break
            entries.append(reply.entry)
        return (Answer.OK if entries else replies[0].answer), entries

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosed(
                f"the reader of ledger {self._ledger_id} was closed", ledger_id=self._ledger_id
            )

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""What the tests of faults share: bookies broken in every way and healed again, ledgers whose
history is kept, and the audit of what is left when all is well.

A fault strikes one bookie of three ledgers at once, in which it stands first, in the middle and
last, so that every place is tried for the price of one restart.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dlog.chance import SYSTEM_CHANCE
from dlog.errors import DlogError, check
from dlog.ids import MessageId
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.ledger_nodes import Change, StoredLedger
from dlog.ledger.bookkeeper.policy import Placement, RandomPlacement
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.limits import MIB
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.checkers import assert_holds
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import LOOPBACK, FaultyProxy
from dlog.testing.history import Event, Op, Phase, digest_of
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.bookie_service_info import Endpoint
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata

SPEC = LedgerSpec(3, 3, 2, custom={"of": b"faults"})
PATIENCE_S = 60.0  # for facts that must come; a restart of a bookie takes 5 to 8 s on a good day
# Entries in flight, and the pause between two bursts of them: a load that goes on for as long as a
# server takes to start shall fill neither the disk nor the audit.
BURST = 10
PAUSE_S = 0.02
RUN_BYTES = MIB
READ_MS = 5_000.0


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_S)


async def come_true(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Ask again and again, for a bounded time, until it is so."""
    loop, end_s = asyncio.get_running_loop(), time.monotonic() + PATIENCE_S
    while True:
        told = holds()
        if told if isinstance(told, bool) else await told:
            return
        assert time.monotonic() < end_s, f"still not so after {PATIENCE_S} s: {what}"
        pause = asyncio.Event()
        loop.call_later(0.02, pause.set)
        await pause.wait()


# --- What is done to bookies


class Fault(ABC):
    """Between `strike` and `heal` the bookie is as bad as the fault says. After `heal` it serves
    and is writable."""

    name = ""
    loses_entries = False

    @abstractmethod
    async def strike(self, bookie: Bookie) -> None: ...

    @abstractmethod
    async def heal(self, bookie: Bookie) -> None: ...


class Killed(Fault):
    name = "killed"

    async def strike(self, bookie: Bookie) -> None:
        bookie.kill()

    async def heal(self, bookie: Bookie) -> None:
        bookie.start_writable()
        await asyncio.to_thread(bookie.wait_until_serving)


class Frozen(Fault):
    """SIGSTOP: the kernel still accepts connections and bytes, and nothing is answered."""

    name = "frozen"

    async def strike(self, bookie: Bookie) -> None:
        bookie.freeze()

    async def heal(self, bookie: Bookie) -> None:
        bookie.thaw()
        await asyncio.to_thread(bookie.wait_until_serving)


class Restarted(Killed):
    """Ended politely and started at once: it accepts connections and resets them for seconds."""

    name = "restarted"

    async def strike(self, bookie: Bookie) -> None:
        await asyncio.to_thread(bookie.terminate)
        bookie.start_writable()


class ReadOnly(Fault):
    """Comes back so that it serves reads and refuses adds."""

    name = "read-only"

    async def strike(self, bookie: Bookie) -> None:
        await asyncio.to_thread(bookie.terminate)
        bookie.start_read_only()
        await asyncio.to_thread(bookie.wait_until_serving)

    async def heal(self, bookie: Bookie) -> None:
        await asyncio.to_thread(bookie.terminate)
        bookie.start_writable()
        await asyncio.to_thread(bookie.wait_until_serving)


class Full(Fault):
    """Its disk takes no byte more: in half a second it notices, and refuses adds; or it ends.

    What it took shortly before is not safe there. A flush that fails in the middle of an entry
    leaves the log torn, the next one is taken for good, the journal is dropped, and reads of these
    entries fail from then on (seen on 4.18.0: "Read invalid entry length")."""

    name = "full"
    loses_entries = True

    async def strike(self, bookie: Bookie) -> None:
        await come_true(lambda: _is_full(bookie), f"{bookie.name} is full")

    async def heal(self, bookie: Bookie) -> None:
        await asyncio.to_thread(bookie.empty_disk)
        bookie.start_writable()
        await come_true(lambda: _registered(bookie), f"{bookie.name} has room again")
        await come_true(lambda: _gone(bookie), f"{bookie.name} is no longer read-only")
        await asyncio.to_thread(bookie.wait_until_serving)


class Wiped(Killed):
    """Killed, and back under its name without anything it had: it serves, and denies all."""

    name = "wiped"
    loses_entries = True

    async def strike(self, bookie: Bookie) -> None:
        bookie.kill()
        await asyncio.to_thread(bookie.wipe)
        bookie.start_writable()
        await asyncio.to_thread(bookie.wait_until_serving)


FAULTS: tuple[Fault, ...] = (Killed(), Frozen(), Restarted(), ReadOnly(), Full(), Wiped())


async def _registered(bookie: Bookie, *, read_only: bool = False) -> bool:
    return await asyncio.to_thread(bookie.is_registered, read_only=read_only)


async def _is_full(bookie: Bookie) -> bool:
    await asyncio.to_thread(bookie.fill_disk)  # again: it may remove files of its own
    return bookie.pid is None or await _registered(bookie, read_only=True)


async def _gone(bookie: Bookie) -> bool:
    return not await _registered(bookie, read_only=True)


# --- Stores


class Pinned:
    """Placement that gives the ensembles it was told, in that order, and as a replacement the one
    it was told if it may, else any; or never one."""

    def __init__(
        self, *ensembles: Sequence[str], spare: str | None = None, replaces: bool = True
    ) -> None:
        self._ensembles = [tuple(each) for each in ensembles]
        self._spare = spare
        self._replaces = replaces
        self._random = RandomPlacement(SYSTEM_CHANCE)

    def ensemble(
        self, size: int, *, writable: Sequence[str], avoided: AbstractSet[str]
    ) -> tuple[str, ...]:
        return self._ensembles.pop(0)

    def replacement(
        self, *, excluded: AbstractSet[str], writable: Sequence[str], avoided: AbstractSet[str]
    ) -> str | None:
        if not self._replaces:
            return None
        if self._spare is not None and self._spare not in excluded:
            return self._spare
        return self._random.replacement(excluded=excluded, writable=writable, avoided=avoided)


class Stores:
    """Makes stores, each with a ZooKeeper session and connections of its own, and ends them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._made: list[tuple[BookKeeperLedgerStore, ZooKeeperMetaStore]] = []

    def make(
        self,
        *,
        placement: Placement | None = None,
        append: AppendOptions | None = None,
        recovery_timeout_ms: float = PATIENCE_S * 1000,
    ) -> BookKeeperLedgerStore:
        meta = ZooKeeperMetaStore(self.cluster.zookeeper.hosts)
        store = BookKeeperLedgerStore(
            meta,
            ledgers_root=self.cluster.ledgers_root,
            placement=placement,
            append=append,
            recovery_timeout_ms=recovery_timeout_ms,
        )
        self._made.append((store, meta))
        return store

    async def close(self) -> None:
        made, self._made = self._made, []
        await asyncio.gather(*(store.close() for store, _ in made))
        await asyncio.gather(*(meta.close() for _, meta in made))


def lead_through(store: BookKeeperLedgerStore, bookie: Bookie, proxy: FaultyProxy) -> None:
    """This store alone reaches this bookie through the proxy. Before its first call."""
    resolve = store._registry.resolve

    async def past(bookie_id: str) -> Endpoint:
        endpoint = await resolve(bookie_id)
        if bookie_id != bookie.bookie_id:
            return endpoint
        return replace(endpoint, host=LOOPBACK, port=proxy.port)

    store._registry.resolve = past  # type: ignore[method-assign]


@asynccontextmanager
async def stores_of(cluster: Cluster) -> AsyncIterator[Stores]:
    stores = Stores(cluster)
    try:
        yield stores
    finally:
        await stores.close()


def places_of(cluster: Cluster, victim: Bookie, *others: Bookie) -> list[list[str]]:
    """Three ensembles of the same bookies: the victim stands first, in the middle, last."""
    if not others:
        others = tuple(each for each in cluster.bookies if each is not victim)[:2]
    first, second = (each.bookie_id for each in others)
    name = victim.bookie_id
    return [[name, first, second], [first, name, second], [first, second, name]]


class Held:
    """Holds one of the metadata changes of each ledger of a store, before it is sent or after it
    was stored, so that something can be done in between. Changes count from 0: of a recovery, the
    mark and the close."""

    def __init__(self, store: BookKeeperLedgerStore, number: int, side: str) -> None:
        self.arrived: set[int] = set()
        self._number, self._side = number, side
        self._counts: Counter[int] = Counter()
        self._news = asyncio.Event()
        self._go = asyncio.Event()
        self._change = store._nodes.change
        store._nodes.change = self._changed  # type: ignore[method-assign]

    def release(self) -> None:
        self._go.set()

    async def until_arrived(self, count: int) -> None:
        async with patience():
            while len(self.arrived) < count:
                self._news.clear()
                await self._news.wait()

    async def _changed(self, known: StoredLedger, change: Change) -> StoredLedger:
        ledger_id = known.ledger_id
        is_it = self._counts[ledger_id] == self._number
        self._counts[ledger_id] += 1
        if is_it and self._side == "before":
            await self._wait(ledger_id)
        stored = await self._change(known, change)
        if is_it and self._side == "after":
            await self._wait(ledger_id)
        return stored

    async def _wait(self, ledger_id: int) -> None:
        self.arrived.add(ledger_id)
        self._news.set()
        await self._go.wait()


# --- Ledgers whose history is kept


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
    at = first
    while at < end:
        batch = await link.batch_read(
            ledger_id, at, count_max=end - at, frame_bytes_max=MIB, timeout_ms=READ_MS
        )
        if batch.answer is Answer.NO_LEDGER:
            break
        if batch.answer is Answer.NO_ENTRY:
            at += 1
            continue
        said = f"{link.where} to entry {at} of ledger {ledger_id}: {batch.answer}"
        assert batch.answer is Answer.OK, said
        for entry in batch.entries:
            digest.verify(entry, ledger_id=ledger_id, entry_id=at, where=link.where)
            held.add(at)
            at += 1
    return held


async def all_well(stores: Stores, work: Sequence[Awaitable[object]] = ()) -> None:
    """Every bookie serves, and a store that looks now finds all of them writable."""
    await asyncio.gather(*work)
    for bookie in stores.cluster.bookies:
        await asyncio.to_thread(bookie.wait_until_serving)
    looking = stores.make()
    await looking._ready()

    async def all_there() -> bool:
        await looking._registry.refresh()
        return len(looking._registry.writable()) == len(stores.cluster.bookies)

    await come_true(all_there, "all bookies are writable")

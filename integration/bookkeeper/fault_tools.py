"""What the tests of faults share: bookies broken in every way and healed again, and stores that go
through bad networks or are held at a step.

A fault strikes one bookie of three ledgers at once, in which it stands first, in the middle and
last, so that every place is tried for the price of one restart.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace

from dlog.chance import SYSTEM_CHANCE
from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.ledger_nodes import Change, StoredLedger
from dlog.ledger.bookkeeper.policy import Placement, RandomPlacement
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import LedgerSpec
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import LOOPBACK, FaultyProxy
from dlog.wire.bookie_service_info import Endpoint
from tests.pace import Deadline, stretched

SPEC = LedgerSpec(3, 3, 2, custom={"of": b"faults"})
PATIENCE_S = 60.0  # for facts that must come; a restart of a bookie takes 5 to 8 s on a good day
HEAL_S = 20.0  # 5 to 8 s to start; longer, and it has given up


def patience() -> asyncio.Timeout:
    return asyncio.timeout(stretched(PATIENCE_S))


async def pause(seconds: float) -> None:
    """Between two questions, or two entries of a load: so that they do not take all of a core."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def come_true(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Ask again and again, for a bounded time, until it is so."""
    deadline = Deadline(PATIENCE_S)
    while True:
        told = holds()
        if told if isinstance(told, bool) else await told:
            return
        assert not deadline.passed(), f"still not so after {PATIENCE_S} s: {what}"
        await pause(0.02)


# --- What is done to bookies


async def serves_again(bookie: Bookie) -> None:
    """One whose old registration is still there waits until that expires. When ZooKeeper is away
    meanwhile, a stock bookie gives up: it closes for good, and its process stays (4.18.0,
    "Couldn't register bookie"). Whoever runs bookies starts such a one anew."""
    for _ in range(3):
        try:
            return await asyncio.to_thread(bookie.wait_until_serving, HEAL_S)
        except Unavailable:
            bookie.kill()
            bookie.start()
    await asyncio.to_thread(bookie.wait_until_serving)


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
        await serves_again(bookie)


class Frozen(Fault):
    """SIGSTOP: the kernel still accepts connections and bytes, and nothing is answered."""

    name = "frozen"

    async def strike(self, bookie: Bookie) -> None:
        bookie.freeze()

    async def heal(self, bookie: Bookie) -> None:
        bookie.thaw()
        await serves_again(bookie)


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
        await serves_again(bookie)


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
        await serves_again(bookie)
        await come_true(lambda: _gone(bookie), f"{bookie.name} is no longer read-only")


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

"""`BookKeeperLedgerStore`: makes, opens, recovers and deletes ledgers on stock bookies.

    meta = ZooKeeperMetaStore("zk1:2181,zk2:2181")
    store = BookKeeperLedgerStore(meta, password=b"...")
    appender = await store.create(LedgerSpec())
    ...
    await store.close()
    await meta.close()

It ties the parts of this room together and decides little itself: which ledgers it can make, whose
password fits, and that a ledger is fenced before it is deleted. Bookies never hear of a deletion,
so an appender that nobody fenced would go on to fill a ledger that is gone.

Making, recovering and deleting needs the metadata store. Handles that are open go on without it as
long as no bookie of theirs is lost.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import warnings
from collections.abc import AsyncIterator

from dlog import trace
from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    AuthError,
    ConfigError,
    DlogError,
    ForkedHandle,
    NotFound,
    Unavailable,
    Unsupported,
)
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.health import Health
from dlog.ledger.bookkeeper.info import end_of, info_of, new_metadata
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes, StoredLedger
from dlog.ledger.bookkeeper.policy import Placement, RandomPlacement
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.recovery import LedgerRecovery
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec
from dlog.limits import (
    CONNECT_TIMEOUT_MS_DEFAULT,
    META_TIMEOUT_MS_DEFAULT,
    RECOVERY_TIMEOUT_MS_DEFAULT,
)
from dlog.meta.store import MetaStore
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import LedgerState

_log = logging.getLogger("dlog.ledger")

# How long a deletion waits for the fence. A ledger whose bookies are gone must be deletable, too.
_FENCE_PATIENCE_S = 10.0


class BookKeeperLedgerStore:
    """Ledgers below `ledgers_root` of a BookKeeper cluster, whose metadata is in `meta` (which
    stays the caller's to close). Belongs to the event loop of its first call.

    The password goes into each new ledger, and opens those that were made with it. Connections are
    made when first needed and shared by all ledgers.
    """

    def __init__(
        self,
        meta: MetaStore,
        *,
        ledgers_root: str = "/ledgers",
        password: bytes = b"",
        placement: Placement | None = None,
        append: AppendOptions | None = None,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS_DEFAULT,
        meta_timeout_ms: float = META_TIMEOUT_MS_DEFAULT,
        recovery_timeout_ms: float = RECOVERY_TIMEOUT_MS_DEFAULT,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
    ) -> None:
        self._is_ready = False
        self._closed = False
        self._pid = os.getpid()
        self._root = ledgers_root
        self._password = bytes(password)
        self._placement = placement or RandomPlacement(chance)
        self._append = append or AppendOptions()
        self._clock, self._chance = clock, chance
        self._nodes = LedgerNodes(
            meta, ledgers_root, clock=clock, chance=chance, timeout_ms=meta_timeout_ms
        )
        health = Health(chance=chance)
        self._registry = BookieRegistry(
            meta, ledgers_root, health=health, clock=clock, chance=chance
        )
        self._bookies = _Bookies(self._registry, health, clock)
        self._links = BookieLinks(
            self._registry,
            health=health,
            clock=clock,
            chance=chance,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._recovery = LedgerRecovery(
            self._links,
            self._nodes,
            self._bookies,
            self._placement,
            clock=clock,
            timeout_ms=recovery_timeout_ms,
        )
        self._habits = BookieHabits()
        self._getting_ready = asyncio.Lock()
        self._appenders: set[BookKeeperAppender] = set()
        self._readers: set[BookKeeperReader] = set()
        self._ending: asyncio.Task[None] | None = None

    async def create(self, spec: LedgerSpec) -> BookKeeperAppender:
        if spec.ensemble != spec.write_quorum:
            raise Unsupported(
                f"dlog writes each entry to the whole ensemble: {spec.write_quorum} copies on "
                f"{spec.ensemble} bookies would be striped. Ledgers of that kind are read only"
            )
        await self._ready()
        ensemble = await self._ensemble(spec.ensemble)
        links_before = {bookie_id: self._links.data_now(bookie_id) for bookie_id in ensemble}
        trace.before("bookie.created")
        stored = await self._nodes.create(new_metadata(spec, ensemble, self._password))
        trace.after("bookie.created")
        self._check_usable()
        appender = BookKeeperAppender(
            stored,
            links=self._links,
            nodes=self._nodes,
            bookies=self._bookies,
            placement=self._placement,
            options=self._append,
            clock=self._clock,
            chance=self._chance,
            links_before=links_before,
            on_let_go=self._appenders.discard,
        )
        self._appenders.add(appender)
        return appender

    async def _ensemble(self, size: int) -> tuple[str, ...]:
        try:
            return self._choose(size)
        except Unavailable:
            await self._registry.refresh()  # one may have come just now
            return self._choose(size)

    def _choose(self, size: int) -> tuple[str, ...]:
        return self._placement.ensemble(
            size, writable=self._bookies.writable(), avoided=self._bookies.avoided()
        )

    async def open(self, ledger_id: int) -> BookKeeperReader:
        await self._ready()
        stored = await self._nodes.read_fresh(ledger_id)
        digest = self._digest_of(stored)
        await self._learn_addresses(stored)
        self._check_usable()
        reader = BookKeeperReader(
            stored,
            links=self._links,
            nodes=self._nodes,
            digest=digest,
            habits=self._habits,
            clock=self._clock,
            chance=self._chance,
            on_closed=self._readers.discard,
        )
        self._readers.add(reader)
        return reader

    async def _learn_addresses(self, stored: StoredLedger) -> None:
        """Of all bookies that a reader may come to need: later ZooKeeper may be away."""

        async def learn(bookie_id: str) -> None:
            try:
                await self._registry.resolve(bookie_id)
            except DlogError as error:
                _log.debug("bookie %s may be out of reach: %s", bookie_id, error)

        fragments = stored.metadata.fragments
        bookie_ids = {bookie_id for fragment in fragments for bookie_id in fragment.ensemble}
        await asyncio.gather(*map(learn, bookie_ids))

    async def info(self, ledger_id: int) -> LedgerInfo:
        self._check_usable()
        return info_of(await self._nodes.read_fresh(ledger_id))

    async def recover(self, ledger_id: int) -> ClosedLedger:
        await self._ready()
        try:
            stored = await self._nodes.read(ledger_id)
        except NotFound:
            stored = await self._nodes.read_fresh(ledger_id)
        end = end_of(stored.metadata)
        if end is not None:
            return end
        self._digest_of(stored)
        try:
            return await self._recovery.recover(ledger_id, known=stored)
        except asyncio.CancelledError:
            # The store was closed under it, and nobody cancelled us?
            task = asyncio.current_task()
            if task is not None and task.cancelling() == 0:
                self._check_usable()
            raise

    async def delete(self, ledger_id: int) -> None:
        self._check_usable()
        try:
            stored = await self._nodes.read_fresh(ledger_id)
        except NotFound:
            return
        if stored.metadata.state is not LedgerState.CLOSED:
            await self._fence_if_possible(ledger_id)
        await self._nodes.delete(ledger_id)

    async def _fence_if_possible(self, ledger_id: int) -> None:
        try:
            async with asyncio.timeout(_FENCE_PATIENCE_S):
                await self.recover(ledger_id)
        except NotFound:
            pass  # another deleter was faster
        except (DlogError, TimeoutError) as error:
            self._check_usable()
            _log.warning(
                "ledger %d is deleted open: %s. If its appender lives, it learns of that late",
                ledger_id,
                error,
            )

    async def scan_ids(self) -> AsyncIterator[int]:
        self._check_usable()
        async for ledger_id in self._nodes.scan_ids():
            yield ledger_id

    async def close(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._ending is None:
            self._closed = True
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        appenders = list(self._appenders)
        for appender in appenders:
            appender.abandon()
        await asyncio.gather(*(appender.wait_ended() for appender in appenders))
        for reader in list(self._readers):
            await reader.close()
        await self._recovery.close()
        await self._links.close()
        await self._registry.close()
        await self._nodes.close()

    def __del__(self) -> None:
        if not self._is_ready or self._closed or os.getpid() != self._pid:
            return
        warnings.warn(
            f"the ledger store at {self._root} was dropped without close()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    # --- First use

    async def _ready(self) -> None:
        self._check_usable()
        if self._is_ready:
            return
        async with self._getting_ready:
            if not self._is_ready and not self._closed:
                try:
                    await self._registry.open()
                except NotFound as error:
                    raise NotFound(
                        f"no BookKeeper cluster keeps its metadata at {self._root}", path=self._root
                    ) from error
                self._is_ready = True
        if self._closed:
            await self._registry.close()
        self._check_usable()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"the ledger store at {self._root} was opened by process {self._pid}, before a "
                "fork",
                pid=self._pid,
            )
        if self._closed:
            raise ConfigError(f"the ledger store at {self._root} was closed")

    def _digest_of(self, stored: StoredLedger) -> EntryDigest:
        """How its entries are checked, if the password is ours."""
        metadata, ledger_id = stored.metadata, stored.ledger_id
        if metadata.digest_type is None or metadata.password is None:
            raise Unsupported(
                f"ledger {ledger_id} is older than digests in metadata: nothing says how its "
                "entries are checked",
                ledger_id=ledger_id,
            )
        if not hmac.compare_digest(metadata.password, self._password):
            raise AuthError(f"ledger {ledger_id} has another password", ledger_id=ledger_id)
        return EntryDigest(metadata.digest_type, metadata.password)


class _Bookies:
    """What is known of the bookies at this moment, for placement."""

    def __init__(self, registry: BookieRegistry, health: Health, clock: Clock) -> None:
        self._registry = registry
        self._health = health
        self._clock = clock

    def writable(self) -> tuple[str, ...]:
        return self._registry.writable()

    def avoided(self) -> frozenset[str]:
        return self._health.avoided(self._clock.monotonic_s())

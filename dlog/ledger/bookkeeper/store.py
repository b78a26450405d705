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
import contextlib
import dataclasses
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from dlog import trace
from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    ConfigError,
    DlogError,
    ForkedHandle,
    NotFound,
    Timeout,
    Unavailable,
    Unsupported,
)
from dlog.findings import Finding, Wish
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.auth import BookieAuth
from dlog.ledger.bookkeeper.copies import LedgerCopiesAtBookies
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.entrance import Entrance
from dlog.ledger.bookkeeper.examine import Examination
from dlog.ledger.bookkeeper.health import BookieHealth, NoQuarantine
from dlog.ledger.bookkeeper.info import end_of, info_of, new_metadata
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes, StoredLedger
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.policy import Placement, RandomPlacement
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.recovery import LedgerRecovery
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.ledger.copies import CopyNews, LedgerCopies
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, Whereabouts
from dlog.limits import (
    CONNECT_TIMEOUT_MS_DEFAULT,
    EXAMINE_TIMEOUT_MS,
    META_TIMEOUT_MS_DEFAULT,
    RECOVERY_TIMEOUT_MS_DEFAULT,
)
from dlog.meta.store import MetaStore
from dlog.metrics import NO_METRICS, Metrics
from dlog.patience import AwakeTimeout
from dlog.secret import Provider, Secret
from dlog.tls import TlsContexts, TlsOptions
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3 import pack_get_bookie_info
from dlog.wire.ledger_metadata import LedgerState

_log = logging.getLogger("dlog.ledger")

T = TypeVar("T")

# How long a deletion waits for the fence. A ledger whose bookies are gone must be deletable, too.
_FENCE_PATIENCE_S = 10.0


class BookKeeperLedgerStore:
    """Ledgers below `ledgers_root` of a BookKeeper cluster, whose metadata is in `meta` (which
    stays the caller's to close). Belongs to the event loop of its first call.

    The password goes into each new ledger, and opens those that were made with it; with none given
    each ledger has one of its own (see `passwords`). With `digest` no ledger with another one is
    made, opened or recovered. Connections are made when first needed and
    shared by all ledgers. With `tls`, nothing goes to a bookie without it; `auth` says who we are,
    and a bookie that does not want to know is none of ours. `health` says which bookies to leave
    alone for a while, and is closed with the store; without it, none is.
    """

    def __init__(
        self,
        meta: MetaStore,
        *,
        ledgers_root: str = "/ledgers",
        password: Secret | bytes | str | Provider | None = None,
        digest: str | None = None,
        unsafe_empty_password: bool = False,
        unsafe_no_digest: bool = False,
        tls: TlsOptions | None = None,
        auth: BookieAuth | None = None,
        placement: Placement | None = None,
        health: BookieHealth | None = None,
        append: AppendOptions | None = None,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS_DEFAULT,
        meta_timeout_ms: float = META_TIMEOUT_MS_DEFAULT,
        recovery_timeout_ms: float = RECOVERY_TIMEOUT_MS_DEFAULT,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._is_ready = False
        self._metrics = metrics
        self._closed = False
        self._pid = os.getpid()
        self._meta = meta
        self._root = ledgers_root
        self._has_tls, self._has_auth = tls is not None, auth is not None
        self._passwords = Passwords(
            password,
            digest=digest,
            unsafe_empty=unsafe_empty_password,
            unsafe_no_digest=unsafe_no_digest,
        )
        self._placement = placement or RandomPlacement(chance)
        self._append = append or AppendOptions()
        self._clock, self._chance = clock, chance
        self._nodes = LedgerNodes(
            meta, ledgers_root, clock=clock, chance=chance, timeout_ms=meta_timeout_ms
        )
        self._health = health if health is not None else NoQuarantine()
        self._registry = BookieRegistry(
            meta, ledgers_root, health=self._health, clock=clock, chance=chance
        )
        self._bookies = _Bookies(self._registry, self._health, clock)
        self._links = BookieLinks(
            self._registry,
            health=self._health,
            clock=clock,
            chance=chance,
            connect_timeout_ms=connect_timeout_ms,
            entrance=Entrance(
                tls=None if tls is None else TlsContexts(tls), auth=auth, chance=chance
            ),
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
        self._copies = LedgerCopiesAtBookies(
            self._registry,
            self._links,
            self._nodes,
            self._passwords,
            self._placement,
            self._habits,
            clock=clock,
        )
        self._getting_ready = asyncio.Lock()
        self._appenders: dict[BookKeeperAppender, None] = {}  # in the order of their making
        self._readers: dict[BookKeeperReader, None] = {}
        self._ending: asyncio.Task[None] | None = None

    async def create(self, spec: LedgerSpec) -> BookKeeperAppender:
        if spec.ensemble != spec.write_quorum:
            raise Unsupported(
                f"dlog writes each entry to the whole ensemble: {spec.write_quorum} copies on "
                f"{spec.ensemble} bookies would be striped. Ledgers of that kind are read only"
            )
        self._passwords.check_new(spec)
        password = self._passwords.of_new()
        await self._ready()
        ensemble = await self._ensemble(spec.ensemble)
        links_before = {bookie_id: self._links.data_now(bookie_id) for bookie_id in ensemble}
        trace.before("bookie.created")
        ctime_ms = self._clock.wall_us() // 1000
        stored = await self._nodes.create(new_metadata(spec, ensemble, password, ctime_ms))
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
            metrics=self._metrics,
            links_before=links_before,
            on_let_go=partial(_drop, self._appenders),
        )
        self._appenders[appender] = None
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

    async def open(
        self, ledger_id: int, *, digest: str | None = None, closed: ClosedLedger | None = None
    ) -> BookKeeperReader:
        await self._ready()
        stored = None if closed is None else self._recovery.take_closed(ledger_id)
        if stored is None:
            stored = await self._nodes.read_fresh(ledger_id)
        checked = self._passwords.digest_of(stored, digest)
        await self._learn_addresses(stored)
        self._check_usable()
        reader = BookKeeperReader(
            stored,
            links=self._links,
            nodes=self._nodes,
            digest=checked,
            habits=self._habits,
            clock=self._clock,
            chance=self._chance,
            on_closed=partial(_drop, self._readers),
        )
        self._readers[reader] = None
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
        await asyncio.gather(*map(learn, sorted(bookie_ids)))

    async def info(self, ledger_id: int, *, digest: str | None = None) -> LedgerInfo:
        self._check_usable()
        try:
            stored = await self._nodes.read_fresh(ledger_id)
        except NotFound as error:
            await self._ready()  # or there are no ledgers at all here
            told = f"{error.message} at {self._place}"
            raise NotFound(told, ledger_id=ledger_id, place=self._place) from error
        if digest is not None:
            self._passwords.digest_of(stored, digest)
        return dataclasses.replace(info_of(stored), place=self._place)

    @property
    def _place(self) -> str:
        return f"ledgers={self._root!r}"

    async def recover(
        self,
        ledger_id: int,
        *,
        digest: str | None = None,
        fenced: Callable[[], None] | None = None,
    ) -> ClosedLedger:
        await self._ready()
        try:
            stored = await self._nodes.read(ledger_id)
        except NotFound:
            stored = await self._nodes.read_fresh(ledger_id)
        end = end_of(stored.metadata)
        if end is not None:
            return end
        self._passwords.digest_of(stored, digest)
        try:
            return await self._recovery.recover(ledger_id, known=stored, fenced=fenced)
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
            async with AwakeTimeout(_FENCE_PATIENCE_S):
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

    def why_recovery(self, ledger_id: int) -> str | None:
        return self._recovery.waits_for(ledger_id)

    async def whereabouts(self, ledger_id: int) -> Whereabouts:
        await self._ready()
        stored = await self._nodes.read_fresh(ledger_id)
        with contextlib.suppress(Unavailable, Timeout):  # then as last seen
            await self._registry.refresh()
        fragments = stored.metadata.fragments
        bookies = tuple(sorted({each for fragment in fragments for each in fragment.ensemble}))
        registry = self._registry
        here = {*registry.writable(), *registry.read_only()}
        return Whereabouts(
            bookies=bookies,
            writing=() if end_of(stored.metadata) is not None else fragments[-1].ensemble,
            not_registered=tuple(each for each in bookies if each not in here),
            read_only=tuple(each for each in bookies if each in registry.read_only()),
            quarantined=tuple(each for each in bookies if each in registry.avoided()),
        )

    async def scan_ids(self) -> AsyncIterator[int]:
        self._check_usable()
        async for ledger_id in self._nodes.scan_ids():
            yield ledger_id

    async def examine(self, wish: Wish, ledger_ids: Sequence[int]) -> list[Finding]:
        """Also of a place that is no good. Looks at each bookie, in bounded time."""
        self._check_usable()
        examination = Examination(
            self._meta,
            self._root,
            self._registry,
            self._links,
            self._nodes,
            self._passwords,
            has_tls=self._has_tls,
            has_auth=self._has_auth,
            clock=self._clock,
        )
        return await examination.run(wish, ledger_ids)

    # --- copy by copy (`dlog.ledger.copies`)

    async def copies_of(self, ledger_id: int) -> LedgerCopies:
        await self._ready()
        return await self._copies.of(ledger_id)

    async def check_copies(
        self, ledger_id: int, *, digest: str, last_entry: int
    ) -> AsyncIterator[CopyNews]:
        await self._ready()
        async for news in self._copies.check(ledger_id, digest=digest, last_entry=last_entry):
            yield news

    async def mend_copy(
        self, ledger_id: int, keeper: str, first_entry: int, last_entry: int, *, digest: str
    ) -> int:
        await self._ready()
        return await self._copies.mend(ledger_id, keeper, first_entry, last_entry, digest=digest)

    async def move_copies(
        self, ledger_id: int, first_entry: int, lost: str, *, digest: str
    ) -> str | None:
        await self._ready()
        return await self._copies.move(ledger_id, first_entry, lost, digest=digest)

    async def amend_end(self, ledger_id: int, last_entry: int, bytes: int, *, digest: str) -> bool:
        await self._ready()
        return await self._copies.amend(ledger_id, last_entry, bytes, digest=digest)

    async def node_of(self, ledger_id: int) -> str:
        self._check_usable()
        return await self._nodes.path_of(ledger_id)

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
        await self._health.close()
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
                    raise ConfigError(
                        f"{self._place}: no BookKeeper cluster keeps its metadata at {self._root}; "
                        "it must be the root below which bookies register",
                        path=self._root,
                    ) from error
                self._is_ready = True
                self._health.begin(self._ask_bookie)
        if self._closed:
            await self._registry.close()
        self._check_usable()

    async def _ask_bookie(self, bookie_id: str) -> None:
        """It serves if it can say how much disk it has."""
        link = await self._links.control(bookie_id)
        response = await link.ask(pack_get_bookie_info, timeout_ms=EXAMINE_TIMEOUT_MS)
        if response.answer is not Answer.OK:
            raise Unavailable(
                f"bookie {bookie_id} answers {response.answer.value}",
                missing=(bookie_id,),
                needed=1,
            )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"the ledger store at {self._root} was opened by process {self._pid}, before a "
                "fork",
                pid=self._pid,
            )
        if self._closed:
            raise ConfigError(f"the ledger store at {self._root} was closed")


def _drop(handles: dict[T, None], handle: T) -> None:
    handles.pop(handle, None)


class _Bookies:
    """What is known of the bookies at this moment, for placement."""

    def __init__(self, registry: BookieRegistry, health: BookieHealth, clock: Clock) -> None:
        self._registry = registry
        self._health = health
        self._clock = clock

    def writable(self) -> tuple[str, ...]:
        return self._registry.writable()

    def avoided(self) -> frozenset[str]:
        return self._health.avoided(self._clock.monotonic_s())

"""Which bookies there are, what they take, and where they are.

Bookies register in the metadata store: as writable below `available`, as read-only in a node
`readonly` beside those. One task watches, and lists again every while in any case: a watch is a
hint. While the metadata store is away the last known list and addresses stand, and `stale_since_s`
says so: whoever has a ledger open must be able to reach its bookies again without ZooKeeper.

An address is looked up when first needed and again once it is suspected; from then on it is kept
up to date, because it may be needed when nobody can be asked. A bookie that is not registered has
none, also if its id looks like one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dlog.chance import SYSTEM_CHANCE, Chance, backoff_s
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import Corrupt, DlogError, FormatError, Handle, NotFound, Unavailable
from dlog.ledger.bookkeeper.health import BookieHealth, NoQuarantine
from dlog.meta.store import MetaStore, Versioned
from dlog.together import together
from dlog.wire.bookie_service_info import Endpoint, is_bookie_id, resolve
from dlog.wire.ledger_paths import AVAILABLE_NODE, DISABLE_HEALTH_CHECK_NODE, READ_ONLY_NODE

_log = logging.getLogger("dlog.ledger")

POLL_MS_DEFAULT = 10_000.0
RETRY_BASE_S = 0.2
RETRY_S_MAX = 5.0
# So long a known address is kept waiting for a better one.
LOOK_UP_GRACE_S = 1.0


class RegistryListener(Protocol):
    def on_bookies(self, came: frozenset[str], gone: frozenset[str]) -> None:
        """Called from the loop. A bookie that registered anew has come, also if it was there."""
        ...


@dataclass(slots=True)
class _Known:
    endpoint: Endpoint
    version: int
    is_suspect: bool = False


class BookieRegistry:
    """`open` it first; it belongs to that loop. The metadata store is handed in and stays open."""

    def __init__(
        self,
        meta: MetaStore,
        ledgers_root: str = "/ledgers",
        *,
        health: BookieHealth | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        poll_ms: float = POLL_MS_DEFAULT,
    ) -> None:
        self._meta = meta
        root = ledgers_root.rstrip("/")
        self._available = f"{root}/{AVAILABLE_NODE}"
        self._read_only_at = f"{self._available}/{READ_ONLY_NODE}"
        self._disable_at = f"{root}/{DISABLE_HEALTH_CHECK_NODE}"
        self._health = health if health is not None else NoQuarantine()
        self._clock = clock
        self._chance = chance
        self._poll_ms = poll_ms
        self._writable: tuple[str, ...] = ()
        self._read_only: tuple[str, ...] = ()
        self._stale_since_s: float | None = clock.monotonic_s()
        self._known: dict[str, _Known] = {}
        self._asked_for: set[str] = set()  # registered when they were; few ever go
        self._listeners: list[RegistryListener] = []
        self._odd_names: frozenset[str] = frozenset()
        self._listing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failure: DlogError | None = None

    async def open(self) -> None:
        """Lists the bookies, once, and keeps the list from now on. `NotFound` if there is no
        cluster at this root."""
        if self._task is not None:
            return
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="dlog-bookies")
        self._task.add_done_callback(self._on_ended)

    def writable(self) -> tuple[str, ...]:
        """As last seen, in the order of their names."""
        return self._writable

    def read_only(self) -> tuple[str, ...]:
        return self._read_only

    def avoided(self) -> frozenset[str]:
        """In quarantine at this moment: of no use while others will do."""
        return self._health.avoided(self._clock.monotonic_s())

    @property
    def stale_since_s(self) -> float | None:
        """Since when the metadata store gives no answer (monotonic); None: the list is current."""
        return self._stale_since_s

    def listen(self, listener: RegistryListener) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: RegistryListener) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    async def resolve(self, bookie_id: str) -> Endpoint:
        """Where the bookie takes entries. `Unavailable` (it is not registered), and whatever the
        metadata store raises."""
        if self._failure is not None:
            raise self._failure.again()
        known = self._known.get(bookie_id)
        if known is not None and (not known.is_suspect or self._stale_since_s is not None):
            return known.endpoint
        try:
            async with asyncio.timeout(None if known is None else LOOK_UP_GRACE_S):
                return await self._look_up(bookie_id)
        except (TimeoutError, Unavailable) as error:
            known = self._known.get(bookie_id)
            if known is None:  # never known, or not registered any more
                raise
            self._doubt(error)
            return known.endpoint

    async def service_info(self, bookie_id: str) -> bytes:
        """What it says of itself, as it stands in its node now."""
        node = await self._node_of(bookie_id)
        return b"" if node is None else node.value

    def suspect(self, bookie_id: str) -> None:
        """It was not to be reached where we thought it was: look it up again."""
        known = self._known.get(bookie_id)
        if known is not None:
            known.is_suspect = True

    async def refresh(self) -> None:
        """List again, now."""
        async with self._listing:  # an older list must not replace a newer one
            await self._list()

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- The task

    async def _keep(self) -> None:
        attempt = 0
        while True:
            try:
                async with self._meta.watch(self._available) as watch:
                    while True:
                        await self.refresh()
                        await watch.wait(self._poll_ms)
                        attempt = 0
            except DlogError as error:
                if error.handle is Handle.DEAD:
                    raise  # the metadata store itself was closed
                self._doubt(error)
            attempt += 1
            await asyncio.sleep(
                backoff_s(attempt, self._chance, base_s=RETRY_BASE_S, limit_s=RETRY_S_MAX)
            )

    async def _list(self) -> None:
        names, read_only_names, disabled = await together(
            self._meta.children(self._available),
            self._children_if_any(self._read_only_at),
            self._get_if_any(self._disable_at),
        )
        came = await self._recheck_addresses({*names, *read_only_names})
        names = [name for name in names if name != READ_ONLY_NODE]
        self._say_odd({name for name in (*names, *read_only_names) if not is_bookie_id(name)})
        read_only = tuple(name for name in read_only_names if is_bookie_id(name))
        # While a bookie turns read-only it is registered as both.
        writable = tuple(
            name for name in names if is_bookie_id(name) and name not in read_only_names
        )
        before = {*self._writable, *self._read_only}
        is_first = self._stale_since_s is not None and not before
        turned = set(self._writable) ^ set(writable)  # to be writable again is to come
        self._writable, self._read_only = writable, read_only
        if self._stale_since_s is not None and not is_first:
            _log.info("the list of bookies is current again: %d writable", len(writable))
        self._stale_since_s = None
        here = {*writable, *read_only}
        self._health.enable(disabled is None)
        self._health.keep_only(here)
        self._tell(
            frozenset((here - before) | (turned & set(writable)) | (came & here)),
            frozenset(before - here),
        )

    def _doubt(self, error: Exception) -> None:
        if self._stale_since_s is None:
            self._stale_since_s = self._clock.monotonic_s()
            _log.warning("the last known list of bookies stands: %s", error or "no answer")

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._stale_since_s = self._clock.monotonic_s()
        if isinstance(error, DlogError):
            self._failure = error
        _log.error("the list of bookies is kept no longer: %s", error, exc_info=error)

    async def _recheck_addresses(self, here: set[str]) -> set[str]:
        """The bookies, of those we know the address of, whose nodes are new ones."""
        asked = {
            bookie_id: self._known.get(bookie_id) for bookie_id in sorted(self._asked_for & here)
        }
        asked |= self._known
        nodes = await together(*map(self._node_of, asked))
        came = set()
        for (bookie_id, known), node in zip(asked.items(), nodes, strict=True):
            if self._known.get(bookie_id) is not known:
                continue  # looked up anew meanwhile
            if node is None:
                self._known.pop(bookie_id, None)
            elif known is None or node.version != known.version:
                self._known.pop(bookie_id, None)
                with contextlib.suppress(Corrupt, FormatError):  # whoever asks for it is told
                    self._note(bookie_id, node)
                if known is not None:
                    came.add(bookie_id)
        return came

    def _tell(self, came: frozenset[str], gone: frozenset[str]) -> None:
        if came or gone:
            for listener in list(self._listeners):
                listener.on_bookies(came, gone)

    def _say_odd(self, names: set[str]) -> None:
        if names - self._odd_names:
            _log.warning("no bookie ids, left out: %s", ", ".join(sorted(names))[:200])
        self._odd_names = frozenset(names)

    # --- Nodes

    async def _look_up(self, bookie_id: str) -> Endpoint:
        node = await self._node_of(bookie_id) if is_bookie_id(bookie_id) else None
        if node is None:
            self._known.pop(bookie_id, None)
            raise Unavailable(
                f"no bookie {bookie_id[:80]!r} is registered", missing=(bookie_id,), needed=1
            )
        self._asked_for.add(bookie_id)
        return self._note(bookie_id, node)

    def _note(self, bookie_id: str, node: Versioned) -> Endpoint:
        endpoint = resolve(bookie_id, node.value, where=f"the node of bookie {bookie_id}")
        self._known[bookie_id] = _Known(endpoint, node.version)
        return endpoint

    async def _node_of(self, bookie_id: str) -> Versioned | None:
        node = await self._get_if_any(f"{self._available}/{bookie_id}")
        if node is None:
            node = await self._get_if_any(f"{self._read_only_at}/{bookie_id}")
        return node

    async def _get_if_any(self, path: str) -> Versioned | None:
        try:
            return await self._meta.get(path)
        except NotFound:
            return None

    async def _children_if_any(self, path: str) -> Iterable[str]:
        try:
            return await self._meta.children(path)
        except NotFound:
            return []

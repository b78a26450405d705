"""The links of one store: one for each bookie and kind, made when first asked for.

    registry = BookieRegistry(meta, "/ledgers", health=health)
    await registry.open()
    links = BookieLinks(registry, health=health)  # the same one, or none
    link = await links.data(registry.writable()[0])
    link.attach(ledger_id, sink)
    link.send_adds(ledger_id, frames, entries=1, bytes=len(frames))
    reply = await link.read(ledger_id, 0, timeout_ms=5_000)
    answer = await (await links.control(bookie_id)).ask(
        lambda txn_id: pack_read_lac(txn_id, ledger_id), timeout_ms=5_000)
    await links.close(); await registry.close()

Whoever asks while a connection is being made waits for that one. A bookie that refuses, or accepts
and hangs up before it has answered anything (one that starts does so for seconds, and so does one
that wants authentication or TLS), is left alone for a jittered while that doubles each time;
asked for meanwhile, it is `Unavailable` at once. An answer ends that, and so does its registering
anew. Idle links stay: there are three to a bookie at most, and they cost a descriptor each, while a
new one costs an appender a look at ledger metadata.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from dataclasses import dataclass
from typing import Protocol

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import DlogError, ForkedHandle, Unavailable, WriterClosed
from dlog.ledger.bookkeeper.entrance import Entrance, Refused
from dlog.ledger.bookkeeper.health import BookieHealth, NoQuarantine
from dlog.ledger.bookkeeper.registry import RegistryListener
from dlog.ledger.bookkeeper.transport import BookieControlLink, BookieDataLink, Link
from dlog.limits import CONNECT_TIMEOUT_MS_DEFAULT
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_service_info import Endpoint

_log = logging.getLogger("dlog.ledger")

BACKOFF_BASE_S = 0.1
BACKOFF_S_MAX = 5.0


class Kind(enum.Enum):
    DATA = "data"
    CONTROL = "control"
    RECOVERY = "recovery"


class Addresses(Protocol):
    """What the pool needs of the registry."""

    async def resolve(self, bookie_id: str) -> Endpoint: ...

    def suspect(self, bookie_id: str) -> None: ...

    def listen(self, listener: RegistryListener) -> None: ...

    def unlisten(self, listener: RegistryListener) -> None: ...


@dataclass(slots=True)
class _Trouble:
    """Failed connections of one bookie in a row."""

    failures: int
    until_s: float  # not tried again before
    why: str


class BookieLinks:
    """Implements `Links`. Belongs to the loop it is first used on; close it before the registry."""

    def __init__(
        self,
        registry: Addresses,
        *,
        health: BookieHealth | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS_DEFAULT,
        entrance: Entrance | None = None,
    ) -> None:
        self._registry = registry
        self._health = health if health is not None else NoQuarantine()
        self._clock = clock
        self._chance = chance
        self._entrance = entrance or Entrance(tls=None, auth=None, chance=chance)
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._pid = os.getpid()
        self._closed = False
        self._links: dict[tuple[str, Kind], Link] = {}
        self._connecting: dict[tuple[str, Kind], asyncio.Task[Link | DlogError]] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._open: dict[Link, None] = {}  # in order; also those that are down and not yet gone
        registry.listen(self)

    async def data(self, bookie_id: str) -> BookieDataLink:
        link = await self._link(bookie_id, Kind.DATA)
        assert isinstance(link, BookieDataLink)
        return link

    async def control(self, bookie_id: str) -> BookieControlLink:
        link = await self._link(bookie_id, Kind.CONTROL)
        assert isinstance(link, BookieControlLink)
        return link

    async def recovery(self, bookie_id: str) -> BookieDataLink:
        link = await self._link(bookie_id, Kind.RECOVERY)
        assert isinstance(link, BookieDataLink)
        return link

    def data_now(self, bookie_id: str) -> BookieDataLink | None:
        link = self._links.get((bookie_id, Kind.DATA))
        return link if isinstance(link, BookieDataLink) else None

    def control_now(self, bookie_id: str) -> BookieControlLink | None:
        link = self._links.get((bookie_id, Kind.CONTROL))
        return link if isinstance(link, BookieControlLink) else None

    async def close(self) -> None:
        """Everything in flight is answered `CLIENT_CLOSED`; returns when every socket is closed.
        Idempotent."""
        if os.getpid() != self._pid:
            return
        if not self._closed:
            self._closed = True
            self._registry.unlisten(self)
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        failures: list[Exception] = []
        for link in list(self._open):
            try:
                link.take_down(Answer.CLIENT_CLOSED)
            except Exception as error:  # noqa: BLE001 - of a sink; the other links end all the same
                failures.append(error)
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._open:  # also those that were being made
            link = next(iter(self._open))
            link.take_down(Answer.CLIENT_CLOSED)
            await link.wait_gone()
        if failures:
            raise failures[0]

    # --- Connecting

    async def _link(self, bookie_id: str, kind: Kind) -> Link:
        self._check_usable()
        key = bookie_id, kind
        link = self._links.get(key)
        if link is not None:
            return link
        task = self._connecting.get(key)
        if task is None:
            self._check_patience(bookie_id)
            task = asyncio.get_running_loop().create_task(self._connect(bookie_id, kind))
            self._connecting[key] = task
            task.add_done_callback(lambda _: self._connecting.pop(key, None))
        # One who gives up waiting takes the connection from nobody else.
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise _closed() from None  # it was not us who was cancelled
            raise
        if isinstance(outcome, DlogError):
            raise outcome.again()
        return outcome

    async def _connect(self, bookie_id: str, kind: Kind) -> Link | DlogError:
        """The error is given back, not raised: maybe nobody waits for it any more."""
        try:
            endpoint = await self._registry.resolve(bookie_id)
            link = self._new_link(bookie_id, endpoint, kind)
            await self._entrance.connect(
                link, endpoint.host, endpoint.port, timeout_s=self._connect_timeout_s
            )
        except DlogError as error:
            return _unavailable(bookie_id, f"has no address: {error.message}")
        except Refused as error:
            _log.warning("bookie %s %s", bookie_id, error)
            self._failed(bookie_id, str(error))
            return _unavailable(bookie_id, str(error))
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: it is no host's name
            why = f"could not be reached: {str(error) or 'no answer in time'}"
            self._failed(bookie_id, why)
            return _unavailable(bookie_id, why)
        if not link.is_up:
            return _unavailable(bookie_id, _HUNG_UP)
        self._links[bookie_id, kind] = link
        return link

    def _new_link(self, bookie_id: str, endpoint: Endpoint, kind: Kind) -> Link:
        where = f"bookie {bookie_id} at {endpoint.host}:{endpoint.port}"
        if kind is Kind.CONTROL:
            return BookieControlLink(bookie_id, where, self, self._clock)
        return BookieDataLink(bookie_id, where, self, self._clock, recovery=kind is Kind.RECOVERY)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("these connections were made in another process, before a fork")
        if self._closed:
            raise _closed()

    def _check_patience(self, bookie_id: str) -> None:
        trouble = self._troubles.get(bookie_id)
        if trouble is not None:
            wait_s = trouble.until_s - self._clock.monotonic_s()
            if wait_s > 0:
                raise _unavailable(bookie_id, f"{trouble.why}; left alone for {wait_s:.1f} s more")

    def _failed(self, bookie_id: str, why: str) -> None:
        now_s = self._clock.monotonic_s()
        self._health.note_unreachable(bookie_id, now_s)
        self._registry.suspect(bookie_id)
        before = self._troubles.get(bookie_id)
        failures = 1 if before is None else before.failures + 1
        bound_s = min(BACKOFF_S_MAX, BACKOFF_BASE_S * 2 ** min(failures - 1, 20))
        # At least half of it: a back-off of nothing would be none.
        until_s = now_s + bound_s * (0.5 + 0.5 * self._chance.fraction())
        self._troubles[bookie_id] = _Trouble(failures, until_s, why)
        _log.info("bookie %s %s (%d in a row)", bookie_id, why, failures)

    # --- What links tell

    def on_link_made(self, link: Link) -> None:
        self._open[link] = None

    def on_link_gone(self, link: Link) -> None:
        self._open.pop(link, None)

    def on_first_answer(self, link: Link) -> None:
        self._troubles.pop(link.bookie_id, None)

    def on_link_down(self, link: Link, error: DlogError | None) -> None:
        for key, each in list(self._links.items()):
            if each is link:
                del self._links[key]
        if self._closed:
            return
        if error is not None:
            _log.warning("the connection is ended: %s", error.message)
        if not link.has_answered:
            self._failed(link.bookie_id, _HUNG_UP)
        else:
            # Its address is not doubted: to look it up would wait for the metadata store.
            self._health.note_lost(link.bookie_id, self._clock.monotonic_s())

    def on_trouble(self, link: Link, answer: Answer) -> None:
        self._health.note(link.bookie_id, answer, self._clock.monotonic_s())

    def on_hung(self, link: Link) -> None:
        self._health.note_hung(link.bookie_id, self._clock.monotonic_s())

    # --- What the registry tells

    def on_bookies(self, came: frozenset[str], gone: frozenset[str]) -> None:
        for bookie_id in came | gone:
            self._troubles.pop(bookie_id, None)


_HUNG_UP = (
    "accepts connections and ends them before it has answered anything: it is starting, or wants "
    "authentication, TLS or a client's certificate"
)


def _unavailable(bookie_id: str, why: str) -> Unavailable:
    return Unavailable(f"bookie {bookie_id} {why}", missing=(bookie_id,), needed=1)


def _closed() -> WriterClosed:
    return WriterClosed("the connections to bookies are closed")

"""Sends the pings that the core of health asks for, and tells what came of it.

    async with Prober(TcpProbe({"a": ("10.0.0.1", 3181)}), on_change=print) as prober:
        prober.keep(["a"])
        ...
        prober.sent("a"); prober.replied("a")

A probe is any coroutine function of an endpoint's name that returns if the endpoint is well, and
raises or takes too long if it is not: a call of a service, `TcpProbe`, a bookie's info request.
While nothing is to be asked there is no task at all. None of the calls that tell something waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import NotFound
from dlog.limits import HEALTH_PINGS_AT_ONCE
from dlog.metrics import NO_METRICS, Metrics, catalogue
from dlog.streams.health.beat import Beat
from dlog.streams.health.core import HealthCore, HealthOptions, Isolated, Ping, Recovered

_log = logging.getLogger("dlog.streams.health")


class Probe(Protocol):
    def __call__(self, endpoint: str, /) -> Awaitable[object]: ...


class TcpProbe:
    """Takes a connection for a sign of life. A process that is frozen still gives one, from its
    kernel: where the service has a call of its own, ask that."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        self.addresses = dict(addresses)

    async def __call__(self, endpoint: str) -> None:
        address = self.addresses.get(endpoint)
        if address is None:
            raise NotFound(f"no address of {endpoint!r} is known")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        transport.abort()


class Prober:
    """Belongs to the event loop it is first used on. `on_change` hears which endpoints are isolated
    whenever that changes."""

    def __init__(
        self,
        probe: Probe,
        *,
        options: HealthOptions | None = None,
        on_change: Callable[[frozenset[str]], None] = lambda isolated: None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self.core = HealthCore(options or HealthOptions(), chance)
        self._probe = probe
        self._on_change = on_change
        self._clock = clock
        self._metrics = metrics
        self._told: frozenset[str] = frozenset()  # what `on_change` heard last
        self._pongs: list[tuple[str, int]] = []  # arrived, and not heard by the core
        self._asking: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(HEALTH_PINGS_AT_ONCE)
        self._beat = Beat("dlog-health", clock, self._pulse, lambda: bool(self._asking))
        self._closed = False

    # --- what happens; none of these waits

    def keep(self, endpoints: Iterable[str]) -> None:
        """These there are, and no others."""
        self.core.keep(endpoints, self._clock.monotonic_s())
        self._tell()
        self.wake()

    def sent(self, endpoint: str) -> None:
        if self.core.on_sent(endpoint, self._clock.monotonic_s()):
            self.wake()

    def replied(self, endpoint: str) -> None:
        self.core.on_reply(endpoint, self._clock.monotonic_s())

    def failed(self, endpoint: str, why: str) -> None:
        """It refused, hung up, or was too late."""
        self.core.on_fault(endpoint, self._clock.monotonic_s(), why)
        self.wake()

    def proved(self, endpoint: str, why: str) -> None:
        """It is of no use, whatever it says to a probe."""
        self.core.on_proof(endpoint, self._clock.monotonic_s(), why)
        self._pulse()
        self.wake()

    def release_all(self, why: str) -> None:
        self.core.release_all(self._clock.monotonic_s(), why)
        self._pulse()

    @property
    def isolated(self) -> frozenset[str]:
        return self.core.isolated

    async def close(self) -> None:
        """Idempotent. Probes on their way are cancelled."""
        self._closed = True
        await self._beat.close()
        tasks = [*self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Prober:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- doing

    def wake(self) -> None:
        """Something was told to the core."""
        if self.core.next_s() < math.inf:
            self._beat.wake()

    def _pulse(self) -> float:
        pongs, self._pongs = self._pongs, []
        for effect in self.core.pulse(self._clock.monotonic_s(), pongs):
            match effect:
                case Ping(endpoint, ping_id):
                    self._ask(endpoint, ping_id)
                case Isolated(endpoint, why, at_least_s):
                    _log.warning("%s is isolated for %.1f s: %s", endpoint, at_least_s, why)
                    self._count(catalogue.HEALTH_ISOLATIONS.name, endpoint)
                case Recovered(endpoint, after_s, why):
                    _log.info("%s is used again after %.1f s: %s", endpoint, after_s, why)
                    self._count(catalogue.HEALTH_RECOVERIES.name, endpoint)
        self._tell()
        return self.core.next_s()

    def _tell(self) -> None:
        isolated = self.core.isolated
        if isolated != self._told:
            self._told = isolated
            self._on_change(isolated)

    def _count(self, name: str, endpoint: str) -> None:
        self._metrics.count(name, 1, {"endpoint": endpoint})

    def _ask(self, endpoint: str, ping_id: int) -> None:
        if self._closed:
            return
        self._count(catalogue.HEALTH_PINGS.name, endpoint)
        task = asyncio.get_running_loop().create_task(self._ping(endpoint, ping_id))
        self._asking.add(task)
        task.add_done_callback(self._on_asked)

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._beat.wake()

    async def _ping(self, endpoint: str, ping_id: int) -> None:
        try:
            # Waiting for a slot is part of it: what comes too late is no proof any more.
            async with asyncio.timeout(self.core.options.interval_s), self._slots:
                await self._probe(endpoint)
        except Exception as error:  # noqa: BLE001 - whatever a probe raises: it is no answer
            _log.debug("%s did not answer: %s", endpoint, str(error) or type(error).__name__)
            return
        self._pongs.append((endpoint, ping_id))

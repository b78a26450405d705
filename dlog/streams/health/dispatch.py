"""Brings messages to endpoints: each to the one that its key belongs to, again until it is taken,
and to another one when that is isolated.

    async with Dispatcher(routes, call, client_id=7, first_number=kept, probe=probe) as messages:
        await messages.send(b"user-1", b"paid")

`call(endpoint, client_id, key, messages)` is the transport: any coroutine function that brings a
run of messages to an endpoint and gives back how many of them it took. It may raise, hang or be cut
off at any moment; what it brought is then brought again. `Refusal` says that a message will never
be taken. The other end has to know numbers it has seen, and has to be one place for all endpoints:
see `receive`.

Who is alive is learned from the answers themselves; only silence is asked about, with `probe`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import ConfigError, Outcome, WriterClosed
from dlog.metrics import NO_METRICS, Metrics
from dlog.streams.health.beat import Beat
from dlog.streams.health.core import HealthOptions
from dlog.streams.health.prober import Probe, Prober
from dlog.streams.routing.flight import (
    Call,
    Flight,
    FlightOptions,
    Numbered,
    Overdue,
    Refused,
    Settled,
)
from dlog.streams.routing.router import Routes

_log = logging.getLogger("dlog.streams.health")

Transport = Callable[[str, int, bytes, Sequence[Numbered]], Awaitable[int]]

_INTERVALS_OF_FAILURE = 2.0


class Refusal(Exception):
    """Raised by a transport: the endpoint took `taken` of the messages, and the one behind them
    will never be taken, by nobody."""

    def __init__(self, taken: int, why: str) -> None:
        super().__init__(why)
        self.taken = taken
        self.why = why


class Dispatcher:
    """Belongs to one event loop. `routes` may be shared and changed: call `routes_changed` then.
    One client id is used by one dispatcher at a time, and its numbers rise over restarts."""

    def __init__(
        self,
        routes: Routes,
        transport: Transport,
        *,
        client_id: int,
        first_number: int = 0,
        probe: Probe | None = None,
        health: HealthOptions | None = None,
        options: FlightOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self.client_id = client_id
        self._routes = routes
        self._transport = transport
        self._clock = clock
        self._flight = Flight(routes, chance, first_number=first_number, options=options)
        self._prober: Prober | None = None
        if probe is not None:
            self._prober = Prober(
                probe,
                options=health,
                on_change=self._on_isolated,
                clock=clock,
                chance=chance,
                metrics=metrics,
            )
            self._prober.keep(routes.now.weights)
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._calls: dict[asyncio.Task[None], None] = {}
        self._failing_since_s: dict[str, float] = {}  # without a call that got anywhere
        self._room = asyncio.Event()
        self._beat = Beat(
            "dlog-dispatch",
            clock,
            self._pulse,
            lambda: bool(self._flight.messages),
            self._on_failed,
        )
        self._failure: BaseException | None = None
        self._closed = False

    @property
    def prober(self) -> Prober | None:
        """Who asks the endpoints, if anybody does."""
        return self._prober

    @property
    def next_number(self) -> int:
        """To be kept by the caller, for `first_number` of the next one."""
        return self._flight.next_number

    async def send(self, key: bytes, value: bytes) -> int:
        """Returns its number when an endpoint has taken it. Cancelling abandons the wait only."""
        number, settled = await self.submit(key, value)
        await asyncio.shield(settled)
        return number

    async def submit(self, key: bytes, value: bytes) -> tuple[int, asyncio.Future[None]]:
        """Waits for room, and not for an answer. Messages of one key go in the order of these
        calls."""
        while self._flight.messages and not self._flight.has_room(len(key) + len(value)):
            self._check_open()
            self._room.clear()
            await self._room.wait()
        self._check_open()
        number = self._flight.take(key, value)
        settled = self._futures[number] = asyncio.get_running_loop().create_future()
        self._beat.wake()
        return number, settled

    def routes_changed(self) -> None:
        """Somebody gave `routes` another router: servers came or went, or pins."""
        if self._prober is not None:
            self._prober.keep(self._routes.now.weights)
        self._flight.on_routes()
        self._beat.wake()

    async def close(self) -> None:
        """What is not settled stays unknown: whoever waits for it is told so. Idempotent."""
        self._closed = True
        await self._beat.close()
        tasks = [*self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._prober is not None:
            await self._prober.close()
        self._give_up(_closed())
        self._room.set()

    async def __aenter__(self) -> Dispatcher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- doing

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise WriterClosed("this dispatcher is closed", outcome=Outcome.NOT_HAPPENED)

    def _on_failed(self, error: BaseException) -> None:
        self._failure = error
        self._give_up(error)
        self._room.set()

    def _pulse(self) -> float:
        for effect in self._flight.pulse(self._clock.monotonic_s()):
            match effect:
                case Call():
                    self._begin(effect)
                case Settled(numbers):
                    for number in numbers:
                        self._settle(number, None)
                    self._room.set()
                case Refused(number, why):
                    self._settle(number, ConfigError(f"message {number} was refused: {why}"))
                    self._room.set()
                case Overdue(endpoint):
                    self._on_failure(endpoint, "a call was not answered in time")
        return self._flight.next_s()

    def _settle(self, number: int, error: Exception | None) -> None:
        settled = self._futures.pop(number, None)
        if settled is not None and not settled.done():
            if error is None:
                settled.set_result(None)
            else:
                _fail(settled, error)

    def _give_up(self, error: BaseException) -> None:
        futures, self._futures = self._futures, {}
        for settled in futures.values():
            if not settled.done():
                _fail(settled, error)

    # --- calls

    def _begin(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._bring(call))
        self._calls[task] = None
        task.add_done_callback(self._on_brought)

    def _on_brought(self, task: asyncio.Task[None]) -> None:
        self._calls.pop(task, None)

    async def _bring(self, call: Call) -> None:
        prober = self._prober
        if prober is not None:
            prober.sent(call.endpoint)
        taken, refused = 0, ""
        try:
            async with asyncio.timeout(self._flight.options.answer_s):
                taken = await self._transport(
                    call.endpoint, self.client_id, call.key, call.messages
                )
        except Refusal as refusal:
            taken, refused = refusal.taken, refusal.why
            self._on_reply(call.endpoint, taken + 1)
        except TimeoutError:
            return  # the flight knows, by its own clock
        except Exception as error:  # noqa: BLE001 - whatever a transport raises: it was not taken
            _log.debug("%s did not take a call: %s", call.endpoint, error)
            self._on_failure(call.endpoint, str(error) or type(error).__name__)
        else:
            self._on_reply(call.endpoint, taken)
        taken = max(0, min(taken, len(call.messages)))
        self._flight.on_answer(call, taken, self._clock.monotonic_s(), refused=refused)
        self._beat.wake()

    def _on_reply(self, endpoint: str, settled: int) -> None:
        if self._prober is not None:
            self._prober.replied(endpoint)
        if settled:
            self._failing_since_s.pop(endpoint, None)
        elif self._is_of_no_use(endpoint):
            self._prove(endpoint, "others are faster")

    def _on_failure(self, endpoint: str, why: str) -> None:
        if self._is_of_no_use(endpoint):
            self._prove(endpoint, why)
        elif self._prober is not None:
            self._prober.failed(endpoint, why)

    def _is_of_no_use(self, endpoint: str) -> bool:
        """One that answers probes and takes nothing for long."""
        if self._prober is None:
            return False
        now_s = self._clock.monotonic_s()
        since_s = self._failing_since_s.setdefault(endpoint, now_s)
        return now_s - since_s >= _INTERVALS_OF_FAILURE * self._prober.core.options.interval_s

    def _prove(self, endpoint: str, why: str) -> None:
        del self._failing_since_s[endpoint]
        if self._prober is not None:
            self._prober.proved(endpoint, f"it takes nothing: {why}")

    def _on_isolated(self, isolated: frozenset[str]) -> None:
        here = self._routes.now.weights.keys()
        self._routes.change(isolated=isolated & here)
        self._flight.on_routes()
        self._beat.wake()


def _fail(settled: asyncio.Future[None], error: BaseException) -> None:
    settled.set_exception(error)
    settled.exception()  # whoever does not wait for it does not have to hear of it


def _closed() -> WriterClosed:
    return WriterClosed("this dispatcher was closed first", outcome=Outcome.UNKNOWN)

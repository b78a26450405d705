"""Programs of users on the shards of a worker, in every form that a processor may have, and the
database that they write to: it refuses smaller tokens, and knows how far it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from dlog.errors import LeaseLost
from dlog.groups.consumer import StopReason
from dlog.reader.message import Message, MessageBatch
from dlog.testing.sim.workers_oracle import Life, Visit, WorkersOracle
from dlog.testing.sim.workers_swarm import TIMEOUT_MS, WorkersWeather
from dlog.testing.sim.world import World

POISON = b"!"


class Failed(Exception):
    """Of a program, for no reason."""


class Poisoned(Exception):
    """By this message."""


class Kit:
    """What all programs of a history share."""

    def __init__(self, world: World, weather: WorkersWeather, oracle: WorkersOracle) -> None:
        self.world = world
        self.weather = weather
        self.oracle = oracle
        self.is_cured = False

    def maker(self, life: Life) -> Callable[[], Program]:
        """A factory of programs of the form that this history has."""
        is_async = self.weather.program == "async"
        if self.weather.checkpoints == "batch":
            kind: type[Program] = AsyncBatches if is_async else PlainBatches
        else:
            kind = AsyncProgram if is_async else PlainProgram
        return lambda: kind(self, life)


class Program:
    """What they have in common, without waiting for anything."""

    def __init__(self, kit: Kit, life: Life) -> None:
        self.kit = kit
        self.life = life
        self.visit: Visit | None = None
        self._last: Message | None = None  # that was processed
        self._has_refused_end = False
        self._is_begun = False  # the call that a thread is at

    # --- the steps of its calls

    def on_thread(self, verb: str, *args: Any) -> None:
        """A thread begins with this call; it comes to the call itself when its time is over."""
        if verb == "process":
            self.enter(args[0])
            self._is_begun = True

    def begin(self, shard: Any) -> None:
        self.visit = self.kit.oracle.on_initialize(self.life, shard)
        self.maybe_fail("initialize")
        self.kit.oracle.database.begin(shard.log, shard.token)

    def enter(self, batch: MessageBatch) -> None:
        assert self.visit is not None
        self.kit.oracle.on_process(self.visit, batch)

    def leave(self, batch: MessageBatch, error: BaseException | None) -> None:
        assert self.visit is not None
        self._is_begun = False
        self.kit.oracle.on_processed(self.visit, batch, error)

    def maybe_fail(self, what: str) -> None:
        if self.kit.world.strikes(self.kit.weather.fails, f"{what} fails"):
            raise Failed(what)

    def maybe_block(self) -> bool:
        """Whether the loop of this process takes no turn for a while."""
        kit = self.kit
        weather = kit.weather
        rate = weather.blocks
        if kit.weather.heart != "thread" or rate <= 0.0 or not kit.world.chance.hits(rate, "block"):
            return False
        self.life.process.block(kit.world.chance.delay(1.5 * TIMEOUT_MS, "a blocked loop"))
        return True

    def take(self, batch: MessageBatch, tracker: Any) -> None:
        """All of it, up to what it cannot take."""
        assert self.visit is not None
        kit, visit = self.kit, self.visit
        kit.oracle.on_effect(visit)
        for message in batch.to_pylist():
            if message.value is not None and message.value.startswith(POISON) and not kit.is_cured:
                raise Poisoned(message.value.decode())
            kit.oracle.database.add(visit.log, visit.token, message)
            self._last = message
            if kit.weather.checkpoints == "each" and tracker is not None:
                self.say(tracker, message)

    def say(self, tracker: Any, done: Any = None, upto: int | None = None) -> None:
        assert self.visit is not None
        if upto is None:
            upto = done.seq + 1
        tracker.checkpoint(done, app=b"%d" % upto)
        self.kit.oracle.on_said(self.visit, upto, b"%d" % upto)

    def say_behind(self, batch: MessageBatch, tracker: Any) -> None:
        if self.kit.weather.checkpoints in ("explicit", "save"):
            self.say(tracker, upto=batch.last_seq + 1)

    def begin_farewell(self, reason: StopReason) -> None:
        assert self.visit is not None
        self.kit.oracle.on_shutdown(self.visit, reason)

    def say_farewell(self, tracker: Any, reason: StopReason) -> None:
        kit = self.kit
        if not self._has_refused_end and kit.world.strikes(
            kit.weather.shutdown_fails, "a shutdown fails"
        ):
            self._has_refused_end = True
            if reason is not StopReason.ENDED:
                self.end_farewell()  # nobody asks it again
            raise Failed("shutdown")
        if kit.weather.checkpoints == "late" and self._last is not None:
            with contextlib.suppress(LeaseLost):
                self.say(tracker, self._last)

    def end_farewell(self) -> None:
        assert self.visit is not None
        self.kit.oracle.on_shut_down(self.visit)


class AsyncProgram(Program):
    async def initialize(self, shard: Any) -> None:
        self.begin(shard)
        await self._work()
        assert self.visit is not None
        self.visit.is_initialized = True

    async def process(self, batch: MessageBatch, tracker: Any) -> None:
        await self._process(batch, tracker)

    async def _process(self, batch: MessageBatch, tracker: Any) -> None:
        error: BaseException | None = None
        self.enter(batch)
        try:
            if self.maybe_block():
                await asyncio.sleep(0)
            await self._work()
            self.maybe_fail("process")
            self.take(batch, tracker)
            if tracker is not None and self.kit.weather.checkpoints == "save":
                await self._save(batch, tracker)
            elif tracker is not None:
                self.say_behind(batch, tracker)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.leave(batch, error)

    async def _save(self, batch: MessageBatch, tracker: Any) -> None:
        """Its first message, and right behind that all of it."""
        (first, *_), last = batch.to_pylist(), batch.last_seq + 1
        savings = [(first.seq + 1, tracker.save(first, app=b"%d" % (first.seq + 1)))]
        savings.append((last, tracker.save(app=b"%d" % last)))
        await asyncio.gather(*(self._saved(*saving) for saving in savings))

    async def _saved(self, upto: int, work: Coroutine[Any, Any, None]) -> None:
        assert self.visit is not None
        saving = asyncio.ensure_future(work)
        await asyncio.sleep(0)  # said, and not kept yet
        if not saving.done() or saving.exception() is None:
            self.kit.oracle.on_said(self.visit, upto, b"%d" % upto)
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            saving.add_done_callback(_heard)
            raise
        self.kit.oracle.on_saved(self.visit, upto)

    async def _work(self) -> None:
        await asyncio.sleep(self.kit.world.chance.delay(self.kit.weather.process_ms) / 1000)

    async def shutdown(self, tracker: Any, reason: StopReason) -> None:
        self.begin_farewell(reason)
        await self._work()
        self.say_farewell(tracker, reason)
        self.end_farewell()


class AsyncBatches(AsyncProgram):
    """With checkpoints by themselves."""

    async def process(self, batch: MessageBatch) -> None:  # type: ignore[override]
        await self._process(batch, None)


class PlainProgram(Program):
    """On a thread, which takes its time; or on the loop, and then in none."""

    def initialize(self, shard: Any) -> None:
        self.begin(shard)
        assert self.visit is not None
        self.visit.is_initialized = True

    def process(self, batch: MessageBatch, tracker: Any) -> None:
        self._process(batch, tracker)

    def _process(self, batch: MessageBatch, tracker: Any) -> None:
        error: BaseException | None = None
        if not self._is_begun:
            self.enter(batch)
            self.maybe_block()
        try:
            self.maybe_fail("process")
            self.take(batch, tracker)
            if tracker is not None:
                self.say_behind(batch, tracker)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.leave(batch, error)

    def shutdown(self, tracker: Any, reason: StopReason) -> None:
        self.begin_farewell(reason)
        self.say_farewell(tracker, reason)
        self.end_farewell()


class PlainBatches(PlainProgram):
    def process(self, batch: MessageBatch) -> None:  # type: ignore[override]
        self._process(batch, None)


def _heard(saving: asyncio.Future[None]) -> None:
    if not saving.cancelled():
        saving.exception()

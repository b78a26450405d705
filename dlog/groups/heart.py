"""The heart of a worker: drives its core, on a loop and with a metadata connection that no program
of the user can block. So a processor that computes for minutes, or blocks its event loop, keeps its
shards, and a process that is dead or asleep does not.

The core is asked and told things from two threads, so each call of it holds a lock, for as long as
it takes to change a few fields; nothing is awaited under it. What the core wants done (`_pump`) is
done on the heart's loop: errands there, orders by whoever runs the shards, on the user's loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dlog.clock import ageing_s
from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import Broken, ConfigError, DlogError, LeaseLost, NotFound, Retry
from dlog.groups import presence
from dlog.groups.asks import Ask, Fenced, Look, Order, Saved, ShardStopped, Weigh, WorkerEnded
from dlog.groups.charter import Charter, check_charter
from dlog.groups.consumer import StopReason
from dlog.groups.core import WorkerCore
from dlog.groups.errands import Errands
from dlog.groups.founding import found, shards_of
from dlog.groups.group_driver import GroupDriver, lease_store
from dlog.groups.holding import GroupHolds
from dlog.groups.homes import Home
from dlog.groups.lags import Scales
from dlog.groups.lease_driver import Logs
from dlog.groups.leases import Checkpoint
from dlog.groups.membership import ALL_DONE, REPLACED
from dlog.groups.options import WorkerOptions
from dlog.groups.parents import refuse_missed_by_job
from dlog.groups.places import GroupPlaces
from dlog.groups.shard_log import check_log
from dlog.groups.shards import GroupShard
from dlog.groups.troubles import Troubles
from dlog.groups.view import WorkerId
from dlog.ids import Position
from dlog.meta.store import MetaStore
from dlog.reason import Wait

logger = logging.getLogger("dlog.groups")

WATCH_MS = 60_000.0  # a watch that says nothing is begun anew
WAKE_S_MIN = 0.001

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Aside:
    """A client that nobody else uses."""

    stores: Stores
    logs: Logs
    close: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Made:
    """A checkpoint that is not known to be kept, and who waits until it is."""

    checkpoint: Checkpoint
    waiter: Future[None] | None


@dataclass(frozen=True, slots=True)
class Facts:
    """About a worker, as of now, for people."""

    id: WorkerId | None
    shards: dict[str, str]
    failed: tuple[str, ...]
    is_member: bool
    quiet_s: float | None  # since nothing was heard of the metadata store: of our own renewals
    trouble: Wait | None = None  # what the stores fail now


class Heart:
    def __init__(
        self,
        group: str,
        stream: str,
        name: str,
        options: WorkerOptions,
        open_aside: Callable[[], Awaitable[Aside]],
        home: Home,
        on_orders: Callable[[list[Order]], None],
    ) -> None:
        """`on_orders` is called on the heart's loop."""
        self.group, self.stream, self.name, self.options = group, stream, name, options
        self.begun: Future[Charter] = Future()
        self.ended: Future[str] = Future()
        self.home = home
        self.numbers: dict[str, int] = {}  # of shards, by their logs; they never change
        self.log_uids: dict[str, str] = {}  # as well, where the stream says them
        self.looks = 0  # at leases, that were begun
        self.looked: dict[str, int] = {}  # the last one that was answered
        self._open_aside = open_aside
        self._on_orders = on_orders
        self._lock = threading.Lock()
        self._core: WorkerCore | None = None
        self._is_live = False  # somebody drives the core
        self._now_s: Callable[[], float] = lambda: 0.0
        self._made: dict[str, deque[_Made]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._poked = False
        self._leave_why: str | None = None
        self._ending: asyncio.Event | None = None
        self._lost = False
        self._fenced: set[tuple[str, int]] = set()
        self._core_why = ""
        self._waits: dict[str, str] = {}
        self._troubles = Troubles(2 * options.group_options().retry_s)
        self._run: Callable[[Ask], Awaitable[Any]]
        self._meta: MetaStore
        self._places: GroupPlaces
        self._stream_path = ""
        self.charter: Charter | None = None
        self.holds: GroupHolds | None = None

    # --- its life, on its own loop

    async def beat(self) -> None:
        why = "closed"
        try:
            aside = await self._open_aside()
            try:
                why = await self._beat(aside)
            finally:
                await aside.close()
        except BaseException as error:
            if not self.begun.done():
                self.begun.set_exception(error)
            elif isinstance(error, Exception):
                self._set_ended(error=error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._set_ended(why)

    def _set_ended(self, why: str = "", error: Exception | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(why)
        else:
            self.ended.set_exception(error)

    async def _beat(self, aside: Aside) -> str:
        stores, options = aside.stores, self.options
        places = GroupPlaces(stores.layout, self.group, self.stream)
        driver = GroupDriver(stores, places, aside.logs)
        self._now_s = partial(ageing_s, stores.clock)
        charter = self.charter = await found(stores, driver, places, options, aside.logs.admin)

        def check(log: str) -> Awaitable[None]:
            return driver.run(check_log(stores.layout, log, self.log_uids.get(log)))

        self.holds = GroupHolds(aside.logs.admin, places, self.name, options, charter.is_job, check)
        self.begun.set_result(charter)
        try:
            while True:
                me = WorkerId(self.name, stores.chance.token())
                await self._live(me, stores, driver, places, charter)
                if not self._lost:
                    if self._core_why == ALL_DONE and options.on_truncated == "raise":
                        await self._until_told(
                            driver, lambda: refuse_missed_by_job(stores, places, charter)
                        )
                    return self._leave_why or self._core_why
                if self._leave_why is not None:
                    return self._leave_why
                if await self._is_replaced(me, driver, places):
                    return REPLACED
                logger.warning("worker %s of group %r comes again", me, self.group)
        finally:
            await self.holds.close()
            await driver.close()

    async def _is_replaced(self, me: WorkerId, driver: Driver, places: GroupPlaces) -> bool:
        """While we were taken for dead, another process came by our name: it is the younger one,
        and we would look like it if we came again."""
        there = await self._until_told(driver, lambda: presence.read_workers(places, me))
        return any(each.name == self.name and each != me for each in there or ())

    async def _until_told(self, driver: Driver, ask: Callable[[], Procedure[_T]]) -> _T | None:
        """Asked again for as long as a try may heal it; None where we are to leave meanwhile."""
        while self._leave_why is None:
            try:
                told: _T = await driver.run(ask())
                return told
            except DlogError as error:
                if error.retry is Retry.NEVER:
                    raise
                logger.info("a worker of group %r asks again: %s", self.group, error)
            await asyncio.sleep(self.options.group_options().retry_s)
        return None

    async def _live(
        self,
        me: WorkerId,
        stores: Stores,
        driver: GroupDriver,
        places: GroupPlaces,
        charter: Charter,
    ) -> None:
        """As one incarnation."""
        leases = lease_store(charter.leases, places, stores, charter.uid)

        def read_shards() -> Procedure[list[GroupShard]]:
            try:
                yield from check_charter(places, charter)
                return (yield from shards_of(places, stores, charter, self.numbers, self.log_uids))
            except (NotFound, ConfigError) as error:
                # Removed behind our back: there is nothing left to agree on with others.
                logger.error("worker %s of group %r leaves: %s", me, self.group, error)
                self.leave(error.message)
                raise

        errands = Errands(me, leases, read_shards, self.numbers)
        scales = Scales(stores, driver, leases, charter, self.numbers)

        async def run(ask: Ask) -> Any:
            if isinstance(ask, Weigh):
                return await scales.weigh()
            return await driver.run(errands.of(ask))

        options = self.options
        core = WorkerCore(me, self._now_s(), domain=options.domain, options=options.group_options())
        core.member.waits = self._waits
        self._ending = asyncio.Event()
        self._lost, self._core_why = False, ""
        self._run = run
        self._meta, self._places = stores.meta, places
        self._stream_path = stores.layout.stream(self.stream)
        with self._lock:
            self._core, self._is_live = core, True
            if self._leave_why is not None:
                core.ask_leave(self._now_s(), self._leave_why)
            core.on_time(self._now_s())
        try:
            self._pump()
            await self._ending.wait()
        finally:
            with self._lock:
                self._is_live = False
            for shard in list(self._made):  # this end may have waited for none of them
                self._settle(shard, None, _not_ours(shard))
            await self._quiet()

    async def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = None, math.inf
        left = [*self._tasks, *self._watches.values()]
        for task in left:
            task.cancel()
        self._watches.clear()
        if left:
            await asyncio.wait(left)

    # --- asked and told from any thread

    def may_deliver(self, shard: str, epoch: int) -> bool:
        core = self._core
        if core is None:
            return False
        with self._lock:
            return core.may_deliver(shard, epoch, self._now_s())

    def still_owner(self, shard: str, epoch: int) -> bool:
        core = self._core
        if core is None or not self.home.is_alive:
            return False
        with self._lock:
            return core.still_owner(shard, epoch, self._now_s())

    def has_lost(self, shard: str, epoch: int) -> bool:
        """For certain: what it would save is refused, or nobody would save it any more."""
        core = self._core
        if core is None:
            return True
        with self._lock:
            consumer = core.consumers.get(shard)
            return consumer is None or consumer.epoch != epoch or consumer.is_fenced

    def delivered(self, shard: str, epoch: int, position: Position) -> None:
        core = self._core
        assert core is not None
        with self._lock:
            consumer = core.consumers.get(shard)
            if consumer is None or consumer.epoch != epoch or consumer.step is not None:
                raise LeaseLost(f"shard {shard!r} is being given up", epoch=epoch)
            core.on_delivered(shard, position)

    def begun_at(self, shard: str, epoch: int, position: Position) -> None:
        """Where a shard that has no checkpoint yet begins: kept, so that whoever comes after us
        begins there as well."""
        core = self._core
        assert core is not None
        with self._lock:
            consumer = core.consumers.get(shard)
            if consumer is None or consumer.epoch != epoch:
                return
            consumer.tracker.delivered(position)
        self.checkpoint(shard, epoch, Checkpoint(position), at_once=True)

    def checkpoint(
        self,
        shard: str,
        epoch: int,
        checkpoint: Checkpoint,
        *,
        at_once: bool,
        waiter: Future[None] | None = None,
    ) -> None:
        core = self._core
        if core is None:
            raise _not_ours(shard)
        with self._lock:
            if not self._is_live:
                raise _not_ours(shard)
            core.on_checkpoint(shard, epoch, checkpoint, at_once=at_once, now_s=self._now_s())
            tracker = core.consumers[shard].tracker
            newest = tracker.newest
            if newest is None or newest is tracker.stored:
                if waiter is not None:
                    waiter.set_result(None)
                return
            made = self._made.setdefault(shard, deque())
            last = made[-1] if made else None
            if last and last.waiter is None and not tracker.is_under_way(last.checkpoint):
                made[-1] = _Made(newest, waiter)
            else:
                made.append(_Made(newest, waiter))
            is_news = at_once or last is None
        if is_news:
            self.poke()

    def doubt(self, shard: str) -> None:
        """Somebody says that it is lost: we look, as soon as nothing else is under way for it. A
        look that was under way may be older than what is said, and answers this one with itself:
        so whoever doubts goes on until `looked` tells of one that was begun since."""

        def look(core: WorkerCore, now_s: float) -> None:
            core.member.wanted.add(shard)
            core.on_time(now_s)

        self.tell(look)

    def parents(self, shard: str) -> tuple[str, ...]:
        """Those that came before it, which the group has done."""
        core = self._core
        if core is None:
            return ()
        with self._lock:
            known = core.graph.shards.get(shard)
            return () if known is None else known.parents

    def newest(self, shard: str) -> Checkpoint | None:
        core = self._core
        with self._lock:
            consumer = None if core is None else core.consumers.get(shard)
            return None if consumer is None else consumer.tracker.newest

    def tell(self, what: Callable[[WorkerCore, float], None]) -> None:
        """A fact about a shard."""
        core = self._core
        if core is None:
            return
        with self._lock:
            what(core, self._now_s())
        self.poke()

    def tell_waits(self, waits: dict[str, str]) -> None:
        """What does not get on, for the worker's node to tell with its next renewal."""
        self._waits = waits
        if self._core is not None:
            with self._lock:
                self._core.member.waits = waits

    def resume(self, log: str | None) -> tuple[str, ...]:
        """Which of the shards that failed are given back; all of them without a name."""
        core = self._core
        if core is None:
            return ()
        with self._lock:
            resumed = [each for each in core.halted if log in (None, each)]
            for shard in resumed:
                core.resume(shard, self._now_s())
        self.poke()
        return tuple(resumed)

    def leave(self, why: str = "closed") -> None:
        self._leave_why = self._leave_why or why
        self.tell(lambda core, now_s: core.ask_leave(now_s, why))

    def poke(self) -> None:
        if not self._poked:
            self._poked = True
            self.home.call(self._pump)

    def facts(self) -> Facts:
        core = self._core
        if core is None:
            return Facts(None, {}, (), False, None)
        with self._lock:
            shards = {each.shard: each.state.value for each in core.consumers.values()}
            confirmed_s = core.member.confirmed_s
            quiet_s = None if confirmed_s is None else self._now_s() - confirmed_s
            me = None if core.member.seen is None else core.me
            trouble = self._troubles.wait(self._now_s())
            return Facts(me, shards, tuple(core.halted), core.member.is_member, quiet_s, trouble)

    def abandon(self) -> None:
        """Without farewell: for a worker that nobody holds any more."""

        def end() -> None:
            self._leave_why = self._leave_why or "dropped"
            if self._ending is not None:
                self._ending.set()

        self.home.call(end)

    # --- what the core wants done

    def _pump(self) -> None:
        self._poked = False
        core, ending = self._core, self._ending
        if core is None or ending is None or ending.is_set():
            return
        orders: list[Order] = []
        with self._lock:
            effects = core.take()
            now_s = self._now_s()
            wakes_s = core.wakes_at_s(now_s)
            watched = self._watched(core)
            fenced = {(c.shard, c.epoch) for c in core.consumers.values() if c.is_fenced}
        for effect in effects:
            if isinstance(effect, Ask):
                self._begin(core, effect)
            elif isinstance(effect, Order):
                self._mind(core, effect)
                orders.append(effect)
        self._arm(wakes_s, now_s)
        self._watch(core, watched)
        for shard, epoch in sorted(fenced - self._fenced):
            self._settle(shard, None, _not_ours(shard))
            orders.append(Fenced(shard, epoch))
        self._fenced = fenced
        if orders:
            self._on_orders(orders)

    def _begin(self, core: WorkerCore, ask: Ask) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(core, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, core: WorkerCore, ask: Ask) -> None:
        answer: Any = None
        error: DlogError | None = None
        if isinstance(ask, Look):
            self.looks += 1
        look = self.looks
        self._troubles.begun(ask)
        try:
            answer = await self._run(ask)
        except DlogError as refused:
            error = refused
            # It is tried again for as long as it takes, so what no try heals has to be told.
            is_odd = refused.retry is Retry.NEVER
            level = logging.WARNING if is_odd else logging.DEBUG
            logger.log(level, "group %r: %s: %s", self.group, type(ask).__name__, refused)
        except Exception as bug:
            logger.exception("group %r: %s", self.group, ask)
            error = Broken(f"{type(bug).__name__}: {bug}")
        if isinstance(ask, Look) and error is None:
            self.looked[ask.shard] = look
        with self._lock:
            self._troubles.answered(ask, error, self._now_s())
            core.answered(ask, answer, error, self._now_s())
        self._pump()

    def _mind(self, core: WorkerCore, order: Order) -> None:
        """As far as it is ours."""
        assert self.holds is not None
        match order:
            case Saved(shard=shard, checkpoint=checkpoint, error=error):
                self._settle(shard, checkpoint, error)
                if error is None:
                    self.holds.move(shard, checkpoint.position)
            case ShardStopped(shard=shard, reason=reason):
                self._settle(shard, None, _not_ours(shard))
                if reason is StopReason.ENDED:
                    self.holds.finish_soon(shard)
                elif reason is StopReason.LOST:
                    self.holds.forget(shard)
                else:
                    self.holds.let_go(shard)
            case WorkerEnded(is_lost=is_lost, why=why):
                self._lost, self._core_why = is_lost, why
                assert self._ending is not None
                self._ending.set()

    def _settle(self, shard: str, kept: Checkpoint | None, error: Exception | None) -> None:
        """Whoever waits for a checkpoint up to this one is told; all of them, without one."""
        with self._lock:
            made = self._made.get(shard)
            if made is None:
                return
            told: list[_Made] = []
            is_there = kept is not None and any(each.checkpoint is kept for each in made)
            while made and (kept is None or is_there or made[0].checkpoint.is_before(kept)):
                each = made.popleft()
                told.append(each)
                if each.checkpoint is kept and not any(e.checkpoint is kept for e in made):
                    break
            if not made:
                del self._made[shard]
        for each in told:
            waiter = each.waiter
            if waiter is None or waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    # --- when to wake

    def _arm(self, wakes_s: float, now_s: float) -> None:
        if wakes_s == self._timer_s and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = wakes_s
        if wakes_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(WAKE_S_MIN, wakes_s - now_s), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_s = None, math.inf
        core = self._core
        assert core is not None
        with self._lock:
            core.on_time(self._now_s())
        self._pump()

    def _watched(self, core: WorkerCore) -> dict[str, Callable[[float], None]]:
        places = self._places
        wanted: dict[str, Callable[[float], None]] = {}
        if core.has_ended:
            return wanted
        for worker in core.member.watched():
            wanted[places.worker(worker)] = partial(core.hint_worker, worker)
        wanted[places.workers] = wanted[self._stream_path] = core.hint_group
        if core.options.weigh_s is not None:
            wanted[places.weights] = core.hint_group
        for shard in core.coming:
            wanted[places.lease(shard)] = partial(core.hint_shard, shard)
        return wanted

    def _watch(self, core: WorkerCore, wanted: dict[str, Callable[[float], None]]) -> None:
        for path in self._watches.keys() - wanted.keys():
            self._watches.pop(path).cancel()
        for path in wanted.keys() - self._watches.keys():
            listening = self._listen(core, path, wanted[path])
            self._watches[path] = asyncio.get_running_loop().create_task(listening)

    async def _listen(self, core: WorkerCore, path: str, hint: Callable[[float], None]) -> None:
        """Watches are hints, and so is whatever goes wrong with one."""
        while True:
            try:
                async with self._meta.watch(path) as watch:
                    while await watch.wait(WATCH_MS):
                        with self._lock:
                            hint(self._now_s())
                        self._pump()
            except DlogError as error:
                logger.debug("group %r: no watch of %s: %s", self.group, path, error)
                await asyncio.sleep(core.options.retry_s)


def _not_ours(shard: str) -> LeaseLost:
    return LeaseLost(f"shard {shard!r} is not ours any more")

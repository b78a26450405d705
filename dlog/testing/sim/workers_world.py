"""Histories of real workers (tier 3): drivers, hearts on loops of their own, and the public API,
over the BookKeeper client as it is, over simulated bookies, in virtual time.

While faults strike, workers share the shards of a stream that is written, split and truncated; they
come, leave, die, sleep and are cut off, and their programs raise, block and take their time. Then
all is well: everything is processed, or a dead letter; every shard is attended; what is sent from
then on comes once; checkpoints and holds are where they should be. At the very end everybody is
closed, and nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dlog.client import Client
from dlog.errors import AlreadyExists, DlogError, NotFound
from dlog.groups.consumer import ShardState
from dlog.meta.layout import Layout
from dlog.testing.sim.loop_cluster import LoopCluster
from dlog.testing.sim.loop_process import LoopProcess, ProcessClock
from dlog.testing.sim.simulation import PROCESSES
from dlog.testing.sim.workers_oracle import (
    FLUSHED,
    GROUP,
    ONCE,
    STREAM,
    TOLD,
    Life,
    WorkersOracle,
)
from dlog.testing.sim.workers_process import SkewedClock, WorkerProcess
from dlog.testing.sim.workers_programs import POISON, Kit
from dlog.testing.sim.workers_swarm import (
    DRIFT_MAX,
    HOURS_US,
    TIMEOUT_MS,
    WorkersWeather,
)
from dlog.testing.sim.world import Violation, World, require

HEAL_MS = 90_000.0  # virtual: a pause before another try is as long as all those before it
SETTLE_MS = LOOK_MS = 10.0
KEPT_MS = 30_000.0
REST_MS = 5 * TIMEOUT_MS  # longer than until the next plan that nobody asked for
KEYS = 7
PRODUCER = 7
_AGAIN_S = 0.05
KEPT = "checkpoints and holds are where they should be"


class WorkersHistory:
    def __init__(self, world: World, weather: WorkersWeather) -> None:
        self.world, self.weather = world, weather
        if weather.on_error != "retry":
            weather.climate.bookies.broken = 0.0  # it would stop the shard, or be a letter
        self.cluster = LoopCluster(world, weather.bookies, weather.climate)
        self.oracle = WorkersOracle(world, weather)
        self.kit = Kit(world, weather, self.oracle)
        self.acked: set[int] = set()
        self.poisoned: set[int] = set()
        self.letters: list[tuple[str, int, bytes]] = []
        self._rests = (-1, math.inf)  # changes that were seen, and since when there are no more
        self._processes: list[WorkerProcess] = []
        self._tasks: list[tuple[LoopProcess, asyncio.Task[Any]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._helper = self._process("helper").main
        self._client = self._helper.run_now(_made(self._helper))
        tree, drop = self.cluster.tree, self.cluster.tree._drop
        tree.audit = self.oracle.on_write

        def dropped(path: str) -> None:
            drop(path)
            self.oracle.on_drop(path)

        tree._drop = dropped  # type: ignore[method-assign]

    # --- the whole of it

    def run(self) -> None:
        weather = self.weather
        self._wait_for(self._create(), "the stream is made")
        send = self._send(0, weather.messages, may_be_poisoned=True)
        if weather.job:
            self._wait_for(send, "all is sent")
        else:
            self._sending = self._start(self._helper, send)
        self._begin_all()
        self._pass_time(weather.span_ms)
        self._heal()
        if weather.job:
            self._end_job()
        else:
            self._end()
        self._check_nothing_is_left()
        self._wait_for(self._read_letters(), "dead letters are read")
        self._judge()
        self._wait_for(self._client.close(), "the helper is closed")

    def _begin_all(self) -> None:
        world, weather, spread_ms = self.world, self.weather, self.weather.span_ms / 3
        for number in range(weather.workers):
            first_ms = world.chance.random() * world.chance.pick((0.0, spread_ms), "they come")
            world.after(first_ms, partial(self._begin_life, number, 0))
        for number in range(weather.joiners):
            world.after(
                world.chance.random() * weather.span_ms, partial(self._begin_joiner, number)
            )
        for _ in range(0 if weather.job else weather.splits):
            self._later(self._split)
        for _ in range(weather.truncations):
            self._later(self._truncate)

    def _later(self, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """In the course of the faults."""

        def begin() -> None:
            if not self.world.is_calm:
                self._start(self._helper, what())

        self.world.after(self.world.chance.random() * self.weather.span_ms, begin)

    def _heal(self) -> None:
        self.kit.is_cured = self.weather.on_error != "dead_letter"
        for process in self._processes:
            process.heal()
        self.cluster.heal()
        self.oracle.on_calm()

    # --- workers

    def _process(self, name: str) -> WorkerProcess:
        world, weather = self.world, self.weather
        clock = ProcessClock(world)
        if weather.skewed or weather.drifting:
            offset_us = int((world.chance.random() - 0.5) * 24 * HOURS_US)
            drift = (world.chance.random() - 0.5) * 2 * DRIFT_MAX if weather.drifting else 0.0
            began_s = world.chance.random() * 1e6
            clock = SkewedClock(world, offset_us if weather.skewed else 0, began_s, drift)
        process = WorkerProcess(self.cluster, name, clock)
        process.thread_ms = weather.process_ms
        self._processes.append(process)
        return process

    def _begin_life(self, number: int, incarnation: int) -> None:
        """The last one of each stays, unless it dies."""
        world, weather = self.world, self.weather
        if incarnation and world.is_calm:
            return
        name = f"w{number}" if weather.same_name else f"w{number}{'abcd'[incarnation]}"
        life = self._begin_worker(name, f"w{number}{'abcd'[incarnation]}", number)
        is_last = incarnation + 1 >= weather.lives
        lasts_ms = 100.0 + world.chance.delay(weather.span_ms / 3)
        self._befall(life)
        if is_last:
            return

        def end() -> None:
            if world.is_calm:
                return
            if weather.trusts_name or world.strikes(weather.dies, f"{life.process} dies"):
                life.process.kill()
            elif not weather.same_name or world.chance.hits(0.5, "it is closed before"):
                self._close(life)
            pause_ms = world.chance.delay(weather.span_ms / 10)
            world.after(pause_ms, partial(self._begin_life, number, incarnation + 1))

        world.after(lasts_ms, end)

    def _begin_joiner(self, number: int) -> None:
        if not self.world.is_calm:
            life = self._begin_worker(f"j{number}", f"j{number}", number)
            stays_ms = self.world.chance.delay(300.0)
            self.world.after(stays_ms, lambda: self._strike(partial(self._close, life)))

    def _begin_worker(self, name: str, process_name: str, number: int) -> Life:
        life = Life(name, self._process(process_name))
        self.oracle.lives.append(life)
        self._start(life.process.main, self._live(life, number))
        return life

    def _befall(self, life: Life) -> None:
        world, weather, process = self.world, self.weather, life.process
        chance, span_ms = world.chance, weather.span_ms
        if world.strikes(weather.dies, f"{process} will die"):
            world.after(1.0 + chance.random() * span_ms, lambda: self._strike(process.kill))
        if world.strikes(weather.freezes, f"{process} will freeze"):
            lasts_ms = chance.delay(1.5 * TIMEOUT_MS, "its sleep")
            at_ms = chance.random() * span_ms / 2
            world.after(at_ms, lambda: self._strike(partial(process.freeze, lasts_ms)))
        if world.strikes(weather.cuts, f"{process} will be cut off"):
            lasts_ms = chance.delay(weather.cut_ms, "its solitude")
            at_ms = chance.random() * span_ms / 2
            world.after(at_ms, lambda: self._strike(partial(process.cut, lasts_ms)))
        if weather.skewed:
            by_us = int((chance.random() - 0.5) * 24 * HOURS_US)
            world.after(chance.random() * span_ms, lambda: process.jump(by_us))

    def _strike(self, what: Callable[[], None]) -> None:
        if not self.world.is_calm:
            what()

    async def _live(self, life: Life, number: int) -> None:
        """As a program would: it opens a worker, and waits for its end."""
        client = life.process.main.new_client()
        options = self.weather.options()
        if self.weather.domains:
            options["domain"] = f"d{number % self.weather.domains}"
        try:
            while life.worker is None and not life.is_closing:
                try:
                    life.worker = await client.open_worker(
                        GROUP, STREAM, self.kit.maker(life), name=life.name, **options
                    )
                except DlogError as error:
                    self.world.note(f"{life.name} is not opened: {error!r}")
                    await asyncio.sleep(_AGAIN_S)
            if life.worker is not None:
                await self._watch(life, life.worker)
        finally:
            if life.worker is not None:
                await life.worker.close()
                self.oracle.on_closed(life)
            await client.close()
            life.is_over = True

    async def _watch(self, life: Life, worker: Any) -> None:
        why = None
        while why is None:
            if life.is_closing:
                await self._close_worker(life, worker)
                self.oracle.on_closed(life)
            try:
                why = await worker.wait(timeout=0.1)
            except (Violation, AssertionError):
                raise
            except Exception as error:
                is_failed_job = self.weather.job and self.weather.on_error == "stop"
                if not is_failed_job:
                    raise Violation(TOLD, f"the heart of {life.name} failed: {error!r}") from error
                why = repr(error)
            worker.why()
            for each in worker.shards:
                require(each.failures == 0 or each.error is not None, TOLD, "a failure of nothing")
        self.world.note(f"{life.name} ended: {why}")
        self.world.mark(f"a worker ends: {why[:40]}")
        if why == "another process goes by the same name":
            require(life.was_replaced, TOLD, f"nobody goes by the name of {life.name}")
        elif why == "all shards are done":
            await self._check_done(life)
        else:
            known = life.is_closing or (self.weather.job and self.weather.on_error == "stop")
            require(known, TOLD, f"{life.name} ended by itself: {why}")

    async def _check_done(self, life: Life) -> None:
        require(self.weather.job, TOLD, f"{life.name} has a job without an end")
        missing = [n for n in self.acked if not self._is_done(n)]
        told = f"{life.name} says that all is done; missing {missing[:9]}"
        require(not missing, "I27", told)

    async def _close_worker(self, life: Life, worker: Any) -> None:
        if self.weather.closes == "hurried" and not self.world.is_calm:
            life.is_hurried = True
            await worker.close(timeout=self.world.chance.pick((0.5, 0.05, 0.0), "a close within"))
        else:
            await worker.close()

    def _close(self, life: Life) -> None:
        """Soon: it looks at that now and then."""
        life.is_closing = True

    # --- what else goes on

    async def _create(self) -> None:
        while True:
            try:
                await self._client.create_stream(STREAM, shards=self.weather.shards)
                return
            except AlreadyExists:
                return
            except DlogError:
                await asyncio.sleep(_AGAIN_S)

    async def _send(self, first: int, end: int, *, may_be_poisoned: bool = False) -> None:
        chance, weather = self.world.chance, self.weather
        for number in range(first, end):
            if may_be_poisoned and chance.hits(weather.poison, f"{number} is poison"):
                self.poisoned.add(number)
        pause_ms = 0.0 if weather.job or self.world.is_calm else weather.span_ms / weather.messages
        numbers = range(first, end)
        while not self.acked.issuperset(numbers):
            try:
                await self._send_rest(numbers, pause_ms)
            except DlogError as error:
                self.world.note(f"the sender is told {error!r}")
                await asyncio.sleep(_AGAIN_S)

    async def _send_rest(self, numbers: range, pause_ms: float) -> None:
        async with self._client.stream(STREAM).open_writer() as writer:
            tickets = []
            for number in (each for each in numbers if each not in self.acked):
                value = self._value(number)
                try:
                    sent = writer.submit(
                        value, key=b"k%d" % (number * 5 % KEYS), producer=(PRODUCER, number)
                    )
                    tickets.append((number, await sent))
                except AlreadyExists:
                    self.acked.add(number)
                if self.world.chance.hits(0.3, "a pause of the sender"):
                    await asyncio.sleep(self.world.chance.delay(3 * pause_ms) / 1000)
            for number, ticket in tickets:
                with contextlib.suppress(AlreadyExists):
                    await ticket
                self.acked.add(number)

    async def _split(self) -> None:
        stream = self._client.stream(STREAM)
        with contextlib.suppress(DlogError):
            shards = [each for each in await stream.shards() if each.is_open]
            await stream.split(self.world.chance.pick(shards, "which shard").number)

    async def _truncate(self) -> None:
        """All that holds let go, begun by the group or not, once the group is made."""
        with contextlib.suppress(DlogError):
            shards = await self._client.stream(STREAM).shards()
            for shard in shards if self.oracle.registered else ():
                await self._client.admin.truncate(shard.log, "latest")
                self.world.mark("a truncation")

    # --- the end

    def _end(self) -> None:
        weather = self.weather
        if weather.on_error == "stop":
            self._close_all()
        self._begin_worker("last", "last", 0)
        assert self._sending is not None
        self._wait_until(self._sending.done, "all is sent")
        self._wait_until(self._all_done, "everything is processed, or a dead letter", self._missing)
        self._wait_until(self._is_at_rest, "every shard is attended", self._who_has_what)
        changes, known, first = self.oracle.changes, len(self.oracle.leases), weather.messages
        before = dict(self.oracle.database.values)
        weather.blocks = 0.3 if weather.blocks else 0.0
        self._wait_for(self._send(first, first + weather.more), "more is sent")
        self._wait_until(self._all_done, "what is sent at the end is processed", self._missing)
        self._pass_time(2 * TIMEOUT_MS)
        # A split that was only listed is carried out by who writes next.
        may_move = weather.weigh != "count" or len(self.oracle.leases) != known
        require(may_move or self.oracle.changes == changes, ONCE, "shards wander")
        weather.blocks = 0.0
        for value, times in self.oracle.database.values.items():
            is_once = value in before or times == 1 or self._may_force()
            require(is_once, ONCE, f"{value!r} was processed {times} times, and all was well")
        self._wait_until(self._all_kept, KEPT, self._who_is_where, within_ms=KEPT_MS)
        self._close_all()
        require(self._all_flushed(), FLUSHED, f"not flushed at the end: {self._who_is_where()}")
        held = [each for each in self.oracle.leases.values() if each.consumer or each.owner]
        require(not held, "I27", "shards are had by nobody who lives", *held)

    def _close_all(self) -> None:
        for life in self.oracle.lives:
            self._close(life)
        self._wait_until(self._all_ended, "everybody is closed", self._who_runs)
        self._check_tasks()

    def _end_job(self) -> None:
        self._wait_until(self._all_ended, "everybody comes to an end", self._who_runs)
        self._check_tasks()
        self._begin_worker("last", "last", 0)
        self._wait_until(self._all_ended, "the job comes to an end", self._who_runs)
        self._check_tasks()
        require(self._all_done(), "I27", f"the job ended, and not all is done: {self._missing()}")
        self._wait_until(self._all_kept, KEPT, self._who_is_where, within_ms=KEPT_MS)

    def _value(self, number: int) -> bytes:
        return b"%s%d" % (POISON if number in self.poisoned else b"", number)

    def _is_done(self, number: int) -> bool:
        value = self._value(number)
        return value in self.oracle.database.values or value in self.oracle.buried

    def _all_done(self) -> bool:
        return all(map(self._is_done, self.acked))

    def _missing(self) -> str:
        missing = sorted(number for number in self.acked if not self._is_done(number))
        return f"missing {missing[:9]}; {self._who_has_what()}"

    def _consumers(self) -> dict[str, Life]:
        found = {}
        for life in self.oracle.lives:
            if life.core is not None and life.is_alive and not life.core.has_ended:
                for log, consumer in life.core.consumers.items():
                    # A log that nobody wrote to yet is waited for.
                    is_made = self.cluster.tree.value(Layout().log(log)) is not None
                    if consumer.state is ShardState.PROCESSING or not is_made:
                        found[log] = life
        return found

    def _is_attended(self) -> bool:
        leases, consumers = self.oracle.leases, self._consumers()
        if not leases:
            return False
        counts = {id(life): 0 for life in self.oracle.lives if life.is_member}
        for log, lease in leases.items():
            if lease.is_finished:
                continue
            life = consumers.get(log)
            if life is None or lease.consumer != life.core.me or lease.owner != lease.consumer:
                return False
            counts[id(life)] = counts.get(id(life), 0) + 1
        is_even = max(counts.values()) - min(counts.values()) <= 1
        dead = self.oracle.registered - self.oracle.dead
        alive = {life.core.me for life in self.oracle.lives if life.is_member}
        if any(not life.is_settled for life in self.oracle.lives):
            return False
        may_differ = self.weather.domains > 0 or self.weather.weigh != "count"
        return (is_even or may_differ) and dead == alive

    def _is_at_rest(self) -> bool:
        if not self._is_attended():
            self._rests = -1, math.inf
            return False
        changes, since_ms = self._rests
        if changes != self.oracle.changes:
            self._rests = self.oracle.changes, self.world.now_ms
            return False
        return self.world.now_ms - since_ms > REST_MS

    def _who_has_what(self) -> str:
        open_leases = [each for each in self.oracle.leases.values() if not each.is_finished]
        leases = [f"{each.shard}: {each.consumer} → {each.owner}" for each in open_leases]
        work = [
            f"{each.log} of {life.name} {each.doing}"
            for life in self.oracle.lives
            if life.is_alive and life.worker is not None
            for each in life.worker.shards
        ]
        return "; ".join([*leases, *work])

    def _all_kept(self) -> bool:
        oracle = self.oracle
        for log, lease in oracle.leases.items():
            if lease.is_finished:
                at = oracle.holds.get(log, -1)
                is_free = at < 0 if self.weather.job else at >= oracle.kept.get(log, 0)
                if not is_free and not self._may_leave_holds():
                    return False
                continue
            at, kept = oracle.database.next_seq.get(log, 0), oracle.kept.get(log, 0)
            if self.weather.checkpoints != "late" and self.weather.on_error != "dead_letter":
                if kept < at:
                    return False
            if oracle.holds.get(log) != kept:
                return False
        return True

    def _all_flushed(self) -> bool:
        """As far as can be said: letters wait, a shutdown is asked once, who is forced is not."""
        weather, oracle = self.weather, self.oracle
        if weather.on_error == "dead_letter" or weather.shutdown_fails > 0.0 or self._may_force():
            return True
        return all(oracle.kept.get(log, 0) >= at for log, at in oracle.database.next_seq.items())

    def _may_force(self) -> bool:
        return self.weather.weigh != "count" and self.weather.hand_over_ms is not None

    def _who_is_where(self) -> str:
        oracle = self.oracle
        return "; ".join(
            f"{log} at {oracle.database.next_seq.get(log)}, kept {oracle.kept.get(log)}, held "
            f"{oracle.holds.get(log)}{', finished' if lease.is_finished else ''}"
            for log, lease in oracle.leases.items()
        )

    def _may_leave_holds(self) -> bool:
        """Of the last shards: of those before them, whoever comes next drops them."""
        meta = self.weather.climate.meta
        return self.weather.job and (
            meta.outages
            or max(meta.refused, meta.request_lost, meta.reply_lost, meta.late) > 0.0
            or max(self.weather.cuts, self.weather.dies) > 0.0
            or self.weather.closes == "hurried"
        )

    # --- waiting

    def _start(self, process: LoopProcess, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = process.start(work)
        self._tasks.append((process, task))
        return task

    def _all_ended(self) -> bool:
        return all(task.done() for process, task in self._tasks if process.is_alive)

    def _check_tasks(self) -> None:
        for process, task in self._tasks:
            if process.is_alive:
                require(not task.cancelled(), "I24", "a program was cancelled by nobody", process)
                task.result()

    def _who_runs(self) -> str:
        return "; ".join(
            f"{process}: {task.get_stack(limit=1)}"
            for process, task in self._tasks
            if process.is_alive and not task.done()
        )

    def _wait_for(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        task = self._helper.start(work)
        self._wait_until(task.done, what, lambda: str(task.get_stack(limit=1)))
        task.result()

    def _wait_until(
        self,
        fact: Callable[[], bool],
        what: str,
        why: Callable[[], str] = str,
        *,
        within_ms: float = HEAL_MS,
    ) -> None:
        world = self.world
        until_ms = world.now_ms + within_ms
        while not fact() and world.now_ms < until_ms:
            self._pass_time(LOOK_MS)
        if not fact():
            raise Violation("I27", f"not within {within_ms:.0f} ms: {what} {why()}")

    def _pass_time(self, ms: float) -> None:
        oracle, database = self.oracle, self.oracle.database
        self.world.run(
            until_ms=self.world.now_ms + ms,
            done=lambda: (oracle.violation or database.violation) is not None,
        )
        oracle.check()
        self._check_done_tasks()
        if self.world.is_calm and self.world.now_ms - oracle.calm_ms > REST_MS:
            names = oracle.names()
            require(len(names) == len(set(names)), "LH-27", "two go by one name", *names)

    def _check_done_tasks(self) -> None:
        for process, task in self._tasks:
            if process.is_alive and task.done() and not task.cancelled():
                error = task.exception()
                if error is not None:
                    raise error

    def _check_nothing_is_left(self) -> None:
        self._pass_time(SETTLE_MS)
        for process in self._processes:
            if process.is_alive and process.main is not self._helper:
                left = process.left()
                require(not left, "I25", f"{process} closed everything, and left", *left[:5])

    # --- the verdict

    async def _read_letters(self) -> None:
        if self.weather.on_error != "dead_letter":
            return
        try:
            async with self._client.open_reader("dead") as reader:
                async for message in reader:
                    told = dict(message.headers)
                    log, seq = told["dlog.shard"].decode(), int(told["dlog.seq"])
                    self.letters.append((log, seq, message.value or b""))
        except NotFound:
            pass

    def _judge(self) -> None:
        oracle = self.oracle
        there = [(log, seq) for log, seq, _ in self.letters]
        twice = sorted(each for each in set(there) if there.count(each) > 1)
        require(not twice, ONCE, "a dead letter is there twice", *twice)
        lost = (oracle.letters | oracle.database.skipped) - set(there)
        require(not lost, TOLD, "a message was left out, and is no dead letter", *sorted(lost))
        values = {value for _, _, value in self.letters}
        for number in self.acked:
            value = self._value(number)
            require(
                value in oracle.database.values or value in values,
                "I27",
                f"{value!r} was never processed, and is no dead letter",
            )

    def dispose(self) -> None:
        self.world.end()
        self.cluster.dispose()
        for process in self._processes:
            for part in process._parts:
                PROCESSES.pop(part.loop, None)


async def _made(process: LoopProcess) -> Client:
    return process.new_client()

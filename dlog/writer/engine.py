"""The writer's driver: moves batches from the batcher through the core to the appenders, and facts
back.

Everything here runs on one event loop, but for the batcher's intake. It owns the tasks, the timers
and the appenders of one writer and decides nothing: what may be sent, acknowledged or rotated, the
core says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dlog import trace
from dlog.chance import backoff_s
from dlog.drive import Stores, too_late
from dlog.errors import (
    Broken,
    DlogError,
    Fenced,
    ForkedHandle,
    Handle,
    Outcome,
    Timeout,
    WriterClosed,
    check,
)
from dlog.ids import MessageId
from dlog.limits import SEAL_TIMEOUT_S
from dlog.meta.listed import WriterMark
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions, WriterOptions, visible_within_ms
from dlog.progress import Progress
from dlog.writer.batch import Batch, Origin
from dlog.writer.batcher import Batcher
from dlog.writer.core import Identity, WriterCore, WriterState
from dlog.writer.defects import as_death, fail_batches, forget_frames, guarded
from dlog.writer.duties import Duty, next_duty, procedure_of
from dlog.writer.performing import WriterDriver, not_sealed, warn_of_no_seal
from dlog.writer.pipe import check_codec
from dlog.writer.presence import Presence
from dlog.writer.rotation import Ending, begin, close
from dlog.writer.takeover import Opening, take_over, tell_winner
from dlog.writer.tickets import until_resolved
from dlog.writer.times import Stopwatch, TakeoverTimes
from dlog.writer.understudy import Understudy
from dlog.writer.watch import WriterWatch

_log = logging.getLogger("dlog.writer")

TURN_BYTES_MAX = 4 << 20  # encoded in one turn of the loop; then acks and others have theirs
AGE_CHECKS = 20  # times in a segment's life that its age is looked at while nothing else happens
AGE_CHECK_S_MAX = 60.0
REST_S_MAX = 1.5  # behind a duty that failed: it is done within 2 s once the trouble is over
FAREWELL_S = 1.0  # an opening that failed waits so long for its name to be taken away


class Engine:
    """One open writer. Implements `AppenderListener`."""

    def __init__(self, stores: Stores, name: str, options: WriterOptions, mark: WriterMark) -> None:
        check_codec(options.codec)  # before anybody is fenced
        self.name = name
        self.options = options
        self.mark = mark
        # Before `open`: the uid of the log that it is to go on copying, the shard that the log is.
        self.copies: str | None = None
        self.shard: ShardLog | None = None
        self.last_id: MessageId | None = None
        self.rotations = 0
        self.takeover_times = TakeoverTimes()
        self._stores = stores
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._driver = WriterDriver(self, stores)
        self._core: WriterCore | None = None
        self.batcher = Batcher(
            entry_bytes=options.entry_bytes,
            window_bytes=options.window_bytes,
            wake_loop=self._wake,
        )
        self._presence_path = stores.layout.presence(name, mark.token)
        self._presence = Presence(stores, self._presence_path, mark.name.encode())
        self._driver.announce = self._presence.make
        self._within_ms = visible_within_ms(options.visible)
        self._publish_timers: dict[int, asyncio.TimerHandle] = {}
        self._linger_timer: asyncio.TimerHandle | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._lingered = False
        self._duty: asyncio.Task[None] | None = None
        self._rotation_asked = False
        self._rest_until_s = 0.0
        self._failures = 0
        self._progress = Progress()
        self._closing: asyncio.Task[DlogError | None] | None = None
        self._sealing = False  # all is flushed: no duty begins any more
        self._last_pushed: Batch | None = None
        self._in_hand: Batch | None = None  # taken from the batcher, not yet in a pipe
        self.failed_batches: list[Batch] = []
        # Gets what was sent and what was not when the handle dies, instead of failing it.
        self.heir: Callable[[DlogError, list[Batch], list[Batch]], None] | None = None
        self._early_failures: dict[int, DlogError] = {}  # heard before there was a core
        self._buried = False
        self.watch = WriterWatch(self, self._driver, stores)
        _engines.add(self)

    @property
    def core(self) -> WriterCore:
        assert self._core is not None
        return self._core

    # --- opening

    async def open(self, create: LogOptions | None, stood_by: Understudy | None = None) -> None:
        stores = self._stores
        stopwatch = Stopwatch(stores.clock.monotonic_s)
        opening = Opening(
            self.name,
            stores.layout,
            self.mark,
            self.options.takeover,
            create,
            stores.chance.token(),
            stores.clock.wall_us,
            stores.chance,
            stopwatch,
            None if stood_by is None else stood_by.brings(),
            self.copies,
            self.shard,
        )
        timeout_ms = self.options.open_timeout_ms
        self.watch.start()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                opened = await self._driver.run(take_over(opening))
                identity = Identity(
                    self.name,
                    self.mark.token,
                    stores.layout,
                    stores.clock.wall_us,
                    stores.clock.monotonic_s,
                    stores.chance,
                    self.copies is not None,
                )
                self._core = WriterCore(identity, opened, self.options)
                origin = Origin(opened.seen.meta.uid, opened.seen.meta.epoch)
                self.batcher.begin(origin, opened.end.next_seq, opened.producers)
                if stood_by is not None and opened.ledger_id == stood_by.ledger_id:
                    self._driver.appenders[opened.ledger_id] = stood_by.give_to(self)
                if (error := self._early_failures.get(opened.ledger_id)) is not None:
                    raise error
                await self._driver.run(begin(self._core))
                await self._progress.until(self._is_visible)
                self._raise_if_dead()
            stopwatch.lap("seam")
            self.takeover_times = stopwatch.times
            self._presence.until_lost(stores.layout.log(self.name), self.mark.token)
            self.watch.opened()
            _log.info("log %s: epoch %d after %s", self.name, self.core.epoch, self.takeover_times)
            self._check_age()
        except BaseException as error:
            self._let_go()
            await self._presence.withdrawn(FAREWELL_S)  # or our next try would meet this one
            if isinstance(error, TimeoutError) and not isinstance(error, Timeout):
                late = too_late(self._driver, "opened for writing", self.name, timeout_ms)
                raise late from self._driver.in_the_way
            if isinstance(error, Fenced):
                path, token = stores.layout.log(self.name), self.mark.token
                told = await self._driver.run(tell_winner(path, token, self.name, error))
                if told is not error:
                    raise told from error
            raise

    def reconfigure(self, options: WriterOptions, log_options: LogOptions) -> None:
        """From now on, all of it in this turn. A writer that is over stays as it was."""
        if self._core is None or self._is_over():
            return
        self.options = options
        self.batcher.reconfigure(options.entry_bytes, options.window_bytes)
        self._core.reconfigure(options, log_options)
        self.watch.reconfigure()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = self._loop.call_later(0, self._check_age)
        self._loop.call_soon(self._pump)

    def _is_visible(self) -> bool:
        core = self.core
        if core.state is WriterState.DEAD:
            return True
        later_will_do = self._within_ms is not None
        ledger_id = core.current.ledger_id  # another one, where what a standby brought had failed
        return core.is_idle and (later_will_do or not core.unpublished(ledger_id))

    # --- messages

    def _wake(self) -> None:
        """From any thread: there is something for the pump."""
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._pump)
            else:
                self._loop.call_soon_threadsafe(self._pump)
        except RuntimeError:
            raise WriterClosed("the event loop of this writer is closed", log=self.name) from None

    @guarded
    def _pump(self) -> None:
        if self._core is not None and not self._buried:
            self._send_all()

    def _send_all(self) -> None:
        core, batcher = self.core, self.batcher
        turn_bytes = 0
        sent: list[Batch] = []
        meter = self.watch.meter
        while core.room():
            if turn_bytes >= TURN_BYTES_MAX:
                self._loop.call_soon(self._pump)
                break
            batch = batcher.take(partial=core.is_idle and self._has_lingered())
            if batch is None:
                break
            turn_bytes += batch.bytes
            self._lingered = False
            self._last_pushed = self._in_hand = batch
            if meter is not None:
                sent.append(batch)
            if core.table_due:
                trace.before("producers.tabled")
                self.submit_entry(*core.push_table(core.stamp()))
                trace.after("producers.tabled")
            ledger_id, buffers = core.push(batch)
            self._in_hand = None
            trace.before("append.pushed")
            self.submit_entry(ledger_id, buffers)
            trace.after("append.pushed")
        if meter is not None and sent:
            meter.sent(sent)
        idle = core.is_idle
        if batcher.set_hungry(idle) and idle and core.room() and self._has_lingered():
            self._loop.call_soon(self._pump)
        self._care()

    def _has_lingered(self) -> bool:
        """May the open batch go? With `linger_ms`, only some time after it was first looked at."""
        if self.options.linger_ms == 0 or self._lingered or self._closing is not None:
            return True
        if self._linger_timer is None and self.batcher.has_open():
            delay_s = self.options.linger_ms / 1000
            self._linger_timer = self._loop.call_later(delay_s, self._linger_over)
        return False

    @property
    def lingers(self) -> bool:
        return self._linger_timer is not None

    def _linger_over(self) -> None:
        self._linger_timer = None
        self._lingered = True
        self._pump()

    def submit_entry(self, ledger_id: int, buffers: Any) -> None:
        entry_id = self._driver.appenders[ledger_id].submit(buffers)
        pipe = self.core.current
        check(
            (pipe.ledger_id, pipe.last_pushed) >= (ledger_id, entry_id),
            "the appender counts entries as we do",
            entry_id,
        )

    @guarded
    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        core = self._core
        if core is None:
            return
        trace.before("append.confirmed")
        core.on_confirmed(ledger_id, last_entry)
        trace.after("append.confirmed")
        if core.unpublished(ledger_id):
            self._publish(ledger_id)
        self.after_fact()

    def _publish(self, ledger_id: int) -> None:
        """As cheaply as the promise allows: at once where it is free, else when the ledger is idle,
        else when the user's bound is over."""
        appender = self._driver.appenders.get(ledger_id)
        if appender is None:
            return
        if self._within_ms is not None:
            if ledger_id not in self._publish_timers:
                self._publish_timers[ledger_id] = self._loop.call_later(
                    self._within_ms / 1000, self._publish_due, ledger_id
                )
        elif appender.publish_is_free or self.core.is_ledger_idle(ledger_id):
            appender.publish()

    @guarded
    def _publish_due(self, ledger_id: int) -> None:
        self._publish_timers.pop(ledger_id, None)
        appender = self._driver.appenders.get(ledger_id)
        if appender is not None and self.core.unpublished(ledger_id):
            appender.publish()

    @guarded
    def on_published(self, ledger_id: int, last_entry: int) -> None:
        if self._core is None:
            return
        trace.before("append.published")
        self._core.on_published(ledger_id, last_entry)
        trace.after("append.published")
        self.after_fact()

    @guarded
    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if self._core is None:
            self._early_failures[ledger_id] = error
            return
        self._core.on_failed(ledger_id, error)
        self.after_fact()

    @guarded
    def after_fact(self) -> None:
        """Acknowledge what the core released, tell who waits for progress, send what there is room
        for."""
        core = self.core
        released = core.take_released()
        if released:
            trace.before("append.acked")
            size = 0
            for batch in released:
                size += batch.bytes
                batch.resolve()
            for batch in released:
                if batch.producer is not None:
                    self.batcher.settle(batch)
            last = released[-1]
            self.last_id = MessageId(last.ledger_id, last.entry_id, len(last.values) - 1)
            self.batcher.release(size)
            if self.watch.meter is not None:
                self.watch.meter.acked(released, self.batcher.taken_bytes)
            trace.after("append.acked")
        self._progress.tell()
        if core.state is WriterState.DEAD:
            self._bury()
            return
        self._pump()

    def break_down(self, error: Exception) -> None:
        """A defect of ours reached the border: stop before it does harm, and let everybody know."""
        death = as_death(error, f"the writer of log {self.name!r}", self.name)
        self.core.die(death)
        if self.core.state is WriterState.DEAD:
            self._bury()

    # --- duties

    def _care(self) -> None:
        if self._duty is not None or self._sealing:
            return
        core = self.core
        resting = self._stores.clock.monotonic_s() < self._rest_until_s
        duty = next_duty(core, rotation_asked=self._rotation_asked, resting=resting)
        if duty is not None:
            self._duty = self._loop.create_task(self._fulfil(duty))
            self._duty.add_done_callback(self._duty_done)

    def _duty_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.break_down(error)
        self._progress.tell()

    async def _fulfil(self, duty: Duty) -> None:
        number = self.core.current.number
        self.watch.began(duty)
        try:
            await self._driver.run(procedure_of(duty, self.core))
        except (Fenced, Broken) as end:
            self.core.die(end)
        except DlogError as error:
            self._failures += 1
            self.watch.failed(duty, error)
            chance = self._stores.chance
            rest_s = 0.1 + backoff_s(self._failures, chance, base_s=0.1, limit_s=REST_S_MAX)
            self._rest_until_s = self._stores.clock.monotonic_s() + rest_s
            if not self._buried:
                self._rest_timer = self._loop.call_later(rest_s + 0.001, self._care)
            _log.warning(
                "log %s: %s waits (try %d): %s", self.name, duty.value, self._failures, error
            )
        else:
            self._failures = 0
            rotated = duty is Duty.ROTATE and self.core.current.number != number
            self.watch.done(rotated=rotated)
            if rotated:
                self._rotation_asked = False
                self.rotations += 1
        finally:
            self._duty = None
            self.watch.rests()
        self._forget_closed()
        self.after_fact()

    def _forget_closed(self) -> None:
        """Let go of appenders whose ledgers no pipe writes any more."""
        live = {pipe.ledger_id for pipe in self.core.pipes} | {self.core.spare}
        for ledger_id in [each for each in self._driver.appenders if each not in live]:
            self._driver.let_go(ledger_id)
            if (timer := self._publish_timers.pop(ledger_id, None)) is not None:
                timer.cancel()

    @guarded
    def _check_age(self) -> None:
        pause_s = min(self.core.log_options.segment_age_s / AGE_CHECKS, AGE_CHECK_S_MAX)
        self._age_timer = self._loop.call_later(pause_s, self._check_age)
        self._care()

    async def rotate(self) -> None:
        before = self.rotations
        self._rotation_asked = True
        self._care()
        await self._progress.until(lambda: self.rotations > before or self._is_over())
        self._raise_if_dead()
        if self.rotations == before:
            told = f"the writer of log {self.name!r} was closed before it rotated"
            raise WriterClosed(told, log=self.name, outcome=Outcome.UNKNOWN)

    async def allow_numbers(self) -> None:
        """The log has to say that it has producers before the first message of one."""
        self.core.numbers_asked = True
        self._care()
        await self._progress.until(lambda: self.core.seen.meta.producers or self._is_over())
        self._raise_if_dead()

    def _is_over(self) -> bool:
        return self._closing is not None or self.core.state is WriterState.DEAD

    def _raise_if_dead(self) -> None:
        if self.core.state is WriterState.DEAD:
            assert self.core.error is not None
            raise self.core.error.again()

    # --- the end

    def last_taken(self) -> Batch | None:
        """The last batch taken by now. It does not linger for company any more."""
        if self.options.linger_ms > 0:
            self.batcher.seal()
        return next(reversed(self.batcher.pending), self._last_pushed)

    async def flush(self) -> None:
        """Until everything taken by now is acknowledged; else raises what ended the handle."""
        if (last := self.last_taken()) is None:
            return
        if not last.done:
            await until_resolved(last)
        if last.error is not None:
            last.error_seen = True
            raise last.error.again()

    async def close(self, ending: Ending, *, hand_over_to: str | None = None) -> DlogError | None:
        """What kept the ending from being the one asked for; a plain close has nothing to tell."""
        if self._closing is None:
            refusal = WriterClosed(f"this writer of log {self.name!r} is closed", log=self.name)
            self.batcher.close(refusal)
            self._closing = self._loop.create_task(self._close(ending, hand_over_to))
            self._pump()
        failure = await asyncio.shield(self._closing)
        return None if ending is Ending.CLOSE else failure

    async def _close(self, ending: Ending, hand_over_to: str | None) -> DlogError | None:
        """What somebody waits for takes as long as it takes, a seal does not."""
        try:
            await self._progress.until(lambda: not self._is_unacknowledged())
            try:
                async with asyncio.timeout(SEAL_TIMEOUT_S) as scope:
                    failure = await self._seal(ending, hand_over_to)
            except TimeoutError:
                if not scope.expired():
                    raise
                failure = not_sealed(self.name, self._driver.in_the_way)
                warn_of_no_seal(self.name, failure)
                self.core.die(WriterClosed(f"closed: {failure}", log=self.name))
                self._bury()
            return failure
        except Exception as error:
            self.break_down(error)
            raise self.core.error or error from error
        finally:
            self._let_go()
            await self._presence.withdrawn()

    async def _seal(self, ending: Ending, hand_over_to: str | None) -> DlogError | None:
        core = self.core
        healing = WriterState.HEALING
        await self._progress.until(lambda: self._duty is None and core.state is not healing)
        self._sealing = True
        if core.state is WriterState.DEAD:
            return core.error
        failure = await self._driver.run(close(core, ending, hand_over_to=hand_over_to))
        self.after_fact()
        if failure is not None:
            warn_of_no_seal(self.name, failure)
        return failure

    def _is_unacknowledged(self) -> bool:
        core = self.core
        if core.state is WriterState.DEAD:
            return False
        return bool(self.batcher.pending or core.rebuilding or any(p.sent for p in core.pipes))

    def _bury(self) -> None:
        """The handle is dead: fail what was sent as unknown, what was not as not happened."""
        if self._buried:
            return
        self._buried = True
        error = self.core.error
        assert error is not None
        sent = self.core.take_unacknowledged()
        left = self.batcher.refuse(error.again(outcome=Outcome.NOT_HAPPENED, handle=Handle.DEAD))
        if self._in_hand is not None:  # it could not even be encoded
            left.insert(0, self._in_hand)
            self._in_hand = None
        if self.heir is None:
            fail_batches(error, sent, left)
            self.failed_batches = sent + left
        else:
            self.heir(error, sent, left)
        self.batcher.release(sum(batch.bytes for batch in sent + left))
        if self.watch.meter is not None:
            self.watch.meter.failed(self.failed_batches)
        self._let_go()
        if self._duty is not None and self._duty is not asyncio.current_task():
            self._duty.cancel()  # it may wait for what no longer happens
        self.core.forget()
        if isinstance(error, Fenced):  # the usual end: its frames would keep all they have seen
            forget_frames(error)
        self._progress.tell()

    @property
    def unacknowledged(self) -> int:
        """Messages taken and not acknowledged; from any thread, roughly."""
        batches = self.batcher.pending
        if self._core is not None:
            batches += [batch for pipe in list(self._core.pipes) for batch in list(pipe.sent)]
        return sum(len(batch.values) for batch in batches)

    def abandon(self, error: DlogError) -> None:
        """Drop everything at once, on the loop: for a handle nobody holds any more."""
        if self._core is not None and self._core.state is not WriterState.CLOSED:
            self._core.die(error)
            for task in (self._duty, self._closing):
                if task is not None:
                    task.cancel()
            self._bury()

    def _let_go(self) -> None:
        self.watch.stop()
        self._driver.let_all_go()
        self._presence.withdraw()
        timers = [self._age_timer, self._linger_timer, self._rest_timer]
        for timer in (*timers, *self._publish_timers.values()):
            if timer is not None:
                timer.cancel()
        self._publish_timers.clear()

    def on_fork(self) -> None:
        """In the child: this writer lives on in the parent; here every use of it is refused."""
        error = ForkedHandle(
            f"this writer of log {self.name!r} was made before a fork; open one in this process",
            log=self.name,
        )
        batches = self.batcher.forked(error)
        if self._core is not None:
            batches += [batch for pipe in self._core.pipes for batch in pipe.sent]
        for batch in batches:
            batch.waiters.clear()
            batch.resolve(error)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _on_fork() -> None:
    for engine in list(_engines):
        engine.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)

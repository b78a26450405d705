"""One shard that a worker has, on the loop of its user: reads the log, hands batches to the
program, and ends in the order that the core says.

    initialize → (read → may we? → process → checkpoint)* → end of the work → shutdown

A batch that raises is the user's choice (`on_error`); no way leads past it in silence. What is
being processed when the shard is given up comes to its end first; where it is lost to somebody
else, an async program is cancelled, since nothing that it does now counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dlog.errors import ConfigError, Corrupt, DlogError, FormatError, LeaseLost, NotFound
from dlog.groups import shard_log
from dlog.groups.asks import StartShard
from dlog.groups.charter import Charter
from dlog.groups.consumer import StopReason
from dlog.groups.core import WorkerCore
from dlog.groups.dead_letters import letter_for
from dlog.groups.hub import Hub
from dlog.groups.letters import error_text
from dlog.groups.processing import Program
from dlog.groups.shard_tracker import BlockingTracker, ShardInfo, Tracker
from dlog.groups.stopping import Stopped, Stopping
from dlog.ids import MessageId, Position
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import Start
from dlog.reader.reader import Reader

logger = logging.getLogger("dlog.groups")

_Work = Callable[[], Awaitable[Any]]
TURN_S = 0.005  # after so long without waiting for anything, other tasks have a turn
PAUSE_S_MAX = 30.0  # between tries of a program
STORE_PAUSE_S_MAX = 1.0  # and of a store: the shard goes on soon after it does


class ShardRun:
    def __init__(self, hub: Hub, order: StartShard) -> None:
        self.log, self.epoch = order.shard, order.epoch
        self.busy_since_s: float | None = None
        self.doing, self.failures = "begins", 0  # of the batch at hand
        self.error: BaseException | None = None
        self.refused: str | None = None  # why a dead letter cannot be kept
        self.unread: str | None = None  # why its log cannot be read
        self.position: Position | None = None
        self._hub, self._heart = hub, hub.heart
        self._options = hub.options
        self._clock = hub.stores.clock
        self._start = order.checkpoint
        self._program: Program | None = None
        self._tracker: Tracker | BlockingTracker | None = None
        self._reader: Reader | None = None
        self._end_seq: int | None = None
        self._is_initialized = self._is_ended = self._is_fenced = False
        self._stopping = Stopping()
        self._is_calling = self._is_cut_short = False
        self._holding: asyncio.Task[None] | None = None
        self._buried: set[MessageId] = set()  # entries since the last batch
        self._processed = 0  # since the last checkpoint that was saved at once
        self._turn_s = self._clock.monotonic_s()
        self.task = asyncio.get_running_loop().create_task(self._run())

    # --- orders

    def stop_fetch(self) -> None:
        self._stopping.set()

    def fenced(self) -> None:
        self._is_fenced = True
        self._stopping.set()
        self.cut_short()

    def cut_short(self) -> None:
        """What the program is at, where it can be: a thread cannot."""
        if self._is_calling and self._program is not None and self._program.is_async:
            self._is_cut_short = True
            self.task.cancel()

    def shut_down(self, reason: StopReason) -> None:
        self.task = asyncio.get_running_loop().create_task(self._shut_down(reason))

    # --- the whole of it

    async def _run(self) -> None:
        try:
            try:
                await self._begin()
                await self._go_on()
                self.doing = "is at its end"
                self._is_ended = True
                self._tell(lambda core, now_s: core.on_end(self.log, now_s))
            except Stopped:
                pass
            except Exception as error:  # noqa: BLE001
                self._fail(error)
            self.doing = "stops"
            await self._stopping.wait()
        finally:
            if self._holding is not None:
                self._holding.cancel()
                await asyncio.gather(self._holding, return_exceptions=True)
            if self._reader is not None:
                await self._reader.close()
        self._tell(lambda core, now_s: core.on_work_finished(self.log, now_s))

    def _tell(self, what: Callable[[WorkerCore, float], None]) -> None:
        """A fact about our grant; the core may be done with it."""

        def told(core: WorkerCore, now_s: float) -> None:
            consumer = core.consumers.get(self.log)
            if consumer is not None and consumer.epoch == self.epoch:
                what(core, now_s)

        self._heart.tell(told)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._hub.reports[self.log] = error_text(error)
        logger.error("%s stops: %s", self._who, error_text(error), exc_info=error)
        self._tell(lambda core, now_s: core.on_failed(self.log, now_s))

    @property
    def _who(self) -> str:
        return f"group {self._heart.group!r}: shard {self.log!r}"

    # --- its beginning

    async def _begin(self) -> None:
        number = self._heart.numbers[self.log]
        info = ShardInfo(self._heart, self.log, number, self.epoch, self._start)
        program = await self._made_program()
        self._tracker = (Tracker if program.is_async else BlockingTracker)(self._heart, info)
        charter = self._heart.charter
        assert charter is not None
        mark = None if charter.end is None else charter.end.get(number)
        self._end_seq = None if mark is None else mark.next_seq
        start = self._start_place(number, charter)
        await self._open(start)
        reader = self._reader
        assert reader is not None and self.position is not None  # noqa: PT018
        info.start = self.position
        if self._start is None and start == "earliest":
            whole = partial(shard_log.check_whole, reader, self._heart, self._hub.parents)
            await self._patiently(whole, self._not_read)
        holding = self._holding = asyncio.ensure_future(self._hold(self.position))
        if self._start is None:
            await self._stopping.cuts(holding)
            try:
                self._heart.begun_at(self.log, self.epoch, self.position)
            except LeaseLost:
                raise Stopped from None
        # Else there is one already, at this place or before it.
        leases = charter.leases
        parents = self._hub.parents
        info.parents = await self._patiently(lambda: parents.of(number, leases), self._not_read)
        self.unread = None
        await self._try("initialize", lambda: program.initialize(info))
        self._is_initialized = True
        self._tell(lambda core, now_s: core.on_initialized(self.log, now_s))

    async def _made_program(self) -> Program:
        """A class or a factory of the user's may fail as `initialize` may."""
        made: list[Program] = []

        async def make() -> None:
            made.append(self._hub.make_program())

        await self._try("make", make)
        self._program = made[0]
        return made[0]

    def _start_place(self, number: int, charter: Charter) -> Start:
        kept = self._start
        return charter.begins_at(number, self._options.start) if kept is None else kept.position

    async def _hold(self, at: Position) -> None:
        """What is not consumed is not truncated. Whoever did what came before may have died before
        it let go of that: whoever begins behind it sees to it."""
        heart, holds = self._heart, self._heart.holds
        assert holds is not None
        behind = heart.parents(self.log) if self._start is None else ()
        try:
            begin = partial(holds.begin, self.log, at, behind)
            await self._patiently(lambda: heart.home.run(begin()), shard_log.raise_never)
        except Stopped:
            pass
        except DlogError as error:
            logger.warning("%s is not held: %s", self._who, error)

    async def _open(self, start: Start) -> None:
        """What may pass is waited for, and so is a log that is not made yet. A reader that cannot
        go on at an entry stays there where that cannot be looked for again."""
        reader, stores = self._reader, self._hub.stores
        if reader is None:
            reading = self._options.reader_options()
            uid = self._heart.log_uids.get(self.log)
            reader = self._reader = Reader(stores, self.log, reading, uid)
            self._hub.add_reader(reader, reading)
        attempt = 0
        while True:
            self._stopping.check()
            try:
                await self._stopping.cuts(reader.seek(start, end=self._end_seq))
                await self._check_stream()
                break
            except (Corrupt, FormatError) as error:
                if self.position is not None:
                    return
                self._undecodable(error)
                limit_s = PAUSE_S_MAX
            except DlogError as error:
                is_new = self._start is None and self._end_seq is None
                if is_new and shard_log.is_no_log(error):
                    await self._stopping.cuts(shard_log.log_may_be_made(stores, self.log))
                    continue
                self._not_read(error)
                limit_s = STORE_PAUSE_S_MAX
            attempt += 1
            await self._pause(attempt, limit_s)
        self.position, self.unread = reader.position, None

    def _not_read(self, error: DlogError) -> None:
        """Raises what is for good."""
        shard_log.raise_if_for_good(error, is_job=self._end_seq is not None)
        if self.unread is None:
            logger.warning("%s: is read again: %s", self._who, error_text(error))
        self.unread, self.doing = error_text(error), f"cannot read: {error}"

    async def _check_stream(self) -> None:
        """A log whose uid the stream does not say was opened by its name. If the stream is ours
        still, the log was of it; else the worker is about to leave."""
        heart = self._heart
        if self.log in heart.log_uids:
            return
        assert heart.charter is not None
        looking = shard_log.check_stream(self._hub.stores, heart.stream, heart.charter.stream_uid)
        try:
            await self._stopping.cuts(looking)
        except NotFound as error:
            logger.warning("%s: %s", self._who, error)
            heart.tell(WorkerCore.hint_group)
            await self._stopping.wait()
            raise Stopped from None

    async def _patiently(self, work: _Work, on_error: Callable[[DlogError], None]) -> Any:
        """Until it is done, or `on_error` raises."""
        attempt = 0
        while True:
            self._stopping.check()
            try:
                return await work()
            except DlogError as error:
                on_error(error)
                attempt += 1
                await self._pause(attempt, STORE_PAUSE_S_MAX)

    # --- batches

    async def _go_on(self) -> None:
        """To the end of the log, or of the job."""
        heart, log, epoch = self._heart, self.log, self.epoch
        while (batch := await self._next()) is not None:
            self._stopping.check()
            assert self.position is not None
            upto = Position(self.position.log_uid, batch.last_seq + 1, batch.last_id)
            if not heart.may_deliver(log, epoch):
                await self._until_ours()
            try:
                heart.delivered(log, epoch, upto)
            except LeaseLost:
                raise Stopped from None
            await self._deliver(batch, upto)
            self.position = upto
            self._buried.clear()
            now_s = self._clock.monotonic_s()
            if now_s - self._turn_s > TURN_S:
                await asyncio.sleep(0)
                self._turn_s = self._clock.monotonic_s()

    async def _until_ours(self) -> None:
        """Renewals are not confirmed: from here on somebody else may have the shard. It goes on by
        itself when it turns out that nobody has."""
        self.doing = "waits: no word of the metadata store"
        self._hub.meter.waited(self.log)
        pause_s = min(0.25, self._options.timeout_ms / 16_000)
        while not self._heart.may_deliver(self.log, self.epoch):
            await self._stopping.sleep(pause_s)

    async def _next(self) -> MessageBatch | None:
        """None at the end."""
        attempt = 0
        while True:
            reader = self._reader
            assert reader is not None
            assert self.position is not None
            try:
                if reader._shelf.is_empty:
                    self.doing = "waits for messages"
                    if not await self._stopping.cuts(reader._fill()):
                        shard_log.check_end(self.log, self.position, self._end_seq)
                        return None
                    self._turn_s = self._clock.monotonic_s()
                return reader._shelf.batch()
            except (Corrupt, FormatError) as error:
                self._undecodable(error)
                if await self._is_passed(reader, error):
                    continue
                limit_s = PAUSE_S_MAX
            except DlogError as error:
                self._not_read(error)
                limit_s = STORE_PAUSE_S_MAX
            attempt += 1
            await self._pause(attempt, limit_s)
            await self._open(self.position)

    def _undecodable(self, error: Corrupt | FormatError) -> None:
        """An entry that nobody can decode is poison, too."""
        self._hub.meter.failed(self.log)
        self.failures, self.error, self.unread = self.failures + 1, error, None
        self.doing = f"cannot decode: {error}"
        if self._options.on_error == "stop":
            raise error
        logger.error("%s: %s", self._who, error)

    async def _is_passed(self, reader: Reader, error: Corrupt | FormatError) -> bool:
        """Of its messages nothing is to be had: a dead letter says where it is."""
        assert self.position is not None
        letter = letter_for(error, self.position.next_seq)
        if letter is None or letter.entry_id != reader._feed.core.place.entry_id:
            return False
        if letter.id not in self._buried:
            if self._options.on_error != "dead_letter" or self.failures < self._options.attempts:
                return False
            await self._bury(letter, error, self.failures, is_entry=True)
            self._buried.add(letter.id)
            self.failures, self.error = 0, None
        try:
            await self._stopping.cuts(reader.skip())
        except DlogError as refused:
            logger.info("%s: is read again: %s", self._who, refused)
            return False
        return True

    async def _deliver(self, batch: MessageBatch, upto: Position) -> None:
        """Once this returns, it is processed, or a dead letter."""
        options, tracker, program = self._options, self._tracker, self._program
        assert tracker is not None
        assert program is not None
        tracker.handed(upto)
        failed = 0
        while True:
            try:
                await self._process(program, batch, tracker)
                break
            except Stopped:
                raise
            except Exception as error:
                await self._unless_lost(error)
                failed += 1
                self._failed(error, failed, batch)
                if options.on_error == "stop":
                    raise
                if options.on_error == "dead_letter" and failed >= options.attempts:
                    await self._one_by_one(program, batch, tracker)
                    return
                await self._pause(failed)
                await self._ours()
                batch = self._rest_of(batch)
                if not len(batch):
                    break
        self._is_done(batch, program, tracker)

    def _is_done(
        self, batch: MessageBatch, program: Program, tracker: Tracker | BlockingTracker
    ) -> None:
        self.failures, self.error = 0, None
        self._hub.meter.processed(self.log, len(batch))
        ways = self._options.checkpoints or ("explicit" if program.takes_tracker else "batch")
        if ways == "explicit" or tracker.has_spoken:
            return
        self._processed += len(batch)
        often = self._options.checkpoint_messages
        at_once = 0 < often <= self._processed
        if at_once:
            self._processed = 0
        try:
            tracker.move_on(at_once=at_once)
        except LeaseLost:
            raise Stopped from None

    async def _one_by_one(
        self, program: Program, batch: MessageBatch, tracker: Tracker | BlockingTracker
    ) -> None:
        """The batch has a message that cannot be processed: the others are, and it is a dead
        letter. Each is done by itself, since the shard may be given up between two of them."""
        batch = self._rest_of(batch)
        for number, message in enumerate(batch.to_pylist()):
            single = batch.cut(number, number + 1)
            await self._ours()
            assert self.position is not None
            tracker.handed(Position(self.position.log_uid, message.seq + 1, message.id))
            failed = 0
            while True:
                try:
                    await self._process(program, single, tracker)
                    break
                except Stopped:
                    raise
                except Exception as error:  # noqa: BLE001
                    await self._unless_lost(error)
                    failed += 1
                    self._failed(error, failed, single)
                    if failed >= self._options.attempts:
                        await self._bury(message, error, failed)
                        break
                    await self._pause(failed)
                    await self._ours()
            self._is_done(single, program, tracker)

    async def _bury(
        self, message: Message, error: BaseException, tries: int, *, is_entry: bool = False
    ) -> None:
        letters = self._hub.dead_letters
        assert letters is not None
        assert self.position is not None
        uid = self.position.log_uid
        attempt = 0
        try:
            while True:
                try:
                    # Cut short when the shard is given up: whoever has it next tries it again.
                    putting = letters.put(self.log, uid, message, error, tries, is_entry=is_entry)
                    await self._stopping.cuts(putting)
                    break
                except DlogError as refused:
                    told = f"log {letters.name!r} takes no dead letter of seq {message.seq}"
                    self.refused = f"{told}: {error_text(refused)}"
                    self.doing = f"cannot keep a dead letter: {self.refused}"
                    logger.error("%s: %s", self._who, self.refused)
                    attempt += 1
                    await self._pause(attempt)
        finally:
            self.refused = None
        self._hub.meter.buried(self.log)
        logger.warning("%s: seq %d is a dead letter: %s", self._who, message.seq, error_text(error))

    def _failed(self, error: BaseException, failed: int, batch: MessageBatch) -> None:
        self.failures, self.error = failed, error
        self.doing = f"failed {failed} times: {error_text(error)}"
        self._hub.meter.failed(self.log)
        told = f"seq {batch.first_seq} to {batch.last_seq} failed, attempt {failed}"
        logger.warning("%s: %s: %s", self._who, told, error_text(error), exc_info=error)

    def _rest_of(self, batch: MessageBatch) -> MessageBatch:
        """What the program did not say it is done with."""
        newest = self._heart.newest(self.log)
        done = 0 if newest is None else max(0, newest.next_seq - batch.first_seq)
        return batch.cut(min(done, len(batch)), len(batch)) if done else batch

    async def _process(
        self, program: Program, batch: MessageBatch, tracker: Tracker | BlockingTracker
    ) -> None:
        self.doing = "processes"
        tracker.has_spoken = False
        self.busy_since_s = self._clock.monotonic_s()
        try:
            await self._calling(program.process(batch, tracker))
        finally:
            self.busy_since_s = None

    async def _calling(self, work: Awaitable[None]) -> None:
        """A call of the program's. It is cut short when the shard is lost."""
        self._is_calling = True
        try:
            await work
        except asyncio.CancelledError as cancelled:
            if not self._is_cut_short:
                if self.task.cancelling():
                    raise  # the loop ends
                # Of something else, that the program waited for.
                raise RuntimeError("the processor raised CancelledError") from cancelled
            self._is_cut_short = False
            self.task.uncancel()
            self._stopping.check()
            raise RuntimeError("the processor was cut short") from None
        finally:
            self._is_calling = False

    async def _try(self, what: str, call: Callable[[], Any]) -> None:
        """A call that comes before the first batch, as often as it takes."""
        failed = 0
        while True:
            self._stopping.check()
            self.doing = f"{what}s"
            self.busy_since_s = self._clock.monotonic_s()
            try:
                await self._calling(call())
                return
            except Stopped:
                raise
            except Exception as error:
                self.failures, self.error = failed + 1, error
                self._hub.meter.failed(self.log)
                is_nonsense = what == "make" and isinstance(error, ConfigError)
                if self._options.on_error == "stop" or is_nonsense:
                    raise
                failed += 1
                told = error_text(error)
                logger.warning("%s: %s failed: %s", self._who, what, told, exc_info=error)
            finally:
                self.busy_since_s = None
            await self._pause(failed)

    # --- waiting

    async def _ours(self) -> None:
        self._stopping.check()
        if not self._heart.may_deliver(self.log, self.epoch):
            await self._until_ours()

    async def _unless_lost(self, error: Exception) -> None:
        """The program may hear it before us, from whoever has it now: so we look. It may as well
        say so itself, by what it asked elsewhere or at a bad moment: then it failed, like any
        other."""
        if not isinstance(error, LeaseLost):
            return
        heart, log = self._heart, self.log
        since = heart.looks
        while not heart.has_lost(log, self.epoch):
            if heart.looked.get(log, 0) > since:
                return
            heart.doubt(log)
            self.doing = "waits: its program says that the shard is lost"
            await self._pause(1)
        await self._stopping.wait()
        raise Stopped from None

    async def _pause(self, attempt: int, limit_s: float = PAUSE_S_MAX) -> None:
        base_s = self._options.retry_pause_ms / 1000
        await self._stopping.sleep(min(limit_s, base_s * 2 ** min(attempt - 1, 20)))

    # --- its end

    async def _shut_down(self, reason: StopReason) -> None:
        program, tracker = self._program, self._tracker
        self.doing = "shuts down"
        if self._is_initialized and program is not None and tracker is not None:
            await self._say_goodbye(program, tracker, reason)
        self._tell(lambda core, now_s: core.on_shut_down(self.log, now_s))

    async def _say_goodbye(
        self, program: Program, tracker: Tracker | BlockingTracker, reason: StopReason
    ) -> None:
        is_end = reason is StopReason.ENDED
        failed = 0
        while True:
            self.busy_since_s = self._clock.monotonic_s()
            try:
                await self._calling(program.shutdown(tracker, reason))
                break
            except Stopped:  # cut short: it may have had something to do yet
                if is_end:
                    self._not_ended()
                return
            except Exception as error:
                failed += 1
                self._hub.meter.failed(self.log)
                told = error_text(error)
                logger.error("%s: shutdown failed: %s", self._who, told, exc_info=error)
                if not is_end or self._is_fenced:
                    return
                if failed >= self._options.attempts:
                    self.error = error
                    self._hub.reports[self.log] = f"shutdown: {error_text(error)}"
                    self._not_ended()
                    return
            finally:
                self.busy_since_s = None
            base_s = self._options.retry_pause_ms / 1000
            await asyncio.sleep(min(PAUSE_S_MAX, base_s * 2**failed))
        if is_end:
            # The program was told that all is over, and had nothing against it.
            with contextlib.suppress(LeaseLost):
                newest = self._heart.newest(self.log)
                at = self.position
                if at is not None and (newest is None or newest.next_seq < at.next_seq):
                    tracker.move_on(at)

    def _not_ended(self) -> None:
        """Nobody may go on behind it."""
        self._tell(lambda core, _: core.consumers[self.log].not_ended())

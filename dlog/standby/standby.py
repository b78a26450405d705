"""The async standby: what `await client.open_standby(...)` gives.

It drives the core's procedures: one task keeps a ledger ready and the log meta fresh, another reads
ahead of the user. Taking over stops the one, opens a writer with what was kept, and ends the reader
where the writer begins.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from dlog.awaited import longest, metadata_away
from dlog.calls import Calls
from dlog.chance import backoff_s
from dlog.drive import Closeable, Driver, Stores, too_late
from dlog.effects import Effect, Pause, Procedure, WaitNode
from dlog.errors import (
    Broken,
    ConfigError,
    Conflict,
    Corrupt,
    DlogError,
    Fenced,
    ForkedHandle,
    Handle,
    Outcome,
    ReaderClosed,
    Retry,
    WriterClosed,
)
from dlog.ids import Position
from dlog.ledger.store import Appender, AppenderListener
from dlog.meta.listed import WriterMark
from dlog.options import LogOptions, Takeover, WriterOptions
from dlog.reader.feed import look
from dlog.reader.looks import Looks
from dlog.reader.message import Message
from dlog.reader.places import Tail, find_tail
from dlog.reader.reader import Reader
from dlog.reader.segments import SegmentView
from dlog.reason import Reason, ReasonCode, Wait, told_of
from dlog.standby.core import TRY_AGAIN_S, Post, StandbyCore
from dlog.writer.engine import Engine
from dlog.writer.owner import default_owner
from dlog.writer.pipe import check_codec
from dlog.writer.preconditions import check_ledgers
from dlog.writer.takeover import StoodBy
from dlog.writer.writer import Writer

_log = logging.getLogger("dlog.standby")

CLOSE_PATIENCE_S = 5.0  # for a ledger that is being made: an orphan costs more than the wait


class Standby:
    """Ready to become the one writer of a log. One task reads from it at a time."""

    def __init__(
        self,
        stores: Stores,
        name: str,
        options: WriterOptions,
        reader: Reader,
        keep: Callable[[Writer], None],
    ) -> None:
        self.reader = reader
        self._stores = stores
        self._name = name
        self._options = options
        self._keep_writer = keep
        self._client: Closeable | None = None  # when it is ours alone
        self._loop = asyncio.get_running_loop()
        post = Post(name, stores.layout, stores.chance.token(), stores.clock.wall_us, stores.chance)
        self._core = StandbyCore(post)
        self._ear = _Ear(self._core)
        self._driver = _StandbyDriver(stores, self._ear)
        self._calls = Calls(
            lambda: ReaderClosed(
                f"this standby of log {name!r} was closed", log=name, outcome=Outcome.UNKNOWN
            )
        )
        self._keeping: asyncio.Task[None] | None = None
        self._checked = False  # that the ledgers of the log fit
        self._taking = False
        self._engine: Engine | None = None  # of the takeover under way
        self._failed: Wait | None = None  # the last try of a takeover that waits
        self._waits_for_vacancy = 0
        self._writer: Writer | None = None
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[None] | None = None

    async def begin(self, create: LogOptions | None) -> None:
        """Once this returns, all is ready."""
        check_codec(self._options.codec)
        timeout_ms = self._options.open_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._driver.run(self._core.begin(create, self._stores.chance.token()))
                await self._check_ledgers()
        except TimeoutError as error:
            if isinstance(error, DlogError):
                raise
            raise too_late(
                self._driver, "opened for standing by", self._name, timeout_ms
            ) from self._driver.in_the_way
        self._keep_ready()

    async def _check_ledgers(self) -> None:
        """Refuse now what a takeover would refuse."""
        meta = self._core.meta
        try:
            self._checked = await self._driver.run(check_ledgers(self._name, meta))
        except Corrupt:
            pass  # a takeover looks again, and tells
        except ConfigError:
            await self._driver.run(self._core.look())
            if self._core.meta == meta:  # else the log changed while we looked
                raise

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    # --- what it is

    @property
    def log(self) -> str:
        return self._name

    @property
    def ready(self) -> bool:
        """A ledger stands by that the log, as it was last seen, may list. Without one a takeover
        works as well, and takes the time to make one."""
        return self._core.is_ready

    @property
    def holder(self) -> str | None:
        """The owner of the writer that holds the log, as last seen; None when it was left."""
        writer = self._core.meta.writer
        return None if writer is None else writer.name

    @property
    def position(self) -> Position:
        """After the last message handed out."""
        return self.reader.position

    @property
    def closed(self) -> bool:
        return self._closed

    async def lag(self) -> int:
        """How many messages anybody could read now that were not handed out here yet."""
        self._check()
        view = SegmentView(self._name, self._stores.layout, tail=self.reader.tail_mode)
        tail = await look(self._stores, view, _tail(view))
        return max(0, tail.next_seq - self.reader.position.next_seq)

    def why(self) -> Reason | None:
        """Why a takeover under way takes its time, why no ledger is ready, or for whose end it
        waits. None when it is ready and nothing is asked of it, and once it took over."""
        wait, clock = self._wait_at_hand(), self._stores.clock
        if wait is None:
            return None
        return wait.told(now_s=clock.monotonic_s(), now_us=clock.wall_us())

    def _wait_at_hand(self) -> Wait | None:
        if self._closed:
            return Wait(ReasonCode.CLOSED, "the standby was closed")
        if self._writer is not None:
            return None
        if self._engine is not None and (taking := self._engine.watch.wait()) is not None:
            return taking
        if self._failed is not None:
            return self._failed.because(metadata_away(self._stores.meta, self._stores.clock))
        if (end := self._end()) is not None:
            return Wait(ReasonCode.LOST, f"the standby ended: {end}", told_of(end))
        if not self.ready:
            making = Wait(ReasonCode.LEDGER_CREATION, "a ledger is being made ready")
            if self._core.trouble is None:
                return making.because(longest(self._driver.awaited.values()))
            return self._core.trouble.because(metadata_away(self._stores.meta, self._stores.clock))
        if self._waits_for_vacancy:
            told = f"the log has a writer: {self.holder or 'nobody, as last seen'}"
            return Wait(ReasonCode.WRITER_PRESENT, told, {"holder": self.holder})
        return None

    # --- messages of whoever writes

    async def messages(self) -> AsyncIterator[Message]:
        """What others write, as it comes. Ends when nobody is there who writes and all that can be
        read was handed out: time to take over. Called again after that, it gives the rest, up to
        where our own writer begins."""
        while await self.fill():
            for message in self.reader._shelf.messages():
                yield message

    async def fill(self) -> bool:
        """Something of others is on the shelf; False at the end."""
        self._check()
        if self._writer is not None or not self.reader._shelf.is_empty:
            return await self.reader._fill()
        more = asyncio.ensure_future(self.reader._fill())
        vacant = asyncio.ensure_future(self._until_vacant())
        try:
            await asyncio.wait({more, vacant}, return_when=asyncio.FIRST_COMPLETED)
            while not more.done() and not self.reader.at_tail:
                await asyncio.wait({more}, timeout=0.01)  # it still reads what is there
            if more.done():
                return more.result()
            vacant.result()
            return False
        finally:
            for task in (more, vacant):
                task.cancel()
            await asyncio.gather(more, vacant, return_exceptions=True)

    # --- taking over

    async def wait(self, timeout: float | None = None) -> bool:
        """Until nobody else is there who writes; False when the time is over before (0: looks
        once). A process that died counts as gone once its session ended. While metadata is away
        nobody can tell. Advice only: it may be back, or another one."""
        self._check()
        return await self._calls.run(self._wait(timeout))

    async def _wait(self, timeout: float | None) -> bool:
        driver = Driver(self._stores.meta, self._stores.ledgers)
        try:
            if await driver.run(self._core.is_vacant()):
                return True
        except DlogError as error:
            if timeout == 0 or error.retry is not Retry.NOW:
                raise
        try:
            async with asyncio.timeout(timeout) as scope:
                await self._until_vacant()
        except TimeoutError as error:
            if isinstance(error, DlogError) or not scope.expired():
                raise
            return False
        return True

    async def _until_vacant(self) -> None:
        driver = Driver(self._stores.meta, self._stores.ledgers)
        self._waits_for_vacancy += 1
        try:
            await driver.run(self._core.until_vacant())
        finally:
            self._waits_for_vacancy -= 1

    async def take_over(self, takeover: Takeover | None = None) -> Writer:
        """Become the writer. `takeover` says what to do about a present one, as of `open_writer`;
        "wait" waits for as long as it takes, also for stores that are away. When it fails it goes
        on standing by, as after `Fenced`, when another process was faster, and may be asked again.
        Of the reader, the end is now where the writer begins."""
        self._check()
        options = self._options
        if takeover is not None:
            options = dataclasses.replace(options, takeover=takeover)
        if self._writer is not None or self._taking:
            raise ConfigError("this standby took over already: open another one", log=self._name)
        self._taking = True
        try:
            return await self._calls.run(self._take_over(options))
        finally:
            self._taking, self._failed = False, None
            if self._writer is None and not self._closed:
                self._ear.heirs.clear()
                self._keep_ready()

    async def _take_over(self, options: WriterOptions) -> Writer:
        patient = options.takeover == "wait"
        if patient:
            options = dataclasses.replace(options, takeover="if_dead")
        failures = 0
        while True:
            if patient:
                await self._until_vacant()
            try:
                engine = await self._open_engine(options)
                break
            except DlogError as error:
                told = _of_standby(error)
                if not patient or told.retry is not Retry.NOW:
                    raise told from error
                if not isinstance(error, (Conflict, Fenced)):
                    failures += 1
                    sentence = f"the takeover failed, and is tried again: {error}"
                    self._failed = Wait(ReasonCode.LEDGER_STORE, sentence, told_of(error))
                    _log.warning("log %s: the takeover is tried again: %s", self._name, error)
            self._keep_ready()
            if failures:
                chance = self._stores.chance
                await asyncio.sleep(backoff_s(failures, chance, base_s=0.05, limit_s=TRY_AGAIN_S))
        self._core.own_token = engine.mark.token
        self._writer = writer = Writer(engine, Looks(self._stores, self._name))
        self._keep_writer(writer)
        self.reader.stop_at(engine.core.current.base_seq)
        return writer

    async def _open_engine(self, options: WriterOptions) -> Engine:
        stores = self._stores
        await self._stop_keeping(patience_s=0)
        mark = WriterMark(
            stores.chance.token(), options.owner or default_owner(), stores.clock.wall_us()
        )
        self._engine = engine = Engine(stores, self._name, options, mark)
        self._core.taking_over = True
        try:
            await engine.open(None, self)
        finally:
            self._engine = None
            self._core.taking_over = False
        return engine

    # what an engine asks of whoever stood by

    @property
    def ledger_id(self) -> int | None:
        return self._core.ready.ledger_id

    def brings(self) -> StoodBy:
        return dataclasses.replace(self._core.brings(), checked=self._checked)

    def give_to(self, engine: AppenderListener) -> Appender:
        ledger_id = self._core.ready.ledger_id
        assert ledger_id is not None
        self._ear.heirs[ledger_id] = engine
        appender = self._driver.appenders.pop(ledger_id)
        if self._core.failed is not None:
            engine.on_failed(ledger_id, self._core.failed)
        return appender

    # --- keeping ready

    def _keep_ready(self) -> None:
        self._core.stopped = False
        if self._keeping is None or self._keeping.done():
            self._keeping = self._loop.create_task(self._driver.run(self._core.stand_by()))
            self._keeping.add_done_callback(_seen)

    async def _stop_keeping(self, *, patience_s: float) -> None:
        """A wait is cut short. A ledger that is being made is waited for, or left to be made: to
        give it up half-way would leave an orphan."""
        self._core.stopped = True
        task = self._keeping
        if task is None:
            return
        if self._driver.waits:
            task.cancel()
        if self._driver.waits or patience_s > 0:
            await asyncio.wait([task], timeout=patience_s or None)

    # --- the end

    async def close(self) -> None:
        """Delete the ledger that was kept ready, and end calls that wait. A writer that took over
        stays open, unless the client is ours alone. Idempotent; cancelling abandons the wait
        only."""
        self._closed = True
        if os.getpid() != self._pid or (self._ending is not None and self._ending.done()):
            return
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down())
        await asyncio.shield(self._ending)

    async def _shut_down(self) -> None:
        try:
            await self._calls.cut_short()
            await self.reader.close()
            await self._stop_keeping(patience_s=CLOSE_PATIENCE_S)
            if self._keeping is not None and not self._keeping.done():
                self._keeping.cancel()
                await asyncio.wait([self._keeping])
            try:
                await self._driver.run(self._core.leave())
            except DlogError:
                pass  # an orphan, which says what it is
            self._driver.let_all_go()
        finally:
            if self._client is not None:
                await self._client.close()

    def abandon(self) -> None:
        """Stop without waiting: for a standby that nobody holds any more."""
        self.reader._closed = True
        self.reader._feed.abandon()
        self._core.stopped = True
        if self._keeping is not None:
            self._keeping.cancel()
        self._driver.let_all_go()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"this standby of log {self._name!r} was made before a fork; open one here",
                log=self._name,
            )
        if self._closed:
            raise ReaderClosed(f"this standby of log {self._name!r} is closed", log=self._name)
        if (end := self._end()) is not None:
            raise end.again(handle=Handle.DEAD)

    def _end(self) -> DlogError | None:
        """What ended it for good. A defect is raised as it is."""
        keeping = self._keeping
        if keeping is None or not keeping.done() or keeping.cancelled():
            return None
        error = keeping.exception()
        if error is None or isinstance(error, DlogError):
            return error
        raise error

    async def __aenter__(self) -> Standby:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid or self._loop.is_closed():
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self.abandon)
        warnings.warn(
            f"a standby of log {self._name!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ready" if self.ready else "not ready"
        return f"<Standby of {self._name!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a standby cannot be pickled: open one where it is needed")


def _of_standby(error: DlogError) -> DlogError:
    """What the writer that did not come to be says of itself, as its standby says it: which goes
    on, and may be asked again."""
    if isinstance(error, (ReaderClosed, WriterClosed, ForkedHandle, Broken)):
        return error.again()
    twin = error.again(handle=Handle.USABLE)
    if twin.retry is Retry.AFTER_REOPEN:
        twin.retry = Retry.NOW
    return twin


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # told at the next call


class _Ear:
    """Hears of the ready ledger: for the standby, then for the writer that it was given to."""

    def __init__(self, core: StandbyCore) -> None:
        self.heirs: dict[int, AppenderListener] = {}  # one at most
        self._core = core

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        if (heir := self.heirs.get(ledger_id)) is not None:
            heir.on_confirmed(ledger_id, last_entry)

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        if (heir := self.heirs.get(ledger_id)) is not None:
            heir.on_published(ledger_id, last_entry)

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if (heir := self.heirs.get(ledger_id)) is not None:
            heir.on_failed(ledger_id, error)
        elif ledger_id == self._core.ready.ledger_id:
            self._core.on_failed(error)


class _StandbyDriver(Driver):
    """Knows when its procedure only waits, and may be cut short at no loss."""

    def __init__(self, stores: Stores, ear: _Ear) -> None:
        super().__init__(stores.meta, stores.ledgers, ear)
        self.waits = False

    async def perform(self, effect: Effect) -> Any:
        self.waits = isinstance(effect, (WaitNode, Pause))
        try:
            return await super().perform(effect)
        finally:
            self.waits = False


def _tail(view: SegmentView) -> Procedure[Tail]:
    yield from view.refresh()
    return (yield from find_tail(view))

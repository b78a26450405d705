"""The async worker: what `await client.open_worker(...)` gives.

Three parts. The *heart* (`heart`) renews leases and decides, on a thread of its own with a
connection of its own. The *crew* (`crew`) is the shards at work, on the loop of the user. This is
the handle that owns both.

It is closed in an order: nothing more is fetched; what is being processed comes to its end; each
program is told; checkpoints are written; leases are released; and only then do the renewals end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from dlog.drive import Closeable, Stores
from dlog.errors import ConfigError, DlogError, ForkedHandle
from dlog.groups.crew import Crew, ShardAtWork, watch_over
from dlog.groups.dead_letters import DeadLetters, check_letters_place
from dlog.groups.heart import Aside, Heart
from dlog.groups.homes import SameHome, ThreadHome
from dlog.groups.hub import Hub
from dlog.groups.lease_driver import Logs
from dlog.groups.meter import GroupMeter
from dlog.groups.options import WorkerOptions
from dlog.groups.parents import Parents
from dlog.groups.processing import Threads, program_maker
from dlog.groups.view import WorkerId
from dlog.limits import SEAL_TIMEOUT_S
from dlog.options import ReaderOptions
from dlog.reader.reader import Reader
from dlog.reason import Reason
from dlog.writer.owner import default_owner

logger = logging.getLogger("dlog.groups")

GRACE_S = 1.0  # for what was cut short


class Worker:
    """One member of a group: consumes its share of a stream's shards, until it is closed."""

    uses_others = True  # a client closes it before the writers of its dead letters

    def __init__(
        self,
        stores: Stores,
        logs: Logs,
        group: str,
        stream: str,
        processor: Any,
        options: WorkerOptions,
        open_aside: Callable[[], Awaitable[Aside]],
        add_reader: Callable[[Reader, ReaderOptions], None] = lambda reader, options: None,
    ) -> None:
        """`add_reader` hears of each reader of a shard, and what it was opened with."""
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closing: asyncio.Task[None] | None = None
        self._client: Closeable | None = None
        self._options = options
        self._closed = True  # until it begins
        self._threads = Threads(options.threads)
        make_program = program_maker(processor, self._threads.run)
        self._crew = Crew(stores.clock)
        self._stores = stores
        name = options.name or f"{default_owner()}-{stores.chance.token()[:4]}"
        self._home = ThreadHome() if options.heart == "thread" else SameHome()
        self._heart = Heart(
            group, stream, name, options, open_aside, self._home, self._crew.on_orders
        )
        letters = None
        if options.dead_letters is not None:
            check_letters_place(options.dead_letters, stream)
            letters = DeadLetters(logs, options.dead_letters, group, stream, stores.chance)
        self._hub = self._crew.hub = Hub(
            self._heart,
            stores,
            options,
            make_program,
            letters,
            GroupMeter(stores.metrics, group),
            Parents(stores, logs, group, stream),
            add_reader,
        )

    async def begin(self) -> None:
        """Once this returns, the group is there, and we are on our way to be a member."""
        self._home.start(_beat(self._heart, self._crew, self._hub, self._stores))
        self._closed = False
        try:
            await asyncio.wrap_future(self._heart.begun)
        except BaseException:
            self._closed = True
            self._heart.abandon()
            await self._home.join()
            raise

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    # --- what it is

    @property
    def group(self) -> str:
        return self._heart.group

    @property
    def stream(self) -> str:
        return self._heart.stream

    @property
    def name(self) -> str:
        return self._heart.name

    @property
    def id(self) -> WorkerId | None:
        """Name and incarnation; None before the first registration."""
        return self._heart.facts().id

    @property
    def options(self) -> WorkerOptions:
        return self._options

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def shards(self) -> tuple[ShardAtWork, ...]:
        """Those that it has, and what it is at in each."""
        return self._crew.at_work()

    @property
    def failed(self) -> dict[str, str]:
        """Shards that stopped here because of an error (`on_error="stop"`), and why. They stay
        with this worker until it is closed, or until they are moved to another one."""
        halted = self._heart.facts().failed
        return {log: self._hub.reports.get(log, "") for log in halted}

    async def resume(self, log: str | None = None) -> tuple[str, ...]:
        """Give shards in `failed` back to the group (this one, or all of them), so that whichever
        worker gets each tries it again, from its checkpoint on: which ones. `ConfigError` if the
        one that is named did not fail here."""
        self._check()
        resumed = self._heart.resume(log)
        if log is not None and not resumed:
            raise ConfigError(f"shard {log!r} did not stop here because of an error")
        return resumed

    def why(self) -> Reason | None:
        """What it waits for, or what does not get on; None while all is well. Once the worker has
        ended, why it did."""
        return self._crew.why(self._options.stall_after_ms / 1000)

    async def wait(self, timeout: float | None = None) -> str | None:
        """Until it ends by itself (a bounded job is done, its group or stream was removed, another
        process goes by its name) or is closed: why. None when the time is over before. Of a bounded
        job whose shard failed, raises what it failed with."""
        self._check()
        ended = self._heart.ended
        try:
            async with asyncio.timeout(timeout):
                # Asked first: an end that was told on another thread takes turns to come here.
                why = ended.result() if ended.done() else await _told_here(ended)
        except TimeoutError as error:
            if isinstance(error, DlogError):
                raise
            return None
        if self._crew.failure is not None:
            raise self._crew.failure
        return why

    # --- life

    async def close(self, timeout: float | None = None) -> None:
        """Hand all shards back, each in order, and leave the group. A processor that is at work is
        waited for, for `timeout` seconds: then it is cut short, and what does not even come to its
        end then is left as if this process had died. So is what cannot be handed back because the
        metadata store was away for longer than the group's `timeout_ms`, and for 30 s of this call.
        Idempotent; cancelling abandons the wait only."""
        self._closed = True
        if os.getpid() != self._pid or (self._closing is not None and self._closing.done()):
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._shut_down())
        if timeout is not None:
            done, _ = await asyncio.wait({self._closing}, timeout=timeout)
            if not done:
                self._crew.cut_short()
                done, _ = await asyncio.wait({self._closing}, timeout=GRACE_S)
            if not done:
                self._heart.abandon()
        await asyncio.shield(self._closing)

    async def _shut_down(self) -> None:
        try:
            self._heart.leave()
            with contextlib.suppress(Exception):  # told by `wait`
                await self._left()
            await self._home.join()
        finally:
            tasks = [run.task for run in self._crew.runs.values()]
            self._crew.drop()
            if tasks:
                await asyncio.wait(tasks)
            self._threads.close()
            self._hub.meter.forget()
            if self._client is not None:
                await self._client.close()

    async def _left(self) -> None:
        """Its farewell is said, or cannot be: others have long taken us for dead by then."""
        ended = asyncio.ensure_future(asyncio.wrap_future(self._heart.ended))
        while not (await asyncio.wait({ended}, timeout=SEAL_TIMEOUT_S))[0]:
            quiet_s = self._heart.facts().quiet_s
            if quiet_s is not None and quiet_s > self._options.timeout_ms / 1000:
                logger.warning(
                    "%s: closed without farewell, after %.0f s of silence", self, quiet_s
                )
                self._heart.abandon()
        await ended

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this worker was made before a fork; open one in this process")

    def drop(self) -> None:
        """Without farewell, as if we had died: for a worker that nobody holds any more."""
        self._closed = True
        self._crew.drop()
        self._heart.abandon()
        self._threads.close()

    async def __aenter__(self) -> Worker:
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
        self.drop()
        warnings.warn(self.dropped, ResourceWarning, stacklevel=2)

    @property
    def dropped(self) -> str:
        return f"a worker of group {self.group!r} was dropped without close()"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._crew.runs)} shards"
        return f"<Worker {self.name!r} of group {self.group!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a worker cannot be pickled: open one where it is needed")


async def _told_here(ended: Future[str]) -> str:
    """On this loop. Cancelling abandons the wait only."""
    return await asyncio.shield(asyncio.wrap_future(ended))


async def _beat(heart: Heart, crew: Crew, hub: Hub, stores: Stores) -> None:
    """On the heart's loop. Holds no handle."""
    watching = asyncio.get_running_loop().create_task(
        watch_over(crew, hub, stores.clock, logger.warning)
    )
    try:
        await heart.beat()
    except Exception as error:
        if heart.charter is not None:
            # Whoever waits for the worker is told, but nobody has to.
            logger.exception("group %r: worker %r stops: %s", heart.group, heart.name, error)
        else:
            logger.debug("group %r: worker %r did not begin: %s", heart.group, heart.name, error)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

"""The holds of a group: in the log of each shard one, at the checkpoint that is kept, so that no
policy truncates what the group has not done. It moves behind a checkpoint, never ahead of it, and
not more often than checkpoints are flushed. The group holds the stream as well, so that shards
which it has not begun, and those that are still to come, are kept whole (`dlog.meta.stream_holds`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from dlog.admin.admin import Admin
from dlog.errors import ConfigError, DlogError, NotFound, Retry, Truncated
from dlog.groups.options import WorkerOptions
from dlog.groups.places import GroupPlaces
from dlog.ids import Position
from dlog.reader.places import Start

logger = logging.getLogger("dlog.groups")

LAST_TRIES = 3  # of the last move of a shard that goes elsewhere; who has it next moves it on
RETRY_S, RETRY_S_MAX = 0.2, 10.0
AT_ONCE = 4
NOTE = "what this group has not consumed yet"
DONE = "this group consumed all of the shard"


def hold_name(group: str, stream: str) -> str:
    return f"group {group} of {stream}"


CheckLog = Callable[[str], Awaitable[None]]


async def _any_log(log: str) -> None:
    pass


@dataclass(slots=True)
class _Kept:
    wanted: Position | None = None
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class GroupHolds:
    """Of one worker. Belongs to the loop of its heart."""

    def __init__(
        self,
        admin: Admin,
        places: GroupPlaces,
        who: str,
        options: WorkerOptions,
        is_job: bool = False,
        check_log: CheckLog = _any_log,
    ) -> None:
        """`check_log` raises `NotFound` for a log that is not of our stream: one that was made
        again under the name of a shard's is not touched."""
        self._admin = admin
        self._is_job = is_job
        self._check_log = check_log
        self._name = hold_name(places.group, places.stream)
        self._who = who
        self._every_s = options.flush_ms / 1000
        self._kept: dict[str, _Kept] = {}
        self._drops: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._few = asyncio.Semaphore(AT_ONCE)  # renewals go the same way, and are not to wait

    async def begin(self, log: str, at: Start, behind: Iterable[str] = ()) -> None:
        """Held from there on, once this returns; what comes before, and is done, is not. A hold
        that stands further ahead was left there by somebody who put the group back behind it."""
        kept = self._kept.setdefault(log, _Kept())
        kept.hurry.clear()
        kept.wanted = None  # of an earlier time that we had it; it may have been put back since
        async with kept.turn:
            try:
                await self._put(log, at)
            except ConfigError:
                await self._check_log(log)
                with contextlib.suppress(NotFound):
                    await self._admin.drop_hold(log, self._name)
                await self._put(log, at)
        for parent in behind:
            await self.finish(parent)

    async def held_from(self, log: str) -> int | None:
        """What the group held before it began the shard: a place in it, or all of it by the hold on
        the stream. None where it held nothing."""
        held = await self._admin.holds(log)
        return next((each.seq for each in held if each.name == self._name), None)

    async def _put(self, log: str, at: Start) -> None:
        async with self._few:
            await self._admin.hold(log, self._name, at, note=NOTE, who=self._who)

    def move(self, log: str, at: Position) -> None:
        kept = self._kept.setdefault(log, _Kept())
        kept.wanted = at
        if kept.task is None:
            kept.task = asyncio.get_running_loop().create_task(self._keep(log, kept))

    def let_go(self, log: str) -> None:
        """The shard goes elsewhere: what is still to be moved is moved now."""
        kept = self._kept.get(log)
        if kept is not None:
            kept.hurry.set()

    def forget(self, log: str) -> None:
        """The shard is somebody else's, who may have been put back behind what we know."""
        kept = self._kept.get(log)
        if kept is not None:
            kept.wanted = None
            kept.hurry.set()

    def finish_soon(self, log: str) -> None:
        """All of the shard is done. A hold that nobody moves would keep its log for ever: so it is
        tried until it is moved, and whoever ends waits for that, too, for a few tries."""
        task = asyncio.get_running_loop().create_task(self._finish(log))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    async def _finish(self, log: str) -> None:
        kept = self._kept.get(log)
        if kept is not None:
            kept.wanted = None
            kept.hurry.set()
            if kept.task is not None:
                await asyncio.wait({kept.task})
        failed = 0
        while True:
            try:
                await self.finish(log)
                return
            except DlogError as error:
                failed += 1
                if error.retry is Retry.NEVER or (self._closing.is_set() and failed >= LAST_TRIES):
                    logger.warning("log %r: hold %r stays: %s", log, self._name, error)
                    return
                logger.info("log %r: hold %r is moved later: %s", log, self._name, error)
            if self._closing.is_set():
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(RETRY_S_MAX, RETRY_S * 2 ** min(failed, 10))):
                    await self._closing.wait()

    async def finish(self, log: str) -> None:
        """A shard is done, by us or by somebody who could not see to it any more. Its hold goes to
        the end of the log: without one, the group's hold on the stream would keep all of the log. A
        job holds no stream, and drops it."""
        with contextlib.suppress(NotFound):
            async with self._few:
                await self._check_log(log)
                if self._is_job:
                    await self._admin.drop_hold(log, self._name)
                else:
                    await self._admin.hold(log, self._name, "latest", note=DONE, who=self._who)

    async def close(self) -> None:
        self._closing.set()
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        tasks += self._drops
        for kept in self._kept.values():
            kept.hurry.set()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, log: str, kept: _Kept) -> None:
        failed = 0
        while (at := kept.wanted) is not None:
            kept.wanted = None
            try:
                async with kept.turn:  # behind its beginning
                    await self._put(log, at)
                failed = 0
            except (ConfigError, Truncated, NotFound) as error:
                logger.debug("log %r: hold %r is not moved: %s", log, self._name, error)
            except DlogError as error:
                failed += 1
                kept.wanted = kept.wanted or at
                logger.info("log %r: hold %r is moved later: %s", log, self._name, error)
            if kept.hurry.is_set():
                if failed >= LAST_TRIES:
                    break
                await asyncio.sleep(RETRY_S if failed else 0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._every_s, RETRY_S if failed else 0.0)):
                    await kept.hurry.wait()
        del self._kept[log]

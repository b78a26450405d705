"""The async admin: `client.admin`. Each call is complete in itself and may be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dlog.admin.describe import describe, segments_of, summarize
from dlog.admin.remove import remove
from dlog.admin.summary import LogDescription, LogSummary, SegmentSummary
from dlog.drive import Stores
from dlog.effects import Procedure
from dlog.errors import AlreadyExists, NotFound
from dlog.ids import MessageId, check_log_name
from dlog.meta.cas import read_log
from dlog.meta.layout import unescape
from dlog.meta.log_meta import LogMeta, LogState, WriterMark
from dlog.options import LogOptions, options_from
from dlog.reader.feed import ReaderDriver
from dlog.reader.reader import find_tail_id
from dlog.reader.segments import SegmentView
from dlog.writer.engine import default_owner

Found = TypeVar("Found")
GetStores = Callable[[bool], Awaitable[Stores]]


class Admin:
    """Looks at logs, makes and removes them."""

    def __init__(self, stores: GetStores) -> None:
        self._get_stores = stores

    async def create(self, name: str, **log_options: Any) -> LogDescription:
        """A new, empty log. `AlreadyExists` if there is one."""
        options = options_from(LogOptions, log_options)
        check_log_name(name)
        stores = await self._get_stores(True)
        path = stores.layout.log(name)
        fresh = LogMeta(uid=stores.chance.token(), options=options)
        try:
            await stores.meta.create(path, fresh.to_bytes())
        except AlreadyExists:
            driver = ReaderDriver(stores)
            seen = await driver.run(read_log(path))
            if seen.meta.state is not LogState.DELETED:
                raise AlreadyExists(f"there is a log {name!r} already", log=name) from None
            reborn = seen.meta.reborn(fresh.uid, options)
            await stores.meta.put(path, reborn.to_bytes(), seen.version)
        return await self.describe(name)

    async def list(self, prefix: str = "") -> list[LogSummary]:
        """The logs whose names begin with `prefix`, by name."""
        try:
            stores = await self._get_stores(False)
            nodes = await stores.meta.children(stores.layout.logs)
        except NotFound:
            return []
        names = sorted(name for name in map(unescape, nodes) if name.startswith(prefix))
        found = []
        for name in names:
            try:
                found.append(await self._look(name, summarize))
            except NotFound:
                continue  # removed, or a tombstone
        return found

    async def describe(self, name: str) -> LogDescription:
        return await self._look(name, describe)

    async def segments(self, name: str) -> tuple[SegmentSummary, ...]:
        def look(view: SegmentView) -> Procedure[tuple[SegmentSummary, ...]]:
            yield from view.refresh()
            return (yield from segments_of(view))

        return await self._look(name, look)

    async def tail(self, name: str) -> MessageId | None:
        """The last message acknowledged by anyone before this call. Linearizable."""
        return await find_tail_id(await self._get_stores(False), check_log_name(name))

    async def remove(self, name: str) -> None:
        """Delete the log with everything in it, under its readers and its writer. Run again after a
        failure, it goes on."""
        stores = await self._get_stores(False)
        now_us = stores.clock.wall_us()
        remover = WriterMark(stores.chance.token(), default_owner(), now_us)
        driver = ReaderDriver(stores)
        await driver.run(
            remove(check_log_name(name), stores.layout, remover, now_us, stores.chance)
        )

    async def _look(self, name: str, look: Callable[[SegmentView], Procedure[Found]]) -> Found:
        check_log_name(name)
        stores = await self._get_stores(False)
        driver = ReaderDriver(stores)
        try:
            return await driver.run(look(SegmentView(name, stores.layout)))
        finally:
            await driver.close()

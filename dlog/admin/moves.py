"""The part of the async admin that moves the metadata of logs between metadata stores. What it does
and why that is safe stands in `dlog.admin.moving`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlog import uri
from dlog.admin.moving import Arriving, Leaving, arrive, check_arrival, leave, write_out
from dlog.admin.summary import LogMove
from dlog.drive import Driver, Stores
from dlog.ids import check_log_name
from dlog.meta.cas import read_log
from dlog.meta.document import LogDocument
from dlog.options import WriterOptions
from dlog.writer.engine import Engine
from dlog.writer.owner import default_owner, new_mark
from dlog.writer.rotation import Ending

GetStores = Callable[[bool], Awaitable[Stores]]


class MetaMoves:
    """`where` names the place that the stores are at."""

    def __init__(self, stores: GetStores, where: str) -> None:
        self._get_stores = stores
        self._where = where

    async def export_meta(self, name: str) -> bytes:
        """The metadata of the log as one JSON document: node, pages, holds. Changes nothing."""
        check_log_name(name)
        stores = await self._get_stores(False)
        driver = Driver(stores.meta, stores.ledgers)
        now_us = stores.clock.wall_us()
        written = await driver.run(write_out(name, stores.layout, self._where, now_us))
        return written.to_bytes()

    async def move_meta(self, name: str, to: str, *, retarget: bool = False) -> bytes:
        """Let the log leave for the place that the URL `to` names, whose metadata store has the
        same ledgers; its metadata as a document, for `import_meta` there. Its writer is fenced, and
        whoever opens it here from now on is told where it went (`Moved`). Run again after a
        failure, it goes on. A log that left for another place already is sent elsewhere with
        `retarget`, which says that nobody brought it there, and that nobody will."""
        stores = await self._get_stores(False)
        owner = default_owner()
        leaving = Leaving(
            name,
            stores.layout.log(check_log_name(name)),
            self._where,
            uri.parse(to).where,
            owner,
            stores.clock.wall_us,
            stores.chance,
        )
        driver = Driver(stores.meta, stores.ledgers)
        await self.export_meta(name)  # a list that cannot be written out does not leave
        while not await driver.run(leave(leaving, retarget=retarget)):
            await self._seal(stores, name, owner)
        return await self.export_meta(name)

    async def _seal(self, stores: Stores, name: str, owner: str) -> None:
        """Take the log over, and leave it to whoever comes next."""
        seen = await Driver(stores.meta, stores.ledgers).run(read_log(stores.layout.log(name)))
        engine = Engine(stores, name, WriterOptions(), new_mark(stores, owner))
        engine.copies = seen.meta.copies
        await engine.open(None)
        failure = await engine.close(Ending.HAND_OVER)
        if failure is not None:
            raise failure.again()

    async def import_meta(self, document: bytes, *, dry_run: bool = False) -> LogMove:
        """Bring a log here that left for this place (see `move_meta`). All its ledgers have to be
        here, and nothing that it would go behind. `dry_run` only looks whether it may come."""
        told = LogDocument.from_bytes(document, where="the document")
        stores = await self._get_stores(True)
        arriving = Arriving(told, stores.layout, self._where, stores.chance)
        driver = Driver(stores.meta, stores.ledgers)
        if dry_run:
            await driver.run(check_arrival(arriving))
            return arriving.summary
        return await driver.run(arrive(arriving))

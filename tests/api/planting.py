"""Damage, planted in a log behind its back: in its list, its pages and its ledgers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dlog import aio
from dlog.drive import Stores
from dlog.errors import Conflict
from dlog.ledger.store import Appender, LedgerSpec
from dlog.meta.listed import PageRef, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_from_bytes, page_to_bytes
from tests.api.adapter import Api


@asynccontextmanager
async def stores_of(api: Api) -> AsyncIterator[Stores]:
    async with aio.connect(api.url) as client:
        yield await client._stores(False)


async def filled(api: Api, segments: int, *, each: int = 3, log: str = "log") -> list[bytes]:
    """A closed log of so many segments."""
    values = []
    async with api.open_writer(log) as writer:
        for number in range(segments):
            if number > 0:
                await writer.rotate()
            for at in range(each):
                values.append(b"message %d of segment %d" % (at, number))
                await writer.append(values[-1])
    return values


async def meta_of(stores: Stores, log: str = "log") -> LogMeta:
    path = stores.layout.log(log)
    return LogMeta.from_bytes((await stores.meta.get(path)).value, where=path)


async def change_meta(
    stores: Stores, change: Callable[[LogMeta], LogMeta], log: str = "log"
) -> None:
    path = stores.layout.log(log)
    node = await stores.meta.get(path)
    meta = change(LogMeta.from_bytes(node.value, where=path))
    await stores.meta.put(path, meta.to_bytes(), node.version)


def with_segment(number: int, **sealed: Any) -> Callable[[LogMeta], LogMeta]:
    """The list says something else of how this segment ends."""

    def changed(segment: Segment) -> Segment:
        if segment.number != number:
            return segment
        assert segment.sealed is not None
        return dataclasses.replace(segment, sealed=dataclasses.replace(segment.sealed, **sealed))

    return lambda meta: dataclasses.replace(meta, segments=tuple(map(changed, meta.segments)))


async def first_page(stores: Stores, log: str = "log") -> tuple[str, PageRef]:
    ref = (await meta_of(stores, log)).pages[0]
    return stores.layout.page(log, ref.number, ref.level), ref


async def remove_node(stores: Stores, path: str) -> bytes:
    while True:
        node = await stores.meta.get(path)
        with contextlib.suppress(Conflict):  # whoever it is of wrote it in between
            await stores.meta.delete(path, node.version)
            return node.value


async def put_node(stores: Stores, path: str, value: bytes) -> bytes:
    node = await stores.meta.get(path)
    await stores.meta.put(path, value, node.version)
    return node.value


def stale(raw: bytes) -> bytes:
    """The same page without its last segment."""
    segments = page_from_bytes(raw, where="a page")
    return page_to_bytes(segments[:-1])


async def new_ledger(stores: Stores, **custom: bytes) -> int:
    """One that nobody lists, with a birth of no meaning."""
    spec = LedgerSpec(custom={"application": b"dlog", **custom})
    appender: Appender = await stores.ledgers.create(spec)
    await appender.birth([b"born"])
    appender.abandon()
    return appender.ledger_id


async def ledger_ids(stores: Stores) -> list[int]:
    return [ledger_id async for ledger_id in stores.ledgers.scan_ids()]


async def checked(api: Api, *logs: str, **options: Any) -> Any:
    async with api.connect() as client:
        return await client.admin.fsck(*logs, **options)


def ours(report: Any) -> list[Any]:
    """Without the logs of other roots on the same cluster."""
    return [
        finding
        for finding in report.findings
        if finding.kind != "unknown_ledger" or "to log nobody" in finding.told
    ]


async def repaired(api: Api, report: Any) -> Any:
    async with api.connect() as client:
        return await client.admin.repair(report)


def kinds(report: Any) -> list[str]:
    """Of all that is wrong."""
    return sorted(finding.kind.value for finding in report.damage)


def only(report: Any, kind: str) -> Any:
    """The one finding of that kind."""
    (found,) = [finding for finding in report.findings if finding.kind == kind]
    return found

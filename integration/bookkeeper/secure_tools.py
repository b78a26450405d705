"""What tests of TLS and of names share: an authority, TLS seen from outside, ledgers made and read
through stores that are told different things."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.conformance.ledger_tools import Heard, read_all
from dlog.testing.faulty_proxy import FaultyProxy
from dlog.wire.bookie_v3 import pack_start_tls

SPEC = LedgerSpec(3, 3, 2)
_TLS_RECORD_TYPES = range(20, 24)
_RECORD = struct.Struct(">BHH")

MakeLedgers = Callable[..., BookKeeperLedgerStore]


@contextlib.asynccontextmanager
async def maker(cluster: Cluster) -> AsyncIterator[MakeLedgers]:
    """Makes stores with the options that are given, and ends them."""
    async with contextlib.AsyncExitStack() as ending:

        def make(**options: Any) -> BookKeeperLedgerStore:
            meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
            ending.push_async_callback(meta.close)
            store = BookKeeperLedgerStore(meta, ledgers_root=cluster.ledgers_root, **options)
            ending.push_async_callback(store.close)
            return store

        yield make


@contextlib.asynccontextmanager
async def behind_proxies(
    bookies: list[Bookie], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[dict[str, FaultyProxy], Callable[[BookKeeperLedgerStore], None]]]:
    """A proxy before each bookie, and what leads a store's connections through them."""
    async with contextlib.AsyncExitStack() as ending:
        proxies = {}
        for bookie in bookies:
            proxy = await ending.enter_async_context(FaultyProxy(bookie.port))
            proxy.to_server.heard, proxy.to_client.heard = [], []
            proxies[bookie.bookie_id] = proxy

        def lead(store: BookKeeperLedgerStore) -> None:
            resolve = store._registry.resolve

            async def resolved(bookie_id: str) -> Any:
                return dataclasses.replace(await resolve(bookie_id), port=proxies[bookie_id].port)

            monkeypatch.setattr(store._registry, "resolve", resolved)

        yield proxies, lead


def plain_bytes(stream: bytes) -> bytes:
    """What of a stream is outside of TLS's records."""
    at, plain = 0, bytearray()
    while at < len(stream):
        if at + _RECORD.size <= len(stream):
            kind, version, size = _RECORD.unpack_from(stream, at)
            if kind in _TLS_RECORD_TYPES and 0x0301 <= version <= 0x0304 and size <= 1 << 15:
                at += _RECORD.size + size
                continue
        plain.append(stream[at])
        at += 1
    return bytes(plain)


START_TLS = pack_start_tls(1)


async def a_ledger(
    store: BookKeeperLedgerStore, entries: list[bytes], *, spec: LedgerSpec = SPEC
) -> int:
    """Written and closed: data links, and control links for what is published."""
    appender = await store.create(spec)
    heard = Heard()
    appender.listen(heard)
    await appender.birth([entries[0]])
    for entry in entries[1:]:
        appender.submit([entry])
    last = len(entries) - 1
    await heard.until_confirmed(last)
    appender.publish()
    await heard.until(lambda: heard.published == last)
    await appender.close()
    return appender.ledger_id


async def read_and_recover(store: BookKeeperLedgerStore, writer: BookKeeperLedgerStore) -> None:
    """A ledger that `writer` leaves open is followed and ended by `store`: every kind of link."""
    appender = await writer.create(SPEC)
    heard = Heard()
    appender.listen(heard)
    await appender.birth([b"0"])
    appender.submit([b"1"])
    await heard.until_confirmed(1)
    appender.publish()
    await heard.until(lambda: heard.published == 1)
    reader = await store.open(appender.ledger_id)
    async with asyncio.timeout(30):
        assert await reader.wait_past(0, 10_000) == 1
    assert await read_all(reader, 1) == [b"0", b"1"]
    assert await store.recover(appender.ledger_id) == ClosedLedger(1, 2)

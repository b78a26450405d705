"""What tests do to ZooKeeper behind a store's back, with raw connections of their own: end its
session, look at a node as other clients see it, put a bookie behind a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient

from dlog.errors import DlogError
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.wire.bookie_service_info import BookieServiceInfo

START_TIMEOUT_S = 10.0


@contextmanager
def raw_client(hosts: str, **options: Any) -> Iterator[Any]:
    client = KazooClient(hosts, **options)
    client.start(timeout=START_TIMEOUT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def raw(hosts: str, act: Callable[[Any], Any]) -> Any:
    """Something done by a client that is not ours."""

    def run() -> Any:
        with raw_client(hosts) as client:
            return act(client)

    return await asyncio.to_thread(run)


async def end_session(store: ZooKeeperMetaStore) -> None:
    """As a server does with one that was silent for too long: a second connection takes the session
    over and closes it."""
    await store.session()
    link = store._home
    assert link is not None
    identity = link._client.client_id

    def run() -> None:
        with raw_client(link.hosts, client_id=identity):
            pass  # leaving it closes the session

    await asyncio.to_thread(run)


async def advertise(cluster: Cluster, bookie: Bookie, port: int) -> None:
    """Let clients look for this bookie at another port of this machine, where a proxy listens; its
    own port takes it back. A bookie has no setting for this: it advertises the port it listens on.
    But its node may be written by anybody, and it writes the node itself only when it registers
    anew, as after a restart."""
    path = f"{cluster.ledgers_root}/available/{bookie.bookie_id}"

    def act(client: Any) -> None:
        stored, _ = client.get(path)
        told = BookieServiceInfo.from_bytes(stored, where=path)
        endpoints = tuple(replace(each, port=port) for each in told.endpoints)
        client.set(path, replace(told, endpoints=endpoints).to_bytes())

    await raw(cluster.zookeeper.hosts, act)


async def failing(call: Awaitable[object], *kinds: type[DlogError]) -> DlogError:
    """The error a call ends with, in bounded time."""
    async with asyncio.timeout(20):
        try:
            answer = await call
        except kinds as error:
            return error
    raise AssertionError(f"answered {answer!r}")

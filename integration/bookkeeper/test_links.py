"""Links to real bookies: all they can be asked, and bookies frozen, killed and restarted under
them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.links import DataLink
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.limits import LAGGARD_MS_DEFAULT, LINK_UNSENT_BYTES_MAX, MIB
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.streams.health.bookies import BookieQuarantine
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import LOOPBACK, FaultyProxy
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_service_info import Endpoint
from dlog.wire.bookie_v2 import LAST_ENTRY, pack_add
from dlog.wire.bookie_v3 import pack_long_poll, pack_read, pack_read_lac, pack_write_lac
from dlog.wire.bookie_v3_replies import ReadBody, ReadLacBody
from integration.conftest import OwnCluster

KEY = master_key(b"secret")
DIGEST = EntryDigest(DigestType.CRC32C, b"secret")
READ_MS = 5_000
# Nobody makes metadata for these: they only have to be nobody else's.
_ledger_ids = itertools.count((1 << 40) + time.time_ns() % (1 << 30) * 1_000)


def frames(ledger_id: int, first: int, last: int, payload: bytes = b"x" * 100) -> bytes:
    made = []
    for entry_id in range(first, last + 1):
        ledger_bytes = (entry_id + 1) * len(payload)
        head = DIGEST.pack_head(ledger_id, entry_id, entry_id - 1, ledger_bytes, [payload])
        made += [pack_add(head, payload_bytes=len(payload), master_key=KEY), payload]
    return b"".join(made)


class Sink:
    def __init__(self) -> None:
        self.ledger_id = next(_ledger_ids)
        self.answers: list[tuple[Answer, int]] = []
        self.ends: list[Answer] = []
        self.rooms = 0
        self._news = asyncio.Event()

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        self.answers += [(answer, entry_id) for entry_id in entry_ids]
        link.settle(self.ledger_id, entries=len(entry_ids), bytes=0)
        self._news.set()

    def on_room(self, link: DataLink) -> None:
        self.rooms += 1
        self._news.set()

    def on_down(self, link: DataLink, answer: Answer) -> None:
        self.ends.append(answer)
        self._news.set()

    async def news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.answers) < count:
                await self.news()

    async def until_down(self) -> None:
        async with asyncio.timeout(30):
            while not self.ends:
                await self.news()


class World:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
        self.health = BookieQuarantine()
        self.registry = BookieRegistry(self.meta, cluster.ledgers_root, health=self.health)
        self.links = BookieLinks(self.registry, health=self.health)
        self.came: set[str] = set()
        self._news = asyncio.Event()

    def on_bookies(self, came: frozenset[str], gone: frozenset[str]) -> None:
        self.came |= came
        self._news.set()

    async def until_listed(self, bookie: Bookie, *, writable: bool) -> None:
        async with asyncio.timeout(60):
            while (bookie.bookie_id in self.registry.writable()) is not writable:
                self._news.clear()
                await self._news.wait()

    async def until_serving(self, bookie: Bookie) -> DataLink:
        """As an appender would: ask, and ask again after the back-off."""
        async with asyncio.timeout(60):
            while True:
                try:
                    link = await self.links.data(bookie.bookie_id)
                except Unavailable:
                    await self.pause()
                    continue
                reply = await link.read(next(_ledger_ids), 0, timeout_ms=READ_MS)
                if reply.answer in (Answer.NO_LEDGER, Answer.NO_ENTRY):
                    return link

    async def pause(self) -> None:
        paused = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, paused.set)
        await paused.wait()


@asynccontextmanager
async def _world(cluster: Cluster) -> AsyncIterator[World]:
    made = World(cluster)
    await made.registry.open()
    made.registry.listen(made)
    try:
        yield made
    finally:
        await made.links.close()
        await made.registry.close()
        await made.meta.close()


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[World]:
    async with _world(cluster) as made:
        yield made


@pytest.fixture
def small_cluster(own_cluster: OwnCluster) -> Cluster:
    return own_cluster(bookies=2)


@pytest.fixture
async def breakable(small_cluster: Cluster) -> AsyncIterator[World]:
    async with _world(small_cluster) as made:
        yield made


async def _attached(world: World, bookie_id: str, count: int) -> tuple[DataLink, Sink]:
    """A link, and a ledger that has `count` entries there."""
    link, sink = await world.links.data(bookie_id), Sink()
    link.attach(sink.ledger_id, sink)
    link.send_adds(sink.ledger_id, frames(sink.ledger_id, 0, count - 1), entries=count, bytes=count)
    await sink.until_answered(count)
    link.settle(sink.ledger_id, entries=0, bytes=count)
    return link, sink


async def test_all_that_a_data_link_can_be_asked(world: World) -> None:
    bookie_id = world.registry.writable()[0]
    link, sink = await _attached(world, bookie_id, 1_000)
    assert sink.answers == [(Answer.OK, entry_id) for entry_id in range(1_000)]
    reply = await link.read(sink.ledger_id, 7, timeout_ms=READ_MS)
    assert reply.entry is not None
    assert DIGEST.verify(reply.entry, ledger_id=sink.ledger_id, entry_id=7).payload == b"x" * 100
    last = await link.read(sink.ledger_id, LAST_ENTRY, timeout_ms=READ_MS)
    assert last.entry is not None
    assert DIGEST.verify_last(last.entry, ledger_id=sink.ledger_id).entry_id == 999
    missing = await link.read(sink.ledger_id, 1_000, timeout_ms=READ_MS)
    assert missing.answer is Answer.NO_ENTRY
    unknown = await link.read(next(_ledger_ids), 0, timeout_ms=READ_MS)
    assert unknown.answer is Answer.NO_LEDGER
    same = await asyncio.gather(
        *(link.read(sink.ledger_id, 7, timeout_ms=READ_MS) for _ in range(20))
    )
    assert {reply.answer for reply in same} == {Answer.OK}
    batch = await link.batch_read(
        sink.ledger_id, 990, count_max=100, frame_bytes_max=MIB, timeout_ms=READ_MS
    )
    assert len(batch.entries) == 10
    assert not link.strays  # type: ignore[attr-defined]


async def test_all_that_a_control_link_can_be_asked(world: World) -> None:
    bookie_id = world.registry.writable()[1]
    _, sink = await _attached(world, bookie_id, 3)
    ledger_id = sink.ledger_id
    control = await world.links.control(bookie_id)
    polled = asyncio.ensure_future(
        control.ask(
            partial(pack_long_poll, ledger_id=ledger_id, previous_lac=1, timeout_ms=10_000),
            timeout_ms=20_000,
        )
    )
    proof = DIGEST.pack_lac(ledger_id, 2)
    written = await control.ask(
        lambda txn_id: pack_write_lac(txn_id, ledger_id, 2, proof, master_key=KEY),
        timeout_ms=READ_MS,
    )
    assert written.answer is Answer.OK
    told = (await polled).body
    assert isinstance(told, ReadBody)
    assert (told.entry_id, told.last_confirmed) == (2, 2)
    read = await control.ask(lambda txn_id: pack_read_lac(txn_id, ledger_id), timeout_ms=READ_MS)
    assert isinstance(read.body, ReadLacBody)
    assert read.body.proof == proof


async def test_a_fence_over_either_protocol_stops_adds(world: World) -> None:
    bookie_id = world.registry.writable()[2]
    for fences_by in ("recovery", "control"):
        link, sink = await _attached(world, bookie_id, 3)
        if fences_by == "recovery":
            recovery = await world.links.recovery(bookie_id)
            assert recovery is not link
            batch = await recovery.batch_read(
                sink.ledger_id,
                0,
                count_max=9,
                frame_bytes_max=MIB,
                timeout_ms=READ_MS,
                fence_key=KEY,
            )
            assert len(batch.entries) == 3
        else:
            control = await world.links.control(bookie_id)
            pack = partial(pack_read, ledger_id=sink.ledger_id, entry_id=LAST_ENTRY, fence_key=KEY)
            assert (await control.ask(pack, timeout_ms=READ_MS)).answer is Answer.OK
        link.send_adds(sink.ledger_id, frames(sink.ledger_id, 3, 3), entries=1, bytes=1)
        await sink.until_answered(4)
        assert sink.answers[-1] == (Answer.FENCED, 3)


async def test_a_frozen_bookie_is_silent_then_late(breakable: World) -> None:
    bookie = breakable.cluster.bookies[0]
    link, sink = await _attached(breakable, bookie.bookie_id, 2)
    bookie.freeze()
    try:
        began_s = time.monotonic()
        reply = await link.read(sink.ledger_id, 0, timeout_ms=500)
        waited_s = time.monotonic() - began_s
        assert reply.answer is Answer.TIMED_OUT
        assert waited_s >= 0.5
        print(f"a deadline of 500 ms was kept after {waited_s * 1000:.0f} ms")
        link.send_adds(sink.ledger_id, frames(sink.ledger_id, 2, 2), entries=1, bytes=1)
        async with asyncio.timeout(30):
            while bookie.bookie_id not in breakable.registry.avoided():
                await breakable.pause()
        silent_s = time.monotonic() - began_s - waited_s
        assert silent_s >= LAGGARD_MS_DEFAULT / 1000
        print(f"quarantined after {silent_s * 1000:.0f} ms of silence")
        again = asyncio.ensure_future(link.read(sink.ledger_id, 0, timeout_ms=30_000))
        control = await breakable.links.control(bookie.bookie_id)  # the kernel still accepts
        asked = await control.ask(
            lambda txn_id: pack_read_lac(txn_id, sink.ledger_id), timeout_ms=200
        )
        assert asked.answer is Answer.TIMED_OUT
    finally:
        bookie.thaw()
    assert (await again).answer is Answer.OK
    await sink.until_answered(3)
    assert sink.answers[-1] == (Answer.OK, 2)
    assert link.is_up
    assert link.strays == {"late read": 1}  # type: ignore[attr-defined]


async def test_a_killed_bookie_ends_its_links_and_comes_back_as_others(breakable: World) -> None:
    bookie = breakable.cluster.bookies[1]
    link, sink = await _attached(breakable, bookie.bookie_id, 3)
    control = await breakable.links.control(bookie.bookie_id)
    poll = partial(pack_long_poll, ledger_id=sink.ledger_id, previous_lac=9, timeout_ms=60_000)
    polled = asyncio.ensure_future(control.ask(poll, timeout_ms=60_000))
    await asyncio.sleep(0)
    bookie.kill()
    await sink.until_down()
    assert sink.ends == [Answer.DISCONNECTED]
    assert (await polled).answer is Answer.DISCONNECTED
    assert breakable.links.data_now(bookie.bookie_id) is None
    with pytest.raises(Unavailable) as refused:
        await breakable.links.data(bookie.bookie_id)
    assert refused.value.missing == (bookie.bookie_id,)
    with pytest.raises(Unavailable, match="left alone"):
        await breakable.links.data(bookie.bookie_id)
    bookie.start()
    began_s = time.monotonic()
    again = await breakable.until_serving(bookie)
    print(f"a restarted bookie was reached again after {time.monotonic() - began_s:.1f} s")
    assert again is not link
    reply = await again.read(sink.ledger_id, 2, timeout_ms=READ_MS)
    assert reply.answer is Answer.OK
    await asyncio.to_thread(bookie.wait_until_serving)
    await breakable.until_listed(bookie, writable=True)


async def test_the_list_of_bookies_follows(breakable: World) -> None:
    cluster = breakable.cluster
    victim = cluster.bookies[0]
    assert {each.bookie_id for each in cluster.bookies} == set(breakable.registry.writable())
    await asyncio.to_thread(victim.terminate)
    await breakable.until_listed(victim, writable=False)
    with pytest.raises(Unavailable):
        await breakable.links.data(victim.bookie_id)
    victim.start_read_only()
    await asyncio.to_thread(victim.wait_until_serving)
    async with asyncio.timeout(60):
        while victim.bookie_id not in breakable.registry.read_only():
            await breakable.pause()
    link, sink = await breakable.links.data(victim.bookie_id), Sink()
    link.attach(sink.ledger_id, sink)
    link.send_adds(sink.ledger_id, frames(sink.ledger_id, 0, 0), entries=1, bytes=1)
    await sink.until_answered(1)
    assert sink.answers == [(Answer.READ_ONLY, 0)]
    await asyncio.to_thread(victim.terminate)
    victim.start_writable()
    await asyncio.to_thread(victim.wait_until_serving)
    await breakable.until_listed(victim, writable=True)
    assert victim.bookie_id in breakable.came


async def test_a_lost_link_is_made_again_while_zookeeper_is_away(breakable: World) -> None:
    bookie = breakable.cluster.bookies[1]
    link, sink = await _attached(breakable, bookie.bookie_id, 3)
    breakable.cluster.zookeeper.freeze()
    try:
        for _ in range(2):
            link.take_down(Answer.DISCONNECTED)  # type: ignore[attr-defined]
            began_s = time.monotonic()
            link = await breakable.links.data(bookie.bookie_id)
            print(f"reached again after {(time.monotonic() - began_s) * 1000:.0f} ms")
            assert (await link.read(sink.ledger_id, 2, timeout_ms=READ_MS)).answer is Answer.OK
            breakable.registry.suspect(bookie.bookie_id)  # as after a refused connection
        assert breakable.registry.stale_since_s is not None
        assert bookie.bookie_id in breakable.registry.writable()
    finally:
        breakable.cluster.zookeeper.thaw()
    async with asyncio.timeout(60):
        while breakable.registry.stale_since_s is not None:
            await breakable.pause()


# --- A network in between


class Through:
    """Addresses that lead through a proxy."""

    def __init__(self, registry: BookieRegistry, proxy: FaultyProxy) -> None:
        self._registry = registry
        self._proxy = proxy
        self.suspect = registry.suspect
        self.listen = registry.listen
        self.unlisten = registry.unlisten

    async def resolve(self, bookie_id: str) -> Endpoint:
        endpoint = await self._registry.resolve(bookie_id)
        return replace(endpoint, host=LOOPBACK, port=self._proxy.port)


@asynccontextmanager
async def _proxied(world: World) -> AsyncIterator[tuple[FaultyProxy, DataLink, BookieLinks]]:
    bookie_id = world.registry.writable()[0]
    async with FaultyProxy(world.cluster.bookie(bookie_id).port) as proxy:
        links = BookieLinks(Through(world.registry, proxy))
        try:
            yield proxy, await links.data(bookie_id), links
        finally:
            await links.close()


async def test_any_cuts_of_the_stream_give_the_same_answers(world: World) -> None:
    async with _proxied(world) as (proxy, link, _):
        proxy.to_client.slice_bytes = 13
        sink = Sink()
        link.attach(sink.ledger_id, sink)
        link.send_adds(sink.ledger_id, frames(sink.ledger_id, 0, 199), entries=200, bytes=0)
        reads = [link.read(sink.ledger_id, each, timeout_ms=READ_MS) for each in (0, 0, 1)]
        await sink.until_answered(200)
        replies = await asyncio.gather(*reads)
        assert sink.answers == [(Answer.OK, entry_id) for entry_id in range(200)]
        assert {reply.answer for reply in replies} <= {Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER}
        batch = await link.batch_read(
            sink.ledger_id, 0, count_max=200, frame_bytes_max=MIB, timeout_ms=READ_MS
        )
        for entry_id, entry in enumerate(batch.entries):
            DIGEST.verify(entry, ledger_id=sink.ledger_id, entry_id=entry_id)
        assert len(batch.entries) == 200


async def test_a_cut_ends_the_link_with_all_in_flight(world: World) -> None:
    async with _proxied(world) as (proxy, link, links):
        sink = Sink()
        link.attach(sink.ledger_id, sink)
        proxy.to_client.hold()
        link.send_adds(sink.ledger_id, frames(sink.ledger_id, 0, 9), entries=10, bytes=0)
        asked = asyncio.ensure_future(link.read(sink.ledger_id, 0, timeout_ms=READ_MS))
        await proxy.to_client.wait_bytes_seen(0)  # the bookie answered, and we do not know
        proxy.cut()
        await sink.until_down()
        assert sink.answers == []
        assert (await asked).answer is Answer.DISCONNECTED
        proxy.heal()
        # It had never answered over this link: as with a bookie that starts, not at once.
        with pytest.raises(Unavailable, match="left alone"):
            await links.data(link.bookie_id)


async def test_a_network_that_takes_nothing_fills_no_memory(world: World) -> None:
    async with _proxied(world) as (proxy, link, _):
        sink = Sink()
        link.attach(sink.ledger_id, sink)
        proxy.to_server.hold()
        run = frames(sink.ledger_id, 0, 3, bytes(256 << 10))
        sent = 0
        # The proxy itself takes what it gets: what is held back is what replies would free.
        while link.has_room and sent < 20_000:
            link.send_adds(sink.ledger_id, run, entries=4, bytes=len(run))
            sent += 4
            await asyncio.sleep(0)
        assert not link.has_room
        assert link.unsent_bytes <= LINK_UNSENT_BYTES_MAX + len(run)  # type: ignore[attr-defined]
        proxy.to_server.release()
        await sink.until_answered(sent)
        assert {answer for answer, _ in sink.answers} == {Answer.OK}
        link.settle(sink.ledger_id, entries=0, bytes=sent // 4 * len(run))
        while not link.has_room:
            await sink.news()

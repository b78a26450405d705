"""The store on real servers: ZooKeeper lost under open ledgers, many ledgers at once, stores side
by side, a close with everything in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from dlog.errors import (
    AuthError,
    ConfigError,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Timeout,
    Unavailable,
    check,
)
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import Appender, LedgerSpec, LedgerState
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.conformance.ledger_tools import Heard, read_all
from dlog.testing.conformance.meta_tools import until
from integration.bookkeeper.fault_tools import pause
from integration.conftest import OwnCluster
from tests.tiers import in_full

SPEC = LedgerSpec(custom={"of": b"test_store"})
DOWN_S = in_full([4.0, 15.0], but=[4.0], seconds=40)
PAUSE_S = 0.02  # between two entries
LEDGERS = 100
ANY_BYTES = 1 << 26

Make = Callable[..., BookKeeperLedgerStore]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[tuple[BookKeeperLedgerStore, ZooKeeperMetaStore]] = []

    def make_store(cluster: Cluster, *, password: bytes = b"") -> BookKeeperLedgerStore:
        meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
        store = BookKeeperLedgerStore(
            meta,
            ledgers_root=cluster.ledgers_root,
            password=password,
            unsafe_empty_password=True,
            unsafe_no_digest=True,
        )
        made.append((store, meta))
        return store

    yield make_store
    for store, _ in made:
        await store.close()
    await asyncio.gather(*(meta.close() for _, meta in made))


async def opened(store: BookKeeperLedgerStore, spec: LedgerSpec = SPEC) -> tuple[Appender, Heard]:
    appender = await store.create(spec)
    heard = Heard()
    appender.listen(heard)
    return appender, heard


class Going:
    """One ledger that is written by one store and followed by another, as long as nothing fails."""

    def __init__(self, appender: Appender, heard: Heard, reader: BookKeeperReader) -> None:
        self.appender, self.heard, self.reader = appender, heard, reader
        self.read_to = -1
        self.longest_wait_s = 0.0
        self._stopping = False
        self._is_written = False

    async def write(self) -> None:
        while not self._stopping:
            started = time.monotonic()
            entry = self.appender.submit([b"entry %d" % (self.heard.confirmed + 1)])
            await self.heard.until_confirmed(entry)
            self.appender.publish()
            await self.heard.until(lambda: self.heard.published == entry)  # noqa: B023
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - started)
            await pause(PAUSE_S)
        self._is_written = True

    async def follow(self) -> None:
        while not self._is_written or self.read_to < self.heard.confirmed:
            last = await self.reader.wait_past(self.read_to, 500)
            while self.read_to < last:
                run = await self.reader.read(self.read_to + 1, last, bytes_max=ANY_BYTES)
                for entry in run:
                    self.read_to += 1
                    assert entry == b"entry %d" % self.read_to

    async def read_beside(self, closed: BookKeeperReader, last_entry: int) -> None:
        """All of a closed ledger, for each few entries that are written; until it is cancelled."""
        while True:
            assert len(await read_all(closed, last_entry)) == last_entry + 1
            await self.heard.until_confirmed(self.heard.confirmed + 5)

    def stop(self) -> None:
        self._stopping = True


async def can_create(store: BookKeeperLedgerStore) -> bool:
    try:
        (await store.create(SPEC)).abandon()
    except (Unavailable, Timeout) as error:
        check(error.outcome is Outcome.NOT_HAPPENED, "nothing was made", error)
        return False
    return True


@pytest.mark.parametrize("fault", in_full(["frozen", "killed"], but=["frozen"], seconds=40))
@pytest.mark.parametrize("down_s", DOWN_S)
async def test_open_ledgers_go_on_without_zookeeper(
    own_cluster: OwnCluster, make: Make, fault: str, down_s: float
) -> None:
    # A bookie that is still registering anew after one outage ends itself when the next one comes.
    cluster = own_cluster(fresh=(fault, down_s) != ("frozen", 4.0))
    zookeeper = cluster.zookeeper
    store, other = make(cluster), make(cluster)
    closed, heard = await opened(store)
    for number in range(100):
        closed.submit([b"%d" % number])
    await heard.until_confirmed(99)
    await closed.close()
    goings = []
    for _ in range(3):
        appender, heard = await opened(store)
        await appender.birth([b"entry 0"])
        goings.append(Going(appender, heard, await other.open(appender.ledger_id)))
    working = [asyncio.create_task(go()) for each in goings for go in (each.write, each.follow)]
    reader = await other.open(closed.ledger_id)
    beside = asyncio.create_task(goings[0].read_beside(reader, 99))
    await asyncio.gather(*(each.heard.until_confirmed(20) for each in goings))

    zookeeper.kill() if fault == "killed" else zookeeper.freeze()
    started = time.monotonic()
    while time.monotonic() < started + down_s:
        before = [(each.heard.confirmed, each.read_to) for each in goings]
        assert not await can_create(store), "that takes a while, and says that nothing was made"
        for task in (beside, *working):
            if task.done():
                task.result()  # raises what the write or the read raised
        for each, (confirmed, read_to) in zip(goings, before, strict=True):
            assert each.heard.confirmed > confirmed + 10
            assert each.read_to > read_to + 10
    if fault == "killed":
        zookeeper.start()
        await asyncio.to_thread(zookeeper.wait_until_serving)
    else:
        zookeeper.thaw()
    await until(lambda: can_create(store), "a ledger can be made again")

    assert not beside.done()
    beside.cancel()
    for each in goings:
        each.stop()
    await asyncio.gather(*working)
    print(
        f"{time.monotonic() - started:.0f} s around ZooKeeper {fault}: entries "
        f"{[each.heard.confirmed for each in goings]}, the longest wait for one "
        f"{max(each.longest_wait_s for each in goings):.2f} s"
    )
    for each in goings:
        end = await each.appender.close()
        assert end.last_entry == each.heard.confirmed == each.read_to
        assert (await other.info(each.appender.ledger_id)).closed == end


async def test_many_ledgers_at_once(cluster: Cluster, make: Make) -> None:
    store, other = make(cluster), make(cluster)
    started = time.monotonic()
    made = await asyncio.gather(*(opened(store) for _ in range(LEDGERS)))
    created = time.monotonic()
    for entry in range(20):
        for appender, _ in made:
            appender.submit([b"%d of %d" % (entry, appender.ledger_id)])
    await asyncio.gather(*(heard.until_confirmed(19) for _, heard in made))
    confirmed = time.monotonic()

    async def finish(appender: Appender) -> None:
        reader = await other.open(appender.ledger_id)
        assert (await appender.close()).last_entry == 19

        # Nothing was published but by closing; a reader whom metadata reaches late, with all
        # these at once, goes on with what bookies say until then.
        async def knows_the_end() -> bool:
            return await reader.last_readable() == 19

        await until(knows_the_end, f"the end of ledger {appender.ledger_id} is known")
        wanted = [b"%d of %d" % (entry, appender.ledger_id) for entry in range(20)]
        assert await read_all(reader, 19) == wanted
        await reader.close()

    await asyncio.gather(*(finish(appender) for appender, _ in made))
    finished = time.monotonic()
    print(
        f"{LEDGERS} ledgers: created in {created - started:.2f} s, 20 entries each in "
        f"{confirmed - created:.2f} s, closed and read in {finished - confirmed:.2f} s"
    )
    for each in (store, other):
        assert len(each._links._links) <= 3 * len(cluster.bookies), "links are shared"
        assert not each._readers
    assert not store._appenders


async def test_two_stores_meet_at_one_ledger(cluster: Cluster, make: Make) -> None:
    ours, theirs = make(cluster), make(cluster)
    appender, heard = await opened(ours)
    await appender.birth([b"ours"])
    closed = await theirs.recover(appender.ledger_id)
    assert closed.last_entry == 0
    appender.submit([b"late"])
    await heard.until_failed()
    assert isinstance(heard.failed, Fenced)
    await theirs.close()
    assert await read_all(await ours.open(appender.ledger_id), 0) == [b"ours"]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
@pytest.mark.parametrize("password", [b"", b"secret \xff"])
async def test_every_digest_with_and_without_a_password(
    cluster: Cluster, make: Make, digest: str, password: bytes
) -> None:
    store, other = make(cluster, password=password), make(cluster, password=password)
    spec = LedgerSpec(4, 4, 3, digest=digest)
    appender, heard = await opened(store, spec)
    wanted = [b"", b"1", bytes(1000), bytes(range(256)) * 400]
    for entry in wanted:
        appender.submit([entry])
    await heard.until_confirmed(3)
    appender.publish()
    await heard.until(lambda: heard.published == 3)
    assert await read_all(await other.open(appender.ledger_id), 3) == wanted
    assert (await other.recover(appender.ledger_id)).last_entry == 3
    assert (await other.info(appender.ledger_id)).spec == spec
    stranger = make(cluster, password=b"another")
    with pytest.raises(AuthError):
        await stranger.open(appender.ledger_id)


async def test_a_stranger_ends_no_ledger(cluster: Cluster, make: Make) -> None:
    store, stranger = make(cluster, password=b"ours"), make(cluster, password=b"theirs")
    appender, heard = await opened(store)
    await appender.birth([b"0"])
    with pytest.raises(AuthError):
        await stranger.recover(appender.ledger_id)
    appender.submit([b"1"])
    await heard.until_confirmed(1)
    assert (await store.info(appender.ledger_id)).state is LedgerState.OPEN


async def test_more_bookies_than_there_are(cluster: Cluster, make: Make) -> None:
    with pytest.raises(Unavailable, match="bookie-1") as caught:
        await make(cluster).create(LedgerSpec(6, 6, 2))
    assert caught.value.needed == 2


async def test_a_close_with_everything_in_flight(cluster: Cluster, make: Make) -> None:
    """Every call ends, at once and with an error that says so or an answer; nothing runs on."""
    keeper, store = make(cluster), make(cluster)
    quiet, _ = await opened(keeper)
    await quiet.birth([b"0"])
    doomed, _ = await opened(keeper)
    await doomed.birth([b"0"])
    before = asyncio.all_tasks()
    appender, heard = await opened(store)
    await appender.birth([b"0"])
    reader, tail = await store.open(appender.ledger_id), await store.open(quiet.ledger_id)
    for number in range(2_000):
        appender.submit([b"%d" % number * 100])
    await heard.until_confirmed(1)
    calls = [
        asyncio.create_task(call)
        for call in (
            *(store.create(SPEC) for _ in range(3)),
            store.open(quiet.ledger_id),
            store.recover(doomed.ledger_id),
            store.info(quiet.ledger_id),
            reader.wait_past(5_000, 60_000),
            tail.wait_past(0, 60_000),
            tail.last_readable(),
            tail.read(0, 0, bytes_max=1),
            appender.close(),
        )
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.gather(store.close(), store.close())
        await asyncio.wait(calls)
    for call in calls:
        assert not call.cancelled()
        assert call.exception() is None or isinstance(call.exception(), DlogError)
    assert {task for task in asyncio.all_tasks() - before if task not in calls} == set()
    assert store._links._open == {}

    closed = await keeper.recover(appender.ledger_id)
    assert closed.last_entry >= heard.confirmed
    with pytest.raises(ConfigError):
        await store.info(quiet.ledger_id)


async def test_a_ledger_whose_bookies_are_gone_is_deleted_by_name(
    own_cluster: OwnCluster, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = own_cluster()
    store, other = make(cluster), make(cluster)
    await until(lambda: can_create(store), "the bookies are registered")
    appender, _ = await opened(store)
    await appender.birth([b"0"])
    appender.abandon()
    stored = await store._nodes.read(appender.ledger_id)
    lost = [cluster.bookie(name) for name in stored.metadata.fragments[0].ensemble[:2]]
    for bookie in lost:
        bookie.kill()
    async with asyncio.timeout(30):
        await other.delete(appender.ledger_id)
    assert f"ledger {appender.ledger_id} is deleted open" in caplog.text
    with pytest.raises(NotFound):
        await store.info(appender.ledger_id)
    for bookie in lost:
        bookie.start()
    for bookie in lost:
        await asyncio.to_thread(bookie.wait_until_serving)

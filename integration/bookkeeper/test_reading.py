"""Reading from real bookies while they are killed, stopped, wiped and replaced, and how fast it is.

Speeds are printed and not judged: a machine that does other things proves nothing about them."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable

import pytest

from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.core.tail_read import Poll
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import Appender, LedgerSpec
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.conformance.ledger_tools import Heard
from dlog.testing.raw_ledgers import connected
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from integration.bookkeeper.fault_tools import patience
from integration.conftest import OwnCluster
from tests.tiers import in_full

SPEC = LedgerSpec(custom={"of": b"test_reading"})
RUN_BYTES = 1 << 20
ENTRIES = int(os.environ.get("DLOG_READ_ENTRIES", "4000"))
TAIL_ENTRIES = int(os.environ.get("DLOG_TAIL_ENTRIES", "200"))
_NUMBERS = struct.Struct(">qqqq")

PASSWORD = b"of the readers' tests"
Make = Callable[[], BookKeeperLedgerStore]


@pytest.fixture(scope="module")
def servers(own_cluster: OwnCluster) -> Cluster:
    return own_cluster(bookies=4)


@pytest.fixture
async def make(servers: Cluster) -> AsyncIterator[Make]:
    made: list[tuple[BookKeeperLedgerStore, ZooKeeperMetaStore]] = []

    def make_store() -> BookKeeperLedgerStore:
        meta = ZooKeeperMetaStore(servers.zookeeper.hosts)
        store = BookKeeperLedgerStore(meta, ledgers_root=servers.ledgers_root, password=PASSWORD)
        made.append((store, meta))
        return made[-1][0]

    yield make_store
    for store, meta in made:
        await store.close()
        await meta.close()


def payload(number: int, size: int = 1024) -> bytes:
    return number.to_bytes(8, "big") * (size // 8)


async def filled(
    store: BookKeeperLedgerStore, count: int, *, size: int = 1024, close: bool = True
) -> tuple[Appender, Heard]:
    appender = await store.create(SPEC)
    heard = Heard()
    appender.listen(heard)
    await appender.birth([payload(0, size)])
    for number in range(1, count):
        appender.submit([payload(number, size)])
        if number % 1_000 == 0:
            await heard.until_confirmed(number - 1_000)
    await heard.until_confirmed(count - 1)
    appender.publish()
    await heard.until(lambda: heard.published == count - 1)
    if close:
        await appender.close()
    return appender, heard


def ensemble_of(servers: Cluster, reader: BookKeeperReader) -> list[Bookie]:
    """The one at which the reader is at home first."""
    metadata = reader._tail.core.metadata
    bookies = list(metadata.fragments[-1].ensemble)
    home = reader._entries._home
    if home in bookies:
        at = bookies.index(home)
        bookies = [*bookies[at:], *bookies[:at]]
    return [servers.bookie(each) for each in bookies]


async def read_side_by_side(
    reader: BookKeeperReader, count: int, *, in_flight: int = 4, size: int = 1024
) -> None:
    """All entries, in runs of which several are under way; each is looked at."""
    step = RUN_BYTES // size
    begins = iter(range(0, count, step))
    seen = bytearray(count)

    async def work() -> None:
        for begin in begins:
            first, last = begin, min(begin + step, count) - 1
            while first <= last:
                run = await reader.read(first, last, bytes_max=RUN_BYTES)
                for number, entry in enumerate(run, first):
                    assert entry[:8] == number.to_bytes(8, "big")
                    seen[number] += 1
                first += len(run)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    assert seen == b"\1" * count


async def started_again(bookie: Bookie) -> None:
    bookie.start()
    await asyncio.to_thread(bookie.wait_until_serving)


async def test_a_closed_ledger_is_read_fast(make: Make) -> None:
    store = make()
    appender, _ = await filled(store, ENTRIES)
    for in_flight in (1, 4):
        reader = await make().open(appender.ledger_id)
        await read_side_by_side(reader, min(ENTRIES, 5_000))  # connect, and warm up
        started, cpu = time.perf_counter(), time.process_time()
        await read_side_by_side(reader, ENTRIES, in_flight=in_flight)
        took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        print(
            f"{ENTRIES} entries of 1 KiB, {in_flight} reads in flight: {ENTRIES / took_s:,.0f}/s, "
            f"{cpu_s / ENTRIES * 1e6:.2f} us of CPU each, {reader.hedges} hedges"
        )


@pytest.mark.parametrize("fault", in_full(["killed", "frozen"], but=["frozen"], seconds=5))
async def test_reads_go_on_when_a_bookie_falls_silent(
    servers: Cluster, make: Make, fault: str
) -> None:
    appender, _ = await filled(make(), 2_000)
    reader = await make().open(appender.ledger_id)
    await reader.read(0, 0, bytes_max=1)
    bookie = ensemble_of(servers, reader)[0]
    bookie.kill() if fault == "killed" else bookie.freeze()
    try:
        started = time.monotonic()
        async with asyncio.timeout(20):
            await read_side_by_side(reader, 2_000)
        print(f"bookie {fault}: read all in {time.monotonic() - started:.2f} s, "
              f"{reader.hedges} hedges")  # fmt: skip
        if fault == "frozen":
            assert reader.hedges >= 1
            assert reader._entries._in_flight[bookie.bookie_id] <= 4, "and it was then left alone"
    finally:
        if fault == "frozen":
            bookie.thaw()
    if fault == "killed":
        await started_again(bookie)
    await read_side_by_side(reader, 2_000)


async def test_reads_go_on_while_bookies_are_restarted_in_turn(
    servers: Cluster, make: Make
) -> None:
    appender, _ = await filled(make(), 3_000)
    reader = await make().open(appender.ledger_id)
    await reader.read(0, 0, bytes_max=1)
    for bookie in ensemble_of(servers, reader):
        bookie.kill()
        await read_side_by_side(reader, 3_000)
        starting = asyncio.create_task(started_again(bookie))
        while not starting.done():  # it accepts connections and resets them for a while
            await read_side_by_side(reader, 500)
            await asyncio.wait([starting], timeout=0.05)
        await starting
        await read_side_by_side(reader, 3_000)


async def test_a_wiped_bookie_is_passed_by(servers: Cluster, make: Make) -> None:
    appender, _ = await filled(make(), 1_000)
    reader = await make().open(appender.ledger_id)
    await reader.read(0, 0, bytes_max=1)
    wiped, *others = ensemble_of(servers, reader)
    wiped.kill()
    await asyncio.to_thread(wiped.wipe)
    await started_again(wiped)
    await read_side_by_side(await make().open(appender.ledger_id), 1_000)
    for other in others:
        other.kill()
    try:
        last = await make().open(appender.ledger_id)
        with pytest.raises(Unavailable) as caught:
            await last.read(0, 9, bytes_max=RUN_BYTES)
        assert sorted(caught.value.missing) == sorted(b.bookie_id for b in (wiped, *others))
        assert f"{wiped.bookie_id}: no " in caught.value.message
    finally:
        for other in others:
            await started_again(other)


async def test_large_entries_come_alone(make: Make) -> None:
    size = 3 << 20
    appender, _ = await filled(make(), 4, size=size)
    reader = await make().open(appender.ledger_id)
    for entry_id in range(4):
        run = await reader.read(entry_id, 3, bytes_max=64 << 20)
        assert run[0] == payload(entry_id, size)
        assert len(run) == 1, "two do not fit into a frame"
    assert len(await reader.read(0, 3, bytes_max=1)) == 1


class Tail:
    """Reads a ledger that is being written, entry by entry, and notes when it saw each."""

    def __init__(self, reader: BookKeeperReader) -> None:
        self.reader = reader
        self.known = -1
        self.seen_s: dict[int, float] = {}

    async def follow(self, until: int) -> None:
        while self.known < until:
            last = await self.reader.wait_past(self.known, 10_000)
            now_s = time.monotonic()
            while self.known < last:
                run = await self.reader.read(self.known + 1, last, bytes_max=RUN_BYTES)
                for entry in run:
                    self.known += 1
                    assert entry[:8] == self.known.to_bytes(8, "big")
                    self.seen_s[self.known] = now_s


async def test_a_tail_is_heard_soon(make: Make) -> None:
    """The writer publishes each entry for itself; another store follows."""
    appender, heard = await filled(make(), 1, close=False)
    tail = Tail(await make().open(appender.ledger_id))
    following = asyncio.create_task(tail.follow(TAIL_ENTRIES))
    confirmed_s: dict[int, float] = {}
    for number in range(1, TAIL_ENTRIES + 1):
        appender.submit([payload(number)])
        await heard.until_confirmed(number)
        confirmed_s[number] = time.monotonic()
        appender.publish()
    async with asyncio.timeout(20):
        await following
    waits_ms = sorted((tail.seen_s[n] - confirmed_s[n]) * 1000 for n in confirmed_s)
    p50, p99 = waits_ms[len(waits_ms) // 2], waits_ms[int(len(waits_ms) * 0.99)]
    print(f"acknowledged to readable: p50 {p50:.2f}, p99 {p99:.2f}, most {waits_ms[-1]:.2f} ms")


async def test_a_tail_is_followed_through_changes_of_the_ensemble(
    servers: Cluster, make: Make
) -> None:
    appender, heard = await filled(make(), 1, close=False)
    reader = await make().open(appender.ledger_id)
    tail = Tail(reader)
    following = asyncio.create_task(tail.follow(400))
    lost: Bookie | None = None
    for number in range(1, 401):
        appender.submit([payload(number)])
        await heard.until_confirmed(number)
        appender.publish()
        if number in (100, 300):
            lost = ensemble_of(servers, reader)[number // 200]
            lost.kill()
        elif number == 200 and lost is not None:
            await started_again(lost)
    async with asyncio.timeout(30):
        await following
    assert len(reader._tail.core.metadata.fragments) > 1
    if lost is not None:
        await started_again(lost)
    await appender.close()
    fresh = await make().open(appender.ledger_id)
    await read_side_by_side(fresh, 401)


async def test_the_bare_word_of_a_real_bookie_is_no_proof(servers: Cluster, make: Make) -> None:
    """One entry whose header confirms what nobody wrote, and bookies tell that LAC to everybody. A
    reader neither believes it nor misses what is published afterwards."""
    appender, heard = await filled(make(), 3, close=False)
    reader = await make().open(appender.ledger_id)
    assert await reader.last_readable() == 2
    digest = EntryDigest(DigestType.CRC32C, PASSWORD)
    numbers = _NUMBERS.pack(appender.ledger_id, 90, 1_000, 1 << 20)
    head = numbers + digest._sum(numbers, [b"bad"])
    for bookie in ensemble_of(servers, reader):
        with connected(bookie) as raw:
            raw.add(head, b"bad", key=master_key(PASSWORD))
    # The poison is also the last entry of each bookie, so only polls and proofs apart from it are
    # left to tell anything.
    assert await reader.wait_past(1, 0) == 2
    started = time.monotonic()
    with pytest.raises(Unavailable, match="bad digest"):
        await reader.wait_past(2, 1_500)
    assert time.monotonic() - started >= 1.5
    polls = reader._tail.core._polls
    assert {poll.told for poll in polls.values()} == {1_000}
    waiting = asyncio.create_task(reader.wait_past(2, 10_000))
    appender.submit([payload(3)])
    await heard.until_confirmed(3)
    appender.publish()
    assert await waiting == 3
    appender.abandon()


async def test_a_fence_wakes_polls_and_metadata_is_looked_at(servers: Cluster, make: Make) -> None:
    """Whoever fences a ledger changed its metadata before, whether or not a watch told us."""
    appender, _ = await filled(make(), 3, close=False)
    reader = await make().open(appender.ledger_id)
    waiting = asyncio.create_task(reader.wait_past(2, 60_000))
    tail = reader._tail
    looked, sent = asyncio.Event(), asyncio.Event()
    probe, send_poll = tail._probe, tail._send_poll

    def send_and_tell(poll: Poll) -> None:
        send_poll(poll)
        if all(each.is_standing for each in tail.core._polls.values()):
            sent.set()

    def probe_and_tell() -> None:
        probe()
        looked.set()

    tail._send_poll, tail._probe = send_and_tell, probe_and_tell  # type: ignore[method-assign]
    async with patience():
        await sent.wait()
        await reader.last_readable()  # the polls have come by now
        assert not looked.is_set()
        with connected(ensemble_of(servers, reader)[0]) as raw:
            raw.read(appender.ledger_id, 0, fence_key=master_key(PASSWORD))
        await looked.wait()
    assert not waiting.done(), "metadata says that it is open"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    appender.abandon()


async def test_a_closed_reader_leaves_nothing_behind(make: Make) -> None:
    """Readers come and go; connections stay with the store, and nothing else stays at all."""
    appender, _ = await filled(make(), 10, close=False)
    store = make()
    reader = await store.open(appender.ledger_id)
    await reader.wait_past(8, 1_000)
    before = asyncio.all_tasks()
    for _ in range(20):
        other = await store.open(appender.ledger_id)
        waiting = asyncio.create_task(other.wait_past(9, 60_000))
        assert await other.last_readable() == 9
        assert len(await other.read(0, 9, bytes_max=RUN_BYTES)) == 10
        await other.close()
        await asyncio.gather(waiting, return_exceptions=True)
    assert asyncio.all_tasks() == before
    assert list(store._readers) == [reader]

"""The other end of a log on real servers (LS-09, LS-10, DL-36e, I18, I19, I26): truncation while no
bookie answers, ledgers that are deleted on the servers, readers that race truncation, and logs that
are removed and made again under readers and writers. What needs no fault is in tests/api, which
runs on the cluster as well.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from dlog import aio
from dlog.clock import us_datetime
from dlog.errors import ConfigError, DlogError, Fenced, NotFound, Truncated
from dlog.ids import MessageId
from dlog.testing.cluster import Cluster
from integration.bookkeeper.fault_tools import come_true, serves_again

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SEGMENT = 5  # messages
RACED = 12  # segments that are truncated under readers
LIVES = 4  # of a log that is removed and made again
_names = (f"truncated-{number}" for number in itertools.count())


@pytest.fixture
def name() -> str:
    return next(_names)


@pytest.fixture
async def all_frozen(cluster: Cluster) -> AsyncIterator[Cluster]:
    yield cluster
    for bookie in cluster.bookies:
        bookie.thaw()
    for bookie in cluster.bookies:
        await serves_again(bookie)


async def filled(log: aio.Writer, segments: int = 4) -> list[MessageId]:
    """So many segments, and an open one behind them."""
    ids: list[MessageId] = []
    for _ in range(segments):
        ids += await log.append_many([b"%d" % (len(ids) + i) for i in range(SEGMENT)])
        await log.rotate()
    return ids


async def seqs(client: aio.Client, name: str) -> list[int]:
    async with client.open_reader(name) as reader:
        return [message.seq async for message in reader]


async def ledgers_of(client: aio.Client, name: str) -> list[int]:
    return [segment.ledger_id for segment in (await client.admin.describe(name)).segments]


async def is_there(client: aio.Client, ledger_id: int) -> bool:
    """On the servers."""
    stores = await client._stores(False)
    try:
        reader = await stores.ledgers.open(ledger_id)
    except NotFound:
        return False
    await reader.close()
    return True


async def test_a_log_is_truncated_while_no_bookie_answers(all_frozen: Cluster, name: str) -> None:
    """What is sealed is known from the list. What is not is left, and the answer says so."""
    cluster = all_frozen
    async with aio.connect(cluster.url) as writing, aio.connect(cluster.url) as client:
        log = await writing.open_writer(name)
        ids = await filled(log)
        await log.append(b"the last")
        async with writing.open_reader(name) as reader:
            times = [us_datetime(message.timestamp_us) async for message in reader]
        admin = client.admin
        held = await admin.hold(name, "billing", 12)
        assert held.seq == 12
        for bookie in cluster.bookies:
            bookie.freeze()
        told = await admin.truncate(name, 3)
        assert (told.done, told.reasons) == (True, ())
        assert (await admin.truncate(name, ids[8])).reasons == ()
        told = await admin.truncate(name, times[12])
        assert any("to where a segment ends" in reason for reason in told.reasons)
        assert told.head_seq == 10, "the segments that end before that time"
        told = await admin.truncate(name, "latest")  # the list knows the end of three segments
        assert told.held_by == ("billing",)
        assert any("only what is sealed" in reason for reason in told.reasons)
        for bookie in cluster.bookies:
            bookie.thaw()
        for bookie in cluster.bookies:
            await serves_again(bookie)
        assert await seqs(client, name) == list(range(12, 21))
        await log.close()


async def test_what_was_truncated_is_deleted_on_the_servers(cluster: Cluster, name: str) -> None:
    async with aio.connect(cluster.url) as client:
        await client.admin.create(name, deletion_grace_s=0)
        async with client.open_writer(name) as log:
            await filled(log)
            before = await ledgers_of(client, name)
            assert (await client.admin.truncate(name, 2 * SEGMENT)).ledgers == 2
            assert all([await is_there(client, each) for each in before])
            told = await client.admin.collect(name)
            assert (told.deleted, told.waiting, told.problems) == (2, 0, ())
            there = [each for each in before if await is_there(client, each)]
            assert there == await ledgers_of(client, name) == before[2:]
            await log.append(b"and on")
        assert await seqs(client, name) == list(range(2 * SEGMENT, 4 * SEGMENT + 1))


async def test_retention_by_size_and_age(cluster: Cluster, name: str) -> None:
    by_size, by_age = f"{name}-size", f"{name}-age"
    async with aio.connect(cluster.url) as client:
        admin = client.admin
        await admin.create(by_size, retention_bytes=2 * SEGMENT * 1000, deletion_grace_s=0)
        await admin.create(by_age, retention_age_s=1, deletion_grace_s=0)
        for each in (by_size, by_age):
            async with client.open_writer(each) as log:
                for _ in range(6):
                    await log.append_many([b"x" * 1000] * SEGMENT)
                    await log.rotate()
        told = await admin.collect(by_size)
        assert told.head_seq is not None
        assert 3 * SEGMENT <= told.head_seq <= 4 * SEGMENT, "what is left is as large as was asked"

        async def is_empty() -> bool:
            return (await admin.collect(by_age)).head_seq == 6 * SEGMENT

        await come_true(is_empty, "all of it is older than a second")
        assert await seqs(client, by_age) == []


class Racer:
    """Reads on and on, and knows of every seq why it was not handed out."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.told: list[int] = []

    async def run(self, client: aio.Client, name: str, end: int, *, jumps: bool) -> None:
        on_truncated = "jump" if jumps else "raise"
        start: int | str = "earliest"
        expected = 0
        while expected < end:
            try:
                async with client.open_reader(
                    name, start=start, follow=True, on_truncated=on_truncated
                ) as reader:
                    while expected < end:
                        for message in await reader.read(3):
                            if message.seq != expected:
                                self.gaps.append((expected, message.seq))
                            self.read.append(message.seq)
                            expected = message.seq + 1
                            assert message.value == b"%d" % message.seq
            except Truncated as error:
                self.told.append(error.new_head)
                self.gaps.append((expected, error.new_head))
                start = expected = error.new_head


async def test_readers_race_truncation(cluster: Cluster, name: str) -> None:
    """I18: data, or `Truncated`; never a skip that nobody told of."""
    end = RACED * SEGMENT
    async with aio.connect(cluster.url) as client, aio.connect(cluster.url) as other:
        await client.admin.create(name, deletion_grace_s=0)
        heads: list[int] = [0]
        racers = [Racer() for _ in range(4)]
        async with client.open_writer(name) as log, asyncio.TaskGroup() as group:
            for number, racer in enumerate(racers):
                group.create_task(racer.run(other, name, end, jumps=number % 2 == 1))
            for number in range(RACED):
                base = number * SEGMENT
                await log.append_many([b"%d" % (base + i) for i in range(SEGMENT)])
                await log.rotate()
                told = await other.admin.truncate(name, max(0, base - 2))
                assert told.head_seq is not None
                heads.append(told.head_seq)
                assert (await other.admin.collect(name)).problems == ()
        for number, racer in enumerate(racers):
            assert all(first < last for first, last in racer.gaps), "told of what is there"
            covered = {seq for first, last in racer.gaps for seq in range(first, last)}
            assert covered.isdisjoint(racer.read)
            assert covered | set(racer.read) == set(range(end))
            assert racer.read == sorted(set(racer.read))
            assert all(seq < heads[-1] for seq in covered), "what is not truncated was read"
            jumps = number % 2 == 1
            assert len(racer.told) == (0 if jumps else len(racer.gaps))


async def test_a_log_is_removed_and_made_again_under_readers_and_writers(
    cluster: Cluster, name: str
) -> None:
    """Ids, epochs and numbers of segments never go back; whoever was there is told."""
    async with aio.connect(cluster.url) as client, aio.connect(cluster.url) as other:
        last_id, last_epoch, last_uid = MessageId(-1, -1, -1), 0, ""
        for _ in range(LIVES):
            log = await client.open_writer(name)
            assert log.epoch > last_epoch
            ids = await filled(log, 2)
            about = await client.admin.describe(name)
            assert ids[0] > last_id
            assert about.uid != last_uid
            last_id, last_epoch, last_uid = ids[-1], log.epoch, about.uid
            reader = await client.open_reader(name, follow=True)
            assert [m.seq for m in await reader.read(2)] == [0, 1]
            position = reader.position
            waiting = asyncio.ensure_future(_until_told(reader))
            ledgers = await ledgers_of(client, name)
            await other.admin.remove(name)
            assert isinstance(await waiting, NotFound)
            with pytest.raises((Fenced, NotFound)):
                await log.append(b"late")
            await _closed(log)
            assert not any([await is_there(other, each) for each in ledgers])
            with pytest.raises(NotFound):
                await client.open_reader(name)
            await other.admin.create(name)
            with pytest.raises((NotFound, ConfigError)):
                await client.open_reader(name, start=position)


async def _until_told(reader: aio.Reader) -> DlogError:
    async with reader:
        while True:
            try:
                await reader.read()
            except DlogError as error:
                return error


async def _closed(log: aio.Writer) -> None:
    try:
        await log.close()
    except (Fenced, NotFound):
        pass


async def test_a_terminated_log_ends_for_readers_everywhere(cluster: Cluster, name: str) -> None:
    async with aio.connect(cluster.url) as client, aio.connect(cluster.url) as other:
        log = await client.open_writer(name)
        await filled(log, 1)
        reader = await other.open_reader(name, follow=True)
        reading = asyncio.ensure_future(_all(reader))
        await log.append(b"the last")
        await other.admin.terminate(name)
        assert await reading == list(range(SEGMENT + 1))
        with pytest.raises(Fenced, match="terminated the log"):
            await log.append(b"late")
        await _closed(log)


async def _all(reader: aio.Reader) -> list[int]:
    async with reader:
        return [message.seq async for message in reader]

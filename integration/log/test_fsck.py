"""Damage planted at real bookies is found copy by copy, named, and mended where a good copy proves
what belongs there; then nothing is found, and the log reads as it did."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog import aio, trace
from dlog.admin.fsck.report import Ended
from dlog.drive import Stores
from dlog.ids import MessageId
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.raw_ledgers import connected, stored_entry
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import master_key
from dlog.wire.bookie_v2 import Flag
from integration.bookkeeper.fault_tools import come_true, serves_again
from integration.conftest import OwnCluster
from tests.api.adapter import AioApi
from tests.api.planting import checked, kinds, only, repaired, stores_of

pytestmark = pytest.mark.timeout(300)

_roots = itertools.count()
COUNT = 8
SIDES = ("before", "after")


@pytest.fixture(scope="module")
def servers(own_cluster: OwnCluster) -> Cluster:
    return own_cluster(bookies=4)


class Planted:
    """A closed log of one segment, an entry for each message, and the bookies that keep it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        hosts, ledgers = cluster.zookeeper.hosts, cluster.ledgers_root
        self.api = AioApi(f"zk://{hosts}/fsck-{next(_roots)}?ledgers={ledgers}")
        self.ids: list[MessageId] = []
        self.values: list[bytes] = []
        self.bookies: list[Bookie] = []

    async def fill(self) -> None:
        async with self.api.open_writer() as log:
            for number in range(COUNT):
                value = f"{self.api.url} message {number} ".encode() * 3
                self.ids.append(await log.append(value))
                self.values.append(value)
        self.bookies = [self.cluster.bookie(each) for each in await self.ensemble()]
        # A copy may have been on its way when the ledger was closed: then it is made now.
        await repaired(self.api, await checked(self.api, deep=True))
        await self.is_whole()

    @property
    def ledger_id(self) -> int:
        return self.ids[0].ledger_id

    async def ensemble(self) -> Sequence[str]:
        async with stores_of(self.api) as stores:
            return (await copies(stores).copies_of(self.ledger_id)).kept[0].keepers

    async def is_whole(self) -> None:
        report = await checked(self.api, "log", deep=True)
        assert report.is_clean, (report.findings, report.not_checked)
        assert report.copies == 3 * (COUNT + 2)
        assert await self.api.values() == self.values

    async def flip(self, bookie: Bookie, number: int) -> None:
        """A bit of a message, on the disk of a bookie."""
        async with at_rest(bookie):
            hits = await asyncio.to_thread(flip, bookie.ledgers_directory, self.values[number])
            assert hits > 0, "the entry is not in the files"

    async def spoil(self, bookie: Bookie, number: int) -> None:
        """A bit of a message, as the bookie keeps it: written over it, which takes no restart."""
        async with stores_of(self.api) as stores:
            stored, digest = await copies(stores)._copies._closed(self.ledger_id, None)
        assert stored.metadata.password is not None
        kept = stored_entry(bookie, self.ledger_id, self.ids[number].entry_id)
        assert kept is not None
        head, payload = kept[: digest.head_bytes], bytearray(kept[digest.head_bytes :])
        payload[-1] ^= 0x10
        key = master_key(stored.metadata.password)
        with connected(bookie) as raw:
            told = raw.add(head, bytes(payload), key=key, flags=Flag.RECOVERY_ADD)
        assert told.answer is Answer.OK


def flip(directory: Path, value: bytes) -> int:
    """How often it stood there."""
    hits = 0
    for path in directory.glob("ledgers/current/*.log"):
        raw = bytearray(path.read_bytes())
        at = raw.find(value)
        while at >= 0:
            raw[at + 5] ^= 0x10
            hits += 1
            at = raw.find(value, at + 1)
        path.write_bytes(raw)
    return hits


def copies(stores: Stores) -> BookKeeperLedgerStore:
    assert isinstance(stores.ledgers, BookKeeperLedgerStore)
    return stores.ledgers


@asynccontextmanager
async def at_rest(bookie: Bookie) -> AsyncIterator[None]:
    """Stopped in order, so that nothing is written again from its journal."""
    await asyncio.to_thread(bookie.terminate)
    yield
    bookie.start()
    await serves_again(bookie)


@pytest.fixture
async def planted(servers: Cluster) -> Planted:
    found = Planted(servers)
    await found.fill()
    return found


def ended(done: Any) -> list[Ended]:
    return [each.ended for each in done.steps]


async def test_a_flipped_bit_at_one_bookie(planted: Planted) -> None:
    bookie = planted.bookies[1]
    await planted.flip(bookie, 3)
    assert (await checked(planted.api, "log")).is_clean, "others have it, and nobody asked this one"
    report = await checked(planted.api, "log", deep=True)
    assert kinds(report) == ["copy_damaged"]
    where = only(report, "copy_damaged").where
    entry_id = planted.ids[3].entry_id
    assert (where.log, where.segment, where.ledger_id) == ("log", 1, planted.ledger_id)
    assert (where.bookie, where.first_entry, where.last_entry) == (
        bookie.bookie_id,
        entry_id,
        entry_id,
    )
    assert ended(await repaired(planted.api, report)) == [Ended.DONE]
    await planted.is_whole()
    assert ended(await repaired(planted.api, report)) == [Ended.NOT_NEEDED]
    async with at_rest(bookie):
        pass
    await planted.is_whole()


async def test_all_copies_of_one_entry_and_one_of_another(planted: Planted) -> None:
    for bookie in planted.bookies:
        await planted.spoil(bookie, 4)
    await planted.spoil(planted.bookies[0], 6)
    report = await checked(planted.api, "log", deep=True)
    lost, other = planted.ids[4].entry_id, planted.ids[6].entry_id
    assert kinds(report) == ["copy_damaged"] * 4 + ["entries_lost", "entry_damaged"]
    where = only(report, "entries_lost").where
    assert (where.first_entry, where.first_seq, where.next_seq) == (lost, 4, 5)
    assert [step.where.first_entry for step in report.plan] == [other], (
        "the lost one is not guessed"
    )
    assert ended(await repaired(planted.api, report)) == [Ended.DONE]
    assert kinds(await checked(planted.api, "log", deep=True)) == (
        ["copy_damaged"] * 3 + ["entries_lost", "entry_damaged"]
    )


async def test_a_bookie_that_lost_everything(planted: Planted) -> None:
    bookie = planted.bookies[2]
    bookie.kill()
    await asyncio.to_thread(bookie.wipe)
    bookie.start()
    await serves_again(bookie)
    report = await checked(planted.api, "log", deep=True)
    assert kinds(report) == ["copy_missing"]
    where = only(report, "copy_missing").where
    assert where.bookie == bookie.bookie_id
    assert (where.first_entry, where.last_entry) == (0, COUNT + 1)
    assert ended(await repaired(planted.api, report)) == [Ended.DONE]
    await planted.is_whole()
    for other in planted.bookies[:2]:  # what was mended is enough
        other.kill()
    try:
        assert await planted.api.values() == planted.values
    finally:
        for other in planted.bookies[:2]:
            other.start()
            await serves_again(other)


async def test_a_bookie_that_is_gone(planted: Planted) -> None:
    """Its copies move to another one, which then has all."""
    gone = planted.bookies[0]
    gone.kill()
    try:
        await come_true(lambda: not gone.is_registered(), "its registration expires")
        report = await checked(planted.api, "log", replication=True)
        assert kinds(report) == ["under_replicated"]
        where = only(report, "under_replicated").where
        assert (where.bookie, where.first_entry, where.last_entry) == (
            gone.bookie_id,
            0,
            COUNT + 1,
        )
        (short,) = report.under_replicated
        assert short.ledger_id == planted.ledger_id
        (part,) = short.fragments
        assert (part.away, part.copies_left) == ((gone.bookie_id,), 2)
        assert not part.is_lost_with_one_more
        deep = await checked(planted.api, "log", deep=True)
        assert {each.where.bookie for each in deep.not_checked} == {gone.bookie_id}
        assert kinds(deep) == ["under_replicated"], "who does not answer is not missing"
        assert ended(await repaired(planted.api, report)) == [Ended.DONE]
        now = await planted.ensemble()
        assert gone.bookie_id not in now
        assert len(set(now)) == 3
        await planted.is_whole()
        assert ended(await repaired(planted.api, report)) == [Ended.NOT_NEEDED]
    finally:
        gone.start()
        await serves_again(gone)
    await planted.is_whole()


async def test_two_of_three_are_gone(planted: Planted) -> None:
    """One more, and the entries are lost: that is said. One place is all that is free."""
    gone = planted.bookies[:2]
    for bookie in gone:
        bookie.kill()
    try:
        await come_true(
            lambda: not any(each.is_registered() for each in gone), "their registrations expire"
        )
        report = await checked(planted.api, "log", replication=True)
        assert kinds(report) == ["under_replicated"] * 2
        assert {each.severity.value for each in report.damage} == {"bad"}
        (part,) = report.under_replicated[0].fragments
        assert (part.copies_left, part.is_lost_with_one_more) == (1, True)
        assert sorted(ended(await repaired(planted.api, report))) == [Ended.DONE, Ended.FAILED]
    finally:
        for bookie in gone:
            bookie.start()
            await serves_again(bookie)
    await planted.is_whole()


async def test_a_bookie_that_is_silent_is_not_checked(planted: Planted) -> None:
    silent = planted.bookies[0]
    silent.freeze()
    try:
        report = await checked(planted.api, "log", deep=True)
    finally:
        silent.thaw()
    await serves_again(silent)
    assert not report.is_clean
    assert {each.where.bookie for each in report.not_checked} == {silent.bookie_id}
    assert "copy_missing" not in kinds(report)
    await planted.is_whole()


async def test_copies_that_differ_and_are_whole(planted: Planted) -> None:
    """Nobody can tell which is the right one: all are named, none is changed."""
    entry_id = planted.ids[2].entry_id
    odd = planted.bookies[1].bookie_id
    async with stores_of(planted.api) as stores:
        inner = copies(stores)._copies
        stored, digest = await inner._closed(planted.ledger_id, None)
        head = digest.pack_head(planted.ledger_id, entry_id, entry_id - 1, 10_000, [b"odd"])
        await inner._write(stored, digest, odd, {entry_id: memoryview(head + b"odd")})
    report = await checked(planted.api, "log", deep=True)
    differ = [each for each in report.damage if each.kind == "copy_differs"]
    assert sorted(str(each.where.bookie) for each in differ) == sorted(await planted.ensemble())
    assert {each.where.first_entry for each in differ} == {entry_id}
    assert not report.plan


@pytest.mark.parametrize("off", [-3, 5])
async def test_metadata_of_a_ledger_that_names_another_end(planted: Planted, off: int) -> None:
    async with stores_of(planted.api) as stores:
        nodes = copies(stores)._nodes
        stored = await nodes.read_fresh(planted.ledger_id)
        last_entry = stored.metadata.last_entry_id + off
        await nodes.change(
            stored,
            lambda now: (
                None
                if now.last_entry_id == last_entry
                else dataclasses.replace(now, last_entry_id=last_entry)
            ),
        )
    report = await checked(planted.api, "log")
    where = only(report, "end_differs").where
    assert (where.log, where.segment, where.ledger_id) == ("log", 1, planted.ledger_id)
    done = await repaired(planted.api, report)
    assert ended(done) == [Ended.DONE], done
    await planted.is_whole()


# --- killed, and done again


class _Killed(BaseException):
    """The process ends here."""


async def killed(planted: Planted, report: Any, point: str, side: str) -> None:
    def kill(reached: str, reached_side: str) -> None:
        if (reached, reached_side) == (point, side):
            raise _Killed

    trace.listen(kill)
    try:
        with pytest.raises(_Killed):
            await repaired(planted.api, report)
    finally:
        trace.listen(None)


async def done_again(planted: Planted, report: Any) -> None:
    assert set(ended(await repaired(planted.api, report))) <= {Ended.DONE, Ended.NOT_NEEDED}
    await planted.is_whole()


async def test_killed_while_a_copy_is_mended(planted: Planted) -> None:
    cases = [("copies.written", side) for side in SIDES]
    for number, (point, side) in enumerate([*cases, *(("copies.read_back", s) for s in SIDES)]):
        await planted.spoil(planted.bookies[1], number)
        report = await checked(planted.api, "log", deep=True)
        assert kinds(report) == ["copy_damaged"]
        await killed(planted, report, point, side)
        await done_again(planted, report)


async def test_killed_while_copies_move(planted: Planted) -> None:
    gone = planted.bookies[0]
    gone.kill()
    try:
        await come_true(lambda: not gone.is_registered(), "its registration expires")
        report = await checked(planted.api, "log", replication=True)
        for point in ("copies.written", "copies.read_back", "copies.moved"):
            for side in SIDES:
                assert gone.bookie_id in await planted.ensemble()
                await killed(planted, report, point, side)
        assert gone.bookie_id not in await planted.ensemble()
        await done_again(planted, report)
    finally:
        gone.start()
        await serves_again(gone)
    await planted.is_whole()


async def test_killed_while_an_end_is_amended(planted: Planted) -> None:
    async with stores_of(planted.api) as stores:
        nodes = copies(stores)._nodes
        stored = await nodes.read_fresh(planted.ledger_id)
        wrong = stored.metadata.last_entry_id - 3
        await nodes.change(
            stored,
            lambda now: (
                None
                if now.last_entry_id == wrong
                else dataclasses.replace(now, last_entry_id=wrong)
            ),
        )
    report = await checked(planted.api, "log")
    for side in SIDES:
        assert kinds(await checked(planted.api, "log")) == ["end_differs"]
        await killed(planted, report, "copies.end_amended", side)
    await done_again(planted, report)


async def test_an_open_segment_is_checked_as_far_as_it_is_published(servers: Cluster) -> None:
    api = Planted(servers).api
    async with api.open_writer() as log:
        for number in range(20):
            await log.append(b"%d" % number)
        report = await checked(api, deep=True)
        assert not report.damage, report.findings
        assert report.entries >= 20
        await log.append(b"and on it goes")


async def test_where_nobody_looks_after_connections(servers: Cluster) -> None:
    """Two checks and a repair at once, over one client."""
    planted = Planted(servers)
    await planted.fill()
    await planted.spoil(planted.bookies[0], 1)
    async with aio.connect(planted.api.url) as client:
        report = await client.admin.fsck(deep=True)
        results = await asyncio.gather(
            client.admin.repair(report), client.admin.fsck(deep=True), client.admin.repair(report)
        )
    assert sorted(ended(results[0]) + ended(results[2])) == [Ended.DONE, Ended.NOT_NEEDED]
    await planted.is_whole()

"""What it takes to call an entry visible: a LAC that a bookie shows is not yet one that it keeps.

The bookie here groups what it writes to its journal for a long time, so that the moment between
showing and keeping, a few milliseconds on a real one, is long enough to kill it in (ADR 10).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest

from dlog.ledger.bookkeeper.links import ControlLink
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.streams.health.bookies import BookieQuarantine
from dlog.testing.cluster import Bookie, Cluster
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3 import pack_add, pack_read_lac, pack_write_lac
from dlog.wire.bookie_v3_replies import ReadLacBody, Response
from integration.bookkeeper.fault_tools import serves_again
from integration.bookkeeper.test_links import DIGEST, KEY
from integration.conftest import OwnCluster

GROUPS_MS = 2_000
GROUPS_LONG = {
    "journalAdaptiveGroupWrites": "true",
    "journalFlushWhenQueueEmpty": "false",
    "journalMaxGroupWaitMSec": str(GROUPS_MS),
    "journalBufferedWritesThreshold": str(64 << 20),
}
PATIENCE_MS = 10_000
LAST = 2  # of the entries in the ledger

_ledger_ids = itertools.count((1 << 41) + time.time_ns() % (1 << 30) * 1_000)


@pytest.fixture
def cluster(own_cluster: OwnCluster) -> Cluster:
    return own_cluster(bookies=1, settings=GROUPS_LONG)


@pytest.fixture
async def links(cluster: Cluster) -> AsyncIterator[BookieLinks]:
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    health = BookieQuarantine()
    registry = BookieRegistry(meta, cluster.ledgers_root, health=health)
    await registry.open()
    made = BookieLinks(registry, health=health)
    yield made
    await made.close()
    await registry.close()
    await meta.close()


async def filled(link: ControlLink) -> int:
    """A ledger of three entries, none of which says that the last is confirmed."""
    ledger_id, payload = next(_ledger_ids), b"x"
    answers = [
        link.ask(
            lambda txn_id, entry_id=entry_id: (
                pack_add(
                    txn_id,
                    ledger_id,
                    entry_id,
                    DIGEST.pack_head(ledger_id, entry_id, entry_id - 1, entry_id + 1, [payload]),
                    payload_bytes=1,
                    master_key=KEY,
                )
                + payload
            ),
            timeout_ms=PATIENCE_MS,
        )
        for entry_id in range(LAST + 1)
    ]
    assert {response.answer for response in await asyncio.gather(*answers)} == {Answer.OK}
    return ledger_id


def writing(link: ControlLink, ledger_id: int) -> asyncio.Future[Response]:
    proof = DIGEST.pack_lac(ledger_id, LAST)
    return asyncio.ensure_future(
        link.ask(
            lambda txn_id: pack_write_lac(txn_id, ledger_id, LAST, proof, master_key=KEY),
            timeout_ms=PATIENCE_MS,
        )
    )


async def shown(link: ControlLink, ledger_id: int) -> int | None:
    """The LAC that was written to the bookie, as it tells it now."""
    response = await link.ask(lambda txn: pack_read_lac(txn, ledger_id), timeout_ms=PATIENCE_MS)
    assert isinstance(response.body, ReadLacBody)
    if response.body.proof is None:
        return None
    return DIGEST.verify_lac(response.body.proof, ledger_id=ledger_id)


async def up_again(bookie: Bookie, links: BookieLinks, before: ControlLink) -> ControlLink:
    bookie.start()
    await serves_again(bookie)
    async with asyncio.timeout(60):
        while (link := await links.control(bookie.bookie_id)) is before:
            await asyncio.to_thread(bookie.answers)
    return link


@pytest.mark.parametrize("is_answered", [False, True], ids=["shown", "answered"])
async def test_only_an_answered_lac_survives_its_bookie(
    cluster: Cluster, links: BookieLinks, is_answered: bool
) -> None:
    """What is shown and not answered is gone after kill -9, from all bookies if all are killed at
    once: an append that was acknowledged upon it would be one that no reader sees."""
    bookie = cluster.bookies[0]
    link = await links.control(bookie.bookie_id)
    ledger_id = await filled(link)
    answer = writing(link, ledger_id)
    begun_s = time.monotonic()
    async with asyncio.timeout(GROUPS_MS / 1000 / 2):  # long before the journal has it
        while await shown(link, ledger_id) != LAST:
            pass
    shown_ms = (time.monotonic() - begun_s) * 1000
    if is_answered:
        assert (await answer).answer is Answer.OK
        answered_ms = (time.monotonic() - begun_s) * 1000
        print(f"shown after {shown_ms:.1f} ms, answered after {answered_ms:.0f} ms")
        assert answered_ms > 2 * shown_ms
    bookie.kill()
    if not is_answered:
        assert (await answer).answer is Answer.DISCONNECTED
    link = await up_again(bookie, links, link)
    assert await shown(link, ledger_id) == (LAST if is_answered else None)

"""Strict tails beside Java's auto-recovery (H1, H2): bookies are killed under writers that stand
still in the middle of a burst, auto-recovery takes their open ledgers for abandoned ones and
recovers them, and the writers wake and go on. Whatever a strict reader delivered is in the log in
the end, judged by the checkers of the chaos tests.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dlog.ledger.store import LedgerInfo
from dlog.testing.checkers import Story
from dlog.testing.children import Children
from dlog.testing.cluster import AUTO_RECOVERY, Bookie
from integration.bookkeeper.fault_tools import come_true, serves_again
from integration.conftest import OwnCluster
from tests.chaos.actors import Stage
from tests.chaos.arena import Arena
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

ROUNDS = int(os.environ.get("DLOG_STRANGER_ROUNDS", "2"))
# How long auto-recovery lets a ledger alone that is open and lacks a bookie: 30 s unless told.
SETTINGS = {**AUTO_RECOVERY, "openLedgerRereplicationGracePeriod": "200"}


async def _newest(stage: Stage) -> tuple[LedgerInfo, tuple[str, ...]]:
    """The ledger at work, and its bookies."""
    stores = await stage.client._stores(False)
    ledger_id = (await stage.look())[-1].ledger_id
    stored = await stores.ledgers._nodes.read_fresh(ledger_id)  # type: ignore[attr-defined]
    return await stores.ledgers.info(ledger_id), stored.metadata.fragments[-1].ensemble


async def test_strict_tails_beside_auto_recovery(own_cluster: OwnCluster, tmp_path: Path) -> None:
    cluster = own_cluster(bookies=4, settings=SETTINGS)
    recovered: list[int] = []
    with Children(tmp_path, python_path=ROOT) as children:
        arena = Arena(tmp_path, children, data=cluster.url)
        async with arena.stage("watcher") as watcher:
            await (await watcher.open_writer()).append()
            followers = [arena.start("follow", "strict") for _ in range(2)]
            for follower in followers:
                await asyncio.to_thread(follower.wait_line, "following")
            stores = await watcher.client._stores(False)
            for number in range(ROUNDS):
                is_last = number == ROUNDS - 1
                writer = arena.start("write", 100_000, 40, 600)
                await asyncio.to_thread(writer.wait_line, "running")
                writer.freeze()
                info, ensemble = await _newest(watcher)
                victim = cluster.bookie(ensemble[number % 3])
                victim.kill()

                async def is_closed(ledger_id: int = info.ledger_id) -> bool:
                    return (await stores.ledgers.info(ledger_id)).closed is not None

                await come_true(is_closed, f"auto-recovery recovers ledger {info.ledger_id}")
                recovered.append(info.ledger_id)
                returning = asyncio.ensure_future(_return(victim))
                if is_last:
                    writer.kill()
                else:
                    writer.thaw()
                    await come_true(lambda w=writer: w.is_running, "it lives")
                    await _goes_on(watcher, info.ledger_id)
                    writer.kill()
                await asyncio.to_thread(writer.wait_end)
                await returning
        story = await arena.survey(followers[0])
        followers[1].wait_success()
    _judge(story)
    print(f"auto-recovery ended ledgers {recovered} under us; {len(story.log)} messages")


async def _return(bookie: Bookie) -> None:
    bookie.start()
    await serves_again(bookie)


async def _goes_on(watcher: Stage, ledger_id: int) -> None:
    """The writer heals: its log goes on in another ledger, and is acknowledged to there."""

    async def has_moved() -> bool:
        return (await watcher.look())[-1].ledger_id > ledger_id

    await come_true(has_moved, "the writer took another ledger")


def _judge(story: Story) -> None:
    names = [event.name for event in story.log]
    followed = [r for name, r in story.readers.items() if name.startswith("follow")]
    assert len(followed) == 2
    for reader in followed:
        assert [event.name for event in reader.delivered] == names

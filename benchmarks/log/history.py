"""A log with a hundred thousand sealed segments: `history`.

The time of `open_writer`, from the call to the return, of a client that is connected; and that of
one message and one rotation, on a log with so many segments and on one with ten, turn by turn. Each
log's list is made for it (see `benchmarks.histories`), on a cluster whose new ledger ids are above
all of theirs.
"""

from __future__ import annotations

import asyncio
from functools import partial

import dlog
from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.common import Finding, interleaved
from benchmarks.histories import counts_of, findings, name_of, opened_s, rotated_s, write_history
from dlog.errors import AlreadyExists
from dlog.meta.layout import Layout
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.wire.ledger_paths import LONG_IDS_NODE

OPEN_S = 0.300


def history(stages: Stages) -> list[Finding]:
    setting = stages.setting
    counts = counts_of(setting)
    with stages.stage() as stage:
        asyncio.run(_write(stage, counts))
        with dlog.connect(stage.cluster.url) as client:
            names = [name_of(n) for n in counts]
            opening = {name: partial(opened_s, client, name) for name in names}
            interleaved(1, opening)
            opened = interleaved(setting.pick(7 * setting.rounds, 1), opening)
            logs = {name: client.open_writer(name) for name in names}
            rotating = {name: partial(rotated_s, log) for name, log in logs.items()}
            interleaved(1, rotating)
            rotated = interleaved(setting.pick(30 * setting.rounds, 1), rotating)
    return findings(counts, opened, rotated, OPEN_S)


async def _write(stage: Stage, counts: tuple[int, ...]) -> None:
    cluster = stage.cluster
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    try:
        try:
            await meta.create(f"{cluster.ledgers_root}/{LONG_IDS_NODE}", b"")
        except AlreadyExists:
            pass
        async with dlog.aio.connect(cluster.url) as client:
            for count in counts:
                async with client.open_writer(name_of(count)) as log:
                    await log.append(b"the newest ledger is looked for")
        for count in counts:
            await write_history(meta, Layout(), count)
    finally:
        await meta.close()

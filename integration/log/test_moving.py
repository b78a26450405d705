"""Logs between a directory and a real cluster, and metadata between two roots of one ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.testing.cluster import Cluster
from tests.pace import Deadline
from tests.tidy.source import ROOT
from tests.tiers import in_full

LOG = "orders"
SMALL = dlog.LogOptions(segment_bytes=256 << 10)
KILLS = in_full([2, 10], but=[2], seconds=25)
PATIENCE_S = 60.0
_roots = itertools.count()


def root(cluster: Cluster) -> str:
    return f"zk://{cluster.zookeeper.hosts}/moving-{next(_roots)}?ledgers={cluster.ledgers_root}"


def entries(url: str, log: str = LOG) -> list[list[tuple[object, ...]]]:
    """All that messages have, but for the ids, which are a copy's own."""
    with dlog.open_reader(log, url=url) as reader:
        return [[message[3:9] for message in batch.to_pylist()] for batch in reader.batches()]


def fill(url: str, count: int) -> None:
    with dlog.open_writer(LOG, url=url, create=SMALL) as log:
        for i in range(count):
            log.append_many([b"%d.%d" % (i, j) * 50 for j in range(40)], atomic=True)
            log.append(None, key=b"%d" % i, headers=[("n", b"x"), ("n", b"")], event_time=i)


def copy_killed(source: str, target: str, kills: int) -> None:
    """`dlog copy`, killed each time it came some way."""
    command = [sys.executable, "-m", "dlog", "copy", source, LOG, target, "--quiet"]
    with dlog.connect(target) as client:
        for _ in range(kills):
            before = next_seq(client)
            child = subprocess.Popen(command, cwd=ROOT)
            deadline = Deadline(PATIENCE_S)
            try:
                while child.poll() is None and next_seq(client) == before:
                    assert not deadline.passed(), f"the copy stays at {before}"
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(0.02)
            finally:
                child.kill()
                child.wait()
    subprocess.run(command, cwd=ROOT, check=True)


def next_seq(client: Any) -> int:
    try:
        return int(client.admin.describe(LOG).next_seq)
    except dlog.DlogError:  # not made yet, or somebody is taking it over
        return 0


@pytest.mark.parametrize("kills", KILLS)
async def test_to_a_cluster_and_back(cluster: Cluster, tmp_path: Path, kills: int) -> None:
    laptop, there, again = f"file:{tmp_path / 'a'}", root(cluster), f"file:{tmp_path / 'b'}"
    await asyncio.to_thread(fill, laptop, 120)
    await asyncio.to_thread(copy_killed, laptop, there, kills)
    await asyncio.to_thread(copy_killed, there, again, kills)
    first = await asyncio.to_thread(entries, laptop)
    assert await asyncio.to_thread(entries, there) == first
    assert await asyncio.to_thread(entries, again) == first
    assert sum(map(len, first)) == 120 * 41


async def test_it_follows_onto_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    laptop, there = f"file:{tmp_path / 'a'}", root(cluster)
    await asyncio.to_thread(fill, laptop, 1)
    await dlog.aio.copy_log(laptop, LOG, there)
    copying = asyncio.ensure_future(dlog.aio.copy_log(laptop, LOG, there, follow=True))
    async with (
        dlog.aio.open_writer(LOG, url=laptop) as writer,
        dlog.aio.open_reader(LOG, url=there, start=41, follow=True) as reader,
    ):
        for i in range(3):
            await writer.append(b"late %d" % i)
            (message,) = await reader.read()
            assert message.value == b"late %d" % i
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying


async def test_metadata_moves_to_another_root(cluster: Cluster) -> None:
    here, there = root(cluster), root(cluster)
    await asyncio.to_thread(fill, here, 20)
    before = await asyncio.to_thread(entries, here)
    old = await dlog.aio.open_writer(LOG, url=here)
    async with dlog.aio.connect(here) as left, dlog.aio.connect(there) as arrived:
        document = await left.admin.move_meta(LOG, there)
        with pytest.raises(dlog.Fenced):
            await old.append(b"late")
        await old.close()
        assert (await arrived.admin.import_meta(document, dry_run=True)).next_seq == 820
        await arrived.admin.import_meta(document)
        with pytest.raises(dlog.AlreadyExists):
            await arrived.admin.import_meta(document)
        with pytest.raises(dlog.Moved):
            await left.open_writer(LOG)
        assert await asyncio.to_thread(entries, there) == before
        await asyncio.to_thread(fill, there, 5)
        back = await arrived.admin.move_meta(LOG, here)
        await left.admin.import_meta(back)
        with pytest.raises(dlog.AlreadyExists, match="too old"):
            await arrived.admin.import_meta(document)
        assert json.loads(back)["node"]["epoch"] > json.loads(document)["node"]["epoch"]
    assert sum(map(len, await asyncio.to_thread(entries, here))) == 25 * 41


async def test_other_ledgers_are_not_the_same(cluster: Cluster, tmp_path: Path) -> None:
    here, there = root(cluster), f"file:{tmp_path / 'a'}"
    await asyncio.to_thread(fill, here, 1)
    async with dlog.aio.connect(here) as left, dlog.aio.connect(there) as arrived:
        document = await left.admin.move_meta(LOG, there)
        with pytest.raises(dlog.NotFound, match="same ledgers"):
            await arrived.admin.import_meta(document)
        await left.admin.import_meta(await left.admin.move_meta(LOG, here, retarget=True))
    assert sum(map(len, await asyncio.to_thread(entries, here))) == 41

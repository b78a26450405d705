"""A writer over sixteen shards beside the writer of one log: the same messages, each with a key,
submitted as fast as the window takes them."""

from __future__ import annotations

import asyncio
import time

import dlog
from benchmarks.common import MIB, Finding, Setting, median, median_ratio, random_values
from dlog.testing.cluster import Cluster

SHARDS = 16
KEYS = [b"key-%05d" % number for number in range(10_000)]
GOAL = 0.8
ONE_COPY = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "unsafe_single_copy": True}


def stream_write(setting: Setting) -> list[Finding]:
    """Embedded, with fsync."""
    with setting.scratch() as directory:
        return asyncio.run(_write(setting, f"file:{directory}", "stream_write", "embedded"))


def stream_write_bookies(setting: Setting) -> list[Finding]:
    """On three bookies, which share the machine with the client."""
    with Cluster(bookies=3, quick=setting.quick) as cluster:
        return asyncio.run(_write(setting, cluster.url, "stream_write_bookies", "three bookies"))


async def _write(setting: Setting, url: str, row: str, where: str) -> list[Finding]:
    options = ONE_COPY if url.startswith("file:") else {}
    findings = []
    for size, megabytes in ((1024, 128), (100, 24)):
        count = setting.pick(megabytes * MIB // size, 2_000)
        values = random_values(count, size)
        rates: dict[str, list[float]] = {"log": [], "stream": []}
        async with dlog.aio.connect(url) as client:
            for turn in range(setting.rounds):
                log_name, name = f"log-{row}-{size}-{turn}", f"stream-{row}-{size}-{turn}"
                await client.admin.create(log_name, **options)
                async with client.open_writer(log_name) as log:
                    rates["log"].append(await _rate(log, values))
                stream = await client.create_stream(name, shards=SHARDS, **options)
                async with stream.open_writer() as writer:
                    rates["stream"].append(await _rate(writer, values))
                await client.admin.remove(log_name)
                await stream.remove()
        ratio = median_ratio(rates["stream"], rates["log"])
        findings.append(
            Finding(
                row,
                f"{SHARDS} shards, a key each, {size} B, {where}",
                f"{median(rates['stream']):,.0f} messages/s ({ratio:.0%} of one log)",
                f">= {GOAL:.0%} of one log" if size == 1024 else "",
                ratio >= GOAL if size == 1024 else None,
                f"one log {median(rates['log']):,.0f}",
                {"ratio": ratio},
                rates,
            )
        )
    return findings


async def _rate(writer: object, values: list[bytes]) -> float:
    submit = writer.submit  # type: ignore[attr-defined]
    keys = KEYS
    began = time.perf_counter()
    for number, value in enumerate(values):
        await submit(value, key=keys[number % len(keys)])
    await writer.flush()  # type: ignore[attr-defined]
    return len(values) / (time.perf_counter() - began)

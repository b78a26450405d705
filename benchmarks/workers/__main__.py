"""python -m benchmarks.workers [row …] [--rounds 3] [--quick] [--json FILE]

- `throughput`: messages per second through a worker, beside a bare reader of the same shard
  (`file:`), turn by turn: figure >= 80 %.
- `hand_off`: how long a shard rests when it goes over in order (a cluster): figure p50 <= 300 ms.
- `killed`: from kill -9 of a worker to the first message of the last of its shards elsewhere (a
  cluster): figure the time-out and 2 s.
- `balance`: from one worker to eight over 64 shards, all processes (a cluster): figure one time-out
  and 2 s, from when the last of them has started.
- `frozen`: a worker is stopped for 30 s and wakes (a cluster): figure 0 effects of it accepted.
- `away`: ZooKeeper is away for a minute (a cluster): figure shards go on for their lease only.

The exit code says nothing of the figures: a machine that is busy must not look like a defect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmarks.command import measure
from benchmarks.common import (
    Finding,
    Setting,
    interleaved,
    median,
    median_ratio,
    quantile,
    random_values,
)
from benchmarks.workers.troubles import away, frozen

TIMEOUT_MS = 2_000
SHARE_MIN, HAND_OFF_MS_MAX = 0.8, 300


def throughput(setting: Setting) -> list[Finding]:
    count = setting.pick(1_000_000, 20_000)
    with setting.scratch() as directory:
        url = f"file:{directory / 'data'}"
        asyncio.run(_fill(url, count))
        samples = interleaved(
            setting.rounds,
            {
                "reader": lambda: asyncio.run(_read(url, count)),
                "worker": lambda: asyncio.run(_work(url, count, is_async=True)),
                "threads": lambda: asyncio.run(_work(url, count, is_async=False)),
            },
        )
    findings = []
    for case, told in (("worker", "async function"), ("threads", "function on a thread")):
        share = median_ratio(samples[case], samples["reader"])
        findings.append(
            Finding(
                "throughput",
                f"through a worker, {told}",
                f"{median(samples[case]):,.0f} messages/s, {share:.0%}",
                f">= {SHARE_MIN:.0%} of a bare reader",
                share >= SHARE_MIN,
                f"bare reader {median(samples['reader']):,.0f} messages/s",
                rounds={case: samples[case], "reader": samples["reader"]},
            )
        )
    return findings


async def _fill(url: str, count: int) -> None:
    from dlog import aio

    async with aio.connect(url) as client:
        stream = await client.create_stream("bench", shards=1)
        async with stream.open_writer() as writer:
            for value in random_values(count, 100):
                await writer.submit(value)
            await writer.flush()


async def _read(url: str, count: int) -> float:
    """Messages per second, decoded to values."""
    from dlog import aio

    async with aio.connect(url) as client:
        began_s = time.monotonic()
        seen = 0
        async with client.open_reader("bench/0") as reader:
            async for batch in reader.batches():
                seen += len(batch.values())
        took_s = time.monotonic() - began_s
    assert seen == count
    return count / took_s


_groups = iter(range(1_000_000))


async def _work(url: str, count: int, *, is_async: bool) -> float:
    """From the first batch to the last: joining a group is not what is measured."""
    from dlog import MessageBatch, aio

    seen = 0
    began_s = ended_s = 0.0
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(batch: MessageBatch) -> None:
        nonlocal seen, ended_s
        seen += len(batch.values())
        if seen >= count:
            ended_s = time.monotonic()
            loop.call_soon_threadsafe(done.set)

    class Program:
        async def initialize(self, shard: object) -> None:
            nonlocal began_s
            began_s = time.monotonic()

        async def process(self, batch: MessageBatch) -> None:
            take(batch)

    class PlainProgram:
        def initialize(self, shard: object) -> None:
            nonlocal began_s
            began_s = time.monotonic()

        def process(self, batch: MessageBatch) -> None:
            take(batch)

    async with aio.connect(url) as client:
        program = Program if is_async else PlainProgram
        async with client.open_worker(f"g{next(_groups)}", "bench", program):
            await done.wait()
    return count / (ended_s - began_s)


def hand_off(setting: Setting) -> list[Finding]:
    from dlog.testing.cluster import Cluster
    from integration.groups.scene import a_scene

    pauses: list[float] = []
    with Cluster() as cluster, setting.scratch() as directory:
        with a_scene(cluster.url, directory, shards=8) as scene:
            first = scene.start(timeout_ms=TIMEOUT_MS)
            scene.wait_shared(first)
            for _ in range(setting.rounds):
                second = scene.start(timeout_ms=TIMEOUT_MS)
                scene.wait_shared(first, second)
                second.leave()
                scene.wait_shared(first)
            pauses = scene.hand_offs_s()
            scene.finish()
            again = scene.again
    p50_ms = 1000 * median(pauses)
    return [
        Finding(
            "hand_off",
            f"a shard rests, {len(pauses)} hand-offs, {again} messages twice",
            f"p50 {p50_ms:.0f} ms, p99 {1000 * quantile(pauses, 0.99):.0f} ms",
            f"p50 <= {HAND_OFF_MS_MAX} ms",
            p50_ms <= HAND_OFF_MS_MAX and again == 0,
            rounds={"pauses_s": pauses},
        )
    ]


def killed(setting: Setting) -> list[Finding]:
    from dlog.testing.cluster import Cluster
    from integration.groups.scene import a_scene

    took: list[float] = []
    with Cluster() as cluster, setting.scratch() as directory:
        with a_scene(cluster.url, directory, shards=6) as scene:
            first = scene.start(timeout_ms=TIMEOUT_MS)
            scene.wait_shared(first)
            for _ in range(setting.rounds):
                second = scene.start(timeout_ms=TIMEOUT_MS)
                scene.wait_shared(first, second)
                second.kill()
                took.append(scene.wait_shared(first))
            scene.finish()
            again = scene.again
    most_s = TIMEOUT_MS / 1000 + 2
    return [
        Finding(
            "killed",
            f"kill -9 of one of two workers, time-out {TIMEOUT_MS} ms",
            f"all shards consumed after {median(took):.2f} s, at most {max(took):.2f} s",
            f"<= {most_s:g} s",
            max(took) <= most_s,
            f"{again} messages twice, none lost",
            rounds={"took_s": took},
        )
    ]


def balance(setting: Setting) -> list[Finding]:
    from dlog.testing.cluster import Cluster
    from examples.wordcount.process import wait_until
    from integration.groups.scene import a_scene

    shards, workers = setting.pick(64, 8), setting.pick(8, 2)
    took: list[float] = []
    with Cluster() as cluster, setting.scratch() as directory:
        with a_scene(cluster.url, directory, shards=shards) as scene:
            first = scene.start(timeout_ms=TIMEOUT_MS)
            scene.wait_shared(first)
            for _ in range(setting.rounds):
                others = [scene.start(timeout_ms=TIMEOUT_MS) for _ in range(workers - 1)]
                wait_until(lambda new=others: all(each.all("here") for each in new), "all are here")
                here_s = max(each.all("here")[0]["at_s"] for each in others)
                scene.wait_shared(first, *others)
                took.append(time.monotonic() - here_s)
                for each in others:
                    each.leave()
                scene.wait_shared(first)
            scene.finish()
            again = scene.again
    most_s = TIMEOUT_MS / 1000 + 2
    return [
        Finding(
            "balance",
            f"1 -> {workers} workers over {shards} shards, time-out {TIMEOUT_MS} ms",
            f"even after {median(took):.2f} s, at most {max(took):.2f} s",
            f"<= {most_s:g} s",
            max(took) <= most_s,
            f"{again} messages twice",
            rounds={"took_s": took},
        )
    ]


ROWS: dict[str, Callable[[Setting], list[Finding]]] = {
    "throughput": throughput,
    "hand_off": hand_off,
    "killed": killed,
    "balance": balance,
    "frozen": frozen,
    "away": away,
}


if __name__ == "__main__":
    measure("workers", "What groups of workers cost.", ROWS)

"""LH-15: shards shared out by lag, or by the bytes that come, and not by their number alone; and
what does not get on, as others see it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import GROUP, STREAM, a_group, even, logs_of, send, until, work
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)


class Lazy:
    """Takes everything, and never says that it is done with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.log_of_key: dict[bytes, str] = {}

    def process(self, batch: Any, tracker: Any) -> None:
        with self.lock:
            for message in batch.to_pylist():
                self.log_of_key[message.key] = tracker.shard.log


@pytest.mark.parametrize("weigh", ["lag", "bytes"])
async def test_what_is_heavy_is_shared_out(api: Api, weigh: str) -> None:
    """Two of four shards become heavy, and one worker has both: it keeps one of them."""
    lazy = Lazy()
    options = {"weigh": weigh, "weigh_ms": 200, "flush_ms": 100}
    async with a_group(api, shards=4, messages=0) as (client, _, writer):
        async with (
            work(client, lazy.process, name="ann", **options) as ann,
            work(client, lazy.process, name="bob", **options) as bob,
        ):
            await even(ann, bob, shards=4)
            await send(writer, 40)  # of each key one
            await eventually(lambda: len(lazy.log_of_key) == 40, lambda: str(lazy.log_of_key))
            heavy = logs_of(ann)
            assert len(heavy) == 2
            keys = [key for key, log in lazy.log_of_key.items() if log in heavy]

            async def is_shared() -> bool:
                for key in keys:
                    await writer.submit(b"x" * 1_000, key=key)
                await writer.flush()
                if [len(logs_of(each) & heavy) for each in (ann, bob)] != [1, 1]:
                    return False
                told = await client.group(GROUP, STREAM).describe()
                assert told.weigh == weigh
                weights = {each.log: each.weight for each in told.shards}
                light = weights.keys() - heavy
                return min(weights[log] for log in heavy) > max(weights[log] for log in light)

            await until(is_shared)
            with pytest.raises(dlog.ConfigError, match="agree"):
                await work(client, lazy.process)
        await client.group(GROUP, STREAM).remove()
        assert await client.groups() == []


async def test_what_does_not_get_on_is_seen_by_others(api: Api) -> None:
    """A call that lasts and a batch that fails, by the worker's own node; and when it is over, no
    more. What it fails with is not for everybody to read."""
    go_on = threading.Event()

    def process(batch: Any, tracker: Any) -> None:
        if go_on.is_set():
            return
        if tracker.shard.number == 0:
            go_on.wait()
        raise ValueError("secret")

    options = {"stall_after_ms": 100, "retry_pause_ms": 1}
    async with a_group(api, shards=2, messages=40) as (client, _, _writer):
        group = client.group(GROUP, STREAM)
        async with work(client, process, **options):

            async def waits() -> dict[str, str]:
                members = (await group.describe()).members
                return dict(members[0].waits) if members else {}

            both = {"orders/0": "processing_stalled", "orders/1": "processing_failed"}

            async def is_told() -> bool:
                return await waits() == both

            try:
                await until(is_told)
            finally:
                go_on.set()

            async def is_over() -> bool:
                return await waits() == {}

            await until(is_over)

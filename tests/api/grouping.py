"""Workers of a group, and what their programs were given."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dlog
from tests.api.adapter import Api
from tests.api.waiting import eventually, until

GROUP, STREAM = "billing", "orders"
TIMEOUT_MS = 1_000
KEYS = [b"key %d" % number for number in range(40)]


class Seen:
    """What any program of the test was given: thread-safe, and in order for each shard."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_shard: dict[str, list[int]] = {}
        self.values: Counter[bytes] = Counter()
        self.told: list[tuple[Any, ...]] = []

    def add(self, log: str, batch: Any) -> None:
        with self.lock:
            self.by_shard.setdefault(log, []).extend(m.seq for m in batch.to_pylist())
            self.values.update(batch.values())

    def tell(self, *what: Any) -> None:
        with self.lock:
            self.told.append(what)

    @property
    def count(self) -> int:
        with self.lock:
            return self.values.total()

    def process(self, batch: Any, tracker: Any) -> None:
        """A plain function, with explicit checkpoints."""
        self.add(tracker.shard.log, batch)
        tracker.checkpoint()

    @property
    def twice(self) -> list[bytes]:
        with self.lock:
            return [value for value, times in self.values.items() if times > 1]


async def send(writer: Any, many: int, first: int = 0) -> list[bytes]:
    values = [b"%d" % number for number in range(first, first + many)]
    for number, value in enumerate(values):
        await writer.submit(value, key=KEYS[number % len(KEYS)])
    await writer.flush()
    return values


@asynccontextmanager
async def a_group(
    api: Api, shards: int = 4, messages: int = 200
) -> AsyncIterator[tuple[Any, Any, Any]]:
    """A client, a stream with messages in it, and its writer."""
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=shards)
        async with stream.open_writer() as writer:
            if messages:
                await send(writer, messages)
            yield client, stream, writer


def work(client: Any, processor: Any, **options: Any) -> Any:
    options = {"timeout_ms": TIMEOUT_MS, **options}
    return client.open_worker(GROUP, STREAM, processor, **options)


def logs_of(worker: Any) -> set[str]:
    return {each.log for each in worker.shards}


async def even(*workers: Any, shards: int) -> None:
    """All shards are had, and nobody has more than one more than another."""

    def is_even() -> bool:
        many = [len(logs_of(each)) for each in workers]
        return sum(many) == shards and max(many) - min(many) <= 1

    await eventually(is_even, lambda: str([logs_of(each) for each in workers]))


async def seen_all(seen: Seen, many: int) -> None:
    await eventually(lambda: seen.count >= many, lambda: f"{seen.count} of {many}")


async def checkpoints(client: Any) -> dict[str, int]:
    told: dlog.GroupDescription = await client.group(GROUP, STREAM).describe()
    return {
        each.log: -1 if each.checkpoint is None else each.checkpoint.next_seq
        for each in told.shards
    }


async def why(worker: Any) -> dlog.Reason | None:
    found = worker.why()
    return await found if hasattr(found, "__await__") else found  # type: ignore[no-any-return]


async def kept_up_to(client: Any, messages: int) -> None:
    """In all shards together."""

    async def is_kept() -> bool:
        return sum((await checkpoints(client)).values()) >= messages

    await until(is_kept)

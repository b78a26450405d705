"""A service opens and closes handles for months: of one that is over nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import dlog
from dlog.limits import MIB
from tests.api.adapter import AioApi, Api, OnThread, SyncApi, rest_of
from tests.api.conftest import open_files, our_threads
from tests.api.waiting import DEADLINE_S, eventually

WARM_UP = 4
CYCLES = 12
CYCLES_IN_FULL = 1_000
CYCLES_OF_A_LOG = 50
BYTES_MAX = 2 * MIB

Cycle = Callable[[Any, str], Awaitable[None]]  # with a client, on the log and the stream of a name


async def write(client: Any, name: str) -> None:
    async with client.open_writer(name) as log:
        await log.append(b"x")


async def be_fenced(client: Any, name: str) -> None:
    old = await client.open_writer(name)
    await old.append(b"x")
    async with client.open_writer(name) as log:
        await log.append(b"x")
        with pytest.raises(dlog.Fenced):
            await old.append(b"too late")
    await old.close()


async def read(client: Any, name: str) -> None:
    async with client.open_reader(name, end=1) as reader:
        assert len(await rest_of(reader)) == 1


async def follow(client: Any, name: str) -> None:
    async with client.open_reader(name, follow=True) as reader:
        assert len(await reader.read(1)) == 1


async def stand_by(client: Any, name: str) -> None:
    async with client.open_standby(name):
        pass


async def take_over(client: Any, name: str) -> None:
    async with client.open_standby(name) as standby:
        async with await standby.take_over() as log:
            await log.append(b"x")


async def fill(client: Any, name: str) -> None:
    segment = await client.admin.open_segment(name, job="job")
    await segment.append_many([b"x"])
    await segment.abort()


async def write_stream(client: Any, name: str) -> None:
    async with client.stream(f"{name}-stream").open_writer() as log:
        await log.append(b"x", key=b"key")


async def be_fenced_in_a_stream(client: Any, name: str) -> None:
    old = await client.stream(f"{name}-stream").open_writer()
    await old.append(b"x", key=b"key")
    async with client.stream(f"{name}-stream").open_writer() as log:
        await log.append(b"x", key=b"key")
        with pytest.raises(dlog.Fenced):
            await old.append(b"too late", key=b"key")
    with contextlib.suppress(dlog.Fenced):
        await old.close()


async def read_stream(client: Any, name: str) -> None:
    async with client.stream(f"{name}-stream").open_reader() as reader:
        assert await reader.read(1)


async def work(client: Any, name: str) -> None:
    async with await client.open_worker(f"{name}-group", f"{name}-stream", lambda message: None):
        pass


async def look_after(client: Any, name: str) -> None:
    assert await client.admin.list()
    await client.admin.describe(name)


async def connect(client: Any, name: str) -> None:
    """Another client, and all that it follows its options by."""
    api = (SyncApi if isinstance(client, OnThread) else AioApi)(client.url)
    async with api.connect() as other:
        await other.follow_config(name)
        assert await other.admin.list()


KINDS: list[Cycle] = [
    *(write, be_fenced, read, follow, stand_by, take_over, fill),
    *(write_stream, be_fenced_in_a_stream, read_stream, work, look_after, connect),
]
# What the places in memory hold of the logs themselves, which grow with each opening.
OF_THE_LOGS = {"_Ledger", "LedgerSpec", "ClosedLedger"}
HELD_BY_TASKS = ("Task", "coroutine", "Future", "_GatheringFuture", "frame", "traceback")


@contextlib.contextmanager
def only_new_ones() -> Iterator[None]:
    """The collector passes over all that is there now: a look at the rest takes milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _kept() -> Counter[str]:
    """Objects of ours and what holds on to them, threads and files."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    kept = Counter(
        kind.__qualname__
        for kind in kinds
        if str(kind.__module__).startswith("dlog") or kind.__name__ in HELD_BY_TASKS
    )
    kept["threads"], kept["files"] = len(our_threads()), len(open_files())
    return kept


def _held() -> list[tracemalloc.Statistic]:
    """By line. pathlib interns names, and the table of all that this process interned may move."""
    snapshot = tracemalloc.take_snapshot()
    return snapshot.filter_traces([tracemalloc.Filter(False, "*pathlib.py")]).statistics("lineno")


async def run(client: Any, cycle: Cycle, numbers: range) -> None:
    """On another log and stream now and then: each opening reads the list of those before it."""
    for number in numbers:
        name = f"log-{number // CYCLES_OF_A_LOG}"
        if number % CYCLES_OF_A_LOG == 0:
            await client.create_stream(f"{name}-stream", shards=1)
            await write(client, name)
            await write_stream(client, name)
        await cycle(client, name)


async def _cycles(api: Api, cycle: Cycle, count: int, *, measures_bytes: bool) -> None:
    async with api.connect() as client:
        await run(client, cycle, range(WARM_UP))
        with only_new_ones():
            before = _kept()

            def left() -> Counter[str]:
                grown = _kept() - before
                return Counter(
                    {k: n for k, n in grown.items() if n >= count // 2 and k not in OF_THE_LOGS}
                )

            if measures_bytes:
                tracemalloc.start(1)
            try:
                await run(client, cycle, range(WARM_UP, WARM_UP + count))
                # What ends by itself may take a moment, on a thread of its own.
                await eventually(
                    lambda: not left(), lambda: f"of {count} cycles stay {left()}", DEADLINE_S / 4
                )
                held = _held() if measures_bytes else []
            finally:
                tracemalloc.stop()
            most = (_kept() - before).most_common(3)
    bytes_held = sum(each.size for each in held)
    print(f"{cycle.__name__}: {bytes_held / 1024:.0f} KiB are held; most of {most}")
    assert bytes_held <= BYTES_MAX, held[:5]


@pytest.mark.tier("test")
@pytest.mark.parametrize("cycle", KINDS, ids=lambda cycle: cycle.__name__)
async def test_of_a_handle_that_is_over_nothing_stays(api: Api, cycle: Cycle) -> None:
    await _cycles(api, cycle, CYCLES, measures_bytes=False)


@pytest.mark.tier("full", seconds=15)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("make_api", "url"), [("sync", "file"), ("aio", "memory")], indirect=True)
@pytest.mark.parametrize("cycle", KINDS, ids=lambda cycle: cycle.__name__)
async def test_of_a_thousand_handles_nothing_stays(
    api: Api, cycle: Cycle, caplog: pytest.LogCaptureFixture
) -> None:
    """Each face once, each backend once: the test above has them all."""
    caplog.set_level(logging.CRITICAL, "dlog")  # pytest keeps each record
    # What a log in memory holds of its own is not what its handles hold.
    in_files = api.url.startswith("file:")
    await _cycles(api, cycle, CYCLES_IN_FULL, measures_bytes=in_files)


@pytest.mark.tier("test")
async def test_a_dead_writer_that_is_kept_keeps_little(api: Api) -> None:
    """Each knew the whole list of segments, which grows with each opening."""
    async with api.connect() as client:
        with only_new_ones():  # not those of other tests, in this process
            kept: list[Any] = []
            for _ in range(CYCLES):
                log = await client.open_writer("log")
                await log.append(b"x")
                if kept:
                    with pytest.raises(dlog.Fenced):
                        await kept[-1].append(b"too late")
                kept.append(log)
            found = _kept()
        assert found["Segment"] < 3 * CYCLES, "not each of them all of them"
        for log in kept:
            await log.close()

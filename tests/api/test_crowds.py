"""Many threads and many tasks on one writer: every id once, each one's order kept."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

import dlog
from dlog import aio


def assert_order_of_each(url: str, ids: dict[int, list[dlog.MessageId]]) -> None:
    """Each worker's messages, in the order it sent them, under the ids it was given."""
    there: dict[int, list[dlog.MessageId]] = defaultdict(list)
    with dlog.open_reader("log", url=url) as reader:
        for seq, message in enumerate(reader):
            assert message.seq == seq
            assert message.value is not None
            who, turn = map(int, message.value.split(b"."))
            assert turn == len(there[who])
            there[who].append(message.id)
    assert there == ids
    everything = [each for some in ids.values() for each in some]
    assert len(set(everything)) == len(everything)


def test_fifty_threads_on_one_sync_writer(url: str) -> None:
    ids: dict[int, list[dlog.MessageId]] = {}
    together = threading.Barrier(50)
    options = dlog.LogOptions(segment_bytes=64 << 10)
    with dlog.open_writer(
        "log", url=url, entry_bytes=2048, window_bytes=8192, create=options
    ) as log:

        def work(who: int) -> None:
            together.wait(20)
            mine: list[dlog.MessageId] = []
            for turn in range(0, 60, 6):
                values = [b"%d.%d" % (who, turn + extra) for extra in range(6)]
                first = log.submit(values[0])
                mine.append(log.append(values[1], key=b"k"))
                mine.insert(-1, first.result())
                mine += log.append_many(values[2:5], atomic=turn % 12 == 0)
                mine.append(log.append(values[5], timeout=20))
            ids[who] = mine

        threads = [threading.Thread(target=work, args=(who,)) for who in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert len(ids) == 50
    assert_order_of_each(url, ids)


async def test_a_thousand_tasks_on_one_async_writer(url: str) -> None:
    ids: dict[int, list[dlog.MessageId]] = {}
    async with aio.open_writer("log", url=url, entry_bytes=2048, window_bytes=8192) as log:

        async def work(who: int) -> None:
            tickets = [await log.submit(b"%d.%d" % (who, turn)) for turn in range(3)]
            last = await log.append(b"%d.3" % who)
            ids[who] = [*[await ticket for ticket in tickets], last]

        await asyncio.gather(*map(work, range(1000)))
        assert not log._engine.batcher._waiting
        assert log._engine.unacknowledged == 0
    await asyncio.to_thread(assert_order_of_each, url, ids)


async def test_one_async_writer_used_from_several_loops(url: str) -> None:
    """`append`, `submit` and `append_many` may be called from other threads' loops."""
    ids: dict[int, list[dlog.MessageId]] = {}
    async with aio.open_writer("log", url=url, entry_bytes=512, window_bytes=1024) as log:

        async def work(who: int) -> None:
            mine = [await log.append(b"%d.0" % who)]
            mine += await log.append_many([b"%d.%d" % (who, turn) for turn in range(1, 100)])
            mine.append(await (await log.submit(b"%d.100" % who)))
            ids[who] = mine

        await asyncio.gather(*[asyncio.to_thread(asyncio.run, work(who)) for who in range(8)])
    await asyncio.to_thread(assert_order_of_each, url, ids)


def test_one_client_used_by_many_threads(url: str) -> None:
    """Each thread opens a log of its own, writes it and reads it."""
    failures: list[BaseException] = []
    with dlog.connect(url) as client:

        def work(who: int) -> None:
            try:
                with client.open_writer(f"log{who}") as log:
                    log.append_many([b"%d" % who] * 20)
                with client.open_reader(f"log{who}") as reader:
                    assert [m.value for m in reader] == [b"%d" % who] * 20
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(who,)) for who in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert failures == []
        assert len(client.admin.list()) == 10

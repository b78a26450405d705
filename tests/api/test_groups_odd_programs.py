"""Programs that end a call in a way that nobody thinks of: what they did is a failure like any
other, told and tried again, and no shard is left to nobody for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dlog
from dlog.groups import asks
from tests.api.adapter import AioApi, Api
from tests.api.grouping import (
    GROUP,
    STREAM,
    Seen,
    a_group,
    checkpoints,
    kept_up_to,
    seen_all,
    send,
    why,
    work,
)
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)


def cancelled() -> None:
    raise asyncio.CancelledError


def at_its_end() -> None:
    next(iter(()))


def exits() -> None:
    raise SystemExit(3)


def not_ours() -> None:
    raise dlog.LeaseLost("so says the program")


@pytest.mark.parametrize("odd", [cancelled, at_its_end, exits, not_ours])
async def test_a_plain_program_that_ends_oddly_is_tried_again(api: Api, odd: Any) -> None:
    """A thread's StopIteration, the CancelledError of something else, a LeaseLost while the lease
    is ours: none of them leaves the shard to nobody."""
    seen = Seen()
    odd_ones = [odd, odd]

    def process(batch: Any, tracker: Any) -> None:
        if odd_ones:
            odd_ones.pop()()
        seen.process(batch, tracker)

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, process, retry_pause_ms=1):
            await seen_all(seen, 10)
        assert await checkpoints(client) == {f"{STREAM}/0": 10}


@pytest.mark.parametrize("odd", [cancelled, not_ours])
async def test_an_async_program_that_ends_oddly_is_tried_again(api: Api, odd: Any) -> None:
    """It waited for a task that somebody cancelled; it looked at `still_owner()` at a bad time."""
    seen = Seen()
    odd_ones = [odd, odd]

    async def process(batch: Any, tracker: Any) -> None:
        if odd_ones:
            odd_ones.pop()()
        seen.process(batch, tracker)

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, process, retry_pause_ms=1):
            await seen_all(seen, 10)


async def test_a_program_that_was_cancelled_stops_its_shard_by_choice(api: Api) -> None:
    async def process(batch: Any) -> None:
        raise asyncio.CancelledError

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, process, on_error="stop") as worker:
            await eventually(lambda: worker.failed)
            assert "CancelledError" in worker.failed[f"{STREAM}/0"]


async def test_a_class_that_cannot_be_made_is_tried_again(api: Api) -> None:
    """As `initialize` is: what it needs may be away for a moment."""
    seen = Seen()
    refusals = ["no database", "no database"]

    class Program:
        def __init__(self) -> None:
            if refusals:
                raise OSError(refusals.pop())

        def process(self, batch: Any, tracker: Any) -> None:
            seen.process(batch, tracker)

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, Program, retry_pause_ms=1):
            await seen_all(seen, 10)


async def test_a_factory_of_nonsense_stops_its_shard(api: Api) -> None:
    """No other try makes a processor of it."""
    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, lambda: 3, retry_pause_ms=1) as worker:
            await eventually(lambda: worker.failed)
            assert "no processor" in worker.failed[f"{STREAM}/0"]


async def test_a_shutdown_that_is_cut_short_finishes_nothing(api: Api) -> None:
    """The program was told of the end and kept messages to itself until then: a worker that is
    closed before it is through does not say that the shard is done, and the next one tells it
    again."""
    kept: list[bytes] = []
    written: list[bytes] = []
    told: list[Any] = []
    hangs = [True]

    class Buffering:
        async def process(self, batch: Any, tracker: Any) -> None:
            kept.extend(batch.values())

        async def shutdown(self, tracker: Any, reason: Any) -> None:
            told.append(reason)
            if reason is not dlog.StopReason.ENDED:
                kept.clear()
                return
            if hangs:
                await asyncio.Event().wait()
            written.extend(kept)
            tracker.checkpoint()

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        worker = await work(client, Buffering, stop_at_end=True)
        await eventually(lambda: told)
        await worker.close(timeout=0.05)
        described = await client.group(GROUP, STREAM).describe()
        assert [each.state for each in described.shards] != ["finished"]
        hangs.clear()
        kept.clear()
        async with work(client, Buffering, stop_at_end=True) as again:
            assert await again.wait(20) == "all shards are done"
        assert written == [b"%d" % n for n in range(10)]


async def test_a_job_whose_shutdown_fails_says_so(api: Api) -> None:
    class Refusing:
        def process(self, batch: Any) -> None:
            pass

        def shutdown(self, tracker: Any, reason: Any) -> None:
            if reason is dlog.StopReason.ENDED:
                raise ValueError("not yet")

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        worker = await work(client, Refusing, stop_at_end=True, retry_pause_ms=1)
        with pytest.raises(ValueError, match="not yet"):
            await worker.wait(20)
        await worker.close()


async def test_a_job_over_a_stream_that_nobody_wrote_to_is_done(api: Api) -> None:
    """The logs of its shards are not made yet: there is nothing to do."""
    async with api.connect() as client:
        await client.create_stream(STREAM, shards=2)
        async with work(client, Seen().process, stop_at_end=True) as worker:
            assert await worker.wait(5) == "all shards are done"


async def test_a_hand_back_in_the_middle_of_a_bad_batch_processes_nothing_twice(
    url: str,
) -> None:
    """LH-11: of a batch that goes message by message, what was processed has its checkpoint before
    the shard is given up, also where the worker is the one that takes them."""
    api = AioApi(url)
    values: list[bytes] = []
    is_at_it, may_go_on = asyncio.Event(), asyncio.Event()

    async def process(batch: Any) -> None:
        if b"7" in batch.values():
            raise ValueError("I do not like it")
        if batch.values() == [b"3"]:
            is_at_it.set()
            await may_go_on.wait()
        values.extend(batch.values())

    ways = {"on_error": "dead_letter", "dead_letters": "dead", "retry_pause_ms": 1, "attempts": 1}
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await writer.append_many([b"%d" % n for n in range(10)])
        worker = await work(client, process, **ways)
        await eventually(is_at_it.is_set)
        closing = asyncio.ensure_future(worker.close())
        (run,) = worker._crew.runs.values()
        await eventually(run._stopping.is_set)
        may_go_on.set()
        await closing
        assert values == [b"0", b"1", b"2", b"3"]
        assert await checkpoints(client) == {f"{STREAM}/0": 4}
        async with work(client, process, **ways):
            await eventually(lambda: len(values) >= 9)
        assert sorted(values) == [b"%d" % n for n in range(10) if n != 7]
        assert await api.values("dead") == [b"7"]


async def test_what_stopped_here_and_went_elsewhere_is_no_reason_any_more(api: Api) -> None:
    """`why()` tells of what is here: of two shards that failed one goes to another worker."""
    seen = Seen()

    def refuse(batch: Any, tracker: Any) -> None:
        raise ValueError(f"I do not like {tracker.shard.log}")

    async with a_group(api, shards=2, messages=100) as (client, _, _writer):
        async with work(client, refuse, on_error="stop") as worker:
            await eventually(lambda: len(worker.failed) == 2)
            async with work(client, seen.process) as other:
                await eventually(lambda: len(worker.failed) == 1 and other.shards)
                (left,) = worker.failed
                (gone,) = {f"{STREAM}/0", f"{STREAM}/1"} - {left}
                told = str(await why(worker))
                assert left in told
                assert gone not in told


async def test_a_thread_that_outlives_its_worker_is_told(api: Api) -> None:
    """It would wait for its checkpoint for ever, and keep the program from its exit."""
    is_at_it, may_go_on = threading.Event(), threading.Event()
    told: list[Any] = []

    def process(batch: Any, tracker: Any) -> None:
        is_at_it.set()
        assert may_go_on.wait(20)
        try:
            tracker.save()
        except dlog.LeaseLost as error:
            told.append((error, tracker.still_owner()))

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        worker = await work(client, process)
        await eventually(is_at_it.is_set)
        await worker.close(timeout=0.05)
        may_go_on.set()
        await eventually(lambda: told)
        assert [still for _, still in told] == [False]


async def test_a_token_that_is_refused_elsewhere_is_no_failure_of_a_message(url: str) -> None:
    """LH flaw 5: another one has the shard, and the other side knows it before the worker does. So
    the lease is looked at; no message is a dead letter for that."""
    seen = Seen()
    least = [0]

    def process(batch: Any, tracker: Any) -> None:
        if tracker.token < least[0]:
            raise dlog.LeaseLost("a larger token was here")
        seen.process(batch, tracker)

    ways = {"on_error": "dead_letter", "dead_letters": "dead", "attempts": 1, "flush_ms": 0}
    api = AioApi(url)
    log = f"{STREAM}/0"
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        async with work(client, process, **ways):
            await send(writer, 10)
            await seen_all(seen, 10)
            await kept_up_to(client, 10)
            site = await client.group(GROUP, STREAM)._site()  # and nobody rings
            lease = await site.driver.run(site.store.read(log))
            await site.driver.run(site.store.reset(log, lease.checkpoint, forced=True))
            least[0] = 2
            await send(writer, 10, first=10)
            await seen_all(seen, 20)
        assert await checkpoints(client) == {log: 20}
        with pytest.raises(dlog.NotFound):
            await api.values("dead")


async def test_a_look_that_was_under_way_tells_nothing_about_a_doubt(url: str) -> None:
    """It may be older, and answers the doubt with itself: another one has to come, or the shard
    would wait for it for ever."""
    seen = Seen()
    looks_wait, may_look, is_refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def process(batch: Any, tracker: Any) -> None:
        if not is_refused.is_set():
            await looks_wait.wait()
            is_refused.set()
            raise dlog.LeaseLost("so says the program")
        seen.process(batch, tracker)

    async with a_group(AioApi(url), shards=1, messages=10) as (client, _, _writer):
        async with work(client, process, heart="loop", retry_pause_ms=1) as worker:
            heart = worker._heart
            await eventually(lambda: worker.shards and worker.shards[0].busy_s is not None)
            run = heart._run

            async def slow(ask: Any) -> Any:
                if isinstance(ask, asks.Look):
                    looks_wait.set()
                    await may_look.wait()
                return await run(ask)

            heart._run = slow
            heart.doubt(f"{STREAM}/0")
            await is_refused.wait()
            await eventually(lambda: "says" in worker.shards[0].doing)
            may_look.set()
            await seen_all(seen, 10)

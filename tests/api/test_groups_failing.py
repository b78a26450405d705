"""Programs that raise, block, compute or sleep: what becomes of the message, the shard, and the
others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import dlog
from dlog.groups import asks
from dlog.metrics import Metrics
from tests.api.adapter import AioApi, Api, SyncApi
from tests.api.grouping import (
    GROUP,
    STREAM,
    TIMEOUT_MS,
    Seen,
    a_group,
    checkpoints,
    even,
    kept_up_to,
    seen_all,
    send,
    why,
    work,
)
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)

POISON = b"77"


class Poisoned(Seen):
    """Refuses one message, until it is cured."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cured = False
        self.refused = 0

    def process(self, batch: Any, tracker: Any) -> None:
        if POISON in batch.values() and not self.is_cured:
            self.refused += 1
            raise ValueError("I do not like it")
        super().process(batch, tracker)


async def test_a_poison_message_is_tried_until_it_is_taken(api: Api) -> None:
    """`retry`: the other shards go on, nothing is skipped, and the worker says what it is at."""
    seen = Poisoned()
    async with a_group(api) as (client, _, _writer):
        async with work(client, seen.process, retry_pause_ms=5) as worker:
            await eventually(lambda: seen.refused >= 3)
            poisoned = next(each for each in worker.shards if each.failures)
            await eventually(lambda: len(seen.by_shard) >= 3)
            reason = await why(worker)
            assert reason is not None
            assert reason.code is dlog.ReasonCode.PROCESSING_FAILED
            assert "I do not like it" in str(reason)
            assert POISON not in seen.values
            assert poisoned.error == "ValueError: I do not like it"
            seen.is_cured = True
            await seen_all(seen, 200)
            await eventually(lambda: all(not each.failures for each in worker.shards))
        assert seen.twice == []
        assert sum((await checkpoints(client)).values()) == 200


async def test_a_poison_message_becomes_a_dead_letter_once(api: Api) -> None:
    """`dead_letter`: it goes there as it was, with what it failed with; the rest is processed."""
    seen = Poisoned()
    ways: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": "dead", "attempts": 2}
    ways["retry_pause_ms"] = 1
    ways["flush_ms"] = 0  # what is waited for is the checkpoint, not its time
    async with a_group(api) as (client, _, _writer):
        async with work(client, seen.process, **ways):
            await seen_all(seen, 199)
        assert seen.twice == []
        (letter,) = await api.values("dead")
        assert letter == POISON
        (message,) = await api.read_all("dead")
        told = dict(message.headers)
        assert message.key is not None
        assert told["dlog.group"] == GROUP.encode()
        assert told["dlog.error"] == b"ValueError: I do not like it"
        assert told["dlog.attempts"] == b"2"
        log, seq = told["dlog.shard"].decode(), int(told["dlog.seq"])
        # As if it had died between the letter and its checkpoint:
        (done,) = await client.group(GROUP, STREAM).reset(seq, shards=[int(log.split("/")[1])])
        assert done.refused is None
        async with work(client, seen.process, **ways):
            await kept_up_to(client, 200)
        assert await api.values("dead") == [POISON]


async def test_a_dead_letter_of_a_stream_that_was_made_anew_is_another_one(api: Api) -> None:
    """Its shards have the names and the seqs that those of the old one had. A message that is taken
    for one that is there already would be gone."""

    def refuse(batch: Any) -> None:
        raise ValueError("I do not like it")

    ways = {"on_error": "dead_letter", "dead_letters": "dead", "attempts": 1, "flush_ms": 0}
    async with api.connect() as client:
        for value in (b"old", b"new"):
            stream = await client.create_stream(STREAM, shards=1)
            async with stream.open_writer() as writer:
                await writer.append(value, key=b"k")
            async with work(client, refuse, **ways):
                await kept_up_to(client, 1)
            await client.group(GROUP, STREAM).remove()
            await stream.remove()
        assert await api.values("dead") == [b"old", b"new"]


async def test_a_poison_message_stops_its_shard_alone(api: Api) -> None:
    """`stop`: the shard is kept by the worker and shown as failed; each worker that gets it tries
    it once."""
    seen = Poisoned()
    async with a_group(api) as (client, _, writer):
        async with work(client, seen.process, on_error="stop") as worker:
            await eventually(lambda: worker.failed)
            ((log, told),) = worker.failed.items()
            assert told == "ValueError: I do not like it"
            async with work(client, seen.process, on_error="stop") as other:
                await eventually(lambda: len(other.shards) >= 1)
                await send(writer, 200, first=200)
                await eventually(lambda: len(worker.shards) + len(other.shards) >= 3)
                assert seen.refused <= 2
                await eventually(lambda: worker.failed or other.failed)
            await eventually(lambda: log in worker.failed)
            reason = await why(worker)
            assert reason is not None
            assert log in str(reason)
        assert POISON not in seen.values
        seen.is_cured = True
        async with work(client, seen.process, on_error="stop") as worker:
            await seen_all(seen, 400)


async def test_what_stopped_goes_on_when_it_is_resumed(api: Api) -> None:
    """By the worker itself, all or one; or from outside, behind the message or at it."""
    seen = Poisoned()
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await send(writer, 100)
        log = f"{STREAM}/0"
        async with work(client, seen.process, on_error="stop") as worker:
            await eventually(lambda: worker.failed)
            with pytest.raises(dlog.ConfigError):
                await worker.resume(f"{STREAM}/1")
            assert await worker.resume(log) == (log,)
            await eventually(lambda: seen.refused == 2 and worker.failed)
            seen.is_cured = True
            assert await worker.resume() == (log,)
            await seen_all(seen, 100)
            assert worker.failed == {}
            assert await worker.resume() == ()


async def test_what_stopped_goes_on_when_it_is_put_behind_it(api: Api) -> None:
    seen = Poisoned()
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await send(writer, 100)
        async with work(client, seen.process, on_error="stop") as worker:
            await eventually(lambda: worker.failed)
            await client.group(GROUP, STREAM).set_checkpoint(0, int(POISON) + 1, force=True)
            await seen_all(seen, 100 - 1 - int(POISON))
            await eventually(lambda: not worker.failed)
        assert POISON not in seen.values


async def test_a_job_whose_program_fails_says_so(api: Api) -> None:
    seen = Poisoned()
    async with a_group(api) as (client, _, _writer):
        worker = await work(client, seen.process, on_error="stop", stop_at_end=True)
        with pytest.raises(ValueError, match="I do not like it"):
            await worker.wait(20)
        await worker.close()


async def test_a_shutdown_that_fails_finishes_nothing(api: Api) -> None:
    """LH flaw 7: a parent whose program refuses its end is not at its end; no child begins."""

    class Refusing:
        def process(self, batch: Any, tracker: Any) -> None:
            seen.process(batch, tracker)

        def shutdown(self, tracker: Any, reason: Any) -> None:
            if reason is dlog.StopReason.ENDED:
                raise ValueError("not yet")

    seen = Seen()
    async with a_group(api, shards=1) as (client, stream, writer):
        async with work(client, Refusing, retry_pause_ms=1) as worker:
            await seen_all(seen, 200)
            await stream.split(0)
            await send(writer, 10, first=200)
            await eventually(lambda: worker.failed)
            assert set(seen.by_shard) == {f"{STREAM}/0"}
        async with work(client, seen.process):
            await seen_all(seen, 210)


async def test_what_no_try_heals_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint is tried again for as long as it takes: also one that nobody may write."""
    async with a_group(AioApi(url), shards=1) as (client, _, _writer):
        async with work(client, Seen().process, flush_ms=0) as worker:
            await eventually(lambda: worker.shards)
            heart = worker._heart
            run = heart._run

            async def refused(ask: Any) -> Any:
                if isinstance(ask, asks.Save):
                    raise dlog.AuthError("you may not write there")
                return await run(ask)

            heart._run = refused
            await eventually(lambda: "Save: you may not write there" in caplog.text)
            heart._run = run


class Counting(Metrics):
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], float] = {}
        self.levels: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def count(self, name: str, n: float, labels: Any) -> None:
        key = name, labels.get("reason", "")
        self.counts[key] = self.counts.get(key, 0.0) + n

    def level(self, name: str, value: float, labels: Any) -> None:
        self.levels[name, tuple(labels.items())] = value

    def observe(self, name: str, value: float, labels: Any) -> None:
        pass

    def forget(self, labels: Any) -> None:
        for key in [key for key in self.levels if key[1] == tuple(labels.items())]:
            del self.levels[key]


def _compute(until_s: float) -> None:
    number = 0
    while time.monotonic() < until_s:
        number = (number * 31 + 7) % 1_000_003


@pytest.mark.parametrize("how", ["computes", "blocks"])
async def test_a_busy_program_keeps_its_shard_and_is_told_from_a_dead_one(
    api: Api, how: str
) -> None:
    """LH-28: a program that computes, or blocks its event loop, for twice the time-out: leases are
    renewed all the same, nobody takes the shard, and the worker says that it is stalled."""
    many: list[int] = []
    reasons: list[Any] = []
    done = threading.Event()
    is_async = not isinstance(api, SyncApi)

    def busy(batch: Any, tracker: Any) -> None:
        if not many:
            many.append(tracker.token)
            until_s = time.monotonic() + 2 * TIMEOUT_MS / 1000
            if how == "computes":
                _compute(until_s)
            else:
                assert not done.wait(until_s - time.monotonic())
            assert tracker.still_owner()
        many.append(tracker.token)
        tracker.checkpoint()

    async def busy_on_the_loop(batch: Any, tracker: Any) -> None:
        busy(batch, tracker)

    metrics = Counting()
    async with a_group(api, shards=1) as (client, _, _writer), api.connect() as elsewhere:
        program = busy_on_the_loop if is_async else busy
        ways = {"stall_after_ms": 200, "metrics": metrics, "hand_over_ms": None}
        async with work(client, program, **ways) as worker:
            if not is_async:
                await eventually(lambda: many)
                async with work(elsewhere, busy):
                    await eventually(lambda: worker.shards[0].busy_s > 0.3)
                    reasons.append(await why(worker))
            await eventually(lambda: len(many) >= 2)
        assert set(many) == {1}
        stalls = {reason for name, reason in metrics.counts if name == "dlog.group.stalls"}
        assert "processing_stalled" in stalls
        if is_async:
            assert "loop_blocked" in stalls
        else:
            assert reasons[0].code is dlog.ReasonCode.PROCESSING_STALLED


async def test_a_worker_that_left_holds_no_shards_in_any_metric(api: Api) -> None:
    metrics = Counting()
    shards = ("dlog.group.shards", (("group", GROUP),))
    async with a_group(api) as (client, _, _writer):
        async with work(client, Seen().process, metrics=metrics) as worker:
            await eventually(lambda: metrics.levels.get(shards) == len(worker.shards) > 0)
        assert shards not in metrics.levels


async def test_a_group_is_looked_at_from_outside(api: Api) -> None:
    """Owners, members, checkpoints, lag; what a plan would move; and putting it elsewhere."""
    seen = Seen()
    async with a_group(api) as (client, _, _writer):
        group = client.group(GROUP, STREAM)
        with pytest.raises(dlog.NotFound):
            await group.describe()
        assert await client.groups() == []
        async with work(client, seen.process, name="w1", domain="a") as worker:
            await even(worker, shards=4)
            await seen_all(seen, 200)
            assert await client.groups() == [(GROUP, STREAM)]
            told = await group.describe()
            assert {each.state for each in told.shards} == {"consumed"}
            assert [each.id.name for each in told.members] == ["w1"]
            moves = await group.plan(add=1)
            assert {each.taker.name for each in moves} == {"new-1"}
            assert len(moves) == 2
            assert len(await group.plan(add=["x"], without=["w1"])) == 4
            with pytest.raises(dlog.NotFound):
                await group.plan(without=["nobody"])
            assert all(each.refused for each in await group.reset("earliest"))
            with pytest.raises(dlog.Conflict):
                await group.remove()
        told = await group.describe()
        assert told.lag_messages == 0
        assert told.members == ()
        before = await checkpoints(client)
        planned = await group.reset("earliest", dry_run=True)
        assert {each.after.next_seq for each in planned} == {0}
        assert await checkpoints(client) == before
        await group.reset("earliest")
        told = await group.describe()
        assert told.lag_messages == 200
        assert all(each.lag.bytes > 0 for each in told.shards)
        holds = [await client.admin.holds(f"{STREAM}/{n}") for n in range(4)]
        assert [each[0].seq for each in holds] == [0, 0, 0, 0]
        await group.set_checkpoint(0, before[f"{STREAM}/0"], app=b"mine")
        assert (await group.describe()).shards[0].checkpoint.app == b"mine"
        await group.remove()
        assert await client.groups() == []
        assert [await client.admin.holds(f"{STREAM}/{n}") for n in range(4)] == [()] * 4

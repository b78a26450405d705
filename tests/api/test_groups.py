"""Groups of workers: who gets which shard, in which order, and how often."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dlog
from tests.api.adapter import AioApi, Api
from tests.api.grouping import (
    GROUP,
    STREAM,
    Seen,
    a_group,
    checkpoints,
    even,
    kept_up_to,
    logs_of,
    seen_all,
    send,
    why,
    work,
)
from tests.api.test_drop import said_when_dropped
from tests.api.waiting import eventually, until

pytestmark = pytest.mark.crosswise(seconds=1)


def nothing(batch: Any) -> None:
    """A program that is content."""


async def test_a_program_is_one_function(api: Api) -> None:
    """LH-04, LH-08: all of it, each message once, each shard in order; checkpoints by themselves
    where the function takes no tracker."""
    seen = Seen()
    async with a_group(api) as (client, _, writer):
        async with work(client, lambda batch: seen.add("all", batch)) as worker:
            await seen_all(seen, 200)
            await send(writer, 100, first=200)
            await seen_all(seen, 300)
            await even(worker, shards=4)
            assert await why(worker) is None
        assert seen.twice == []
        assert sum((await checkpoints(client)).values()) == 300
        async with work(client, seen.process) as worker:
            await even(worker, shards=4)
        assert seen.count == 300


@pytest.mark.parametrize("leases", ["nodes", "logs"])
async def test_one_to_three_and_back_with_nothing_twice(api: Api, leases: str) -> None:
    """LH-03, LH-10, LH-11: under load, scaled up and down by clean hand-off."""
    seen = Seen()
    sent = 0
    async with a_group(api, shards=5, messages=0) as (client, _, writer):

        async def more() -> None:
            nonlocal sent
            await send(writer, 100, first=sent)
            sent += 100

        async with work(client, seen.process, leases=leases) as first:
            await more()
            await even(first, shards=5)
            async with work(client, seen.process, leases=leases) as second:
                await more()
                await even(first, second, shards=5)
                async with work(client, seen.process, leases=leases) as third:
                    await more()
                    await even(first, second, third, shards=5)
                    await more()
                await more()
                await even(first, second, shards=5)
            await more()
            await even(first, shards=5)
            await seen_all(seen, sent)
        assert seen.twice == []
        for seqs in seen.by_shard.values():
            assert seqs == list(range(len(seqs)))


class Telling:
    """A class of processors: one for each shard."""

    seen: Seen

    def initialize(self, shard: Any) -> None:
        self.shard = shard
        self.seen.tell("initialize", shard.log, id(self))

    def process(self, batch: Any, tracker: Any) -> None:
        self.seen.tell("process", self.shard.log, id(self))
        tracker.checkpoint(app=b"kept")

    def shutdown(self, tracker: Any, reason: Any) -> None:
        self.seen.tell("shutdown", self.shard.log, id(self), reason)


class AsyncTelling(Telling):
    async def initialize(self, shard: Any) -> None:  # type: ignore[override]
        super().initialize(shard)

    async def process(self, batch: Any, tracker: Any) -> None:  # type: ignore[override]
        super().process(batch, tracker)

    async def shutdown(self, tracker: Any, reason: Any) -> None:  # type: ignore[override]
        super().shutdown(tracker, reason)


@pytest.mark.parametrize("kind", [Telling, AsyncTelling])
@pytest.mark.parametrize("form", ["class", "factory"])
async def test_a_processor_for_each_shard_is_told_in_order(api: Api, kind: Any, form: str) -> None:
    """LH-58..61: initialize, process, shutdown with its reason; by class and by factory."""
    seen = kind.seen = Seen()
    async with a_group(api) as (client, _, _writer):
        async with work(client, kind if form == "class" else (lambda: kind())) as worker:
            await even(worker, shards=4)
            await eventually(lambda: len({t[1] for t in seen.told if t[0] == "process"}) == 4)
        for log in (f"{STREAM}/{n}" for n in range(4)):
            told = [each for each in seen.told if each[1] == log]
            assert told[0][0] == "initialize"
            assert {t[0] for t in told[1:-1]} == {"process"}
            assert told[-1][0] == "shutdown"
            assert told[-1][3] is dlog.StopReason.CLOSING
            assert len({t[2] for t in told}) == 1
        assert len({t[2] for t in seen.told}) == 4
        found = Seen()

        class Second(Telling):
            def initialize(self, shard: Any) -> None:
                found.tell(shard.app, shard.start.next_seq, shard.token)

        Second.seen = found
        async with work(client, Second) as worker:
            await eventually(lambda: len(found.told) == 4)
        assert {app for app, _, _ in found.told} == {b"kept"}
        assert {token for _, _, token in found.told} == {2}


async def test_what_is_no_processor_is_refused(api: Api) -> None:
    async with a_group(api, messages=0) as (client, _, _writer):
        for wrong in (7, object(), int):
            with pytest.raises(dlog.ConfigError):
                await work(client, wrong)
        for options in (
            {"on_error": "dead_letter"},
            {"start": "sometime"},
            {"leases": "stars"},
            {"timeout_ms": 1},
            {"nonsense": 1},
            {"start": datetime(2020, 1, 1)},
        ):
            with pytest.raises(dlog.ConfigError):
                await work(client, nothing, **options)
        with pytest.raises(dlog.NotFound):
            await client.open_worker(GROUP, "nobody", nothing)


async def test_workers_agree_or_are_refused(api: Api) -> None:
    """Two that differ in where leases are, or when somebody is dead, could both own a shard."""
    async with a_group(api) as (client, _, _writer), work(client, nothing) as worker:
        for other in ({"leases": "logs"}, {"timeout_ms": 1_001}, {"stop_at_end": True}):
            with pytest.raises(dlog.ConfigError, match="agree"):
                await work(client, nothing, **other)
        await even(worker, shards=4)


async def test_lh_flaw_1_long_names_are_not_cut_off(api: Api) -> None:
    """Two groups whose names differ at their ends are two; what does not fit somewhere is refused
    at once, and not where it would have been kept."""
    seen = {end: Seen() for end in "ab"}
    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        for end in "ab":
            name = "g" * 199 + end
            async with client.open_worker(name, STREAM, seen[end].process) as worker:
                await seen_all(seen[end], 10)
                assert worker.group == name
            holds = await client.admin.holds(f"{STREAM}/0")
            assert f"group {name} of {STREAM}" in [hold.name for hold in holds]
        assert len(await client.groups()) == 2
        for leases in ("nodes", "logs"):
            with pytest.raises(dlog.ConfigError, match="bytes too long"):
                await client.open_worker("g" * 240, STREAM, nothing, leases=leases)


async def test_saved_is_kept_and_unsaved_is_flushed(api: Api) -> None:
    """LH-13, LH-50, LH-51: `save` returns when it is kept; a checkpoint in memory is written when
    the shard is given up."""
    saved = threading.Event()
    places: list[int] = []
    ends: list[int] = []  # of batches: how many there are is the writer's affair

    def process(batch: Any, tracker: Any) -> None:
        middle = batch.to_pylist()[len(batch) // 2]
        tracker.save(middle)
        places.append(middle.seq + 1)
        saved.set()
        assert held.wait(20)
        tracker.checkpoint()
        ends.append(batch.last_seq + 1)

    held = threading.Event()
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await writer.append_many([b"x"] * 10)
        async with work(client, process, flush_ms=3_600_000):
            await eventually(saved.is_set)
            assert (await checkpoints(client))[f"{STREAM}/0"] == places[0] < 10
            held.set()
            await eventually(lambda: ends)
        assert (await checkpoints(client))[f"{STREAM}/0"] == ends[-1]


async def test_checkpoints_by_count_and_by_time(api: Api) -> None:
    """LH-13: after so many messages, or as often as `flush_ms`."""
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        seen = Seen()
        options = {"flush_ms": 3_600_000, "checkpoint_messages": 20}
        async with work(client, lambda batch: seen.add("", batch), **options):
            await writer.append_many([b"x"] * 19)
            await seen_all(seen, 19)
            assert (await checkpoints(client))[f"{STREAM}/0"] <= 0
            await writer.append_many([b"x"])
            await kept_up_to(client, 20)
        async with work(client, lambda batch: seen.add("", batch), flush_ms=20):
            await writer.append_many([b"x"] * 5)
            await kept_up_to(client, 25)


@pytest.mark.parametrize("start", ["latest", "time"])
async def test_a_group_begins_where_it_was_told(api: Api, start: str) -> None:
    """LH-49: also for shards that are claimed late, and for whoever comes after a crash."""
    async with a_group(api) as (client, _, writer):
        since = datetime.now(UTC) + timedelta(milliseconds=1)
        await eventually(lambda: datetime.now(UTC) > since)
        seen = Seen()
        at: Any = "latest" if start == "latest" else since
        async with work(client, seen.process, start=at) as worker:
            await even(worker, shards=4)
            await send(writer, 50, first=200)
            await seen_all(seen, 50)
        assert seen.values.keys() == {b"%d" % n for n in range(200, 250)}


async def test_a_bounded_job_ends_by_itself(api: Api) -> None:
    """All that was there when it began, by several workers, and nothing that came later."""
    seen = Seen()
    async with a_group(api, shards=6, messages=300) as (client, stream, writer):
        await stream.split(0)
        await send(writer, 60, first=300)
        async with (
            work(client, seen.process, stop_at_end=True) as one,
            work(client, seen.process, stop_at_end=True) as two,
        ):
            await send(writer, 100, first=1_000)
            assert await one.wait(20) == "all shards are done"
            assert await two.wait(20) == "all shards are done"
        values = {int(value) for value in seen.values}
        assert set(range(360)) <= values
        assert seen.twice == []
        told = await client.group(GROUP, STREAM).describe()
        assert {each.state for each in told.shards} == {"finished"}
        async with work(client, seen.process, stop_at_end=True) as again:
            assert await again.wait(20) == "all shards are done"


async def test_the_lag_of_a_job_is_up_to_its_end(api: Api) -> None:
    """What comes later is nobody's to consume."""
    go_on = threading.Event()

    def process(batch: Any, tracker: Any) -> None:
        go_on.wait()
        tracker.checkpoint()

    async with a_group(api, messages=200) as (client, _, writer):
        group = client.group(GROUP, STREAM)
        async with work(client, process, stop_at_end=True) as worker:
            try:
                await even(worker, shards=4)
                await send(writer, 100, first=1_000)
                told = await group.describe()
            finally:
                go_on.set()
            assert told.lag_messages == 200
            assert await worker.wait(20) == "all shards are done"
        told = await group.describe()
        assert told.lag_messages == 0
        assert {each.lag for each in told.shards} == {dlog.Lag(0, 0, 0.0)}


async def test_an_empty_job_is_done(api: Api) -> None:
    async with a_group(api, messages=0) as (client, _, _writer):
        async with work(client, nothing, stop_at_end=True) as worker:
            assert await worker.wait(20) == "all shards are done"


async def test_a_split_is_consumed_parents_first(api: Api) -> None:
    """LH-09, LH flaw 7: new shards are picked up live; each key stays in order over the split."""
    seen = Seen()
    order: list[tuple[bytes, int]] = []

    def process(batch: Any, tracker: Any) -> None:
        with seen.lock:
            order.extend((m.key, int(m.value)) for m in batch.to_pylist())
        seen.process(batch, tracker)

    async with a_group(api, shards=2) as (client, stream, writer):
        async with work(client, process) as one, work(client, process) as two:
            await even(one, two, shards=2)
            await stream.split(0)
            await send(writer, 200, first=200)
            await stream.split(1)
            await send(writer, 200, first=400)
            await seen_all(seen, 600)
            await even(one, two, shards=4)
        assert seen.twice == []
        for key in {each for each, _ in order}:
            numbers = [number for each, number in order if each == key]
            assert numbers == sorted(numbers)


async def held_at_10(client: Any, log: str) -> bool:
    return [each.seq for each in await client.admin.holds(log)] == [10]


async def test_what_is_not_consumed_is_not_truncated(api: Api) -> None:
    """I19: a checkpoint holds the log of its shard, from the first delivery on."""
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await writer.append_many([b"x"] * 10)
        seen = Seen()
        log = f"{STREAM}/0"
        async with work(client, seen.process, flush_ms=0):
            await seen_all(seen, 10)
            await until(lambda: held_at_10(client, log))
        await writer.append_many([b"y"] * 10)
        assert (await client.admin.truncate(log, "latest")).held_by
        assert (await client.admin.status(log)).head_seq == 10
        async with work(client, seen.process, flush_ms=0):
            await seen_all(seen, 20)


async def test_a_group_is_put_where_its_log_is(api: Api) -> None:
    """Ahead of all that was written it would pass over what comes, and nobody would be told."""
    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, nothing, flush_ms=0):
            await kept_up_to(client, 10)
        group = client.group(GROUP, STREAM)
        for place in (11, 999):
            (told,) = await group.reset(place)
            assert "ends at seq 10" in told.refused
            with pytest.raises(dlog.Conflict, match="ends at seq 10"):
                await group.set_checkpoint(0, place)
        (told,) = await group.reset(dlog.MessageId(0, 99, 0))
        assert "has no message 0:99:0" in told.refused
        assert await checkpoints(client) == {f"{STREAM}/0": 10}
        (told,) = await group.reset(10)
        assert told.refused is None
        assert [each.seq for each in await client.admin.holds(f"{STREAM}/0")] == [10]


async def test_a_reset_that_is_refused_lets_go_of_nothing(url: str) -> None:
    """I19: a worker takes the shard while it is to be put ahead: what it did not consume stays
    held. Once nobody has it, it is put ahead, and so is the hold."""
    log = f"{STREAM}/0"
    comers: list[Any] = []

    def has_read_all(worker: Any) -> bool:
        return [each.next_seq for each in worker.shards] == [10]

    async with a_group(AioApi(url), shards=1, messages=10) as (client, _, _writer):
        async with work(client, nothing, checkpoints="explicit") as worker:
            await eventually(lambda: has_read_all(worker))
        group = client.group(GROUP, STREAM)
        place_of = group._place

        async def while_somebody_comes(*args: Any) -> Any:
            comers.append(await work(client, nothing, checkpoints="explicit"))
            await eventually(lambda: has_read_all(comers[0]))
            return await place_of(*args)

        group._place = while_somebody_comes
        (told,) = await group.reset("latest")
        assert "consumed" in (told.refused or "")
        assert [each.seq for each in await client.admin.holds(log)] == [0]
        await comers[0].close()
        group._place = place_of
        (told,) = await group.reset("latest")
        assert told.refused is None
        assert [each.seq for each in await client.admin.holds(log)] == [10]


@pytest.mark.parametrize("outcome", [dlog.Outcome.NOT_HAPPENED, dlog.Outcome.UNKNOWN])
async def test_a_reset_that_fails_in_the_middle_says_which_are_moved(
    url: str, outcome: dlog.Outcome
) -> None:
    """Nothing was moved yet: it raises. Else it tells of each shard."""
    async with a_group(AioApi(url), shards=4) as (client, _, _writer):
        async with work(client, nothing, flush_ms=0):
            await kept_up_to(client, 200)
        group = client.group(GROUP, STREAM)
        hold = group._hold
        fails_at = [f"{STREAM}/0"]

        async def hold_or_fail(site: Any, log: str, at: Any) -> None:
            if log in fails_at:
                raise dlog.Unavailable("the store is away", outcome=outcome)
            await hold(site, log, at)

        group._hold = hold_or_fail
        with pytest.raises(dlog.Unavailable):
            await group.reset("earliest")
        fails_at[0] = f"{STREAM}/2"
        told = await group.reset("earliest")
        assert [each.log for each in told] == [f"{STREAM}/{n}" for n in range(4)]
        assert [each.refused for each in told[:2]] == [None, None]
        is_unknown = outcome is dlog.Outcome.UNKNOWN
        assert ("it may be there all the same" in told[2].refused) == is_unknown
        assert told[2].refused.startswith("the store is away")
        assert "not tried" in told[3].refused
        moved = [seq == 0 for seq in (await checkpoints(client)).values()]
        assert moved == [True, True, False, False]


async def test_a_lost_shard_saves_nothing_more(api: Api) -> None:
    """LH-52, LH flaw 5: whoever was too slow to hand over is fenced: its token is older, it is told
    by `still_owner`, and its checkpoint is refused."""
    held, got = threading.Event(), threading.Event()
    told: list[Any] = []

    def slow(batch: Any, tracker: Any) -> None:
        if not got.is_set():
            got.set()
            assert tracker.still_owner()
            assert held.wait(20)
            told.append((tracker.token, tracker.still_owner()))
            try:
                tracker.save()
            except dlog.LeaseLost as error:
                told.append(error)
                raise

    tokens: list[int] = []

    def fast(batch: Any, tracker: Any) -> None:
        tokens.append(tracker.token)

    async with a_group(api, shards=1, messages=10) as (client, _, _writer):
        async with work(client, slow, name="a") as one:
            await eventually(got.is_set)
            told_group = await client.group(GROUP, STREAM).reset("earliest", force=True)
            assert told_group[0].refused is None
            async with work(client, fast, name="b", hand_over_ms=0):
                held.set()
                await eventually(lambda: len(told) == 2)
                assert told[0][0] == 1
                assert isinstance(told[1], dlog.LeaseLost)
                assert one.failed == {}


async def test_a_dropped_worker_says_so(api: Api) -> None:
    async with a_group(api) as (client, _, _writer):
        held = [await work(client, nothing)]
        await why(held[0])
        (said,) = said_when_dropped(held)
        assert said == "a worker of group 'billing' was dropped without close()"


async def test_closing_twice_and_the_client_first(api: Api) -> None:
    async with a_group(api) as (client, _, _writer):
        worker = await work(client, nothing)
        await worker.close()
        await worker.close()
        assert worker.closed
        other = await work(client, nothing)
    assert other.closed or not logs_of(other)

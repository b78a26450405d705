"""Where groups and streams meet: streams that are removed and made again, groups that are removed
while others found them, and shards that were truncated or finished by somebody else."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog import aio, backends
from tests.api.streaming import KEYS
from tests.api.test_stream_identity import Killed, nodes_below
from tests.api.waiting import eventually, until

NAME = "orders"
K = b"k"
_worlds = itertools.count()


@asynccontextmanager
async def a_client() -> AsyncIterator[aio.Client]:
    name = f"groups-and-streams-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{name}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(name, None)


async def process_nothing(batch: dlog.MessageBatch) -> None:
    pass


async def test_a_hold_that_an_older_worker_dropped_does_not_keep_a_finished_shard() -> None:
    """A worker of the version before drops the group's hold on a shard that it has finished. The
    group's hold on the stream then keeps all of that log: it can never be truncated or trimmed, and
    no worker that comes later mends that."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        await stream.split(0)
        group = client.group("g", NAME)

        async def is_finished() -> bool:
            return any(s.state == "finished" for s in (await group.describe(lag=False)).shards)

        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            await until(is_finished)
        await client.admin.drop_hold("orders/0", f"group g of {NAME}")
        async with client.open_worker("g", NAME, process_nothing, heart="loop") as worker:
            await eventually(lambda: len(worker.shards) == 2)
        assert (await client.admin.truncate("orders/0", "latest")).held_by == ()


async def test_a_worker_consumes_nothing_of_a_stream_that_was_made_again() -> None:
    """A worker waits for the log of a shard that nobody wrote yet. The stream is removed and made
    again; the worker hears of the log first, and consumes what is in the new stream under the
    leases of a group that belongs to the old one. Its hold stays on the new stream's log."""
    seen: list[bytes | None] = []

    async def process(batch: dlog.MessageBatch) -> None:
        seen.extend(message.value for message in batch.to_pylist())

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with client.open_worker("g", NAME, process, heart="loop") as worker:
            await eventually(lambda: worker.shards)
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"of another stream", key=K)
            await worker.wait(20)
        assert seen == []
        assert await client.admin.holds("orders/0") == ()


async def test_a_group_whose_stream_was_removed_can_be_removed() -> None:
    """`group.remove()` raises `NotFound` for the stream: the nodes of the group stay, and it is
    listed by `client.groups()` until somebody makes a stream of that name."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        await stream.remove()
        await client.group("g", NAME).remove()
        assert await client.groups() == []


async def test_a_group_that_is_removed_while_it_is_founded_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group is removed between its charter and its hold on the stream. The founder makes the
    hold all the same. The worker leaves, and the hold stays for ever: no shard, present or to come,
    can be truncated, `drop_hold` and `group.remove()` say that there is nothing."""
    from dlog.groups import founding

    reached, go_on = asyncio.Event(), asyncio.Event()
    hold = founding._hold_stream

    async def held_up(*given: Any) -> None:
        monkeypatch.setattr(founding, "_hold_stream", hold)
        reached.set()
        await go_on.wait()
        await hold(*given)

    monkeypatch.setattr(founding, "_hold_stream", held_up)

    async def work(client: aio.Client) -> None:
        async with client.open_worker("g", NAME, process_nothing, heart="loop") as worker:
            await worker.wait(5)

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        working = asyncio.create_task(work(client))
        await reached.wait()
        await client.group("g", NAME).remove()
        go_on.set()
        await asyncio.gather(working, return_exceptions=True)
        await stream.split(0)
        async with stream.open_writer() as writer:
            for key in KEYS:
                await writer.append(b"x", key=key)
        for log in ("orders/0", "orders/1", "orders/2"):
            assert (await client.admin.truncate(log, "latest")).held_by == (), log


@pytest.mark.parametrize("when", ["before", "behind the charter", "before a job"])
async def test_what_was_truncated_before_a_group_held_it_was_not_missed(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """All of a shard is truncated before the group holds it, and the shard is trimmed behind that:
    the group stops at its children, and a job never ends well, though there was nothing to do."""
    from dlog.groups import founding, heart

    hold, found = founding._hold_stream, heart.found

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        await stream.split(0)

        async def truncate() -> None:
            await client.admin.truncate("orders/0", "latest")

        async def truncate_and_hold(*given: Any) -> None:
            if when == "behind the charter":
                await truncate()
            await hold(*given)

        async def found_and_trim(*given: Any) -> Any:
            charter = await found(*given)
            assert await stream.trim() == (0,)
            return charter

        monkeypatch.setattr(founding, "_hold_stream", truncate_and_hold)
        monkeypatch.setattr(heart, "found", found_and_trim)
        if when != "behind the charter":
            await truncate()
        seen: list[bytes | None] = []

        async def process(batch: dlog.MessageBatch) -> None:
            seen.extend(message.value for message in batch.to_pylist())

        if when == "before a job":
            async with client.open_worker(
                "g", NAME, process, heart="loop", stop_at_end=True
            ) as worker:
                assert await worker.wait(20) == "all shards are done"
            return
        async with client.open_worker("g", NAME, process, heart="loop") as worker:
            async with stream.open_writer() as writer:
                for key in KEYS:
                    await writer.append(b"y", key=key)
            await eventually(lambda: len(seen) == len(KEYS) or worker.failed)
            assert worker.failed == {}


async def test_a_hold_that_a_removed_group_left_does_not_stand_for_that_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A removal that died half way leaves a hold where the group was. The group that is made anew
    begins at the beginning: what it is to consume may be truncated until it has begun the shard."""
    from dlog.groups import heart

    found, held = heart.found, []

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            for _ in range(3):
                await writer.append(b"x", key=K)
        await client.admin.hold("orders/0", f"group g of {NAME}", 2)

        async def found_and_look(*given: Any) -> Any:
            charter = await found(*given)
            held.extend(await client.admin.holds("orders/0"))
            return charter

        monkeypatch.setattr(heart, "found", found_and_look)
        async with client.open_worker("g", NAME, process_nothing, heart="loop") as worker:
            await eventually(lambda: worker.shards)
        assert [each.seq for each in held] == [0]


@pytest.mark.parametrize("timeout_ms", [5_000, 6_000])
async def test_a_second_founder_of_a_job_leaves_no_hold_behind(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """Two workers found one bounded job. The slower one makes its holds when the job is done and
    its holds are dropped: they stay for ever, and nothing is truncated any more."""
    from dlog.groups import founding

    reached, go_on = asyncio.Event(), asyncio.Event()
    hold = founding._hold_shards

    async def held_up(*given: Any) -> None:
        monkeypatch.setattr(founding, "_hold_shards", hold)
        reached.set()
        await go_on.wait()
        await hold(*given)

    monkeypatch.setattr(founding, "_hold_shards", held_up)

    async def job(client: aio.Client, **more: Any) -> str | None:
        options: dict[str, Any] = {"heart": "loop", "stop_at_end": True, **more}
        async with client.open_worker("g", NAME, process_nothing, **options) as worker:
            return await worker.wait(20)

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        slow = asyncio.create_task(job(client, timeout_ms=timeout_ms))
        await reached.wait()
        await job(client, timeout_ms=5_000)
        go_on.set()
        (ended,) = await asyncio.gather(slow, return_exceptions=True)
        assert isinstance(ended, dlog.ConfigError) is (timeout_ms != 5_000)
        assert await client.admin.holds("orders/0") == ()


async def test_a_group_of_a_removed_stream_is_not_put_elsewhere_in_the_next() -> None:
    """`group.reset` of a group whose stream was made again takes the new stream's shards for its
    own: it writes checkpoints of another stream and holds the new stream's logs, for nobody. A
    worker is refused there (`ConfigError`)."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        await stream.remove()
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        group = client.group("g", NAME)
        with pytest.raises(dlog.ConfigError, match="another stream"):
            await group.reset("earliest")
        assert await client.admin.holds("orders/0") == ()


async def test_a_group_is_told_of_what_was_truncated_by_force_before_it_began() -> None:
    """`force_truncate` overruns the hold of a group on a shard that it has not begun. A shard that
    it has begun ends with `Truncated`; this one is begun at its head, and nobody is told: the group
    reports that all is done."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            for key in KEYS:
                await writer.append(b"a", key=key)
            async with client.open_worker("g", NAME, process_nothing, heart="loop"):
                pass
            await stream.split(0)
            for key in KEYS:
                await writer.append(b"b", key=key)
        await stream.terminate()
        for log in ("orders/1", "orders/2"):
            assert (await client.admin.force_truncate(log, "latest")).held_by
        async with client.open_worker("g", NAME, process_nothing, heart="loop") as worker:
            group = client.group("g", NAME)

            async def is_over() -> bool:
                shards = (await group.describe(lag=False)).shards
                return bool(worker.failed) or all(each.state == "finished" for each in shards)

            await until(is_over)
            assert worker.failed, "all shards are done, and 40 messages were passed over"


async def as_of_old(client: aio.Client) -> None:
    """The stream's node as the version before writes it: without the uids of logs."""
    meta, path = (await client._stores(True)).meta, f"/dlog/streams/{NAME}"
    raw, version = await meta.get(path)
    fields = json.loads(raw)
    fields.pop("uids", None)
    for shard in fields["shards"]:
        shard.pop("log_uid", None)
    await meta.put(path, json.dumps(fields).encode(), version)


async def test_a_log_of_another_stream_is_not_consumed_where_uids_are_not_known() -> None:
    """The stream of an older version says no uids of logs."""
    seen: list[bytes | None] = []

    async def process(batch: dlog.MessageBatch) -> None:
        seen.extend(message.value for message in batch.to_pylist())

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        await as_of_old(client)
        async with client.open_worker("g", NAME, process, heart="loop") as worker:
            await eventually(lambda: worker.shards)
            assert worker._heart.log_uids == {}
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"of another stream", key=K)
            assert await worker.wait(20) is not None
        assert seen == []
        assert await client.admin.holds("orders/0") == ()


async def test_of_a_group_that_was_removed_no_node_is_left() -> None:
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        for group in ("g", "h"):
            async with client.open_worker(group, NAME, process_nothing, heart="loop"):
                pass
        await client.group("g", NAME).remove()
        assert await client.groups() == [("h", NAME)]
        await client.group("h", NAME).remove()
        layout = (await client._stores(True)).layout
        for path in (layout.groups, layout.stream_holders):
            assert await nodes_below(client, path) == []
        with pytest.raises(dlog.NotFound):
            await client.group("g", NAME).remove()


async def test_a_group_is_removed_by_whoever_comes_behind_a_remover_that_died() -> None:
    """At any step: the charter may be gone, and holds may be left, which nobody else could drop."""
    steps = 0
    while True:
        async with a_client() as client:
            stream = await client.create_stream(NAME, shards=2)
            async with stream.open_writer() as writer:
                for key in KEYS:
                    await writer.append(b"x", key=key)
            async with client.open_worker("g", NAME, process_nothing, heart="loop"):
                pass
            group = client.group("g", NAME)
            if not await dies_removing(group, steps):
                break
            try:
                await group.remove()
            except dlog.NotFound:
                pass  # it was all but done
            assert await client.groups() == []
            for log in ("orders/0", "orders/1"):
                assert await client.admin.holds(log) == (), f"died before step {steps}"
        steps += 1
    assert steps > 5


async def dies_removing(group: Any, step: int) -> bool:
    """False when it ended before that step."""
    genuine = group._open

    async def opened() -> Any:
        stores, places, driver = await genuine()
        perform, left = driver.perform, iter(range(step))

        async def dying(effect: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return await perform(effect)

        driver.perform = dying
        return stores, places, driver

    group._open = opened
    try:
        await group.remove()
        return False
    except Killed:
        return True
    finally:
        del group._open


async def test_the_hold_that_a_removed_group_left_is_not_that_of_the_next() -> None:
    """It says that all is held, and the next group has held nothing yet."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        stores = await client._stores(True)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        (path,) = await nodes_below(client, stores.layout.stream_holds(NAME))
        left, _ = await stores.meta.get(path)
        await client.group("g", NAME).remove()
        await stores.meta.create(path, left)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            ours, _ = await stores.meta.get(path)
            assert json.loads(ours)["charter"] != json.loads(left)["charter"]
            assert [each.name for each in await client.admin.holds("orders/0")] == [
                "group g of orders"
            ]
        await client.group("g", NAME).remove()
        assert await client.admin.holds("orders/0") == ()


async def test_of_a_group_whose_stream_was_made_again_it_is_told() -> None:
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        group = client.group("g", NAME)
        assert not (await group.describe()).is_orphan
        await stream.remove()
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        told = await group.describe()
        assert (told.is_orphan, told.shards) == (True, ())
        with pytest.raises(dlog.ConfigError, match="another stream"):
            await group.set_checkpoint(0, "earliest")
        assert await client.admin.holds("orders/0") == ()
        await group.remove()
        assert await client.groups() == []


async def test_a_job_whose_founder_died_before_its_charter_can_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It left holds, and nothing that names the group."""
    from dlog.groups import founding

    def dies(*given: Any) -> Any:
        raise Killed

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        with monkeypatch.context() as patch:
            patch.setattr(founding, "agree", dies)
            with pytest.raises(Killed):
                await client.open_worker("g", NAME, process_nothing, heart="loop", stop_at_end=True)
        assert await client.admin.holds("orders/0")
        await client.group("g", NAME).remove()
        assert await client.admin.holds("orders/0") == ()


async def test_what_was_truncated_before_the_group_was_founded_is_not_missed() -> None:
    """The group begins where the log begins, and so do the shards that it becomes."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
            await client.admin.truncate("orders/0", "latest")
            await writer.append(b"y", key=K)
            options: dict[str, Any] = {"heart": "loop", "flush_ms": 0}
            async with client.open_worker("g", NAME, process_nothing, **options) as worker:
                await stream.split(0)
                for key in KEYS:
                    await writer.append(b"z", key=key)
                group = client.group("g", NAME)

                async def is_done() -> bool:
                    assert worker.failed == {}
                    return not (await group.describe()).lag_messages and len(worker.shards) == 2

                await until(is_done)


async def test_a_group_goes_on_where_it_is_put_behind_what_was_truncated_by_force() -> None:
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        options: dict[str, Any] = {"heart": "loop"}
        async with client.open_worker("g", NAME, process_nothing, **options):
            pass
        async with stream.open_writer() as writer:
            for key in KEYS:
                await writer.append(b"a", key=key)
        await stream.terminate()
        await client.admin.force_truncate("orders/0", "latest")
        group = client.group("g", NAME)
        for _ in range(2):  # whoever comes next is told, too
            async with client.open_worker("g", NAME, process_nothing, **options) as worker:
                await eventually(lambda: worker.failed)
                assert "Truncated" in worker.failed["orders/0"]
        assert [each.refused for each in await group.reset("earliest")] == [None]
        async with client.open_worker("g", NAME, process_nothing, **options) as worker:

            async def is_finished() -> bool:
                return (await group.describe(lag=False)).shards[0].state == "finished"

            await until(is_finished)
            assert worker.failed == {}

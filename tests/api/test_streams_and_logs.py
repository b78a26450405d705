"""Where streams and single logs meet: logs that become streams, names of shards, what other parts
do to a shard's log, streams that older versions made. A docstring says what went wrong once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog import aio, backends, limits
from dlog.copies import copy_log
from dlog.effects import CreateNode, Effect
from dlog.meta.log_meta import LogMeta
from dlog.meta.memory import MemoryTree
from dlog.streams import removal, reshard
from dlog.streams import stream as stream_module
from dlog.streams.document import StreamMeta, new_stream
from dlog.streams.driver import StreamDriver
from dlog.streams.lanes import read_inherited
from dlog.streams.removal import remove_stream
from dlog.streams.reshard import Site
from tests.api.streaming import KEYS, read_stream, truncate_all
from tests.api.test_stream_identity import Sleeper, nodes_below

NAME = "orders"
K = b"k"
_worlds = itertools.count()


@asynccontextmanager
async def a_client() -> AsyncIterator[aio.Client]:
    name = f"review-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{name}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(name, None)


async def site_of(client: aio.Client, name: str = NAME) -> Site:
    stores = await client._stores(True)
    site = Site.at(stores.layout, name, stores.chance)
    return site.of((await StreamDriver(stores).run(reshard.read_stream(site))).meta)


async def asleep(driver: Sleeper, running: asyncio.Task[Any]) -> bool:
    """False when it ended before it came to the step."""
    sleeping = asyncio.create_task(driver.slept.wait())
    await asyncio.wait((running, sleeping), return_when=asyncio.FIRST_COMPLETED)
    sleeping.cancel()
    return not running.done()


async def woken(driver: Sleeper, running: asyncio.Task[Any]) -> dlog.DlogError | None:
    driver.woken.set()
    try:
        await running
    except dlog.DlogError as error:
        return error
    return None


async def process_nothing(batch: dlog.MessageBatch) -> None:
    pass


async def split_with_numbers(stream: aio.Stream) -> None:
    """Number 5 of producer 7 is known by what the children inherited alone."""
    async with stream.open_writer() as writer:
        await writer.append(b"x", key=K, producer=(7, 5))
        await stream.split(0)
        await writer.append(b"y", key=K, producer=(8, 6))


async def number_5_is_refused(stream: aio.Stream) -> None:
    async with stream.open_writer() as writer:
        with pytest.raises(dlog.AlreadyExists):
            await writer.append(b"x", key=K, producer=(7, 5))


class Stop(Effect):
    """Where a test holds a procedure."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Reached, and to go on."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    perform = StreamDriver.perform

    async def held_up(self: StreamDriver, effect: Effect) -> Any:
        if isinstance(effect, Stop):
            reached.set()
            await go_on.wait()
            return None
        return await perform(self, effect)

    monkeypatch.setattr(StreamDriver, "perform", held_up)
    return reached, go_on


# --- logs that are to be shards


Opening = Callable[[aio.Client, str], Awaitable[Any]]


async def by_writer(client: aio.Client, log: str) -> None:
    async with client.open_writer(log) as writer:
        await writer.append(b"hidden")


async def by_admin(client: aio.Client, log: str) -> None:
    await client.admin.create(log)


async def by_standby(client: aio.Client, log: str) -> None:
    async with client.open_standby(log) as standby:
        async with await standby.take_over() as writer:
            await writer.append(b"hidden")


async def by_copy(client: aio.Client, log: str) -> None:
    async with client.open_writer("source") as writer:
        await writer.append(b"hidden")
    await copy_log(client, "source", client, log)


WAYS: dict[str, Opening] = {
    "open_writer": by_writer,
    "create": by_admin,
    "standby": by_standby,
    "copy": by_copy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("log", ["orders/0", "orders/1"])
async def test_no_plain_log_is_made_where_a_shard_is_to_have_its_log(way: str, log: str) -> None:
    """The log of a shard is made when its first writer comes. Until then `open_writer("orders/0")`
    makes a plain log and acknowledges into it, which no reader of the stream sees; and from then on
    the stream cannot be opened for writing any more (`AlreadyExists`, for ever)."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        if log != "orders/0":
            async with stream.open_writer() as writer:
                await writer.append(b"x", key=K)
            await stream.split(0)
        refused = None
        try:
            await WAYS[way](client, log)
        except dlog.ConfigError as error:
            refused = error
        async with stream.open_writer() as writer:
            await writer.append(b"of the stream", key=K)
        assert refused is not None


async def test_a_log_is_not_copied_to_the_name_of_a_stream() -> None:
    """A copy under the name of a stream is a hidden log, as one made by `open_writer` would be."""
    async with a_client() as client:
        await client.create_stream(NAME, shards=1)
        with pytest.raises(dlog.ConfigError):
            await by_copy(client, NAME)


@pytest.mark.parametrize("create", [False, True])
async def test_a_hidden_log_that_was_left_behind_takes_no_messages(create: bool) -> None:
    """Whoever made a log under the name of a stream removes it again, and may die before. The log
    stays, and `open_writer(name, create=False)` is not asked about the stream: it acknowledges into
    a log that the stream's readers never see. Once it is not empty, nothing is asked at all."""
    async with a_client() as client:
        await client.create_stream(NAME, shards=1)
        stores = await client._stores(True)
        left = LogMeta(uid="left", options=client._new_log_options({}))
        await stores.meta.create(stores.layout.log(NAME), left.to_bytes())
        for more in (False, create):
            with pytest.raises((dlog.ConfigError, dlog.NotFound)):
                async with client.open_writer(NAME, create=more) as writer:
                    await writer.append(b"hidden")


async def test_a_standby_does_not_take_a_shard_from_its_stream() -> None:
    """`open_standby("orders/0")` takes over what it saw without the check that `open_writer` makes:
    a shard is written beside its stream, whose writer is fenced by that."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        with pytest.raises(dlog.ConfigError, match="shard"):
            await by_standby(client, "orders/0")


async def test_a_job_does_not_publish_into_a_shard() -> None:
    """What a job publishes into a shard's log by its name goes past the routing of keys: the stream
    has messages in shards that do not have their keys."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=2)
        async with stream.open_writer() as writer:
            for key in KEYS:
                await writer.append(b"x", key=key)

        async def publish() -> None:
            segment = await client.admin.open_segment("orders/0", job="job")
            await segment.append_many([b"y"] * len(KEYS), keys=KEYS)
            filled = await segment.close()
            await client.admin.publish_segments("orders/0", [filled], key=("query", 0))

        with pytest.raises(dlog.ConfigError, match="shard"):
            await publish()


async def test_what_a_dead_writer_left_in_a_shard_can_be_repaired() -> None:
    """fsck plans to seal the last segment of a shard whose writer died, and `repair` always fails
    at it: it opens the log as a plain one."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        writer = await stream.open_writer()
        await writer.append(b"x", key=K)
        writer.drop()
        await asyncio.sleep(0)
        report = await client.admin.fsck()
        assert [step.action.value for step in report.plan] == ["seal_tail"]
        told = await client.admin.repair(report)
        assert [step.ended.value for step in told.steps] == ["done"], told


async def test_a_shard_does_not_move_away_from_its_stream() -> None:
    """`move_meta("orders/0")` of a shard that nobody writes is not refused. Where it arrives there
    is no stream: it can be neither opened nor ended nor removed, and where it was the stream has
    lost a shard."""
    async with a_client() as client:
        there = f"review-{next(_worlds)}"
        stream = await client.create_stream(NAME, shards=1)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        world = backends._memory_worlds[client._url.place]
        backends._memory_worlds[there] = MemoryTree(), world[1]
        try:
            with pytest.raises(dlog.ConfigError, match="shard"):
                await client.admin.move_meta("orders/0", f"memory:{there}")
        finally:
            backends._memory_worlds.pop(there)


# --- removal, and who slept


async def test_a_removal_that_slept_leaves_the_numbers_of_the_next_stream() -> None:
    """Two removed the stream; one of them wakes up when another stream has its name, and deletes
    what the shards of that one inherited of producers' numbers. The new stream cannot be opened for
    writing any more (`Corrupt`), or what it inherited is counted again from truncated parents."""
    step = 0
    while True:
        async with a_client() as client:
            stream = await client.create_stream(NAME, shards=1)
            driver = Sleeper(await client._stores(True), step)
            running = asyncio.create_task(driver.run(remove_stream(await site_of(client))))
            if not await asleep(driver, running):
                break
            await stream.remove()
            stream = await client.create_stream(NAME, shards=1)
            await split_with_numbers(stream)
            await truncate_all(client, stream, 0)
            assert await stream.trim() == (0,)
            await woken(driver, running)
            await number_5_is_refused(stream)
        step += 1
    assert step > 5


async def test_a_creation_that_slept_leaves_the_numbers_of_the_next_stream(
    monkeypatch: pytest.MonkeyPatch, held: tuple[asyncio.Event, asyncio.Event]
) -> None:
    """`create_stream` sweeps up what earlier streams left, last of all. Asleep before that while
    its stream is removed and made again by another, it deletes what that one's shards inherited."""
    reached, go_on = held
    delete = removal.delete_nodes

    def held_up(paths: Any) -> Any:
        monkeypatch.setattr(stream_module, "delete_nodes", delete)
        yield Stop()
        yield from delete(paths)

    monkeypatch.setattr(stream_module, "delete_nodes", held_up)
    async with a_client() as client:
        creating = asyncio.ensure_future(client.create_stream(NAME, shards=1))
        await reached.wait()
        await client.stream(NAME).remove()
        stream = await client.create_stream(NAME, shards=1)
        await split_with_numbers(stream)
        await truncate_all(client, stream, 0)
        assert await stream.trim() == (0,)
        go_on.set()
        await creating
        await number_5_is_refused(stream)


async def test_a_writer_that_slept_leaves_nothing_where_the_stream_was() -> None:
    """A writer (or a trim) about to keep what a shard inherited sleeps while the stream is removed.
    The node that it makes then brings back its parents: the stream's own node is there, empty. The
    stream is listed, `shards()` and `create_stream` raise `FormatError`, and no call of ours can
    remove it."""
    step = 0
    while True:
        async with a_client() as client:
            stream = await client.create_stream(NAME, shards=1)
            async with stream.open_writer() as writer:
                await writer.append(b"x", key=K, producer=(7, 5))
            await stream.split(0)
            site, stores = await site_of(client), await client._stores(True)
            meta = (await StreamDriver(stores).run(reshard.read_stream(site))).meta
            driver = Sleeper(stores, step)
            reading = read_inherited(site, meta, meta.shard(1))
            running = asyncio.create_task(driver.run(reading))
            if not await asleep(driver, running):
                break
            await stream.remove()
            await woken(driver, running)
            assert await client.streams() == []
            await client.create_stream(NAME, shards=1)
        step += 1
    assert step > 2


async def test_removing_a_log_does_not_take_the_first_shard_of_a_stream_that_it_became() -> None:
    """`client.stream("log").remove()` of a plain log, asleep while that log is split: the first
    shard's log is removed, the stream stays, and its readers end with `NotFound` for ever."""
    step = 0
    while True:
        async with a_client() as client:
            async with client.open_writer(NAME) as writer:
                await writer.append(b"x", key=K)
            stores = await client._stores(True)
            site = Site.at(stores.layout, NAME, stores.chance)
            driver = Sleeper(stores, step)
            running = asyncio.create_task(driver.run(remove_stream(site)))
            if not await asleep(driver, running):
                break
            stream = client.stream(NAME)
            try:
                await stream.split(0)
                is_split = True
            except dlog.NotFound:
                is_split = False
            await woken(driver, running)
            left = await client.streams()
            if left:
                assert is_split
                assert len(await read_stream(stream)) == 1, f"asleep before step {step}"
        step += 1


async def test_a_split_that_slept_does_not_make_another_log_a_stream() -> None:
    """A split of a plain log, asleep while that log is removed and made again: the stream's node
    names a log that is gone. The new log can be neither read as a stream nor removed nor ended, and
    `client.stream()` ends with errors."""
    step = 0
    while True:
        async with a_client() as client:
            async with client.open_writer(NAME) as writer:
                await writer.append(b"old", key=K)
            stores = await client._stores(True)
            site = Site.at(stores.layout, NAME, stores.chance)
            driver = Sleeper(stores, step)
            splitting = reshard.split(site, 0, (1 << 31,), "t" * 12)
            running = asyncio.create_task(driver.run(splitting))
            if not await asleep(driver, running):
                break
            try:
                await client.admin.remove(NAME)
            except dlog.ConfigError:  # it is a stream by now
                await woken(driver, running)
                step += 1
                continue
            async with client.open_writer(NAME) as writer:
                await writer.append(b"new", key=K)
            await woken(driver, running)
            values = [each.message.value for each in await read_stream(client.stream(NAME))]
            assert values == [b"new"], f"asleep before step {step}"
        step += 1
    assert step > 5


async def test_a_log_that_becomes_a_stream_is_not_removed_as_a_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`admin.remove` looked whether the log is a stream, and then a split was decided, whose author
    died at once. The log of the shard goes, and whoever ends it makes it again, empty, by the same
    uid: acknowledged messages are gone, and readers hear nothing."""
    from dlog.admin import admin, hidden

    class Died(Exception):
        pass

    class Dying(StreamDriver):
        async def perform(self, effect: Effect) -> Any:
            if isinstance(effect, reshard.EndLog):
                raise Died
            return await super().perform(effect)

    refuse = hidden.refuse_first_shard

    async def late(stores: Any, name: str) -> None:
        await refuse(stores, name)
        site = Site.at(stores.layout, name, stores.chance)
        with pytest.raises(Died):
            await Dying(stores).run(reshard.split(site, 0, (1 << 31,), "t" * 12))

    monkeypatch.setattr(admin, "refuse_first_shard", late)
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append(b"acknowledged", key=K)
        try:
            await client.admin.remove(NAME)
        except dlog.DlogError:
            pass
        stream = client.stream(NAME)
        try:
            async with stream.open_writer() as later:
                await later.append(b"later", key=K)
            values = [each.message.value for each in await read_stream(stream)]
        except dlog.DlogError:
            return  # told
        assert values == [b"acknowledged", b"later"]


async def test_a_terminated_log_is_not_gone_on_with_by_a_split() -> None:
    """A plain log was terminated: no more messages, for good. `client.stream(log).split(0)` makes
    it an open stream, and its children take messages. Where the log was truncated before that, its
    table of producers is gone, and a number that was taken is taken again."""
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append_many([b"x"] * 3, producer=(7, 0))
        await client.admin.terminate(NAME)
        await client.admin.truncate(NAME, "latest")
        stream = client.stream(NAME)
        with pytest.raises(dlog.DlogError):
            await stream.split(0)
        with pytest.raises(dlog.DlogError):
            async with stream.open_writer() as writer:
                await writer.append(b"x", key=K, producer=(7, 1))


async def test_a_log_that_became_a_stream_is_written_through_it_only() -> None:
    """A pin that moves nothing makes a plain log a stream. `admin.terminate` and `admin.remove`
    refuse its log from then on; `open_writer` does not, and fences the writer of the stream."""
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append(b"x", key=K)
        stream = client.stream(NAME)
        await stream.pin(K, 0)
        assert await client.streams() == [NAME]
        with pytest.raises(dlog.ConfigError):
            async with client.open_writer(NAME) as writer:
                await writer.append(b"beside the stream")


async def test_no_log_takes_the_name_of_a_stream_whose_first_shard_is_gone() -> None:
    """A stream's first shard may be the log that it was. Where that log was removed, its name is
    still taken for "the log that the stream became": `open_writer` makes a hidden one."""
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append(b"x", key=K)
        await client.stream(NAME).split(0)
        stores, site = await client._stores(True), await site_of(client)
        driver = StreamDriver(stores)
        meta = (await driver.run(reshard.read_stream(site))).meta
        await driver.remove(meta.log_of(meta.shard(0), NAME))
        with pytest.raises(dlog.DlogError):
            async with client.open_writer(NAME) as writer:
                await writer.append(b"hidden")


async def test_a_stream_that_gives_way_to_a_log_has_no_messages_yet(
    monkeypatch: pytest.MonkeyPatch, held: tuple[asyncio.Event, asyncio.Event]
) -> None:
    """`create_stream` looks behind the making whether a log of its name was made at the same time,
    and removes the stream then. By that time others have found the stream and had messages
    acknowledged in it: they are gone."""
    reached, go_on = held
    make = reshard.make_stream

    def held_up(site: Site, draw: Any) -> Any:
        seen = yield from make(site, draw)
        yield Stop()
        return seen

    monkeypatch.setattr(stream_module, "make_stream", held_up)
    async with a_client() as client:
        creating = asyncio.ensure_future(client.create_stream(NAME, shards=1))
        await reached.wait()
        stores = await client._stores(True)
        stream = client.stream(NAME)
        taken = False
        try:
            async with stream.open_writer() as writer:
                await writer.append(b"acknowledged", key=K)
                taken = True
        except dlog.DlogError:
            pass
        # Its maker looked for a stream before there was one, and goes on only now.
        log = LogMeta(uid="log", options=client._new_log_options({}))
        await stores.meta.create(stores.layout.log(NAME), log.to_bytes())
        go_on.set()
        await asyncio.gather(creating, return_exceptions=True)
        there = await client.streams() == [NAME]
        assert there or not taken
        if taken:
            assert len(await read_stream(stream)) == 1


async def test_who_ends_a_shard_that_was_trimmed_meanwhile_does_not_make_its_log_again() -> None:
    """A split of a shard that nobody wrote, asleep before it ends that shard's log, while others
    end and trim it: the log is made again. No list names it any more, so it outlives the stream;
    and since it says that it is a shard, `admin.remove` refuses it, too."""
    step = 0
    while True:
        async with a_client() as client:
            stream = await client.create_stream(NAME, shards=1)
            driver = Sleeper(await client._stores(True), step)
            splitting = reshard.split(await site_of(client), 0, (1 << 31,), "t" * 12)
            running = asyncio.create_task(driver.run(splitting))
            if not await asleep(driver, running):
                break
            async with stream.open_writer():
                pass
            await stream.trim()
            await woken(driver, running)
            await stream.remove()
            left = [each.name for each in await client.admin.list()]
            assert left == [], f"asleep before step {step}"
        step += 1
    assert step > 5


# --- bounds


def _as_large_as_it_gets() -> StreamMeta:
    """800 shards, and then as many splits as there is room for."""
    meta = new_stream("a-stream-with-a-name", "f" * 32, dlog.LogOptions(), shards=800)
    for change in itertools.count():
        shard = meta.open_shards[0]
        middle = shard.range.first_hash + len(shard.range) // 2
        try:
            larger = meta.split("a-stream-with-a-name", shard.number, [middle], f"{change:032x}")
            larger = larger.ended([shard.number])
            larger.to_bytes()
        except dlog.TooLarge:
            break
        meta = larger
    return meta


def test_a_stream_has_room_for_as_many_shards_as_are_promised() -> None:
    """A stream lists up to 1,600 shards, says its how-to, and did so before. With the uids of logs
    its node is full at 1,376: a split is refused with `TooLarge` earlier than it was."""
    assert len(_as_large_as_it_gets().shards) >= limits.SHARDS_MAX - 1


def test_a_stream_that_is_full_can_be_terminated_and_removed() -> None:
    """A node that is full has no room for its own end, since "sealed" is longer than "open":
    `terminate()` and `remove()` raise `TooLarge` ("trim it first")."""
    full = _as_large_as_it_gets()
    full.terminated().to_bytes()


# --- versions beside each other


async def as_of_old(client: aio.Client) -> None:
    """The stream as the version before made it: its shards have no uids of logs."""
    stores = await client._stores(True)
    path = stores.layout.stream(NAME)
    raw, version = await stores.meta.get(path)
    fields = json.loads(raw)
    for shard in fields["shards"]:
        shard.pop("log_uid", None)
    await stores.meta.put(path, json.dumps(fields).encode(), version)


@pytest.mark.parametrize("change", ["remove", "split"])
async def test_who_changes_a_stream_of_old_and_slept_harms_nothing_of_the_next(change: str) -> None:
    """A removal, or a split, of a stream that the version before made, asleep while the stream is
    removed and made again by this version: since the old shards have no uids, it takes the logs of
    the new stream for its own. A removal deletes acknowledged messages; a split ends the new
    stream's open shard for ever."""
    step = 0
    while True:
        async with a_client() as client:
            old = await client.create_stream(NAME, shards=1)
            await as_of_old(client)
            async with old.open_writer() as writer:
                await writer.append(b"old", key=K)
            site, stores = await site_of(client), await client._stores(True)
            procedure: Any = remove_stream(site)
            if change == "split":
                procedure = reshard.split(site, 0, (1 << 31,), "t" * 12)
            driver = Sleeper(stores, step)
            running = asyncio.create_task(driver.run(procedure))
            if not await asleep(driver, running):
                break
            try:
                await old.remove()
            except dlog.NotFound:
                pass  # it was about to end
            new = await client.create_stream(NAME, shards=1)
            async with new.open_writer() as writer:
                await writer.append(b"new", key=K)
                await woken(driver, running)
            async with new.open_writer() as writer:
                await writer.append(b"later", key=K)
            values = [each.message.value for each in await read_stream(new)]
            assert values == [b"new", b"later"], f"asleep before step {step}"
        step += 1
    assert step > 3


async def test_a_group_holds_unwritten_shards_of_an_older_stream() -> None:
    """Shards of a stream of an older version have no uid, so their logs do not say that they are
    shards, also when this version makes them. The hold of a group on the stream is not looked for
    there: `truncate` takes what a group that is away did not consume."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        await as_of_old(client)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=K)
        assert (await client.admin.truncate("orders/0", "latest")).held_by


async def test_numbers_stay_known_when_an_older_version_changed_the_stream() -> None:
    """A process of the version before, during an upgrade, writes the stream's node without the
    uids of logs. What shards inherited is then looked for at the place of old, found nowhere,
    and taken for nothing: a number that was taken is taken again."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        await split_with_numbers(stream)
        await truncate_all(client, stream, 0)
        assert await stream.trim() == (0,)
        await as_of_old(client)
        with pytest.raises(dlog.DlogError):
            async with stream.open_writer() as writer:
                await writer.append(b"x", key=K, producer=(7, 5))


# --- readers


# --- groups


async def test_the_hold_of_a_group_goes_with_a_plain_log() -> None:
    """A group of a plain log holds it as a stream, too. `client.stream(log).remove()` drops such
    nodes of a stream, and leaves those of a plain log behind."""
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append(b"x", key=K)
        async with client.open_worker("g", NAME, process_nothing, heart="loop"):
            pass
        await client.stream(NAME).remove()
        stores = await client._stores(True)
        assert await nodes_below(client, stores.layout.stream_holds(NAME)) == []


async def test_a_stream_that_was_removed_does_not_come_back() -> None:
    """The reply to its making was lost, and it was removed before its maker tried again."""
    async with a_client() as client:
        stores = await client._stores(True)
        driver, lost = StreamDriver(stores), False
        genuine = driver.perform

        async def perform(effect: Effect) -> Any:
            nonlocal lost
            answer = await genuine(effect)
            if isinstance(effect, CreateNode) and not lost:
                lost = True
                await client.stream(NAME).remove()
                raise dlog.Unavailable("the reply is lost", outcome=dlog.Outcome.UNKNOWN)
            return answer

        drawn = []

        def draw() -> StreamMeta:
            drawn.append(new_stream(NAME, stores.chance.token(), dlog.LogOptions()))
            return drawn[-1]

        driver.perform = perform  # type: ignore[method-assign]
        site = Site.at(stores.layout, NAME, stores.chance)
        made = await driver.run(reshard.make_stream(site, draw))
        assert [meta.uid for meta in drawn].index(made.meta.uid) == 1


@pytest.mark.parametrize("others", ["nobody", "split it"])
async def test_a_log_that_is_removed_while_it_becomes_a_stream_leaves_no_stream(
    others: str,
) -> None:
    """Its changer slept behind the making of the node. What others have changed since is theirs."""
    async with a_client() as client:
        async with client.open_writer(NAME) as writer:
            await writer.append(b"x")
        stores = await client._stores(True)
        driver = StreamDriver(stores)
        genuine, marks = driver.perform, 0

        async def perform(effect: Effect) -> Any:
            nonlocal marks
            marks += isinstance(effect, reshard.MarkLog)
            if isinstance(effect, reshard.MarkLog) and marks == 2:
                if others == "split it":
                    await client.stream(NAME).split(0)
                raise dlog.NotFound("the log was removed meanwhile")
            return await genuine(effect)

        driver.perform = perform  # type: ignore[method-assign]
        site = Site.at(stores.layout, NAME, stores.chance)
        if others == "nobody":
            with pytest.raises(dlog.NotFound):
                await driver.run(reshard.terminate_stream(site))
            assert await stores.meta.children(stores.layout.streams) == []
        else:
            await driver.run(reshard.terminate_stream(site))
            assert len(await client.stream(NAME).shards()) == 3

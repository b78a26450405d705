"""A stream that was removed and made again under its name is another stream. Whoever dealt with the
old one, and slept meanwhile at any step, harms nothing of the new one; and what died half way is
gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.effects import Effect, Procedure
from dlog.ledger.memory import MemoryAppender
from dlog.streams import reshard
from dlog.streams.driver import StreamDriver
from dlog.streams.removal import forget_shards, remove_stream
from dlog.streams.reshard import Site
from dlog.streams.routing.hashing import key_hash
from tests.api.streaming import KEYS as MANY_KEYS
from tests.api.streaming import P, by_key, read_stream, truncate_all
from tests.api.waiting import eventually

NAME = "orders"


class Sleeper(StreamDriver):
    """Falls asleep before one of its effects, those of procedures side by side counted, too."""

    def __init__(self, stores: Any, step: int) -> None:
        super().__init__(stores)
        self.slept = asyncio.Event()
        self.woken = asyncio.Event()
        self._left = step

    async def perform(self, effect: Effect) -> Any:
        self._left -= 1
        if self._left == -1:
            self.slept.set()
            await self.woken.wait()
        return await super().perform(effect)


class Killed(Exception):
    """In place of a crash: nothing of the procedure runs any more."""


class Dying(StreamDriver):
    def __init__(self, stores: Any, step: int, *, is_applied: bool) -> None:
        super().__init__(stores)
        self._left = step
        self._is_applied = is_applied

    async def perform(self, effect: Effect) -> Any:
        self._left -= 1
        is_last = self._left == -1
        if is_last and not self._is_applied:
            raise Killed
        try:
            return await super().perform(effect)
        finally:
            if is_last:
                raise Killed


# Two of each quarter of the hashes: each of four shards has some.
KEYS = [
    key
    for quarter in range(4)
    for key in [key for key in MANY_KEYS if key_hash(key) >> 30 == quarter][:2]
]
# In the first quarter.
OF_SHARD_2 = next(key for key in KEYS if key_hash(key) < 1 << 30)

_tokens = itertools.count()


def token() -> str:
    return f"{next(_tokens):012d}"


# Every step of each procedure is tried in memory; the same steps of all but one on files are in
# `make full`.
def on_both(on_files: str, names: Iterable[str]) -> pytest.MarkDecorator:
    full = pytest.mark.tier("full", seconds=2)
    cases = [
        pytest.param(url, name, marks=full if url == "file" and name != on_files else ())
        for url in ("file", "memory")
        for name in names
    ]
    return pytest.mark.parametrize(("url", "name"), cases, indirect=["url"])


Making = Callable[[Site], Procedure[Any]]

PROCEDURES: dict[str, Making] = {
    "remove": remove_stream,
    "trim": lambda site: forget_shards(site, [0]),
    "split": lambda site: reshard.split(site, 1, (1 << 31 | 1 << 30,), token()),
    "merge": lambda site: reshard.merge(site, (2, 3), token()),
    "pin": lambda site: reshard.pin(site, OF_SHARD_2, 1, token()),
    "terminate": reshard.terminate_stream,
}


def is_owner(shard: Any, key: bytes) -> bool:
    return bool(shard.is_open and shard.range.contains(key_hash(key)))


async def made(client: aio.Client) -> aio.Stream:
    """Two shards; the first is split, ended and truncated."""
    stream = await client.create_stream(NAME, shards=2)
    async with stream.open_writer() as writer:
        for number, key in enumerate(KEYS):
            await writer.append(b"old", key=key, producer=(P, number))
    await stream.split(0)
    await truncate_all(client, stream, 0)
    return stream


async def site_of(client: aio.Client) -> Site:
    """Of the stream that is there now."""
    stores = await client._stores(True)
    site = Site.at(stores.layout, NAME, stores.chance)
    return site.of((await StreamDriver(stores).run(reshard.read_stream(site))).meta)


async def nodes_below(client: aio.Client, path: str) -> list[str]:
    meta = (await client._stores(False)).meta
    try:
        names = await meta.children(path)
    except dlog.NotFound:
        return []
    found: list[str] = []
    for name in names:
        found += [f"{path}/{name}", *(await nodes_below(client, f"{path}/{name}"))]
    return found


async def truncate_what_is_there(client: aio.Client, stream: aio.Stream) -> None:
    there = {each.name for each in await client.admin.list()}
    for shard in await stream.shards():
        if shard.log in there:
            await client.admin.truncate(shard.log, "latest")


async def left_behind(client: aio.Client) -> list[str]:
    """Logs and nodes of the stream's name."""
    stores = await client._stores(False)
    logs = [each.name for each in await client.admin.list()]
    return logs + await nodes_below(client, stores.layout.streams)


@on_both("merge", PROCEDURES)
async def test_who_sleeps_at_any_step_while_the_stream_is_made_again_harms_nothing(
    url: str, name: str
) -> None:
    steps = 0
    async with aio.connect(url) as client:
        while True:
            old = await made(client)
            driver = Sleeper(await client._stores(True), steps)
            running = asyncio.create_task(driver.run(PROCEDURES[name](await site_of(client))))
            asleep = asyncio.create_task(driver.slept.wait())
            await asyncio.wait((running, asleep), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                asleep.cancel()
                break
            await old.remove()
            new = await client.create_stream(NAME, shards=4)
            async with new.open_writer() as writer:
                for number, key in enumerate(KEYS):
                    await writer.append(b"new", key=key, producer=(P, number))
                driver.woken.set()
                (error,) = await asyncio.gather(running, return_exceptions=True)
                assert error is None or "removed" in str(error), f"step {steps}: {error!r}"
                for number, key in enumerate(KEYS):
                    await writer.append(b"newer", key=key, producer=(P, len(KEYS) + number))
            found = by_key(await read_stream(new))
            assert found == {key: [b"new", b"newer"] for key in KEYS}, f"step {steps}"
            assert [shard.is_open for shard in await new.shards()] == [True] * 4, f"step {steps}"
            await new.remove()
            assert await left_behind(client) == [], f"step {steps}"
            steps += 1
        if name != "remove":
            await old.remove()
    assert steps > 2


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@on_both("remove", PROCEDURES)
async def test_what_died_at_any_step_is_gone_on_with_and_leaves_nothing(
    url: str, name: str, is_applied: bool
) -> None:
    steps = 0
    async with aio.connect(url) as client:
        while True:
            stream = await made(client)
            driver = Dying(await client._stores(True), steps, is_applied=is_applied)
            try:
                await driver.run(PROCEDURES[name](await site_of(client)))
                break
            except Killed:
                pass
            if name == "trim":
                await stream.trim()
                assert "orders/0" not in [each.name for each in await client.admin.list()]
                assert (await stream.shards())[0].number == 1
            if steps % 2:
                try:
                    await stream.remove()
                except dlog.NotFound:
                    assert name == "remove"
                assert await left_behind(client) == [], f"step {steps}"
            elif name != "remove":
                await stream.remove()
            try:
                new = await client.create_stream(NAME, shards=2)
            except dlog.AlreadyExists:
                assert steps < 3, "the removal had begun"
                await stream.remove()
                new = await client.create_stream(NAME, shards=2)
            async with new.open_writer() as writer:
                for number, key in enumerate(KEYS):
                    await writer.append(b"new", key=key, producer=(P, number))
            assert by_key(await read_stream(new)) == {key: [b"new"] for key in KEYS}
            await new.remove()
            assert await left_behind(client) == [], f"step {steps}"
            steps += 1
        if name != "remove":
            await stream.remove()
    assert steps > 1


async def test_numbers_of_a_stream_that_was_removed_are_not_inherited(url: str) -> None:
    async with aio.connect(url) as client:
        for _ in range(2):
            stream = await client.create_stream(NAME, shards=1)
            async with stream.open_writer() as writer:
                await writer.append(b"0", key=b"k", producer=(P, 0))
                await stream.split(0)
                for number in range(1, 5):
                    await writer.append(b"%d" % number, key=b"k", producer=(P, number))
            assert by_key(await read_stream(stream)) == {b"k": [b"0", b"1", b"2", b"3", b"4"]}
            await stream.remove()


async def test_a_writer_of_the_old_stream_gets_nothing_acknowledged_in_the_new_one(
    url: str,
) -> None:
    async with aio.connect(url) as client, aio.connect(url) as other:
        old = await client.create_stream(NAME, shards=2)
        stale = await old.open_writer()
        await stale.append(b"old", key=KEYS[0])
        await other.stream(NAME).remove()
        new = await other.create_stream(NAME, shards=2)
        async with new.open_writer(takeover="never") as writer:
            refused = 0
            for key in KEYS:
                try:
                    await stale.append(b"stale", key=key)
                except dlog.DlogError:
                    refused += 1
                await writer.append(b"new", key=key)
            assert refused == len(KEYS)
            await stale.close()
            assert by_key(await read_stream(new)) == {key: [b"new"] for key in KEYS}


async def test_the_only_writer_of_a_stream_made_again_keeps_its_shards_over_a_split(
    url: str,
) -> None:
    async with aio.connect(url) as client:
        for round_ in range(3):
            stream = await client.create_stream(NAME, shards=1)
            async with stream.open_writer() as writer:
                for number in range(3):
                    await writer.append(b"%d" % number, key=KEYS[0])
                    owner = next(s for s in await stream.shards() if is_owner(s, KEYS[0]))
                    await stream.split(owner.number)
                await writer.append(b"3", key=KEYS[0])
                assert by_key(await read_stream(stream)) == {KEYS[0]: [b"0", b"1", b"2", b"3"]}
            if round_ < 2:
                await stream.remove()


async def test_a_shard_is_reached_through_its_stream_only(url: str) -> None:
    async with aio.connect(url) as client:
        stream = await client.create_stream(NAME, shards=2)
        async with stream.open_writer() as writer:
            ids = [await writer.append(b"x", key=key) for key in KEYS]
        for shard in await stream.shards():
            for wrong in (
                client.admin.remove(shard.log),
                client.admin.terminate(shard.log),
                client.open_writer(shard.log),
            ):
                with pytest.raises(dlog.ConfigError, match="shard"):
                    await wrong
        await stream.split(0)
        with pytest.raises(dlog.ConfigError, match="shard"):
            await client.admin.remove("orders/0")
        assert len(await read_stream(stream)) == len(ids)


async def test_the_first_shard_of_a_log_that_became_a_stream_goes_with_it(url: str) -> None:
    async with aio.connect(url) as client:
        async with client.open_writer("plain") as log:
            await log.append(b"x", key=b"k")
        stream = client.stream("plain")
        await stream.split(0)
        for wrong in (client.admin.remove("plain"), client.admin.terminate("plain")):
            with pytest.raises(dlog.ConfigError, match="shard"):
                await wrong
        await stream.remove()
        assert await left_behind(client) == []


async def test_no_log_is_made_under_the_name_of_a_stream(url: str) -> None:
    async with aio.connect(url) as client:
        await client.create_stream(NAME, shards=2)
        for wrong in (
            client.open_writer(NAME),
            client.admin.create(NAME),
            client.open_standby(NAME),
        ):
            with pytest.raises(dlog.ConfigError, match="is a stream"):
                await wrong
        assert NAME not in [each.name for each in await client.admin.list()]
        with pytest.raises(dlog.AlreadyExists):
            await client.create_stream(NAME)


async def test_a_removal_that_died_is_ended_by_whoever_makes_the_stream_again(url: str) -> None:
    async with aio.connect(url) as client:
        steps = 0
        while True:
            await made(client)
            driver = Dying(await client._stores(True), steps, is_applied=True)
            try:
                await driver.run(remove_stream(await site_of(client)))
                break
            except Killed:
                steps += 1
            try:
                await client.create_stream(NAME, shards=1)
            except dlog.AlreadyExists:
                assert steps <= 2, "the removal had begun"
                assert len(await client.stream(NAME).shards()) == 4
            await client.stream(NAME).remove()
            assert await left_behind(client) == []


@on_both("split", ["split", "merge", "pin", "terminate"])
async def test_who_sleeps_while_the_shard_is_ended_and_trimmed_leaves_no_log_of_it(
    url: str, name: str
) -> None:
    """It would make the log anew to end it: one that no list has."""
    steps = 0
    async with aio.connect(url) as client:
        while True:
            stream = await made(client)
            driver = Sleeper(await client._stores(True), steps)
            running = asyncio.create_task(driver.run(PROCEDURES[name](await site_of(client))))
            asleep = asyncio.create_task(driver.slept.wait())
            await asyncio.wait((running, asleep), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                asleep.cancel()
                await stream.remove()
                break
            if all(shard.is_open for shard in await stream.shards() if shard.number):
                for shard in await stream.shards():
                    if shard.is_open:
                        await stream.split(shard.number)
            elif name == "terminate":  # it was decided, and is carried out by somebody else
                await stream.terminate()
            else:
                async with stream.open_writer() as writer:
                    await writer.append(b"x", key=KEYS[0])
            await truncate_what_is_there(client, stream)
            await stream.trim()
            driver.woken.set()
            await asyncio.gather(running, return_exceptions=True)
            await truncate_what_is_there(client, stream)
            await stream.trim()
            listed = {shard.log for shard in await stream.shards()}
            there = {each.name for each in await client.admin.list()}
            assert there <= listed, f"step {steps}"
            await stream.remove()
            assert await left_behind(client) == [], f"step {steps}"
            steps += 1
    assert steps > 3


async def test_what_was_trimmed_while_it_was_counted_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is gone, and with it what tells that a message never got in."""
    async with aio.connect("memory:trimmed-while-counted") as client:
        stream = await client.create_stream(NAME, shards=1)
        writer = await stream.open_writer()
        await writer.append(b"there", key=b"k", producer=(P, 0))
        driver = writer._following.driver
        last_writer = driver.last_writer

        async def trimmed_behind(log: Any) -> Any:
            told = await last_writer(log)
            if log.name == f"{NAME}/0":
                await truncate_all(client, stream, 0)
                await stream.trim()
            return told

        monkeypatch.setattr(driver, "last_writer", trimmed_behind)
        monkeypatch.setattr(
            MemoryAppender, "_confirm", lambda appender: on_its_way.append(appender)
        )
        on_its_way: list[MemoryAppender] = []
        ticket = await writer.submit(b"never got in", key=b"k", producer=(P, 1))
        await eventually(lambda: on_its_way)
        monkeypatch.undo()
        monkeypatch.setattr(driver, "last_writer", trimmed_behind)
        await stream.split(0)
        on_its_way[0]._fail(dlog.Fenced("its ledger was ended"))
        try:
            await ticket
            is_acknowledged = True
        except dlog.DlogError:
            is_acknowledged = False
        values = [message.value for _, message in await read_stream(stream)]
        assert is_acknowledged == (b"never got in" in values)
        await writer.close()


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "trimmed by an older version"])
async def test_behind_a_number_that_failed_no_later_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Shards 0 and 1 are merged and trimmed under a writer, which goes on with what it had on its
    way. Where nobody noted how they ended, that fails, and no later number gets into the shard that
    follows: it would make that one refuse the first as taken, which it never was."""
    async with aio.connect("memory:gap" if is_known else "memory:old-gap") as client:
        stream = await client.create_stream(NAME, shards=2)
        writer = await stream.open_writer()
        one, other = (next(k for k in KEYS if writer.shard_of(k) == shard) for shard in (0, 1))
        on_its_way: list[MemoryAppender] = []
        monkeypatch.setattr(MemoryAppender, "_confirm", lambda each: on_its_way.append(each))
        ticket = await writer.submit(b"4", key=one, producer=(P, 4))
        await eventually(lambda: on_its_way)
        monkeypatch.undo()
        await stream.merge(0, 1)
        await truncate_all(client, stream, 0, 1)
        assert await stream.trim() == (0, 1)
        if not is_known:
            site, stores = await site_of(client), await client._stores(True)
            path = f"{site.numbers(str(site.uid))}/trimmed"
            await stores.meta.delete(path, (await stores.meta.get(path)).version)
        on_its_way[0]._fail(dlog.Fenced("its ledger was ended"))
        if is_known:
            await ticket
        else:
            with pytest.raises(dlog.DlogError):
                await ticket
            with pytest.raises(dlog.Conflict, match="number 4 of producer 7 failed"):
                await writer.append(b"5", key=other, producer=(P, 5))
            with contextlib.suppress(dlog.DlogError):
                await writer.close()
            writer = await stream.open_writer()
            await writer.append(b"4", key=one, producer=(P, 4))
        await writer.append(b"5", key=other, producer=(P, 5))
        assert [message.value for _, message in await read_stream(stream)] == [b"4", b"5"]
        await writer.close()


async def test_who_ended_the_logs_and_slept_notes_it_in_no_later_stream(url: str) -> None:
    """Asked for by the name alone; in the later stream a shard of that number is sealed, too."""
    async with aio.connect(url) as client:
        stores = await client._stores(True)
        site = Site.at(stores.layout, NAME, stores.chance)
        driver = StreamDriver(stores)

        async def decided() -> reshard.SeenStream:
            await client.create_stream(NAME, shards=1)
            mark = token()
            return await driver.run(
                reshard.change_stream(
                    site,
                    lambda meta: meta.split(NAME, 0, (1 << 31,), mark),
                    is_done=lambda meta: bool(meta.made_in(mark)),
                    point="stream.resharded",
                )
            )

        ending = reshard.end_before(site, await decided(), (0,))
        assert next(ending) is not None  # the logs are ended; the answer comes late
        await client.stream(NAME).remove()
        await decided()

        async def goes_on() -> None:
            effect = ending.send([None])
            while True:
                effect = ending.send(await driver.perform(effect))

        with pytest.raises(dlog.NotFound, match="another one"):
            await goes_on()
        states = [shard.state.value for shard in await client.stream(NAME).shards()]
        assert states == ["sealed", "open", "open"]

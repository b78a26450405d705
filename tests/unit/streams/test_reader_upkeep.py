"""What a stream's reader asks the metadata store in the background, where answers are late, or are
errors: no caller's time-out cuts it short, and errors reach the next call."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dlog import aio
from dlog.errors import Corrupt, DlogError, Truncated, Unavailable
from dlog.meta.memory import MemoryMetaStore
from dlog.reason import ReasonCode
from dlog.streams.places import StreamPosition
from dlog.streams.reader import StreamReader
from tests.api.streaming import KEYS
from tests.api.waiting import eventually
from tests.pace import timeout

_worlds = itertools.count()
LIST, LOG = "/streams/", "/logs/"


class Asked:
    """What is asked of nodes whose path has some text in it: held back, or refused."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._held: dict[str, tuple[asyncio.Event, int]] = {}
        self._errors: dict[str, list[DlogError]] = {}
        self.count = 0
        genuine = MemoryMetaStore.get

        async def get(store: MemoryMetaStore, path: str) -> Any:
            for text, errors in self._errors.items():
                if text in path and errors:
                    self.count += 1
                    raise errors.pop(0)
            for text, (event, most) in tuple(self._held.items()):
                if text in path and self.count < most:
                    self.count += 1
                    await event.wait()
            return await genuine(store, path)

        patch.setattr(MemoryMetaStore, "get", get)

    def hold(self, text: str, most: int = 1_000) -> None:
        """So many questions, from now on."""
        self._held[text] = asyncio.Event(), most
        self.count = 0

    def let_go(self, text: str) -> None:
        self._held.pop(text)[0].set()

    def refuse(self, text: str, *errors: DlogError) -> None:
        self._errors.setdefault(text, []).extend(errors)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
async def stream() -> AsyncIterator[Any]:
    async with aio.connect(f"memory:upkeep-{next(_worlds)}") as client:
        yield await client.create_stream("orders", shards=1)


async def _split_and_read(stream: Any, **options: Any) -> StreamReader:
    """A reader that has handed out all of shard 0, which was split."""
    async with stream.open_writer() as writer:
        await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
        await stream.split(0)
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
    reader: StreamReader = await stream.open_reader(follow=True, **options)
    found = 0
    while found < len(KEYS):
        found += len(await reader.read(len(KEYS) - found))
    return reader


async def _polled(reader: StreamReader, until: Callable[[], object]) -> list[Any]:
    found: list[Any] = []

    async def turn() -> bool:
        found.extend(await reader.read(timeout=0))
        return bool(until())

    for _ in range(20_000):
        if await turn():
            return found
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def test_the_list_is_read_once_however_often_somebody_asks(stream: Any, asked: Asked) -> None:
    """And until it is there, the reader is not at its tail, and says what it waits for."""
    reader = await _split_and_read(stream)
    asked.hold(LIST)
    assert await _polled(reader, lambda: asked.count) == []
    for _ in range(50):
        assert await reader.read(timeout=0) == []
        assert not reader.at_tail
    waiting = asyncio.ensure_future(reader.read())
    for _ in range(5):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asked.count == 1
    reason = reader.why()[0]
    assert reason.code is ReasonCode.METADATA
    assert "list of shards is being read" in reason.sentence
    assert reason.evidence["path"] == "/dlog/streams/orders"
    assert reason.since_us is not None
    asked.let_go(LIST)
    found = await _polled(reader, lambda: reader.at_tail)
    assert len(found) == len(KEYS)
    assert {each.code for each in reader.why().values()} == {ReasonCode.AT_TAIL}
    await reader.close()


async def test_a_shard_is_opened_once_however_often_somebody_asks(
    stream: Any, asked: Asked
) -> None:
    reader = await _split_and_read(stream)
    asked.hold(LOG)
    await _polled(reader, lambda: reader.shards == (1, 2))
    for _ in range(50):
        assert await reader.read(timeout=0) == []
        assert not reader.at_tail
    assert set(reader.why()) == {1, 2}
    assert asked.count == 2
    asked.hold(LIST)
    asked.let_go(LOG)
    await _polled(reader, lambda: asked.count)
    assert not reader.at_tail
    reasons = reader.why()
    assert set(reasons) == {1, 2}
    assert all("list of shards is being read" in str(each) for each in reasons.values())
    asked.let_go(LIST)
    assert len(await _polled(reader, lambda: reader.at_tail)) == len(KEYS)
    await reader.close()


@pytest.mark.parametrize("node", [LIST, LOG])
async def test_what_may_be_over_in_a_while_is_a_reason_and_is_tried_again(
    stream: Any, asked: Asked, node: str
) -> None:
    reader = await _split_and_read(stream)
    asked.refuse(node, *(Unavailable(f"away, {n}") for n in range(3)))
    reasons: set[str] = set()

    def is_done() -> bool:
        if (reason := reader.why()) is not None:
            reasons.add(str(reason))
        return asked.count >= 3 and reader.at_tail

    found = 0
    async with timeout(20):
        while not is_done():
            found += len(await reader.read(timeout=0.01))
    assert found == len(KEYS)
    assert any("away" in reason for reason in reasons), reasons
    await reader.close()


async def test_what_is_read_on_is_read_on_from_where_it_stood(stream: Any, asked: Asked) -> None:
    """An error in the middle of a shard: nothing is handed out twice, and nothing is left out."""
    async with stream.open_writer() as writer, stream.open_reader(follow=True) as reader:
        await writer.append_many([b"1"] * len(KEYS), keys=KEYS)
        found = await reader.read()
        source = reader._sources[0]
        source.task.cancel()
        await asyncio.gather(source.task, return_exceptions=True)
        source.error = Unavailable("away")
        await writer.append_many([b"2"] * len(KEYS), keys=KEYS)
        with pytest.raises(Unavailable):
            await _fill(reader, found, lambda _: False)
        await _fill(reader, found, lambda _: len(found) == 2 * len(KEYS))
        assert [m.value for _, m in found] == [b"1"] * len(KEYS) + [b"2"] * len(KEYS)


async def test_a_list_that_makes_no_sense_is_told_each_time(stream: Any, asked: Asked) -> None:
    reader = await _split_and_read(stream)
    asked.refuse(LIST, *(Corrupt("no list") for _ in range(9)))
    for _ in range(3):
        with pytest.raises(Corrupt):
            await reader.read()
    assert not reader.at_tail
    await reader.close()


async def test_by_time_nothing_passes_shards_that_are_not_known_yet(asked: Asked) -> None:
    """While the list is read: what follows a shard that ended may be older than what others have
    ready. As they come, the others go on."""
    async with aio.connect(f"memory:upkeep-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=2)
        async with stream.open_writer() as writer:
            await writer.append_many([b"1"] * len(KEYS), keys=KEYS)
            await stream.split(0)
            await writer.append_many([b"2"] * len(KEYS), keys=KEYS)
            for order in ("time", "arrival"):
                async with stream.open_reader(follow=True, order=order, patience_ms=0) as reader:
                    await eventually(lambda reader=reader: set(reader.position.shards) == {0, 1})
                    asked.hold(LIST)
                    found: list[Any] = []
                    await asyncio.wait_for(
                        _fill(reader, found, lambda r: 0 in r._ended), timeout=10
                    )
                    for _ in range(50):
                        found += await reader.read(timeout=0)
                    late = [m.value for shard, m in found if shard == 1 and m.value == b"2"]
                    assert bool(late) == (order == "arrival")
                    asked.let_go(LIST)
                    while len(found) < 2 * len(KEYS):
                        found += await reader.read()
                    times = [m.timestamp_us for _, m in found]
                    if order == "time":
                        assert times == sorted(times)


async def _fill(reader: StreamReader, found: list[Any], until: Callable[[Any], bool]) -> None:
    while not until(reader):
        found += await reader.read(timeout=0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("start", ["earliest", "latest", "time"])
async def test_a_split_while_a_reader_is_opened_is_followed(
    stream: Any, asked: Asked, start: str
) -> None:
    """The reader's list is from before the split, and what it hears of the log from behind it."""
    async with stream.open_writer() as writer:
        await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
        asked.hold(LOG, most=1)
        at = datetime.now(UTC) if start == "time" else start
        opening = asyncio.ensure_future(_opened(stream, at))
        await eventually(lambda: asked.count)
        await stream.split(0)
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        asked.let_go(LOG)
        async with await opening as reader:
            found = await _polled(reader, lambda: reader.at_tail and 0 not in reader.shards)
        values = Counter(m.value for _, m in found)
        assert values == {b"new": len(KEYS)} | ({} if start != "earliest" else {b"old": len(KEYS)})


async def _opened(stream: Any, start: Any) -> StreamReader:
    return await stream.open_reader(start=start, follow=True)  # type: ignore[no-any-return]


async def test_a_place_in_nothing_is_no_beginning() -> None:
    """Of a reader from the latest on, when no shard had a log: what comes and goes is missed."""
    async with aio.connect(f"memory:upkeep-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=1)
        async with stream.open_reader(start="latest", follow=True) as reader:
            place = StreamPosition.parse(reader.position.to_text())
        async with stream.open_writer() as writer:
            await writer.append_many([b"x"] * len(KEYS), keys=KEYS)
        async with stream.open_reader(start=place) as reader:
            assert len(await _polled(reader, lambda: reader.at_tail)) == len(KEYS)
        await client.admin.truncate("orders/0", 3)
        async with stream.open_reader(start=place) as reader:
            with pytest.raises(Truncated, match="messages 0 to 2"):
                await reader.read()


@pytest.mark.parametrize(("on_truncated", "left"), [("raise", 1), ("jump", 1), ("raise", 0)])
async def test_a_shard_that_is_trimmed_under_its_reader_is_told_or_jumped(
    asked: Asked, on_truncated: str, left: int
) -> None:
    """The list had it when the reader came, and its log is gone when it is opened. Nobody is told
    where all of it was read."""
    async with aio.connect(f"memory:upkeep-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=1)
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
            async with stream.open_reader() as reader:
                read = 0
                while read < len(KEYS) - left:
                    read += len(await reader.read(len(KEYS) - left - read))
                place = reader.position
            await stream.split(0)
            await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        async with stream.open_reader(
            start=place, follow=True, on_truncated=on_truncated
        ) as reader:
            asked.hold(LOG, most=1)
            await _polled(reader, lambda: asked.count)
            await client.admin.truncate("orders/0", "latest")
            assert await stream.trim() == (0,)
            asked.let_go(LOG)
            if on_truncated == "raise" and left:
                with pytest.raises(Truncated, match=r"\[0\].*trimmed"):
                    await reader.read()
                assert reader.why()[0].code is ReasonCode.LOST
            else:
                found = await _polled(reader, lambda: reader.at_tail)
                assert {m.value for _, m in found} == {b"new"}


async def test_a_reader_that_is_dropped_or_closed_leaves_no_reading_behind(
    stream: Any, asked: Asked
) -> None:
    reader = await _split_and_read(stream)
    asked.hold(LIST)
    await _polled(reader, lambda: asked.count)
    await reader.close()
    asked.let_go(LIST)
    held = [await stream.open_reader(follow=True)]
    while 0 in held[0].shards:
        await held[0].read(timeout=0)
    asked.hold(LIST)
    with pytest.warns(ResourceWarning, match="dropped without close"):
        await _drop(held)
    asked.let_go(LIST)
    await eventually(lambda: len(asyncio.all_tasks()) < 4)


async def _drop(held: list[Any]) -> None:
    held.clear()
    await asyncio.sleep(0)
    gc.collect()

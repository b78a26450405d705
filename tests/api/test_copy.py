"""A log copied to another place: the same messages, whatever happens on the way, and nothing but a
copy is ever copied into."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import backends
from dlog.clock import us_datetime
from dlog.meta.layout import Layout
from dlog.meta.listed import CopyOf
from dlog.meta.log_meta import LogMeta
from dlog.writer.engine import Engine
from tests.api.adapter import AioApi, Api

pytestmark = pytest.mark.crosswise(seconds=1)

_worlds = itertools.count()
SMALL = dlog.LogOptions(segment_bytes=16 << 10)


@pytest.fixture
def there(url: str, tmp_path: Path) -> Iterator[str]:
    """A second place, of the same kind."""
    if url.startswith("file:"):
        yield f"file:{tmp_path / 'there'}"
    elif url.startswith("zk:"):
        before, _, query = url.partition("?")
        yield f"{before}-there?{query}"
    else:
        name = f"there-{next(_worlds)}"
        yield f"memory:{name}"
        backends._memory_worlds.pop(name, None)


def content(message: dlog.Message) -> tuple[object, ...]:
    return message[3:9]  # all but the id and the epoch


async def equal(api: Api, log: str, there: str, name: str | None = None) -> int:
    """Message by message, and entry by entry; how many there are."""
    here, copy = await entries(api, log, api.url), await entries(api, name or log, there)
    assert [content(m) for e in here for m in e] == [content(m) for e in copy for m in e]
    assert [len(e) for e in here] == [len(e) for e in copy], "grouped as they were"
    return sum(map(len, here))


async def entries(api: Api, log: str, url: str) -> list[list[dlog.Message]]:
    async with api.open_reader(log, url=url) as reader:
        return [batch.to_pylist() async for batch in reader.batches()]


async def fill(api: Api, log: str = "log", count: int = 40, **options: Any) -> None:
    async with api.open_writer(log, create=SMALL, **options) as writer:
        for i in range(count):
            await writer.append_many([b"%d.%d" % (i, j) * 50 for j in range(7)], atomic=True)


async def test_every_message_and_every_entry(api: Api, there: str) -> None:
    await fill(api)
    await fill(api, codec="zstd")
    async with api.open_writer() as writer:
        await writer.append(None, key=b"gone")
        await writer.append(
            b"", key=b"", headers=[("a", b"1"), ("a", b""), ("ü", b"\xff")], event_time=-5
        )
        await writer.append_many([b"x", None, b"y"], keys=[b"k", None, None], atomic=True)
    told = await api.copy_log(api.url, "log", there)
    assert await equal(api, "log", there) == told.next_seq == told.messages
    assert (told.first_seq, told.resumed_seq, told.end_seq) == (0, 0, told.next_seq)
    async with api.connect() as here, api.connect(there) as other:
        about, copy = await here.admin.describe("log"), await other.admin.describe("log")
        assert copy.options == about.options
        assert len(copy.segments) > 2
        assert copy.uid != about.uid


async def test_called_again_it_goes_on(api: Api, there: str) -> None:
    await fill(api, count=3)
    first = await api.copy_log(api.url, "log", there, "copy")
    again = await api.copy_log(api.url, "log", there, "copy")
    assert (again.resumed_seq, again.messages) == (first.next_seq, 0)
    await fill(api, count=2)
    more = await api.copy_log(api.url, "log", there, "copy")
    assert (more.resumed_seq, more.messages) == (first.next_seq, 14)
    assert await equal(api, "log", there, "copy") == 35


async def test_cancelled_it_goes_on(url: str, there: str) -> None:
    api = AioApi(url)
    await fill(api, count=200)
    seen: list[int] = []

    def tell(progress: dlog.CopyProgress) -> None:
        seen.append(progress.next_seq)
        if progress.messages > 100:
            copying.cancel()

    copying = asyncio.ensure_future(dlog.aio.copy_log(url, "log", there, tell=tell))
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert seen == sorted(seen)
    told = await api.copy_log(url, "log", there)
    assert told.resumed_seq >= 100, "what was acknowledged is not copied again"
    assert await equal(api, "log", there) == 1400


async def test_it_follows(api: Api, there: str) -> None:
    await fill(api, count=1)
    await api.copy_log(api.url, "log", there)
    copying = asyncio.ensure_future(dlog.aio.copy_log(api.url, "log", there, follow=True))
    async with (
        api.open_writer() as writer,
        api.open_reader(url=there, start=7, follow=True) as reader,
    ):
        for i in range(3):
            await writer.append(b"late %d" % i)
            (message,) = await reader.read()
            assert message.value == b"late %d" % i
        assert not copying.done()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert await equal(api, "log", there) == 10


async def test_a_log_without_messages(api: Api, there: str) -> None:
    async with api.connect() as here:
        await here.admin.create("log", segment_bytes=1 << 20)
    told = await api.copy_log(api.url, "log", there)
    assert told.next_seq == 0
    await fill(api, count=2)
    assert (await api.copy_log(api.url, "log", there)).messages == 14
    assert await equal(api, "log", there) == 14


async def test_where_the_head_is_not_the_first_message(api: Api, there: str) -> None:
    """What was truncated is not there to be copied; what is left keeps its seqs."""
    async with dlog.aio.connect(api.url) as inner:
        stores = await inner._stores(True)
        late = LogMeta("uid", SMALL).as_copy(CopyOf("another", "log", 1_000), 77)
        await stores.meta.create(Layout(stores.layout.root).log("log"), late.to_bytes())
        await fill(AioApi(api.url), count=3)
        told = await api.copy_log(api.url, "log", there)
        assert (told.first_seq, told.next_seq) == (1_000, 1_021)
        assert await equal(api, "log", there) == 21
        assert (await api.copy_log(api.url, "log", there)).messages == 0
    async with api.connect(there) as other:
        assert (await other.admin.describe("log")).head_seq == 1_000
    with pytest.raises(dlog.Truncated):
        await api.values(url=there, start=5)


async def test_times_are_found_in_the_copy(api: Api, there: str) -> None:
    await fill(api, count=30)
    await api.copy_log(api.url, "log", there)
    for message in (await api.read_all())[::23]:
        at = us_datetime(message.timestamp_us)
        for start in (at, at + timedelta(microseconds=1)):
            here = [content(m) for m in await api.read_all(start=start)]
            assert here == [content(m) for m in await api.read_all(url=there, start=start)]


async def test_a_log_with_options_of_its_own(api: Api, there: str) -> None:
    await fill(api, count=1)
    async with api.connect(there) as other:
        await other.admin.create("log", segment_bytes=1 << 20)
        await api.copy_log(api.url, "log", there)
        assert (await other.admin.describe("log")).options["segment_bytes"] == 1 << 20
        await api.copy_log(api.url, "log", there, "b", create=dlog.LogOptions(segment_age_s=5))
        assert (await other.admin.describe("b")).options["segment_age_s"] == 5


@pytest.mark.parametrize("whole", [False, True])
async def test_a_copy_that_was_truncated_goes_on(api: Api, there: str, whole: bool) -> None:
    """Also when nothing is left of what was copied that could be compared."""
    await fill(api, count=3)
    await api.copy_log(api.url, "log", there)
    async with api.connect(there) as other:
        await other.admin.truncate("log", "latest" if whole else 10)
    await fill(api, count=2)
    told = await api.copy_log(api.url, "log", there)
    assert (told.resumed_seq, told.messages) == (21, 14)
    copied = await entries(api, "log", there)
    assert [m.seq for e in copied for m in e] == list(range(21 if whole else 10, 35))


async def test_a_copy_whose_copier_died_stays_one(
    api: Api, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever seals what it left has no messages of its own."""
    await fill(api, count=2)
    await _die_copying(api, there, monkeypatch)
    async with api.connect(there) as other:
        report = await other.admin.fsck("log")
        assert [step.action.value for step in report.plan] == ["seal_tail"], report
        await other.admin.repair(report)
    await fill(api, count=1)
    told = await api.copy_log(api.url, "log", there)
    assert (told.resumed_seq, told.next_seq) == (14, 21)
    assert await equal(api, "log", there) == 21


async def _die_copying(api: Api, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is copied, and nothing is sealed."""

    async def dies(self: Engine, *args: Any, **options: Any) -> None:
        self.abandon(dlog.WriterClosed("killed"))

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "close", dies)
        await api.copy_log(api.url, "log", there)


@pytest.mark.parametrize("again", [False, True])
async def test_numbers_of_producers_that_were_truncated(api: Api, there: str, again: bool) -> None:
    """The copy does not know them, and knows that; nothing is taken twice."""
    async with api.open_writer(create=SMALL) as writer, api.connect() as here:
        await writer.append(b"old", producer=(1, 5))
        await writer.rotate()
        await here.admin.truncate("log", "latest")
        await writer.append(b"new", producer=(2, 5))
    await api.copy_log(api.url, "log", there)
    if again:
        await api.copy_log(api.url, "log", there)
    async with api.open_writer(url=there) as writer:
        for number in (0, 5, 6):
            with pytest.raises(dlog.NotFound):
                await writer.append(b"old", producer=(1, number))
        with pytest.raises(dlog.AlreadyExists):
            await writer.append(b"new", producer=(2, 5))
        await writer.append(b"first", producer=(3, 0))
        await writer.append(b"next", producer=(2, 6))
    assert await api.values(url=there) == [b"new", b"first", b"next"]


# --- what is refused


async def test_a_log_that_is_no_copy(api: Api, there: str) -> None:
    await fill(api, count=1)
    async with api.open_writer(url=there) as writer:
        await writer.append(b"mine")
    with pytest.raises(dlog.AlreadyExists, match="no copy"):
        await api.copy_log(api.url, "log", there)
    assert await api.values(url=there) == [b"mine"]
    with pytest.raises(dlog.AlreadyExists, match="no copy"):
        await api.copy_log(api.url, "log", api.url)


async def test_a_copy_of_another_log(api: Api, there: str) -> None:
    await fill(api, count=1)
    await fill(api, "other", count=1)
    await api.copy_log(api.url, "other", there, "log")
    with pytest.raises(dlog.AlreadyExists, match="another log, 'other'"):
        await api.copy_log(api.url, "log", there)
    async with api.connect() as here:  # a new log of that name is another one
        await here.admin.remove("other")
        await fill(api, "other", count=1)
        with pytest.raises(dlog.AlreadyExists, match="another log"):
            await api.copy_log(api.url, "other", there, "log")


async def test_a_copy_that_was_opened_for_messages_of_its_own(api: Api, there: str) -> None:
    await fill(api, count=1)
    await api.copy_log(api.url, "log", there)
    async with api.open_writer(url=there, create=False) as writer:
        await writer.append(b"mine")
        epoch = writer.epoch
    with pytest.raises(dlog.AlreadyExists, match=f"epoch {epoch}"):
        await api.copy_log(api.url, "log", there)
    (mine,) = await api.values(url=there, start=7)
    assert mine == b"mine", "it goes on behind what was copied"
    async with api.open_writer(url=there) as writer:
        assert writer.epoch == epoch + 1
    with pytest.raises(dlog.AlreadyExists, match=f"epoch {epoch} "):
        await api.copy_log(api.url, "log", there)


async def test_a_log_that_is_not_what_it_was(file_api: Api, tmp_path: Path) -> None:
    """Restored from a backup, and written to: the same log by name and uid."""
    there = f"file:{tmp_path / 'there'}"
    await fill(file_api, count=1)
    here = Path(file_api.url.removeprefix("file:"))
    shutil.copytree(here, tmp_path / "backup")
    async with file_api.open_writer() as writer:
        await writer.append(b"lost with the disk")
    await file_api.copy_log(file_api.url, "log", there)
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "backup", here)
    with pytest.raises(dlog.AlreadyExists, match=r"seq 7.*does not have it"):
        await file_api.copy_log(file_api.url, "log", there)
    async with file_api.open_writer() as writer:
        await writer.append_many([b"something else", b"more"])
    with pytest.raises(dlog.AlreadyExists, match="another message at it"):
        await file_api.copy_log(file_api.url, "log", there)
    assert len(await file_api.values(url=there)) == 8


async def test_what_makes_no_sense(api: Api, there: str) -> None:
    with pytest.raises(dlog.NotFound):
        await api.copy_log(api.url, "nothing", there)
    with pytest.raises(dlog.ConfigError):
        await api.copy_log(api.url, "../x", there)
    with pytest.raises(dlog.ConfigError):
        await api.copy_log(api.url, "x", there, create=True)
    with pytest.raises(dlog.ConfigError, match=r"dlog\.aio"):
        dlog.copy_log(api.url, "log", there)


# --- two at once


async def test_of_two_copies_at_once_one_goes_on(url: str, there: str) -> None:
    """The later one fences the earlier one, which says so, and what both did is one copy."""
    api = AioApi(url)
    await fill(api, count=300)
    begun = asyncio.Event()

    def tell(progress: dlog.CopyProgress) -> None:
        if progress.messages > 0:
            begun.set()

    first = asyncio.ensure_future(api.copy_log(url, "log", there, owner="first", tell=tell))
    await begun.wait()
    second = api.copy_log(url, "log", there, owner="second")
    ends = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(ends[1], dlog.CopyProgress), ends
    fenced = ends[0]
    if not isinstance(fenced, dlog.CopyProgress):  # it was not done before
        assert isinstance(fenced, dlog.Fenced)
        assert fenced.winner.name == "second"
    assert await equal(api, "log", there) == 2100


async def test_clients_that_are_open_already(api: Api, there: str) -> None:
    await fill(api, count=1)
    async with api.connect() as here, api.connect(there) as other:
        told = await api.copy_log(here, "log", other, "by client")
        assert told.log == "by client"
        assert (await other.admin.describe("by client")).messages == 7


async def test_who_is_told_may_fail(api: Api, there: str, caplog: Any) -> None:
    await fill(api, count=1)

    def tell(progress: dlog.CopyProgress) -> None:
        raise ZeroDivisionError(str(progress.next_seq))

    await api.copy_log(api.url, "log", there, tell=tell)
    assert "ZeroDivisionError" in caplog.text
    assert await equal(api, "log", there) == 7

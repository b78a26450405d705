"""Taking messages: one by one, in lists, in batches and as Arrow, and going to and fro."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from typing import Any

import pytest

import dlog
from dlog.ledger.embedded.store import _DATA_SUFFIX
from tests.api.adapter import Api, rest_of
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)

pyarrow = pytest.importorskip("pyarrow")

KEYS = [b"k", None, b""]
HEADERS = [[("h", b"1"), ("h", b"2")], None, [("ж", b"\xff")]]


@pytest.fixture
async def wanted(api: Api) -> list[dlog.Message]:
    """Plain and full entries, one and many messages each, in two segments."""
    async with api.open_writer() as log:
        await log.append(b"first", event_time=-7)
        await log.append_many([b"a", None, b""], keys=KEYS, headers=HEADERS, atomic=True)
        await log.rotate()
        await log.append_many([b"%d" % number for number in range(100)], atomic=True)
        await log.append(None, key=b"gone", event_time=2**52)
    return await api.read_all()


async def test_read_takes_up_to_the_number_asked_for(api: Api, wanted: list[dlog.Message]) -> None:
    async with api.open_reader() as reader:
        got: list[dlog.Message] = []
        while messages := await reader.read(7):
            assert 1 <= len(messages) <= 7
            got += messages
        assert got == wanted
        assert await reader.read() == []
        assert reader.at_tail


async def test_read_waits_for_a_time_and_no_longer(api: Api) -> None:
    async with api.open_writer() as log, api.open_reader(follow=True) as reader:
        began = time.monotonic()
        assert await reader.read(timeout=0.05) == []
        assert 0.04 <= time.monotonic() - began < 5
        waiting = asyncio.ensure_future(_read(reader, timeout=20))
        await log.append(b"x")
        assert [m.value for m in await waiting] == [b"x"]
        await log.append(b"y")
        assert [m.value for m in await reader.read()] == [b"y"]
        assert await reader.read(timeout=0) == []


async def _read(reader: Any, **options: Any) -> list[dlog.Message]:
    return await reader.read(**options)


async def test_batches_hold_what_iteration_shows(api: Api, wanted: list[dlog.Message]) -> None:
    got: list[dlog.Message] = []
    async with api.open_reader() as reader:
        async for batch in reader.batches():
            messages = batch.to_pylist()
            assert len(batch) == len(messages) > 0
            assert (batch.first_id, batch.last_id) == (messages[0].id, messages[-1].id)
            assert (batch.first_seq, batch.last_seq) == (messages[0].seq, messages[-1].seq)
            assert batch.values() == [message.value for message in messages]
            assert reader.position.after == batch.last_id
            got += messages
    assert got == wanted


@pytest.mark.parametrize(("start", "end"), [(0, None), (2, 90), (3, 4), (50, 51)])
async def test_arrow_shows_the_same(
    api: Api, wanted: list[dlog.Message], start: int, end: int | None
) -> None:
    rows: list[dict[str, Any]] = []
    schemas = set()
    async with api.open_reader(start=start, end=end) as reader:
        async for batch in reader.batches():
            table = batch.to_arrow(ids=True)
            assert batch.to_arrow() == table.select(batch.to_arrow().schema.names)
            table.validate(full=True)
            schemas.add(table.schema.to_string())
            rows += table.to_pylist()
    assert len(schemas) == 1
    assert [row["timestamp"].timestamp() for row in rows] == pytest.approx(
        [m.timestamp_us / 1e6 for m in wanted[start:end]]
    )
    assert [
        (
            dlog.MessageId(row["ledger_id"], row["entry_id"], row["batch_idx"]),
            row["seq"],
            row["key"],
            row["value"],
            tuple((pair["name"], pair["value"]) for pair in row["headers"]),
            row["epoch"],
        )
        for row in rows
    ] == [(m.id, m.seq, m.key, m.value, m.headers, m.epoch) for m in wanted[start:end]]


async def test_the_arrow_schema_is_what_the_documents_say(
    api: Api, wanted: list[dlog.Message]
) -> None:
    async with api.open_reader(end=1) as reader:
        batches = [batch async for batch in reader.batches()]
    (batch,) = batches
    time_type = pyarrow.timestamp("us", tz="UTC")
    schema = {field.name: field.type for field in batch.to_arrow(ids=True).schema}
    headers = schema.pop("headers")
    assert schema == {
        "seq": pyarrow.int64(),
        "value": pyarrow.binary(),
        "key": pyarrow.binary(),
        "timestamp": time_type,
        "event_time": time_type,
        "ledger_id": pyarrow.int64(),
        "entry_id": pyarrow.int64(),
        "batch_idx": pyarrow.int64(),
        "epoch": pyarrow.int64(),
    }
    assert pyarrow.types.is_list(headers)
    assert batch.to_arrow().column("event_time").cast(pyarrow.int64()).to_pylist() == [-7]
    none = batch.cut(0, 0)
    assert (len(none), none.to_pylist(), none.values()) == (0, [], [])
    assert none.to_arrow(ids=True).num_rows == 0
    assert none.to_arrow(ids=True).schema == batch.to_arrow(ids=True).schema


async def test_a_batch_that_was_cut_is_still_these_messages(
    api: Api, wanted: list[dlog.Message]
) -> None:
    async with api.open_reader(start=10, end=60) as reader:
        (batch,) = [batch async for batch in reader.batches()]
    middle = batch.cut(5, 9)
    assert middle.to_pylist() == wanted[15:19]
    assert middle.to_arrow().column("seq").to_pylist() == [15, 16, 17, 18]
    assert (middle.first_seq, middle.last_seq) == (15, 18)


async def test_seek_to_and_fro(api: Api, wanted: list[dlog.Message]) -> None:
    async with api.open_reader() as reader:
        for seq in (50, 0, 103, 2, 2, 104):
            await reader.seek(seq)
            assert reader.position.next_seq == seq
            assert await reader.read(1) == wanted[seq : seq + 1]
        await reader.seek(wanted[7].id, end=10)
        assert await rest_of(reader) == wanted[7:10]
        await reader.seek("earliest")
        assert await rest_of(reader) == wanted
        await reader.seek("latest")
        assert await rest_of(reader) == []


async def test_a_seek_that_fails_leaves_the_reader_where_it_was(
    api: Api, wanted: list[dlog.Message]
) -> None:
    async with api.open_reader() as reader:
        assert await reader.read(1) + await reader.read(3) == wanted[:4]
        for wrong in (wanted[0].id._replace(ledger_id=1 << 40), "nowhere", -3):
            with pytest.raises((dlog.NotFound, dlog.ConfigError)):
                await reader.seek(wrong)
            assert reader.position.next_seq == 4
        assert await rest_of(reader) == wanted[4:]


async def test_a_seek_within_an_iteration_goes_on_there(
    api: Api, wanted: list[dlog.Message]
) -> None:
    seqs = []
    async with api.open_reader() as reader:
        async for message in reader:
            seqs.append(message.seq)
            if len(seqs) == 10:
                await reader.seek(90)
    assert seqs == [*range(10), *range(90, 105)]


async def test_a_read_within_an_iteration_takes_its_messages_away(
    api: Api, wanted: list[dlog.Message]
) -> None:
    iterated, read = [], []
    async with api.open_reader() as reader:
        async for message in reader:
            iterated.append(message.seq)
            if message.seq % 10 == 5:
                read += [m.seq for m in await reader.read(3)]
    assert sorted(iterated + read) == list(range(105))
    assert len(read) > 20


async def test_read_ahead_is_bounded_and_everything_still_comes(api: Api) -> None:
    values = [b"%d" % number * 200 for number in range(200)]
    async with api.open_writer(entry_bytes=2000) as log:
        await log.append_many(values)
    async with api.open_reader(read_run_bytes=1000, read_ahead_bytes=3000) as reader:
        inner = getattr(reader, "inner", reader)
        feed = getattr(inner, "_inner", inner)._feed
        assert feed is not None
        got = []
        while messages := await reader.read(3):
            got += [m.value for m in messages]
            if not reader.at_tail:
                await eventually(lambda: feed._bytes >= 3000 or feed._ended)
            assert feed._bytes < 8000
    assert got == values


async def test_positions_survive_as_text(api: Api, wanted: list[dlog.Message]) -> None:
    async with api.open_reader() as reader:
        for text in (str(reader.position), reader.position.to_text()):
            assert dlog.Position.parse(text) == reader.position
        await reader.read(9)
        assert dlog.Position.parse(str(reader.position)) == reader.position
    for wrong in ("", "{}", "null", "[]", '{"after":1,"log":"x","next_seq":0}', "x" * 1000):
        with pytest.raises(dlog.FormatError):
            dlog.Position.parse(wrong)


async def test_what_a_reader_is(api: Api, wanted: list[dlog.Message]) -> None:
    async with api.open_reader() as reader:
        assert reader.log == "log"
        assert not reader.closed
        assert "'log'" in repr(reader)
    assert reader.closed
    assert "closed" in repr(reader)


@pytest.mark.parametrize("count", [0, -1, "7", 1.5, None])
async def test_a_number_of_messages_that_makes_no_sense(api: Api, count: Any) -> None:
    async with api.open_writer(), api.open_reader() as reader:
        with pytest.raises(dlog.ConfigError, match="max_messages"):
            await reader.read(count)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_strict_tail_means_the_same_where_there_are_no_strangers(
    api: Api, wanted: list[dlog.Message], follow: bool
) -> None:
    async with api.open_reader(tail="strict", follow=follow) as reader:
        got: list[dlog.Message] = []
        while len(got) < len(wanted):
            got += await reader.read(timeout=20)
        assert got == wanted
        assert await reader.tail() == wanted[-1].id
        if follow:
            async with api.open_writer() as log:  # a takeover, and a rotation, under its eyes
                at = [await log.append(b"x")]
                await log.rotate()
                at.append(await log.append(b"y"))
                assert [(await reader.read(1, timeout=20))[0].id for _ in at] == at
    with pytest.raises(dlog.ConfigError, match="tail is one of normal, strict"):
        await api.open_reader(tail="stern")


async def test_a_reader_that_somebody_closes_before_its_end_does_not_seem_to_be_there(
    api: Api,
) -> None:
    async with api.open_writer() as log:
        await log.append_many([b"a", b"b"])
        async with api.open_reader(end=5, follow=True) as reader:
            assert [message.value for message in await reader.read()] == [b"a", b"b"]
            waiting = asyncio.ensure_future(reader.read())
            await asyncio.wait([waiting], timeout=0.05)
            await reader.close()
            with pytest.raises(dlog.ReaderClosed):
                await waiting


async def test_a_reader_without_an_end_that_somebody_closes_has_no_more(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"a")
        async with api.open_reader(follow=True) as reader:
            assert [message.value for message in await reader.read()] == [b"a"]
            waiting = asyncio.ensure_future(reader.read())
            await asyncio.wait([waiting], timeout=0.05)
            await reader.close()
            assert await waiting == []


async def test_a_follower_goes_on_when_files_can_be_opened_again(
    file_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I27: no descriptor was left for the file of the next segment."""
    refused: list[str] = []
    real = os.open

    def full(path: Any, flags: int, *args: Any, **how: Any) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR) and str(path).endswith(_DATA_SUFFIX):
            refused.append(str(path))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, flags, *args, **how)

    async with file_api.open_writer() as log, file_api.open_reader(follow=True) as reader:
        await log.append(b"0")
        assert [each.value for each in await reader.read(timeout=20)] == [b"0"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            await log.rotate()
            await log.append(b"1")
            waiting = asyncio.ensure_future(_read(reader, timeout=20))
            await eventually(lambda: len(refused) > 1, lambda: "it tries again")
            assert not waiting.done()
        assert [each.value for each in await waiting] == [b"1"]
        await log.append(b"2")
        assert [each.value for each in await reader.read(timeout=20)] == [b"2"]

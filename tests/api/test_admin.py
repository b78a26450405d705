"""The admin's calls, and a log that is removed under its reader and its writer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import dlog
from tests.api.adapter import Api


async def test_create_describe_and_list(api: Api) -> None:
    async with api.connect() as client:
        assert await client.admin.list() == []
        made = await client.admin.create("a/b", segment_bytes=1 << 20)
        assert made.name == "a/b"
        assert made.options["segment_bytes"] == 1 << 20
        assert (made.messages, made.epoch, made.writer, made.tail) == (0, 0, None, None)
        await client.admin.create("a/c")
        await client.admin.create("b")
        with pytest.raises(dlog.AlreadyExists):
            await client.admin.create("b")
        assert [log.name for log in await client.admin.list()] == ["a/b", "a/c", "b"]
        assert [log.name for log in await client.admin.list("a/")] == ["a/b", "a/c"]
        assert await client.admin.list("nothing") == []


async def test_examine_says_what_there_is_and_makes_nothing(api: Api) -> None:
    async with api.connect() as client:
        before = await client.admin.examine()
        assert [f.state for f in before if f.check == "logs"] == ["note"]
        with pytest.raises(dlog.NotFound):
            await client.open_reader("log")
        await client.admin.create("log")
        await client.admin.create("gone")
        await client.admin.remove("gone")
        found = {f.check: f for f in await client.admin.examine()}
        assert (found["logs"].state, found["logs"].told) == ("fine", "1 logs, format 1")
        assert "bad" not in {f.state for f in found.values()}


async def test_describe_counts_what_is_there(api: Api) -> None:
    async with api.connect() as client:
        log = await client.open_writer("log", owner="me")
        await log.append_many([b"x" * 10] * 5)
        await log.rotate()
        last = await log.append(b"y")
        about = await client.admin.describe("log")
        assert (about.head_seq, about.next_seq, about.messages, about.tail) == (0, 6, 6, last)
        assert about.writer.name == "me"
        assert about.state == "open"
        assert [(s.number, s.state, s.messages) for s in about.segments] == [
            (1, about.segments[0].state, 5),
            (2, "open", 1),
        ]
        assert await client.admin.segments("log") == about.segments
        assert await client.admin.tail("log") == last
        (line,) = await client.admin.list()
        assert (line.name, line.messages, line.writer, line.epoch) == ("log", 6, "me", log.epoch)


async def test_what_is_not_there(api: Api) -> None:
    async with api.open_writer():
        pass
    async with api.connect() as client:
        for verb in ("describe", "segments", "tail", "remove"):
            with pytest.raises(dlog.NotFound) as caught:
                await getattr(client.admin, verb)("nowhere")
            assert caught.value.log == "nowhere"
            with pytest.raises(dlog.ConfigError):
                await getattr(client.admin, verb)("../nowhere")


async def test_removed_under_a_writer_and_a_reader(api: Api) -> None:
    async with api.connect() as client:
        log = await api.open_writer()
        await log.append_many([b"x"] * 3)
        reader = await api.open_reader(follow=True)
        assert len(await reader.read()) == 3
        waiting = asyncio.ensure_future(_next(reader))
        await client.admin.remove("log")
        with pytest.raises(dlog.NotFound):
            await waiting
        with pytest.raises(dlog.NotFound):
            await reader.seek(0)
        with pytest.raises(dlog.Fenced) as caught:
            await log.append(b"late")
        assert "removed" in str(caught.value)
        await reader.close()
        await log.close()
        assert await client.admin.list() == []
        with pytest.raises(dlog.NotFound):
            await client.admin.describe("log")
        with pytest.raises(dlog.NotFound):
            await client.admin.remove("log")
        with pytest.raises(dlog.NotFound):
            await api.open_reader()
        with pytest.raises(dlog.NotFound):
            await api.open_writer(create=False)


async def _next(reader: object) -> list[dlog.Message]:
    return await reader.read()  # type: ignore[attr-defined]


async def test_made_again_its_ids_and_epochs_go_on_rising(api: Api) -> None:
    async with api.connect() as client:
        last, epoch, position = dlog.MessageId(-1, -1, -1), -1, None
        for round_number in range(3):
            async with api.open_writer() as log:
                assert log.epoch > epoch
                epoch = log.epoch
                first = await log.append(b"%d" % round_number)
                assert first > last
                await log.rotate()
                last = await log.append(b"end")
            assert [m.seq for m in await api.read_all()] == [0, 1]
            if position is not None:
                with pytest.raises(dlog.ConfigError, match="another log"):
                    await api.open_reader(start=position)
            async with api.open_reader() as reader:
                await reader.read()
                position = reader.position
            await client.admin.remove("log")
            assert (await client.admin.create("log")).messages == 0
            with pytest.raises(dlog.NotFound):
                await api.open_reader(start=last)


async def test_removed_and_made_again_under_a_writer_and_a_reader(api: Api) -> None:
    """Old handles stay with the log that is gone; they never speak for the new one."""
    async with api.connect() as client:
        log = await api.open_writer()
        await log.append(b"old")
        reader = await api.open_reader(follow=True)
        assert [m.value for m in await reader.read()] == [b"old"]
        await client.admin.remove("log")
        async with api.open_writer() as new:
            await new.append(b"new")
            with pytest.raises(dlog.Fenced):
                await log.append(b"late")
            with pytest.raises(dlog.NotFound):
                await reader.read()
            await new.append(b"more")
        await log.close()
        await reader.close()
    assert await api.values() == [b"new", b"more"]


async def test_a_removed_log_leaves_no_ledger(file_api: Api, tmp_path: object) -> None:
    from pathlib import Path

    async with file_api.connect() as client:
        async with file_api.open_writer() as log:
            for _ in range(3):
                await log.append(b"x")
                await log.rotate()
        await client.admin.remove("log")
    ledgers = Path(file_api.url.removeprefix("file:")) / "ledgers"
    assert [each.name for each in ledgers.iterdir() if each.suffix == ".ledger"] == []


@pytest.mark.parametrize(
    "call",
    ["describe", "status", "segments", "holds", "remove", "why", "export_meta", "truncate"],
)
async def test_where_nothing_is_kept_nothing_is_made(
    file_api: Api, call: str, tmp_path: Path
) -> None:
    more = {"truncate": {"before": 5}}.get(call, {})
    async with file_api.connect() as client:
        with pytest.raises(dlog.NotFound):
            await getattr(client.admin, call)("log", **more)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("job", ["", "x" * 201, "two\nlines", 7, None])
async def test_a_job_has_a_name_that_people_can_read(api: Api, job: object) -> None:
    async with api.connect() as client:
        await client.admin.create("log")
        with pytest.raises(dlog.ConfigError, match="job is printable text of 1 to 200"):
            await client.admin.open_segment("log", job=job)
        for fits in ("x", "x" * 200):
            segment = await client.admin.open_segment("log", job=fits)
            await segment.abort()

"""What is missing in a process is said before anybody is fenced; and where our own code fails, the
handle ends, says so, and every message is told."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

import dlog
from dlog.ledger.embedded.appender import EmbeddedAppender
from dlog.ledger.memory import MemoryAppender, MemoryLedgers
from dlog.reader import core as reading
from dlog.writer import batch as batches
from dlog.writer import engine, healing
from dlog.writer.batcher import Batcher
from dlog.writer.core import WriterCore
from dlog.writer.pipe import Pipe
from dlog.writer.policy import BySizeAndAge
from tests.api.adapter import Api, rest_of
from tests.api.waiting import DEADLINE_S
from tests.pace import timeout

CODECS = [("lz4", "lz4.block"), ("zstd", "zstandard")]


@pytest.fixture(params=CODECS, ids=[codec for codec, _ in CODECS])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    codec, module = request.param
    monkeypatch.setitem(sys.modules, module, None)
    return str(codec)


async def _refused(opening: Any, codec: str) -> None:
    with pytest.raises(dlog.Unsupported, match=rf"install dlog\[{codec}\]") as caught:
        await opening
    assert caught.value.retry is dlog.Retry.NEVER
    assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED


async def test_a_codec_that_is_not_installed_is_refused_before_anybody_is_fenced(
    api: Api, missing: str
) -> None:
    async with api.open_writer() as log, api.connect() as client:
        await _refused(api.open_writer(codec=missing), missing)
        await _refused(api.open_standby(codec=missing), missing)
        await _refused(client.admin.open_segment("log", job="job", codec=missing), missing)
        await _refused(api.open_writer("another", codec=missing), missing)
        await log.append(b"still the writer")
        assert [each.name for each in await client.admin.list()] == ["log"]


async def test_a_stream_is_not_opened_with_a_codec_that_is_not_installed(
    api: Api, missing: str
) -> None:
    async with api.connect() as client:
        await client.create_stream("stream", shards=2)
        async with client.stream("stream").open_writer() as log:
            await _refused(client.stream("stream").open_writer(codec=missing), missing)
            await log.append(b"still the writer", key=b"key")


# --- defects


class Defect(Exception):
    """What nobody expects."""


def _once(real: Callable[..., Any]) -> Callable[..., Any]:
    left = [Defect("a defect of ours")]

    def fail(*args: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return real(*args, **options)

    return fail


# Of what the loop calls while messages are on their way.
ON_THE_WAY: list[tuple[Any, str]] = [
    (batches, "encode"),
    (WriterCore, "room"),
    (WriterCore, "stamp"),
    (WriterCore, "push"),
    (WriterCore, "on_confirmed"),
    (WriterCore, "on_published"),
    (WriterCore, "take_released"),
    (WriterCore, "unpublished"),
    (Pipe, "push"),
    (Pipe, "released"),
    (Batcher, "take"),
    (Batcher, "set_hungry"),
    (Batcher, "release"),
    (BySizeAndAge, "advise"),
    (engine, "next_duty"),
]
NAMES = [
    f"{getattr(owner, '__name__', owner).rpartition('.')[2]}.{name}" for owner, name in ON_THE_WAY
]


async def _told_or_done(ticket: Any) -> dlog.DlogError | None:
    """Either it is there, or it ended with an error: never neither."""
    async with timeout(DEADLINE_S):
        try:
            await ticket
        except dlog.DlogError as error:
            return error
    return None


def _break(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    patch.setattr(owner, name, _once(getattr(owner, name)))


@pytest.mark.parametrize(("owner", "name"), ON_THE_WAY, ids=NAMES)
async def test_a_defect_ends_the_writer_and_every_message_is_told(
    api: Api,
    owner: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    log = await api.open_writer(entry_bytes=64)
    await log.append(b"before")
    _break(monkeypatch, owner, name)
    tickets = []
    refused = None
    for number in range(5):
        try:
            tickets.append(await log.submit(b"%d" % number * 40))
        except dlog.Broken as error:  # those before it were told by then
            refused = error
            break
    errors = [await _told_or_done(ticket) for ticket in tickets]
    told = [error for error in (*errors, refused) if error is not None]
    assert told, "somebody is told of it"
    for error in told:
        assert isinstance(error, dlog.Broken)
        assert "a defect of ours" in error.message
        assert error.handle is dlog.Handle.DEAD
    with pytest.raises(dlog.Broken) as caught:
        await log.append(b"after", timeout=5)
    assert caught.value.handle is dlog.Handle.DEAD
    assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
    assert log.closed
    async with timeout(DEADLINE_S):
        await log.close()
    assert any("broke" in record.message for record in caplog.records)
    there = await api.values()
    for number, error in enumerate(errors):
        if error is None:
            assert b"%d" % number * 40 in there
        elif error.outcome is dlog.Outcome.NOT_HAPPENED:
            assert b"%d" % number * 40 not in there


APPENDERS: dict[str, list[tuple[Any, str]]] = {
    "file": [(EmbeddedAppender, "_confirm"), (EmbeddedAppender, "_publish_through")],
    "memory": [(MemoryLedgers, "add"), (MemoryAppender, "_tell_published")],
}


@pytest.mark.parametrize("which", [0, 1])
async def test_a_defect_of_an_appender_is_told(
    api: Api, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer ends, as any promise that did not hold ends it: nobody waits for ever."""
    owner, name = APPENDERS[api.url.partition(":")[0]][which]
    log = await api.open_writer()
    await log.append(b"before")
    _break(monkeypatch, owner, name)
    told = await _told_or_done(log.append(b"it is told"))
    assert isinstance(told, dlog.Broken)
    assert told.handle is dlog.Handle.DEAD
    assert told.outcome is dlog.Outcome.UNKNOWN
    with pytest.raises(dlog.Broken):
        await log.append(b"after", timeout=5)
    async with timeout(DEADLINE_S):
        await log.close()


async def test_a_defect_while_a_ledger_is_replaced_tells_what_was_rebuilt(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await api.open_writer()
    await log.append(b"before")
    _break(monkeypatch, healing, "write_seam")
    inner = getattr(log, "inner", log)
    inner = getattr(inner, "_inner", inner)
    loop, here = inner._loop, asyncio.get_running_loop()
    error = dlog.Unavailable("the disk is gone", handle=dlog.Handle.DEAD)

    def fail() -> list[Any]:
        """In one turn: what is submitted is not confirmed before its ledger fails."""
        tickets = [inner._engine.batcher.offer(b"%d" % number) for number in range(3)]
        inner._engine._pump()
        inner._engine.on_failed(inner._engine.core.current.ledger_id, error)
        return tickets

    if loop is here:
        tickets = fail()
    else:
        done: asyncio.Future[list[Any]] = here.create_future()
        loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(done.set_result, fail()))
        tickets = await done
    for ticket in tickets:
        error_told = await _told_or_done(ticket)
        assert error_told is None or isinstance(error_told, dlog.Broken)
    async with timeout(DEADLINE_S):
        await log.close()


@pytest.mark.parametrize("name", ["encode", "stamp"])
async def test_a_defect_ends_the_segment_of_a_job(
    api: Api, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dlog.writer.filling import Filling

    async with api.connect() as client:
        await client.admin.create("log")
        segment = await client.admin.open_segment("log", job="job")
        owner: Any = batches if name == "encode" else Filling
        _break(monkeypatch, owner, name if name == "encode" else "_stamp")
        await segment.append_many([b"1", b"2"])
        with pytest.raises(dlog.Broken, match="a defect of ours"):
            async with timeout(DEADLINE_S):
                await segment.close()
        assert any("broke" in record.message for record in caplog.records)
        await segment.abort()


@pytest.mark.parametrize(("owner", "name"), ON_THE_WAY, ids=NAMES)
async def test_a_defect_of_one_shard_is_told_by_its_stream(
    api: Api, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.connect() as client:
        await client.create_stream("stream", shards=2)
        log = await client.stream("stream").open_writer()
        await log.append(b"before", key=b"key")
        _break(monkeypatch, owner, name)
        tickets = []
        for number in range(5):
            try:
                tickets.append(await log.submit(b"%d" % number, key=b"key"))
            except dlog.DlogError as refused:
                assert refused.outcome is dlog.Outcome.NOT_HAPPENED  # noqa: PT017 - or none is
                break
        for ticket in tickets:
            error_told = await _told_or_done(ticket)
            assert error_told is None or "a defect of ours" in error_told.message
        async with timeout(DEADLINE_S):
            try:
                await log.close()
            except dlog.DlogError as failure:
                assert "a defect of ours" in failure.message  # noqa: PT017 - or it has none to tell


async def test_a_defect_ends_the_reader_and_each_call_says_so(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with api.open_writer() as log:
        await log.append_many([b"1", b"2"])
    _break(monkeypatch, reading, "decode")
    async with api.open_reader() as reader:
        for _ in range(3):
            with pytest.raises(dlog.Broken, match="a defect of ours") as caught:
                await rest_of(reader)
            assert caught.value.handle is dlog.Handle.DEAD
    assert any("broke" in record.message for record in caplog.records)


async def test_a_defect_of_a_close_is_told_and_leaves_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await api.open_writer()
    await log.append(b"before")
    _break(monkeypatch, engine, "close")
    async with timeout(DEADLINE_S):
        with pytest.raises(dlog.Broken, match="a defect of ours"):
            await log.close()
    async with api.open_writer() as log:
        await log.append(b"after")
    assert await api.values() == [b"before", b"after"]

"""Bad input and misuse: a typed error that helps, and nothing is lost or broken by it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import uri
from tests.api.adapter import Api

pytestmark = pytest.mark.crosswise(seconds=1)

GOOD_NAMES = [
    "a",
    "orders",
    "a/b/c",
    "a.b",
    ".hidden",
    "..x",
    "ключ/日本/🗝",
    "with blank",
    "100%",
    "a%2Fb",
    "a:b?c#d&e=f",
    "-",
    "pages",
    "x" * 255,
    "é" * 127,
]
BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/.",
    " a",
    "a ",
    "a\nb",
    "a\0b",
    "\x7f",
    "x" * 256,
    "é" * 128,
    "\ud800",
    None,
    7,
    b"bytes",
]


@contextmanager
def refused(what: object) -> Iterator[None]:
    """A typed error, and the name of what got through if there is none."""
    try:
        yield
    except (dlog.ConfigError, dlog.Unsupported):
        return
    pytest.fail(f"not refused: {what!r}")


async def test_names_of_every_kind_are_kept_apart(api: Api) -> None:
    async with api.connect() as client:
        for name in GOOD_NAMES:
            log = await client.open_writer(name)
            assert log.log == name
            await log.append(name.encode())
            await log.close()
        assert {log.name for log in await client.admin.list()} == set(GOOD_NAMES)
        for name in GOOD_NAMES:
            reader = await client.open_reader(name)
            assert [m.value for m in await reader.read()] == [name.encode()]
            await reader.close()


async def test_names_that_are_none(api: Api) -> None:
    async with api.connect() as client:
        for name in BAD_NAMES:
            for ask in (client.open_writer, client.open_reader, client.admin.create):
                with refused(name):
                    await ask(name)


BAD_URLS = [
    "nothing",
    ":",
    "file:",
    "file://elsewhere/data",
    "file:/data#part",
    "file:/a\0b",
    "file:/data?nonsense=1",
    "file:/data?meta_timeout_ms",
    "file:/data?meta_timeout_ms=soon",
    "file:/data?meta_timeout_ms=-1",
    "file:/data?meta_timeout_ms=0",
    "file:/data?meta_timeout_ms=1&meta_timeout_ms=2",
    "memory:",
    "memory:a/b",
    "memory:a\nb",
    "ftp://host/data",
    "C:/data",
]


async def test_urls_that_make_no_sense(api: Api) -> None:
    for url in BAD_URLS:
        for ask in (api.open_writer, api.open_reader):
            with refused(url):
                await _ask(ask, url)
        with refused(url):
            api.connect(url)


async def _ask(ask: Any, url: str) -> None:
    handle = await ask("log", url=url)
    await handle.close()


async def test_unknown_things_list_the_known_ones(api: Api) -> None:
    with pytest.raises(dlog.ConfigError, match=r"'speed'.*meta_timeout_ms"):
        api.connect("file:/data?speed=9")
    with pytest.raises(dlog.ConfigError, match=r"speed.*meta_timeout_ms"):
        api.connect(speed=9)
    with pytest.raises(dlog.ConfigError, match=r"speed.*codec.*linger_ms.*window_bytes"):
        await api.open_writer(speed=9)
    with pytest.raises(dlog.ConfigError, match=r"speed.*follow.*read_ahead_bytes"):
        await api.open_reader(speed=9)
    with pytest.raises(dlog.Unsupported, match=r"file:.*memory:.*zk:"):
        api.connect("bk://host/dlog")
    async with api.connect() as client:
        with pytest.raises(dlog.ConfigError, match=r"speed.*segment_bytes"):
            await client.admin.create("log", speed=9)


BAD_WRITER_OPTIONS: list[dict[str, Any]] = [
    {"takeover": "maybe"},
    {"on_full": "drop"},
    {"visible": "soon"},
    {"visible": "within:0ms"},
    {"visible": None},
    {"codec": "gzip"},
    {"linger_ms": -1},
    {"linger_ms": 1.5},
    {"entry_bytes": 0},
    {"entry_bytes": 1 << 30},
    {"window_bytes": 1},
    {"window_entries": True},
    {"open_timeout_ms": "5"},
    {"owner": ""},
    {"owner": "a\nb"},
    {"create": "yes"},
    {"create": {"segment_bytes": 4096}},
]


async def test_writer_options_that_make_no_sense(api: Api) -> None:
    for options in BAD_WRITER_OPTIONS:
        with refused(options):
            await api.open_writer(**options)


BAD_READER_OPTIONS: list[dict[str, Any]] = [
    {"on_truncated": "ignore"},
    {"read_run_bytes": 0},
    {"read_ahead_bytes": -1},
    {"read_ahead_bytes": None},
    {"follow": "yes"},
]


async def test_reader_options_that_make_no_sense(api: Api) -> None:
    async with api.open_writer():
        for options in BAD_READER_OPTIONS:
            with refused(options):
                await api.open_reader(**options)


BAD_LOG_OPTIONS: list[dict[str, Any]] = [
    {"segment_bytes": 1},
    {"segment_age_s": 0},
    {"ack_quorum": 4},
    {"ensemble": 5},
    {"write_quorum": 2},
]


def test_log_options_that_make_no_sense() -> None:
    for options in BAD_LOG_OPTIONS:
        with refused(options):
            dlog.LogOptions(**options)


WRONG_MESSAGES: list[dict[str, Any]] = [
    {"value": "text"},
    {"value": 7},
    {"value": [b"x"]},
    {"value": b"x", "key": "text"},
    {"value": b"x", "key": 7},
    {"value": b"x", "headers": {"a": "text"}},
    {"value": b"x", "headers": {"a": None}},
    {"value": b"x", "headers": {b"a": b"x"}},
    {"value": b"x", "headers": [("a", b"x", b"y")]},
    {"value": b"x", "headers": "ab"},
    {"value": b"x", "headers": 7},
    {"value": b"x", "headers": {"\ud800": b"x"}},
    {"value": b"x", "event_time": datetime(2024, 1, 1)},
    {"value": b"x", "event_time": 1.5},
    {"value": b"x", "event_time": True},
    {"value": b"x", "event_time": 1 << 63},
    {"value": b"x", "event_time": "now"},
]


async def test_messages_that_make_no_sense_harm_nobody(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"before")
        for wrong in WRONG_MESSAGES:
            for verb in (log.append, log.submit):
                with pytest.raises(dlog.ConfigError) as caught:
                    await verb(**wrong)
                assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
                assert caught.value.handle is dlog.Handle.USABLE
        for values in (["text"], [b"x", 7], b"bytes", "text", 7, None):
            for atomic in (False, True):
                with pytest.raises(dlog.ConfigError):
                    await log.append_many(values, atomic=atomic)
        for columns in ({"keys": ["k"]}, {"keys": 7}, {"headers": [{"a": 1}]}, {"headers": 7}):
            with pytest.raises(dlog.ConfigError):
                await log.append_many([b"x"], **columns)
        await log.append(b"behind")
    values_there = await api.values()
    assert (values_there[0], values_there[-1]) == (b"before", b"behind")
    assert set(values_there) <= {b"before", b"behind", b"x"}


@pytest.mark.parametrize("count", [1, 3])
async def test_columns_that_do_not_fit_the_values(api: Api, count: int) -> None:
    """A key or header for a message that is not there, or none for one that is, is a mistake."""
    async with api.open_writer() as log:
        for columns in ({"keys": [b"k"] * count}, {"headers": [None] * count}):
            for atomic in (False, True):
                with pytest.raises(dlog.ConfigError, match="as many"):
                    await log.append_many([b"a", b"b"], atomic=atomic, **columns)
    assert await api.values() == []


async def test_too_large(api: Api) -> None:
    async with api.open_writer() as log:
        largest = 5_200_000
        for wrong in ({"value": bytes(5_300_000)}, {"value": b"", "key": bytes(5_300_000)}):
            for verb in (log.append, log.submit):
                with pytest.raises(dlog.TooLarge) as caught:
                    await verb(**wrong)
                assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
        with pytest.raises(dlog.TooLarge):
            await log.append(b"", headers={"h": bytes(5_300_000)})
        with pytest.raises(dlog.TooLarge):
            await log.append(b"", headers=[("h", b"")] * 2000)
        with pytest.raises(dlog.TooLarge):
            await log.append_many([bytes(1_000_000)] * 6, atomic=True)
        with pytest.raises(dlog.TooLarge):
            await log.append_many([b""] * 200_000, atomic=True)
        with pytest.raises(dlog.TooLarge):
            await log.append_many([b"small", bytes(5_300_000)])
        await log.append(bytes(largest))
    sizes = [len(value or b"") for value in await api.values()]
    assert sizes == [largest]


async def test_use_after_close(api: Api) -> None:
    log = await api.open_writer()
    await log.append(b"x")
    await log.close()
    calls: list[Any] = [
        lambda: log.append(b"y"),
        lambda: log.submit(b"y"),
        lambda: log.append_many([b"y"]),
        lambda: log.append_many([b"y"], atomic=True),
        lambda: log.flush(),
        lambda: log.rotate(),
        lambda: log.hand_over(),
    ]
    for call in calls:
        with pytest.raises(dlog.WriterClosed) as caught:
            await call()
        assert caught.value.handle is dlog.Handle.DEAD
        assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
    assert "closed" in repr(log)
    reader = await api.open_reader()
    await reader.close()
    await reader.close()
    for call in (reader.read, reader.tail, reader.skip, lambda: reader.seek(0)):
        with pytest.raises(dlog.ReaderClosed):
            await call()
    with pytest.raises(dlog.ReaderClosed):
        async for _ in reader:
            pass
    with pytest.raises(dlog.ReaderClosed):
        async for _ in reader.batches():
            pass


async def test_closing_a_client_closes_what_it_opened(api: Api) -> None:
    client = api.connect()
    log = await client.open_writer("log")
    ticket = await log.submit(b"flushed")
    reader = await client.open_reader("log", follow=True)
    await client.close()
    await client.close()
    assert ticket.result(0).batch_idx == 0
    assert log.closed
    assert reader.closed
    with pytest.raises(dlog.WriterClosed):
        await log.append(b"x")
    with pytest.raises(dlog.ReaderClosed):
        await reader.read()
    with pytest.raises(dlog.ConfigError, match="closed"):
        await client.open_writer("log")
    with pytest.raises(dlog.ConfigError, match="closed"):
        await client.open_reader("log")
    with pytest.raises(dlog.ConfigError, match="closed"):
        await client.admin.list()
    assert "closed" in repr(client)
    await log.close()
    await reader.close()
    assert await api.values() == [b"flushed"]


async def test_handles_are_not_pickled_or_copied(api: Api) -> None:
    async with api.open_writer() as log, api.open_reader() as reader, api.connect() as client:
        for handle in (log, reader, client):
            handle = getattr(handle, "inner", handle)
            with pytest.raises(dlog.ConfigError, match="pickled"):
                pickle.dumps(handle)
            with pytest.raises(dlog.ConfigError):
                copy.copy(handle)


async def test_values_can_be_pickled(api: Api) -> None:
    async with api.open_writer() as log:
        first = await log.append(b"x", headers={"h": b"v"})
    (message,) = await api.read_all()
    async with api.open_reader() as reader:
        position = reader.position
    error = dlog.Timeout("slow", log="log", outcome=dlog.Outcome.NOT_HAPPENED)
    for value in (first, message, position, dlog.LogOptions()):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(twin), twin.log, twin.outcome) == ("slow", "log", dlog.Outcome.NOT_HAPPENED)


async def test_the_url_falls_back_to_the_environment(
    api: Api, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.open_writer() as log:
        await log.append(b"x")
    monkeypatch.setenv("DLOG_URL", url)
    assert await api.values(url=None) == [b"x"]
    monkeypatch.delenv("DLOG_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert str(uri.resolve(None)) == f"file:{tmp_path / 'dlog'}"
    monkeypatch.setenv("DLOG_URL", "nonsense")
    with pytest.raises(dlog.ConfigError):
        await api.open_reader(url=None)

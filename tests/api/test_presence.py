"""A writer whose session was lost under it is found again where polite openers look."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import dlog
from dlog import aio, backends
from dlog.writer import presence
from dlog.writer.writer import Writer
from tests.api.waiting import eventually

_worlds = itertools.count()


def lose_session(writer: Writer) -> None:
    """As if the metadata store had been away for longer than it believes in anybody."""
    stores: Any = writer._engine._stores
    session = stores.meta.inner._session
    stores.meta.inner._tree.expire(session.id)


def name_at(writer: Writer) -> str | None:
    """Who is said to be there, now."""
    stores: Any = writer._engine._stores
    node = stores.meta.inner._tree._nodes.get(writer._engine._presence_path)
    return None if node is None else node.value.decode()


@pytest.fixture
def url() -> Iterator[str]:
    name = f"presence-{next(_worlds)}"
    yield f"memory:{name}"
    backends._memory_worlds.pop(name)


async def test_a_writer_that_outlives_its_session_is_present_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "CHECK_S", 0.01)
    async with aio.connect(url) as client:
        log = await client.open_writer("log", owner="ada")
        assert name_at(log) == "ada"
        lose_session(log)
        assert name_at(log) is None
        await eventually_there(log)
        with pytest.raises(dlog.Conflict, match="ada"):
            await client.open_writer("log", takeover="if_dead")
        await log.append(b"it went on")
        await log.close()
        assert name_at(log) is None
        other = await client.open_writer("log", takeover="if_dead", owner="grace")
        await eventually_there(other)  # opened without one: the client's session is lost for good
        await other.close()


async def eventually_there(writer: Writer) -> None:
    await eventually(lambda: name_at(writer) == writer._engine.mark.name)


async def test_presence_ends_with_the_client(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "CHECK_S", 0.01)
    async with aio.connect(url) as client:
        log = await client.open_writer("log")
        lose_session(log)
        await eventually_there(log)
    async with (
        aio.connect(url) as client,
        client.open_writer("log", takeover="if_dead", owner="grace") as log,
    ):
        assert log.epoch == 2


async def test_presence_is_given_up_by_whoever_was_fenced(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "CHECK_S", 0.01)
    async with aio.connect(url) as client, aio.connect(url) as other:
        log = await client.open_writer("log", owner="ada")
        winner = await other.open_writer("log", owner="grace")
        with pytest.raises(dlog.Fenced):
            await log.append(b"late")
        assert log._engine._presence._stopped
        assert name_at(winner) == "grace"
        await winner.close()

"""A writer that was fenced leaves no ledger behind that nobody can tell what it is."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from dlog import DlogError, Fenced, Outcome, Unavailable, aio, backends
from dlog.effects import ReplaceNode
from dlog.meta.log_meta import LogMeta
from dlog.writer.engine import Engine
from dlog.writer.performing import WriterDriver
from dlog.writer.rotation import list_spare, prepare

NAME = "log"
_worlds = itertools.count()


@pytest.fixture
async def client() -> AsyncIterator[aio.Client]:
    place = f"spares-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{place}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(place, None)


async def prepared(client: aio.Client) -> Any:
    """A writer with a ledger that is made, and not listed yet."""
    writer = await client.open_writer(NAME)
    await writer.append(b"first")
    engine: Engine = writer._engine
    await engine._driver.run(prepare(engine.core))
    return writer


async def left_over(client: aio.Client) -> set[int]:
    """Ledgers that the log does not name."""
    stores = await client._stores(False)
    path = stores.layout.log(NAME)
    meta = LogMeta.from_bytes((await stores.meta.get(path)).value, where=path)
    ids: set[int] = set(stores.ledgers._world.ids())  # type: ignore[attr-defined]
    return ids - {each.ledger_id for each in (*meta.segments, *meta.deleting)}


@pytest.mark.parametrize("hears", ["rotating", "appending", "closing"])
async def test_a_fenced_writer_leaves_no_spare_ledger(client: aio.Client, hears: str) -> None:
    fenced = await prepared(client)
    assert len(await left_over(client)) == 1
    async with client.open_writer(NAME) as winner:
        await winner.append(b"second")
        if hears == "closing":
            await fenced.close()
        else:
            with pytest.raises(Fenced):
                await (fenced.rotate() if hears == "rotating" else fenced.append(b"x"))
            await fenced._engine._progress.until(lambda: fenced._engine._duty is None)
        assert await left_over(client) == set()
        await fenced.close()
    assert await left_over(client) == set()


async def test_a_spare_ledger_that_may_be_listed_is_left_to_the_new_writer(
    client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list has it, and the reply that says so was lost. The new writer drops it."""
    fenced = await prepared(client)
    spare = fenced._engine.core.spare
    genuine = WriterDriver.perform
    is_away = False

    async def perform(self: WriterDriver, effect: Any) -> Any:
        nonlocal is_away
        if is_away and self is fenced._engine._driver:
            raise Unavailable("the store is away", outcome=Outcome.UNKNOWN)
        answer = await genuine(self, effect)
        if isinstance(effect, ReplaceNode) and self is fenced._engine._driver:
            is_away = True
            raise Unavailable("the reply is lost", outcome=Outcome.UNKNOWN)
        return answer

    monkeypatch.setattr(WriterDriver, "perform", perform)
    engine = fenced._engine
    with pytest.raises(DlogError):
        await engine._driver.run(_listed(engine))
    assert not engine.core.spare_is_private
    assert await left_over(client) == set(), "it is listed"
    is_away = False
    monkeypatch.undo()
    async with client.open_writer(NAME) as winner:
        with suppress(DlogError):
            await fenced.rotate()
        stores = await client._stores(False)
        assert spare in stores.ledgers._world.ids(), "the list names it, as one to delete"
        await winner.append(b"second")
        await fenced.close()


def _listed(engine: Engine) -> Any:
    return list_spare(engine.core, "rotate.listed")

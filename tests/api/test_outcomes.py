"""Was it appended? What tokens resolve to, in each case there is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from dlog.meta.listed import Point
from dlog.meta.log_meta import LogMeta
from tests.api.adapter import Api
from tests.api.waiting import eventually, held_at


async def _resolve(api: Api, token: dlog.Token, log: str = "log") -> Any:
    async with api.connect() as client:
        found = await client.resolve(log, token)
        assert await client.admin.resolve(log, token) == found
        return found


async def test_an_acknowledged_message_is_present_at_its_id(api: Api) -> None:
    async with api.open_writer() as log:
        tickets = [await log.submit(b"%d" % number) for number in range(10)]
        tokens = [ticket.token for ticket in tickets]  # before anybody knows an id
        ids = [await ticket for ticket in tickets]
        assert [(token.epoch, token.seq) for token in tokens] == [(1, seq) for seq in range(10)]
        for token, id in zip(tokens, ids, strict=True):
            assert await log.resolve(token) == dlog.Present(id)
        await log.rotate()
        assert await log.resolve(tokens[3]) == dlog.Present(ids[3])
    for token, id in zip(tokens, ids, strict=True):
        assert await _resolve(api, dlog.Token.parse(str(token))) == dlog.Present(id)


async def test_tokens_count_on_over_runs_and_rotations(api: Api) -> None:
    async with api.open_writer(entry_bytes=100) as log:
        await log.append_many([b"x" * 30] * 7)
        await log.append_many([b"y"] * 3, atomic=True)
        await log.rotate()
        ticket = await log.submit(b"z")
        assert ticket.token.seq == 10
        assert await log.resolve(ticket.token) in (dlog.Present(await ticket), _Undecided())
    async with api.open_writer() as log:
        ticket = await log.submit(b"z")
        assert (ticket.token.epoch, ticket.token.seq) == (2, 11)
        id = await ticket
        assert await log.resolve(ticket.token) == dlog.Present(id)


class _Undecided:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, dlog.Undecided)


async def test_a_message_on_its_way_is_undecided_until_another_writer_opens(file_api: Api) -> None:
    """The writer hangs; whoever asks is told so, and that opening a writer decides. What the
    takeover found on the disk is present from then on, what never got there was never appended."""
    old = await file_api.open_writer(window_entries=1)
    await old.append(b"first")
    with held_at("ledger.synced", only_first=True) as disk:
        sent = await old.submit(b"written, not synced")
        await eventually(disk.reached.is_set)
        unsent = [await old.submit(b"x" * 400_000) for _ in range(2)]
        found = await _resolve(file_api, sent.token)
        assert isinstance(found, dlog.Undecided)
        assert "opening another writer" in found.why
        opening = asyncio.ensure_future(_opened(file_api))
        await eventually(lambda: _is_fenced(old))
        disk.open()
        new = await opening
    with pytest.raises(dlog.Fenced) as caught:
        await sent
    assert caught.value.token == sent.token
    decided = await _resolve(file_api, sent.token)
    messages = {message.value: message.id for message in await file_api.read_all()}
    if b"written, not synced" in messages:
        assert decided == dlog.Present(messages[b"written, not synced"])
    else:
        assert decided == dlog.Never()
    for ticket in unsent:
        with pytest.raises(dlog.Fenced) as caught:
            await ticket
        assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
        assert caught.value.token is None
        assert await _resolve(file_api, ticket.token) == dlog.Never()
    taken = await new.submit(b"takes a seq of the other one")
    await taken
    for ticket in unsent:
        assert await _resolve(file_api, ticket.token) == dlog.Never()
    await new.close()
    await old.close()


async def _opened(api: Api) -> Any:
    return await api.open_writer()


def _is_fenced(log: Any) -> bool:
    inner = getattr(log, "inner", log)
    engine = getattr(inner, "_inner", inner)._engine
    (appender,) = engine._driver.appenders.values()
    return bool(appender._words.fenced)


async def test_a_timeout_names_the_message_it_leaves_open(file_api: Api) -> None:
    log = await file_api.open_writer()
    with held_at("ledger.synced") as disk:
        with pytest.raises(dlog.Timeout) as caught:
            await log.append(b"slow", timeout=0.02)
        token = caught.value.token
        assert isinstance(await log.resolve(token), dlog.Undecided)
        disk.open()
    await log.flush()
    assert await log.resolve(token) == dlog.Present(log.last_id)
    await log.close()


async def test_what_a_closed_writer_never_took_is_never(api: Api) -> None:
    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        await ticket
        uid = ticket.token.log_uid
    assert await _resolve(api, dlog.Token(uid, 1, 1)) == dlog.Never()
    async with api.open_writer() as log:
        await log.append(b"y")
        assert await log.resolve(dlog.Token(uid, 1, 1)) == dlog.Never()
        with pytest.raises(dlog.ConfigError, match="epoch 3"):
            await log.resolve(dlog.Token(uid, 3, 0))


async def test_a_removed_log_is_too_late_also_when_there_is_another_one(api: Api) -> None:
    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        await ticket
    async with api.connect() as client:
        await client.admin.remove("log")
        found = await client.resolve("log", ticket.token)
        assert isinstance(found, dlog.TooLate)
        assert "removed" in found.why
        await client.admin.create("log")
        assert isinstance(await client.resolve("log", ticket.token), dlog.TooLate)
        with pytest.raises(dlog.ConfigError, match="a token is"):
            await client.resolve("log", str(ticket.token))


async def test_what_was_truncated_is_too_late(api: Api) -> None:
    async with api.open_writer() as log:
        tickets = [await log.submit(b"%d" % number) for number in range(4)]
        ids = [await ticket for ticket in tickets]
    async with dlog.aio.connect(api.url) as client:
        await _truncate(client, Point(seq=1))
        await _truncate(client, Point(0, *ids[2]))
    answers = [await _resolve(api, ticket.token) for ticket in tickets]
    assert [type(answer) for answer in answers[:2]] == [dlog.TooLate] * 2
    assert answers[2:] == [dlog.Present(id) for id in ids[2:]]
    async with dlog.aio.connect(api.url) as client:
        await _truncate(client, Point(seq=4))
    assert isinstance(await _resolve(api, tickets[3].token), dlog.TooLate)
    assert await _resolve(api, dlog.Token(tickets[3].token.log_uid, 1, 4)) == dlog.Never()


async def _truncate(client: Any, point: Point) -> None:
    stores = await client._stores(False)
    path = stores.layout.log("log")
    node = await stores.meta.get(path)
    meta = LogMeta.from_bytes(node.value, where=path).truncated(point).swept(0)
    await stores.meta.put(path, meta.to_bytes(), node.version)

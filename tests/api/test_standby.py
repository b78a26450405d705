"""Standing by: ready to take over, and reading what is written meanwhile, to the last message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from dlog.drive import Stores
from dlog.meta.log_meta import LogMeta
from dlog.wire.batch import decode
from dlog.wire.control import Birth
from tests.api.adapter import Api, OnThread, on_thread
from tests.api.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.crosswise(seconds=1)


async def messages_of(standby: Any) -> list[bytes | None]:
    """All until nobody writes any more, or up to our own writer."""
    if isinstance(standby, OnThread):
        found = await on_thread(lambda: list(standby.inner.messages()))
    else:
        found = [message async for message in standby.messages()]
    return [message.value for message in found]


async def test_a_standby_takes_over_with_the_ledger_that_it_kept(api: Api) -> None:
    async with api.connect() as client:
        old = await client.open_writer("log", owner="old")
        await old.append(b"old")
        async with api.open_standby(owner="new") as standby:
            assert standby.ready
            assert standby.holder == "old"
            kept = _inner(standby).ledger_id
            writer = await standby.take_over()
            assert writer.epoch == old.epoch + 1
            assert (await writer.append(b"new")).ledger_id == kept
            times = writer.takeover_times
            assert times.birth_ms == 0
            assert times.claim_ms > 0
            assert times.total_ms >= times.claim_ms + times.commit_ms
            assert "claim" in str(times)
            with pytest.raises(dlog.Fenced) as caught:
                await old.append(b"zombie")
            assert caught.value.winner.name == "new"
        assert writer.closed
    assert await api.values() == [b"old", b"new"]


async def test_what_others_wrote_is_delivered_before_we_write(api: Api) -> None:
    """The end of the reader is where the writer begins: never less, never our own."""
    old = await api.open_writer()
    for number in range(50):
        await old.submit(b"%d" % number)
    async with api.open_standby() as standby:
        reading = asyncio.ensure_future(messages_of(standby))
        writer = await standby.take_over()
        for number in range(50, 60):
            await writer.submit(b"%d" % number)
        await writer.flush()
        seen = await reading + await messages_of(standby)
        assert seen == [b"%d" % number for number in range(len(seen))]
        values = await api.values()
        assert values == seen + [b"%d" % number for number in range(50, 60)]
        assert await messages_of(standby) == []
        assert await standby.reader.read(timeout=0.01) == []
    await _give_up(old)


async def test_messages_end_when_the_writer_leaves_and_the_rest_comes_afterwards(api: Api) -> None:
    old = await api.open_writer()
    await old.append(b"one")
    async with api.open_standby(start="earliest") as standby:
        reading = asyncio.ensure_future(messages_of(standby))
        await old.append(b"two")
        await eventually(lambda: standby.position.next_seq == 2 or reading.done())
        assert not reading.done()
        await old.append(b"three")
        await old.close()
        seen = await reading
        writer = await standby.take_over("if_dead")
        assert seen + await messages_of(standby) == [b"one", b"two", b"three"]
        assert await standby.lag() == 0
        await writer.append(b"four")
    assert await api.values() == [b"one", b"two", b"three", b"four"]


async def test_a_rotation_makes_the_standby_take_another_ledger(api: Api) -> None:
    async with api.open_writer() as old:
        await old.append(b"one")
        async with api.open_standby() as standby:
            first = _inner(standby).ledger_id
            await old.rotate()  # lists an id above the one that we kept
            await old.append(b"two")
            await eventually(lambda: standby.ready and _inner(standby).ledger_id > first)
            kept = _inner(standby).ledger_id
            writer = await standby.take_over()
            assert (await writer.append(b"three")).ledger_id == kept
            assert first not in await _ledgers(api)
    assert await api.values() == [b"one", b"two", b"three"]


async def test_a_takeover_right_after_a_rotation_does_without(api: Api) -> None:
    """Nothing below the floor is ever listed: it makes its ledger as anybody would."""
    async with api.open_writer() as old:
        await old.append(b"one")
        async with api.open_standby() as standby:
            await on_loop(standby, _inner(standby)._stop_keeping(patience_s=1))
            first = _inner(standby).ledger_id
            await old.rotate()
            await old.append(b"two")
            writer = await standby.take_over()
            assert (await writer.append(b"three")).ledger_id > first
            assert writer.takeover_times.birth_ms > 0
    assert await api.values() == [b"one", b"two", b"three"]
    assert first not in await _ledgers(api)


async def test_a_standby_that_is_closed_leaves_no_ledger(api: Api) -> None:
    async with api.open_writer() as old:
        await old.append(b"one")
        before = await _ledgers(api)
        standbys = [await api.open_standby() for _ in range(3)]
        kept = [_inner(each).ledger_id for each in standbys]
        assert sorted(set(await _ledgers(api)) - set(before)) == sorted(kept)
        for each in standbys:
            await each.close()
            await each.close()
            assert each.closed
            with pytest.raises(dlog.ReaderClosed):
                await each.take_over()
        assert await _ledgers(api) == before
        await old.append(b"two")


async def test_the_birth_of_a_standbys_ledger_says_standby(api: Api) -> None:
    async with api.connect() as client:
        standby = await client.open_standby("log")
        stores = await _stores(api, client)
        ledger_id = _inner(standby).ledger_id
        info, raw = await on_loop(client, _first_entry(stores, ledger_id))
        birth = Birth.from_bytes(decode(raw, where="").control_body, where="")
        assert (birth.role, birth.number, birth.epoch) == ("standby", None, None)
        custom = dict(info.spec.custom)
        assert custom.pop("role") == b"standby"
        assert sorted(custom) == ["application", "log", "token"]
        assert custom["log"].decode() == birth.log_uid


async def test_a_standby_waits_until_the_writer_left(api: Api) -> None:
    old = await api.open_writer()
    await old.append(b"one")
    async with api.open_standby(takeover="wait") as standby:
        assert not await standby.wait(0.02)
        with pytest.raises(dlog.Conflict):
            await standby.take_over("if_dead")
        taking = asyncio.ensure_future(standby.take_over())
        await old.append(b"two")
        assert not taking.done()
        await old.hand_over("anybody")
        async with asyncio.timeout(DEADLINE_S):
            writer = await taking
        assert writer.takeover_times.claim_ms == 0
        await writer.append(b"three")
        with pytest.raises(dlog.ConfigError, match="took over already"):
            await standby.take_over()
    assert await api.values() == [b"one", b"two", b"three"]


async def test_several_standbys_leave_one_writer(api: Api) -> None:
    old = await api.open_writer()
    await old.append(b"old")
    standbys = [await api.open_standby(owner=f"s{number}") for number in range(3)]
    taking = [asyncio.ensure_future(each.take_over("wait")) for each in standbys]
    await old.close()
    done, pending = await asyncio.wait(
        taking, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S
    )
    writer = done.pop().result()
    assert not done
    await writer.append(b"new")
    await asyncio.sleep(0)
    assert all(not task.done() for task in pending)
    await writer.close()
    while pending:
        done, pending = await asyncio.wait(
            pending, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S
        )
        for task in done:
            writer = task.result()
            await writer.append(b"next")
            await writer.close()
    for each in standbys:
        await each.close()
    assert await api.values() == [b"old", b"new", b"next", b"next"]


async def test_whoever_was_slower_stands_by_again(api: Api) -> None:
    """`Fenced` while taking over costs one try; the next one is as good."""
    async with api.open_standby(owner="first") as first, api.open_standby(owner="second") as second:
        tries = await asyncio.gather(first.take_over(), second.take_over(), return_exceptions=True)
        assert all(
            not isinstance(each, Exception) or isinstance(each, dlog.Fenced) for each in tries
        )
        for standby, tried in zip((first, second), tries, strict=True):
            if isinstance(tried, dlog.Fenced):
                writer = await standby.take_over()
                await writer.append(b"again")
                return
        newest = max(tries, key=lambda writer: writer.epoch)
        await newest.append(b"newest")


async def test_a_standby_makes_the_log_or_refuses(api: Api) -> None:
    with pytest.raises(dlog.NotFound):
        await api.open_standby(create=False)
    async with api.open_standby(create=dlog.LogOptions(segment_bytes=1 << 20)) as standby:
        assert standby.holder is None
        async with api.connect() as client:
            described = await client.admin.describe("log")
            assert (described.epoch, described.options["segment_bytes"]) == (0, 1 << 20)
        writer = await standby.take_over("never")
        await writer.append(b"one")
    with pytest.raises(dlog.ConfigError, match="unknown option"):
        await api.open_standby(follow=True)
    assert await api.values() == [b"one"]


async def test_a_removed_log_is_not_taken_over(api: Api) -> None:
    async with api.connect() as client:
        async with client.open_writer("log") as old:
            await old.append(b"one")
        async with api.open_standby() as standby:
            await client.admin.remove("log")
            async with client.open_writer("log") as other:
                await other.append(b"another log")
            with pytest.raises(dlog.NotFound):
                await standby.take_over()
        assert await api.values() == [b"another log"]


async def test_a_standby_starts_where_it_is_told(api: Api) -> None:
    async with api.open_writer() as old:
        ids = [await old.append(b"%d" % number) for number in range(5)]
    async with api.open_standby(start=ids[2]) as standby:
        assert await messages_of(standby) == [b"2", b"3", b"4"]
        writer = await standby.take_over()
        assert await messages_of(standby) == []
        await writer.close()


async def test_a_standby_believes_the_tail_as_it_is_told(api: Api) -> None:
    """Strictly, where strangers recover ledgers (H1, H2): it reads along as any strict reader."""
    old = await api.open_writer()
    await old.append(b"one")
    async with api.open_standby(tail="strict") as standby:
        assert _inner(standby).reader.tail_mode == "strict"
        assert await standby.lag() == 1
        await old.close()
        assert await messages_of(standby) == [b"one"]
    async with api.open_standby() as standby:
        assert _inner(standby).reader.tail_mode == "normal"
    with pytest.raises(dlog.ConfigError, match="tail"):
        await api.open_standby(tail="loose")


async def test_lag_counts_what_was_not_handed_out(api: Api) -> None:
    async with api.open_writer() as old:
        await old.append_many([b"x"] * 10)
        async with api.open_standby() as standby:
            assert await standby.lag() == 10
            await standby.reader.read(4)
            assert await standby.lag() == 6
            assert standby.position.next_seq == 4
            assert "ready" in repr(standby)


# --- tools


def _inner(standby: Any) -> Any:
    inner = getattr(standby, "inner", standby)
    return getattr(inner, "_inner", inner)


async def on_loop(handle: Any, work: Any) -> Any:
    """On the loop that the handle belongs to."""
    inner = getattr(handle, "inner", None)
    if inner is None:
        return await work
    return await on_thread(inner._portal.run, work)


async def _stores(api: Api, client: Any) -> Stores:
    return await on_loop(client, _inner(client)._stores(False))


async def _first_entry(stores: Stores, ledger_id: int) -> tuple[Any, bytes]:
    info = await stores.ledgers.info(ledger_id)
    await stores.ledgers.recover(ledger_id)
    reader = await stores.ledgers.open(ledger_id)
    try:
        return info, bytes((await reader.read(0, 0, bytes_max=1))[0])
    finally:
        await reader.close()


async def _ledgers(api: Api) -> list[int]:
    async with dlog.aio.connect(api.url) as client:
        stores = await client._stores(False)
        mine = []
        meta = LogMeta.from_bytes(
            (await stores.meta.get(stores.layout.log("log"))).value, where="log"
        )
        async for ledger_id in stores.ledgers.scan_ids():
            info = await stores.ledgers.info(ledger_id)
            if info.spec.custom.get("log") == meta.uid.encode():
                mine.append(ledger_id)
        return sorted(mine)


async def _give_up(writer: Any) -> None:
    try:
        await writer.close()
    except dlog.Fenced:
        pass

"""`why()` and `lag()` through both faces, and the admin's look from outside."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog import ReasonCode
from dlog.meta.memory import MemoryMetaStore
from tests.api.adapter import Api, OnThread, on_thread
from tests.api.planting import meta_of, stores_of
from tests.api.waiting import eventually


async def _why(handle: object) -> dlog.Reason | None:
    """A plain call in both faces; the sync one must not hold up the loop of the test."""
    if isinstance(handle, OnThread):
        return await on_thread(handle.inner.why)
    return handle.why()  # type: ignore[attr-defined, no-any-return]


async def test_a_writer_at_rest_and_at_its_end(api: Api) -> None:
    log = await api.open_writer()
    await log.append(b"first")
    assert await _why(log) is None
    await log.close()
    reason = await _why(log)
    assert reason is not None
    assert (reason.code, str(reason)) == (ReasonCode.CLOSED, "the writer was closed")


async def test_who_was_fenced_knows_by_whom(api: Api) -> None:
    old = await api.open_writer(owner="ana")
    new = await api.open_writer(owner="ben")
    with pytest.raises(dlog.Fenced):
        await old.append(b"too late")
    reason = await _why(old)
    assert reason is not None
    assert reason.code is ReasonCode.LOST
    assert (reason.evidence["winner"], reason.evidence["winner_epoch"]) == ("ben", 2)
    await old.close()
    await new.close()


async def test_a_reader_and_its_lag(api: Api) -> None:
    async with api.open_writer(entry_bytes=100) as log:
        await log.append_many([b"." * 40] * 10)
        await log.rotate()
        await log.append_many([b"." * 40] * 10)
        async with api.open_reader(follow=True) as reader:
            lag = await reader.lag()
            assert lag.messages == 20
            assert 1_000 < lag.bytes < 20_000
            assert 0 <= lag.seconds < 60
            assert len(await reader.read(5)) == 5
            less = await reader.lag()
            assert less.messages == 15
            assert less.bytes < lag.bytes
            left = 15
            while left:
                left -= len(await reader.read(left))
            assert await reader.lag() == dlog.Lag(0, 0, 0.0)
            assert await reader.read(1, timeout=0.1) == []
            reason = await _why(reader)
            assert reason is not None
            assert reason.code is ReasonCode.AT_TAIL
        reason = await _why(reader)
        assert reason is not None
        assert reason.code is ReasonCode.CLOSED


async def test_the_lag_of_an_empty_log_and_of_what_was_removed(api: Api) -> None:
    async with api.connect() as client:
        await client.admin.create("log")
        async with client.open_reader("log", follow=True) as reader:
            assert await reader.lag() == dlog.Lag(0, 0, 0.0)
            await client.admin.remove("log")
            with pytest.raises(dlog.NotFound):
                await reader.lag()


async def test_what_is_seen_from_outside(api: Api) -> None:
    async with api.connect() as client:
        log = await client.open_writer("log", owner="ana")
        await log.append(b"first")
        seen = await client.admin.why("log")
        assert (seen.writer.name, seen.present, seen.epoch) == ("ana", True, 1)
        (ledger,) = seen.ledgers
        assert (ledger.state, ledger.may_be_entered, ledger.missing) == ("open", True, ())
        assert seen.reasons == ()
        status = await client.admin.status("log")
        assert (status.writer, status.next_seq, status.head_seq, status.segments) == (
            "ana",
            1,
            0,
            1,
        )
        assert status.last_id == log.last_id
        await log.close()
        seen = await client.admin.why("log")
        assert (seen.writer, seen.present, seen.ledgers, seen.reasons) == (None, None, (), ())
        with pytest.raises(dlog.NotFound):
            await client.admin.why("nowhere")


async def test_only_its_own_holds_hold_a_log(api: Api) -> None:
    """Not one that came in behind the removal of another log of its name."""
    async with api.open_writer() as log, api.connect() as client:
        await log.append(b"x")
        await client.admin.hold("log", "audit", 0)
        async with stores_of(api) as stores:
            raw = (await stores.meta.get(stores.layout.hold("log", "audit"))).value
            uid = (await meta_of(stores)).uid.encode()
            await stores.meta.create(stores.layout.hold("log", "old"), raw.replace(uid, b"gone"))
        seen = await client.admin.why("log")
        assert seen.holds == ("audit",)
        assert [reason.evidence for reason in seen.reasons] == [{"hold": "audit"}]


async def test_a_holder_that_is_gone(api: Api) -> None:
    async with api.connect() as client, api.connect() as other:
        await client.admin.create("other")
        log = await other.open_writer("log", owner="ana")
        await log.append(b"first")
        ours = client.inner._inner if isinstance(client, OnThread) else client
        meta = ours._opened.meta
        (path,) = _presences(other)
        if isinstance(client, OnThread):
            portal = client.inner._portal
            await on_thread(lambda: portal.run(_delete(meta, path)))
        else:
            await _delete(meta, path)
        seen = await client.admin.why("log")
        assert seen.present is False
        (reason,) = seen.reasons
        assert reason.code is ReasonCode.HOLDER_GONE
        assert reason.evidence == {"holder": "ana", "epoch": 1}
        assert "recovers ledger" in str(reason)


def _presences(client: object) -> list[str]:
    inner = client.inner._inner if isinstance(client, OnThread) else client
    return [each._engine._presence_path for each in inner._handles.values()]  # type: ignore[attr-defined]


async def _delete(meta: dlog.meta.store.MetaStore, path: str) -> None:
    await meta.delete(path, (await meta.get(path)).version)


async def test_a_metadata_store_that_is_away_is_an_answer(
    make_api: type[Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api("memory:away")
    async with api.connect() as client:
        async with client.open_writer("log") as log:
            await log.append(b"first")

        async def get(self: MemoryMetaStore, path: str) -> None:
            raise dlog.Unavailable("nobody is there")

        monkeypatch.setattr(MemoryMetaStore, "get", get)
        seen = await client.admin.why("log")
        monkeypatch.undo()
        (reason,) = seen.reasons
        assert reason.code is ReasonCode.METADATA_AWAY
        assert reason.evidence["error"] == "nobody is there"


async def test_a_writer_can_be_asked_while_it_works(api: Api) -> None:
    async with api.open_writer(window_bytes=4096, entry_bytes=1024) as log:
        run = asyncio.ensure_future(log.append_many([b"." * 500] * 300))
        seen: set[ReasonCode] = set()

        async def asked_again() -> None:
            while not run.done():
                reason = await _why(log)
                if reason is not None:
                    seen.add(reason.code)
                await asyncio.sleep(0)

        await asyncio.wait_for(asked_again(), 40)
        await run
        await eventually(lambda: True)
        assert seen <= {
            ReasonCode.UNCONFIRMED, ReasonCode.UNPUBLISHED, ReasonCode.WINDOW_FULL,
        }  # fmt: skip
        assert await _why(log) is None

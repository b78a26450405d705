"""The other end of a log, through both faces: truncation, holds, retention, the collector, and the
end for good."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

import dlog
from dlog.clock import us_datetime
from tests.api.adapter import Api, rest_of

pytestmark = pytest.mark.crosswise(seconds=1)


async def filled(log: Any, segments: int = 4, each: int = 5) -> list[dlog.MessageId]:
    """So many segments, and an open one behind them."""
    ids: list[dlog.MessageId] = []
    for _ in range(segments):
        ids += await log.append_many([b"%d" % (len(ids) + i) for i in range(each)])
        await log.rotate()
    return ids


async def seqs(api: Api, **options: Any) -> list[int]:
    return [message.seq for message in await api.read_all(**options)]


async def test_a_log_begins_where_it_was_truncated(api: Api) -> None:
    """LS-09: exclusive. By seq, by id, by position, by time, and wholly."""
    async with api.connect() as client, api.open_writer() as log:
        ids = await filled(log)
        told = await client.admin.truncate("log", 7)
        assert (told.done, told.head_seq, told.ledgers) == (True, 7, 1)
        assert await seqs(api) == list(range(7, 20))
        told = await client.admin.truncate("log", ids[8])
        assert (told.head_seq, told.asked) == (8, f"the message {ids[8]}")
        assert await seqs(api) == list(range(8, 20))
        async with api.open_reader(start=11) as reader:
            await reader.read(1)
            told = await client.admin.truncate("log", reader.position)
        assert told.head_seq == 12
        last = (await api.read_all())[-1]
        told = await client.admin.truncate("log", us_datetime(last.timestamp_us))
        assert told.head_seq <= last.seq
        assert (await api.read_all())[-1] == last
        told = await client.admin.truncate("log", "latest")
        assert told.head_seq == 20
        assert await seqs(api) == []
        next_id = await log.append(b"and on")
        assert next_id > ids[-1]
        assert [(m.seq, m.id) for m in await api.read_all()] == [(20, next_id)]


async def test_readers_are_told_or_jump(api: Api) -> None:
    """I18."""
    async with api.connect() as client, api.open_writer() as log:
        ids = await filled(log)
        old = await api.open_reader(start=2, follow=True)
        (second,) = await old.read(1)
        await client.admin.truncate("log", 12)
        for start in (3, ids[4], us_datetime(second.timestamp_us)):
            with pytest.raises(dlog.Truncated) as caught:
                await api.open_reader(start=start)
            assert (caught.value.new_head, caught.value.log) == (12, "log")
            assert await seqs(api, start=start, on_truncated="jump") == list(range(12, 20))
        with pytest.raises(dlog.Truncated):
            await api.open_reader(start=old.position)
        assert await seqs(api, start=12) == await seqs(api, start=ids[12]) == list(range(12, 20))
        behind = dlog.Position(old.position.log_uid, 12, ids[11])
        assert await seqs(api, start=behind) == list(range(12, 20)), "what follows it is there"
        await old.close()


async def test_a_following_reader_that_the_point_passes(api: Api) -> None:
    """What it read ahead it still hands out; then it raises, and goes on where it is told to."""
    async with api.connect() as client, api.open_writer() as log:
        await log.append_many([b"x"] * 3)
        raising = await api.open_reader(follow=True, read_ahead_bytes=1)
        jumping = await api.open_reader(follow=True, read_ahead_bytes=1, on_truncated="jump")
        await raising.read(1)
        await jumping.read(1)
        for _ in range(4):
            await log.rotate()
            await log.append_many([b"y"] * 4)
        await client.admin.truncate("log", 17)
        await log.append(b"the end")
        met = await _until_truncated(raising)
        assert met == list(range(1, len(met) + 1))
        with pytest.raises(dlog.Truncated) as caught:
            await raising.read()
        assert caught.value.new_head == 17
        await raising.seek(caught.value.new_head)
        assert [m.seq for m in await raising.read(1)] == [17]
        found = await _read_to(jumping, 19)
        at = found.index(17)
        assert found == [*range(1, at + 1), 17, 18, 19]
        await raising.close()
        await jumping.close()


async def _until_truncated(reader: Any) -> list[int]:
    met: list[int] = []
    while True:
        try:
            met += [message.seq for message in await reader.read()]
        except dlog.Truncated:
            return met


async def _read_to(reader: Any, last_seq: int) -> list[int]:
    met: list[int] = []
    while last_seq not in met:
        met += [message.seq for message in await reader.read()]
    return met


async def test_holds(api: Api) -> None:
    """I19."""
    async with api.connect() as client, api.open_writer() as log:
        ids = await filled(log)
        admin = client.admin
        assert await admin.holds("log") == ()
        made = await admin.hold("log", "billing", 6, note="reads at night", who="ann")
        assert (made.name, made.who, made.seq, made.note) == ("billing", "ann", 6, "reads at night")
        await admin.hold("log", "audit", ids[11])
        assert [hold.name for hold in await admin.holds("log")] == ["audit", "billing"]
        assert [hold.seq for hold in (await admin.describe("log")).holds] == [11, 6]
        told = await admin.truncate("log", "latest")
        assert (told.head_seq, told.held_by) == (6, ("audit", "billing"))
        assert "the hold 'billing' of ann keeps what is from seq 6 on" in told.reasons
        async with api.open_reader(start=9) as reader:
            await reader.read(1)
            moved = await admin.hold("log", "billing", reader.position)
        assert (moved.seq, moved.note) == (10, "reads at night")
        with pytest.raises(dlog.ConfigError, match="moves forward only"):
            await admin.hold("log", "billing", 7)
        assert (await admin.truncate("log", ids[19])).head_seq == 10
        with pytest.raises(dlog.Truncated) as caught:
            await admin.hold("log", "late", 9)
        assert caught.value.new_head == 10
        await admin.drop_hold("log", "billing")
        with pytest.raises(dlog.NotFound):
            await admin.drop_hold("log", "billing")
        assert (await admin.truncate("log", "latest")).head_seq == 11
        over = await admin.force_truncate("log", 15)
        assert (over.head_seq, over.held_by, over.forced) == (15, ("audit",), True)
        assert await seqs(api) == [15, 16, 17, 18, 19]


async def test_a_plan_changes_nothing(api: Api) -> None:
    async with api.connect() as client, api.open_writer() as log:
        await filled(log)
        told = await client.admin.truncate("log", 12, dry_run=True)
        assert (told.done, told.head_seq, told.ledgers) == (False, 12, 2)
        assert (await client.admin.force_truncate("log", 12, dry_run=True)).forced
        about = await client.admin.describe("log")
        assert (about.head_seq, about.truncate_before, about.deleting) == (0, None, ())


async def test_what_is_deleted_and_when(api: Api) -> None:
    """I26: metadata first, then grace, then deletion; also under a writer."""
    async with api.connect() as client:
        await client.admin.create("log", deletion_grace_s=0)
        await client.admin.create("patient")
        async with api.open_writer() as log, api.open_writer("patient") as patient:
            await filled(log)
            await filled(patient)
            for name in ("log", "patient"):
                await client.admin.truncate(name, 10)
                assert len((await client.admin.describe(name)).deleting) == 2
            told = await client.admin.collect("log")
            assert (told.deleted, told.waiting, told.problems) == (2, 0, ())
            assert (await client.admin.describe("log")).deleting == ()
            told = await client.admin.collect("patient")
            assert (told.deleted, told.waiting) == (0, 2)
            await log.append(b"on and on")
            assert await seqs(api) == list(range(10, 21))
        again = await client.admin.collect("log")
        assert (again.deleted, again.truncated) == (0, 0)


async def test_retention_by_the_writer(api: Api) -> None:
    async with api.connect() as client:
        await client.admin.create("log", retention_bytes=0)
        async with api.open_writer() as log:
            await filled(log, 6)
            async with api.open_reader(follow=True) as reader:
                assert await reader.tail() is None or reader.position.next_seq > 0
        told = await client.admin.collect("log")
        assert told.head_seq == 30
        assert await seqs(api) == []


async def test_a_terminated_log_is_read_and_never_written(api: Api) -> None:
    async with api.connect() as client:
        log = await api.open_writer()
        await log.append_many([b"x"] * 3)
        reader = await api.open_reader(follow=True)
        assert len(await reader.read(3)) == 3
        waiting = asyncio.ensure_future(rest_of(reader))
        await log.terminate()
        assert await waiting == []
        await reader.close()
        assert log.closed
        about = await client.admin.describe("log")
        assert (about.state, about.writer, about.messages) == ("terminated", None, 3)
        assert await seqs(api, follow=True) == [0, 1, 2]
        for opening in (api.open_writer, api.open_standby):
            with pytest.raises(dlog.Unsupported, match="terminated"):
                await opening()
        await client.admin.terminate("log")
        await client.admin.truncate("log", 2)
        assert await seqs(api) == [2]
        await client.admin.remove("log")
        async with api.open_writer() as again:
            await again.append(b"y")
        assert await seqs(api) == [0]


@pytest.mark.parametrize("how", ["written", "left", "closed", "empty"])
async def test_terminated_by_somebody_else(api: Api, how: str) -> None:
    """A writer is fenced; what it left is recovered; where all is sealed nothing is made."""
    async with api.connect() as client:
        await client.admin.create("log")
        log = None
        if how != "empty":
            log = await api.open_writer()
            await log.append(b"x")
            if how == "closed":
                await log.close()
        await client.admin.terminate("log")
        about = await client.admin.describe("log")
        assert about.state == "terminated"
        assert len(about.segments) == {"empty": 0, "closed": 1}.get(how, 2)
        if how in ("written", "left") and log is not None:
            with pytest.raises(dlog.Fenced, match="terminated the log"):
                await log.append(b"late")
            await log.close()
        assert await seqs(api) == ([] if how == "empty" else [0])


async def test_what_makes_no_sense(api: Api) -> None:
    async with api.open_writer():
        pass
    async with api.connect() as client:
        admin = client.admin
        for before in ("earliest", -1, True, datetime.min, None, b"7"):
            with pytest.raises(dlog.ConfigError):
                await admin.truncate("log", before)
        for name in ("", "a//b", "x" * 300, "\n"):
            with pytest.raises(dlog.ConfigError):
                await admin.hold("log", name, 0)
        for note in ("", "a\nb", "x" * 501, 7):
            with pytest.raises(dlog.ConfigError):
                await admin.hold("log", "h", 0, note=note)
        other = dlog.Position("another log", 0, None)
        with pytest.raises(dlog.ConfigError, match="another log"):
            await admin.truncate("log", other)
        for verb, given in (
            ("truncate", (0,)),
            ("force_truncate", (0,)),
            ("hold", ("h", 0)),
            ("holds", ()),
            ("drop_hold", ("h",)),
            ("collect", ()),
            ("terminate", ()),
        ):
            with pytest.raises(dlog.NotFound):
                await getattr(admin, verb)("nowhere", *given)


async def test_a_hold_behind_the_truncation_is_told_where_the_log_begins(api: Api) -> None:
    """As a consumer has its place: by the position that it read up to."""
    async with api.connect() as client:
        async with client.open_writer("log") as log:
            for number in range(3):
                await log.append_many([b"%d" % number] * 5, atomic=True)
                await log.rotate()
        async with client.open_reader("log") as reader:
            await reader.read(3)
            position = reader.position
        assert position.next_seq == 3
        head = (await client.admin.truncate("log", before=10)).head_seq
        with pytest.raises(dlog.Truncated) as caught:
            await client.admin.hold("log", "late", position)
        assert (caught.value.log, caught.value.new_head) == ("log", head)
        assert await client.admin.holds("log") == ()

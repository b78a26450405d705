"""Messages with the number of their producer: sent again, they are known."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dlog
from dlog import limits
from dlog.writer.batch import Batch
from dlog.writer.producers import Dedup
from tests.api.adapter import Api
from tests.api.waiting import eventually, held_at

pytestmark = pytest.mark.crosswise(seconds=1)

P, Q = 7, 1 << 40


async def _refused(log: Any, producer: tuple[int, int]) -> dlog.AlreadyExists:
    with pytest.raises(dlog.AlreadyExists) as caught:
        await log.append(b"again", producer=producer)
    assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
    assert caught.value.handle is dlog.Handle.USABLE
    assert caught.value.producer == producer[0]
    return caught.value


async def test_a_number_is_taken_once(api: Api) -> None:
    async with api.open_writer() as log:
        first = await log.append(b"0", producer=(P, 0))
        assert (await _refused(log, (P, 0))).id == first
        second = await log.append(b"1", producer=(P, 1))
        assert (await _refused(log, (P, 1))).id == second
        assert (await _refused(log, (P, 0))).id is None
        jumped = await log.append(b"5", producer=(P, 5))  # numbers rise; they need not be in a row
        assert (await _refused(log, (P, 3))).id is None
        assert (await _refused(log, (P, 5))).id == jumped
        other = await log.append(b"other", producer=(Q, 0))
        await log.append(b"nobody's")
        assert (await _refused(log, (Q, 0))).id == other
    assert await api.values() == [b"0", b"1", b"5", b"other", b"nobody's"]


@pytest.mark.parametrize("end", ["close", "taken over", "rotated", "handed over"])
async def test_the_next_writer_knows_the_numbers(api: Api, end: str) -> None:
    """DL flaw 9: a message that is sent again to the next writer is there once."""
    old = await api.open_writer()
    ids = {}
    for number in range(3):
        for producer in (P, Q):
            ids[producer, number] = await old.append(b"x", producer=(producer, number))
        await old.append(b"y")
    if end == "rotated":
        await old.rotate()
    if end == "handed over":
        await old.hand_over()
    elif end != "taken over":
        await old.close()
    async with api.open_writer() as log:
        for producer in (P, Q):
            assert (await _refused(log, (producer, 2))).id == ids[producer, 2]
            assert (await _refused(log, (producer, 1))).id is None
        assert (await log.append(b"3", producer=(P, 3))) > ids[Q, 2]
    async with api.open_writer() as log:  # a second one, of which only the table is left
        await _refused(log, (P, 3))
        assert (await _refused(log, (Q, 2))).id == ids[Q, 2]
    await old.close()
    assert len(await api.values()) == 10


async def test_a_number_that_is_on_its_way_gives_the_same_ticket(
    file_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, find = threading.Event(), Dedup.find

    def find_and_tell(self: Dedup, producer_id: int, number: int) -> tuple[Batch, int] | None:
        found = find(self, producer_id, number)
        looked_up.set()
        return found

    log = await file_api.open_writer()
    await log.append(b"first", producer=(P, 0))
    with held_at("ledger.synced") as disk:
        tickets = [await log.submit(b"x", producer=(P, number)) for number in (1, 2, 3)]
        await eventually(disk.reached.is_set)
        again = [await log.submit(b"y", producer=(P, number)) for number in (3, 1, 2)]
        assert len({ticket.token for ticket in (*tickets, *again)}) == 3
        monkeypatch.setattr(Dedup, "find", find_and_tell)
        appending = asyncio.ensure_future(_append(log, b"z", producer=(P, 2)))
        await eventually(looked_up.is_set)
        disk.open()
    ids = [await ticket for ticket in tickets]
    assert [await ticket for ticket in again] == [ids[2], ids[0], ids[1]]
    assert await appending == ids[1]
    await log.close()
    assert await file_api.values() == [b"first", b"x", b"x", b"x"]


async def _append(log: Any, value: bytes, **options: Any) -> dlog.MessageId:
    return await log.append(value, **options)


async def test_a_run_that_was_cut_is_sent_again_whole(api: Api) -> None:
    values = [b"%d" % number for number in range(1000)]
    async with api.open_writer(entry_bytes=500) as log:
        ids = await log.append_many(values[:600], producer=(P, 100))
        assert ids.skipped == 0
    async with api.open_writer(entry_bytes=500) as log:
        more = await log.append_many(values, producer=(P, 100))
        assert (more.skipped, len(more)) == (600, 400)
        assert list(more) == [message.id for message in await api.read_all()][600:]
        with pytest.raises(dlog.AlreadyExists) as caught:
            await log.append_many(values, producer=(P, 100))
        assert caught.value.id == more.last
        assert len(await log.append_many([], producer=(P, 0))) == 0
    assert await api.values() == values


async def test_an_atomic_run_is_there_or_new_as_a_whole(api: Api) -> None:
    async with api.open_writer() as log:
        ids = await log.append_many([b"a", b"b", b"c"], producer=(P, 0), atomic=True)
        with pytest.raises(dlog.AlreadyExists) as caught:
            await log.append_many([b"a", b"b", b"c"], producer=(P, 0), atomic=True)
        assert caught.value.id == ids.last
        with pytest.raises(dlog.Conflict, match="some of which"):
            await log.append_many([b"c", b"d"], producer=(P, 2), atomic=True)
        await log.append_many([b"d", b"e"], producer=(P, 3), atomic=True)
    assert await api.values() == [b"a", b"b", b"c", b"d", b"e"]


async def test_entries_hold_one_producer_and_numbers_in_a_row(file_api: Api) -> None:
    async with file_api.open_writer() as log:
        await log.append(b"first", producer=(P, 0))
        with held_at("ledger.synced") as disk:
            tickets = [await log.submit(b"held")]
            await eventually(disk.reached.is_set)
            numbers = (1, 2, 3, 9, 10)
            tickets += [await log.submit(b"x", producer=(P, number)) for number in numbers]
            tickets.append(await log.submit(b"x", producer=(Q, 11)))
            tickets += [await log.submit(b"plain") for _ in range(2)]
            tickets.append(await log.submit(b"x", producer=(P, 11)))
            disk.open()
        for ticket in tickets:
            await ticket
    async with dlog.aio.open_reader("log", url=file_api.url) as reader:
        seen = [(batch.entry.producer, len(batch)) async for batch in reader.batches()]
    assert seen == [
        ((P, 0), 1),
        (None, 1),
        ((P, 1), 3),
        ((P, 9), 2),
        ((Q, 11), 1),
        (None, 2),
        ((P, 11), 1),
    ]


async def test_a_log_without_producers_is_not_marked(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"x")
        assert not _meta(log).producers
        await log.append(b"x", producer=(P, 0))
        assert _meta(log).producers


def _meta(log: Any) -> Any:
    inner = getattr(log, "inner", log)
    return getattr(inner, "_inner", inner)._engine.core.seen.meta


async def test_what_is_forgotten_is_not_guessed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producers that were silent longest go. Whether a number of one of them is there, nobody
    can tell any more, and that is the answer, also of the next writer."""
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 3)
    log = await api.open_writer()
    for producer in range(3):
        await log.append(b"x", producer=(producer, 5))
    await log.append(b"x", producer=(0, 6))  # so 1 was silent longest
    await log.append(b"x", producer=(3, 5))
    for _ in range(2):
        for known in (0, 2, 3):
            await _refused(log, (known, 5))
        with pytest.raises(dlog.NotFound, match="producer 1 is not known") as caught:
            await log.append(b"x", producer=(1, 5))
        assert caught.value.producer == 1
        for number in (0, 6):
            with pytest.raises(dlog.NotFound):
                await log.append(b"x", producer=(1, number))
        await log.close()
        log = await api.open_writer()
    await log.append(b"x", producer=(99, 0))  # one that is new is not among them
    await _refused(log, (99, 0))
    await log.close()


async def test_number_0_of_a_forgotten_producer_is_not_taken_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many were forgotten, over takeovers and a full truncation, and also as the first
    message of a run. New producers may begin all the time."""
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 4)
    for round in range(3):
        async with api.open_writer() as log:
            for producer in range(round * 10, round * 10 + 10):
                await log.append(b"%d" % producer, producer=(producer, 0))
            for producer in range(round * 10 + 6):
                with pytest.raises(dlog.NotFound, match="was never used"):
                    await log.append(b"again", producer=(producer, 0))
                for atomic in (False, True):
                    with pytest.raises(dlog.NotFound):
                        await log.append_many([b"again"] * 2, producer=(producer, 0), atomic=atomic)
            await _refused(log, (round * 10 + 9, 0))
    assert await api.values() == [b"%d" % producer for producer in range(30)]
    async with api.connect() as client:
        await client.admin.truncate("log", "latest")
    async with api.open_writer() as log:
        for producer in range(26):
            with pytest.raises(dlog.NotFound):
                await log.append(b"again", producer=(producer, 0))
        await log.append(b"new", producer=(30, 0))
    assert await api.values() == [b"new"]


async def test_what_is_no_producer_is_refused(api: Api) -> None:
    async with api.open_writer() as log:
        for wrong in (7, (1,), (1, -1), (-1, 0), ("a", 0), (1, True), (1, 1 << 62), [1, 2]):
            with pytest.raises(dlog.ConfigError, match="a producer is"):
                await log.append(b"x", producer=wrong)
            with pytest.raises(dlog.ConfigError, match="a producer is"):
                await log.append_many([b"x"], producer=wrong)
        await log.append(b"x", producer=(1, 1 << 61))
    with pytest.raises(dlog.WriterClosed):
        await log.append(b"x", producer=(1, 1 << 61))


async def test_a_removed_log_forgets_its_producers(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"x", producer=(P, 5))
    async with api.connect() as client:
        await client.admin.remove("log")
    async with api.open_writer() as log:
        await log.append(b"new", producer=(P, 5))
    assert await api.values() == [b"new"]


async def test_tables_between_are_written_and_found(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So often that a takeover reads little, and never a message in the eyes of a reader."""
    monkeypatch.setattr(limits, "PRODUCERS_EVERY_ENTRIES", 3)
    old = await api.open_writer()
    ids = [await old.append(b"%d" % number, producer=(P, number)) for number in range(20)]
    assert ids[-1].entry_id > 2 + 20 + 4
    async with api.open_writer() as log:
        assert (await _refused(log, (P, 19))).id == ids[-1]
        await log.append(b"20", producer=(P, 20))
    await old.close()
    assert await api.values() == [b"%d" % number for number in range(21)]

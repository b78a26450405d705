"""Seqs, ids and epochs only rise: across rotation, closing, reopening, hand-over and takeover."""

from __future__ import annotations

import pytest

import dlog
from tests.api.adapter import Api

pytestmark = pytest.mark.crosswise(seconds=1)

SMALL_SEGMENTS = dlog.LogOptions(segment_bytes=4096)


def assert_dense(messages: list[dlog.Message]) -> None:
    assert [m.seq for m in messages] == list(range(len(messages)))
    ids = [m.id for m in messages]
    assert ids == sorted(set(ids))
    stamps = [m.timestamp_us for m in messages]
    assert stamps == sorted(stamps)
    epochs = [m.epoch for m in messages]
    assert epochs == sorted(epochs)


async def test_rotation_by_size_loses_and_repeats_nothing(api: Api) -> None:
    wanted = [b"%d" % number * 30 for number in range(1000)]
    async with api.open_writer(create=SMALL_SEGMENTS, entry_bytes=512) as log:
        tickets = [await log.submit(value) for value in wanted]
        ids = [await ticket for ticket in tickets]
    messages = await api.read_all()
    assert_dense(messages)
    assert [m.value for m in messages] == wanted
    assert [m.id for m in messages] == ids
    async with api.connect() as client:
        segments = await client.admin.segments("log")
    assert len(segments) > 5
    assert {segment.state for segment in segments} == {"sealed"}


async def test_rotate_on_demand_begins_a_new_ledger(api: Api) -> None:
    async with api.open_writer() as log:
        ids = []
        for number in range(5):
            ids.append(await log.append(b"%d" % number))
            await log.rotate()
        await log.rotate(timeout=20)
        ids.append(await log.append(b"end"))
    assert len({each.ledger_id for each in ids}) == 6
    assert ids == sorted(ids)
    messages = await api.read_all()
    assert_dense(messages)
    assert [m.id for m in messages] == ids


async def test_appends_go_on_while_it_rotates(api: Api) -> None:
    async with api.open_writer(entry_bytes=256) as log:
        tickets = []
        for number in range(300):
            tickets.append(await log.submit(b"%d" % number * 20))
            if number % 60 == 30:
                await log.rotate()
        ids = [await ticket for ticket in tickets]
    assert_dense(await api.read_all())
    assert ids == sorted(ids)


async def test_reopening_continues_where_it_ended(api: Api) -> None:
    epochs = []
    for number in range(4):
        async with api.open_writer() as log:
            assert log.log == "log"
            epochs.append(log.epoch)
            await log.append_many([b"%d" % number] * 3)
    assert epochs == sorted(set(epochs))
    messages = await api.read_all()
    assert_dense(messages)
    assert [m.value for m in messages] == [b"%d" % (number // 3) for number in range(12)]
    assert [m.epoch for m in messages] == [epochs[number // 3] for number in range(12)]


async def test_opening_and_closing_without_a_message_leaves_none(api: Api) -> None:
    for _ in range(3):
        async with api.open_writer():
            pass
    async with api.open_writer() as log:
        await log.append(b"x")
    (message,) = await api.read_all()
    assert message.seq == 0
    assert message.epoch == 4


async def test_closing_flushes_and_closing_again_is_nothing(api: Api) -> None:
    log = await api.open_writer(linger_ms=60_000)
    tickets = [await log.submit(b"%d" % number) for number in range(10)]
    assert not log.closed
    await log.close()
    assert log.closed
    await log.close()
    assert [ticket.result(0).batch_idx for ticket in tickets] == list(range(10))
    assert len(await api.values()) == 10


async def test_hand_over_seals_for_the_next(api: Api) -> None:
    log = await api.open_writer()
    epoch = log.epoch
    last = await log.append(b"mine")
    ticket = await log.submit(b"still mine")
    await log.hand_over("the next one")
    assert log.closed
    assert ticket.result(0) > last
    with pytest.raises(dlog.WriterClosed):
        await log.append(b"too late")
    async with api.connect() as client:
        about = await client.admin.describe("log")
        assert (about.writer, about.hand_over) == (None, "the next one")
        assert [segment.state for segment in about.segments] == ["sealed"]
    async with api.open_writer(takeover="never") as log:
        assert log.epoch == epoch + 1
        await log.append(b"theirs")
    assert await api.values() == [b"mine", b"still mine", b"theirs"]
    async with api.connect() as client:
        assert (await client.admin.describe("log")).hand_over is None


async def test_leaving_with_by_an_error_keeps_what_was_sent(api: Api) -> None:
    async def fail() -> None:
        async with api.open_writer() as log:
            await log.submit(b"sent")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await api.values() == [b"sent"]


async def test_a_log_that_must_exist(api: Api) -> None:
    with pytest.raises(dlog.NotFound):
        await api.open_writer(create=False)
    async with api.open_writer():
        pass
    async with api.open_writer(create=False) as log:
        await log.append(b"x")


async def test_logs_of_one_client_do_not_mix(api: Api) -> None:
    async with api.connect() as client:
        writers = [await client.open_writer(f"log{number}") for number in range(4)]
        for round_number in range(5):
            for number, log in enumerate(writers):
                await log.append(b"%d.%d" % (number, round_number))
        for number in range(4):
            reader = await client.open_reader(f"log{number}")
            assert [m.value for m in await reader.read()] == [
                b"%d.%d" % (number, r) for r in range(5)
            ]
            await reader.close()

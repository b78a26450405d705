"""Where a reader begins: head, tail, ids, positions, seqs and times, and what never was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import dlog
from dlog.clock import us_datetime
from tests.api.adapter import Api, rest_of

pytestmark = pytest.mark.crosswise(seconds=1)

COUNT = 30


@pytest.fixture
async def ids(api: Api) -> list[dlog.MessageId]:
    """Three closed segments and a sealed end, batches of up to five messages: values are seqs."""
    found: list[dlog.MessageId] = []
    for segment in range(3):
        async with api.open_writer() as log:
            for batch in range(2):
                first = segment * 10 + batch * 5
                values = [b"%d" % seq for seq in range(first, first + 5)]
                found += await log.append_many(values, atomic=True)
    return found


def from_seq(first: int) -> list[bytes]:
    return [b"%d" % seq for seq in range(first, COUNT)]


async def test_earliest_is_the_default(api: Api, ids: list[dlog.MessageId]) -> None:
    assert await api.values() == await api.values(start="earliest") == from_seq(0)


async def test_latest_is_behind_everything(api: Api, ids: list[dlog.MessageId]) -> None:
    assert await api.values(start="latest") == []
    async with api.open_reader(start="latest", follow=True) as reader:
        assert reader.position.next_seq == COUNT
        async with api.open_writer() as log:
            await log.append(b"new")
        (message,) = await reader.read()
        assert (message.seq, message.value) == (COUNT, b"new")


async def test_an_id_starts_at_that_message(api: Api, ids: list[dlog.MessageId]) -> None:
    """DL-06: the message with that id is the first one delivered."""
    for seq in (0, 2, 4, 5, 9, 10, 17, COUNT - 1):
        assert await api.values(start=ids[seq]) == from_seq(seq), seq


async def test_a_seq_starts_there(api: Api, ids: list[dlog.MessageId]) -> None:
    for seq in (0, 3, 9, 10, 14, 29):
        assert await api.values(start=seq) == from_seq(seq), seq
    for seq in (COUNT, COUNT + 1, 1 << 40):
        assert await api.values(start=seq) == []
        async with api.open_reader(start=seq) as reader:
            assert reader.position.next_seq == seq


async def test_a_seq_that_is_not_there_yet_is_waited_for(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    """Whoever goes on from a seq gets nothing twice, wherever the tail is seen meanwhile."""
    async with api.open_reader(start=COUNT + 1, follow=True) as reader:
        async with api.open_writer() as log:
            for value in (b"before", b"there", b"behind"):
                await log.append(value)
        found: list[dlog.Message] = []
        while len(found) < 2:
            found += await reader.read()
    assert [(each.seq, each.value) for each in found] == [
        (COUNT + 1, b"there"),
        (COUNT + 2, b"behind"),
    ]


async def test_an_id_that_never_was_is_not_found(api: Api, ids: list[dlog.MessageId]) -> None:
    last = ids[-1]
    strangers = [
        last._replace(batch_idx=5),
        last._replace(entry_id=last.entry_id + 1, batch_idx=0),
        last._replace(entry_id=last.entry_id + 99),
        ids[0]._replace(entry_id=0, batch_idx=0),  # a birth
        ids[0]._replace(entry_id=1, batch_idx=0),  # a seam
        ids[0]._replace(batch_idx=-1),
        last._replace(ledger_id=last.ledger_id + 1),
        last._replace(ledger_id=1 << 50),
        dlog.MessageId(-1, -1, -1),
    ]
    for stranger in strangers:
        with pytest.raises(dlog.NotFound):
            await api.open_reader(start=stranger)


async def test_an_id_of_another_log_is_not_found(api: Api) -> None:
    """Before, between and behind the ledgers of the log that is asked; nothing was truncated."""
    strangers = []
    for _ in range(3):
        async with api.open_writer("other") as other:
            strangers.append(await other.append(b"other"))
        async with api.open_writer() as log:
            await log.append(b"mine")
    for stranger in strangers:
        with pytest.raises(dlog.NotFound):
            await api.open_reader(start=stranger)
    assert await api.values() == [b"mine"] * 3


async def test_a_position_resumes_behind_what_was_delivered(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    for taken in (0, 1, 4, 5, 6, 10, 23, 29, 30):
        async with api.open_reader() as reader:
            got = await reader.read(taken) if taken else []
            while len(got) < taken:
                got += await reader.read(taken - len(got))
            position = reader.position
        assert position.next_seq == taken
        assert position.after == (ids[taken - 1] if taken else None)
        text = position.to_text()
        assert dlog.Position.parse(text) == position
        for again in (position, dlog.Position.parse(text)):
            assert await api.values(start=again) == from_seq(taken), taken


async def test_resuming_message_by_message_is_exactly_once(api: Api) -> None:
    async with api.open_writer(entry_bytes=64) as log:
        await log.append_many(b"%d" % seq for seq in range(25))
        got: list[bytes | None] = []
        start: dlog.Position | str = "earliest"
        while True:
            async with api.open_reader(start=start) as reader:
                messages = await reader.read(2)
                start = reader.position
            if not messages:
                break
            got += [message.value for message in messages]
        assert got == [b"%d" % seq for seq in range(25)]
        await log.append(b"later")
        assert await api.values(start=start) == [b"later"]


async def test_iteration_keeps_its_position_to_the_message(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    async with api.open_reader() as reader:
        seen = 0
        async for message in reader:
            assert reader.position.after == message.id
            assert reader.position.next_seq == message.seq + 1
            seen += 1
            if seen == 13:
                break
        assert [m.value for m in await rest_of(reader)] == from_seq(13)


async def test_a_position_of_another_log_is_refused(api: Api, ids: list[dlog.MessageId]) -> None:
    async with api.open_writer("other") as other:
        await other.append(b"x")
    async with api.open_reader("other") as reader:
        await reader.read()
        position = reader.position
    with pytest.raises(dlog.ConfigError, match="another log"):
        await api.open_reader(start=position)


async def test_a_position_that_contradicts_the_log_is_refused(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    async with api.open_reader() as reader:
        uid = reader.position.log_uid
    with pytest.raises(dlog.ConfigError, match="does not agree"):
        await api.open_reader(start=dlog.Position(uid, 8, ids[3]))
    with pytest.raises(dlog.NotFound):
        await api.open_reader(start=dlog.Position(uid, 8, ids[3]._replace(batch_idx=77)))


async def test_a_time_starts_at_the_first_message_not_older(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    messages = await api.read_all()
    for number in (0, 5, 12, 29):
        moment = us_datetime(messages[number].timestamp_us)
        wanted = next(m.seq for m in messages if m.timestamp_us >= messages[number].timestamp_us)
        assert await api.values(start=moment) == from_seq(wanted)
    a_bit_later = us_datetime(messages[4].timestamp_us + 1)
    wanted = next(m.seq for m in messages if m.timestamp_us > messages[4].timestamp_us)
    assert await api.values(start=a_bit_later) == from_seq(wanted)


async def test_a_time_before_the_head_or_behind_the_tail(
    api: Api, ids: list[dlog.MessageId]
) -> None:
    assert await api.values(start=datetime(1971, 1, 1, tzinfo=UTC)) == from_seq(0)
    assert await api.values(start=datetime.now(UTC) + timedelta(days=1)) == []


BAD_STARTS = [
    datetime(2024, 1, 1),
    -1,
    True,
    1.5,
    "first",
    "",
    None,
    b"earliest",
    (1, 2, 3),
    object(),
]


async def test_a_start_that_makes_no_sense(api: Api, ids: list[dlog.MessageId]) -> None:
    async with api.open_reader() as reader:
        for start in BAD_STARTS:
            with pytest.raises(dlog.ConfigError):
                await api.open_reader(start=start)
            with pytest.raises(dlog.ConfigError):
                await reader.seek(start)
        assert [m.value for m in await rest_of(reader)] == from_seq(0)


async def test_starts_in_an_empty_log(api: Api) -> None:
    async with api.connect() as client:
        await client.admin.create("log")
    for start in ("earliest", "latest", 0, 7, datetime.now(UTC)):
        assert await api.values(start=start) == []
    async with api.open_reader() as reader:
        assert reader.position.next_seq == 0
        assert await reader.tail() is None
        position = reader.position
    async with api.open_writer() as log:
        assert await api.values() == []
        await log.append(b"x")
    assert await api.values(start=position) == [b"x"]


async def test_a_log_that_is_not_there(api: Api) -> None:
    with pytest.raises(dlog.NotFound):
        await api.open_reader("nowhere")
    async with api.open_writer():
        pass
    with pytest.raises(dlog.NotFound, match="nowhere"):
        await api.open_reader("nowhere")

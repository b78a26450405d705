"""What a streaming query could miss of a stream of shards is told, or with failOnDataLoss=false
logged and left out: shards that came and went while it was down, shards that were truncated before
it began them, and a stream that was made again."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import dlog
from dlog.clock import us_datetime
from dlog.errors import ConfigError, DlogError, Truncated
from dlog.spark.batch import BatchReader
from dlog.spark.options import source_options
from tests.unit.spark.reading import batch_reader, rows_of
from tests.unit.spark.test_stream import ALL, read, reader_of

KEYS = [b"%d" % key for key in range(8)]
LENIENT = {"failOnDataLoss": "false"}


def write(url: str, number: int, name: str = "orders") -> None:
    """A message of each key."""
    with dlog.connect(url) as client, client.stream(name).open_writer() as writer:
        for key in KEYS:
            writer.submit(b"%d" % number, key=key)
        writer.flush()


def create(url: str, shards: int = 1) -> None:
    with dlog.connect(url) as client:
        client.create_stream("orders", shards=shards)


def split(url: str, number: int) -> list[int]:
    with dlog.connect(url) as client:
        return [shard.number for shard in client.stream("orders").split(number)]


def merge(url: str, *numbers: int) -> int:
    with dlog.connect(url) as client:
        return client.stream("orders").merge(*numbers).number


def end_sealed(url: str) -> None:
    """A writer ends what was sealed, and writes nothing."""
    with dlog.connect(url) as client, client.stream("orders").open_writer():
        pass


def empty(url: str, *numbers: int) -> None:
    """What these shards have is truncated."""
    with dlog.connect(url) as client:
        logs = {shard.number: shard.log for shard in client.stream("orders").shards()}
        for number in numbers:
            client.admin.truncate(logs[number], "latest")


def trim(url: str, *numbers: int) -> None:
    """These shards, which ended, are truncated and trimmed."""
    empty(url, *numbers)
    write(url, 99)  # whoever writes ends what was sealed
    with dlog.connect(url) as client:
        assert set(numbers) <= set(client.stream("orders").trim())


def read_all(reader: Any, start: Any, limit: Any = ALL) -> tuple[Any, list[int]]:
    """Up to where it stands still: the offset there, and what came."""
    came: list[int] = []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, reader.partitions(start, end))
        came += [int(row["value"]) for row in rows]
        start = end
    return start, came


def stopped_at(url: str, *, parent_is_read: bool) -> Any:
    """The offset of a query that read the first round, and the end of the shard that was split
    since, or not."""
    create(url)
    write(url, 0)
    reader = reader_of(url)
    offset, came = read_all(reader, reader.initialOffset())
    assert came == [0] * len(KEYS)
    split(url, 0)
    if parent_is_read:
        end_sealed(url)
        offset, came = read_all(reader, offset)
        assert came == []
    write(url, 1)
    return offset


def as_of_old(offset: Any) -> Any:
    """As offsets were before they said which shards are accounted for."""
    return {
        log: {name: value for name, value in each.items() if name not in ("stream", "next")}
        for log, each in offset.items()
    }


def resumed(url: str, offset: Any, caplog: pytest.LogCaptureFixture, told: str) -> list[int]:
    """The query goes on: told with failOnDataLoss=true, and left out else. What is read then."""
    with pytest.raises(Truncated, match=told) as caught:
        read_all(reader_of(url), offset)
    assert isinstance(caught.value, DlogError)
    with caplog.at_level(logging.WARNING, "dlog.spark"):
        caplog.clear()
        reader = reader_of(url, **LENIENT)
        end, came = read_all(reader, offset)
    assert sum(told in record.getMessage() for record in caplog.records) == 1, caplog.text
    assert read_all(reader_of(url), end) == (end, []), "and that was it"
    return came


@pytest.mark.parametrize("is_old", [False, True], ids=["offset", "old offset"])
@pytest.mark.parametrize("parent_is_read", [False, True], ids=["parent unread", "parent read"])
def test_a_shard_that_came_and_was_trimmed_is_told(
    url: str, is_old: bool, parent_is_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    offset = stopped_at(url, parent_is_read=parent_is_read)
    assert merge(url, 1, 2) == 3
    trim(url, 0, 1, 2)  # the parent has nothing behind what was read, and goes with its children
    given = as_of_old(offset) if is_old else offset
    if not parent_is_read:
        with pytest.raises(Truncated, match=r"shards of stream 'orders' came .*: 1, 2"):
            read_all(reader_of(url), given)
        return
    came = resumed(url, given, caplog, "came and were trimmed before this query read them: 1, 2")
    assert came == [99] * len(KEYS)


def test_all_that_came_may_be_gone_with_what_was_read(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream has ended, and its last shards went, too, while others stay."""
    create(url, shards=2)
    write(url, 0)
    reader = reader_of(url)
    start = reader.initialOffset()
    split(url, 1)
    end_sealed(url)
    offset, _ = read_all(reader, start)
    assert {log for log, each in offset.items() if each.get("over")} == {"orders/1"}
    assert set(offset) == {"orders/0", "orders/1"}
    write(url, 1)
    with dlog.connect(url) as client:
        stream = client.stream("orders")
        stream.terminate()
        empty(url, 1, 2, 3)
        assert set(stream.trim()) == {1, 2, 3}
    # Shard 3 never had a message.
    came = resumed(url, offset, caplog, "trimmed before this query read them: 2")
    assert set(came) <= {1}


def test_a_shard_that_waits_for_its_parent_and_goes_is_told(url: str) -> None:
    """It is listed when the query looks, and the query has not begun it."""
    create(url, shards=2)
    for number in range(4):
        write(url, number)
    reader = reader_of(url, maxOffsetsPerTrigger="3")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    split(url, 0)
    split(url, 1)
    write(url, 4)
    offset = reader.latestOffset(start, limit)
    assert {each["next"] for each in offset.values()} == {2}, "2 to 5 are not accounted for"
    merge(url, 2, 3)
    empty(url, 0, 1, 2, 3)
    trim(url, 0, 2, 3)
    with pytest.raises(Truncated):
        reader_of(url).latestOffset(offset, ALL)


def test_a_running_query_loses_nothing_to_trims_behind_it(url: str) -> None:
    create(url)
    reader = reader_of(url)
    offset = reader.initialOffset()
    came: list[int] = []
    for round in range(4):
        write(url, round)
        open_ones = split(url, round * 3)
        end_sealed(url)
        offset, more = read_all(reader, offset)
        came += more
        write(url, 10 + round)
        merge(url, *open_ones)
        end_sealed(url)
        offset, more = read_all(reader, offset)
        came += more
        empty(url, round * 3, *open_ones)
        with dlog.connect(url) as client:
            assert client.stream("orders").trim() == (round * 3, *open_ones)
        again = read_all(reader_of(url), offset)
        assert again[1] == [], "nothing was missed"
        offset = again[0]
    assert sorted(came) == sorted([*range(4), *range(10, 14)] * len(KEYS))
    assert len(offset) == 1, "it names none that are over but one, as long as nothing follows"


def test_where_it_stands_is_kept_while_all_shards_wait(url: str) -> None:
    """What was read is trimmed, and the shards that follow have nothing yet: they are noticed when
    they go, too."""
    create(url)
    write(url, 0)
    reader = reader_of(url)
    start = reader.initialOffset()
    split(url, 0)
    end_sealed(url)
    offset, _ = read_all(reader, start)
    empty(url, 0)
    with dlog.connect(url) as client:
        client.stream("orders").trim()
    offset, _ = read_all(reader_of(url), offset)
    assert offset, "it says still which shards are accounted for"
    write(url, 1)
    merge(url, 1, 2)
    trim(url, 1, 2)
    with pytest.raises(Truncated, match="trimmed before this query read them: 1, 2"):
        reader_of(url).latestOffset(offset, ALL)


def test_a_shard_that_was_truncated_before_it_was_begun_is_told(url: str) -> None:
    offset = stopped_at(url, parent_is_read=True)
    empty(url, 1)
    write(url, 2)
    reader = reader_of(url)
    end = reader.latestOffset(offset, ALL)
    with pytest.raises(Truncated):
        read(reader, offset, end)
    lenient = reader_of(url, **LENIENT)
    _, came = read_all(lenient, offset)
    assert came.count(2) == len(KEYS)
    assert 0 < came.count(1) < len(KEYS)


def test_a_shard_that_was_trimmed_between_plan_and_batch_is_told_or_left_out(url: str) -> None:
    """A batch that is run again after a crash; the query is not stuck for good."""
    create(url, shards=2)
    write(url, 0)
    start = reader_of(url).initialOffset()
    end = reader_of(url).latestOffset(start, ALL)
    split(url, 0)
    trim(url, 0)
    with pytest.raises(Truncated, match="shard 'orders/0' was trimmed before"):
        reader_of(url).partitions(start, end)
    lenient = reader_of(url, **LENIENT)
    assert {log for log, _ in read_shards(lenient, start, end)} == {1}
    end, came = read_all(lenient, end)
    assert set(came) == {99}


def read_shards(reader: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    rows = rows_of(reader, reader.partitions(start, end))
    return [(row["partition"], row["offset"]) for row in rows]


@pytest.mark.parametrize("is_over", [False, True], ids=["open", "over"])
@pytest.mark.parametrize("again", ["stream", "log"])
def test_a_stream_that_was_made_again_is_told(
    url: str, is_over: bool, again: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where every shard that the query read had ended, and was dropped with it."""
    create(url)
    write(url, 0)
    if is_over:
        with dlog.connect(url) as client:
            client.stream("orders").terminate()
    reader = reader_of(url)
    offset, _ = read_all(reader, reader.initialOffset())
    with dlog.connect(url) as client:
        client.stream("orders").remove()
    if again == "log":
        with dlog.open_writer("orders", url=url) as log:
            log.append(b"7")
    else:
        create(url, shards=2)
        write(url, 7)
    told = "'orders' is not the one" if again == "stream" else "is not there any more"
    came = resumed(url, offset, caplog, told)
    assert set(came) == {7}


def test_a_log_that_became_a_stream_goes_on(url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append(b"0", key=b"k")
    reader = reader_of(url)
    offset, came = read_all(reader, reader.initialOffset())
    assert came == [0]
    split(url, 0)
    write(url, 1)
    offset, came = read_all(reader_of(url), offset)
    assert came == [1] * len(KEYS)
    assert {each["next"] for each in offset.values()} == {3}


def test_what_was_trimmed_since_a_time_is_told_as_the_reader_of_the_stream_tells_it(
    url: str,
) -> None:
    create(url)
    write(url, 0)
    split(url, 0)
    trim(url, 0)
    start = {"startingOffsets": None, "startingTimestamp": "1000"}
    with dlog.connect(url) as client, pytest.raises(Truncated, match="trimmed"):
        client.stream("orders").open_reader(start=us_datetime(1_000_000))
    with pytest.raises(Truncated, match="trimmed"):
        reader_of(url, **start).initialOffset()
    with pytest.raises(Truncated, match="trimmed"):
        batch_reader(url, subscribe="orders", startingTimestamp="1000").partitions()
    lenient = reader_of(url, **start, **LENIENT)
    assert read_all(lenient, lenient.initialOffset())[1] == [99] * len(KEYS)
    lenient = batch_reader(url, subscribe="orders", startingTimestamp="1000", **LENIENT)
    found = rows_of(lenient, lenient.partitions())
    assert [row["value"] for row in found] == [b"99"] * len(KEYS)


def test_a_group_holds_shards_that_wait(url: str) -> None:
    """From the first look at them, so that retention does not take what the query will read."""
    create(url)
    write(url, 0)
    reader = reader_of(url, group="g")
    start = reader.initialOffset()
    split(url, 0)
    write(url, 1)
    reader.latestOffset(start, ALL)
    with dlog.connect(url) as client:
        for log in ("orders/1", "orders/2"):
            assert [hold.seq for hold in client.admin.holds(log)] == [0]


def test_a_group_holds_shards_that_come_while_the_query_is_down(url: str) -> None:
    create(url)
    write(url, 0)
    offset, _ = read_all(reader_of(url, group="g"), reader_of(url, group="g").initialOffset())
    split(url, 0)
    write(url, 1)
    empty(url, 1, 2)
    came = read_all(reader_of(url, group="g"), offset)[1]
    assert came == [1] * len(KEYS)
    with dlog.connect(url) as client:
        assert [hold.name for hold in client.stream("orders").holds()] == ["g"]
        client.stream("orders").drop_hold("g")
    empty(url, 1, 2)


def test_a_group_holds_what_a_log_is_split_into_while_the_query_is_down(url: str) -> None:
    with dlog.open_writer("orders", url=url) as writer:
        writer.append(b"0", key=b"k")
    reader = reader_of(url, group="g")
    offset, came = read_all(reader, reader.initialOffset())
    assert came == [0]
    split(url, 0)
    write(url, 1)
    empty(url, 0, 1, 2)
    came = read_all(reader_of(url, group="g"), offset)[1]
    assert came == [1] * len(KEYS)


def test_a_group_by_a_pattern_holds_nothing_but_logs(url: str) -> None:
    """What a log is split into has names of its own, which the pattern does not choose."""
    with dlog.open_writer("orders", url=url) as writer:
        writer.append(b"0", key=b"k")
    reader = reader_of(url, subscribe=None, subscribePattern="[a-z]+", group="g")
    read_all(reader, reader.initialOffset())
    with dlog.connect(url) as client:
        assert [hold.name for hold in client.admin.holds("orders")] == ["g"]
        assert client.stream("orders").holds() == ()


@pytest.mark.parametrize("pace", [{}, {"maxOffsetsPerTrigger": "3"}, {"minOffsetsPerTrigger": "3"}])
@pytest.mark.parametrize("looks_between", [True, False])
def test_a_shard_that_was_read_to_its_end_may_be_trimmed_whatever_the_pace(
    url: str, pace: dict[str, str], looks_between: bool
) -> None:
    """Also where the query did not look between the shard's end and the trim: the stream knows."""
    create(url)
    write(url, 0)
    reader = reader_of(url, **pace)
    limit = reader.getDefaultReadLimit()
    offset, came = read_all(reader, reader.initialOffset(), limit)
    assert came == [0] * len(KEYS)
    split(url, 0)
    end_sealed(url)
    if looks_between:
        offset = reader.latestOffset(offset, limit)
    empty(url, 0)
    with dlog.connect(url) as client:
        assert client.stream("orders").trim() == (0,)
    write(url, 1)
    came += read_all(reader, offset, limit)[1]
    assert sorted(came) == [0] * len(KEYS) + [1] * len(KEYS)


def test_a_shard_of_which_some_was_not_read_is_told_though_the_stream_knows_its_end(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(url)
    write(url, 0)
    reader = reader_of(url)
    offset, _ = read_all(reader, reader.initialOffset())
    write(url, 1)
    split(url, 0)
    end_sealed(url)
    trim(url, 0)
    resumed(url, offset, caplog, "log 'orders/0', which this query read, is not there any more")


def test_shards_that_were_trimmed_without_a_message_were_not_missed(url: str) -> None:
    create(url)
    write(url, 0)
    reader = reader_of(url)
    offset, _ = read_all(reader, reader.initialOffset())
    children = split(url, 0)
    end_sealed(url)
    merge(url, *children)
    end_sealed(url)
    empty(url, 0, *children)
    with dlog.connect(url) as client:
        assert client.stream("orders").trim() == (0, *children)
    write(url, 1)
    assert read_all(reader_of(url), offset)[1] == [1] * len(KEYS)


def test_a_shard_and_its_stream_are_not_asked_for_together(url: str) -> None:
    create(url)
    write(url, 0)
    both = {"url": url, "subscribe": "orders,orders/0"}
    with pytest.raises(ConfigError, match=r"^orders/0: of the stream 'orders', .* as a whole"):
        BatchReader(source_options(both, "batch"), ("value",)).partitions()
    reader = reader_of(url, subscribe="orders,orders/0")
    with pytest.raises(ConfigError, match="as a whole"):
        reader.initialOffset()
    offset, came = read_all(reader_of(url, subscribe="orders/0"), {})
    assert (list(offset), came) == (["orders/0"], [0] * len(KEYS))

"""The streaming source without Spark, asked as Spark asks: offsets, bounds, holds, and what a query
hears of a log that was truncated, removed or made again under it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

import dlog
from dlog.errors import ConfigError, DlogError, NotFound, Truncated, Unavailable
from dlog.spark.access import Access
from dlog.spark.options import source_options
from dlog.spark.stream import StreamReader
from tests.unit.spark.reading import fill, rows_of

ALL = ReadAllAvailable()


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def wall_us(self) -> int:
        return int(self._now_s * 1e6)

    def monotonic_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


EARLIEST = {"startingOffsets": "earliest"}
CHANGES = (  # of the log that a query reads: the words that tell of it
    "removed",
    "made again with more",
    "made again with less",
)


def reader_of(url: str, clock: HandClock | None = None, **options: Any) -> StreamReader:
    given = {"url": url, "subscribe": "orders", **EARLIEST, **options}
    given = {name: str(value) for name, value in given.items() if value is not None}
    made = source_options(given, "stream")
    columns = ("topic", "partition", "offset", "key", "value")
    return StreamReader(made, columns, *([] if clock is None else [clock]))


def by_pattern(url: str, **options: Any) -> StreamReader:
    return reader_of(url, subscribe=None, subscribePattern="[a-z]+", **options)


def at(offset: dict[str, Any]) -> dict[str, int]:
    return {log: each["0"] for log, each in offset.items()}


def read(reader: StreamReader, start: Any, end: Any) -> list[tuple[str, int]]:
    """A micro-batch, as its tasks read it, with what Spark makes of an offset in between."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    found = rows_of(reader, reader.partitions(start, end))
    return [(row["topic"], row["offset"]) for row in found]


def all_batches(reader: StreamReader, start: Any, limit: Any) -> list[list[tuple[str, int]]]:
    """Up to where it stands still."""
    batches = []
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        if end == start:
            return batches
        batches.append(read(reader, start, end))
        start = end


def seqs(log: str, first: int, end: int) -> list[tuple[str, int]]:
    return [(log, seq) for seq in range(first, end)]


def remove(url: str, log: str = "orders") -> None:
    with dlog.connect(url) as client:
        client.admin.remove(log)


def truncate(url: str, before: int, log: str = "orders") -> int:
    with dlog.connect(url) as client:
        return client.admin.truncate(log, before=before).head_seq


# Where it begins.


def test_an_offset_is_the_seq_and_the_uid_of_each_log(url: str) -> None:
    fill(url, 10)
    with dlog.connect(url) as client:
        uid = client.admin.describe("orders").uid
    assert reader_of(url).initialOffset() == {"orders": {"0": 0, "uid": uid}}
    assert reader_of(url, startingOffsets="latest").initialOffset() == {
        "orders": {"0": 10, "uid": uid}
    }


@pytest.mark.parametrize("start", [0, 3, 10])
def test_a_start_at_a_seq_is_that_seq(url: str, start: int) -> None:
    fill(url, 10)
    reader = reader_of(url, startingOffsets=json.dumps({"orders": {"0": start}}))
    assert at(reader.initialOffset()) == {"orders": start}


def test_a_start_before_the_head_is_an_error_or_the_head(url: str) -> None:
    fill(url, 90)
    head = truncate(url, before=60)
    assert head > 1
    assert at(reader_of(url).initialOffset()) == {"orders": head}
    for start in (0, head - 1):
        place = json.dumps({"orders": {"0": start}})
        strict = reader_of(url, startingOffsets=place)
        with pytest.raises(Truncated):
            read(strict, strict.initialOffset(), strict.latestOffset(strict.initialOffset(), ALL))
        lenient = reader_of(url, startingOffsets=place, failOnDataLoss="false")
        assert at(lenient.initialOffset()) == {"orders": head}
    place = json.dumps({"orders": {"0": head}})
    lenient = reader_of(url, startingOffsets=place, failOnDataLoss="false")
    assert at(lenient.initialOffset()) == {"orders": head}


def test_a_start_by_id_or_time_is_the_seq_of_that_message(url: str) -> None:
    fill(url, 60)
    with dlog.open_reader("orders", url=url) as log:
        messages = list(log)
    place = json.dumps({"orders": {"0": str(messages[41].id)}})
    assert at(reader_of(url, startingOffsets=place).initialOffset()) == {"orders": 41}
    by_time = {"startingOffsets": None, "startingTimestamp": messages[0].timestamp_us // 1000}
    assert at(reader_of(url, **by_time).initialOffset()) == {"orders": 0}
    late = {
        "startingOffsets": None,
        "startingTimestamp": messages[-1].timestamp_us // 1000 + 60_000,
    }
    with pytest.raises(ConfigError, match="has nothing from"):
        reader_of(url, **late).initialOffset()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert at(reader_of(url, **late).initialOffset()) == {"orders": 60}


def test_a_start_with_the_uid_of_another_log_is_refused(url: str) -> None:
    fill(url, 10)
    offset = json.dumps(reader_of(url).initialOffset())
    assert at(reader_of(url, startingOffsets=offset).initialOffset()) == {"orders": 0}
    remove(url)
    fill(url, 10)
    with pytest.raises(NotFound, match="made again since"):
        reader_of(url, startingOffsets=offset).initialOffset()


# How much a batch takes.


def test_each_message_is_in_one_batch(url: str) -> None:
    fill(url, 100)
    reader = reader_of(url, maxOffsetsPerTrigger=40)
    batches = all_batches(reader, reader.initialOffset(), ReadMaxRows(40))
    assert batches == [seqs("orders", 0, 40), seqs("orders", 40, 80), seqs("orders", 80, 100)]
    assert read(reader, reader.initialOffset(), reader.initialOffset()) == []


def test_logs_share_a_batch_by_what_they_have(url: str) -> None:
    fill(url, 90, "a")
    fill(url, 10, "b")
    reader = by_pattern(url, maxOffsetsPerTrigger=20)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(20))
    assert at(first) == {"a": 18, "b": 2}
    assert read(reader, start, first) == seqs("a", 0, 18) + seqs("b", 0, 2)
    assert at(reader.latestOffset(first, ALL)) == {"a": 90, "b": 10}


def test_a_log_that_is_new_is_read_from_its_beginning(url: str) -> None:
    fill(url, 5, "a")
    reader = by_pattern(url, startingOffsets="latest")
    start = reader.initialOffset()
    with dlog.connect(url) as client:
        client.admin.create("empty")
    assert reader.latestOffset(start, ALL) == start, "it has nothing to read yet"
    fill(url, 7, "new")
    end = reader.latestOffset(start, ALL)
    assert at(end) == {"a": 5, "new": 7}
    assert list(end) == sorted(end)
    assert read(reader, start, end) == seqs("new", 0, 7)


def test_bytes_bound_a_batch(url: str) -> None:
    fill(url, 200, size=1000)
    reader = reader_of(url, maxBytesPerTrigger="40k")
    batches = all_batches(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert [each for batch in batches for each in batch] == seqs("orders", 0, 200)
    assert all(25 <= len(batch) <= 41 for batch in batches[:-1]), [len(b) for b in batches]


def test_bounds_on_messages_and_on_bytes_hold_together(url: str) -> None:
    fill(url, 60, "a", size=1000)
    fill(url, 60, "b", size=1000)
    reader = by_pattern(url, maxBytesPerTrigger="1m", maxOffsetsPerTrigger=30)
    start = reader.initialOffset()
    assert at(reader.latestOffset(start, ReadMaxRows(30))) == {"a": 15, "b": 15}
    reader = by_pattern(url, maxBytesPerTrigger="1k", maxOffsetsPerTrigger=30)
    assert sum(at(reader.latestOffset(start, ReadMaxRows(30))).values()) == 1


def test_a_message_larger_than_the_bound_goes_alone(url: str) -> None:
    with dlog.open_writer("orders", url=url) as writer:
        for _ in range(3):
            writer.append(b"x" * 50_000)
    reader = reader_of(url, maxBytesPerTrigger="1k")
    batches = all_batches(reader, reader.initialOffset(), ReadMaxBytes(1024))
    assert batches == [[("orders", 0)], [("orders", 1)], [("orders", 2)]]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": 12}, ReadMaxRows(12)),
        ({"maxBytesPerTrigger": "2k"}, ReadMaxBytes(2048)),
        ({"minOffsetsPerTrigger": 7}, ReadMinRows(7)),
        ({"minOffsetsPerTrigger": 7, "maxOffsetsPerTrigger": 12}, ReadMaxRows(12)),
    ],
)
def test_the_limit_that_spark_hears_of(url: str, options: dict[str, Any], limit: Any) -> None:
    assert reader_of(url, **options).getDefaultReadLimit() == limit


def test_few_messages_wait_for_more_or_for_long_enough(url: str) -> None:
    fill(url, 5)
    clock = HandClock()
    pace = {"minOffsetsPerTrigger": 10, "maxTriggerDelay": "2s", "maxOffsetsPerTrigger": 12}
    reader = reader_of(url, clock, **pace)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert at(first) == {"orders": 5}, "the first batch waits for nobody"
    fill(url, 5, first=5)
    assert reader.latestOffset(first, limit) == first
    clock.advance(1.999)
    assert reader.latestOffset(first, limit) == first
    clock.advance(0.001)
    second = reader.latestOffset(first, limit)
    assert at(second) == {"orders": 10}, "it waited for long enough"
    clock.advance(0.5)
    fill(url, 9, first=10)
    assert reader.latestOffset(second, limit) == second, "its time began with the last batch"
    fill(url, 1, first=19)
    assert at(reader.latestOffset(second, limit)) == {"orders": 20}
    assert reader.latestOffset(reader.latestOffset(second, limit), limit) != second


def test_a_query_that_ends_reads_what_was_there_and_waits_for_nothing(url: str) -> None:
    fill(url, 5)
    reader = reader_of(url, HandClock(), minOffsetsPerTrigger=4, maxOffsetsPerTrigger=4)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(url, 20, first=5)
    batches = all_batches(reader, start, ReadMaxRows(4))
    assert batches == [seqs("orders", 0, 4), seqs("orders", 4, 5)]
    assert at(reader.reportLatestOffset() or {}) == {"orders": 25}


# What a query hears when its log changes under it.


def change(url: str, how: str) -> None:
    remove(url)
    if how == "made again with more":
        fill(url, 30)
    elif how == "made again with less":
        fill(url, 5)


@pytest.mark.parametrize("make", [reader_of, by_pattern])
@pytest.mark.parametrize("how", CHANGES[1:])
def test_a_log_that_was_made_again_is_told_or_read_from_its_beginning(
    url: str, make: Callable[..., StreamReader], how: str
) -> None:
    fill(url, 20)
    start = make(url).latestOffset(make(url).initialOffset(), ALL)
    change(url, how)
    strict, lenient = make(url), make(url, failOnDataLoss="false")
    with pytest.raises(Truncated, match="not the one that this query read") as caught:
        read(strict, start, strict.latestOffset(start, ALL))
    assert caught.value.log == "orders"
    end = lenient.latestOffset(start, ALL)
    there = 30 if how == "made again with more" else 5
    assert at(end) == {"orders": there}
    assert end["orders"]["uid"] != start["orders"]["uid"]
    assert read(lenient, start, end) == seqs("orders", 0, there)


def test_a_log_that_lost_its_end_is_told_or_read_from_its_beginning(url: str) -> None:
    """As where an older copy of it was put back: it is the same log, and has less than it had."""
    fill(url, 10)
    strict, lenient = reader_of(url), reader_of(url, failOnDataLoss="false")
    there = strict.latestOffset(strict.initialOffset(), ALL)
    start = {"orders": {**there["orders"], "0": 15}}
    assert strict.latestOffset(start, ALL)["orders"]["0"] in (10, 15)
    with pytest.raises(Truncated, match="not the one that this query read"):
        strict.partitions(start, there)
    assert read(lenient, start, there) == seqs("orders", 0, 10)
    assert read(strict, there, there) == []


def test_a_log_that_vanished_from_a_pattern_is_told_or_left_out(url: str) -> None:
    fill(url, 20)
    fill(url, 20, "others")
    start = by_pattern(url).latestOffset(by_pattern(url).initialOffset(), ALL)
    assert at(start) == {"orders": 20, "others": 20}
    remove(url)
    fill(url, 5, "others", first=20)
    with pytest.raises(Truncated, match="is not there any more") as caught:
        by_pattern(url).latestOffset(start, ALL)
    assert caught.value.log == "orders"
    lenient = by_pattern(url, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert at(end) == {"others": 25}
    assert read(lenient, start, end) == seqs("others", 20, 25)
    assert lenient.latestOffset(end, ALL) == end


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_log_that_vanished_by_its_name_ends_the_query(url: str, loss: str) -> None:
    fill(url, 20)
    reader = reader_of(url, failOnDataLoss=loss)
    start = reader.initialOffset()
    remove(url)
    with pytest.raises(NotFound):
        reader.latestOffset(start, ALL)


def test_a_log_that_is_made_again_between_plan_and_batch_is_refused(url: str) -> None:
    """Also where failures are forgiven: its messages are not those that the batch had."""
    fill(url, 20)
    reader = reader_of(url, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    remove(url)
    fill(url, 20)
    with pytest.raises(NotFound, match="made again since"):
        reader.partitions(start, end)


def test_truncation_under_a_query_is_told_or_left_out(url: str) -> None:
    fill(url, 20)
    strict, lenient = reader_of(url), reader_of(url, failOnDataLoss="false")
    start = strict.latestOffset(strict.initialOffset(), ALL)
    fill(url, 90, first=20)
    fill(url, 30, first=110)
    head = truncate(url, before=110)
    assert 20 < head
    with pytest.raises(Truncated):
        read(strict, start, strict.latestOffset(start, ALL))
    assert read(lenient, start, lenient.latestOffset(start, ALL)) == seqs("orders", head, 140)
    assert read(strict, {"orders": {**start["orders"], "0": head}}, strict.latestOffset(start, ALL))


def test_a_bound_on_bytes_holds_behind_a_truncation(url: str) -> None:
    fill(url, 90, size=1000)
    fill(url, 30, first=90, size=1000)
    reader = reader_of(url, maxBytesPerTrigger="8k", failOnDataLoss="false")
    start = reader.initialOffset()
    head = truncate(url, before=90)
    batches = all_batches(reader, start, ReadMaxBytes(8192))
    assert [each for batch in batches for each in batch] == seqs("orders", head, 120)
    assert max(map(len, batches)) <= 9
    roomy = reader_of(url, maxBytesPerTrigger="1m", failOnDataLoss="false")
    assert all_batches(roomy, start, ReadMaxBytes(1 << 20)) == [seqs("orders", head, 120)]


# Holds.


def holds_of(url: str, log: str = "orders") -> dict[str, int | None]:
    with dlog.connect(url) as client:
        return {hold.name: hold.seq for hold in client.admin.holds(log)}


def test_a_group_holds_what_it_has_not_committed(url: str) -> None:
    fill(url, 90)
    reader = reader_of(url, group="reports", maxOffsetsPerTrigger=40)
    start = reader.initialOffset()
    assert holds_of(url) == {"reports": 0}
    first = reader.latestOffset(start, ReadMaxRows(40))
    assert holds_of(url) == {"reports": 0}
    reader.commit(first)
    assert holds_of(url) == {"reports": 40}
    assert truncate(url, before=80) <= 40
    second = reader_of(url, group="reports").latestOffset(first, ALL)
    assert holds_of(url) == {"reports": 40}, "what a query begins with, it has committed"
    reader.commit(second)
    assert holds_of(url) == {"reports": 90}


def test_without_a_group_nothing_is_held(url: str) -> None:
    fill(url, 5)
    reader = reader_of(url)
    reader.commit(reader.latestOffset(reader.initialOffset(), ALL))
    assert holds_of(url) == {}


# Streams of shards.

KEYS = [b"key %d" % number for number in range(8)]


def rounds(client: Any, first: int, count: int) -> None:
    with client.stream("orders").open_writer() as writer:
        for number in range(first, first + count):
            for key in KEYS:
                writer.submit(b"%d" % number, key=key)
        writer.flush()


def test_keys_stay_in_order_over_a_split(url: str) -> None:
    """A child is read by a later batch than the one that reads its parent to the end."""
    with dlog.connect(url) as client:
        client.create_stream("orders", shards=2)
        rounds(client, 0, 3)
        (first, *_) = client.stream("orders").shards()
        client.stream("orders").split(first.number)
        rounds(client, 3, 3)
    reader = reader_of(url)
    offset = reader.initialOffset()
    found: dict[bytes, list[int]] = {key: [] for key in KEYS}
    batches = 0
    while (end := json.loads(json.dumps(reader.latestOffset(offset, ALL)))) != offset:
        rows = rows_of(reader, reader.partitions(offset, end))
        in_batch: dict[bytes, set[int]] = {}
        for row in rows:
            found[row["key"]].append(int(row["value"]))
            in_batch.setdefault(row["key"], set()).add(row["partition"])
        assert all(len(shards) == 1 for shards in in_batch.values())
        assert {row["topic"] for row in rows} == {"orders"}
        offset, batches = end, batches + 1
    assert batches == 2
    assert found == {key: list(range(6)) for key in KEYS}
    assert [log for log, each in offset.items() if each.get("over")] == [first.log]
    assert reader_of(url, startingOffsets="latest").initialOffset() == offset


def test_a_shard_that_was_trimmed_after_its_end_is_no_loss(url: str) -> None:
    fill(url, 4, "orders")
    reader = by_pattern(url)
    start = reader.initialOffset()
    gone = {"0": 7, "uid": "of a shard"}
    with pytest.raises(Truncated, match="is not there any more"):
        reader.latestOffset({**start, "orders/0": gone}, ALL)
    end = reader.latestOffset({**start, "orders/0": {**gone, "over": True}}, ALL)
    assert at(end) == {"orders": 4}


# Errors that pass.


class Flaky:
    """An access that fails while it is told to."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.error: DlogError | None = None

    def connect(self) -> dlog.Client:
        if self.error is not None:
            raise self.error
        return self._access.connect()


def test_what_may_be_asked_again_ends_no_query(url: str) -> None:
    fill(url, 20)
    options = source_options({"url": url, "path": "orders", **EARLIEST, "group": "g"}, "stream")
    flaky = Flaky(options.access)
    changed: Any = dataclasses.replace(options, access=flaky)
    reader = StreamReader(changed, ("offset",))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    fill(url, 5, first=20)
    flaky.error = Unavailable("the metadata store is away", missing="metadata")
    assert reader.latestOffset(start, ALL) == start, "as if there were nothing new"
    assert reader.reportLatestOffset() == end, "what was seen last"
    reader.commit(end)
    flaky.error = None
    assert holds_of(url) == {"g": 0}
    reader.commit(end)
    assert holds_of(url) == {"g": 20}
    assert at(reader.latestOffset(end, ALL)) == {"orders": 25}
    assert at(reader.reportLatestOffset() or {}) == {"orders": 25}
    flaky.error = NotFound("the log is gone", log="orders")
    with pytest.raises(NotFound):
        reader.latestOffset(end, ALL)

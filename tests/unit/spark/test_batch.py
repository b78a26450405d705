"""The batch source without Spark: what it plans and reads is what a reader reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual, In, LessThan

import dlog
from dlog.errors import ConfigError, NotFound, Truncated
from dlog.spark import batch
from tests.unit.spark.reading import SMALL, WHOLE, batch_reader, fill, rows, rows_of, seqs

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages_of(url: str, log: str = "orders") -> list[dlog.Message]:
    with dlog.open_reader(log, url=url) as reader:
        return list(reader)


def time_of(time_us: int | None) -> datetime | None:
    return None if time_us is None else EPOCH + timedelta(microseconds=time_us)


def as_row(message: dlog.Message, log: str) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in message.headers]
    return {
        "key": message.key,
        "value": message.value,
        "topic": log,
        "partition": 0,
        "offset": message.seq,
        "timestamp": time_of(message.timestamp_us),
        "timestampType": 1,
        "headers": headers or None,
        "ledgerId": message.ledger_id,
        "entryId": message.entry_id,
        "batchIdx": message.batch_idx,
        "eventTime": time_of(message.event_time_us),
    }


def write_story(url: str) -> None:
    """Entries of one message and of many, with and without keys, headers and event times."""
    at = datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    with dlog.open_writer("orders", url=url, create=SMALL) as log:
        log.append_many([b"many %d" % i for i in range(700)])
        for number in range(5):
            log.append(b"one %d" % number, key=b"k%d" % number)
        log.append(None, key=b"k1")
        log.append(b"told", headers=[("a", b"1"), ("a", b""), ("b", b"2")])
        log.append(b"dated", event_time=at)
        for start in range(0, 600, 60):
            log.append_many(
                [b"%d" % (start + i) * 40 for i in range(60)],
                keys=[b"%d" % (i % 5) if i % 3 else None for i in range(60)],
                headers=[[("n", b"%d" % i)] if i % 4 == 0 else None for i in range(60)],
            )
            log.append(b"between")


@pytest.mark.parametrize("options", [{}, {"minPartitions": 7}, {"maxRecordsPerPartition": 100}])
def test_every_field_is_that_of_a_reader(url: str, options: dict[str, int]) -> None:
    write_story(url)
    expected = [as_row(message, "orders") for message in messages_of(url)]
    reader = batch_reader(url, path="orders", columns=WHOLE, **options)
    parts = reader.partitions()
    assert rows_of(reader, parts) == expected
    assert len(parts) >= options.get("minPartitions", 1)
    assert all(
        part.range.messages <= options.get("maxRecordsPerPartition", 10_000) for part in parts
    )


def test_an_empty_plan_gives_nothing(url: str) -> None:
    fill(url, 3)
    reader = batch_reader(url, path="orders")
    assert list(reader.read(None)) == []
    assert batch_reader(url, subscribePattern="nobody.*").partitions() == []


def test_a_pattern_is_of_the_whole_name(url: str) -> None:
    for name in ("a", "ab", "b"):
        fill(url, 2, name)
    assert {row["topic"] for row in rows(url, subscribePattern="[ab]")} == {"a", "b"}
    assert {row["topic"] for row in rows(url, subscribe="ab, b")} == {"ab", "b"}


def test_places_are_those_of_each_log(url: str) -> None:
    fill(url, 10, "a")
    fill(url, 10, "b")
    starts = json.dumps({"a": {"0": 4}, "b": {"0": -2}})
    ends = json.dumps({"a": {"0": -1}, "b": {"0": 7}})
    found = rows(url, subscribe="a,b", startingOffsets=starts, endingOffsets=ends)
    assert [(row["topic"], row["offset"]) for row in found] == [
        *(("a", seq) for seq in range(4, 10)),
        *(("b", seq) for seq in range(7)),
    ]
    assert rows(url, subscribe="a,b", startingOffsets="latest") == []


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_places_of_a_log_that_was_made_again_are_refused(url: str, option: str) -> None:
    fill(url, 10)
    with dlog.connect(url) as client:
        uid = client.admin.describe("orders").uid
        place = json.dumps({"orders": {"0": 4, "uid": uid}})
        expected = {"startingOffsets": [4, 5, 6, 7, 8, 9], "endingOffsets": [0, 1, 2, 3]}
        assert seqs(url, path="orders", **{option: place}) == expected[option]
        client.admin.remove("orders")
    fill(url, 20)
    with pytest.raises(NotFound, match="made again since") as caught:
        seqs(url, path="orders", **{option: place})
    assert caught.value.log == "orders"


def test_a_start_by_time_is_the_first_message_at_or_behind_it(url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append_many([b"x"] * 5)
    times = [message.timestamp_us for message in messages_of(url)]
    first_ms = min(times) // 1000
    assert seqs(url, path="orders", startingTimestamp=first_ms) == [0, 1, 2, 3, 4]
    assert seqs(url, path="orders", endingTimestamp=first_ms) == []
    late_ms = max(times) // 1000 + 1
    assert seqs(url, path="orders", endingTimestamp=late_ms) == [0, 1, 2, 3, 4]
    late = {"path": "orders", "startingTimestamp": late_ms}
    with pytest.raises(ConfigError, match="log 'orders' has nothing from"):
        seqs(url, **late)
    assert seqs(url, **late, startingOffsetsByTimestampStrategy="latest") == []


def test_a_start_at_the_very_time_of_the_last_message_is_no_late_start(url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append(b"x")
    (time_us,) = [message.timestamp_us for message in messages_of(url)]
    from dlog.spark.batch import check_late_starts
    from dlog.spark.options import source_options

    options = source_options({"url": url, "path": "orders"}, "batch")
    with dlog.connect(url) as client:
        at = EPOCH + timedelta(microseconds=time_us)
        check_late_starts(client, {"orders": at}, options)
        with pytest.raises(ConfigError, match="has nothing from"):
            check_late_starts(client, {"orders": at + timedelta(microseconds=1)}, options)


def test_an_empty_log_has_nothing_from_any_time_on(url: str) -> None:
    with dlog.connect(url) as client:
        client.admin.create("orders")
    with pytest.raises(ConfigError, match="has nothing from"):
        seqs(url, path="orders", startingTimestamp=5)


def test_what_was_truncated_is_an_error_or_jumped_over(url: str) -> None:
    fill(url, 200)
    reader = batch_reader(url, path="orders")
    parts = reader.partitions()
    start = {"path": "orders", "startingOffsets": json.dumps({"orders": {"0": 0}})}
    lenient_reader = batch_reader(url, **start, failOnDataLoss="false")
    lenient_parts = lenient_reader.partitions()
    with dlog.connect(url) as client:
        head = client.admin.truncate("orders", before=150).head_seq
        assert head > 0
    left = list(range(head, 200))
    with pytest.raises(Truncated):
        rows_of(reader, parts)
    assert [row["offset"] for row in rows_of(lenient_reader, lenient_parts)] == left
    with pytest.raises(Truncated):
        seqs(url, **start)
    assert seqs(url, **start, failOnDataLoss="false") == left
    assert seqs(url, path="orders") == left


# Push-down: whatever Spark says, the plan holds all that it looks for, and not everything.


@pytest.fixture
def story(url: str) -> tuple[str, list[dlog.Message]]:
    for name in ("orders", "others"):
        for first in (0, 100, 200):  # a ledger for each writer at least
            fill(url, 100, name, first)
    return url, messages_of(url)


def planned(url: str, *filters: Any, **options: Any) -> set[tuple[str, int]]:
    found = rows(
        url,
        filters=list(filters),
        pushdown="true",
        maxRecordsPerPartition=20,
        **{"subscribe": "orders,others", **options},
    )
    return {(row["topic"], row["offset"]) for row in found}


def test_a_filter_on_the_topic_leaves_other_logs_out(story: tuple[str, Any]) -> None:
    url, _ = story
    whole = {("orders", seq) for seq in range(300)}
    assert planned(url, EqualTo(("topic",), "orders")) == whole
    assert planned(url, In(("topic",), ("orders", "neither"))) == whole
    assert planned(url, EqualTo(("topic",), "neither")) == set()
    assert planned(url, EqualTo(("partition",), 1)) == set()
    assert len(planned(url, EqualTo(("partition",), 0))) == 600


def test_a_filter_on_the_offset_is_where_reading_begins_and_ends(story: tuple[str, Any]) -> None:
    url, _ = story
    found = planned(url, GreaterThanOrEqual(("offset",), 100), LessThan(("offset",), 130))
    assert found == {(log, seq) for log in ("orders", "others") for seq in range(100, 131)}


def test_a_filter_on_the_ledger_leaves_other_ledgers_out(story: tuple[str, Any]) -> None:
    url, messages = story
    ledgers = sorted({message.ledger_id for message in messages})
    assert len(ledgers) >= 3
    wanted = ledgers[1]
    expected = {("orders", m.seq) for m in messages if m.ledger_id == wanted}
    topic = EqualTo(("topic",), "orders")
    assert planned(url, topic, EqualTo(("ledgerId",), wanted)) == expected


def test_a_filter_on_the_time_has_all_of_that_time(story: tuple[str, Any]) -> None:
    url, messages = story
    time_us = messages[150].timestamp_us
    at = EPOCH + timedelta(microseconds=time_us)
    topic = EqualTo(("topic",), "orders")
    same = {("orders", m.seq) for m in messages if m.timestamp_us == time_us}
    assert same <= planned(url, topic, EqualTo(("timestamp",), at))
    later = {("orders", m.seq) for m in messages if m.timestamp_us >= time_us}
    assert later <= planned(url, topic, GreaterThanOrEqual(("timestamp",), at))
    far = at + timedelta(days=1)
    assert planned(url, topic, GreaterThanOrEqual(("timestamp",), far)) == set()
    assert planned(url, topic, LessThan(("timestamp",), at - timedelta(days=1))) == set()


def test_a_filter_on_what_was_truncated_is_no_failure(story: tuple[str, Any]) -> None:
    url, _ = story
    with dlog.connect(url) as client:
        head = client.admin.truncate("orders", before=200).head_seq
    assert head > 50
    topic = EqualTo(("topic",), "orders")
    assert planned(url, topic, LessThan(("offset",), 30)) in (
        set(),
        {("orders", seq) for seq in range(head, 300)},
    )
    assert planned(url, topic, GreaterThanOrEqual(("offset",), 30)) == {
        ("orders", seq) for seq in range(head, 300)
    }


def test_without_push_down_no_filter_is_taken(url: str) -> None:
    fill(url, 1)
    """Spark asks whether the reader's class has a method of its own."""

    def takes_filters(reader: Any) -> bool:
        return type(reader).pushFilters is not DataSourceReader.pushFilters

    assert not takes_filters(batch_reader(url, path="orders"))
    assert takes_filters(batch_reader(url, path="orders", pushdown="true"))


def test_of_a_log_that_was_truncated_wholly_nothing_is_read(url: str) -> None:
    """Its list keeps the segment with the numbers of producers."""
    with dlog.open_writer("orders", url=url) as log:
        for number in range(5):
            log.append(b"x", producer=(number, 0))
    with dlog.connect(url) as client:
        client.admin.truncate("orders", "latest")
    for options in ({}, {"failOnDataLoss": "false"}, {"startingOffsets": "latest"}):
        assert rows(url, path="orders", **options) == []
    assert rows(url, path="orders", pushdown="true", filters=[LessThan(("offset",), 3)]) == []


# Streams: every shard is a log; all are read at one moment.


def stream_of(url: str, rounds: int, shards: int = 3) -> dict[bytes, list[bytes]]:
    sent: dict[bytes, list[bytes]] = {}
    with dlog.connect(url) as client:
        client.create_stream("orders", shards=shards)
        with client.stream("orders").open_writer() as writer:
            for number in range(rounds):
                for key in (b"a", b"b", b"c", b"d", b"e"):
                    writer.submit(b"%d" % number, key=key)
                    sent.setdefault(key, []).append(b"%d" % number)
            writer.flush()
    return sent


def by_key(found: list[dict[str, Any]]) -> dict[bytes, list[bytes]]:
    made: dict[bytes, list[bytes]] = {}
    for row in found:
        made.setdefault(row["key"], []).append(row["value"])
    return made


def test_a_stream_is_read_shard_by_shard(url: str) -> None:
    sent = stream_of(url, 4)
    found = rows(url, path="orders")
    assert by_key(found) == sent
    assert {row["topic"] for row in found} == {"orders"}
    with dlog.connect(url) as client:
        shards = {shard.number for shard in client.stream("orders").shards()}
    assert {row["partition"] for row in found} <= shards
    one = found[0]["partition"]
    wanted = [row for row in found if row["partition"] == one]
    narrowed = rows(url, path="orders", pushdown="true", filters=[EqualTo(("partition",), one)])
    assert narrowed == wanted
    assert rows(url, path="orders", startingOffsets="latest") == []


def test_places_of_a_stream_are_the_same_for_all_shards(url: str) -> None:
    stream_of(url, 1)
    place = json.dumps({"orders": {"0": 1}})
    with pytest.raises(ConfigError, match="is a stream of shards"):
        rows(url, path="orders", startingOffsets=place)
    with pytest.raises(ConfigError, match="is a stream of shards"):
        rows(url, path="orders", endingOffsets=place)


def test_a_late_start_of_a_stream_is_late_for_all_shards(url: str) -> None:
    stream_of(url, 1)
    found = rows(url, path="orders")
    times = sorted(row["timestamp"] for row in found)
    last_ms = int((times[-1] - EPOCH) / timedelta(milliseconds=1))
    assert rows(url, path="orders", startingTimestamp=last_ms), "one shard has something"
    late = {"path": "orders", "startingTimestamp": last_ms + 60_000}
    with pytest.raises(ConfigError, match="log 'orders' has nothing from"):
        rows(url, **late)
    assert rows(url, **late, startingOffsetsByTimestampStrategy="latest") == []


def test_a_stream_that_is_made_again_while_it_is_planned_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends of one stream are not those of another one of its name."""
    stream_of(url, 1)
    real = batch.listing_of

    def then_made_again(client: Any, name: str) -> Any:
        found = real(client, name)
        client.stream(name).remove()
        stream_of(url, 2)
        return found

    monkeypatch.setattr(batch, "listing_of", then_made_again)
    with pytest.raises(NotFound, match="made again since"):
        rows(url, path="orders", endingOffsets="latest")

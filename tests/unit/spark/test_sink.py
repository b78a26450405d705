"""The sink without Spark: tasks fill, the driver commits, and each message is there once."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import dlog
from dlog import limits
from dlog.errors import ConfigError, NotFound, Unsupported
from dlog.spark.options import sink_options
from dlog.spark.sink import BatchWriter, Filled, StreamWriter, by_log, check_columns
from dlog.spark.source import DefaultSource

VALUES = StructType([StructField("value", BinaryType())])
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
AT = datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=UTC)


def batch(*values: bytes | None, **columns: Any) -> Any:
    arrays = {"value": pa.array(values, pa.binary()), **columns}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def writer(url: str, kind: type = BatchWriter, schema: StructType = VALUES, **options: Any) -> Any:
    given = {"url": url, "topic": "out", **options}
    return kind(schema, sink_options({k: str(v) for k, v in given.items() if v is not None}))


def travel(thing: Any) -> Any:
    """As from the driver to a task, and back."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


def messages(url: str, log: str = "out") -> list[dlog.Message]:
    with dlog.open_reader(log, url=url) as reader:
        return list(reader)


def values(url: str, log: str = "out") -> list[bytes | None]:
    return [message.value for message in messages(url, log)]


def unlisted(url: str) -> list[str]:
    """Ledgers that no log lists."""
    with dlog.connect(url) as client:
        kinds = [finding.kind.value for finding in client.admin.fsck().findings]
    return [kind for kind in kinds if kind in ("orphan", "maybe_in_use")]


def numbers(task: int, count: int) -> list[Any]:
    """Batches of a task, ten messages each."""
    made = [b"%d:%d" % (task, number) for number in range(count)]
    return [batch(*made[begin : begin + 10]) for begin in range(0, count, 10)]


def told(task: int, count: int) -> list[bytes]:
    return [b"%d:%d" % (task, number) for number in range(count)]


def test_nothing_is_there_before_the_commit_and_all_of_it_after(url: str) -> None:
    sink = writer(url)
    filled = [travel(travel(sink).write(iter(numbers(task, 25)))) for task in range(3)]
    with dlog.connect(url) as client:
        assert [log.name for log in client.admin.list()] == ["out"]
    assert values(url) == []
    sink.commit([filled[0], None, *filled[1:]])
    assert values(url) == told(0, 25) + told(1, 25) + told(2, 25)
    assert unlisted(url) == []


def test_a_batch_that_is_committed_again_adds_nothing(url: str) -> None:
    one = writer(url, query="daily")
    one.commit([one.write(iter(numbers(0, 15)))])
    again = writer(url, query="daily")
    again.commit([again.write(iter(numbers(0, 15)))])
    assert values(url) == told(0, 15)
    assert unlisted(url) == [], "what it filled again is deleted"
    other = writer(url, query="another")
    other.commit([other.write(iter(numbers(1, 5)))])
    fresh = writer(url)
    fresh.commit([fresh.write(iter(numbers(2, 5)))])
    last = writer(url)
    last.commit([last.write(iter(numbers(3, 5)))])
    assert values(url) == told(0, 15) + told(1, 5) + told(2, 5) + told(3, 5)


def test_a_query_is_written_once_for_ever_or_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is written: writes without a name do not make the log forget it, and once other
    queries did, it is refused and not written again."""
    monkeypatch.setattr(limits, "PUBLISHED_QUERIES_MAX", 2)
    for query in ("daily", None, None, None, "daily"):
        sink = writer(url) if query is None else writer(url, query=query)
        sink.commit([sink.write(iter(numbers(0, 5)))])
    assert values(url) == 4 * told(0, 5)
    for query in ("other", "third"):
        sink = writer(url, query=query)
        sink.commit([sink.write(iter(numbers(1, 1)))])
    again = writer(url, query="daily")
    filled = again.write(iter(numbers(0, 5)))
    with pytest.raises(dlog.NotFound, match="'daily' is not known any more"):
        again.commit([filled])
    again.abort([filled])
    assert values(url) == 4 * told(0, 5) + 2 * told(1, 1)
    assert unlisted(url) == []


def test_a_query_has_no_name_that_is_not_remembered() -> None:
    with pytest.raises(ConfigError, match="one-off:"):
        sink_options({"url": "file:/x", "topic": "out", "query": "one-off:daily"})


def test_an_aborted_batch_leaves_nothing(url: str) -> None:
    for kind, more in ((BatchWriter, ()), (StreamWriter, (7,))):
        sink = writer(url, kind)
        filled = [sink.write(iter(numbers(task, 5))) for task in range(2)]
        assert all(each.segments for each in filled)
        sink.abort([*filled, None], *more)
        sink.abort([], *more)
        assert values(url) == []
        assert unlisted(url) == []


def test_a_task_that_fails_leaves_nothing(url: str) -> None:
    def batches() -> Any:
        yield from numbers(0, 20)
        raise RuntimeError("planted")

    with dlog.connect(url) as client:
        client.admin.create("out", segment_bytes=4096)
    with pytest.raises(RuntimeError, match="planted"):
        writer(url).write(batches())
    assert values(url) == []
    assert unlisted(url) == []


def test_a_task_that_fills_several_ledgers_and_fails_leaves_nothing(url: str) -> None:
    def batches() -> Any:
        for number in range(6):
            yield batch(*[b"%d" % number * 600 for _ in range(10)])
        raise RuntimeError("planted")

    with dlog.connect(url) as client:
        client.admin.create("out", segment_bytes=4096)
        filled = writer(url).write(iter([batch(b"x" * 3000) for _ in range(6)]))
        assert [each.messages for each in filled.segments] == [2, 2, 2]
        client.admin.discard_segments(filled.segments)
    with pytest.raises(RuntimeError, match="planted"):
        writer(url).write(batches())
    assert unlisted(url) == []


def test_an_empty_task_has_nothing_to_publish(url: str) -> None:
    sink = writer(url)
    assert sink.write(iter([])).segments == []
    filled = sink.write(iter([batch(), batch()]))
    assert filled.segments == []
    sink.commit([filled])
    assert unlisted(url) == []


def test_a_stream_is_published_by_query_and_batch(url: str) -> None:
    def write(number: int, task: int, query: str | None = "q") -> None:
        sink = writer(url, StreamWriter)
        filled = sink.write(iter(numbers(task, 5)))
        filled.query = query
        writer(url, StreamWriter).commit([filled, Filled(), None], number)

    write(0, 0)
    write(1, 1)
    write(1, 9)  # run again
    write(0, 9)  # and an older one
    write(1, 2, "another query")
    assert values(url) == told(0, 5) + told(1, 5) + told(2, 5)
    assert unlisted(url) == []
    with pytest.raises(Unsupported, match="give the option query"):
        write(2, 3, None)
    writer(url, StreamWriter).commit([Filled(), None], 2)
    named = writer(url, StreamWriter, query="mine")
    named.commit([named.write(iter(numbers(4, 5)))], 3)
    assert values(url)[15:] == told(4, 5)


def test_each_log_gets_its_messages_in_their_order(url: str) -> None:
    schema = StructType([*VALUES.fields, StructField("topic", StringType())])
    sink = writer(url, schema=schema, topic=None)
    topics = pa.array(["b", "a", "b", "a"])
    filled = sink.write(iter([batch(b"0", b"1", b"2", b"3", topic=topics)] * 2))
    sink.commit([filled])
    assert values(url, "a") == [b"1", b"3"] * 2
    assert values(url, "b") == [b"0", b"2"] * 2
    with pytest.raises(ConfigError, match="a row has no topic"):
        list(by_log(batch(b"0", b"1", topic=pa.array(["a", None])), None))
    found = dict(by_log(batch(b"0", b"1", topic=pa.array(["a", None])), "named"))
    assert found["named"].column("value").to_pylist() == [b"0", b"1"]


WHOLE = StructType(
    [
        *VALUES.fields,
        StructField("key", BinaryType()),
        StructField("headers", HEADERS),
        StructField("partition", IntegerType()),
        StructField("eventTime", TimestampType()),
    ]
)


def whole_batch(with_times: bool) -> Any:
    pairs = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": b""}],
        None,
        [],
        [{"key": "b", "value": b"2"}],
    ]
    times = [AT, None, None, AT] if with_times else [None] * 4
    made = batch(
        b"x",
        None,
        b"",
        b"z",
        key=pa.array([b"k", b"k", None, None], pa.binary()),
        headers=pa.array(pairs, ARROW_HEADERS),
        partition=pa.array([0, None, 0, 0], pa.int32()),
        eventTime=pa.array(times, pa.timestamp("us", tz="UTC")),
    )
    return made


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
@pytest.mark.parametrize("with_times", [True, False])
def test_every_field_is_written(url: str, delivery: str, with_times: bool) -> None:
    sink = writer(url, schema=WHOLE, delivery=delivery)
    parts = whole_batch(with_times)
    sink.commit([sink.write(iter([parts.slice(0, 1), parts.slice(1, 3)]))])
    at_us = int(AT.timestamp()) * 1_000_000 + 7 if with_times else None
    assert [
        (m.key, m.value, [tuple(pair) for pair in m.headers], m.event_time_us)
        for m in messages(url)
    ] == [
        (b"k", b"x", [("a", b"1"), ("a", b"")], at_us),
        (b"k", None, [], None),
        (None, b"", [], None),
        (None, b"z", [("b", b"2")], at_us),
    ]


def test_a_text_is_its_bytes(url: str) -> None:
    schema = StructType([StructField("value", StringType()), StructField("key", StringType())])
    sink = writer(url, schema=schema)
    made = pa.RecordBatch.from_arrays(
        [pa.array(["ä", None]), pa.array([None, "k"])], names=["value", "key"]
    )
    sink.commit([sink.write(iter([made]))])
    assert [(m.key, m.value) for m in messages(url)] == [(None, "ä".encode()), (b"k", None)]


def test_a_plain_log_has_shard_0_alone() -> None:
    shards = pa.array([0, None, 1], pa.int32())
    with pytest.raises(ConfigError, match="shard 0 alone"):
        list(by_log(batch(b"0", b"1", b"2", partition=shards), "out"))
    assert len(list(by_log(batch(b"0", b"1", partition=shards[:2]), "out"))) == 1


def test_a_header_without_a_name_or_a_value_is_refused() -> None:
    for pair in ({"key": None, "value": b"1"}, {"key": "a", "value": None}, None):
        headers = pa.array([[pair]], ARROW_HEADERS)
        with pytest.raises(ConfigError, match="a header without"):
            list(by_log(batch(b"0", headers=headers), "out"))


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_log_that_is_not_there_is_made_or_named(url: str, delivery: str) -> None:
    with dlog.connect(url) as client:
        client.admin.create("another")
    refuses = writer(url, delivery=delivery, createLogs="false")
    with pytest.raises(NotFound) as caught:
        refuses.write(iter(numbers(0, 5)))
    assert caught.value.log == "out"
    with dlog.connect(url) as client:
        assert [log.name for log in client.admin.list()] == ["another"]
    sink = writer(url, delivery=delivery)
    sink.commit([sink.write(iter(numbers(0, 5)))])
    refuses.commit([refuses.write(iter(numbers(1, 5)))])
    assert values(url) == told(0, 5) + told(1, 5)


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_stream_of_shards_is_not_written(url: str, delivery: str) -> None:
    with dlog.connect(url) as client:
        client.create_stream("out", shards=2)
    with pytest.raises(Unsupported, match="is a stream of shards"):
        writer(url, delivery=delivery).write(iter(numbers(0, 5)))


def test_at_least_once_is_there_when_the_task_ends(url: str) -> None:
    schema = StructType([*VALUES.fields, StructField("topic", StringType())])
    sink = writer(url, schema=schema, topic=None, delivery="atLeastOnce")
    topics = [pa.array(["b", "a"]), pa.array(["a", "b"])]
    filled = sink.write(iter([batch(b"0", b"1", topic=each) for each in topics]))
    assert filled.segments == []
    assert values(url, "a") == [b"1", b"0"]
    assert values(url, "b") == [b"0", b"1"]
    with dlog.open_writer("a", url=url, takeover="wait", open_timeout_ms=2000) as free:
        free.append(b"the log was let go")


def test_a_turn_that_does_not_come_is_an_error(url: str) -> None:
    sink = writer(url, delivery="atLeastOnce", turnTimeout="50ms")
    with dlog.open_writer("out", url=url) as living:
        living.append(b"x")
        with pytest.raises(dlog.DlogError):
            sink.write(iter(numbers(0, 5)))
        living.append(b"still the writer")
    assert values(url) == [b"x", b"still the writer"]


# What is refused when a write is planned.


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([("value", BinaryType())], None),
        ([("value", StringType()), ("key", StringType())], None),
        ([("value", BinaryType()), ("partition", IntegerType())], None),
        ([("value", BinaryType()), ("headers", HEADERS), ("eventTime", TimestampType())], None),
        ([("key", BinaryType())], "there is no column value"),
        ([("value", LongType())], "the column value is binary or string, not bigint"),
        ([("value", BinaryType()), ("size", LongType())], "no column 'size' is written"),
        ([("value", BinaryType()), ("partition", LongType())], "the column partition is int"),
    ],
)
def test_columns_of_the_kafka_sink(fields: list[tuple[str, DataType]], error: str | None) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    options = sink_options({"url": "file:/somewhere", "topic": "out"})
    if error is None:
        check_columns(schema, options)
    else:
        for plan in (lambda: BatchWriter(schema, options), lambda: StreamWriter(schema, options)):
            with pytest.raises(ConfigError, match=error):
                plan()


def test_a_log_is_named_by_an_option_or_a_column() -> None:
    anywhere = sink_options({"url": "file:/somewhere"})
    with pytest.raises(ConfigError, match="which log"):
        check_columns(VALUES, anywhere)
    check_columns(StructType([*VALUES.fields, StructField("topic", StringType())]), anywhere)


def test_a_log_is_appended_to_and_not_overwritten(url: str) -> None:
    source = DefaultSource({"url": url, "topic": "out"})
    for make in (source.writer, source.streamWriter):
        make(VALUES, False)
        with pytest.raises(Unsupported, match="mode append"):
            make(VALUES, True)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_time_of_any_year_is_taken(url: str, delivery: str, unit: str) -> None:
    """Before 1, and behind 9999: Python has no datetime of these."""
    seconds = [-99_999_999_999, -1, 0, 253_402_300_800, 9_000_000_000_000, None]
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    numbers = [None if each is None else each * per_second for each in seconds]
    schema = StructType([*VALUES, StructField("eventTime", TimestampType())])
    sink = writer(url, schema=schema, delivery=delivery)
    times = pa.array(numbers, pa.timestamp(unit, "UTC"))
    sink.commit([travel(sink.write(iter([batch(*[b"x"] * len(numbers), eventTime=times)])))])
    found = [message.event_time_us for message in messages(url)]
    assert found == [None if each is None else each * 1_000_000 for each in seconds]

"""The batch source gives exactly what a reader gives: count, order, every field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dlog

WHOLE = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,ledgerId,entryId,batchIdx,"
    "eventTime"
)
SMALL = dlog.LogOptions(segment_bytes=1 << 14)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def frame(spark: Any, url: str, log: str = "orders", **options: Any) -> Any:
    reader = spark.read.format("dlog").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(log) if log else reader.load()


def rows(df: Any) -> list[Any]:
    return sorted(df.collect(), key=lambda row: (row["topic"], row["offset"]))


def time_of(row_time: datetime | None) -> int | None:
    """The session's zone is UTC; Spark hands out naive times of the driver's zone."""
    if row_time is None:
        return None
    return (row_time.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def expect_equal(df: Any, url: str, log: str = "orders", **options: Any) -> int:
    with dlog.open_reader(log, url=url, **options) as reader:
        messages = list(reader)
    found = rows(df)
    assert [row["offset"] for row in found] == [message.seq for message in messages]
    for row, message in zip(found, messages, strict=True):
        assert row["key"] == message.key
        assert row["value"] == message.value
        assert (row["topic"], row["partition"], row["timestampType"]) == (log, 0, 1)
        assert time_of(row["timestamp"]) == message.timestamp_us
        assert time_of(row["eventTime"]) == message.event_time_us
        headers = None if row["headers"] is None else [tuple(pair) for pair in row["headers"]]
        assert (headers or []) == [tuple(pair) for pair in message.headers]
        assert (row["ledgerId"], row["entryId"], row["batchIdx"]) == message.id
    return len(messages)


def write_story(url: str) -> int:
    """Rotations, a takeover over a writer that lives, compression, tombstones, headers, times."""
    with dlog.connect(url) as client, dlog.connect(url) as other:
        first = client.open_writer("orders", create=SMALL, codec="zstd")
        first.append_many([b"many %d" % i for i in range(3000)])
        for i in range(60):
            first.append(b"one %d" % i, key=b"k%d" % (i % 7))
        first.append(None, key=b"k1")
        first.append(b"told", headers=[("a", b"1"), ("a", b""), ("b", b"2")])
        first.append(b"dated", event_time=datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=UTC))
        second = other.open_writer("orders", codec="lz4")
        with pytest.raises(dlog.Fenced):
            first.append(b"never")
        count = 3063
        for start in range(0, 2000, 100):
            second.append_many(
                [b"%d" % (start + i) * 40 for i in range(100)],
                keys=[b"%d" % (i % 5) if i % 3 else None for i in range(100)],
            )
            second.append(b"x" * 9000, headers=[("size", b"large")])
            count += 101
        second.close()
        third = client.open_writer("orders")  # and its ledger stays open
        third.append_many([b"", b"open", b"ledger"])
        third.close()
        return count + 3


def test_every_message_in_every_field(spark: Any, url: str) -> None:
    count = write_story(url)
    assert expect_equal(frame(spark, url, columns=WHOLE), url) == count
    parts = frame(spark, url, columns=WHOLE, minPartitions=7)
    assert parts.rdd.getNumPartitions() >= 7
    assert expect_equal(parts, url) == count
    fine = frame(spark, url, columns=WHOLE, maxRecordsPerPartition=500)
    assert expect_equal(fine, url) == count


def test_the_open_ledger_of_a_writer_that_lives(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append_many([b"%d" % i for i in range(100)])
        df = frame(spark, url, columns=WHOLE)
        assert expect_equal(df, url) == 100
        log.append(b"later")  # and it was not fenced
        assert df.count() == 100, "the end is that of the plan"
        assert frame(spark, url).count() == 101


def test_the_open_ledger_of_a_writer_that_died(spark: Any, url: str, tmp_path: Any) -> None:
    import subprocess
    import sys

    program = (
        "import dlog, os\n"
        f"log = dlog.open_writer('orders', url={url!r})\n"
        "log.append_many([b'%d' % i for i in range(500)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run([sys.executable, "-c", program], check=False, timeout=50)
    assert died.returncode == -9
    assert expect_equal(frame(spark, url, columns=WHOLE), url) == 500


def test_the_schema_is_that_of_kafka(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append(b"x")
    plain = frame(spark, url)
    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    more = frame(spark, url, includeHeaders="true", includePosition="true")
    assert more.columns[7:] == ["headers", "ledgerId", "entryId", "batchIdx"]
    assert (
        more.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    )
    narrow = spark.read.format("dlog").schema("offset bigint, value binary").option("url", url)
    assert [tuple(row) for row in narrow.load("orders").collect()] == [(0, b"x")]


def test_nothing_to_read(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        assert frame(spark, url).count() == 0
        log.append_many([b"x"] * 10)
    assert frame(spark, url, startingOffsets="latest").count() == 0
    assert frame(spark, url, log="", subscribePattern="nobody.*").count() == 0


def test_several_logs(spark: Any, url: str) -> None:
    with dlog.connect(url) as client:
        for name, count in (("a", 10), ("b", 20), ("c", 30)):
            with client.open_writer(name) as log:
                log.append_many([name.encode()] * count)

    def counts(**options: Any) -> dict[str, int]:
        df = frame(spark, url, log="", **options)
        return {row["topic"]: row["count"] for row in df.groupBy("topic").count().collect()}

    assert counts(subscribe="a, c") == {"a": 10, "c": 30}
    assert counts(subscribePattern="[ab]") == {"a": 10, "b": 20}
    assert counts(assign='{"b": [0]}') == {"b": 20}
    places = json.dumps({"a": {"0": 4}, "b": {"0": -2}})
    ends = json.dumps({"a": {"0": -1}, "b": {"0": 7}})
    assert counts(subscribe="a,b", startingOffsets=places, endingOffsets=ends) == {"a": 6, "b": 7}


def test_from_an_id_and_a_time(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url, create=SMALL) as log:
        ids = [log.append(b"%d" % i * 500) for i in range(60)]
    with dlog.open_reader("orders", url=url) as reader:
        times = [message.timestamp_us for message in reader]
    place = json.dumps({"orders": {"0": str(ids[41])}})
    assert rows(frame(spark, url, startingOffsets=place))[0]["offset"] == 41
    milliseconds = times[30] // 1000 + 1
    first = next(seq for seq, time_us in enumerate(times) if time_us >= milliseconds * 1000)
    assert rows(frame(spark, url, startingTimestamp=milliseconds))[0]["offset"] == first
    by_log = json.dumps({"orders": {"0": milliseconds}})
    assert rows(frame(spark, url, startingOffsetsByTimestamp=by_log))[0]["offset"] == first
    assert rows(frame(spark, url, endingTimestamp=milliseconds))[-1]["offset"] == first - 1
    late = times[-1] // 1000 + 60_000
    with pytest.raises(Exception, match="has nothing from"):
        frame(spark, url, startingTimestamp=late).count()
    latest = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert frame(spark, url, **latest).count() == 0


def test_truncation_is_told_or_jumped_over(spark: Any, url: str) -> None:
    with dlog.connect(url) as client:
        with client.open_writer("orders", create=SMALL) as log:
            for i in range(60):
                log.append(b"%d" % i * 500)
        planned = frame(spark, url, startingOffsets='{"orders": {"0": 0}}')
        assert planned.count() == 60
        client.admin.truncate("orders", before=40)
        with pytest.raises(Exception, match="truncated"):
            planned.count()
        with pytest.raises(Exception, match="truncated"):
            frame(spark, url, startingOffsets='{"orders": {"0": 0}}').count()
        lenient = {"startingOffsets": '{"orders": {"0": 0}}', "failOnDataLoss": "false"}
        assert frame(spark, url, **lenient).count() == 20
        assert frame(spark, url).count() == 20


def test_five_hundred_ledgers(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url, create=dlog.LogOptions(segment_bytes=4096)) as log:
        for i in range(1100):
            log.append(b"%04d" % i * 1200)
    with dlog.connect(url) as client:
        assert len(client.admin.segments("orders")) >= 500
    assert expect_equal(frame(spark, url, columns=WHOLE), url) == 1100


def test_one_huge_ledger_is_read_in_parts(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append_many([b"%07d" % i * 14 for i in range(60_000)], keys=[b"k"] * 60_000)
    with dlog.connect(url) as client:
        assert len(client.admin.segments("orders")) == 1
    df = frame(spark, url, targetPartitionBytes="1m")
    assert df.rdd.getNumPartitions() >= 5
    assert df.selectExpr("count(*)", "count(distinct offset)", "sum(offset)").collect() == [
        (60_000, 60_000, 60_000 * 59_999 // 2)
    ]


FILTERS = [
    "offset >= 700 and offset < 720",
    "offset = 1234",
    "offset in (5, 50, 2500)",
    "offset in (5, null)",
    "offset > 2900 or offset < 3",
    "offset < 0",
    "offset > 99999999",
    "partition = 0",
    "partition = 1",
    "topic = 'orders'",
    "topic in ('others', 'orders')",
    "topic = 'others'",
    "ledgerId > 2 and ledgerId <= 5",
    "ledgerId = 3 and entryId < 4",
    "timestamp >= timestamp'2000-01-01'",
    "timestamp < timestamp'2000-01-01'",
    "timestamp >= timestamp'{some_time}'",
    "timestamp > timestamp'{some_time}' and offset < 3040",
    "timestamp <= timestamp'{some_time}'",
    "timestamp < timestamp'{some_time}'",
    "timestamp = timestamp'{some_time}'",
    "timestamp in (timestamp'{some_time}', timestamp'2000-01-01')",
    "to_date(timestamp) >= date'2001-01-01'",
    "offset >= 100 and length(value) > 8 and not (offset = 150)",
    "offset <=> 17",
    "offset is null",
    "value = cast('told' as binary)",
]


@pytest.fixture(scope="module")
def story(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    url = f"file:{tmp_path_factory.mktemp('story')}"
    write_story(url)
    plain = frame(spark, url, includePosition="true").cache()
    plain.createOrReplaceTempView("story")
    return url, plain


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_narrows_and_changes_nothing(
    spark: Any, story: tuple[str, Any], where: str
) -> None:
    url, plain = story
    where = where.format(some_time=plain.where("offset = 3030").collect()[0]["timestamp"])
    pushed = frame(spark, url, includePosition="true", pushdown="true").where(where)
    expected = sorted(row["offset"] for row in plain.where(where).collect())
    assert sorted(row["offset"] for row in pushed.collect()) == expected


def test_a_filter_is_narrower(spark: Any, story: tuple[str, Any]) -> None:
    url, _ = story
    parts = {"pushdown": "true", "maxRecordsPerPartition": 100}
    assert frame(spark, url, **parts).where("offset < 250").rdd.getNumPartitions() <= 4
    assert frame(spark, url, **parts).rdd.getNumPartitions() > 30


def test_a_filter_on_what_was_truncated_is_no_failure(spark: Any, url: str) -> None:
    with dlog.connect(url) as client:
        with client.open_writer("orders", create=SMALL) as log:
            for i in range(60):
                log.append(b"%d" % i * 500)
        client.admin.truncate("orders", before=40)
    pushed = frame(spark, url, pushdown="true")
    assert pushed.where("offset < 30").count() == 0
    assert pushed.where("offset >= 30").count() == 20
    assert pushed.where("timestamp >= timestamp'2000-01-01'").count() == 20


def test_where_push_down_is_off(spark: Any, story: tuple[str, Any]) -> None:
    url, _ = story
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert frame(spark, url).where("offset < 10").count() == 10
        with pytest.raises(Exception, match="filterPushdown"):
            frame(spark, url, pushdown="true").where("offset < 10").count()
    finally:
        spark.conf.set(name, "true")


def test_sql_finds_the_format(spark: Any, story: tuple[str, Any]) -> None:
    url, plain = story
    spark.sql(
        "create or replace temporary view by_name using dlog "
        f"options (url '{url}', subscribe 'orders')"
    )
    assert spark.sql("select count(*) from by_name").collect()[0][0] == plain.count()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, "for streaming queries only"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "the same thing twice"),
        ({"startingOffsets": '{"others": {"0": 1}}'}, "nobody asked for the log 'others'"),
        ({"startingOffsets": '{"orders": {"1": 1}}'}, "is a plain log and has shard 0"),
        ({"endingOffsets": "earliest"}, "nothing ends at the beginning"),
        ({"columns": "value,size"}, "there is no column 'size'"),
        ({"dlog.password": "swordfish"}, "say where it stands"),
        ({"dlog.sesame": "1"}, "unknown option dlog.sesame"),
        ({"targetPartitionBytes": "many"}, "is a size"),
        ({"subscribe": "others"}, "say the same thing twice"),
    ],
)
def test_wrong_options_are_refused_by_name(
    spark: Any, story: tuple[str, Any], options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told) as caught:
        frame(spark, story[0], **options).count()
    assert "swordfish" not in str(caught.value)

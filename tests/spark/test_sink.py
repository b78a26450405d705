"""The sink: what a DataFrame has is in the log once, whole and in order, or not at all."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark.errors
import pytest

import dlog
from tests.pace import Deadline

SMALL = dlog.LogOptions(segment_bytes=1 << 16)


def messages(url: str, log: str = "out") -> list[dlog.Message]:
    with dlog.open_reader(log, url=url) as reader:
        return list(reader)


def numbers(spark: Any, count: int, parts: int = 4) -> Any:
    return spark.range(0, count, 1, parts).selectExpr(
        "cast(id as string) as value", "cast(id % 7 as string) as key"
    )


def write(df: Any, url: str, **options: Any) -> None:
    writer = df.write.format("dlog").mode("append").option("url", url)
    for name, value in {"topic": "out", **options}.items():
        writer = writer.option(name, value)
    writer.save()


def ledgers_that_nobody_lists(url: str) -> list[Any]:
    with dlog.connect(url) as client:
        return [
            each
            for each in client.admin.fsck().findings
            if each.kind.value in ("orphan", "maybe_in_use")
        ]


def test_a_frame_is_there_once(spark: Any, url: str) -> None:
    write(numbers(spark, 10_000), url)
    found = messages(url)
    assert [m.seq for m in found] == list(range(10_000))
    assert sorted(int(m.value or b"") for m in found) == list(range(10_000))
    assert all(int(m.key or b"") == int(m.value or b"") % 7 for m in found)
    by_ledger: dict[int, list[int]] = {}
    for m in found:
        by_ledger.setdefault(m.ledger_id, []).append(int(m.value or b""))
    assert len(by_ledger) == 4
    assert all(run == sorted(run) for run in by_ledger.values()), "in the order of each task"
    write(numbers(spark, 100), url)
    assert len(messages(url)) == 10_100, "another write is another batch"
    assert not ledgers_that_nobody_lists(url)


def test_every_field(spark: Any, url: str) -> None:
    at = datetime(2020, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    schema = (
        "value binary, key binary, headers array<struct<key:string,value:binary>>, topic string, "
        "partition int, eventTime timestamp"
    )
    rows = [
        (b"x", b"k", [("a", b"1"), ("a", b"")], "one", 0, at),
        (None, b"k", None, "two", None, None),
        (b"", None, [], "one", 0, None),
        (b"z", None, [("b", b"2")], "two", 0, at),
    ]
    df = spark.createDataFrame(rows, schema).coalesce(1)
    df.write.format("dlog").mode("append").option("url", url).save()
    one, two = messages(url, "one"), messages(url, "two")
    assert [(m.key, m.value) for m in one] == [(b"k", b"x"), (None, b"")]
    assert [tuple(pair) for pair in one[0].headers] == [("a", b"1"), ("a", b"")]
    assert one[0].event_time_us == int(at.timestamp()) * 1_000_000 + 7
    assert [(m.key, m.value) for m in two] == [(b"k", None), (None, b"z")]
    assert [tuple(pair) for pair in two[1].headers] == [("b", b"2")]
    with_option = df.write.format("dlog").mode("append").option("url", url)
    with_option.option("topic", "all").save()
    assert len(messages(url, "all")) == 4, "the option comes before the column"


def test_large_tasks_fill_several_ledgers(spark: Any, url: str) -> None:
    with dlog.connect(url) as client:
        client.admin.create("out", segment_bytes=1 << 16)
    df = spark.range(0, 3000, 1, 2).selectExpr("repeat(cast(id as string), 100) as value")
    write(df, url)
    assert len(messages(url)) == 3000
    write(df, url, codec="zstd")
    assert len(messages(url)) == 6000
    with dlog.connect(url) as client:
        assert len(client.admin.segments("out")) >= 4


def test_a_writer_that_lives_is_fenced(spark: Any, url: str) -> None:
    with dlog.connect(url) as client:
        living = client.open_writer("out")
        living.append(b"before")
        write(numbers(spark, 10), url)
        with pytest.raises(dlog.Fenced):
            living.append(b"after")
        with client.open_writer("out") as next_one:
            next_one.append(b"behind")
    values = [m.value for m in messages(url)]
    assert (values[0], values[-1], len(values)) == (b"before", b"behind", 12)


def test_a_task_that_fails_leaves_nothing(spark: Any, url: str) -> None:
    write(numbers(spark, 5), url)
    df = numbers(spark, 1000).selectExpr(
        "if(value = '999', raise_error('planted'), value) as value"
    )
    with pytest.raises(Exception, match="planted"):
        write(df, url)
    assert len(messages(url)) == 5
    # Tasks that Spark killed beside it could not take theirs away: those are nobody's.
    deadline = Deadline(60)
    with dlog.connect(url) as client:
        while ledgers_that_nobody_lists(url):
            assert not deadline.passed()
            client.admin.repair(client.admin.fsck(grace_s=0))
    assert len(messages(url)) == 5


def test_overwriting_and_wrong_columns_are_refused(spark: Any, url: str) -> None:
    df = numbers(spark, 5)
    with pytest.raises(Exception, match="a log is appended to"):
        df.write.format("dlog").mode("overwrite").option("url", url).option("topic", "out").save()
    with pytest.raises(Exception, match="no column 'id' is written"):
        write(spark.range(5), url)
    with pytest.raises(Exception, match="there is no column value"):
        write(df.drop("value"), url)
    with pytest.raises(Exception, match="which log"):
        df.write.format("dlog").mode("append").option("url", url).save()
    with pytest.raises(Exception, match="shard 0 alone"):
        write(df.selectExpr("value", "1 as partition"), url)
    with pytest.raises(Exception, match="createLogs=false"):
        write(df, url, topic="nowhere", createLogs="false")


def test_at_least_once_appends_through_writers_in_turn(spark: Any, url: str) -> None:
    write(numbers(spark, 1000), url, delivery="atLeastOnce")
    found = [int(m.value or b"") for m in messages(url)]
    assert sorted(found) == list(range(1000))
    with dlog.connect(url) as client:
        assert client.admin.describe("out").epoch >= 4, "each task was the writer"
    df = numbers(spark, 10).selectExpr("value", "timestamp'2020-01-02 03:04:05' as eventTime")
    write(df, url, delivery="atLeastOnce", topic="dated")
    at_us = int(datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 1_000_000
    assert [m.event_time_us for m in messages(url, "dated")] == [at_us] * 10


# --- streams


class Pipe:
    """From the log `orders` into the log `out`, one batch after the other."""

    def __init__(self, spark: Any, url: str, where: Path) -> None:
        self._spark, self._url, self._where = spark, url, where

    def run(self, log: str = "out") -> None:
        reader = self._spark.readStream.format("dlog").option("url", self._url)
        frame = (
            reader.option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40)
            .option("minPartitions", 2)
            .load("orders")
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("dlog")
            .option("url", self._url)
            .option("topic", log)
            .option("checkpointLocation", str(self._where))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()


def fill(url: str, count: int, first: int = 0) -> None:
    with dlog.open_writer("orders", url=url, create=SMALL) as writer:
        writer.append_many([b"%d" % i for i in range(first, first + count)])


def test_a_stream_into_a_second_log(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 100)
    pipe = Pipe(spark, url, tmp_path / "c")
    pipe.run()
    fill(url, 30, first=100)
    pipe.run()
    assert [int(m.value or b"") for m in messages(url)] == list(range(130))
    assert not ledgers_that_nobody_lists(url)


def test_a_batch_that_was_published_and_not_noted_is_not_published_again(
    spark: Any, url: str, tmp_path: Path
) -> None:
    """The driver died between the commit of the sink and that of the checkpoint."""
    fill(url, 100)
    pipe = Pipe(spark, url, tmp_path / "c")
    pipe.run()
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    pipe.run()
    assert [int(m.value or b"") for m in messages(url)] == list(range(100))
    assert not ledgers_that_nobody_lists(url)


def test_writers_of_others_between_batches(spark: Any, url: str, tmp_path: Path) -> None:
    """Somebody else writes the same log, again and again: both get through, each message once."""
    fill(url, 400)
    stop = threading.Event()
    appended: list[bytes] = []

    def rival() -> None:
        with dlog.connect(url) as client:
            while not stop.is_set():
                value = b"rival %d" % len(appended)
                try:
                    with client.open_writer("out") as log:
                        log.append(value)
                except dlog.Fenced as error:
                    if error.outcome is not dlog.Outcome.NOT_HAPPENED:
                        continue
                else:
                    appended.append(value)
                stop.wait(0.2)

    thread = threading.Thread(target=rival)
    thread.start()
    try:
        pipe = Pipe(spark, url, tmp_path / "c")
        for _ in range(20):
            try:
                pipe.run()
                break
            except pyspark.errors.StreamingQueryException as error:
                if "Conflict" not in str(error):
                    raise
    finally:
        stop.set()
        thread.join()
    values = [m.value or b"" for m in messages(url)]
    ours = [int(value) for value in values if not value.startswith(b"rival")]
    assert ours == list(range(400))
    theirs = [value for value in values if value.startswith(b"rival")]
    assert [value for value in theirs if value in set(appended)] == appended


def test_a_named_write_adds_only_what_is_missing(spark: Any, url: str) -> None:
    """The first run died between one log and the next."""
    rows = numbers(spark, 100).selectExpr("value", "if(key < '3', 'a', 'b') as topic")
    named = {"url": url, "query": "monday"}
    rows.where("topic = 'a'").write.format("dlog").mode("append").options(**named).save()
    first = [m.value for m in messages(url, "a")]
    rows.write.format("dlog").mode("append").options(**named).save()
    assert [m.value for m in messages(url, "a")] == first
    assert len(first) + len(messages(url, "b")) == 100
    assert not ledgers_that_nobody_lists(url)

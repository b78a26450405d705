"""Streams of shards as tables of Spark: each key in order, over splits and merges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dlog

KEYS = [b"key %d" % number for number in range(12)]
ByKey = dict[bytes, list[bytes]]


@contextmanager
def connected(url: str) -> Iterator[Any]:
    with dlog.connect(url) as client:
        yield client


class Story:
    """Rounds of one message for each key, with changes in between."""

    def __init__(self, url: str, shards: int = 3) -> None:
        self.url = url
        self.sent: ByKey = defaultdict(list)
        self.round = 0
        with connected(url) as client:
            client.create_stream("orders", shards=shards)

    def goes_on(self, rounds: int = 1) -> None:
        with connected(self.url) as client, client.stream("orders").open_writer() as writer:
            for _ in range(rounds):
                for key in KEYS:
                    value = b"%d" % self.round
                    writer.submit(value, key=key)
                    self.sent[key].append(value)
                writer.flush()
                self.round += 1

    def changes(self, change: Callable[[Any], Any]) -> Any:
        with connected(self.url) as client:
            return change(client.stream("orders"))


def by_key(rows: list[Any]) -> ByKey:
    """In order within a shard; shards in the order of their numbers, which parents have lower."""
    found: ByKey = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found[bytes(row["key"])].append(bytes(row["value"]))
    return found


def frame(spark: Any, url: str, **options: Any) -> Any:
    reader = spark.read.format("dlog").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load("orders")


class Query:
    """Started again from its checkpoint; what each micro-batch brought."""

    def __init__(self, spark: Any, url: str, where: Path, **options: Any) -> None:
        self._spark, self._where = spark, where
        self._options = {
            "url": url,
            "startingOffsets": "earliest",
            "subscribe": "orders",
            **options,
        }
        self.batches: list[list[Any]] = []

    def run(self) -> list[list[Any]]:
        before = len(self.batches)
        reader = self._spark.readStream.format("dlog")
        for name, value in self._options.items():
            reader = reader.option(name, str(value))

        def take(df: Any, _: int) -> None:
            self.batches.append(df.select("key", "value", "topic", "partition", "offset").collect())

        query = (
            reader.load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._where))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        return self.batches[before:]

    @property
    def keys(self) -> ByKey:
        """As whoever takes one micro-batch after the other sees them."""
        found: ByKey = defaultdict(list)
        for batch in self.batches:
            for key, values in by_key(batch).items():
                found[key] += values
        return found


def test_a_stream_is_a_table_with_a_shard_in_each_row(spark: Any, url: str) -> None:
    story = Story(url)
    story.goes_on(3)
    low, high = story.changes(lambda stream: stream.split(0))
    story.goes_on(2)
    story.changes(lambda stream: stream.merge(high.number, 1))
    story.goes_on(2)
    rows = frame(spark, url).collect()
    assert by_key(rows) == story.sent
    assert {row["topic"] for row in rows} == {"orders"}
    assert {row["partition"] for row in rows} >= {0, 1, low.number}
    for row in rows:
        assert row["partition"] in range(6)
    one = frame(spark, url, pushdown="true").where(f"partition = {low.number}").collect()
    assert {row["partition"] for row in one} == {low.number}
    assert len(one) == sum(row["partition"] == low.number for row in rows)
    assert frame(spark, url, startingOffsets="latest").count() == 0


def test_a_stream_from_a_time(spark: Any, url: str) -> None:
    story = Story(url)
    story.goes_on(2)
    story.changes(lambda stream: stream.split(0))
    story.goes_on(2)
    with connected(url) as client, client.stream("orders").open_reader() as reader:
        times = sorted(message.timestamp_us for _, message in reader)
    ms = times[len(times) // 2] // 1000
    rows = frame(spark, url, startingTimestamp=ms, failOnDataLoss="true").collect()
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    with connected(url) as client, client.stream("orders").open_reader(start=since) as reader:
        assert len(rows) == len(list(reader))


def test_places_of_single_shards_are_refused(spark: Any, url: str) -> None:
    story = Story(url)
    story.goes_on()
    with pytest.raises(Exception, match="stream of shards: begin and end"):
        frame(spark, url, startingOffsets='{"orders": {"0": 1}}').collect()
    named = spark.read.format("dlog").option("url", url).load("orders/0")  # a log as any other
    assert {(row["topic"], row["partition"]) for row in named.collect()} == {("orders/0", 0)}


def test_a_child_is_read_in_a_later_batch_than_its_parents(
    spark: Any, url: str, tmp_path: Path
) -> None:
    """Under a bound that cuts shards in the middle, over restarts and changes: each key in order,
    each message once."""
    story = Story(url)
    story.goes_on(3)
    query = Query(spark, url, tmp_path / "c", maxOffsetsPerTrigger=17)
    query.run()
    assert query.keys == story.sent
    _, high = story.changes(lambda stream: stream.split(0))
    story.goes_on(3)
    merged = story.changes(lambda stream: stream.merge(high.number, 1))
    story.goes_on(3)
    query.run()
    assert query.keys == story.sent
    read_at: dict[int, list[int]] = defaultdict(list)
    for number, batch in enumerate(query.batches):
        for row in batch:
            read_at[row["partition"]].append(number)
    assert max(read_at[0]) < min(read_at[high.number])
    assert max(read_at[high.number] + read_at[1]) < min(read_at[merged.number])
    assert [batch for batch in query.run() if batch] == []


def test_what_was_trimmed_behind_a_query_is_no_loss(spark: Any, url: str, tmp_path: Path) -> None:
    story = Story(url)
    story.goes_on(2)
    query = Query(spark, url, tmp_path / "c")
    query.run()
    story.changes(lambda stream: stream.split(0))
    story.goes_on()
    query.run()
    with connected(url) as client:
        client.admin.truncate("orders/0", "latest")
        assert client.stream("orders").trim() == (0,)
    story.goes_on()
    query.run()
    assert query.keys == story.sent


def test_what_was_trimmed_before_it_was_read_is_told(spark: Any, url: str, tmp_path: Path) -> None:
    story = Story(url)
    story.goes_on(2)
    query = Query(spark, url, tmp_path / "c")
    query.run()
    story.goes_on()
    story.changes(lambda stream: stream.split(0))
    with connected(url) as client:
        client.admin.truncate("orders/0", "latest")
        assert client.stream("orders").trim() == (0,)
    with pytest.raises(Exception, match="orders/0"):
        query.run()
    lenient = Query(spark, url, tmp_path / "c", failOnDataLoss="false")
    lenient.batches = query.batches
    story.goes_on()
    lenient.run()
    assert {values[-1] for values in lenient.keys.values()} == {b"3"}


def test_a_plain_log_that_was_split_goes_on(spark: Any, url: str, tmp_path: Path) -> None:
    with dlog.open_writer("orders", url=url) as writer:
        for number in range(5):
            writer.append(b"%d" % number, key=b"k")
    query = Query(spark, url, tmp_path / "c")
    query.run()
    with connected(url) as client:
        stream = client.stream("orders")
        stream.split(0)
        with stream.open_writer() as writer:
            writer.append(b"5", key=b"k")
    query.run()
    assert query.keys == {b"k": [b"%d" % number for number in range(6)]}


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_writing_to_a_stream_is_refused(spark: Any, url: str, delivery: str) -> None:
    Story(url)
    rows = spark.createDataFrame([(b"k", b"v")], "key binary, value binary")
    writing = rows.write.format("dlog").mode("append").option("url", url)
    with pytest.raises(Exception, match="is a stream of shards, which Spark does not write"):
        writing.option("delivery", delivery).save("orders")

"""The streaming source: each message in one micro-batch, whatever happens between and inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dlog

SMALL = dlog.LogOptions(segment_bytes=1 << 14)


class Query:
    """One that is started again from its checkpoint, and what each batch of it brought."""

    def __init__(self, spark: Any, url: str, where: Path, **options: Any) -> None:
        self._spark = spark
        self._options = {"url": url, "startingOffsets": "earliest", **options}
        self._where = where
        self.batches: list[list[int]] = []
        self.fails: Callable[[int], bool] = lambda batch_id: False

    def run(self) -> list[list[int]]:
        """All that is there now; what it brought."""
        before = len(self.batches)
        reader = self._spark.readStream.format("dlog")
        for name, value in self._options.items():
            reader = reader.option(name, str(value))

        def take(df: Any, batch_id: int) -> None:
            seqs = [row["offset"] for row in df.select("offset").collect()]
            if self.fails(batch_id):
                raise RuntimeError("this batch fails")
            self.batches.append(seqs)

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
        self.progress = query.recentProgress
        return self.batches[before:]

    @property
    def seqs(self) -> list[int]:
        return [seq for batch in self.batches for seq in batch]


def fill(url: str, count: int, log: str = "orders", first: int = 0) -> None:
    with dlog.open_writer(log, url=url, create=SMALL) as writer:
        for i in range(first, first + count):
            writer.append(b"%d" % i * 200)


def test_each_message_once_over_restarts_rotations_and_takeovers(
    spark: Any, url: str, tmp_path: Path
) -> None:
    fill(url, 100)
    query = Query(spark, url, tmp_path / "checkpoint", subscribe="orders", maxOffsetsPerTrigger=40)
    assert [len(batch) for batch in query.run()] == [40, 40, 20]
    assert query.run() == []
    fill(url, 50, first=100)  # each one is a takeover, and the ledgers are small
    with dlog.open_writer("orders", url=url) as living:
        living.append(b"open")
        assert sum(map(len, query.run())) == 51
        living.append(b"still the writer")
    assert query.seqs == list(range(151))


def test_a_batch_that_failed_is_run_again_as_it_was(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 60)
    query = Query(spark, url, tmp_path / "checkpoint", subscribe="orders", maxOffsetsPerTrigger=25)
    query.fails = lambda batch_id: batch_id == 1
    with pytest.raises(Exception, match="this batch fails"):
        query.run()
    fill(url, 30, first=60)
    query.fails = lambda batch_id: False
    first = query.run()[0]
    assert first == list(range(25, 50)), "as it was planned the first time"
    assert query.seqs == list(range(90))


def test_bytes_bound_a_batch(spark: Any, url: str, tmp_path: Path) -> None:
    with dlog.open_writer("orders", url=url, create=SMALL) as writer:
        for _ in range(200):
            writer.append(b"x" * 1000)
    query = Query(spark, url, tmp_path / "c", subscribe="orders", maxBytesPerTrigger="40k")
    sizes = [len(batch) for batch in query.run()]
    assert query.seqs == list(range(200))
    assert all(25 <= size <= 45 for size in sizes[:-1]), sizes


def test_one_message_larger_than_the_bound_goes_on(spark: Any, url: str, tmp_path: Path) -> None:
    with dlog.open_writer("orders", url=url) as writer:
        for _ in range(3):
            writer.append(b"x" * 100_000)
    query = Query(spark, url, tmp_path / "c", subscribe="orders", maxBytesPerTrigger="1k")
    assert [len(batch) for batch in query.run()] == [1, 1, 1]


def test_all_logs_share_a_batch(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 90, "a")
    fill(url, 10, "b")
    query = Query(spark, url, tmp_path / "c", subscribePattern="[a-z]", maxOffsetsPerTrigger=20)
    assert [len(batch) for batch in query.run()] == [20] * 5
    fill(url, 30, "c")  # a log that is new is read from its beginning
    fill(url, 5, "b", first=10)
    assert sum(map(len, query.run())) == 35
    assert sorted(query.seqs) == sorted([*range(90), *range(15), *range(30)])


def test_offsets_read_as_those_of_kafka_and_name_the_log(
    spark: Any, url: str, tmp_path: Path
) -> None:
    fill(url, 10)
    query = Query(spark, url, tmp_path / "c", subscribe="orders")
    query.run()
    end = query.progress[-1]["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    with dlog.connect(url) as client:
        uid = client.admin.describe("orders").uid
    assert end == {"orders": {"0": 10, "uid": uid}}
    later = Query(spark, url, tmp_path / "d", subscribe="orders", startingOffsets=json.dumps(end))
    fill(url, 3, first=10)
    assert later.run() == [[10, 11, 12]]
    with dlog.connect(url) as client:
        client.admin.remove("orders")
    fill(url, 20)
    for option in ("startingOffsets", "endingOffsets"):
        batch = spark.read.format("dlog").option("url", url).option(option, json.dumps(end))
        with pytest.raises(Exception, match="made again since"):
            batch.load("orders").count()


def test_truncation_under_a_query(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 20)
    strict = Query(spark, url, tmp_path / "strict", subscribe="orders")
    lenient = Query(spark, url, tmp_path / "lenient", subscribe="orders", failOnDataLoss="false")
    strict.run()
    lenient.run()
    fill(url, 40, first=20)
    with dlog.connect(url) as client:
        client.admin.truncate("orders", before=50)
    with pytest.raises(Exception, match="truncated"):
        strict.run()
    assert lenient.run() == [list(range(50, 60))]


def test_a_log_that_was_made_again_is_not_taken_for_the_old_one(
    spark: Any, url: str, tmp_path: Path
) -> None:
    fill(url, 20)
    strict = Query(spark, url, tmp_path / "strict", subscribe="orders")
    lenient = Query(spark, url, tmp_path / "lenient", subscribe="orders", failOnDataLoss="false")
    strict.run()
    lenient.run()
    with dlog.connect(url) as client:
        client.admin.remove("orders")
    fill(url, 30)  # more than it had
    with pytest.raises(Exception, match="not the one that this query read"):
        strict.run()
    assert lenient.run() == [list(range(30))]


def test_nor_is_one_that_has_less_than_it_had(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 20)
    strict = Query(spark, url, tmp_path / "strict", subscribe="orders")
    lenient = Query(spark, url, tmp_path / "lenient", subscribe="orders", failOnDataLoss="false")
    strict.run()
    lenient.run()
    with dlog.connect(url) as client:
        client.admin.remove("orders")
    fill(url, 5)
    with pytest.raises(Exception, match="not the one that this query read"):
        strict.run()
    assert lenient.run() == [list(range(5))]


def test_a_group_holds_what_was_not_committed(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 100)
    query = Query(
        spark, url, tmp_path / "c", subscribe="orders", group="reports", maxOffsetsPerTrigger=30
    )
    query.run()
    with dlog.connect(url) as client:
        (hold,) = client.admin.holds("orders")
        assert hold.name == "reports"
        assert 0 < hold.seq <= 100
        behind = hold.seq
        fill(url, 10, first=100)
        query.run()
        (hold,) = client.admin.holds("orders")
        assert hold.seq > behind
        assert client.admin.truncate("orders", before=105).head_seq <= hold.seq


def test_few_messages_wait_for_more(url: str, tmp_path: Path) -> None:
    """Asked as Spark asks, since a query that waits would have to be waited for."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from dlog.spark.access import close_all
    from dlog.spark.options import source_options
    from dlog.spark.stream import StreamReader

    fill(url, 5)
    given = {"url": url, "path": "orders", "startingOffsets": "earliest"}
    given |= {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h", "maxOffsetsPerTrigger": "12"}
    options = source_options(given, "stream")
    reader = StreamReader(options, ("value",))
    try:
        start = reader.initialOffset()
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(12)
        first = reader.latestOffset(start, limit)
        assert first["orders"]["0"] == 5, "the first batch waits for nobody"
        fill(url, 5, first=5)
        assert reader.latestOffset(first, limit) == first
        fill(url, 10, first=10)
        second = reader.latestOffset(first, limit)
        assert second["orders"]["0"] == 17
        assert reader.latestOffset(second, limit) == second
        assert reader.latestOffset(second, ReadAllAvailable())["orders"]["0"] == 20
        assert sum(part.range.messages for part in reader.partitions(first, second)) == 12
    finally:
        close_all()

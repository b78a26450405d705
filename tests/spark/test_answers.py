"""Spark gets what the plain reader gets, of logs and streams in each state. All of them are in one
place, so that one query asks for all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import pytest

from dlog.clock import us_datetime
from dlog.spark.jobs import compact, export, stats, verify
from tests.answers.asking import (
    CONTENT,
    WITH_ID,
    Asked,
    Plain,
    Row,
    Where,
    differ,
    shard_answers,
)
from tests.answers.source_ways import COLUMNS, spark_row
from tests.answers.states import STATES, World, made_world

ALL_NAMES = ",".join(STATES)
TIMES = ("timestamp", "eventTime")
JOBS_S = 60.0  # each of them over all states


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    with made_world(tmp_path_factory.mktemp("answers")) as world:
        yield Plain(world)


def of_all(world: World, reader: Any, **options: Any) -> Any:
    given = {"url": world.url, "subscribe": ALL_NAMES, "columns": COLUMNS, **options}
    return reader.format("dlog").options(**given).load()


def rows_of(frame: Any) -> list[Any]:
    """With times as numbers, since Python has no datetime for all of them."""
    there = [f"unix_micros({name}) as {name}" if name in TIMES else name for name in frame.columns]
    return [row.asDict() for row in frame.selectExpr(*there).collect()]


def by_name(rows: Iterable[Any]) -> dict[str, list[tuple[int, Row]]]:
    found: dict[str, list[tuple[int, Row]]] = {name: [] for name in STATES}
    for row in rows:
        found[row["topic"]].append((row["partition"], spark_row(row)))
    return found


def expect(
    plain: Plain,
    rows: Iterable[Any],
    fields: tuple[str, ...] = WITH_ID,
    where: Callable[[str], Where | None] = lambda name: None,
) -> None:
    told = []
    for name, found in by_name(rows).items():
        expected = plain.of_logs(Asked(plain.world, name, "", where=where(name)))
        got = shard_answers(found)
        told += [f"{name}, {each}" for each in differ(expected, got, frozenset({"rows"}), fields)]
    assert told == [], "\n".join(told)


def test_a_batch(spark: Any, plain: Plain) -> None:
    expect(plain, rows_of(of_all(plain.world, spark.read)))


def test_a_batch_in_small_parts(spark: Any, plain: Plain) -> None:
    frame = of_all(plain.world, spark.read, maxRecordsPerPartition=100, minPartitions=50)
    expect(plain, rows_of(frame))


def test_a_batch_without_payload(spark: Any, plain: Plain) -> None:
    frame = of_all(plain.world, spark.read, columns="topic,partition,offset")
    expect(plain, rows_of(frame), ("seq",))


def middle_of(plain: Plain) -> datetime:
    """A moment at which about half of all messages were there."""
    times = sorted(
        row.timestamp_us or 0
        for name in STATES
        for each in plain.of_logs(Asked(plain.world, name, "")).values()
        for row in each.facts["rows"]
    )
    return us_datetime(times[len(times) // 2])


FILTERS: dict[str, Callable[[datetime], tuple[str, Where]]] = {
    "since": lambda t: (f"timestamp >= timestamp'{t.isoformat()}'", Where(since=t)),
    "until": lambda t: (f"timestamp < timestamp'{t.isoformat()}'", Where(until=t)),
    "seqs": lambda t: ("offset >= 10 and offset < 120", Where(first_seq=10, end_seq=120)),
    "shard": lambda t: ("partition = 1", Where(shard=1)),
}


@pytest.mark.parametrize("pushdown", ["true", "false"])
@pytest.mark.parametrize("filtered", FILTERS)
def test_a_filter(spark: Any, plain: Plain, filtered: str, pushdown: str) -> None:
    text, where = FILTERS[filtered](middle_of(plain))
    frame = of_all(plain.world, spark.read, pushdown=pushdown).where(text)
    expect(plain, rows_of(frame), where=lambda name: where)


def test_a_filter_on_names(spark: Any, plain: Plain) -> None:
    wanted = ("segments", "split", "nobody")
    frame = of_all(plain.world, spark.read, pushdown="true").where(f"topic in {wanted}")
    nothing, everything = Where(shard=-1), None
    expect(plain, rows_of(frame), where=lambda n: everything if n in wanted else nothing)


@pytest.mark.parametrize("pace", [{}, {"maxOffsetsPerTrigger": 900}], ids=["all", "paced"])
def test_micro_batches(spark: Any, plain: Plain, tmp_path: Any, pace: dict[str, Any]) -> None:
    """Of what is there now."""
    messages = of_all(plain.world, spark.readStream, startingOffsets="earliest", **pace)
    rows: list[Any] = []
    query = (
        messages.writeStream.foreachBatch(lambda frame, _: rows.extend(rows_of(frame)))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    expect(plain, rows)


# --- jobs


def test_an_export(spark: Any, plain: Plain, tmp_path: Any) -> None:
    """Two of them, the second of which has nothing to add."""
    target, options = str(tmp_path / "lake"), {"url": plain.world.url}
    added = export.export(spark, options, ALL_NAMES, target)
    assert export.export(spark, options, ALL_NAMES, target) == 0
    frame = spark.read.parquet(target).selectExpr(
        "log as topic",
        "shard as partition",
        "seq as offset",
        "timestamp",
        "event_time as eventTime",
        "key",
        "value",
        "headers",
    )
    rows = sorted(rows_of(frame), key=lambda row: row["offset"])
    assert len(rows) == added
    expect(plain, rows, CONTENT)


def all_rows(plain: Plain, name: str) -> list[tuple[int, Row]]:
    """By shard and seq, which is the order of each key."""
    return [
        (number, row)
        for number, each in sorted(plain.of_logs(Asked(plain.world, name, "")).items())
        for row in each.facts["rows"]
    ]


def expect_stats(found: stats.Stats, rows: list[Row]) -> None:
    values = [row.value for row in rows]
    times = [row.timestamp_us or 0 for row in rows]
    assert (found.messages, found.tombstones) == (len(rows), values.count(None))
    assert found.bytes == sum(len(value) for value in values if value is not None)
    assert found.keys == len({row.key for row in rows} - {None})
    assert (found.first_us, found.last_us) == (min(times, default=0), max(times, default=0))
    assert sum(each.messages for each in found.slices) == len(rows)


def test_stats_of_all(spark: Any, plain: Plain) -> None:
    rows = [row for name in STATES for _, row in all_rows(plain, name)]
    expect_stats(stats.stats(spark, {"url": plain.world.url}, ALL_NAMES), rows)


@pytest.mark.tier("full", seconds=JOBS_S)
@pytest.mark.timeout(600)
def test_stats_of_each(spark: Any, plain: Plain) -> None:
    for name in STATES:
        found = stats.stats(spark, {"url": plain.world.url}, name)
        expect_stats(found, [row for _, row in all_rows(plain, name)])


@pytest.mark.tier("full", seconds=JOBS_S)
@pytest.mark.timeout(600)
def test_the_latest_of_each_key(spark: Any, plain: Plain) -> None:
    wrong = []
    for name in STATES:
        last = {row.key: (number, row.seq, row.value) for number, row in all_rows(plain, name)}
        expected = {
            place for key, place in last.items() if key is not None and place[2] is not None
        }
        expected |= {(n, row.seq, row.value) for n, row in all_rows(plain, name) if row.key is None}
        frame = compact.latest(spark, {"url": plain.world.url}, name)
        found = [
            (row["partition"], row["offset"], None if row["value"] is None else bytes(row["value"]))
            for row in frame.select("partition", "offset", "value").collect()
        ]
        if sorted(found, key=repr) != sorted(expected, key=repr):
            wrong.append(name)
    assert wrong == []


@pytest.mark.tier("full", seconds=JOBS_S)
@pytest.mark.timeout(600)
def test_each_log_is_whole(spark: Any, plain: Plain) -> None:
    wrong = []
    for name in STATES:
        for log in plain.world.shards(name).values():
            expected = plain.of_log(log)
            if expected.error is not None:
                continue
            found = verify.verify(spark, {"url": plain.world.url}, log)
            if not found.is_whole or found.messages != expected.facts["count"]:
                wrong.append((log, found))
    assert wrong == []

"""Ways to ask through Spark's source, called as Spark calls it, in this process and without a
virtual machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    LessThan,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dlog.clock import datetime_us
from dlog.spark.shards import column_of
from dlog.spark.source import DefaultSource
from tests.answers.asking import (
    BY_SEQ,
    BY_TIME,
    OF_STREAM,
    WHERE,
    WITH_ID,
    Answer,
    Answers,
    Asked,
    Row,
    Way,
    is_a_stream_too,
    of_logs,
    of_names,
    rows_by_shard,
    shard_answers,
)

COLUMNS = "key,value,topic,partition,offset,timestamp,headers,ledgerId,entryId,batchIdx,eventTime"
ALL = ReadAllAvailable()
SOURCE_WAYS: dict[str, Way] = {}


def options_of(asked: Asked, **options: Any) -> dict[str, str]:
    """Of a question that is asked by time or at all; Spark takes times in milliseconds."""
    given = {"url": asked.world.url, "subscribe": asked.name, "columns": COLUMNS, **options}
    if isinstance(asked.start, datetime):
        given["startingTimestamp"] = _milliseconds(asked.start)
        given["startingOffsetsByTimestampStrategy"] = "latest"
    if isinstance(asked.end, datetime):
        given["endingTimestamp"] = _milliseconds(asked.end)
    if asked.left:
        given["failOnDataLoss"] = "false"
    return {name: str(value) for name, value in given.items()}


def _milliseconds(moment: datetime) -> int:
    at_us = datetime_us(moment)
    assert at_us % 1000 == 0
    return at_us // 1000


def source_rows(batches: Iterable[Any], name: str) -> Iterator[tuple[int, Row]]:
    """Of Arrow batches, with the shard of each. Times as numbers, since Python has no datetime for
    all of them."""
    for batch in batches:
        columns = {
            field: (batch.column(field).cast("int64") if "ime" in field else batch.column(field))
            for field in batch.schema.names
        }
        for at in range(batch.num_rows):
            row = {field: column[at].as_py() for field, column in columns.items()}
            assert row.get("topic", name) == name
            yield row["partition"], spark_row(row)


def spark_row(row: Mapping[str, Any]) -> Row:
    """A message without headers has null."""
    place = (row["ledgerId"], row["entryId"], row["batchIdx"]) if "ledgerId" in row else None
    headers = tuple((each["key"], bytes(each["value"])) for each in row.get("headers") or ())
    return Row(
        row["offset"],
        row.get("key"),
        row.get("value"),
        headers,
        row.get("timestamp"),
        row.get("eventTime"),
        place,
    )


def _read(asked: Asked, filters: list[Filter] | None = None, **options: Any) -> Answers:
    source = DefaultSource(options_of(asked, **options))
    reader = source.reader(source.schema())
    if filters is not None:
        assert list(reader.pushFilters(filters)) == filters, "Spark filters once more"
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return shard_answers(source_rows(batches, asked.name))


@of_names("source: batch", *BY_TIME, fields=WITH_ID, ways=SOURCE_WAYS)
def _batch(asked: Asked) -> Answers:
    return _read(asked)


@of_names("source: batch in small parts", *BY_TIME, fields=WITH_ID, ways=SOURCE_WAYS)
def _parts(asked: Asked) -> Answers:
    return _read(asked, targetPartitionBytes="1k", maxRecordsPerPartition=9, minPartitions=5)


@of_names("source: batch without payload", *BY_TIME, fields=("seq",), ways=SOURCE_WAYS)
def _narrow(asked: Asked) -> Answers:
    return _read(asked, columns="partition,offset")


@of_logs("source: batch of seqs", *BY_SEQ, fields=WITH_ID, ways=SOURCE_WAYS, but=is_a_stream_too)
def _seqs(asked: Asked, log: str) -> Answer:
    given = options_of(asked, subscribe=log)
    given["startingOffsets"] = json.dumps({log: {"0": asked.start}})
    if asked.end is not None:
        given["endingOffsets"] = json.dumps({log: {"0": asked.end}})
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return Answer.of(rows=[row for _, row in source_rows(batches, log)])


@of_names("source: batch, filters pushed down", *WHERE, fields=WITH_ID, ways=SOURCE_WAYS)
def _pushed(asked: Asked) -> Answers:
    where = asked.where
    assert where is not None
    comparisons = {
        "since": [GreaterThanOrEqual(("timestamp",), where.since)],
        "until": [LessThan(("timestamp",), where.until)],
        "first_seq": [GreaterThanOrEqual(("offset",), where.first_seq)],
        "end_seq": [LessThan(("offset",), where.end_seq)],
        "shard": [EqualTo(("partition",), where.shard), EqualTo(("topic",), asked.name)],
    }
    filters = [
        each
        for name, some in comparisons.items()
        for each in some
        if getattr(where, name) is not None
    ]
    found = _read(asked, filters, pushdown="true")
    return {
        number: Answer.of(rows=[row for row in each.facts["rows"] if where.holds(number, row)])
        for number, each in found.items()
    }


# --- micro-batches


def micro_batches(asked: Asked, limit: Any, *, now: bool = False, **options: Any) -> Answers:
    """From the beginning to where it stands still."""
    given = options_of(asked, **options)
    if "startingTimestamp" not in given:
        given["startingOffsets"] = "earliest"
    source = DefaultSource(given)
    reader = source.streamReader(source.schema())
    at = as_spark_keeps_it(reader.initialOffset())
    if now:
        reader.prepareForTriggerAvailableNow()
    found: list[tuple[int, Row]] = []
    while (end := as_spark_keeps_it(reader.latestOffset(at, limit))) != at:
        parts = reader.partitions(at, end)
        batches = (batch for part in parts for batch in reader.read(part))
        found += source_rows(batches, asked.name)
        reader.commit(end)
        at = end
    rows = rows_by_shard(found)
    return {
        number: Answer.of(rows=rows[number], end=place["0"])
        for log, place in at.items()
        for number in [column_of(log, (asked.name,)).shard]
    }


def as_spark_keeps_it(offset: Any) -> Any:
    return json.loads(json.dumps(offset))


MICRO: dict[str, Any] = {"tells": "rows end", "fields": WITH_ID, "ways": SOURCE_WAYS}


@of_names("source: micro-batches", *OF_STREAM, **MICRO)
def _micro(asked: Asked) -> Answers:
    return micro_batches(asked, ALL)


@of_names("source: micro-batches of few messages", "all", "since", **MICRO)
def _paced(asked: Asked) -> Answers:
    return micro_batches(asked, ReadMaxRows(25), maxOffsetsPerTrigger=25)


@of_names("source: micro-batches of few bytes", "all", **MICRO)
def _paced_by_bytes(asked: Asked) -> Answers:
    return micro_batches(asked, ReadMaxBytes(4096), maxBytesPerTrigger="4k")


@of_names("source: what is there now", "all", "since", **MICRO)
def _now(asked: Asked) -> Answers:
    return micro_batches(asked, ReadMaxRows(40), now=True, maxOffsetsPerTrigger=40)


@of_names("source: micro-batches that hold", "all", **MICRO)
def _holding(asked: Asked) -> Answers:
    return micro_batches(asked, ALL, group=asked.world.fresh())

"""The source as Spark uses it, in this process and without a JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import InputPartition

import dlog
from dlog.spark.source import DefaultSource

SMALL = dlog.LogOptions(segment_bytes=1 << 14)
WHOLE = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,ledgerId,entryId,batchIdx,"
    "eventTime"
)


def fill(url: str, count: int, log: str = "orders", first: int = 0, size: int = 200) -> None:
    """Messages of one size, 30 in an entry, in ledgers of 16 KiB; each begins with its number."""
    made = [(b"%d " % number).ljust(size, b".") for number in range(first, first + count)]
    with dlog.open_writer(log, url=url, create=SMALL) as writer:
        for begin in range(0, count, 30):
            writer.append_many(made[begin : begin + 30])


def batch_reader(url: str, **options: Any) -> Any:
    """Of the columns that the options ask for; `filters` are pushed down."""
    filters = options.pop("filters", None)
    given = {"url": url, **{name: str(value) for name, value in options.items()}}
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    if filters is not None:
        assert list(reader.pushFilters(filters)) == filters, "Spark must filter again"
    return reader


def rows_of(reader: Any, parts: Iterable[InputPartition]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def rows(url: str, **options: Any) -> list[dict[str, Any]]:
    """What a batch query gives, part by part."""
    reader = batch_reader(url, **options)
    return rows_of(reader, reader.partitions())


def seqs(url: str, **options: Any) -> list[int]:
    return [row["offset"] for row in rows(url, **options)]

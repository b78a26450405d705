"""Arrow batches of messages: whatever the size of their entries, each field of each message."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import dlog
from dlog.errors import ConfigError
from dlog.limits import MIB
from dlog.spark.columns import (
    BATCH_ROWS,
    TINY_MESSAGES,
    ArrowBatches,
    names_of,
    schema_of,
)
from dlog.spark.options import Shape
from dlog.spark.shards import Column

NAMES = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,ledgerId,entryId,batchIdx,"
    "eventTime"
).split(",")


def entries_of(url: str, *sizes: int) -> list[Any]:
    """One entry of so many messages for each size, of the log `orders`."""
    with dlog.connect(url) as client:
        with client.open_writer("orders") as log:
            for size in sizes:
                log.append_many(
                    [b"%d" % number if number % 5 else None for number in range(size)],
                    keys=[b"k%d" % number if number % 3 else b"" for number in range(size)],
                    headers=[[("n", b"%d" % n)] if n % 4 == 1 else None for n in range(size)],
                )
        return [
            batch
            for each in client.admin.plan_ranges("orders")
            for batch in client.read_range(each)
        ]


@pytest.mark.parametrize(
    "sizes",
    [
        (1,),
        (TINY_MESSAGES - 1,),
        (TINY_MESSAGES,),
        (100,),
        (3, 100, 2, 1, 50, 4),
        (1, 1, 1),
        (100, 100, 7),
    ],
)
def test_each_field_of_each_message_comes_once_and_in_order(
    url: str, sizes: tuple[int, ...]
) -> None:
    entries = entries_of(url, *sizes)
    messages = [message for entry in entries for message in entry.to_pylist()]
    assert len(messages) == sum(sizes)
    made = list(ArrowBatches(tuple(NAMES), Column("named", 3)).of(entries))
    rows = [row for batch in made for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [message.seq for message in messages]
    for row, message in zip(rows, messages, strict=True):
        assert list(row) == NAMES
        assert (row["key"], row["value"]) == (message.key, message.value)
        assert (row["topic"], row["partition"], row["timestampType"]) == ("named", 3, 1)
        assert (row["ledgerId"], row["entryId"], row["batchIdx"]) == message.id
        pairs = [{"key": name, "value": value} for name, value in message.headers]
        assert row["headers"] == (pairs or None)
        assert round(row["timestamp"].timestamp() * 1e6) == message.timestamp_us
        assert row["eventTime"] is None


@pytest.mark.parametrize("size", [1, 40])
def test_entries_without_any_header_have_none(url: str, size: int) -> None:
    with dlog.connect(url) as client:
        with client.open_writer("orders") as log:
            log.append_many([b"x"] * size)
        (each,) = client.admin.plan_ranges("orders")
        (made,) = ArrowBatches(("headers", "value"), Column("a", 0)).of(client.read_range(each))
    assert made.column("headers").to_pylist() == [None] * size


class Sized:
    """An entry as far as batching looks at it, which counts how often it was made a list."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages = messages
        self.bytes = size

    def __len__(self) -> int:
        return self._messages

    def to_pylist(self) -> list[Any]:
        return [None] * self._messages

    def to_arrow(self) -> None:
        return None


@pytest.mark.parametrize(
    ("entries", "rows"),
    [
        ([], []),
        ([(10, MIB - 1), (10, 1), (10, 5)], [20, 10]),
        ([(10, MIB)], [10]),
        ([(10, MIB - 1)], [10]),
        ([(100, MIB), (100, MIB - 1), (5, 1)], [100, 105]),
        ([(BATCH_ROWS - 1, 1), (1, 1), (7, 1)], [BATCH_ROWS, 7]),
        ([(BATCH_ROWS, 1), (1, 1)], [BATCH_ROWS, 1]),
        ([(2, 1)] * 9, [18]),
    ],
)
def test_batches_end_behind_a_mebibyte_or_many_rows(
    entries: list[tuple[int, int]], rows: list[int]
) -> None:
    given: Any = [Sized(*each) for each in entries]
    made = list(ArrowBatches(("topic", "partition"), Column("a", 2)).of(given))
    assert [len(batch) for batch in made] == rows


def names(shape: Shape) -> str:
    return ",".join(schema_of(shape).fieldNames())


def test_columns_are_those_that_were_asked_for() -> None:
    kafka = "key,value,topic,partition,offset,timestamp,timestampType"
    assert names(Shape(None, False, False)) == kafka
    assert names(Shape(None, True, False)) == f"{kafka},headers"
    assert names(Shape(None, False, True)) == f"{kafka},ledgerId,entryId,batchIdx"
    assert names(Shape(None, True, True)) == f"{kafka},headers,ledgerId,entryId,batchIdx"
    assert names(Shape(("value", "eventTime"), False, False)) == "value,eventTime"
    with pytest.raises(ConfigError, match="no column 'size'"):
        schema_of(Shape(("value", "size"), False, False))
    with pytest.raises(ConfigError, match="value is named twice"):
        schema_of(Shape(("value", "key", "value"), False, False))


def test_a_schema_of_the_user_has_our_types() -> None:
    given = StructType([StructField("offset", LongType()), StructField("topic", StringType())])
    assert names_of(given) == ("offset", "topic")
    wrong = StructType([StructField("topic", StringType()), StructField("offset", IntegerType())])
    with pytest.raises(ConfigError, match="the column offset is bigint, not int"):
        names_of(wrong)

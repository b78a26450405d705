"""The columns that messages have in Spark: names, types and order of the Kafka source, and where a
message stands in its ledger. Messages come as entries and leave as Arrow batches of about a
mebibyte, without Python for each message; where entries are tiny, their messages are put together
as lists instead, since an array costs what some dozens of messages do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute
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

from dlog import MessageBatch
from dlog.errors import ConfigError
from dlog.spark.options import Shape
from dlog.spark.shards import Column

BATCH_BYTES = 1 << 20  # from a tenth of this to ten times, Spark takes all sizes alike
BATCH_ROWS = 16_384
TINY_MESSAGES = 24  # entries of fewer go by lists
LOG_APPEND_TIME = 1  # what Kafka calls a time that was set when the message was appended

_HEADERS_SPARK = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class _Column:
    kind: DataType
    arrow: Any
    of_batch: Callable[[MessageBatch, Any, Column], Any]
    """From the messages of an entry, its Arrow arrays, and whose they are."""


def _same(number: Callable[[MessageBatch], int], kind: Any) -> Callable[..., Any]:
    def column(batch: MessageBatch, _: Any, of: Column) -> Any:
        return pa.array(numpy.full(len(batch), number(batch), dtype=kind.to_pandas_dtype()))

    return column


def _run(first: Callable[[MessageBatch], int], kind: Any) -> Callable[..., Any]:
    def column(batch: MessageBatch, _: Any, of: Column) -> Any:
        start = first(batch)
        return pa.array(numpy.arange(start, start + len(batch), dtype=kind.to_pandas_dtype()))

    return column


def _stored(name: str) -> Callable[..., Any]:
    return lambda batch, arrays, of: arrays.column(name)


def _headers(batch: MessageBatch, arrays: Any, of: Column) -> Any:
    """A message without any has none, as in Kafka's source."""
    lists = arrays.column("headers")
    if len(lists.values) == 0:
        return pa.nulls(len(batch), _HEADERS)
    pairs = lists.values
    named = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(_HEADERS.value_type)
    )
    renamed = pa.ListArray.from_arrays(lists.offsets, named)
    none = pyarrow.compute.equal(pyarrow.compute.list_value_length(renamed), 0)
    return pyarrow.compute.if_else(none, pa.scalar(None, _HEADERS), renamed)


def _log(batch: MessageBatch, _: Any, of: Column) -> Any:
    return pa.repeat(pa.scalar(of.name, pa.string()), len(batch))


def _shard(batch: MessageBatch, _: Any, of: Column) -> Any:
    return pa.array(numpy.full(len(batch), of.shard, dtype=numpy.int32))


_LONG, _INT = pa.int64(), pa.int32()
_COLUMNS: dict[str, _Column] = {
    "key": _Column(BinaryType(), pa.binary(), _stored("key")),
    "value": _Column(BinaryType(), pa.binary(), _stored("value")),
    "topic": _Column(StringType(), pa.string(), _log),
    "partition": _Column(IntegerType(), _INT, _shard),
    "offset": _Column(LongType(), _LONG, _run(lambda batch: batch.first_seq, _LONG)),
    "timestamp": _Column(TimestampType(), _TIME, _stored("timestamp")),
    "timestampType": _Column(IntegerType(), _INT, _same(lambda batch: LOG_APPEND_TIME, _INT)),
    "headers": _Column(_HEADERS_SPARK, _HEADERS, _headers),
    "ledgerId": _Column(LongType(), _LONG, _same(lambda batch: batch.ledger_id, _LONG)),
    "entryId": _Column(LongType(), _LONG, _same(lambda batch: batch.entry_id, _LONG)),
    "batchIdx": _Column(IntegerType(), _INT, _run(lambda batch: batch.start, _INT)),
    "eventTime": _Column(TimestampType(), _TIME, _stored("event_time")),
}
_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_POSITION = ("ledgerId", "entryId", "batchIdx")


def schema_of(shape: Shape) -> StructType:
    names = shape.names
    if names is None:
        headers = ("headers",) if shape.headers else ()
        names = (*_KAFKA, *headers, *(_POSITION if shape.position else ()))
    for name in names:
        if name not in _COLUMNS:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(_COLUMNS)}")
        if names.count(name) > 1:
            raise ConfigError(f"the column {name} is named twice")
    return StructType([StructField(name, _COLUMNS[name].kind) for name in names])


def names_of(schema: StructType) -> tuple[str, ...]:
    """Of a schema that the user gave: some of our columns, with their types."""
    names = tuple(schema.fieldNames())
    expected = schema_of(Shape(names, headers=False, position=False))
    for given, field in zip(schema.fields, expected.fields, strict=True):
        if given.dataType != field.dataType:
            raise ConfigError(
                f"the column {given.name} is {field.dataType.simpleString()}, "
                f"not {given.dataType.simpleString()}"
            )
    return names


class ArrowBatches:
    """Messages of one log, entry by entry, as record batches with these columns."""

    def __init__(self, names: tuple[str, ...], column: Column) -> None:
        self._names = names
        self._column = column
        self._columns = [_COLUMNS[name] for name in names]
        self._schema = pa.schema([(name, _COLUMNS[name].arrow) for name in names])

    def of(self, batches: Iterable[MessageBatch]) -> Iterator[Any]:
        waiting: list[Any] = []
        tiny: list[MessageBatch] = []
        size = rows = 0
        for batch in batches:
            if len(batch) < TINY_MESSAGES:
                tiny.append(batch)
            else:
                if tiny:
                    waiting.append(self._together(tiny))
                    tiny = []
                waiting.append(self._arrays(batch))
            size += batch.bytes
            rows += len(batch)
            if size >= BATCH_BYTES or rows >= BATCH_ROWS:
                if tiny:
                    waiting.append(self._together(tiny))
                yield self._joined(waiting)
                waiting, tiny, size, rows = [], [], 0, 0
        if tiny:
            waiting.append(self._together(tiny))
        if waiting:
            yield self._joined(waiting)

    def _arrays(self, batch: MessageBatch) -> list[Any]:
        stored = batch.to_arrow()
        return [column.of_batch(batch, stored, self._column) for column in self._columns]

    def _together(self, batches: list[MessageBatch]) -> list[Any]:
        """By lists: a handful of Python operations for a message, and none for an array of few."""
        messages = [message for batch in batches for message in batch.to_pylist()]
        made: dict[str, Callable[[], list[Any]]] = {
            "key": lambda: [message.key for message in messages],
            "value": lambda: [message.value for message in messages],
            "topic": lambda: [self._column.name] * len(messages),
            "partition": lambda: [self._column.shard] * len(messages),
            "offset": lambda: [message.seq for message in messages],
            "timestamp": lambda: [message.timestamp_us for message in messages],
            "timestampType": lambda: [LOG_APPEND_TIME] * len(messages),
            "headers": lambda: [_pairs(message.headers) for message in messages],
            "ledgerId": lambda: [message.ledger_id for message in messages],
            "entryId": lambda: [message.entry_id for message in messages],
            "batchIdx": lambda: [message.batch_idx for message in messages],
            "eventTime": lambda: [message.event_time_us for message in messages],
        }
        return [
            pa.array(made[name](), column.arrow)
            for name, column in zip(self._names, self._columns, strict=True)
        ]

    def _joined(self, waiting: list[list[Any]]) -> Any:
        if len(waiting) == 1:
            arrays = waiting[0]
        else:
            arrays = [pa.concat_arrays(column) for column in zip(*waiting, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _pairs(headers: Any) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] or None

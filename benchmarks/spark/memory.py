"""The ceiling: a source that has its Arrow batches in memory. What a source
in Python can reach at most, in this Spark and on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

DISTINCT_BYTES = 32 << 20  # more than caches hold
BATCH_BYTES = 1 << 20
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


@dataclass
class Share(InputPartition):
    first: int
    rows: int
    size: int


@lru_cache(maxsize=4)
def _batches(size: int) -> list[Any]:
    """Made once in each process, before anything is measured."""
    rows = BATCH_BYTES // size
    made = []
    for _ in range(DISTINCT_BYTES // BATCH_BYTES):
        offsets = pa.py_buffer(numpy.arange(0, (rows + 1) * size, size, dtype=numpy.int32))
        values = pa.Array.from_buffers(
            pa.binary(), rows, [None, offsets, pa.py_buffer(os.urandom(rows * size))]
        )
        made.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.nulls(rows, pa.binary()),
                    values,
                    pa.repeat(pa.scalar("orders"), rows),
                    pa.array(numpy.zeros(rows, numpy.int32)),
                    pa.array(numpy.arange(rows)),
                    pa.array(numpy.zeros(rows, numpy.int64)).cast(pa.timestamp("us", tz="UTC")),
                    pa.array(numpy.ones(rows, numpy.int32)),
                ],
                schema=_ARROW,
            )
        )
    return made


class _Reader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._rows, self._size = int(options["rows"]), int(options["size"])
        self._parts = int(options["parts"])

    def partitions(self) -> list[InputPartition]:
        each = self._rows // self._parts
        return [Share(i * each, each, self._size) for i in range(self._parts)]

    def read(self, part: Any) -> Iterator[Any]:
        batches = _batches(part.size)
        left, i = part.rows, 0
        while left > 0:
            batch = batches[i % len(batches)]
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows
            i += 1


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "from_memory"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options)

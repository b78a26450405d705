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
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

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
        return _read(part)


def _read(part: Share) -> Iterator[Any]:
    batches = _batches(part.size)
    left, i = part.rows, 0
    while left > 0:
        batch = batches[i % len(batches)]
        yield batch if batch.num_rows <= left else batch.slice(0, left)
        left -= batch.num_rows
        i += 1


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """So many messages with each trigger, until all came."""

    def __init__(self, options: Any) -> None:
        self._rows, self._size = int(options["rows"]), int(options["size"])
        self._parts, self._step = int(options["parts"]), int(options["step"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return ReadMaxRows(self._step)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": self._rows}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"at": min(self._rows, start["at"] + self._step)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        each = max(1, (end["at"] - start["at"]) // self._parts)
        return [Share(start["at"] + i * each, each, self._size) for i in range(self._parts)]

    def read(self, part: Any) -> Iterator[Any]:
        return _read(part)


class _Discarding(DataSourceArrowWriter):
    def write(self, batches: Iterator[Any]) -> Any:
        for _ in batches:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any) -> None:
        pass

    def abort(self, messages: Any) -> None:
        pass


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "from_memory"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return _StreamReader(self.options)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Discarding()

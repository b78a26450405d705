"""Messages as a Parquet file: one column for each thing that a message has, row group by row group,
so that a log of any length fits into memory that is bounded."""

from __future__ import annotations

from typing import Any, BinaryIO

from dlog.errors import Unsupported
from dlog.reader.message import MessageBatch

try:
    import pyarrow
    from pyarrow import parquet
except ImportError as error:
    raise Unsupported("Parquet files need pyarrow: install dlog[arrow]") from error

from dlog.reader.arrow import SCHEMA

ROW_GROUP_BYTES = 32 << 20  # of messages, before the file's own compression
ROW_GROUP_ROWS = 1 << 20


class ParquetFile:
    """Written from the first message to the last; `close` writes what readers find it by."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = parquet.ParquetWriter(file, SCHEMA, compression="zstd")
        self._waiting: list[Any] = []
        self._bytes = self._rows = 0

    def add(self, batch: MessageBatch) -> None:
        self._waiting.append(batch.to_arrow(ids=True))
        self._bytes += batch.bytes
        self._rows += len(batch)
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        table = pyarrow.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(table, row_group_size=max(self._rows, 1))
        self._waiting.clear()
        self._bytes = self._rows = 0

    def close(self) -> None:
        if self._waiting:
            self._write()
        self._writer.close()

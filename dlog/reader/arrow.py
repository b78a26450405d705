"""Message batches as Arrow record batches. The only module of the room that needs pyarrow, and
numpy with it."""

from __future__ import annotations

from typing import Any

from dlog.errors import Unsupported
from dlog.reader.message import MessageBatch

try:
    import numpy
    import pyarrow
except ImportError as error:
    raise Unsupported("to_arrow() needs pyarrow: install dlog[arrow]") from error

from dlog.wire import arrow

_NUMBER = pyarrow.int64()
_IDS = ("ledger_id", "entry_id", "batch_idx", "epoch")
# Of a batch with ids.
SCHEMA = pyarrow.schema([("seq", _NUMBER), *arrow.SCHEMA, *((name, _NUMBER) for name in _IDS)])


def record_batch(batch: MessageBatch, *, ids: bool) -> Any:
    """No value is copied: the arrays look into the entry's own buffer."""
    columns: dict[str, Any] = {"seq": _run(batch.first_seq, len(batch))}
    for name, column in batch.entry.arrow_columns().items():
        columns[name] = column.slice(batch.start, len(batch))
    if ids:
        columns["ledger_id"] = _same(batch.ledger_id, len(batch))
        columns["entry_id"] = _same(batch.entry_id, len(batch))
        columns["batch_idx"] = _run(batch.start, len(batch))
        columns["epoch"] = _same(batch.epoch, len(batch))
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _run(first: int, length: int) -> Any:
    return pyarrow.array(numpy.arange(first, first + length, dtype=numpy.int64))


def _same(number: int, length: int) -> Any:
    return pyarrow.array(numpy.full(length, number, dtype=numpy.int64))

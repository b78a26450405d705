"""Entries as Arrow arrays, without copying: what the columns were laid out for.

Arrow wants numbers at addresses that are multiples of their width. An entry begins at whatever
address its receive buffer has, so a column of numbers that stands askew is copied, and only that
one; bytes and bits have no alignment and are never copied. pyarrow checks nothing here and need
not: `decode` did.
"""

from __future__ import annotations

import sys
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Any

from dlog.errors import Unsupported
from dlog.wire import columns
from dlog.wire.columns import Binary

try:
    import pyarrow as pa
except ImportError:
    raise Unsupported("Arrow arrays need the extra dlog[arrow]") from None
if sys.byteorder != "little":
    raise Unsupported("entries are Arrow buffers on little-endian machines only")

if TYPE_CHECKING:
    from dlog.wire.decode import Entry

_TIME = pa.timestamp("us", tz="UTC")
_BINARY = pa.binary()
_TEXT = pa.string()
_PAIR = pa.struct([("name", _TEXT), ("value", _BINARY)])
_HEADERS = pa.list_(_PAIR)
_NO_PAIRS = pa.array([], _PAIR)
SCHEMA = pa.schema(
    [
        ("value", _BINARY),
        ("key", _BINARY),
        ("headers", _HEADERS),
        ("timestamp", _TIME),
        ("event_time", _TIME),
    ]
)


def arrow_columns(entry: Entry) -> dict[str, Any]:
    body = pa.py_buffer(entry._body)
    count = entry.count
    return {
        "value": _binary(body, entry._values, _BINARY),
        "key": pa.nulls(count, _BINARY)
        if entry._keys is None
        else _binary(body, entry._keys, _BINARY),
        "headers": _headers(body, entry),
        "timestamp": _timestamps(body, entry),
        "event_time": _event_times(body, entry),
    }


def to_arrow(entry: Entry) -> Any:
    return pa.RecordBatch.from_arrays(list(arrow_columns(entry).values()), schema=SCHEMA)


def _numbers(body: Any, at: int, size: int) -> Any:
    """A column of numbers, where Arrow may use it as it stands, or a copy of it."""
    column = body.slice(at, size)
    return column if column.address % 8 == 0 else pa.py_buffer(column.to_pybytes())


def _bits(body: Any, at: int, count: int) -> Any:
    return None if at < 0 else body.slice(at, columns.bitmap_bytes(count))


def _binary(body: Any, column: Binary, kind: Any) -> Any:
    count, offsets_at, data_at, data_bytes, validity_at = column
    return pa.Array.from_buffers(
        kind,
        count,
        [
            _bits(body, validity_at, count),
            _numbers(body, offsets_at, 4 * (count + 1)),
            body.slice(data_at, data_bytes),
        ],
    )


def _headers(body: Any, entry: Entry) -> Any:
    if entry._header_lists_at < 0:
        pairs = _NO_PAIRS
        lists = pa.py_buffer(bytes(4 * (entry.count + 1)))
    else:
        names = _binary(body, entry._header_names, _TEXT)
        values = _binary(body, entry._header_values, _BINARY)
        pairs = pa.Array.from_buffers(_PAIR, len(names), [None], children=[names, values])
        lists = _numbers(body, entry._header_lists_at, 4 * (entry.count + 1))
    return pa.Array.from_buffers(_HEADERS, entry.count, [None, lists], children=[pairs])


def _timestamps(body: Any, entry: Entry) -> Any:
    if entry._timestamps_at < 0 or entry.base_timestamp_us == entry.last_timestamp_us:
        stamps = pa.py_buffer(pack("<q", entry.base_timestamp_us) * entry.count)
    else:
        stamps = _numbers(body, entry._timestamps_at, 8 * entry.count)
        if unpack_from("<q", stamps)[0] != entry.base_timestamp_us:  # see `Entry.not_before`
            stamps = pa.py_buffer(pack(f"<{entry.count}q", *entry.timestamps_us()))
    return pa.Array.from_buffers(_TIME, entry.count, [None, stamps])


def _event_times(body: Any, entry: Entry) -> Any:
    at, count = entry._event_times_at, entry.count
    if at < 0:
        return pa.nulls(count, _TIME)
    times = _numbers(body, at, 8 * count)
    return pa.Array.from_buffers(_TIME, count, [_bits(body, at + 8 * count, count), times])

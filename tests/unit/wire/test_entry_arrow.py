from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

from dlog.errors import Unsupported
from dlog.wire.batch import Codec, decode
from tests.unit.wire.samples import FULL, entry_of


def full_entry(**options: Any) -> bytes:
    full = FULL | options
    return entry_of(full.pop("values"), **full)


def inside(array: Any, raw: bytes) -> list[bool]:
    """For each buffer of the array, whether it lies within `raw`."""
    begin = pa.py_buffer(raw).address
    return [
        begin <= buffer.address and buffer.address + buffer.size <= begin + len(raw)
        for buffer in array.buffers()
        if buffer is not None
    ]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_all_columns(codec: Codec, shift: int) -> None:
    raw = full_entry(codec=codec, values=[b"paid" * 50, None, b""])
    batch = decode(memoryview(bytes(shift) + raw)[shift:], where="here").to_arrow()
    batch.validate(full=True)
    assert batch.schema.names == ["value", "key", "headers", "timestamp", "event_time"]
    assert batch["value"].to_pylist() == [b"paid" * 50, None, b""]
    assert batch["key"].to_pylist() == [b"42", None, b""]
    assert batch["headers"].to_pylist() == [
        [{"name": "by", "value": b"web"}, {"name": "by", "value": b""}],
        [],
        [{"name": "größe", "value": b"\x00\xff"}],
    ]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [10, 10, 12]
    assert batch["event_time"].cast(pa.int64()).to_pylist() == [None, -1, 5]
    assert str(batch.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_absent_columns() -> None:
    entry = decode(entry_of([b"a"] * 100, timestamp_us=5), where="here")
    batch = entry.to_arrow()
    batch.validate(full=True)
    assert batch["key"].null_count == 100
    assert batch["event_time"].null_count == 100
    assert batch["headers"].to_pylist() == [[]] * 100
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [5] * 100
    assert list(entry.arrow_columns()) == batch.schema.names


def test_nothing_is_copied() -> None:
    raw = full_entry()
    assert pa.py_buffer(raw).address % 8 == 0
    for name, column in decode(raw, where="here").arrow_columns().items():
        assert all(inside(column, raw)), name


def test_only_numbers_that_stand_askew_are_copied() -> None:
    raw = b"?" + full_entry()
    columns = decode(memoryview(raw)[1:], where="here").arrow_columns()
    assert inside(columns["value"], raw) == [True, False, True]  # bits, offsets, bytes
    assert all(buffer.address % 8 == 0 for buffer in columns["timestamp"].buffers() if buffer)


def test_arrays_keep_the_buffer_alive() -> None:
    column = decode(bytearray(entry_of([b"x" * 1000] * 100)), where="here").to_arrow()["value"]
    assert column.to_pylist() == [b"x" * 1000] * 100


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dlog.wire.arrow", raising=False)
    monkeypatch.delattr("dlog.wire.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    entry = decode(entry_of([b"a"]), where="here")
    for call in (entry.to_arrow, entry.arrow_columns):
        with pytest.raises(Unsupported, match=r"dlog\[arrow\]"):
            call()


def test_not_on_a_big_endian_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dlog.wire.arrow", raising=False)
    monkeypatch.delattr("dlog.wire.arrow", raising=False)
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(Unsupported, match="little-endian"):
        decode(entry_of([b"a"]), where="here").to_arrow()

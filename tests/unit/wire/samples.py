"""What the tests of the entry format share: sample entries, both ways to unpack them, and a second
decoder written from docs/FORMATS.md alone, slow and plain, to compare with."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from dlog.wire import columns
from dlog.wire.batch import Codec, ControlKind, Entry, encode, encode_control
from dlog.wire.compress import decompress

WAYS = ("numpy", "plain")


@contextmanager
def way_of(name: str) -> Iterator[None]:
    """Inside, columns of any length go through numpy, or none does."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "numpy":
            assert columns.numpy() is not None
            patch.setattr(columns, "NUMPY_COUNT_MIN", 0)
        else:
            patch.setattr(columns, "numpy", lambda: None)
        yield


def entry_of(values: list[bytes | None], **options: Any) -> bytes:
    options = {"first_seq": 7, "timestamp_us": 1_700_000_000_000_000} | options
    return b"".join(encode(values, **options))


def control_of(kind: ControlKind = ControlKind.SEAM, body: bytes = b"{}") -> bytes:
    return b"".join(encode_control(kind, body, first_seq=9, timestamp_us=11))


FULL: dict[str, Any] = {
    "values": [b"paid", None, b""],
    "keys": [b"42", None, b""],
    "headers": [(("by", b"web"), ("by", b"")), None, (("größe", b"\x00\xff"),)],
    "event_times_us": [None, -1, 5],
    "timestamps_us": [10, 10, 12],
    "producer": (3, 1000),
}


def small_entries() -> dict[str, bytes]:
    full = dict(FULL)
    values = full.pop("values")
    return {
        "one": entry_of([b"hello"]),
        "empty": entry_of([b""]),
        "tombstone": entry_of([None]),
        "three": entry_of([b"a", b"bc", b"def"]),
        "full": entry_of(values, **full),
        "birth": control_of(ControlKind.BIRTH, b'{"a":1}'),
        "seam": control_of(),
        "producers": control_of(ControlKind.PRODUCERS, bytes(8)),
        "lz4": entry_of([b"abc" * 40] * 3, codec=Codec.LZ4),
        "zstd": entry_of([b"abc" * 40] * 3, codec=Codec.ZSTD),
    }


def all_of(entry: Entry) -> dict[str, Any]:
    """Everything an entry can tell."""
    return {
        "count": entry.count,
        "first_seq": entry.first_seq,
        "codec": int(entry.codec),
        "control": None if entry.control is None else int(entry.control),
        "control_body": entry.control_body,
        "producer": entry.producer,
        "base": entry.base_timestamp_us,
        "last": entry.last_timestamp_us,
    } | ({} if entry.control is not None else columns_of(entry))


def columns_of(entry: Entry) -> dict[str, Any]:
    return {
        "values": entry.values(),
        "keys": entry.keys(),
        "headers": entry.headers(),
        "event_times": entry.event_times_us(),
        "timestamps": entry.timestamps_us(),
    }


class Refused(Exception):
    """The reference decoder's only verdict besides a value."""


def reference(raw: bytes) -> dict[str, Any]:
    """What docs/FORMATS.md says, read as literally as possible."""
    try:
        return _reference(raw)
    except (struct.error, IndexError, UnicodeDecodeError) as wrong:
        raise Refused(str(wrong)) from wrong


def _need(holds: bool) -> None:
    if not holds:
        raise Refused


def _reference(raw: bytes) -> dict[str, Any]:
    _need(len(raw) >= 40 and raw[0] == 0xD1)
    a, b, header_bytes = raw[1], raw[2], raw[3]
    (count,) = struct.unpack_from("<I", raw, 4)
    first_seq, base = struct.unpack_from("<qq", raw, 8)
    stored, size = struct.unpack_from("<II", raw, 24)
    (last,) = struct.unpack_from("<q", raw, 32)
    codec, control, has_producer = a & 3, a >> 2 & 1, b & 1
    _need(codec != 3 and not b & 0b0011_1110)
    _need(header_bytes == (56 if has_producer else 40))
    _need(header_bytes + stored == len(raw) and size <= 5_238_248)
    _need(first_seq >= 0 and first_seq + count < 1 << 63 and last >= base)
    producer = None
    if has_producer:
        producer = struct.unpack_from("<qq", raw, 40)
        _need(producer[0] >= 0 and producer[1] >= 0 and producer[1] + count < 1 << 63)
    told: dict[str, Any] = {
        "count": count,
        "first_seq": first_seq,
        "codec": codec,
        "control": None,
        "control_body": b"",
        "producer": producer,
        "base": base,
        "last": last,
    }
    body = raw[header_bytes:]
    if codec:
        body = decompress(Codec(codec), body, size, where="reference")
    _need(len(body) == size)
    at = 0

    def take(wanted: int) -> bytes:
        nonlocal at
        begin, at = at, at + wanted + (-wanted) % 8
        _need(at <= len(body))
        return body[begin : begin + wanted]

    def offsets(items: int) -> list[int]:
        found = [x for (x,) in struct.iter_unpack("<i", take(4 * (items + 1)))]
        _need(found[0] == 0 and all(x <= y for x, y in pairwise(found)))
        return found

    def strings(items: int) -> list[bytes]:
        bounds = offsets(items)
        data = take(bounds[-1])
        return [data[bounds[i] : bounds[i + 1]] for i in range(items)]

    def masked(items: list[Any]) -> list[Any]:
        bits = take((len(items) + 7) // 8)
        return [item if bits[i // 8] >> i % 8 & 1 else None for i, item in enumerate(items)]

    if control:
        _need(count == 0 and a == 0b100 and not has_producer)
        kind, length = struct.unpack("<II", take(8))
        _need(kind in (1, 2, 3))
        told |= {"control": kind, "control_body": take(length)}
    else:
        _need(0 < count <= 65_536)
        timestamps = [base] * count
        if a & 0b0010_0000:
            timestamps = [x for (x,) in struct.iter_unpack("<q", take(8 * count))]
            _need(
                timestamps == sorted(timestamps) and (timestamps[0], timestamps[-1]) == (base, last)
            )
        events = None
        if a & 0b0100_0000:
            events = masked([x for (x,) in struct.iter_unpack("<q", take(8 * count))])
        values: list[Any] = strings(count)
        if a & 0b1000_0000:
            values = masked(values)
        keys = masked(strings(count)) if a & 0b0000_1000 else None
        headers = None
        if a & 0b0001_0000:
            bounds = offsets(count)
            names = [str(name, "utf-8") for name in strings(bounds[-1])]
            pairs = list(zip(names, strings(bounds[-1]), strict=True))
            headers = [tuple(pairs[bounds[i] : bounds[i + 1]]) for i in range(count)]
        told |= {
            "values": values,
            "keys": keys,
            "headers": headers,
            "event_times": events,
            "timestamps": timestamps,
        }
    _need(at == len(body) or bool(b & 0b1100_0000))
    return told

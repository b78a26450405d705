"""Decoding of entries that lie. Either a value or one of three errors, in bounded memory, and the
same verdict from numpy, from the standard library and from the reference decoder."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Corrupt, FormatError, Unsupported
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.wire import layout
from dlog.wire.batch import Codec, ControlKind, Entry, decode, decode_header, encode_control
from tests.unit.wire.samples import (
    WAYS,
    Refused,
    all_of,
    columns_of,
    control_of,
    entry_of,
    reference,
    small_entries,
    way_of,
)

DOCUMENTED = (Corrupt, FormatError, Unsupported)
ENTRIES = small_entries()


def told_by(raw: bytes) -> dict[str, Any] | None:
    """What the three decoders agree on; None when they agree that it is no entry."""
    verdict = reference_verdict(raw)
    for way in WAYS:
        with way_of(way):
            assert verdict_of(raw) == verdict, way
    return verdict


def reference_verdict(raw: bytes) -> dict[str, Any] | None:
    try:
        return reference(raw)
    except (Refused, Corrupt):
        return None


def verdict_of(raw: bytes) -> dict[str, Any] | None:
    try:
        entry = decode(raw, where="here")
    except DOCUMENTED:
        return None
    check_arrow(entry)
    return all_of(entry)


def check_arrow(entry: Entry) -> None:
    if entry.control is not None:
        return
    batch = entry.to_arrow()
    batch.validate(full=True)
    assert batch["value"].to_pylist() == entry.values()
    times = batch["timestamp"].cast(pa.int64()).to_pylist()
    assert times == entry.timestamps_us()


@pytest.mark.parametrize("name", ENTRIES)
def test_cut_at_every_byte(name: str) -> None:
    raw = ENTRIES[name]
    assert told_by(raw) is not None
    for end in range(len(raw)):
        with pytest.raises(Corrupt, match="here"):
            decode(raw[:end], where="here")
        with pytest.raises(Corrupt, match="here"):
            decode_header(raw[:end], where="here")
        assert told_by(raw[:end]) is None


@pytest.mark.parametrize("name", ENTRIES)
def test_every_bit_flipped(name: str) -> None:
    raw = ENTRIES[name]
    values = 0
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        values += told_by(bytes(flipped)) is not None
    assert 0 < values < len(raw) * 8


@given(st.sampled_from(sorted(ENTRIES)), st.data())
def test_words_overwritten(name: str, data: st.DataObject) -> None:
    raw = bytearray(ENTRIES[name])
    interesting = st.sampled_from([0, 1, 7, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(raw)])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) // 4 - 1)) * 4
        struct.pack_into("<I", raw, at, data.draw(interesting | st.integers(0, 0xFFFFFFFF)))
    told_by(bytes(raw))


@given(st.binary(max_size=200))
def test_anything_behind_the_magic(rest: bytes) -> None:
    told_by(bytes([layout.MAGIC]) + rest)


@given(st.binary(max_size=120), st.integers(1, 9), st.integers(0, 0xFF))
def test_anything_behind_an_honest_header(body: bytes, count: int, attributes: int) -> None:
    told_by(head(len(body), attributes & ~0b111, count=count) + body)


def head(body_bytes: int, attributes: int = 0, **changes: int) -> bytes:
    fields = {
        "magic": layout.MAGIC,
        "attributes": attributes,
        "header_bytes": 40,
        "count": 1,
        "first_seq": 0,
        "base": 0,
        "stored": body_bytes,
        "raw": body_bytes,
        "last": 0,
    }
    assert fields.keys() >= changes.keys()
    return layout.HEADER.pack(*(fields | changes).values())


def test_another_magic_is_a_format_error() -> None:
    """DL-16: the error names the position of the entry."""
    for raw in (b"\x00", b"\xd2" * 100, b"PK\x03\x04"):
        with pytest.raises(FormatError, match="ledger 1 entry 2: starts with"):
            decode(raw, where="ledger 1 entry 2")


def test_nothing_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="here: 0 bytes"):
        decode(b"", where="here")


def test_an_unknown_codec_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="here: unknown codec 3"):
        decode(head(16, 3) + bytes(16), where="here")


@pytest.mark.parametrize("bit", [11, 12, 13])
def test_an_unknown_bit_must_be_understood(bit: int) -> None:
    """DL-17: the error names the bit."""
    with pytest.raises(FormatError, match=f"here: unknown attribute bit {bit}"):
        decode(head(16, 1 << bit) + bytes(16), where="here")


@pytest.mark.parametrize(("bit", "name"), [(9, "chunked"), (10, "encrypted")])
def test_reserved_bits_are_unsupported_by_name(bit: int, name: str) -> None:
    with pytest.raises(Unsupported, match=rf"here: a {name} entry \(bit {bit}\)"):
        decode(head(16, 1 << bit) + bytes(16), where="here")


@pytest.mark.parametrize("bit", [14, 15])
def test_what_may_be_ignored_stands_after_the_known_columns(bit: int) -> None:
    """DL-17: an unknown bit that may be ignored changes nothing of what is known."""
    body = entry_of([b"hello"])[40:]
    entry = decode(head(len(body) + 24, 1 << bit) + body + b"?" * 24, where="here")
    assert entry.values() == [b"hello"]
    assert decode(head(len(body), 1 << bit) + body, where="here").values() == [b"hello"]
    with pytest.raises(Corrupt, match="24 bytes stand after"):
        decode(head(len(body) + 24) + body + b"?" * 24, where="here")


def test_what_may_be_ignored_in_a_control_entry() -> None:
    body = control_of(ControlKind.SEAM, b"{}")[40:]
    raw = head(len(body) + 8, layout.CONTROL | 1 << 14, count=0) + body + bytes(8)
    assert decode(raw, where="here").control_body == b"{}"


@pytest.mark.parametrize("number", [0, 4, 5, 1 << 31])
def test_an_unknown_kind_of_control_entry(number: int) -> None:
    raw = head(8, layout.CONTROL, count=0) + struct.pack("<II", number, 0)
    for read in (decode, decode_header):
        with pytest.raises(FormatError, match=f"here: unknown kind {number}"):
            read(raw, where="here")


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"count": 65_537},
        {"count": 0xFFFFFFFF},
        {"header_bytes": 48},
        {"header_bytes": 56},
        {"header_bytes": 32},
        {"stored": 15},
        {"stored": 17},
        {"raw": 24},
        {"raw": 8},
        {"first_seq": -1},
        {"first_seq": (1 << 63) - 1},
        {"last": -1},
        {"attributes": layout.HAS_PRODUCER},
        {"attributes": layout.CONTROL},
        {"attributes": layout.CONTROL | layout.HAS_KEYS, "count": 0},
        {"attributes": layout.CONTROL | 1, "count": 0},
        {"attributes": layout.CONTROL | layout.HAS_PRODUCER, "count": 0},
    ],
)
def test_headers_that_cannot_be(changes: dict[str, int]) -> None:
    decode_header(head(16) + bytes(16), where="here")
    raw = head(16, **changes) + bytes(16)
    for read in (decode, decode_header):
        with pytest.raises(Corrupt, match="here: an entry of 56 bytes has a header that cannot be"):
            read(raw, where="here")


def test_a_control_entry_without_a_head_cannot_be() -> None:
    for read in (decode, decode_header):
        with pytest.raises(Corrupt, match="cannot be"):
            read(head(0, layout.CONTROL, count=0), where="here")


def test_an_entry_beyond_the_largest_cannot_be() -> None:
    for body_bytes, verdict in (
        (LEDGER_ENTRY_BYTES_MAX, True),
        (LEDGER_ENTRY_BYTES_MAX + 8, False),
    ):
        body = struct.pack("<ii", 0, body_bytes - 8) + bytes(body_bytes - 8)
        assert (verdict_of(head(body_bytes) + body) is not None) == verdict


@pytest.mark.parametrize("fields", [(-1, 0), (0, -1), (0, (1 << 63) - 1)])
def test_producers_that_cannot_be(fields: tuple[int, int]) -> None:
    raw = head(8, layout.HAS_PRODUCER, header_bytes=56) + struct.pack("<qq", *fields) + bytes(8)
    with pytest.raises(Corrupt, match="cannot be"):
        decode_header(raw, where="here")


def with_offsets(offsets: list[int]) -> bytes:
    column = struct.pack(f"<{len(offsets)}i", *offsets)
    body = column + bytes(-len(column) % 8) + b"12345678"
    return head(len(body), count=len(offsets) - 1) + body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [0, 200])
@pytest.mark.parametrize(
    "offsets",
    [
        [1, 8],
        [-1, 0],
        [0, -1],
        [0, 9],
        [0, 0x7FFFFFFF],
        [1, 2, 3, 4],
        [0, 2, 1, 3],
        [0, 5, 4, 4],
        [0, 0, -5, 8],
        [0, 9, 9, 8],
        [0, 0x7FFFFFFF, -0x80000000, 8],
    ],
)
def test_offsets_that_lie(way: str, more: int, offsets: list[int]) -> None:
    """DL-21: offsets that fall, overlap or leave the body are refused."""
    raw = with_offsets(offsets + offsets[-1:] * more)
    with way_of(way), pytest.raises(Corrupt, match=r"here: .*values"):
        decode(raw, where="here")


@pytest.mark.parametrize("way", WAYS)
def test_offsets_that_do_not_lie(way: str) -> None:
    with way_of(way):
        assert decode(with_offsets([0, 8]), where="here").values() == [b"12345678"]
        assert decode(with_offsets([0, 0, 3, 3]), where="").values() == [b"", b"123", b""]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stamps", [[1, 3, 2, 4], [0, 2, 3, 4], [1, 2, 3, 5], [4, 2, 3, 1]])
def test_timestamps_that_lie(way: str, stamps: list[int]) -> None:
    body = struct.pack("<4q5i4x", *stamps, 0, 0, 0, 0, 0)
    raw = head(len(body), layout.HAS_TIMESTAMPS, count=4, base=1, last=4) + body
    with way_of(way), pytest.raises(Corrupt, match="here: the timestamps"):
        decode(raw, where="here")


def header_entry(names: bytes, bounds: list[int]) -> bytes:
    pairs = len(bounds) - 1
    body = struct.pack("<2i2i", 0, 0, 0, pairs)
    for offsets, data in ((bounds, names), ([0] * (pairs + 1), b"")):
        column = struct.pack(f"<{pairs + 1}i", *offsets)
        body += column + bytes(-len(column) % 8) + data + bytes(-len(data) % 8)
    return head(len(body), layout.HAS_HEADERS) + body


def test_header_names_are_text_one_by_one() -> None:
    letter = "é".encode()
    good = decode(header_entry(letter * 2, [0, 2, 4]), where="here")
    assert good.headers() == [(("é", b""), ("é", b""))]
    with pytest.raises(Corrupt, match="UTF-8"):
        decode(header_entry(letter * 2, [0, 1, 4]), where="here")
    with pytest.raises(Corrupt, match="UTF-8"):
        decode(header_entry(b"\xff\xfe", [0, 2]), where="here")
    with pytest.raises(Corrupt, match="UTF-8"):
        decode(header_entry(b"a\xc3", [0, 2]), where="here")


def test_a_lying_count_allocates_nothing() -> None:
    """DL-21: a claimed count is compared with the body before anything is allocated."""
    raw = head(16, layout.HAS_TIMESTAMPS | layout.HAS_KEYS, count=65_536) + bytes(16)
    pairs = head(24, layout.HAS_HEADERS) + struct.pack("<2i2i2i", 0, 0, 0, 0x7FFFFFFF, 0, 0)
    tracemalloc.start()
    try:
        for lie in (raw, pairs):
            with pytest.raises(Corrupt, match="in a body of"):
                decode(lie, where="here")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 10


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_in_an_entry(codec: Codec) -> None:
    raw = bytearray(entry_of([b"abc" * 400], codec=codec))
    for claimed in (5_000_000, 0xFFFFFFFF, 1200, 1216):
        struct.pack_into("<I", raw, 28, claimed)
        with pytest.raises(Corrupt, match="here"):
            decode(bytes(raw), where="here")


def test_a_control_body_that_lies() -> None:
    raw = bytearray(b"".join(encode_control(ControlKind.SEAM, b"{}", first_seq=0, timestamp_us=0)))
    for length in (9, 0xFFFFFFFF):
        struct.pack_into("<I", raw, 44, length)
        with pytest.raises(Corrupt, match="control body"):
            decode(bytes(raw), where="here")


def test_padding_is_not_read() -> None:
    raw = bytearray(entry_of([b"hello"]))
    raw[-3:] = b"\xff\xff\xff"
    assert columns_of(decode(bytes(raw), where="here"))["values"] == [b"hello"]


def resized(raw: bytes, body: bytes, attributes: int = 0) -> bytes:
    """With another body, and a header that says how long it is."""
    front = bytearray(raw[: raw[3]])
    struct.pack_into("<H", front, 1, struct.unpack_from("<H", raw, 1)[0] | attributes)
    struct.pack_into("<II", front, 24, len(body), len(body))
    return bytes(front) + body


@pytest.mark.parametrize("attributes", [0, 1 << 14], ids=["all known", "may ignore the rest"])
@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in ("lz4", "zstd")])
def test_a_body_that_lacks_its_last_bytes_is_refused_though_the_header_agrees(
    name: str, attributes: int
) -> None:
    """Also where it lacks padding only."""
    raw = ENTRIES[name]
    body = raw[raw[3] :]
    assert told_by(resized(raw, body, attributes)) is not None
    for end in range(len(body)):
        cut = resized(raw, body[:end], attributes)
        assert told_by(cut) is None, end
        with pytest.raises(Corrupt, match="here"):
            decode(cut, where="here")


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in ("lz4", "zstd")])
def test_bytes_behind_the_last_column_are_refused(name: str) -> None:
    raw = ENTRIES[name]
    for more in range(1, 17):
        longer = resized(raw, raw[raw[3] :] + bytes(more))
        assert told_by(longer) is None
        with pytest.raises(Corrupt, match=f"here: {more} bytes stand after"):
            decode(longer, where="here")

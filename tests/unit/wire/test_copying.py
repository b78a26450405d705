"""Entries for another place: the same bytes but for one number, or the same messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Unsupported
from dlog.wire import layout
from dlog.wire.batch import Codec, Entry, copied, decode, encode

VALUES = [b"a" * 40, None, b"", b"b" * 60, b"c"]


def entry_of(codec: Codec = Codec.NONE, producer: tuple[int, int] | None = None) -> Entry:
    buffers = encode(
        VALUES,
        first_seq=70,
        timestamp_us=0,
        keys=[b"k", None, b"", None, b"l"],
        headers=[None, (("a", b"1"), ("a", b"2")), None, (("b", b""),), None],
        event_times_us=[None, -4, None, 0, 9],
        timestamps_us=[5, 5, 6, 7, 7],
        codec=codec,
        producer=producer,
    )
    return decode(b"".join(buffers), where="here")


def told(entry: Entry) -> list[tuple[object, ...]]:
    keys, headers, times = entry.keys(), entry.headers(), entry.event_times_us()
    nothing = [None] * entry.count
    columns = (
        entry.values(),
        keys or nothing,
        headers or [()] * entry.count,
        times or nothing,
        entry.timestamps_us(),
    )
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("producer", [None, (3, 40)])
def test_a_whole_entry_keeps_its_bytes(codec: Codec, producer: tuple[int, int] | None) -> None:
    entry = entry_of(codec, producer)
    moved = b"".join(copied(entry, start=0, end=5, first_seq=9_000))
    was = bytes(entry.stored)
    at = layout.FIRST_SEQ_AT
    assert moved[:at] + moved[at + 8 :] == was[:at] + was[at + 8 :]
    again = decode(moved, where="there")
    assert (again.first_seq, again.producer) == (9_000, producer)
    assert told(again) == told(entry)


@given(st.integers(0, 4), st.integers(1, 5), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_a_part_of_an_entry_has_its_messages(start: int, length: int, codec: Codec) -> None:
    entry = entry_of(codec, producer=(3, 40))
    end = min(start + length, 5)
    part = decode(b"".join(copied(entry, start=start, end=end, first_seq=1)), where="there")
    assert told(part) == told(entry)[start:end]
    assert (part.first_seq, part.producer) == (1, (3, 40 + start))


def test_a_part_of_what_is_not_understood_is_refused() -> None:
    raw = bytearray(entry_of().stored)
    raw[2] |= 1 << 6  # bit 14: may be ignored
    entry = decode(bytes(raw), where="here")
    assert len(b"".join(copied(entry, start=0, end=5, first_seq=1))) == len(raw)
    with pytest.raises(Unsupported):
        copied(entry, start=0, end=4, first_seq=1)

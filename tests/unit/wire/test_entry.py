"""Encoding and decoding of honest entries."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog import limits
from dlog.errors import ConfigError, TooLarge
from dlog.limits import ENTRY_MESSAGES_MAX, HEADERS_PER_MESSAGE_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import columns, layout
from dlog.wire.batch import (
    ENTRY_OVERHEAD_BYTES_MAX,
    HEADER_PAIR_OVERHEAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_OVERHEAD_BYTES_MAX,
    Codec,
    ControlKind,
    decode,
    decode_header,
    encode,
    encode_control,
    encoded_bytes_max,
)
from tests.unit.wire.samples import (
    FULL,
    WAYS,
    all_of,
    columns_of,
    control_of,
    entry_of,
    reference,
    way_of,
)

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
nullable = st.none() | st.binary(max_size=20)
header_pairs = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `encode`."""
    count = draw(st.sampled_from([1, 1, 2, 3, 7, 8, 9, 17, 70]))

    def column(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(items, min_size=count, max_size=count)

    return {
        "values": draw(column(nullable)),
        "first_seq": draw(st.integers(0, 1 << 62)),
        "timestamp_us": draw(int64),
        "keys": draw(st.none() | column(nullable)),
        "headers": draw(st.none() | column(st.none() | header_pairs.map(tuple))),
        "event_times_us": draw(st.none() | column(st.none() | int64)),
        "timestamps_us": draw(st.none() | column(int64).map(sorted)),
        "codec": draw(st.sampled_from(Codec)),
        "producer": draw(st.none() | st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62))),
    }


def expected(batch: dict[str, Any]) -> dict[str, Any]:
    count = len(batch["values"])
    keys, headers, events = batch["keys"], batch["headers"], batch["event_times_us"]
    return {
        "values": batch["values"],
        "keys": keys if keys and keys != [None] * count else None,
        "headers": [pairs or () for pairs in headers] if headers and any(headers) else None,
        "event_times": events if events and events != [None] * count else None,
        "timestamps": batch["timestamps_us"] or [batch["timestamp_us"]] * count,
    }


@settings(max_examples=300)
@given(batches())
def test_what_went_in_comes_out_either_way(batch: dict[str, Any]) -> None:
    """DL-18 to DL-20: keys, values and headers, absent, empty and repeated ones included."""
    arguments = dict(batch)
    values = arguments.pop("values")
    wanted = expected(batch)
    encoded = {}
    for way in WAYS:
        with way_of(way):
            encoded[way] = b"".join(encode(values, **arguments))
            entry = decode(encoded[way], where="here")
            assert columns_of(entry) == wanted
            told = all_of(entry)
    assert encoded["numpy"] == encoded["plain"]
    raw = encoded["plain"]
    assert reference(raw) == told
    assert told["count"] == len(values)
    assert told["first_seq"] == batch["first_seq"]
    assert told["producer"] == batch["producer"]
    assert (told["base"], told["last"]) == (wanted["timestamps"][0], wanted["timestamps"][-1])
    pairs = [pair for pairs in batch["headers"] or () for pair in pairs or ()]
    payload = [*values, *(batch["keys"] or ()), *(name.encode() for name, _ in pairs)]
    payload += [value for _, value in pairs]
    assert len(raw) <= encoded_bytes_max(
        messages=len(values),
        payload_bytes=sum(len(item or b"") for item in payload),
        header_pairs=len(pairs),
    )


@given(st.binary(max_size=50), st.integers(0, 1 << 62), int64)
def test_the_short_way_for_one_message_gives_the_same_bytes(
    value: bytes, first_seq: int, timestamp_us: int
) -> None:
    short = entry_of([value], first_seq=first_seq, timestamp_us=timestamp_us)
    # A column of nothing takes the long way and leaves no trace.
    assert short == entry_of([value], first_seq=first_seq, timestamp_us=timestamp_us, keys=[None])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [127, 128, 129, 1000, ENTRY_MESSAGES_MAX])
def test_long_columns(way: str, count: int) -> None:
    values = [b"x" * (number % 50) if number % 7 else None for number in range(count)]
    with way_of(way):
        entry = decode(entry_of(values, keys=values, event_times_us=range_or_none(count)), where="")
        assert entry.values() == values
        assert entry.keys() == values
        assert entry.event_times_us() == range_or_none(count)


def range_or_none(count: int) -> list[int | None]:
    return [number if number % 3 else None for number in range(count)]


def test_numpy_is_not_asked_for_short_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("numpy for a short column")

    monkeypatch.setattr(columns, "numpy", never)
    short = [b"x"] * (columns.NUMPY_COUNT_MIN - 1)
    assert decode(entry_of(short), where="here").values() == short
    with pytest.raises(AssertionError, match="numpy"):
        entry_of([*short, b"x"])


def test_without_numpy_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(columns, "numpy", columns.numpy.__wrapped__)
    assert columns.numpy() is None
    assert decode(entry_of([b"x"] * 200), where="here").values() == [b"x"] * 200


def test_importing_the_room_is_light() -> None:
    program = (
        "import sys, dlog.wire.batch;"
        "print(*sorted({'numpy', 'pyarrow', 'lz4', 'zstandard', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []


def test_a_large_payload_is_handed_on_not_copied() -> None:
    large = [bytes([number]) * 20_000 for number in range(3)]
    buffers = encode(large, first_seq=0, timestamp_us=0)
    assert [any(part is value for part in buffers) for value in large] == [True] * 3
    one = encode(large[:1], first_seq=0, timestamp_us=0)
    assert one[1] is large[0]
    small = encode([b"x"] * 1000, first_seq=0, timestamp_us=0)
    assert len(small) < 6


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_is_used_where_it_helps(codec: Codec) -> None:
    entry = decode(entry_of([b"the same words "] * 100, codec=codec), where="here")
    assert entry.codec is codec
    assert entry.stored_bytes < entry.raw_bytes / 4
    assert decode(entry_of([b"word " * 50], codec=codec), where="here").codec is codec
    assert decode(entry_of([b"\x01\xfe"], codec=codec), where="here").codec is Codec.NONE


def test_seqs_and_times_without_touching_columns() -> None:
    raw = entry_of([b"a", b"b"], first_seq=40, timestamps_us=[5, 9], producer=(1, 2))
    blind = raw[:56] + b"\xff" * (len(raw) - 56)
    header = decode_header(blind, where="here")
    assert (header.first_seq, header.count, header.next_seq) == (40, 2, 42)
    assert (header.base_timestamp_us, header.last_timestamp_us) == (5, 9)
    assert header.producer == (1, 2)
    assert header.control is None


def test_equal_timestamps_take_no_column() -> None:
    assert entry_of([b"a"] * 9, timestamps_us=[4] * 9) == entry_of([b"a"] * 9, timestamp_us=4)


@pytest.mark.parametrize("kind", ControlKind)
@pytest.mark.parametrize("body", [b"", b"x", b"12345678", b"y" * 1001])
def test_control_entries(kind: ControlKind, body: bytes) -> None:
    entry = decode(control_of(kind, body), where="here")
    assert entry.control is kind
    assert entry.control_body == body
    assert (entry.count, entry.first_seq, entry.next_seq, entry.base_timestamp_us) == (0, 9, 9, 11)
    assert decode_header(control_of(kind, body), where="here").control is kind


@pytest.mark.parametrize("shift", range(8))
def test_alignment_does_not_matter(shift: int) -> None:
    full = dict(FULL)
    raw = entry_of(full.pop("values"), **full)
    askew = memoryview(bytes(shift) + raw)[shift:]
    for way in WAYS:
        with way_of(way):
            assert all_of(decode(askew, where="here")) == all_of(decode(raw, where="here"))


def test_every_column_is_aligned() -> None:
    full = dict(FULL)
    entry = decode(entry_of(full.pop("values"), **full), where="here")
    found = [entry._timestamps_at, entry._event_times_at, entry._header_lists_at]
    assert entry._keys is not None
    for column in (entry._values, entry._keys, entry._header_names, entry._header_values):
        found += [column.offsets_at, column.data_at]
    found += [entry._values.validity_at, entry._keys.validity_at, entry.header_bytes]
    assert [at % 8 for at in found] == [0] * len(found)
    assert sorted(found[:-1]) == sorted(set(found[:-1]))


# What does not fit, or makes no sense.


def test_the_largest_message_fits_and_no_larger_one() -> None:
    for options in ({}, {"keys": [b""]}, {"producer": (0, 0), "event_times_us": [1]}):
        entry = entry_of([bytes(MESSAGE_BYTES_MAX)], **options)
        assert len(entry) <= LEDGER_ENTRY_BYTES_MAX
    largest = LEDGER_ENTRY_BYTES_MAX - layout.HEADER_BYTES - 8
    assert largest % 8 == 0
    assert len(entry_of([bytes(largest)])) == LEDGER_ENTRY_BYTES_MAX
    for codec in Codec:
        with pytest.raises(TooLarge):
            entry_of([bytes(largest + 1)], codec=codec)
    with pytest.raises(TooLarge):
        entry_of([bytes(largest)], producer=(0, 0))


@pytest.mark.parametrize("way", WAYS)
def test_sums_beyond_32_bits_are_too_large(way: str) -> None:
    same = bytes(1 << 20)
    with way_of(way), pytest.raises(TooLarge):
        encode([same] * 5000, first_seq=0, timestamp_us=0)


def test_too_many() -> None:
    with pytest.raises(TooLarge, match="65537"):
        entry_of([b""] * (ENTRY_MESSAGES_MAX + 1))
    pairs = (("n", b"v"),) * HEADERS_PER_MESSAGE_MAX
    assert decode(entry_of([b""], headers=[pairs]), where="here").headers() == [pairs]
    with pytest.raises(TooLarge, match="1025"):
        entry_of([b""], headers=[(*pairs, ("n", b"v"))])


def test_the_overhead_promised_in_limits_suffices() -> None:
    assert limits.ENTRY_OVERHEAD_BYTES >= ENTRY_OVERHEAD_BYTES_MAX
    assert limits.MESSAGE_OVERHEAD_BYTES >= MESSAGE_OVERHEAD_BYTES_MAX
    assert limits.HEADER_OVERHEAD_BYTES >= HEADER_PAIR_OVERHEAD_BYTES_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": []},
        {"values": ["text"]},
        {"values": ["text", "text"]},
        {"values": [1, 2]},
        {"values": [bytearray(b"x")]},
        {"values": [memoryview(b"12345678").cast("i"), b"x"]},
        {"keys": []},
        {"keys": [b"a", b"b"]},
        {"keys": ["text"]},
        {"headers": []},
        {"headers": [(("n", None),)]},
        {"headers": [(("n", "v"),)]},
        {"headers": [((b"n", b"v"),)]},
        {"headers": [(("\ud800", b""),)]},
        {"event_times_us": [1 << 63]},
        {"event_times_us": []},
        {"timestamps_us": [1, 2]},
        {"values": [b"", b""], "timestamps_us": [2, 1]},
        {"values": [b"", b"", b""], "timestamps_us": [1, 3, 2]},
        {"values": [b"", b"", b""], "timestamps_us": [1, 3, 1]},
        {"values": [b"", b""], "timestamps_us": [1, 1 << 63]},
        {"timestamp_us": 1 << 63},
        {"timestamp_us": -(1 << 63) - 1, "producer": (0, 0)},
        {"first_seq": -1},
        {"first_seq": -1, "keys": [b""]},
        {"first_seq": (1 << 63) - 1},
        {"producer": (-1, 0)},
        {"producer": (0, -1)},
        {"producer": (1 << 63, 0)},
        {"producer": (0, (1 << 63) - 1)},
    ],
)
def test_what_the_caller_got_wrong_is_a_config_error(wrong: dict[str, Any]) -> None:
    options = {"values": [b"v"], "first_seq": 0, "timestamp_us": 0} | wrong
    values = options.pop("values")
    with pytest.raises(ConfigError):
        encode(values, **options)


def test_a_control_entry_is_bounded_too() -> None:
    with pytest.raises(TooLarge):
        encode_control(ControlKind.SEAM, bytes(LEDGER_ENTRY_BYTES_MAX), first_seq=0, timestamp_us=0)
    with pytest.raises(ConfigError):
        encode_control(ControlKind.SEAM, b"", first_seq=-1, timestamp_us=0)


@pytest.mark.parametrize("count", range(1, 10))
def test_every_pattern_of_what_is_not_there(count: int) -> None:
    """In each column that may lack something, and in each of them beside full ones."""
    all_there = list(range(-3, count - 3))
    for pattern in range(1 << count) if count < 6 else (0, 1, 1 << count - 1, (1 << count) - 1):
        present = [bool(pattern >> i & 1) for i in range(count)]
        times = [at if there else None for at, there in zip(all_there, present, strict=True)]
        items = [b"%d" % i if there else None for i, there in enumerate(present)]
        pairs = tuple(((f"n{i}", b"v"),) * 2 if there else () for i, there in enumerate(present))
        full = [b"x"] * count
        for columns_given in (
            {"values": full, "event_times_us": times},
            {"values": items},
            {"values": full, "keys": items},
            {"values": full, "headers": pairs},
            {"values": items, "event_times_us": times, "keys": items, "headers": pairs},
            {"values": items, "event_times_us": all_there, "keys": full},
        ):
            arguments = {"first_seq": 3, "timestamp_us": 9} | columns_given
            values = arguments.pop("values")
            raw = b"".join(encode(values, **arguments))
            wanted = expected(
                {"timestamps_us": None, **_ALL_COLUMNS, **arguments, "values": values}
            )
            assert columns_of(decode(raw, where="here")) == wanted
            assert {name: reference(raw)[name] for name in wanted} == wanted


_ALL_COLUMNS = {"keys": None, "headers": None, "event_times_us": None}


@pytest.mark.parametrize(
    "given",
    [
        {"keys": [b"k"]},
        {"keys": [b""]},
        {"headers": [(("n", b"v"),)]},
        {"event_times_us": [0]},
        {"event_times_us": [-1]},
        {"timestamps_us": [0]},
        {"timestamps_us": [8]},
        {"producer": (0, 0)},
        {"producer": (3, 4)},
    ],
    ids=str,
)
def test_one_small_message_keeps_each_thing_it_has(given: dict[str, Any]) -> None:
    """None of them alone takes the short way, which has a place for none."""
    raw = entry_of([b"v"], timestamp_us=5, **given)
    wanted = expected({"timestamps_us": None, "timestamp_us": 5, **_ALL_COLUMNS, **given,
                       "values": [b"v"]})  # fmt: skip
    for way in WAYS:
        with way_of(way):
            entry = decode(raw, where="here")
            assert columns_of(entry) == wanted
            assert entry.producer == given.get("producer")
    assert {name: reference(raw)[name] for name in wanted} == wanted


@pytest.mark.parametrize("count", [1, 3])
def test_the_last_numbers_of_seqs_and_producers(count: int) -> None:
    """One more for each message would not fit 63 bits; one does not count for the other."""
    last = (1 << 63) - 1 - count
    for first_seq, number in ((100, last), (last, 0), (last, last), (0, last)):
        raw = entry_of([b"v"] * count, first_seq=first_seq, producer=((1 << 63) - 1, number))
        entry = decode(raw, where="here")
        assert (entry.first_seq, entry.producer) == (first_seq, ((1 << 63) - 1, number))
    for first_seq, number in ((0, last + 1), (last + 1, 0)):
        with pytest.raises(ConfigError):
            entry_of([b"v"] * count, first_seq=first_seq, producer=(0, number))
    with pytest.raises(ConfigError):
        entry_of([b"v"] * count, first_seq=last + 1)


@pytest.mark.parametrize("stamps", [[10, 10, 12, 30], [10, 10, 10, 10]], ids=["column", "one time"])
def test_older_messages_count_as_written_at_the_time_before_which_there_is_nothing(
    stamps: list[int],
) -> None:
    raw = entry_of([b"a"] * 4, timestamps_us=stamps)
    for bound in range(8, 33):
        entry = decode(raw, where="here")
        entry.not_before(bound)
        wanted = [max(at, bound) for at in stamps]
        assert entry.timestamps_us() == wanted
        assert (entry.base_timestamp_us, entry.last_timestamp_us) == (wanted[0], wanted[-1])
        assert entry.to_arrow()["timestamp"].cast("int64").to_pylist() == wanted

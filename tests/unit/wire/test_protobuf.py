"""The bounded protobuf reader and writer, and the reader of the text form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Broken, Corrupt, FormatError
from dlog.wire import protobuf
from dlog.wire.protobuf import BYTES, FIELDS_MAX, NUMBER, Fields, Message
from dlog.wire.protobuf_text import read_text_message
from tests.unit.wire.bookie_tools import DOCUMENTED, UNHURRIED, verdicts

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FIELDS = Fields({1: NUMBER, 2: BYTES, 3: BYTES})


def message(raw: bytes) -> Message:
    return Message(raw, FIELDS, "here")


@UNHURRIED
@given(st.integers(0, (1 << 64) - 1))
def test_numbers_round_trip(value: int) -> None:
    packed = protobuf.pack_varint(value)
    assert len(packed) == max(1, -(-value.bit_length() // 7))
    assert protobuf.read_varint(memoryview(packed + b"\xff"), 0, "here") == (value, len(packed))
    for end in range(len(packed)):
        with pytest.raises(Corrupt, match="cut off"):
            protobuf.read_varint(memoryview(packed[:end]), 0, "here")


@UNHURRIED
@given(INT64)
def test_signed_numbers_round_trip(value: int) -> None:
    raw = protobuf.pack_number(1, value)
    assert message(raw).int64(1) == value
    if value < 0:
        assert len(raw) == 11  # not zigzag


def test_minus_one_takes_ten_bytes() -> None:
    assert protobuf.pack_varint(-1).hex() == "ffffffffffffffffff01"


@pytest.mark.parametrize(
    "packed", ["ff" * 10, "ff" * 9 + "02", "80" * 10 + "00", "80" * 1000 + "01"]
)
def test_numbers_of_more_than_64_bits(packed: str) -> None:
    with pytest.raises(Corrupt):
        protobuf.read_varint(memoryview(bytes.fromhex(packed)), 0, "here")


def test_numbers_may_be_longer_than_need_be() -> None:
    assert message(bytes.fromhex("0883808000")).uint64(1) == 3
    assert message(bytes.fromhex("88800003")).uint64(1) == 3


def test_numbers_out_of_64_bits_are_not_written() -> None:
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(Broken):
            protobuf.pack_varint(value)


@UNHURRIED
@given(st.lists(st.tuples(st.integers(4, (1 << 29) - 1), st.binary(max_size=8)), max_size=8), INT64)
def test_unknown_fields_are_kept_in_order(unknown: list[tuple[int, bytes]], value: int) -> None:
    parts = [protobuf.pack_bytes(number, each) for number, each in unknown]
    known = protobuf.pack_number(1, value)
    for at in range(len(parts) + 1):
        read = message(b"".join([*parts[:at], known, *parts[at:]]))
        assert read.unknown == b"".join(parts)
        assert read.int64(1) == value


@pytest.mark.parametrize(
    "field",
    [
        "2001",  # a number
        "21" + "00" * 8,
        "25" + "00" * 4,
        "2203616263",
        "23 2001 2b 2203616263 2c 24",  # a group with a group in it
    ],
)
def test_every_kind_of_unknown_field_is_stepped_over(field: str) -> None:
    raw = bytes.fromhex(field)
    read = message(raw + b"\x08\x05" + raw)
    assert (read.uint64(1), read.unknown) == (5, raw + raw)
    for end in range(1, len(raw)):
        with pytest.raises(DOCUMENTED):
            message(raw[:end])


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("0d00000000", Corrupt),  # field 1 as 32 bits
        ("0a00", Corrupt),  # … as bytes
        ("1000", Corrupt),  # field 2 as a number
        ("0e", FormatError),  # wire type 6
        ("0f", FormatError),  # wire type 7
        ("0001", Corrupt),  # field 0
        ("808080801000", Corrupt),  # field 2**29
        ("24", Corrupt),  # the end of a group that did not begin
        ("23", Corrupt),  # a group that does not end
        ("232c", Corrupt),  # a group that ends as another
        ("12ffffffff0f", Corrupt),  # 4 GiB of bytes
        ("12ffffffffffffffffff01", Corrupt),  # minus one of them
        ("1205abcd", Corrupt),
    ],
)
def test_what_is_no_message(raw: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="here"):
        message(bytes.fromhex(raw))


def test_a_group_in_a_group_to_a_bounded_depth() -> None:
    def nested(depth: int) -> bytes:
        return b"\x23" * depth + b"\x24" * depth

    assert message(nested(protobuf.NESTING_MAX)).unknown
    for depth in (protobuf.NESTING_MAX + 1, 100_000):
        with pytest.raises(Corrupt, match="deep"):
            message(nested(depth))


def test_a_message_in_a_message_to_a_bounded_depth() -> None:
    raw = b""
    for _ in range(protobuf.NESTING_MAX + 1):
        raw = protobuf.pack_bytes(3, raw)
    read = message(raw)
    for _ in range(protobuf.NESTING_MAX):
        read = read.message(3, FIELDS, "inner")
    with pytest.raises(Corrupt, match="deep"):
        read.message(3, FIELDS, "inner")


def test_the_number_of_fields_is_bounded() -> None:
    assert message(b"\x12\x00" * FIELDS_MAX)
    with pytest.raises(Corrupt, match="fields"):
        message(b"\x12\x00" * (FIELDS_MAX + 1))


def test_a_repeated_singular_field_takes_its_last_value_or_merges() -> None:
    read = message(bytes.fromhex("08010802120161120162"))
    assert (read.uint64(1), read.text(2)) == (2, "b")
    inner = protobuf.pack_bytes(3, b"\x08\x01") + protobuf.pack_bytes(3, b"\x12\x01x")
    merged = message(inner).message(3, FIELDS, "inner")
    assert (merged.uint64(1), merged.text(2)) == (1, "x")
    assert len(list(message(inner).messages(3, FIELDS, "inner"))) == 2


def test_merged_messages_do_not_complete_one_another() -> None:
    cut = protobuf.pack_bytes(3, b"\x08\x01\x12\x02a") + protobuf.pack_bytes(3, b"b")
    with pytest.raises(Corrupt):
        message(cut).message(3, FIELDS, "inner")


def test_what_is_asked_for_must_be_there_and_fit() -> None:
    read = message(protobuf.pack_number(1, 1 << 31) + protobuf.pack_bytes(2, b"\xff"))
    for ask in (
        lambda: read.int32(1),
        lambda: read.text(2),
        lambda: read.bytes(3),
        lambda: read.uint64(2),
        lambda: list(read.texts(2)),
    ):
        with pytest.raises(Corrupt, match="here"):
            ask()
    assert read.optional_bytes(3) is None
    assert (1 in read, 3 in read) == (True, False)


@UNHURRIED
@given(st.binary(max_size=200))
def test_anything(raw: bytes) -> None:
    try:
        message(raw)
    except DOCUMENTED:
        return


def test_harmed_messages() -> None:
    raw = protobuf.pack_number(1, 300) + protobuf.pack_bytes(2, b"text") + bytes.fromhex("2324")
    taken, refused = verdicts(message, raw)
    assert taken > 0
    assert refused > 0


def text(raw: str) -> object:
    return read_text_message(raw.encode(), "here")


def test_the_text_form() -> None:
    told = text(
        "# comment\n a: -1 b: NAME; c: 'it' \"s\"\n m { a: 1, a: 2 } m: < s: '\\x41\\102\\n\\'' >"
    )
    assert told == {
        "a": ["-1"],
        "b": ["NAME"],
        "c": [b"its"],
        "m": [{"a": ["1", "2"]}, {"s": [b"AB\n'"]}],
    }
    assert text("") == text(" # nothing") == {}


@pytest.mark.parametrize(
    "raw",
    [
        "a",
        "a:",
        "a 1",
        "a: {",
        "a: {]",
        "}",
        "a: }",
        ": 1",
        'a: "x',
        "a: [1]",
        "a: '\\q'",
        "a: '\\777'",
    ],
)
def test_what_is_no_text_form(raw: str) -> None:
    with pytest.raises(DOCUMENTED, match="here"):
        text(raw)


def test_the_text_form_is_bounded() -> None:
    with pytest.raises(Corrupt, match="deep"):
        text("a {" * 1000)
    with pytest.raises(Corrupt, match="fields"):
        text("a: 1 " * (FIELDS_MAX + 1))


def test_blanks_cost_linear_time() -> None:
    """Nested repetition in a pattern is how a few blanks take for ever."""
    with pytest.raises(Corrupt):
        text("a: 1" + " \n" * 50_000 + "!")


@UNHURRIED
@given(st.text(alphabet="ab: {}<>\"'\\x10#,;\n", max_size=60))
def test_any_text(raw: str) -> None:
    try:
        text(raw)
    except DOCUMENTED:
        return


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        ((1 << 63) - 1, "ffffffffffffffff7f"),
        (1 << 63, "80808080808080808001"),
        ((1 << 64) - 1, "ffffffffffffffffff01"),
    ],
)
def test_numbers_of_up_to_64_bits(value: int, raw: str) -> None:
    assert protobuf.read_varint(memoryview(bytes.fromhex(raw)), 0, "here") == (value, len(raw) // 2)


@pytest.mark.parametrize("raw", ["80808080808080808002", "ffffffffffffffffff03"])
def test_a_number_of_more_bits_is_corrupt(raw: str) -> None:
    with pytest.raises(Corrupt, match="here: the number at byte 0 has more than 64 bits"):
        protobuf.read_varint(memoryview(bytes.fromhex(raw)), 0, "here")


@pytest.mark.parametrize("size", range(10))
def test_a_number_that_is_cut_off_is_told_from_one_that_is_too_long(size: int) -> None:
    with pytest.raises(Corrupt, match="at byte 1 is cut off"):
        protobuf.read_varint(memoryview(b"\x01" + b"\x80" * size), 1, "here")
    with pytest.raises(Corrupt, match="at byte 1 has more than 10 bytes"):
        protobuf.read_varint(memoryview(b"\x01" + b"\x80" * (10 + size)), 1, "here")

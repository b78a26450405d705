from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, FormatError
from dlog.ids import MessageId, Position, Token, check_log_name

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors/ids.json").read_text(encoding="utf-8")
)

number_64 = st.integers(-1, (1 << 63) - 1) | st.sampled_from([-1, 0, 1, (1 << 63) - 1])
number_32 = st.integers(-1, (1 << 31) - 1) | st.sampled_from([-1, 0, 1, (1 << 31) - 1])
message_ids = st.builds(MessageId, number_64, number_64, number_32)


@pytest.mark.parametrize("vector", VECTORS["message_ids"])
def test_message_id_vectors(vector: dict[str, Any]) -> None:
    message_id = MessageId(*vector["id"])
    assert message_id.bytes.hex() == vector["hex"]
    assert str(message_id) == vector["text"]
    assert MessageId.from_bytes(bytes.fromhex(vector["hex"])) == message_id
    assert MessageId.parse(vector["text"]) == message_id


@pytest.mark.parametrize("vector", VECTORS["positions"])
def test_position_vectors(vector: dict[str, Any]) -> None:
    after = vector["after"] and MessageId(*vector["after"])
    position = Position(vector["log_uid"], vector["next_seq"], after)
    assert position.to_text() == str(position) == vector["text"]
    assert Position.parse(vector["text"]) == position


@pytest.mark.parametrize("vector", VECTORS["tokens"])
def test_token_vectors(vector: dict[str, Any]) -> None:
    token = Token(vector["log_uid"], vector["epoch"], vector["seq"])
    assert token.to_text() == str(token) == vector["text"]
    assert Token.parse(vector["text"]) == token


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"epoch":1,"log":"u"}',
        '{"epoch":1,"log":"u","seq":0,"more":1}',
        '{"epoch":-1,"log":"u","seq":0}',
        '{"epoch":1,"log":"u","seq":true}',
        '{"epoch":1,"log":"u","seq":9223372036854775808}',
        '{"epoch":1,"log":7,"seq":0}',
        '{"epoch":1,"log":"' + "u" * 500 + '","seq":0}',
    ],
)
def test_other_tokens_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        Token.parse(text)


@given(message_ids)
def test_ids_round_trip(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id
    assert len(message_id.bytes) == 20
    assert MessageId.from_bytes(message_id.bytes) == message_id
    assert pickle.loads(pickle.dumps(message_id)) == message_id  # noqa: S301 - our own bytes
    assert hash(MessageId(*message_id)) == hash(message_id)


@given(message_ids, message_ids)
def test_bytes_sort_as_ids_do(one: MessageId, other: MessageId) -> None:
    """DL-12: the 20 bytes of ids sort as the ids."""
    assert (one < other) == (one.bytes < other.bytes)
    assert (one == other) == (one.bytes == other.bytes)


def test_text_does_not_sort_as_ids_do() -> None:
    """DL-12: text is for people, and is never compared."""
    one, other = MessageId(9, 0, 0), MessageId(10, 0, 0)
    assert one < other
    assert str(one) > str(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1:2",
        "1:2:3:4",
        "-2:0:0",
        "0:-2:0",
        "0:0:-2",
        "01:2:3",
        "-0:2:3",
        "+1:2:3",
        " 1:2:3",
        "1:2:3\n",
        "1: 2:3",
        "1:2:3.0",
        "1_0:2:3",
        "\u0661:2:3",
        "9223372036854775808:0:0",
        "0:9223372036854775808:0",
        "0:0:2147483648",
        "0:0:4294967296",
        "1" * 5000 + ":0:0",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        MessageId.parse(text)


@pytest.mark.parametrize("size", [0, 16, 19, 21, 40])
def test_other_lengths_are_refused(size: int) -> None:
    with pytest.raises(FormatError, match="20"):
        MessageId.from_bytes(bytes(size))


@pytest.mark.parametrize("at", [0, 8, 16])
def test_bytes_below_minus_one_are_refused(at: int) -> None:
    raw = bytearray(MessageId(0, 0, 0).bytes)
    width = 4 if at == 16 else 8
    raw[at : at + width] = b"\x7f" + b"\xff" * (width - 2) + b"\xfe"
    with pytest.raises(FormatError, match="out of range"):
        MessageId.from_bytes(bytes(raw))
    raw[at : at + width] = b"\x7f" + b"\xff" * (width - 1)
    assert -1 in MessageId.from_bytes(bytes(raw))


@given(st.text(max_size=40), st.integers(0, (1 << 63) - 1), st.none() | message_ids)
def test_positions_round_trip(uid: str, next_seq: int, after: MessageId | None) -> None:
    position = Position(uid, next_seq, after)
    assert Position.parse(position.to_text()) == position


def position_text(**changes: object) -> str:
    return json.dumps({"after": None, "log": "u", "next_seq": 0} | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        "[" * 500,
        "{}",
        json.dumps({"log": "u", "next_seq": 0}),
        position_text(more=1),
        position_text(log=1),
        position_text(log=None),
        position_text(next_seq=-1),
        position_text(next_seq=1.0),
        position_text(next_seq=True),
        position_text(next_seq="1"),
        position_text(next_seq=1 << 63),
        position_text(after=1),
        position_text(after=""),
        position_text(after=[1, 2, 3]),
        position_text(after="1:2"),
        position_text(log="u" * 500),
    ],
)
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        Position.parse(text)


@pytest.mark.parametrize("name", ["orders", "a/b/c", "größe", "x" * 255, "with blank", ".hidden"])
def test_log_names(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/.",
        " a",
        "a ",
        "a\nb",
        "a\x00",
        "x" * 256,
        "é" * 128,
        "\ud800",
    ],
)
def test_other_log_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_log_name(name)


@pytest.mark.parametrize("name", [None, 1, b"orders"])
def test_a_log_name_is_text(name: Any) -> None:
    with pytest.raises(ConfigError):
        check_log_name(name)


def test_a_position_read_far_down_in_calls_is_a_format_error() -> None:
    def down(levels: int) -> Position:
        return Position.parse("[" * 500) if levels == 0 else down(levels - 1)

    with pytest.raises(FormatError, match="a JSON object"):
        down(600)

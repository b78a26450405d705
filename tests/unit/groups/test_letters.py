"""A letter fits, whatever its message was, and says what of it is left out."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

import dlog
from dlog import limits
from dlog.groups.letters import ERROR_CHARS_MAX, ERROR_CHARS_MIN, Letter, letter_of
from dlog.reader.message import Message
from dlog.wire.batch import encoded_bytes_max
from dlog.writer.arguments import payload_bytes, refuse_too_large

LIMIT = limits.LEDGER_ENTRY_BYTES_MAX
NAMED = {"group": "g", "stream": "s", "shard": "s/0", "seq": "4", "id": "1:4:0"}


def a_message(
    value: bytes | None, key: bytes | None = None, headers: Any = (), seq: int = 4
) -> Message:
    return Message(1, seq, 0, seq, key, value, tuple(headers), 0, None, 1)


def filled(key: bytes | None = None, headers: Any = (), room: int = 0) -> Message:
    """As large as a message can be, or with so much room left."""
    pairs = tuple(headers)
    size = encoded_bytes_max(
        messages=1, payload_bytes=payload_bytes(b"", key, pairs), header_pairs=len(pairs)
    )
    value = random.Random(7).randbytes(LIMIT - size - room)
    return a_message(value, key, pairs)


def told(letter: Letter) -> dict[str, str]:
    return {
        name.removeprefix("dlog."): value.decode()
        for name, value in letter.headers
        if name.startswith("dlog.")
    }


def check_fits(letter: Letter) -> None:
    payload = payload_bytes(letter.value, letter.key, tuple(letter.headers))
    refuse_too_large(1, payload, len(letter.headers))
    assert len(letter.headers) <= limits.HEADERS_PER_MESSAGE_MAX
    for name, value in NAMED.items():
        assert told(letter)[name] == value
    assert told(letter).get("cut", "") == ",".join(letter.cut)


def test_what_fits_is_there_as_it_was() -> None:
    message = a_message(b"v", b"k", [("mine", b"1")])
    letter = letter_of(message, {**NAMED, "error": "x" * 3_000})
    check_fits(letter)
    assert letter[:2] == (b"k", b"v")
    assert letter.headers[0] == ("mine", b"1")
    assert told(letter)["error"] == "x" * ERROR_CHARS_MAX
    assert letter.cut == ()


def test_a_long_error_is_cut_before_anything_of_the_message_is() -> None:
    message = filled(b"k", [("mine", b"1")], room=1_200)
    letter = letter_of(message, {**NAMED, "error": "x" * 3_000})
    check_fits(letter)
    assert (letter.key, letter.value, letter.cut) == (b"k", message.value, ())
    assert told(letter)["error"] == "x" * ERROR_CHARS_MIN


@pytest.mark.parametrize("room", [0, 1, 200, 300])
def test_of_a_value_that_leaves_no_room_the_beginning_is_there(room: int) -> None:
    message = filled(b"k", [("mine", b"1")], room=room)
    assert message.value is not None
    letter = letter_of(message, {**NAMED, "error": "x" * 3_000})
    check_fits(letter)
    assert letter.cut == ("value",)
    assert letter.value is not None
    assert LIMIT - 2_000 < len(letter.value) < len(message.value)
    assert message.value.startswith(letter.value)
    assert (letter.key, letter.headers[0]) == (b"k", ("mine", b"1"))
    assert told(letter)["value_bytes"] == str(len(message.value))
    assert told(letter)["value_sha256"] == hashlib.sha256(message.value).hexdigest()


@pytest.mark.parametrize("value", [None, b"", b"small"])
def test_headers_that_leave_no_room_are_left_out_from_behind(value: bytes | None) -> None:
    large = filled(b"k", [("a", b"1"), ("b", b""), ("c", b"2")], room=len(value or b"")).value
    message = a_message(value, b"k", [("a", b"1"), ("b", large), ("c", b"2")])
    letter = letter_of(message, {**NAMED, "error": "x" * 3_000})
    check_fits(letter)
    assert (letter.key, letter.value) == (b"k", value)
    assert letter.headers[0] == ("a", b"1")
    assert told(letter)["headers_left_out"] == "2"
    assert letter.cut == ("headers",)


def test_as_many_headers_as_a_message_can_have_leave_room_for_ours() -> None:
    most = limits.HEADERS_PER_MESSAGE_MAX
    message = a_message(b"v", b"k", [(f"h{n}", b"") for n in range(most)])
    letter = letter_of(message, {**NAMED, "error": "no"})
    check_fits(letter)
    assert letter.cut == ("headers",)
    left_out = int(told(letter)["headers_left_out"])
    assert letter.headers[: most - left_out] == list(message.headers[: most - left_out])
    assert left_out < 20
    assert letter.value == b"v"


def test_a_key_that_leaves_no_room_is_left_out() -> None:
    """Not cut: it would be another key."""
    large = filled(room=1).value
    assert large is not None
    key = b"k" * len(large)
    letter = letter_of(a_message(b"v", key), {**NAMED, "error": "no"})
    check_fits(letter)
    assert (letter.key, letter.value, letter.cut) == (None, b"v", ("key",))
    assert told(letter)["key_bytes"] == str(len(key))


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_message_was_its_letter_fits_and_says_what_is_left_out(seed: int) -> None:
    chance = random.Random(seed)
    left = LIMIT - 500
    parts = []
    for _ in range(3):
        parts.append(chance.choice([0, 10, left // 3, left // 2, left]))
        left -= min(left, parts[-1])
    chance.shuffle(parts)
    many = chance.choice([0, 1, 5, limits.HEADERS_PER_MESSAGE_MAX])
    headers = [(f"h{n}", b"x" * max(0, parts[2] // max(1, many) - 20)) for n in range(many)]
    room = LIMIT - encoded_bytes_max(
        messages=1, payload_bytes=payload_bytes(b"", None, tuple(headers)), header_pairs=many
    )
    key = b"k" * min(parts[1], room)
    value = b"v" * min(parts[0], room - len(key))
    message = a_message(value, key, headers)
    letter = letter_of(message, {**NAMED, "error": "\udc80" * chance.choice([0, 3_000])})
    check_fits(letter)
    assert ("value" in letter.cut) == (letter.value != value)
    assert ("key" in letter.cut) == (letter.key != key)
    kept = [pair for pair in letter.headers if not pair[0].startswith("dlog.")]
    assert kept == headers[: len(kept)]
    assert ("headers" in letter.cut) == (len(kept) < many)


async def test_a_log_takes_the_letter_of_the_largest_message() -> None:
    async with dlog.aio.connect("memory:letters-largest") as client:
        letter = letter_of(filled(), {**NAMED, "error": "no"})
        async with client.open_writer("dead") as log:
            await log.append(letter.value, key=letter.key, headers=letter.headers)
        async with client.open_reader("dead") as log:
            (there,) = [each async for each in log]
        assert (there.value, list(there.headers)) == (letter.value, letter.headers)

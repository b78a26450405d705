"""What a caller may hand in, at each bound: what is taken, what it becomes, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dlog import limits
from dlog.errors import ConfigError, TooLarge
from dlog.ids import MessageId
from dlog.limits import HEADERS_PER_MESSAGE_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire.batch import MESSAGE_BYTES_MAX, encoded_bytes_max
from dlog.writer.arguments import (
    EMPTY,
    NUMBER_END,
    as_bytes,
    as_event_time_us,
    as_headers,
    as_producer,
    as_tail,
    payload_bytes,
    refuse_too_large,
)

END = 1 << 63


class Bytes(bytes):
    pass


@pytest.mark.parametrize("given", [None, b"", b"x"])
def test_bytes_are_taken_as_they_are(given: bytes | None) -> None:
    assert as_bytes("a value", given) is given


@pytest.mark.parametrize("given", [bytearray(b"xy"), memoryview(b"xy"), Bytes(b"xy")])
def test_what_holds_bytes_is_copied(given: Any) -> None:
    taken = as_bytes("a value", given)
    assert taken == b"xy"
    assert type(taken) is bytes


@pytest.mark.parametrize("given", ["xy", 1, [1], pytest.param(object(), id="an object")])
def test_anything_else_is_no_value(given: object) -> None:
    with pytest.raises(ConfigError, match=f"a key is bytes or None, not {type(given).__name__}"):
        as_bytes("a key", given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, None),
        (0, 0),
        (-END, -END),
        (END - 1, END - 1),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), 1_000_005),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), -1_000_000),
    ],
    ids=str,
)
def test_an_event_time(given: Any, taken: int | None) -> None:
    assert as_event_time_us(given) == taken


@pytest.mark.parametrize("given", [-END - 1, END, True, 1.0, "1", datetime(2020, 1, 1)], ids=repr)
def test_no_event_time(given: Any) -> None:
    with pytest.raises(ConfigError, match="an event time"):
        as_event_time_us(given)


@pytest.mark.parametrize("given", [None, (0, 0), (NUMBER_END - 1, 0), (0, NUMBER_END - 1)])
def test_a_producer(given: Any) -> None:
    assert as_producer(given) == given


@pytest.mark.parametrize(
    "given",
    [(-1, 0), (0, -1), (NUMBER_END, 0), (0, NUMBER_END), (True, 0), (0, 1.0), (0,), (0, 0, 0),
     [0, 0], 5, "ab"],
    ids=repr,
)  # fmt: skip
def test_no_producer(given: Any) -> None:
    with pytest.raises(ConfigError, match="a producer is its id and a number"):
        as_producer(given)


@pytest.mark.parametrize("given", [MessageId(1, 2, 3), EMPTY])
def test_a_tail(given: Any) -> None:
    assert as_tail(given) == given


@pytest.mark.parametrize("given", [None, "", "tail", (1, 2, 3), 7], ids=repr)
def test_no_tail(given: Any) -> None:
    with pytest.raises(ConfigError, match="if_tail is"):
        as_tail(given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, None),
        ({}, ()),
        ([], ()),
        ({"a": b"1", "größe": bytearray(b"2")}, (("a", b"1"), ("größe", b"2"))),
        ([("a", b"1"), ("a", b"")], (("a", b"1"), ("a", b""))),
        (iter([("", memoryview(b"x"))]), (("", b"x"),)),
        ([("n", b"v")] * HEADERS_PER_MESSAGE_MAX, (("n", b"v"),) * HEADERS_PER_MESSAGE_MAX),
    ],
    ids=lambda each: str(each)[:20],
)
def test_headers(given: Any, taken: Any) -> None:
    assert as_headers(given) == taken


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (5, "a mapping or"),
        ("ab", "a mapping or"),
        ([("a", b"1", b"2")], "a mapping or"),
        ([("a",)], "a mapping or"),
        ([["a", b"1"]], "a mapping or"),
        ({b"a": b"1"}, "name is text, not bytes"),
        ({"a": None}, "'a' has no content"),
        ({"a": "1"}, "the header 'a' is bytes or None, not str"),
        ({"\ud800": b""}, "UTF-8 can hold"),
    ],
    ids=str,
)
def test_no_headers(given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        as_headers(given)


def test_too_many_headers() -> None:
    with pytest.raises(TooLarge, match="at most"):
        as_headers([("n", b"v")] * (HEADERS_PER_MESSAGE_MAX + 1))


@pytest.mark.parametrize(
    ("value", "key", "headers", "size"),
    [
        (None, None, None, 0),
        (b"abc", None, None, 3),
        (None, b"ab", (), 2),
        (b"abc", b"ab", (("ö", b"x"),), 5 + 3 + limits.HEADER_OVERHEAD_BYTES),
        (b"", b"", (("n", b""), ("m", b"xy")), 4 + 2 * limits.HEADER_OVERHEAD_BYTES),
    ],
)
def test_how_much_a_message_takes_of_the_window(
    value: Any, key: Any, headers: Any, size: int
) -> None:
    assert payload_bytes(value, key, headers) == size


def test_what_cannot_fit_one_entry_is_refused_before_it_is_taken() -> None:
    refuse_too_large(1, MESSAGE_BYTES_MAX, 0)
    with pytest.raises(TooLarge, match=f"a message of {MESSAGE_BYTES_MAX + 1} bytes"):
        refuse_too_large(1, MESSAGE_BYTES_MAX + 1, 0)
    for messages, pairs in ((2, 0), (1, 1), (7, 3)):
        empty = encoded_bytes_max(messages=messages, payload_bytes=0, header_pairs=pairs)
        most = LEDGER_ENTRY_BYTES_MAX - empty
        refuse_too_large(messages, most, pairs)
        with pytest.raises(TooLarge):
            refuse_too_large(messages, most + 1, pairs)
    with pytest.raises(TooLarge, match="an atomic run of 2 messages"):
        refuse_too_large(2, MESSAGE_BYTES_MAX, 0)

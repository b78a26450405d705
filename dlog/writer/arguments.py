"""What a caller may hand in as value, key, headers and event time, and the typed refusals for
everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from dlog import limits
from dlog.clock import datetime_us
from dlog.errors import ConfigError, TooLarge
from dlog.ids import MessageId
from dlog.wire.batch import Headers, encoded_bytes_max

HeadersArg = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
EventTime = datetime | int
Producer = tuple[int, int]
_INT64_END = 1 << 63
EMPTY = "empty"  # what `if_tail` calls the tail of a log without messages
NUMBER_END = 1 << 62  # of producers: far beyond counting, and a run after it still fits 63 bits


def payload_bytes(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    size = len(value or b"") + len(key or b"")
    for name, content in headers or ():
        size += len(name.encode()) + len(content) + limits.HEADER_OVERHEAD_BYTES
    return size


def refuse_too_large(messages: int, payload_bytes: int, header_pairs: int) -> None:
    size = encoded_bytes_max(
        messages=messages, payload_bytes=payload_bytes, header_pairs=header_pairs
    )
    if size > limits.LEDGER_ENTRY_BYTES_MAX:
        what = "a message" if messages == 1 else f"an atomic run of {messages} messages"
        raise TooLarge(
            f"{what} of {payload_bytes} bytes does not fit one entry of at most "
            f"{limits.LEDGER_ENTRY_BYTES_MAX} bytes"
        )


def as_bytes(what: str, value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise ConfigError(f"{what} is bytes or None, not {type(value).__name__}; encode text yourself")


def as_headers(headers: HeadersArg | None) -> Headers | None:
    if headers is None:
        return None
    items = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(items, Iterable):
        raise ConfigError("headers are a mapping or (name, bytes) pairs")
    pairs = []
    for pair in items:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ConfigError("headers are a mapping or (name, bytes) pairs")
        name, content = pair
        if not isinstance(name, str):
            raise ConfigError(f"a header's name is text, not {type(name).__name__}")
        if not name.isascii():
            _check_encodable(name)
        checked = as_bytes(f"the header {name!r}", content)
        if checked is None:
            raise ConfigError(f"the header {name!r} has no content; use b'' for an empty one")
        pairs.append((name, checked))
    if len(pairs) > limits.HEADERS_PER_MESSAGE_MAX:
        raise TooLarge(f"a message has at most {limits.HEADERS_PER_MESSAGE_MAX} headers")
    return tuple(pairs)


def _check_encodable(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"a header's name is text that UTF-8 can hold, not {name!r}") from None


def as_event_time_us(event_time: EventTime | None) -> int | None:
    if event_time is None:
        return None
    if isinstance(event_time, datetime):
        if event_time.tzinfo is None:
            raise ConfigError("an event time knows its time zone, or is microseconds since 1970")
        return datetime_us(event_time)
    if type(event_time) is not int or not -_INT64_END <= event_time < _INT64_END:
        raise ConfigError("an event time is an aware datetime or microseconds since 1970")
    return event_time


def as_producer(producer: object) -> Producer | None:
    if producer is None:
        return None
    if isinstance(producer, tuple) and len(producer) == 2:
        producer_id, number = producer
        if all(type(each) is int and 0 <= each < NUMBER_END for each in (producer_id, number)):
            return producer_id, number
    raise ConfigError(f"a producer is its id and a number, both counted from 0, not {producer!r}")


def as_tail(if_tail: object) -> MessageId | str:
    if isinstance(if_tail, MessageId) or if_tail == EMPTY:
        return if_tail
    raise ConfigError(f"if_tail is a MessageId or {EMPTY!r}, not {if_tail!r}")

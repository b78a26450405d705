"""Messages as people and programs feed them in: a line each, plain or JSON. Every refusal names the
line, so that a bad one in a million is found."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO

from dlog.clock import datetime_us
from dlog.limits import LEDGER_ENTRY_BYTES_MAX

Headers = list[tuple[str, bytes]]

# A JSON line spells out one message: base64 of key and value, and some words around them.
LINE_BYTES_MAX = 4 * LEDGER_ENTRY_BYTES_MAX

# What `dlog tail -o json` says about a message that only its log can give; a copy gets its own.
_GIVEN_BY_THE_LOG = frozenset({"id", "seq", "epoch", "shard", "timestamp_us", "time"})
_UNDERSTOOD = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "event_time", "event_time_us"}
)


class BadInput(Exception):
    """What was fed in is not understood, or cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A message before it has a place in a log."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    event_time_us: int | None = None


@dataclass(slots=True)
class At:
    """Where the message stands that was given last."""

    name: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}" if self.line else self.name


Parse = Callable[[bytes], Draft]


def drafts(stream: BinaryIO, name: str, parse: Parse, at: At) -> Iterator[Draft]:
    """One draft per line; `BadInput` names the line it stopped at."""
    at.name, at.line = name, 0
    while line := stream.readline(LINE_BYTES_MAX):
        at.line += 1
        if not line.endswith(b"\n") and len(line) == LINE_BYTES_MAX:
            raise BadInput(f"{at}: longer than {LINE_BYTES_MAX} bytes")
        try:
            yield parse(line.removesuffix(b"\n"))
        except ValueError as error:
            raise BadInput(f"{at}: {error}") from None


def whole(stream: BinaryIO, name: str, at: At) -> Iterator[Draft]:
    """All that is in the stream, as one draft."""
    at.name, at.line = name, 0
    value = stream.read(LINE_BYTES_MAX)
    if len(value) == LINE_BYTES_MAX:
        raise BadInput(f"{name}: longer than {LINE_BYTES_MAX} bytes, too large for one message")
    yield Draft(value)


def plain_line(line: bytes) -> Draft:
    return Draft(line)


def separated_line(separator: bytes) -> Parse:
    """Key, separator, value; the value may hold the separator again."""

    def parse(line: bytes) -> Draft:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"there is no {separator.decode('utf-8', 'replace')!r} after a key")
        return Draft(value, key)

    return parse


def json_line(line: bytes) -> Draft:
    """An object with value (or value_base64) and, if wanted, key, headers and event time."""
    try:
        told = json.loads(str(line, "utf-8-sig"))  # of bytes, it would take other encodings
    except UnicodeDecodeError:
        raise ValueError("this is not UTF-8; bytes go as value_base64") from None
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON") from None
    if not isinstance(told, dict):
        raise ValueError('a message is a JSON object, as {"value": "paid"}')
    strange = sorted(told.keys() - _UNDERSTOOD - _GIVEN_BY_THE_LOG)
    if strange:
        raise ValueError(
            f"unknown field {', '.join(map(repr, strange))}; known are "
            f"{', '.join(sorted(_UNDERSTOOD))}"
        )
    if "value" not in told and "value_base64" not in told:
        raise ValueError("there is no value (null for a tombstone)")
    return Draft(
        _bytes_of(told, "value"),
        _bytes_of(told, "key"),
        _headers_of(told.get("headers", [])),
        _event_time_us_of(told),
    )


def _bytes_of(told: dict[str, Any], name: str) -> bytes | None:
    plain, coded = told.get(name), told.get(f"{name}_base64")
    if name in told and f"{name}_base64" in told:
        raise ValueError(f"{name} and {name}_base64 exclude each other")
    if f"{name}_base64" in told:
        return _from_base64(coded, f"{name}_base64")
    if plain is None:
        return None
    return _from_text(plain, name)


def _from_text(text: object, name: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{name} is text or null; put other JSON into a string")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half a character; use base64 for bytes") from None


def _from_base64(text: object, name: str) -> bytes:
    try:
        if not isinstance(text, str):
            raise TypeError
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"{name} is not base64") from None


def _headers_of(told: object) -> Headers:
    """An object, or a list of pairs where order and repetition matter."""
    pairs = list(told.items()) if isinstance(told, dict) else told
    if not isinstance(pairs, list):
        raise ValueError("headers are an object, or a list of [name, value]")
    found = []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError("a header is a pair [name, value], the name being text")
        name, value = pair
        if isinstance(value, dict) and value.keys() == {"base64"}:
            found.append((name, _from_base64(value["base64"], f"header {name}")))
        else:
            found.append((name, _from_text(value, f"header {name}")))
    return found


def _event_time_us_of(told: dict[str, Any]) -> int | None:
    number, text = told.get("event_time_us"), told.get("event_time")
    if number is not None and text is not None:
        raise ValueError("event_time and event_time_us exclude each other")
    if number is not None:
        if type(number) is not int:
            raise ValueError("event_time_us is a whole number of microseconds since 1970")
        return number
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError("event_time is an ISO 8601 time") from None
    if moment.tzinfo is None:
        raise ValueError("event_time names its zone, as 2025-03-01T12:00:00Z")
    return datetime_us(moment)


def parse_header(text: str) -> tuple[str, bytes]:
    """`name=value` of the command line."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"a header reads name=value, not {text!r}")
    if not _is_text(name):
        raise ValueError(f"a header's name is UTF-8, not {name!r}")
    return name, value.encode("utf-8", "surrogateescape")


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

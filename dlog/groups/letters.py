"""A dead letter as a message: the one that could not be processed, with headers that say where it
came from and why. Makes it fit, whatever the message was.

A message may be as large as a message can be, and its letter has headers beside it. So what does
not fit is left out, and the letter says what: of a long error its end; of the value its end; of
many or large headers those that stand last; of a key that leaves no room the key. The whole of it
stands where it was, in the log `dlog.shard` at the id `dlog.id`, until it is truncated there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dlog import limits
from dlog.reader.message import Message
from dlog.wire.batch import encoded_bytes_max
from dlog.writer.arguments import payload_bytes

PREFIX = "dlog."
ERROR_CHARS_MAX = 2_000
ERROR_CHARS_MIN = 200  # where the message leaves little room

Pairs = list[tuple[str, bytes]]


class Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Pairs
    event_time_us: int | None
    cut: tuple[str, ...]
    """Which parts of the message are not there as they were: `value`, `headers`, `key`."""


def letter_of(message: Message, told: Mapping[str, str]) -> Letter:
    """`told`: what the headers of the letter say, by their names without `dlog.`."""
    error = told.get("error", "")
    for chars in (ERROR_CHARS_MAX, ERROR_CHARS_MIN):
        ours = _pairs({**told, "error": error[:chars]} if "error" in told else told)
        whole = [*message.headers, *ours]
        if _fits(message.key, message.value, whole):
            return Letter(message.key, message.value, whole, message.event_time_us, ())
    return _cut(message, ours)


def _cut(message: Message, ours: Pairs) -> Letter:
    """What is left when room is made: first for what the letter says itself, then for the key, then
    for headers, then for as much of the value as there is room for."""
    key, value = message.key, message.value
    digest = _digest_of(value)
    cut: dict[str, Pairs] = {}

    def told() -> Pairs:
        names = ",".join(cut)
        return [*ours, *(pair for pairs in cut.values() for pair in pairs), *_pairs({"cut": names})]

    # Room for all that may have to be said, so that what is said later leaves out nothing more.
    cut["value"], cut["headers"], cut["key"] = digest, _left_out(limits.HEADERS_PER_MESSAGE_MAX), []
    if key is not None:
        cut["key"] = _number("key_bytes", len(key))
        if not _fits(key, b"", told()):
            key = None
    kept: Pairs = []
    for pair in message.headers:
        if not _fits(key, b"", [*kept, pair, *told()]):
            break
        kept.append(pair)
    left_out = len(message.headers) - len(kept)
    cut["headers"] = _left_out(left_out)
    if value is not None:
        value = value[: len(value) - max(0, _too_many(key, value, [*kept, *told()]))]
    cut = {
        part: pairs
        for part, pairs in cut.items()
        if (part == "value" and value != message.value)
        or (part == "headers" and left_out)
        or (part == "key" and key != message.key)
    }
    return Letter(key, value, [*kept, *told()], message.event_time_us, tuple(cut))


def _digest_of(value: bytes | None) -> Pairs:
    if value is None:
        return []
    digest = hashlib.sha256(value).hexdigest()
    return [*_number("value_bytes", len(value)), *_pairs({"value_sha256": digest})]


def _left_out(many: int) -> Pairs:
    return _number("headers_left_out", many)


def _number(name: str, number: int) -> Pairs:
    return _pairs({name: str(number)})


def _pairs(told: Mapping[str, str]) -> Pairs:
    # What an error says need not be text that UTF-8 can hold.
    return [
        (f"{PREFIX}{name}", value.encode(errors="backslashreplace")) for name, value in told.items()
    ]


def _fits(key: bytes | None, value: bytes | None, headers: Pairs) -> bool:
    return len(headers) <= limits.HEADERS_PER_MESSAGE_MAX and _too_many(key, value, headers) <= 0


def _too_many(key: bytes | None, value: bytes | None, headers: Pairs) -> int:
    """How many bytes it is larger than a message can be."""
    payload = payload_bytes(value, key, tuple(headers))
    size = encoded_bytes_max(messages=1, payload_bytes=payload, header_pairs=len(headers))
    return size - limits.LEDGER_ENTRY_BYTES_MAX


def told_by(headers: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """What a letter says by its own headers: they stand behind those of the message, which may have
    been a letter itself."""
    return {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}


def error_text(error: BaseException) -> str:
    """Kind and text of an error of a program's, which may have none to be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever a program's error does when it is asked
        return f"{type(error).__name__}, whose text cannot be had"

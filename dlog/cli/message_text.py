"""Messages as text: JSON, a percent format, hexadecimal, or raw bytes. Everything but raw is safe
to show on a terminal."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.cli.escape import json_text, printable, printable_bytes
from dlog.cli.moments import moment_text

if TYPE_CHECKING:
    from dlog import Message

Form = Callable[["Message"], bytes]

TOMBSTONE = "(tombstone)"
# json.dumps with options makes an encoder per call.
_encode = json.JSONEncoder(ensure_ascii=False).encode

LONG_FORMAT = r"%i  %s  %t  %k  %v\n"

FORMAT_HELP = r"""%i id, %s seq, %p epoch, %t time, %T time in microseconds, %e and %E the same of
the event time, %k key, %v value, %K and %V their sizes in bytes, %h headers, %% a percent sign;
%v{hex} and %v{base64} (also of %k) for bytes; \n \t \\ \0 \xNN."""


def json_form(message: Message, *, shard: int | None = None) -> bytes:
    """One JSON object, one line: what `dlog produce --json` reads back."""
    told: dict[str, Any] = {} if shard is None else {"shard": shard}
    told |= {
        "id": str(message.id),
        "seq": message.seq,
        "epoch": message.epoch,
        "timestamp_us": message.timestamp_us,
        "time": moment_text(message.timestamp_us),
    }
    if message.event_time_us is not None:
        told["event_time_us"] = message.event_time_us
    if message.key is not None:
        told |= _json_bytes("key", message.key)
    if message.value is None:
        told["value"] = None
    else:
        told |= _json_bytes("value", message.value)
    if message.headers:
        told["headers"] = [[name, _header_value(value)] for name, value in message.headers]
    return json_text(_encode(told)).encode() + b"\n"


def _json_bytes(name: str, raw: bytes) -> dict[str, str]:
    """Text where the bytes are UTF-8, else base64 under a name that says so: never a guess."""
    try:
        return {name: bytes(raw).decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def _header_value(raw: bytes) -> str | dict[str, str]:
    try:
        return bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def hex_form(message: Message) -> bytes:
    """A head line, then the value sixteen bytes a line, as `hexdump -C` shows it."""
    value = b"" if message.value is None else bytes(message.value)
    size = TOMBSTONE if message.value is None else f"{len(value)} bytes"
    key = "-" if message.key is None else printable_bytes(message.key)
    lines = [f"{message.id}  {message.seq}  {moment_text(message.timestamp_us)}  {key}  {size}"]
    for first in range(0, len(value), 16):
        row = value[first : first + 16]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{first:08x}  {left:<23}  {right:<23}  |{shown}|")
    return "\n".join(lines).encode() + b"\n"


def raw_form(separator: bytes) -> Form:
    """The exact bytes of the value and the separator; nothing for a tombstone."""

    def form(message: Message) -> bytes:
        return b"" if message.value is None else bytes(message.value) + separator

    return form


Part = Callable[["Message"], str]

_BYTES_AS: dict[str | None, Callable[[bytes], str]] = {
    None: printable_bytes,
    "hex": lambda raw: raw.hex(),
    "base64": lambda raw: base64.b64encode(raw).decode(),
}


def _of_bytes(which: str, missing: str, style: str | None) -> Part:
    shown = _BYTES_AS[style]

    def part(message: Message) -> str:
        raw = getattr(message, which)
        return missing if raw is None else shown(bytes(raw))

    return part


def _size_of(which: str) -> Part:
    def part(message: Message) -> str:
        raw = getattr(message, which)
        return "-1" if raw is None else str(len(raw))

    return part


def _headers(message: Message) -> str:
    return " ".join(
        f"{printable(name)}={printable_bytes(value)}" for name, value in message.headers
    )


_PARTS: dict[str, Part] = {
    "i": lambda message: str(message.id),
    "s": lambda message: str(message.seq),
    "p": lambda message: str(message.epoch),
    "t": lambda message: moment_text(message.timestamp_us),
    "T": lambda message: str(message.timestamp_us),
    "e": lambda message: moment_text(message.event_time_us),
    "E": lambda message: "-" if message.event_time_us is None else str(message.event_time_us),
    "K": _size_of("key"),
    "V": _size_of("value"),
    "h": _headers,
    "%": lambda message: "%",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(
    r"%(?P<bytes>[kv])(?:\{(?P<style>[^}]*)\})?|%(?P<part>.?)"
    r"|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)",
    re.DOTALL,
)


def percent_form(template: str) -> Form:
    """A form made from a percent format; `ValueError` says what is not understood."""
    parts = [_part(token) for token in _TOKEN.finditer(template)]

    def form(message: Message) -> bytes:
        return "".join([part(message) for part in parts]).encode("utf-8", "backslashreplace")

    return form


def _part(token: re.Match[str]) -> Part:
    if token["bytes"] is not None:
        if token["style"] not in _BYTES_AS:
            raise ValueError(f"{token[0]} is not known: {{hex}} and {{base64}} are")
        which, missing = ("key", "-") if token["bytes"] == "k" else ("value", TOMBSTONE)
        return _of_bytes(which, missing, token["style"])
    if token["part"] is not None:
        known = _PARTS.get(token["part"])
        if known is None:
            raise ValueError(f"%{token['part']} is not known: {FORMAT_HELP}")
        return known
    if token["hex"] is not None:
        return _literal(chr(int(token["hex"], 16)))
    if token["escape"] is not None:
        if token["escape"] not in _ESCAPES:
            raise ValueError(f"\\{token['escape']} is not known: {FORMAT_HELP}")
        return _literal(_ESCAPES[token["escape"]])
    return _literal(token["text"])


def _literal(text: str) -> Part:
    return lambda message: text


def unescaped(text: str) -> bytes:
    r"""Bytes for text typed with escapes: `\n`, `\0`, `\x1e`; `ValueError` for others."""
    return "".join(
        _unescape(found) if found[0].startswith("\\") else found[0]
        for found in re.finditer(r"\\x[0-9a-fA-F]{2}|\\.?|[^\\]+", text, re.DOTALL)
    ).encode("utf-8", "surrogateescape")


def _unescape(found: re.Match[str]) -> str:
    token = found[0]
    if len(token) == 4:
        code = int(token[2:], 16)
        return chr(code) if code < 128 else chr(0xDC00 + code)  # surrogateescape: one byte
    if token[1:] not in _ESCAPES:
        raise ValueError(f"{token} is not known: \\n \\t \\r \\0 \\\\ \\xNN are")
    return _ESCAPES[token[1:]]

"""Reads the text form of protobuf, which ledger metadata of format 2 has; we never write it.

    quorumSize: 2
    segment {
      ensembleMember: "192.0.2.1:3181"
    }

A message becomes a dict of lists: numbers and names as text, strings as bytes, messages as dicts.
What a field means is for whoever asks. Accepted is what writers of that format produced, with the
freedom of the text form in blanks, comments, separators and escapes; extensions, expanded types and
list literals, which never stood in such metadata, are `FormatError`.
"""

from __future__ import annotations

import re
from typing import Final

from dlog.errors import Corrupt, FormatError

NESTING_MAX: Final = 16
FIELDS_MAX: Final = 1 << 15  # of all messages together

TextMessage = dict[str, "list[str | bytes | TextMessage]"]

_TOKEN = re.compile(
    rb"(?:[ \t\r\n\f\v]++|#[^\n]*)*+"  # no token; possessive, or blanks cost exponential time
    rb"(?:"
    rb'(?P<string>"(?:[^"\\\n]|\\[^\n])*"|\'(?:[^\'\\\n]|\\[^\n])*\')'
    rb"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    rb"|(?P<number>-?[0-9][A-Za-z0-9_.+]*)"
    rb"|(?P<sign>[:{}<>;,])"
    rb"|(?P<end>\Z)"
    rb")"
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"?": b"?",
}
_CLOSING = {b"{": b"}", b"<": b">"}


def read_text_message(raw: bytes, where: str) -> TextMessage:
    return _Reader(raw, where).fields(closing=b"", depth=0)


class _Reader:
    """One token ahead: its kind, its bytes."""

    def __init__(self, raw: bytes, where: str) -> None:
        self._raw = raw
        self._where = where
        self._at = 0
        self._begin = 0  # of the token
        self._count = 0
        self._kind = self._token = b""
        self._next()

    def _next(self) -> None:
        found = _TOKEN.match(self._raw, self._at)
        if found is None or found.lastgroup is None:
            raise Corrupt(f"{self._where}: no text protobuf behind byte {self._at}")
        self._kind = found.lastgroup.encode()
        self._token = found[found.lastgroup]
        self._begin = found.start(found.lastgroup)
        self._at = found.end()

    def fields(self, closing: bytes, depth: int) -> TextMessage:
        """Up to the sign that closes this message, or to the end of the text."""
        if depth > NESTING_MAX:
            raise Corrupt(f"{self._where}: messages are nested more than {NESTING_MAX} deep")
        message: TextMessage = {}
        while not self._closes(closing):
            if self._kind != b"word":
                raise self._unexpected("the name of a field")
            self._count += 1
            if self._count > FIELDS_MAX:
                raise Corrupt(f"{self._where}: more than {FIELDS_MAX} fields")
            name = self._token.decode()
            self._next()
            message.setdefault(name, []).append(self._value(depth))
            if self._token in (b";", b","):
                self._next()
        return message

    def _closes(self, closing: bytes) -> bool:
        return self._kind == b"end" if not closing else self._token == closing

    def _value(self, depth: int) -> str | bytes | TextMessage:
        colon = self._token == b":"
        if colon:
            self._next()
        closing = _CLOSING.get(self._token)
        if closing is not None:
            self._next()
            inner = self.fields(closing, depth + 1)
            self._next()
            return inner
        if not colon:
            raise self._unexpected("a colon")
        if self._kind == b"string":
            pieces = []
            while self._kind == b"string":  # neighbours are one
                pieces.append(self._unescaped(self._token[1:-1]))
                self._next()
            return b"".join(pieces)
        if self._kind not in (b"word", b"number"):
            raise self._unexpected("a value")
        value = self._token.decode()
        self._next()
        return value

    def _unescaped(self, quoted: bytes) -> bytes:
        return _ESCAPE.sub(self._meaning, quoted) if b"\\" in quoted else quoted

    def _meaning(self, escape: re.Match[bytes]) -> bytes:
        octal, hexadecimal, plain = escape.groups()
        if plain is not None:
            meant = _PLAIN_ESCAPES.get(plain)
            if meant is None:
                raise FormatError(f"{self._where}: an unknown escape near byte {self._begin}")
            return meant
        value = int(octal, 8) if octal is not None else int(hexadecimal, 16)
        if value > 0xFF:
            raise Corrupt(f"{self._where}: an escape beyond a byte near byte {self._begin}")
        return bytes([value])

    def _unexpected(self, wanted: str) -> FormatError:
        # Without the token itself: it may be a part of the password.
        return FormatError(f"{self._where}: {wanted} is missing at byte {self._begin}")

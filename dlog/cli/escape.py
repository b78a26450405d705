"""Text that is safe to show: whatever a terminal might obey instead of print is written out.

A message is bytes from anybody. Escape sequences, carriage returns and characters that turn the
writing direction could make a terminal lie, or type; so nothing but printable characters passes.
The escapes are for eyes: a backslash stays as it is, and `-o json` is the lossless form.
"""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text with every character that is not plainly printable written as an escape."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_bytes(raw: bytes) -> str:
    """Bytes as text: UTF-8 where it is that, `\\xNN` where it is not, nothing obeyed."""
    return printable(raw.decode("utf-8", "backslashreplace"))


def _shown(character: str) -> str:
    # Wide and no-break spaces count as unprintable for Python, and harm nobody.
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def json_text(text: str) -> str:
    """JSON text with the same characters written as JSON escapes, so that it stays the same
    value."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else _json_escape(c) for c in text
    )


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[i : i + 2]):04x}" for i in range(0, len(units), 2))

"""Names for places in a log: `MessageId` (one message), `Position` (where a reader stands) and
`Token` (one message on its way).

All are values. A `MessageId` is a tuple, so it orders, hashes and compares at C speed; its 20
bytes sort as the tuple does; its text is for people and is never compared. A `Position` is *after*
a message, or before the first one. A `Token` names what was sent, wherever it ended.
"""

from __future__ import annotations

import builtins
import json
import re
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from dlog.errors import ConfigError, FormatError

ID_BYTES = 20
NO_ENTRY = -1
NO_LEDGER = -1

_SIGN_64 = 1 << 63
_SIGN_32 = 1 << 31
_SORTABLE = struct.Struct(">QQI")
_TEXT = re.compile(r"(-1|0|[1-9][0-9]{0,18}):(-1|0|[1-9][0-9]{0,18}):(-1|0|[1-9][0-9]{0,9})")
_POSITION_TEXT_MAX = 512
_TOKEN_TEXT_MAX = 512


class MessageId(NamedTuple):
    """Identifies one message: ledger, entry in the ledger, index in the entry. Ordered as the
    tuple."""

    ledger_id: int
    entry_id: int
    batch_idx: int

    @property
    def bytes(self) -> builtins.bytes:
        """20 bytes that sort exactly as the ids do (each number big-endian with its sign bit
        flipped)."""
        return _SORTABLE.pack(self[0] + _SIGN_64, self[1] + _SIGN_64, self[2] + _SIGN_32)

    @classmethod
    def from_bytes(cls, raw: builtins.bytes) -> MessageId:
        if len(raw) != ID_BYTES:
            raise FormatError(f"a message id is {ID_BYTES} bytes, not {len(raw)}")
        ledger, entry, idx = _SORTABLE.unpack(raw)
        return _checked(ledger - _SIGN_64, entry - _SIGN_64, idx - _SIGN_32, f"bytes {raw.hex()}")

    @classmethod
    def parse(cls, text: str) -> MessageId:
        found = _TEXT.fullmatch(text)
        if found is None:
            raise FormatError(
                f"a message id reads ledger:entry:index, as 12:345:6, not {text[:80]!r}"
            )
        return _checked(int(found[1]), int(found[2]), int(found[3]), repr(text))

    def __str__(self) -> str:
        return f"{self[0]}:{self[1]}:{self[2]}"


def _checked(ledger_id: int, entry_id: int, batch_idx: int, source: str) -> MessageId:
    if not (
        -1 <= ledger_id < _SIGN_64 and -1 <= entry_id < _SIGN_64 and -1 <= batch_idx < _SIGN_32
    ):
        raise FormatError(f"a number is out of range in the message id {source}")
    return MessageId(ledger_id, entry_id, batch_idx)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader stands in one log: `next_seq` is the seq it delivers next, `after` the id it
    delivered last.

    `after` is None before the first message. `log_uid` ties the position to its log, so that one
    taken from another log is refused instead of meaning something by accident.
    """

    log_uid: str
    next_seq: int
    after: MessageId | None

    def to_text(self) -> str:
        after = None if self.after is None else str(self.after)
        fields = {"after": after, "log": self.log_uid, "next_seq": self.next_seq}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Position:
        fields = _json_object("position", text, _POSITION_TEXT_MAX)
        if set(fields) != {"after", "log", "next_seq"}:
            raise FormatError("a position has exactly the fields after, log and next_seq")
        after, log_uid, next_seq = fields["after"], fields["log"], fields["next_seq"]
        if (
            not isinstance(log_uid, str)
            or type(next_seq) is not int
            or not 0 <= next_seq < _SIGN_64
        ):
            raise FormatError(
                "a position names its log as text and its next seq as a number from 0"
            )
        if after is not None and not isinstance(after, str):
            raise FormatError("a position's `after` is a message id or null")
        return cls(log_uid, next_seq, None if after is None else MessageId.parse(after))

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True, slots=True)
class Token:
    """Names one message from the moment it was submitted, before anybody knows its id or whether it
    will have one: the log, the epoch of its writer, and the seq that it has if it is there.

    `resolve` tells what became of it, also after a crash: keep its text.
    """

    log_uid: str
    epoch: int
    seq: int

    def to_text(self) -> str:
        fields = {"epoch": self.epoch, "log": self.log_uid, "seq": self.seq}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Token:
        fields = _json_object("token", text, _TOKEN_TEXT_MAX)
        if set(fields) != {"epoch", "log", "seq"}:
            raise FormatError("a token has exactly the fields epoch, log and seq")
        log_uid, epoch, seq = fields["log"], fields["epoch"], fields["seq"]
        numbers = all(type(each) is int and 0 <= each < _SIGN_64 for each in (epoch, seq))
        if not isinstance(log_uid, str) or not numbers:
            raise FormatError("a token names its log as text, its epoch and seq as numbers from 0")
        return cls(log_uid, epoch, seq)

    def __str__(self) -> str:
        return self.to_text()


def _json_object(what: str, text: str, chars_max: int) -> dict[str, Any]:
    if len(text) > chars_max:
        raise FormatError(f"a {what} has at most {chars_max} characters, not {len(text)}")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # the latter far down in somebody's calls
        raise FormatError(f"a {what} is a JSON object, not {text[:80]!r}") from None
    if not isinstance(fields, dict):
        raise FormatError(f"a {what} is a JSON object, not {text[:80]!r}")
    return fields


NAME_BYTES_MAX = 255


def check_log_name(name: str) -> str:
    """A log name is 1 to 255 bytes of printable text; slashes separate levels, none of which is
    empty, `.` or `..`."""
    return _check_name("log", name)


def check_hold_name(name: str) -> str:
    """As of a log."""
    return _check_name("hold", name)


def _check_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a {what} needs a name")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise ConfigError(
            f"a {what} name has at most {NAME_BYTES_MAX} bytes of UTF-8: {name[:40]!r}…"
        )
    if not name.isprintable() or name != name.strip():
        raise ConfigError(f"a {what} name holds printable characters and no outer blanks: {name!r}")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigError(f"no level of a {what} name is empty, '.' or '..': {name!r}")
    return name

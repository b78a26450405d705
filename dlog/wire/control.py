"""Control entries: what a log writes into its ledgers for itself, never seen by a user.

A *birth* (entry 0) says whose ledger this is. A *seam* (entry 1) says where its segment begins: the
ledger before it, the last entry pushed there, and the base seq. Both are JSON in canonical form
(sorted keys, no blanks), small enough to be read in a hex dump; fields that a later version adds
are ignored, fields that are missing or out of range are `Corrupt`. What we write we read back
first: a birth nobody can read would cost a segment. *Producers* says which number of each producer
is the last one before this entry; it is binary, since there may be thousands.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from itertools import starmap
from struct import Struct
from typing import Any, Literal, NamedTuple, TypeVar

from dlog.errors import ConfigError, Corrupt, FormatError
from dlog.forgotten import ForgottenIds

CONTROL_JSON_BYTES_MAX = 4096
_TEXT_CHARS_MAX = 256
_NUMBER_END = 1 << 63


class ControlKind(enum.IntEnum):
    """4 (terminate) is reserved."""

    BIRTH = 1
    SEAM = 2
    PRODUCERS = 3


Role = Literal["segment", "standby", "job"]
_ROLES: dict[object, Role] = {"segment": "segment", "standby": "standby", "job": "job"}


@dataclass(frozen=True, slots=True)
class Birth:
    """`number` and `epoch` stand for a segment only: a standby or a job does not know them yet."""

    log_uid: str
    role: Role
    number: int | None
    epoch: int | None
    token: str  # of the creator

    def to_bytes(self) -> bytes:
        return _written(self, Birth)

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Birth:
        fields = _Fields(raw, where)
        role = fields.role("role")
        is_segment = role == "segment"
        return cls(
            log_uid=fields.text("log_uid"),
            role=role,
            number=fields.number_or_null("number", is_segment),
            epoch=fields.number_or_null("epoch", is_segment),
            token=fields.text("token"),
        )


@dataclass(frozen=True, slots=True)
class Seam:
    """`predecessor_ledger` and `predecessor_last` are -1 in the first segment of a log."""

    predecessor_ledger: int
    predecessor_last: int  # the last entry pushed there
    base_seq: int
    epoch: int
    number: int
    log_uid: str

    def to_bytes(self) -> bytes:
        return _written(self, Seam)

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Seam:
        fields = _Fields(raw, where)
        return cls(
            predecessor_ledger=fields.number("predecessor_ledger", first=-1),
            predecessor_last=fields.number("predecessor_last", first=-1),
            base_seq=fields.number("base_seq"),
            epoch=fields.number("epoch"),
            number=fields.number("number"),
            log_uid=fields.text("log_uid"),
        )


class ProducerRow(NamedTuple):
    """The last message of one producer: its number, and the id that it has."""

    producer_id: int
    number: int
    ledger_id: int
    entry_id: int
    batch_idx: int


@dataclass(frozen=True, slots=True)
class ProducerTable:
    """`rows` begin with the producer that was silent longest; `forgot` some, in the log's life.
    `ranges` hold the ids of all that were forgotten; None where it is not known which."""

    rows: tuple[ProducerRow, ...] = ()
    forgot: bool = False
    ranges: tuple[tuple[int, int], ...] | None = None

    def to_bytes(self) -> bytes:
        flags = _FORGOT if self.forgot else 0
        tail = b""
        if self.forgot and self.ranges is not None:
            flags |= _RANGES
            tail = _RANGES_HEAD.pack(len(self.ranges)) + b"".join(starmap(_RANGE.pack, self.ranges))
        head = _TABLE_HEAD.pack(len(self.rows), flags)
        return head + b"".join(starmap(_TABLE_ROW.pack, self.rows)) + tail

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> ProducerTable:
        if len(raw) < _TABLE_HEAD.size:
            raise Corrupt(f"{where}: {len(raw)} bytes are no table of producers")
        count, flags = _TABLE_HEAD.unpack_from(raw)
        if flags & ~(_FORGOT | _RANGES):
            raise FormatError(f"{where}: unknown flags {flags:#x} of a table of producers")
        end = _TABLE_HEAD.size + count * _TABLE_ROW.size
        if len(raw) < end or (len(raw) > end and not flags & _RANGES):
            raise Corrupt(f"{where}: {len(raw)} bytes are no table of {count} producers")
        rows = tuple(map(ProducerRow._make, _TABLE_ROW.iter_unpack(raw[_TABLE_HEAD.size : end])))
        if any(min(row) < 0 for row in rows) or len({row[0] for row in rows}) != count:
            raise Corrupt(f"{where}: a table of producers has a number below 0, or one twice")
        ranges = _ranges(raw[end:], where) if flags & _RANGES else None
        if ranges is not None and not flags & _FORGOT:
            raise Corrupt(f"{where}: a table of producers that forgot none names some")
        return cls(rows, bool(flags & _FORGOT), ranges)


def _ranges(raw: bytes, where: str) -> tuple[tuple[int, int], ...]:
    """Of the ids that were forgotten."""
    count = _RANGES_HEAD.unpack_from(raw)[0] if len(raw) >= _RANGES_HEAD.size else 0
    if count == 0 or len(raw) != _RANGES_HEAD.size + count * _RANGE.size:
        raise Corrupt(f"{where}: {len(raw)} bytes are no ranges of forgotten producers")
    pairs = tuple(_RANGE.iter_unpack(raw[_RANGES_HEAD.size :]))
    try:
        return ForgottenIds.from_stored(pairs, where).ranges
    except FormatError as wrong:
        raise Corrupt(wrong.message) from None


_TABLE_HEAD = Struct("<II")  # rows, flags
_TABLE_ROW = Struct("<qqqqI4x")  # as `ProducerRow`
_RANGES_HEAD = Struct("<I4x")  # how many follow
_RANGE = Struct("<qq")  # the first and the last id
_FORGOT = 1
_RANGES = 4

_Body = TypeVar("_Body", Birth, Seam)


def _written(body: _Body, kind: type[_Body]) -> bytes:
    raw = json.dumps(asdict(body), sort_keys=True, separators=(",", ":")).encode()
    try:
        kind.from_bytes(raw, where=f"a {kind.__name__.lower()} about to be written")
    except (Corrupt, FormatError) as wrong:
        raise ConfigError(wrong.message) from None
    return raw


class _Fields:
    """A JSON object whose fields are asked for one by one, by type and range."""

    def __init__(self, raw: bytes, where: str) -> None:
        self._where = where
        if len(raw) > CONTROL_JSON_BYTES_MAX:
            raise Corrupt(f"{where}: {len(raw)} bytes of JSON, not {CONTROL_JSON_BYTES_MAX}")
        try:
            fields = json.loads(str(raw, "utf-8"))
        except (ValueError, RecursionError):  # the latter from thousands of open brackets
            raise Corrupt(f"{where}: not JSON: {bytes(raw[:80])!r}") from None
        if not isinstance(fields, dict):
            raise Corrupt(f"{where}: a JSON {type(fields).__name__}, not an object")
        self._fields: dict[str, Any] = fields

    def _get(self, name: str) -> Any:
        if name not in self._fields:
            raise Corrupt(f"{self._where}: the field {name} is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _TEXT_CHARS_MAX:
            raise self._wrong(name, f"text of 1 to {_TEXT_CHARS_MAX} characters", value)
        return value

    def number(self, name: str, first: int = 0) -> int:
        value = self._get(name)
        if type(value) is not int or not first <= value < _NUMBER_END:
            raise self._wrong(name, f"a number from {first} of 63 bits", value)
        return value

    def number_or_null(self, name: str, is_number: bool) -> int | None:
        if is_number:
            return self.number(name)
        value = self._get(name)
        if value is not None:
            raise self._wrong(name, "null in this role", value)
        return None

    def role(self, name: str) -> Role:
        value = self._get(name)
        known = _ROLES.get(value) if isinstance(value, str) else None
        if known is None:
            raise FormatError(f"{self._where}: unknown role {repr(value)[:80]}")
        return known

    def _wrong(self, name: str, wanted: str, value: object) -> Corrupt:
        return Corrupt(f"{self._where}: {name} is {wanted}, not {repr(value)[:80]}")

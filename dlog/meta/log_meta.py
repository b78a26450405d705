"""The log meta: one node per log, the unit of compare-and-set, as a value with its lawful changes.

`LogMeta` is frozen. Each change a protocol may make is a method that returns the next value and
checks what must hold (numbers never repeat, listed ledger ids only grow, at most two segments are
unsealed). Who may make which change, and when, is decided in `writer` and `admin`; how it is stored
is JSON, readable in any shell. Fields that this version does not know survive a read-modify-write;
a name in `needs` that it does not know refuses the whole node.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import ConfigError, FormatError, TooLarge, check
from dlog.ids import NO_ENTRY, NO_LEDGER
from dlog.options import LogOptions

FORMAT = 1
_KNOWN_NEEDS: frozenset[str] = frozenset()
_INT_MAX = (1 << 63) - 1
UNSEALED_MAX = 2


class LogState(enum.Enum):
    OPEN = "open"
    TERMINATED = "terminated"  # no more appends, for good
    DELETING = "deleting"  # being removed: its ledgers go
    DELETED = "deleted"  # removed: only what must never go back is kept (epoch, numbers, floor)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The end of a segment, once the list knows it."""

    last_entry: int
    bytes: int
    base_seq: int
    next_seq: int
    first_time_us: int
    last_time_us: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A ledger's place in a log."""

    number: int
    ledger_id: int
    epoch: int
    sealed: Sealed | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageRef:
    """Names an immutable page node of sealed segments `number` … `last_number`, and what a search
    needs of it."""

    number: int
    last_number: int
    base_seq: int
    next_seq: int
    first_time_us: int
    last_time_us: int
    last_ledger: int


@dataclass(frozen=True, slots=True)
class WriterMark:
    """Who holds the log. The token is this handle's alone: it tells its writes from everybody
    else's."""

    token: str
    name: str
    since_us: int


@dataclass(frozen=True, slots=True)
class End:
    """Where the newest sealed segment ends. Survives the truncation of everything."""

    number: int = 0
    ledger_id: int = NO_LEDGER
    last_entry: int = NO_ENTRY
    next_seq: int = 0
    last_time_us: int = 0


@dataclass(frozen=True, slots=True)
class Doomed:
    """A ledger that left the list and waits for its deletion."""

    ledger_id: int
    since_us: int


@dataclass(frozen=True, slots=True)
class LogMeta:
    uid: str
    options: LogOptions
    state: LogState = LogState.OPEN
    epoch: int = 0
    writer: WriterMark | None = None
    left_by: WriterMark | None = None  # who held the log last and left it, while nobody holds it
    digest: str = "crc32c"
    end: End = End()
    next_number: int = 1
    ledger_floor: int = NO_LEDGER
    segments: tuple[Segment, ...] = ()
    pages: tuple[PageRef, ...] = ()
    deleting: tuple[Doomed, ...] = ()
    hand_over: str | None = None  # the opener a planned hand-over expects
    truncate_before: str | None = None  # reserved: kept and shown, set by no verb of this version
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unsealed(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.sealed is None)

    def segment(self, number: int) -> Segment | None:
        return next((s for s in self.segments if s.number == number), None)

    def owned_by(self, token: str) -> bool:
        writer = self.writer
        return self.state is LogState.OPEN and writer is not None and writer.token == token

    # --- changes

    def claimed(self, writer: WriterMark) -> LogMeta:
        """The next epoch is `writer`'s. From here the list is frozen for everybody else."""
        check(self.state is LogState.OPEN, "only an open log is claimed", self.state)
        return dataclasses.replace(
            self, epoch=self.epoch + 1, writer=writer, left_by=None, hand_over=None
        )

    def listed(self, ledger_id: int) -> LogMeta:
        """The next segment is `ledger_id`, of the current epoch."""
        check(
            ledger_id > self.ledger_floor,
            "listed ledger ids only grow",
            ledger_id,
            self.ledger_floor,
        )
        check(len(self.unsealed) < UNSEALED_MAX, "at most two segments are unsealed", self.unsealed)
        segment = Segment(self.next_number, ledger_id, self.epoch)
        return dataclasses.replace(
            self,
            segments=(*self.segments, segment),
            next_number=self.next_number + 1,
            ledger_floor=ledger_id,
        )

    def sealed(self, number: int, sealed: Sealed) -> LogMeta:
        """Segment `number`, the oldest unsealed one, ends as `sealed` says."""
        unsealed = self.unsealed
        check(
            bool(unsealed) and unsealed[0].number == number, "segments are sealed in order", number
        )
        check(
            sealed.base_seq == self.end.next_seq, "no seq is lost or given twice", sealed, self.end
        )
        done = dataclasses.replace(unsealed[0], sealed=sealed)
        return dataclasses.replace(
            self,
            segments=tuple(done if s.number == number else s for s in self.segments),
            end=End(
                number, done.ledger_id, sealed.last_entry, sealed.next_seq, sealed.last_time_us
            ),
        )

    def dropped(self, number: int, now_us: int) -> LogMeta:
        """Segment `number` held nothing acknowledged: it leaves the list, its number burnt, its
        ledger doomed."""
        gone = self.segment(number)
        check(
            gone is not None and gone.sealed is None, "only an unsealed segment is dropped", number
        )
        assert gone is not None
        return dataclasses.replace(
            self,
            segments=tuple(s for s in self.segments if s.number != number),
            deleting=(*self.deleting, Doomed(gone.ledger_id, now_us)),
        )

    def paged(self) -> tuple[LogMeta, PageRef, tuple[Segment, ...]] | None:
        """When the inline list grew long: the meta without its oldest sealed segments, and the page
        they move to.

        The cut is a pure function of the segments, so that a page written by a try that lost its
        compare-and-set is the very page the next try needs."""
        count = limits.META_PAGE_SEGMENTS
        if len(self.segments) < 2 * count:
            return None
        moved = self.segments[:count]
        if any(segment.sealed is None for segment in moved):
            return None
        first, last = moved[0].sealed, moved[-1].sealed
        assert first is not None
        assert last is not None
        ref = PageRef(
            moved[0].number,
            moved[-1].number,
            first.base_seq,
            last.next_seq,
            first.first_time_us,
            last.last_time_us,
            moved[-1].ledger_id,
        )
        meta = dataclasses.replace(self, segments=self.segments[count:], pages=(*self.pages, ref))
        return meta, ref, moved

    def handed_over(self, to: str | None) -> LogMeta:
        return dataclasses.replace(self, writer=None, left_by=self.writer, hand_over=to)

    def doomed(self, now_us: int, remover: WriterMark) -> LogMeta:
        """Removal began: writers are fenced by the epoch, every inline ledger waits for
        deletion."""
        ledgers = tuple(Doomed(segment.ledger_id, now_us) for segment in self.segments)
        return dataclasses.replace(
            self,
            state=LogState.DELETING,
            epoch=self.epoch + 1,
            writer=remover,
            left_by=None,
            segments=(),
            deleting=self.deleting + ledgers,
        )

    def tombstone(self) -> LogMeta:
        """What stays of a removed log: all that must never go back."""
        check(not self.pages and not self.deleting, "a tombstone holds no ledger", self.uid)
        return dataclasses.replace(
            self, state=LogState.DELETED, hand_over=None, truncate_before=None
        )

    def reborn(self, uid: str, options: LogOptions) -> LogMeta:
        """A new log under the name of a removed one: epoch, numbers and ledger ids go on rising."""
        check(self.state is LogState.DELETED, "only a removed log is made anew", self.state)
        return LogMeta(
            uid=uid,
            options=options,
            epoch=self.epoch,
            next_number=self.next_number,
            ledger_floor=self.ledger_floor,
            end=End(number=self.next_number - 1, last_time_us=self.end.last_time_us),
        )

    # --- bytes

    def to_bytes(self) -> bytes:
        extra = dict(self.extra)
        options = {**extra.pop("options", {}), **dataclasses.asdict(self.options)}
        fields: dict[str, Any] = {
            **extra,
            "format": FORMAT,
            "needs": [],
            "uid": self.uid,
            "state": self.state.value,
            "epoch": self.epoch,
            "writer": None if self.writer is None else dataclasses.asdict(self.writer),
            "left_by": None if self.left_by is None else dataclasses.asdict(self.left_by),
            "options": options,
            "digest": self.digest,
            "end": dataclasses.asdict(self.end),
            "next_number": self.next_number,
            "ledger_floor": self.ledger_floor,
            "segments": [_segment_fields(s) for s in self.segments],
            "pages": [dataclasses.asdict(p) for p in self.pages],
            "deleting": [dataclasses.asdict(d) for d in self.deleting],
            "hand_over": self.hand_over,
            "truncate_before": self.truncate_before,
        }
        raw = _dump(fields)
        if len(raw) > limits.META_NODE_BYTES_MAX:
            raise TooLarge(
                f"the meta of log {self.uid} would take {len(raw)} bytes in its node, more than "
                f"{limits.META_NODE_BYTES_MAX}"
            )
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> LogMeta:
        fields = _load(raw, where)
        if _int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        strange = {str(name) for name in _list(fields, "needs", where)} - _KNOWN_NEEDS
        if strange:
            names = ", ".join(sorted(strange))
            raise FormatError(f"{where} needs {names}, which this version lacks")
        writer, left_by = fields.get("writer"), fields.get("left_by")
        options = _dict(fields, "options", where)
        newer_options = {k: v for k, v in options.items() if k not in _OPTION_FIELDS}
        extra = {k: v for k, v in fields.items() if k not in _META_FIELDS}
        try:
            known_options = LogOptions(**{k: options[k] for k in _OPTION_FIELDS & options.keys()})
            state = LogState(fields.get("state"))
        except (ConfigError, ValueError) as error:
            raise FormatError(f"{where}: {error}") from None
        return cls(
            uid=_str(fields, "uid", where),
            options=known_options,
            state=state,
            epoch=_int(fields, "epoch", where),
            writer=None if writer is None else _value(WriterMark, writer, where),
            left_by=None if left_by is None else _value(WriterMark, left_by, where),
            digest=_str(fields, "digest", where),
            end=_value(End, fields.get("end"), where),
            next_number=_int(fields, "next_number", where),
            ledger_floor=_int(fields, "ledger_floor", where),
            segments=_segments(_list(fields, "segments", where), where),
            pages=tuple(_value(PageRef, p, where) for p in _list(fields, "pages", where)),
            deleting=tuple(_value(Doomed, d, where) for d in _list(fields, "deleting", where)),
            hand_over=_optional_str(fields, "hand_over", where),
            truncate_before=_optional_str(fields, "truncate_before", where),
            extra={**extra, "options": newer_options} if newer_options else extra,
        )


_OPTION_FIELDS = frozenset(f.name for f in dataclasses.fields(LogOptions))
_META_FIELDS = frozenset(f.name for f in dataclasses.fields(LogMeta)) | {"format", "needs"}
_SEALED_FIELDS = tuple(f.name for f in dataclasses.fields(Sealed))
_SEGMENT_FIELDS = frozenset({"number", "ledger_id", "epoch", *_SEALED_FIELDS})


def page_to_bytes(segments: tuple[Segment, ...]) -> bytes:
    return _dump({"format": FORMAT, "segments": [_segment_fields(s) for s in segments]})


def page_from_bytes(raw: bytes, *, where: str) -> tuple[Segment, ...]:
    fields = _load(raw, where)
    if _int(fields, "format", where) != FORMAT:
        raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
    segments = _segments(_list(fields, "segments", where), where)
    if any(segment.sealed is None for segment in segments):
        raise FormatError(f"{where}: a page holds sealed segments only")
    return segments


def _segment_fields(segment: Segment) -> dict[str, Any]:
    fields = {
        **segment.extra,
        "number": segment.number,
        "ledger_id": segment.ledger_id,
        "epoch": segment.epoch,
    }
    if segment.sealed is not None:
        fields.update(dataclasses.asdict(segment.sealed))
    return fields


def _segments(raw: list[Any], where: str) -> tuple[Segment, ...]:
    segments = tuple(_segment(each, where) for each in raw)
    for earlier, later in itertools.pairwise(segments):
        if later.number <= earlier.number or later.ledger_id <= earlier.ledger_id:
            raise FormatError(f"{where}: segment {later.number} does not follow {earlier.number}")
        if earlier.sealed is None and later.sealed is not None:
            raise FormatError(f"{where}: segment {later.number} is sealed before {earlier.number}")
    return segments


def _segment(raw: object, where: str) -> Segment:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a segment is an object")
    sealed = None
    if "last_entry" in raw:
        sealed = _value(Sealed, {name: raw.get(name) for name in _SEALED_FIELDS}, where)
    return Segment(
        _int(raw, "number", where),
        _int(raw, "ledger_id", where),
        _int(raw, "epoch", where),
        sealed,
        {k: v for k, v in raw.items() if k not in _SEGMENT_FIELDS},
    )


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _load(raw: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        raise FormatError(f"{where} is not JSON") from None
    if not isinstance(fields, dict):
        raise FormatError(f"{where} is not a JSON object")
    if b"\\u" in raw:  # half a surrogate pair: text that could not be written again
        try:
            _dump(fields)
        except UnicodeEncodeError:
            raise FormatError(f"{where} holds text that is not Unicode") from None
    return fields


def _int(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not -1 <= value <= _INT_MAX:
        raise FormatError(f"{where}: {name} is a whole number from -1, not {value!r}")
    return value


def _str(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise FormatError(f"{where}: {name} is text, not {value!r}")
    return value


def _optional_str(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if fields.get(name) is None else _str(fields, name, where)


def _list(fields: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise FormatError(f"{where}: {name} is a list, not {value!r}")
    return value


def _dict(fields: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {name} is an object, not {value!r}")
    return value


def _value(kind: Any, raw: object, where: str) -> Any:
    """A flat dataclass of numbers and texts; fields that are missing or of the wrong type are
    refused."""
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a {kind.__name__} is an object, not {raw!r}")
    checks = {"int": _int, "str": _str}
    return kind(*(checks[str(f.type)](raw, f.name, where) for f in dataclasses.fields(kind)))

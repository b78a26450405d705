"""Holds: somebody's places in a log. What is at a hold, or behind it, no policy truncates.

A hold is a node below the log's, so that whoever keeps one moves it forward without touching the
log meta. Making one has an order: first the node, then a compare-and-set of the log meta, then
`made`. A truncation reads the log meta first and the holds after it, and replaces the meta that it
read: so either it saw the node, or the compare-and-set of the hold came between and its own is
refused. A node that is not `made` yet binds truncations all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog.effects import ListNodes, Procedure, ReadNode
from dlog.errors import FormatError, NotFound
from dlog.ids import MessageId
from dlog.meta.json_fields import dump, load, optional_str, the_bool, the_int, the_str
from dlog.meta.layout import Layout, unescape
from dlog.meta.listed import Point

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """The message with this seq, or one with this id or above, whichever it is, is the first that
    is held."""

    name: str
    log_uid: str
    who: str
    since_us: int
    moved_us: int
    seq: int
    id: MessageId
    note: str | None = None
    made: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def bounds(self, point: Point) -> Point:
        """As much of a truncation as this hold lets through."""
        return Point(min(point.seq, self.seq), *min(point.id_key, self.id))

    def is_behind(self, point: Point) -> bool:
        """Something that is held may be truncated: its numbers alone do not tell for certain."""
        return point.seq > self.seq or point.id_key > self.id

    def to_bytes(self) -> bytes:
        return dump(
            {
                **self.extra,
                "format": FORMAT,
                "log_uid": self.log_uid,
                "who": self.who,
                "since_us": self.since_us,
                "moved_us": self.moved_us,
                "seq": self.seq,
                "ledger_id": self.id.ledger_id,
                "entry_id": self.id.entry_id,
                "batch_idx": self.id.batch_idx,
                "note": self.note,
                "made": self.made,
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes, name: str, *, where: str) -> Hold:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        return cls(
            name,
            log_uid=the_str(fields, "log_uid", where),
            who=the_str(fields, "who", where),
            since_us=the_int(fields, "since_us", where),
            moved_us=the_int(fields, "moved_us", where),
            seq=the_int(fields, "seq", where),
            id=MessageId(*(the_int(fields, each, where) for each in MessageId._fields)),
            note=optional_str(fields, "note", where),
            made=the_bool(fields, "made", where),
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )


_FIELDS = (
    {each.name for each in dataclasses.fields(Hold)} - {"name", "id", "extra"}
    | {"format"}
    | set(MessageId._fields)
)


def read_hold(layout: Layout, log: str, name: str) -> Procedure[tuple[Hold, int]]:
    """With its version. As fresh as our last read behind a sync."""
    path = layout.hold(log, name)
    value, version = yield ReadNode(path, fresh=False)
    return Hold.from_bytes(value, name, where=path), version


def read_holds(layout: Layout, log: str, uid: str) -> Procedure[tuple[Hold, ...]]:
    """All holds of the log with this uid, by name: those that a removed log of its name left count
    for nothing. Each that stood since our last read behind a sync, and was not dropped, is seen."""
    try:
        names = yield ListNodes(layout.holds(log))
    except NotFound:
        return ()
    found = []
    for name in sorted(map(unescape, names)):
        try:
            hold, _ = yield from read_hold(layout, log, name)
        except NotFound:
            continue  # dropped meanwhile
        if hold.log_uid == uid:
            found.append(hold)
    return tuple(found)


def bounded(point: Point, holds: Iterable[Hold]) -> Point:
    for hold in holds:
        point = hold.bounds(point)
    return point

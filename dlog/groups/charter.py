"""The charter of a group: what all of its workers have to agree on, written by whoever comes first.

Where leases are kept and after which silence a worker is dead are matters of safety: two workers
that differ in them could both own a shard. Two that weigh shards differently would take them from
each other without end. Where the group begins (`start="latest"`) and where a
bounded job ends are places that were true at one moment, and have to be the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlog import limits
from dlog.effects import CreateNode, Procedure, ReadNode
from dlog.errors import AlreadyExists, ConfigError, DlogError, FormatError, NotFound, unknown
from dlog.groups.places import GroupPlaces
from dlog.meta.json_fields import dump, load, optional_str, the_dict, the_int, the_str
from dlog.meta.stream_holds import StreamHold
from dlog.reader.places import Start
from dlog.streams.trimmed import TrimmedShard

FORMAT = 1
# A field, also of a group's hold on its stream: shards that had ended and had nothing left.
SPENT = "spent"
CHARTER = "charter"  # a field of that hold: whose it is
LEASES = ("nodes", "logs")
COUNT = "count"
WEIGHS = (COUNT, "lag", "bytes")
NUMBER_DIGITS_MAX = 18
TRIES = 4


class Mark(NamedTuple):
    """A place in a shard, and whether the shard was at its end there."""

    next_seq: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class Charter:
    """`begin` and `end` are by number of shard. A shard that came later than `begin` begins at its
    beginning; one that is not in `end` is no part of the job. `uid` tells the group from one that
    was made anew under its name."""

    stream_uid: str
    leases: str
    timeout_ms: int
    weigh: str = COUNT
    begin: Mapping[int, Mark] | None = None
    end: Mapping[int, Mark] | None = None
    uid: str = ""  # "" in groups of older versions
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_job(self) -> bool:
        return self.end is not None

    def begins_at(self, number: int, start: Start) -> Start:
        """Where the group begins a shard that it has not consumed yet. `start`: as of a worker."""
        if self.begin is not None:
            mark = self.begin.get(number)
            return "earliest" if mark is None else mark.next_seq
        return "earliest" if start == "latest" else start

    @property
    def spent(self) -> Sequence[int] | None:
        """Shards in which there was nothing for the group when it was made. None: an older version
        made it, and did not look."""
        noted = self.extra.get(SPENT)
        return noted if isinstance(noted, list) else None

    def wanted_of(self, shard: TrimmedShard) -> range:
        """The seqs that the group had to consume of a shard that is trimmed by now."""
        if self.spent is None or shard.number in self.spent:
            return range(0)
        mark = None if self.begin is None else self.begin.get(shard.number)
        return range(max(shard.first_seq, 0 if mark is None else mark.next_seq), shard.next_seq)

    def check_agrees(self, wanted: Charter, group: str) -> None:
        for name, ours, theirs in (
            ("leases", self.leases, wanted.leases),
            ("timeout_ms", self.timeout_ms, wanted.timeout_ms),
            ("weigh", self.weigh, wanted.weigh),
            ("stop_at_end", self.is_job, wanted.is_job),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"group {group!r} was made with {name}={ours!r}, not {theirs!r}: workers of "
                    "one group agree on that"
                )
        self.check_stream(wanted.stream_uid, group)

    def check_stream(self, uid: str, group: str) -> None:
        if self.stream_uid != uid:
            raise ConfigError(
                f"group {group!r} was made for another stream of this name, which was removed: "
                "remove the group first"
            )

    def to_bytes(self) -> bytes:
        return dump(
            {
                **self.extra,
                "format": FORMAT,
                "stream": self.stream_uid,
                "leases": self.leases,
                "timeout_ms": self.timeout_ms,
                **({} if self.weigh == COUNT else {"weigh": self.weigh}),
                **({"uid": self.uid} if self.uid else {}),
                "begin": _fields(self.begin),
                "end": _fields(self.end),
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Charter:
        if len(raw) > limits.META_NODE_BYTES_MAX:
            raise FormatError(f"{where} has {len(raw)} bytes, more than a charter can have")
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        leases = the_str(fields, "leases", where)
        timeout_ms = the_int(fields, "timeout_ms", where)
        if leases not in LEASES or timeout_ms < 1:
            raise FormatError(f"{where}: leases in {leases!r}, a time-out of {timeout_ms} ms")
        weigh = the_str(fields, "weigh", where) if "weigh" in fields else COUNT
        if weigh not in WEIGHS:
            raise FormatError(f"{where}: shards are weighed by {weigh!r}")
        return cls(
            the_str(fields, "stream", where),
            leases,
            timeout_ms,
            weigh,
            _marks(fields, "begin", where),
            _marks(fields, "end", where),
            optional_str(fields, "uid", where) or "",
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )


_FIELDS = frozenset("format stream leases timeout_ms weigh begin end uid".split())


def is_of(hold: StreamHold, charter: Charter) -> bool:
    return (hold.stream_uid, hold.extra.get(CHARTER, "")) == (charter.stream_uid, charter.uid)


def read_charter(places: GroupPlaces) -> Procedure[Charter]:
    """`NotFound`: there is no such group."""
    try:
        value, _ = yield ReadNode(places.charter)
    except NotFound:
        raise NotFound(f"stream {places.stream!r} has no group {places.group!r}") from None
    return Charter.from_bytes(value, where=places.charter)


def check_charter(places: GroupPlaces, ours: Charter) -> Procedure[None]:
    """It is still what we agreed on, and not that of a group which was removed and made anew."""
    if (yield from read_charter(places)) != ours:
        raise NotFound(
            f"group {places.group!r} was removed, and another one was made under its name"
        )


def agree(places: GroupPlaces, wanted: Charter) -> Procedure[Charter]:
    """The charter as it stands: of whoever came first."""
    failure: DlogError | None = None
    for _ in range(TRIES):
        try:
            yield CreateNode(places.charter, wanted.to_bytes(), point="group.chartered")
            return wanted
        except AlreadyExists as error:
            failure = error
        except DlogError as error:
            if not unknown(error):
                raise
            failure = error
        try:
            found = yield from read_charter(places)
        except NotFound:
            continue  # removed just now
        found.check_agrees(wanted, places.group)
        return found
    assert failure is not None
    raise failure


def _fields(marks: Mapping[int, Mark] | None) -> dict[str, Any] | None:
    if marks is None:
        return None
    return {str(number): [mark.next_seq, mark.is_final] for number, mark in marks.items()}


def _is_place(number: str, seq: int) -> bool:
    is_number = number.isdecimal() and len(number) <= NUMBER_DIGITS_MAX
    return is_number and type(seq) is int and seq >= 0


def _marks(fields: Mapping[str, Any], name: str, where: str) -> dict[int, Mark] | None:
    if fields.get(name) is None:
        return None
    marks: dict[int, Mark] = {}
    for number, raw in the_dict(fields, name, where).items():
        match raw:
            case [int(seq), bool(is_final)] if _is_place(number, seq):
                marks[int(number)] = Mark(seq, is_final)
            case _:
                raise FormatError(f"{where}: {name} of shard {number!r} is no place: {raw!r}")
    return marks

"""Holds on a whole stream: what their holder has not begun in some shard is held there, too.

A hold on a log is a place in it. Who consumes a stream has a place in each shard that it began, and
none in the others: in those that are still to come, and in the children of a split. So it holds the
stream as well, by a node of the same name. A truncation of a shard's log reads these nodes behind
the log meta, as it reads the holds of the log: a hold on the stream that has none of its name on
the log keeps all of that log. Making one has an order: first the node, then the places in the
shards that are there, each of which is counted in its log meta, then `made`. A shard that is made
later sees the node from its first truncation on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import CreateNode, DeleteNode, ListNodes, Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, FormatError, NotFound
from dlog.ids import MessageId
from dlog.meta.holds import Hold, read_holds
from dlog.meta.json_fields import dump, load, the_bool, the_int, the_str
from dlog.meta.layout import Layout, unescape
from dlog.meta.log_meta import LogMeta

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StreamHold:
    name: str
    stream_uid: str
    who: str
    since_us: int
    made: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def to_bytes(self) -> bytes:
        fields = {each: getattr(self, each) for each in _FIELDS if each != "format"}
        return dump({**self.extra, "format": FORMAT, **fields})

    @classmethod
    def from_bytes(cls, raw: bytes, name: str, *, where: str) -> StreamHold:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        return cls(
            name,
            the_str(fields, "stream_uid", where),
            the_str(fields, "who", where),
            the_int(fields, "since_us", where),
            the_bool(fields, "made", where),
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )

    def on_all_of(self, log_uid: str) -> Hold:
        """The hold that it is on a log in which its holder has begun nothing."""
        note = "what its holder has not begun in this shard"
        first = MessageId(0, 0, 0)
        return Hold(
            self.name, log_uid, self.who, self.since_us, self.since_us, 0, first, note, made=True
        )


_FIELDS = {f.name for f in dataclasses.fields(StreamHold)} - {"name", "extra"} | {"format"}


@dataclass(frozen=True, slots=True)
class HoldMaking:
    """A hold on a stream that is to be made. `is_ours` tells its node from that of a removed stream
    or group, whose name was used again. `check` raises `NotFound` when the stream or group that the
    hold is for is gone itself."""

    path: str
    wanted: StreamHold
    is_ours: Callable[[StreamHold], bool]
    check: Callable[[], Procedure[Any]]
    chance: Chance


def place_hold(making: HoldMaking) -> Procedure[tuple[StreamHold, int]]:
    """Make the node, or find the one that an earlier maker left; with its version. The caller has
    just read the stream behind a sync. `Conflict` if the node keeps changing."""
    for attempt in range(limits.META_ATTEMPTS_MAX):
        found = yield from _read(making)
        if found is not None and making.is_ours(found[0]):
            return found
        if attempt > 0:
            yield Pause(backoff_s(attempt, making.chance))
        if found is not None:
            yield from making.check()
        try:
            if found is None:
                yield CreateNode(making.path, making.wanted.to_bytes())
            else:
                yield ReplaceNode(making.path, making.wanted.to_bytes(), found[1])
        except (AlreadyExists, NotFound, Conflict):
            pass
    raise Conflict(
        f"the hold {making.wanted.name!r} changed {limits.META_ATTEMPTS_MAX} times while it was "
        "made: try again",
        path=making.path,
    )


def confirm_hold(
    making: HoldMaking, hold: StreamHold, version: int, extra: Mapping[str, Any]
) -> Procedure[None]:
    """Note that every shard's log is held. `NotFound` if the stream or group was removed
    meanwhile."""
    made = dataclasses.replace(hold, made=True, extra={**hold.extra, **extra})
    try:
        yield ReplaceNode(making.path, made.to_bytes(), version)
    except (Conflict, NotFound):
        pass  # another maker confirmed it, or it was dropped
    yield from making.check()


def take_back_hold(making: HoldMaking) -> Procedure[None]:
    found = yield from _read(making)
    if found is None or not making.is_ours(found[0]):
        return
    try:
        yield DeleteNode(making.path, found[1])
    except (Conflict, NotFound):
        pass


def _read(making: HoldMaking) -> Procedure[tuple[StreamHold, int] | None]:
    try:
        value, version = yield ReadNode(making.path, fresh=False)
    except NotFound:
        return None
    return StreamHold.from_bytes(value, making.wanted.name, where=making.path), version


def read_all_holds(layout: Layout, log: str, meta: LogMeta) -> Procedure[tuple[Hold, ...]]:
    """The holds on a log, those on its stream included, by name."""
    holds = yield from read_holds(layout, log, meta.uid)
    if meta.stream is None:
        return holds
    placed = {hold.name for hold in holds}
    stream = log.rpartition("/")[0]
    whole: list[StreamHold] = []
    # A log that became a stream is its first shard, under the stream's own name.
    for name in (stream, log) if stream else (log,):
        whole += yield from read_stream_holds(layout, name, meta.stream)
    missing = [each.on_all_of(meta.uid) for each in whole if each.name not in placed]
    return tuple(sorted((*holds, *missing), key=lambda hold: hold.name))


def read_stream_hold(layout: Layout, stream: str, name: str) -> Procedure[StreamHold]:
    """`NotFound`: there is none of this name. It may be of a stream that was removed."""
    path = layout.stream_hold(stream, name)
    value, _ = yield ReadNode(path)
    return StreamHold.from_bytes(value, name, where=path)


def read_stream_holds(layout: Layout, stream: str, uid: str) -> Procedure[Iterable[StreamHold]]:
    at = layout.stream_holds(stream)
    try:
        names = yield ListNodes(at)
    except NotFound:
        return ()
    found: list[StreamHold] = []
    for node in names:
        path, name = f"{at}/{node}", unescape(node)
        try:
            value, _ = yield ReadNode(path, fresh=False)
        except NotFound:
            continue  # dropped meanwhile
        hold = StreamHold.from_bytes(value, name, where=path)
        if hold.stream_uid == uid:
            found.append(hold)
    return found

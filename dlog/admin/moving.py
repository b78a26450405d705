"""Moving the metadata of a log to another metadata store, over the same ledgers. Procedures.

  1. *Leave*: once the log is sealed, one compare-and-set says that it is kept elsewhere. From there
     everybody who comes is told where, and nobody changes the list, or concludes anything from it.
  2. *Write it out*: node, pages and holds, as one document. It names the place that it is meant
     for.
  3. *Arrive*: there, first the node is made, as it left, so that nobody may open it; then pages and
     holds; then one compare-and-set opens it.

So at no time are there two lists that could both be written. What is stale is known by its epoch,
which is higher each time the log leaves a place. Every step can be taken again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dlog.admin.summary import LogMove
from dlog.chance import Chance
from dlog.effects import (
    CreateNode,
    DeleteNode,
    ListNodes,
    LookAtLedger,
    Procedure,
    ReadNode,
    ReplaceNode,
    Together,
)
from dlog.errors import AlreadyExists, ConfigError, Conflict, Corrupt, NotFound
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.document import LogDocument, page_node
from dlog.meta.json_fields import dump, load
from dlog.meta.layout import Layout
from dlog.meta.listed import DoomedPage, PageRef, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import refs_from_bytes
from dlog.meta.shards import refuse_unless_shard

LOOKS_AT_ONCE = 64  # ledgers that are looked at together


@dataclass(frozen=True, slots=True)
class Leaving:
    """Which log goes where, and who moves it."""

    name: str
    path: str
    here: str
    place: str
    owner: str
    now_us: Callable[[], int]
    chance: Chance


# --- leaving


def leave(leaving: Leaving, *, retarget: bool) -> Procedure[bool]:
    """False while somebody may be writing: take the log over, seal it, and call again."""
    name = leaving.name

    def change(meta: LogMeta) -> LogMeta:
        _refuse_removed(meta, name)
        refuse_unless_shard(meta, None, name)
        moved = meta.moved_to
        if moved is None:
            if leaving.place == leaving.here:
                raise ConfigError(f"the log {name!r} is kept at {leaving.here} already", log=name)
            if meta.writer is not None or meta.unsealed:
                raise _Busy(f"the log {name!r} has a writer", log=name)
            return meta.left_for(leaving.place, leaving.owner, leaving.now_us())
        if moved.place == leaving.place:
            return meta
        if not retarget:
            raise AlreadyExists(
                f"the log {name!r} left for {moved.place}: bring it there, and from there to "
                f"{leaving.place}",
                log=name,
                place=moved.place,
            )
        return meta.sent_elsewhere(leaving.place, leaving.owner, leaving.now_us())

    def is_done(meta: LogMeta) -> bool:
        return meta.moved_to is not None and meta.moved_to.place == leaving.place

    seen = yield from _read(leaving.path, name)
    if is_done(seen.meta):
        return True
    try:
        yield from change_log(
            leaving.path, seen, change, is_done=is_done, chance=leaving.chance, point="move.left"
        )
    except _Busy:
        return False
    return True


class _Busy(AlreadyExists):
    """A writer is there already. No conflict, which would be tried again as it is."""


# --- writing it out


def write_out(name: str, layout: Layout, here: str, now_us: int) -> Procedure[LogDocument]:
    """The document of the log as it is at one moment, moved or not."""
    while True:
        seen = yield from _read(layout.log(name), name)
        _refuse_removed(seen.meta, name)
        pages: dict[str, dict[str, Any]] = {}
        gone: NotFound | None = None
        try:
            for ref in seen.meta.pages:
                yield from _take_page(layout, name, ref, pages)
            for doomed in seen.meta.deleting_pages:
                yield from _take_page(layout, name, doomed, pages, is_doomed=True)
        except NotFound as error:
            gone = error
        holds = yield from _children(layout.holds(name))
        again = yield from _read(layout.log(name), name)
        if again.version == seen.version:
            if gone is not None:
                raise Corrupt(f"log {name!r}: a page of its list is missing: {gone}", log=name)
            fields = load(seen.meta.to_bytes(), layout.log(name))
            told = {child: load(value, child) for child, (value, _) in holds.items()}
            return LogDocument(name, here, now_us, fields, pages, told)


def _take_page(
    layout: Layout,
    name: str,
    ref: PageRef | DoomedPage,
    pages: dict[str, dict[str, Any]],
    *,
    is_doomed: bool = False,
) -> Procedure[None]:
    """A doomed page that is gone was deleted, and all below it before, by a collector that has yet
    to say so: it may never come to that, once the log left."""
    path = layout.page(name, ref.number, ref.level)
    try:
        node = yield ReadNode(path, fresh=False)
    except NotFound:
        if is_doomed:
            return
        raise
    pages[page_node(ref.number, ref.level)] = load(node.value, path)
    if ref.level > 0:
        for below in refs_from_bytes(node.value, where=path):
            yield from _take_page(layout, name, below, pages, is_doomed=is_doomed)


# --- arriving


@dataclass(frozen=True, slots=True)
class Arriving:
    """A log on its way here."""

    document: LogDocument
    layout: Layout
    here: str
    chance: Chance

    @property
    def path(self) -> str:
        return self.layout.log(self.document.name)

    @property
    def summary(self) -> LogMove:
        document, meta = self.document, self.document.meta
        segments = sum(ref.segments for ref in meta.pages) + len(meta.segments)
        return LogMove(
            document.name,
            meta.uid,
            meta.epoch,
            document.place,
            None if meta.moved_to is None else meta.moved_to.place,
            segments,
            len(document.pages),
            len(document.holds),
            meta.end.next_seq,
        )


def check_arrival(arriving: Arriving) -> Procedure[Seen | None]:
    """Whether the log may come here; what stands in its place, None for nothing. Changes
    nothing."""
    document = arriving.document
    meta, name = document.meta, document.name
    if meta.moved_to is None:
        raise ConfigError(
            f"this is a copy of the metadata of {name!r}, which stayed where it was: to move it, "
            "let it leave there first (export it with --freeze)",
            log=name,
        )
    if meta.moved_to.place != arriving.here:
        raise ConfigError(
            f"the log {name!r} left for {meta.moved_to.place}, and this is {arriving.here}",
            log=name,
            place=meta.moved_to.place,
        )
    there: Seen | None = None
    try:
        there = yield from read_log(arriving.path)
    except NotFound:
        pass
    if there is not None and there.meta != meta and not meta.succeeds(there.meta):
        raise _in_the_way(there.meta, meta, name)
    yield from _check_ledgers(document)
    return there


def _in_the_way(there: LogMeta, meta: LogMeta, name: str) -> AlreadyExists:
    if there.state in (LogState.DELETED, LogState.MOVED):
        what = "was removed" if there.state is LogState.DELETED else "left"
        return AlreadyExists(
            f"this document is too old: a log {name!r} {what} here in epoch {there.epoch}, and "
            f"numbers of this one (epoch {meta.epoch}) are not higher",
            log=name,
        )
    same = "this very log" if there.uid == meta.uid else "another log of this name"
    return AlreadyExists(f"{same} is here already: {name!r}, epoch {there.epoch}", log=name)


def _check_ledgers(document: LogDocument) -> Procedure[None]:
    segments = iter(document.segments())
    uid = document.meta.uid
    while run := tuple(islice(segments, LOOKS_AT_ONCE)):
        yield Together(tuple(_check_ledger(segment, uid, document.name) for segment in run))


def _check_ledger(segment: Segment, uid: str, name: str) -> Procedure[None]:
    ledger_id, sealed = segment.ledger_id, segment.sealed
    what = f"ledger {ledger_id} of segment {segment.number} of log {name!r}"
    try:
        info = yield LookAtLedger(ledger_id)
    except NotFound:
        raise NotFound(
            f"{what} is not here: the log moves between metadata stores over the same ledgers",
            log=name,
            ledger_id=ledger_id,
        ) from None
    owner = info.spec.custom.get("log", b"").decode("utf-8", "replace")
    if owner != uid:
        raise Corrupt(
            f"{what} is another log's here ({owner or 'none of ours'}), not {uid}'s",
            log=name,
            ledger_id=ledger_id,
        )
    end = None if info.closed is None else info.closed.last_entry
    if sealed is None or end != sealed.last_entry:
        raise Corrupt(
            f"{what} ends at {end} here, and at {sealed and sealed.last_entry} in the list",
            log=name,
            ledger_id=ledger_id,
        )


def arrive(arriving: Arriving) -> Procedure[LogMove]:
    """Bring the log here, or go on with bringing it."""
    there = yield from check_arrival(arriving)
    document, layout = arriving.document, arriving.layout
    name, meta = document.name, document.meta
    raw = dump(dict(document.node))
    if there is None:
        version = yield CreateNode(arriving.path, raw, point="move.made")
    elif there.meta == meta:
        version = there.version
    else:
        version = yield ReplaceNode(arriving.path, raw, there.version, point="move.made")
    yield from _put_all(arriving, version, layout.pages(name), document.pages)
    yield from _put_all(arriving, version, layout.holds(name), document.holds)

    def change(now: LogMeta) -> LogMeta:
        if now != meta:
            raise AlreadyExists(f"somebody else brought {name!r} here", log=name)
        return now.arrived()

    yield from change_log(
        arriving.path,
        Seen(meta, version),
        change,
        is_done=lambda now: now == meta.arrived(),
        chance=arriving.chance,
        point="move.arrived",
    )
    return arriving.summary


def _put_all(arriving: Arriving, version: int, parent: str, nodes: Any) -> Procedure[None]:
    """Below `parent` stands what the document has, and nothing else. What is changed is what was
    looked at while nobody could open the log: by its version, so that whoever slept here changes
    nothing of a log that lives again."""
    there = yield from _children(parent)
    now = yield from _read(arriving.path, arriving.document.name)
    if now.version != version:
        raise Conflict(f"somebody else brought {arriving.document.name!r} here")
    for child, fields in nodes.items():
        path, value = f"{parent}/{child}", dump(dict(fields))
        if child not in there:
            try:
                yield CreateNode(path, value, point="move.put")
            except AlreadyExists as error:
                raise Conflict(f"{path} was made meanwhile", path=path) from error
        elif there[child][0] != value:
            yield ReplaceNode(path, value, there[child][1], point="move.put")
    for child in there.keys() - nodes.keys():
        yield DeleteNode(f"{parent}/{child}", there[child][1], point="move.put")


# --- what both ends need


def _children(parent: str) -> Procedure[dict[str, tuple[bytes, int]]]:
    """Value and version of each node below."""
    try:
        names = yield ListNodes(parent)
    except NotFound:
        return {}
    found: dict[str, tuple[bytes, int]] = {}
    for name in names:
        try:
            value, version = yield ReadNode(f"{parent}/{name}", fresh=False)
        except NotFound:
            continue  # dropped meanwhile
        found[name] = value, version
    return found


def _read(path: str, name: str) -> Procedure[Seen]:
    try:
        return (yield from read_log(path))
    except NotFound:
        raise NotFound(f"there is no log {name!r}", log=name) from None


def _refuse_removed(meta: LogMeta, name: str) -> None:
    if meta.state in (LogState.DELETED, LogState.DELETING):
        raise NotFound(f"the log {name!r} was removed", log=name)

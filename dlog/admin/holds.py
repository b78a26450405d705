"""Making a hold, moving it forward, dropping it, as procedures. The order of the steps, and why it
is that: see `dlog.meta.holds`.

A maker may die between any two steps. What it leaves binds truncations like any hold, and whoever
calls again under its name goes on where it ended: a hold that is not `made` is counted first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import (
    Answer,
    CreateNode,
    DeleteNode,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
)
from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    DlogError,
    NotFound,
    Outcome,
    Retry,
    Timeout,
    TooLarge,
    Truncated,
    Unavailable,
)
from dlog.ids import MessageId, Position
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.holds import Hold
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.sweep import Site
from dlog.reader.places import Start, check_position, find_head_seq, locate
from dlog.reader.segments import SegmentView, by_the_newest_list

NOTE_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Holding:
    """Whose hold, on what."""

    site: Site
    name: str
    who: str
    note: str | None
    now_us: Callable[[], int]

    @property
    def path(self) -> str:
        return self.site.layout.hold(self.site.name, self.name)


def check_note(note: object) -> str | None:
    if note is None:
        return None
    if not isinstance(note, str) or not note.isprintable():
        raise ConfigError("the note of a hold is printable text")
    if not 0 < len(note) <= NOTE_CHARACTERS_MAX:
        raise ConfigError(f"the note of a hold has 1 to {NOTE_CHARACTERS_MAX} characters")
    return note


def put_hold(view: SegmentView, holding: Holding, at: Start) -> Procedure[Hold]:
    """Hold what is at a place and behind it: a new hold, or one that moves forward. The view must
    be fresh. `Truncated` when the place is before the head."""
    seq, id_ = yield from by_the_newest_list(view, lambda: _place(view, at))

    def again(meta: Seen) -> Procedure[tuple[int, MessageId]]:
        view.seen = meta
        return (yield from by_the_newest_list(view, lambda: _place(view, at)))

    return (yield from _again_and_again(holding.site, lambda: _put(holding, seq, id_, again)))


def _place(view: SegmentView, at: Start) -> Procedure[tuple[int, MessageId]]:
    """The seq of the first message held, and an id that none of those has one below of."""
    meta = view.meta
    if isinstance(at, Position) and at.after is not None:  # as consumers have it: ask nobody
        check_position(view, at)
        head_seq = yield from find_head_seq(view)
        if at.next_seq < head_seq:
            raise Truncated(
                f"seq {at.next_seq} of log {view.name!r} was truncated: its head is at seq "
                f"{head_seq}",
                log=view.name,
                new_head=head_seq,
            )
        seq = at.next_seq
        id_ = at.after._replace(batch_idx=at.after.batch_idx + 1)
    else:
        try:
            place = yield from locate(view, at)
        except (Unavailable, Timeout):
            found = yield from _segment_of(view, at)
            if found is None or not isinstance(at, int):
                raise
            return at, MessageId(found.ledger_id, 0, 0)
        assert place.seq is not None
        seq = max(place.seq, at) if isinstance(at, int) else place.seq
        number = place.number
        if number is None:  # in front of whatever is listed, or will be
            first = yield from view.first()
            id_ = MessageId(meta.ledger_floor + 1 if first is None else first.ledger_id, 0, 0)
        else:
            segment = yield from view.find(
                lambda s: s.number >= number, lambda p: p.last_number >= number
            )
            assert segment is not None
            id_ = MessageId(segment.ledger_id, place.entry_id, place.idx)
    return seq, max(id_, MessageId(*meta.truncate_before.id_key))


def _segment_of(view: SegmentView, at: Start) -> Procedure[Segment | None]:
    """Of a seq that is sealed: to hold all of its segment from being truncated by id will do, where
    no bookie can be asked for more. None where the seq may be gone: before the first segment, or in
    one that the truncation point reaches into."""
    if not isinstance(at, int):
        return None
    found = yield from view.find(
        lambda s: s.sealed is not None and s.sealed.next_seq > at, lambda p: p.next_seq > at
    )
    if found is None or found.sealed is None:
        return None
    point = view.meta.truncate_before
    is_there = found.sealed.base_seq <= at and point.seq <= at
    return found if is_there and point.id_key <= (found.ledger_id, 0, 0) else None


def _put(
    holding: Holding,
    seq: int,
    id_: MessageId,
    again: Callable[[Seen], Procedure[tuple[int, MessageId]]],
) -> Procedure[Hold]:
    site, path, now_us = holding.site, holding.path, holding.now_us()
    try:
        value, version = yield ReadNode(path)
    except NotFound:
        hold = Hold(holding.name, site.uid, holding.who, now_us, now_us, seq, id_, holding.note)
        yield from _check_room(site)
        try:
            version = yield CreateNode(path, hold.to_bytes(), point="hold.created")
        except AlreadyExists as error:  # another maker, or a try of ours that came late
            raise Conflict("the hold was made meanwhile", log=site.name) from error
    else:
        hold = Hold.from_bytes(value, holding.name, where=path)
        if hold.log_uid != site.uid:  # of a log that was removed
            yield DeleteNode(path, version)
            raise Conflict("an old hold is in the way", log=site.name)
        if seq < hold.seq:
            raise ConfigError(
                f"the hold {holding.name!r} stands at seq {hold.seq} and moves forward only: to "
                f"hold from seq {seq} on, drop it and make it again",
                log=site.name,
            )
        moved = dataclasses.replace(
            hold,
            seq=seq,
            id=max(hold.id, id_),
            moved_us=hold.moved_us if seq == hold.seq else now_us,
            note=hold.note if holding.note is None else holding.note,
        )
        if hold.made:
            if moved != hold:
                yield from _replace(path, moved, version, "hold.moved")
            return moved
    seen = yield from _count(site)
    if hold.is_behind(seen.meta.truncate_before):
        try:
            seq, id_ = yield from again(seen)
        except Truncated:
            yield from _take_back(path, version)
            raise
    made = dataclasses.replace(
        hold, seq=max(hold.seq, seq), id=max(hold.id, id_), moved_us=now_us, made=True
    )
    yield from _replace(path, made, version, "hold.made")
    return made


def _replace(path: str, hold: Hold, version: int, point: str) -> Procedure[None]:
    try:
        yield ReplaceNode(path, hold.to_bytes(), version, point=point)
    except NotFound as error:  # dropped meanwhile: it is made again
        raise Conflict("the hold was dropped meanwhile", path=path) from error


def _take_back(path: str, version: int) -> Procedure[None]:
    try:
        yield DeleteNode(path, version)
    except (NotFound, Conflict):
        pass  # dropped, or another maker's by now


def _count(site: Site) -> Procedure[Seen]:
    """From here no truncation is applied that did not see the node."""
    before = yield from read_log(site.path)

    def change(meta: LogMeta) -> LogMeta:
        site.refuse_another_log(meta)
        return meta.held()

    return (
        yield from change_log(
            site.path,
            before,
            change,
            is_done=lambda meta: meta.holds > before.meta.holds,
            chance=site.chance,
            point="hold.counted",
        )
    )


def _check_room(site: Site) -> Procedure[None]:
    try:
        names = yield ListNodes(site.layout.holds(site.name))
    except NotFound:
        return
    if len(names) >= limits.META_HOLDS_MAX:
        what = f"log {site.name!r} has {len(names)} holds, and takes no more"
        raise TooLarge(what, log=site.name)


def drop_hold(holding: Holding) -> Procedure[None]:
    """`NotFound` when there is none."""
    maybe_dropped = False

    def drop() -> Procedure[None]:
        nonlocal maybe_dropped
        try:
            value, version = yield ReadNode(holding.path)
        except NotFound:
            if maybe_dropped:
                return
            what = f"the log {holding.site.name!r} has no hold {holding.name!r}"
            raise NotFound(what, log=holding.site.name) from None
        hold = Hold.from_bytes(value, holding.name, where=holding.path)
        try:
            yield DeleteNode(holding.path, version, point="hold.dropped")
        except DlogError as error:
            maybe_dropped = maybe_dropped or error.outcome is Outcome.UNKNOWN
            raise
        if hold.log_uid != holding.site.uid:
            what = f"the log {holding.site.name!r} has no hold {holding.name!r}"
            raise NotFound(what, log=holding.site.name)

    yield from _again_and_again(holding.site, drop)


def _again_and_again(site: Site, attempt: Callable[[], Procedure[Answer]]) -> Procedure[Answer]:
    refused: DlogError | None = None
    maybe_applied = False
    for number in range(limits.META_ATTEMPTS_MAX):
        try:
            return (yield from attempt())
        except DlogError as error:
            maybe_applied |= error.outcome is Outcome.UNKNOWN
            if maybe_applied:
                error.outcome = Outcome.UNKNOWN
            if error.retry is not Retry.NOW:
                raise
            refused = error
        yield Pause(backoff_s(number, site.chance))
    assert refused is not None
    raise refused

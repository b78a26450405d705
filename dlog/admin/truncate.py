"""Truncating a log, as a procedure: where to, by whatever somebody names a place with, and a report
that says why it did not go further.

Nothing here has to ask a bookie: what is sealed in the list is known from the list. What lies
behind that is asked for, and where nobody answers the truncation stops at what is sealed; a time
then means the segments that end before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dlog import limits
from dlog.admin.describe import told_point
from dlog.admin.summary import Truncation
from dlog.chance import Chance
from dlog.clock import datetime_us
from dlog.effects import Procedure
from dlog.errors import ConfigError, Corrupt, FormatError, Timeout, Unavailable
from dlog.ids import MessageId, Position
from dlog.meta.layout import Layout
from dlog.meta.listed import Point
from dlog.meta.log_meta import LogMeta
from dlog.meta.sweep import Site
from dlog.meta.truncation import Moved, aim_at, move_point
from dlog.reader.places import (
    LATEST,
    Start,
    Tail,
    check_position,
    check_start,
    find_head_seq,
    find_tail,
    find_time,
)
from dlog.reader.segments import SegmentView, by_the_newest_list


@dataclass(frozen=True, slots=True)
class Aimed:
    point: Point
    asked: str
    reasons: tuple[str, ...] = ()


def check_before(before: object) -> Start:
    if before == "earliest":
        raise ConfigError("before: nothing is before the earliest message")
    return check_start(before, "before")


def truncate(
    view: SegmentView,
    layout: Layout,
    before: Start,
    now_us: int,
    chance: Chance,
    *,
    force: bool = False,
    pretend: bool = False,
) -> Procedure[Truncation]:
    meta = yield from view.refresh()
    aimed = yield from by_the_newest_list(view, lambda: aim(view, before))
    site = Site(view.name, layout, meta.uid, chance)
    moved = yield from move_point(site, aim_at(aimed.point), now_us, force=force, pretend=pretend)
    view.seen = moved.seen
    head_seq = yield from known_head_seq(view)
    return Truncation(
        log=view.name,
        asked=aimed.asked,
        done=not pretend,
        forced=force,
        point=told_point(moved.point),
        head_seq=head_seq,
        held_by=tuple(hold.name for hold in moved.holds),
        reasons=(*aimed.reasons, *_reasons(moved, aimed, force)),
        ledgers=ledgers_left(moved),
        bytes=bytes_left(moved),
    )


# --- where to


def aim(view: SegmentView, before: Start) -> Procedure[Aimed]:
    """The view must be fresh."""
    if isinstance(before, Position):
        check_position(view, before)
        return (yield from _by_seq(view, before.next_seq, f"the position at seq {before.next_seq}"))
    if isinstance(before, MessageId):
        return (yield from _by_id(view, before))
    if isinstance(before, datetime):
        return (yield from _by_time(view, before))
    if before == LATEST:
        return (yield from _by_seq(view, None, "everything"))
    assert isinstance(before, int)
    return (yield from _by_seq(view, before, f"seq {before}"))


def _by_seq(view: SegmentView, seq: int | None, asked: str) -> Procedure[Aimed]:
    """A point behind the last message would truncate messages that are still to come."""
    end_seq = view.meta.end.next_seq
    if seq is not None and seq <= end_seq:
        return Aimed(Point(seq), asked)
    tail, why = yield from _tail(view)
    if tail is None:
        return Aimed(Point(end_seq), asked, (why,))
    if seq is not None and seq <= tail.next_seq:
        return Aimed(Point(seq), asked)
    reasons = () if seq is None else (f"the log ends at seq {tail.next_seq}",)
    return Aimed(Point(tail.next_seq), asked, reasons)


def _by_id(view: SegmentView, wanted: MessageId) -> Procedure[Aimed]:
    end, asked = view.meta.end, f"the message {wanted}"
    place = wanted.ledger_id, wanted.entry_id
    if place <= (end.ledger_id, end.last_entry):
        return Aimed(Point(0, *wanted), asked)
    tail, why = yield from _tail(view)
    if tail is None:
        return Aimed(Point(end.next_seq), asked, (why,))
    if tail.entered is not None and place <= (tail.entered.segment.ledger_id, tail.last_entry):
        return Aimed(Point(0, *wanted), asked)
    return Aimed(Point(tail.next_seq), asked, (f"the log ends at seq {tail.next_seq}",))


def _by_time(view: SegmentView, moment: datetime) -> Procedure[Aimed]:
    asked = moment.isoformat()
    try:
        place = yield from find_time(view, datetime_us(moment))
    except (Unavailable, Timeout) as error:
        end_seq, time_us = view.meta.end.next_seq, datetime_us(moment)
        first = yield from view.find(
            lambda s: s.sealed is None or s.sealed.last_time_us >= time_us,
            lambda p: p.last_time_us >= time_us,
        )
        seq = end_seq if first is None or first.sealed is None else first.sealed.base_seq
        why = f"to where a segment ends, since messages cannot be looked at: {error}"
        return Aimed(Point(seq), asked, (why,))
    assert place.seq is not None
    return Aimed(Point(place.seq), asked)


def _tail(view: SegmentView) -> Procedure[tuple[Tail | None, str]]:
    try:
        return (yield from find_tail(view)), ""
    except (Unavailable, Timeout) as error:
        return None, f"only what is sealed, since the end of the log cannot be looked at: {error}"


# --- what is told of it


def known_head_seq(view: SegmentView) -> Procedure[int | None]:
    """None where that would take a bookie that does not answer, or what is damaged: what was done
    is done."""
    try:
        return (yield from by_the_newest_list(view, lambda: find_head_seq(view)))
    except (Unavailable, Timeout, Corrupt, FormatError):
        return None


def _reasons(moved: Moved, aimed: Aimed, force: bool) -> list[str]:
    reasons = []
    if moved.before.truncate_before.joined(aimed.point) == moved.before.truncate_before:
        reasons.append(f"that is truncated already, to {told_point(moved.before.truncate_before)}")
    if not force:
        reasons += [
            f"the hold {hold.name!r} of {hold.who} keeps what is from seq {hold.seq} on"
            for hold in moved.holds
        ]
    if moved.unswept is not None:
        reasons.append(f"its ledgers stay in the list for now: {moved.unswept}")
    elif is_full(meta := moved.after):
        reasons.append(
            f"{len(meta.deleting)} ledgers and {len(meta.deleting_pages)} pages of them wait for "
            "their deletion already; the rest stays in the list until the collector made room"
        )
    return reasons


def is_full(meta: LogMeta) -> bool:
    point = meta.truncate_before
    if meta.pages:
        full = len(meta.deleting_pages) >= limits.META_DELETING_PAGES_MAX
        return full and point.covers_page(meta.pages[0])
    full = len(meta.deleting) >= limits.META_DELETING_MAX
    return full and bool(meta.segments) and point.covers(meta.segments[0])


def ledgers_left(moved: Moved) -> int:
    """How many ledgers left the list, beside what came into it meanwhile."""
    before, after = moved.before, moved.after
    new = sum(segment.number >= before.next_number for segment in after.segments)
    return max(0, _count(before) - (_count(after) - new))


def bytes_left(moved: Moved) -> int:
    return max(0, _bytes(moved.before) - _bytes(moved.after))


def _count(meta: LogMeta) -> int:
    return len(meta.segments) + sum(page.segments for page in meta.pages)


def _bytes(meta: LogMeta) -> int:
    sealed = (segment.sealed for segment in meta.segments)
    return sum(end.bytes for end in sealed if end is not None) + sum(p.bytes for p in meta.pages)

"""Moving a log's truncation point, as one compare-and-set that no hold is overlooked by.

The order matters: the log meta first, behind a sync; then the holds; then the meta is replaced at
the very version that was read. A hold whose making returned before was there to be seen, and one
that is made meanwhile changes the version, so that all begins again (see `holds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import Pause, Procedure, ReplaceNode
from dlog.errors import DlogError, Outcome, Retry
from dlog.meta.cas import Seen, read_log
from dlog.meta.holds import Hold, bounded
from dlog.meta.listed import Point
from dlog.meta.log_meta import LogMeta
from dlog.meta.retention import find_point
from dlog.meta.stream_holds import read_all_holds
from dlog.meta.sweep import Site, foresee, of_its_pages, sweep

Aim = Callable[[Seen], Procedure[Point]]
Newest = Callable[[LogMeta], int]


@dataclass(frozen=True, slots=True)
class Moved:
    """How a truncation went: the log before and after, how far it was to go, and who held it."""

    before: LogMeta
    seen: Seen
    wanted: Point
    holds: tuple[Hold, ...]  # that keep it from going as far, or that it overran
    unswept: DlogError | None = None  # the point stands, and the list was not brought up to it
    foreseen: LogMeta | None = None  # of a plan: the list as it would be brought up to it

    @property
    def point(self) -> Point:
        return self.seen.meta.truncate_before

    @property
    def after(self) -> LogMeta:
        return self.foreseen or self.seen.meta

    @property
    def is_held(self) -> bool:
        """It did not go as far as it was to."""
        return self.point.joined(self.wanted) != self.point


def aim_at(point: Point) -> Aim:
    def aim(seen: Seen) -> Procedure[Point]:
        yield from ()
        return point

    return aim


def move_point(
    site: Site,
    aim: Aim,
    now_us: int,
    *,
    force: bool = False,
    pretend: bool = False,
    attempts_max: int | None = None,
) -> Procedure[Moved]:
    """Truncate as far as `aim` says and holds let it, and sweep the list. `force`: whatever holds
    say. `pretend`: change nothing, and tell what would become of it."""
    before: LogMeta | None = None
    refused: DlogError | None = None
    maybe_applied = False
    for attempt in range(attempts_max or limits.META_ATTEMPTS_MAX):
        try:
            seen: Seen = yield from read_log(site.path)
            site.refuse_another_log(seen.meta)
            before = before or seen.meta
            holds = yield from read_all_holds(site.layout, site.name, seen.meta)
            wanted = yield from aim(seen)
            wanted = before.truncate_before.joined(wanted)
            point = wanted if force else bounded(wanted, holds)
            concerned = tuple(hold for hold in holds if hold.is_behind(wanted))
            marked = seen.meta.truncated(point).swept(now_us)
            if pretend:
                foreseen = yield from foresee(site, seen, marked, now_us)
                return Moved(
                    seen.meta, Seen(marked, seen.version), wanted, concerned, foreseen=foreseen
                )
            if marked != seen.meta:
                version = yield ReplaceNode(
                    site.path, marked.to_bytes(), seen.version, point="truncate.marked"
                )
                seen = Seen(marked, version)
        except DlogError as error:
            maybe_applied |= error.outcome is Outcome.UNKNOWN
            if maybe_applied:
                error.outcome = Outcome.UNKNOWN
            if error.retry is not Retry.NOW:
                raise
            refused = error
            yield Pause(backoff_s(attempt, site.chance))
            continue
        try:
            seen = yield from sweep(site, seen, now_us, attempts_max=attempts_max)
        except DlogError as error:  # the next one makes up for it, or the collector
            return Moved(before, seen, wanted, concerned, error)
        return Moved(before, seen, wanted, concerned)
    assert refused is not None
    raise refused


def retain(
    site: Site,
    now_us: int,
    *,
    newest_us: Newest | None = None,
    pretend: bool = False,
    attempts_max: int | None = None,
) -> Procedure[Moved]:
    """Truncate what the log's options no longer keep. `newest_us` tells which time the ages of its
    messages count from; None: `now_us`."""

    def aim(seen: Seen) -> Procedure[Point]:
        from_us = now_us if newest_us is None else newest_us(seen.meta)

        def find() -> Procedure[Point]:
            return find_point(site.name, site.layout, seen.meta, from_us)

        return (yield from of_its_pages(site, seen, find))

    return (yield from move_point(site, aim, now_us, pretend=pretend, attempts_max=attempts_max))

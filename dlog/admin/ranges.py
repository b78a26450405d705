"""Ranges of several logs, planned together: which logs, from where to where, and the driver that
asks for them. How one log is parted is in `plan`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlog.admin.plan import Sizes, Span, cut, survey
from dlog.drive import Stores
from dlog.errors import ConfigError, Moved, NotFound
from dlog.ids import check_log_name
from dlog.limits import RANGE_PLANS_MAX
from dlog.meta.layout import unescape
from dlog.options import ReaderOptions
from dlog.reader.feed import look
from dlog.reader.places import Start, check_start
from dlog.reader.ranges import LedgerRange
from dlog.reader.segments import SegmentView


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logs, and from where to where in each."""

    logs: tuple[str, ...]
    pattern: re.Pattern[str] | None
    start: Start | Mapping[str, Start]
    end: Start | Mapping[str, Start]

    @classmethod
    def of(
        cls,
        logs: Iterable[str],
        pattern: str | None,
        start: Start | Mapping[str, Start],
        end: Start | Mapping[str, Start],
    ) -> Wanted:
        names = tuple(map(check_log_name, logs))
        if (pattern is None) == (not names):
            raise ConfigError("plan_ranges takes the names of logs, or a pattern that they match")
        if len(set(names)) < len(names):
            raise ConfigError(f"a log is named twice: {', '.join(names)}")
        compiled = None
        if pattern is not None:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"no pattern: {pattern!r} ({error})") from None
        for what, places in (("start", start), ("end", end)):
            if isinstance(places, Mapping):
                strange = sorted(places.keys() - set(names)) if names else []
                if strange:
                    raise ConfigError(f"{what}: nobody asked for the log {strange[0]!r}")
                for name, place in places.items():
                    check_start(place, f"{what} of log {name!r}")
            else:
                check_start(places, what)
        return cls(names, compiled, start, end)

    def bounds(self, log: str) -> tuple[Start, Start]:
        return _at(self.start, "start", log), _at(self.end, "end", log)


def _at(places: Start | Mapping[str, Start], what: str, log: str) -> Start:
    if not isinstance(places, Mapping):
        return places
    if log not in places:
        raise ConfigError(f"{what}: where is it in log {log!r}? It names {', '.join(places)}")
    return places[log]


async def plan_ranges(
    stores: Stores, wanted: Wanted, sizes: Sizes, reading: ReaderOptions
) -> tuple[LedgerRange, ...]:
    """A ledger that is deleted while it is looked into was truncated before: planned again, by the
    list that says so."""
    for _ in range(RANGE_PLANS_MAX - 1):
        try:
            return await _plan(stores, wanted, sizes, reading)
        except NotFound as error:
            if error.ledger_id is None:
                raise
    return await _plan(stores, wanted, sizes, reading)


async def _plan(
    stores: Stores, wanted: Wanted, sizes: Sizes, reading: ReaderOptions
) -> tuple[LedgerRange, ...]:
    found: list[tuple[SegmentView, list[Span]]] = []
    for name in wanted.logs or await _matching(stores, wanted.pattern):
        view = SegmentView(name, stores.layout, tail=reading.tail)
        start, end = wanted.bounds(name)
        try:
            spans = await look(stores, view, survey(view, start, end, reading.on_truncated))
        except (NotFound, Moved) as error:
            if wanted.logs or error.ledger_id is not None:
                raise
            continue  # what a pattern found and is no log: one that was removed or moved
        found.append((view, spans))
    target_bytes = sizes.target_of(sum(span.bytes for _, spans in found for span in spans))
    ranges: list[LedgerRange] = []
    for view, spans in found:
        for parts in await look(stores, view, cut(spans, target_bytes, sizes.max_messages)):
            ranges.append(LedgerRange(view.name, view.meta.uid, parts, copy=len(ranges)))
    return tuple(ranges)


async def _matching(stores: Stores, pattern: re.Pattern[str] | None) -> list[str]:
    assert pattern is not None
    try:
        nodes = await stores.meta.children(stores.layout.logs)
    except NotFound:
        return []
    return sorted(filter(pattern.fullmatch, map(unescape, nodes)))

"""Reading what a log holds now: planned once on the driver, read by the executors in parts.

The plan is that of `admin.plan_ranges`: the end is the tail of that moment, and each part knows how
many messages it has, so that an executor delivers them all or fails by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

import dlog
from dlog.clock import datetime_us
from dlog.errors import ConfigError, NotFound, Truncated
from dlog.options import OnTruncated
from dlog.spark.access import Access
from dlog.spark.columns import ArrowBatches
from dlog.spark.options import SourceOptions
from dlog.spark.places import Place, Places
from dlog.spark.pushdown import Bounds, narrowed_end, narrowed_start, within
from dlog.spark.shards import Column, column_of, listing_of, place_of, refuse_twice


@dataclass
class RangeShare(InputPartition):  # type: ignore[misc]  # pyspark's base has no types
    """One task's share. Names and numbers only."""

    range: dlog.LedgerRange
    column: Column
    access: Access
    columns: tuple[str, ...]
    on_truncated: OnTruncated


def read(part: InputPartition | None) -> Iterator[Any]:
    """On an executor: the Arrow batches of a part. Spark makes a task of its own of an empty plan,
    without a part."""
    if not isinstance(part, RangeShare):
        return
    wanted = part.range
    client = part.access.connect()
    batches = client.read_range(wanted, on_truncated=part.on_truncated)
    yield from ArrowBatches(part.columns, part.column).of(batches)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Spark keeps what `partitions` gave: two actions on one DataFrame read the same messages."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.bounds = Bounds()
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self.options
        client = options.access.connect()
        starts: dict[str, Place] = {}
        ends: dict[str, Place] = {}
        uids: dict[str, str] = {}  # of the shards whose tails were seen
        for name in options.logs or names_matching(client, options.pattern):
            listing = listing_of(client, name) if options.logs else None
            if listing is None:
                starts[name], ends[name] = options.start.of(name), options.end.of(name)
                check_late_starts(client, {name: starts[name]}, options)
                continue
            refuse_twice(listing, options.logs)
            start, end = place_of(options.start, name), place_of(options.end, name)
            check_late_stream(client, name, listing.tails, start, options)
            for shard in listing.tails:  # all at one moment: a cut that is right in every key
                starts[shard.log] = shard.next_seq if start == "latest" else start
                ends[shard.log] = shard.next_seq if end == "latest" else end
                uids[shard.log] = shard.uid
        parts = self._planned(client, starts, ends)
        for part in parts:
            check_uid(part.range.log, part.range.log_uid, options.start)
            check_uid(part.range.log, part.range.log_uid, options.end)
            if uids.get(part.range.log, part.range.log_uid) != part.range.log_uid:
                raise other_log(part.range.log)
        return parts

    def _planned(
        self, client: dlog.Client, starts: dict[str, Place], ends: dict[str, Place]
    ) -> list[InputPartition]:
        options, bounds = self.options, self.bounds
        if bounds == Bounds():
            return plan(client, options, starts, ends, self._columns)
        for log in list(starts):
            if not bounds.may_have(*column_of(log, options.logs)):
                del starts[log], ends[log]
        less = {
            log: narrowed_start(start, bounds, client.admin.status(log).head_seq)
            for log, start in starts.items()
        }
        fewer = {log: narrowed_end(end, bounds) for log, end in ends.items()}
        try:
            return plan(client, options, less, fewer, self._columns, bounds)
        except Truncated:  # what a filter asks for is gone, and perhaps not what the options do
            return plan(client, options, starts, ends, self._columns, bounds)

    def read(self, part: InputPartition | None) -> Iterator[Any]:
        return read(part)


class NarrowedReader(BatchReader):
    """Having this method is what makes Spark refuse a query where push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.bounds = self.bounds.of(filters)
        return filters  # Spark looks again at each message


def names_matching(client: dlog.Client, pattern: str | None) -> tuple[str, ...]:
    assert pattern is not None
    compiled = re.compile(pattern)
    return tuple(log.name for log in client.admin.list() if compiled.fullmatch(log.name))


def plan(
    client: dlog.Client,
    options: SourceOptions,
    starts: Mapping[str, Place],
    ends: Mapping[str, Place],
    columns: tuple[str, ...],
    bounds: Bounds | None = None,
) -> list[InputPartition]:
    if not starts:
        return []
    sizes = options.sizes
    ranges = client.admin.plan_ranges(
        *starts,
        start=starts,
        end=ends,
        target_bytes=sizes.target_bytes,
        min_ranges=sizes.min_ranges,
        max_messages=sizes.max_messages,
        on_truncated=options.on_truncated,
    )
    if bounds is not None:
        ranges = within(ranges, bounds)
    return [
        RangeShare(
            each,
            column_of(each.log, options.logs),
            options.access,
            columns,
            options.on_truncated,
        )
        for each in ranges
    ]


def check_uid(log: str, uid: str, places: Places) -> None:
    """Places that were seen in a log are not those of another one of its name."""
    expected = places.uid(log)
    if expected is not None and expected != uid:
        raise other_log(log)


def other_log(log: str) -> NotFound:
    return NotFound(
        f"log {log!r} was removed, and made again since: these places are not of this one",
        log=log,
    )


def check_late_starts(
    client: dlog.Client, starts: Mapping[str, Place], options: SourceOptions
) -> None:
    """As Kafka's source: nothing at or after the time to begin with is an error, unless the tail
    is good enough."""
    if options.late_start == "latest":
        return
    for log, start in starts.items():
        if isinstance(start, datetime):
            last_time_us = client.admin.status(log).last_time_us
            if last_time_us is None or last_time_us < datetime_us(start):
                raise _too_late(log, start)


def check_late_stream(
    client: dlog.Client,
    name: str,
    shards: Sequence[dlog.ShardTail],
    start: Place,
    options: SourceOptions,
) -> None:
    """As that, for all shards together. What a trimmed shard had from that time on no log knows any
    more: the stream's own reader does, and refuses it."""
    if not isinstance(start, datetime):
        return
    if options.on_truncated == "raise":
        client.stream(name).open_reader(start=start, read_ahead_bytes=1).close()
    if options.late_start == "latest":
        return
    if all((shard.last_time_us or -1) < datetime_us(start) for shard in shards):
        raise _too_late(name, start)


def _too_late(name: str, start: datetime) -> ConfigError:
    return ConfigError(
        f"log {name!r} has nothing from {start.isoformat()} on "
        "(startingOffsetsByTimestampStrategy=latest begins at its tail then)"
    )

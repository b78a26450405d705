"""Filters as a narrower plan. Spark pushes down simple comparisons that are AND-ed; each that names
what a plan can part by (offset, timestamp, partition, topic, ledgerId) narrows where reading begins
and ends, and Spark goes on filtering what comes: a plan is narrowed to what must hold, never to
what may. Pure.

Spark fails every batch query of a source that takes filters while
`spark.sql.python.filterPushdown.enabled` is off, so that is asked for by `pushdown=true`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from dlog import LedgerRange
from dlog.spark.places import Place

# The last moment of which there is a next one, wherever it is told.
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """From `low` to `high`, both included; None: no bound."""

    low: Any = None
    high: Any = None

    def and_of(self, given: Filter, is_known: Callable[[Any], bool]) -> Span:
        """Narrowed by a comparison, if it is one with values that are known here."""
        low = high = None
        if isinstance(given, EqualTo | EqualNullSafe):
            low = high = given.value
        elif isinstance(given, In) and given.value and all(map(is_known, given.value)):
            low, high = min(given.value), max(given.value)
        elif isinstance(given, GreaterThan | GreaterThanOrEqual):
            low = given.value  # of `>` it is one too low, which costs a message that Spark drops
        elif isinstance(given, LessThan | LessThanOrEqual):
            high = given.value
        span = self
        if is_known(low):
            span = replace(span, low=low if span.low is None else max(span.low, low))
        if is_known(high):
            span = replace(span, high=high if span.high is None else min(span.high, high))
        return span


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all messages that are wanted have in common."""

    logs: frozenset[str] | None = None
    shards: Span = Span()
    offsets: Span = Span()
    times: Span = Span()
    ledgers: Span = Span()

    def of(self, filters: Iterable[Filter]) -> Bounds:
        bounds = self
        for each in filters:
            bounds = bounds._and_of(each)
        return bounds

    def _and_of(self, given: Filter) -> Bounds:
        match getattr(given, "attribute", ()):
            case ("topic",):
                texts = _texts(given)
                if texts is not None:
                    both = texts if self.logs is None else self.logs & texts
                    return replace(self, logs=both)
            case ("partition",):
                return replace(self, shards=self.shards.and_of(given, _is_number))
            case ("offset",):
                return replace(self, offsets=self.offsets.and_of(given, _is_number))
            case ("timestamp",):
                return replace(self, times=self.times.and_of(given, _is_moment))
            case ("ledgerId",):
                return replace(self, ledgers=self.ledgers.and_of(given, _is_number))
        return self

    def may_have(self, name: str, shard: int) -> bool:
        low, high = self.shards.low, self.shards.high
        if (low is not None and low > shard) or (high is not None and high < shard):
            return False
        return self.logs is None or name in self.logs


def _texts(given: Filter) -> frozenset[str] | None:
    if isinstance(given, EqualTo | EqualNullSafe) and isinstance(given.value, str):
        return frozenset((given.value,))
    if isinstance(given, In) and all(isinstance(value, str) for value in given.value):
        return frozenset(given.value)
    return None


def _is_number(value: Any) -> bool:
    return type(value) is int


def _is_moment(value: Any) -> bool:
    """A time without a zone says nothing here."""
    return isinstance(value, datetime) and value.tzinfo is not None


def narrowed_start(start: Place, bounds: Bounds, head_seq: int) -> Place:
    """Not before the head: what is gone there is gone with or without a filter."""
    low_seq, low_time = bounds.offsets.low, bounds.times.low
    if low_seq is not None and low_seq > head_seq:
        if type(start) is int:
            return max(int(low_seq), start)
        if start == "earliest":
            return int(low_seq)
    if isinstance(low_time, datetime):
        if start == "earliest":
            return low_time
        if isinstance(start, datetime):
            return max(start, low_time)
    return start


def narrowed_end(end: Place, bounds: Bounds) -> Place:
    """Exclusive, as all ends are."""
    high_seq, high_time = bounds.offsets.high, bounds.times.high
    if high_seq is not None:
        behind = max(int(high_seq) + 1, 0)
        if type(end) is int:
            return min(behind, end)
        if end == "latest":
            return behind
    if isinstance(high_time, datetime) and high_time.replace(tzinfo=UTC) < _LAST:
        behind_time = high_time + timedelta(microseconds=1)
        if end == "latest":
            return behind_time
        if isinstance(end, datetime):
            return min(end, behind_time)
    return end


def within(ranges: Iterable[LedgerRange], bounds: Bounds) -> tuple[LedgerRange, ...]:
    """Without the ledgers that are not wanted. Ledgers rise, so that what is left has no gap."""
    low, high = bounds.ledgers.low, bounds.ledgers.high
    kept = []
    for each in ranges:
        parts = tuple(
            part
            for part in each.parts
            if (low is None or part.ledger_id >= low) and (high is None or part.ledger_id <= high)
        )
        if parts:
            kept.append(replace(each, parts=parts))
    return tuple(kept)

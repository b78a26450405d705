"""Reading what logs get, micro-batch by micro-batch. Spark's checkpoint says where a query stands;
an offset is the seqs of its logs, with the uid of each: `{"orders": {"0": 123, "uid": "…"}}`.

A batch is planned from two such offsets alone, so that a batch that is run again after a crash has
the same messages. Taking over, rotating and losing bookies changes nothing in it; what was
truncated under it is an error, or with `failOnDataLoss=false` left out. Of a stream of shards each
shard's log has its seq, and beside it which shards of the stream are accounted for. With a `group`
the query holds what it has not yet committed: no policy truncates it, and `dlog hold` shows where
it stands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

import dlog
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import Corrupt, DlogError, NotFound, Retry, Truncated
from dlog.spark import batch
from dlog.spark.admission import Part, fitting, is_enough, shares
from dlog.spark.options import SourceOptions
from dlog.spark.places import SHARD, UID, Place
from dlog.spark.shards import (
    OVER,
    PARENTS,
    STREAM,
    Listing,
    column_of,
    listing_of,
    may_begin,
    place_of,
    refuse_twice,
)

Offset = dict[str, dict[str, Any]]
_PARTS_OF_A_BATCH = 16  # how fine a bound on bytes is cut
_Answer = TypeVar("_Answer")
_log = logging.getLogger("dlog.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One on the driver, which owns the offsets; others, made anew, only read."""

    def __init__(
        self, options: SourceOptions, columns: tuple[str, ...], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._options = options
        self._columns = columns
        self._target: Offset | None = None  # of a query that ends when it has read that far
        self._last_batch_s: float | None = None
        self._last_seen: Offset | None = None
        self._held: Offset = {}
        self._held_streams: set[tuple[str, str]] = set()  # by name and uid
        self._streams: dict[str, Listing] = {}  # by the last look, by their names
        self._told: set[tuple[str, int]] = set()  # shards of streams by their uids: lost, and told

    # --- where it stands

    def initialOffset(self) -> Offset:  # noqa: N802
        options, client = self._options, self._client()
        found: Offset = {}
        for log in self._logs():
            listing = self._listing(log)
            if listing is not None:
                start = place_of(options.start, log)
                batch.check_late_stream(client, log, listing.tails, start, options)
                for shard in listing.tails:
                    seq = self._seq_of(client, shard.log, start, shard)
                    found[shard.log] = _at(seq, shard.uid, is_over=_is_end(shard, seq))
                continue
            start = options.start.of(log)
            batch.check_late_starts(client, {log: start}, options)
            status = client.admin.status(log)
            batch.check_uid(log, status.uid, options.start)
            self._hold_stream(log, status.uid)
            found[log] = _at(self._seq_of(client, log, start, status), status.uid)
        self._account(found)
        self._hold(found)
        return found

    def _seq_of(self, client: dlog.Client, log: str, start: Place, status: Any) -> int:
        if start == "latest":
            return int(status.next_seq)
        if start == "earliest" or (
            type(start) is int and start < status.head_seq and self._options.on_truncated == "jump"
        ):
            return int(status.head_seq)
        if type(start) is int and start <= status.next_seq:
            return start
        lenient = self._options.on_truncated
        with client.open_reader(log, start=start, on_truncated=lenient) as reader:
            return reader.position.next_seq

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Only a hint for whoever looks on: all bounds together are kept in `latestOffset`."""
        pace = self._options.pace
        if pace.max_messages is not None:
            return ReadMaxRows(pace.max_messages)
        if pace.max_bytes is not None:
            return ReadMaxBytes(pace.max_bytes)
        if pace.min_messages is not None:
            return ReadMinRows(pace.min_messages)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._tails()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._patiently(lambda: _plain(self._tails()), self._last_seen)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self._patiently(lambda: self._hold(start), None)
        return self._patiently(lambda: self._next(start, limit), start)

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        ends = self._target if self._target is not None else self._tails()
        for listing in self._streams.values():
            self._check_stream(listing, start)
        # Before the first batch that reads them: of a shard it may be long until then.
        self._hold({log: _at(0, end[UID]) for log, end in ends.items() if log not in start})
        behind: Offset = {**start}
        available: dict[str, int] = {}
        for log, end in ends.items():
            begin = _begin(start, log, end)
            available[log] = max(0, end[SHARD] - begin) if may_begin(end, start, ends) else 0
            behind.setdefault(log, _at(begin, end[UID]))
        for log in sorted(start.keys() - ends.keys()):
            # A shard may be trimmed after it was read to its end, but not with its stream.
            if not self._was_read(log, start[log]) or self._is_replaced(log, start[log], ends):
                self._lost(f"log {log!r}, which this query read, is not there any more", log)
            del behind[log]
        pace = self._options.pace
        total = sum(available.values())
        taken: Mapping[str, int] = available
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and not is_enough(total, pace, self._waited_ms()):
                taken = dict.fromkeys(available, 0)  # that a shard is over is noted even so
            else:
                taken = self._bounded(start, ends, available)
        if any(taken.values()):
            self._last_batch_s = self._clock.monotonic_s()
        for log, count in taken.items():
            end = ends[log]
            seq = _begin(start, log, end) + count
            is_over = bool(end.get(OVER)) and seq >= end[SHARD] and may_begin(end, start, ends)
            if count or (is_over and not behind[log].get(OVER)):
                behind[log] = _at(seq, end[UID], is_over=is_over)
            elif log not in start:
                del behind[log]  # a log that is new and gives nothing yet
        self._keep_streams(start, behind)
        self._account(behind)
        return dict(sorted(behind.items()))

    # --- what it could miss of a stream

    def _check_stream(self, listing: Listing, start: Offset) -> None:
        """Every shard that came since `start` is there, or was read."""
        known = self._of_stream(listing.name, start)
        if listing.is_other(known):
            self._lost(
                f"stream {listing.name!r} is not the one that this query read: it was removed, and "
                "made again since",
                listing.name,
            )
        missed = [n for n in listing.missed(known) if (listing.uid, n) not in self._told]
        if missed:
            numbers = ", ".join(map(str, missed))
            self._lost(
                f"shards of stream {listing.name!r} came and were trimmed before this query read "
                f"them: {numbers}",
                listing.name,
            )
            self._told |= {(listing.uid, number) for number in missed}

    def _was_read(self, log: str, at: Mapping[str, Any]) -> bool:
        """To its end, so far as the query or the stream knows where that was."""
        if at.get(OVER):
            return True
        name, number = column_of(log, self._options.logs)
        listing = self._streams.get(name)
        return listing is not None and listing.has_ended(number, int(at[SHARD]))

    def _is_replaced(self, log: str, at: Mapping[str, Any], ends: Offset) -> bool:
        """The stream of a shard was removed, and a plain log has its name now."""
        name = column_of(log, self._options.logs).name
        return STREAM in at and name in ends and name not in self._streams

    def _keep_streams(self, start: Offset, behind: Offset) -> None:
        """Something of each stream stays in the offset, to say which shards are accounted for."""
        for name in self._streams:
            before = self._of_stream(name, start)
            if before and not self._of_stream(name, behind):
                last = max(before, key=lambda log: column_of(log, (name,)).shard)
                behind[last] = before[last]

    def _account(self, offset: Offset) -> None:
        for name, listing in self._streams.items():
            known = self._of_stream(name, offset)
            accounted = listing.accounted(known)
            for log, at in known.items():
                offset[log] = {**at, **accounted}

    def _of_stream(self, name: str, offset: Offset) -> Offset:
        names = self._options.logs
        return {log: at for log, at in offset.items() if column_of(log, names).name == name}

    def _lost(self, told: str, log: str) -> None:
        if self._options.on_truncated == "raise":
            raise Truncated(told, log=log)
        _log.warning("%s (failOnDataLoss=false)", told)

    def _bounded(
        self, start: Offset, ends: Offset, available: Mapping[str, int]
    ) -> Mapping[str, int]:
        pace = self._options.pace
        taken: Mapping[str, int] = available
        if pace.max_messages is not None:
            taken = shares(available, pace.max_messages)
        if pace.max_bytes is None:
            return taken
        begins = {log: _begin(start, log, ends[log]) for log, count in taken.items() if count}
        if not begins:
            return taken
        ranges = self._client().admin.plan_ranges(
            *begins,
            start=begins,
            end={log: seq + taken[log] for log, seq in begins.items()},
            target_bytes=max(1024, pace.max_bytes // _PARTS_OF_A_BATCH),
            on_truncated=self._options.on_truncated,
        )
        parts: dict[str, list[Part]] = {log: [] for log in begins}
        for each in ranges:
            skipped = each.first_seq - begins[each.log] - sum(p.messages for p in parts[each.log])
            parts[each.log].append(Part(each.messages + max(0, skipped), each.bytes))
        return {**dict.fromkeys(taken, 0), **fitting(parts, pace.max_bytes)}

    def _tails(self) -> Offset:
        client = self._client()
        found: Offset = {}
        for log in self._logs():
            try:
                listing = self._listing(log)
                if listing is not None:
                    for shard in listing.tails:
                        at = _at(shard.next_seq, shard.uid, is_over=shard.is_over)
                        found[shard.log] = {**at, PARENTS: shard.parents}
                    continue
                status = client.admin.status(log)
                self._hold_stream(log, status.uid)
            except NotFound:
                if self._options.pattern is None:
                    raise
                continue  # it was removed while we looked
            found[log] = _at(status.next_seq, status.uid)
        self._last_seen = _plain(dict(sorted(found.items())))
        return found

    def _listing(self, name: str) -> Listing | None:
        """Of a stream; None of a plain log."""
        if not self._options.logs:
            return None
        found = listing_of(self._client(), name, self._streams.pop(name, None))
        if found is not None:
            refuse_twice(found, self._options.logs)
            self._streams[name] = found
            self._hold_stream(name, found.uid)
        return found

    def _logs(self) -> tuple[str, ...]:
        options = self._options
        return options.logs or batch.names_matching(self._client(), options.pattern)

    # --- a batch

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        strict = self._options.on_truncated == "raise"
        begins: dict[str, Place] = {}
        ends: dict[str, Place] = {}
        for log, until in end.items():
            begin = _begin(start, log, until)
            if begin > until[SHARD] or _is_other(start, log, until):
                told = (
                    f"log {log!r} is not the one that this query read: it was removed or replaced"
                )
                if strict:
                    raise Truncated(told, log=log)
                _log.warning("%s; what it has now is read from its beginning", told)
                begin = 0  # also where a log lost its end
            if begin < until[SHARD]:
                begins[log], ends[log] = begin, until[SHARD]
        parts = self._planned(begins, ends, end)
        planned = dict.fromkeys(begins, 0)
        for part in parts:
            planned[part.range.log] += part.range.messages
            if part.range.log_uid != end[part.range.log][UID]:
                raise NotFound(
                    f"log {part.range.log!r} was removed, and made again since", log=part.range.log
                )
        for log, messages in planned.items():
            wanted = int(ends[log]) - int(begins[log])  # type: ignore[arg-type]  # seqs
            if messages == wanted:
                continue
            told = f"{messages} of {wanted} messages from seq {begins[log]} on are left"
            if strict:
                raise Corrupt(f"log {log!r}: {told}", log=log)
            _log.warning("log %r: %s (failOnDataLoss=false)", log, told)
        return parts

    def _planned(
        self, begins: dict[str, Place], ends: dict[str, Place], end: Offset
    ) -> list[InputPartition]:
        """Without the shards that were trimmed since the batch was planned, if that is forgiven."""
        while True:
            try:
                return batch.plan(self._client(), self._options, begins, ends, self._columns)
            except NotFound as error:
                log = error.about.get("log")
                if log not in begins or STREAM not in end[log]:
                    raise
                self._lost(f"shard {log!r} was trimmed before its messages were read", log)
                del begins[log], ends[log]

    def read(self, part: InputPartition | None) -> Iterator[Any]:
        return batch.read(part)

    def commit(self, end: Offset) -> None:
        """Spark has the batch before this one behind it for good."""
        self._patiently(lambda: self._hold(end), None)

    def stop(self) -> None:
        """Nothing: Spark ends the process, whatever stands here."""

    # --- holds

    def _hold(self, offset: Offset) -> None:
        group = self._options.group
        if group is None:
            return
        for log, at in offset.items():
            if self._held.get(log) == at:
                continue
            try:
                self._client().admin.hold(log, group, at[SHARD], note="a streaming query of Spark")
            except (Truncated, NotFound) as error:
                _log.warning("no hold %r of log %r: %s", group, log, error)
            self._held[log] = at

    def _hold_stream(self, name: str, uid: str) -> None:
        """What it has not begun: shards that come while the query is down, too. A plain log may be
        split then, and goes on in such shards; by a pattern they are logs of their own."""
        group, held = self._options.group, (name, uid)
        if group is not None and self._options.logs and held not in self._held_streams:
            self._client().stream(name).hold(group)
            self._held_streams.add(held)

    # --- calls

    def _client(self) -> dlog.Client:
        return self._options.access.connect()

    def _waited_ms(self) -> float | None:
        if self._last_batch_s is None:
            return None
        return 1000 * (self._clock.monotonic_s() - self._last_batch_s)

    def _patiently(self, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """An error here would end the query. Whatever may be asked again is, with the next
        trigger."""
        try:
            return ask()
        except DlogError as error:
            if error.retry is Retry.NEVER:
                raise
            _log.warning("asked again with the next trigger: %s", error)
            return otherwise


def _at(seq: int, uid: str, *, is_over: bool = False) -> dict[str, Any]:
    at: dict[str, Any] = {SHARD: seq, UID: uid}
    return {**at, OVER: True} if is_over else at


def _is_end(shard: dlog.ShardTail, seq: int) -> bool:
    return shard.is_over and seq >= shard.next_seq


def _plain(tails: Offset) -> Offset:
    """As Spark may see it."""
    return {log: _at(tail[SHARD], tail[UID]) for log, tail in tails.items()}


def _begin(start: Offset, log: str, end: Mapping[str, Any]) -> int:
    """A log that is new to the query is read from its beginning, also one of an old name."""
    at = start.get(log)
    return 0 if at is None or _is_other(start, log, end) else int(at[SHARD])


def _is_other(start: Offset, log: str, end: Mapping[str, Any]) -> bool:
    at = start.get(log)
    return at is not None and at.get(UID, end[UID]) != end[UID]

"""The async admin: `client.admin`. Each call is complete in itself and may be repeated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from dlog.admin.clocks import compare_clocks
from dlog.admin.collect import collect
from dlog.admin.collect_plan import plan_collection
from dlog.admin.describe import describe, segments_of, summarize, told_hold
from dlog.admin.examine import examine
from dlog.admin.fsck.orphans import all_lost
from dlog.admin.fsck.repair import repair
from dlog.admin.fsck.report import RepairReport, Report, Step
from dlog.admin.fsck.run import FsckOptions, fsck
from dlog.admin.fsck.unlisted import unlisted
from dlog.admin.hidden import refuse_first_shard, withdraw_if_hidden
from dlog.admin.holds import Holding, check_note, drop_hold, put_hold
from dlog.admin.jobs import Jobs, UnlessClosed
from dlog.admin.moves import GetStores, MetaMoves
from dlog.admin.plan import Sizes
from dlog.admin.ranges import Wanted, plan_ranges
from dlog.admin.remove import remove
from dlog.admin.status import LogStatus, status_of
from dlog.admin.summary import (
    Collection,
    HoldSummary,
    LogDescription,
    LogSummary,
    SegmentSummary,
    Truncation,
    unreadable,
)
from dlog.admin.terminate import terminate
from dlog.admin.truncate import check_before, truncate
from dlog.admin.why import Diagnosis, OpenLedger, diagnose, located, look_at, no_metadata
from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Corrupt,
    FormatError,
    Moved,
    NotFound,
    Timeout,
    Unavailable,
    Unsupported,
)
from dlog.findings import Finding, State
from dlog.ids import MessageId, Token, check_hold_name, check_log_name
from dlog.ledger.store import TellsWhere, Whereabouts
from dlog.limits import (
    FSCK_GRACE_S_DEFAULT,
    FSCK_PARALLEL_DEFAULT,
    FSCK_SAMPLE_DEFAULT,
    RANGE_BYTES_DEFAULT,
)
from dlog.meta.cas import read_log
from dlog.meta.layout import unescape
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.stream_holds import read_all_holds
from dlog.meta.sweep import Site
from dlog.options import LogOptions, OnTruncated, ReaderOptions, TailMode, WriterOptions
from dlog.reader.feed import look
from dlog.reader.looks import Looks
from dlog.reader.places import Start, check_start
from dlog.reader.ranges import LedgerRange
from dlog.reader.reader import find_tail_id
from dlog.reader.resolve import Resolved
from dlog.reader.segments import SegmentView
from dlog.writer.engine import Engine
from dlog.writer.owner import default_owner, new_mark
from dlog.writer.rotation import Ending

Found = TypeVar("Found")
StoresApart = Callable[[], AbstractAsyncContextManager[Stores]]


class Admin(MetaMoves, Jobs):
    """Looks at logs, makes, truncates, ends and removes them."""

    def __init__(
        self,
        stores: GetStores,
        apart: StoresApart,
        new_log_options: Callable[[Mapping[str, Any]], LogOptions],
        where: str,
        unless_closed: UnlessClosed,
    ) -> None:
        MetaMoves.__init__(self, stores, where)
        Jobs.__init__(self, stores, unless_closed)
        self._apart = apart
        self._new_log_options = new_log_options

    async def create(self, name: str, **log_options: Any) -> LogDescription:
        """A new, empty log. `AlreadyExists` if there is one."""
        options = self._new_log_options(log_options)
        check_log_name(name)
        stores = await self._get_stores(True)
        path = stores.layout.log(name)
        fresh = LogMeta(uid=stores.chance.token(), options=options)
        try:
            await stores.meta.create(path, fresh.to_bytes())
        except AlreadyExists:
            driver = Driver(stores.meta, stores.ledgers)
            seen = await driver.run(read_log(path))
            if seen.meta.state is not LogState.DELETED:
                raise AlreadyExists(f"there is a log {name!r} already", log=name) from None
            reborn = seen.meta.reborn(fresh.uid, options)
            await stores.meta.put(path, reborn.to_bytes(), seen.version)
        await withdraw_if_hidden(stores, name, fresh.uid)
        return await self.describe(name)

    async def list(self, prefix: str = "") -> list[LogSummary]:
        """The logs whose names begin with `prefix`, by name. One whose metadata is damaged has the
        state "unreadable", and does not hide the others."""
        try:
            stores = await self._get_stores(False)
            nodes = await stores.meta.children(stores.layout.logs)
        except NotFound:
            return []
        names = sorted(name for name in map(unescape, nodes) if name.startswith(prefix))
        found = []
        for name in names:
            try:
                found.append(await self._look(name, summarize))
            except (NotFound, Moved):
                continue  # what is left of a log that was removed, or moved away
            except FormatError:
                found.append(unreadable(name))
        return found

    async def describe(self, name: str) -> LogDescription:
        layout = (await self._get_stores(False)).layout
        return await self._look(name, lambda view: describe(view, layout))

    async def segments(self, name: str) -> tuple[SegmentSummary, ...]:
        def look(view: SegmentView) -> Procedure[tuple[SegmentSummary, ...]]:
            yield from view.refresh()
            return (yield from segments_of(view))

        return await self._look(name, look)

    async def status(self, name: str) -> LogStatus:
        """Where the log stands now: cheap, however long its history is."""
        return await self._look(name, status_of)

    async def why(self, name: str) -> Diagnosis:
        """What the log waits for, as it can be seen from outside: its holder, its open ledgers and
        their bookies, its holds. A metadata store that is away is an answer, not an error."""
        try:
            stores = await self._get_stores(False)
            seen = await self._look(name, lambda view: look_at(view, stores.layout))
        except (Unavailable, Timeout) as error:
            return no_metadata(name, error)
        ledgers: list[OpenLedger] = []
        for ledger in seen.ledgers:
            where: Whereabouts | None = None
            if isinstance(stores.ledgers, TellsWhere):
                with contextlib.suppress(NotFound, Unavailable, Timeout):
                    where = await stores.ledgers.whereabouts(ledger.ledger_id)
            ledgers.append(ledger if where is None else located(ledger, where))
        return diagnose(name, seen, tuple(ledgers))

    async def plan_ranges(
        self,
        *logs: str,
        pattern: str | None = None,
        start: Start | Mapping[str, Start] = "earliest",
        end: Start | Mapping[str, Start] = "latest",
        target_bytes: int = RANGE_BYTES_DEFAULT,
        min_ranges: int = 1,
        max_messages: int | None = None,
        on_truncated: OnTruncated = "raise",
        tail: TailMode = "normal",
    ) -> tuple[LedgerRange, ...]:
        """What these logs hold, or those whose whole name the pattern matches, in ranges that can
        be read apart from each other (`Client.read_range`), in order: from `start` to `end`
        (exclusive, at most the tail of this moment), each one place for all, or one for each log by
        its name. About `target_bytes` each, less where that makes `min_ranges`, never more than
        `max_messages`; small ledgers share one. Disturbs no writer. A start that was truncated is
        `Truncated`, or with `on_truncated="jump"` the head."""
        sizes = Sizes(target_bytes=target_bytes, min_ranges=min_ranges, max_messages=max_messages)
        reading = ReaderOptions(on_truncated=on_truncated, tail=tail)
        return await plan_ranges(
            await self._get_stores(False), Wanted.of(logs, pattern, start, end), sizes, reading
        )

    async def tail(self, name: str) -> MessageId | None:
        """The last message acknowledged by anyone before this call. Linearizable."""
        return await find_tail_id(await self._get_stores(False), check_log_name(name))

    async def resolve(self, name: str, token: Token) -> Resolved:
        """What became of a message: see `Client.resolve`."""
        check_log_name(name)
        if not isinstance(token, Token):
            raise ConfigError(f"a token is a ticket's, or parsed from its text, not {token!r}")
        return await Looks(await self._get_stores(False), name).resolve(token)

    async def remove(self, name: str) -> None:
        """Delete the log with everything in it, under its readers and its writer. Run again after a
        failure, it goes on. Shards are removed with their stream, or by trimming it."""
        stores = await self._get_stores(False)
        await refuse_first_shard(stores, name)
        now_us = stores.clock.wall_us()
        remover = WriterMark(stores.chance.token(), default_owner(), now_us)
        driver = Driver(stores.meta, stores.ledgers)
        await driver.run(
            remove(check_log_name(name), stores.layout, remover, now_us, stores.chance)
        )

    async def examine(self) -> tuple[Finding, ...]:
        """Is this place fit for logs? Over connections of its own, in bounded time; whatever is
        wrong there is a finding, not an error."""
        try:
            async with self._apart() as stores:
                return tuple(await examine(stores))
        except NotFound as error:  # no directory yet
            return (Finding("logs", State.NOTE, error.message),)

    async def fsck(
        self,
        *logs: str,
        deep: bool = False,
        replication: bool = False,
        samples: int = FSCK_SAMPLE_DEFAULT,
        parallel: int = FSCK_PARALLEL_DEFAULT,
        grace_s: float = FSCK_GRACE_S_DEFAULT,
        segments: range | None = None,
    ) -> Report:
        """Are these logs whole, or all that there are? Changes nothing; what is wrong is a finding,
        what could not be looked at is told with its reason. `deep` reads every copy of every entry,
        `replication` asks only who keeps them; else `samples` entries of each segment are read.
        What a writer or standby may be about to delete is nobody's only after `grace_s`. With
        `segments` only those of these numbers are looked at, and no orphans: by as many programs
        beside each other as you like."""
        options = FsckOptions(samples, parallel, deep, replication, grace_s, segments)
        try:
            stores = await self._get_stores(False)
            return await fsck(stores, logs or None, options)
        except (ConfigError, Corrupt) as error:
            if logs or error.left is None:
                raise
            return Report(findings=(all_lost(error.message, error.left),))

    async def unlisted(self) -> Mapping[str, Sequence[int]]:
        """Ledgers with messages whose log is not known here, by the uid of that log: its metadata
        was lost. Empty on a cluster, where another root may have it. Looks at each ledger."""
        return await unlisted(await self._get_stores(False))

    async def repair(self, plan: Report | Sequence[Step]) -> RepairReport:
        """Do what `fsck` found could be done, or some of it. Each step looks again, changes by
        compare-and-set, and says how it ended; nothing that cannot be proven is done."""
        steps = plan.plan if isinstance(plan, Report) else plan
        return await repair(await self._get_stores(False), steps)

    # --- the other end

    async def truncate(self, name: str, before: Start, *, dry_run: bool = False) -> Truncation:
        """Let the log begin at a seq, a MessageId, a Position, an aware datetime, or behind all
        that can be read now ("latest"): what is there stays, what is before it is gone. As far as
        holds let it; the answer says why it went no further. `dry_run` only tells what would go."""
        return await self._truncate(name, before, force=False, dry_run=dry_run)

    async def force_truncate(
        self, name: str, before: Start, *, dry_run: bool = False
    ) -> Truncation:
        """As `truncate`, and no hold stops it; the answer names those that it overran."""
        return await self._truncate(name, before, force=True, dry_run=dry_run)

    async def _truncate(
        self, name: str, before: Start, *, force: bool, dry_run: bool
    ) -> Truncation:
        check_before(before)
        stores = await self._get_stores(False)

        def work(view: SegmentView) -> Procedure[Truncation]:
            now_us = stores.clock.wall_us()
            return truncate(
                view, stores.layout, before, now_us, stores.chance, force=force, pretend=dry_run
            )

        return await self._look(name, work)

    async def hold(
        self, name: str, hold: str, at: Start, *, note: str | None = None, who: str | None = None
    ) -> HoldSummary:
        """Keep what is at a place and behind it from being truncated, by a hold of this name: a new
        one, or one that moves forward. `Truncated` when the place is gone already."""
        check_start(at, "at")
        check_note(note)
        stores = await self._get_stores(False)

        def work(view: SegmentView, site: Site) -> Procedure[HoldSummary]:
            owner = who or default_owner()
            holding = Holding(site, check_hold_name(hold), owner, note, stores.clock.wall_us)
            return told_hold((yield from put_hold(view, holding, at)))

        return await self._look_at_site(name, work)

    async def holds(self, name: str) -> tuple[HoldSummary, ...]:
        """By name. A hold on the whole stream of a shard, whose holder began nothing in the shard,
        is told as one from seq 0 on."""

        def work(view: SegmentView, site: Site) -> Procedure[tuple[HoldSummary, ...]]:
            holds = yield from read_all_holds(site.layout, site.name, view.meta)
            return tuple(map(told_hold, holds))

        return await self._look_at_site(name, work)

    async def drop_hold(self, name: str, hold: str) -> None:
        """`NotFound` when there is none of this name."""
        stores = await self._get_stores(False)

        def work(view: SegmentView, site: Site) -> Procedure[None]:
            yield from drop_hold(
                Holding(site, check_hold_name(hold), "", None, stores.clock.wall_us)
            )

        await self._look_at_site(name, work)

    async def collect(self, name: str, *, dry_run: bool = False) -> Collection:
        """Apply the log's retention, and delete what was truncated once its grace is over. Can be
        run at any time, by anybody, and again after a failure. `dry_run` only tells what would
        go now, and what would have to wait."""
        stores = await self._get_stores(False)

        verb = plan_collection if dry_run else collect
        clocks = await compare_clocks(stores, name)

        def by_both_clocks(view: SegmentView, site: Site) -> Procedure[Collection]:
            told = yield from verb(view, site, clocks.now_us, clocks.newest_us)
            problems = (*told.problems, *clocks.problems(view.meta))
            return dataclasses.replace(told, problems=problems)

        return await self._look_at_site(name, by_both_clocks)

    async def terminate(self, name: str) -> None:
        """No more messages, for good: a writer is fenced first, readers come to an end behind the
        last message. What is there stays readable."""
        stores = await self._get_stores(False)
        await refuse_first_shard(stores, name)
        while not await self._look_at_site(name, lambda view, site: terminate(site)):
            engine = Engine(stores, name, WriterOptions(), new_mark(stores))
            try:
                await engine.open(None)
            except Unsupported:
                continue  # terminated meanwhile
            failure = await engine.close(Ending.TERMINATE)
            if failure is not None:
                raise failure.again()

    async def _look_at_site(
        self, name: str, work: Callable[[SegmentView, Site], Procedure[Found]]
    ) -> Found:
        """What is done to the log that has the name now, and to no later one."""
        stores = await self._get_stores(False)

        def at_site(view: SegmentView) -> Procedure[Found]:
            meta = yield from view.refresh()
            return (yield from work(view, Site(name, stores.layout, meta.uid, stores.chance)))

        return await self._look(name, at_site)

    async def _look(self, name: str, work: Callable[[SegmentView], Procedure[Found]]) -> Found:
        check_log_name(name)
        stores = await self._get_stores(False)
        view = SegmentView(name, stores.layout)
        return await look(stores, view, work(view))

"""The driver of `fsck`: reads both stores, and has what it read judged. It decides nothing.

Ledgers are scanned first, then the lists are read: what is listed by then is no orphan. Segments
are looked at side by side, as many as `parallel` says. What looks bad is looked at again when the
list changed meanwhile, as it does beside a writer, a truncation and a collector.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlog.admin.fsck.judge import Judge
from dlog.admin.fsck.lists import Walk, walk_list
from dlog.admin.fsck.orphan_deletes import PresentJobs, present_jobs
from dlog.admin.fsck.orphans import JOB, Mark, Owner, as_siblings, judge, mark_of, strangers
from dlog.admin.fsck.plan import plan_of
from dlog.admin.fsck.report import LogChecked, NotChecked, Report, Where
from dlog.admin.fsck.segments import ALL, Look, listed_now, look_at
from dlog.admin.fsck.unlisted import have_messages
from dlog.admin.fsck.wholes import look_at_wholes
from dlog.drive import Driver, Stores
from dlog.effects import Effect, LookAtLedger
from dlog.errors import ConfigError, DlogError, NotFound
from dlog.ids import check_log_name
from dlog.ledger.copies import FindsStrays, KeepsCopies, Looked
from dlog.limits import (
    FSCK_GRACE_S_DEFAULT,
    FSCK_PARALLEL_MAX,
    FSCK_RUN_BYTES,
    FSCK_SAMPLE_MAX,
    FSCK_TRIES,
)
from dlog.meta.layout import unescape
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.reader.feed import ReaderDriver, look
from dlog.reader.segments import SegmentView
from dlog.together import together
from dlog.wire.batch import decode_header

ONE_COPY = "this store keeps one copy of each entry: there is nothing to compare it with"


@dataclass(frozen=True, slots=True)
class FsckOptions:
    """What to look at."""

    samples: int
    parallel: int
    deep: bool = False
    replication_only: bool = False
    grace_s: float = FSCK_GRACE_S_DEFAULT
    segments: range | None = None
    """Only segments with these numbers, and nothing beside them: no orphans, no tail."""

    def __post_init__(self) -> None:
        for name, value, first, last in (
            ("samples", self.samples, 0, FSCK_SAMPLE_MAX),
            ("parallel", self.parallel, 1, FSCK_PARALLEL_MAX),
        ):
            if type(value) is not int or not first <= value <= last:
                raise ConfigError(f"{name} is a number from {first} to {last}, not {value!r}")
        if type(self.grace_s) not in (int, float) or not self.grace_s >= 0:
            raise ConfigError(f"grace_s is a number of seconds, not {self.grace_s!r}")
        if self.deep and self.replication_only:
            raise ConfigError("deep reads every copy, replication reads none: choose one")
        if self.segments is not None and not isinstance(self.segments, range):
            raise ConfigError(f"segments is a range of their numbers, not {self.segments!r}")

    @property
    def looks_for_orphans(self) -> bool:
        return not self.replication_only and self.segments is None


@dataclass(slots=True)
class _Log:
    walk: Walk
    is_there: bool  # it can be read and written: not a tombstone


async def fsck(stores: Stores, names: Sequence[str] | None, options: FsckOptions) -> Report:
    """Of these logs, or of all that there are."""
    return await _Fsck(stores, options).run(names)


@dataclass(slots=True)
class _Counts:
    ledgers: int = 0
    entries: int = 0
    copies: int = 0
    logs: list[LogChecked] = field(default_factory=list)


class _Fsck:
    def __init__(self, stores: Stores, options: FsckOptions) -> None:
        self._stores = stores
        self._options = options
        self._judge = Judge()
        self._counts = _Counts()

    async def run(self, names: Sequence[str] | None) -> Report:
        marks = await self._marks() if self._options.looks_for_orphans else {}
        is_all = names is None
        logs = [await self._walk(name, is_all=is_all) for name in await self._names(names)]
        for log in logs:
            if log is not None and log.is_there:
                await self._segments(log.walk)
        if self._options.looks_for_orphans:
            known = [log.walk for log in logs if log is not None]
            await self._orphans(marks, known, is_all=is_all)
            if is_all:
                await self._strays()
                await look_at_wholes(self._stores, known, self._judge)
        counts, found = self._counts, self._judge
        return Report(
            tuple(counts.logs),
            counts.ledgers,
            counts.entries,
            counts.copies,
            tuple(found.findings),
            tuple(found.not_checked),
            tuple(found.under_replicated),
            plan_of(found.findings),
            found.more_findings,
        )

    async def _names(self, names: Sequence[str] | None) -> list[str]:
        if names is not None:
            return [check_log_name(name) for name in dict.fromkeys(names)]
        try:
            return sorted(map(unescape, await self._stores.meta.children(self._stores.layout.logs)))
        except NotFound:
            return []

    # --- ledgers

    async def _marks(self) -> dict[int, Mark]:
        """Of all ledgers that are ours."""
        found: dict[int, Mark] = {}

        async def look(ledger_id: int) -> None:
            try:
                info = await self._stores.ledgers.info(ledger_id)
            except NotFound:
                return
            except DlogError as error:
                self._judge.not_checked.append(
                    NotChecked(Where(ledger_id=ledger_id), error.message)
                )
                return
            mark = mark_of(info, self._stores.clock.wall_us())
            if mark is not None:
                found[ledger_id] = mark

        ids = self._stores.ledgers.scan_ids()
        await _each(_called(look, ids), self._options.parallel)
        return found

    async def _orphans(
        self, marks: dict[int, Mark], walks: Iterable[Walk], *, is_all: bool
    ) -> None:
        owners: dict[str, Owner] = {}
        unreadable = False
        for walk in walks:
            if walk.seen is None:
                unreadable = True
                continue
            owners[walk.meta.uid] = Owner.of(walk)
        unknown: dict[str, list[int]] = {}
        marks = marks | await self._of_jobs(marks, owners)
        for ledger_id, mark in sorted(marks.items()):
            owner = owners.get(mark.uid)
            if owner is None:
                unknown.setdefault(mark.uid, []).append(ledger_id)
                continue
            if ledger_id not in owner.kept:
                self._counts.ledgers += 1
            finding = judge(ledger_id, mark, owner, self._options.grace_s)
            if finding is None or (finding.is_damage and await self._is_gone(ledger_id)):
                continue
            self._judge.add(finding)
        if (
            is_all and not unreadable
        ):  # else they are of a log that was not asked for, or is told of
            for uid, ledger_ids in unknown.items():
                are_lost = await have_messages(self._stores, ledger_ids)
                self._judge.add(strangers(uid, ledger_ids, are_lost=are_lost))

    async def _of_jobs(self, marks: dict[int, Mark], owners: dict[str, Owner]) -> dict[int, Mark]:
        """The marks of unlisted ledgers that jobs filled, with whether the job is present, and how
        long ago it added an entry to any of its ledgers. When a job ended is not stored, so its
        last entry is the proof of life."""
        stores = self._stores
        present: dict[str, PresentJobs] = {}
        found: dict[int, Mark] = {}
        for ledger_id, mark in marks.items():
            owner = owners.get(mark.uid)
            if mark.role != JOB or owner is None or ledger_id in owner.kept:
                continue
            try:
                if owner.name not in present:
                    looking = present_jobs(owner.name, stores.layout)
                    present[owner.name] = await Driver(stores.meta, stores.ledgers).run(looking)
                found[ledger_id] = mark = present[owner.name].weigh(mark)
                found[ledger_id] = await self._idle(ledger_id, mark, owner)
            except NotFound:
                continue
            except DlogError as error:
                where = Where(log=owner.name, ledger_id=ledger_id)
                self._judge.not_checked.append(NotChecked(where, error.message))
                found[ledger_id] = dataclasses.replace(mark, age_s=None)
        return as_siblings(found)

    async def _idle(self, ledger_id: int, mark: Mark, owner: Owner) -> Mark:
        if mark.is_present or mark.age_s is None:
            return mark
        written_us = await self._last_written_us(ledger_id, owner.meta.digest)
        idle_s = (self._stores.clock.wall_us() - written_us) / 1e6
        return dataclasses.replace(mark, age_s=min(mark.age_s, idle_s))

    async def _last_written_us(self, ledger_id: int, digest: str) -> int:
        reader = await self._stores.ledgers.open(ledger_id, digest=digest)
        try:
            last = await reader.last_readable()
            if last < 0:
                return 0
            (raw,) = await reader.read(last, last, bytes_max=FSCK_RUN_BYTES)
            where = f"ledger {ledger_id} entry {last}"
            return decode_header(raw, where=where).last_timestamp_us
        finally:
            await reader.close()

    async def _is_gone(self, ledger_id: int) -> bool:
        """A collector, or who made it, deleted it and forgot it before the list was read."""
        try:
            await self._stores.ledgers.info(ledger_id)
        except NotFound:
            return True
        except DlogError:
            return False
        return False

    async def _strays(self) -> None:
        ledgers = self._stores.ledgers
        if isinstance(ledgers, FindsStrays):
            self._judge.strays(await ledgers.strays())

    # --- one log

    async def _walk(self, name: str, *, is_all: bool) -> _Log | None:
        stores = self._stores
        view = SegmentView(name, stores.layout)
        try:
            walk = await look(stores, view, walk_list(name, stores.layout))
        except NotFound:
            if not is_all:
                raise NotFound(f"there is no log {name!r}", log=name) from None
            return None  # removed meanwhile
        except DlogError as error:
            self._judge.not_checked.append(NotChecked(Where(log=name), error.message))
            return None
        for finding in walk.findings:
            self._judge.add(finding)
        self._judge.not_checked += walk.not_checked
        is_there = walk.seen is not None and walk.meta.state in (
            LogState.OPEN,
            LogState.TERMINATED,
        )
        if is_there:
            self._counts.logs.append(LogChecked(name, len(walk.segments), len(walk.pages)))
        return _Log(walk, is_there)

    async def _segments(self, walk: Walk) -> None:
        only = self._options.segments
        works = (
            self._segment(walk, segment, earlier)
            for earlier, segment in zip(walk.before, walk.segments, strict=True)
            if only is None or segment.number in only
        )
        await _each(_iterated(works), self._options.parallel)
        if self._options.looks_for_orphans:
            await self._tail(walk)

    async def _segment(self, walk: Walk, segment: Segment, before: Segment | None) -> None:
        stores, name = self._stores, walk.name
        view = SegmentView(name, stores.layout, walk.meta.uid)
        view.seen = walk.seen
        driver = FsckDriver(stores, view)
        meta: LogMeta = walk.meta
        try:
            for _ in range(FSCK_TRIES):
                verdict = Judge()
                await self._look(driver, verdict, meta, name, segment, before)
                if not verdict.has_trouble:
                    break
                now = await driver.run(listed_now(view, segment))
                if now is None:
                    return  # it left the list meanwhile
                if now == segment:
                    break
                segment, meta = now, view.meta
            self._judge.join(verdict)
        finally:
            await driver.close()

    async def _look(
        self,
        driver: FsckDriver,
        verdict: Judge,
        meta: LogMeta,
        name: str,
        segment: Segment,
        before: Segment | None,
    ) -> None:
        options = self._options
        if options.replication_only:
            await self._copies(verdict, Look(name, segment), meta)
            return
        samples = ALL if options.deep else options.samples
        look = await driver.run(look_at(name, meta, segment, before, samples))
        self._counts.ledgers += 1
        self._counts.entries += look.entries
        verdict.look(look)
        if look.info is not None:
            await self._copies(verdict, look, meta)

    async def _copies(self, verdict: Judge, look: Look, meta: LogMeta) -> None:
        ledgers, segment = self._stores.ledgers, look.segment
        if not isinstance(ledgers, KeepsCopies):
            if self._options.replication_only:
                verdict.not_checked.append(NotChecked(look.where(), ONE_COPY))
            return
        try:
            verdict.replication(look, await ledgers.copies_of(segment.ledger_id))
            if not self._options.deep:
                return
            bytes_found = 0
            async for news in ledgers.check_copies(
                segment.ledger_id, digest=meta.digest, last_entry=look.last_entry
            ):
                if isinstance(news, Looked):
                    self._counts.copies += news.copies
                    bytes_found += news.bytes
                else:
                    verdict.copy(look, news)
            verdict.size(look, bytes_found)
        except NotFound:
            verdict.gone(look)
        except DlogError as error:
            verdict.not_checked.append(NotChecked(look.where(), error.message))

    async def _tail(self, walk: Walk) -> None:
        """Is there a writer to an unsealed segment?"""
        meta = walk.meta
        if not meta.unsealed or meta.state is not LogState.OPEN:
            return
        stores = self._stores
        if meta.writer is not None:
            try:
                await stores.meta.get(stores.layout.presence(walk.name, meta.writer.token))
                return
            except NotFound:
                seen = await stores.meta.get(stores.layout.log(walk.name))
                if walk.seen is None or seen.version != walk.seen.version:
                    return  # it was closed, or taken over
            except DlogError as error:
                self._judge.not_checked.append(NotChecked(Where(log=walk.name), error.message))
                return
        self._judge.tail(walk.name, meta)


class FsckDriver(ReaderDriver):
    """Looks at ledgers without opening them: also at those that could not be."""

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, LookAtLedger):
            return await self.ledgers.info(effect.ledger_id)
        return await super().perform(effect)


async def _called(look: Any, ids: AsyncIterator[int]) -> AsyncIterator[Coroutine[Any, Any, None]]:
    async for ledger_id in ids:
        yield look(ledger_id)


async def _iterated(
    works: Iterable[Coroutine[Any, Any, None]],
) -> AsyncIterator[Coroutine[Any, Any, None]]:
    for work in works:
        yield work


async def _each(works: AsyncIterator[Coroutine[Any, Any, None]], parallel: int) -> None:
    """All of them, `parallel` at a time."""

    async def work() -> None:
        while (coroutine := await _next(works, taking)) is not None:
            await coroutine

    taking = asyncio.Lock()
    await together(*(work() for _ in range(parallel)))


async def _next(
    works: AsyncIterator[Coroutine[Any, Any, None]], taking: asyncio.Lock
) -> Coroutine[Any, Any, None] | None:
    async with taking:
        return await anext(works, None)

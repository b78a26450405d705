"""The part of the async admin that is for jobs: segments that are filled beside the log, and
published into it at once. What is done and why that is safe stands in `dlog.admin.publish`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from dlog import limits
from dlog.admin.discard import Discarded, Discarding, discard
from dlog.admin.moves import GetStores
from dlog.admin.publish import Publication, Publishing, publish
from dlog.drive import Driver
from dlog.errors import ConfigError, DlogError, TooLarge
from dlog.ids import check_log_name
from dlog.opening import Opening
from dlog.options import FillOptions, options_from
from dlog.writer import takeover
from dlog.writer.filled import FilledSegment
from dlog.writer.filling import FAREWELL_S, Filling
from dlog.writer.job_segment import JobSegment
from dlog.writer.owner import new_mark
from dlog.writer.presence import Presence
from dlog.writer.times import Stopwatch

NUMBER_END = 1 << 62  # of batches
UnlessClosed = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class Jobs:
    """Opens, publishes and discards segments of jobs."""

    def __init__(self, stores: GetStores, unless_closed: UnlessClosed) -> None:
        self._get_stores = stores
        self._unless_closed = unless_closed
        self._open: weakref.WeakSet[JobSegment] = weakref.WeakSet()
        # Of what this client filled, by ledger: each holds itself, until it ends.
        self._present: weakref.WeakValueDictionary[int, Presence] = weakref.WeakValueDictionary()

    def open_segment(self, log: str, *, job: str, **options: Any) -> Opening[JobSegment]:
        """A ledger of its own, to be filled beside the log by a job: it needs nobody's leave and
        disturbs no writer, and many may be filled at once. `job` names it for people. `options` are
        those of a writer that make its entries: `entry_bytes`, `window_bytes`, `window_entries`,
        `codec`. What its `close` answers is published with `publish_segments`, or discarded."""
        check_log_name(log)
        checked = options_from(FillOptions, options)
        if not (isinstance(job, str) and 0 < len(job) <= 200 and job.isprintable()):
            raise ConfigError("job is printable text of 1 to 200 characters")
        return Opening(self._make_segment(log, job, checked))

    async def _make_segment(self, log: str, job: str, options: FillOptions) -> JobSegment:
        async def make() -> JobSegment:
            filling = Filling(await self._get_stores(False), log, job, options)
            await filling.open()
            segment = JobSegment(filling)
            self._open.add(segment)
            self._present[segment.ledger_id] = filling.presence
            return segment

        return await self._unless_closed(make())  # type: ignore[no-any-return]

    async def publish_segments(
        self, log: str, segments: Iterable[FilledSegment], *, key: tuple[str, int]
    ) -> Publication:
        """All messages of these segments become the newest of the log, at once and whole, in the
        order of their ledger ids; they have their seqs from now on. This is a takeover: a writer
        that has the log open is fenced, and afterwards nobody holds it. Without messages, only the
        key is noted, and nobody is disturbed.

        `key` is the batch: a query (or job) of up to 128 bytes, and a number that rises with
        each batch of it. One that is not above the last one published is there already: nothing is
        done, and the answer says `published=False`. So it may be repeated after any failure, with
        these segments or with others. The log remembers the 64 queries that published last. Of one
        that it forgot it refuses every batch with `NotFound`, and so it does with about one new
        name in 500 once it forgot 5,000: then use another name. A query that is named `one-off:`
        and something that was drawn for this publication takes no room from others, and is not
        remembered.

        `Conflict` if a ledger cannot be listed any more, since a writer opened or rotated, or
        others published, after it was made: nothing was published, and the batch has to be run
        again, into new segments. What was not published is left to `discard_segments`, or fsck."""
        check_log_name(log)
        filled = _checked(log, segments)
        query, number = _checked_key(key)
        stores = await self._get_stores(False)
        opening = takeover.Opening(
            log,
            stores.layout,
            new_mark(stores),
            "always",
            None,
            "",
            stores.clock.wall_us,
            stores.chance,
            Stopwatch(stores.clock.monotonic_s),
        )
        uid = filled[0].log_uid if filled else None
        publishing = Publishing(opening, query, number, filled, uid)
        driver = Driver(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        mark = opening.mark
        presence = Presence(stores, stores.layout.presence(log, mark.token), mark.name.encode())
        driver.announce = presence.make
        try:
            done = await driver.run(publish(publishing))
            if done.published:
                self._settled(each.ledger_id for each in filled)
            return done
        finally:
            if publishing.claims:
                await presence.withdrawn(FAREWELL_S)

    async def discard_segments(self, segments: Iterable[FilledSegment]) -> Discarded:
        """Delete the ledgers of these segments, as far as they are not listed, nor ever were: safe
        whatever became of a publication of them. May be repeated."""
        works: dict[tuple[str, str], list[int]] = {}
        for segment in segments:
            _check_segment(segment)
            works.setdefault((segment.log, segment.log_uid), []).append(segment.ledger_id)
        stores = await self._get_stores(False)
        driver = Driver(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        done = Discarded()
        for (log, uid), ledger_ids in works.items():
            now_us = stores.clock.wall_us()
            work = Discarding(check_log_name(log), uid, stores.layout, now_us, stores.chance)
            done += await driver.run(discard(work, tuple(dict.fromkeys(ledger_ids))))
            self._settled(ledger_ids)
        return done

    def _settled(self, ledger_ids: Iterable[int]) -> None:
        """These segments were published or discarded, so the presence of their job ends."""
        for ledger_id in ledger_ids:
            presence = self._present.pop(ledger_id, None)
            if presence is not None:
                presence.withdraw()

    async def give_up_segments(self) -> DlogError | None:
        """The client closes: what is still open is deleted."""
        failure: DlogError | None = None
        for segment in list(self._open):
            try:
                await segment.abort()
            except DlogError as error:
                failure = failure or error
        for presence in list(self._present.values()):
            presence.stop()
        return failure


def _checked(log: str, segments: Iterable[FilledSegment]) -> tuple[FilledSegment, ...]:
    """Those with messages, by ledger id."""
    if isinstance(segments, FilledSegment) or not isinstance(segments, Iterable):
        raise ConfigError("what is published are segments that were filled and closed")
    found: dict[int, FilledSegment] = {}
    uids: set[str] = set()
    for segment in segments:
        _check_segment(segment)
        if segment.log != log:
            raise ConfigError(f"a segment of log {segment.log!r} is not published into {log!r}")
        if segment.messages == 0:
            continue
        if segment.ledger_id in found:
            raise ConfigError(f"ledger {segment.ledger_id} is there twice", log=log)
        found[segment.ledger_id] = segment
        uids.add(segment.log_uid)
    if len(uids) > 1:
        raise ConfigError(f"these segments were filled for several logs of the name {log!r}")
    if len(found) > limits.PUBLISHED_SEGMENTS_MAX:
        raise TooLarge(
            f"{len(found)} segments at once; {limits.PUBLISHED_SEGMENTS_MAX} are the most: fill "
            "fewer, larger ones",
            log=log,
        )
    return tuple(found[ledger_id] for ledger_id in sorted(found))


def _check_segment(segment: object) -> None:
    if not isinstance(segment, FilledSegment):
        raise ConfigError(f"a filled segment is what close() answers, not {segment!r}")


def _checked_key(key: object) -> tuple[str, int]:
    if isinstance(key, tuple) and len(key) == 2:
        query, number = key
        is_text = isinstance(query, str) and query.isprintable()
        if is_text and 0 < len(query.encode()) <= limits.PUBLISHED_QUERY_BYTES_MAX:
            if type(number) is int and 0 <= number < NUMBER_END:
                return query, number
    raise ConfigError(
        f"a key is the name of a query, printable text of up to {limits.PUBLISHED_QUERY_BYTES_MAX} "
        f"bytes, and the number of its batch, from 0, not {key!r}"
    )

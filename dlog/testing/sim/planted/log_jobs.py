"""Bugs of jobs that publish what they filled: a batch is there twice, in part, or where it may not
be."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.admin import discard, publish
from dlog.admin.publish import Publication, Publishing
from dlog.effects import LookAtLedger, Procedure
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import End, Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.published import Published, PublishedBatch
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer import takeover
from dlog.writer.filled import FilledSegment
from dlog.writer.producers import Producers, count_producers

plants = Plants("log-jobs")
PLANTS = plants.by_name
JOBS: dict[str, Any] = {"publishers": 3, "appends": 2}
# Slow processes beside each other, so that much happens between two steps of one.
CROWD: dict[str, Any] = {
    "publishers": 6,
    "appends": 8,
    "freeze": 0.05,
    "crash": 0.02,
    "slow": 100.0,
    "writers": 3,
    "incarnations": 3,
    "span": 3.0,
}
LOST: dict[str, Any] = {**JOBS, "meta_reply_lost": 0.2, "meta_late": 0.3, "crash": 0.05}


def _with_any_batch(patch: Patch) -> None:
    def noted(self: Published, batch: PublishedBatch) -> Published:
        others = tuple(each for each in self.batches if each.query != batch.query)
        return Published((*others, batch), self.forgot, self.producers_at, self.forgotten)

    patch.setattr(Published, "noted", noted)


@plants("I5: a batch is there once", **LOST)
def a_batch_that_is_there_is_published_again(patch: Patch) -> None:
    _with_any_batch(patch)
    patch.setattr(Published, "has", lambda self, query, number: None)


@plants("I5: a batch is there once", **LOST)
def a_lost_reply_is_taken_for_a_refusal(patch: Patch) -> None:
    """Only a batch that others published counts."""
    genuine = Publishing.answered

    def answered(self: Publishing, meta: LogMeta) -> Publication | None:
        found = genuine(self, meta)
        return None if found is not None and found.published else found

    patch.setattr(Publishing, "answered", answered)
    _with_any_batch(patch)


@plants("I6: a listed ledger id exceeds all before", **JOBS, incarnations=3, writers=3)
def a_ledger_below_the_floor_is_listed(patch: Patch) -> None:
    patch.setattr(Publishing, "refuse", lambda self, meta: None)

    def filled(self: LogMeta, ledger_id: int, sealed: Sealed) -> LogMeta:
        segment = Segment(self.next_number, ledger_id, self.epoch, sealed, is_job=True)
        end = End(
            segment.number, ledger_id, sealed.last_entry, sealed.next_seq, sealed.last_time_us
        )
        return dataclasses.replace(
            self,
            segments=(*self.segments, segment),
            next_number=self.next_number + 1,
            ledger_floor=max(self.ledger_floor, ledger_id),
            end=end,
        )

    patch.setattr(LogMeta, "filled", filled)


@plants("I15: what is listed sealed is closed", **JOBS)
def a_ledger_that_is_not_closed_is_published(patch: Patch) -> None:
    def as_told(publishing: Publishing, *args: Any) -> Procedure[Sealed]:
        segment: FilledSegment = args[-1]
        yield LookAtLedger(segment.ledger_id)
        return Sealed(
            segment.last_entry,
            segment.bytes,
            0,
            segment.messages,
            segment.first_time_us,
            segment.last_time_us,
        )

    patch.setattr(publish, "_verified", as_told)
    patch.setattr(publish, "_looked", as_told)


@plants("I15: what could be listed is marked before it is deleted", **CROWD)
def a_segment_is_discarded_without_a_mark(patch: Patch) -> None:
    def mark(work: Any, seen: Seen, ledger_ids: tuple[int, ...]) -> Procedure[bool]:
        yield from ()
        return True

    patch.setattr(discard, "_mark", mark)


@plants("I15: a commit looks at its ledgers behind the meta that it changes", **CROWD)
def a_commit_does_not_look_again(patch: Patch) -> None:
    def looked(publishing: Publishing, segment: FilledSegment) -> Procedure[Sealed]:
        yield from ()
        return Sealed(segment.last_entry, segment.bytes, 0, segment.messages, 0, 0)

    patch.setattr(publish, "_looked", looked)


@plants("I15: what is marked is not listed", **CROWD)
def a_mark_is_overlooked(patch: Patch) -> None:
    genuine = Publishing.refuse

    def refuse(self: Publishing, meta: LogMeta) -> None:
        genuine(self, dataclasses.replace(meta, deleting=()))

    patch.setattr(Publishing, "refuse", refuse)


@plants("I15: what is listed is not deleted", **LOST)
def what_is_listed_is_discarded(patch: Patch) -> None:
    def unlisted(work: Any, seen: Any, ledger_ids: tuple[int, ...]) -> Procedure[tuple[int, ...]]:
        yield from ()
        return ledger_ids

    patch.setattr(discard, "_unlisted", unlisted)
    patch.setattr(LogMeta, "discarded", lambda self, ledgers, now_us: self)


@plants("I7, I15: what is open is recovered first", **JOBS, writers=2, closes=0.0)
def a_live_writer_is_not_fenced(patch: Patch) -> None:
    """The log is claimed, and what is unsealed stays as it is."""

    def take_over(publishing: Publishing, seen: Seen, sealed: list[Sealed]) -> Procedure[None]:
        claimed = seen.meta.claimed(publishing.opening.mark)
        for segment in claimed.unsealed:
            claimed = claimed.dropped(segment.number, 0)
        wanted = publishing.listed(claimed, sealed)
        yield from publish._commit(publishing, seen, wanted)

    patch.setattr(publish, "_take_over", take_over)


@plants("I29: what jobs filled has no table of numbers", **JOBS, numbered=1.0, incarnations=3)
def numbers_are_looked_for_in_what_jobs_filled(patch: Patch) -> None:
    def count(name: str, layout: Layout, opened: Seen, number: int) -> Procedure[Producers]:
        as_others = tuple(dataclasses.replace(s, is_job=False) for s in opened.meta.segments)
        meta = dataclasses.replace(opened.meta, segments=as_others)
        return (yield from count_producers(name, layout, Seen(meta, opened.version), number))

    patch.setattr(takeover, "count_producers", count)


@plants("DL-02: the clock of a log does not go back", **JOBS, clocks_jump=0.3)
def what_is_published_keeps_its_times(patch: Patch) -> None:
    patch.setattr(Segment, "not_before_us", property(lambda self: -(1 << 63)))

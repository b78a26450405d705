"""Bugs planted in the production cores, one at a time: what the simulator must notice. Each is a
small patch in memory, named after the rule that it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog.effects import (
    CloseLedger,
    Drained,
    LastReadable,
    LookAtLedger,
    Procedure,
    ReadNode,
    ReadRun,
    RecoverLedger,
    Release,
    ReplaceNode,
)
from dlog.errors import Conflict, DlogError, Fenced, Outcome, Retry
from dlog.ledger.store import ClosedLedger
from dlog.meta import cas
from dlog.meta.cas import Seen
from dlog.meta.log_meta import LogMeta, Segment
from dlog.reader import core as reader_core
from dlog.reader import places
from dlog.reader import segments as reader_segments
from dlog.wire.batch import decode_header
from dlog.writer import healing, rotation, segments, takeover
from dlog.writer.core import WriterCore
from dlog.writer.pipe import PipeState
from dlog.writer.segments import SEAM_ENTRY, Found, decode_seam

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTS: dict[str, Plant] = {}


def plant(bug: Plant) -> Plant:
    PLANTS[bug.__name__] = bug
    return bug


# --- the writer: barrier, seams, acknowledgements


def _collect_with(patch: Patch, is_open: Callable[[Any], bool]) -> None:
    def collect(self: Any) -> None:
        for pipe in self.pipes:
            if pipe.failed is not None:
                return
            upto = pipe.last_published if self._wait_visible else pipe.last_confirmed
            self._released += pipe.released(upto)
            if not is_open(pipe):
                return

    patch.setattr(WriterCore, "_collect", collect)


@plant
def no_barrier(patch: Patch) -> None:
    _collect_with(patch, lambda pipe: True)


@plant
def barrier_lifted_when_drained(patch: Patch) -> None:
    _collect_with(patch, lambda pipe: pipe.state is PipeState.CLOSED or pipe.is_drained)


@plant
def predecessor_last_not_written(patch: Patch) -> None:
    real = rotation.seam_entry

    def seam_entry(meta: LogMeta, *, predecessor: tuple[int, int], **others: Any) -> Any:
        return real(meta, predecessor=(predecessor[0], min(predecessor[1], 1)), **others)

    patch.setattr(rotation, "seam_entry", seam_entry)


@plant
def release_out_of_order(patch: Patch) -> None:
    real = WriterCore.take_released
    patch.setattr(WriterCore, "take_released", lambda self: real(self)[::-1])


@plant
def timestamps_go_back(patch: Patch) -> None:
    patch.setattr(WriterCore, "stamp", lambda self: self.identity.now_us())


@plant
def acks_count_after_a_failure(patch: Patch) -> None:
    def hearing(self: Any, ledger_id: int) -> Any:
        return self._by_ledger.get(ledger_id)

    patch.setattr(WriterCore, "_hearing", hearing)


# --- the list


@plant
def list_after_the_first_add(patch: Patch) -> None:
    def rotate(core: WriterCore) -> Procedure[None]:
        if core.spare is None:
            yield from rotation.prepare(core)
        spare, seen, old = core.spare, core.seen, core.current
        assert spare is not None
        core.seen = Seen(core.settled(seen.meta).listed(spare), seen.version)
        new = rotation.switch(core, (old.ledger_id, old.last_pushed), old.next_seq)
        core.seen, core.spare = seen, spare
        yield from rotation.write_seam(core, new, "rotate.switched")
        yield from rotation.list_spare(core, "rotate.listed")
        core.spare = None
        yield Drained(old.ledger_id)
        core.on_closed(old, (yield from rotation.close_ledger(core, old, "rotate.closed")))
        yield Release()

    _rotate_with(patch, rotate)


def _rotate_with(patch: Patch, rotate: Any) -> None:
    from dlog.writer import duties

    patch.setattr(duties, "rotate", rotate)


@plant
def seam_before_the_reply_to_the_listing(patch: Patch) -> None:
    def change_log(path: str, seen: Seen, change: Any, **others: Any) -> Procedure[Seen]:
        try:
            yield ReplaceNode(path, change(seen.meta).to_bytes(), seen.version)
        except Conflict:
            return (yield from cas.change_log(path, None, change, **others))
        except DlogError:  # no reply: go on all the same
            pass
        return Seen(change(seen.meta), seen.version)

    patch.setattr(rotation, "change_log", change_log)


def _change_log_with(patch: Patch, on_unknown: Callable[[LogMeta, Seen, DlogError], Seen]) -> None:
    def change_log(
        path: str, seen: Seen | None, change: Any, *, is_done: Any, chance: Any, point: str = ""
    ) -> Procedure[Seen]:
        while True:
            try:
                if seen is None:
                    seen = yield from cas.read_log(path)
                wanted = change(seen.meta)
                version = yield ReplaceNode(path, wanted.to_bytes(), seen.version, point=point)
                return Seen(wanted, version)
            except DlogError as error:
                if error.retry is not Retry.NOW:
                    raise
                if error.outcome is Outcome.UNKNOWN and seen is not None:
                    return on_unknown(wanted, seen, error)
                seen = None

    for room in (takeover, rotation):
        patch.setattr(room, "change_log", change_log)


@plant
def unknown_listing_taken_as_refused(patch: Patch) -> None:
    def on_unknown(wanted: LogMeta, seen: Seen, error: DlogError) -> Seen:
        raise Conflict("refused", retry=Retry.AFTER_REOPEN)

    _change_log_with(patch, on_unknown)


@plant
def unknown_listing_taken_as_done(patch: Patch) -> None:
    _change_log_with(patch, lambda wanted, seen, error: Seen(wanted, seen.version + 1))


@plant
def a_ledger_is_deleted_though_its_listing_is_unknown(patch: Patch) -> None:
    real = cas.change_log

    def change_log(*arguments: Any, **others: Any) -> Procedure[Seen]:
        try:
            return (yield from real(*arguments, **others))
        except DlogError as error:
            error.outcome = Outcome.NOT_HAPPENED
            raise

    patch.setattr(takeover, "change_log", change_log)


@plant
def token_not_compared(patch: Patch) -> None:
    patch.setattr(LogMeta, "owned_by", lambda self, token: self.writer is not None)


@plant
def floor_not_checked(patch: Patch) -> None:
    real, listed = segments.new_ledger, LogMeta.listed

    def new_ledger(meta: LogMeta, **others: Any) -> Procedure[int]:
        return real(dataclasses.replace(meta, ledger_floor=-1), **others)

    def unchecked(self: LogMeta, ledger_id: int) -> LogMeta:
        changed = listed(dataclasses.replace(self, ledger_floor=-1), ledger_id)
        return dataclasses.replace(changed, ledger_floor=max(self.ledger_floor, ledger_id))

    for room in (takeover, rotation):
        patch.setattr(room, "new_ledger", new_ledger)
    patch.setattr(LogMeta, "listed", unchecked)


@plant
def number_of_a_dropped_segment_used_again(patch: Patch) -> None:
    real = LogMeta.dropped

    def dropped(self: LogMeta, number: int, now_us: int) -> LogMeta:
        return dataclasses.replace(real(self, number, now_us), next_number=number)

    patch.setattr(LogMeta, "dropped", dropped)


# --- takeover


@plant
def predecessor_last_ignored(patch: Patch) -> None:
    real = takeover.decide_end

    def decide_end(end: Any, found: list[Found]) -> Any:
        eased = []
        at = end
        for each in found:
            if each.seam is not None:
                seam = dataclasses.replace(
                    each.seam, predecessor_last=at.last_entry, base_seq=at.next_seq
                )
                each = dataclasses.replace(each, seam=seam)
            eased.append(each)
            at = real(at, [each]).end
        return real(end, eased)

    patch.setattr(takeover, "decide_end", decide_end)


@plant
def segments_decided_out_of_order(patch: Patch) -> None:
    real = takeover.decide_end
    patch.setattr(takeover, "decide_end", lambda end, found: real(end, found[::-1]))


def _look_only(segment: Segment) -> Procedure[Found]:
    """As the segment looks now, without fencing it."""
    info = yield LookAtLedger(segment.ledger_id)
    if info.closed is not None:
        return (yield from segments.read_segment(segment, info.closed))
    last_entry = yield LastReadable(segment.ledger_id)
    closed = ClosedLedger(last_entry, 0)
    if last_entry < SEAM_ENTRY:
        return Found(segment, closed)
    seam_raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
    last_raw = yield ReadRun(segment.ledger_id, last_entry, last_entry, 1)
    seam, seam_time_us = decode_seam(seam_raw[0], segment)
    last = decode_header(last_raw[0], where="")
    return Found(
        segment, closed, seam, seam_time_us, last.first_seq + last.count, last.last_timestamp_us
    )


@plant
def decide_before_all_are_closed(patch: Patch) -> None:
    patch.setattr(takeover, "recover_segment", _look_only)


@plant
def fence_only_the_last_segment(patch: Patch) -> None:
    real = takeover._recover

    def recover(opening: Any, segment: Segment) -> Procedure[Found]:
        raw = yield ReadNode(opening.path)
        unsealed = LogMeta.from_bytes(raw.value, where="").unsealed
        if unsealed and segment.number != unsealed[-1].number:
            return (yield from _look_only(segment))
        return (yield from real(opening, segment))

    patch.setattr(takeover, "_recover", recover)


# --- healing and closing


@plant
def heal_without_recovering(patch: Patch) -> None:
    from dlog.writer import duties

    def heal(core: WriterCore) -> Procedure[None]:
        real = healing.heal(core)
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = real.send(answer) if error is None else real.throw(error)
            except StopIteration:
                return
            answer, error = None, None
            if isinstance(effect, RecoverLedger):
                pipe = next(p for p in core.pipes if p.ledger_id == effect.ledger_id)
                answer = ClosedLedger(pipe.last_confirmed, 0)
                continue
            try:
                answer = yield effect
            except DlogError as raised:
                error = raised

    patch.setattr(duties, "heal", heal)


@plant
def rebuilt_with_other_seqs(patch: Patch) -> None:
    real = healing.switch

    def switch(core: WriterCore, predecessor: tuple[int, int], base_seq: int) -> Any:
        return real(core, predecessor, base_seq + 1)

    def push_again(self: Any, batch: Any) -> Any:
        batch.first_seq = self.current.next_seq
        return self.current.push(batch, batch.timestamp_us, self._codec)

    patch.setattr(healing, "switch", switch)
    patch.setattr(WriterCore, "push_again", push_again)


@plant
def a_dead_writer_comes_back(patch: Patch) -> None:
    for room in (healing, rotation):
        patch.setattr(room, "refuse_unless_owned", lambda meta, token, name: None)


def _close_ledger_with(patch: Patch, on_unknown: Callable[[Any], ClosedLedger]) -> None:
    def close_ledger(core: WriterCore, pipe: Any, point: str) -> Procedure[ClosedLedger]:
        try:
            closed: ClosedLedger = yield CloseLedger(pipe.ledger_id, point=point)
        except DlogError as error:
            if error.retry is Retry.NOW:
                return on_unknown(pipe)
            raise
        return closed

    patch.setattr(rotation, "close_ledger", close_ledger)


@plant
def unknown_close_taken_as_won(patch: Patch) -> None:
    _close_ledger_with(patch, lambda pipe: ClosedLedger(pipe.last_pushed, 0))


@plant
def unknown_close_taken_as_lost(patch: Patch) -> None:
    def lost(pipe: Any) -> ClosedLedger:
        raise Fenced("closed by somebody else", ledger_id=pipe.ledger_id)

    _close_ledger_with(patch, lost)


# --- the reader


@plant
def reader_enters_without_looking_at_the_predecessor(patch: Patch) -> None:
    def enter(self: Any, segment: Segment) -> Procedure[Any]:
        if segment.sealed is not None:
            return reader_segments.Entered(segment, segment.sealed.base_seq)
        if (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY:
            return None
        raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
        seam, _ = decode_seam(raw[0], segment)
        return reader_segments.Entered(segment, seam.base_seq)

    patch.setattr(reader_segments.SegmentView, "enter", enter)


@plant
def reader_passes_what_is_published(patch: Patch) -> None:
    real = reader_core.last_entry_of

    def last_entry_of(entered: Any) -> Procedure[int]:
        return (yield from real(entered)) + 1

    patch.setattr(reader_core, "last_entry_of", last_entry_of)


@plant
def reader_takes_a_missing_ledger_for_the_end(patch: Patch) -> None:
    def gone(self: Any, entered: Any) -> Procedure[None]:
        self.end_seq = self.place.seq
        return
        yield

    patch.setattr(reader_core.ReaderCore, "_ledger_gone", gone)


@plant
def reader_resumes_at_instead_of_after(patch: Patch) -> None:
    def by_position(view: Any, position: Any) -> Procedure[Any]:
        if position.after is None:
            return (yield from places._by_seq(view, position.next_seq))
        return (yield from places._by_id(view, position.after))

    patch.setattr(places, "_by_position", by_position)


@plant
def reader_leaves_an_open_ledger(patch: Patch) -> None:
    def closed_at(self: Any, entered: Any) -> Procedure[int]:
        if entered.segment.sealed is not None:
            return entered.segment.sealed.last_entry  # type: ignore[no-any-return]
        return (yield LastReadable(entered.segment.ledger_id))  # type: ignore[no-any-return]

    patch.setattr(reader_core.ReaderCore, "_closed_at", closed_at)

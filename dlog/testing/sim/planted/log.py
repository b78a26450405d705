"""Bugs of the log: its writers, its takeovers, its readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.effects import (
    CloseLedger,
    LastReadable,
    LookAtLedger,
    Procedure,
    ReadNode,
    ReadRun,
    RecoverLedger,
)
from dlog.errors import DlogError, Fenced, Retry
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerState
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.reader import core as reader_core
from dlog.reader import horizon, places
from dlog.reader import segments as reader_segments
from dlog.testing.sim.abstract_ledgers import AbstractClientLedgers
from dlog.testing.sim.planted import Patch, Plants
from dlog.wire.batch import decode_header
from dlog.writer import duties, healing, rotation, segments, takeover
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.pipe import PipeState
from dlog.writer.segments import SEAM_ENTRY, Found, decode_seam

plants = Plants("log-abstract")
PLANTS = plants.by_name
STALE_MS = 50.0


# --- the writer: barrier, seams, acknowledgements


def _collect_with(patch: Patch, is_open: Callable[[Any], bool]) -> None:
    def collect(self: Any) -> None:
        for pipe in self.pipes:
            if pipe.failed is not None:
                return
            upto = pipe.last_published if self.waits_for_visibility else pipe.last_confirmed
            self._release(pipe.released(upto))
            if not is_open(pipe):
                return

    patch.setattr(WriterCore, "_collect", collect)


@plants("P23, DL-28", ledger_store_ms=20.0, rotate_every=2)
def no_barrier(patch: Patch) -> None:
    _collect_with(patch, lambda pipe: True)


@plants("P23, DL-28")
def barrier_lifted_when_drained(patch: Patch) -> None:
    _collect_with(patch, lambda pipe: pipe.state is PipeState.CLOSED or pipe.is_drained)


@plants("P24")
def predecessor_last_not_written(patch: Patch) -> None:
    real = segments.seam_entry

    def seam_entry(meta: LogMeta, *, predecessor: tuple[int, int], **others: Any) -> Any:
        return real(meta, predecessor=(predecessor[0], min(predecessor[1], 1)), **others)

    patch.setattr(rotation, "seam_entry", seam_entry)


@plants("I4a")
def release_out_of_order(patch: Patch) -> None:
    real = WriterCore.take_released
    patch.setattr(WriterCore, "take_released", lambda self: real(self)[::-1])


@plants("DL-02")
def timestamps_go_back(patch: Patch) -> None:
    patch.setattr(WriterCore, "stamp", lambda self, batch=None: self.identity.now_us())


@plants(
    "I7",
    survives="an appender that failed acknowledges nothing any more (the contract of ledgers), so "
    "the core's own deafness is a second guard",
    shown_by="tests/unit/writer/test_core.py::test_a_failed_ledger_is_heard_no_more",
)
def acks_count_after_a_failure(patch: Patch) -> None:
    def hearing(self: Any, ledger_id: int) -> Any:
        return self._by_ledger.get(ledger_id)

    patch.setattr(WriterCore, "_hearing", hearing)


@plants("I27: found by these histories", ledger_fence_noticed=0.9, foreign_recoverers=True)
def failure_of_a_spare_forgotten(patch: Patch) -> None:
    def on_failed(self: Any, ledger_id: int, error: DlogError) -> None:
        pipe = self._hearing(ledger_id)
        if pipe is None or pipe.state is PipeState.CLOSED:
            return
        pipe.failed = error
        if self.state is WriterState.OPEN:
            self.move(WriterState.HEALING)

    patch.setattr(WriterCore, "on_failed", on_failed)


# --- takeover


@plants("P24")
def predecessor_last_ignored(patch: Patch) -> None:
    real = segments.decide_end

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


@plants("DL-32")
def segments_decided_out_of_order(patch: Patch) -> None:
    real = segments.decide_end
    patch.setattr(takeover, "decide_end", lambda end, found: real(end, found[::-1]))


def _look_only(meta: LogMeta, segment: Segment, fenced: Any = None) -> Procedure[Found]:
    """As the segment looks now, without fencing it."""
    info = yield LookAtLedger(segment.ledger_id)
    if info.closed is not None:
        return (yield from segments.read_segment(meta, segment, info.closed))
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


@plants("P22, I7")
def decide_before_all_are_closed(patch: Patch) -> None:
    patch.setattr(takeover, "recover_segment", _look_only)


@plants("P22")
def fence_only_the_last_segment(patch: Patch) -> None:
    real = takeover.recover_listed

    def recover(
        opening: Any, claimed: LogMeta, segment: Segment, fenced: list[float]
    ) -> Procedure[Found]:
        raw = yield ReadNode(opening.path)
        meta = LogMeta.from_bytes(raw.value, where="")
        if meta.unsealed and segment.number != meta.unsealed[-1].number:
            return (yield from _look_only(meta, segment))
        return (yield from real(opening, claimed, segment, fenced))

    patch.setattr(takeover, "recover_listed", recover)


# --- healing and closing


@plants("I9")
def heal_without_recovering(patch: Patch) -> None:
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


@plants("I5")
def rebuilt_with_other_seqs(patch: Patch) -> None:
    real = rotation.switch

    def switch(core: WriterCore, predecessor: tuple[int, int], base_seq: int) -> Any:
        return real(core, predecessor, base_seq + 1)

    def push_again(self: Any, batch: Any) -> Any:
        batch.first_seq = self.current.next_seq
        return self.current.push(batch, batch.timestamp_us, self._codec)

    patch.setattr(healing, "switch", switch)
    patch.setattr(WriterCore, "push_again", push_again)


@plants("DL-30, DL-31")
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


@plants("P19, I9", ledger_close_fails=0.3, rotate_every=2)
def unknown_close_taken_as_won(patch: Patch) -> None:
    _close_ledger_with(patch, lambda pipe: ClosedLedger(pipe.last_pushed, 0))


@plants(
    "P18",
    survives="only costs time: the old ledger is recovered to the same end, and the handle goes on",
)
def unknown_close_taken_as_lost(patch: Patch) -> None:
    def lost(pipe: Any) -> ClosedLedger:
        raise Fenced("closed by somebody else", ledger_id=pipe.ledger_id)

    _close_ledger_with(patch, lost)


# --- the reader


@plants("P26, I3b", readers=3, rotate_every=2)
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


@plants("I3a")
def reader_passes_what_is_published(patch: Patch) -> None:
    real = reader_segments.last_entry_of

    def last_entry_of(*asked: Any) -> Procedure[int]:
        return (yield from real(*asked)) + 1

    patch.setattr(reader_core, "last_entry_of", last_entry_of)


@plants("I3a")
def reader_passes_what_a_wait_told(patch: Patch) -> None:
    real = horizon.Horizon.wait

    def wait(*asked: Any) -> Procedure[int]:
        return (yield from real(*asked)) + 1

    patch.setattr(horizon.Horizon, "wait", wait)


@plants("P27")
def reader_takes_a_missing_ledger_for_the_end(patch: Patch) -> None:
    def gone(self: Any, segment: Any, error: Any) -> Procedure[None]:
        yield from ()
        self._is_over = True

    patch.setattr(reader_core.ReaderCore, "_look_again", gone)


@plants("P28")
def reader_resumes_at_instead_of_after(patch: Patch) -> None:
    def by_position(view: Any, position: Any) -> Procedure[Any]:
        if position.after is None:
            return (yield from places._by_seq(view, position.next_seq))
        return (yield from places._by_id(view, position.after))

    patch.setattr(places, "_by_position", by_position)
    patch.setattr(reader_core, "_seq_of_start", lambda start: 0)  # which would protect


@plants(
    "P26",
    survives="the next segment is entered only behind a predecessor CLOSED at its seam's end, and "
    "a step to any seq but the next is Truncated or Corrupt, never a skip",
)
def reader_leaves_an_open_ledger(patch: Patch) -> None:
    def closed_at(self: Any, entered: Any) -> Procedure[int]:
        if entered.segment.sealed is not None:
            return entered.segment.sealed.last_entry  # type: ignore[no-any-return]
        return (yield LastReadable(entered.segment.ledger_id))  # type: ignore[no-any-return]

    patch.setattr(reader_core.ReaderCore, "_closed_at", closed_at)


# --- the strict tail, where strangers show what they may not keep

STRANGERS: dict[str, Any] = {
    "tail": "strict",
    "readers": 3,
    "foreign_recoverers": True,
    "ledger_strangers_show": 0.5,
}


@plants("H1, H2", **STRANGERS)
def strict_tail_believes_what_it_is_shown(patch: Patch) -> None:
    def believe(self: Any, ledger_id: int, seen: Any, shown: Any = None) -> Procedure[bool]:
        seen.accepted = (yield LastReadable(ledger_id)) if shown is None else shown
        return True

    patch.setattr(horizon.Horizon, "_try", believe)


@plants("H1, H2", **{**STRANGERS, "ledger_strangers_show": 1.0, "ledger_store_ms": 20.0})
def strict_tail_looks_before_instead_of_after(patch: Patch) -> None:
    """Before it asks what is shown, and before it waits for that."""
    real, genuine = horizon.Horizon._try, horizon.Horizon.wait
    before: dict[int, LedgerInfo] = {}

    def wait(self: Any, ledger_id: int, last_entry: int, timeout_ms: float) -> Procedure[int]:
        before[id(self)] = yield LookAtLedger(ledger_id)
        return (yield from genuine(self, ledger_id, last_entry, timeout_ms))

    def look_first(self: Any, ledger_id: int, seen: Any, shown: Any = None) -> Procedure[bool]:
        info = before.pop(id(self), None)
        if info is None or info.ledger_id != ledger_id:
            info = yield LookAtLedger(ledger_id)
        asking = real(self, ledger_id, seen, shown)
        effect = next(asking, None)
        while effect is not None:
            answer = info if isinstance(effect, LookAtLedger) else (yield effect)
            try:
                effect = asking.send(answer)
            except StopIteration as stop:
                return bool(stop.value)
        return True

    patch.setattr(horizon.Horizon, "_try", look_first)
    patch.setattr(horizon.Horizon, "wait", wait)


@plants("H1, H2", **STRANGERS)
def strict_tail_looks_without_a_sync(patch: Patch) -> None:
    """Metadata as a server far behind has it."""

    def old_info(self: Any, ledger_id: int, answer: Any) -> None:
        def look() -> LedgerInfo:
            ledger = self._store.existing(ledger_id)
            is_news = self._world.now_ms - ledger.fenced_ms < STALE_MS
            if ledger.closed is not None:
                return LedgerInfo(ledger_id, LedgerState.CLOSED, ledger.closed, ledger.spec)
            is_open = is_news or not ledger.fenced
            state = LedgerState.OPEN if is_open else LedgerState.IN_RECOVERY
            return LedgerInfo(ledger_id, state, None, ledger.spec)

        self._ask(look, answer)

    patch.setattr(AbstractClientLedgers, "info", old_info)


# --- what only these histories taught


@plants("I3c")
def acks_before_readers_can_see(patch: Patch) -> None:
    real = WriterCore._collect

    def collect(self: Any) -> None:
        self.waits_for_visibility = False
        real(self)

    def on_confirmed(self: Any, ledger_id: int, last_entry: int) -> None:
        heard(self, ledger_id, last_entry)
        self._collect()

    heard = WriterCore.on_confirmed
    patch.setattr(WriterCore, "_collect", collect)
    patch.setattr(WriterCore, "on_confirmed", on_confirmed)


@plants("I25", window_entries=2)
def window_forgotten(patch: Patch) -> None:
    def room(self: Any) -> bool:
        return self.state is WriterState.OPEN and self.current.last_pushed >= SEAM_ENTRY

    patch.setattr(WriterCore, "room", room)


@plants("P22, I7", takeover="always", writers=3)
def takeover_trusts_the_first_look(patch: Patch) -> None:
    """Commits over whatever was claimed meanwhile."""
    patch.setattr(takeover, "refuse_unless_owned", lambda meta, token, name: None)

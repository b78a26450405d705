"""The oracle of the other end of logs: where each begins, who holds it, and what may be deleted.
Part of `log_oracle`, which tells it of every change and asks it what was truncated.

A truncation point truncates by a seq and by an id; which seq the head has by both, it finds out
from the entries themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlog.admin.collect import first_number
from dlog.meta.holds import Hold
from dlog.meta.listed import Point, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.retention import SECOND_US
from dlog.testing.sim.world import require
from dlog.wire.batch import ControlKind, Seam, decode

if TYPE_CHECKING:
    from dlog.testing.sim.log_oracle import LogOracle

SEAM_ENTRY = 1


@dataclass(slots=True)
class Begins:
    """Where one log begins, by its uid."""

    point: Point = field(default_factory=Point)
    head_seq: int = 0
    holds: dict[str, int] = field(default_factory=dict)  # seqs that are promised to be kept
    loose: set[str] = field(default_factory=set)  # somebody asked to drop these, and was not told
    forced: bool = False  # holds may be overrun from here on


class HeadOracle:
    def __init__(self, oracle: LogOracle) -> None:
        self._oracle = oracle
        self._logs: dict[str, Begins] = {}
        self._heads: dict[tuple[str, Point], int] = {}
        self._ledgers: dict[str, list[int]] = {}  # of each log, all that were ever listed, growing

    def begin_as(self, other: HeadOracle) -> None:
        """Of a log that nobody holds yet."""
        self._logs = {
            uid: replace(begins, holds={}, loose=set()) for uid, begins in other._logs.items()
        }
        self._heads = dict(other._heads)
        self._ledgers = {uid: list(ids) for uid, ids in other._ledgers.items()}

    def of(self, uid: str | None) -> Begins:
        return self._logs.setdefault(uid or "", Begins())

    def head_seq(self, uid: str | None) -> int:
        return self.of(uid).head_seq

    def is_truncated(self, uid: str, seq: int) -> bool:
        return seq < self.head_seq(uid)

    # --- the point: I18, I19

    def on_listed(self, uid: str, ledger_id: int) -> None:
        self._ledgers.setdefault(uid, []).append(ledger_id)

    def on_log(self, old: LogMeta | None, new: LogMeta) -> None:
        begins = self.of(new.uid)
        point = new.truncate_before
        if new.is_removed or point == begins.point:
            return
        before, begins.point = begins.point, point
        if old is not None and old.uid == new.uid:
            grew = point.seq >= before.seq and point.id_key >= before.id_key
            require(grew, "I19", "a truncation point went back", before, point)
        begins.head_seq = max(begins.head_seq, self.head_of(new.uid, point))
        self._oracle.world.mark("truncated")
        self._oracle.world.note(f"the log begins at seq {begins.head_seq}")
        there = begins.head_seq <= self._readable_end(new)
        require(there, "I19", "messages to come were truncated", begins.head_seq, point)
        if not begins.forced:
            for name, seq in begins.holds.items():
                kept = begins.head_seq <= seq
                require(kept, "I19", "what is held was truncated", name, seq, begins.head_seq)

    def head_of(self, uid: str, point: Point) -> int:
        """The first seq that a point leaves."""
        found = self._heads.get((uid, point))
        if found is None:
            found = self._heads[uid, point] = max(point.seq, self._seq_of(uid, point))
        return found

    def _seq_of(self, uid: str, point: Point) -> int:
        """The first seq with the point's id or a larger one."""
        if point.ledger_id < 0:
            return 0
        oracle = self._oracle
        ledger_id = next(
            (
                each
                for each in self._ledgers.get(uid, ())
                if each >= point.ledger_id and self.base_seq(each) is not None
            ),
            None,
        )
        if ledger_id is None:
            end = oracle.now
            return 0 if end is None else end.end.next_seq
        base_seq = self.base_seq(ledger_id)
        assert base_seq is not None
        if ledger_id > point.ledger_id:
            return base_seq
        last, entry_id = base_seq, SEAM_ENTRY
        while (raw := oracle.ledgers.entry(ledger_id, entry_id)) is not None:
            entry = decode(raw, where="")
            first = base_seq + entry.first_seq
            if entry_id == point.entry_id:
                return first + min(point.batch_idx, entry.count)
            if entry_id > point.entry_id:
                return first
            last, entry_id = first + entry.count, entry_id + 1
        return last

    def base_seq(self, ledger_id: int) -> int | None:
        """None of a ledger without a seam, unless it is known from the list."""
        published = self._oracle.jobs.base_seq(ledger_id)
        if published is not None:
            return published
        raw = self._oracle.ledgers.entry(ledger_id, SEAM_ENTRY)
        if raw is None:
            return None
        entry = decode(raw, where="")
        if entry.control is not ControlKind.SEAM:
            return None
        return Seam.from_bytes(entry.control_body, where="").base_seq

    def _readable_end(self, meta: LogMeta) -> int:
        """Behind all that anybody may have read."""
        ledgers = self._oracle.ledgers
        end = meta.end.next_seq
        for segment in meta.unsealed:
            base_seq = self.base_seq(segment.ledger_id)
            entry_id = SEAM_ENTRY
            while base_seq is not None and ledgers.is_durable(segment.ledger_id, entry_id):
                raw = ledgers.entry(segment.ledger_id, entry_id)
                if raw is None:
                    break
                entry = decode(raw, where="")
                end = max(end, base_seq + entry.first_seq + entry.count)
                entry_id += 1
        return end

    # --- holds: I19

    def hold_returned(self, uid: str, name: str, seq: int) -> None:
        """From now on no policy truncates what is there and behind."""
        begins = self.of(uid)
        kept = begins.forced or begins.head_seq <= seq
        require(kept, "I19", "a hold was made on what is gone", name, seq, begins.head_seq)
        if name not in begins.loose:
            begins.holds[name] = seq
        self._oracle.world.mark("held")

    def hold_moves(self, uid: str, name: str, seq: int) -> None:
        holds = self.of(uid).holds
        if name in holds:
            holds[name] = max(seq, holds[name])

    def hold_goes(self, uid: str, name: str) -> None:
        self.of(uid).holds.pop(name, None)
        self.of(uid).loose.add(name)

    def hold_is_gone(self, uid: str, name: str) -> None:
        self.of(uid).loose.discard(name)

    # --- what leaves the list, and what is deleted: I15, I19

    def check_left(self, new: LogMeta, segment: Segment) -> None:
        """A sealed segment is in the list no more."""
        sealed, point = segment.sealed, new.truncate_before
        covered = point.covers(segment) or (sealed is not None and sealed.next_seq <= point.seq)
        require(covered, "I15", "a sealed segment left the list", segment, point)
        waits = self.is_doomed(new, segment)
        require(waits, "I26", "a segment left the list and waits for no deletion", segment)

    def is_doomed(self, meta: LogMeta, segment: Segment) -> bool:
        return self.doomed_since(meta, segment.number, segment.ledger_id) is not None

    def doomed_since(self, meta: LogMeta, number: int, ledger_id: int) -> int | None:
        for doomed in meta.deleting:
            if doomed.ledger_id == ledger_id:
                return doomed.since_us
        for page in meta.deleting_pages:
            first, last = self._oracle.spans.get((page.level, page.number), (0, -1))
            if first <= number <= last:
                return page.since_us
        return None

    def on_delete(self, ledger_id: int) -> None:
        oracle, meta = self._oracle, self._oracle.now
        number = oracle.number_of(ledger_id)
        if number is None:
            return  # it never was in the list
        closed = oracle.ledgers.closed_end(ledger_id) is not None
        require(closed, "I19", "a ledger was deleted that is not closed", ledger_id)
        if meta is not None and not meta.is_removed:
            waits = self.doomed_since(meta, number, ledger_id) is not None
            if oracle.damage is not None and oracle.damage.has_hurt():
                # What a page held that was damaged when its turn came, is found as an orphan.
                waits = all(segment.ledger_id != ledger_id for segment in oracle.listed())
            require(waits, "I19", "a ledger was deleted that does not wait for it", ledger_id)

    def on_collect(self, who: str, ledger_id: int, now_us: int) -> None:
        """By a collector, whose clock says so."""
        oracle, meta = self._oracle, self._oracle.now
        number = oracle.number_of(ledger_id)
        if meta is None or meta.is_removed or number is None:
            return
        since_us = self.doomed_since(meta, number, ledger_id)
        if since_us is not None:
            over = now_us - since_us >= meta.options.deletion_grace_s * SECOND_US
            require(over, "I19", "a ledger is deleted in its grace", who, ledger_id)

    # --- the end: I26

    def check_collected(self, uid: str) -> None:
        """After a pass of the collector behind the grace."""
        oracle, meta = self._oracle, self._oracle.now
        assert meta is not None
        left = meta.deleting or meta.deleting_pages
        require(not left, "I26", "something waits for its deletion for ever", left)
        listed = oracle.listed()
        for kept in itertools.takewhile(meta.truncate_before.covers, listed):
            needed = _has_numbers(meta, listed, kept)
            require(needed, "I26", "what was truncated is kept", kept, meta.truncate_before)
        there = {segment.ledger_id for segment in listed}
        for ledger_id in oracle.ever_listed:
            gone = ledger_id in there or oracle.ledgers.is_gone(ledger_id)
            require(gone, "I26", "a ledger is in no list and still there", ledger_id)
        first = first_number(meta)
        for name in oracle.meta.below(oracle.pages_path):
            number = name.partition(".")[0]
            require(int(number) >= first, "I26", "a page that nothing names", name, first)
        for name in oracle.meta.below(oracle.holds_path):
            path = f"{oracle.holds_path}/{name}"
            raw = oracle.meta.value(path)
            assert raw is not None
            ours = Hold.from_bytes(raw, name, where=path).log_uid == uid
            require(ours, "I26", "a hold of a log that is gone", name)
        for name in self.of(uid).holds:
            there_is = oracle.meta.value(f"{oracle.holds_path}/{name}") is not None
            require(there_is, "I19", "a hold vanished", name)


def _has_numbers(meta: LogMeta, listed: Sequence[Segment], kept: Segment) -> bool:
    """Of a log with producers the newest sealed segment with messages stays, for the table of their
    numbers, with the page that it may stand in and whatever follows."""
    if not meta.producers or meta.state is not LogState.OPEN:
        return False
    at = meta.kept_from
    if at is not None and (kept.number >= at or (meta.pages and at <= meta.pages[0].last_number)):
        return True
    writers = (s for s in reversed(listed) if not s.is_job)
    ends = ((s.number, s.sealed) for s in writers if s.sealed is not None)
    newest = next((number for number, end in ends if end.next_seq > end.base_seq), None)
    in_page = bool(meta.pages) and newest is not None and newest <= meta.pages[0].last_number
    return newest is not None and (kept.number >= newest or in_page)

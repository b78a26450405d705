"""A small log of real entries in memory: each effect of reading is answered from it, and `messages`
is the truth that every search is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dlog.effects import (
    Effect,
    LastReadable,
    LookAtLedger,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
)
from dlog.errors import NotFound
from dlog.ids import MessageId
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Point, Sealed, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import Cut
from dlog.meta.store import Versioned
from dlog.options import LogOptions, TailMode
from dlog.reader.segments import SegmentView
from dlog.wire.batch import Codec, ControlKind, encode, encode_control
from dlog.writer.segments import seam_entry

LAYOUT, NAME = Layout(), "orders"
BIRTH = b"".join(encode_control(ControlKind.BIRTH, b"{}", first_seq=0, timestamp_us=0))
MARK = WriterMark("token", "w", 0)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Written:
    """One message, as it can be read."""

    seq: int
    id: MessageId
    time_us: int
    value: bytes
    epoch: int


@dataclass(slots=True)
class SmallLog:
    """Build it entry by entry; `run` performs procedures over what is there."""

    meta: LogMeta = field(default_factory=lambda: LogMeta("uid", LogOptions()).claimed(MARK))
    ledgers: dict[int, list[bytes]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    nodes: dict[str, bytes] = field(default_factory=dict)
    messages: list[Written] = field(default_factory=list)
    asked: list[Effect] = field(default_factory=list)
    _stored: tuple[LogMeta, bytes] | None = None
    _next_seq: int = 0
    _base_seq: int = 0
    _first_us: int = 0
    _last_us: int = 0

    # --- building

    def begin(self, *, at_us: int = 0) -> int:
        """The next segment, with its seam; the ledger id."""
        number = self.meta.next_number
        before = self.meta.segments[-1] if self.meta.segments else None
        predecessor = self.meta.end.ledger_id, self.meta.end.last_entry
        if before is not None and before.sealed is None:
            predecessor = before.ledger_id, len(self.ledgers[before.ledger_id]) - 1
        self.meta = self.meta.listed(10 * number)
        self._base_seq = self._next_seq
        self._first_us = self._last_us = max(at_us, self._last_us)
        seam = seam_entry(
            self.meta,
            number=number,
            epoch=self.meta.epoch,
            predecessor=predecessor,
            base_seq=self._base_seq,
            now_us=self._first_us,
        )
        self.ledgers[10 * number] = [BIRTH, b"".join(seam)]
        return 10 * number

    def write(self, *times_us: int, size: int = 5, codec: Codec = Codec.NONE) -> None:
        """One entry of as many messages, each written at its own time."""
        ledger_id = self.meta.segments[-1].ledger_id
        entries = self.ledgers[ledger_id]
        values = [b"%0*d" % (size, self._next_seq + i) for i in range(len(times_us))]
        entry = encode(
            values,
            first_seq=self._next_seq - self._base_seq,
            timestamp_us=times_us[0],
            timestamps_us=times_us,
            codec=codec,
        )
        for idx, (value, time_us) in enumerate(zip(values, times_us, strict=True)):
            id_ = MessageId(ledger_id, len(entries), idx)
            self.messages.append(Written(self._next_seq, id_, time_us, value, self.meta.epoch))
            self._next_seq += 1
        entries.append(b"".join(entry))
        self._last_us = max(self._last_us, times_us[-1])

    def control(self, at_us: int) -> None:
        """A table of producers, which holds no message."""
        ledger_id = self.meta.segments[-1].ledger_id
        relative = self._next_seq - self._base_seq
        table = encode_control(ControlKind.PRODUCERS, b"{}", first_seq=relative, timestamp_us=at_us)
        self.ledgers[ledger_id].append(b"".join(table))
        self._last_us = max(self._last_us, at_us)

    def close(self) -> None:
        """The newest ledger, and not in the list."""
        self.closed.add(self.meta.segments[-1].ledger_id)

    def seal(self) -> Sealed:
        """The oldest segment that is not sealed, closed where it ends now."""
        segment = self.meta.unsealed[0]
        entries = self.ledgers[segment.ledger_id]
        mine = [each for each in self.messages if each.id.ledger_id == segment.ledger_id]
        base_seq = self.meta.end.next_seq
        sealed = Sealed(
            len(entries) - 1,
            sum(map(len, entries)),
            base_seq,
            base_seq + len(mine),
            self._first_us,
            self._last_us,
        )
        self.closed.add(segment.ledger_id)
        self.meta = self.meta.sealed(segment.number, sealed)
        return sealed

    def page(self, count: int) -> None:
        """The oldest `count` segments of the list move to a page."""
        held = self.meta.segments[:count]
        self._cut(Cut(PageRef.of_segments(held), held))

    def page_of_pages(self, count: int) -> None:
        held = self.meta.pages[:count]
        self._cut(Cut(PageRef.of_pages(held), held))

    def _cut(self, cut: Cut) -> None:
        self.nodes[LAYOUT.page(NAME, cut.ref.number, cut.ref.level)] = cut.to_bytes()
        self.meta = self.meta.without(cut)

    def truncate(self, point: Point, *, sweep: bool = False) -> None:
        self.meta = self.meta.truncated(point)
        if sweep:
            self.meta = self.meta.swept(0)

    def left(self) -> list[Written]:
        """Messages that were not truncated."""
        point = self.meta.truncate_before
        return [each for each in self.messages if not point.is_past(each.seq, *each.id)]

    # --- reading

    def view(self, tail: TailMode = "normal") -> SegmentView:
        view = SegmentView(NAME, LAYOUT, tail=tail)
        self.run(view.refresh())
        self.asked.clear()
        return view

    def run(self, procedure: Procedure[Answer]) -> Answer:
        answer: Any = None
        error: NotFound | None = None
        try:
            while True:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
                self.asked.append(effect)
                answer, error = None, None
                try:
                    answer = self.perform(effect)
                except NotFound as missing:
                    error = missing
        except StopIteration as stop:
            result: Answer = stop.value
            return result

    def perform(self, effect: Effect) -> Any:
        match effect:
            case ReadNode(path=path) if path == LAYOUT.log(NAME):
                if self._stored is None or self._stored[0] is not self.meta:
                    self._stored = self.meta, self.meta.to_bytes()
                return Versioned(self._stored[1], 1)
            case ReadNode(path=path):
                if path not in self.nodes:
                    raise NotFound(f"no {path}")
                return Versioned(self.nodes[path], 1)
            case LastReadable(ledger_id=ledger_id):
                return len(self._ledger(ledger_id)) - 1
            case LookAtLedger(ledger_id=ledger_id):
                return self._info(ledger_id)
            case ReadRun(ledger_id=ledger_id, first_entry=first, last_entry=last, bytes_max=size):
                return self._run_of(self._ledger(ledger_id), first, last, size)
            case ReadEntries(ledger_id=ledger_id, entries=entries):
                return [self._ledger(ledger_id)[entry] for entry in entries]
            case _:
                raise AssertionError(effect)

    def _ledger(self, ledger_id: int) -> list[bytes]:
        if ledger_id not in self.ledgers:
            raise NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
        return self.ledgers[ledger_id]

    def _info(self, ledger_id: int) -> LedgerInfo:
        entries = self._ledger(ledger_id)
        if ledger_id not in self.closed:
            return LedgerInfo(ledger_id, LedgerState.OPEN, None, LedgerSpec())
        closed = ClosedLedger(len(entries) - 1, sum(map(len, entries)))
        return LedgerInfo(ledger_id, LedgerState.CLOSED, closed, LedgerSpec())

    @staticmethod
    def _run_of(entries: Sequence[bytes], first: int, last: int, size: int) -> list[memoryview]:
        assert 0 <= first <= last < len(entries), "only what is there is read"
        run: list[memoryview] = []
        for entry in entries[first : last + 1]:
            if run and sum(map(len, run)) + len(entry) > size:
                break
            run.append(memoryview(entry))
        return run


def with_options(log: SmallLog, **options: Any) -> SmallLog:
    log.meta = dataclasses.replace(log.meta, options=LogOptions(**options))
    return log


def seven_segments(*, producers: bool = True) -> SmallLog:
    """Two segments in a page below a page, two in a page, two in the list, one being written; one
    of them empty, entries of one to four messages with times of their own, tables between them."""
    log = SmallLog()
    at = 100
    for number in range(1, 8):
        log.begin(at_us=at)
        if number != 4:
            for entry in range(3):
                log.write(*range(at, at + 2 * (entry + number % 2 + 1), 2), size=5 + 40 * entry)
                at += 10
                if producers and entry == number % 3:
                    log.control(at)
            at += 10
        if number < 7:
            log.seal()
    log.page(2)
    log.page(2)
    log.page_of_pages(1)
    return log

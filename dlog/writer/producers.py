"""Which number of each producer is the last one in the log, so that a message that is sent again is
known for what it is.

`Producers` is the table of what is settled: of acknowledged messages, in their order. It is written
into the log (behind each seam, before a close, and so often between that little has to be read),
together with what was sent by then and stands before that entry: if the entry is kept, so is that.
`Dedup` answers for new messages and adds those on their way. A takeover reads backwards from the
end to the newest table, and counts on from there.

The table is bounded: producers that were silent longest are forgotten, and their ids are kept as
ranges (`dlog.forgotten`). A producer whose id is in one of them is refused at every number, 0 too.
One whose id is in none of them was never heard of, and begins where it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dlog import limits
from dlog.effects import Procedure, ReadEntries
from dlog.errors import AlreadyExists, Conflict, Corrupt, NotFound, Retry
from dlog.forgotten import ALL_IDS, ForgottenIds, GrowingIds
from dlog.ids import MessageId
from dlog.ledger.store import Buffer
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import Segment
from dlog.meta.published import NOT_NEEDED
from dlog.reader.segments import SegmentView
from dlog.wire.batch import (
    ControlKind,
    ProducerRow,
    ProducerTable,
    decode,
    decode_header,
    encode_control,
)
from dlog.writer.batch import Batch
from dlog.writer.segments import SEAM_ENTRY

READ_BACK_ENTRIES = 256  # at once
READ_BACK_BYTES = 4 << 20


class Producers:
    def __init__(self, table: ProducerTable | None = None) -> None:
        table = table or ProducerTable()
        self.rows = {row.producer_id: row for row in table.rows}  # the silent ones first
        self._forgotten = GrowingIds()  # of those with a row, the row counts
        if table.forgot:
            ranges = table.ranges
            self.forgotten = ALL_IDS if ranges is None else ForgottenIds.of_ranges(ranges)

    @property
    def forgot(self) -> bool:
        """Some producer, in the log's life."""
        return bool(self._forgotten)

    @property
    def forgotten(self) -> ForgottenIds:
        """By now, as a copy. To ask for one id, see `may_have_forgotten`."""
        return self._forgotten.frozen()

    @forgotten.setter
    def forgotten(self, ids: ForgottenIds) -> None:
        self._forgotten = GrowingIds(ids)

    def may_have_forgotten(self, producer_id: int) -> bool:
        return producer_id in self._forgotten

    def note(self, row: ProducerRow) -> None:
        self.rows.pop(row.producer_id, None)
        self.rows[row.producer_id] = row
        if len(self.rows) > limits.PRODUCERS_MAX:
            silent = next(iter(self.rows))
            # First: other threads look here, and must not take the producer for new.
            self._forgotten.add(silent)
            del self.rows[silent]

    def note_batches(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            if batch.producer is not None:
                producer_id, first_number = batch.producer
                last = len(batch.values) - 1
                self.note(
                    ProducerRow(
                        producer_id, first_number + last, batch.ledger_id, batch.entry_id, last
                    )
                )

    def table(self) -> ProducerTable:
        forgotten = self.forgotten
        ranges = None if forgotten in (ForgottenIds(), ALL_IDS) else forgotten.ranges
        return ProducerTable(tuple(self.rows.values()), bool(forgotten), ranges)

    def entry(self, sent: Iterable[Batch], *, first_seq: int, timestamp_us: int) -> list[Buffer]:
        """The control entry that stands behind everything settled, and behind what was `sent`."""
        there = Producers(self.table())
        there.note_batches(sent)
        return encode_control(
            ControlKind.PRODUCERS,
            there.table().to_bytes(),
            first_seq=first_seq,
            timestamp_us=timestamp_us,
        )


class Dedup:
    """New, on its way, or there? Batches of one producer follow each other with rising numbers."""

    def __init__(self, settled: Producers) -> None:
        self._settled = settled
        self._sent: dict[int, deque[Batch]] = {}  # taken, and not yet settled

    def find(self, producer_id: int, number: int) -> tuple[Batch, int] | None:
        """Where the message is on its way, as batch and index; None for a new one. `AlreadyExists`
        for one that the log has, with its id if it is the last of its producer."""
        for batch in reversed(self._sent.get(producer_id, ())):
            assert batch.producer is not None
            idx = number - batch.producer[1]
            if idx >= len(batch.values):
                # Above the newest one: new. Behind an older one: a number that was left out.
                if batch is self._sent[producer_id][-1]:
                    return None
                raise _there(producer_id, number, None)
            if idx >= 0:
                if not batch.done:
                    return batch, idx
                raise _there(producer_id, number, MessageId(batch.ledger_id, batch.entry_id, idx))
        row = self._settled.rows.get(producer_id)
        if producer_id in self._sent:
            is_last = row is not None and row.number == number
            raise _there(producer_id, number, MessageId(*row[2:]) if row and is_last else None)
        if row is None:
            if self._settled.may_have_forgotten(producer_id):
                raise _forgotten(producer_id, number, self._settled.forgotten)
            return None
        if number > row.number:
            return None
        raise _there(producer_id, number, MessageId(*row[2:]) if number == row.number else None)

    def find_run(self, producer_id: int, first_number: int, count: int) -> Batch | None:
        """The same for an atomic run: all of it on its way in one batch, all new, or all there."""
        last = self.find(producer_id, first_number + count - 1)
        if last is None:
            try:
                if self.find(producer_id, first_number) is None:
                    return None
            except AlreadyExists:
                pass
        elif last[0].producer == (producer_id, first_number) and len(last[0].values) == count:
            return last[0]
        raise Conflict(
            f"an atomic run of {count} messages from number {first_number} of producer "
            f"{producer_id} on, some of which were taken before; nothing was sent",
            retry=Retry.NEVER,
            producer=producer_id,
        )

    def add(self, batch: Batch) -> None:
        assert batch.producer is not None
        self._sent.setdefault(batch.producer[0], deque()).append(batch)

    def settle(self, batch: Batch) -> None:
        """It is acknowledged, and the settled table knows it."""
        assert batch.producer is not None
        sent = self._sent.get(batch.producer[0])
        if sent and sent[0] is batch:
            sent.popleft()
            if not sent:
                del self._sent[batch.producer[0]]


def _there(producer_id: int, number: int, id: MessageId | None) -> AlreadyExists:
    if id is None:
        told = f"producer {producer_id} is past number {number}: it was taken before, or left out"
    else:
        told = f"number {number} of producer {producer_id} is there already, at {id}"
    return AlreadyExists(
        told,
        producer=producer_id,
        id=id,
    )


def _forgotten(producer_id: int, number: int, forgotten: ForgottenIds) -> NotFound:
    told = (
        f"producer {producer_id} is not known any more: this log remembers the last number of the "
        f"{limits.PRODUCERS_MAX} that wrote last, and this one may be among those that it forgot. "
        f"Whether number {number} is there, it cannot tell. Read the log to find out, or go on "
    )
    free = forgotten.widest_free
    if free is None:
        told += "in another log: of this one it is not known which producers were forgotten"
    else:
        told += f"as a producer that was never used here, as one from {free[0]} to {free[1]}"
    return NotFound(told, producer=producer_id)


def count_producers(name: str, layout: Layout, opened: Seen, number: int) -> Procedure[Producers]:
    """What a log knew of its producers when segment `number` was listed. All before it is
    sealed."""
    view = SegmentView(name, layout)
    view.seen = opened
    later: list[ProducerRow] = []  # newest first
    table: ProducerTable | None = None
    published = opened.meta.published
    segment = yield from view.before(number)
    while segment is not None:
        if segment.is_job:  # there they do not stand, nor behind where they were known to
            last = published.producers_at
            before = segment.number if last == NOT_NEEDED else min(segment.number, last + 1)
            segment = yield from view.before(before)
            continue
        assert segment.sealed is not None
        digest = opened.meta.digest
        table = yield from _read_back(segment, digest, segment.sealed.last_entry, later)
        # Whatever has more than a seam has a table first, if the log had producers by then.
        if table is not None or segment.sealed.last_entry > SEAM_ENTRY:
            break
        segment = yield from view.before(segment.number)
    if table is None and later:
        raise Corrupt(
            f"log {name!r}: numbers of producers, and no table before them",
            log=name,
            ledger_id=later[-1].ledger_id,
            entry_id=later[-1].entry_id,
        )
    producers = Producers(table)
    copy_of = opened.meta.copy_of
    if table is None and copy_of is not None and copy_of.first_seq > 0:
        # Those of whom the other log knew: what was truncated there told of them.
        forgotten = copy_of.forgotten
        producers.forgotten = ALL_IDS if forgotten is None else ForgottenIds.of_ranges(forgotten)
    for row in reversed(later):
        producers.note(row)
    return producers


def _read_back(
    segment: Segment, digest: str, last_entry: int, later: list[ProducerRow]
) -> Procedure[ProducerTable | None]:
    """The newest table of a segment; the rows of what stands behind it are added to `later`."""
    ledger_id, high = segment.ledger_id, last_entry
    while high > SEAM_ENTRY:
        low = max(SEAM_ENTRY + 1, high - READ_BACK_ENTRIES + 1)
        entries = tuple(range(low, high + 1))
        found = yield ReadEntries(
            ledger_id, digest, entries, bytes_max=READ_BACK_BYTES, point="takeover.counted"
        )
        for entry_id, raw in zip(reversed(entries), reversed(found), strict=True):
            where = f"ledger {ledger_id} entry {entry_id}"
            header = decode_header(raw, where=where)
            if header.control is ControlKind.PRODUCERS:
                return ProducerTable.from_bytes(decode(raw, where=where).control_body, where=where)
            if header.producer is not None:
                producer_id, first_number = header.producer
                last = header.count - 1
                row = ProducerRow(producer_id, first_number + last, ledger_id, entry_id, last)
                later.append(row)
        high = low - 1
    return None

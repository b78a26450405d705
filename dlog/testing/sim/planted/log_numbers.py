"""Bugs of outcomes: what a token resolves to, and which numbers of producers a log knows."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.effects import Procedure
from dlog.errors import NotFound
from dlog.ids import MessageId, Token
from dlog.meta.log_meta import LogMeta
from dlog.reader import resolve
from dlog.reader.resolve import Never, Resolved
from dlog.reader.segments import Entered, SegmentView
from dlog.testing.sim.planted import Patch, Plants
from dlog.wire.batch import ProducerRow, ProducerTable
from dlog.writer import producers, rotation, takeover
from dlog.writer.batch import Batch
from dlog.writer.core import WriterCore
from dlog.writer.producers import Dedup, Producers
from dlog.writer.takeover import Opened, Opening

plants = Plants("log-abstract")
PLANTS = plants.by_name
NUMBERS: dict[str, Any] = {"numbered": 1.0, "incarnations": 3, "crash": 0.05, "writers": 2}
ASKED: dict[str, Any] = {"resolved": 0.9, "writers": 2, "incarnations": 2}


# --- what became of a message


@plants("I24", **ASKED)
def never_while_its_writer_lives(patch: Patch) -> None:
    patch.setattr(resolve, "_may_grow", lambda meta, epoch: False)


@plants("I24", **ASKED, ledger_store_ms=20.0, crash=0.05)
def never_while_a_takeover_decides(patch: Patch) -> None:
    def may_grow(meta: LogMeta, epoch: int) -> bool:
        return meta.epoch == epoch and meta.writer is not None

    patch.setattr(resolve, "_may_grow", may_grow)


@plants("I24", **ASKED, freeze=0.1, window_entries=1)
def present_by_its_seq_alone(patch: Patch) -> None:
    real = resolve._in_segment

    def in_segment(view: SegmentView, entered: Entered, token: Token) -> Procedure[Resolved]:
        return real(view, entered, Token(token.log_uid, entered.segment.epoch, token.seq))

    patch.setattr(resolve, "_in_segment", in_segment)


@plants("I24", **ASKED)
def never_above_what_is_sealed(patch: Patch) -> None:
    """As if what the list does not know had not happened."""

    def look(view: SegmentView, token: Token) -> Procedure[Resolved]:
        if token.seq >= view.meta.end.next_seq:
            return Never()
        return (yield from real(view, token))

    real = resolve._look
    patch.setattr(resolve, "_look", look)


# --- numbers of producers


@plants("I29", **NUMBERS)
def takeover_counts_nothing(patch: Patch) -> None:
    def with_producers(opening: Opening, opened: Opened) -> Procedure[Opened]:
        yield from ()
        return opened

    patch.setattr(takeover, "_with_producers", with_producers)


@plants("I29", **NUMBERS)
def rows_behind_the_table_are_forgotten(patch: Patch) -> None:
    real = producers._read_back

    def read_back(segment: Any, digest: str, last: int, later: list[ProducerRow]) -> Any:
        return (yield from real(segment, digest, last, []))

    patch.setattr(producers, "_read_back", read_back)


@plants("I29", **NUMBERS)
def older_rows_win(patch: Patch) -> None:
    real = producers._read_back

    def read_back(segment: Any, digest: str, last: int, later: list[ProducerRow]) -> Any:
        table = yield from real(segment, digest, last, later)
        later.reverse()
        return table

    patch.setattr(producers, "_read_back", read_back)


@plants("I29", **NUMBERS)
def only_the_last_segment_counts(patch: Patch) -> None:
    real = SegmentView.before

    def count(name: str, layout: Any, opened: Any, number: int) -> Procedure[Producers]:
        asked: list[int] = []

        def before(self: SegmentView, number: int) -> Procedure[Any]:
            asked.append(number)
            return (yield from real(self, number)) if len(asked) == 1 else None

        patch.setattr(SegmentView, "before", before)
        try:
            return (yield from real_count(name, layout, opened, number))
        finally:
            patch.setattr(SegmentView, "before", real)

    real_count = producers.count_producers
    patch.setattr(takeover, "count_producers", count)


@plants("I29", **NUMBERS)
def no_table_behind_a_seam(patch: Patch) -> None:
    def nothing(core: WriterCore, now_us: int) -> Procedure[None]:
        yield from ()

    patch.setattr(rotation, "write_table", nothing)


@plants("I29", **NUMBERS)
def on_its_way_is_new(patch: Patch) -> None:
    patch.setattr(Dedup, "add", lambda self, batch: None)


@plants("I29", **NUMBERS, ledger_store_ms=20.0)
def on_its_way_is_there(patch: Patch) -> None:
    real = Dedup.find

    def find(self: Dedup, producer_id: int, number: int) -> tuple[Batch, int] | None:
        found = real(self, producer_id, number)
        if found is not None:
            raise producers._there(producer_id, number, None)
        return None

    patch.setattr(Dedup, "find", find)


@plants(
    "I29",
    survives="it takes a writer that dies in the turn in which it heals, and a recovery that keeps "
    "the table and not the entry behind it: "
    "tests/scenarios/test_producers.py::test_healing_keeps_the_numbers",
    **NUMBERS,
)
def a_table_ahead_of_its_entry(patch: Patch) -> None:
    """What a healed ledger did not keep is counted in its successor before it is rebuilt there."""
    real = WriterCore.push

    def push(self: WriterCore, batch: Batch) -> Any:
        told = real(self, batch)
        self.producers.note_batches([batch])
        return told

    patch.setattr(WriterCore, "push", push)


@plants("I29", **{**NUMBERS, "writers": 4}, producers_max=2)
def what_was_forgotten_is_forgotten(patch: Patch) -> None:
    real = Producers.table

    def table(self: Producers) -> ProducerTable:
        return dataclasses.replace(real(self), forgot=False, ranges=None)

    patch.setattr(Producers, "table", table)


@plants("I29", **{**NUMBERS, "writers": 4}, producers_max=2)
def number_0_is_always_new(patch: Patch) -> None:
    """A producer that was forgotten is taken for one that begins."""
    real = Dedup.find

    def find(self: Dedup, producer_id: int, number: int) -> tuple[Batch, int] | None:
        try:
            return real(self, producer_id, number)
        except NotFound:
            if number > 0:
                raise
            return None

    patch.setattr(Dedup, "find", find)


@plants("I29", **NUMBERS)
def an_id_of_another_entry(patch: Patch) -> None:
    real = Producers.note

    def note(self: Producers, row: ProducerRow) -> None:
        here = MessageId(*row[2:])
        real(self, row._replace(entry_id=here.entry_id + 1))

    patch.setattr(Producers, "note", note)


@plants(
    "16 MiB",
    survives="without them a takeover reads further back, to the table behind the seam: "
    "tests/scenarios/test_producers.py::test_a_takeover_reads_back_to_the_newest_table",
    **NUMBERS,
)
def no_tables_between(patch: Patch) -> None:
    patch.setattr(WriterCore, "table_due", property(lambda self: False))

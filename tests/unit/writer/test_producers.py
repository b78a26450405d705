"""Known, on its way, or new: what a producer's number is, and what of it is forgotten."""

from __future__ import annotations

import pytest

from dlog import limits
from dlog.errors import AlreadyExists, Conflict, NotFound
from dlog.forgotten import ForgottenIds
from dlog.ids import MessageId
from dlog.wire.batch import ProducerRow, ProducerTable
from dlog.writer.batch import Batch
from dlog.writer.producers import Dedup, Producers

P = 7


def batch_of(first_number: int, count: int, *, producer_id: int = P, entry_id: int = 2) -> Batch:
    batch = Batch([b"x"] * count, count)
    batch.producer = (producer_id, first_number)
    batch.ledger_id, batch.entry_id = 5, entry_id
    return batch


class Scene:
    def __init__(self, table: ProducerTable | None = None) -> None:
        self.settled = Producers(table)
        self.dedup = Dedup(self.settled)

    def send(self, *batches: Batch) -> None:
        for batch in batches:
            self.dedup.add(batch)

    def settle(self, batch: Batch) -> None:
        self.settled.note_batches([batch])
        batch.resolve()
        self.dedup.settle(batch)

    def there(self, number: int) -> MessageId | None:
        with pytest.raises(AlreadyExists) as caught:
            self.dedup.find(P, number)
        id: MessageId | None = caught.value.id
        return id


def test_a_number_is_new_then_on_its_way_then_there() -> None:
    scene = Scene()
    assert scene.dedup.find(P, 3) is None
    batch = batch_of(3, 2)
    scene.send(batch)
    assert scene.dedup.find(P, 3) == (batch, 0)
    assert scene.dedup.find(P, 4) == (batch, 1)
    assert scene.dedup.find(P, 5) is None
    assert scene.there(2) is None
    scene.settle(batch)
    assert scene.there(4) == MessageId(5, 2, 1)
    assert scene.there(3) is None
    assert scene.dedup.find(P, 5) is None
    assert scene.dedup.find(P + 1, 3) is None


def test_acknowledged_and_not_yet_settled_is_there() -> None:
    """Between the two moves the answer is there all the same, with every id of the batch."""
    scene = Scene()
    first, second = batch_of(0, 2), batch_of(2, 1, entry_id=3)
    scene.send(first, second)
    scene.settled.note_batches([first])
    first.resolve()
    assert scene.there(0) == MessageId(5, 2, 0)
    assert scene.there(1) == MessageId(5, 2, 1)
    scene.dedup.settle(first)
    assert scene.there(1) == MessageId(5, 2, 1)
    assert scene.there(0) is None
    assert scene.dedup.find(P, 2) == (second, 0)


def test_what_was_left_out_counts_as_there() -> None:
    scene = Scene()
    scene.send(batch_of(0, 1), batch_of(5, 1, entry_id=3))
    for number in (1, 4):
        assert scene.there(number) is None
    assert scene.dedup.find(P, 6) is None


def test_an_atomic_run_is_one_thing() -> None:
    scene = Scene()
    run = batch_of(3, 3)
    assert scene.dedup.find_run(P, 3, 3) is None
    scene.send(run)
    assert scene.dedup.find_run(P, 3, 3) is run
    for first, count in ((3, 2), (4, 2), (5, 3), (2, 5)):
        with pytest.raises(Conflict, match="some of which"):
            scene.dedup.find_run(P, first, count)
    assert scene.dedup.find_run(P, 6, 2) is None
    scene.settle(run)
    with pytest.raises(AlreadyExists) as caught:
        scene.dedup.find_run(P, 3, 3)
    assert caught.value.id == MessageId(5, 2, 2)
    with pytest.raises(Conflict, match="some of which"):
        scene.dedup.find_run(P, 5, 3)


def test_nothing_is_kept_of_what_is_settled_but_a_row() -> None:
    scene = Scene()
    batches = [batch_of(number, 1, producer_id=number % 3) for number in range(30)]
    scene.send(*batches)
    for batch in batches:
        scene.settle(batch)
    assert not scene.dedup._sent
    assert len(scene.settled.rows) == 3


def test_the_ones_that_were_silent_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 2)
    settled = Producers()
    for producer_id, number in ((1, 1), (2, 1), (1, 2), (3, 1)):
        settled.note_batches([batch_of(number, 1, producer_id=producer_id)])
    assert list(settled.rows) == [1, 3]
    table = settled.table()
    assert table.forgot
    dedup = Dedup(Producers(table))
    for number in (0, 1, 2):
        with pytest.raises(NotFound, match=r"producer 2 is not known .* from 3 to") as caught:
            dedup.find(2, number)
        assert caught.value.producer == 2
    with pytest.raises(NotFound):
        dedup.find_run(2, 0, 3)
    assert dedup.find(1, 3) is None
    for new in (4, 1 << 61):
        assert dedup.find(new, 0) is None
        assert dedup.find(new, 7) is None
        assert dedup.find_run(new, 0, 3) is None


def test_to_forget_a_producer_copies_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied for a table, or once for many producers, when there are too many ranges."""
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 10)
    monkeypatch.setattr(limits, "FORGOTTEN_RANGES_MAX", 400)
    copies: list[ForgottenIds] = []
    made = ForgottenIds.__init__

    def counted(self: ForgottenIds, *given: tuple[int, ...]) -> None:
        copies.append(self)
        made(self, *given)

    producers = Producers()
    dedup = Dedup(producers)
    monkeypatch.setattr(ForgottenIds, "__init__", counted)
    for producer_id in range(0, 3000, 3):
        assert dedup.find(producer_id, 0) is None
        producers.note(ProducerRow(producer_id, 0, 1, 1, 0))
    assert len(copies) < 20
    assert producers.may_have_forgotten(0)
    assert not producers.may_have_forgotten(2997)


def test_what_was_forgotten_stays_so_from_table_to_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 2)
    settled = Producers()
    for producer_id in range(0, 40, 2):
        settled.note_batches([batch_of(0, 1, producer_id=producer_id)])
        settled = Producers(ProducerTable.from_bytes(settled.table().to_bytes(), where="here"))
    dedup = Dedup(settled)
    for producer_id in range(0, 36, 2):
        with pytest.raises(NotFound):
            dedup.find(producer_id, 0)
        assert dedup.find(producer_id + 1, 0) is None
    for known in (36, 38):
        with pytest.raises(AlreadyExists):
            dedup.find(known, 0)


def test_a_table_is_read_as_it_was_written() -> None:
    row = ProducerRow(P, 41, 5, 9, 3)
    settled = Producers(ProducerTable((row,)))
    assert settled.table() == ProducerTable((row,))
    settled.entry([batch_of(42, 2)], first_seq=0, timestamp_us=1)
    assert settled.table() == ProducerTable((row,)), "what is only sent is not settled"


def test_a_table_that_does_not_say_whom_it_forgot_refuses_all_others() -> None:
    row = ProducerRow(P, 41, 5, 9, 3)
    table = ProducerTable((row,), True)
    scene = Scene(table)
    assert scene.settled.table() == table, "and goes on not to say so"
    for number in (0, 1):
        with pytest.raises(NotFound, match="in another log"):
            scene.dedup.find(P + 1, number)
        with pytest.raises(NotFound):
            scene.dedup.find_run(P + 1, number, 3)
    assert scene.dedup.find(P, 42) is None

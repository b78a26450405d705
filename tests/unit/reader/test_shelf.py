"""The shelf: whatever mix of ways a user takes messages by, each comes once, and the position is
exactly behind the last one handed out (I17)."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from dlog.ids import MessageId, Position
from dlog.reader.message import MessageBatch
from dlog.reader.shelf import Shelf
from dlog.wire.batch import decode, encode

UID = "uid"
START = Position(UID, 100, None)


def batches_of(*counts: int) -> list[MessageBatch]:
    """Batches of so many messages, one per entry from entry 2 on, seqs from 100 on."""
    found, seq = [], 100
    for entry_id, count in enumerate(counts, 2):
        values = [b"%d" % (seq + i) for i in range(count)]
        raw = b"".join(encode(values, first_seq=seq, timestamp_us=7))
        found.append(
            MessageBatch(
                decode(raw, where=""),
                ledger_id=5,
                entry_id=entry_id,
                epoch=1,
                entry_seq=seq,
                start=0,
                end=count,
                size=len(raw),
            )
        )
        seq += count
    return found


def test_an_empty_shelf_stands_where_it_began() -> None:
    shelf = Shelf(START)
    assert shelf.is_empty
    assert shelf.position == START
    assert shelf.take(5) == []


def test_the_position_follows_each_message() -> None:
    shelf = Shelf(START)
    shelf.put(batches_of(2, 1))
    assert shelf.position == START
    seen = []
    for message in shelf.messages():
        seen.append(message.seq)
        assert shelf.position == Position(UID, message.seq + 1, message.id)
    assert seen == [100, 101, 102]
    assert shelf.is_empty


def test_a_batch_begun_goes_on_with_its_rest() -> None:
    shelf = Shelf(START)
    shelf.put(batches_of(3, 2))
    assert [m.seq for m in islice(shelf.messages(), 1)] == [100]
    rest = shelf.batch()
    assert rest.values() == [b"101", b"102"]
    assert rest.first_id == MessageId(5, 2, 1)
    assert shelf.position == Position(UID, 103, MessageId(5, 2, 2))


@given(
    counts=st.lists(st.integers(1, 4), max_size=6),
    ways=st.lists(st.tuples(st.sampled_from(["take", "iterate", "batch"]), st.integers(1, 5))),
)
def test_any_mix_hands_out_each_message_once(
    counts: list[int], ways: list[tuple[str, int]]
) -> None:
    shelf = Shelf(START)
    shelf.put(batches_of(*counts))
    got: list[int] = []
    for way, many in [*ways, ("take", sum(counts) + 1)]:
        if shelf.is_empty:
            break
        if way == "take":
            got += [message.seq for message in shelf.take(many)]
        elif way == "iterate":
            got += [message.seq for message in islice(shelf.messages(), many)]
        else:
            batch = shelf.batch()
            got += [batch.first_seq + i for i in range(len(batch))]
        assert shelf.position.next_seq == 100 + len(got)
    assert got == list(range(100, 100 + sum(counts)))

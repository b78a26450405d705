"""A batch: columns that begin with any of its messages, numbers of producers in a row, waiters that
are called once, and parts of entries that are copied as they are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dlog.errors import Broken, Timeout
from dlog.wire.batch import Codec, Entry, Headers, decode, encode
from dlog.writer.batch import UNSENT, Batch, CopiedBatch

KEY, PAIRS, TIME_US = b"k", (("n", b"v"),), -7


def entry_of(batch: Batch, first_seq: int = 0, codec: Codec = Codec.NONE) -> Entry:
    return decode(b"".join(batch.entry(first_seq, 50, codec)), where="here")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_column_may_begin_and_end_with_any_message(count: int) -> None:
    for has in itertools.product((False, True), repeat=count):
        for columns in ("khe", "k", "h", "e"):
            batch = Batch([], 0)
            keys: list[bytes | None] = []
            headers: list[Headers] = []
            times: list[int | None] = []
            for number, there in enumerate(has):
                keys.append(KEY if there and "k" in columns else None)
                headers.append(PAIRS if there and "h" in columns else ())
                times.append(TIME_US if there and "e" in columns else None)
                idx = batch.append(b"%d" % number, keys[-1], headers[-1] or None, times[-1])
                assert idx == number
            entry = entry_of(batch)
            assert entry.values() == [b"%d" % number for number in range(count)]
            assert entry.keys() == (keys if any(keys) else None)
            assert entry.headers() == (headers if any(headers) else None)
            assert entry.event_times_us() == (times if any(times) else None)


def test_an_event_time_of_zero_and_an_empty_key_are_there() -> None:
    batch = Batch([], 0)
    batch.append(b"a", b"", (), 0)
    entry = entry_of(batch)
    assert (entry.keys(), entry.headers(), entry.event_times_us()) == ([b""], None, [0])


def test_a_rebuilt_batch_gives_the_same_messages() -> None:
    batch = Batch([], 0)
    batch.append(b"a", None, None, 5)
    batch.append(b"b", None, None, None)
    batch.producer = (3, 40)
    first, again = entry_of(batch, 2), entry_of(batch, 9)
    assert (first.first_seq, again.first_seq) == (2, 9)
    for entry in (first, again):
        assert entry.event_times_us() == [5, None]
        assert entry.producer == (3, 40)
        assert entry.base_timestamp_us == 50


@pytest.mark.parametrize(
    ("producer", "following", "continues"),
    [
        (None, None, True),
        (None, (1, 0), False),
        ((1, 10), None, False),
        ((1, 10), (1, 12), True),
        ((1, 10), (1, 11), False),
        ((1, 10), (1, 13), False),
        ((1, 10), (2, 12), False),
    ],
)
def test_a_batch_is_of_one_producer_with_numbers_in_a_row(
    producer: tuple[int, int] | None, following: tuple[int, int] | None, continues: bool
) -> None:
    batch = Batch([b"a", b"b"], 2)
    batch.producer = producer
    assert batch.continues_with(following) is continues


def test_waiters_are_called_once_when_it_is_done() -> None:
    batch = Batch([b"a"], 1)
    assert (batch.ledger_id, batch.entry_id, batch.first_seq) == (UNSENT, UNSENT, UNSENT)
    told: list[Any] = []
    batch.waiters.append(lambda: told.append((batch.done, batch.error)))

    def second() -> None:
        told.append("second")

    batch.waiters.append(second)
    batch.forget_waiter(second)
    batch.forget_waiter(second)
    error = Timeout("away")
    batch.resolve(error)
    batch.wake()
    assert told == [(True, error)]


@pytest.mark.parametrize("codec", Codec)
def test_any_part_of_an_entry_is_copied_with_its_seqs_times_and_producer(codec: Codec) -> None:
    count = 4
    whole: dict[str, Any] = {
        "keys": [b"x" * 50, None, b"", b"y" * 50],
        "headers": [None, PAIRS, None, PAIRS * 2],
        "event_times_us": [None, 0, -1, None],
        "timestamps_us": [10, 11, 11, 30],
        "producer": (5, 100),
    }
    values = [b"v%d" % number * 30 for number in range(count)]
    raw = encode(values, first_seq=20, timestamp_us=0, codec=codec, **whole)
    entry = decode(b"".join(raw), where="here")
    for start, end in itertools.combinations(range(count + 1), 2):
        batch = CopiedBatch(entry, start, end, 1000 + start)
        assert batch.is_copy
        assert len(batch.values) == end - start
        assert batch.bytes == len(entry.stored)
        assert batch.timestamp_us == whole["timestamps_us"][end - 1]
        assert batch.producer == (5, 100 + start)
        with pytest.raises(Broken, match="keeps its seqs"):
            batch.entry(7, 0, Codec.NONE)
        batch.first_seq = 1000 + start
        copy = entry_of(batch, 7)
        assert copy.first_seq == 7
        assert copy.values() == values[start:end]
        for name in ("keys", "headers", "event_times_us", "timestamps_us"):
            wanted = whole[name][start:end]
            if name == "headers":
                wanted = [each or () for each in wanted]
            told = getattr(copy, name)()
            assert (told or [type(wanted[0])() if name == "headers" else None] * len(wanted)) == (
                wanted
            ), (name, start, end)
        assert copy.producer == (5, 100 + start)


def test_a_copy_of_an_entry_without_a_producer_has_none() -> None:
    entry = decode(b"".join(encode([b"a"], first_seq=0, timestamp_us=3)), where="here")
    batch = CopiedBatch(entry, 0, 1, 0)
    assert (batch.producer, batch.timestamp_us) == (None, 3)

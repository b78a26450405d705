"""Tickets and runs of ids: waiting from threads and tasks, errors told to each, ids made when
looked at; and `Run`, the way of an `append_many` into the batcher."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from dlog.errors import (
    BufferFull,
    ConfigError,
    Fenced,
    Outcome,
    Timeout,
    TooLarge,
    WriterClosed,
)
from dlog.ids import MessageId
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.writer.batch import Batch
from dlog.writer.batcher import Batcher, window_full
from dlog.writer.run import Run
from dlog.writer.tickets import IdRun, Ticket

DEADLINE_S = 10.0


def batch_of(*values: bytes) -> Batch:
    batch = Batch(list(values), sum(map(len, values)))
    batch.ledger_id, batch.entry_id = 5, 2
    return batch


def batcher_of(*, entry_bytes: int = 100, window_bytes: int = 1000) -> Batcher:
    return Batcher(entry_bytes=entry_bytes, window_bytes=window_bytes, wake_loop=lambda: None)


def test_a_resolved_ticket_answers_at_once() -> None:
    batch = batch_of(b"a", b"b")
    ticket = Ticket(batch, 1)
    assert not ticket.done
    assert repr(ticket) == "<Ticket pending>"
    batch.resolve()
    assert ticket.done
    assert ticket.result() == MessageId(5, 2, 1)
    assert repr(ticket) == "<Ticket 5:2:1>"


def test_a_wait_that_ends_early_leaves_the_message_and_no_waiter() -> None:
    batch = batch_of(b"a")
    with pytest.raises(Timeout):
        Ticket(batch, 0).result(timeout=0)
    assert not batch.waiters
    batch.resolve()
    assert Ticket(batch, 0).result() == MessageId(5, 2, 0)


def test_another_thread_is_woken() -> None:
    batch = batch_of(b"a")
    found: list[MessageId] = []
    thread = threading.Thread(target=lambda: found.append(Ticket(batch, 0).result(DEADLINE_S)))
    thread.start()
    batch.resolve()
    thread.join(DEADLINE_S)
    assert found == [MessageId(5, 2, 0)]


async def test_tasks_are_woken_and_a_cancelled_one_leaves_no_waiter() -> None:
    batch = batch_of(b"a")

    async def wait() -> MessageId:
        return await Ticket(batch, 0)

    stays, leaves = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await asyncio.wait({stays, leaves}, timeout=0)
    assert len(batch.waiters) == 2
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert len(batch.waiters) == 1
    batch.resolve()
    assert await stays == MessageId(5, 2, 0)


def test_each_caller_gets_an_error_of_its_own() -> None:
    batch = batch_of(b"a", b"b")
    batch.resolve(Fenced("lost", outcome=Outcome.UNKNOWN))
    assert not batch.error_seen
    with pytest.raises(Fenced) as first:
        Ticket(batch, 0).result()
    with pytest.raises(Fenced) as second:
        Ticket(batch, 1).result()
    assert first.value is not second.value
    assert first.value.outcome is Outcome.UNKNOWN
    assert batch.error_seen


@pytest.mark.parametrize("early", [True, False])
def test_callbacks_are_called_once(early: bool) -> None:
    batch = batch_of(b"a")
    called: list[Ticket] = []
    ticket = Ticket(batch, 0)
    if early:
        ticket.add_done_callback(called.append)
    batch.resolve()
    if not early:
        ticket.add_done_callback(called.append)
    batch.wake()
    assert called == [ticket]


def test_columns_begin_where_they_are_needed() -> None:
    batch = Batch([], 0)
    batch.append(b"a", None, None, None)
    batch.append(b"b", b"k", None, 7)
    batch.append(b"c", None, (("h", b"1"),), None)
    batch.values.append(b"d")
    batch.pad_columns()
    assert batch.keys == [None, b"k", None, None]
    assert batch.event_times_us == [None, 7, None, None]
    assert batch.headers == [None, None, (("h", b"1"),), None]


# --- runs


def test_a_run_of_ids_counts_over_its_pieces() -> None:
    first, second = batch_of(b"x", b"a", b"b"), batch_of(b"c", b"d")
    second.entry_id = 3
    ids = IdRun([(first, 1, 2), (second, 0, 2)])
    wanted = [MessageId(5, 2, 1), MessageId(5, 2, 2), MessageId(5, 3, 0), MessageId(5, 3, 1)]
    assert list(ids) == wanted
    assert (ids.first, ids.last, len(ids)) == (wanted[0], wanted[3], 4)
    assert ids[1:3] == wanted[1:3]
    assert [ids[-k] for k in range(1, 5)] == wanted[::-1]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            ids[outside]


def test_an_empty_run_has_no_ids() -> None:
    ids = IdRun([])
    assert len(ids) == 0
    assert repr(ids) == "<IdRun empty>"
    with pytest.raises(IndexError):
        _ = ids.first


def test_a_run_goes_in_as_far_as_there_is_room_and_then_goes_on() -> None:
    batcher = batcher_of(window_bytes=200)
    values = [b"v%02d" % i + b"x" * 40 for i in range(12)]
    run = Run(batcher, values, None, None, atomic=False)
    out: list[bytes | None] = []
    steps = 0
    while not run.step():
        steps += 1
        assert steps < 50
        while (batch := batcher.take(partial=True)) is not None:
            out += batch.values
            batch.ledger_id, batch.entry_id = 5, len(out)
            batcher.release(batch.bytes)
    while (batch := batcher.take(partial=True)) is not None:
        out += batch.values
    assert steps > 1
    assert out == values
    assert len(run.ids()) == len(values)


def test_keys_and_headers_go_with_their_values() -> None:
    batcher = batcher_of()
    run = Run(batcher, [b"a", b"b"], [b"k", None], [{"h": b"1"}, None], atomic=False)
    assert run.step()
    batch = batcher.take(partial=True)
    assert batch is not None
    batch.pad_columns()
    assert (batch.values, batch.keys) == ([b"a", b"b"], [b"k", None])
    assert batch.headers == [(("h", b"1"),), None]


@pytest.mark.parametrize("keys", [[b"k"], [b"k"] * 3])
def test_there_are_as_many_keys_as_values(keys: list[bytes]) -> None:
    batcher = batcher_of()
    with pytest.raises(ConfigError, match="as many keys as values"):
        Run(batcher, [b"a", b"b"], keys, None, atomic=False).step()
    assert batcher.pending == []


def test_an_atomic_run_is_one_batch_or_refused() -> None:
    batcher = batcher_of(entry_bytes=50)
    run = Run(batcher, [b"x" * 40] * 4, None, None, atomic=True)
    assert run.step()
    assert [len(batch.values) for batch in batcher.pending] == [4]
    with pytest.raises(TooLarge, match="atomic"):
        Run(batcher, [b"x" * (LEDGER_ENTRY_BYTES_MAX // 2)] * 3, None, None, atomic=True)
    assert len(batcher.pending) == 1


def test_an_empty_atomic_run_sends_nothing() -> None:
    batcher = batcher_of()
    assert Run(batcher, [], None, None, atomic=True).step()
    assert batcher.pending == []


def test_a_run_raises_its_first_failure() -> None:
    batcher = batcher_of(entry_bytes=20)
    run = Run(batcher, [b"abc", b"def"], None, None, atomic=False)
    assert run.step()
    first, second = run.batches()
    first.resolve()
    second.resolve(Fenced("lost"))
    with pytest.raises(Fenced):
        run.ids()


def test_a_run_cut_short_says_how_much_is_on_its_way() -> None:
    """I24: what was taken may appear; what was not, will not."""
    batcher = batcher_of(window_bytes=100)
    begun = Run(batcher, [b"x" * 60] * 9, None, None, atomic=False)
    assert not begun.step()
    assert begun.cut_short(window_full()).outcome is Outcome.UNKNOWN
    late = Run(batcher, [b"x" * 60], None, None, atomic=False)
    assert not late.step()
    assert late.cut_short(window_full()).outcome is Outcome.NOT_HAPPENED
    assert isinstance(late.cut_short(window_full()), BufferFull)


def test_a_run_that_began_is_not_refused_as_a_whole() -> None:
    """I2, I24: the writer is closed while a run waits for room; its beginning is on its way."""
    batcher = batcher_of(window_bytes=100)
    begun = Run(batcher, [b"x" * 60] * 9, None, None, atomic=False)
    late = Run(batcher, [b"x" * 60], None, None, atomic=False)
    assert not begun.step()
    assert not late.step()
    batcher.close(WriterClosed("closed", log="orders"))
    with pytest.raises(WriterClosed, match="the first 2 messages of the run are on") as told:
        begun.step()
    assert told.value.outcome is Outcome.UNKNOWN
    assert told.value.log == "orders"
    with pytest.raises(WriterClosed) as told:
        late.step()
    assert told.value.outcome is Outcome.NOT_HAPPENED


def test_a_run_that_stops_at_a_wrong_value_is_not_refused_as_a_whole() -> None:
    values: list[Any] = [b"x"] * 10_000
    run = Run(batcher_of(window_bytes=1 << 20), [*values, "text"], None, None, atomic=False)
    with pytest.raises(ConfigError) as told:
        run.step()
    assert told.value.outcome is Outcome.UNKNOWN


def test_a_run_is_not_refused_behind_what_is_there() -> None:
    batcher = batcher_of(entry_bytes=20)
    run = Run(batcher, [b"abc", b"def", b"ghi"], None, None, atomic=False)
    assert run.step()
    first, second, third = run.batches()
    first.resolve()
    for batch in (second, third):
        batch.resolve(WriterClosed("closed"))
    with pytest.raises(WriterClosed, match="the first 1 messages of the run are there") as told:
        run.ids()
    assert told.value.outcome is Outcome.UNKNOWN
    assert second.error_seen
    assert third.error_seen


def test_a_wrong_value_in_a_run_is_refused() -> None:
    run = Run(batcher_of(), [b"a", "text"], None, None, atomic=False)  # type: ignore[list-item]
    with pytest.raises(ConfigError):
        run.step()

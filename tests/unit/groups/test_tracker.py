"""LH-13, LH-50, I21: how far a shard is done, between the program and the store; and LH-21, flaw 7:
which shards may be consumed."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import aio
from dlog.errors import ConfigError
from dlog.groups.leases import Checkpoint
from dlog.groups.shard_tracker import Tracker
from dlog.groups.shards import GroupShard, ShardGraph
from dlog.groups.tracker import CheckpointTracker
from dlog.ids import Position
from dlog.reader.message import MessageBatch


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("a-log", seq, None))


def in_log(uid: str, seq: int) -> Checkpoint:
    return Checkpoint(Position(uid, seq, None))


def tracker(start: int | None = None) -> CheckpointTracker:
    return CheckpointTracker(None if start is None else at(start), flush_s=5.0, now_s=100.0)


def test_lh_13_50_at_once_or_with_the_next_flush() -> None:
    found = tracker()
    found.delivered(at(9).position)
    found.checkpoint(at(3), at_once=False)
    assert not found.is_due(104.9)
    assert found.is_due(105.0)
    assert found.due_s() == 105.0
    found.checkpoint(at(4), at_once=True)
    assert found.is_due(101.0)
    assert found.sent() == at(4)
    assert not found.is_due(200.0), "one save at a time"
    found.saved(101.0)
    assert found.unsaved is None
    assert found.due_s() is None


def test_lh_50_a_crash_loses_no_more_than_a_flush() -> None:
    """The time counts from the last one that was kept, however often the program says more."""
    found = tracker()
    found.delivered(at(100).position)
    for seq in range(1, 50):
        found.checkpoint(at(seq), at_once=False)
    assert found.is_due(105.0)


def test_i21_a_checkpoint_never_passes_what_was_delivered() -> None:
    found = tracker(3)
    with pytest.raises(ConfigError):
        found.checkpoint(at(4), at_once=False)
    found.delivered(at(6).position)
    found.checkpoint(at(6), at_once=False)
    with pytest.raises(ConfigError):
        found.checkpoint(Checkpoint(Position("another", 1, None)), at_once=False)


def test_i21_a_checkpoint_never_goes_back() -> None:
    found = tracker(3)
    found.delivered(at(9).position)
    found.checkpoint(at(8), at_once=False)
    found.checkpoint(at(5), at_once=False)
    assert found.unsaved == at(8)


def test_a_log_that_is_made_anew_begins_its_own_order() -> None:
    """Its seqs begin again at 0, so the bounds of the log before say nothing about it."""
    found = tracker(8)
    found.delivered(in_log("anew", 3).position)
    for refused in (in_log("anew", 4), at(8), at(1)):
        with pytest.raises(ConfigError):
            found.checkpoint(refused, at_once=False)
    assert found.unsaved is None
    found.checkpoint(in_log("anew", 2), at_once=False)
    assert found.unsaved == in_log("anew", 2), "smaller than what was saved of the log before"
    found.checkpoint(in_log("anew", 1), at_once=False)
    assert found.unsaved == in_log("anew", 2)
    found.delivered(in_log("anew", 1).position)
    found.checkpoint(in_log("anew", 3), at_once=False)
    assert found.unsaved == in_log("anew", 3), "what was delivered once stays delivered"


def test_a_checkpoint_at_the_same_place_replaces_what_the_program_keeps() -> None:
    found = tracker(3)
    again = Checkpoint(at(3).position, b"more")
    found.checkpoint(again, at_once=False)
    assert found.unsaved == again


@pytest.mark.parametrize("at_once", [False, True])
def test_a_save_that_failed_is_due_as_it_was_asked_for(at_once: bool) -> None:
    """At once where a program waits for it, else with the flush that it was part of."""
    found = tracker()
    found.delivered(at(9).position)
    found.checkpoint(at(2), at_once=False)
    found.sent()
    assert found.is_saving
    found.not_saved(at_once=at_once)
    assert not found.is_saving
    assert found.due_s() == (100.0 if at_once else 105.0)
    assert found.is_due(104.9) is at_once


def test_the_next_flush_counts_from_the_last_one_that_was_kept() -> None:
    found = tracker()
    found.delivered(at(9).position)
    found.checkpoint(at(2), at_once=True)
    sent = found.sent()
    found.checkpoint(at(4), at_once=False)
    assert found.is_under_way(sent)
    assert not found.is_under_way(at(2)), "another one that is equal is not this one"
    found.saved(103.0)
    assert found.stored is sent
    assert not found.is_under_way(sent)
    assert found.unsaved == at(4)
    assert found.due_s() == 108.0
    assert not found.is_due(107.9)


def test_what_was_not_saved_is_saved_again_with_what_came_since() -> None:
    found = tracker()
    found.delivered(at(9).position)
    found.checkpoint(at(2), at_once=True)
    found.sent()
    found.checkpoint(at(5), at_once=False)
    found.not_saved(at_once=True)
    assert found.is_due(100.0)
    assert found.sent() == at(5)


def test_lh_flaw_7_parents_come_before_children() -> None:
    graph = ShardGraph(
        [GroupShard("a"), GroupShard("b"), GroupShard("ab", ("a", "b")), GroupShard("abx", ("ab",))]
    )
    assert [each.name for each in graph.consumable()] == ["a", "b"]
    graph.finish("a")
    assert graph.blockers("ab") == ("b",)
    graph.finish("b")
    assert [each.name for each in graph.consumable()] == ["ab"]
    assert graph.children("ab") == ["abx"]
    assert not graph.is_done
    graph.finish("ab")
    graph.finish("abx")
    assert graph.is_done


def test_lh_21_a_parent_that_the_stream_does_not_have_any_more_blocks_nobody() -> None:
    graph = ShardGraph([GroupShard("child", ("gone",))])
    assert not graph.is_blocked("child")
    graph.update([GroupShard("child", ("gone",)), GroupShard("new")])
    assert [each.name for each in graph.consumable()] == ["child", "new"]
    assert not ShardGraph().is_done


def test_who_waits_for_a_checkpoint_and_goes_disturbs_nobody() -> None:
    """The heart tells it from another thread: what could be cancelled at that moment would raise
    there, and what the heart had to do besides would not be done."""
    waiters: list[Any] = []

    class Heart:
        def checkpoint(self, *_: Any, waiter: Any, **__: Any) -> None:
            waiters.append(waiter)

    class Shard:
        log, token, start = "s", 1, Position("u", 0, None)

    tracker = Tracker(Heart(), Shard())  # type: ignore[arg-type]
    tracker._save(None, b"")
    (waiter,) = waiters
    assert not waiter.cancel()
    waiter.set_result(None)


class Kept:
    """Notes each checkpoint as it goes to the heart."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def checkpoint(self, log: str, token: int, checkpoint: Checkpoint, **more: Any) -> None:
        self.told.append((log, token, checkpoint.position, checkpoint.app, more["at_once"]))


class Shard:
    def __init__(self, start: Position | None) -> None:
        self.log, self.token, self.start = "s", 7, start


async def test_a_checkpoint_is_behind_what_the_program_says_is_done() -> None:
    """A message, a batch, a position, or all that was handed over so far."""
    entry = await _an_entry()
    heart = Kept()
    tracker = Tracker(heart, Shard(Position("u", 0, None)))  # type: ignore[arg-type]
    messages = entry.to_pylist()
    part = entry.cut(1, 3)
    upto = Position("u", entry.last_seq + 1, entry.last_id)
    tracker.checkpoint()
    tracker.handed(upto)
    given: list[Any] = [messages[0], messages[2], part, entry, Position("u", 1, None), None]
    for done in given:
        tracker.checkpoint(done, app=b"mine")
    first = entry.first_seq
    places = [
        Position("u", first + 1, messages[0].id),
        Position("u", first + 3, messages[2].id),
        Position("u", first + 3, messages[2].id),
        upto,
        Position("u", 1, None),
        upto,
    ]
    assert heart.told == [
        ("s", 7, Position("u", 0, None), b"", False),
        *(("s", 7, place, b"mine", False) for place in places),
    ]
    for wrong in (7, "x", messages):
        with pytest.raises(ConfigError, match="a message, a batch or a position"):
            tracker.checkpoint(wrong)  # type: ignore[arg-type]


def test_nothing_is_done_before_anything_was_handed_over() -> None:
    tracker = Tracker(Kept(), Shard(None))  # type: ignore[arg-type]
    assert not tracker.has_spoken
    with pytest.raises(ConfigError, match="nothing was handed over"):
        tracker.checkpoint()
    assert not tracker.has_spoken
    tracker.handed(Position("u", 3, None))
    tracker.checkpoint()
    assert tracker.has_spoken


async def _an_entry() -> MessageBatch:
    """Of five messages, behind another one."""
    async with aio.connect("memory:an-entry") as client:
        async with client.open_writer("log") as log:
            await log.append(b"before")
            await log.append_many([b"%d" % number for number in range(5)])
        async with client.open_reader("log", start=1) as reader:
            batches = [each async for each in reader.batches()]
    (found,) = batches
    assert len(found) == 5
    return found

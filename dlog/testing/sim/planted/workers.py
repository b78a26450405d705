"""Bugs of the drivers of groups: of hearts and shards at work, of dead letters, holds, the ways to
leases, and ends."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
from functools import partial
from typing import Any

from dlog.errors import DlogError, LeaseLost, WriterClosed
from dlog.groups import charter, dead_letters, founding, shard_run
from dlog.groups.charter import Mark
from dlog.groups.consumer import StopReason
from dlog.groups.dead_letters import DeadLetters
from dlog.groups.errands import Errands
from dlog.groups.heart import Heart
from dlog.groups.holding import GroupHolds
from dlog.groups.lease_driver import LeaseDriver
from dlog.groups.leases import Checkpoint
from dlog.groups.log_leases import OpenedLeaseLog
from dlog.groups.membership import Membership
from dlog.groups.processing import Program, Threads
from dlog.groups.shard_run import ShardRun
from dlog.groups.shard_tracker import ShardInfo
from dlog.groups.stopping import Stopped, Stopping
from dlog.groups.worker import Worker
from dlog.testing.sim.planted import Patch, Plants

_API = "tests/api/test_groups.py"
_HEART = "tests/unit/groups/test_heart.py"
_UNIT = "tests/unit/groups/test_worker.py"
_STORIES = "tests/sim/test_group_workers.py"

plants = Plants("workers")
PLANTS = plants.by_name

# Short histories that bring together what most of these need.
CALM: dict[str, Any] = {
    "messages": 12,
    "more": 6,
    "shards": 2,
    "splits": 0,
    "workers": 2,
    "lives": 1,
    "joiners": 0,
    "job": False,
    "weigh": "count",
    "domains": 0,
    "hand_over_ms": None,
    "truncations": 0,
    "closes": "patient",
    "on_error": "retry",
    "poison": 0.0,
    "fails": 0.0,
    "shutdown_fails": 0.0,
    "blocks": 0.0,
    "dies": 0.0,
    "freezes": 0.0,
    "cuts": 0.0,
    "process_ms": 4.0,
    "checkpoints": "explicit",
    "program": "async",
    "heart": "thread",
    "leases": "nodes",
    "span_ms": 1_500.0,
    "same_name": False,
    "trusts_name": False,
}
JOINED: dict[str, Any] = {**CALM, "joiners": 3, "workers": 1}
SLEEPY: dict[str, Any] = {**CALM, "freezes": 1.0, "cuts": 0.5, "messages": 30}
DYING: dict[str, Any] = {**CALM, "lives": 3, "dies": 0.8, "messages": 30, "process_ms": 30.0}
CUT: dict[str, Any] = {"cuts": 1.0, "messages": 60}
NAMED: dict[str, Any] = {**CALM, "same_name": True, "lives": 2}
LETTERS: dict[str, Any] = {**DYING, "on_error": "dead_letter", "poison": 0.4}
JOB: dict[str, Any] = {**CALM, "job": True}
LOGS: dict[str, Any] = {**SLEEPY, "leases": "logs", "freezes": 0.7}
SPLIT: dict[str, Any] = {**CALM, "splits": 2, "shards": 1}


# --- a shard at work


@plants("LH-57: a program is told behind the release", **{**JOINED, "process_ms": 30.0})
def a_shard_is_released_before_its_program_is_told(patch: Patch) -> None:
    async def shut_down(self: ShardRun, reason: StopReason) -> None:
        self._tell(lambda core, now_s: core.on_shut_down(self.log, now_s))
        if self._is_initialized and self._program is not None and self._tracker is not None:
            await asyncio.sleep(0.005)
            await self._say_goodbye(self._program, self._tracker, reason)

    patch.setattr(ShardRun, "_shut_down", shut_down)


@plants("LH-58: a program is not told of its end", **JOINED)
def a_program_is_not_told_of_its_end(patch: Patch) -> None:
    async def say_goodbye(self: ShardRun, *args: Any) -> None:
        pass

    patch.setattr(ShardRun, "_say_goodbye", say_goodbye)


@plants("LH-58: a program is told one reason for all", **JOINED)
def a_program_is_told_the_wrong_reason(patch: Patch) -> None:
    genuine = ShardRun.shut_down

    def shut_down(self: ShardRun, reason: StopReason) -> None:
        genuine(self, StopReason.LOST if reason is StopReason.HANDED_OVER else reason)

    patch.setattr(ShardRun, "shut_down", shut_down)


@plants(
    "LH-57: what a thread is at is not waited for",
    **{**JOINED, "program": "threads", "process_ms": 60.0, "messages": 60},
)
def a_thread_is_not_waited_for(patch: Patch) -> None:
    genuine = ShardRun.stop_fetch

    def stop_fetch(self: ShardRun) -> None:
        genuine(self)
        if self._is_calling:
            self._is_cut_short = True
            self.task.cancel()

    patch.setattr(ShardRun, "stop_fetch", stop_fetch)


@plants("I22: what was fetched is delivered behind the loss", **{**SLEEPY, "messages": 60})
def what_was_fetched_is_delivered_behind_the_loss(patch: Patch) -> None:
    genuine = Heart.delivered

    def delivered(self: Heart, *args: Any) -> None:
        try:
            genuine(self, *args)
        except LeaseLost:
            pass

    def check(self: Stopping) -> None:
        if self.is_set():
            if vars(self).get("is_late"):
                raise Stopped
            vars(self)["is_late"] = True

    patch.setattr(Stopping, "check", check)
    patch.setattr(Heart, "delivered", delivered)
    patch.setattr(Heart, "may_deliver", lambda self, shard, epoch: True)


@plants("LH-58: a retry skips the message that failed", **{**CALM, "fails": 0.4})
def a_retry_skips_a_message(patch: Patch) -> None:
    genuine = ShardRun._rest_of

    def rest_of(self: ShardRun, batch: Any) -> Any:
        rest = genuine(self, batch)
        return rest.cut(1, len(rest))

    patch.setattr(ShardRun, "_rest_of", rest_of)


@plants("LH-58: a retry begins with what is done", **{**CALM, "poison": 0.3, "checkpoints": "each"})
def a_retry_begins_with_what_is_done(patch: Patch) -> None:
    patch.setattr(ShardRun, "_rest_of", lambda self, batch: batch)


@plants(
    "LH-13: a batch is done before it is processed",
    **{**DYING, "checkpoints": "batch", "process_ms": 60.0},
    flush_ms=0,
)
def a_batch_is_done_before_it_is_processed(patch: Patch) -> None:
    genuine = ShardRun._process

    async def process(self: ShardRun, program: Program, batch: Any, tracker: Any) -> None:
        self._is_done(batch, program, tracker)
        await genuine(self, program, batch, tracker)

    patch.setattr(ShardRun, "_process", process)


@plants("LH-48: a shard begins at its head", **{**DYING, "dies": 0.3})
def a_shard_begins_at_its_head(patch: Patch) -> None:
    patch.setattr(ShardRun, "_start_place", lambda self, number, begin: "earliest")


@plants("LH-48: the program's bytes are left behind", **{**DYING, "dies": 0.3})
def the_bytes_of_a_checkpoint_are_left_behind(patch: Patch) -> None:
    genuine = ShardInfo.__init__

    def begin(self: ShardInfo, *args: Any) -> None:
        genuine(self, *args)
        self.app = b""

    patch.setattr(ShardInfo, "__init__", begin)


@plants("I20: a program is given one token for all", **JOINED)
def every_token_is_the_same(patch: Patch) -> None:
    genuine = ShardInfo.__init__

    def begin(self: ShardInfo, *args: Any) -> None:
        genuine(self, *args)
        self.token = 1

    patch.setattr(ShardInfo, "__init__", begin)


@plants("LH-58: all shards have one program", **CALM)
def all_shards_have_one_program(patch: Patch) -> None:
    genuine = shard_run.ShardRun.__init__

    def begin(self: ShardRun, hub: Any, order: Any) -> None:
        made = hub.make_program()
        hub.make_program = lambda: made
        genuine(self, hub, order)

    patch.setattr(ShardRun, "__init__", begin)


@plants(
    "I27: a program that hears of the loss first waits for ever",
    **SLEEPY,
    survives="mostly: the shard is looked at when it is saved, or moved, or seen with two",
    shown_by=f"{_STORIES}::test_a_program_that_hears_of_the_loss_first_is_let_go",
)
def nobody_looks_when_a_program_doubts(patch: Patch) -> None:
    patch.setattr(Heart, "doubt", lambda self, shard: math.inf)


@plants(
    "I27: two that say to have one shard are left alone",
    **{**SLEEPY, "hand_over_ms": 0},
    survives="mostly: who was fenced is told so, or asked to look, or saves",
    shown_by=f"{_UNIT}::test_i22_two_that_say_to_have_one_shard_look",
)
def nobody_looks_at_what_two_have(patch: Patch) -> None:
    patch.setattr(Membership, "contested", lambda self, ours: {})


# --- dead letters


@plants("LH-60: a letter is on its way, and its message done", **LETTERS)
def a_dead_letter_is_not_waited_for(patch: Patch) -> None:
    genuine = ShardRun._bury
    kept = set()

    async def bury(self: ShardRun, *args: Any, **how: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.3)
            await genuine(self, *args, **how)

        task = asyncio.get_running_loop().create_task(later())
        kept.add(task)
        task.add_done_callback(kept.discard)

    patch.setattr(ShardRun, "_bury", bury)


@plants("LH-60: letters have no numbers", **LETTERS)
def a_dead_letter_has_no_number(patch: Patch) -> None:
    numbers = itertools.count()
    patch.setattr(dead_letters, "producer_of", lambda group, shard: next(numbers))


@plants("LH-60: a letter behind which there is another one goes there twice", **LETTERS)
def letters_are_not_looked_through(patch: Patch) -> None:
    async def is_there(self: DeadLetters, shard: str, message: Any) -> bool:
        return False

    patch.setattr(DeadLetters, "_is_there", is_there)


@plants(
    "LH-60: a later letter counts for all before it",
    **{**LETTERS, "fails": 0.6, "attempts": 1, "checkpoints": "late", "process_ms": 4.0},
)
def a_later_letter_counts_for_all(patch: Patch) -> None:
    async def is_there(self: DeadLetters, shard: str, message: Any) -> bool:
        return True

    patch.setattr(DeadLetters, "_is_there", is_there)


@plants("LH-60: a message is a dead letter at its first failure", **{**LETTERS, "attempts": 3})
def the_first_failure_buries(patch: Patch) -> None:
    genuine = ShardRun.__init__

    def begin(self: ShardRun, hub: Any, order: Any) -> None:
        genuine(self, hub, order)
        self._options = dataclasses.replace(self._options, attempts=1)

    patch.setattr(ShardRun, "__init__", begin)


@plants(
    "LH-60: a dead letter ends its batch",
    **{**LETTERS, "dies": 0.0, "lives": 1},
)
def a_dead_letter_ends_its_batch(patch: Patch) -> None:
    genuine = ShardRun._one_by_one

    async def one_by_one(self: ShardRun, program: Program, batch: Any, tracker: Any) -> None:
        await genuine(self, program, self._rest_of(batch).cut(0, 1), tracker)

    patch.setattr(ShardRun, "_one_by_one", one_by_one)


@plants(
    "LH-11: what was processed one by one is done with its batch only",
    **{**LETTERS, "checkpoints": "batch", "dies": 0.0, "joiners": 5, "fails": 0.0},
)
def one_by_one_nothing_is_done(patch: Patch) -> None:
    genuine = ShardRun._is_done

    def is_done(self: ShardRun, batch: Any, program: Program, tracker: Any) -> None:
        if len(batch) > 1:
            genuine(self, batch, program, tracker)

    patch.setattr(ShardRun, "_is_done", is_done)


# --- holds


@plants("I19: a hold stays where it began", **CALM)
def a_hold_is_not_moved(patch: Patch) -> None:
    patch.setattr(GroupHolds, "move", lambda self, log, at: None)


@plants("I19: a hold moves with what is delivered", **CALM)
def a_hold_moves_ahead(patch: Patch) -> None:
    genuine = Heart.delivered

    def delivered(self: Heart, shard: str, epoch: int, position: Any) -> None:
        genuine(self, shard, epoch, position)
        holds = self.holds
        assert holds is not None
        self.home.call(partial(holds.move, shard, position))

    patch.setattr(Heart, "delivered", delivered)


@plants("I19: a shard is not held before it is delivered", **CALM)
def nothing_is_held_at_the_beginning(patch: Patch) -> None:
    async def hold(self: ShardRun, at: Any) -> None:
        pass

    patch.setattr(ShardRun, "_hold", hold)


@plants("I19: the hold of what is done stays", **SPLIT)
def the_hold_of_what_is_done_stays(patch: Patch) -> None:
    async def finish(self: GroupHolds, log: str) -> None:
        pass

    patch.setattr(GroupHolds, "finish", finish)


@plants(
    "I19: a hold that could not be dropped at once stays",
    **JOB,
    meta_refused=0.0,
    meta_request_lost=0.0,
    meta_reply_lost=0.0,
    meta_late=0.0,
    meta_outages=False,
)
def what_ends_with_its_worker_is_held(patch: Patch) -> None:
    """The drop is cut short by the end of the worker, and who comes next leaves it as well."""
    genuine = GroupHolds.close

    async def finish_holds(*_: Any) -> None:
        pass

    patch.setattr(founding, "_finish_holds", finish_holds)

    async def close(self: GroupHolds) -> None:
        for task in self._drops:
            task.cancel()
        await genuine(self)

    patch.setattr(GroupHolds, "close", close)


@plants(
    "I19: nobody sees to the hold of what came before",
    **SPLIT,
    survives="mostly: whoever does the last of a shard drops its hold, unless it dies just then",
    shown_by=f"{_STORIES}::test_what_came_before_is_not_held_for_ever",
)
def holds_of_parents_are_left(patch: Patch) -> None:
    patch.setattr(Heart, "parents", lambda self, shard: ())


# --- jobs, charters


@plants("I27: a job ends before its end", **JOB)
def a_job_ends_early(patch: Patch) -> None:
    genuine = founding._marks

    async def marks(*args: Any) -> dict[int, Mark]:
        found = await genuine(*args)
        return {n: Mark(max(0, each.next_seq - 1), each.is_final) for n, each in found.items()}

    patch.setattr(founding, "_marks", marks)


@plants(
    "I22: workers that differ are taken",
    **CALM,
    survives="all workers of these histories have the same options",
    shown_by=f"{_API}::test_workers_agree_or_are_refused",
)
def who_differs_is_taken(patch: Patch) -> None:
    patch.setattr(charter.Charter, "check_agrees", lambda self, wanted, group: None)


# --- ways to leases


@plants("I22: a shard is taken by force before its time", **{**JOINED, "messages": 60})
def nobody_waits_for_a_hand_over(patch: Patch) -> None:
    genuine = Errands.of

    def of(self: Errands, ask: Any) -> Any:
        if getattr(ask, "is_announced", False):
            ask = dataclasses.replace(ask, over=ask.victim)
        return genuine(self, ask)

    patch.setattr(Errands, "of", of)


@plants(
    "LH-37: nobody is fenced, however long it takes",
    **{**JOINED, "hand_over_ms": 0},
    survives="programs of these histories come to an end",
    shown_by=f"{_UNIT}::test_lh_37_a_victim_that_takes_longer_than_it_may_is_fenced",
)
def nobody_is_fenced_by_force(patch: Patch) -> None:
    genuine = Errands.of

    def of(self: Errands, ask: Any) -> Any:
        if getattr(ask, "over", None) is not None:
            ask = dataclasses.replace(ask, over=None)
        return genuine(self, ask)

    patch.setattr(Errands, "of", of)


@plants(
    "I21: a lease log is read before it is fenced",
    **{**CALM, "leases": "logs", "joiners": 5, "hand_over_ms": 0, "process_ms": 150.0},
    flush_ms=0,
)
def a_lease_log_is_read_before_it_is_fenced(patch: Patch) -> None:
    genuine = LeaseDriver._open

    async def open(self: LeaseDriver, shard: str) -> OpenedLeaseLog:
        last = await self._read(shard)
        await asyncio.sleep(0.2)
        return (await genuine(self, shard))._replace(last=last)

    patch.setattr(LeaseDriver, "_open", open)


@plants(
    "I20: who was fenced opens the lease log again",
    **{**LOGS, "messages": 30, "workers": 4, "shards": 1, "freezes": 1.0, "cuts": 0.3},
)
def the_fenced_open_again(patch: Patch) -> None:
    genuine = LeaseDriver._append

    async def append(self: LeaseDriver, shard: str, epoch: int, value: bytes, cuts: bool) -> None:
        try:
            await genuine(self, shard, epoch, value, cuts)
        except (WriterClosed, DlogError) as error:
            if type(error).__name__ not in ("Fenced", "WriterClosed"):
                raise
            opened = await self._open(shard)
            self._writers[shard, epoch] = self._writers.pop((shard, opened.epoch))
            await genuine(self, shard, epoch, value, cuts)

    patch.setattr(LeaseDriver, "_append", append)


# --- ends


@plants("I24: a close waits for nobody", **JOINED)
def a_close_waits_for_nobody(patch: Patch) -> None:
    async def shut_down(self: Worker) -> None:
        self._heart.leave()
        self._threads.close()
        if self._client is not None:
            await self._client.close()

    patch.setattr(Worker, "_shut_down", shut_down)


@plants(
    "I27: savers of a worker that was in a hurry wait for ever",
    **{**CALM, "closes": "hurried", "checkpoints": "save", "process_ms": 1.0, "lives": 3, **CUT},
    cut_ms=4_000.0,
)
def an_end_in_a_hurry_leaves_savers(patch: Patch) -> None:
    class _Always:
        def __get__(self, instance: Any, owner: Any) -> bool:
            return True

        def __set__(self, instance: Any, value: bool) -> None:
            pass

    genuine = Heart._settle

    def settle(self: Heart, shard: str, kept: Checkpoint | None, error: Exception | None) -> None:
        if kept is None and self._ending is not None and self._ending.is_set():
            return
        genuine(self, shard, kept, error)

    patch.setattr(Heart, "_is_live", _Always(), raising=False)
    patch.setattr(Heart, "_settle", settle)


@plants("I27: a thread that is shielded from nothing", **{**JOINED, "program": "threads"})
def threads_are_forgotten(patch: Patch) -> None:
    genuine = Threads.run

    async def run(self: Threads, function: Any) -> Any:
        work = asyncio.ensure_future(genuine(self, function))
        done, _ = await asyncio.wait({work}, timeout=0.002)
        if done:
            return work.result()
        work.add_done_callback(lambda each: each.exception())
        return None

    patch.setattr(Threads, "run", run)

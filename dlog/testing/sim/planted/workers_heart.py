"""Bugs of the hearts of workers: what renews leases, and tells programs what is theirs."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.errors import LeaseLost
from dlog.groups import heart, presence
from dlog.groups.heart import Heart
from dlog.groups.homes import SameHome
from dlog.groups.leases import Checkpoint
from dlog.groups.options import WorkerOptions
from dlog.groups.view import WorkerId
from dlog.testing.sim import workers_process
from dlog.testing.sim.planted import Patch, Plants
from dlog.testing.sim.planted.workers import _HEART, CALM, JOINED, NAMED, SLEEPY

plants = Plants("workers")
PLANTS = plants.by_name


@plants(
    "LH-28: leases are renewed on the loop of the program",
    **{**CALM, "blocks": 0.5, "program": "plain"},
)
def renewals_wait_for_the_program(patch: Patch) -> None:
    patch.setattr(workers_process, "SimThreadHome", SameHome)


@plants("I22: `still_owner` is always true", **{**SLEEPY, "process_ms": 30.0})
def still_owner_is_always_true(patch: Patch) -> None:
    patch.setattr(Heart, "still_owner", lambda self, shard, epoch: True)


@plants("I22: nobody asks whether a batch may be delivered", **SLEEPY)
def may_deliver_is_not_asked(patch: Patch) -> None:
    patch.setattr(Heart, "may_deliver", lambda self, shard, epoch: True)


@plants("LH-51: a save returns before it is kept", **{**CALM, "checkpoints": "save"})
def a_save_is_told_before_it_is_kept(patch: Patch) -> None:
    genuine = Heart.checkpoint

    def checkpoint(self: Heart, *args: Any, waiter: Any = None, **options: Any) -> None:
        genuine(self, *args, waiter=None, **options)
        if waiter is not None:
            waiter.set_result(None)

    patch.setattr(Heart, "checkpoint", checkpoint)


@plants("LH-51: each save that is kept tells all who wait", **{**CALM, "checkpoints": "save"})
def one_save_tells_all_who_wait(patch: Patch) -> None:
    def settle(self: Heart, shard: str, kept: Checkpoint | None, error: Exception | None) -> None:
        for each in self._made.pop(shard, ()):
            if each.waiter is None or each.waiter.done():
                continue
            if error is None:
                each.waiter.set_result(None)
            else:
                each.waiter.set_exception(error)

    patch.setattr(Heart, "_settle", settle)


@plants(
    "I27: whoever saves what is lost waits for ever",
    **{**SLEEPY, "checkpoints": "save", "cuts": 1.0, "process_ms": 1.0, "messages": 60},
)
def savers_of_a_lost_shard_are_not_told(patch: Patch) -> None:
    genuine = Heart._settle

    def settle(self: Heart, shard: str, kept: Checkpoint | None, error: Exception | None) -> None:
        if error is None:
            genuine(self, shard, kept, error)

    patch.setattr(Heart, "_settle", settle)


@plants(
    "I27: the timer of a heart that was set is not set earlier",
    **CALM,
    survives="what is due is late, by no more than the next renewal",
    shown_by=f"{_HEART}::test_a_timer_is_set_earlier",
)
def the_timer_is_not_set_earlier(patch: Patch) -> None:
    genuine = Heart._arm

    def arm(self: Heart, wakes_s: float, now_s: float) -> None:
        if self._timer is None:
            genuine(self, wakes_s, now_s)

    patch.setattr(Heart, "_arm", arm)


@plants("P36: watches are taken for sure: nothing happens by the clock", **CALM)
def nothing_happens_by_the_clock(patch: Patch) -> None:
    patch.setattr(Heart, "_arm", lambda self, wakes_s, now_s: None)


@plants("I20: a name has one incarnation", **NAMED)
def a_name_has_one_incarnation(patch: Patch) -> None:
    patch.setattr(heart, "WorkerId", lambda name, token: WorkerId(name, "1" * 32))


@plants("LH-27: whoever comes by a name knows of nobody before", **{**NAMED, "workers": 3})
def nobody_knows_of_namesakes(patch: Patch) -> None:
    genuine = vars(presence)["WorkerNode"]

    def node(me: WorkerId, *args: Any, **fields: Any) -> Any:
        return genuine(me, *args, **{**fields, "after": ()})

    patch.setattr(presence, "WorkerNode", node)


@plants("I27: who was taken for dead does not come again", **SLEEPY)
def a_lost_worker_does_not_come_again(patch: Patch) -> None:
    genuine = Heart._mind

    def mind(self: Heart, core: Any, order: Any) -> None:
        genuine(self, core, order)
        self._lost = False

    patch.setattr(Heart, "_mind", mind)


@plants("LH-57: the renewals end before anything is released", **JOINED)
def the_heart_stops_before_it_left(patch: Patch) -> None:
    def leave(self: Heart, why: str = "closed") -> None:
        self._leave_why = self._leave_why or why
        self.abandon()

    patch.setattr(Heart, "leave", leave)


@plants("LH-13: checkpoints in memory are written at the end only", **CALM)
def nothing_is_flushed_meanwhile(patch: Patch) -> None:
    genuine = WorkerOptions.group_options

    def options(self: WorkerOptions) -> Any:
        return dataclasses.replace(genuine(self), flush_s=1e9)

    patch.setattr(WorkerOptions, "group_options", options)


@plants(
    "LH-51: what is said while a shard is given up is refused", **{**CALM, "checkpoints": "late"}
)
def a_farewell_can_say_nothing(patch: Patch) -> None:
    genuine = Heart.checkpoint

    def checkpoint(self: Heart, shard: str, epoch: int, *args: Any, **options: Any) -> None:
        core = self._core
        consumer = None if core is None else core.consumers.get(shard)
        if consumer is not None and consumer.step is not None:
            raise LeaseLost("it is being given up")
        genuine(self, shard, epoch, *args, **options)

    patch.setattr(Heart, "checkpoint", checkpoint)

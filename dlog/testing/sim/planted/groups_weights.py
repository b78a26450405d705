"""Bugs of groups that weigh their shards, and whose leases are renewed one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.groups import core, outlook, plan, weights
from dlog.groups.agenda import Agenda
from dlog.groups.consumer import ShardConsumer
from dlog.groups.membership import Membership
from dlog.groups.shards import ShardGraph
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.testing.sim.planted import Patch, Plants
from dlog.testing.sim.planted.groups import BUSY, CALM, LOGS

plants = Plants("groups")
PLANTS = plants.by_name

HEAVY: dict[str, Any] = {**CALM, "weighs": 4, "shards": 6, "workers": 3, "seals": False}


@plants("LH-15: shards are weighed", **HEAVY)
def nobody_weighs(patch: Patch) -> None:
    patch.setattr(Agenda, "begins_weighing", lambda self, now_s, *, is_first: False)


@plants(
    "LH-15: whoever is first weighs, also when another one was",
    **{**HEAVY, "crash": 0.03},
    restarts=0.0,
)
def the_first_one_that_there_ever_was_weighs(patch: Patch) -> None:
    first: list[WorkerId] = []

    def is_first(self: Membership) -> bool:
        if not first or self.me < first[0]:
            first[:] = [self.me]
        return self.me == first[0]

    patch.setattr(Membership, "is_first", property(is_first))


@plants("LH-15: what was weighed is planned with", **HEAVY)
def weights_are_not_planned_with(patch: Patch) -> None:
    genuine = outlook.look_out

    def look_out(*args: Any, **options: Any) -> Any:
        found = genuine(*args, **options)
        shards = tuple(dataclasses.replace(each, weight=1) for each in found.view.shards)
        found.view = dataclasses.replace(found.view, shards=shards)
        return found

    patch.setattr(core, "look_out", look_out)


@plants("LH-15: noise moves nothing", **HEAVY, quiet=True)
def the_smallest_difference_moves_shards(patch: Patch) -> None:
    patch.setattr(outlook, "slack_of", lambda weights, workers: 0)
    patch.setattr(weights, "slack_of", lambda weights, workers: 0)


@plants("LH-15: all plan with the same weights", **HEAVY, quiet=True)
def each_plans_with_what_it_measured_itself(patch: Patch) -> None:
    genuine = outlook.look_out

    def look_out(graph: ShardGraph, ours: Any, *rest: Any, **options: Any) -> Any:
        found = genuine(graph, ours, *rest, **options)
        mine = plan._mark(ours.id.incarnation)
        shards = tuple(
            dataclasses.replace(each, weight=1 + (mine ^ plan._mark(each.name)) % 1000)
            for each in found.view.shards
        )
        found.view = dataclasses.replace(found.view, shards=shards)
        return found

    patch.setattr(core, "look_out", look_out)


@plants("I21: a renewal is of the newest checkpoint", **{**LOGS, **BUSY}, proves=True)
def a_renewal_appends_what_was_held_first(patch: Patch) -> None:
    genuine = ShardConsumer.proven

    def proven(self: ShardConsumer, held: Held, now_s: float) -> None:
        before = self.held
        genuine(self, held, now_s)
        self.held = before

    patch.setattr(ShardConsumer, "proven", proven)

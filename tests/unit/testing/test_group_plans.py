"""The judges of plans: each refuses a plan that is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dlog.groups.plan import plan
from dlog.groups.view import Move, View
from dlog.testing import group_plans
from dlog.testing.group_plans import view_of

JUDGES: dict[str, Callable[[], Any]] = {
    "by count": lambda: group_plans.check_plan_by_count([3, 0], 1),
    "by weight": lambda: group_plans.check_plan_by_weight(view_of([3, 0], 1, weights=[1, 2, 1, 1])),
    "over domains": lambda: group_plans.check_plan_over_domains(
        view_of([3, 0], 1, domains=["a", "b"])
    ),
}


def _leaves_one(view: View) -> tuple[Move, ...]:
    """Even, but for a shard that nobody gets."""
    return tuple(move for move in plan(view) if move.victim is not None)


def _moves_nothing(view: View) -> tuple[Move, ...]:
    return ()


def _does_not_rest(view: View) -> tuple[Move, ...]:
    shard, worker = view.shards[0], view.workers[0].id
    return plan(view) or (Move(shard.name, worker, worker),)


@pytest.mark.parametrize("wrong", [_leaves_one, _moves_nothing, _does_not_rest])
@pytest.mark.parametrize("judge", JUDGES)
def test_a_wrong_plan_is_refused(judge: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    JUDGES[judge]()
    monkeypatch.setattr(group_plans, "plan", wrong)
    with pytest.raises(AssertionError):
        JUDGES[judge]()


def test_a_shard_that_is_left_is_seen_where_the_counts_are_even(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_plans, "plan", _moves_nothing)
    with pytest.raises(AssertionError, match="a shard was left"):
        group_plans.check_plan_over_domains(view_of([2, 2], 1, domains=["a", "b"]))


def test_starts_are_told_apart() -> None:
    assert len(set(group_plans.starts(4, 2))) == len(list(group_plans.starts(4, 2))) > 5
    counts, free = group_plans.random_start(9, 3, random.Random(1))
    assert sum(counts) + free == 9
    assert group_plans.fewest_moves([3, 0], 1) == 2

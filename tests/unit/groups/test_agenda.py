"""When a worker reads its group and plans, on a clock of the test's own."""

from __future__ import annotations

import math

import pytest

from dlog.groups.agenda import Agenda
from dlog.groups.membership import GroupOptions

OPTIONS = GroupOptions(timeout_s=48.0, weigh_s=1000.0)
GATHER_S, RETRY_S, RENEW_S, REPLAN_S = 0.75, 3.0, 16.0, 96.0


def agenda(now_s: float = 10.0, options: GroupOptions = OPTIONS) -> Agenda:
    return Agenda(options, now_s)


def planned(now_s: float = 10.0, *, others: int = 0, is_settled: bool = True) -> Agenda:
    """One that has just planned."""
    found = agenda(now_s)
    assert found.begins_plan(now_s)
    found.read()
    found.planned(now_s, others=others, is_settled=is_settled)
    return found


def test_the_intervals_are_parts_of_a_time_out() -> None:
    assert (OPTIONS.gather_s, OPTIONS.retry_s) == (GATHER_S, RETRY_S)
    assert (OPTIONS.renew_s, OPTIONS.replan_s) == (RENEW_S, REPLAN_S)


def test_the_first_plan_is_due_at_once_and_begins_once() -> None:
    found = agenda()
    assert found.due_s() == 10.0
    assert not found.begins_plan(9.9)
    assert found.begins_plan(10.0)
    assert found.due_s() == 1010.0, "only the weighing is left"
    assert not found.begins_plan(50.0), "one at a time"


def test_nothing_is_planned_while_the_group_is_being_read() -> None:
    found = agenda()
    found.begins_plan(10.0)
    found.soon(11.0)
    assert found.due_s() == 1010.0
    assert not found.begins_plan(20.0)
    found.read()
    assert found.begins_plan(20.0)


@pytest.mark.parametrize(
    ("others", "is_settled", "after_s"),
    [(0, True, REPLAN_S), (24, True, 96.0), (40, True, 160.0), (40, False, 32.0), (0, False, 32.0)],
)
def test_the_next_plan_comes_soon_only_where_something_is_to_move(
    others: int, is_settled: bool, after_s: float
) -> None:
    """In a settled group of many, each worker looks less often."""
    assert planned(others=others, is_settled=is_settled).due_s() == 10.0 + after_s


def test_what_comes_at_once_is_planned_for_together() -> None:
    found = planned()
    found.soon(20.0)
    assert found.due_s() == 20.0 + GATHER_S
    found.soon(20.5)
    assert found.due_s() == 20.0 + GATHER_S, "later news does not put it off"
    assert not found.begins_plan(20.7)
    assert found.begins_plan(20.75)


@pytest.mark.parametrize(("delay_s", "after_s"), [(0.0, GATHER_S), (0.1, GATHER_S), (3.0, 3.0)])
def test_a_plan_may_be_asked_for_later(delay_s: float, after_s: float) -> None:
    found = planned()
    found.soon(20.0, delay_s)
    assert found.due_s() == 20.0 + after_s


def test_news_that_came_while_the_group_was_read_is_planned_for_next() -> None:
    found = agenda()
    found.begins_plan(10.0)
    found.soon(11.0)
    found.read()
    found.planned(30.0, others=0, is_settled=True)
    assert found.due_s() == 30.0 + GATHER_S
    assert found.begins_plan(31.0)
    found.read()
    found.planned(31.0, others=0, is_settled=True)
    assert found.due_s() == 31.0 + REPLAN_S, "once"


def test_news_of_before_the_reading_is_part_of_it() -> None:
    found = planned()
    found.soon(20.0)
    assert found.begins_plan(21.0)
    found.read()
    found.soon(21.5)  # behind the reading
    found.planned(22.0, others=0, is_settled=True)
    assert found.due_s() == 22.0 + REPLAN_S


def test_what_may_wait_makes_no_reading_late() -> None:
    """A retry that is asked for while the group is read is no news of the group."""
    found = agenda()
    found.begins_plan(10.0)
    found.soon(11.0, 5.0)
    found.read()
    found.planned(12.0, others=0, is_settled=True)
    assert found.due_s() == 12.0 + REPLAN_S


def test_a_reading_that_failed_is_tried_again() -> None:
    found = agenda()
    found.begins_plan(10.0)
    found.read()
    found.not_read(40.0)
    assert found.due_s() == 40.0 + RETRY_S
    assert not found.begins_plan(42.9)
    assert found.begins_plan(43.0)
    assert found.plans == 0


def test_plans_are_counted() -> None:
    found = planned()
    assert found.plans == 1


def test_the_first_of_plan_and_weighing_is_due_next() -> None:
    found = planned(10.0)
    assert found.due_s() == 10.0 + REPLAN_S
    early = Agenda(GroupOptions(timeout_s=48.0, weigh_s=5.0), 0.0)
    early.begins_plan(0.0)
    assert early.due_s() == 5.0
    assert early.begins_weighing(5.0, is_first=True)
    assert early.due_s() == math.inf, "both are under way"
    early.weighed(7.0)
    assert early.due_s() == 12.0
    assert not early.begins_weighing(12.0, is_first=False)
    assert early.due_s() == 17.0, "somebody else weighs"

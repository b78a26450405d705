"""Planted bugs that histories notice only in weather that brings their faults together: each is
noticed by a test of the tier `check`, too, whatever the weather."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.testing.sim.planted import all_plants
from dlog.testing.sim.planted.shown import show

_LETTERS = "tests/unit/groups/test_dead_letters.py"
_APPENDER = "tests/unit/ledger/bookkeeper/test_appender_core.py"
_FIRST = "test_lh_60_each_letter_is_there_once_in_whatever_order_it_comes_again"
SHOWN = {
    "letters_are_not_looked_through": f"{_LETTERS}::{_FIRST}",
    "a_later_letter_counts_for_all": f"{_LETTERS}::{_FIRST}",
    "a_dead_letter_is_not_waited_for": "tests/unit/groups/test_shard_run.py::"
    "test_what_is_poison_is_tried_so_often_and_the_others_are_done_once",
    "look_from_before_the_link": f"{_APPENDER}::test_an_ack_over_a_new_link_waits_for_a_look",
    "failed_change_not_repeated": f"{_APPENDER}::test_an_unknown_change_is_asked_again_as_it_was",
    "others_run_on": "tests/unit/ledger/bookkeeper/test_registry.py::"
    "test_a_list_that_fails_leaves_no_call_of_it_running",
    "whoever_had_it_last_does_not_count": "tests/unit/streams/test_lanes.py::"
    "test_what_follows_a_shard_that_somebody_wrote_after_us_is_refused",
}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_test_shows_what_few_histories_reach(name: str) -> None:
    plant = replace(all_plants()[name], shown_by=SHOWN[name])
    assert show(plant) is not None, f"{SHOWN[name]} passes with {name} planted, or is not there"

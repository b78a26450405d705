"""Planted bugs that histories notice only in weather that brings their faults together: each is
noticed by a test of the tier `check`, too, whatever the weather."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dlog import backends
from dlog.testing.sim.planted import all_plants, planted
from dlog.testing.sim.runs import STALE

_LETTERS = "tests.unit.groups.test_dead_letters"
_APPENDER = "tests.unit.ledger.bookkeeper.test_appender_core"
_FIRST = "test_lh_60_each_letter_is_there_once_in_whatever_order_it_comes_again"
SHOWN = {
    "letters_are_not_looked_through": (_LETTERS, _FIRST),
    "a_later_letter_counts_for_all": (_LETTERS, _FIRST),
    "a_dead_letter_is_not_waited_for": (
        "tests.unit.groups.test_shard_run",
        "test_what_is_poison_is_tried_so_often_and_the_others_are_done_once",
    ),
    "look_from_before_the_link": (_APPENDER, "test_an_ack_over_a_new_link_waits_for_a_look"),
    "failed_change_not_repeated": (_APPENDER, "test_an_unknown_change_is_asked_again_as_it_was"),
    "others_run_on": (
        "tests.unit.ledger.bookkeeper.test_registry",
        "test_a_list_that_fails_leaves_no_call_of_it_running",
    ),
    "whoever_had_it_last_does_not_count": (
        "tests.unit.streams.test_lanes",
        "test_what_follows_a_shard_that_somebody_wrote_after_us_is_refused",
    ),
}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_test_shows_what_few_histories_reach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and not by `show`, which starts a run of pytest for each."""
    # What a test leaves in memory with a bug planted is not for the same test without.
    monkeypatch.setattr(backends, "_memory_worlds", {})
    where, called = SHOWN[name]
    test = getattr(import_module(where), called)
    with planted(all_plants()[name]):
        errors = (_error(test, given) for given in _parameters(test))
        noticed = next((each for each in errors if each is not None), None)
    assert noticed is not None, f"{where}.{called} passes with {name} planted"
    assert not isinstance(noticed, STALE), noticed


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    """As `parametrize` would give them, each mark of which names one parameter here."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        yield dict(zip((mark.args[0] for mark in marks), values, strict=True))


def _error(test: Any, given: dict[str, Any]) -> Exception | None:
    try:
        made = test(**given)
        if inspect.iscoroutine(made):
            asyncio.run(made)
    except Exception as error:  # whatever it raises fails the test
        return error
    return None

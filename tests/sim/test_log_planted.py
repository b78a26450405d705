"""What the simulated log is worth: each planted bug must be noticed within a bounded number of
short histories. A bug that survives is redundant protection, and says what protects."""

from __future__ import annotations

import pytest

from dlog.testing.sim.planted import (
    log,
    log_fsck,
    log_jobs,
    log_life,
    log_list,
    log_numbers,
    log_repair,
    log_rules,
    log_standbys,
    planted,
)
from dlog.testing.sim.runs import hunt, run_many, shrink_tape
from tests.sim.histories import counts, names_what_no_longer_tells, noticed

HISTORIES_MAX = 1500
ROOMS = (
    log,
    log_fsck,
    log_jobs,
    log_life,
    log_list,
    log_numbers,
    log_repair,
    log_rules,
    log_standbys,
)
PLANTS = {name: plant for room in ROOMS for name, plant in room.PLANTS.items()}
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))

# Bugs of different kinds, each with the histories that it may take to make its failure small.
IN_TEST, IN_FULL = pytest.mark.tier("test"), pytest.mark.tier("full", seconds=6)
SHRUNK = [
    pytest.param("a_page_lacks_its_last_segment", 400, marks=IN_FULL),
    pytest.param("reader_passes_what_a_wait_told", 400, marks=IN_FULL),
    pytest.param("heal_without_recovering", 200, marks=IN_TEST),
]
NONZERO_MAX = 30


@pytest.mark.tier("test")
@pytest.mark.timeout(240)  # by histories, not by time; most end within a second
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)


@counts(40, 400, seconds=6)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    plant = PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "tries"), SHRUNK)
def test_a_failure_becomes_small(name: str, tries: int) -> None:
    plant = PLANTS[name]
    found = hunt(plant, count=HISTORIES_MAX)
    assert found.finding is not None
    with planted(plant):
        small = shrink_tape(plant.world, found.finding.values, tries=tries, **plant.fixed)
    assert small.fault == found.finding.promise
    assert small.nonzero <= NONZERO_MAX

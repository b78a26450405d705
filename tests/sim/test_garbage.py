"""Each test of this folder collects what it made, and looks at nothing else."""

from __future__ import annotations

import gc
import weakref

from dlog.testing.sim.runs import run_many


class Thing:
    pass


def test_what_was_there_before_a_test_is_not_looked_through() -> None:
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    run_many("log-abstract", count=1)
    assert gc.get_freeze_count() > frozen * 0.9, "some of it may have ended"


def test_what_a_test_makes_is_collected_behind_its_next_history() -> None:
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    gone = weakref.ref(thing)
    run_many("log-abstract", count=1)
    assert gone() is not None
    del thing
    run_many("log-abstract", count=1)
    assert gone() is None

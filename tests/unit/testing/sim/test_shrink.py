"""Tapes are made smaller without losing what is wrong with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dlog.testing.sim.shrink import Verdict, shrink
from dlog.testing.sim.tape import of_tape


def history(values: Sequence[float]) -> Verdict:
    """Wrong when two faults among forty meet a long delay. Everything else is noise."""
    chance = of_tape(values)
    faults = [number for number in range(40) if chance.hits(0.3)]
    delays = [chance.delay(1.0) for _ in range(60)]
    wrong = len(faults) >= 2 and max(delays) > 1.0
    return ("I9" if wrong else None), chance.tape.drawn


def test_what_is_left_is_what_it_takes() -> None:
    source = random.Random(5)
    values = [source.random() for _ in range(100)]
    assert history(values)[0] == "I9"
    shrunk = shrink(values, history)
    assert shrunk.fault == "I9"
    assert history(shrunk.values)[0] == "I9"
    assert shrunk.nonzero == 3, "two faults and a delay"
    assert len(shrunk.values) <= 100
    assert shrunk.tries < 2_000


def test_another_fault_is_not_the_same() -> None:
    """A smaller tape that breaks another promise is no smaller form of this one."""

    def two(values: Sequence[float]) -> Verdict:
        chance = of_tape(values)
        first, second = chance.hits(0.5), chance.hits(0.5)
        return ("I1" if first else "I2" if second else None), chance.tape.drawn

    assert shrink([0.9, 0.9], two).values == [0.9]
    assert shrink([0.0, 0.9], two).fault == "I2"


def test_values_are_made_milder() -> None:
    def late(values: Sequence[float]) -> Verdict:
        chance = of_tape(values)
        return ("late" if chance.delay(10.0) > 1.0 else None), chance.tape.drawn

    shrunk = shrink([0.999], late)
    assert 0.09 < shrunk.values[0] < 0.2


def test_nothing_to_shrink_is_said() -> None:
    with pytest.raises(ValueError, match="nothing is wrong"):
        shrink([0.1], lambda values: (None, 1))


def test_tries_bound_it_whatever_time_they_take() -> None:
    source = random.Random(5)
    values = [source.random() for _ in range(100)]
    shrunk = shrink(values, history, tries=7, seconds=0.0)
    assert shrunk.tries == 7
    assert history(shrunk.values)[0] == shrunk.fault == "I9"


def test_it_ends_when_its_time_is_over() -> None:
    tries = 0

    def slow(values: Sequence[float]) -> Verdict:
        nonlocal tries
        tries += 1
        return "I9", len(values)

    shrunk = shrink([0.5] * 50, slow, seconds=0.0)
    assert shrunk.tries == 0
    assert tries == 1

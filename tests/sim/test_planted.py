"""Planting bugs: each fits the code as it stands, and the world that judges it came before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dlog.testing.sim.planted import Plant, all_plants, planted


def test_each_bug_is_planted_in_something_that_is_there() -> None:
    for plant in all_plants().values():
        with planted(plant):
            pass


def test_a_bug_in_a_name_that_is_gone_is_refused() -> None:
    class Room:
        door = "open"

    def bug(patch: object) -> None:
        patch.setattr(Room, "door", "shut")  # type: ignore[attr-defined]
        patch.setattr(Room, "window", "shut")  # type: ignore[attr-defined]

    plant = Plant("nobody_looks_out", "none", bug, "log")
    with pytest.raises(AttributeError, match="no 'window'"), planted(plant):
        pass
    assert Room.door == "open"


def test_a_world_is_not_judged_by_what_was_planted_in_it() -> None:
    """Its module takes constants of the code when it is imported, which is on demand."""
    name = "suspects_are_flooded"
    done = subprocess.run(
        [sys.executable, "-m", "dlog.testing.sim", "plants", name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("killed"), done.stdout + done.stderr

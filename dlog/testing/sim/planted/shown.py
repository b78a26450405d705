"""Planted bugs that no history shows, because something else protects: the test that shows them.

A bug is planted in a run of pytest of its own, as a plugin of that run; the test it names must
fail there. For a checkout of the project, where the tests are.

    DLOG_PLANT=fence_is_only_a_failure python -m pytest -p dlog.testing.sim.planted.shown tests/unit
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlog.testing.sim.planted import Plant, all_plants, planted

if TYPE_CHECKING:
    import pytest

ENV_PLANT = "DLOG_PLANT"
TIMEOUT_S = 240.0
_TESTS_FAILED = 1  # pytest's own code: 0 would be that all passed, more that nothing ran


@dataclass(frozen=True, slots=True)
class Shown:
    by: str
    took_s: float


def show(plant: Plant) -> Shown | None:
    """None when its test does not fail, or is not here."""
    test = plant.shown_by
    if test is None or not Path(test.partition("::")[0]).exists():
        return None
    began_s = time.monotonic()
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            __name__,
            "-p",
            "no:cacheprovider",
            test,
        ],
        env={**os.environ, ENV_PLANT: plant.name},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    took_s = time.monotonic() - began_s
    return Shown(test, took_s) if ended.returncode == _TESTS_FAILED else None


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: the bug that the environment names is there until the run ends."""
    plant = all_plants().get(name := os.environ.get(ENV_PLANT, ""))
    if plant is None:
        import pytest

        raise pytest.UsageError(f"{ENV_PLANT}={name!r} names no planted bug")
    bug = ExitStack()
    bug.enter_context(planted(plant))
    config.add_cleanup(bug.close)

"""A run ends with what each ring took, whatever worker ran it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tidy.inner_run import run_pytest
from tests.tidy.ring_times import RINGS, Took, lines, ring_of

TESTS = """
from tests import pace

def test_it_computes():
    sum(range(3_000_000))
    pace.STRETCHED.append(2.5)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_times_and_stretched_deadlines_come_from_every_worker(tmp_path: Path, workers: int) -> None:
    for name in ("tests/unit/test_a.py", "tests/api/test_b.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    plugin = ["-p", "tests.tidy.ring_times", "--ring-times=told.json"]
    done = run_pytest(tmp_path, *plugin, f"-n{workers}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deadlines were stretched by 2.5 at most" in done.stdout
    told = json.loads((tmp_path / "told.json").read_text())
    assert set(told) == {
        "tests/unit/test_a.py::test_it_computes",
        "tests/api/test_b.py::test_it_computes",
    }
    assert all(row["cpu_s"] > 0 and row["phases"]["call"] > 0 for row in told.values())


def test_the_table_has_a_line_for_each_ring_with_its_budget() -> None:
    unit, servers = "tests/unit/a.py::t", "integration/log/a.py::t"
    told = lines(
        {unit: Took(2.0, 1.0), f"{unit}2": Took(3.0, 1.0), servers: Took(9.0, 4.0)}, "test"
    )
    budgets = {ring: str(test) for ring, _, _, test in RINGS}
    assert [line.split() for line in told[1:]] == [
        ["unit", "2", "5", "3.0", "2", budgets["unit"]],
        ["real", "servers", "1", "9", "9.0", "4", budgets["real servers"]],
    ]


def test_spark_on_real_servers_belongs_to_spark() -> None:
    assert ring_of("integration/spark/test_jobs.py::t") == "spark"
    assert ring_of("integration/test_config.py::t") == "real servers"
    assert ring_of("elsewhere/test_x.py::t") == "elsewhere"

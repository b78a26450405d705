"""Files stay whole, Spark stays in one worker, and what waits runs beside what computes."""

from __future__ import annotations

from pathlib import Path

from tests.tidy.inner_run import run_pytest
from tests.tidy.schedule import rank_of, scope_of

TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number, worker_id):
    here = pathlib.Path(__file__)
    with open(here.parents[2] / "ran", "a") as ran:
        ran.write(f"{worker_id} {here.parent.name}/{here.name}\\n")
"""
FILES = (
    "tests/unit/test_a.py",
    "tests/unit/test_b.py",
    "tests/spark/test_c.py",
    "integration/spark/test_d.py",
    "integration/log/test_e.py",
)


def test_a_file_stays_in_one_worker_and_what_waits_begins_beside_what_computes(
    tmp_path: Path,
) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    done = run_pytest(tmp_path, "-q", "-n2", "-p", "tests.tidy.schedule", "tests", "integration")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    workers_of = {name: {who for who, where in ran if where == name} for _, name in ran}
    assert {len(workers) for workers in workers_of.values()} == {1}
    assert workers_of["spark/test_c.py"] == workers_of["spark/test_d.py"] == {"gw0"}
    first = {who: next(where for each, where in ran if each == who) for who in ("gw0", "gw1")}
    assert first == {"gw0": "spark/test_c.py", "gw1": "unit/test_a.py"}


def test_the_longest_begin_first() -> None:
    names = [
        "tests/unit/a.py::t",
        "tests/sim/a.py::t",
        "tests/chaos/a.py::t",
        "integration/a.py::t",
    ]
    assert sorted(names, key=rank_of) == list(reversed(names))
    assert rank_of("integration/spark/a.py::t") == rank_of("tests/spark/b.py::t") == 0
    assert scope_of("tests/api/a.py::test_x[a::b]") == "tests/api/a.py"
    assert scope_of("integration/interop/a.py::t") == scope_of("integration/interop/b.py::t")

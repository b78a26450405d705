"""The tests that know a line best run first, then the quickest. Near-equal tests do not crowd out
others."""

from __future__ import annotations

from tests.mutants.coverage_map import MappedTest
from tests.mutants.selection import mirrors, order

PATH = "dlog/writer/core.py"


def _test(name: str, seconds: float = 0.01, breadth: int = 10) -> MappedTest:
    return MappedTest(name, seconds, True, breadth)


def _order(*tests: MappedTest, seconds: float = 60.0) -> list[str]:
    return [test.name for test in order(tests, PATH, seconds)]


def test_the_quickest_runs_first() -> None:
    slow, quick = _test("tests/api/test_a.py::slow", 2.0), _test("tests/api/test_b.py::quick")
    assert _order(slow, quick) == [quick.name, slow.name]


def test_a_test_that_touches_little_else_runs_before_one_that_touches_all() -> None:
    wide = _test("tests/api/test_a.py::wide", breadth=200)
    special = _test("tests/unit/test_b.py::special", breadth=2)
    assert _order(wide, special) == [special.name, wide.name]


def test_the_mirror_of_the_module_runs_first() -> None:
    quick = _test("tests/api/test_a.py::quick")
    mirror = _test("tests/unit/writer/test_core.py::mirror", 0.05)
    assert _order(quick, mirror) == [mirror.name, quick.name]
    assert mirrors(mirror, PATH)
    assert not mirrors(mirror, "dlog/reader/core.py")


def test_two_thousand_of_one_function_leave_time_for_others() -> None:
    many = [_test(f"tests/api/test_a.py::many[{n}]") for n in range(2000)]
    slower = _test("tests/api/test_b.py::slower", 2.0)
    names = _order(*many, slower, seconds=20.0)
    assert names.index(slower.name) < 150


def test_no_more_is_started_than_there_is_time_for() -> None:
    tests = [_test(f"tests/api/test_{n}.py::a", 10.0) for n in range(10)]
    assert len(_order(*tests, seconds=25.0)) == 2
    assert _order(_test("tests/api/test_a.py::a", 100.0), seconds=25.0)  # but always one


def test_recorded_histories_run_early() -> None:
    tests = [_test(f"tests/api/test_a.py::t{n}", 0.5) for n in range(40)]
    history = _test("tests/sim/test_corpus_log.py::test_histories[log]", 3.0)
    place = _order(*tests, history).index(history.name)
    assert 2 < place < 20

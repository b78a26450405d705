"""No test is left out in silence: the last words of a run name it and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.inner_run import run_pytest

TESTS = """
import pytest

def test_runs(): pass

@pytest.mark.parametrize("number", [1, 2])
def test_somewhere_else(number): pytest.skip("no java here")

@pytest.fixture
def servers(): pytest.skip("no java here")

def test_on_servers(servers): pass

@pytest.mark.skip(reason="of another house")
def test_marked(): pass

@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False
"""
TOLD = """\
1 skipped: a whole module
    test_absent.py
3 skipped: no java here
    test_planted.py::test_on_servers
    test_planted.py::test_somewhere_else[1]
    test_planted.py::test_somewhere_else[2]
1 skipped: of another house
    test_planted.py::test_marked
1 expected to fail: known
    test_planted.py::test_known
counts: 1 passed, 0 failed, 0 error, 5 skipped, 1 xfailed, 0 xpassed, 0 deselected
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_did_not_run_is_named_below_its_reason(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    whole = "import pytest\npytest.skip('a whole module', allow_module_level=True)\n"
    (tmp_path / "test_absent.py").write_text(whole)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run_pytest(tmp_path, "-q", "-p", "tests.tidy.skip_report", f"-n{workers}")
    assert TOLD in done.stdout

"""Programs of tests: one that fails, hangs or ends too soon fails its test."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.errors import FormatError
from dlog.testing.children import Child, Children, CrashPoint, arm

FAILS = "import sys; sys.exit('it went wrong')"
ENDS = "print('hello')"
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def started(where: Path, code: str) -> Iterator[Child]:
    (where / "given_program.py").write_text(code)
    with Children(where / "errors", python_path=where) as children:
        yield children.start("given_program")


def _end(child: Child) -> None:
    """Its end, which nobody is told of."""
    child._process.wait(30)


def test_a_program_that_fails_unheard_fails_its_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with 1: it went wrong"):
        with started(tmp_path, FAILS) as child:
            _end(child)


def test_a_program_that_an_error_ends_by_a_signal_fails_its_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"ended with -{int(signal.SIGABRT)}"):
        with started(tmp_path, "import os; os.abort()") as child:
            _end(child)


def test_the_tests_own_failure_goes_first(tmp_path: Path) -> None:
    def test() -> None:
        with started(tmp_path, FAILS) as child:
            _end(child)
            raise ValueError("the test's own")

    with pytest.raises(ValueError, match="the test's own"):
        test()


def test_what_was_heard_or_killed_fails_nobody(tmp_path: Path) -> None:
    with started(tmp_path, FAILS) as child:
        assert child.wait_end() == 1
    with started(tmp_path, WAITS) as child:
        child.wait_line("ready")
        child.kill()
        _end(child)
    with started(tmp_path, ENDS) as child:
        _end(child)


def test_success_is_asked_for(tmp_path: Path) -> None:
    with started(tmp_path, FAILS) as child:
        with pytest.raises(AssertionError, match="ended with 1: it went wrong"):
            child.wait_success()


def test_what_is_not_said_is_not_waited_for(tmp_path: Path) -> None:
    with started(tmp_path, ENDS) as child:
        with pytest.raises(AssertionError, match="ended without saying 'ready'"):
            child.wait_line("ready")
    with started(tmp_path, WAITS) as child:
        child.wait_line("ready")
        with pytest.raises(AssertionError, match="said nothing"):
            child.read_line(0)


def test_one_that_ends_is_not_frozen(tmp_path: Path) -> None:
    with started(tmp_path, ENDS) as child:
        with pytest.raises(AssertionError, match="ended instead of freezing"):
            child.wait_frozen()
    with started(tmp_path, WAITS) as child:
        child.wait_line("ready")
        with pytest.raises(AssertionError, match="did not freeze"):
            child.wait_frozen(0)


def test_who_is_gone_is_told_nothing(tmp_path: Path) -> None:
    with started(tmp_path, ENDS) as child:
        child.wait_success()
        with pytest.raises(BrokenPipeError):
            child.tell("go on")


@pytest.mark.parametrize(
    ("point", "side", "hit", "what"),
    [
        ("no.such.point", "before", 1, "kill"),
        ("ledger.written", "beside", 1, "kill"),
        ("ledger.written", "after", 0, "kill"),
        ("ledger.written", "after", 1, "stop"),
    ],
)
def test_a_crash_that_cannot_come_is_refused(point: str, side: str, hit: int, what: str) -> None:
    with pytest.raises(FormatError):
        arm(CrashPoint(point, side, hit, what))
    with pytest.raises(FormatError):
        CrashPoint.parse(f"{point}:{side}:{hit}:{what}")


@pytest.mark.parametrize(
    "text", ["", "ledger.written", "ledger.written:before:x:kill", "a:b:c:d:e"]
)
def test_what_is_no_crash_point_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        CrashPoint.parse(text)


def test_a_crash_point_reads_back() -> None:
    crash = CrashPoint("ledger.written", "before", 7, "freeze")
    assert CrashPoint.parse(str(crash)) == crash

"""Every error of the tree ends as one line and a documented exit code."""

from __future__ import annotations

import click
import pytest

from dlog import errors
from dlog.cli import failures
from dlog.cli.main import EXIT_CODES
from dlog.cli.shared import Settings

CASES: list[tuple[BaseException, int]] = [
    (errors.NotFound("no log 'x'"), 3),
    (errors.Fenced("bob took over", winner="bob", epoch=3), 4),
    (errors.Conflict("bob writes", winner=errors.Winner("bob", 3, 0)), 4),
    (errors.Conflict("lost a compare-and-set"), 1),
    (errors.Unavailable("pid 12 holds the store"), 5),
    (errors.Timeout("no answer in 5 s"), 5),
    (errors.ConfigError("unknown option"), 2),
    (errors.Unsupported("no such backend"), 2),
    (errors.Corrupt("ledger-3 at 512"), 1),
    (errors.Truncated("gone"), 1),
    (errors.AlreadyExists("there is one"), 1),
    (failures.Told("bad line"), 1),
    (failures.Told("add --yes", failures.USAGE), 2),
    (FileNotFoundError(2, "No such file or directory", "in.txt"), 1),
    (KeyboardInterrupt(), 130),
    (click.UsageError("no such option"), 2),
    (click.exceptions.Exit(7), 7),
]


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda case: type(case).__name__)
def test_an_error_becomes_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failures.report(error, Settings()) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert told.err.count("\n") <= 1


def test_what_may_have_happened_is_said() -> None:
    assert "may or may not have happened" in failures.describe(errors.Timeout("late"))
    assert "may or may not" not in failures.describe(errors.NotFound("no log"))


def test_a_hostile_message_stays_one_safe_line(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(errors.NotFound("no log '\x1b[2J\n'"), Settings())
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert told.count("\n") == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise errors.NotFound("no log 'x'")
    except errors.NotFound as error:
        failures.report(error, Settings(debug=True))
    assert "Traceback" in capsys.readouterr().err


def test_every_code_is_documented_in_the_help() -> None:
    for _, code in CASES:
        if code != 7:
            assert f" {code} " in EXIT_CODES or f"({code}:" in EXIT_CODES

"""Errors as people meet them: one line on standard error that says what to do, and an exit code."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import click

from dlog import errors
from dlog.cli.escape import printable
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.output import ERRORS, Unheard

if TYPE_CHECKING:
    from dlog.cli.shared import Settings

OK, FAILED, USAGE, NOT_FOUND, FENCED, UNAVAILABLE = range(6)

# The first match counts; a class stands for its subclasses.
CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFound, NOT_FOUND),
    (errors.Moved, NOT_FOUND),
    (errors.Fenced, FENCED),
    (errors.Unavailable, UNAVAILABLE),
    (errors.Timeout, UNAVAILABLE),
    (errors.ConfigError, USAGE),
    (errors.Unsupported, USAGE),
)

GROUPS_ADVICE = "`dlog group ls` lists the groups there are, `dlog group describe` what one has"

ADVICE: dict[type[Exception], str] = {
    errors.NotFound: "`dlog ls` lists the logs there are",
    errors.Moved: "`--url` or DLOG_URL says where logs are",
    errors.AlreadyExists: "choose another name, or `dlog describe` the one there is",
    errors.Fenced: "the log has another writer now; run this again only if you mean to take over",
    errors.Unavailable: "try again; `dlog doctor` checks the place",
    errors.Timeout: "try again, or allow more time (?meta_timeout_ms= in the URL)",
    errors.Truncated: "`dlog tail -o :` begins at the head",
    errors.Corrupt: "stored bytes are damaged; nothing was skipped",
    errors.AuthError: "check who may read and write there: `dlog doctor`",
    errors.Broken: "this is a fault of dlog itself; please report it, with --debug",
    errors.FormatError: "see `dlog COMMAND --help` for what is understood",
    errors.TooLarge: "split it into smaller messages",
}


class Told(Exception):
    """A failure of the command itself, already put into words."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


# What a command may end with; anything else is a fault of ours.
EXPECTED = (
    errors.DlogError,
    Told,
    OSError,
    KeyboardInterrupt,
    click.ClickException,
    click.exceptions.Exit,
    click.Abort,
)


def report(error: BaseException, settings: Settings) -> int:
    """Say it on standard error, with what was done before; the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if settings.debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return report_interrupt(settings)
    done = None if settings.done is None else settings.done()
    if isinstance(error, click.ClickException):
        error.show()
        if done is not None:
            say_somewhere(done)
        return error.exit_code
    told = describe(error, settings.lists)
    say_somewhere(told if done is None else f"{told}; {done}")
    return code_of(error)


def report_interrupt(settings: Settings) -> int:
    """How far a command came that a signal ended; the exit code. One that only prints has said all
    that it did."""
    if settings.done is not None:
        say_somewhere(f"interrupted: {settings.done()}")
    elif settings.output.unheard is not Unheard.DONE:
        say_somewhere(f"interrupted: {INTERRUPTS.told}")
    return INTERRUPTS.code


def report_fault(
    settings: Settings, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The last resort, for an error nobody expected: `sys.excepthook` of the program."""
    if settings.debug:
        sys.__excepthook__(kind, error, trace)
    else:
        say(f"{kind.__name__}: {error} (a fault of dlog itself; --debug shows where)")


def describe(error: BaseException, lists: str | None = None) -> str:
    """One line: what happened, whether it may have happened, what to do."""
    if isinstance(error, Told):
        return str(error)
    if isinstance(error, errors.DlogError):
        told = error.message
        if errors.unknown(error):
            told += "; what was under way may or may not have happened"
        if lists is not None and isinstance(error, errors.NotFound):
            return f"{told} ({lists})"
        advice = next((text for kind, text in ADVICE.items() if isinstance(error, kind)), None)
        return told if advice is None else f"{told} ({advice})"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def code_of(error: BaseException) -> int:
    if isinstance(error, errors.Conflict) and error.winner is not None:
        return FENCED  # there is another writer, and we were told not to fence it
    if isinstance(error, Told):
        return error.code
    return next((code for kind, code in CODES if isinstance(error, kind)), FAILED)


def say(line: str) -> None:
    """One line for people, on standard error, with nothing in it that a terminal would obey."""
    print(f"dlog: {printable(line)}", file=sys.stderr, flush=True)


def say_somewhere(line: str) -> None:
    """Why a command failed, and how far it came; where standard error is lost, on the other one."""
    say(line)
    if ERRORS.error is not None:
        with suppress(OSError):
            print(f"dlog: {printable(line)}", flush=True)

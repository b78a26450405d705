"""Every command whose output is lost: its reader has gone, its disk is full, it was closed before
the command began. Exit code 0 never hides work that was not done, or not told.

Each command runs once with somebody who listens. What it prints and changes then is what it has to
change in every other case; only a command that changes nothing may take a reader who left for
success.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import dlog
from dlog.cli.main import main, program
from tests.unit.cli.conftest import ANSWER_S, Shell
from tests.unit.cli.every_command import (
    CASES,
    ELSEWHERE,
    Case,
    commands,
    state_of,
    words_of,
)


def test_every_command_has_a_case() -> None:
    named = {name.partition(" (")[0] for name in CASES}
    assert named | ELSEWHERE == set(commands(program))


@pytest.fixture
def shell(shell: Shell, prepared: Path) -> Shell:
    shutil.copytree(prepared / "logs", shell.home / "logs")
    return shell


# --- the streams


@contextmanager
def _left() -> Iterator[IO[bytes]]:
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as stream:
        yield stream


@contextmanager
def _kept(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb", buffering=0) as stream:
        yield stream


def _run(shell: Shell, case: Case, lost: str | None) -> tuple[int, bytes, str]:
    """Exit code, and what arrived on standard output and standard error."""
    out, err, feed = (shell.home.parent / f"{shell.home.name}-{name}" for name in ("o", "e", "i"))
    feed.write_bytes(case.feed)
    with ExitStack() as stack:
        enter = stack.enter_context
        stdin: IO[bytes] = enter(feed.open("rb"))
        stdout, stderr = enter(_kept(out)), enter(_kept(err))
        match lost:
            case "left":
                stdout = enter(_left())
            case "full":
                stdout = enter(open("/dev/full", "wb", buffering=0))
            case "closed":  # as `>&-` is for a program that takes care
                stdout = enter(open(os.devnull, "rb", buffering=0))
            case "errors":
                stderr = enter(_left())
            case "both":
                stdout, stderr = enter(_left()), enter(_left())
        code = shell.dlog_on([stdin, stdout, stderr], *words_of(case, shell))
    return code, out.read_bytes(), err.read_text()


@pytest.mark.parametrize("name", CASES)
def test_exit_code_0_hides_nothing(name: str, shell: Shell) -> None:
    case = CASES[name]
    before = state_of(shell.home)
    as_it_was = (shell.home / "logs").rename(shell.home / "as it was")
    wanted: dict[str, Any] = {}
    heard, usual = b"", 0
    for lost in (None, "left", "full", "closed", "errors", "both"):
        shutil.copytree(as_it_was, shell.home / "logs")
        code, out, err = _run(shell, case, lost)
        assert "fault of dlog" not in err
        assert "Traceback" not in err
        after = state_of(shell.home)
        if lost is None:
            wanted, heard, usual = after, out, code
            assert code == (1 if "damaged" in name else 0), err
            finds_nothing = name.startswith(("fsck", "gc", "doctor", "stream trim"))
            assert (wanted == before) is (case.tells or finds_nothing)
        elif lost == "errors" or not heard:
            assert (code, bool(out)) == (usual, bool(heard)), err
            assert after == wanted
        elif case.tells and lost in ("left", "both"):
            assert code == 0, err
        elif case.stops:
            assert code == 1
            landed = after["orders"][2] - before["orders"][2]
            assert 0 < landed < 3
            assert lost == "both" or f"{landed} of {landed} messages acknowledged" in err
        else:
            assert code == 1
            assert lost == "both" or "standard output" in err or usual == 1, err
            is_refused = "leaves" in name and lost != "full"  # which nobody knows before
            assert after == (before if is_refused else wanted)
        shutil.rmtree(shell.home / "logs")
        for file in set(wanted["files"]) - set(before["files"]):
            (shell.home / file).unlink(missing_ok=True)


# --- streams that are closed, and input that is not understood


def _closed(
    shell: Shell, *words: str, closed: str, feed: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """As a shell runs `dlog … >&-`: there is no such stream at all."""
    command = shlex.join([sys.executable, "-m", "dlog", *words])
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {command} {closed}"],
        input=feed,
        cwd=shell.home,
        env=shell.environment,
        capture_output=True,
        check=False,
        timeout=ANSWER_S,
    )


def test_streams_that_are_closed_are_named(shell: Shell) -> None:
    done = _closed(shell, "produce", "orders", closed=">&-", feed=b"a\nb\n")
    assert done.returncode == 1
    told = b"dlog: standard output is closed; 2 of 2 messages acknowledged, the last as 6:"
    assert done.stderr.startswith(told)
    done = _closed(shell, "produce", "orders", closed="<&-")
    assert done.returncode == 1
    assert done.stderr.startswith(b"dlog: standard input: it is closed; 0 of 0 messages")
    done = _closed(shell, "produce", "orders", closed="2>&-", feed=b"a\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"8:2:0\n", b"")
    done = _closed(shell, "ls", closed="<&- >&- 2>&-")
    assert done.returncode == 1
    with dlog.connect(shell.url) as client:
        assert client.admin.status("orders").next_seq == 23


def test_a_failure_is_told_on_standard_output_where_standard_error_is_lost(shell: Shell) -> None:
    done = _closed(shell, "produce", "orders", "--json", closed="2>&-", feed=b'{"value":"a"}\nb\n')
    assert done.returncode == 1
    assert b"line 2: this is not JSON; 1 of 1 messages acknowledged, the last as" in done.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"value": "a", "event_time_us": 99999999999999999999}', "an event time"),
        (b'{"value": "a", "event_time_us": -99999999999999999999}', "an event time"),
        (b'{"value": "a", "headers": {"\\ud800": "x"}}', "a header's name"),
        (b'{"value": "' + b"v" * 6_000_000 + b'"}', ""),
    ],
    ids=["late", "early", "half a character", "large"],
)
@pytest.mark.parametrize("at", [1, 3])
def test_a_message_that_no_log_takes_is_named_by_its_line(
    shell: Shell, line: bytes, told: str, at: int
) -> None:
    good = [b'{"value": "good"}'] * (at - 1)
    done = shell.dlog(
        "produce", "new", "--json", feed=b"\n".join([*good, line, b'{"value": 1}']), expect=1
    )
    assert f"standard input, line {at}: {told}" in done.err
    assert f"{at - 1} of {at - 1} messages acknowledged" in done.err
    assert "without an answer" not in done.err


def test_a_log_does_not_leave_for_a_file_that_cannot_be_written(shell: Shell) -> None:
    (shell.home / "there.json").write_text("kept")
    (shell.home / "folder").mkdir()
    words = ("meta", "export", "orders", "--freeze", "--to", f"file:{shell.home}/there", "--yes")
    for file, force in (("there.json", ()), ("folder", ("--force",)), ("no/such/folder", ())):
        shell.dlog(*words, "-o", file, *force, expect=1 if "/" in file else 2)
        with dlog.open_writer("orders", url=shell.url) as log:
            log.append(b"the log is here")
    assert (shell.home / "there.json").read_text() == "kept"


@pytest.mark.usefixtures("own_logger")
def test_a_time_out_of_dlog_is_not_told_as_a_lost_output(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python counts both among the errors of its operating system."""

    def late(*_: Any, **__: Any) -> Any:
        raise dlog.Timeout("no room in the window")

    monkeypatch.setattr(dlog.Writer, "submit", late)
    (shell.home / "lines").write_text("a\n")
    code = main(["-u", shell.url, "produce", "orders", str(shell.home / "lines")])
    told = capsys.readouterr().err
    assert code == 5
    assert "no room in the window" in told
    assert "standard output" not in told

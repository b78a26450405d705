"""Ctrl-C gets through every blocking call of the sync API, and the program can end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.api.programs import ROOT, program
from tests.pace import within

# The promise is a second; a machine that does four other things is given a little more. What these
# calls wait for never comes, so that a signal that does not get through is not mistaken for one.
PROMPT_S = 3.0

BLOCKING = {
    "append": "log.append(b'x')",
    "append with a timeout": "log.append(b'x', timeout=1000)",
    "ticket": "log.submit(b'x').result()",
    "append_many": "log.append_many([b'x' * 50] * 100)",
    "atomic": "log.append_many([b'x' * 50] * 100, atomic=True)",
    "full window": "[log.submit(b'x' * 300) for _ in range(100)]",
    "full window with a timeout": "[log.submit(b'x' * 300, timeout=1000) for _ in range(100)]",
    "flush": "log.submit(b'x'); log.flush()",
    "rotate": "log.submit(b'x'); log.rotate()",
    "close": "log.submit(b'x'); log.close()",
    "hand_over": "log.submit(b'x'); log.hand_over()",
    "client close": "log.submit(b'x'); client.close()",
    "read": "reader.read()",
    "iteration": "list(reader)",
    "batches": "list(reader.batches())",
    "wait for the other writer": "client.open_writer('log', takeover='wait')",
}


@pytest.mark.parametrize("blocking", BLOCKING.values(), ids=BLOCKING)
def test_ctrl_c_gets_through(file_url: str, blocking: str) -> None:
    code = f"""
        client = dlog.connect(URL)
        log = client.open_writer("log", window_bytes=1024, entry_bytes=512, window_entries=2)
        log.append(b"x")
        reader = client.open_reader("log", follow=True, start="latest")
        freeze_disk()
        say_when_blocked()
        try:
            {blocking}
        except KeyboardInterrupt:
            say("interrupted")
        say("end")
        """
    with program(file_url, code) as child:
        assert child.line() == "blocked"
        began = child.interrupt(signal.SIGINT)
        assert child.line() == "interrupted"
        assert within(time.monotonic() - began, PROMPT_S)
        assert child.line() == "end"
        code_of_exit, _, errors = child.end(PROMPT_S)
    assert code_of_exit == 0
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert "never awaited" not in errors
    assert "destroyed" not in errors


@pytest.mark.parametrize("blocking", ["log.append(b'x')", "log.flush()", "pass"])
def test_ctrl_c_leaves_a_with_block_whose_disk_hangs(file_url: str, blocking: str) -> None:
    """A last flush is tried, but not for ever; what it costs is said."""
    code = f"""
        with dlog.open_writer("log", url=URL) as log:
            log.append(b"x")
            freeze_disk()
            log.submit(b"lost")
            say_when_blocked()
            {blocking}
        """
    with program(file_url, code) as child:
        assert child.line() == "blocked"
        began = child.interrupt(signal.SIGINT)
        code_of_exit, lines, errors = child.end(PROMPT_S + 1)
        assert within(time.monotonic() - began, PROMPT_S)
    assert code_of_exit == -signal.SIGINT
    assert lines == []
    assert (
        errors.strip()
        .splitlines()[-1]
        .startswith("KeyboardInterrupt" if blocking == "pass" else "closing the writer failed, too")
    )
    assert "never awaited" not in errors
    assert "destroyed" not in errors


def test_ctrl_c_ends_a_following_program_with_everything_closed(file_url: str) -> None:
    code = """
        with dlog.open_writer("log", url=URL) as log:
            log.append(b"x")
            with dlog.open_reader("log", url=URL, follow=True) as reader:
                say_when_blocked()
                for message in reader:
                    log.append(b"y") if message.seq == 0 else None
        """
    with program(file_url, code) as child:
        assert child.line() == "blocked"
        child.interrupt(signal.SIGINT)
        code_of_exit, _, errors = child.end(PROMPT_S)
    assert code_of_exit == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert "Warning" not in errors


def test_after_ctrl_c_the_handles_go_on(file_url: str) -> None:
    """The wait was given up, not the message; the same handles serve again."""
    code = """
        log = dlog.open_writer("log", url=URL)
        log.append(b"first")
        reader = dlog.open_reader("log", url=URL, follow=True)
        assert [m.value for m in reader.read()] == [b"first"]
        for verb in (reader.read, lambda: next(iter(reader))):
            say_when_blocked()
            try:
                verb()
            except KeyboardInterrupt:
                say("interrupted")
        log.append(b"second")
        say(*[m.value.decode() for m in reader.read()])
        reader.close()
        log.close()
        """
    with program(file_url, code) as child:
        for _ in range(2):
            assert child.line() == "blocked"
            child.interrupt(signal.SIGINT)
            assert child.line() == "interrupted"
        assert child.line() == "second"
        assert child.end()[::2] == (0, "")


def test_these_tests_hold_in_the_background_of_a_script(tmp_path: Path) -> None:
    """Such a shell has its children ignore SIGINT, and theirs."""
    pytest_words = "-q -p no:cacheprovider -k test_after_ctrl_c_the_handles_go_on".split()
    run = [sys.executable, "-m", "pytest", *pytest_words, f"--basetemp={tmp_path / 't'}", __file__]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *run],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout

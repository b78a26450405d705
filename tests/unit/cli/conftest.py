"""The command line as a real process: its own pid, pipes or a terminal, its own logs."""

from __future__ import annotations

import logging
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.unit.cli.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[3]
ANSWER_S = 30.0


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


class Shell:
    """Runs `dlog …` against logs of its own."""

    def __init__(self, home: Path, server: ForkServer) -> None:
        self.home = home
        self._server = server
        self.url = f"file:{home / 'logs'}"
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DLOG")}
        own = {"PYTHONPATH": str(ROOT), "HOME": str(self.home), "DLOG_URL": self.url}
        return kept | own | {"PYTHONWARNINGS": "error", "COLUMNS": "200"}

    def dlog(self, *words: str, feed: bytes = b"", expect: int = 0) -> Done:
        """One command from beginning to end."""
        code, out, err = self._server.run(words, self.home, self.environment, feed, ANSWER_S)
        told = Done(code, out, err.decode())
        assert told.code == expect, told
        if "--debug" not in words:
            assert "Traceback" not in told.err
        return told

    def dlog_on(
        self, streams: Sequence[IO[bytes]], *words: str, more: Mapping[str, str] | None = None
    ) -> int:
        """One command with these for its three streams, and with more in its environment; its exit
        code."""
        environment = self.environment | dict(more or {})
        return self._server.run_on(words, self.home, environment, streams, ANSWER_S)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """One command that goes on; the caller talks to it."""
        child = subprocess.Popen(
            self._command(*words),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._children.append(child)
        return child

    def on_a_terminal(self, *words: str, types: bytes = b"", expect: int = 0) -> bytes:
        """One command with a terminal for standard input and output; what it put there."""
        master, slave = pty.openpty()
        try:
            child = subprocess.Popen(
                self._command(*words),
                cwd=self.home,
                env=self.environment | {"TERM": "xterm-256color"},
                stdin=slave,
                stdout=slave,
                stderr=slave,
            )
            self._children.append(child)
            os.close(slave)
            os.write(master, types)
            shown = _drain(master)
            assert child.wait(ANSWER_S) == expect, shown
            return shown
        finally:
            os.close(master)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "dlog", *words]

    def end(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None and not pipe.closed:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue


def _drain(master: int) -> bytes:
    """Everything until the other side of the terminal is closed."""
    shown = b""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], deadline - time.monotonic())
        if not ready:
            break
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # Linux: EIO says that nobody has the other side open
            return shown
        if not piece:
            return shown
        shown += piece
    raise AssertionError(f"the command did not end: {shown!r}")


def read_lines(child: subprocess.Popen[bytes], count: int) -> list[bytes]:
    """The next lines it prints, with a deadline."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    found = b""
    deadline = time.monotonic() + ANSWER_S
    while found.count(b"\n") < count:
        left = deadline - time.monotonic()
        assert left > 0, f"only {found!r} came"
        ready, _, _ = select.select([child.stdout], [], [], left)
        if ready:
            piece = os.read(child.stdout.fileno(), 1)
            assert piece, f"it ended after {found!r}"
            found += piece
    os.set_blocking(child.stdout.fileno(), True)
    return found.splitlines()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.end()


@pytest.fixture
def shell(tmp_path: Path, fork_server: ForkServer) -> Iterator[Shell]:
    made = Shell(tmp_path, fork_server)
    yield made
    made.end()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, streams, a group and a document, which no test changes: see `every_command`."""
    from tests.unit.cli.every_command import prepare

    home = tmp_path_factory.mktemp("prepared")
    prepare(home)
    return home


@pytest.fixture
def own_logger() -> Iterator[None]:
    """For a test that runs a command in its own process: what the command sets up ends with it."""
    logger = logging.getLogger("dlog")
    level, propagate, handlers = logger.level, logger.propagate, [*logger.handlers]
    logger.handlers = []
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers

"""Starts commands as processes of their own without starting an interpreter for each.

A server process imports the command line once and forks for every command. The child has its own
pid, working directory, environment and standard streams, runs `dlog` as `python -m dlog` does, and
ends as an interpreter ends. Half of the processor time of these tests was spent on imports.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tests.unit.cli import signal_points

ROOT = Path(__file__).resolve().parents[3]
REQUEST_BYTES_MAX = 1 << 20
START_S = 60.0

# What commands load when they run; the rest is loaded by the child that needs it.
ROOMS = (
    "dlog.admin dlog.cli dlog.cli.commands dlog.groups dlog.ledger dlog.ledger.embedded dlog.meta "
    "dlog.reader dlog.streams dlog.sync dlog.wire dlog.writer"
).split()
NOT_LOADED = ("dlog.meta.zookeeper", "dlog.reader.arrow", "dlog.reader.parquet")


class ForkServer:
    """One for all tests of a worker; it runs one command at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.cli.fork_server", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._socket.settimeout(START_S)

    def run(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        feed: bytes,
        timeout_s: float,
    ) -> tuple[int, bytes, bytes]:
        """Exit code, standard output and standard error of `dlog` with these words."""
        with ExitStack() as pipes, ThreadPoolExecutor(3) as threads:
            ends = [pipes.enter_context(open(fd, mode)) for fd, mode in three_pipes()]
            stdin, feeding, out, stdout, err, stderr = ends
            pid = self._start(words, cwd, environment, [stdin, stdout, stderr])
            for theirs in (stdin, stdout, stderr):
                theirs.close()
            fed = threads.submit(_write, feeding, feed)
            told = [threads.submit(each.read) for each in (out, err)]
            code = self._code_of(pid, timeout_s)
            fed.result()
            return code, told[0].result(), told[1].result()

    def run_on(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        streams: Sequence[IO[bytes]],
        timeout_s: float,
    ) -> int:
        """The exit code of `dlog` with these words and these three streams."""
        return self._code_of(self._start(words, cwd, environment, streams), timeout_s)

    def _code_of(self, pid: int, timeout_s: float) -> int:
        self._socket.settimeout(timeout_s)
        try:
            return int(read_line(self._socket))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._socket.settimeout(START_S)
            read_line(self._socket)  # its end, which is no answer to the next request
            raise

    def _start(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        streams: Sequence[IO[bytes]],
    ) -> int:
        told = {"words": list(words), "cwd": str(cwd), "env": dict(environment)}
        request = json.dumps(told).encode()
        assert len(request) <= REQUEST_BYTES_MAX
        length = len(request).to_bytes(4, "big")
        socket.send_fds(self._socket, [length], [each.fileno() for each in streams])
        self._socket.sendall(request)
        return int(read_line(self._socket))

    def end(self) -> None:
        self._socket.close()
        self._process.wait(START_S)


def three_pipes() -> Iterator[tuple[int, str]]:
    """The reading and the writing end of each."""
    for _ in range(3):
        reading, writing = os.pipe()
        yield reading, "rb"
        yield writing, "wb"


def _write(to: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), to:
        to.write(data)


def read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            raise EOFError("the fork server ended")
        line += piece
    return line


def read_exactly(connection: socket.socket, length: bytes) -> bytes:
    """As many bytes as `length` says."""
    told = b""
    while len(told) < int.from_bytes(length, "big"):
        piece = connection.recv(1 << 16)
        if not piece:
            raise EOFError("whoever asked has gone")
        told += piece
    return told


def preload() -> None:
    """Import what a command, or a program that uses the library, loads when it runs."""
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.iter_modules(package.__path__, f"{room}."):
            if not found.name.startswith(NOT_LOADED):
                importlib.import_module(found.name)


def _serve(connection: socket.socket) -> None:
    """Returns in each child, whose `sys.argv` is its command. The server itself exits here."""
    while True:
        length, fds, _, _ = socket.recv_fds(connection, 4, 3)
        if not length:
            sys.exit(0)
        request: dict[str, Any] = json.loads(read_exactly(connection, length))
        child = os.fork()
        if child == 0:
            connection.close()
            become(request, fds)
            signal_points.arm(os.environ)
            sys.argv = ["dlog", *request["words"]]
            return
        for fd in fds:
            os.close(fd)
        connection.sendall(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(b"%d\n" % code)


def become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """In a forked child: its standard streams, directory and environment from now on."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = _stream(1, "strict")
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    """As the interpreter makes them for a pipe or a file."""
    raw = open(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=fd == 2)


if __name__ == "__main__":
    preload()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)
    from dlog.cli.main import main

    sys.exit(main())

"""Starts programs of tests as processes of their own without an interpreter for each.

A server process imports the library and the programs once and forks for each start. The fork is a
child of the test's own process, which stops, kills and reaps it by its pid as it does one that
`subprocess` started. Where Linux is not, each program gets an interpreter.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dlog.testing.children import Process, start_interpreter
from tests.unit.cli.fork_server import become, preload, read_exactly, read_line

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
LENGTH_BYTES = 4
FDS = 3
_PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """A child that was forked elsewhere, with the pipes and the ends of a `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


class Forks:
    """One for all tests of a worker: use as a context. `modules` are imported before the first
    program starts."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def spawn(self, words: Sequence[str], env: Mapping[str, str], stderr: IO[bytes]) -> Process:
        """Run the module `words[0]` as `python -m` does, with the rest as its arguments."""
        if sys.platform != "linux":
            return start_interpreter(words, env, stderr)
        connection = self._socket or self._start()
        stdin, to_child = os.pipe()
        from_child, stdout = os.pipe()
        try:
            pid = _request(connection, words, env, [stdin, stdout, stderr.fileno()])
        finally:
            os.close(stdin)
            os.close(stdout)
        return Forked(pid, open(to_child, "wb", buffering=0), open(from_child, "rb", buffering=0))

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *self._modules],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        ours.settimeout(START_S)
        self._socket = ours
        return ours

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None and self._server is not None:
            self._socket.close()
            self._server.wait(START_S)


def _request(
    connection: socket.socket, words: Sequence[str], env: Mapping[str, str], fds: Sequence[int]
) -> int:
    """The pid of the fork. The process between it and the server ends, and we inherit its child."""
    told = {"words": [*words], "cwd": os.getcwd(), "env": dict(env)}
    request = json.dumps(told).encode()
    _inherit_orphans(True)
    try:
        length = len(request).to_bytes(LENGTH_BYTES, "big")
        socket.send_fds(connection, [length], list(fds))
        connection.sendall(request)
        return int(read_line(connection))
    finally:
        _inherit_orphans(False)


def _inherit_orphans(does: bool) -> None:
    """Whether this process becomes the parent of what its descendants leave behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(connection: socket.socket) -> list[str]:
    """Return in each forked program, with its words. The server itself exits here."""
    while True:
        length, fds, _, _ = socket.recv_fds(connection, LENGTH_BYTES, FDS)
        if not length:
            sys.exit(0)
        request: dict[str, Any] = json.loads(read_exactly(connection, length))
        reading, writing = os.pipe()
        waits, begins = os.pipe()
        between = os.fork()
        if between == 0:
            program = os.fork()
            if program:
                os.write(writing, b"%d\n" % program)
                os._exit(0)
            for fd in (reading, writing, begins):
                os.close(fd)
            connection.close()
            os.read(waits, 1)  # until the server closes the other end
            os.close(waits)
            become(request, fds)
            return list(request["words"])
        for fd in (*fds, writing, waits):
            os.close(fd)
        os.waitpid(between, 0)  # from here on the program is a child of the test's process,
        os.close(begins)  # and begins: it may look whether its parent changes
        with open(reading, "rb") as pid:
            connection.sendall(pid.read())


if __name__ == "__main__":
    preload()
    for _module in sys.argv[2:]:
        importlib.import_module(_module)
    with socket.socket(fileno=int(sys.argv[1])) as _connection:
        _words = _serve(_connection)
    sys.argv = _words
    sys.modules.pop(_words[0], None)
    runpy.run_module(_words[0], run_name="__main__", alter_sys=True)

"""Starts Python programs for those who know only the path of an interpreter: shells and Spark.

A server process imports what the programs need once. `Launcher` writes an executable that takes the
place of `python`: for `-m` and a module that the server knows, it has the server fork, passes its
standard streams on, and ends as the fork ends; whatever else it is given it leaves to the
interpreter. A program is a process of its own in every way but its parent.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.unit.cli.fork_server import become, preload, read_exactly

ROOT = Path(__file__).resolve().parents[1]
END_S = 60.0
FDS = 3
LENGTH_BYTES = 4
SOCKET = "launcher.socket"

# The executable: a few milliseconds. It waits for the exit code, and passes signals on.
CLIENT = """\
#!{python} -IS
import os, signal, sys
words = sys.argv[1:]
if len(words) < 2 or words[0] != "-m" or words[1] not in {modules!r}:
    os.execv({python!r}, [{python!r}, *words])
import json, socket
server = socket.socket(socket.AF_UNIX)
place = os.open({place!r}, os.O_RDONLY)
server.connect(f"/proc/self/fd/{{place}}/{name}")  # the path itself may be too long
os.close(place)
told = json.dumps(
    {{"words": words[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
).encode()
socket.send_fds(server, [len(told).to_bytes(4, "big")], [0, 1, 2])
server.sendall(told)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: server.sendall(b"%d\\n" % number))
for fd in (0, 1):
    os.close(fd)
code = b""
while piece := server.recv(64):
    code += piece
code = int(code or b"70")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Launcher:
    """`path` is the executable. The server starts at once, and ends with `end()`."""

    def __init__(self, place: Path, modules: Sequence[str], imports: Sequence[str] = ()) -> None:
        self.path = place / "python"
        self.path.write_text(
            CLIENT.format(python=sys.executable, modules=[*modules], place=str(place), name=SOCKET)
        )
        self.path.chmod(0o700)
        self._listening = socket.socket(socket.AF_UNIX)
        directory = os.open(place, os.O_RDONLY)
        self._listening.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        os.close(directory)
        self._listening.listen(64)
        fd = self._listening.fileno()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.launcher", str(fd), *imports],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[fd],
            stdin=subprocess.PIPE,  # the server ends when this is closed, also by our death
        )

    def end(self) -> None:
        self._listening.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(END_S)


class Server:
    """Forks a program for each connection; kills it when its client is gone."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listening, selectors.EVENT_READ, self._accept)
        self._waiting.register(0, selectors.EVENT_READ, lambda: sys.exit(0))
        self._begun: list[str] | None = None

    def serve(self) -> list[str]:
        """Return in each forked program, with its words."""
        while True:
            for key, _ in self._waiting.select():
                key.data()
                if self._begun is not None:
                    return self._begun

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        fds: Sequence[int] = []
        try:
            length, fds, _, _ = socket.recv_fds(client, LENGTH_BYTES, FDS)
            request: dict[str, Any] = json.loads(read_exactly(client, length))
        except (
            OSError,
            EOFError,
            ValueError,
        ):  # the client was killed before it had said what to run
            client.close()
            _close(fds)
            return
        program = os.fork()
        if program == 0:
            self._waiting.close()
            self._listening.close()
            client.close()
            become(request, fds)
            self._begun = list(request["words"])
            return
        _close(fds)
        ended = os.pidfd_open(program)
        self._waiting.register(ended, selectors.EVENT_READ, lambda: self._ended(client, ended))
        self._waiting.register(client, selectors.EVENT_READ, lambda: self._told(client, ended))

    def _told(self, client: socket.socket, program: int) -> None:
        """A signal for the program; or nothing, since the client was killed."""
        if client.fileno() < 0:
            return  # closed by `_ended`, which was ready at the same time
        try:
            told = client.recv(64)
        except ConnectionResetError:
            told = b""
        for number in told.split():
            signal.pidfd_send_signal(program, int(number))
        if not told:
            self._waiting.unregister(client)
            signal.pidfd_send_signal(program, signal.SIGKILL)

    def _ended(self, client: socket.socket, program: int) -> None:
        ended = os.waitid(os.P_PIDFD, program, os.WEXITED)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._waiting.unregister(program)
        os.close(program)
        if client in self._waiting.get_map():
            self._waiting.unregister(client)
            with suppress(ConnectionError):  # the client was killed as the program ended
                client.sendall(b"%d" % code)
        client.close()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def main(listening: socket.socket, imports: Sequence[str]) -> None:
    preload()
    for module in imports:
        importlib.import_module(module)
    words = Server(listening).serve()
    sys.argv = words
    name = words[0]
    if not hasattr(sys.modules.get(name), "__path__"):  # a package has a module for this
        sys.modules.pop(name, None)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])

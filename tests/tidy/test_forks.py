"""Programs that are forked in place of started: they are processes like any other."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.testing.children import Children
from tests.api.waiting import eventually
from tests.forks import Forks
from tests.launcher import SOCKET, Launcher
from tests.tidy.source import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks by Linux's means")

PROGRAM = "json.tool"  # reads its standard input to the end, then says what it made of it


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("launcher-" + "x" * 120), [PROGRAM])
    yield made
    made.end()


def test_a_fork_is_a_child_that_is_frozen_killed_and_reaped(tmp_path: Path) -> None:
    with Forks() as forks, Children(tmp_path, python_path=ROOT, spawn=forks.spawn) as children:
        killed, ended = (children.start(PROGRAM, "--compact") for _ in range(2))
        parent = Path(f"/proc/{killed.pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) == os.getpid()
        killed.freeze()
        killed.kill()
        assert killed.wait_end() == -signal.SIGKILL
        ended.tell("[1,")
        ended.tell("2]")
        assert ended._process.stdin is not None
        ended._process.stdin.close()
        assert ended.wait_end() == 0
        assert ended.lines == ["[1,2]"]


def test_the_launcher_passes_streams_and_exit_codes_on(launcher: Launcher, tmp_path: Path) -> None:
    command = [str(launcher.path), "-m", PROGRAM]
    done = subprocess.run(command, input=b'{"a": 1}', capture_output=True, check=False, timeout=60)
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"a": 1}, b"")
    failed = subprocess.run(command, input=b"{", capture_output=True, check=False, timeout=60)
    assert failed.returncode == 1
    assert failed.stderr
    other = [str(launcher.path), "-c", "import sys; print(sys.executable)"]
    told = subprocess.run(other, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == sys.executable, "what it does not know it leaves to Python"


def unread(pipe: int) -> int:
    """Bytes that its reader has not taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_the_fork(launcher: Launcher, number: int) -> None:
    command = [str(launcher.path), "-m", PROGRAM, "--json-lines"]
    reading, writing = os.pipe()
    with (
        open(writing, "wb", buffering=0) as told,
        subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE) as client,
    ):
        os.close(reading)
        told.write(b"1\n")
        asyncio.run(eventually(lambda: not unread(writing)))
        client.send_signal(number)
        assert client.wait(60) == -number
        assert client.stdout is not None
        client.stdout.read()  # to the end: nobody has the other side of it any more


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\1\0half of a request"])
def test_a_client_that_is_killed_half_way_does_not_end_the_launcher(
    launcher: Launcher, said: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        place = os.open(launcher.path.parent, os.O_RDONLY)
        client.connect(f"/proc/self/fd/{place}/{SOCKET}")
        os.close(place)
        if said:
            socket.send_fds(client, [said], [0, 1, 2])
    assert ends_well(launcher)


@pytest.mark.parametrize("signals", [[signal.SIGTERM, signal.SIGKILL], [signal.SIGKILL]])
def test_a_client_that_is_killed_as_its_program_ends_does_not_end_the_launcher(
    launcher: Launcher, signals: list[int]
) -> None:
    """The server sees both at once, since it stands still meanwhile."""
    command = [str(launcher.path), "-m", PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, "--json-lines"], **pipes) as client:  # type: ignore[call-overload]
        client.stdin.write(b"1\n")
        client.stdin.flush()
        asyncio.run(eventually(lambda: not unread(client.stdin.fileno())))
        server = launcher._server
        server.send_signal(signal.SIGSTOP)
        try:
            client.stdin.close()
            client.stdout.read()  # to its end: the program has ended
            for number in signals:
                client.send_signal(number)
            client.wait(60)
        finally:
            server.send_signal(signal.SIGCONT)
    assert ends_well(launcher)


def ends_well(launcher: Launcher) -> bool:
    command = [str(launcher.path), "-m", PROGRAM]
    return subprocess.run(command, input=b"1", capture_output=True, timeout=60).returncode == 0

"""The simulated bookie beside a real one: the same requests get the same answers."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from dlog.testing.cluster import Bookie
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.transcripts import SimSubject, drawn, play, written
from integration.conftest import OwnCluster

LOOPBACK, TIMEOUT_S = "127.0.0.1", 10.0
SCRIPTS, STEPS = 40, 120
SEED = int(os.environ.get("DLOG_SIM_FIRST", "0"))


class RealSubject:
    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._sockets: dict[bool, socket.socket] = {}

    def ask(self, frame: bytes, *, binary: bool) -> bytes | None:
        stream = self._sockets.get(binary)
        if stream is None:
            stream = socket.create_connection((LOOPBACK, self._bookie.port), TIMEOUT_S)
            self._sockets[binary] = stream
        try:
            stream.sendall(frame)
            (size,) = struct.unpack(">I", _exactly(stream, 4))
            return _exactly(stream, size)
        except ConnectionError:
            self._sockets.pop(binary).close()
            return None

    def kill(self) -> None:
        self._bookie.kill()
        self._up_again()

    def shut_down(self) -> None:
        self._bookie.terminate()
        self._up_again()

    def _up_again(self) -> None:
        self.close()
        self._bookie.start()
        self._bookie.wait_until_serving()

    def close(self) -> None:
        for stream in self._sockets.values():
            stream.close()
        self._sockets.clear()


def _exactly(stream: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = stream.recv(size - len(got))
        if not piece:
            raise ConnectionResetError("closed")
        got += piece
    return bytes(got)


@pytest.fixture
def real(own_cluster: OwnCluster) -> Iterator[RealSubject]:
    subject = RealSubject(own_cluster(bookies=1).bookies[0])
    yield subject
    subject.close()


def test_the_same_requests_get_the_same_answers(real: RealSubject) -> None:
    """C1, C3, C7, C8, C10, C12 and what else the simulated bookie was made after."""
    steps = written(1_000)
    assert play(steps, SimSubject()) == play(steps, real)


def test_whatever_is_asked(real: RealSubject) -> None:
    for number in range(SCRIPTS):
        steps = drawn(of_seed(SEED + number), 10_000 + 10 * number, STEPS)
        assert play(steps, SimSubject()) == play(steps, real), f"script {SEED + number}"

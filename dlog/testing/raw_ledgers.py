"""What bookies and ZooKeeper really keep: asked with the codecs alone, past every client, over a
blocking socket of its own. Both clients' entries are compared by these bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from dlog.testing.cluster import Bookie, Cluster
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import AddReplies, Flag, ReadReply, pack_add, pack_read, parse_reply
from dlog.wire.ledger_metadata import LedgerMetadata
from dlog.wire.ledger_metadata_format import parse_ledger_metadata
from dlog.wire.ledger_paths import Manager, ledger_path

R = TypeVar("R")

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 10.0
_NUMBERS = struct.Struct(">qqqq")


class Head(NamedTuple):
    """The numbers in front of every stored entry."""

    ledger_id: int
    entry_id: int
    last_confirmed: int
    ledger_bytes: int


def head_of(frame: bytes) -> Head:
    return Head(*_NUMBERS.unpack_from(frame))


class RawBookie:
    """One connection to one bookie, one request at a time."""

    def __init__(self, bookie: Bookie) -> None:
        self._where = f"bookie {bookie.bookie_id}"
        self._socket = socket.create_connection((LOOPBACK, bookie.port), TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def read(self, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None) -> ReadReply:
        return _of_kind(ReadReply, self._ask(pack_read(ledger_id, entry_id, fence_key=fence_key)))

    def send_adds(self, frames: bytes, count: int) -> list[AddReplies]:
        """Whole frames, back to back; so many answers."""
        self._socket.sendall(frames)
        return [_of_kind(AddReplies, self._reply()) for _ in range(count)]

    def add(
        self, head: bytes, payload: bytes, *, key: bytes, flags: Flag = Flag.NONE
    ) -> AddReplies:
        front = pack_add(head, payload_bytes=len(payload), master_key=key, flags=flags)
        return _of_kind(AddReplies, self._ask(front + payload))

    def _ask(self, frame: bytes) -> object:
        self._socket.sendall(frame)
        return self._reply()

    def _reply(self) -> object:
        (size,) = struct.unpack(">I", self._exactly(4))
        return parse_reply(memoryview(self._exactly(size)), self._where)

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            piece = self._socket.recv(size - len(got))
            if not piece:
                raise ConnectionResetError(f"{self._where} closed the connection")
            got += piece
        return bytes(got)


def _of_kind(kind: type[R], reply: object) -> R:
    if not isinstance(reply, kind):
        raise AssertionError(f"the answer is no {kind.__name__}: {reply!r}")
    return reply


@contextmanager
def connected(bookie: Bookie) -> Iterator[RawBookie]:
    raw = RawBookie(bookie)
    try:
        yield raw
    finally:
        raw.close()


def stored_entry(bookie: Bookie, ledger_id: int, entry_id: int) -> bytes | None:
    """The bytes of an entry on this bookie: numbers, digest, payload. None if the bookie says that
    it has none; another refusal does not say so, and raises."""
    with connected(bookie) as raw:
        reply = raw.read(ledger_id, entry_id)
    if reply.answer not in (Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER):
        raise AssertionError(f"entry {entry_id} of {ledger_id}: {reply.answer}")
    return None if reply.entry is None else bytes(reply.entry)


def metadata_of(cluster: Cluster, ledger_id: int, raw: bytes) -> LedgerMetadata:
    return parse_ledger_metadata(raw, where=f"ledger {ledger_id} in {cluster.ledgers_root}")


def node_path(cluster: Cluster, ledger_id: int) -> str:
    return cluster.ledgers_root + ledger_path(Manager.HIERARCHICAL, ledger_id)

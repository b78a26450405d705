"""What the tests of connections share: answers as bookies pack them, and someone to hear them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.data_connection import DataConnection
from dlog.wire.bookie_codes import Answer, ReturnCode, StatusCode
from dlog.wire.bookie_digest import master_key
from dlog.wire.bookie_v2 import Opcode
from dlog.wire.bookie_v3 import Operation
from dlog.wire.protobuf import pack_bytes, pack_number

KEY = master_key(b"secret")
BIG = 1 << 30


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def add_frame(payload: bytes = b"hello") -> bytes:
    """As far as a link looks into it."""
    return framed(struct.pack(">I", 2 << 24 | Opcode.ADD << 16) + payload)


def add_reply(ledger_id: int, entry_id: int, code: int = ReturnCode.EOK) -> bytes:
    return framed(struct.pack(">Iiqq", 2 << 24 | Opcode.ADD << 16, code, ledger_id, entry_id))


def entry_of(text: bytes) -> bytes:
    """Long enough to be an entry; what stands in it is not looked at."""
    return bytes(32) + text


def read_reply(ledger_id: int, entry_id: int, entry: bytes | None) -> bytes:
    code = ReturnCode.ENOENTRY if entry is None else ReturnCode.EOK
    head = struct.pack(">Iiqq", 2 << 24 | Opcode.READ << 16, code, ledger_id, entry_id)
    return framed(head + (entry or b""))


def batch_reply(ledger_id: int, first_entry: int, request_id: int, entries: list[bytes]) -> bytes:
    code = ReturnCode.EOK if entries else ReturnCode.ENOENTRY
    word = 2 << 24 | Opcode.BATCH_READ << 16
    body = struct.pack(">Iiqqq", word, code, ledger_id, first_entry, request_id)
    return framed(body + b"".join(framed(entry) for entry in entries))


def lac_response(
    txn_id: int, ledger_id: int = 7, status: int = StatusCode.EOK, *, operation: int = 6
) -> bytes:
    """To WRITE_LAC, unless told otherwise."""
    header = pack_number(1, 3) + pack_number(2, operation) + pack_number(3, txn_id)
    body = pack_number(1, status) + pack_number(2, ledger_id)
    number = {Operation.WRITE_LAC: 103, Operation.FORCE: 107}[Operation(operation)]
    return framed(pack_bytes(1, header) + pack_number(2, status) + pack_bytes(number, body))


@dataclass
class Sink:
    """Hears what a link says of one ledger."""

    told: list[tuple[Answer, list[int]]] = field(default_factory=list)
    rooms: int = 0
    ends: list[Answer] = field(default_factory=list)

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        self.told.append((answer, entry_ids))

    def on_room(self, link: Any) -> None:
        self.rooms += 1

    def on_down(self, link: Any, answer: Answer) -> None:
        self.ends.append(answer)


class Data(DataConnection):
    """A connection whose driver is the test."""

    def __init__(self, *, may_fence: bool = False) -> None:
        self.sent: list[bytes] = []
        self.notes: list[Answer] = []
        self.hung = 0
        self.rooms = 0
        super().__init__(
            self,  # type: ignore[arg-type]
            "a bookie",
            send=lambda frame: self.sent.append(bytes(frame)),
            note=self.notes.append,
            on_hung=self._count_hung,
            on_room=self._count_room,
            may_fence=may_fence,
        )

    def _count_hung(self) -> None:
        self.hung += 1

    def _count_room(self) -> None:
        self.rooms += 1


class Control(ControlConnection):
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.notes: list[Answer] = []
        super().__init__(
            "a bookie",
            send=lambda frame: self.sent.append(bytes(frame)),
            note=self.notes.append,
        )

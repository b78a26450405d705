"""A bookie's end of a byte stream: requests of both protocols in, answers out.

The other half of the codecs in `dlog.wire`, made for tests: it takes what stock bookies take and
closes the connection, without a word, where they do (opcodes that nobody serves, lengths that
cannot be, a fencing read without a key). Like theirs, a connection may begin in protobuf and turns
to the binary protocol for good with the first frame that is of it.

`WireServer` stands between a stream and a `Server`: whoever owns the stream feeds it what arrives,
in any cuts, and carries what it sends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from dlog.errors import Corrupt, FormatError
from dlog.limits import BOOKIE_FRAME_BYTES_MAX
from dlog.testing.sim.server import AddRequest, Poll, Server
from dlog.wire.bookie_codes import Answer, ReturnCode, StatusCode
from dlog.wire.bookie_digest import MASTER_KEY_BYTES, NUMBERS_BYTES
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v2 import Flag, Opcode
from dlog.wire.bookie_v3 import BODY_FIELDS, Operation, ReadFlag
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message, pack_bytes, pack_number

_V2, _V3 = 2, 3
_WORD = struct.Struct(">BBh")
_IDS = struct.Struct(">qq")
_BATCH = struct.Struct(">qqqiq")
_REPLY = struct.Struct(">iBBhiqq")
_LENGTH = struct.Struct(">i")
_REQUEST_ID = struct.Struct(">q")
_REPLY_BODY_BYTES = _REPLY.size - _LENGTH.size

RETURN_CODES: Final = {
    Answer.OK: ReturnCode.EOK,
    Answer.NO_LEDGER: ReturnCode.ENOLEDGER,
    Answer.NO_ENTRY: ReturnCode.ENOENTRY,
    Answer.BAD_REQUEST: ReturnCode.EBADREQ,
    Answer.IO_FAILED: ReturnCode.EIO,
    Answer.UNAUTHORIZED: ReturnCode.EUA,
    Answer.FENCED: ReturnCode.EFENCED,
    Answer.READ_ONLY: ReturnCode.EREADONLY,
    Answer.BUSY: ReturnCode.ETOOMANYREQUESTS,
    Answer.LIMBO: ReturnCode.EUNKNOWNLEDGERSTATE,
}
STATUS_CODES: Final = {answer: StatusCode[code.name] for answer, code in RETURN_CODES.items()}

_REQUEST = Fields({1: BYTES} | dict.fromkeys(BODY_FIELDS.values(), BYTES))
_HEADER = Fields({1: NUMBER, 2: NUMBER, 3: NUMBER, 4: NUMBER})
_READ_FIELDS = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: NUMBER, 5: NUMBER, 100: NUMBER})
_ADD_FIELDS = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES, 5: NUMBER, 100: NUMBER})
_WRITE_LAC_FIELDS = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES})
_ONE_NUMBER = Fields({1: NUMBER})
_DISK_BYTES = 1 << 40

Send = Callable[[bytes], None]


class WireServer:
    """One connection. It is the `Caller` that its server answers."""

    def __init__(self, server: Server, *, send: Send, reset: Callable[[], None]) -> None:
        self.is_up = True
        self._server = server
        self._send = send
        self._reset = reset
        self._splitter = FrameSplitter(
            f"a client of {server.bookie_id}", body_bytes_max=BOOKIE_FRAME_BYTES_MAX
        )
        self._is_binary = False
        server.callers.append(self)

    def receive(self, chunk: bytes) -> None:
        """The next bytes. Only through `Server.hear`, which knows whether it listens."""
        try:
            self._splitter.feed(chunk)
            while self.is_up and (run := self._splitter.next_run()) is not None:
                adds: dict[int, list[AddRequest]] = {}
                for body in run.bodies():
                    self._serve(bytes(body), adds)
                self._add(adds)
        except (FormatError, Corrupt, struct.error):
            self.reset()

    # --- the server's side

    def answer(self, what: Callable[[], None]) -> None:
        if self.is_up:
            what()

    def reset(self) -> None:
        if self.is_up:
            self.close()
            self._reset()

    def close(self) -> None:
        """By the client."""
        self.is_up = False
        if self in self._server.callers:
            self._server.callers.remove(self)

    # --- requests

    def _serve(self, body: bytes, adds: dict[int, list[AddRequest]]) -> None:
        if not self.is_up:
            return
        if self._is_binary or body[0] == _V2:
            self._is_binary = True
            self._serve_binary(body, adds)
        else:
            self._serve_protobuf(body)

    def _serve_binary(self, body: bytes, adds: dict[int, list[AddRequest]]) -> None:
        version, opcode, flags = _WORD.unpack_from(body)
        rest = body[_WORD.size :]
        if version != _V2:
            self.reset()
        elif opcode == Opcode.ADD:
            key, raw = rest[:MASTER_KEY_BYTES], rest[MASTER_KEY_BYTES:]
            if len(raw) < NUMBERS_BYTES:
                self.reset()
                return
            ledger_id, entry_id = _IDS.unpack_from(raw)
            is_recovery = bool(flags & Flag.RECOVERY_ADD)
            adds.setdefault(ledger_id, []).append(AddRequest(entry_id, raw, key, is_recovery))
        elif opcode == Opcode.READ:
            ledger_id, entry_id = _IDS.unpack_from(rest)
            self._read(ledger_id, entry_id, self._key(flags, rest[_IDS.size :]))
        elif opcode == Opcode.BATCH_READ:
            ledger_id, first_entry, request_id, count_max, bytes_max = _BATCH.unpack_from(rest)
            fence_key = self._key(flags, rest[_BATCH.size :])
            self._batch_read(ledger_id, first_entry, request_id, count_max, bytes_max, fence_key)
        else:
            self.reset()

    def _key(self, flags: int, rest: bytes) -> bytes | None:
        if not flags & Flag.FENCE:
            return None
        if len(rest) != MASTER_KEY_BYTES:
            raise Corrupt("a fencing read without its key")
        return rest

    def _add(self, adds: dict[int, list[AddRequest]]) -> None:
        for ledger_id, requests in adds.items():

            def told(answer: Answer, entry_ids: list[int], ledger_id: int = ledger_id) -> None:
                self._send(
                    b"".join(
                        _reply(Opcode.ADD, answer, ledger_id, entry_id) for entry_id in entry_ids
                    )
                )

            self._server.add(self, ledger_id, requests, told)

    def _read(self, ledger_id: int, entry_id: int, key: bytes | None) -> None:
        def told(answer: Answer, raw: bytes | None) -> None:
            self._send(_reply(Opcode.READ, answer, ledger_id, entry_id, raw or b""))

        self._server.read(self, ledger_id, entry_id, key, told)

    def _batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        request_id: int,
        count_max: int,
        frame_bytes_max: int,
        key: bytes | None,
    ) -> None:
        def told(answer: Answer, found: list[bytes]) -> None:
            rest = b"".join(_LENGTH.pack(len(raw)) + raw for raw in found)
            self._send(
                _reply(
                    Opcode.BATCH_READ,
                    answer,
                    ledger_id,
                    first_entry,
                    _REQUEST_ID.pack(request_id) + rest,
                )
            )

        self._server.batch_read(self, ledger_id, first_entry, count_max, frame_bytes_max, key, told)

    def _serve_protobuf(self, body: bytes) -> None:
        where = "a request"
        message = Message(body, _REQUEST, where)
        header = message.message(1, _HEADER, "header")
        operation, txn_id = Operation(header.uint64(2)), header.uint64(3)
        number = BODY_FIELDS[operation]
        if header.uint64(1) != _V3:
            self.reset()
        elif operation is Operation.READ:
            self._serve_read(txn_id, message.message(number, _READ_FIELDS, "read"))
        elif operation is Operation.ADD:
            self._serve_add(txn_id, message.message(number, _ADD_FIELDS, "add"))
        elif operation is Operation.WRITE_LAC:
            self._serve_write_lac(txn_id, message.message(number, _WRITE_LAC_FIELDS, "write LAC"))
        elif operation is Operation.READ_LAC:
            self._serve_read_lac(txn_id, message.message(number, _ONE_NUMBER, "read LAC"))
        elif operation is Operation.FORCE:
            ledger_id = message.message(number, _ONE_NUMBER, "force").int64(1)
            self._send(_response(operation, txn_id, Answer.OK, pack_number(2, ledger_id)))
        elif operation is Operation.GET_BOOKIE_INFO:
            disk = pack_number(2, _DISK_BYTES) + pack_number(3, _DISK_BYTES)
            self._send(_response(operation, txn_id, Answer.OK, disk))
        else:
            self.reset()

    def _serve_read(self, txn_id: int, read: Message) -> None:
        ledger_id, entry_id = read.int64(1), read.int64(2)
        flag = read.optional_int64(100)
        previous_lac = read.optional_int64(4)

        def told(answer: Answer, found: int, raw: bytes | None, lac: int | None) -> None:
            body = pack_number(2, ledger_id) + pack_number(3, found)
            if raw is not None:
                body += pack_bytes(4, raw)
            if lac is not None and answer is Answer.OK:
                body += pack_number(5, lac)
            self._send(_response(Operation.READ, txn_id, answer, body))

        if previous_lac is not None:
            timeout_ms = float(read.optional_int64(5) or 0)
            poll = Poll(ledger_id, previous_lac, timeout_ms, told)
            self._server.poll(self, poll)
            return
        key = None
        if flag == ReadFlag.FENCE_LEDGER:
            key = bytes(read.bytes(3))
        self._server.read(
            self, ledger_id, entry_id, key, lambda answer, raw: told(answer, entry_id, raw, None)
        )

    def _serve_add(self, txn_id: int, add: Message) -> None:
        ledger_id, entry_id = add.int64(1), add.int64(2)
        request = AddRequest(
            entry_id, bytes(add.bytes(4)), bytes(add.bytes(3)), add.optional_int64(100) == 1
        )
        body = pack_number(2, ledger_id) + pack_number(3, entry_id)
        self._server.add(
            self,
            ledger_id,
            [request],
            lambda answer, _: self._send(_response(Operation.ADD, txn_id, answer, body)),
        )

    def _serve_write_lac(self, txn_id: int, write: Message) -> None:
        ledger_id = write.int64(1)
        body = pack_number(2, ledger_id)
        self._server.write_lac(
            self,
            ledger_id,
            write.int64(2),
            bytes(write.bytes(4)),
            bytes(write.bytes(3)),
            lambda answer: self._send(_response(Operation.WRITE_LAC, txn_id, answer, body)),
        )

    def _serve_read_lac(self, txn_id: int, read: Message) -> None:
        ledger_id = read.int64(1)

        def told(answer: Answer, proof: bytes | None, last: bytes | None) -> None:
            body = pack_number(2, ledger_id)
            if proof is not None:
                body += pack_bytes(3, proof)
            if last is not None:
                body += pack_bytes(4, last)
            self._send(_response(Operation.READ_LAC, txn_id, answer, body))

        self._server.read_lac(self, ledger_id, told)


def _reply(
    opcode: Opcode, answer: Answer, ledger_id: int, entry_id: int, rest: bytes = b""
) -> bytes:
    code = RETURN_CODES[answer]
    size = _REPLY_BODY_BYTES + len(rest)
    return _REPLY.pack(size, _V2, opcode, 0, code, ledger_id, entry_id) + rest


def _response(operation: Operation, txn_id: int, answer: Answer, body: bytes) -> bytes:
    """Bookies repeat the inner code outside."""
    code = STATUS_CODES[answer]
    header = pack_number(1, _V3) + pack_number(2, operation) + pack_number(3, txn_id)
    message = (
        pack_bytes(1, header)
        + pack_number(2, code)
        + pack_bytes(BODY_FIELDS[operation], pack_number(1, code) + body)
    )
    return _LENGTH.pack(len(message)) + message

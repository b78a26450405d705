"""Answers of the protobuf protocol, from bytes to values.

An answer has two codes: one for the request as such, and one inside for what came of it. `answer`
is the outer one unless that is OK, so nobody has to look twice. An answer that failed may come
without a body, one that is OK has the body of its operation and of no other. Entries and LAC proofs
in it are views, not verified yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dlog.errors import Corrupt, FormatError
from dlog.wire import Buffer
from dlog.wire.bookie_auth import AUTH_FIELDS, AuthMessage
from dlog.wire.bookie_codes import Answer, answer_of_status_code
from dlog.wire.bookie_digest import NUMBERS_BYTES
from dlog.wire.bookie_v3 import BODY_FIELDS, VERSION, Operation
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message


class ReadBody(NamedTuple):
    """`entry` is missing from failed reads and from long polls that ended without one."""

    ledger_id: int
    entry_id: (
        int  # as asked for, or of the entry that a long poll brought; -1 where it brought none
    )
    entry: memoryview | None
    last_confirmed: int | None  # as the bookie knows it; no digest covers it
    last_confirmed_at_ms: int | None  # by the bookie's clock


class AddBody(NamedTuple):
    ledger_id: int
    entry_id: int


class WriteLacBody(NamedTuple):
    ledger_id: int


class ReadLacBody(NamedTuple):
    """Never a proof that a bookie has nothing: its code says so for other reasons, too."""

    ledger_id: int
    proof: memoryview | None  # the explicit LAC
    last_entry: memoryview | None


class ForceBody(NamedTuple):
    ledger_id: int


class BookieInfoBody(NamedTuple):
    total_disk_bytes: int | None
    free_disk_bytes: int | None


class StartTlsBody(NamedTuple):
    pass


Body = (
    ReadBody
    | AddBody
    | WriteLacBody
    | ReadLacBody
    | ForceBody
    | BookieInfoBody
    | StartTlsBody
    | AuthMessage
)


@dataclass(frozen=True, slots=True)
class Response:
    txn_id: int
    operation: Operation
    answer: Answer
    body: Body | None


def parse_response(raw: Buffer, where: str) -> Response:
    """One frame without its length. `FormatError` for a version, operation or code that is not in
    this protocol, `Corrupt` for bytes that are no response or contradict themselves."""
    message = Message(raw, _RESPONSE, where)
    header = message.message(1, _HEADER, "header")
    version = header.uint64(1)
    if version != VERSION:
        raise FormatError(f"{where}: an answer of protocol version {version}, not {VERSION}")
    operation = _OPERATIONS.get(header.uint64(2))
    if operation is None:
        raise FormatError(f"{where}: an answer to the unknown operation {header.uint64(2)}")
    answer = answer_of_status_code(message.int32(2), where)
    number = BODY_FIELDS[operation]
    bodies = [other for other in message.string_numbers() if other in _BODY_NUMBERS]
    if bodies not in ([], [number]):
        raise Corrupt(f"{where}: an answer to {operation.name} has the fields {bodies}")
    if not bodies:
        if answer is Answer.OK:
            raise Corrupt(f"{where}: an answer to {operation.name} is OK and has no body")
        return Response(header.uint64(3), operation, answer, None)
    fields, parse = _BODIES[operation]
    inner = message.message(number, fields, operation.name)
    if answer is Answer.OK and operation in _WITH_STATUS:
        answer = answer_of_status_code(inner.int32(1), where)
    body = parse(inner, answer, where)
    return Response(header.uint64(3), operation, answer, body)


def _parse_read(inner: Message, answer: Answer, where: str) -> ReadBody:
    body = ReadBody(
        inner.int64(2),
        inner.int64(3),
        _entry(inner, 4, where),
        inner.optional_int64(5),
        inner.optional_int64(6),
    )
    if answer is Answer.OK and body.entry is None and body.entry_id >= 0:
        raise Corrupt(f"{where}: entry {body.entry_id} of ledger {body.ledger_id} has no bytes")
    return body


def _parse_add(inner: Message, answer: Answer, where: str) -> AddBody:
    return AddBody(inner.int64(2), inner.int64(3))


def _parse_write_lac(inner: Message, answer: Answer, where: str) -> WriteLacBody:
    return WriteLacBody(inner.int64(2))


def _parse_read_lac(inner: Message, answer: Answer, where: str) -> ReadLacBody:
    return ReadLacBody(inner.int64(2), inner.optional_bytes(3), _entry(inner, 4, where))


def _parse_force(inner: Message, answer: Answer, where: str) -> ForceBody:
    return ForceBody(inner.int64(2))


def _parse_bookie_info(inner: Message, answer: Answer, where: str) -> BookieInfoBody:
    return BookieInfoBody(inner.optional_int64(2), inner.optional_int64(3))


def _parse_start_tls(inner: Message, answer: Answer, where: str) -> StartTlsBody:
    return StartTlsBody()


def _parse_auth(inner: Message, answer: Answer, where: str) -> AuthMessage:
    return AuthMessage.from_message(inner)


def _entry(inner: Message, number: int, where: str) -> memoryview | None:
    entry = inner.optional_bytes(number)
    if entry is not None and len(entry) < NUMBERS_BYTES:
        raise Corrupt(f"{where}: an entry of {len(entry)} bytes")
    return entry


_HEADER: Final = Fields({1: NUMBER, 2: NUMBER, 3: NUMBER})
_BODY_NUMBERS: Final = frozenset(BODY_FIELDS.values())
_RESPONSE: Final = Fields({1: BYTES, 2: NUMBER} | dict.fromkeys(_BODY_NUMBERS, BYTES))
_OPERATIONS: Final = {int(operation): operation for operation in BODY_FIELDS}
_READ: Final = Fields({1: NUMBER, 2: NUMBER, 3: NUMBER, 4: BYTES, 5: NUMBER, 6: NUMBER})
_THREE_NUMBERS: Final = Fields({1: NUMBER, 2: NUMBER, 3: NUMBER})
_TWO_NUMBERS: Final = Fields({1: NUMBER, 2: NUMBER})
_READ_LAC: Final = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES})
_BODIES: Final[dict[Operation, tuple[Fields, Callable[[Message, Answer, str], Body]]]] = {
    Operation.READ: (_READ, _parse_read),
    Operation.ADD: (_THREE_NUMBERS, _parse_add),
    Operation.WRITE_LAC: (_TWO_NUMBERS, _parse_write_lac),
    Operation.READ_LAC: (_READ_LAC, _parse_read_lac),
    Operation.FORCE: (_TWO_NUMBERS, _parse_force),
    Operation.GET_BOOKIE_INFO: (_THREE_NUMBERS, _parse_bookie_info),
    Operation.START_TLS: (Fields({}), _parse_start_tls),
    Operation.AUTH: (AUTH_FIELDS, _parse_auth),
}
_WITH_STATUS: Final = BODY_FIELDS.keys() - {Operation.START_TLS, Operation.AUTH}
assert _BODIES.keys() == BODY_FIELDS.keys()

"""The protobuf protocol: vectors, both codes of an answer, and answers that lie."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Broken, Corrupt, FormatError, TooLarge
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.wire import bookie_v3 as v3
from dlog.wire.bookie_auth import AuthMessage
from dlog.wire.bookie_codes import Answer, StatusCode, answer_of_status_code
from dlog.wire.bookie_v3 import BODY_FIELDS, Operation
from dlog.wire.bookie_v3_replies import (
    AddBody,
    BookieInfoBody,
    ForceBody,
    ReadBody,
    ReadLacBody,
    Response,
    StartTlsBody,
    WriteLacBody,
    parse_response,
)
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message, pack_bytes, pack_number
from tests.unit.wire.bookie_tools import (
    CRC32C,
    DOCUMENTED,
    HEAD,
    KEY,
    PAYLOAD,
    UNHURRIED,
    body,
    frame,
    verdicts,
)

ENTRY = HEAD + PAYLOAD
TXN = st.integers(0, (1 << 64) - 1)
NUMBERS = Fields(dict.fromkeys((1, 2, 4, 5, 100), NUMBER) | {3: BYTES})


def test_requests() -> None:
    made = {
        "read": v3.pack_read(1, 7, 3),
        "fence_lac": v3.pack_read(2, 7, -1, fence_key=KEY),
        "add": v3.pack_add(3, 7, 3, HEAD, payload_bytes=5, master_key=KEY) + PAYLOAD,
        "read_lac": v3.pack_read_lac(4, 7),
        "start_tls": v3.pack_start_tls(5),
    }
    for name, raw in made.items():
        assert raw == frame("v3", name), name


def inner_of(raw: bytes, operation: Operation, fields: Fields = NUMBERS) -> tuple[Message, Message]:
    """Header and body of a request, read by our own reader; the length in front is right."""
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    number = BODY_FIELDS[operation]
    outer = Message(raw[4:], Fields({1: BYTES, number: BYTES}), "request")
    assert outer.unknown == b""
    header = outer.message(1, Fields(dict.fromkeys((1, 2, 3, 4), NUMBER)), "header")
    assert (header.uint64(1), header.uint64(2)) == (3, operation)
    return header, outer.message(number, fields, "body")


@UNHURRIED
@given(TXN, st.integers(-1, (1 << 62)), st.integers(1, 1 << 31))
def test_long_polls(txn_id: int, previous_lac: int, timeout_ms: int) -> None:
    raw = v3.pack_long_poll(txn_id, 7, previous_lac=previous_lac, timeout_ms=timeout_ms)
    header, poll = inner_of(raw, Operation.READ)
    assert header.uint64(3) == txn_id
    wanted = [7, -1, previous_lac, timeout_ms, 2]
    assert [poll.int64(number) for number in (1, 2, 4, 5, 100)] == wanted


def test_a_recovery_add_of_deferred_sync_at_high_priority() -> None:
    raw = v3.pack_add(
        3,
        7,
        3,
        HEAD,
        payload_bytes=5,
        master_key=KEY,
        recovery=True,
        deferred_sync=True,
        high_priority=True,
    )
    fields = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES, 5: NUMBER, 100: NUMBER})
    header, add = inner_of(raw + PAYLOAD, Operation.ADD, fields)
    assert header.uint64(4) == 100
    assert [add.int64(number) for number in (1, 2, 5, 100)] == [7, 3, 1, 1]
    assert (add.bytes(3), add.bytes(4)) == (KEY, ENTRY)


def test_the_other_requests() -> None:
    proof = CRC32C.pack_lac(7, 3)
    fields = Fields({1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES})
    raw = v3.pack_write_lac(9, 7, 3, proof, master_key=KEY)
    _, lac = inner_of(raw, Operation.WRITE_LAC, fields)
    assert (lac.int64(1), lac.int64(2), lac.bytes(3), lac.bytes(4)) == (7, 3, KEY, proof)
    _, force = inner_of(v3.pack_force(9, 7), Operation.FORCE)
    assert force.int64(1) == 7
    _, info = inner_of(v3.pack_get_bookie_info(9), Operation.GET_BOOKIE_INFO)
    assert info.int64(1) == 3
    message = AuthMessage("sasl", b"token")
    _, auth = inner_of(v3.pack_auth(9, message), Operation.AUTH, Fields({1: BYTES, 2: BYTES}))
    assert AuthMessage.from_message(auth) == message


def test_bounds_of_requests() -> None:
    with pytest.raises(TooLarge):
        v3.pack_add(1, 7, 3, HEAD, payload_bytes=LEDGER_ENTRY_BYTES_MAX + 1, master_key=KEY)
    v3.pack_add(1, 7, 3, HEAD, payload_bytes=LEDGER_ENTRY_BYTES_MAX, master_key=KEY)
    v3.pack_add(1, 7, 3, HEAD, payload_bytes=5_242_700, master_key=KEY, recovery=True)
    with pytest.raises(TooLarge):
        v3.pack_add(1, 7, 3, HEAD, payload_bytes=5_242_816, master_key=KEY, recovery=True)
    with pytest.raises(Broken):
        v3.pack_read(1, 7, 3, fence_key=KEY[1:])
    with pytest.raises(Broken):
        v3.pack_long_poll(1, 7, previous_lac=-2, timeout_ms=1000)


def response(operation: int, inner: bytes | None, status: int = 0, **header: int) -> bytes:
    txn = header.get("txn_id", 3)
    head = pack_number(1, header.get("version", 3)) + pack_number(2, operation)
    raw = pack_bytes(1, head + pack_number(3, txn)) + pack_number(2, status)
    if inner is not None:
        raw += pack_bytes(header.get("field", BODY_FIELDS.get(operation, 100)), inner)  # type: ignore[call-overload]
    return raw


def ok(*fields: tuple[int, Any], status: int = 0) -> bytes:
    raw = pack_number(1, status)
    for number, value in fields:
        raw += pack_number(number, value) if isinstance(value, int) else pack_bytes(number, value)
    return raw


PROOF = CRC32C.pack_lac(7, 3)
REPLIES: dict[str, tuple[Operation, bytes, object]] = {
    "read": (
        Operation.READ,
        ok((2, 7), (3, 3), (4, ENTRY), (5, 9)),
        ReadBody(7, 3, memoryview(ENTRY), 9, None),
    ),
    "poll that brought an entry": (
        Operation.READ,
        ok((2, 7), (3, 3), (4, ENTRY), (5, 3), (6, 1_700_000_000_000)),
        ReadBody(7, 3, memoryview(ENTRY), 3, 1_700_000_000_000),
    ),
    "poll that ended empty": (
        Operation.READ,
        ok((2, 7), (3, -1), (5, -1)),
        ReadBody(7, -1, None, -1, None),
    ),
    "add": (Operation.ADD, ok((2, 7), (3, 3)), AddBody(7, 3)),
    "write lac": (Operation.WRITE_LAC, ok((2, 7)), WriteLacBody(7)),
    "read lac": (
        Operation.READ_LAC,
        ok((2, 7), (3, PROOF), (4, ENTRY)),
        ReadLacBody(7, memoryview(PROOF), memoryview(ENTRY)),
    ),
    "force": (Operation.FORCE, ok((2, 7)), ForceBody(7)),
    "info": (Operation.GET_BOOKIE_INFO, ok((2, 1 << 40), (3, 5)), BookieInfoBody(1 << 40, 5)),
    "half an info": (Operation.GET_BOOKIE_INFO, ok((3, 0)), BookieInfoBody(None, 0)),
    "tls": (Operation.START_TLS, b"", StartTlsBody()),
    "auth": (Operation.AUTH, AuthMessage("x", b"y").to_bytes(), AuthMessage("x", b"y")),
}


@pytest.mark.parametrize("name", REPLIES)
def test_answers(name: str) -> None:
    operation, inner, wanted = REPLIES[name]
    found = parse_response(response(operation, inner), "here")
    assert found == Response(3, operation, Answer.OK, wanted)


def test_the_vector_of_an_answer() -> None:
    found = parse_response(body("v3", "add_reply"), "here")
    assert found == Response(3, Operation.ADD, Answer.OK, AddBody(7, 3))


@UNHURRIED
@given(TXN, st.sampled_from(list(StatusCode)), st.sampled_from(list(StatusCode)))
def test_the_outer_code_unless_it_is_ok(txn_id: int, outer: StatusCode, inner: StatusCode) -> None:
    raw = response(Operation.ADD, ok((2, 7), (3, 3), status=inner), outer, txn_id=txn_id)
    found = parse_response(raw, "here")
    heard = inner if outer is StatusCode.EOK else outer
    assert found.answer is answer_of_status_code(heard, "here")
    assert (found.txn_id, found.body) == (txn_id, AddBody(7, 3))


def test_a_failed_answer_may_have_no_body() -> None:
    found = parse_response(response(Operation.READ, None, StatusCode.EUA), "here")
    assert found == Response(3, Operation.READ, Answer.UNAUTHORIZED, None)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (response(Operation.ADD, None), Corrupt),
        (response(Operation.START_TLS, None), Corrupt),
        (response(Operation.ADD, ok((2, 7), (3, 3)), field=100), Corrupt),
        (response(Operation.ADD, ok((2, 7), (3, 3)) + b"\x0f"), FormatError),
        (response(Operation.ADD, ok((2, 7), (3, 3))) + pack_bytes(107, ok((2, 7))), Corrupt),
        (response(Operation.ADD, ok((2, 7))), Corrupt),
        (response(Operation.READ, ok((2, 7), (3, 3))), Corrupt),
        (response(Operation.READ, ok((2, 7), (3, 3), (4, ENTRY[:31]))), Corrupt),
        (response(Operation.ADD, ok((2, 7), (3, 3)), version=2), FormatError),
        (response(Operation.RANGE_READ, ok()), FormatError),
        (response(Operation.BATCH_READ, ok()), FormatError),
        (response(77, ok()), FormatError),
        (response(Operation.ADD, ok((2, 7), (3, 3)), 1), FormatError),
        (response(Operation.ADD, ok((2, 7), (3, 3), status=508)), FormatError),
        (b"", Corrupt),
    ],
)
def test_answers_that_contradict_the_protocol(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match="here"):
        parse_response(raw, "here")


def test_fields_of_later_versions_are_passed_over() -> None:
    inner = ok((2, 7), (3, 3), (900, b"new"))
    raw = response(Operation.ADD, inner) + pack_number(4000, 1)
    assert parse_response(raw, "here").body == AddBody(7, 3)


@pytest.mark.parametrize("name", REPLIES)
def test_harmed_answers(name: str) -> None:
    operation, inner, _ = REPLIES[name]
    _, refused = verdicts(lambda raw: parse_response(raw, "here"), response(operation, inner))
    assert refused > 0


@UNHURRIED
@given(st.binary(max_size=120))
def test_anything_behind_a_header(rest: bytes) -> None:
    try:
        parse_response(bytes.fromhex("0a060803100218031000") + rest, "here")
    except DOCUMENTED:
        return

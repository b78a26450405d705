"""The binary protocol: vectors, bounds, and answers that lie."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Broken, Corrupt, FormatError, TooLarge
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import bookie_v2 as v2
from dlog.wire.bookie_auth import AUTH_DISABLED, AuthMessage
from dlog.wire.bookie_codes import Answer, ReturnCode
from dlog.wire.bookie_digest import DIGEST_BYTES, DigestType
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v2 import AddReplies, BatchReadReply, Flag, ReadReply
from tests.unit.wire.bookie_tools import (
    CRC32C,
    DOCUMENTED,
    HEAD,
    KEY,
    PAYLOAD,
    UNHURRIED,
    body,
    frame,
    runs,
    vectors,
    verdicts,
)

ID = st.integers(-1, (1 << 63) - 1)


def test_requests() -> None:
    made = {
        "add": v2.pack_add(HEAD, payload_bytes=5, master_key=KEY) + PAYLOAD,
        "recovery_add": v2.pack_add(
            HEAD, payload_bytes=5, master_key=KEY, flags=Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
        )
        + PAYLOAD,
        "read": v2.pack_read(7, 3),
        "fence_lac": v2.pack_read(7, v2.LAST_ENTRY, fence_key=KEY),
        "recovery_read": v2.pack_read(7, 3, fence_key=KEY, high_priority=True),
        "batch_read": v2.pack_batch_read(7, 3, request_id=1, count_max=10),
        "auth_disabled": v2.pack_auth(AuthMessage(AUTH_DISABLED, b"")),
    }
    for name, raw in made.items():
        assert raw == frame("v2", name), name
    assert made.keys() == {name for name in vectors("frames")["v2"] if "reply" not in name} - {
        "read_no_entry"
    }


def test_a_fenced_batch_read() -> None:
    plain = v2.pack_batch_read(7, 3, request_id=1, count_max=10)
    fenced = v2.pack_batch_read(7, 3, request_id=1, count_max=10, fence_key=KEY, high_priority=True)
    assert fenced[4:8].hex() == "02070005"
    assert fenced[8:] == plain[8:] + KEY
    assert int.from_bytes(fenced[:4], "big") == len(fenced) - 4


def test_replies() -> None:
    entry = HEAD + PAYLOAD
    wanted = {
        "add_reply": AddReplies(Answer.OK, [7], [3]),
        "read_reply": ReadReply(Answer.OK, 7, 3, memoryview(entry)),
        "read_no_entry": ReadReply(Answer.NO_ENTRY, 7, 3, None),
        "batch_reply": BatchReadReply(Answer.OK, 7, 3, 1, [memoryview(entry)]),
        "auth_disabled": AuthMessage(AUTH_DISABLED, b""),
    }
    for name, reply in wanted.items():
        (run,) = runs(FrameSplitter("here"), frame("v2", name))
        (alone,) = run.bodies()
        assert v2.parse_reply(alone, "here") == reply, name
        assert v2.parse_adds(run, "here") == (reply if name == "add_reply" else None)


@UNHURRIED
@given(st.lists(st.tuples(ID, ID), min_size=1, max_size=150), st.sampled_from(list(ReturnCode)))
def test_answers_to_adds_as_a_run(places: list[tuple[int, int]], code: ReturnCode) -> None:
    chunk = b"".join(struct.pack(">iIiqq", 24, 0x02010000, code, *place) for place in places)
    (run,) = runs(FrameSplitter("here"), chunk)
    replies = v2.parse_adds(run, "here")
    assert replies is not None
    assert list(zip(replies.ledger_ids, replies.entry_ids, strict=True)) == places
    singles = [v2.parse_reply(each, "here") for each in run.bodies()]
    assert singles == [AddReplies(replies.answer, [place[0]], [place[1]]) for place in places]


def test_an_unknown_code_in_a_run_is_refused() -> None:
    chunk = struct.pack(">iIiqq", 24, 0x02010000, 3, 7, 3) * 5
    (run,) = runs(FrameSplitter("here"), chunk)
    with pytest.raises(FormatError):
        v2.parse_adds(run, "here")


@UNHURRIED
@given(st.lists(st.binary(min_size=32, max_size=90), min_size=1, max_size=20), ID, ID)
def test_batches(entries: list[bytes], ledger_id: int, first_entry: int) -> None:
    raw = struct.pack(">Iiqqq", 0x02070000, 0, ledger_id, first_entry, 9)
    raw += b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
    reply = v2.parse_reply(memoryview(raw), "here")
    assert reply == BatchReadReply(Answer.OK, ledger_id, first_entry, 9, entries)


@pytest.mark.parametrize("entry_bytes", [-1, 0, 31, 42, 0x7FFFFFFF, -0x80000000])
def test_an_entry_of_a_batch_ends_within_it(entry_bytes: int) -> None:
    raw = bytearray(body("v2", "batch_reply"))
    struct.pack_into(">i", raw, 32, entry_bytes)
    with pytest.raises(Corrupt):
        v2.parse_reply(memoryview(raw), "here")


@pytest.mark.parametrize("name", ["batch_reply", "read_reply"])
def test_no_entry_is_never_ok(name: str) -> None:
    head_bytes = {"batch_reply": 32, "read_reply": 24}[name]
    with pytest.raises(Corrupt):
        v2.parse_reply(body("v2", name)[:head_bytes], "here")
    failed = bytearray(body("v2", name))
    struct.pack_into(">i", failed, 4, ReturnCode.EIO)
    with pytest.raises(Corrupt):
        v2.parse_reply(memoryview(failed), "here")
    reply = v2.parse_reply(memoryview(failed)[:head_bytes], "here")
    assert isinstance(reply, ReadReply | BatchReadReply)
    assert reply.answer is Answer.IO_FAILED


@pytest.mark.parametrize("word", ["01010000", "03010000", "02040000", "02080000", "02010001", "02"])
def test_words_that_no_answer_begins_with(word: str) -> None:
    with pytest.raises(FormatError, match=f"here.*{word}"):
        v2.parse_reply(memoryview(bytes.fromhex(word) + bytes(20 if len(word) == 8 else 0)), "here")


@pytest.mark.parametrize(
    "name", ["add_reply", "read_reply", "read_no_entry", "batch_reply", "auth_disabled"]
)
def test_harmed_answers(name: str) -> None:
    def verified(raw: bytes) -> object:
        """As a reader does: what parses is verified, too."""
        reply = v2.parse_reply(memoryview(raw), "here")
        if isinstance(reply, ReadReply) and reply.entry is not None:
            return CRC32C.verify(reply.entry, ledger_id=reply.ledger_id, entry_id=reply.entry_id)
        return reply

    _, refused = verdicts(verified, bytes(body("v2", name)))
    assert refused > 0


@UNHURRIED
@given(st.binary(max_size=100), st.sampled_from(["02010000", "02020000", "02070000", "02030000"]))
def test_anything_behind_a_word(rest: bytes, word: str) -> None:
    try:
        v2.parse_reply(memoryview(bytes.fromhex(word) + rest), "here")
    except DOCUMENTED:
        return


def test_sizes_of_payloads() -> None:
    limits = {each.name: v2.payload_bytes_max(DIGEST_BYTES[each]) for each in DigestType}
    assert limits == {"DUMMY": 5242820, "CRC32C": 5242816, "CRC32": 5242812, "HMAC": 5242800}
    most = limits["CRC32C"]
    front = v2.pack_add(HEAD, payload_bytes=most, master_key=KEY, flags=Flag.RECOVERY_ADD)
    assert len(front) + most == BOOKIE_FRAME_BYTES_MAX
    v2.pack_add(HEAD, payload_bytes=LEDGER_ENTRY_BYTES_MAX, master_key=KEY)
    for size, flags in ((most + 1, Flag.RECOVERY_ADD), (LEDGER_ENTRY_BYTES_MAX + 1, Flag.NONE)):
        with pytest.raises(TooLarge):
            v2.pack_add(HEAD, payload_bytes=size, master_key=KEY, flags=flags)


def test_what_may_never_be_sent() -> None:
    with pytest.raises(Broken):
        v2.pack_batch_read(7, v2.LAST_ENTRY, request_id=1, count_max=1)
    with pytest.raises(Broken):
        v2.pack_batch_read(7, 0, request_id=1, count_max=0)
    with pytest.raises(Broken):
        v2.pack_read(7, -2)
    for key in (b"", KEY[:19], KEY + b"x"):
        with pytest.raises(Broken):
            v2.pack_add(HEAD, payload_bytes=5, master_key=key)
        with pytest.raises(Broken):
            v2.pack_read(7, 3, fence_key=key)


def test_a_batch_is_parsed_without_copies() -> None:
    entry = HEAD + bytes(100_000)
    raw = bytes(body("v2", "batch_reply")[:32]) + (struct.pack(">i", len(entry)) + entry) * 40
    view = memoryview(raw)
    tracemalloc.start()
    reply = v2.parse_reply(view, "here")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(reply, BatchReadReply)
    assert len(reply.entries) == 40
    assert peak < 64 << 10


def test_no_credentials_in_a_text() -> None:
    message = AuthMessage("sasl", b"canary")
    assert "canary" not in repr(message)
    assert message == AuthMessage.from_bytes(message.to_bytes(), "here")
    with pytest.raises(TooLarge):
        AuthMessage("sasl", bytes(1 << 16)).to_bytes()

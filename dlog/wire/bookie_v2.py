"""The binary protocol of bookies (v2): adds, reads, batch reads, authentication. Fast, and no more.

Every frame begins with one word: version, opcode, flags. An add carries no request id, so the same
bytes go to every replica of an entry, and its answer names ledger and entry only. Hence two rules
for whoever sends: never two reads of one entry in flight on a connection, and a fencing read on a
connection of its own, because its answer looks like any other read's.

Requests are packed as the bytes in front of a payload, length included, so that payloads are sent
from where they are. Answers to adds, of which one read brings hundreds, are parsed as a run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import chain
from struct import Struct, error
from typing import Final, NamedTuple

from dlog.errors import Broken, Corrupt, FormatError, TooLarge, check
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire.bookie_auth import AuthMessage
from dlog.wire.bookie_codes import Answer, answer_of_return_code
from dlog.wire.bookie_digest import MASTER_KEY_BYTES, NUMBERS_BYTES
from dlog.wire.bookie_frame import LENGTH_BYTES, FrameRun

VERSION: Final = 2
LAST_ENTRY: Final = -1  # read "the last entry you hold", which is how the LAC is asked for
ADD_REPLY_FRAME_BYTES: Final = 28


class Opcode(enum.IntEnum):
    """All that have a number. A bookie serves 1, 2, 3 and, from 4.17, 7; it closes the connection
    on the others."""

    ADD = 1
    READ = 2
    AUTH = 3
    READ_LAC = 4
    WRITE_LAC = 5
    GET_BOOKIE_INFO = 6
    BATCH_READ = 7


class Flag(enum.IntFlag):
    NONE = 0
    FENCE = 1  # of reads: fence the ledger first; the master key follows
    RECOVERY_ADD = 2  # of adds: accept although fenced
    HIGH_PRIORITY = 4


def _word(opcode: Opcode) -> int:
    return VERSION << 24 | opcode << 16


_ADD_WORD = _word(Opcode.ADD)
_ADD_WORD_BYTES = _ADD_WORD.to_bytes(4, "big")
_ADD_FRONT = Struct(">iI")
_READ = Struct(">iIqq")
_BATCH_READ = Struct(">iIqqqiq")
_WORD_BYTES = 4
_ADD_FIXED_BYTES = _WORD_BYTES + MASTER_KEY_BYTES

_REPLY = Struct(">4xiqq")  # after the word: code, ledger id, entry id
_BATCH_REPLY = Struct(">4xiqqq")  # … and request id
_ADD_CODE = Struct(">8xi")
_PLACE = Struct(">12xqq")  # ledger id and entry id in a whole frame that answers an add
_BLOCK_REPLIES = 32  # a tuple for so many answers costs less than one for each
_BLOCK = Struct(">" + "12xqq" * _BLOCK_REPLIES)
_ENTRY_BYTES = Struct(">i")
assert _PLACE.size == ADD_REPLY_FRAME_BYTES
assert _REPLY.size + LENGTH_BYTES == ADD_REPLY_FRAME_BYTES


def payload_bytes_max(digest_bytes: int) -> int:
    """The largest payload that a bookie takes in an add. It may not be able to give it back: what
    we write stays below `LEDGER_ENTRY_BYTES_MAX`."""
    fixed_bytes = LENGTH_BYTES + _ADD_FIXED_BYTES + NUMBERS_BYTES + digest_bytes
    return BOOKIE_FRAME_BYTES_MAX - fixed_bytes


def pack_add(
    head: bytes, *, payload_bytes: int, master_key: bytes, flags: Flag = Flag.NONE
) -> bytes:
    """The frame of an add up to its payload. `head` is what `EntryDigest.pack_head` made.

    An entry of ours may not be so large that a bookie takes it and cannot return it; a recovery
    writes back whatever it read.
    """
    body_bytes = _ADD_FIXED_BYTES + len(head) + payload_bytes
    if payload_bytes > LEDGER_ENTRY_BYTES_MAX and (
        not flags & Flag.RECOVERY_ADD or body_bytes + LENGTH_BYTES > BOOKIE_FRAME_BYTES_MAX
    ):
        raise TooLarge(f"an entry of {payload_bytes} bytes; {LEDGER_ENTRY_BYTES_MAX} is the most")
    if len(master_key) != MASTER_KEY_BYTES:
        raise _wrong_key()
    # Added, not or-ed: `|` of a flag is a Python call, and these bits are disjoint.
    return _ADD_FRONT.pack(body_bytes, _ADD_WORD + flags) + master_key + head


def pack_read(
    ledger_id: int,
    entry_id: int,
    *,
    fence_key: bytes | None = None,
    high_priority: bool = False,
) -> bytes:
    """With the master key as `fence_key`, the ledger is fenced before it is read."""
    check(ledger_id >= 0 and entry_id >= LAST_ENTRY, "a read names an entry", ledger_id, entry_id)
    key, flags = _fence(fence_key, high_priority)
    body_bytes = _READ.size - LENGTH_BYTES + len(key)
    return _READ.pack(body_bytes, _word(Opcode.READ) | flags, ledger_id, entry_id) + key


def pack_batch_read(
    ledger_id: int,
    first_entry: int,
    *,
    request_id: int,
    count_max: int,
    frame_bytes_max: int = BOOKIE_FRAME_BYTES_MAX,
    fence_key: bytes | None = None,
    high_priority: bool = False,
) -> bytes:
    """Entries from `first_entry` on, as many as there are on this bookie, fit, and are wanted; at
    least one. The caller keeps to confirmed entries and to one fragment: the bookie knows neither.

    There is no batch read from the last entry on: bookies answer it with the last, then 0, 1, ….
    """
    check(
        ledger_id >= 0 and first_entry >= 0 and 0 < count_max < 1 << 31,
        "a batch read names its first entry and how many",
        ledger_id,
        first_entry,
        count_max,
    )
    check(0 < frame_bytes_max <= BOOKIE_FRAME_BYTES_MAX, "an answer fits a frame", frame_bytes_max)
    key, flags = _fence(fence_key, high_priority)
    return (
        _BATCH_READ.pack(
            _BATCH_READ.size - LENGTH_BYTES + len(key),
            _word(Opcode.BATCH_READ) | flags,
            ledger_id,
            first_entry,
            request_id,
            count_max,
            frame_bytes_max,
        )
        + key
    )


def pack_auth(message: AuthMessage) -> bytes:
    packed = message.to_bytes()
    return _ADD_FRONT.pack(_WORD_BYTES + len(packed), _word(Opcode.AUTH)) + packed


def _fence(key: bytes | None, high_priority: bool) -> tuple[bytes, int]:
    flags = Flag.HIGH_PRIORITY.value if high_priority else 0
    if key is None:
        return b"", flags
    if len(key) != MASTER_KEY_BYTES:
        raise _wrong_key()
    return key, flags | Flag.FENCE.value


def _wrong_key() -> Broken:
    return Broken(f"a master key has {MASTER_KEY_BYTES} bytes")


class AddReplies(NamedTuple):
    """What a bookie said to one add or to many, as two columns of equal length, in the order it
    said so."""

    answer: Answer
    ledger_ids: list[int]
    entry_ids: list[int]


class ReadReply(NamedTuple):
    """`entry_id` is the one that was asked for, so maybe `LAST_ENTRY`. `entry` is there if the
    answer is OK, and is not verified yet."""

    answer: Answer
    ledger_id: int
    entry_id: int
    entry: memoryview | None


class BatchReadReply(NamedTuple):
    """`entries` from `first_entry` on, not verified yet; at least one if the answer is OK."""

    answer: Answer
    ledger_id: int
    first_entry: int
    request_id: int
    entries: list[memoryview]


Reply = AddReplies | ReadReply | BatchReadReply | AuthMessage


def parse_adds(run: FrameRun, where: str) -> AddReplies | None:
    """All answers of a run at once, if it answers adds: the path that every acknowledgement
    takes."""
    view = run.view
    if run.frame_bytes != ADD_REPLY_FRAME_BYTES or view[4:8] != _ADD_WORD_BYTES:
        return None
    (code,) = _ADD_CODE.unpack_from(view)
    in_blocks = run.frame_count // _BLOCK_REPLIES * _BLOCK.size
    places = chain(_BLOCK.iter_unpack(view[:in_blocks]), _PLACE.iter_unpack(view[in_blocks:]))
    flat = list(chain.from_iterable(places))
    return AddReplies(answer_of_return_code(code, where), flat[0::2], flat[1::2])


def parse_reply(body: memoryview, where: str) -> Reply:
    """One frame without its length. `FormatError` for a word or code that is not in this protocol,
    `Corrupt` for a frame that is too short for what it says."""
    parse = _PARSERS.get(bytes(body[:_WORD_BYTES]))
    if parse is None:
        raise FormatError(f"{where}: an answer begins with the word {body[:_WORD_BYTES].hex()}")
    try:
        return parse(body, where)
    except error:
        raise Corrupt(f"{where}: an answer is cut off after {len(body)} bytes") from None


def _parse_add(body: memoryview, where: str) -> AddReplies:
    code, ledger_id, entry_id = _REPLY.unpack_from(body)
    if len(body) != _REPLY.size:
        raise Corrupt(f"{where}: an answer to an add of {len(body)} bytes")
    return AddReplies(answer_of_return_code(code, where), [ledger_id], [entry_id])


def _parse_read(body: memoryview, where: str) -> ReadReply:
    code, ledger_id, entry_id = _REPLY.unpack_from(body)
    answer = answer_of_return_code(code, where)
    entry = body[_REPLY.size :]
    if answer is not Answer.OK:
        _check_nothing(entry, answer, where)
        return ReadReply(answer, ledger_id, entry_id, None)
    if len(entry) < NUMBERS_BYTES:
        raise Corrupt(f"{where}: an entry of {len(entry)} bytes")
    return ReadReply(answer, ledger_id, entry_id, entry)


def _parse_batch_read(body: memoryview, where: str) -> BatchReadReply:
    code, ledger_id, first_entry, request_id = _BATCH_REPLY.unpack_from(body)
    answer = answer_of_return_code(code, where)
    entries: list[memoryview] = []
    at, end = _BATCH_REPLY.size, len(body)
    if answer is not Answer.OK:
        _check_nothing(body[at:], answer, where)
    elif at == end:
        # Who asks on from what came would ask for the same for ever.
        raise Corrupt(f"{where}: a batch of no entries that is OK")
    unpack = _ENTRY_BYTES.unpack_from
    while at < end:
        (entry_bytes,) = unpack(body, at)
        at += LENGTH_BYTES
        if not NUMBERS_BYTES <= entry_bytes <= end - at:
            raise Corrupt(f"{where}: an entry of {entry_bytes} bytes at byte {at} of {end}")
        entries.append(body[at : at + entry_bytes])
        at += entry_bytes
    return BatchReadReply(answer, ledger_id, first_entry, request_id, entries)


def _parse_auth(body: memoryview, where: str) -> AuthMessage:
    return AuthMessage.from_bytes(body[_WORD_BYTES:], where)


def _check_nothing(rest: memoryview, answer: Answer, where: str) -> None:
    if len(rest):
        raise Corrupt(f"{where}: {len(rest)} bytes behind the answer {answer.value!r}")


# Answers repeat version and opcode and have no flags.
_PARSERS: dict[bytes, Callable[[memoryview, str], Reply]] = {
    _word(opcode).to_bytes(4, "big"): parse
    for opcode, parse in (
        (Opcode.ADD, _parse_add),
        (Opcode.READ, _parse_read),
        (Opcode.BATCH_READ, _parse_batch_read),
        (Opcode.AUTH, _parse_auth),
    )
}

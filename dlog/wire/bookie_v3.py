"""The protobuf protocol of bookies (v3): what the binary one has no words for, and all under TLS.

Explicit LACs, long polls, forces, bookie info, the start of TLS; adds and reads, too, for
connections that speak nothing else. Every request has a transaction id and its answer repeats it,
so answers are matched without doubt. Requests come as whole frames, except adds: those end where
the payload begins, as in the binary protocol.

Packing is by hand: a request is a few tags and numbers, and a frame of `pack_write_lac` may go to
all bookies of an ensemble as it is.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import Final

from dlog.errors import Broken, TooLarge, check
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire.bookie_auth import AuthMessage
from dlog.wire.bookie_digest import MASTER_KEY_BYTES
from dlog.wire.bookie_v2 import LAST_ENTRY
from dlog.wire.protobuf import pack_bytes, pack_bytes_front, pack_number

VERSION: Final = 3
PRIORITY_HIGH: Final = 100  # what the stock client sends; bookies ask for more than 0

_LENGTH = Struct(">i")
# Behind the length, the tag and size of the header, the version with its tag, and its own tag.
_OPERATION_AT = 9


class Operation(enum.IntEnum):
    READ = 1
    ADD = 2
    RANGE_READ = 3  # no bookie serves this one, nor the next
    RANGE_ADD = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE = 10
    LIST_ENTRIES = 11  # never asked: some ledger storages never answer it
    BATCH_READ = 12  # a number without messages


class ReadFlag(enum.IntEnum):
    """At most one."""

    FENCE_LEDGER = 1
    ENTRY_PIGGYBACK = 2


class BookieInfo(enum.IntFlag):
    TOTAL_DISK_CAPACITY = 1
    FREE_DISK_SPACE = 2


ALL_INFO: Final = BookieInfo.TOTAL_DISK_CAPACITY | BookieInfo.FREE_DISK_SPACE
_RECOVERY_ADD = 1
_DEFERRED_SYNC = 1

# Field of the request, and of its answer, in the outer message.
BODY_FIELDS: Final = {
    Operation.READ: 100,
    Operation.ADD: 101,
    Operation.AUTH: 102,
    Operation.WRITE_LAC: 103,
    Operation.READ_LAC: 104,
    Operation.GET_BOOKIE_INFO: 105,
    Operation.START_TLS: 106,
    Operation.FORCE: 107,
}


def pack_read(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    *,
    fence_key: bytes | None = None,
    high_priority: bool = False,
) -> bytes:
    """With the master key as `fence_key`, the ledger is fenced before it is read."""
    check(ledger_id >= 0 and entry_id >= LAST_ENTRY, "a read names an entry", ledger_id, entry_id)
    body = pack_number(1, ledger_id) + pack_number(2, entry_id)
    if fence_key is not None:
        body += _key(fence_key) + pack_number(100, ReadFlag.FENCE_LEDGER)
    return _frame(Operation.READ, txn_id, body, high_priority=high_priority)


def pack_long_poll(txn_id: int, ledger_id: int, *, previous_lac: int, timeout_ms: int) -> bytes:
    """Answered when the bookie knows a LAC above `previous_lac`, with the entry after it if this
    bookie has it; or after the time, or when the ledger is fenced, without an entry."""
    check(
        ledger_id >= 0 and previous_lac >= -1 and timeout_ms > 0,
        "a long poll names what it has seen and how long it waits",
        ledger_id,
        previous_lac,
        timeout_ms,
    )
    body = (
        pack_number(1, ledger_id)
        + pack_number(2, LAST_ENTRY)
        + pack_number(4, previous_lac)
        + pack_number(5, timeout_ms)
        + pack_number(100, ReadFlag.ENTRY_PIGGYBACK)
    )
    return _frame(Operation.READ, txn_id, body)


def pack_add(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    head: bytes,
    *,
    payload_bytes: int,
    master_key: bytes,
    recovery: bool = False,
    deferred_sync: bool = False,
    high_priority: bool = False,
) -> bytes:
    """The frame of an add up to its payload; `head` is what `EntryDigest.pack_head` made."""
    if payload_bytes > LEDGER_ENTRY_BYTES_MAX and not recovery:
        raise TooLarge(f"an entry of {payload_bytes} bytes; {LEDGER_ENTRY_BYTES_MAX} is the most")
    body = pack_number(1, ledger_id) + pack_number(2, entry_id) + _key(master_key)
    # The entry stands last, whatever its number: so the payload is sent from where it is.
    if deferred_sync:
        body += pack_number(5, _DEFERRED_SYNC)
    if recovery:
        body += pack_number(100, _RECOVERY_ADD)
    body += pack_bytes_front(4, len(head) + payload_bytes) + head
    return _frame(
        Operation.ADD, txn_id, body, high_priority=high_priority, bytes_behind=payload_bytes
    )


def pack_write_lac(
    txn_id: int, ledger_id: int, last_confirmed: int, proof: bytes, *, master_key: bytes
) -> bytes:
    """`proof` is what `EntryDigest.pack_lac` made. A bookie stores what comes last, also if it is
    lower: only ever send rising ones."""
    body = pack_number(1, ledger_id) + pack_number(2, last_confirmed) + _key(master_key)
    return _frame(Operation.WRITE_LAC, txn_id, body + pack_bytes(4, proof))


def pack_read_lac(txn_id: int, ledger_id: int) -> bytes:
    return _frame(Operation.READ_LAC, txn_id, pack_number(1, ledger_id))


def pack_force(txn_id: int, ledger_id: int) -> bytes:
    """Syncs what the bookie acknowledged for the ledger. Its OK proves nothing about a ledger it
    does not know."""
    return _frame(Operation.FORCE, txn_id, pack_number(1, ledger_id))


def pack_get_bookie_info(txn_id: int, wanted: BookieInfo = ALL_INFO) -> bytes:
    return _frame(Operation.GET_BOOKIE_INFO, txn_id, pack_number(1, wanted))


def pack_start_tls(txn_id: int) -> bytes:
    """Nothing else may be sent until it is answered."""
    return _frame(Operation.START_TLS, txn_id, b"")


def pack_auth(txn_id: int, message: AuthMessage) -> bytes:
    return _frame(Operation.AUTH, txn_id, message.to_bytes())


def operation_of(frame: bytes) -> Operation:
    """What a request made here asks for: whoever gives up waiting for its answer says so."""
    return Operation(frame[_OPERATION_AT])


def _key(master_key: bytes) -> bytes:
    if len(master_key) != MASTER_KEY_BYTES:
        raise Broken(f"a master key has {MASTER_KEY_BYTES} bytes")
    return pack_bytes(3, master_key)


def _frame(
    operation: Operation,
    txn_id: int,
    body: bytes,
    *,
    high_priority: bool = False,
    bytes_behind: int = 0,
) -> bytes:
    """The request as a frame, of which `bytes_behind` are sent by the caller."""
    header = pack_number(1, VERSION) + pack_number(2, operation) + pack_number(3, txn_id)
    if high_priority:
        header += pack_number(4, PRIORITY_HIGH)
    front = pack_bytes_front(BODY_FIELDS[operation], len(body) + bytes_behind)
    request = pack_bytes(1, header) + front + body
    frame_bytes = _LENGTH.size + len(request) + bytes_behind
    if frame_bytes > BOOKIE_FRAME_BYTES_MAX:
        raise TooLarge(f"a frame of {frame_bytes} bytes; {BOOKIE_FRAME_BYTES_MAX} is the most")
    return _LENGTH.pack(len(request) + bytes_behind) + request

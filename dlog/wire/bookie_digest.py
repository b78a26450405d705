"""Entries and LAC proofs as bookies store them: four numbers, a digest, the payload.

    ledger id 8 · entry id 8 · LAC 8 · bytes of the ledger so far 8 · digest D · payload

The digest covers the numbers and the payload, so that no bookie can pass one entry off as another.
Bookies store and return all of it as it is and check nothing: whoever reads, verifies. Checksums
chain over the buffers of a payload, which are never joined or copied here.

The LAC that a writer puts into an entry is below the entry's own id. One that is not must not be
believed: a reader would see entries that were never confirmed, and a recovery close a ledger beyond
its end. Yet such entries are real: stock replicators that copy what a lost bookie held write the
LAC of the moment into every copy. So the copy of an entry that was asked for is as good as any, and
its LAC counts as none; but what a bookie calls its last entry, asked for the LAC, is refused then.

Two keys come from a ledger's password, each a SHA-1 as bookies and other clients compute it, used
for nothing of our own: the master key, which bookies see and compare, and the key of the HMAC
digest, which they never see.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import zlib
from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final, NamedTuple

from dlog.errors import Broken, Corrupt, check
from dlog.wire import Buffer
from dlog.wire.crc32c import crc32c

NUMBERS_BYTES: Final = 32
MASTER_KEY_BYTES: Final = 20
_NONE: Final = -1

_NUMBERS = Struct(">qqqq")
_LAC = Struct(">qq")
_CRC32C_HEAD = Struct(">qqqqI")
_U32 = Struct(">I")
_U64 = Struct(">Q")


class DigestType(enum.IntEnum):
    """As ledger metadata numbers them."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4  # no digest at all


DIGEST_BYTES: Final = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}


def master_key(password: bytes) -> bytes:
    """What a bookie compares on adds, fences and LAC writes; 20 bytes for every digest."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


class StoredEntry(NamedTuple):
    """What a verified entry says; the payload is a view of the bytes that were verified."""

    entry_id: int
    last_confirmed: int  # as the writer knew it when it made the entry; -1 for none, or no proof
    ledger_bytes: int  # payloads of the ledger up to this entry and with it
    payload: memoryview


_Sum = Callable[[Buffer, Sequence[Buffer]], bytes]


class EntryDigest:
    """One digest with one password, for one ledger or many."""

    __slots__ = ("_sum", "digest_bytes", "head_bytes", "type")

    def __init__(self, type: DigestType, password: bytes) -> None:
        self.type = type
        self.digest_bytes = DIGEST_BYTES[type]
        self.head_bytes = NUMBERS_BYTES + self.digest_bytes
        self._sum = _hmac_with(mac_key(password)) if type is DigestType.HMAC else _SUMS[type]

    def __repr__(self) -> str:
        return f"EntryDigest({self.type.name})"

    def pack_head(
        self,
        ledger_id: int,
        entry_id: int,
        last_confirmed: int,
        ledger_bytes: int,
        payload: Sequence[Buffer],
    ) -> bytes:
        """What stands in front of the payload: the numbers and the digest. `ledger_bytes` counts
        this payload, too."""
        if not -1 <= last_confirmed < entry_id or ledger_id < 0 or ledger_bytes < 0:
            raise _disordered(ledger_id, entry_id, last_confirmed, ledger_bytes)
        try:
            numbers = _NUMBERS.pack(ledger_id, entry_id, last_confirmed, ledger_bytes)
        except error:
            raise _disordered(ledger_id, entry_id, last_confirmed, ledger_bytes) from None
        return numbers + self._sum(numbers, payload)

    def verify(
        self, raw: Buffer, *, ledger_id: int, entry_id: int, where: str = "a bookie"
    ) -> StoredEntry:
        """The entry in `raw`, or `Corrupt`: it is damaged, or another one than was asked for."""
        entry = self._verify(raw, ledger_id, where)
        if entry.entry_id != entry_id:
            raise _corrupt(where, ledger_id, entry_id, f"it is entry {entry.entry_id}")
        if entry.last_confirmed >= entry_id:  # a replicator's copy: it proves no LAC
            return entry._replace(last_confirmed=_NONE)
        return entry

    def verify_last(self, raw: Buffer, *, ledger_id: int, where: str = "a bookie") -> StoredEntry:
        """The same when only the bookie knows which of its entries is the last one, and the LAC in
        it is what was asked for."""
        entry = self._verify(raw, ledger_id, where)
        if entry.last_confirmed >= entry.entry_id:
            told = f"it confirms entry {entry.last_confirmed}"
            raise _corrupt(where, ledger_id, entry.entry_id, told)
        return entry

    def _verify(self, raw: Buffer, ledger_id: int, where: str) -> StoredEntry:
        head_bytes = self.head_bytes
        view = memoryview(raw)
        if len(view) < head_bytes:
            raise _corrupt(where, ledger_id, None, f"{len(view)} bytes, its head is {head_bytes}")
        payload = view[head_bytes:]
        made = self._sum(view[:NUMBERS_BYTES], (payload,))
        # In constant time, which costs nothing and matters for HMAC.
        if not hmac.compare_digest(made, view[NUMBERS_BYTES:head_bytes]):
            raise _corrupt(where, ledger_id, None, f"its {self.type.name} digest does not match")
        found_id, entry_id, last_confirmed, ledger_bytes = _NUMBERS.unpack_from(view)
        if found_id != ledger_id:
            raise _corrupt(where, ledger_id, entry_id, f"it is of ledger {found_id}")
        if entry_id < 0 or last_confirmed < _NONE:
            raise _corrupt(where, ledger_id, entry_id, f"it confirms entry {last_confirmed}")
        if ledger_bytes < len(payload):
            raise _corrupt(
                where, ledger_id, entry_id, f"{len(payload)} bytes of {ledger_bytes} in all"
            )
        return StoredEntry(entry_id, last_confirmed, ledger_bytes, payload)

    def verify_run(
        self, run: Sequence[Buffer], *, ledger_id: int, first_entry: int, where: str = "a bookie"
    ) -> list[memoryview]:
        """The payloads of entries that follow each other, up to the first that is not as it should
        be; `Corrupt` if that is the very first. A reader of thousands a second comes through
        here."""
        payloads = self._verify_fast(run, ledger_id, first_entry)
        for entry_id, raw in enumerate(run[len(payloads) :], first_entry + len(payloads)):
            try:
                entry = self.verify(raw, ledger_id=ledger_id, entry_id=entry_id, where=where)
            except Corrupt:
                if payloads:
                    break
                raise
            payloads.append(entry.payload)
        return payloads

    def _verify_fast(
        self, run: Sequence[Buffer], ledger_id: int, first_entry: int
    ) -> list[memoryview]:
        """What `verify` would say, for the digest that our ledgers have and as long as it says yes;
        a third of its time."""
        payloads: list[memoryview] = []
        if self.type is not DigestType.CRC32C:
            return payloads
        head_bytes, unpack = _CRC32C_HEAD.size, _CRC32C_HEAD.unpack_from
        entry_id = first_entry
        for raw in run:
            view = memoryview(raw)
            if len(view) < head_bytes:
                break
            payload = view[head_bytes:]
            found_id, found_entry, last_confirmed, ledger_bytes, stored = unpack(view)
            if (
                crc32c(payload, crc32c(view[:NUMBERS_BYTES])) != stored
                or found_id != ledger_id
                or found_entry != entry_id
                or last_confirmed < _NONE
                or ledger_bytes < len(payload)
            ):
                break
            payloads.append(payload)
            entry_id += 1
        return payloads

    def pack_lac(self, ledger_id: int, last_confirmed: int) -> bytes:
        """The proof of a LAC that a writer leaves with bookies, apart from any entry."""
        check(ledger_id >= 0 and last_confirmed >= -1, "a LAC is an entry", last_confirmed)
        numbers = _LAC.pack(ledger_id, last_confirmed)
        return numbers + self._sum(numbers, ())

    def verify_lac(self, raw: Buffer, *, ledger_id: int, where: str = "a bookie") -> int:
        """The LAC that `raw` proves, or `Corrupt`."""
        view = memoryview(raw)
        if len(view) != _LAC.size + self.digest_bytes:
            raise _corrupt(where, ledger_id, None, f"a LAC of {len(view)} bytes")
        made = self._sum(view[: _LAC.size], ())
        if not hmac.compare_digest(made, view[_LAC.size :]):
            raise _corrupt(where, ledger_id, None, f"the {self.type.name} digest of a LAC")
        found_id, last_confirmed = _LAC.unpack_from(view)
        if found_id != ledger_id or last_confirmed < -1:
            raise _corrupt(where, ledger_id, None, f"LAC {last_confirmed} of ledger {found_id}")
        return int(last_confirmed)


def _disordered(*numbers: int) -> Broken:
    return Broken(f"no entry has the ledger id, entry id, LAC and ledger bytes {numbers}")


def _corrupt(where: str, ledger_id: int, entry_id: int | None, what: str) -> Corrupt:
    which = "an entry" if entry_id is None else f"entry {entry_id}"
    text = f"{where}: {which} of ledger {ledger_id}: {what}"
    return Corrupt(text, ledger_id=ledger_id, entry_id=entry_id)


def _crc32c(numbers: Buffer, payload: Sequence[Buffer]) -> bytes:
    value = crc32c(numbers)
    for buffer in payload:
        value = crc32c(buffer, value)
    return _U32.pack(value)


def _crc32(numbers: Buffer, payload: Sequence[Buffer]) -> bytes:
    """Four bytes of checksum in eight: the upper half is zero."""
    value = zlib.crc32(numbers)
    for buffer in payload:
        value = zlib.crc32(buffer, value)
    return _U64.pack(value)


def _nothing(numbers: Buffer, payload: Sequence[Buffer]) -> bytes:
    return b""


def _hmac_with(key: bytes) -> _Sum:
    keyed = hmac.new(key, digestmod=hashlib.sha1)

    def sum(numbers: Buffer, payload: Sequence[Buffer]) -> bytes:
        running = keyed.copy()  # the key is hashed once, not per entry
        running.update(numbers)
        for buffer in payload:
            running.update(buffer)
        return running.digest()

    return sum


_SUMS: dict[DigestType, _Sum] = {
    DigestType.CRC32: _crc32,
    DigestType.CRC32C: _crc32c,
    DigestType.DUMMY: _nothing,
}

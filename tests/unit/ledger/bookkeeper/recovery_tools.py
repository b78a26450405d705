"""Entries and metadata for tests of recovery, and what the cores ask, put into few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlog.ledger.bookkeeper.core.recovery_requests import Add, Ask
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd, TailRecovery
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, StoredEntry, master_key
from dlog.wire.bookie_v2 import Flag
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState

LEDGER_ID = 7
PASSWORD = b"secret"
DIGEST = EntryDigest(DigestType.CRC32C, PASSWORD)
KEY = master_key(PASSWORD)
ABC = ("a", "b", "c")
_BYTES_BEFORE = [0]  # by entry, as far as anybody asked
ADD_FRONT_BYTES = 28  # length, word, key


def metadata(
    *fragments: tuple[int, tuple[str, ...]], write: int = 3, ack: int = 2, **changes: Any
) -> LedgerMetadata:
    fragments = fragments or ((0, ABC),)
    options: dict[str, Any] = {
        "state": LedgerState.IN_RECOVERY,
        "digest_type": DIGEST.type,
        "password": PASSWORD,
    }
    return LedgerMetadata(
        len(fragments[0][1]),
        write,
        ack,
        tuple(Fragment(first, ensemble) for first, ensemble in fragments),
        **(options | changes),
    )


def payload_of(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def bytes_to(entry_id: int) -> int:
    """Of all payloads up to this entry."""
    while len(_BYTES_BEFORE) <= entry_id + 1:
        _BYTES_BEFORE.append(_BYTES_BEFORE[-1] + len(payload_of(len(_BYTES_BEFORE) - 1)))
    return _BYTES_BEFORE[entry_id + 1]


def packet(entry_id: int, last_confirmed: int | None = None, digest: EntryDigest = DIGEST) -> bytes:
    """An entry as its writer made it: all before it confirmed, unless told otherwise."""
    lac = entry_id - 1 if last_confirmed is None else last_confirmed
    payload = payload_of(entry_id)
    return digest.pack_head(LEDGER_ID, entry_id, lac, bytes_to(entry_id), (payload,)) + payload


def packets(first_entry: int, last_entry: int, **options: Any) -> list[bytes]:
    return [packet(entry_id, **options) for entry_id in range(first_entry, last_entry + 1)]


def poisoned(entry_id: int, last_confirmed: int) -> bytes:
    """Digest and all, with a LAC that no entry of this id can carry."""
    numbers = b"".join(
        number.to_bytes(8, "big", signed=True)
        for number in (LEDGER_ID, entry_id, last_confirmed, bytes_to(entry_id))
    )
    payload = payload_of(entry_id)
    return numbers + DIGEST._sum(numbers, (payload,)) + payload


def entries(first_entry: int, last_entry: int) -> list[StoredEntry]:
    return [
        DIGEST.verify(packet(entry_id), ledger_id=LEDGER_ID, entry_id=entry_id)
        for entry_id in range(first_entry, last_entry + 1)
    ]


def split(frames: bytes, digest: EntryDigest = DIGEST) -> list[tuple[Flag, StoredEntry]]:
    """The adds in what was sent."""
    found = []
    at = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        flags = Flag(int.from_bytes(frames[at + 6 : at + 8], "big"))
        assert frames[at + 8 : at + ADD_FRONT_BYTES] == KEY
        raw = frames[at + ADD_FRONT_BYTES : end]
        found.append((flags, digest.verify_last(raw, ledger_id=LEDGER_ID)))
        at = end
    return found


def nobody_else(ensemble: Sequence[str], failed: object) -> str | None:
    return None


class Played:
    """A `TailRecovery` whose bookies are this test: it notes what is asked and sent, and answers
    when it is told to."""

    def __init__(self, stored: LedgerMetadata, choose: Any = nobody_else) -> None:
        self.now_s = 100.0
        self.core = TailRecovery(LEDGER_ID, stored, choose, now_s=self.now_s)
        self.asked: list[Ask] = []
        self.added: list[Add] = []
        self.other: list[object] = []
        self.note()

    def note(self) -> None:
        for request in self.core.take():
            if isinstance(request, Ask):
                self.asked.append(request)
            elif isinstance(request, Add):
                self.added.append(request)
            else:
                self.other.append(request)

    def fence(self, bookie: str, answer: Answer | bytes) -> None:
        self.read(bookie, -1, answer)

    def read(self, bookie: str, first_entry: int, answer: Answer | bytes | Iterable[bytes]) -> None:
        """Answers the ask for this entry, which must stand."""
        ask = next(
            each
            for each in self.asked
            if (each.bookie_id, each.first_entry) == (bookie, first_entry)
        )
        self.asked.remove(ask)
        if isinstance(answer, bytes):
            answer = [answer]
        if isinstance(answer, Answer):
            self.core.on_read(ask, answer, (), now_s=self.now_s)
        else:
            self.core.on_read(ask, Answer.OK, list(answer), now_s=self.now_s)
        self.note()

    def acks(self, bookie: str, *entry_ids: int, answer: Answer = Answer.OK) -> None:
        self.core.on_adds(bookie, answer, entry_ids, now_s=self.now_s)
        self.note()

    def down(self, bookie: str) -> None:
        self.core.on_down(bookie, now_s=self.now_s)
        self.note()

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.core.tick(self.now_s)
        self.note()

    def is_covered(self) -> bool:
        return self.core.is_covered

    def found(self) -> FoundEnd | None:
        return self.core.found

    def end(self) -> FoundEnd:
        assert self.core.found is not None
        return self.core.found

    def asks(self) -> set[tuple[str, int]]:
        return {(ask.bookie_id, ask.first_entry) for ask in self.asked}

    def written(self, bookie: str) -> list[tuple[int, int]]:
        """Entries sent to the bookie, each with the LAC in its header."""
        return [
            (entry.entry_id, entry.last_confirmed)
            for add in self.added
            if add.bookie_id == bookie
            for _, entry in split(add.frames)
        ]

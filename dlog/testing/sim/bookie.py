"""One bookie: what it has in memory, what survives a kill, and how it answers. No time, no network.

It is what live bookies of 4.18 were seen to be, where that matters to clients:

- *Memory and journal.* A request takes effect at once and is durable when the journal was synced;
  records become durable in the order they came. A kill leaves some beginning of what was not synced
  yet, since nobody knows what the disk got.
- *Fences are forgotten* by a kill unless an ordinary entry of the ledger was stored before the
  fence. A fencing read that finds nothing answers at once, and counts as "no entry".
- *The first add or fence decides the master key.* Recovery adds go past a fence. Adding an entry
  again overwrites it. Nothing is verified.
- *"The last entry" goes down*: while the write cache holds entries that were added again, it names
  the last of those.
- *LACs*: the bookie's own idea of the LAC begins with an explicit one, or, when it is first asked
  for, with the header of the last entry; from then on headers drive it up, unchecked. Of explicit
  ones the packet that came last is kept, also a lower one, and the idea stays at the highest. A
  watch is one-shot: any rise consumes it, a fence wakes it.
- *Limbo*: one that came back without its journal, and knows, denies nothing: reads are answered
  "unknown", ordinary adds refused. An *amnesiac* does not know (A2 is broken).

Entries are the bytes that real bookies store: numbers, digest, payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dlog.wire.bookie_codes import Answer

LAST_ENTRY = -1
_ANY_LEDGER = (1 << 63) - 1
_NUMBERS = struct.Struct(">qqqq")
# Of a batch: the frame around it, and around each entry.
_BATCH_FIXED_BYTES, _ENTRY_FIXED_BYTES = 36, 4


class Mode(Enum):
    WRITABLE = "writable"
    READ_ONLY = "read only"


@dataclass(slots=True)
class Entry:
    raw: bytes
    is_ordinary: bool  # not by a recovery

    @property
    def last_confirmed(self) -> int:
        lac: int = _NUMBERS.unpack_from(self.raw)[2]
        return lac


@dataclass(eq=False, slots=True)
class Watch:
    """Somebody who waits for a LAC above `waits_past`; called once."""

    waits_past: int
    wake: Callable[[], None]


@dataclass(slots=True)
class _Fence:
    key: bytes
    survives: bool  # a kill


@dataclass(slots=True)
class HeldLedger:
    """What one bookie has of one ledger, in memory or on disk."""

    key: bytes | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    fence: _Fence | None = None
    proof: bytes | None = None  # the explicit LAC that came last
    explicit_lac: int = -1
    lac: int | None = None  # by its own word, from when it first had to have one
    cached: set[int] = field(default_factory=set)  # what the write cache holds
    again: bool = False  # it holds entries that were there before
    watches: list[Watch] = field(default_factory=list)

    def copy(self) -> HeldLedger:
        return HeldLedger(
            self.key,
            dict(self.entries),
            self.fence,
            self.proof,
            self.explicit_lac,
        )


class _Record(NamedTuple):
    ledger_id: int
    kind: str  # "entry", "fence" or "lac"
    number: int  # the entry, or the LAC
    value: Entry | _Fence | bytes
    key: bytes


class SimBookie:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.is_up = True
        self.mode = Mode.WRITABLE
        self.limbo_to = -1  # of ledgers up to this one it cannot tell what it had
        self.incarnation = 0
        self.ledgers: dict[int, HeldLedger] = {}
        self.durable: dict[int, HeldLedger] = {}
        self.unsynced: list[_Record] = []
        self.denied: set[tuple[int, int]] = set()  # (ledger, entry): said, fenced, not to have it

    def __repr__(self) -> str:
        return self.bookie_id

    # --- truth, for oracles

    def holds_for_good(self, ledger_id: int, entry_id: int) -> bytes | None:
        """What a kill would leave of the entry."""
        held = self.durable.get(ledger_id)
        entry = None if held is None else held.entries.get(entry_id)
        return None if entry is None else entry.raw

    def is_fenced(self, ledger_id: int) -> bool:
        held = self.ledgers.get(ledger_id)
        return held is not None and held.fence is not None

    # --- requests; each takes effect at once

    def add(
        self, ledger_id: int, entry_id: int, raw: bytes, *, key: bytes, is_recovery: bool
    ) -> Answer:
        """OK is to be said when the journal was synced."""
        held = self.ledgers.get(ledger_id)
        if held is None:
            if ledger_id <= self.limbo_to and not is_recovery:
                return Answer.UNAUTHORIZED
            held = self.ledgers[ledger_id] = HeldLedger()
        if held.key is not None and held.key != key:
            return Answer.UNAUTHORIZED
        if ledger_id <= self.limbo_to and not is_recovery:
            return Answer.UNAUTHORIZED
        if held.fence is not None and not is_recovery:
            return Answer.FENCED
        if self.mode is Mode.READ_ONLY:
            return Answer.READ_ONLY
        held.key = key
        before = held.entries.get(entry_id)
        if before is not None:
            held.again = True
        is_ordinary = not is_recovery or (before is not None and before.is_ordinary)
        entry = held.entries[entry_id] = Entry(raw, is_ordinary)
        held.cached.add(entry_id)
        self.unsynced.append(_Record(ledger_id, "entry", entry_id, entry, key))
        if held.lac is not None:
            self._rise(held, entry.last_confirmed)
        return Answer.OK

    def fence(self, ledger_id: int, key: bytes) -> Answer:
        held = self.ledgers.setdefault(ledger_id, HeldLedger())
        if held.key is not None and held.key != key:
            return Answer.UNAUTHORIZED
        held.key = key
        if held.fence is None:
            survives = any(entry.is_ordinary for entry in held.entries.values())
            held.fence = _Fence(key, survives)
            self.unsynced.append(_Record(ledger_id, "fence", 0, held.fence, key))
            watches, held.watches = held.watches, []
            for watch in watches:
                watch.wake()
        return Answer.OK

    def read(
        self, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None
    ) -> tuple[Answer, bytes | None]:
        refusal = self._fence_first(ledger_id, fence_key)
        if refusal is not None:
            return refusal, None
        held = self.ledgers.get(ledger_id)
        if held is None:
            return self._nothing(ledger_id, entry_id, None, fence_key)
        if entry_id == LAST_ENTRY:
            return self._last(ledger_id, held, fence_key)
        entry = held.entries.get(entry_id)
        if entry is None:
            return self._nothing(ledger_id, entry_id, held, fence_key)
        return Answer.OK, entry.raw

    def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        fence_key: bytes | None = None,
    ) -> tuple[Answer, list[bytes]]:
        """Up to the first entry that is not there."""
        answer, raw = self.read(ledger_id, first_entry, fence_key=fence_key)
        if raw is None:
            return answer, []
        entries = self.ledgers[ledger_id].entries
        found, size = [raw], _BATCH_FIXED_BYTES + _ENTRY_FIXED_BYTES + len(raw)
        while len(found) < count_max:
            entry = entries.get(first_entry + len(found))
            if entry is None:
                break
            size += _ENTRY_FIXED_BYTES + len(entry.raw)
            if size > frame_bytes_max:
                break
            found.append(entry.raw)
        return Answer.OK, found

    def write_lac(self, ledger_id: int, last_confirmed: int, proof: bytes, key: bytes) -> Answer:
        """Readers see it at once; OK is to be said when the journal was synced."""
        if ledger_id <= self.limbo_to:
            return Answer.UNAUTHORIZED
        held = self.ledgers.setdefault(ledger_id, HeldLedger())
        if held.key is not None and held.key != key:
            return Answer.UNAUTHORIZED
        held.key = key
        held.proof = proof
        held.explicit_lac = max(held.explicit_lac, last_confirmed)
        self.unsynced.append(_Record(ledger_id, "lac", last_confirmed, proof, key))
        self._rise(held, last_confirmed)
        return Answer.OK

    def read_lac(self, ledger_id: int) -> tuple[Answer, bytes | None, bytes | None]:
        """The explicit LAC's packet, and the last entry."""
        if ledger_id <= self.limbo_to:
            return Answer.LIMBO, None, None
        held = self.ledgers.get(ledger_id)
        if held is None or (held.proof is None and not held.entries):
            return Answer.NO_ENTRY, None, None
        _, last = self._last(ledger_id, held, None)
        return (Answer.OK if last is not None else Answer.IO_FAILED), held.proof, last

    def watch(self, ledger_id: int, watch: Watch) -> bool:
        """For a long poll. False: there is nothing to wait for, answer at once."""
        held = self.ledgers.get(ledger_id)
        lac = None if held is None else self._idea(held)
        if held is None or lac is None or lac > watch.waits_past:
            return False
        held.watches.append(watch)
        return True

    def unwatch(self, ledger_id: int, watch: Watch) -> None:
        held = self.ledgers.get(ledger_id)
        if held is not None and watch in held.watches:
            held.watches.remove(watch)

    def polled(self, ledger_id: int, waits_past: int) -> tuple[Answer, int, bytes | None, int]:
        """How a long poll ends: entry id and entry, if it brings one, and the bookie's LAC."""
        if ledger_id <= self.limbo_to:
            return Answer.LIMBO, LAST_ENTRY, None, -1
        held = self.ledgers.get(ledger_id)
        if held is None:
            return Answer.NO_LEDGER, LAST_ENTRY, None, -1
        lac = self._idea(held)
        if lac is None:
            return Answer.NO_ENTRY, LAST_ENTRY, None, -1
        entry = held.entries.get(waits_past + 1)
        if lac > waits_past and entry is not None:
            return Answer.OK, waits_past + 1, entry.raw, lac
        return Answer.OK, LAST_ENTRY, None, lac

    # --- life

    def sync(self) -> None:
        """The journal reaches the disk."""
        self._keep(self.unsynced)
        self.unsynced = []

    def flush_cache(self) -> None:
        """The write cache goes to the entry log."""
        for held in self.ledgers.values():
            held.cached.clear()
            held.again = False

    def kill(self, kept: int = 0) -> None:
        """-9. So many of the records that were not synced reached the disk all the same."""
        self._keep(self.unsynced[:kept])
        for held in self.durable.values():
            if held.fence is not None and not held.fence.survives:
                held.fence = None
        self._down()

    def stop(self) -> None:
        """SIGTERM: nothing is forgotten."""
        self.sync()
        self._down()

    def wipe(self, *, is_noticed: bool, last_ledger: int = _ANY_LEDGER) -> None:
        """Its disks are lost. Noticed, it is in limbo of whatever ledger it may have had;
        otherwise it breaks A2, and denies what it acknowledged."""
        self.durable = {}
        self.unsynced = []
        self.limbo_to = last_ledger if is_noticed else -1
        self._down()

    def start(self) -> None:
        self.ledgers = {id: held.copy() for id, held in self.durable.items()}
        self.is_up = True

    # --- inside

    def _down(self) -> None:
        self.is_up = False
        self.incarnation += 1
        self.unsynced = []
        self.ledgers = {}

    def _keep(self, records: Sequence[_Record]) -> None:
        for ledger_id, kind, number, value, key in records:
            held = self.durable.setdefault(ledger_id, HeldLedger())
            held.key = key
            if isinstance(value, Entry):
                held.entries[number] = value
            elif isinstance(value, _Fence):
                held.fence = value
            else:
                assert kind == "lac"
                held.proof = value
                held.explicit_lac = max(held.explicit_lac, number)

    def _idea(self, held: HeldLedger) -> int | None:
        """Of the LAC. It is made of the last entry's header when it is first asked for."""
        if held.lac is None and held.entries:
            held.lac = held.entries[max(held.entries)].last_confirmed
        return held.lac

    def _rise(self, held: HeldLedger, lac: int) -> None:
        if held.lac is not None and lac <= held.lac:
            return
        held.lac = lac
        watches, held.watches = held.watches, []
        for watch in watches:  # whoever waits for more is forgotten as well
            if lac > watch.waits_past:
                watch.wake()

    def _fence_first(self, ledger_id: int, fence_key: bytes | None) -> Answer | None:
        """Why the read goes no further."""
        if fence_key is not None:
            fenced = self.fence(ledger_id, fence_key)
            if fenced is not Answer.OK:
                return fenced
        return None

    def _last(
        self, ledger_id: int, held: HeldLedger, fence_key: bytes | None
    ) -> tuple[Answer, bytes | None]:
        if not held.entries:
            return self._nothing(ledger_id, LAST_ENTRY, held, fence_key)
        among = held.cached if held.again and held.cached else held.entries
        return Answer.OK, held.entries[max(among)].raw

    def _nothing(
        self, ledger_id: int, entry_id: int, held: HeldLedger | None, fence_key: bytes | None
    ) -> tuple[Answer, None]:
        if ledger_id <= self.limbo_to:
            return Answer.LIMBO, None
        if fence_key is not None:
            self.denied.add((ledger_id, entry_id))
        return (Answer.NO_LEDGER if held is None else Answer.NO_ENTRY), None

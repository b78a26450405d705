"""Making sure of what a recovery found: every entry again on its write set, until A have it.

An entry that was found may stand on one bookie, and not even on its disk. It is written again as it
was, with two differences. The flag lets it pass the fence; it is part of the bytes, so nobody can
forget it when they are sent again. And the LAC in the header is the one that recovery *began* with:
a rising one would show readers entries that no closed ledger may contain in the end, because this
recovery can lose to another or die before it closes. (The digest covers the LAC, so it is made
anew; payload and running size stay.)

Entries travel in runs: the same joined bytes to each bookie that holds all of them, acknowledged as
a run. An entry is *written* once A bookies of its present write set have it and everything before
it is written; nobody waits for the others. A bookie that fails is replaced from the first entry on
that is not written, in the fragments that this recovery keeps for itself: they reach the metadata
when the ledger is closed, or never. Its acknowledgements go with it. What cannot be replaced stays
vacant while A bookies are left.

Bounds: entries read and not written (`has_room`), and what each bookie has to answer. A bookie that
falls behind what is kept for it counts as failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from dlog.errors import DlogError, Unavailable
from dlog.ledger.bookkeeper.core.changes import with_places
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.ledger.bookkeeper.core.recovery_requests import Add, LetGo, Request, Settle
from dlog.limits import (
    ADD_RUN_BYTES_MAX,
    ADD_RUN_ENTRIES_MAX,
    ADD_TIMEOUT_MS_DEFAULT,
    LAGGARD_MS_DEFAULT,
    RECOVERY_WINDOW_BYTES,
    RECOVERY_WINDOW_ENTRIES,
)
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest, StoredEntry
from dlog.wire.bookie_v2 import Flag, pack_add
from dlog.wire.ledger_metadata import LedgerMetadata

# Advice: a bookie for an empty place, given who stands in the ensemble and who failed. None if
# there is no other. Any answer is safe.
Choose = Callable[[Sequence[str], Set[str]], str | None]

_FLAGS: Final = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
_RESEND_S, _RESEND_S_MAX = 0.05, 1.0
_ADD_TIMEOUT_S = ADD_TIMEOUT_MS_DEFAULT / 1000
_LAGGARD_S = LAGGARD_MS_DEFAULT / 1000


@dataclass(frozen=True, slots=True)
class _Run:
    first_entry: int
    last_entry: int
    frames_bytes: int  # of all its frames, once
    frames: list[tuple[bytes, int]]  # by place: what it gets, and how many entries that are


@dataclass(slots=True)
class _Slot:
    """One place of the ensemble, as long as the same bookie stands in it."""

    bookie_id: str
    place: int
    next_run: int  # the serial number of the run to send next
    lost_by: str = ""  # why it is not counted on any more
    heard_s: float = 0.0  # when it last answered, or got work after it had none
    in_flight: deque[list[int]] = field(default_factory=deque)  # [to answer, entries, bytes]
    in_flight_entries: int = 0
    in_flight_bytes: int = 0
    refused: set[int] = field(default_factory=set)  # too busy for these
    busy_since_s: float | None = None  # it has taken nothing since
    resend_at_s: float = 0.0
    resend_after_s: float = _RESEND_S

    @property
    def is_lost(self) -> bool:
        return self.lost_by != ""


class WriteBack:
    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest: EntryDigest,
        key: bytes,
        choose: Choose,
        *,
        last_confirmed: int,
    ) -> None:
        self.written_to = last_confirmed
        self.fragments = metadata.fragments  # private from the first replacement on
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._key = key
        self._choose = choose
        self._last_confirmed = last_confirmed
        self._ack_quorum = metadata.ack_quorum
        self._write_sets = [  # a bit per place, by entry id modulo E
            sum(1 << place for place in write_set(metadata, entry_id))
            for entry_id in range(metadata.ensemble_size)
        ]
        self._runs: deque[_Run] = deque()  # not all written; the serial of the first:
        self._first_run = 0
        self._acks: dict[int, int] = {}  # by entry not written: a bit per place
        self._unwritten_bytes = 0
        self._failed: set[str] = set()
        self._slots = [
            _Slot(bookie_id, place, 0)
            for place, bookie_id in enumerate(metadata.fragments[-1].ensemble)
        ]
        self._requests: list[Request] = []

    @property
    def has_room(self) -> bool:
        return (
            self._unwritten_bytes < RECOVERY_WINDOW_BYTES
            and len(self._acks) < RECOVERY_WINDOW_ENTRIES
        )

    def take(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def write(self, entries: Sequence[StoredEntry], *, now_s: float) -> None:
        """The next entries, in order. `Unavailable` when fewer than A bookies are left for one."""
        if not entries:
            return
        at = 0
        while at < len(entries):
            run, at = self._next_run(entries, at)
            self._runs.append(run)
            self._unwritten_bytes += run.frames_bytes
        self._acks.update((entry.entry_id, 0) for entry in entries)
        self._mend(now_s)

    def on_adds(
        self, bookie_id: str, answer: Answer, entry_ids: Sequence[int], *, now_s: float
    ) -> None:
        slot = self._slot(bookie_id)
        if slot is None:
            return
        slot.heard_s = now_s
        self._settle(slot, len(entry_ids))
        what = reaction(Call.ADD, answer)
        if what is Reaction.TAKE:
            self._count(slot, entry_ids)
        elif what is Reaction.RESEND_LATER:
            if slot.busy_since_s is None:
                slot.busy_since_s = now_s
            if not slot.refused:
                slot.resend_at_s = now_s + slot.resend_after_s
                slot.resend_after_s = min(2 * slot.resend_after_s, _RESEND_S_MAX)
            slot.refused.update(entry_ids)
        else:
            # Also what would stop an appender. A fence was accepted with this very key, so
            # UNAUTHORIZED says that the bookie is in limbo; and recovery adds pass a fence, so
            # FENCED says that it takes the ledger for deleted. Neither speaks for the others.
            self._lose(slot, f"answered {answer.name}")
        if slot.is_lost or self._is_behind(slot):
            self._mend(now_s)
        else:
            self._send(slot, now_s)

    def on_down(self, bookie_id: str, *, now_s: float) -> None:
        slot = self._slot(bookie_id)
        if slot is not None:
            self._lose(slot, "could not be reached")
            self._mend(now_s)

    def tick(self, now_s: float) -> None:
        live = [each for each in self._slots if not each.is_lost]
        given_up = [each for each in live if self._is_given_up(each, now_s)]
        for slot in given_up:
            how = "silent" if slot.busy_since_s is None else "busy"
            self._lose(slot, f"{how} for {now_s - (slot.busy_since_s or slot.heard_s):.1f} s")
        if given_up:
            self._mend(now_s)
        for slot in self._slots:
            if slot.refused and not slot.is_lost and now_s >= slot.resend_at_s:
                self._send_refused(slot, now_s)

    # --- frames

    def _next_run(self, entries: Sequence[StoredEntry], at: int) -> tuple[_Run, int]:
        """Entries from `at` on that travel together, and where they stop."""
        size = self._metadata.ensemble_size
        is_striped = self._metadata.write_quorum < size
        parts: list[list[bytes | memoryview]] = [[] for _ in range(size if is_striped else 1)]
        counts = [0] * len(parts)
        first_entry, run_bytes = entries[at].entry_id, 0
        pack_head, ledger_id, key = self._digest.pack_head, self._ledger_id, self._key
        end = min(at + ADD_RUN_ENTRIES_MAX, len(entries))
        while at < end and run_bytes < ADD_RUN_BYTES_MAX:
            entry_id, _, ledger_bytes, payload = entries[at]
            head = pack_head(ledger_id, entry_id, self._last_confirmed, ledger_bytes, (payload,))
            front = pack_add(head, payload_bytes=len(payload), master_key=key, flags=_FLAGS)
            run_bytes += len(front) + len(payload)
            for place in write_set(self._metadata, entry_id) if is_striped else (0,):
                parts[place] += (front, payload)
                counts[place] += 1
            at += 1
        frames = [(b"".join(part), count) for part, count in zip(parts, counts, strict=True)]
        if not is_striped:
            frames *= size
        return _Run(first_entry, entries[at - 1].entry_id, run_bytes, frames), at

    def _send(self, slot: _Slot, now_s: float) -> None:
        """What the bookie lacks, as far as it may have that much to answer."""
        end = self._first_run + len(self._runs)
        while (
            slot.next_run < end
            and slot.in_flight_entries < RECOVERY_WINDOW_ENTRIES
            and slot.in_flight_bytes < RECOVERY_WINDOW_BYTES
        ):
            self._send_run(slot, self._runs[slot.next_run - self._first_run], now_s)
            slot.next_run += 1

    def _is_behind(self, slot: _Slot) -> bool:
        """What it has not got was written without it and is not kept."""
        return slot.next_run < self._first_run and not slot.is_lost

    def _send_run(self, slot: _Slot, run: _Run, now_s: float) -> None:
        frames, entries = run.frames[slot.place]
        if entries == 0:
            return
        if not slot.in_flight:
            slot.heard_s = now_s
        slot.in_flight.append([entries, entries, len(frames)])
        slot.in_flight_entries += entries
        slot.in_flight_bytes += len(frames)
        self._requests.append(Add(slot.bookie_id, frames, entries))

    def _send_refused(self, slot: _Slot, now_s: float) -> None:
        """Whole runs: an entry that comes twice is the same entry."""
        refused, slot.refused = slot.refused, set()
        for run in self._runs:
            if any(run.first_entry <= entry_id <= run.last_entry for entry_id in refused):
                self._send_run(slot, run, now_s)

    # --- acknowledgements

    def _settle(self, slot: _Slot, answers: int) -> None:
        """Bookies answer each add once; in which order is all the same here."""
        while answers > 0 and slot.in_flight:
            oldest = slot.in_flight[0]
            taken = min(answers, oldest[0])
            oldest[0] -= taken
            answers -= taken
            slot.in_flight_entries -= taken
            if oldest[0] == 0:
                slot.in_flight.popleft()
                slot.in_flight_bytes -= oldest[2]
                self._requests.append(Settle(slot.bookie_id, oldest[1], oldest[2]))

    def _count(self, slot: _Slot, entry_ids: Sequence[int]) -> None:
        acks, bit = self._acks, 1 << slot.place
        for entry_id in entry_ids:
            mask = acks.get(entry_id)
            if mask is not None:
                acks[entry_id] = mask | bit
        slot.busy_since_s = None
        if slot.refused:
            slot.refused.difference_update(entry_ids)
        written, needed = self.written_to, self._ack_quorum
        while acks.get(written + 1, 0).bit_count() >= needed:
            written += 1
            del acks[written]
        self.written_to = written
        while self._runs and self._runs[0].last_entry <= written:
            self._unwritten_bytes -= self._runs.popleft().frames_bytes
            self._first_run += 1

    def _write_set(self, entry_id: int) -> int:
        return self._write_sets[entry_id % len(self._write_sets)]

    def _holds_back(self, slot: _Slot) -> bool:
        """The next entry to be written waits for this bookie, too."""
        entry_id = self.written_to + 1
        mask = self._acks.get(entry_id)
        return mask is not None and bool((self._write_set(entry_id) & ~mask) >> slot.place & 1)

    # --- bookies that fail

    def _slot(self, bookie_id: str) -> _Slot | None:
        """None for one that was let go: what it still says is too late."""
        for slot in self._slots:
            if slot.bookie_id == bookie_id:
                return None if slot.is_lost else slot
        return None

    def _is_given_up(self, slot: _Slot, now_s: float) -> bool:
        """Silent, or too busy, for as long as anybody may be; or silent for a moment while the next
        entry waits for it and somebody else could have it."""
        if slot.busy_since_s is not None and now_s - slot.busy_since_s >= _ADD_TIMEOUT_S:
            return True
        if not slot.in_flight or now_s - slot.heard_s < _LAGGARD_S:
            return False
        return now_s - slot.heard_s >= _ADD_TIMEOUT_S or (
            self._holds_back(slot) and self._choice() is not None
        )

    def _lose(self, slot: _Slot, why: str) -> None:
        slot.lost_by = why
        self._failed.add(slot.bookie_id)
        self._requests.append(LetGo(slot.bookie_id))

    def _choice(self) -> str | None:
        ensemble = [slot.bookie_id for slot in self._slots]
        bookie_id = self._choose(ensemble, self._failed)
        is_new = bookie_id not in ensemble and bookie_id not in self._failed
        return bookie_id if is_new else None

    def _mend(self, now_s: float) -> None:
        """Others for the bookies that were lost, as far as entries are still to be written there;
        then send whatever is to be sent."""
        if not self._acks:
            return
        for slot in self._slots:
            if self._is_behind(slot):
                self._lose(slot, "fell behind")  # before it is counted on
        places: dict[int, str] = {}
        for slot in self._slots:
            if slot.is_lost and self._is_wanted(slot.place):
                chosen = self._choice()
                if chosen is None:
                    break
                places[slot.place] = chosen
                self._slots[slot.place] = _Slot(chosen, slot.place, self._first_run)
        if places:
            first_entry = self.written_to + 1
            self.fragments = with_places(self.fragments, first_entry=first_entry, places=places)
            gone = sum(1 << place for place in places)
            for entry_id, mask in self._acks.items():
                self._acks[entry_id] = mask & ~gone
        self._check_enough()
        for slot in self._slots:
            if not slot.is_lost:
                self._send(slot, now_s)

    def _is_wanted(self, place: int) -> bool:
        return any(self._write_set(entry_id) >> place & 1 for entry_id in self._acks)

    def _check_enough(self) -> None:
        lost = [slot for slot in self._slots if slot.is_lost]
        if not lost:
            return
        live = sum(1 << slot.place for slot in self._slots if not slot.is_lost)
        for entry_id, mask in self._acks.items():
            enough = (mask | self._write_set(entry_id) & live).bit_count()
            if enough < self._ack_quorum:
                raise self._too_few(entry_id, lost, self._ack_quorum - enough)

    def _too_few(self, entry_id: int, lost: Sequence[_Slot], needed: int) -> DlogError:
        names = [slot.bookie_id for slot in lost]
        whys = [f"{slot.bookie_id} {slot.lost_by}" for slot in lost]
        return Unavailable(
            f"entry {entry_id} of ledger {self._ledger_id} cannot be written back: {needed} more "
            f"bookies would do; {', '.join(whys)}; there is no other",
            ledger_id=self._ledger_id,
            entry_id=entry_id,
            missing=names,
            needed=needed,
        )

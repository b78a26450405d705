"""Finding the end of a fenced ledger: which entries exist, one after the other, until one does not.

- An entry exists if one bookie of its write set has a valid copy.
- It certainly was never acknowledged once `quorum.missing_needed` bookies of its write set said
  *for this entry*, with the fence in the same request, that they have none. There the ledger ends.
- Nothing else counts for absence: no time-out, refusal, bad digest or limbo. If everybody has
  answered and neither holds, the end cannot be known now: `Unavailable`, and a later try succeeds.

The bookies asked are those of the fragment as it stood when the recovery began, never one that the
recovery brought in: an empty newcomer would "prove" absence.

Where every bookie holds every entry (E = W) the search goes by batch reads: everybody is asked at
once, and whoever brings most leads. While the leader brings full answers the others rest; they are
asked again when an answer is short, which says nothing about the entry behind it, or when the
leader has been silent for a while. One question runs ahead: about the entry behind the last one
that any fence has seen, which mostly is the end. A striped ledger is asked for entry by entry, the
whole write set at once, in a window that grows while there is something to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dlog.errors import Corrupt, DlogError, Unavailable, check
from dlog.ledger.bookkeeper.core.quorum import missing_needed, write_set
from dlog.ledger.bookkeeper.core.recovery_requests import Ask
from dlog.limits import MIB
from dlog.wire import Buffer
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest, StoredEntry
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata

BATCH_FRAME_BYTES: Final = MIB
_BATCH_ENTRIES = 1 << 14
_SINGLES_FIRST, _SINGLES_MAX = 4, 128  # entries asked for ahead, one by one …
_SINGLES_BYTES_MAX = 8 * MIB  # … and what they may come to, if they are as large as the last one
# Reads are not worth more patience before somebody else is asked.
HEDGE_S: Final = 0.2


class Evidence(NamedTuple):
    """Why the ledger ends before `entry_id`: these said that they never had it."""

    entry_id: int
    denied_by: tuple[str, ...]
    needed: int


@dataclass(slots=True)
class _Place:
    bookie_id: str
    by_batch: bool
    asked: set[int] = field(default_factory=set)  # first entries of what is in flight
    next_single: int = 0


class EndSearch:
    """`confirmed` is the highest entry that anybody is known to have confirmed: an end below it
    would contradict what was read. Every answer may raise."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        fragment: Fragment,
        digest: EntryDigest,
        *,
        first_entry: int,
        confirmed: int,
        probe_entry: int | None = None,
        count_max: int = _BATCH_ENTRIES,
        now_s: float,
    ) -> None:
        check(first_entry >= fragment.first_entry_id, "a search stays in its fragment", first_entry)
        self.position = first_entry  # everything below it, from `first_entry` on, was found
        self.evidence: Evidence | None = None
        self.confirmed = confirmed
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._count_max = count_max
        by_batch = metadata.ensemble_size == metadata.write_quorum
        self._places = [_Place(bookie_id, by_batch) for bookie_id in fragment.ensemble]
        self._place_of = {each.bookie_id: place for place, each in enumerate(self._places)}
        self._found: list[StoredEntry] = []  # in order, not taken yet
        self._ahead: dict[int, StoredEntry] = {}
        self._missing: dict[int, set[int]] = {}  # by entry: the places that never had it
        self._unknown: dict[int, dict[int, Answer]] = {}  # … and those that cannot say
        self._singles_ahead = _SINGLES_FIRST
        self._leader: int | None = None  # while its answers come full
        self._progressed_s = now_s
        self._probe_entry = probe_entry if by_batch else None

    @property
    def is_over(self) -> bool:
        return self.evidence is not None

    def take(self) -> list[StoredEntry]:
        """What was found since, in order."""
        found, self._found = self._found, []
        return found

    def asks(self, now_s: float) -> list[Ask]:
        """What to ask now. Never twice for the same entry at the same bookie at once."""
        if self.is_over:
            return []
        asks: list[Ask] = []
        rests = self._leader is not None and now_s - self._progressed_s < HEDGE_S
        for place, each in enumerate(self._places):
            if not each.by_batch:
                asks += self._singles(place, each)
            elif not (rests and place != self._leader) and self._is_of_use(place, each):
                asks.append(Ask(each.bookie_id, self.position, self._count_max, is_batch=True))
                each.asked.add(self.position)
        if self._probe_entry is not None:
            asks += self._probes(self._probe_entry)
            self._probe_entry = None
        return asks

    def go_singly(self, bookie_id: str) -> None:
        """This bookie seems to know no batch reads."""
        each = self._places[self._place_of[bookie_id]]
        each.by_batch = False
        each.next_single = self.position

    def forget(self, ask: Ask) -> None:
        """It will not be answered, and need not be."""
        self._places[self._place_of[ask.bookie_id]].asked.discard(ask.first_entry)

    def saw_confirmed(self, last_confirmed: int) -> None:
        self.confirmed = max(self.confirmed, last_confirmed)

    def on_answer(
        self, ask: Ask, answer: Answer, entries: Sequence[Buffer], *, now_s: float
    ) -> None:
        place = self._place_of[ask.bookie_id]
        self._places[place].asked.discard(ask.first_entry)
        if self.is_over or (answer is not Answer.OK and ask.first_entry < self.position):
            return
        began = self.position
        if answer is Answer.OK:
            self._look_at(place, ask, entries)
        elif reaction(Call.RECOVERY_READ, answer) is Reaction.COUNT_MISSING:
            self._missing.setdefault(ask.first_entry, set()).add(place)
        else:
            self._unknown.setdefault(ask.first_entry, {})[place] = answer
        if self.position > began:
            self._progressed_s = now_s
            self._widen()
            is_full = sum(map(len, entries)) >= BATCH_FRAME_BYTES // 2
            self._leader = place if ask.is_batch and is_full else None
            for entry_id in range(began, self.position):
                self._missing.pop(entry_id, None)
                self._unknown.pop(entry_id, None)
        elif place == self._leader:
            self._leader = None
        self._decide()

    # --- inside

    def _is_of_use(self, place: int, each: _Place) -> bool:
        """Nothing is in flight that may tell about the entry we stand at, and it has not."""
        position = self.position
        return (
            not any(first_entry <= position for first_entry in each.asked)
            and place not in self._missing.get(position, ())
            and place not in self._unknown.get(position, ())
        )

    def _singles(self, place: int, each: _Place) -> list[Ask]:
        asks: list[Ask] = []
        entry_id = max(each.next_single, self.position)
        while entry_id < self.position + self._singles_ahead:
            wanted = entry_id not in self._ahead and entry_id not in each.asked
            if wanted and place in write_set(self._metadata, entry_id):
                asks.append(Ask(each.bookie_id, entry_id))
                each.asked.add(entry_id)
            entry_id += 1
        each.next_single = entry_id
        return asks

    def _widen(self) -> None:
        entry_bytes = len(self._found[-1].payload) + 1
        by_bytes = max(1, _SINGLES_BYTES_MAX // entry_bytes)
        self._singles_ahead = min(2 * self._singles_ahead, _SINGLES_MAX, by_bytes)

    def _probes(self, entry_id: int) -> list[Ask]:
        asks = []
        for each in self._places:
            if each.by_batch and entry_id not in each.asked:
                asks.append(Ask(each.bookie_id, entry_id, 1, is_batch=True))
                each.asked.add(entry_id)
        return asks

    def _look_at(self, place: int, ask: Ask, entries: Sequence[Buffer]) -> None:
        """Takes what is new of an answer, up to the first entry that is not what was written."""
        known = max(0, self.position - ask.first_entry)
        verify, where = self._digest.verify, f"bookie {ask.bookie_id}"
        for entry_id, raw in enumerate(entries[known:], ask.first_entry + known):
            try:
                entry = verify(raw, ledger_id=self._ledger_id, entry_id=entry_id, where=where)
            except Corrupt:
                self._unknown.setdefault(entry_id, {})[place] = Answer.BAD_DIGEST
                break
            if entry.last_confirmed > self.confirmed:
                self.confirmed = entry.last_confirmed
            if entry_id == self.position:
                self._found.append(entry)
                self.position += 1
            else:
                self._ahead[entry_id] = entry
        while self.position in self._ahead:
            self._found.append(self._ahead.pop(self.position))
            self.position += 1

    def _decide(self) -> None:
        position, needed = self.position, missing_needed(self._metadata)
        missing = self._missing.get(position, set())
        if len(missing) >= needed and position > self.confirmed:
            denied_by = tuple(self._places[place].bookie_id for place in sorted(missing))
            self.evidence = Evidence(position, denied_by, needed)
            return
        unknown = self._unknown.get(position, {})
        if all(place in missing or place in unknown for place in self._write_set()):
            raise self._undecided(unknown, needed - len(missing))

    def _write_set(self) -> tuple[int, ...]:
        return write_set(self._metadata, self.position)

    def _undecided(self, unknown: dict[int, Answer], needed: int) -> DlogError:
        entry_id, ledger_id = self.position, self._ledger_id
        which = f"entry {entry_id} of ledger {ledger_id}"
        if entry_id <= self.confirmed:
            if not unknown:
                return Corrupt(
                    f"{which} was confirmed, and no bookie has it any more",
                    ledger_id=ledger_id,
                    entry_id=entry_id,
                )
            needed = 1  # only a copy helps
        names = {self._places[place].bookie_id: answer for place, answer in unknown.items()}
        why = ", ".join(f"{each}: {answer.value}" for each, answer in names.items())
        return Unavailable(
            f"nobody can tell whether {which} exists: {needed} more bookies would do ({why})",
            ledger_id=ledger_id,
            entry_id=entry_id,
            missing=list(names),
            needed=needed,
        )

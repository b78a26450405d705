"""Who stands in which place of an appender's ensemble: bookies lost, found, proven and named.

A place whose bookie was lost gets a candidate, or waits and tries the one that is named there; the
states of a `Slot` are the way it goes. Three rules, each of which keeps acknowledged entries safe:

- one change of metadata at a time, which names all candidates that are ready. What is lost in the
  meantime joins the next. Its fragment begins behind what was confirmed when it was first asked;
  while nobody knows whether it is stored, the same change is asked again, and no other;
- what is stored counts: a slot whose bookie is not the one that metadata names there starts anew;
- a link is *proven* once metadata, read freshly after it was up, said OPEN, or a change of ours was
  stored. A bookie that is killed may forget a fence if it holds no entry from before it; but a
  recovery marks metadata before it fences, so whoever looks after the bookie came back sees the
  mark. This alone keeps zombies out, also of bookies that joined late and hold nothing yet; a
  birth that all bookies acked makes it unlikely to be needed.

Before a candidate is named it has taken the published LAC. So A bookies always show what was
published, and one that accepts connections and does not serve is found out without harm.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from dlog.chance import Chance
from dlog.errors import DlogError, Fenced, Handle, NotFound, Outcome, Retry, check
from dlog.ledger.bookkeeper.core.append_effects import (
    Change,
    Connect,
    LetGo,
    Look,
    Standing,
    WriteLac,
)
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.links import DataLink
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

AVOID_MS = 10_000.0  # a bookie that was lost is not chosen again so soon
RETRY_MS = 50.0  # after a first failure; doubles up to the next
RETRY_MS_MAX = 5_000.0

# A bookie that is none of those given, or None.
Pick = Callable[[AbstractSet[str]], str | None]


class Places:
    def __init__(
        self, standing: Standing, metadata: LedgerMetadata, *, pick: Pick, chance: Chance
    ) -> None:
        self.metadata = metadata  # as far as we know
        self.change: Change | None = None  # asked, and not known to be stored or not
        self.looking: list[Slot] | None = None  # whose links were up when the look was asked
        self.meta_trouble: DlogError | None = None  # why metadata could not be read or changed
        self._standing = standing
        self._pick = pick
        self._chance = chance
        self._avoid_until_ms: dict[str, float] = {}
        self._vacancies = [0] * len(self.ensemble)  # of each place, since it last took entries
        self._fill_at_ms = [0.0] * len(self.ensemble)
        self._change_is_kept = False  # what it names bookies for, see `kept_from`
        self._change_waits = False  # for its next try
        self._change_is_unknown = False
        self._change_at_ms = 0.0
        self._change_failures = 0
        self._look_at_ms = 0.0
        self._look_failures = 0
        # Nobody has to be lost for a connection to be late: all bookies get all entries.
        self.slots = [
            Slot(place, bookie, kept_from=0) for place, bookie in enumerate(self.ensemble)
        ]
        standing.effects.extend(map(Connect, self.slots))

    @property
    def ensemble(self) -> tuple[str, ...]:
        """As metadata names it."""
        return self.metadata.fragments[-1].ensemble

    def is_current(self, slot: Slot) -> bool:
        return self.slots[slot.place] is slot

    def slot_of(self, link: DataLink) -> Slot | None:
        for slot in self.slots:
            if slot.link is link:
                return slot
        return None

    def fail(self, error: DlogError) -> None:
        if not self._standing.is_over:
            self._standing.failure = error
        self.end()

    def end(self) -> None:
        """Let go of all links, and ask for nothing more."""
        for slot in self.slots:
            self.leave(slot)
        self.stop()

    def leave(self, slot: Slot) -> None:
        self._let_go_of(slot)
        slot.state = State.VACANT

    def stop(self) -> None:
        """Ask for nothing more."""
        for slot in self.slots:
            if slot.state is not State.LIVE:
                self.leave(slot)
        effects = self._standing.effects
        effects[:] = [effect for effect in effects if isinstance(effect, LetGo)]

    # --- Bookies lost and found

    def on_link(self, slot: Slot, link: DataLink, *, is_proven: bool) -> bool:
        """Whether it is wanted."""
        if slot.state is not State.CONNECTING or not self.is_current(slot):
            return False
        slot.link = link
        slot.silent_ms = 0.0
        standing = self._standing
        if slot.bookie_id == self.ensemble[slot.place]:
            slot.is_proven = is_proven
            kept_from = slot.kept_from
            # One that comes back missed some: A others hold what was confirmed meanwhile.
            slot.go_live(standing.last_confirmed + 1 if kept_from is None else kept_from)
            self.look_if_needed()
        elif standing.last_published >= 0:
            slot.state = State.PREPARING
            slot.writing = standing.last_published
            standing.effects.append(WriteLac(slot, standing.last_published))
        else:
            self.make_ready(slot)
        return True

    def make_ready(self, slot: Slot) -> None:
        slot.state = State.READY
        self.change_if_needed()

    def lose(self, slot: Slot) -> None:
        """This bookie takes no entries any more: find another, or the same one again."""
        self._let_go_of(slot)
        if slot.state is State.NAMING:
            return  # metadata may name it by now: that must be known first
        self._avoid_until_ms[slot.bookie_id] = self._standing.now_ms + AVOID_MS
        place = slot.place
        candidate = self.candidate()
        if candidate is not None:
            self._connect(place, candidate)
            return
        self.slots[place] = Slot(place, self.ensemble[place], State.VACANT)
        self._fill_at_ms[place] = self._standing.now_ms + self.wait_ms(self._vacancies[place])
        self._vacancies[place] += 1

    def fill_if_due(self, slot: Slot) -> None:
        """A vacant place: a new bookie, or the one that is named there once more."""
        if self._standing.now_ms >= self._fill_at_ms[slot.place]:
            self._connect(slot.place, self.candidate() or self.ensemble[slot.place])

    def on_progress(self, slot: Slot) -> None:
        self._vacancies[slot.place] = 0

    def cannot_be_filled(self, slot: Slot) -> bool:
        """No other bookie was found, and the one that is named is away."""
        is_named = slot.bookie_id == self.ensemble[slot.place]
        return slot.state is State.VACANT or (slot.state is State.CONNECTING and is_named)

    def candidate(self) -> str | None:
        avoid, now_ms = self._avoid_until_ms, self._standing.now_ms
        for bookie in [bookie for bookie, until_ms in avoid.items() if until_ms <= now_ms]:
            del avoid[bookie]
        excluded = {*self.ensemble, *avoid, *(slot.bookie_id for slot in self.slots)}
        candidate = self._pick(excluded)
        return None if candidate in excluded else candidate

    def wait_ms(self, failures: int) -> float:
        limit_ms = min(RETRY_MS * float(1 << min(failures, 20)), RETRY_MS_MAX)
        return limit_ms * (0.5 + self._chance.fraction() / 2)

    def _connect(self, place: int, bookie_id: str) -> None:
        slot = self.slots[place] = Slot(place, bookie_id)
        self._standing.effects.append(Connect(slot))

    def _let_go_of(self, slot: Slot) -> None:
        if slot.link is not None:
            self._standing.effects.append(LetGo(slot.link))
            slot.link = None

    # --- Changing metadata

    def change_if_needed(self) -> None:
        """Ask for all candidates that are ready, or once more what was asked."""
        standing = self._standing
        if standing.now_ms < self._change_at_ms:
            return
        if self.change is None:
            ready = [slot for slot in self.slots if slot.state is State.READY]
            if not ready:
                return
            for slot in ready:
                slot.state = State.NAMING
                slot.is_proven = True  # its link is up: if the change is stored, it was open after
            places = {slot.place: slot.bookie_id for slot in ready}
            self.change = Change(standing.last_confirmed + 1, places)
            self._change_is_kept = True
            self._change_is_unknown = False
        elif not self._change_waits:
            return
        self._change_waits = False
        standing.effects.append(self.change)

    def on_changed(self, metadata: LedgerMetadata) -> None:
        if not self._is_open(metadata):
            return
        change, self.change = self._asked_change(), None
        self._change_failures = 0
        self.meta_trouble = None
        self._take_over(metadata)
        first = change.first_entry if self._change_is_kept else self._standing.last_confirmed + 1
        for slot in list(self.slots):
            if slot.state is not State.NAMING:
                continue
            if slot.link is not None and slot.bookie_id == self.ensemble[slot.place]:
                slot.go_live(first)
            else:
                slot.state = State.VACANT  # named or not, it is known now
                self.lose(slot)
        self.change_if_needed()

    def on_not_changed(self, error: DlogError) -> None:
        if self._is_final(error):
            return
        self._asked_change()
        self.meta_trouble = error
        self._change_at_ms = self._standing.now_ms + self.wait_ms(self._change_failures)
        self._change_failures += 1
        self._change_is_unknown |= error.outcome is Outcome.UNKNOWN
        if self._change_is_unknown:
            self._change_waits = True
            return
        self.change = None
        for slot in list(self.slots):
            if slot.state is State.NAMING:
                slot.state = State.READY
                if slot.link is None:
                    self.lose(slot)

    @property
    def kept_from(self) -> int | None:
        """Entries that the candidates of the change under way are to get, confirmed or not."""
        change = self.change
        return change.first_entry if change is not None and self._change_is_kept else None

    def keep_no_more(self) -> None:
        """Whoever is named goes on behind what is confirmed then, like one that comes back: A
        others hold what was confirmed meanwhile."""
        self._change_is_kept = False

    def _asked_change(self) -> Change:
        change = self.change
        if change is None:
            check(False, "an answer follows a change")
            raise AssertionError
        return change

    def _take_over(self, metadata: LedgerMetadata) -> None:
        """What is stored counts, also where somebody else rewrote it."""
        last = metadata.fragments[-1]
        check(
            last.first_entry_id <= self._standing.last_confirmed + 1,
            "the last fragment holds the next entry to be confirmed",
            last,
            self._standing.last_confirmed,
        )
        self.metadata = metadata
        for slot in list(self.slots):
            named = last.ensemble[slot.place]
            if slot.bookie_id == named or slot.state in (State.NAMING, State.VACANT):
                continue
            if slot.state is State.LIVE:
                self._let_go_of(slot)
                self._connect(slot.place, named)
            elif slot.bookie_id in last.ensemble:
                self.lose(slot)  # a candidate, and by now it stands in another place

    # --- Looking at metadata

    def look_if_needed(self, *, anyway: bool = False) -> None:
        if self.looking is not None or self._standing.now_ms < self._look_at_ms:
            return
        unproven = [slot for slot in self.slots if slot.state is State.LIVE and not slot.is_proven]
        if unproven or anyway:
            self.looking = unproven
            self._standing.effects.append(Look())

    def on_looked(self, metadata: LedgerMetadata) -> None:
        if not self._is_open(metadata):
            return
        looking, self.looking = self.looking, None
        self._look_failures = 0
        self.meta_trouble = None
        for slot in looking or ():
            slot.is_proven = True  # its link is the one it had: over another, it is another slot
        self.look_if_needed()

    def on_not_looked(self, error: DlogError) -> None:
        if self._is_final(error):
            return
        self.looking = None
        self.meta_trouble = error
        self._look_at_ms = self._standing.now_ms + self.wait_ms(self._look_failures)
        self._look_failures += 1

    def _is_open(self, metadata: LedgerMetadata) -> bool:
        is_open = metadata.state is LedgerState.OPEN
        if not is_open:
            ledger_id, state = self._standing.ledger_id, metadata.state.name.lower()
            self.fail(
                Fenced(
                    f"ledger {ledger_id} was ended by somebody else: it is {state}",
                    ledger_id=ledger_id,
                )
            )
        return is_open

    def _is_final(self, error: DlogError) -> bool:
        """A metadata store that is away is waited for; anything else ends the appender."""
        if error.retry is Retry.NOW:
            return False
        if isinstance(error, NotFound):
            ledger_id = self._standing.ledger_id
            error = Fenced(f"ledger {ledger_id} was deleted", ledger_id=ledger_id)
        error = error.again()  # about metadata; of the appender and its entries it says this:
        error.outcome, error.handle = Outcome.UNKNOWN, Handle.DEAD
        self.fail(error)
        return True

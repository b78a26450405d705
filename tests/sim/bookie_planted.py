"""Bugs planted in the core of the BookKeeper appender, one at a time, each named after the rule
that it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import DlogError, Outcome
from dlog.ledger.bookkeeper.core import appender as appender_core
from dlog.ledger.bookkeeper.core.append_effects import Change
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.outbox import Outbox
from dlog.ledger.bookkeeper.core.places import Places
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.wire.bookie_codes import Answer, Reaction
from tests.sim.bookies import SimAppender

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTS: dict[str, Plant] = {}


def plant(bug: Plant) -> Plant:
    PLANTS[bug.__name__] = bug
    return bug


# --- what counts


@plant
def one_ack_too_few(patch: Patch) -> None:
    _with_init(patch, lambda core: setattr(core, "_ack_quorum", max(core._ack_quorum - 1, 1)))


@plant
def birth_of_a_quorum(patch: Patch) -> None:
    patch.setattr(AppenderCore, "begin_birth", lambda core: None)


@plant
def link_never_proven(patch: Patch) -> None:
    """fence_forgotten, bookie_reborn_same_address: the reconnect check is left out."""
    patch.setattr(Slot, "counts", property(lambda slot: slot.state is State.LIVE))


@plant
def look_from_before_the_link(patch: Patch) -> None:
    """A look that was asked before the link was up proves nothing."""
    real = Places.on_looked

    def on_looked(self: Places, metadata: Any) -> None:
        real(self, metadata)
        for slot in self.slots:
            slot.is_proven = True

    patch.setattr(Places, "on_looked", on_looked)


@plant
def ack_before_metadata(patch: Patch) -> None:
    """The new bookie takes part as soon as it was asked to be named."""
    real = Places.change_if_needed

    def change_if_needed(self: Places) -> None:
        real(self)
        for slot in self.slots:
            if slot.state is State.NAMING and slot.link is not None:
                slot.go_live(self._standing.last_confirmed + 1)

    patch.setattr(Places, "change_if_needed", change_if_needed)


@plant
def lost_bookie_counts_until_it_is_replaced(patch: Patch) -> None:
    """What it acked before it was lost still confirms, while a change is under way."""
    real_lose, real_count = Places.lose, AppenderCore._count
    lost: dict[Places, dict[int, Slot]] = {}

    def lose(self: Places, slot: Slot) -> None:
        if slot.counts:
            lost.setdefault(self, {})[slot.place] = slot
        real_lose(self, slot)

    def count(core: AppenderCore) -> None:
        places, slots = core.places, core.places.slots
        gone = lost.get(places, {})
        places.slots = [
            slot if slot.state is State.LIVE else gone.get(slot.place, slot) for slot in slots
        ]
        real_count(core)
        places.slots = slots

    patch.setattr(Places, "lose", lose)
    patch.setattr(AppenderCore, "_count", count)


@plant
def completion_revoked(patch: Patch) -> None:
    """The successor of a bookie inherits its acks."""
    real = Places._connect

    def connect(self: Places, place: int, bookie_id: str) -> None:
        before = self.slots[place]
        real(self, place, bookie_id)
        self.slots[place].unwritten_ms = before.acked_to + 0.5

    def go_live(slot: Slot, first: int) -> None:
        inherited = max(first, int(slot.unwritten_ms) + 1)
        real_go_live(slot, inherited if slot.unwritten_ms % 1 else first)

    real_go_live = Slot.go_live
    patch.setattr(Places, "_connect", connect)
    patch.setattr(Slot, "go_live", go_live)


@plant
def acks_beyond_a_gap(patch: Patch) -> None:
    def take_one_by_one(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        taken = [each for each in entry_ids if self.acked_to < each < self.next_to_send]
        if taken:
            self.acked_to = max(taken)
        self.refused = {each for each in self.refused if each > self.acked_to}
        return 0, 0

    patch.setattr(Slot, "_take_one_by_one", take_one_by_one)


@plant
def refused_entries_forgotten(patch: Patch) -> None:
    def take_refusals(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        return self.take_acks(outbox, entry_ids)

    patch.setattr(Slot, "take_refusals", take_refusals)


@plant
def confirmed_after_the_close_began(patch: Patch) -> None:
    patch.setattr(AppenderCore, "stop", lambda core: None)


@plant
def close_at_the_last_pushed(patch: Patch) -> None:
    """close_after_failed_add."""
    real = SimAppender.close

    def close(self: SimAppender) -> None:
        self.core.standing.last_confirmed = self.core.outbox.end - 1
        real(self)

    patch.setattr(SimAppender, "close", close)


@plant
def lac_of_the_last_pushed(patch: Patch) -> None:
    """C13: the LAC of a header is not what is confirmed."""
    real = AppenderCore.put

    def put(core: AppenderCore, buffers: Any, payload_bytes: int) -> int:
        confirmed = core.standing.last_confirmed
        core.standing.last_confirmed = core.outbox.end - 1
        entry_id = real(core, buffers, payload_bytes)
        core.standing.last_confirmed = confirmed
        return entry_id

    patch.setattr(AppenderCore, "put", put)


# --- changing the ensemble


@plant
def fragment_start_after_pipeline(patch: Patch) -> None:
    """The fragment begins behind what was sent, not behind what was confirmed."""
    _with_change(patch, lambda core, change: core.outbox.end)


@plant
def fragment_start_too_early(patch: Patch) -> None:
    """Confirmed entries fall into a fragment whose bookies never got them."""
    _with_change(
        patch,
        lambda core, change: max(
            core.places.metadata.fragments[-1].first_entry_id, change.first_entry - 2
        ),
        slots_too=False,
    )


@plant
def unknown_change_taken_for_not_stored(patch: Patch) -> None:
    """double_ensemble_change: the next change names others, and begins elsewhere."""
    real = Places.on_not_changed

    def on_not_changed(self: Places, error: DlogError) -> None:
        error.outcome = Outcome.NOT_HAPPENED
        real(self, error)

    patch.setattr(Places, "on_not_changed", on_not_changed)


@plant
def unknown_change_taken_for_stored(patch: Patch) -> None:
    from dlog.ledger.bookkeeper.core import changes

    real = AppenderCore.on_not_changed

    def on_not_changed(core: AppenderCore, error: DlogError) -> None:
        change = core.places.change
        if error.outcome is Outcome.UNKNOWN and change is not None:
            told = changes.replaced(
                core.places.metadata,
                ledger_id=7,
                first_entry=change.first_entry,
                places=change.places,
            )
            core.on_changed(told or core.places.metadata)
        else:
            real(core, error)

    patch.setattr(AppenderCore, "on_not_changed", on_not_changed)


@plant
def resent_from_the_wrong_place(patch: Patch) -> None:
    """Only what is sent from now on goes to the new bookie."""
    real = Places.on_changed

    def on_changed(self: Places, metadata: Any) -> None:
        named = [slot for slot in self.slots if slot.state is State.NAMING]
        real(self, metadata)
        ends = [slot.next_to_send for slot in self.slots if slot not in named]
        for slot in named:
            if slot.state is State.LIVE and ends:
                slot.next_to_send = max(slot.next_to_send, *ends)
                slot.acked_to = slot.next_to_send - 1

    patch.setattr(Places, "on_changed", on_changed)


@plant
def entries_of_a_change_let_go(patch: Patch) -> None:
    real = AppenderCore._kept_from

    def kept_from(core: AppenderCore) -> int:
        change, core.places.change = core.places.change, None
        first = real(core)
        core.places.change = change
        return first

    patch.setattr(AppenderCore, "_kept_from", kept_from)


@plant
def entries_of_the_slow_let_go(patch: Patch) -> None:
    patch.setattr(AppenderCore, "_kept_from", lambda core: core.standing.last_confirmed + 1)


@plant
def candidate_without_the_published_lac(patch: Patch) -> None:
    real = Places.on_link

    def on_link(self: Places, slot: Slot, link: Any, *, is_proven: bool) -> bool:
        published, self._standing.last_published = self._standing.last_published, -1
        wanted = real(self, slot, link, is_proven=is_proven)
        self._standing.last_published = published
        return wanted

    patch.setattr(Places, "on_link", on_link)


@plant
def published_by_one(patch: Patch) -> None:
    real = AppenderCore.on_lac_written

    def on_lac_written(core: AppenderCore, slot: Slot, last_entry: int, answer: Answer) -> None:
        real(core, slot, last_entry, answer)
        if answer is Answer.OK:
            for other in core.slots:
                other.shown = max(other.shown, last_entry)
            core._count()

    patch.setattr(AppenderCore, "on_lac_written", on_lac_written)


@plant
def any_bookie_is_taken(patch: Patch) -> None:
    """The policy's word is law."""
    patch.setattr(Places, "candidate", lambda self: self._pick(frozenset()))


# --- going on


@plant
def window_of_the_fastest(patch: Patch) -> None:
    patch.setattr(AppenderCore, "send_end", lambda core: core.outbox.end)


@plant
def vacant_for_ever(patch: Patch) -> None:
    patch.setattr(Places, "fill_if_due", lambda self, slot: None)


@plant
def paused_for_ever(patch: Patch) -> None:
    """stuck_adds."""

    def pause(self: Slot, now_ms: float, pause_ms: float) -> None:
        self.paused_until_ms = 1e12
        self.stuck_ms = -1e12

    patch.setattr(Slot, "pause", pause)


@plant
def never_late(patch: Patch) -> None:
    """stuck_adds: an answer that never comes is waited for."""
    patch.setattr(AppenderCore, "_judge", _judge_only_places)


def _judge_only_places(core: AppenderCore, slot: Slot) -> None:
    if slot.state is State.VACANT:
        core.places.fill_if_due(slot)


@plant
def failed_look_not_repeated(patch: Patch) -> None:
    def on_not_looked(self: Places, error: DlogError) -> None:
        self.looking = []

    patch.setattr(Places, "on_not_looked", on_not_looked)


@plant
def failed_change_not_repeated(patch: Patch) -> None:
    patch.setattr(Places, "on_not_changed", lambda self, error: None)


@plant
def lost_lac_not_repeated(patch: Patch) -> None:
    real = AppenderCore.on_lac_written

    def on_lac_written(core: AppenderCore, slot: Slot, last_entry: int, answer: Answer) -> None:
        if answer is Answer.OK or slot.state is State.PREPARING:
            real(core, slot, last_entry, answer)

    patch.setattr(AppenderCore, "on_lac_written", on_lac_written)


@plant
def late_connection_misses_entries(patch: Patch) -> None:
    """A bookie that is reached later than the others is not one that was lost."""
    _with_init(patch, lambda core: [setattr(slot, "kept_from", None) for slot in core.slots])


@plant
def entry_zero_is_falsy(patch: Patch) -> None:
    real = Slot.take_acks

    def take_acks(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        return real(self, outbox, entry_ids) if entry_ids[-1] else (0, 0)

    patch.setattr(Slot, "take_acks", take_acks)


@plant
def answers_of_a_former_link(patch: Patch) -> None:
    def slot_of(self: Places, link: Any) -> Slot | None:
        for slot in self.slots:
            if slot.link is not None and slot.bookie_id == link.bookie.bookie_id:
                return slot
        return None

    patch.setattr(Places, "slot_of", slot_of)


@plant
def fence_is_only_a_failure(patch: Patch) -> None:
    real = appender_core.reaction

    def reaction(call: Any, answer: Answer) -> Reaction:
        return Reaction.REPLACE_BOOKIE if answer is Answer.FENCED else real(call, answer)

    patch.setattr(appender_core, "reaction", reaction)


def _with_init(patch: Patch, spoil: Callable[[AppenderCore], None]) -> None:
    real = AppenderCore.__init__

    def init(core: AppenderCore, *args: Any, **options: Any) -> None:
        real(core, *args, **options)
        spoil(core)

    patch.setattr(AppenderCore, "__init__", init)


def _with_change(
    patch: Patch, first_entry: Callable[[AppenderCore, Change], int], *, slots_too: bool = True
) -> None:
    """What is asked for begins elsewhere."""
    real = SimAppender.change

    def change(self: SimAppender, effect: Change) -> None:
        spoiled = dataclasses.replace(effect, first_entry=first_entry(self.core, effect))
        if slots_too and self.core.places.change is effect:
            self.core.places.change = spoiled
        real(self, spoiled)

    patch.setattr(SimAppender, "change", change)

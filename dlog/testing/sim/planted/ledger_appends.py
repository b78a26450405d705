"""Bugs of appenders on bookies: what counts, and how bookies change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.errors import DlogError, Outcome
from dlog.ledger.bookkeeper.core import appender as appender_core
from dlog.ledger.bookkeeper.core import (
    changes,
)
from dlog.ledger.bookkeeper.core.append_effects import Change
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.outbox import Outbox
from dlog.ledger.bookkeeper.core.places import Places
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.testing.sim.appending import SimAppender
from dlog.testing.sim.planted import Patch
from dlog.testing.sim.planted.ledger_weather import (
    APPENDER_TESTS,
    CHANGES,
    FORMER_LINK,
    LOST_CHANGES,
    LOST_LAC,
    ONLY_A_FAILURE,
    OURS,
    ZOMBIE_LOOKS,
    ZOMBIES,
    plants,
)
from dlog.wire.bookie_codes import Answer, Reaction, reaction


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
    real = SimAppender._change

    def change(self: SimAppender, effect: Change) -> None:
        spoiled = dataclasses.replace(effect, first_entry=first_entry(self.core, effect))
        if slots_too and self.core.places.change is effect:
            self.core.places.change = spoiled
        real(self, spoiled)

    patch.setattr(SimAppender, "_change", change)


# --- what an appender counts


@plants("P5")
def one_ack_too_few(patch: Patch) -> None:
    _with_init(patch, lambda core: setattr(core, "_ack_quorum", max(core._ack_quorum - 1, 1)))


@plants("C1, birth")
def birth_of_a_quorum(patch: Patch) -> None:
    patch.setattr(AppenderCore, "begin_birth", lambda core: None)


@plants("P45, fence_forgotten, bookie_reborn_same_address", **ZOMBIES)
def link_never_proven(patch: Patch) -> None:
    """fence_forgotten, bookie_reborn_same_address: the reconnect check is left out."""
    patch.setattr(Slot, "counts", property(lambda slot: slot.state is State.LIVE))


@plants("P45", **ZOMBIE_LOOKS)
def look_from_before_the_link(patch: Patch) -> None:
    """A look that was asked before the link was up proves nothing."""
    real = Places.on_looked

    def on_looked(self: Places, metadata: Any) -> None:
        real(self, metadata)
        for slot in self.slots:
            slot.is_proven = True

    patch.setattr(Places, "on_looked", on_looked)


@plants("P7, ack_before_metadata")
def ack_before_metadata(patch: Patch) -> None:
    """The new bookie takes part as soon as it was asked to be named."""
    real = Places.change_if_needed

    def change_if_needed(self: Places) -> None:
        real(self)
        for slot in self.slots:
            if slot.state is State.NAMING and slot.link is not None:
                slot.go_live(self._standing.last_confirmed + 1)

    patch.setattr(Places, "change_if_needed", change_if_needed)


@plants("P8", **CHANGES)
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


@plants("P8, completion_revoked")
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


@plants("P6")
def acks_beyond_a_gap(patch: Patch) -> None:
    def take_one_by_one(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        taken = [each for each in entry_ids if self.acked_to < each < self.next_to_send]
        if taken:
            self.acked_to = max(taken)
        self.refused = {each for each in self.refused if each > self.acked_to}
        return 0, 0

    patch.setattr(Slot, "_take_one_by_one", take_one_by_one)


@plants("I27")
def refused_entries_forgotten(patch: Patch) -> None:
    def take_refusals(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        return self.take_acks(outbox, entry_ids)

    patch.setattr(Slot, "take_refusals", take_refusals)


@plants("I8")
def confirmed_after_the_close_began(patch: Patch) -> None:
    patch.setattr(AppenderCore, "stop", lambda core: None)


@plants("P17, close_after_failed_add")
def close_at_the_last_pushed(patch: Patch) -> None:
    """close_after_failed_add."""
    real = SimAppender._close

    def close(self: SimAppender) -> None:
        self.core.standing.last_confirmed = self.core.outbox.end - 1
        real(self)

    patch.setattr(SimAppender, "_close", close)


@plants("C13")
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


@plants("P9, fragment_start_after_pipeline")
def fragment_start_after_pipeline(patch: Patch) -> None:
    """The fragment begins behind what was sent, not behind what was confirmed."""
    _with_change(patch, lambda core, change: core.outbox.end)


@plants("I12")
def fragment_start_too_early(patch: Patch) -> None:
    """Confirmed entries fall into a fragment whose bookies never got them."""
    _with_change(
        patch,
        lambda core, change: max(
            core.places.metadata.fragments[-1].first_entry_id, change.first_entry - 2
        ),
        slots_too=False,
    )


@plants("P18, double_ensemble_change", **LOST_CHANGES)
def unknown_change_taken_for_not_stored(patch: Patch) -> None:
    """double_ensemble_change: the next change names others, and begins elsewhere."""
    real = Places.on_not_changed

    def on_not_changed(self: Places, error: DlogError) -> None:
        error.outcome = Outcome.NOT_HAPPENED
        real(self, error)

    patch.setattr(Places, "on_not_changed", on_not_changed)


@plants("P19")
def unknown_change_taken_for_stored(patch: Patch) -> None:
    real = AppenderCore.on_not_changed

    def on_not_changed(core: AppenderCore, error: DlogError) -> None:
        change = core.places.change
        if error.outcome is Outcome.UNKNOWN and change is not None:
            told = changes.replaced(
                core.places.metadata,
                ledger_id=core.ledger_id,
                first_entry=change.first_entry,
                places=change.places,
            )
            core.on_changed(told or core.places.metadata)
        else:
            real(core, error)

    patch.setattr(AppenderCore, "on_not_changed", on_not_changed)


@plants("P10")
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


@plants("I11", **CHANGES)
def entries_of_a_change_let_go(patch: Patch) -> None:
    real = AppenderCore._kept_from

    def kept_from(core: AppenderCore) -> int:
        change, core.places.change = core.places.change, None
        first = real(core)
        core.places.change = change
        return first

    patch.setattr(AppenderCore, "_kept_from", kept_from)


@plants("I11", **CHANGES)
def entries_of_the_slow_let_go(patch: Patch) -> None:
    patch.setattr(AppenderCore, "_kept_from", lambda core: core.standing.last_confirmed + 1)


@plants("I3c", **CHANGES)
def candidate_without_the_published_lac(patch: Patch) -> None:
    real = Places.on_link

    def on_link(self: Places, slot: Slot, link: Any, *, is_proven: bool) -> bool:
        published, self._standing.last_published = self._standing.last_published, -1
        wanted = real(self, slot, link, is_proven=is_proven)
        self._standing.last_published = published
        return wanted

    patch.setattr(Places, "on_link", on_link)


@plants("I3c")
def published_by_one(patch: Patch) -> None:
    real = AppenderCore.on_lac_written

    def on_lac_written(core: AppenderCore, slot: Slot, last_entry: int, answer: Answer) -> None:
        real(core, slot, last_entry, answer)
        if answer is Answer.OK:
            for other in core.slots:
                other.shown = max(other.shown, last_entry)
            core._count()

    patch.setattr(AppenderCore, "on_lac_written", on_lac_written)


@plants("policy")
def any_bookie_is_taken(patch: Patch) -> None:
    """The policy's word is law."""
    patch.setattr(Places, "candidate", lambda self: self._pick(frozenset()))


# --- going on


@plants("I25")
def window_of_the_fastest(patch: Patch) -> None:
    patch.setattr(AppenderCore, "send_end", lambda core: core.outbox.end)


@plants("I27")
def vacant_for_ever(patch: Patch) -> None:
    patch.setattr(Places, "fill_if_due", lambda self, slot: None)


@plants("I27, stuck_adds")
def paused_for_ever(patch: Patch) -> None:
    """stuck_adds."""

    def pause(self: Slot, now_ms: float, pause_ms: float) -> None:
        self.paused_until_ms = 1e12
        self.stuck_ms = -1e12

    patch.setattr(Slot, "pause", pause)


@plants("I27, stuck_adds")
def never_late(patch: Patch) -> None:
    """stuck_adds: an answer that never comes is waited for."""
    patch.setattr(AppenderCore, "_judge", _judge_only_places)


def _judge_only_places(core: AppenderCore, slot: Slot) -> None:
    if slot.state is State.VACANT:
        core.places.fill_if_due(slot)


@plants("I27", **{**CHANGES, "nodes__away": 0.3})
def failed_look_not_repeated(patch: Patch) -> None:
    def on_not_looked(self: Places, error: DlogError) -> None:
        self.looking = []

    patch.setattr(Places, "on_not_looked", on_not_looked)


@plants("I27", **CHANGES, nodes__away=0.3)
def failed_change_not_repeated(patch: Patch) -> None:
    patch.setattr(Places, "on_not_changed", lambda self, error: None)


@plants(
    "I27",
    survives=LOST_LAC,
    shown_by=f"{APPENDER_TESTS}::test_a_lost_lac_is_written_again_and_a_refused_one_costs_the_place",
)
def lost_lac_not_repeated(patch: Patch) -> None:
    real = AppenderCore.on_lac_written

    def on_lac_written(core: AppenderCore, slot: Slot, last_entry: int, answer: Answer) -> None:
        if answer is Answer.OK or slot.state is State.PREPARING:
            real(core, slot, last_entry, answer)

    patch.setattr(AppenderCore, "on_lac_written", on_lac_written)


@plants("I11", **CHANGES)
def late_connection_misses_entries(patch: Patch) -> None:
    """A bookie that is reached later than the others is not one that was lost."""

    def keep_nothing(core: AppenderCore) -> None:
        for slot in core.slots:
            slot.kept_from = None

    _with_init(patch, keep_nothing)


@plants("P37, entry_zero_is_falsy", **OURS, birth=False, appends=1, recoverers=0, closes=False)
def entry_zero_is_falsy(patch: Patch) -> None:
    real = Slot.take_acks

    def take_acks(self: Slot, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        return real(self, outbox, entry_ids) if entry_ids[-1] else (0, 0)

    patch.setattr(Slot, "take_acks", take_acks)


@plants(
    "P8",
    survives=FORMER_LINK,
    shown_by=f"{APPENDER_TESTS}::test_answers_of_a_former_link_are_not_heard",
)
def answers_of_a_former_link(patch: Patch) -> None:
    def slot_of(self: Places, link: Any) -> Slot | None:
        for slot in self.slots:
            if slot.link is not None and slot.bookie_id == link.bookie_id:
                return slot
        return None

    patch.setattr(Places, "slot_of", slot_of)


@plants(
    "I7",
    survives=ONLY_A_FAILURE,
    shown_by=f"{APPENDER_TESTS}::test_a_fence_ends_the_appender",
)
def fence_is_only_a_failure(patch: Patch) -> None:
    def only_replace(call: Any, answer: Answer) -> Reaction:
        return Reaction.REPLACE_BOOKIE if answer is Answer.FENCED else reaction(call, answer)

    patch.setattr(appender_core, "reaction", only_replace)


@plants("I9", readers=2, recoverers=1)
def what_is_sent_is_published(patch: Patch) -> None:
    """The appender leaves proofs of what it has not confirmed."""
    real = SimAppender._write_lac

    def write_lac(self: SimAppender, effect: Any) -> None:
        real(self, dataclasses.replace(effect, last_entry=self.core.outbox.end - 1))

    patch.setattr(SimAppender, "_write_lac", write_lac)

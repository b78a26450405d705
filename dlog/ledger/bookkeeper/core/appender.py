"""What happens to an entry between `put` and its confirmation, on stock bookies. No IO, no waiting.

Every bookie of the ensemble gets every entry (E = W). An entry is *confirmed* when A bookies *that
count* acked it and all before it. A slot counts while it is LIVE and its link is proven (see
`places`), and with that the rules about changing bookies need no further state:

- a bookie that is lost counts no more from that moment, and its successor counts from when metadata
  names it and only with acks of its own. So no ack is released that a reader of metadata could not
  find again, whether a change under way will have been stored or not;
- the others go on confirming meanwhile. They are named before the change and after it, so A of them
  hold what they confirm either way: neither a lost bookie nor a slow metadata store stops appends
  while A bookies are left;
- a candidate gets everything from the first entry of its fragment on, which therefore is kept until
  the change is known. Should the window be full of what is kept for it alone, and nothing else has
  moved for the time of a laggard, it is kept no more: a slow metadata store costs copies then, and
  does not stop appends.

    facts in:  put, begin_birth, publish, on_link, on_adds, on_down, on_lac_written, on_tick, …
    out:       `effects`, what may be sent (`take_run`), and `last_confirmed`, `last_published`,
               `is_born`, `failure`

Time is what ticks saw of it: a tick that comes late, because the loop or the process stood still,
counts as a short one, so that a stall of ours is not taken for the silence of a bookie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlog.chance import Chance
from dlog.errors import (
    AuthError,
    Broken,
    DlogError,
    Fenced,
    Handle,
    Outcome,
    Retry,
    Unavailable,
    check,
)
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions, Effect, Standing, WriteLac
from dlog.ledger.bookkeeper.core.outbox import Outbox
from dlog.ledger.bookkeeper.core.places import Pick, Places
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.links import DataLink
from dlog.ledger.store import Buffer
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

TICK_MS = 25.0  # while anything is awaited
IDLE_TICK_MS = 1_000.0
LOOK_AFTER_IDLE_MS = 10_000.0  # no add for so long: look whether the ledger is still ours …
LOOK_EVERY_MS = 30_000.0  # … so often, about
PAUSE_MS = 25.0  # after a first refusal; doubles up to the next
PAUSE_MS_MAX = 1_000.0

# Makes a frame up to its payload: of entry id, LAC, ledger bytes, buffers, payload bytes.
PackFront = Callable[[int, int, int, Sequence[Buffer], int], bytes]


class AppenderCore:
    """`pick` names a bookie that is none of those given, or None; any answer is safe."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        *,
        pack_front: PackFront,
        frame_fixed_bytes: int,
        pick: Pick,
        chance: Chance,
        options: AppendOptions | None = None,
    ) -> None:
        check(
            metadata.ensemble_size == metadata.write_quorum,
            "an appender writes every entry to every bookie of the ensemble",
            metadata.ensemble_size,
            metadata.write_quorum,
        )
        check(
            metadata.state is LedgerState.OPEN and len(metadata.fragments) == 1,
            "an appender begins with a new ledger",
            metadata.state,
        )
        self.ledger_id = ledger_id
        self.outbox = Outbox(frame_fixed_bytes)
        self.is_born = False
        self.tick_ms = TICK_MS  # when the next tick is wanted
        self.standing = Standing(ledger_id)
        self.places = Places(self.standing, metadata, pick=pick, chance=chance)
        self._pack_front = pack_front
        self._chance = chance
        self._options = options or AppendOptions()
        self._ack_quorum = metadata.ack_quorum
        self._birth_pending = False
        self._publish_to = -1
        self._quiet_ms = 0.0  # since the last put
        self._stalled_ms = 0.0
        self._held_ms = 0.0  # since a change of metadata alone holds the window
        self._look_age_ms = 0.0

    @property
    def effects(self) -> list[Effect]:
        return self.standing.effects

    @property
    def slots(self) -> list[Slot]:
        return self.places.slots

    @property
    def last_confirmed(self) -> int:
        return self.standing.last_confirmed

    @property
    def last_published(self) -> int:
        return self.standing.last_published

    @property
    def failure(self) -> DlogError | None:
        return self.standing.failure

    @property
    def is_over(self) -> bool:
        return self.standing.is_over

    @property
    def is_being_born(self) -> bool:
        """Every bookie has to take the first entry."""
        return self._birth_pending

    @property
    def ack_quorum(self) -> int:
        return self._ack_quorum

    def is_silent(self, slot: Slot) -> bool:
        """It owes an answer for longer than a laggard may."""
        return slot.silent_ms >= self._options.laggard_ms

    @property
    def degraded(self) -> list[str]:
        """The bookies of the ensemble that take no entries at the moment."""
        named = self.places.ensemble
        return [named[slot.place] for slot in self.slots if slot.state is not State.LIVE]

    # --- What the caller wants

    def put(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        """The next entry; its id."""
        outbox, last_confirmed = self.outbox, self.standing.last_confirmed
        entry_id, ledger_bytes = outbox.end, outbox.ledger_bytes + payload_bytes
        front = self._pack_front(entry_id, last_confirmed, ledger_bytes, buffers, payload_bytes)
        outbox.put((front, *buffers), payload_bytes, last_confirmed)
        self._quiet_ms = 0.0
        return entry_id

    def begin_birth(self) -> None:
        """Entry 0 is confirmed by all bookies, not by A. Until then nothing is, so a bookie that
        joins gets it, too."""
        check(self.outbox.end == 0, "the birth is entry 0", self.outbox.end)
        self._birth_pending = True

    def publish(self) -> None:
        """Tell bookies what is confirmed; those that learnt it from an entry need no telling."""
        self._publish_to = self.standing.last_confirmed
        self._write_lacs()

    def fail(self, error: DlogError) -> None:
        self.places.fail(error)

    def stop(self) -> None:
        """Nothing more is confirmed or published, and nobody replaced. Bookies that lag are still
        sent what is confirmed, until `end`."""
        if not self.is_over:
            self.standing.is_stopped = True
            self.tick_ms = TICK_MS
            self.places.stop()

    @property
    def is_delivered(self) -> bool:
        """Every bookie that is left has all that is confirmed."""
        last_confirmed = self.standing.last_confirmed
        return all(
            slot.acked_to >= last_confirmed for slot in self.slots if slot.state is State.LIVE
        )

    def end(self) -> None:
        """Nothing more is sent, either."""
        self.stop()
        self.places.end()

    # --- Sending

    def send_end(self) -> int:
        """Up to where entries may be sent: the window begins behind the slowest bookie."""
        options = self._options
        end = self.outbox.window_end(options.window_bytes, options.window_entries)
        if self.standing.is_stopped:
            return min(end, self.standing.last_confirmed + 1)
        return end

    def has_to_send(self) -> bool:
        end, now_ms = self.send_end(), self.standing.now_ms
        return any(slot.wants_to_send(end, now_ms) for slot in self.slots)

    def take_run(self, slot: Slot) -> Sequence[int] | None:
        """The entries that this bookie is sent next, in one piece; ask again while it has room."""
        if self.failure is not None:
            return None
        return slot.take_run(self.outbox, self.send_end(), self.standing.now_ms)

    # --- Links

    def on_link(self, slot: Slot, link: DataLink, *, is_proven: bool = False) -> bool:
        """Whether it is wanted. `is_proven`: it was up before the ledger was made."""
        return not self.is_over and self.places.on_link(slot, link, is_proven=is_proven)

    def on_no_link(self, slot: Slot) -> None:
        is_awaited = slot.state is State.CONNECTING and self.places.is_current(slot)
        if is_awaited and not self.is_over:
            self._lose(slot)

    def on_down(self, link: DataLink, answer: Answer) -> None:
        slot = self.places.slot_of(link)
        if slot is not None and self.failure is None:
            self._react(slot, answer)

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> tuple[int, int]:
        """One answer to a run of adds. How many entries and frame bytes that settles."""
        slot = self.places.slot_of(link)
        if slot is None or slot.state is not State.LIVE or self.failure is not None:
            return 0, 0
        if answer is Answer.OK:
            before = slot.acked_to
            answered = slot.take_acks(self.outbox, entry_ids)
            if slot.acked_to > before:
                slot.shown = max(slot.shown, self.outbox.last_confirmed_in(slot.acked_to))
                self.places.on_progress(slot)
                self._count()
            return answered
        if reaction(Call.ADD, answer) is Reaction.RESEND_LATER:
            answered = slot.take_refusals(self.outbox, entry_ids)
            if slot.refused and self.standing.now_ms >= slot.paused_until_ms:
                pause_ms = min(PAUSE_MS * float(1 << min(slot.busy_count, 20)), PAUSE_MS_MAX)
                slot.pause(self.standing.now_ms, pause_ms * (0.5 + self._chance.fraction()))
            return answered
        self._react(slot, answer)
        return 0, 0

    def _react(self, slot: Slot, answer: Answer) -> None:
        if self.standing.is_stopped:
            self.places.leave(slot)
        elif answer is Answer.UNAUTHORIZED and self.standing.last_confirmed >= 0:
            # The key is right: others took it. This bookie cannot tell whether it ever had data of
            # the ledger, and says so of adds in these words.
            self._lose(slot)
        elif reaction(Call.ADD, answer) is Reaction.STOP:
            self.places.fail(self._fatal(slot, answer))
        else:
            self._lose(slot)

    def _lose(self, slot: Slot) -> None:
        self.places.lose(slot)
        self._count()

    # --- Counting

    def _count(self) -> None:
        """Confirm and publish what enough bookies hold, and let go of what nobody needs."""
        standing, quorum = self.standing, self._ack_quorum
        if standing.is_over:
            return
        counting = [slot for slot in self.slots if slot.counts]
        needed = len(self.slots) if self._birth_pending else quorum
        if len(counting) >= needed:
            upto = sorted([slot.acked_to for slot in counting], reverse=True)[needed - 1]
            if upto > standing.last_confirmed:
                standing.last_confirmed = upto
                self._stalled_ms = 0.0
                self.is_born = True
                self._birth_pending = False
        if len(counting) >= quorum:
            shown = sorted([slot.shown for slot in counting], reverse=True)[quorum - 1]
            if shown > standing.last_published:
                check(shown <= standing.last_confirmed, "what is shown was confirmed", shown)
                standing.last_published = shown
                self._stalled_ms = 0.0
        self.outbox.let_go(self._kept_from())

    def _kept_from(self) -> int:
        """The oldest entry that some bookie may still have to be sent."""
        first = self.standing.last_confirmed + 1
        kept_from = self.places.kept_from
        if kept_from is not None:
            first = min(first, kept_from)
        for slot in self.slots:
            if slot.state is State.LIVE:
                first = min(first, slot.acked_to + 1)
            elif slot.kept_from is not None:
                first = min(first, slot.kept_from)
        return first

    # --- Publishing

    def _write_lacs(self) -> None:
        standing = self.standing
        if self.is_over or self._publish_to <= standing.last_published:
            return
        for slot in self.slots:
            if (
                slot.state is State.LIVE
                and slot.shown < self._publish_to
                and slot.writing is None  # one at a time: a bookie keeps what comes last
                and standing.now_ms >= slot.write_after_ms
            ):
                slot.writing = self._publish_to
                standing.effects.append(WriteLac(slot, self._publish_to))

    def on_lac_written(self, slot: Slot, last_entry: int, answer: Answer) -> None:
        slot.writing = None
        if self.is_over or slot.link is None or not self.places.is_current(slot):
            return
        if answer is Answer.OK:
            slot.shown = max(slot.shown, last_entry)
            slot.unwritten_ms = 0.0
            if slot.state is State.PREPARING:
                self.places.make_ready(slot)
            self._count()
            self._write_lacs()
        elif slot.state is State.PREPARING:
            self._lose(slot)
        elif answer in (Answer.DISCONNECTED, Answer.TIMED_OUT, Answer.BUSY):
            # Of another connection than the adds, which may go on. It is tried again.
            slot.write_after_ms = self.standing.now_ms + self.places.wait_ms(1)
        else:
            self._react(slot, answer)

    # --- Metadata

    def on_changed(self, metadata: LedgerMetadata) -> None:
        if not self.is_over:
            self.places.on_changed(metadata)
            self._count()

    def on_not_changed(self, error: DlogError) -> None:
        if not self.is_over:
            self.places.on_not_changed(error)
            self._count()

    def on_looked(self, metadata: LedgerMetadata) -> None:
        if not self.is_over:
            self._look_age_ms = 0.0
            self.places.on_looked(metadata)
            self._count()

    def on_not_looked(self, error: DlogError) -> None:
        if not self.is_over:
            self.places.on_not_looked(error)

    # --- Time

    def on_tick(self, elapsed_ms: float) -> None:
        if self.failure is not None:
            return
        step_ms = min(elapsed_ms, 2 * self.tick_ms)
        self.standing.now_ms += step_ms
        if self.standing.is_stopped:
            return
        self._quiet_ms += step_ms
        self._look_age_ms += step_ms
        self._age(step_ms)
        for slot in list(self.slots):
            self._judge(slot)
        self._keep_less_if_held(step_ms)
        self._give_up_if_stalled(step_ms)
        if self.standing.is_over:
            return
        self.places.change_if_needed()
        every_ms = LOOK_EVERY_MS * (0.75 + self._chance.fraction() / 2)
        is_due = self._quiet_ms >= LOOK_AFTER_IDLE_MS and self._look_age_ms >= every_ms
        self.places.look_if_needed(anyway=is_due)
        self._write_lacs()
        self.tick_ms = TICK_MS if self.is_busy else IDLE_TICK_MS

    @property
    def is_busy(self) -> bool:
        """Something is awaited, so time matters."""
        return (
            self.outbox.first < self.outbox.end
            or self.places.change is not None
            or self.places.looking is not None
            or self.standing.last_published < self._publish_to
            or not all(slot.counts for slot in self.slots)
        )

    def _age(self, step_ms: float) -> None:
        end = self.send_end()
        is_publishing = self.standing.last_published < self._publish_to
        for slot in self.slots:
            if slot.state is State.LIVE:
                owes = slot.acked_to < end - 1
                is_asked = owes and self.standing.now_ms >= slot.paused_until_ms
                slot.silent_ms = slot.silent_ms + step_ms if is_asked else 0.0
                slot.stuck_ms = slot.stuck_ms + step_ms if owes else 0.0
                owes = is_publishing and slot.shown < self._publish_to
                slot.unwritten_ms = slot.unwritten_ms + step_ms if owes else 0.0
            elif slot.state in (State.CONNECTING, State.PREPARING):
                slot.silent_ms += step_ms

    def _judge(self, slot: Slot) -> None:
        options = self._options
        if slot.state is State.LIVE:
            is_late = max(slot.stuck_ms, slot.unwritten_ms) >= options.add_timeout_ms
            if is_late or self._is_lone_laggard(slot):
                self._lose(slot)
        elif slot.state is State.VACANT:
            self.places.fill_if_due(slot)
        elif slot.state in (State.CONNECTING, State.PREPARING):
            if slot.silent_ms >= 2 * options.laggard_ms:
                self._lose(slot)

    def _is_lone_laggard(self, slot: Slot) -> bool:
        """It is silent, no other is, everybody waits for it, and it can be done without."""
        laggard_ms = self._options.laggard_ms
        if slot.silent_ms < laggard_ms:
            return False
        others = [each for each in self.slots if each is not slot and each.state is State.LIVE]
        if not others or any(other.silent_ms >= laggard_ms for other in others):
            return False
        last_confirmed = self.standing.last_confirmed
        if self._birth_pending:
            is_awaited, is_needed = slot.acked_to < 0, True
        else:
            further = sum(each.counts and each.acked_to > last_confirmed for each in others)
            holds_window = slot.acked_to < self.outbox.first and self.send_end() < self.outbox.end
            holds_entries = last_confirmed < self.outbox.end - 1 and further < self._ack_quorum
            is_awaited = holds_window or holds_entries
            is_needed = sum(each.counts for each in others) < self._ack_quorum
        return is_awaited and (not is_needed or self.places.candidate() is not None)

    def _keep_less_if_held(self, step_ms: float) -> None:
        """The window is confirmed to its end, more waits, and it stays for a change of metadata."""
        kept_from, behind = self.places.kept_from, self.standing.last_confirmed + 1
        is_full = self.send_end() < self.outbox.end and self.send_end() == behind
        is_held = kept_from is not None and kept_from < behind and is_full
        self._held_ms = self._held_ms + step_ms if is_held else 0.0
        if self._held_ms >= self._options.laggard_ms:
            self._held_ms = 0.0
            self.places.keep_no_more()
            self._count()

    def _give_up_if_stalled(self, step_ms: float) -> None:
        """Nothing moves: after a while say so, and who is missing."""
        standing, options = self.standing, self._options
        if (
            standing.last_confirmed == self.outbox.end - 1
            and standing.last_published >= self._publish_to
        ):
            self._stalled_ms = 0.0
            return
        self._stalled_ms += step_ms
        is_birth_lost = (
            self._birth_pending
            and self._stalled_ms >= options.add_timeout_ms
            and any(map(self.places.cannot_be_filled, self.slots))
        )
        if is_birth_lost or self._stalled_ms >= options.stall_ms:
            self.places.fail(
                self._unavailable(f"nothing was confirmed for {self._stalled_ms:.0f} ms")
            )

    # --- Errors

    def _fatal(self, slot: Slot, answer: Answer) -> DlogError:
        what = f"ledger {self.ledger_id}: bookie {slot.bookie_id} says {answer.value!r} to an add"
        if answer is Answer.FENCED:
            return Fenced(what, ledger_id=self.ledger_id)
        if answer is Answer.UNAUTHORIZED:
            return AuthError(
                f"{what}: it knows the ledger with another password, or wants to know who we are",
                ledger_id=self.ledger_id,
                outcome=Outcome.UNKNOWN,
                handle=Handle.DEAD,
            )
        if answer is Answer.CLIENT_CLOSED:
            return self._unavailable("the connections were closed")
        return Broken(what, ledger_id=self.ledger_id)

    def _unavailable(self, what: str) -> Unavailable:
        needed = len(self.slots) if self._birth_pending else self._ack_quorum
        named = self.places.ensemble
        able = [slot.place for slot in self.slots if slot.counts and slot.stuck_ms == 0.0]
        missing = [bookie for place, bookie in enumerate(named) if place not in able]
        error = Unavailable(
            f"ledger {self.ledger_id}, entry {self.last_confirmed + 1}: {what}; of "
            f"{', '.join(named)} these are missing: {', '.join(missing) or 'none'}",
            ledger_id=self.ledger_id,
            missing=missing,
            needed=max(needed - len(able), 0),
            retry=Retry.AFTER_REOPEN,
            outcome=Outcome.UNKNOWN,
            handle=Handle.DEAD,
        )
        error.__cause__ = self.places.meta_trouble
        return error

"""The simulated driver of an appender: does in virtual time what
`dlog.ledger.bookkeeper.appender` does on an event loop, and decides as little.

Frames are the real ones, digests included. Facts go to the core as they come, and what it wants
done is done right after; its process may die or freeze at every step. What an appender tells its
caller goes by way of the oracle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlog.errors import Broken, DlogError, Fenced, NotFound, Outcome, WriterClosed
from dlog.ledger.bookkeeper.core import changes
from dlog.ledger.bookkeeper.core.append_effects import Change, Connect, LetGo, Look, WriteLac
from dlog.ledger.bookkeeper.core.appender import TICK_MS, AppenderCore
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import Buffer, ClosedLedger
from dlog.limits import BOOKIE_FRAME_BYTES_MAX
from dlog.testing.sim.flow import Answered
from dlog.testing.sim.links import SimLink
from dlog.testing.sim.surroundings import Surroundings, keys_of
from dlog.testing.sim.world import require
from dlog.wire import bookie_v2
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import LedgerMetadata


class SimAppender:
    publish_is_free = False

    def __init__(
        self, around: Surroundings, stored: StoredLedger, links_before: dict[str, SimLink | None]
    ) -> None:
        self.ledger_id = stored.ledger_id
        self.listener: Any = None  # `AppenderListener`
        self.closed: ClosedLedger | None = None
        self._around = around
        self._world = around.world
        self._audit = around.audit
        self._known = stored
        self._links_before = links_before
        self._digest, self._key = keys_of(stored.metadata)
        self._told_confirmed = -1
        self._told_published = -1
        self._told_failure = False
        self._audited = -1
        self._audited_published = -1
        self._birth: Answered | None = None
        self._closing: list[Answered] | None = None
        self._is_closing = False
        self._is_abandoned = False
        self._is_ended = False
        self._is_pump_due = False
        self._delivers_until_ms = 0.0
        self._tick_number = 0
        self._starts: dict[Slot, int] = {}
        self._connects: Counter[tuple[int, str]] = Counter()
        self._not_kept_for: set[Slot] = set()  # named too late to get its whole fragment
        self._ticked_at_ms = self._world.now_ms
        self.core = AppenderCore(
            stored.ledger_id,
            stored.metadata,
            pack_front=self._pack_front,
            frame_fixed_bytes=BOOKIE_FRAME_BYTES_MAX
            - bookie_v2.payload_bytes_max(self._digest.digest_bytes),
            pick=around.pick,
            chance=self._world.chance,
            options=around.options,
        )
        self._perform()
        self._schedule_tick()

    def __repr__(self) -> str:
        return f"<appender of ledger {self.ledger_id}, {self.core.slots}>"

    # --- what a caller does

    @property
    def abandoned(self) -> bool:
        return self._is_abandoned

    @abandoned.setter
    def abandoned(self, is_abandoned: bool) -> None:
        if is_abandoned:
            self.abandon()

    @property
    def next_entry(self) -> int:
        return self.core.outbox.end

    @property
    def is_over(self) -> bool:
        return self.core.is_over

    def birth(self, buffers: Sequence[Buffer], answer: Answered) -> None:
        self._birth = answer
        if self.core.failure is not None:
            self._answer_birth(self.core.failure.again())
        self.core.begin_birth()
        self.submit(buffers)

    def submit(self, buffers: Sequence[Buffer]) -> int:
        payload = b"".join(buffers)
        entry_id = self.core.put((payload,), len(payload))
        self._audit.on_submit(self.ledger_id, entry_id, payload)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._around.after(0.0, self._pump_due)
        return entry_id

    def publish(self) -> None:
        if not self.core.is_over:
            self.core.publish()
            self._after_fact()

    def close(self, answer: Answered) -> None:
        """Also again, when the outcome was not known."""
        if self.closed is not None:
            closed = self.closed
            self._around.after(0.0, lambda: answer(closed, None))
        elif self._is_abandoned:
            self._around.after(0.0, lambda: answer(None, self._closed_error("abandoned")))
        elif self._closing is not None:
            self._closing.append(answer)
        else:
            self._closing = [answer]
            self._stop()
            self._close()

    def abandon(self) -> None:
        if self._is_abandoned:
            return
        self._is_abandoned = True
        self._stop()
        self._end()

    # --- entries

    def _pack_front(
        self, entry_id: int, lac: int, ledger_bytes: int, buffers: Sequence[Buffer], size: int
    ) -> bytes:
        require(
            -1 <= lac < entry_id, "C13", "an entry confirms what comes before it", entry_id, lac
        )
        require(lac <= self.core.standing.last_confirmed, "C13", "a LAC is what is confirmed", lac)
        head = self._digest.pack_head(self.ledger_id, entry_id, lac, ledger_bytes, buffers)
        return bookie_v2.pack_add(head, payload_bytes=size, master_key=self._key)

    def _pump_due(self) -> None:
        self._is_pump_due = False
        self._keep_time()
        self._after_fact()
        self._pump()

    def _pump(self) -> None:
        """Send what may be sent, to every bookie that has room."""
        core = self.core
        for slot in core.slots:
            link = slot.link
            while link is not None and slot.state is State.LIVE and link.has_room:
                run = core.take_run(slot)
                if run is None:
                    break
                self._send(link, run)

    def _send(self, link: Any, run: Sequence[int]) -> None:
        frames = self.core.outbox.joined(run)
        self._around.reach(
            "bookie.sent",
            lambda: link.send_adds(self.ledger_id, frames, entries=len(run), bytes=len(frames)),
        )

    # --- facts

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        self._around.reach("bookie.sent", lambda: self._take_answers(link, answer, entry_ids))

    def _take_answers(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        entries, frame_bytes = self._tell(self.core.on_adds, link, answer, entry_ids) or (0, 0)
        if entries > 0:
            link.settle(self.ledger_id, entries=entries, bytes=frame_bytes)
        self._after_fact()

    def on_room(self, link: Any) -> None:
        self._pump()

    def on_down(self, link: Any, answer: Answer) -> None:
        self._fact(self.core.on_down, link, answer)

    def _fact(self, fact: Callable[..., Any], *about: Any) -> None:
        self._tell(fact, *about)
        self._after_fact()

    def _tell(self, fact: Callable[..., Any], *about: Any) -> Any:
        try:
            return fact(*about)
        except Broken:
            raise  # a promise of the core: no history may show that
        except DlogError as error:
            self.core.fail(error)
            return None

    def _after_fact(self) -> None:
        core = self.core
        if isinstance(core.failure, Broken):
            raise core.failure
        if core.effects:
            self._perform()
        if self._is_ended:
            return
        self._watch_slots()
        self._tell_progress()
        if self._birth is not None and core.is_born:
            self._audit.on_born(self.ledger_id)
            self._answer_birth(None)
        if self.closed is not None and core.is_delivered:
            self._end()
        elif core.failure is not None:
            self._tell_failure(core.failure)
        else:
            self._keep_time()
            if core.has_to_send():
                self._pump()

    def _watch_slots(self) -> None:
        """What is kept, and from where on each slot has everything, for `check_slots`."""
        core, window = self.core, self._around.options.window_entries
        outbox = core.outbox
        require(outbox.first <= core.last_confirmed + 1, "I11", "what is not confirmed is kept")
        for slot in core.slots:
            if slot.state is State.LIVE:
                self._starts.setdefault(slot, slot.acked_to + 1)
                require(
                    outbox.first <= slot.acked_to + 1 <= slot.next_to_send <= outbox.end,
                    "I11",
                    "what a bookie needs is kept",
                    slot,
                    outbox.first,
                )
                require(
                    slot.next_to_send <= outbox.first + window and slot.in_flight >= 0,
                    "I25",
                    "a bookie is sent no more than the window",
                    slot,
                    outbox.first,
                )
            elif slot.state is State.NAMING and core.places.kept_from is None:
                self._not_kept_for.add(slot)

    def check_slots(self, metadata: LedgerMetadata, holds: Callable[[str, int], bool]) -> None:
        """In the end: a bookie has everything of its place since it was named, or came back."""
        for slot in self.core.slots:
            named = metadata.fragments[-1].ensemble[slot.place]
            require(slot.bookie_id == named, "I12", "a slot is of the bookie that is named", slot)
            first = self._starts[slot]
            is_new = self._connects[slot.place, slot.bookie_id] == 1
            if is_new and slot not in self._not_kept_for:
                for fragment in reversed(metadata.fragments):
                    if fragment.ensemble[slot.place] != slot.bookie_id:
                        break
                    first = min(first, fragment.first_entry_id)
            missing = [
                entry_id
                for entry_id in range(first, slot.acked_to + 1)
                if not holds(slot.bookie_id, entry_id)
            ]
            require(not missing, "I12", "a bookie has what its fragment says", slot, missing)

    def _tell_progress(self) -> None:
        core, ledger_id = self.core, self.ledger_id
        if core.last_confirmed > self._audited:
            self._audited = core.last_confirmed
            self._audit.on_confirmed(ledger_id, core.last_confirmed)
        if core.last_published > self._audited_published:
            self._audited_published = core.last_published
            self._audit.on_published(ledger_id, core.last_published)
        if self.listener is None:
            return
        if core.last_confirmed > self._told_confirmed:
            self._told_confirmed = core.last_confirmed
            self.listener.on_confirmed(ledger_id, core.last_confirmed)
        if self.listener is not None and core.last_published > self._told_published:
            self._told_published = core.last_published
            self.listener.on_published(ledger_id, core.last_published)

    def _tell_failure(self, failure: DlogError) -> None:
        self._tick_number += 1
        if self._birth is not None:
            self._answer_birth(failure.again())
        if self.listener is not None and not self._told_failure:
            self._told_failure = True
            self._world.note(f"the appender of ledger {self.ledger_id} fails: {failure}")
            self.listener.on_failed(self.ledger_id, failure)

    def _answer_birth(self, error: DlogError | None) -> None:
        answer, self._birth = self._birth, None
        assert answer is not None
        self._around.after(0.0, lambda: answer(None, error))

    # --- effects

    def _perform(self) -> None:
        effects = self.core.effects
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, LetGo):
                effect.link.detach(self.ledger_id)
            elif isinstance(effect, Connect):
                self._connect(effect.slot)
            elif isinstance(effect, WriteLac):
                self._around.reach("bookie.published", partial(self._write_lac, effect))
            elif isinstance(effect, Look):
                self._around.reach("bookie.checked", self._look)
            else:
                self._around.reach("bookie.change_stored", partial(self._change, effect))

    def _connect(self, slot: Slot) -> None:
        self._connects[slot.place, slot.bookie_id] += 1
        link = self._around.links.now(slot.bookie_id)
        if link is not None:
            self._on_link(slot, link)
            return

        def reached(link: SimLink | None) -> None:
            if self.core.is_over:
                return
            if link is None or not link.is_up:
                self._fact(self.core.on_no_link, slot)
            else:
                self._on_link(slot, link)
                self._after_fact()

        self._around.links.get(slot.bookie_id, reached)

    def _on_link(self, slot: Slot, link: Any) -> None:
        is_proven = link is self._links_before.get(slot.bookie_id)
        if self.core.on_link(slot, link, is_proven=is_proven):
            link.attach(self.ledger_id, self)

    def _look(self) -> None:
        def told(stored: StoredLedger | None, error: DlogError | None) -> None:
            if stored is None:
                self._fact(self.core.on_not_looked, error)
            else:
                looked = partial(self._fact, self.core.on_looked, stored.metadata)
                self._around.reach("bookie.checked", looked)

        self._around.nodes.read(self._around.client, self.ledger_id, told, fresh=True)

    def _change(self, change: Change) -> None:
        replaced = partial(
            changes.replaced,
            ledger_id=self.ledger_id,
            first_entry=change.first_entry,
            places=change.places,
        )

        def told(stored: StoredLedger | None, error: DlogError | None) -> None:
            if stored is None:
                self._fact(self.core.on_not_changed, error)
            else:
                self._around.reach("bookie.change_stored", partial(changed, stored))

        def changed(stored: StoredLedger) -> None:
            self._known = stored
            self._tell(self.core.on_changed, stored.metadata)
            self._around.reach("bookie.resent", self._after_fact)

        self._around.nodes.change(self._around.client, self._known, replaced, told)

    def _write_lac(self, effect: WriteLac) -> None:
        slot, last_entry = effect.slot, effect.last_entry
        proof = self._digest.pack_lac(self.ledger_id, last_entry)

        def told(answer: Answer) -> None:
            written = partial(self._fact, self.core.on_lac_written, slot, last_entry, answer)
            self._around.reach("bookie.published", written)

        def reached(link: SimLink | None) -> None:
            if link is None:
                told(Answer.DISCONNECTED)
            else:
                link.ask_write_lac(
                    self.ledger_id,
                    last_entry,
                    proof,
                    self._key,
                    told,
                    timeout_ms=self._around.options.add_timeout_ms,
                )

        self._around.with_link(slot.bookie_id, reached)

    # --- time

    def _keep_time(self) -> None:
        core = self.core
        if core.tick_ms > TICK_MS and core.is_busy and not core.is_over:
            core.tick_ms = TICK_MS
            self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._tick_number += 1
        number = self._tick_number
        self._around.after(self.core.tick_ms, lambda: self._tick(number))

    def _tick(self, number: int) -> None:
        if number != self._tick_number or self._is_ended:
            return
        now_ms = self._world.now_ms
        elapsed_ms, self._ticked_at_ms = now_ms - self._ticked_at_ms, now_ms
        self._fact(self.core.on_tick, elapsed_ms)
        if self.closed is not None and now_ms >= self._delivers_until_ms:
            self._end()
        elif not self._is_ended and self.core.failure is None:
            self._schedule_tick()

    # --- the end

    def _close(self) -> None:
        core = self.core
        closed = ClosedLedger(
            core.last_confirmed, core.outbox.ledger_bytes_through(core.last_confirmed)
        )
        close = partial(
            changes.closed_by_appender,
            ledger_id=self.ledger_id,
            last_entry=closed.last_entry,
            bytes=closed.bytes,
        )

        def told(stored: StoredLedger | None, error: DlogError | None) -> None:
            if stored is None:
                self._not_closed(error)
            else:
                self._around.reach("bookie.closed", stands)

        def stands() -> None:
            if self._is_abandoned:
                return
            self.closed = closed
            self._audit.on_own_close(self.ledger_id, closed)
            self._delivers_until_ms = self._world.now_ms + self._around.options.add_timeout_ms
            self._answer_closing(closed, None)
            self._after_fact()

        self._around.reach(
            "bookie.closed",
            lambda: self._around.nodes.change(self._around.client, self._known, close, told),
        )

    def _not_closed(self, error: DlogError | None) -> None:
        if self._is_abandoned:
            return
        if isinstance(error, Broken):
            raise error
        if isinstance(error, NotFound):
            error = Fenced(f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id)
        if isinstance(error, Fenced):
            self._end()
        self._answer_closing(None, error)

    def _answer_closing(self, closed: ClosedLedger | None, error: DlogError | None) -> None:
        waiting, self._closing = self._closing or [], None
        for answer in waiting:
            answer(closed, error)

    def _stop(self) -> None:
        self.core.stop()
        self._perform()
        self._schedule_tick()
        if self._birth is not None:
            self._answer_birth(self._closed_error("closed"))

    def _end(self) -> None:
        self._is_ended = True
        self.listener = None
        self.core.end()
        self._perform()
        self._tick_number += 1

    def _closed_error(self, how: str) -> WriterClosed:
        return WriterClosed(
            f"ledger {self.ledger_id} was {how}",
            ledger_id=self.ledger_id,
            outcome=Outcome.UNKNOWN,
        )

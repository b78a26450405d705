"""Who does something in a history of ledger recovery: an appender, and recoverers.

The recoverers are ours, core and procedure unchanged. The appender is the least that keeps the
rules of one: it acknowledges in order what A bookies of the stored ensemble have, holds back while
that ensemble changes, trusts no connection that broke, and stops when it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from dlog.errors import Corrupt, DlogError, Fenced, Unavailable
from dlog.ledger.bookkeeper.core import changes, quorum
from dlog.ledger.bookkeeper.core.recovery import ChangeLedger, FindEnd, ReadLedger, Step, recover
from dlog.ledger.bookkeeper.core.recovery_requests import Add, Ask
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd, TailRecovery
from dlog.ledger.store import ClosedLedger
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import StoredEntry
from dlog.wire.bookie_v2 import Flag
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState
from tests.sim.recovery_world import (
    DIGEST,
    KEY,
    LEDGER_ID,
    Client,
    Violation,
    World,
    bytes_to,
    packet,
    payload_of,
)

TICK_MS = 100.0
PATIENCE_MS = 30_000.0
TRIES_MAX = 6


def stored(raw: bytes) -> StoredEntry:
    return DIGEST.verify_last(raw, ledger_id=LEDGER_ID)


def split(frames: bytes) -> list[tuple[Flag, bytes]]:
    found = []
    at = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        if frames[at + 8 : at + 28] != KEY:
            raise Violation("an add without the key of its ledger")
        found.append((Flag(int.from_bytes(frames[at + 6 : at + 8], "big")), frames[at + 28 : end]))
        at = end
    return found


class SimAppender:
    """Adds `appends` entries, as fast as its window lets it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = Client("appender")
        self.client.downs.append(self._on_down)
        world.clients.append(self.client)
        self.metadata = world.meta.stored
        self.version = 0
        self.slots = list(self.metadata.fragments[-1].ensemble)
        self.lost: set[str] = set()
        self.next_entry = 0
        self.confirmed = -1
        self.pending: dict[int, tuple[bytes, dict[int, str]]] = {}
        self.is_changing = False
        self.is_done = False
        self.is_born = False
        self.is_parked = False
        world.after(0.0, self._work)

    def stop(self) -> None:
        self.client.is_dead = self.is_done = True

    def _work(self) -> None:
        world = self.world
        if self.is_done:
            return
        if world.weather.writer_dies and world.strikes(0.03):
            world.mark("writer died")
            self.stop()
            return
        appends = world.weather.appends
        if self.next_entry == appends and not self.pending:
            if world.weather.writer_closes:
                self._close(changes.closed_by_appender)
            return
        has_room = len(self.pending) < world.weather.window
        may = has_room and self.next_entry < appends and (self.next_entry == 0 or self.is_born)
        if may:
            entry_id = self.next_entry
            self.next_entry += 1
            self.pending[entry_id] = (packet(entry_id, self.confirmed), {})
            self._send([entry_id], range(len(self.slots)))
        self.is_parked = not may  # until something is confirmed
        if may:
            world.after(world.delay_ms(), self._work)

    def _send(self, entry_ids: Sequence[int], places: Sequence[int]) -> None:
        for place in places:
            bookie_id = self.slots[place]
            adds = [
                (stored(self.pending[entry_id][0]), self.pending[entry_id][0])
                for entry_id in entry_ids
                if place in quorum.write_set(self.metadata, entry_id)
            ]
            if adds and bookie_id not in self.lost:
                self.world.add(
                    self.client,
                    bookie_id,
                    adds,
                    recovery=False,
                    answered=partial(self._on_acks, place, bookie_id),
                    lost=partial(self._on_down, bookie_id),
                )

    def _on_acks(self, place: int, bookie_id: str, answer: Answer, entry_ids: list[int]) -> None:
        if self.is_done or self.slots[place] != bookie_id or bookie_id in self.lost:
            return
        if answer is Answer.FENCED:
            self.world.mark("fenced")
            if self.world.weather.java_writer_closes:
                self._close(_closed_by_java)
            self.is_done = True
        elif answer is Answer.OK:
            for entry_id in entry_ids:
                if entry_id in self.pending:
                    self.pending[entry_id][1][place] = bookie_id
            self._confirm()
        else:
            self._on_down(bookie_id)

    def _confirm(self) -> None:
        while not self.is_changing and not self.is_done and self.confirmed + 1 in self.pending:
            _, acks = self.pending[self.confirmed + 1]
            needed = (
                self.metadata.ack_quorum
                if self.is_born
                else len(quorum.write_set(self.metadata, 0))
            )
            if len(acks) < needed:
                return
            self.confirmed += 1
            self.is_born = True
            del self.pending[self.confirmed]
            self.world.on_acked(self.confirmed)
            if self.is_parked:
                self.is_parked = False
                self.world.after(self.world.delay_ms(), self._work)

    def _on_down(self, bookie_id: str) -> None:
        if self.is_done or bookie_id not in self.slots or bookie_id in self.lost:
            return
        self.lost.add(bookie_id)
        self._change()

    def _change(self) -> None:
        """Others for the lost ones. Nothing is confirmed meanwhile."""
        world = self.world
        lost = [place for place, bookie_id in enumerate(self.slots) if bookie_id in self.lost]
        spare = [each for each in world.bookies if each not in self.slots and each not in self.lost]
        if self.is_changing or not lost or not spare:
            return
        self.is_changing = True
        places = dict(zip(lost, spare, strict=False))

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return changes.replaced(
                metadata, ledger_id=LEDGER_ID, first_entry=self.confirmed + 1, places=places
            )

        def done(metadata: LedgerMetadata, version: int) -> None:
            world.mark("ensemble changed")
            self.metadata, self.version = metadata, version
            for place, bookie_id in places.items():
                self.slots[place] = bookie_id
                for _, acks in self.pending.values():
                    acks.pop(place, None)
            self.is_changing = False
            self._send(sorted(self.pending), sorted(places))
            self._confirm()
            self._change()

        def failed(error: DlogError) -> None:
            if isinstance(error, Fenced):
                world.mark("fenced")
                self.is_done = True
            else:
                world.after(50.0, again)

        def again() -> None:
            world.meta.change(self.client, self.metadata, self.version, change, done, failed)

        again()

    def _close(self, close: Callable[..., LedgerMetadata | None]) -> None:
        self.is_done = True

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return close(
                metadata,
                ledger_id=LEDGER_ID,
                last_entry=self.confirmed,
                bytes=bytes_to(self.confirmed),
            )

        self.world.mark("writer closes")
        self.world.meta.change(
            self.client, self.metadata, self.version, change, lambda *_: None, lambda _: None
        )


def _closed_by_java(
    metadata: LedgerMetadata, *, ledger_id: int, last_entry: int, bytes: int
) -> LedgerMetadata | None:
    """As the stock client does: also over IN_RECOVERY (H1)."""
    if metadata.state is LedgerState.CLOSED:
        return None
    return changes._closed(metadata, last_entry, bytes)


class SimRecoverer:
    """Recovers, dies anywhere, tries again, until it has an end."""

    def __init__(self, world: World, name: str, *, mortal: bool = True) -> None:
        self.world = world
        self.name = name
        self.mortal = mortal
        self.ends: list[ClosedLedger] = []
        self.errors: list[DlogError] = []
        self.founds: list[FoundEnd] = []
        self.tries = 0
        self.begin()

    def begin(self) -> None:
        self.tries += 1
        self.client = Client(self.name)
        self.world.clients.append(self.client)
        self.began_ms = self.world.now_ms
        self._procedure = recover(LEDGER_ID)
        self._known: tuple[LedgerMetadata, int] | None = None
        self._tail: TailRecovery | None = None
        self._advance(None)

    @property
    def is_over(self) -> bool:
        return bool(self.ends) or (self.tries >= TRIES_MAX and self.client.is_dead)

    # --- the procedure

    def _advance(self, answer: Any, error: DlogError | None = None) -> None:
        try:
            step = self._procedure.send(answer) if error is None else self._procedure.throw(error)
        except StopIteration as end:
            self.ends.append(end.value)
            self.world.note(f"{self.name} says {end.value}")
            self.client.is_dead = True
            return
        except DlogError as refused:
            self._give_up(refused)
            return
        self._do(step)

    def _do(self, step: Step) -> None:
        world = self.world
        if isinstance(step, ReadLedger):
            world.meta.read(self.client, step.fresh, self._on_metadata)
        elif isinstance(step, ChangeLedger):
            assert self._known is not None
            world.meta.change(
                self.client,
                *self._known,
                step.change,
                self._on_metadata,
                lambda error: self._advance(None, error),
            )
        else:
            assert isinstance(step, FindEnd)
            self._find(step.metadata)

    def _on_metadata(self, metadata: LedgerMetadata, version: int) -> None:
        if self._lives():
            self._known = metadata, version
            self._advance(metadata)

    def _give_up(self, error: DlogError) -> None:
        self.errors.append(error)
        self.world.note(f"{self.name}: {error!r}")
        self.world.mark(type(error).__name__)
        if not isinstance(error, (Unavailable, Corrupt)):
            raise error
        self._end_of_try()

    def _end_of_try(self) -> None:
        self.client.is_dead = True
        self._tail = None
        if self.tries < TRIES_MAX:
            self.world.after(self.world.chance.uniform(1.0, 3_000.0), self.begin)

    def _lives(self) -> bool:
        if self.client.is_dead:
            return False
        if self.mortal and self.world.strikes(self.world.weather.crash):
            self.world.mark("recoverer died")
            self.world.note(f"{self.name} dies")
            self._end_of_try()
            return False
        return True

    # --- the tail

    def _find(self, metadata: LedgerMetadata) -> None:
        tail = TailRecovery(LEDGER_ID, metadata, self._choose, now_s=self.world.now_ms / 1000)
        self._tail = tail
        self._began = metadata
        self.client.downs = [lambda bookie_id: self._tell(tail, "on_down", bookie_id)]
        self._perform(tail)
        self._tick(tail)

    def _choose(self, ensemble: Sequence[str], failed: AbstractSet[str]) -> str | None:
        bookies = [each for each in self.world.bookies if each not in failed]
        return self.world.chance.choice(bookies) if bookies else None  # maybe bad advice

    def _tick(self, tail: TailRecovery) -> None:
        if self._tail is not tail or self.client.is_dead:
            return
        if self.world.now_ms - self.began_ms > PATIENCE_MS:
            self._give_up(Unavailable(f"waited {tail.why()}"))
            return
        self._tell(tail, "tick")
        self.world.after(TICK_MS, lambda: self._tick(tail))

    def _tell(self, tail: TailRecovery, fact: str, *what: Any) -> None:
        if self._tail is not tail or not self._lives():
            return
        now_s = self.world.now_ms / 1000
        try:
            if fact == "tick":
                tail.tick(now_s)
            else:
                getattr(tail, fact)(*what, now_s=now_s)
        except DlogError as error:
            self._tail = None
            self._advance(None, error)
            return
        self._perform(tail)
        if tail.found is not None:
            self._tail = None
            self.founds.append(tail.found)
            if self.world.audit:
                self._audit(tail.found)
            self._advance(tail.found)

    def _perform(self, tail: TailRecovery) -> None:
        for request in tail.take():
            if isinstance(request, Ask):
                self._read(tail, request)
            elif isinstance(request, Add):
                self._add(tail, request)

    def _read(self, tail: TailRecovery, ask: Ask, *, fence: bool = True) -> None:
        self.world.read(
            self.client,
            ask.bookie_id,
            ask.first_entry,
            ask.count_max,
            partial(self._tell, tail, "on_read", ask),
            fence=fence,
        )

    def _add(self, tail: TailRecovery, add: Add) -> None:
        adds = []
        for flags, raw in split(add.frames):
            if not flags & Flag.RECOVERY_ADD:
                raise Violation("a recovery add without its flag")
            entry = stored(raw)
            if bytes(entry.payload) != payload_of(entry.entry_id):
                raise Violation(f"entry {entry.entry_id} is written back changed")
            adds.append((entry, raw))
        self.world.add(
            self.client,
            add.bookie_id,
            adds,
            recovery=True,
            answered=lambda answer, ids: self._tell(tail, "on_adds", add.bookie_id, answer, ids),
            lost=lambda: self._tell(tail, "on_down", add.bookie_id),
        )

    def _audit(self, found: FoundEnd) -> None:
        """I14: the end is justified by denials that were really given."""
        entry_id, denied_by, needed = found.evidence
        ensemble = self._began.fragments[-1].ensemble
        places = quorum.write_set(self._began, entry_id)
        if (
            entry_id != found.last_entry + 1
            or needed != quorum.missing_needed(self._began)
            or len(set(denied_by)) < needed
            or not {ensemble[place] for place in places}.issuperset(denied_by)
        ):
            raise Violation(f"I14: {found}")
        for bookie_id in denied_by:
            if entry_id not in self.world.bookies[bookie_id].denied:
                raise Violation(f"I14: {bookie_id} never denied entry {entry_id}")

"""A foreign writer of a striped ledger (E > W): the least that keeps the rules of one.

Ours write every entry to the whole ensemble; striped ledgers are read and recovered only, so they
need somebody who makes them. This one acknowledges in order what A bookies of the stored ensemble
have, holds back while that ensemble changes, trusts no connection that broke, and stops when it is
fenced. As an option it closes as the stock client does: also over IN_RECOVERY (H1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import DlogError, Fenced
from dlog.ledger.bookkeeper.core import changes, quorum
from dlog.ledger.bookkeeper.info import new_metadata
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import LedgerSpec
from dlog.testing.sim.ledger_client import PASSWORD
from dlog.testing.sim.links import SimLink
from dlog.testing.sim.surroundings import keys_of
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import pack_add
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from dlog.testing.sim.ledger_world import LedgerWorld

AGAIN_MS = 50.0
STUCK_MS = 3_000.0


class StripedWriter:
    def __init__(self, world: LedgerWorld, name: str = "writer") -> None:
        self.world = world
        self.process = world.new_process(name, mortal=True)
        self.ledger_id: int | None = None
        self.appender = None
        self.left = world.swarm.appends
        self._around = world.ledgers.of(self.process).around
        self._stored: StoredLedger | None = None
        self._slots: list[str] = []
        self._lost: set[str] = set()
        self._links: dict[str, SimLink] = {}
        self._next_entry = 0
        self._confirmed = -1
        self._bytes = 0
        self._pending: dict[int, tuple[bytes, dict[int, str]]] = {}
        self._is_changing = False
        self._is_done = False
        self._create()

    @property
    def is_over(self) -> bool:
        return self._is_done or not self.process.is_alive

    @property
    def is_quiet(self) -> bool:
        """In trouble it cannot mend it gives up, unlike ours."""
        return self.is_over or (self.left == 0 and not self._pending and self._stored is not None)

    def say_more(self) -> None:
        pass

    @property
    def metadata(self) -> LedgerMetadata:
        assert self._stored is not None
        return self._stored.metadata

    # --- its ledger

    def _create(self) -> None:
        around = self._around
        size, write, ack = self.world.swarm.cluster.quorums
        names = around.all_bookies[:size]
        spec = LedgerSpec(ensemble=size, write_quorum=write, ack_quorum=ack)
        around.nodes.create(around.client, new_metadata(spec, names, PASSWORD), self._created)

    def _created(self, stored: StoredLedger | None, error: DlogError | None) -> None:
        if stored is None:
            self.process.after(AGAIN_MS, self._create)
            return
        self._stored = stored
        self.ledger_id = stored.ledger_id
        self._slots = list(self.metadata.fragments[-1].ensemble)
        self.world.on_ledger(stored.ledger_id)
        for bookie_id in self._slots:
            self._reach(bookie_id)
        self._work()
        self.process.after(STUCK_MS, self._give_up_if_stuck)

    def _give_up_if_stuck(self) -> None:
        if not self.is_quiet and self.world.is_calm:
            self.world.mark("a striped writer gives up")
            self._is_done = True
        elif not self.is_over:
            self.process.after(STUCK_MS, self._give_up_if_stuck)

    def _reach(self, bookie_id: str) -> None:
        def reached(link: SimLink | None) -> None:
            if link is None or not link.is_up:
                self._lose(bookie_id)
            else:
                self._look(link)

        self._around.links.get(bookie_id, reached)

    def _look(self, link: SimLink) -> None:
        """A bookie that was killed may have forgotten a fence: the mark in metadata is older."""
        ledger_id = self.ledger_id
        assert ledger_id is not None

        def told(stored: StoredLedger | None, error: DlogError | None) -> None:
            if self._is_done:
                return
            if stored is None:
                self.process.after(AGAIN_MS, lambda: self._look(link))
            elif stored.metadata.state is not LedgerState.OPEN:
                self._is_done = True
            elif not link.is_up:
                self._lose(link.bookie_id)
            else:
                self._links[link.bookie_id] = link
                link.attach(ledger_id, self)
                self._send_all(link.bookie_id)

        self._around.nodes.read(self._around.client, ledger_id, told, fresh=True)

    # --- entries

    def _work(self) -> None:
        world, swarm = self.world, self.world.swarm
        if self._is_done:
            return
        if swarm.writer_dies and world.strikes(0.05, "the writer dies"):
            self.process.crash()
            return
        may_send = self._next_entry == 0 or self._confirmed >= 0  # entry 0 first, by itself
        if self.left > 0 and may_send and len(self._pending) < max(swarm.burst, 1):
            self.left -= 1
            world.trouble()
            self._append()
        if self.left > 0:
            self.process.after(world.chance.delay(swarm.rests_ms), self._work)
        elif swarm.closes and not self._pending:
            self._close(changes.closed_by_appender)

    def _append(self) -> None:
        entry_id, ledger_id = self._next_entry, self.ledger_id
        assert ledger_id is not None
        self._next_entry += 1
        payload = b"entry %d " % entry_id * (entry_id % 3)
        self._bytes += len(payload)
        self._around.audit.on_submit(ledger_id, entry_id, payload)
        digest, key = keys_of(self.metadata)
        head = digest.pack_head(ledger_id, entry_id, self._confirmed, self._bytes, (payload,))
        frame = pack_add(head, payload_bytes=len(payload), master_key=key) + payload
        self._pending[entry_id] = (frame, {})
        for place in quorum.write_set(self.metadata, entry_id):
            self._send(place, [entry_id])

    def _send_all(self, bookie_id: str) -> None:
        if bookie_id in self._slots and not self._is_changing:
            self._send(self._slots.index(bookie_id), sorted(self._pending))

    def _send(self, place: int, entry_ids: Sequence[int]) -> None:
        bookie_id = self._slots[place]
        link = self._links.get(bookie_id)
        if link is None or bookie_id in self._lost or not link.is_up:
            return
        frames = [
            self._pending[each][0]
            for each in entry_ids
            if place in quorum.write_set(self.metadata, each)
        ]
        if frames:
            joined = b"".join(frames)
            assert self.ledger_id is not None
            link.send_adds(self.ledger_id, joined, entries=len(frames), bytes=len(joined))

    # --- the sink of its links

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        bookie_id: str = link.bookie_id
        if self._is_done or bookie_id not in self._slots or bookie_id in self._lost:
            return
        if self._links.get(bookie_id) is not link:
            return
        if answer is Answer.OK:
            place = self._slots.index(bookie_id)
            for entry_id in entry_ids:
                if entry_id in self._pending:
                    self._pending[entry_id][1][place] = bookie_id
            self._confirm()
        elif answer is Answer.FENCED:
            self.world.mark("a striped writer is fenced")
            if self.world.swarm.java_closes:
                self._close(_closed_by_java)
            self._is_done = True
        else:
            self._lose(bookie_id)

    def on_room(self, link: Any) -> None:
        pass

    def on_down(self, link: Any, answer: Answer) -> None:
        bookie_id: str = link.bookie_id
        if self._links.get(bookie_id) is link:
            self._lose(bookie_id)

    def _confirm(self) -> None:
        while not self._is_changing and not self._is_done and self._confirmed + 1 in self._pending:
            _, acks = self._pending[self._confirmed + 1]
            needed = self.metadata.ack_quorum
            if self._confirmed < 0:
                needed = self.metadata.write_quorum
            if len(acks) < needed:
                return
            self._confirmed += 1
            del self._pending[self._confirmed]
            assert self.ledger_id is not None
            self._around.audit.on_confirmed(self.ledger_id, self._confirmed)
        if not self._pending and self.left == 0 and self.world.swarm.closes and not self._is_done:
            self._close(changes.closed_by_appender)

    # --- bookies that are lost

    def _lose(self, bookie_id: str) -> None:
        if self._is_done or bookie_id not in self._slots or bookie_id in self._lost:
            return
        self._lost.add(bookie_id)
        self._change()

    def _change(self) -> None:
        """Others for the lost ones. Nothing is confirmed meanwhile."""
        around, ledger_id = self._around, self.ledger_id
        assert ledger_id is not None
        lost = [place for place, each in enumerate(self._slots) if each in self._lost]
        spare = [
            each
            for each in around.all_bookies
            if each not in self._slots and each not in self._lost
        ]
        if self._is_changing or not lost or not spare:
            return
        self._is_changing = True
        places = dict(zip(lost, spare, strict=False))
        replaced = partial(
            changes.replaced,
            ledger_id=ledger_id,
            first_entry=self._confirmed + 1,
            places=places,
        )

        def told(stored: StoredLedger | None, error: DlogError | None) -> None:
            if isinstance(error, Fenced):
                self._is_done = True
            elif stored is None:
                self.process.after(AGAIN_MS, again)
            else:
                self._changed(stored, places)

        def again() -> None:
            assert self._stored is not None
            around.nodes.change(around.client, self._stored, replaced, told)

        again()

    def _changed(self, stored: StoredLedger, places: dict[int, str]) -> None:
        self.world.mark("a striped ensemble changed")
        self._stored = stored
        for place, bookie_id in places.items():
            self._slots[place] = bookie_id
            for _, acks in self._pending.values():
                acks.pop(place, None)
        self._is_changing = False
        for bookie_id in places.values():
            self._reach(bookie_id)
        self._confirm()
        self._change()

    # --- the end

    def _close(self, close: Callable[..., LedgerMetadata | None]) -> None:
        if self._is_done:
            return
        self._is_done = True
        around, end = self._around, self._confirmed
        assert self._stored is not None
        assert self.ledger_id is not None
        size = self.world.oracle.truth(self.ledger_id).bytes_through(end)
        change = partial(close, ledger_id=self.ledger_id, last_entry=end, bytes=size)
        self.world.mark("a striped writer closes")
        around.nodes.change(around.client, self._stored, change, lambda stored, error: None)


def _closed_by_java(
    metadata: LedgerMetadata, *, ledger_id: int, last_entry: int, bytes: int
) -> LedgerMetadata | None:
    if metadata.state is LedgerState.CLOSED:
        return None
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last_entry, length_bytes=bytes)

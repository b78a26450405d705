"""One ledger on simulated bookies: its appender's core, a metadata store, and a foreign recoverer.

Values instead of bytes, virtual time, everything drawn from one seed. A bookie has what matters of
a real one: entries that are there before they are durable, a fence that a kill wipes out unless an
ordinary entry was stored before it, answers that come late, twice, in any order or never, refusals
in the middle of a burst. The oracle looks at the truth on the bookies whenever the core says that
something is confirmed or published, and whenever metadata changes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import Broken, DlogError, Fenced, Outcome, Unavailable
from dlog.ledger.bookkeeper.core import changes
from dlog.ledger.bookkeeper.core.append_effects import (
    AppendOptions,
    Change,
    Connect,
    LetGo,
    Look,
    WriteLac,
)
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from tests.sim.world import Violation, World

LEDGER_ID = 7
HEAL_MS = 60_000.0  # everything must come right within this time once faults ended
QUORUMS = ((3, 2), (3, 2), (3, 2), (3, 3), (2, 2), (2, 1), (1, 1), (4, 3), (5, 3))


@dataclass(slots=True)
class BookieWeather:
    """Drawn once per seed; rates are per event, 0 is off."""

    ensemble: int = 3
    ack_quorum: int = 2
    spares: int = 1
    appends: int = 20
    burst: int = 4  # entries put at once
    window_entries: int = 2000
    window_bytes: int = 1 << 20
    birth: bool = True
    idle_troubles: int = 0
    publishing: float = 0.5  # after a confirmation
    close: bool = True
    faults_ms: float = 3_000.0
    latency_ms: float = 1.0
    slow: float = 1.0  # some bookies are so many times slower
    kills: float = 0.0  # per entry put, as are the next four
    deaf: float = 0.0
    read_only: float = 0.0
    cuts: float = 0.0
    freezes: float = 0.0  # of the appender's process
    busy: float = 0.0
    io_failed: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    never: float = 0.0
    no_room: float = 0.0
    refused: float = 0.0  # connections
    lac_lost: float = 0.0
    meta_refused: float = 0.0
    meta_unknown: float = 0.0
    meta_slow: float = 1.0
    rewrites: float = 0.0  # somebody else changes older fragments
    recovery: float = 0.0  # somebody else recovers the ledger
    policy_errs: float = 0.0

    @property
    def is_mild(self) -> bool:
        """Nothing keeps a bookie from answering within seconds."""
        troubles = (self.kills, self.deaf, self.read_only, self.cuts, self.freezes, self.refused)
        refusals = (self.busy, self.io_failed, self.never, self.late, self.no_room)
        metadata = (self.meta_refused, self.meta_unknown, self.recovery)
        return not any((*troubles, *refusals, *metadata)) and self.slow * self.latency_ms < 500


def draw_bookie_weather(chance: random.Random) -> BookieWeather:
    def rate(high: float = 0.2) -> float:
        if chance.random() >= 0.3:
            return 0.0
        return math.exp(chance.uniform(math.log(0.003), math.log(high)))

    ensemble, ack_quorum = chance.choice(QUORUMS)
    return BookieWeather(
        ensemble=ensemble,
        ack_quorum=ack_quorum,
        spares=chance.choice((0, 1, 1, 2, 3)),
        appends=chance.choice((1, 2, 5, 10, 20, 60)),
        burst=chance.choice((1, 1, 3, 8, 30)),
        window_entries=chance.choice((1, 2, 8, 64, 2000)),
        window_bytes=chance.choice((10, 100, 1 << 20)),
        birth=chance.random() < 0.6,
        idle_troubles=chance.choice((0, 0, 0, 5)),
        publishing=chance.choice((0.0, 0.3, 1.0)),
        close=chance.random() < 0.5,
        latency_ms=chance.choice((0.5, 0.5, 2.0, 20.0)),
        slow=chance.choice((1.0, 1.0, 10.0, 300.0)),
        kills=rate(),
        deaf=rate(),
        read_only=rate(0.1),
        cuts=rate(),
        freezes=rate(0.05),
        busy=rate(0.5),
        io_failed=rate(0.05),
        twice=rate(),
        late=rate(),
        never=rate(0.05),
        no_room=rate(),
        refused=rate(0.5),
        lac_lost=rate(),
        meta_refused=rate(0.5),
        meta_unknown=rate(0.5),
        meta_slow=chance.choice((1.0, 1.0, 10.0, 1000.0)),
        rewrites=rate(),
        recovery=rate(0.1),
        policy_errs=rate(),
    )


@dataclass(slots=True)
class Held:
    frame: bytes
    last_confirmed: int
    is_durable: bool
    is_ordinary: bool

    @property
    def ledger_bytes(self) -> int:
        return int(self.frame.split(b";")[0].split()[-1])


@dataclass(eq=False, slots=True)
class SimBookie:
    bookie_id: str
    slow: float = 1.0
    is_up: bool = True
    is_deaf: bool = False
    is_read_only: bool = False
    is_fenced: bool = False
    keeps_fence: bool = False  # over a kill
    explicit_lac: int = -1
    entries: dict[int, Held] = field(default_factory=dict)
    links: list[SimLink] = field(default_factory=list)
    pile: list[Callable[[], None]] = field(default_factory=list)  # what it will hear, once it can

    def holds(self, entry_id: int) -> bool:
        return entry_id in self.entries

    def shows(self) -> int:
        last = max(self.entries, default=-1)
        return max(self.explicit_lac, self.entries[last].last_confirmed if last >= 0 else -1)

    def add(self, entry_id: int, frame: bytes, lac: int, *, is_recovery: bool = False) -> Answer:
        if self.is_fenced and not is_recovery:
            return Answer.FENCED
        if self.is_read_only:
            return Answer.READ_ONLY
        before = self.entries.get(entry_id)
        is_durable = before is not None and before.is_durable
        is_ordinary = not is_recovery or (before is not None and before.is_ordinary)
        self.entries[entry_id] = Held(frame, lac, is_durable, is_ordinary)
        return Answer.OK

    def fence(self) -> None:
        if not self.is_fenced:
            self.is_fenced = True
            self.keeps_fence = any(
                held.is_durable and held.is_ordinary for held in self.entries.values()
            )

    def kill(self) -> None:
        self.is_up = self.is_deaf = False
        self.is_fenced = self.keeps_fence
        self.entries = {id: held for id, held in self.entries.items() if held.is_durable}
        self.pile.clear()
        for link in list(self.links):
            link.down()


@dataclass(eq=False, slots=True)
class SimLink:
    """One connection; requests keep their order, answers need not."""

    world: BookieWorld
    bookie: SimBookie
    is_up: bool = True
    has_room: bool = True
    arrives_at_ms: float = 0.0

    def __repr__(self) -> str:
        return f"link to {self.bookie.bookie_id}"

    def send(self, request: Callable[[], None]) -> None:
        world, bookie = self.world, self.bookie
        at_ms = world.now_ms + world.travel(bookie)
        self.arrives_at_ms = max(self.arrives_at_ms, at_ms)

        def arrive() -> None:
            if not self.is_up:
                return
            if bookie.is_deaf:
                bookie.pile.append(arrive)
            else:
                request()

        world.at(self.arrives_at_ms, arrive)

    def down(self) -> None:
        if self.is_up:
            self.is_up = False
            self.bookie.links.remove(self)
            self.world.after(self.world.delay(1.0), lambda: self.world.appender.on_down(self))


class BookieWorld(World):
    """The world of one ledger, and its oracle."""

    sky: BookieWeather
    bookies: dict[str, SimBookie]
    nodes: SimNodes
    appender: SimAppender
    oracle: Oracle

    def strikes(self, rate: float) -> bool:
        return rate > 0.0 and not self.is_calm and self.chance.random() < rate

    def travel(self, bookie: SimBookie) -> float:
        slow = 1.0 if self.is_calm else bookie.slow
        return self.delay(self.sky.latency_ms * slow)

    def fraction(self) -> float:
        return self.chance.random()

    def token(self) -> str:
        return f"{self.chance.getrandbits(64):016x}"


class SimNodes:
    """Ledger metadata behind a store that may be away, slow, or lose its answers."""

    def __init__(self, world: BookieWorld, metadata: LedgerMetadata) -> None:
        self.world = world
        self.metadata = metadata
        self.after_change: Callable[[], None] = lambda: None

    def put(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.after_change()

    def read(self, done: Callable[[LedgerMetadata], None], failed: Callable[..., None]) -> None:
        world = self.world
        if world.strikes(world.sky.meta_refused):
            world.after(world.delay(5.0), lambda: failed(Unavailable("metadata is away")))
            return

        def look() -> None:
            seen = self.metadata  # and it may be old when it arrives
            world.after(world.delay(world.sky.meta_slow), lambda: done(seen))

        world.after(world.delay(world.sky.meta_slow), look)

    def change(
        self,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        done: Callable[[LedgerMetadata], None],
        failed: Callable[[DlogError], None],
    ) -> None:
        world = self.world
        if world.strikes(world.sky.meta_refused):
            world.after(world.delay(5.0), lambda: failed(Unavailable("metadata is away")))
            return
        is_lost = world.strikes(world.sky.meta_unknown)
        is_applied = not is_lost or world.chance.random() < 0.5
        known = self.metadata

        def apply() -> None:
            if is_lost and self.metadata is not known:
                return  # of an older version, and nobody is there to ask again
            try:
                wanted = change(self.metadata)
            except DlogError as error:
                world.after(world.delay(1.0), lambda error=error: failed(error))
                return
            if wanted is not None:
                self.put(wanted)
            if not is_lost:
                seen = self.metadata
                world.after(world.delay(1.0), lambda: done(seen))

        if is_lost:
            # The client gives up before, or after, it happens.
            lost = Unavailable("no answer", outcome=Outcome.UNKNOWN)
            world.after(world.delay(20.0), lambda: failed(lost))
        if is_applied:
            world.after(world.delay(world.sky.meta_slow), apply)


class SimAppender:
    """The driver: performs effects in virtual time."""

    def __init__(self, world: BookieWorld, bookies: dict[str, SimBookie], nodes: SimNodes) -> None:
        self.world = world
        self.bookies = bookies
        self.nodes = nodes
        self.links: dict[str, SimLink] = {}
        self.told_confirmed = -1
        self.told_published = -1
        self.closed: tuple[int, int] | None = None
        self.close_error: DlogError | None = None
        self.is_closing = False
        self.frozen_until_ms = 0.0
        self.ticked_at_ms = world.now_ms
        self.frames: dict[int, bytes] = {}
        self.connects: Counter[tuple[int, str]] = Counter()
        self.starts: dict[Slot, int] = {}  # from where on each slot has everything
        self.not_kept_for: set[Slot] = set()  # named too late to get its whole fragment
        sky = world.sky
        self.core = AppenderCore(
            LEDGER_ID,
            nodes.metadata,
            pack_front=self.pack_front,
            frame_fixed_bytes=10,
            pick=self.pick,
            chance=world,
            options=AppendOptions(window_entries=sky.window_entries, window_bytes=sky.window_bytes),
        )
        self.perform()
        world.after(self.core.tick_ms, self.tick)

    # --- What a driver does

    def pack_front(
        self, entry_id: int, lac: int, ledger_bytes: int, buffers: Sequence[Any], size: int
    ) -> bytes:
        if not -1 <= lac < entry_id or lac > self.told_confirmed:
            raise Violation(f"C13: entry {entry_id} carries LAC {lac}")
        return b"%d lac %d bytes %d;" % (entry_id, lac, ledger_bytes)

    def pick(self, excluded: Any) -> str | None:
        world = self.world
        if world.strikes(world.sky.policy_errs):
            return world.chance.choice(sorted(self.bookies))
        if world.strikes(world.sky.policy_errs):
            return None
        left = sorted(
            bookie.bookie_id
            for bookie in self.bookies.values()
            if bookie.bookie_id not in excluded and not bookie.is_read_only
        )
        return world.chance.choice(left) if left else None

    def fact(self, what: Callable[..., Any], *about: Any) -> None:
        """Hear something; a frozen process hears it later."""
        world = self.world
        if world.now_ms < self.frozen_until_ms:
            world.at(self.frozen_until_ms, lambda: self.fact(what, *about))
            return
        what(*about)
        self.after_fact()

    def after_fact(self) -> None:
        core = self.core
        self.perform()
        for slot in core.slots:
            if slot.state is State.LIVE:
                self.starts.setdefault(slot, slot.acked_to + 1)
            elif slot.state is State.NAMING and core.places.kept_from is None:
                self.world.mark("kept no more")
                self.not_kept_for.add(slot)
        if isinstance(core.failure, Broken):
            raise core.failure
        if core.last_confirmed > self.told_confirmed:
            self.world.oracle.on_confirmed(self.told_confirmed, core.last_confirmed)
            self.told_confirmed = core.last_confirmed
            if self.world.chance.random() < self.world.sky.publishing:
                core.publish()
                self.perform()
        if core.last_published > self.told_published:
            self.told_published = core.last_published
            self.world.oracle.check_published()
        self.pump()
        self.world.oracle.check_bounds()

    def perform(self) -> None:
        effects = self.core.effects
        while effects:
            effect = effects.pop(0)
            self.world.note(f"appender: {effect}")
            if isinstance(effect, LetGo):
                effect.link.has_room = True
            elif isinstance(effect, Connect):
                self.connect(effect.slot)
            elif isinstance(effect, Look):
                self.nodes.read(
                    lambda seen: self.fact(self.core.on_looked, seen),
                    lambda error: self.fact(self.core.on_not_looked, error),
                )
            elif isinstance(effect, Change):
                self.change(effect)
            else:
                self.write_lac(effect)

    def connect(self, slot: Slot) -> None:
        world, bookie = self.world, self.bookies[slot.bookie_id]
        self.connects[slot.place, slot.bookie_id] += 1
        link = self.links.get(slot.bookie_id)
        if link is not None and link.is_up:
            self.core.on_link(slot, link)
            return

        def reach() -> None:
            if not bookie.is_up or world.strikes(world.sky.refused):
                self.fact(self.core.on_no_link, slot)
                return
            shared = self.links.get(slot.bookie_id)
            if shared is None or not shared.is_up:  # the kernel of a deaf one accepts, too
                shared = SimLink(world, bookie)
                bookie.links.append(shared)
                self.links[slot.bookie_id] = shared
            self.fact(self.linked, slot, shared)

        world.after(world.delay(1.0), reach)

    def linked(self, slot: Slot, link: SimLink) -> None:
        if link.is_up:
            self.core.on_link(slot, link)
        else:
            self.core.on_no_link(slot)

    def change(self, effect: Change) -> None:
        def replaced(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return changes.replaced(
                metadata,
                ledger_id=LEDGER_ID,
                first_entry=effect.first_entry,
                places=effect.places,
            )

        self.nodes.change(
            replaced,
            lambda seen: self.fact(self.core.on_changed, seen),
            lambda error: self.fact(self.core.on_not_changed, error),
        )

    def write_lac(self, effect: WriteLac) -> None:
        world, slot, bookie = self.world, effect.slot, self.bookies[effect.slot.bookie_id]

        def answered(answer: Answer) -> None:
            self.fact(self.core.on_lac_written, slot, effect.last_entry, answer)

        def arrive() -> None:
            if not bookie.is_up or world.strikes(world.sky.lac_lost):
                world.after(world.delay(1.0), lambda: answered(Answer.DISCONNECTED))
            elif bookie.is_deaf:
                world.after(5_000.0, lambda: answered(Answer.TIMED_OUT))
            elif bookie.is_read_only:
                world.after(world.travel(bookie), lambda: answered(Answer.READ_ONLY))
            else:
                bookie.explicit_lac = max(bookie.explicit_lac, effect.last_entry)
                world.after(world.travel(bookie), lambda: answered(Answer.OK))

        world.after(world.travel(bookie), arrive)

    def pump(self) -> None:
        core, world = self.core, self.world
        for slot in list(core.slots):
            link = slot.link
            while not core.is_over and slot.state is State.LIVE and link.has_room:
                run = core.take_run(slot)
                if run is None:
                    break
                for entry_id in run:
                    self.send(link, entry_id)
                if world.strikes(world.sky.no_room):
                    link.has_room = False
                    world.after(world.delay(50.0), lambda link=link: self.fact(self.room, link))

    def room(self, link: SimLink) -> None:
        link.has_room = True

    def send(self, link: SimLink, entry_id: int) -> None:
        frame = self.core.outbox.joined([entry_id])
        if self.frames.setdefault(entry_id, frame) != frame:
            raise Violation(f"the bytes of entry {entry_id} changed")
        lac = self.core.outbox.last_confirmed_in(entry_id)
        link.send(lambda: self.arrived(link, entry_id, frame, lac))

    def arrived(self, link: SimLink, entry_id: int, frame: bytes, lac: int) -> None:
        """At the bookie."""
        world, bookie, sky = self.world, link.bookie, self.world.sky
        if world.strikes(sky.busy):
            answer = Answer.BUSY
        elif world.strikes(sky.io_failed):
            answer = Answer.IO_FAILED
        else:
            answer = bookie.add(entry_id, frame, lac)
        if answer is not Answer.OK:
            self.answer(link, answer, entry_id)
            return

        def journaled() -> None:
            held = bookie.entries.get(entry_id)
            if held is None or not link.is_up:
                return
            if bookie.is_deaf:
                bookie.pile.append(journaled)
                return
            held.is_durable = True
            self.answer(link, Answer.OK, entry_id)

        world.after(world.travel(bookie), journaled)

    def answer(self, link: SimLink, answer: Answer, entry_id: int) -> None:
        world, sky = self.world, self.world.sky
        if world.strikes(sky.never):
            return
        times = 2 if world.strikes(sky.twice) else 1
        for _ in range(times):
            delay_ms = world.delay(sky.latency_ms)
            if world.strikes(sky.late):
                delay_ms += world.delay(1_000.0)
            world.after(delay_ms, lambda: self.answered(link, answer, entry_id))

    def answered(self, link: SimLink, answer: Answer, entry_id: int) -> None:
        # Also over a link that is gone: the core must not care.
        self.fact(self.core.on_adds, link, answer, [entry_id])

    def on_down(self, link: SimLink) -> None:
        self.fact(self.core.on_down, link, Answer.DISCONNECTED)

    def tick(self) -> None:
        if not self.core.is_over:
            self.fact(self.ticked)
            self.world.after(self.core.tick_ms, self.tick)

    def ticked(self) -> None:
        elapsed_ms = self.world.now_ms - self.ticked_at_ms
        self.ticked_at_ms = self.world.now_ms
        self.core.on_tick(elapsed_ms)

    # --- What a caller does

    def put(self, count: int) -> None:
        for _ in range(count):
            payload = b"x" * self.world.chance.choice((0, 1, 5, 60))
            self.core.put([payload], len(payload))
        if self.core.tick_ms > 25.0:
            self.core.tick_ms = 25.0
        self.after_fact()

    def close(self) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        core = self.core
        core.stop()
        self.perform()
        last, size = core.last_confirmed, core.outbox.ledger_bytes_through(core.last_confirmed)

        def closed_by_appender(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return changes.closed_by_appender(
                metadata, ledger_id=LEDGER_ID, last_entry=last, bytes=size
            )

        def done(metadata: LedgerMetadata) -> None:
            self.closed = metadata.last_entry_id, metadata.length_bytes

        def failed(error: DlogError) -> None:
            if isinstance(error, Fenced):
                self.close_error = error
            elif isinstance(error, Broken):
                raise error
            else:
                self.world.after(50.0, ask)

        def ask() -> None:
            self.nodes.change(closed_by_appender, done, failed)

        ask()


class SimRecoverer:
    """Somebody else: marks, fences to coverage, reads on until enough say that they have nothing,
    writes back what it finds, closes. It waits for bookies that are away."""

    def __init__(self, world: BookieWorld, bookies: dict[str, SimBookie], nodes: SimNodes) -> None:
        self.world = world
        self.bookies = bookies
        self.nodes = nodes
        self.frozen = nodes.metadata
        self.bytes = 0
        self.fenced: dict[str, int] = {}
        self.next_entry = 0
        self.is_done = False
        world.after(world.delay(5.0), self.mark)

    def mark(self) -> None:
        metadata = self.nodes.metadata
        if metadata.state is LedgerState.CLOSED:
            self.is_done = True
            return
        marked = changes.marked(metadata)
        if marked is not None:
            self.nodes.put(marked)
        self.frozen = self.nodes.metadata
        self.world.note(f"recoverer: marked {self.frozen.fragments}")
        for bookie_id in self.frozen.fragments[-1].ensemble:
            self.ask_to_fence(self.bookies[bookie_id])

    @property
    def negatives(self) -> int:
        return self.frozen.write_quorum - self.frozen.ack_quorum + 1

    def ask_to_fence(self, bookie: SimBookie) -> None:
        def arrive() -> None:
            if self.is_done or self.next_entry > 0:
                return
            if not bookie.is_up or bookie.is_deaf:
                self.world.after(200.0, lambda: self.ask_to_fence(bookie))
                return
            bookie.fence()
            shows = bookie.shows()
            self.world.after(self.world.delay(1.0), lambda: self.on_fenced(bookie, shows))

        self.world.after(self.world.travel(bookie), arrive)

    def on_fenced(self, bookie: SimBookie, shows: int) -> None:
        if self.next_entry > 0 or self.is_done:
            return
        self.fenced[bookie.bookie_id] = shows
        if len(self.fenced) >= self.negatives:
            floor = self.frozen.fragments[-1].first_entry_id - 1
            self.next_entry = max(floor, *self.fenced.values()) + 1
            self.read()

    def read(self) -> None:
        """One entry after the other."""
        ensemble = self.frozen.fragment_of(self.next_entry).ensemble
        heard: dict[str, Held | None] = {}
        entry_id = self.next_entry

        def ask(bookie: SimBookie) -> None:
            if self.next_entry != entry_id or self.is_done:
                return
            if not bookie.is_up or bookie.is_deaf:
                self.world.after(200.0, lambda: ask(bookie))
                return
            bookie.fence()
            found = bookie.entries.get(entry_id)
            heard[bookie.bookie_id] = found
            if found is not None:
                self.next_entry += 1
                self.bytes = found.ledger_bytes
                self.write_back(entry_id, found, ensemble)
            elif sum(held is None for held in heard.values()) == self.negatives:
                self.next_entry += 1  # late answers of this entry say nothing any more
                self.close(entry_id - 1)

        for bookie_id in ensemble:
            bookie = self.bookies[bookie_id]
            self.world.after(self.world.travel(bookie), lambda bookie=bookie: ask(bookie))

    def write_back(self, entry_id: int, held: Held, ensemble: Sequence[str]) -> None:
        able = [
            bookie
            for bookie in map(self.bookies.__getitem__, ensemble)
            if bookie.is_up and not bookie.is_deaf and not bookie.is_read_only
        ]
        if len(able) < self.frozen.ack_quorum:
            self.world.after(100.0, lambda: self.write_back(entry_id, held, ensemble))
            return
        for bookie in able:
            bookie.add(entry_id, held.frame, held.last_confirmed, is_recovery=True)
            bookie.entries[entry_id].is_durable = True
        self.world.after(self.world.delay(2.0), self.read)

    def close(self, last_entry: int) -> None:
        size = self.bytes
        if size == 0 and last_entry >= 0:  # nothing was found behind the LAC
            holders = self.world.oracle.holders(last_entry)
            size = self.bookies[holders[0]].entries[last_entry].ledger_bytes
        closed = changes.closed_by_recovery(
            self.nodes.metadata, last_entry=last_entry, bytes=size, fragments=None
        )
        if closed is not None:
            self.nodes.put(closed)
        self.is_done = True


class Oracle:
    """Looks at the truth."""

    def __init__(self, world: BookieWorld, bookies: dict[str, SimBookie], nodes: SimNodes) -> None:
        self.world = world
        self.bookies = bookies
        self.nodes = nodes
        self.confirmed = -1
        nodes.after_change = self.on_metadata

    def holders(self, entry_id: int) -> list[str]:
        ensemble = self.nodes.metadata.fragment_of(entry_id).ensemble
        held = (self.bookies[bookie].entries.get(entry_id) for bookie in ensemble)
        return [
            bookie
            for bookie, one in zip(ensemble, held, strict=True)
            if one is not None and one.is_durable
        ]

    def on_confirmed(self, before: int, last_entry: int) -> None:
        metadata = self.nodes.metadata
        self.world.note(f"confirmed {last_entry}")
        if metadata.state is LedgerState.CLOSED and last_entry > metadata.last_entry_id:
            raise Violation(f"I7: {last_entry} confirmed, closed at {metadata.last_entry_id}")
        self.confirmed = last_entry
        for entry_id in range(before + 1, last_entry + 1):
            holders = self.holders(entry_id)
            needed = metadata.ack_quorum
            if entry_id == 0 and self.world.sky.birth:
                needed = metadata.ensemble_size
            if len(holders) < needed:
                raise Violation(
                    f"I11: {entry_id} confirmed, held by {holders} of {metadata.fragments}"
                )

    def on_metadata(self) -> None:
        metadata = self.nodes.metadata
        self.world.note(f"metadata {metadata.state.name} {metadata.fragments}")
        if metadata.state is LedgerState.CLOSED:
            if metadata.last_entry_id < self.confirmed:
                raise Violation(f"I9: closed at {metadata.last_entry_id} below {self.confirmed}")
            return
        if metadata.state is LedgerState.OPEN:
            self.check_held()
            self.check_published()

    def check_held(self) -> None:
        for entry_id in range(self.confirmed + 1):
            if len(self.holders(entry_id)) < self.nodes.metadata.ack_quorum:
                raise Violation(
                    f"I11: {entry_id} is confirmed and on {self.holders(entry_id)} only, of "
                    f"{self.nodes.metadata.fragments}"
                )

    def check_published(self) -> None:
        """Any reader that asks enough bookies sees it."""
        appender, metadata = self.world.appender, self.nodes.metadata
        published = appender.told_published
        if published > self.confirmed:
            raise Violation(f"published {published} above confirmed {self.confirmed}")
        if metadata.state is not LedgerState.OPEN:
            return
        ensemble = metadata.fragments[-1].ensemble
        showing = [bookie for bookie in ensemble if self.bookies[bookie].shows() >= published]
        if len(showing) < metadata.ack_quorum:
            raise Violation(f"published {published}, shown by {showing} of {ensemble}")

    def check_bounds(self) -> None:
        core, sky = self.world.appender.core, self.world.sky
        outbox = core.outbox
        for slot in core.slots:
            if slot.state is State.LIVE:
                if slot.next_to_send > outbox.first + sky.window_entries:
                    raise Violation(f"I25: {slot} is beyond the window")
                if not outbox.first <= slot.acked_to + 1 <= slot.next_to_send <= outbox.end:
                    raise Violation(f"an entry that {slot} needs was let go")
                if slot.in_flight < 0:
                    raise Violation(f"{slot} has {slot.in_flight} in flight")
        if outbox.first > core.last_confirmed + 1:
            raise Violation("an entry that is not confirmed was let go")

    def at_the_end(self) -> None:
        appender, metadata = self.world.appender, self.nodes.metadata
        core = appender.core
        self.check_held()
        if core.failure is not None:
            self.check_failure(core.failure)
        if appender.is_closing:
            if appender.closed is None and appender.close_error is None:
                raise Violation("I27: a close does not end")
            if appender.closed is not None and metadata.last_entry_id != self.confirmed:
                raise Violation(
                    f"I8: closed at {metadata.last_entry_id}, confirmed {self.confirmed}"
                )
            return
        if core.failure is not None or metadata.state is not LedgerState.OPEN:
            return  # or nobody told it yet
        if core.last_confirmed != core.outbox.end - 1:
            raise Violation(f"I27: {core.last_confirmed} of {core.outbox.end - 1}: {core.slots}")
        if core.last_published < core._publish_to:
            raise Violation(f"I27: {core.last_published} published, of {core._publish_to}")
        if core.degraded:
            raise Violation(f"I27: still without {core.degraded}")
        for slot in core.slots:
            self.check_slot(slot)

    def check_failure(self, failure: DlogError) -> None:
        """Faults end long before an appender may give up, except at a birth."""
        sky, is_born = self.world.sky, self.world.appender.core.is_born
        if isinstance(failure, Fenced):
            if self.nodes.metadata.state is LedgerState.OPEN:
                raise Violation(f"fenced by nobody: {failure}")
        elif not isinstance(failure, Unavailable) or is_born or not sky.birth:
            raise Violation(f"it failed for no reason: {failure!r}")
        elif sky.is_mild:
            raise Violation(f"not born for no reason: {failure}")

    def check_slot(self, slot: Slot) -> None:
        """A bookie has everything of its place since it was named, or since it came back."""
        appender, metadata = self.world.appender, self.nodes.metadata
        if slot.bookie_id != metadata.fragments[-1].ensemble[slot.place]:
            raise Violation(f"{slot} is not the one that is named")
        first = appender.starts[slot]
        is_new = appender.connects[slot.place, slot.bookie_id] == 1
        if is_new and slot not in appender.not_kept_for:
            for fragment in reversed(metadata.fragments):
                if fragment.ensemble[slot.place] != slot.bookie_id:
                    break
                first = min(first, fragment.first_entry_id)
        bookie = self.bookies[slot.bookie_id]
        missing = [each for each in range(first, slot.acked_to + 1) if not bookie.holds(each)]
        if missing:
            raise Violation(f"{slot} has not got {missing} of {metadata.fragments}")


def new_bookie_world(seed: int, *, noted: bool = False, **weather: object) -> BookieWorld:
    chance = random.Random(seed)
    sky = dataclasses.replace(draw_bookie_weather(chance), **weather)
    # type: ignore[arg-type]
    world = BookieWorld(seed, sky, chance, notes=deque(maxlen=2_000) if noted else None)
    world.sky = sky
    bookies = {
        f"b{number}": SimBookie(f"b{number}", slow=sky.slow if chance.random() < 0.3 else 1.0)
        for number in range(sky.ensemble + sky.spares)
    }
    ensemble = tuple(chance.sample(sorted(bookies), sky.ensemble))
    metadata = LedgerMetadata(
        ensemble_size=sky.ensemble,
        write_quorum=sky.ensemble,
        ack_quorum=sky.ack_quorum,
        fragments=(Fragment(0, ensemble),),
    )
    nodes = SimNodes(world, metadata)
    world.bookies, world.nodes = bookies, nodes
    world.oracle = Oracle(world, bookies, nodes)
    world.appender = SimAppender(world, bookies, nodes)
    return world

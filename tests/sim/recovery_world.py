"""Bookies, ledger metadata and time for histories of ledger recovery; one ledger, and real entries.

Everything is drawn from one seed. A bookie here is what real ones are: it serves reads of what is
not on its disk yet, forgets that when it dies, forgets a fence on a ledger of which it never held
an entry, falls silent and does what it was sent when it wakes, has holes, lies with broken bytes,
answers twice, and once in a while comes back with nothing and says so (limbo). Metadata is changed
by compare-and-set, read stale, and its replies get lost.

The world keeps what nobody in it may contradict (`acked`, `delivered`, the first close) and raises
`Violation` at the event that does.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dlog.errors import DlogError, Outcome, Unavailable
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, StoredEntry, master_key
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState

LEDGER_ID = 7
PASSWORD = b"secret"
DIGEST = EntryDigest(DigestType.CRC32C, PASSWORD)
KEY = master_key(PASSWORD)
EVENTS_MAX = 40_000
READ_TIMEOUT_MS = 5_000.0
FAULT_ON = 0.35


class Violation(AssertionError):
    """A promise did not hold."""


@dataclass(slots=True)
class Weather:
    """Rates are per message; 0 is off. Each class of faults is on in part of the seeds."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    spares: int = 1
    appends: int = 6
    window: int = 4
    recoverers: int = 1
    slow_ms: float = 1.0
    late: float = 0.0  # a message that takes thirty times as long
    silent: float = 0.0  # the bookie freezes
    dies: float = 0.0
    busy: float = 0.0
    broken: float = 0.0  # bytes of a read
    failing: float = 0.0  # IO errors
    twice: float = 0.0
    low_lac: float = 0.0
    short: float = 0.0  # batches
    wipes: int = 0
    stale: float = 0.0
    meta_lost: float = 0.0
    crash: float = 0.0  # of a recoverer, per event of its own
    reads: float = 0.0  # a tailing reader looks, per message
    writer_closes: bool = False
    java_writer_closes: bool = False  # also over IN_RECOVERY
    writer_dies: bool = False


def draw_weather(chance: random.Random) -> Weather:
    def rate(high: float) -> float:
        return chance.uniform(0, high) if chance.random() < FAULT_ON else 0.0

    several = [(3, 3, 2)] * 5 + [(3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (2, 2, 1), (3, 3, 1)]
    quorums = chance.choice(several)
    return Weather(
        quorums=quorums,
        spares=chance.choice((0, 1, 1, 2)),
        appends=chance.choice((0, 1, 4, 8, 20, 40)),
        window=chance.choice((1, 4, 8, 20)),
        recoverers=chance.choice((1, 1, 2, 3, 5)),
        slow_ms=chance.choice((1.0, 1.0, 20.0)),
        late=rate(0.3),
        silent=rate(0.03),
        dies=rate(0.03),
        busy=rate(0.2),
        broken=rate(0.2),
        failing=rate(0.2),
        twice=rate(0.3),
        low_lac=rate(0.9),
        short=rate(0.9),
        wipes=1 if chance.random() < 0.15 and quorums[2] > 1 else 0,
        stale=rate(0.9),
        meta_lost=rate(0.3),
        crash=rate(0.05),
        reads=rate(0.3),
        writer_closes=chance.random() < 0.2,
        java_writer_closes=chance.random() < 0.2,
        writer_dies=chance.random() < 0.3,
    )


def payload_of(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * (entry_id % 3)


def bytes_to(entry_id: int) -> int:
    return sum(len(payload_of(each)) for each in range(entry_id + 1))


def packet(entry_id: int, last_confirmed: int) -> bytes:
    payload = payload_of(entry_id)
    head = DIGEST.pack_head(LEDGER_ID, entry_id, last_confirmed, bytes_to(entry_id), (payload,))
    return head + payload


@dataclass(slots=True)
class Client:
    """A process with connections; `downs` hears when one of them breaks."""

    name: str
    is_dead: bool = False
    downs: list[Callable[[str], None]] = field(default_factory=list)


class Bookie:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.is_up = True
        self.frozen_until_ms = 0.0
        self.incarnation = 0
        self.entries: dict[int, bytes] = {}  # what reads find
        self.journal: dict[int, bytes] = {}  # what survives
        self.is_fenced = False
        self.fence_survives = False
        self.has_ordinary = False  # entries from before a fence: only then a fence is kept (C1)
        self.is_limbo = False
        self.denied: set[int] = set()  # entries it said, fenced, not to have

    def die(self) -> None:
        self.is_up = False
        self.incarnation += 1
        self.entries = dict(self.journal)
        self.is_fenced = self.fence_survives

    def wipe(self) -> None:
        self.die()
        self.entries, self.journal = {}, {}
        self.is_fenced = self.fence_survives = self.has_ordinary = False
        self.is_limbo = True


class World:
    def __init__(self, seed: int, **weather: Any) -> None:
        self.chance = random.Random(seed)
        drawn = draw_weather(self.chance)
        for name, value in weather.items():
            setattr(drawn, name, value)
        self.weather = drawn
        self.now_ms = 0.0
        self.is_calm = False
        self.events = 0
        self.marks: Counter[str] = Counter()
        self.notes: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self.wipes_left = drawn.wipes
        size, write, ack = drawn.quorums
        names = [f"b{number}" for number in range(size + drawn.spares)]
        self.bookies = {name: Bookie(name) for name in names}
        self.clients: list[Client] = []
        self.meta = Meta(self, size, write, ack, tuple(names[:size]))
        self.acked = -1  # by the appender, to its user
        self.delivered = -1  # by tailing readers
        self.closed: tuple[int, int] | None = None
        self.audit = True

    # --- time and chance

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._serial, what))

    def run(self, until_ms: float, done: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= until_ms and not done():
            self.now_ms, _, what = heapq.heappop(self._heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation("something goes round")
            what()
        if not done():
            self.now_ms = max(self.now_ms, until_ms)

    def delay_ms(self) -> float:
        mean_ms = self.weather.slow_ms * (30 if self.strikes(self.weather.late) else 1)
        return self.chance.expovariate(1 / mean_ms)

    def strikes(self, rate: float) -> bool:
        return rate > 0 and not self.is_calm and self.chance.random() < rate

    def note(self, text: str) -> None:
        self.notes.append(f"{self.now_ms:9.2f}  {text}")

    def mark(self, what: str) -> None:
        self.marks[what] += 1

    # --- what must hold

    def on_acked(self, entry_id: int) -> None:
        if self.closed is not None and entry_id > self.closed[0]:
            raise Violation(f"I7: entry {entry_id} acknowledged above the end {self.closed[0]}")
        self.acked = max(self.acked, entry_id)

    def on_closed(self, metadata: LedgerMetadata) -> None:
        end = (metadata.last_entry_id, metadata.length_bytes)
        if self.closed is not None and end != self.closed:
            raise Violation(f"I8: closed at {self.closed} and then at {end}")
        self.closed = end
        if end[0] < self.acked:
            raise Violation(f"I9: closed at {end[0]} below the acknowledged {self.acked}")
        if end[0] < self.delivered:
            raise Violation(f"I9: closed at {end[0]} below the delivered {self.delivered}")
        if end[1] != bytes_to(end[0]):
            raise Violation(f"{end[1]} bytes up to entry {end[0]}, not {bytes_to(end[0])}")
        self.check_stands(metadata)

    def check_stands(self, metadata: LedgerMetadata) -> None:
        """Every entry of the closed ledger is on the disks of enough bookies of those named."""
        wiped = self.weather.wipes > self.wipes_left
        needed = 1 if wiped else metadata.ack_quorum
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            holders = 0
            for place in write_set(metadata, entry_id):
                raw = self.bookies[ensemble[place]].journal.get(entry_id)
                if raw is not None:
                    entry = DIGEST.verify(raw, ledger_id=LEDGER_ID, entry_id=entry_id)
                    if entry.payload != payload_of(entry_id):
                        raise Violation(f"I13: entry {entry_id} is not what was appended")
                    holders += 1
            if holders < needed:
                raise Violation(f"I8: entry {entry_id} stands on {holders} of its bookies")

    def look_as_a_reader(self) -> None:
        """What a tailing reader learns from one bookie: the LAC in a header, and what it may
        deliver."""
        bookie = self.chance.choice(list(self.bookies.values()))
        if not bookie.is_up or self.meta.stored.state is LedgerState.CLOSED:
            return
        for raw in bookie.entries.values():
            entry = DIGEST.verify_last(raw, ledger_id=LEDGER_ID)
            if entry.last_confirmed > self.delivered:
                self.mark("delivered")
                self.delivered = entry.last_confirmed

    # --- messages

    def call(
        self,
        client: Client,
        bookie: Bookie,
        serve: Callable[[], Any],
        answered: Callable[[Any], None],
        *,
        journal_ms: float = 0.0,
        timeout_ms: float | None = None,
    ) -> None:
        """A request and its answer; None for a lost connection, `Answer.TIMED_OUT` after a time.
        What a bookie does it does when it gets there, whoever still waits."""
        incarnation = bookie.incarnation
        over: list[bool] = []
        weather = self.weather

        def tell(reply: Any) -> None:
            if not over and not client.is_dead:
                over.append(True)
                answered(reply)

        def arrive() -> None:
            if not bookie.is_up or bookie.incarnation != incarnation:
                tell(None)
                return
            if self.now_ms < bookie.frozen_until_ms:
                self.after(bookie.frozen_until_ms - self.now_ms, arrive)
                return
            if self.strikes(weather.dies):
                self.kill(bookie)
                tell(None)
                return
            if self.strikes(weather.silent):
                self.mark("frozen")
                bookie.frozen_until_ms = self.now_ms + self.chance.choice((300.0, 2_000.0, 9_000.0))
            if self.strikes(weather.reads):
                self.look_as_a_reader()
            reply = serve()
            # Reads are told apart by their connection and answered once; adds are not.
            again = timeout_ms is None and self.strikes(weather.twice)

            def back() -> None:
                if bookie.incarnation != incarnation:
                    tell(None)
                    return
                tell(reply)
                if again and not client.is_dead:
                    over.clear()
                    self.mark("twice")
                    tell(reply)

            self.after(journal_ms + self.delay_ms(), back)

        self.after(self.delay_ms(), arrive)
        if timeout_ms is not None:
            self.after(timeout_ms, lambda: tell(Answer.TIMED_OUT))

    def kill(self, bookie: Bookie) -> None:
        if self.wipes_left and self.chance.random() < 0.5:
            self.wipes_left -= 1
            self.mark("wiped")
            bookie.wipe()
        else:
            self.mark("died")
            bookie.die()
        self.note(f"{bookie.bookie_id} dies")
        for client in self.clients:
            if not client.is_dead:
                for down in list(client.downs):
                    self.after(self.delay_ms(), partial(down, bookie.bookie_id))
        self.after(self.chance.choice((5.0, 500.0, 8_000.0)), lambda: self.start(bookie))

    def start(self, bookie: Bookie) -> None:
        bookie.is_up = True

    # --- what bookies do

    def add(
        self,
        client: Client,
        bookie_id: str,
        adds: Sequence[tuple[StoredEntry, bytes]],
        *,
        recovery: bool,
        answered: Callable[[Answer, list[int]], None],
        lost: Callable[[], None],
    ) -> None:
        """Each is answered when it is on the disk, none of them over a lost connection."""
        bookie = self.bookies[bookie_id]

        def serve() -> list[tuple[Answer, list[int]]]:
            if bookie.is_limbo:
                return [(Answer.UNAUTHORIZED, [entry.entry_id for entry, _ in adds])]
            taken: list[int] = []
            replies: list[tuple[Answer, list[int]]] = []
            for entry, raw in adds:
                if bookie.is_fenced and not recovery:
                    replies.append((Answer.FENCED, [entry.entry_id]))
                elif self.strikes(self.weather.busy):
                    self.mark("busy")
                    replies.append((Answer.BUSY, [entry.entry_id]))
                else:
                    bookie.entries[entry.entry_id] = raw
                    if not recovery:
                        bookie.has_ordinary = True
                    taken.append(entry.entry_id)
            incarnation = bookie.incarnation

            def journal() -> None:
                if bookie.incarnation == incarnation:
                    for entry, raw in adds:
                        if entry.entry_id in taken:
                            bookie.journal[entry.entry_id] = raw

            self.after(2.0, journal)
            if taken:
                replies.append((Answer.OK, taken))
            return replies

        def told(replies: Any) -> None:
            if replies is None:
                lost()
            for answer, entry_ids in replies or ():
                answered(answer, entry_ids)

        self.call(client, bookie, serve, told, journal_ms=2.0)

    def read(
        self,
        client: Client,
        bookie_id: str,
        first_entry: int,
        count_max: int,
        answered: Callable[[Answer, list[bytes]], None],
        *,
        fence: bool = True,
    ) -> None:
        bookie = self.bookies[bookie_id]

        def serve() -> tuple[Answer, list[bytes]]:
            if self.strikes(self.weather.failing):
                return self.chance.choice((Answer.IO_FAILED, Answer.BUSY)), []
            if fence:
                bookie.is_fenced = True
            answer, raws = self._look(bookie, first_entry, count_max)
            if fence and bookie.has_ordinary:
                if answer is Answer.OK:
                    bookie.fence_survives = True
                else:
                    self.after(2.0, lambda: self._journal_fence(bookie))
            if answer is Answer.OK and self.strikes(self.weather.broken):
                self.mark("broken")
                at = self.chance.randrange(len(raws))
                raws[at] = raws[at][:-1] + bytes([raws[at][-1] ^ 1])
            return answer, raws

        def told(reply: Any) -> None:
            if reply is None:
                answered(Answer.DISCONNECTED, [])
            elif reply is Answer.TIMED_OUT:
                self.mark("timed out")
                answered(Answer.TIMED_OUT, [])
            else:
                answered(*reply)

        self.call(client, bookie, serve, told, timeout_ms=READ_TIMEOUT_MS)

    def _journal_fence(self, bookie: Bookie) -> None:
        bookie.fence_survives = bookie.fence_survives or bookie.is_fenced

    def _look(self, bookie: Bookie, first_entry: int, count_max: int) -> tuple[Answer, list[bytes]]:
        entries = bookie.entries
        if first_entry < 0:
            if entries:
                low = self.strikes(self.weather.low_lac)
                return Answer.OK, [
                    entries[self.chance.choice(list(entries)) if low else max(entries)]
                ]
            return self._nothing(bookie, -1)
        if first_entry not in entries:
            return self._nothing(bookie, first_entry)
        raws: list[bytes] = []
        while first_entry in entries and len(raws) < count_max:
            raws.append(entries[first_entry])
            first_entry += 1
            if self.strikes(self.weather.short):
                break
        return Answer.OK, raws

    def _nothing(self, bookie: Bookie, entry_id: int) -> tuple[Answer, list[bytes]]:
        if bookie.is_limbo:
            self.mark("limbo")
            return Answer.LIMBO, []
        bookie.denied.add(entry_id)
        answers = (Answer.NO_ENTRY, Answer.NO_ENTRY if bookie.entries else Answer.NO_LEDGER)
        return self.chance.choice(answers), []


class Meta:
    """One ledger's metadata, as `Nodes` offers it."""

    def __init__(
        self, world: World, size: int, write: int, ack: int, ensemble: tuple[str, ...]
    ) -> None:
        self.world = world
        self.stored = LedgerMetadata(
            size,
            write,
            ack,
            (Fragment(0, ensemble),),
            digest_type=DIGEST.type,
            password=PASSWORD,
        )
        self.version = 0
        self.history = [self.stored]

    def read(
        self, client: Client, fresh: bool, answered: Callable[[LedgerMetadata, int], None]
    ) -> None:
        world = self.world

        def arrive() -> None:
            version = self.version
            if not fresh and world.strikes(world.weather.stale):
                version = world.chance.randint(max(0, version - 2), version)
            seen = self.history[version]
            self._tell(client, answered, seen, version)

        world.after(world.delay_ms(), arrive)

    def change(
        self,
        client: Client,
        known: LedgerMetadata,
        version: int,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        answered: Callable[[LedgerMetadata, int], None],
        failed: Callable[[DlogError], None],
    ) -> None:
        """The loop of `Nodes.change`, one compare-and-set after the other."""
        world = self.world

        def attempt(known: LedgerMetadata, version: int) -> None:
            if client.is_dead:
                return
            try:
                wanted = change(known)
            except DlogError as error:
                failed(error)
                return
            if wanted is None:
                answered(known, version)
                return
            world.after(world.delay_ms(), lambda: arrive(wanted, version))

        def arrive(wanted: LedgerMetadata, version: int) -> None:
            applied = version == self.version
            if applied:
                self._store(wanted)
            if world.strikes(world.weather.meta_lost):
                world.mark("meta reply lost")
                if world.chance.random() < 0.2:
                    error = Unavailable("metadata is away", outcome=Outcome.UNKNOWN)
                    self._tell(client, failed, error)
                    return
                applied = False
            if applied:
                self._tell(client, answered, wanted, version + 1)
            else:
                self.read(client, True, attempt)

        attempt(known, version)

    def _tell(self, client: Client, answered: Callable[..., None], *what: object) -> None:
        def tell() -> None:
            if not client.is_dead:
                answered(*what)

        self.world.after(self.world.delay_ms(), tell)

    def _store(self, wanted: LedgerMetadata) -> None:
        world = self.world
        if self.stored.state is LedgerState.CLOSED:
            raise Violation("I8: closed metadata changed")
        self.stored = wanted
        self.version += 1
        self.history.append(wanted)
        world.note(f"metadata {self.version}: {wanted.state.name} {wanted.fragments}")
        if wanted.state is LedgerState.CLOSED:
            world.on_closed(wanted)

"""A ledger on simulated bookies, with a writer, a metadata store and faults, for the real drivers
of reading: they run unchanged on a loop of virtual time.

Bookies are as real ones are where it matters to readers: a poll's watch is one-shot and any rise of
the LAC consumes it, a fence wakes all polls (and here, unlike on most real ones, every later poll
is answered at once), a LAC packet is kept as it comes, the bookie's own idea of the LAC is a number
that headers drive up unchecked, and a batch ends at the first entry that is not there. Requests are
parsed from the frames that the client packed.

The writer keeps the rules of one: contiguous acknowledgements, a LAC that rises, fragments that
begin behind what is confirmed. What it ever showed (`word`), and what no reader may miss any more
(`visible`), are known here exactly.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from dlog.errors import NotFound, Timeout, Unavailable
from dlog.ledger.bookkeeper.core.changes import (
    closed_by_appender,
    closed_by_recovery,
    marked,
    replaced,
)
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.ledger.bookkeeper.ledger_nodes import Change, StoredLedger
from dlog.ledger.bookkeeper.links import AddSink
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.ledger.store import Buffer
from dlog.meta.store import Watch
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest
from dlog.wire.bookie_v2 import BatchReadReply, ReadReply
from dlog.wire.bookie_v3 import BODY_FIELDS, Operation
from dlog.wire.bookie_v3_replies import Body, ReadBody, ReadLacBody, Response
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message
from tests.sim.virtual_loop import LoopClock, pass_time

LEDGER = 7
_Reply = TypeVar("_Reply")

_REQUEST = Fields({1: BYTES, **dict.fromkeys(BODY_FIELDS.values(), BYTES)})
_HEADER = Fields({1: NUMBER, 2: NUMBER, 3: NUMBER})
_READ = Fields({1: NUMBER, 2: NUMBER, 4: NUMBER, 5: NUMBER, 100: NUMBER})
_READ_LAC = Fields({1: NUMBER})
_HEAD_LAC = struct.Struct(">16xq")


@dataclass
class Weather:
    """Rates of trouble; all of it is off until somebody turns it on."""

    delay_ms: float = 0.3
    slow: float = 0.0  # answers that take a hundred times as long
    lost: float = 0.0  # requests or answers that never come
    cut: float = 0.0
    busy: float = 0.0
    harmed: float = 0.0  # entries that arrive damaged
    lag: float = 0.0  # adds and LACs that reach a bookie late
    meta_away: float = 0.0
    watch_lost: float = 0.0


@dataclass(eq=False)
class _Watcher:
    waits_past: int
    answer: Callable[[], None]


class SimBookie:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.packets: dict[int, bytes] = {}
        self.proof: bytes | None = None
        self.lac = -1  # by its own word
        self.knows_ledger = False
        self.fenced = False
        self.is_up = True
        self.hangs = False
        self.batches = True
        self.watchers: list[_Watcher] = []

    def add(self, entry_id: int, packet: bytes) -> None:
        self.knows_ledger = True
        self.packets[entry_id] = packet
        self.rise(_HEAD_LAC.unpack_from(packet)[0])

    def keep_lac(self, lac: int, proof: bytes) -> None:
        if not self.is_up:
            return
        self.knows_ledger = True
        self.proof = proof
        self.rise(lac)

    def rise(self, lac: int) -> None:
        if lac <= self.lac:
            return
        self.lac = lac
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:  # those that wait for more are forgotten as well
            if lac > watcher.waits_past:
                watcher.answer()

    def fence(self) -> None:
        self.knows_ledger = self.fenced = True
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher.answer()

    def wipe(self) -> None:
        self.packets.clear()
        self.proof, self.lac, self.knows_ledger, self.fenced = None, -1, False, False
        self.watchers.clear()

    def proven(self, digest: EntryDigest) -> int:
        """What a READ_LAC of it proves."""
        lac = -1 if self.proof is None else digest.verify_lac(self.proof, ledger_id=LEDGER)
        if self.packets:
            header: int = _HEAD_LAC.unpack_from(self.packets[max(self.packets)])[0]
            if header < max(self.packets):
                lac = max(lac, header)
        return lac

    # --- answers

    def batch(self, first: int, count_max: int, bytes_max: int) -> tuple[Answer, list[bytes]]:
        found: list[bytes] = []
        size = 36
        while len(found) < count_max and (packet := self.packets.get(first + len(found))):
            size += 4 + len(packet)
            if found and size > bytes_max:
                break
            found.append(packet)
        if found:
            return Answer.OK, found
        return (Answer.NO_ENTRY if self.knows_ledger else Answer.NO_LEDGER), []

    def read_lac(self) -> tuple[Answer, Body | None]:
        if self.proof is None and not self.packets:
            return Answer.NO_ENTRY, None
        last = memoryview(self.packets[max(self.packets)]) if self.packets else None
        proof = None if self.proof is None else memoryview(self.proof)
        answer = Answer.OK if last is not None else Answer.IO_FAILED
        return answer, ReadLacBody(LEDGER, proof, last)

    def polled(self, waits_past: int) -> tuple[Answer, Body | None]:
        if not self.knows_ledger:
            return Answer.NO_LEDGER, None
        packet = self.packets.get(waits_past + 1)
        if self.lac > waits_past and packet is not None:
            return Answer.OK, ReadBody(LEDGER, waits_past + 1, memoryview(packet), self.lac, 0)
        return Answer.OK, ReadBody(LEDGER, -1, None, self.lac, 0)


class World:
    """One ledger. `ensemble` bookies hold it, `spares` can take their places."""

    def __init__(
        self,
        seed: int = 0,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        spares: int = 2,
        weather: Weather | None = None,
        digest: DigestType = DigestType.CRC32C,
    ) -> None:
        self.random = random.Random(seed)
        self.weather = weather or Weather()
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.digest = EntryDigest(digest, b"secret")
        self.bookies = {f"b{n}": SimBookie(f"b{n}") for n in range(ensemble + spares)}
        self.links = SimLinks(self)
        self.nodes = SimNodes(
            self,
            LedgerMetadata(
                ensemble,
                write_quorum,
                ack_quorum,
                (Fragment(0, tuple(f"b{n}" for n in range(ensemble))),),
                digest_type=digest,
                password=b"secret",
            ),
        )
        self.habits = BookieHabits()
        self.payloads: list[bytes] = []
        self.confirmed = -1
        self.word = -1  # the highest LAC that the writer ever told anybody
        self.ledger_bytes = 0
        self.asked: Counter[str] = Counter()  # requests by kind, and by kind and bookie
        self.batches: list[tuple[str, int, int, int]] = []  # bookie, first, how many, bytes
        self.marks: Counter[str] = Counter()
        self._readers: list[BookKeeperReader] = []

    # --- truth

    @property
    def metadata(self) -> LedgerMetadata:
        return self.nodes.metadata

    @property
    def ensemble(self) -> list[SimBookie]:
        return [self.bookies[id] for id in self.metadata.fragments[-1].ensemble]

    @property
    def end(self) -> int | None:
        closed = self.metadata.state is LedgerState.CLOSED
        return self.metadata.last_entry_id if closed else None

    @property
    def may_be_read(self) -> int:
        """Nothing above this may ever be handed out."""
        if self.end is not None:
            return self.end
        return max(self.word, self.metadata.fragments[-1].first_entry_id - 1)

    @property
    def visible(self) -> int:
        """Nobody may say that less is readable."""
        if self.nodes.is_deleted:
            return -1
        if self.end is not None:
            return self.end
        proven = sorted((each.proven(self.digest) for each in self.ensemble), reverse=True)
        return max(
            proven[self.metadata.ack_quorum - 1], self.metadata.fragments[-1].first_entry_id - 1
        )

    # --- the writer

    def packet(self, entry_id: int, payload: bytes, lac: int) -> bytes:
        head = self.digest.pack_head(LEDGER, entry_id, lac, self.ledger_bytes, [payload])
        return head + payload

    def add(self, payload: bytes | None = None) -> int:
        """Send one more entry to its bookies."""
        entry_id = len(self.payloads)
        payload = b"entry %d" % entry_id if payload is None else payload
        self.payloads.append(payload)
        self.ledger_bytes += len(payload)
        packet = self.packet(entry_id, payload, self.confirmed)
        self.word = max(self.word, self.confirmed)
        for place in write_set(self.metadata, entry_id):
            bookie = self.ensemble[place]

            self._send(bookie, partial(self._stored, bookie, entry_id, packet))
        return entry_id

    def _stored(self, bookie: SimBookie, entry_id: int, packet: bytes) -> None:
        if bookie.is_up and not bookie.fenced:
            bookie.add(entry_id, packet)
            self._confirm()

    def _confirm(self) -> None:
        metadata = self.metadata
        while self.confirmed + 1 < len(self.payloads):
            entry_id = self.confirmed + 1
            ensemble = metadata.fragment_of(entry_id).ensemble
            holders = sum(
                entry_id in self.bookies[ensemble[place]].packets
                for place in write_set(metadata, entry_id)
            )
            if holders < metadata.ack_quorum:
                return
            self.confirmed = entry_id

    def publish(self) -> None:
        lac = self.confirmed
        if lac < 0:
            return
        self.word = max(self.word, lac)
        proof = self.digest.pack_lac(LEDGER, lac)
        for bookie in self.ensemble:
            self._send(bookie, partial(bookie.keep_lac, lac, proof))

    def _send(self, bookie: SimBookie, act: Callable[[], object]) -> None:
        if self.weather.lag and self.random.random() < self.weather.lag:
            self.marks["lag"] += 1
            self.loop.call_later(self.random.expovariate(1) * 0.5, act)
        elif self.weather.delay_ms:
            self.loop.call_later(self.one_way_s(), act)
        else:
            act()

    def fill(self, count: int, *, size: int | None = None) -> None:
        """Entries that every bookie has at once, published."""
        calm, self.weather = self.weather, Weather(delay_ms=0.0)
        for _ in range(count):
            self.add(None if size is None else self.random.randbytes(size))
        self.publish()
        self.weather = calm

    async def change_ensemble(self, place: int, spare: str) -> None:
        """As an appender does it: behind what is confirmed; the rest is sent again."""
        first = self.confirmed + 1
        await self.nodes.change_now(
            lambda metadata: replaced(
                metadata, ledger_id=LEDGER, first_entry=first, places={place: spare}
            )
        )
        for entry_id in range(first, len(self.payloads)):
            if place in write_set(self.metadata, entry_id):
                bookie = self.bookies[spare]
                packet = self.packet(entry_id, self.payloads[entry_id], first - 1)
                self.word = max(self.word, first - 1)
                self._send(bookie, partial(self._stored, bookie, entry_id, packet))

    async def close(self) -> None:
        await self.nodes.change_now(
            lambda metadata: closed_by_appender(
                metadata,
                ledger_id=LEDGER,
                last_entry=self.confirmed,
                bytes=sum(map(len, self.payloads[: self.confirmed + 1])),
            )
        )

    async def recover(self, pause_s: float = 0.0) -> None:
        """By somebody else: marked, fenced, closed at what is confirmed or a little behind."""
        await self.nodes.change_now(marked)
        for bookie in self.ensemble:
            bookie.fence()
        await pass_time(pause_s)
        last = self.confirmed
        while any(last + 1 in bookie.packets for bookie in self.ensemble):
            last += 1
            for place in write_set(self.metadata, last):
                packet = next(b.packets[last] for b in self.ensemble if last in b.packets)
                self.ensemble[place].add(last, packet)
        await self.nodes.change_now(
            lambda metadata: closed_by_recovery(
                metadata,
                last_entry=last,
                bytes=sum(map(len, self.payloads[: last + 1])),
                fragments=None,
            )
        )

    # --- readers

    def reader(self, stored: StoredLedger | None = None) -> BookKeeperReader:
        reader = BookKeeperReader(
            stored or self.nodes.stored,
            links=self.links,
            nodes=self.nodes,
            digest=self.digest,
            habits=self.habits,
            clock=self.clock,
            chance=_Chance(self.random),
        )
        self._readers.append(reader)
        return reader

    async def end_readers(self) -> None:
        for reader in self._readers:
            await reader.close()
        for bookie in self.bookies.values():
            bookie.watchers.clear()

    # --- the network

    def one_way_s(self) -> float:
        delay_s = self.weather.delay_ms / 1000 * (0.5 + self.random.random())
        if self.weather.slow and self.random.random() < self.weather.slow:
            self.marks["slow"] += 1
            delay_s *= 100
        return delay_s

    def strikes(self, what: str) -> bool:
        rate = getattr(self.weather, what)
        if rate and self.random.random() < rate:
            self.marks[what] += 1
            return True
        return False

    def harm(self, packet: bytes) -> memoryview:
        if not self.strikes("harmed"):
            return memoryview(packet)
        torn = bytearray(packet)
        torn[self.random.randrange(len(torn))] ^= 1 << self.random.randrange(8)
        return memoryview(torn)


@dataclass
class _Chance:
    random: random.Random

    def fraction(self) -> float:
        return self.random.random()

    def token(self) -> str:
        return f"{self.random.getrandbits(64):x}"


@dataclass
class SimLinks:
    """Implements `Links`: a link is there unless the bookie is down."""

    world: World
    connected: set[str] = field(default_factory=set)

    async def data(self, bookie_id: str) -> SimLink:
        return await self._connect(bookie_id)

    async def control(self, bookie_id: str) -> SimLink:
        return await self._connect(bookie_id)

    async def recovery(self, bookie_id: str) -> SimLink:
        raise NotImplementedError

    def data_now(self, bookie_id: str) -> SimLink | None:
        return self._now(bookie_id)

    def control_now(self, bookie_id: str) -> SimLink | None:
        return self._now(bookie_id)

    async def _connect(self, bookie_id: str) -> SimLink:
        await pass_time(self.world.one_way_s())
        if not self.world.bookies[bookie_id].is_up:
            raise Unavailable(f"bookie {bookie_id} refuses", missing=[bookie_id])
        self.connected.add(bookie_id)
        return SimLink(self.world, self.world.bookies[bookie_id])

    def _now(self, bookie_id: str) -> SimLink | None:
        bookie = self.world.bookies[bookie_id]
        if bookie_id in self.connected and bookie.is_up:
            return SimLink(self.world, bookie)
        return None


class SimLink:
    """Implements as much of `DataLink` and `ControlLink` as readers use."""

    has_room = True

    def __init__(self, world: World, bookie: SimBookie) -> None:
        self.world = world
        self.bookie = bookie
        self.bookie_id = bookie.bookie_id
        self.where = f"bookie {bookie.bookie_id}"

    @property
    def is_up(self) -> bool:
        return self.bookie.is_up

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        raise NotImplementedError("readers add nothing")

    def detach(self, ledger_id: int) -> None:
        raise NotImplementedError("readers add nothing")

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None:
        raise NotImplementedError("readers add nothing")

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        raise NotImplementedError("readers add nothing")

    async def read(
        self, ledger_id: int, entry_id: int, *, timeout_ms: float, fence_key: bytes | None = None
    ) -> ReadReply:
        assert fence_key is None, "a reader fences nobody"
        self._count("read")

        def act() -> ReadReply:
            packet = self.bookie.packets.get(entry_id)
            if packet is None:
                return ReadReply(Answer.NO_ENTRY, ledger_id, entry_id, None)
            return ReadReply(Answer.OK, ledger_id, entry_id, self.world.harm(packet))

        return await self._exchange(
            act, lambda answer: ReadReply(answer, ledger_id, entry_id, None), timeout_ms
        )

    async def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> BatchReadReply:
        assert fence_key is None, "a reader fences nobody"
        self._count("batch_read")
        self.world.batches.append((self.bookie_id, first_entry, count_max, frame_bytes_max))

        def act() -> BatchReadReply:
            answer, packets = self.bookie.batch(first_entry, count_max, frame_bytes_max)
            views = [self.world.harm(packet) for packet in packets]
            return BatchReadReply(answer, ledger_id, first_entry, 0, views)

        def none(answer: Answer) -> BatchReadReply:
            return BatchReadReply(answer, ledger_id, first_entry, 0, [])

        if not self.bookie.batches:
            await pass_time(self.world.one_way_s())
            return none(Answer.DISCONNECTED)
        return await self._exchange(act, none, timeout_ms)

    def ask_soon(
        self,
        pack: Callable[[int], bytes],
        on_answer: Callable[[Response], None],
        *,
        timeout_ms: float,
    ) -> None:
        operation, body = _parsed(pack(1))
        loop = self.world.loop
        pending = [True]

        def end(answer: Answer, reply: Body | None) -> None:
            if pending:
                pending.clear()
                timer.cancel()
                on_answer(Response(1, operation, answer, reply))

        def arrive() -> None:
            if not self.bookie.is_up:
                end(Answer.DISCONNECTED, None)
            elif self.bookie.hangs or self.world.strikes("lost"):
                pass  # the timer ends it
            elif self.world.strikes("cut"):
                end(Answer.DISCONNECTED, None)
            elif operation is Operation.READ_LAC:
                self._count("read_lac")
                loop.call_later(self.world.one_way_s(), end, *self.bookie.read_lac())
            else:
                self._count("poll")
                self._poll(body.int64(4), body.uint64(5), end)

        timer = loop.call_later(timeout_ms / 1000, end, Answer.TIMED_OUT, None)
        loop.call_later(self.world.one_way_s(), arrive)

    async def ask(self, pack: Callable[[int], bytes], *, timeout_ms: float) -> Response:
        raise NotImplementedError

    def _poll(
        self, waits_past: int, timeout_ms: float, end: Callable[[Answer, Body | None], None]
    ) -> None:
        bookie, loop = self.bookie, self.world.loop
        answered = [False]

        def answer() -> None:
            if not answered[0]:
                answered[0] = True
                loop.call_later(self.world.one_way_s(), end, *bookie.polled(waits_past))

        if bookie.lac > waits_past or bookie.fenced or not bookie.knows_ledger:
            answer()
            return
        bookie.watchers.append(_Watcher(waits_past, answer))
        loop.call_later(timeout_ms / 1000, answer)

    async def _exchange(
        self, act: Callable[[], _Reply], none: Callable[[Answer], _Reply], timeout_ms: float
    ) -> _Reply:
        world = self.world
        begun_s = world.loop.time()
        to, back = world.one_way_s(), world.one_way_s()
        await pass_time(to)
        if not self.bookie.is_up or world.strikes("cut"):
            return none(Answer.DISCONNECTED)
        if self.bookie.hangs or world.strikes("lost"):
            await pass_time(timeout_ms / 1000 - to)
            return none(Answer.TIMED_OUT)
        reply = none(Answer.BUSY) if world.strikes("busy") else act()
        await pass_time(back)
        late = (world.loop.time() - begun_s) * 1000 > timeout_ms
        return none(Answer.TIMED_OUT) if late else reply

    def _count(self, kind: str) -> None:
        self.world.asked[kind] += 1
        self.world.asked[f"{kind} {self.bookie_id}"] += 1


def _parsed(frame: bytes) -> tuple[Operation, Message]:
    request = Message(memoryview(frame)[4:], _REQUEST, "a request")
    operation = Operation(request.message(1, _HEADER, "header").uint64(2))
    fields = {Operation.READ: _READ, Operation.READ_LAC: _READ_LAC}[operation]
    body = request.message(BODY_FIELDS[operation], fields, "body")
    if operation is Operation.READ:
        assert (body.int64(2), body.uint64(100)) == (-1, 2), "a poll asks for the last entry"
    return operation, body


class SimNodes:
    """Implements `Nodes` for the one ledger. While `away`, nothing is answered."""

    def __init__(self, world: World, metadata: LedgerMetadata) -> None:
        self.world = world
        self.stored = StoredLedger(LEDGER, metadata, 1)
        self.is_deleted = False
        self.away = False
        self.hangs = False  # while away: no error before the time-out of the store
        self.delay_s = 0.0
        self.reads = 0
        self._watches: set[_SimWatch] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        return self.stored.metadata

    async def read_fresh(self, ledger_id: int) -> StoredLedger:
        self.reads += 1
        await pass_time(self.world.one_way_s() + self.delay_s)
        if self.away or self.world.strikes("meta_away"):
            if self.hangs:
                await pass_time(10.0)
                raise Timeout("the metadata store does not answer")
            raise Unavailable("the metadata store is away")
        stored = self.stored
        if self.is_deleted:
            raise NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
        await pass_time(self.world.one_way_s())
        return stored

    read = read_fresh

    async def change_now(self, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> None:
        wanted = change(self.metadata)
        if wanted is not None:
            self.stored = replace(self.stored, metadata=wanted, version=self.stored.version + 1)
            self._ring()

    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        raise NotImplementedError

    async def change(self, known: StoredLedger, change: Change) -> StoredLedger:
        raise NotImplementedError

    async def delete(self, ledger_id: int) -> None:
        self.is_deleted = True
        self._ring()

    async def scan_ids(self) -> AsyncIterator[int]:
        yield LEDGER

    def watch(self, ledger_id: int) -> Watch:
        return _SimWatch(self)

    def _ring(self) -> None:
        if not self.world.strikes("watch_lost"):
            for watch in self._watches:
                self.world.loop.call_later(self.world.one_way_s(), watch.rung.set)

    @contextmanager
    def watching(self, watch: _SimWatch) -> Iterator[None]:
        self._watches.add(watch)
        try:
            yield
        finally:
            self._watches.discard(watch)


class _SimWatch:
    def __init__(self, nodes: SimNodes) -> None:
        self._nodes = nodes
        self.rung = asyncio.Event()

    async def wait(self, timeout_ms: float) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.rung.wait()
        except TimeoutError:
            return False
        self.rung.clear()
        return True

    async def __aenter__(self) -> Watch:
        await pass_time(self._nodes.world.one_way_s())
        if self._nodes.away:
            raise Unavailable("the metadata store is away")
        self._within = self._nodes.watching(self)
        self._within.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._within.__exit__(kind, error, trace)

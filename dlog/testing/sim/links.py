"""A client's connections to simulated bookies, at the level of values (tier 1).

They have what `dlog.ledger.bookkeeper.links` promises, with callbacks where that has coroutines:
adds go in as the frames that cores make, and are cut into entries here; reads and questions go in
and come out as values. `byte_links` does the same over byte strings and the production's connection
cores; `loop_links` gives either of them to the real drivers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from dlog.ledger.store import Buffer
from dlog.testing.sim.network import Client, Connection, Network
from dlog.testing.sim.server import AddRequest, Poll
from dlog.testing.sim.world import World, require
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import Flag

_FRAME = struct.Struct(">iI20s")
_ENTRY_ID = struct.Struct(">8xq")
_FRAME_FIXED_BYTES = 24  # of a body: the word and the key

ReadTold = Callable[[Answer, bytes | None], None]
BatchTold = Callable[[Answer, list[bytes]], None]
LacTold = Callable[[Answer, bytes | None, bytes | None], None]
PollTold = Callable[[Answer, int, bytes | None, int], None]


class SimSink(Protocol):
    """`AddSink`, of whatever link."""

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None: ...

    def on_room(self, link: Any) -> None: ...

    def on_down(self, link: Any, answer: Answer) -> None: ...


class SimLink(Protocol):
    """What drivers of tier 1 and 2 see of a bookie. Answers come exactly once, never from inside a
    call."""

    bookie_id: str
    where: str

    @property
    def is_up(self) -> bool: ...

    @property
    def has_room(self) -> bool: ...

    def attach(self, ledger_id: int, sink: SimSink) -> None: ...

    def detach(self, ledger_id: int) -> None: ...

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None: ...

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None: ...

    def ask_read(
        self,
        ledger_id: int,
        entry_id: int,
        told: ReadTold,
        *,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> None: ...

    def ask_batch(
        self,
        ledger_id: int,
        first_entry: int,
        told: BatchTold,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> None: ...

    def ask_write_lac(
        self,
        ledger_id: int,
        last_confirmed: int,
        proof: bytes,
        key: bytes,
        told: Callable[[Answer], None],
        *,
        timeout_ms: float,
    ) -> None: ...

    def ask_lac(self, ledger_id: int, told: LacTold, *, timeout_ms: float) -> None: ...

    def ask_poll(
        self, ledger_id: int, waits_past: int, told: PollTold, *, poll_ms: float, timeout_ms: float
    ) -> None: ...

    def on_down(self) -> None: ...

    def close(self) -> None: ...


def adds_of(frames: Buffer) -> Iterator[AddRequest]:
    """Of whole frames of the binary protocol, back to back."""
    at, end = 0, len(frames)
    while at < end:
        body_bytes, word, key = _FRAME.unpack_from(frames, at)
        raw = bytes(frames[at + _FRAME.size : at + 4 + body_bytes])
        require(word >> 16 == 0x0201, "wire", "an add is an add", hex(word))
        (entry_id,) = _ENTRY_ID.unpack_from(raw)
        yield AddRequest(entry_id, raw, key, bool(word & Flag.RECOVERY_ADD))
        at += 4 + body_bytes


class SimDataLink:
    """Adds and reads. With `recovery` it may fence."""

    def __init__(
        self, world: World, bookie_id: str, connection: Connection, *, recovery: bool
    ) -> None:
        self.bookie_id = bookie_id
        self.where = f"bookie {bookie_id}"
        self.is_up = True
        self.has_room = True
        self._world = world
        self._connection = connection
        self._server = connection.road.server
        self._may_fence = recovery
        self._sinks: dict[int, SimSink] = {}
        self._waiting: dict[int, Callable[[], None]] = {}  # how each read ends without an answer
        self._serial = 0

    def __repr__(self) -> str:
        return f"<link to {self.bookie_id}>"

    # --- adds

    def attach(self, ledger_id: int, sink: SimSink) -> None:
        require(ledger_id not in self._sinks, "links", "a ledger has one sink", ledger_id)
        if self.is_up:
            self._sinks[ledger_id] = sink
        else:
            self._world.after(0.0, lambda: sink.on_down(self, Answer.DISCONNECTED))

    def detach(self, ledger_id: int) -> None:
        self._sinks.pop(ledger_id, None)

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None:
        if not self.is_up:
            return
        require(ledger_id in self._sinks, "links", "adds are of an attached ledger", ledger_id)
        adds = list(adds_of(frames))
        require(len(adds) == entries and len(frames) == bytes, "links", "a run is what it says")
        is_right = all(each.is_recovery == self._may_fence for each in adds)
        require(is_right, "links", "recovery adds, and no others, go over recovery links")
        self._connection.send(
            lambda: self._server.add(
                self._connection, ledger_id, adds, partial(self._on_adds, ledger_id)
            )
        )

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        """Room is never short here."""

    def _on_adds(self, ledger_id: int, answer: Answer, entry_ids: list[int]) -> None:
        sink = self._sinks.get(ledger_id)
        if sink is not None and self.is_up:
            sink.on_adds(self, answer, entry_ids)

    # --- reads

    def ask_read(
        self,
        ledger_id: int,
        entry_id: int,
        told: ReadTold,
        *,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> None:
        require(fence_key is None or self._may_fence, "links", "only a recovery link fences")
        once = self._once(told, (Answer.DISCONNECTED, None), (Answer.TIMED_OUT, None), timeout_ms)
        self._connection.send(
            lambda: self._server.read(self._connection, ledger_id, entry_id, fence_key, once)
        )

    def ask_batch(
        self,
        ledger_id: int,
        first_entry: int,
        told: BatchTold,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> None:
        require(fence_key is None or self._may_fence, "links", "only a recovery link fences")
        nothing: list[bytes] = []
        once = self._once(
            told, (Answer.DISCONNECTED, nothing), (Answer.TIMED_OUT, nothing), timeout_ms
        )
        self._connection.send(
            lambda: self._server.batch_read(
                self._connection,
                ledger_id,
                first_entry,
                count_max,
                frame_bytes_max,
                fence_key,
                once,
            )
        )

    # --- questions, which go over a connection of their own in production

    def ask_write_lac(
        self,
        ledger_id: int,
        last_confirmed: int,
        proof: bytes,
        key: bytes,
        told: Callable[[Answer], None],
        *,
        timeout_ms: float,
    ) -> None:
        once = self._once(told, (Answer.DISCONNECTED,), (Answer.TIMED_OUT,), timeout_ms)
        self._connection.send(
            lambda: self._server.write_lac(
                self._connection, ledger_id, last_confirmed, proof, key, once
            )
        )

    def ask_lac(self, ledger_id: int, told: LacTold, *, timeout_ms: float) -> None:
        once = self._once(
            told, (Answer.DISCONNECTED, None, None), (Answer.TIMED_OUT, None, None), timeout_ms
        )
        self._connection.send(lambda: self._server.read_lac(self._connection, ledger_id, once))

    def ask_poll(
        self, ledger_id: int, waits_past: int, told: PollTold, *, poll_ms: float, timeout_ms: float
    ) -> None:
        once = self._once(
            told, (Answer.DISCONNECTED, -1, None, -1), (Answer.TIMED_OUT, -1, None, -1), timeout_ms
        )
        poll = Poll(ledger_id, waits_past, poll_ms, once)
        self._connection.send(lambda: self._server.poll(self._connection, poll))

    # --- the end

    def on_down(self) -> None:
        """The connection broke."""
        if not self.is_up:
            return
        self.is_up = self.has_room = False
        waiting, self._waiting = self._waiting, {}
        for end in waiting.values():
            end()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_down(self, Answer.DISCONNECTED)

    def close(self) -> None:
        """By us."""
        self._connection.close()
        self.on_down()

    def _once(
        self,
        told: Callable[..., None],
        lost: tuple[object, ...],
        late: tuple[object, ...],
        timeout_ms: float,
    ) -> Callable[..., None]:
        """Answered exactly once: by the bookie, by the end of the connection, or by the clock."""
        self._serial += 1
        number = self._serial

        def answered(*answer: object) -> None:
            if self._waiting.pop(number, None) is not None:
                told(*answer)

        client = self._connection.road.client
        if not self.is_up:
            self._world.after(0.0, lambda: client.receive(lambda: told(*lost)))
            return answered
        self._waiting[number] = lambda: told(*lost)
        self._world.after(timeout_ms, lambda: client.receive(lambda: answered(*late)))
        return answered


class SimLinks:
    """Of one client: at most one link of a kind to a bookie, connected if need be."""

    def __init__(self, world: World, network: Network, client: Client) -> None:
        self._world = world
        self._network = network
        self._client = client
        self._up: dict[tuple[str, bool], SimLink] = {}
        self._wanted: dict[tuple[str, bool], list[Callable[[SimLink | None], None]]] = {}

    def now(self, bookie_id: str, *, recovery: bool = False) -> SimLink | None:
        link = self._up.get((bookie_id, recovery))
        return link if link is not None and link.is_up else None

    def get(
        self,
        bookie_id: str,
        told: Callable[[SimLink | None], None],
        *,
        recovery: bool = False,
    ) -> None:
        """None: it cannot be reached. Never answered from inside."""
        link = self.now(bookie_id, recovery=recovery)
        if link is not None:
            self._world.after(0.0, lambda: self._client.receive(lambda: told(link)))
            return
        key = bookie_id, recovery
        if key in self._wanted:
            self._wanted[key].append(told)
            return
        self._wanted[key] = [told]
        made: list[SimLink] = []

        def on_down() -> None:
            if made:
                made[0].on_down()

        def connected(connection: Connection | None) -> None:
            found = None
            if connection is not None and connection.is_open:  # it may have broken on the way
                found = self._new_link(bookie_id, connection, recovery=recovery)
                made.append(found)
                self._up[key] = found
            for each in self._wanted.pop(key):
                each(found)

        self._network.connect(self._client, bookie_id, on_down=on_down, connected=connected)

    def close(self) -> None:
        for link in list(self._up.values()):
            link.close()

    def _new_link(self, bookie_id: str, connection: Connection, *, recovery: bool) -> SimLink:
        return SimDataLink(self._world, bookie_id, connection, recovery=recovery)

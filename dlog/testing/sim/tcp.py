"""TCP of simulated processes: asyncio transports over the simulated network.

Bytes arrive in their order, cut and joined anywhere. What was not taken yet stays with the sender:
first in the kernel's buffer, then in the transport's, which tells its protocol to pause. A peer
that is stopped, or a road that is cut, fills them up, and nobody learns of it. A connection that
breaks is told to its two ends at different times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlog.testing.sim.loop import SimLoop
from dlog.testing.sim.network import Client, Connection, Network
from dlog.testing.sim.wire_server import WireServer
from dlog.testing.sim.world import World

_SYN_AGAIN_S = 1.0  # the kernel asks again


@dataclass(slots=True)
class Streams:
    """How byte streams of one history behave."""

    cut: float = 0.0  # of pieces: rate of those that arrive in two
    kernel_bytes: int = 1 << 18  # under way, not yet taken by the peer


class _Socket:
    """What a transport shows for its socket: options may be set."""

    def setsockopt(self, *_: Any) -> None:
        pass


class SimTransport(asyncio.Transport):
    def __init__(self, stack: TcpStack, connection: Connection, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": _Socket()})
        self._stack = stack
        self._loop = stack.loop
        self._world = stack.world
        self._connection = connection
        self._protocol = protocol
        self._wire = WireServer(
            connection.road.server, send=self._send_back, reset=connection.reset
        )
        self._unsent = bytearray()
        self._under_way = 0
        self._high, self._low = 1 << 16, 1 << 14
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        self._inbox: list[bytes] = []
        self._end: Exception | None = None
        self._is_told = False  # the loop knows that there is something to hand in

    def __repr__(self) -> str:
        return f"<connection to {self._connection.road.server.bookie_id}>"

    # --- the program's side

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        self._unsent += data
        self._pump()
        if not self._is_paused and len(self._unsent) > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What is unsent goes out first."""
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._leave()

    def abort(self) -> None:
        self._is_closing = True
        self._unsent.clear()
        self._leave()

    def _leave(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._hang_up()
            self._loop.call_soon(self._stack.gone, self, self._protocol, self._end)

    def _hang_up(self) -> None:
        """The peer hears of it a little later."""
        connection, wire = self._connection, self._wire
        connection.close()

        def end() -> None:
            wire.close()
            connection.reset()

        self._world.after(self._world.chance.delay(connection.road.travel_ms), end)

    # --- the kernel's side

    def _pump(self) -> None:
        unsent, streams = self._unsent, self._stack.streams
        while unsent and self._under_way < streams.kernel_bytes:
            size = min(len(unsent), streams.kernel_bytes - self._under_way)
            piece = bytes(unsent[:size])
            del unsent[:size]
            self._under_way += size
            for part in self._cut(piece):
                self._connection.send(lambda part=part: self._heard(part))  # type: ignore[misc]

    def _cut(self, piece: bytes) -> list[bytes]:
        if len(piece) > 1 and self._world.strikes(self._stack.streams.cut, "bytes are cut"):
            at = 1 + self._world.chance.randrange(len(piece) - 1)
            return [piece[:at], piece[at:]]
        return [piece]

    def _heard(self, part: bytes) -> None:
        """At the bookie."""
        self._under_way -= len(part)
        self._wire.receive(part)
        if self._unsent:
            self._loop.arrive(self._on_room)

    def _on_room(self) -> None:
        if self._is_lost:
            return
        self._pump()
        if self._is_closing and not self._unsent:
            self._leave()
        elif self._is_paused and len(self._unsent) <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()

    def _send_back(self, data: bytes) -> None:
        """By the bookie."""
        for part in self._cut(data):
            self._connection.answer(lambda part=part: self._take_in(part))  # type: ignore[misc]

    def _take_in(self, part: bytes) -> None:
        self._inbox.append(part)
        self._tell()

    def on_down(self) -> None:
        self._end = ConnectionResetError("connection reset by peer")
        self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._loop.arrive(self._hand_in)

    def _hand_in(self) -> None:
        self._is_told = False
        inbox, self._inbox = self._inbox, []
        if inbox and not self._is_lost and not self._is_closing:
            self._protocol.data_received(b"".join(inbox))
        if self._end is not None and not self._is_lost:
            self._is_closing = True
            self._unsent.clear()
            self._leave()


class TcpStack:
    """Of one process. `addresses` says which bookie listens where."""

    def __init__(
        self,
        world: World,
        loop: SimLoop,
        client: Client,
        network: Network,
        addresses: Mapping[tuple[str, int], str],
        streams: Streams,
    ) -> None:
        self.world = world
        self.loop = loop
        self.streams = streams
        self.open: list[SimTransport] = []
        self._client = client
        self._network = network
        self._addresses = addresses
        loop.connect = self.connect

    async def connect(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        bookie_id = self._addresses.get((host, port))
        if bookie_id is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        road = self._network.road(self._client, bookie_id)
        while road.is_cut_there or road.is_cut_back:  # noqa: ASYNC110 - as kernels do
            await asyncio.sleep(_SYN_AGAIN_S)
        connection, told = await self._connected(bookie_id)
        transport = SimTransport(self, connection, make())
        self.open.append(transport)
        told.append(transport.on_down)
        if not connection.is_open:  # it broke before we knew of it
            transport.on_down()
        made = self.loop.create_future()

        def begin() -> None:
            transport._protocol.connection_made(transport)
            if not made.done():
                made.set_result(None)

        self.loop.call_soon(begin)
        try:
            await made
        except BaseException:
            transport.close()
            raise
        return transport

    async def _connected(self, bookie_id: str) -> tuple[Connection, list[Callable[[], None]]]:
        answered: asyncio.Future[Connection | None] = self.loop.create_future()
        told: list[Callable[[], None]] = []  # who hears that it broke

        def on_down() -> None:
            for hear in told:
                hear()

        def connected(connection: Connection | None) -> None:
            def settle() -> None:
                if not answered.done():
                    answered.set_result(connection)
                elif connection is not None:  # nobody waits for it any more
                    connection.close()
                    connection.reset()

            self.loop.arrive(settle)

        self._network.connect(self._client, bookie_id, on_down=on_down, connected=connected)
        try:
            connection = await answered
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled() and answered.result() is not None:
                _drop(answered.result())
            raise
        if connection is None:
            raise ConnectionRefusedError(f"{bookie_id} refuses connections")
        return connection, told

    def gone(
        self, transport: SimTransport, protocol: asyncio.Protocol, end: Exception | None
    ) -> None:
        self.open.remove(transport)
        protocol.connection_lost(end)

    def cut_off(self) -> None:
        """The process is dead: its kernel hangs up for it."""
        for transport in self.open:
            transport._hang_up()
        self.open.clear()


def _drop(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
        connection.reset()

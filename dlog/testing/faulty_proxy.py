"""A TCP proxy that does to a connection what networks do: cut it, go deaf in one direction or both,
deliver late, deliver twice, deliver byte by byte, refuse. For tests; loopback only.

    async with FaultyProxy(server_port) as proxy:
        client = connect(proxy.port)
        proxy.to_client.hold()          # the server hears, the client does not
        ...
        proxy.cut()                     # both sides see a reset, what was held is gone
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from types import TracebackType

from dlog.errors import ConfigError

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_LENGTH = struct.Struct(">I")


class Direction:
    """One way through the proxy, over all its connections. `bytes_seen` counts what arrived here,
    `bytes_passed` what went on."""

    def __init__(self) -> None:
        self.bytes_seen = 0
        self.bytes_passed = 0
        self._delay_s = 0.0
        self._slice_bytes: int | None = None
        # Each frame, as bookies and their clients send them behind a 32-bit length, comes twice; of
        # connections that are made from now on: only at its begin is it known where a frame begins.
        self.doubles_frames = False
        self.heard: list[bytearray] | None = None  # given a list: what each connection sends
        self._open = asyncio.Event()
        self._open.set()
        self._arrived = asyncio.Event()

    @property
    def delay_s(self) -> float:
        """Before each piece."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        if not 0.0 <= seconds < math.inf:
            raise ConfigError(f"delay_s={seconds!r}: a number from 0 on")
        self._delay_s = seconds

    @property
    def slice_bytes(self) -> int | None:
        """Each piece of so many bytes is sent on its own; None: as it came."""
        return self._slice_bytes

    @slice_bytes.setter
    def slice_bytes(self, count: int | None) -> None:
        if count is not None and count < 1:
            raise ConfigError(f"slice_bytes={count!r}: a number from 1 on, or None")
        self._slice_bytes = count

    def hold(self) -> None:
        """Deaf: the sender may send, and nothing comes out."""
        self._open.clear()

    def release(self) -> None:
        """What was held comes out, late."""
        self._open.set()

    async def wait_bytes_seen(self, more_than: int) -> None:
        """Until the sender has sent something past this count."""
        while self.bytes_seen <= more_than:
            self._arrived.clear()
            await self._arrived.wait()

    def note(self, count: int) -> None:
        self.bytes_seen += count
        self._arrived.set()

    async def pace(self) -> None:
        """Where a piece waits until it may go on."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._open.wait()


class FaultyProxy:
    """Between clients, which connect to `port`, and a server on `server_port`."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self.to_server = Direction()
        self.to_client = Direction()
        self.connections_made = 0
        self._refuses = False
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._has_ended = False

    @property
    def address(self) -> str:
        if not self.port:
            raise ConfigError("start the proxy first: `async with FaultyProxy(port) as proxy`")
        return f"{LOOPBACK}:{self.port}"

    def cut(self) -> None:
        """Reset every connection there is; new ones are welcome."""
        for link in list(self._links):
            link.reset()

    def refuse(self) -> None:
        """Cut, and reset each new connection at once."""
        self._refuses = True
        self.cut()

    def accept(self) -> None:
        self._refuses = False

    def heal(self) -> None:
        """No fault any more. Connections that were cut stay so."""
        self._refuses = False
        for direction in (self.to_server, self.to_client):
            direction.delay_s, direction.slice_bytes = 0.0, None
            direction.doubles_frames = False
            direction.release()

    async def __aenter__(self) -> FaultyProxy:
        self._listener = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        self._has_ended = True
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections_made += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            if self._refuses:
                return
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self.server_port)
            link.writers.append(far_writer)
            if link.is_cut:
                return
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(reader, far_writer, self.to_server, link))
                both.create_task(_pass(far_reader, writer, self.to_client, link))
        except (OSError, TimeoutError):
            return  # the server is away: the client sees a reset
        except asyncio.CancelledError:
            if not self._has_ended:
                raise
            # By us, then; and asyncio would log the end of a cancelled task as an error.
        finally:
            link.reset()
            self._links.discard(link)


class _Link:
    """Both sockets of one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.is_cut = False

    def reset(self) -> None:
        """Not a polite end, which would say that all was delivered."""
        self.is_cut = True
        for writer in self.writers:
            end = writer.get_extra_info("socket")
            if end is not None and end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


class _Doubler:
    """Cuts a stream into its frames and gives each whole one twice."""

    def __init__(self) -> None:
        self._cut = bytearray()

    def feed(self, piece: bytes) -> bytes:
        self._cut += piece
        out = bytearray()
        while len(self._cut) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._cut)[0]
            if len(self._cut) < end:
                break
            out += 2 * self._cut[:end]
            del self._cut[:end]
        return bytes(out)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction, link: _Link
) -> None:
    """One direction of one connection. Arrival and delivery are apart, so that a direction that is
    held still counts what it got."""
    held: deque[bytes] = deque()
    more = asyncio.Event()
    doubler = _Doubler() if way.doubles_frames else None
    heard = bytearray()
    if way.heard is not None:
        way.heard.append(heard)

    async def deliver() -> None:
        while True:
            while not held:
                more.clear()
                await more.wait()
            piece = held.popleft()
            if not piece:
                return
            if doubler is not None:
                piece = doubler.feed(piece)
            step = way.slice_bytes or max(len(piece), 1)
            for start in range(0, len(piece), step):
                await way.pace()
                part = piece[start : start + step]
                writer.write(part)
                await writer.drain()
                way.bytes_passed += len(part)

    async def arrive() -> None:
        piece = b"begin"
        while piece:
            try:
                piece = await reader.read(1 << 16)
            except OSError:
                piece = b""
            way.note(len(piece))
            if way.heard is not None:
                heard.extend(piece)
            held.append(piece)
            more.set()

    arriving = asyncio.ensure_future(arrive())
    try:
        await deliver()
        link.reset()  # one side is done: the other shall know
    except OSError:
        link.reset()
    finally:
        arriving.cancel()
        await asyncio.gather(arriving, return_exceptions=True)

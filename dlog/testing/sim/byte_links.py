"""A client's connections to simulated bookies, as byte strings (tier 2).

The same face as `links`, but everything goes through the production's connection cores and codecs:
requests leave as bytes, are cut wherever the tape says, arrive at a `WireServer`, and so do the
answers. Adds and reads have one connection, questions another one, as in production.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlog.errors import Corrupt, FormatError
from dlog.ledger.bookkeeper.core.connection import SWEEP_S
from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.data_connection import DataConnection
from dlog.ledger.store import Buffer
from dlog.testing.sim.links import (
    BatchTold,
    LacTold,
    PollTold,
    ReadTold,
    SimLink,
    SimLinks,
    SimSink,
)
from dlog.testing.sim.network import Client, Connection, Network
from dlog.testing.sim.wire_server import WireServer
from dlog.testing.sim.world import World
from dlog.wire import bookie_v3
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, ReadReply
from dlog.wire.bookie_v3_replies import ReadBody, ReadLacBody, Response

CUTS_MAX = 3  # pieces of what is sent at once
SWEEP_MS = SWEEP_S * 1000


class BytePipe:
    """One TCP connection: `receive` gets what the bookie sent, in pieces."""

    def __init__(
        self, world: World, connection: Connection, cuts: float, receive: Callable[[bytes], None]
    ) -> None:
        self._world = world
        self._connection = connection
        self._cuts = cuts
        self._receive = receive
        self._peer = WireServer(
            connection.road.server, send=self._send_back, reset=connection.reset
        )

    def send(self, data: Buffer) -> None:
        server, peer = self._connection.road.server, self._peer
        for piece in self._cut(bytes(data)):
            self._connection.send(partial(server.hear, peer, partial(peer.receive, piece)))

    def close(self) -> None:
        self._connection.close()
        self._peer.close()

    def _send_back(self, data: bytes) -> None:
        if not self._connection.is_up:
            self._peer.close()
            return
        for piece in self._cut(data):
            self._connection.answer(partial(self._receive, piece))

    def _cut(self, data: bytes) -> list[bytes]:
        """Anywhere, in the middle of a number too."""
        world = self._world
        pieces: list[bytes] = []
        while len(data) > 1 and len(pieces) < CUTS_MAX:
            if world.is_calm or not world.chance.hits(self._cuts, "bytes are cut"):
                break
            at = 1 + world.chance.randrange(len(data) - 1)
            pieces.append(data[:at])
            data = data[at:]
        pieces.append(data)
        return pieces


class ByteLink:
    """To one bookie: a connection for adds and reads, and one for questions, made when there is the
    first. What both protocols say is told in the words of `links.SimDataLink`."""

    def __init__(
        self,
        world: World,
        network: Network,
        bookie_id: str,
        connection: Connection,
        *,
        recovery: bool,
        cuts: float,
    ) -> None:
        self.bookie_id = bookie_id
        self.where = f"bookie {bookie_id}"
        self.notes: list[Answer] = []
        self._world = world
        self._network = network
        self._client: Client = connection.road.client
        self._cuts = cuts
        self._sweeps = False
        self._data = DataConnection(
            self,  # type: ignore[arg-type]
            self.where,
            send=self._send,
            note=self.notes.append,
            on_hung=lambda: world.mark("a bookie hangs"),
            on_room=self._on_room,
            may_fence=recovery,
        )
        self._pipe = BytePipe(world, connection, cuts, self._on_data)
        self._control: _Control | None = None
        self.settle = self._data.settle
        self.detach = self._data.detach

    def __repr__(self) -> str:
        return f"<byte link to {self.bookie_id}>"

    @property
    def is_up(self) -> bool:
        return self._data.is_up

    @property
    def has_room(self) -> bool:
        return self._data.has_room

    # --- adds and reads

    def attach(self, ledger_id: int, sink: SimSink) -> None:
        if self._data.is_up:
            self._data.attach(ledger_id, sink)
        else:
            self._world.after(0.0, lambda: sink.on_down(self, self._data.end))

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None:
        self._data.send_adds(ledger_id, frames, entries=entries, bytes=bytes)

    def ask_read(
        self,
        ledger_id: int,
        entry_id: int,
        told: ReadTold,
        *,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> None:
        refusal = self._data.refusal()
        if refusal is not None:
            self._world.after(0.0, lambda: told(refusal, None))
            return

        def on_reply(reply: ReadReply) -> None:
            told(reply.answer, None if reply.entry is None else bytes(reply.entry))

        self._data.read(
            ledger_id,
            entry_id,
            deadline_s=self._deadline_s(timeout_ms),
            fence_key=fence_key,
            on_reply=on_reply,
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
        refusal = self._data.refusal()
        if refusal is not None:
            self._world.after(0.0, lambda: told(refusal, []))
            return

        def on_reply(reply: BatchReadReply) -> None:
            told(reply.answer, [bytes(entry) for entry in reply.entries])

        self._data.batch_read(
            ledger_id,
            first_entry,
            count_max=count_max,
            frame_bytes_max=frame_bytes_max,
            deadline_s=self._deadline_s(timeout_ms),
            fence_key=fence_key,
            on_reply=on_reply,
        )

    # --- questions

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
        def pack(txn_id: int) -> bytes:
            return bookie_v3.pack_write_lac(
                txn_id, ledger_id, last_confirmed, proof, master_key=key
            )

        self._ask(pack, lambda response: told(response.answer), timeout_ms)

    def ask_lac(self, ledger_id: int, told: LacTold, *, timeout_ms: float) -> None:
        def on_answer(response: Response) -> None:
            body = response.body
            if not isinstance(body, ReadLacBody):
                told(response.answer, None, None)
                return
            proof = None if body.proof is None else bytes(body.proof)
            last = None if body.last_entry is None else bytes(body.last_entry)
            told(response.answer, proof, last)

        self._ask(lambda txn_id: bookie_v3.pack_read_lac(txn_id, ledger_id), on_answer, timeout_ms)

    def ask_poll(
        self, ledger_id: int, waits_past: int, told: PollTold, *, poll_ms: float, timeout_ms: float
    ) -> None:
        def pack(txn_id: int) -> bytes:
            return bookie_v3.pack_long_poll(
                txn_id, ledger_id, previous_lac=waits_past, timeout_ms=max(1, int(poll_ms))
            )

        def on_answer(response: Response) -> None:
            body = response.body
            if not isinstance(body, ReadBody):
                told(response.answer, -1, None, -1)
                return
            raw = None if body.entry is None else bytes(body.entry)
            lac = -1 if body.last_confirmed is None else body.last_confirmed
            told(response.answer, body.entry_id, raw, lac)

        self._ask(pack, on_answer, timeout_ms)

    def _ask(
        self, pack: Callable[[int], bytes], told: Callable[[Response], None], timeout_ms: float
    ) -> None:
        if self._control is None or not self._control.is_usable:
            self._control = _Control(self._world, self._network, self._client, self)
        self._control.ask(pack, told, self._deadline_s(timeout_ms))

    # --- the end

    def on_down(self) -> None:
        """The connection of adds broke; or we know too much about its bytes to go on."""
        self._pipe.close()
        self._data.down(Answer.DISCONNECTED)

    def close(self) -> None:
        self.on_down()
        if self._control is not None:
            self._control.on_down()

    # --- inside

    def _send(self, data: Buffer) -> None:
        self._pipe.send(data)
        self._sweep_soon()

    def _on_data(self, piece: bytes) -> None:
        if not self._data.is_up:
            return
        try:
            self._data.receive(piece)
        except (FormatError, Corrupt) as error:
            self._world.mark("bytes that are no answer")
            self._world.note(f"{self}: {error}")
            self.on_down()

    def _on_room(self) -> None:
        self._world.after(0.0, self._data.tell_room)

    def _deadline_s(self, timeout_ms: float) -> float:
        return (self._world.now_ms + timeout_ms) / 1000

    def _sweep_soon(self) -> None:
        if not self._sweeps:
            self._sweeps = True
            self._world.after(SWEEP_MS, lambda: self._client.receive(self._sweep))

    def _sweep(self) -> None:
        self._sweeps = False
        if not self._data.is_up:
            return
        if not self._data.sweep(self._world.now_ms / 1000):
            self._world.mark("a connection is worn out")
            self.on_down()
        elif not self._data.is_idle():
            self._sweep_soon()


class _Control:
    """The connection of questions. Those that come before it stands wait for it."""

    def __init__(self, world: World, network: Network, client: Client, link: ByteLink) -> None:
        self._world = world
        self._client = client
        self._cuts = link._cuts
        self._core = ControlConnection(link.where, send=self._send, note=link.notes.append)
        self._pipe: BytePipe | None = None
        self._waiting: list[Callable[[], None]] | None = []
        self._sweeps = False
        network.connect(client, link.bookie_id, on_down=self.on_down, connected=self._on_connected)

    @property
    def is_usable(self) -> bool:
        return self._core.is_up

    def ask(
        self, pack: Callable[[int], bytes], told: Callable[[Response], None], deadline_s: float
    ) -> None:
        if self._waiting is not None:
            self._waiting.append(lambda: self.ask(pack, told, deadline_s))
            return
        refusal = self._core.refusal()
        if refusal is not None:
            response = self._core.refused(pack, refusal)
            self._world.after(0.0, lambda: self._client.receive(lambda: told(response)))
        else:
            self._core.ask(pack, deadline_s=deadline_s, on_answer=told)
            self._sweep_soon()

    def on_down(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._core.down(Answer.DISCONNECTED)

    def _on_connected(self, connection: Connection | None) -> None:
        if connection is None:
            self._core.down(Answer.DISCONNECTED)
        else:
            self._pipe = BytePipe(self._world, connection, self._cuts, self._on_data)
        waiting, self._waiting = self._waiting or [], None
        for ask in waiting:
            ask()

    def _send(self, data: Buffer) -> None:
        assert self._pipe is not None, "asked before it was connected"
        self._pipe.send(data)

    def _on_data(self, piece: bytes) -> None:
        if not self._core.is_up:
            return
        try:
            self._core.receive(piece)
        except (FormatError, Corrupt) as error:
            self._world.mark("bytes that are no answer")
            self._world.note(f"{self._core.where}: {error}")
            self.on_down()

    def _sweep_soon(self) -> None:
        if not self._sweeps:
            self._sweeps = True
            self._world.after(SWEEP_MS, lambda: self._client.receive(self._sweep))

    def _sweep(self) -> None:
        self._sweeps = False
        if self._core.is_up:
            self._core.sweep(self._world.now_ms / 1000)
            if not self._core.is_idle():
                self._sweep_soon()


class ByteLinks(SimLinks):
    """Of one client. `cuts` is how often what is sent is cut once more."""

    def __init__(self, world: World, network: Network, client: Client, *, cuts: float) -> None:
        super().__init__(world, network, client)
        self._cuts = cuts

    def _new_link(self, bookie_id: str, connection: Connection, *, recovery: bool) -> SimLink:
        return ByteLink(
            self._world, self._network, bookie_id, connection, recovery=recovery, cuts=self._cuts
        )

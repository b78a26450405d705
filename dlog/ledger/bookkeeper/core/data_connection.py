"""A connection that speaks the binary protocol: adds, routed to their ledgers in runs, and reads.

An answer to an add names ledger and entry, and no request. It is handed to the sink of its ledger
in the runs in which it came, most often one ledger's in one piece; which entries are expected is
the sink's business, here they are only counted, to know when there is room for more. Reads are kept
by `pending_reads`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlog.errors import check
from dlog.ledger.bookkeeper.core.connection import SWEEP_S, Connection, Note, Send
from dlog.ledger.bookkeeper.core.pending_reads import PendingReads
from dlog.ledger.bookkeeper.links import AddSink, DataLink
from dlog.ledger.store import Buffer
from dlog.limits import LAGGARD_MS_DEFAULT, LINK_BYTES_MAX, LINK_ENTRIES_MAX
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_frame import FrameRun
from dlog.wire.bookie_v2 import AddReplies, BatchReadReply, ReadReply, parse_adds, parse_reply

_STALL_S = 4 * SWEEP_S  # a sweep as late as this blames our own loop, not the bookie
_V2_BYTE = 2  # behind a frame's length: tells the protocols apart


class _Flow:
    """One ledger's adds on this connection."""

    __slots__ = ("bytes", "entries", "sink")

    def __init__(self, sink: AddSink) -> None:
        self.sink = sink
        self.entries = 0  # sent and not settled
        self.bytes = 0


class DataConnection(Connection):
    """The binary protocol. `link` is what sinks are told; `on_room` is called when there is room
    again, from inside: tell the sinks by `tell_room`, but later."""

    def __init__(
        self,
        link: DataLink,
        where: str,
        *,
        send: Send,
        note: Note,
        on_hung: Callable[[], None],
        on_room: Callable[[], None],
        may_fence: bool,
    ) -> None:
        super().__init__(where, send, note)
        self.has_room = True
        self.entries_in_flight = 0  # of all ledgers
        self.bytes_in_flight = 0
        self._link = link
        self._on_hung = on_hung
        self._on_room = on_room
        self._is_clogged = False
        self._flows: dict[int, _Flow] = {}
        self._reads = PendingReads(
            where, send=send, note=note, strays=self.strays, may_fence=may_fence
        )
        # Only when there is no `refusal`.
        self.read = self._reads.read
        self.batch_read = self._reads.batch_read
        self._heard = True  # since the last sweep
        self._heard_at_s = 0.0
        self._swept_at_s = 0.0

    # --- Adds

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        check(ledger_id not in self._flows, "a ledger has one sink on a link", ledger_id)
        self._flows[ledger_id] = _Flow(sink)

    def detach(self, ledger_id: int) -> None:
        flow = self._flows.get(ledger_id)
        if flow is not None:
            self.settle(ledger_id, entries=flow.entries, bytes=flow.bytes)
            del self._flows[ledger_id]

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None:
        if not self.is_up:
            return
        check(frames[4] == _V2_BYTE, "a data link speaks the binary protocol")
        flow = self._flows[ledger_id]
        flow.entries += entries
        flow.bytes += bytes
        self.entries_in_flight += entries
        self.bytes_in_flight += bytes
        if self.entries_in_flight >= LINK_ENTRIES_MAX or self.bytes_in_flight >= LINK_BYTES_MAX:
            self.has_room = False
        self._send(frames)

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        flow = self._flows.get(ledger_id)
        if flow is None:
            return  # settled as a whole, by `detach` or by the end
        flow.entries -= entries
        flow.bytes -= bytes
        check(
            flow.entries >= 0 and flow.bytes >= 0,
            "no more is settled than was sent",
            ledger_id,
            flow.entries,
            flow.bytes,
        )
        self.entries_in_flight -= entries
        self.bytes_in_flight -= bytes
        if not self.has_room:
            self._look_for_room()

    def clogged(self, is_clogged: bool) -> None:
        """Whether the unsent bytes are at their limit."""
        self._is_clogged = is_clogged
        if is_clogged:
            self.has_room = False
        elif not self.has_room:
            self._look_for_room()

    def _look_for_room(self) -> None:
        """Half of it must be free, or every answer would wake every ledger for one more entry."""
        if (
            not self._is_clogged
            and self.entries_in_flight <= LINK_ENTRIES_MAX // 2
            and self.bytes_in_flight <= LINK_BYTES_MAX // 2
        ):
            self.has_room = True
            self._on_room()

    def tell_room(self) -> None:
        """Ledger by ledger, for as long as there is room. Who was told goes to the end, so that
        those who were not are the first ones next time."""
        for ledger_id in list(self._flows):
            if not self.has_room or not self.is_up:
                return
            flow = self._flows.pop(ledger_id, None)
            if flow is not None:
                self._flows[ledger_id] = flow
                flow.sink.on_room(self._link)

    # --- What comes in

    def _take(self, run: FrameRun) -> None:
        self._heard = True
        adds = parse_adds(run, self.where)
        if adds is not None:
            self._take_adds(adds)
            return
        for body in run.bodies():
            reply = parse_reply(body, self.where)
            if isinstance(reply, ReadReply):
                self._reads.take_read(reply)
            elif isinstance(reply, BatchReadReply):
                self._reads.take_batch(reply)
            elif isinstance(reply, AddReplies):
                self._take_adds(reply)
            else:
                self.strays["authentication"] += 1
            if not self.is_up:
                return

    def _take_adds(self, adds: AddReplies) -> None:
        answer, ledger_ids, entry_ids = adds
        if answer is not Answer.OK:
            self._note(answer)
        first = ledger_ids[0]
        if ledger_ids.count(first) == len(ledger_ids):
            self._tell_sink(first, answer, entry_ids)
            return
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in zip(ledger_ids, entry_ids, strict=True):
            by_ledger.setdefault(ledger_id, []).append(entry_id)
        for ledger_id, entries in by_ledger.items():
            if self.is_up:  # whoever heard the ones before may have ended it
                self._tell_sink(ledger_id, answer, entries)

    def _tell_sink(self, ledger_id: int, answer: Answer, entry_ids: list[int]) -> None:
        flow = self._flows.get(ledger_id)
        if flow is None:
            self.strays["add"] += len(entry_ids)
        else:
            flow.sink.on_adds(self._link, answer, entry_ids)

    # --- Time

    def is_idle(self) -> bool:
        return self.entries_in_flight == 0 and len(self._reads) == 0

    def sweep(self, now_s: float) -> bool:
        self._look_for_silence(now_s)
        return self._reads.sweep(now_s)

    def _look_for_silence(self, now_s: float) -> None:
        """A bookie that has adds of ours and says nothing at all, to nobody, hangs."""
        stalled = now_s - self._swept_at_s > _STALL_S
        self._swept_at_s = now_s
        if self._heard or stalled or self.entries_in_flight == 0:
            self._heard = False
            self._heard_at_s = now_s
        elif now_s - self._heard_at_s >= LAGGARD_MS_DEFAULT / 1000:
            self._heard_at_s = now_s
            self._on_hung()

    def _waiting(self) -> int:
        return len(self._reads)

    def _endings(self, answer: Answer) -> list[Callable[[], None]]:
        endings = self._reads.endings(answer)
        endings += [partial(flow.sink.on_down, self._link, answer) for flow in self._flows.values()]
        self._flows = {}
        self.entries_in_flight = self.bytes_in_flight = 0
        self.has_room = False
        return endings

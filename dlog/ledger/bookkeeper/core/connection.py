"""One connection to a bookie, without the socket: which answer belongs to which request.

Bytes go in (`receive`), time goes in (`sweep`), the end goes in (`down`); answers go out to whoever
asked, each request's exactly once. A driver owns the socket and the timer, a simulator has neither.

The binary protocol has no request numbers for most of what it does, and that shapes this module:

- An answer to an *add* names ledger and entry. It is handed to the sink of its ledger in the runs
  in which it came; which entries are expected is the sink's business, here they are only counted.
- An answer to a *read* names ledger and entry, too, so of one entry only one read is ever in
  flight: the next waits. A read that ran out of time is still *owed*: its late answer is taken by
  what is left of it, never by a later read. A fencing read must not be answered by what a plain one
  was told before the fence. A connection that owes an answer for too long is worn out.
- *Batch reads*, and all of the protobuf protocol, have numbers.

An answer that nobody waits for (late, double, or to something that was never asked) is a stray: it
is counted by name and dropped. Bytes that are no answer at all raise `FormatError` or `Corrupt`,
and the connection cannot go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from dlog.errors import Corrupt, check
from dlog.ledger.bookkeeper.links import AddSink, DataLink
from dlog.ledger.store import Buffer
from dlog.limits import (
    BOOKIE_FRAME_BYTES_MAX,
    LAGGARD_MS_DEFAULT,
    LINK_BYTES_MAX,
    LINK_ENTRIES_MAX,
    LINK_OWED_MS_MAX,
    LINK_REQUESTS_MAX,
)
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_frame import FrameRun, FrameSplitter
from dlog.wire.bookie_v2 import (
    AddReplies,
    BatchReadReply,
    ReadReply,
    pack_batch_read,
    pack_read,
    parse_adds,
    parse_reply,
)
from dlog.wire.bookie_v3 import Operation, operation_of
from dlog.wire.bookie_v3_replies import Response, parse_response

SWEEP_S = 0.05  # how often a driver sweeps while something is in flight
_STALL_S = 4 * SWEEP_S  # a sweep as late as this blames our own loop, not the bookie

# The byte behind a frame's length tells the protocols apart.
_V2_BYTE = 2
_V3_BYTE = 0x0A

Send = Callable[[Buffer], None]
Note = Callable[[Answer], None]


class _Connection(ABC):
    """What both protocols share."""

    def __init__(self, where: str, send: Send, note: Note) -> None:
        self.where = where
        self.is_up = True
        self.has_answered = False  # anything at all: only then does a bookie serve
        self.strays: Counter[str] = Counter()
        self._splitter = FrameSplitter(where)
        self._send = send
        self._note = note
        self.end = Answer.DISCONNECTED  # said to whoever asks once it is down

    def receive(self, chunk: bytes) -> None:
        """The next bytes of the stream. `FormatError` or `Corrupt`: there can be no more."""
        splitter = self._splitter
        splitter.feed(chunk)
        while self.is_up and (run := splitter.next_run()) is not None:
            self._take(run)
            self.has_answered = True

    def refusal(self) -> Answer | None:
        """Why nothing may be asked just now, or None. `BUSY`: we wait for too many answers."""
        if not self.is_up:
            return self.end
        return Answer.BUSY if self._waiting() >= LINK_REQUESTS_MAX else None

    def down(self, answer: Answer) -> None:
        """The end: whatever is in flight is answered with this, and so is what comes later."""
        if not self.is_up:
            return
        self.is_up = False
        self.end = answer
        failures: list[Exception] = []
        for tell in self._endings(answer):
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - the others must hear of it all the same
                failures.append(error)
        if failures:
            raise failures[0]

    @abstractmethod
    def _take(self, run: FrameRun) -> None: ...

    @abstractmethod
    def _waiting(self) -> int: ...

    @abstractmethod
    def _endings(self, answer: Answer) -> list[Callable[[], None]]: ...


class _Flow:
    """One ledger's adds on this connection."""

    __slots__ = ("bytes", "entries", "sink")

    def __init__(self, sink: AddSink) -> None:
        self.sink = sink
        self.entries = 0  # sent and not settled
        self.bytes = 0


class _Read:
    __slots__ = ("deadline_s", "frame", "on_reply")

    def __init__(
        self, frame: bytes, deadline_s: float, on_reply: Callable[[ReadReply], None]
    ) -> None:
        self.frame = frame
        self.deadline_s = deadline_s
        self.on_reply: Callable[[ReadReply], None] | None = on_reply  # None: it is only owed


class _BatchRead:
    __slots__ = ("count_max", "deadline_s", "first_entry", "ledger_id", "on_reply")

    def __init__(
        self,
        ledger_id: int,
        first_entry: int,
        count_max: int,
        deadline_s: float,
        on_reply: Callable[[BatchReadReply], None],
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.count_max = count_max
        self.deadline_s = deadline_s
        self.on_reply = on_reply

    def failed(self, request_id: int, answer: Answer) -> BatchReadReply:
        return BatchReadReply(answer, self.ledger_id, self.first_entry, request_id, [])


class DataConnection(_Connection):
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
        self._may_fence = may_fence
        self._is_clogged = False
        self._flows: dict[int, _Flow] = {}
        self._reads: dict[tuple[int, int], _Read] = {}
        self._behind: dict[tuple[int, int], deque[_Read]] = {}  # of the same entry, not sent yet
        self._behind_count = 0
        self._batches: dict[int, _BatchRead] = {}
        self._request_id = 0
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

    # --- Reads

    def read(
        self,
        ledger_id: int,
        entry_id: int,
        *,
        deadline_s: float,
        fence_key: bytes | None,
        on_reply: Callable[[ReadReply], None],
    ) -> None:
        """Only when there is no `refusal`."""
        frame = pack_read(
            ledger_id, entry_id, fence_key=fence_key, high_priority=self._is_high(fence_key)
        )
        read = _Read(frame, deadline_s, on_reply)
        key = ledger_id, entry_id
        if key in self._reads:
            self._behind.setdefault(key, deque()).append(read)
            self._behind_count += 1
        else:
            self._reads[key] = read
            self._send(frame)

    def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        deadline_s: float,
        on_reply: Callable[[BatchReadReply], None],
        frame_bytes_max: int = BOOKIE_FRAME_BYTES_MAX,
        fence_key: bytes | None = None,
    ) -> None:
        """Only when there is no `refusal`."""
        request_id = self._request_id + 1
        frame = pack_batch_read(
            ledger_id,
            first_entry,
            request_id=request_id,
            count_max=count_max,
            frame_bytes_max=frame_bytes_max,
            fence_key=fence_key,
            high_priority=self._is_high(fence_key),
        )
        self._request_id = request_id
        self._batches[request_id] = _BatchRead(
            ledger_id, first_entry, count_max, deadline_s, on_reply
        )
        self._send(frame)

    def _is_high(self, fence_key: bytes | None) -> bool:
        check(fence_key is None or self._may_fence, "only a recovery link fences", self.where)
        return fence_key is not None

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
                self._take_read(reply)
            elif isinstance(reply, BatchReadReply):
                self._take_batch(reply)
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

    def _take_read(self, reply: ReadReply) -> None:
        key = reply.ledger_id, reply.entry_id
        read = self._reads.pop(key, None)
        if read is None:
            self.strays["read"] += 1
            return
        self._send_next(key)
        if read.on_reply is None:
            self.strays["late read"] += 1
            return
        if reply.answer is not Answer.OK:
            self._note(reply.answer)
        read.on_reply(reply)

    def _send_next(self, key: tuple[int, int]) -> None:
        behind = self._behind.get(key)
        if behind is None:
            return
        following = self._reads[key] = behind.popleft()
        self._behind_count -= 1
        if not behind:
            del self._behind[key]
        self._send(following.frame)

    def _take_batch(self, reply: BatchReadReply) -> None:
        batch = self._batches.pop(reply.request_id, None)
        if batch is None:
            self.strays["batch read"] += 1
            return
        if (
            reply.ledger_id != batch.ledger_id
            or reply.first_entry != batch.first_entry
            or len(reply.entries) > batch.count_max
        ):
            self._batches[reply.request_id] = batch  # answered when the connection ends
            raise Corrupt(
                f"{self.where}: asked for {batch.count_max} entries of ledger {batch.ledger_id} "
                f"from {batch.first_entry} on, it answers with {len(reply.entries)} of ledger "
                f"{reply.ledger_id} from {reply.first_entry} on"
            )
        if reply.answer is not Answer.OK:
            self._note(reply.answer)
        batch.on_reply(reply)

    # --- Time

    def is_idle(self) -> bool:
        return not (self.entries_in_flight or self._reads or self._batches)

    def sweep(self, now_s: float) -> bool:
        """Answer what is out of time. False: the connection owes an answer for so long that it must
        go."""
        self._look_for_silence(now_s)
        late = [request_id for request_id, b in self._batches.items() if b.deadline_s <= now_s]
        for request_id in late:
            batch = self._batches.pop(request_id, None)
            if batch is not None:
                self._note(Answer.TIMED_OUT)
                batch.on_reply(batch.failed(request_id, Answer.TIMED_OUT))
        worn_out = False
        for key, read in list(self._reads.items()):
            if read.deadline_s > now_s:
                continue
            if read.on_reply is not None:
                on_reply, read.on_reply = read.on_reply, None
                self._note(Answer.TIMED_OUT)
                on_reply(ReadReply(Answer.TIMED_OUT, *key, None))
            worn_out |= now_s - read.deadline_s >= LINK_OWED_MS_MAX / 1000
        for key in list(self._behind):
            self._sweep_behind(key, now_s)
        return not worn_out

    def _sweep_behind(self, key: tuple[int, int], now_s: float) -> None:
        late = [read for read in self._behind[key] if read.deadline_s <= now_s]
        if not late:
            return
        still = deque(read for read in self._behind[key] if read.deadline_s > now_s)
        self._behind_count -= len(late)
        if still:
            self._behind[key] = still
        else:
            del self._behind[key]
        for read in late:  # never sent, so nothing is owed
            if read.on_reply is not None:
                read.on_reply(ReadReply(Answer.TIMED_OUT, *key, None))

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
        return len(self._reads) + self._behind_count + len(self._batches)

    def _endings(self, answer: Answer) -> list[Callable[[], None]]:
        reads = list(self._reads.items())
        reads += [(key, read) for key, behind in self._behind.items() for read in behind]
        endings: list[Callable[[], None]] = [
            partial(read.on_reply, ReadReply(answer, *key, None))
            for key, read in reads
            if read.on_reply is not None
        ]
        endings += [
            partial(batch.on_reply, batch.failed(request_id, answer))
            for request_id, batch in self._batches.items()
        ]
        endings += [partial(flow.sink.on_down, self._link, answer) for flow in self._flows.values()]
        self._reads, self._behind, self._batches, self._flows = {}, {}, {}, {}
        self._behind_count = self.entries_in_flight = self.bytes_in_flight = 0
        self.has_room = False
        return endings


class _Ask:
    __slots__ = ("deadline_s", "on_answer", "operation")

    def __init__(
        self, operation: Operation, deadline_s: float, on_answer: Callable[[Response], None]
    ) -> None:
        self.operation = operation
        self.deadline_s = deadline_s
        self.on_answer = on_answer


class ControlConnection(_Connection):
    """The protobuf protocol."""

    def __init__(self, where: str, *, send: Send, note: Note) -> None:
        super().__init__(where, send, note)
        self._asks: dict[int, _Ask] = {}
        self._txn_id = 0

    def ask(
        self,
        pack: Callable[[int], bytes],
        *,
        deadline_s: float,
        on_answer: Callable[[Response], None],
    ) -> None:
        """Only when there is no `refusal`."""
        txn_id = self._txn_id + 1
        frame = pack(txn_id)
        check(frame[4] == _V3_BYTE, "a control link speaks the protobuf protocol")
        self._txn_id = txn_id
        self._asks[txn_id] = _Ask(operation_of(frame), deadline_s, on_answer)
        self._send(frame)

    def refused(self, pack: Callable[[int], bytes], refusal: Answer) -> Response:
        """The answer to what is not even asked."""
        return Response(0, operation_of(pack(0)), refusal, None)

    def _take(self, run: FrameRun) -> None:
        for body in run.bodies():
            response = parse_response(body, self.where)
            ask = self._asks.get(response.txn_id)
            if ask is None:
                self.strays["response"] += 1
                continue
            if response.operation is not ask.operation:
                raise Corrupt(
                    f"{self.where}: {ask.operation.name} was answered as {response.operation.name}"
                )
            del self._asks[response.txn_id]
            if response.answer is not Answer.OK:
                self._note(response.answer)
            ask.on_answer(response)
            if not self.is_up:
                return

    def is_idle(self) -> bool:
        return not self._asks

    def sweep(self, now_s: float) -> bool:
        """Answer what is out of time. Always True: nothing is owed where answers have numbers."""
        late = [txn_id for txn_id, ask in self._asks.items() if ask.deadline_s <= now_s]
        for txn_id in late:
            ask = self._asks.pop(txn_id, None)
            if ask is not None:
                self._note(Answer.TIMED_OUT)
                ask.on_answer(Response(txn_id, ask.operation, Answer.TIMED_OUT, None))
        return True

    def _waiting(self) -> int:
        return len(self._asks)

    def _endings(self, answer: Answer) -> list[Callable[[], None]]:
        asks, self._asks = self._asks, {}
        return [
            partial(ask.on_answer, Response(txn_id, ask.operation, answer, None))
            for txn_id, ask in asks.items()
        ]

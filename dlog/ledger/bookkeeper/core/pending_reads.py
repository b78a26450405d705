"""The reads that one connection of the binary protocol waits for.

An answer to a read names ledger and entry, and no request. So of one entry only one read is ever in
flight: the next one waits behind it. A read that ran out of time is still *owed*: its late answer
is taken by what is left of it, never by a later read. A fencing read must not be answered with what
a plain one was told before the fence. Where an answer is owed for too long, the connection is worn
out: the bookie has forgotten it, or hangs.

Batch reads have numbers, and are only looked up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from dlog.errors import Corrupt, check
from dlog.ledger.bookkeeper.core.connection import Note, Send
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, LINK_OWED_MS_MAX
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, ReadReply, pack_batch_read, pack_read


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


class PendingReads:
    """`strays` are counted where the connection counts them."""

    def __init__(
        self, where: str, *, send: Send, note: Note, strays: Counter[str], may_fence: bool
    ) -> None:
        self._where = where
        self._send = send
        self._note = note
        self._strays = strays
        self._may_fence = may_fence
        self._reads: dict[tuple[int, int], _Read] = {}
        self._behind: dict[tuple[int, int], deque[_Read]] = {}  # of the same entry, not sent yet
        self._behind_count = 0
        self._batches: dict[int, _BatchRead] = {}
        self._request_id = 0

    def __len__(self) -> int:
        """How many answers are waited for, or owed."""
        return len(self._reads) + self._behind_count + len(self._batches)

    def read(
        self,
        ledger_id: int,
        entry_id: int,
        *,
        deadline_s: float,
        fence_key: bytes | None,
        on_reply: Callable[[ReadReply], None],
    ) -> None:
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
        check(fence_key is None or self._may_fence, "only a recovery link fences", self._where)
        return fence_key is not None

    def take_read(self, reply: ReadReply) -> None:
        key = reply.ledger_id, reply.entry_id
        read = self._reads.pop(key, None)
        if read is None:
            self._strays["read"] += 1
            return
        self._send_next(key)
        if read.on_reply is None:
            self._strays["late read"] += 1
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

    def take_batch(self, reply: BatchReadReply) -> None:
        batch = self._batches.pop(reply.request_id, None)
        if batch is None:
            self._strays["batch read"] += 1
            return
        if (
            reply.ledger_id != batch.ledger_id
            or reply.first_entry != batch.first_entry
            or len(reply.entries) > batch.count_max
        ):
            self._batches[reply.request_id] = batch  # answered when the connection ends
            raise Corrupt(
                f"{self._where}: asked for {batch.count_max} entries of ledger {batch.ledger_id} "
                f"from {batch.first_entry} on, it answers with {len(reply.entries)} of ledger "
                f"{reply.ledger_id} from {reply.first_entry} on"
            )
        if reply.answer is not Answer.OK:
            self._note(reply.answer)
        batch.on_reply(reply)

    def sweep(self, now_s: float) -> bool:
        """Answer what is out of time. False: an answer is owed for too long."""
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
        behind = self._behind.get(key, ())
        late = [read for read in behind if read.deadline_s <= now_s]
        if not late:
            return
        still = deque(read for read in behind if read.deadline_s > now_s)
        self._behind_count -= len(late)
        if still:
            self._behind[key] = still
        else:
            del self._behind[key]
        for read in late:  # never sent, so nothing is owed
            if read.on_reply is not None:
                read.on_reply(ReadReply(Answer.TIMED_OUT, *key, None))

    def endings(self, answer: Answer) -> list[Callable[[], None]]:
        """Gives all of them up; to be called, each tells one of those who wait."""
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
        self._reads, self._behind, self._batches = {}, {}, {}
        self._behind_count = 0
        return endings

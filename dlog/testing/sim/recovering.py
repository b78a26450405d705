"""The simulated driver of a recovery: performs what `core.recovery` and `core.tail_recovery`
decide, as `dlog.ledger.bookkeeper.recovery` does, all steps of the procedure included.

Within a store a ledger is recovered once at a time (`ledger_client` sees to that), over links that
carry recoveries only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlog.errors import Broken, DlogError, Timeout
from dlog.ledger.bookkeeper.core.end_search import BATCH_FRAME_BYTES
from dlog.ledger.bookkeeper.core.recovery import (
    ChangeLedger,
    FenceAhead,
    FindEnd,
    ReadLedger,
    Step,
    recover,
)
from dlog.ledger.bookkeeper.core.recovery_requests import Add, Ask, LetGo, Settle
from dlog.ledger.bookkeeper.core.tail_recovery import TailRecovery
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.limits import (
    READ_TIMEOUT_MS_DEFAULT,
    RECOVERY_TIMEOUT_MS_DEFAULT,
    RECOVERY_WINDOW_BYTES,
    RECOVERY_WINDOW_ENTRIES,
)
from dlog.testing.sim.flow import Answered
from dlog.testing.sim.links import SimLink
from dlog.testing.sim.surroundings import Surroundings, keys_of
from dlog.testing.sim.world import require
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import LAST_ENTRY
from dlog.wire.ledger_metadata import LedgerMetadata

TICK_MS = 50.0
READ_TIMEOUT_MS = float(READ_TIMEOUT_MS_DEFAULT)


class SimRecovery:
    """One recovery, to its end or its error."""

    def __init__(
        self,
        around: Surroundings,
        ledger_id: int,
        known: StoredLedger | None,
        answer: Answered,
        *,
        timeout_ms: float = RECOVERY_TIMEOUT_MS_DEFAULT,
    ) -> None:
        self._around = around
        self._ledger_id = ledger_id
        self._stored = known
        self._answer: Answered | None = answer
        self._timeout_ms = timeout_ms
        self._procedure = recover(ledger_id)
        self._tail: SimTail | None = None
        self._why = "for metadata"
        around.after(timeout_ms, self._out_of_time)
        self._go_on(None, None)

    @property
    def is_running(self) -> bool:
        return self._answer is not None

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._answer = None
        if self._tail is not None:
            self._tail.end()

    # --- the procedure

    def _go_on(self, value: Any, error: DlogError | None) -> None:
        if self._answer is None:
            return
        try:
            step = self._procedure.send(value) if error is None else self._procedure.throw(error)
        except StopIteration as over:
            self._around.audit.on_recovered(self._ledger_id, over.value)
            self._finish(over.value, None)
        except Broken:
            raise
        except DlogError as failure:
            self._finish(None, failure)
        else:
            self._perform(step)

    def _finish(self, value: Any, error: DlogError | None) -> None:
        answer, self._answer = self._answer, None
        self.end()
        if answer is not None:
            answer(value, error)

    def _perform(self, step: Step) -> None:
        around, nodes = self._around, self._around.nodes
        if isinstance(step, ReadLedger):
            if self._stored is not None:
                self._go_on(self._stored.metadata, None)
            else:
                nodes.read(around.client, self._ledger_id, self._on_stored, fresh=step.fresh)
        elif isinstance(step, FenceAhead):
            if around.fences_ahead:
                self._fence_ahead(step.metadata)
            self._go_on(None, None)
        elif isinstance(step, ChangeLedger):
            known = self._stored
            assert known is not None
            told = partial(self._on_changed, step.point)
            around.reach(step.point, lambda: nodes.change(around.client, known, step.change, told))
        else:
            assert isinstance(step, FindEnd)
            self._tail = SimTail(around, self._ledger_id, step.metadata, self._on_found)
            self._tail.begin()

    def _on_changed(self, point: str, stored: StoredLedger | None, error: DlogError | None) -> None:
        self._around.reach(point, lambda: self._on_stored(stored, error))

    def _on_stored(self, stored: StoredLedger | None, error: DlogError | None) -> None:
        if stored is None:
            self._go_on(None, error)
        else:
            self._stored = stored
            self._go_on(stored.metadata, None)

    def _on_found(self, found: Any, error: DlogError | None) -> None:
        tail = self._tail
        if tail is None or self._answer is None:
            return
        self._why = tail.core.why()
        tail.end()
        self._tail = None
        if found is not None:
            self._around.audit.on_found_end(self._ledger_id, tail.began, found)
        self._go_on(found, error)

    def _fence_ahead(self, metadata: LedgerMetadata) -> None:
        _, key = keys_of(metadata)

        def reached(link: SimLink | None) -> None:
            if link is not None:
                link.ask_read(
                    self._ledger_id,
                    LAST_ENTRY,
                    lambda answer, raw: None,
                    timeout_ms=READ_TIMEOUT_MS,
                    fence_key=key,
                )

        for bookie_id in metadata.fragments[-1].ensemble:
            self._around.links.get(bookie_id, reached, recovery=True)

    def _out_of_time(self) -> None:
        if self._answer is None:
            return
        why = self._why if self._tail is None else self._tail.core.why()
        late = Timeout(
            f"the recovery of ledger {self._ledger_id} took longer than {self._timeout_ms:.0f} ms: "
            f"it waited {why}",
            ledger_id=self._ledger_id,
        )
        self._procedure.close()
        self._finish(None, late)


class SimTail:
    """What goes on at the bookies."""

    def __init__(
        self, around: Surroundings, ledger_id: int, metadata: LedgerMetadata, answer: Answered
    ) -> None:
        self.began = metadata
        self.core = TailRecovery(ledger_id, metadata, around.choose, now_s=around.now_s)
        self._around = around
        self._ledger_id = ledger_id
        self._answer: Answered | None = answer
        self._channels: dict[str, _Channel] = {}

    def begin(self) -> None:
        self._around.reach("recovery.fenced", self._fence)

    def _fence(self) -> None:
        self._perform()
        self._tick_later()

    def end(self) -> None:
        self._answer = None
        for channel in self._channels.values():
            channel.end()
        self._channels.clear()

    # --- facts

    def tell(self, fact: Callable[..., None]) -> None:
        if self._answer is None:
            return
        try:
            fact(now_s=self._around.now_s)
        except Broken:
            raise
        except DlogError as error:
            self._finish(None, error)
            return
        if self._around.rising_lacs and self.core._write_back is not None:
            let_lacs_rise(self.core._write_back)
        self._perform()
        self._check_bounds()
        if self.core.found is not None:
            self._around.reach("recovery.written_back", self._found)

    def _found(self) -> None:
        self._finish(self.core.found, None)

    def _finish(self, found: Any, error: DlogError | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(found, error)

    def _tick_later(self) -> None:
        self._around.after(TICK_MS, self._tick)

    def _tick(self) -> None:
        self.tell(self.core.tick)
        if self._answer is not None:
            self._tick_later()

    # --- what the core wants

    def _perform(self) -> None:
        for request in self.core.take():
            if isinstance(request, Ask):
                if request.is_fence:
                    self._ask(request)
                else:
                    self._around.reach("recovery.read", partial(self._ask, request))
            elif isinstance(request, Add):
                self._around.reach("recovery.written_back", partial(self._add, request))
            elif isinstance(request, Settle):
                channel = self._channels.get(request.bookie_id)
                if channel is not None:
                    channel.settle(request.entries, request.bytes)
            elif isinstance(request, LetGo):
                if request.bookie_id in self._channels:
                    self._channels.pop(request.bookie_id).end()

    def _add(self, add: Add) -> None:
        if self._answer is None:
            return
        channel = self._channels.get(add.bookie_id)
        if channel is None:
            channel = _Channel(self, self._around, self._ledger_id, add.bookie_id)
            self._channels[add.bookie_id] = channel
        channel.send(add.frames, add.entries)

    def fence_key(self, ask: Ask) -> bytes | None:
        """Every read fences."""
        return self.core.fence_key

    def _ask(self, ask: Ask) -> None:
        def reached(link: SimLink | None) -> None:
            if self._answer is None:
                return
            if link is None:
                self._on_read(ask, Answer.DISCONNECTED, [])
            elif ask.is_batch:
                link.ask_batch(
                    self._ledger_id,
                    ask.first_entry,
                    partial(self._answered, ask),
                    count_max=ask.count_max,
                    frame_bytes_max=BATCH_FRAME_BYTES,
                    timeout_ms=READ_TIMEOUT_MS,
                    fence_key=self.fence_key(ask),
                )
            else:
                link.ask_read(
                    self._ledger_id,
                    ask.first_entry,
                    lambda answer, raw: self._answered(ask, answer, [] if raw is None else [raw]),
                    timeout_ms=READ_TIMEOUT_MS,
                    fence_key=self.fence_key(ask),
                )

        self._around.with_link(ask.bookie_id, reached, recovery=True)

    def _answered(self, ask: Ask, answer: Answer, entries: Sequence[bytes]) -> None:
        point = "recovery.fenced" if ask.is_fence else "recovery.read"
        self._around.reach(point, lambda: self._on_read(ask, answer, entries))

    def _on_read(self, ask: Ask, answer: Answer, entries: Sequence[bytes]) -> None:
        self.tell(partial(self.core.on_read, ask, answer, entries))

    def _check_bounds(self) -> None:
        writing = self.core._write_back
        if writing is None:
            return
        for slot in writing._slots:
            require(
                slot.in_flight_entries <= 2 * RECOVERY_WINDOW_ENTRIES
                and slot.in_flight_bytes <= 2 * RECOVERY_WINDOW_BYTES,
                "I25",
                "a recovery bounds what a bookie has to answer",
                slot,
            )


def let_lacs_rise(writing: Any) -> None:
    """Write back as the stock client does: each entry carries the LAC of the moment, which rises
    with what was written back (H1, H2)."""
    if "_next_run" in vars(writing):
        return
    next_run, digest = writing._next_run, writing._digest

    class Rising:
        @staticmethod
        def pack_head(ledger_id: int, entry_id: int, lac: int, *rest: Any) -> bytes:
            head: bytes = digest.pack_head(ledger_id, entry_id, entry_id - 1, *rest)
            return head

    def one_by_one(entries: Any, at: int) -> Any:
        writing._digest = Rising
        try:
            return next_run(entries[: at + 1], at)
        finally:
            writing._digest = digest

    writing._next_run = one_by_one


class _Channel:
    """The way of adds to one bookie."""

    def __init__(self, tail: SimTail, around: Surroundings, ledger_id: int, bookie_id: str) -> None:
        self._tail = tail
        self._ledger_id = ledger_id
        self._bookie_id = bookie_id
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._link: SimLink | None = None
        self._has_ended = False
        around.links.get(bookie_id, self._connected, recovery=True)

    def send(self, frames: bytes, entries: int) -> None:
        self._waiting.append((frames, entries))
        self._flush()

    def settle(self, entries: int, bytes: int) -> None:
        if self._link is not None:
            self._link.settle(self._ledger_id, entries=entries, bytes=bytes)

    def end(self) -> None:
        self._has_ended = True
        self._waiting.clear()
        if self._link is not None:
            self._link.detach(self._ledger_id)
            self._link = None

    def _connected(self, link: SimLink | None) -> None:
        if self._has_ended:
            return
        if link is None or not link.is_up:
            self._down()
            return
        self._link = link
        link.attach(self._ledger_id, self)
        self._flush()

    def _flush(self) -> None:
        link = self._link
        while link is not None and self._waiting and link.has_room:
            frames, entries = self._waiting.popleft()
            link.send_adds(self._ledger_id, frames, entries=entries, bytes=len(frames))

    def _down(self) -> None:
        tail = self._tail
        tail.tell(partial(tail.core.on_down, self._bookie_id))

    # --- the sink of the link

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        if not self._has_ended:
            tail = self._tail
            tail.tell(partial(tail.core.on_adds, self._bookie_id, answer, entry_ids))

    def on_room(self, link: Any) -> None:
        self._flush()

    def on_down(self, link: Any, answer: Answer) -> None:
        self._link = None
        if not self._has_ended:
            self._down()

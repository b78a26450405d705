"""The driver of recoveries: performs what `core.recovery` and `core.tail_recovery` decide.

Within a store a ledger is recovered once at a time: adds and fencing reads of two recoveries over
the same recovery links could not be told apart. Who asks meanwhile gets the same answer. It goes on
as long as anybody waits for it, and never longer than its time.

    recovery = LedgerRecovery(links, nodes, registry, RandomPlacement(chance))
    closed = await recovery.recover(ledger_id)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dlog import trace
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import DlogError, Timeout, Unavailable, as_broken
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
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd, TailRecovery, digest_of
from dlog.ledger.bookkeeper.ledger_nodes import Nodes, StoredLedger
from dlog.ledger.bookkeeper.links import DataLink, Links
from dlog.ledger.bookkeeper.policy import Bookies, Placement
from dlog.ledger.store import Buffer, ClosedLedger
from dlog.limits import READ_TIMEOUT_MS_DEFAULT, RECOVERY_TIMEOUT_MS_DEFAULT
from dlog.patience import AwakeClock, AwakeTimeout
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import LAST_ENTRY
from dlog.wire.ledger_metadata import LedgerMetadata

_TICK_S = 0.05
_FRESH_S = 1.0  # so long what was closed here may be opened without another look
_FRESH_MAX = 8


class LedgerRecovery:
    """All recoveries of one store. Bookies that fail are replaced by some of `bookies`, as
    `placement` advises."""

    def __init__(
        self,
        links: Links,
        nodes: Nodes,
        bookies: Bookies,
        placement: Placement,
        *,
        clock: Clock = SYSTEM_CLOCK,
        timeout_ms: float = RECOVERY_TIMEOUT_MS_DEFAULT,
        read_timeout_ms: float = READ_TIMEOUT_MS_DEFAULT,
    ) -> None:
        self._links = links
        self._nodes = nodes
        self._bookies = bookies
        self._placement = placement
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._read_timeout_ms = read_timeout_ms
        self._running: dict[int, _Running] = {}
        self._closed: dict[int, tuple[float, StoredLedger]] = {}

    def take_closed(self, ledger_id: int) -> StoredLedger | None:
        """As it was closed here within the last second, once: for whoever recovers in order to
        read. Its end changes no more; whether it moved or was deleted, readers find out."""
        at_s, stored = self._closed.pop(ledger_id, (0.0, None))
        return stored if self._clock.monotonic_s() - at_s <= _FRESH_S else None

    async def recover(
        self,
        ledger_id: int,
        *,
        known: StoredLedger | None = None,
        fenced: Callable[[], None] | None = None,
    ) -> ClosedLedger:
        """Fences, finds the end, closes; of a closed ledger, its end. What is `known` of it is not
        read again; `fenced` is called between the fence and the search. `NotFound`; `AuthError`;
        `Unavailable` names who is missing; `Timeout` says what it waited for. After these the
        ledger is in recovery, and another try may be made at any time."""
        running = self._running.get(ledger_id)
        while running is not None and running.waiting == 0:  # given up, and not gone yet
            await asyncio.wait([running.task])
            running = self._running.get(ledger_id)
        if running is None:
            run = _Run(self, ledger_id, known, fenced)
            running = _Running(asyncio.create_task(self._recover(run)), run)
            self._running[ledger_id] = running
            running.task.add_done_callback(lambda _: self._running.pop(ledger_id))
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        except DlogError as error:
            raise error.again() from error.__cause__
        finally:
            running.waiting -= 1
            if running.waiting == 0:
                running.task.cancel()

    def waits_for(self, ledger_id: int) -> str | None:
        """What a recovery of this ledger that is under way waits for."""
        running = self._running.get(ledger_id)
        return None if running is None else running.run.waits_for() or None

    async def close(self) -> None:
        """Ends those that go on; the ledgers stay in recovery."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _choose(self, ensemble: Sequence[str], failed: Set[str]) -> str | None:
        bookies = self._bookies
        return self._placement.replacement(
            excluded=failed | set(ensemble),
            writable=bookies.writable(),
            avoided=bookies.avoided(),
        )

    async def _recover(self, run: _Run) -> ClosedLedger:
        ledger_id = run.ledger_id
        try:
            async with AwakeTimeout(self._timeout_ms / 1000):
                closed = await run.to_the_end()
        except TimeoutError as error:
            if isinstance(error, DlogError):
                raise
            raise Timeout(
                f"the recovery of ledger {ledger_id} took longer than {self._timeout_ms:.0f} ms: "
                f"it waited {run.why}",
                ledger_id=ledger_id,
                elapsed_ms=self._timeout_ms,
            ) from None
        self.remember(run.stored)
        return closed

    def remember(self, stored: StoredLedger) -> None:
        if len(self._closed) >= _FRESH_MAX:
            del self._closed[next(iter(self._closed))]
        self._closed[stored.ledger_id] = self._clock.monotonic_s(), stored


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[ClosedLedger]
    run: _Run
    waiting: int = 0  # with nobody left it ends


class _Run:
    """One recovery: the steps of the procedure, one after the other."""

    def __init__(
        self,
        owner: LedgerRecovery,
        ledger_id: int,
        known: StoredLedger | None,
        fenced: Callable[[], None] | None,
    ) -> None:
        self._owner = owner
        self._fenced = fenced
        self.ledger_id = ledger_id
        self._stored = known
        self.why = ""  # what it waited for when it was ended
        self._tail: _Tail | None = None  # while the bookies are asked
        self._ahead: set[asyncio.Task[None]] = set()

    @property
    def stored(self) -> StoredLedger:
        assert self._stored is not None
        return self._stored

    def waits_for(self) -> str:
        return self.why if self._tail is None else self._tail.why()

    async def to_the_end(self) -> ClosedLedger:
        try:
            return await self._run()
        finally:
            for task in self._ahead:
                task.cancel()
            await asyncio.gather(*self._ahead, return_exceptions=True)

    async def _run(self) -> ClosedLedger:
        procedure = recover(self.ledger_id)
        answer: LedgerMetadata | FoundEnd | None = None
        error: DlogError | None = None
        while True:
            try:
                step = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as end:
                closed: ClosedLedger = end.value
                return closed
            answer = error = None
            try:
                answer = await self._perform(step)
            except DlogError as caught:
                error = caught

    async def _perform(self, step: Step) -> LedgerMetadata | FoundEnd | None:
        nodes = self._owner._nodes
        if isinstance(step, FenceAhead):
            for bookie_id in step.metadata.fragments[-1].ensemble:
                self._ahead.add(asyncio.create_task(self._fence_ahead(bookie_id, step.metadata)))
            return None
        if isinstance(step, FindEnd):
            self._tail = tail = _Tail(self._owner, self.ledger_id, step.metadata, self._fenced)
            try:
                return await tail.find_end()
            finally:
                self.why = tail.why()
                self._tail = None
                await tail.end()
        self.why = "for metadata"
        if isinstance(step, ReadLedger):
            if self._stored is not None:
                return self._stored.metadata
            read = nodes.read_fresh if step.fresh else nodes.read
            self._stored = await read(self.ledger_id)
        else:
            self._stored = await self._change(step)
        return self._stored.metadata

    async def _fence_ahead(self, bookie_id: str, metadata: LedgerMetadata) -> None:
        _, key = digest_of(self.ledger_id, metadata)
        with contextlib.suppress(Unavailable):  # the fence that counts will say so
            link = await self._owner._links.recovery(bookie_id)
            await link.read(
                self.ledger_id,
                LAST_ENTRY,
                timeout_ms=self._owner._read_timeout_ms,
                fence_key=key,
            )

    async def _change(self, step: ChangeLedger) -> StoredLedger:
        assert self._stored is not None
        trace.before(step.point)
        stored = await self._owner._nodes.change(self._stored, step.change)
        trace.after(step.point)
        return stored


class _Tail:
    """What goes on at the bookies: hears as their sink, until the core has found the end."""

    def __init__(
        self,
        owner: LedgerRecovery,
        ledger_id: int,
        metadata: LedgerMetadata,
        fenced: Callable[[], None] | None,
    ) -> None:
        self._fenced = fenced
        self._links = owner._links
        self._clock = AwakeClock(owner._clock, 2 * _TICK_S)  # a late tick counts as a short one
        self._read_timeout_ms = owner._read_timeout_ms
        self._ledger_id = ledger_id
        self._core = TailRecovery(
            ledger_id, metadata, owner._choose, now_s=self._clock.monotonic_s()
        )
        self._found: asyncio.Future[FoundEnd] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: dict[str, _Channel] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def why(self) -> str:
        return self._core.why()

    async def find_end(self) -> FoundEnd:
        trace.before("recovery.fenced")
        self._perform()
        self._tick()
        found = await self._found
        trace.after("recovery.written_back")
        return found

    async def end(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if not self._found.done():
            self._found.cancel()
        for channel in self._channels.values():
            channel.end()
        self._channels.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- facts

    def tell(self, fact: Callable[[float], None]) -> None:
        """A fact for the core, and whatever it wants done then. Tasks, timers and links call this,
        so an error goes to whoever waits for the end."""
        if self._found.done():
            return
        try:
            fact(self._clock.monotonic_s())
            self._perform()
        except Exception as error:  # noqa: BLE001 - a defect ends the recovery, not the link
            self._fail(error)
        else:
            if self._core.found is not None:
                self._found.set_result(self._core.found)

    def _fail(self, error: BaseException) -> None:
        if not self._found.done():
            who = f"the recovery of ledger {self._ledger_id}"
            self._found.set_exception(as_broken(error, who, ledger_id=self._ledger_id))

    def on_adds(self, bookie_id: str, answer: Answer, entry_ids: list[int]) -> None:
        self.tell(lambda now_s: self._core.on_adds(bookie_id, answer, entry_ids, now_s=now_s))

    def on_down(self, bookie_id: str) -> None:
        self.tell(lambda now_s: self._core.on_down(bookie_id, now_s=now_s))

    def _tick(self) -> None:
        self.tell(self._core.tick)
        if not self._found.done():
            self._ticker = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    # --- what the core wants

    def _perform(self) -> None:
        for request in self._core.take():
            if isinstance(request, Ask):
                if not request.is_fence and self._fenced is not None:
                    self._fenced()  # enough bookies are: now it looks for the end
                    self._fenced = None
                self.spawn(self._ask(request))
            elif isinstance(request, Add):
                trace.before("recovery.written_back")
                channel = self._channels.get(request.bookie_id)
                if channel is None:
                    channel = _Channel(self, self._links, self._ledger_id, request.bookie_id)
                    self._channels[request.bookie_id] = channel
                channel.send(request.frames, request.entries)
            elif isinstance(request, Settle):
                self._channels[request.bookie_id].settle(request.entries, request.bytes)
            elif isinstance(request, LetGo):
                if request.bookie_id in self._channels:
                    self._channels.pop(request.bookie_id).end()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _ask(self, ask: Ask) -> None:
        point = "recovery.fenced" if ask.is_fence else "recovery.read"
        if not ask.is_fence:
            trace.before(point)
        answer, entries = await self._read(ask)
        trace.after(point)
        self.tell(lambda now_s: self._core.on_read(ask, answer, entries, now_s=now_s))

    async def _read(self, ask: Ask) -> tuple[Answer, Sequence[Buffer]]:
        try:
            link = await self._links.recovery(ask.bookie_id)
        except Unavailable:
            return Answer.DISCONNECTED, ()
        key, timeout_ms = self._core.fence_key, self._read_timeout_ms
        if ask.is_batch:
            batch = await link.batch_read(
                self._ledger_id,
                ask.first_entry,
                count_max=ask.count_max,
                frame_bytes_max=BATCH_FRAME_BYTES,
                timeout_ms=timeout_ms,
                fence_key=key,
            )
            return batch.answer, batch.entries
        single = await link.read(
            self._ledger_id, ask.first_entry, timeout_ms=timeout_ms, fence_key=key
        )
        return single.answer, () if single.entry is None else (single.entry,)


class _Channel:
    """The way of adds to one bookie: connecting, open, or ended. Frames wait for room here; how
    many may wait is the core's decision."""

    def __init__(self, tail: _Tail, links: Links, ledger_id: int, bookie_id: str) -> None:
        self._tail = tail
        self._links = links
        self._ledger_id = ledger_id
        self._bookie_id = bookie_id
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._link: DataLink | None = None
        self._has_ended = False
        tail.spawn(self._connect())

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

    async def _connect(self) -> None:
        try:
            link = await self._links.recovery(self._bookie_id)
        except Unavailable:
            self._tail.on_down(self._bookie_id)
            return
        if not self._has_ended:
            self._link = link
            link.attach(self._ledger_id, self)
            self._flush()

    def _flush(self) -> None:
        link = self._link
        while link is not None and self._waiting and link.has_room:
            frames, entries = self._waiting.popleft()
            link.send_adds(self._ledger_id, frames, entries=entries, bytes=len(frames))

    # --- the sink of the link

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        if not self._has_ended:
            self._tail.on_adds(self._bookie_id, answer, entry_ids)

    def on_room(self, link: DataLink) -> None:
        self._flush()

    def on_down(self, link: DataLink, answer: Answer) -> None:
        self._link = None  # gone with everything that was attached to it
        if not self._has_ended:
            self._tail.on_down(self._bookie_id)

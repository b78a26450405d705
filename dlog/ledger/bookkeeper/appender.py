"""The handle that adds to one ledger on bookies: does what its core decides.

    links_before = {bookie: links.data_now(bookie) for bookie in ensemble}
    stored = await nodes.create(new_metadata(spec, ensemble, password))
    appender = BookKeeperAppender(stored, links=links, nodes=nodes, bookies=registry,
                                  placement=RandomPlacement(chance), links_before=links_before)

Entries are sent once per turn of the loop, to each bookie from where it stands; bookies that stand
at the same place share one copy. Facts go to the core as they come, and what it wants done is done
right after: connections, looks at metadata and changes of it are tasks, each of which ends in one
fact.

A close decides the end in metadata and returns. Bookies that lag are sent what is confirmed for a
little while after that: a ledger is not left with fewer copies because it was closed in a hurry.
Whatever else was under way ends with the handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from dlog import trace
from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    Broken,
    ConfigError,
    DlogError,
    Fenced,
    ForkedHandle,
    NotFound,
    Outcome,
    TooLarge,
    WriterClosed,
    as_broken,
)
from dlog.ledger.bookkeeper.core import changes
from dlog.ledger.bookkeeper.core.append_effects import (
    AppendOptions,
    Change,
    Connect,
    LetGo,
    Look,
    WriteLac,
)
from dlog.ledger.bookkeeper.core.appender import TICK_MS, AppenderCore
from dlog.ledger.bookkeeper.core.reasons import why_appender
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.ledger_nodes import Nodes, StoredLedger
from dlog.ledger.bookkeeper.links import ControlLink, DataLink, Links
from dlog.ledger.bookkeeper.policy import Bookies, Placement
from dlog.ledger.store import AppenderListener, Buffer, ClosedLedger
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.metrics import NO_METRICS, Metrics, catalogue
from dlog.reason import Wait
from dlog.wire import bookie_v2, bookie_v3
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest, master_key
from dlog.wire.bookie_v3_replies import Response


class BookKeeperAppender:
    publish_is_free = False

    def __init__(
        self,
        stored: StoredLedger,
        *,
        links: Links,
        nodes: Nodes,
        bookies: Bookies,
        placement: Placement,
        options: AppendOptions | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        metrics: Metrics = NO_METRICS,
        links_before: Mapping[str, DataLink | None] | None = None,
        on_let_go: Callable[[BookKeeperAppender], None] = lambda appender: None,
    ) -> None:
        """`links_before`: those that were up before the ledger was made, which saves a look."""
        metadata = stored.metadata
        digest_type, password = metadata.digest_type, metadata.password
        if digest_type is None or password is None:
            raise Broken(f"ledger {stored.ledger_id} was made without a digest or a password")
        self.ledger_id = stored.ledger_id
        self._digest = EntryDigest(digest_type, password)
        self._key = master_key(password)
        self._links = links
        self._nodes = nodes
        self._known = stored  # what a change of metadata begins with
        self._bookies = bookies
        self._placement = placement
        self._options = options or AppendOptions()
        self._clock = clock
        self._metrics = metrics
        self._links_before = dict(links_before or {})
        self._on_let_go = on_let_go
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._listener: AppenderListener | None = None
        self._told_confirmed = -1
        self._told_published = -1
        self._told_failure = False
        self._birth: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[ClosedLedger] | None = None
        self._closed: ClosedLedger | None = None
        self._abandoned = False
        self._is_ended = False
        self._delivers_until_s = 0.0  # to bookies that lag, after the close
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_handle: asyncio.Handle | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._ticked_at_s = clock.monotonic_s()
        self.core = AppenderCore(
            stored.ledger_id,
            metadata,
            pack_front=self._pack_front,
            frame_fixed_bytes=BOOKIE_FRAME_BYTES_MAX
            - bookie_v2.payload_bytes_max(self._digest.digest_bytes),
            pick=self._pick,
            chance=chance,
            options=self._options,
        )
        self._perform()
        self._schedule_tick()

    def __repr__(self) -> str:
        return f"<BookKeeperAppender of ledger {self.ledger_id}, {self.core.slots}>"

    # --- The contract

    def listen(self, listener: AppenderListener) -> None:
        if self._listener is not None or self.core.outbox.end > 1:
            raise ConfigError("an appender has one listener, and it listens before the first entry")
        self._listener = listener

    async def birth(self, buffers: Sequence[Buffer]) -> None:
        self._check_usable()
        if self.core.outbox.end > 0:
            raise ConfigError("the birth is entry 0: nothing is submitted before it")
        self._birth = self._loop.create_future()
        # Fetched here, so that a birth nobody waits for any more is no warning at exit.
        self._birth.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self.core.failure is not None:
            self._birth.set_exception(self.core.failure.again())
        self.core.begin_birth()
        self._put(buffers)
        await self._birth

    def submit(self, buffers: Sequence[Buffer]) -> int:
        self._check_usable()
        if self._listener is None:
            raise ConfigError("an appender has a listener before anything is submitted")
        return self._put(buffers)

    def publish(self) -> None:
        if not self.core.is_over:
            self._check_process()
            self.core.publish()
            self._after_fact()

    async def close(self) -> ClosedLedger:
        self._check_process()
        if self._closed is not None:
            return self._closed
        if self._abandoned:
            raise self._closed_error("abandoned", is_sent=self._closing is not None)
        if self._closing is None or self._closing.done():
            self._stop()
            self._closing = self._loop.create_task(self._close())
        closing = self._closing
        try:
            return await asyncio.shield(closing)
        except DlogError as error:
            raise error.again() from error.__cause__
        except asyncio.CancelledError:
            if closing.cancelled():
                raise self._closed_error("abandoned", is_sent=True) from None
            raise

    def why(self) -> Wait | None:
        """Which bookies hold back what was submitted."""
        return why_appender(self.core, self._bookies.avoided())

    def abandon(self) -> None:
        if os.getpid() != self._pid or self._abandoned:
            return
        self._abandoned = True
        self._stop()
        if self._closing is not None:
            self._closing.cancel()
        self._end()

    async def wait_ended(self) -> None:
        """Until nothing of it runs any more. Only after it was closed or abandoned."""
        tasks: set[asyncio.Task[Any]] = {*self._tasks}
        if self._closing is not None:
            tasks.add(self._closing)
        if tasks:
            await asyncio.wait(tasks)

    def _check_usable(self) -> None:
        self._check_process()
        if self._closing is not None or self._abandoned:
            raise self._closed_error("closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"ledger {self.ledger_id} was opened by process {self._pid}, before a fork",
                ledger_id=self.ledger_id,
                pid=self._pid,
            )

    def _closed_error(self, how: str, *, is_sent: bool = False) -> WriterClosed:
        outcome = Outcome.UNKNOWN if is_sent else Outcome.NOT_HAPPENED
        message = f"ledger {self.ledger_id} was {how}"
        return WriterClosed(message, ledger_id=self.ledger_id, outcome=outcome)

    # --- Entries

    def _put(self, buffers: Sequence[Buffer]) -> int:
        payload_bytes = 0
        for buffer in buffers:
            payload_bytes += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
        if payload_bytes > LEDGER_ENTRY_BYTES_MAX:
            raise TooLarge(
                f"an entry has at most {LEDGER_ENTRY_BYTES_MAX} bytes, not {payload_bytes}",
                ledger_id=self.ledger_id,
            )
        core = self.core
        entry_id = core.put(buffers, payload_bytes)
        if self._pump_handle is None:
            self._pump_soon()
            if core.failure is not None:
                self._loop.call_soon(self._after_fact)  # told now, if it was not yet
        return entry_id

    def _pack_front(
        self,
        entry_id: int,
        last_confirmed: int,
        ledger_bytes: int,
        buffers: Sequence[Buffer],
        payload_bytes: int,
    ) -> bytes:
        head = self._digest.pack_head(
            self.ledger_id, entry_id, last_confirmed, ledger_bytes, buffers
        )
        return bookie_v2.pack_add(head, payload_bytes=payload_bytes, master_key=self._key)

    def _pump(self) -> None:
        """Send what may be sent, to every bookie that has room."""
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None
        core = self.core
        self._keep_time()
        # What one bookie is sent is what the next one is sent, nearly always.
        joined: dict[tuple[int, int], bytes] = {}
        for slot in core.slots:
            link = slot.link
            if link is None or slot.state is not State.LIVE:
                continue
            while link.has_room:
                run = core.take_run(slot)
                if run is None:
                    break
                key = run[0], len(run)
                frames = joined.get(key) if isinstance(run, range) else None
                if frames is None:
                    frames = core.outbox.joined(run)
                    if isinstance(run, range):
                        joined[key] = frames
                trace.before("bookie.sent")
                link.send_adds(self.ledger_id, frames, entries=len(run), bytes=len(frames))
                if self._metrics is not NO_METRICS:
                    labels = {"bookie": slot.bookie_id}
                    self._metrics.count(catalogue.BOOKIE_ADDS.name, len(run), labels)
                    self._metrics.count(catalogue.BOOKIE_ADD_BYTES.name, len(frames), labels)

    def _pump_soon(self) -> None:
        if self._pump_handle is None and not self._is_ended:
            self._pump_handle = self._loop.call_soon(self._pump_due)

    def _pump_due(self) -> None:
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001 - a defect must end the appender, not hang it
            self._fail_broken(error)
            self._after_fact()

    # --- Facts

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        trace.after("bookie.sent")
        self._tell(self._take_answers, link, answer, entry_ids)

    def _take_answers(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        entries, frame_bytes = self.core.on_adds(link, answer, entry_ids)
        if entries > 0:
            link.settle(self.ledger_id, entries=entries, bytes=frame_bytes)

    def on_room(self, link: DataLink) -> None:
        self._pump_soon()

    def on_down(self, link: DataLink, answer: Answer) -> None:
        self._tell(self.core.on_down, link, answer)

    def _tell(self, fact: Callable[..., object], *about: object) -> None:
        """A promise that did not hold ends the appender before it can do harm, and so does a policy
        that raises: links and timers must go on, and nobody may wait for ever."""
        try:
            fact(*about)
        except Exception as error:  # noqa: BLE001 - of a policy, or a defect
            self._fail_broken(error)
        try:
            self._after_fact()
        except Exception as error:  # noqa: BLE001 - a defect
            self._fail_broken(error)
            if self.core.failure is not None:
                self._tell_failure(self.core.failure)

    def _fail_broken(self, error: BaseException) -> None:
        self.core.fail(as_broken(error, f"ledger {self.ledger_id}", ledger_id=self.ledger_id))

    def _after_fact(self) -> None:
        core = self.core
        if core.effects:
            self._perform()
        if self._listener is not None and core.last_confirmed > self._told_confirmed:
            self._told_confirmed = core.last_confirmed
            self._listener.on_confirmed(self.ledger_id, core.last_confirmed)
        if self._listener is not None and core.last_published > self._told_published:
            self._told_published = core.last_published
            self._listener.on_published(self.ledger_id, core.last_published)
        if self._birth is not None and not self._birth.done() and core.is_born:
            self._birth.set_result(None)
        if self._closed is not None and core.is_delivered:
            self._end()
            return
        if core.failure is not None:
            self._tell_failure(core.failure)
            return
        self._keep_time()
        if self._pump_handle is None and core.has_to_send():
            self._pump_soon()

    def _tell_failure(self, failure: DlogError) -> None:
        self._cancel_tasks()
        self._cancel_handles()
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(failure.again())
        if self._listener is not None and not self._told_failure:
            self._told_failure = True
            self._listener.on_failed(self.ledger_id, failure)

    # --- Effects

    def _perform(self) -> None:
        effects = self.core.effects
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, LetGo):
                effect.link.detach(self.ledger_id)
            elif isinstance(effect, Connect):
                self._connect(effect.slot)
            elif isinstance(effect, WriteLac):
                self._write_lac(effect.slot, effect.last_entry)
            elif isinstance(effect, Look):
                self._spawn(self._look())
            else:
                self._spawn(self._change(effect))

    def _pick(self, excluded: AbstractSet[str]) -> str | None:
        bookies = self._bookies
        return self._placement.replacement(
            excluded=excluded, writable=bookies.writable(), avoided=bookies.avoided()
        )

    def _connect(self, slot: Slot) -> None:
        link = self._links.data_now(slot.bookie_id)
        if link is not None:
            self._on_link(slot, link)
        else:
            self._spawn(self._reach(slot))

    async def _reach(self, slot: Slot) -> None:
        try:
            link = await self._links.data(slot.bookie_id)
        except DlogError:  # the pool logs why
            self._tell(self.core.on_no_link, slot)
        else:
            self._on_link(slot, link)
            self._after_fact()

    def _on_link(self, slot: Slot, link: DataLink) -> None:
        is_proven = link is self._links_before.get(slot.bookie_id)
        if self.core.on_link(slot, link, is_proven=is_proven):
            link.attach(self.ledger_id, self)
            self._pump_soon()
            if self._links.control_now(slot.bookie_id) is None:
                self._spawn(self._warm_up(slot.bookie_id))

    async def _warm_up(self, bookie_id: str) -> None:
        """So that the first publishing does not wait for a connection."""
        with contextlib.suppress(DlogError):  # the pool logs why, and it is asked for again
            await self._links.control(bookie_id)

    async def _look(self) -> None:
        trace.before("bookie.checked")
        try:
            stored = await self._nodes.read_fresh(self.ledger_id)
        except DlogError as error:
            self._tell(self.core.on_not_looked, error)
        else:
            trace.after("bookie.checked")
            self._tell(self.core.on_looked, stored.metadata)

    async def _change(self, change: Change) -> None:
        replaced = partial(
            changes.replaced,
            ledger_id=self.ledger_id,
            first_entry=change.first_entry,
            places=change.places,
        )
        trace.before("bookie.change_stored")
        try:
            stored = await self._nodes.change(self._known, replaced)
        except DlogError as error:
            self._tell(self.core.on_not_changed, error)
        else:
            trace.after("bookie.change_stored")
            if self._metrics is not NO_METRICS:
                before = self._known.metadata.fragments[-1].ensemble
                for bookie_id in set(before) - set(stored.metadata.fragments[-1].ensemble):
                    labels = {"bookie": bookie_id}
                    self._metrics.count(catalogue.BOOKIE_REPLACED.name, 1, labels)
            self._known = stored
            self._tell(self.core.on_changed, stored.metadata)
            trace.before("bookie.resent")
            self._pump()
            trace.after("bookie.resent")

    def _write_lac(self, slot: Slot, last_entry: int) -> None:
        link = self._links.control_now(slot.bookie_id)
        if link is not None:
            self._ask_lac(link, slot, last_entry)
        else:
            self._spawn(self._reach_and_write_lac(slot, last_entry))

    async def _reach_and_write_lac(self, slot: Slot, last_entry: int) -> None:
        try:
            link = await self._links.control(slot.bookie_id)
        except DlogError:  # the pool logs why
            self._tell(self.core.on_lac_written, slot, last_entry, Answer.DISCONNECTED)
        else:
            self._ask_lac(link, slot, last_entry)

    def _ask_lac(self, link: ControlLink, slot: Slot, last_entry: int) -> None:
        proof = self._digest.pack_lac(self.ledger_id, last_entry)
        trace.before("bookie.published")
        link.ask_soon(
            lambda txn_id: bookie_v3.pack_write_lac(
                txn_id, self.ledger_id, last_entry, proof, master_key=self._key
            ),
            partial(self._on_lac_written, slot, last_entry),
            timeout_ms=self._options.add_timeout_ms,
        )

    def _on_lac_written(self, slot: Slot, last_entry: int, response: Response) -> None:
        trace.after("bookie.published")
        self._tell(self.core.on_lac_written, slot, last_entry, response.answer)

    # --- Time

    def _keep_time(self) -> None:
        """Ticks come slowly only while nothing is awaited."""
        core = self.core
        if core.tick_ms > TICK_MS and core.is_busy and not core.is_over:
            core.tick_ms = TICK_MS
            self._schedule_tick()

    def _schedule_tick(self) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._tick_handle = self._loop.call_later(self.core.tick_ms / 1000, self._tick)

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        elapsed_ms, self._ticked_at_s = (now_s - self._ticked_at_s) * 1000, now_s
        self._tell(self.core.on_tick, elapsed_ms)
        if self._closed is not None and now_s >= self._delivers_until_s:
            self._end()
        elif not self._is_ended and self.core.failure is None:
            self._schedule_tick()

    # --- The end

    async def _close(self) -> ClosedLedger:
        core = self.core
        closed = ClosedLedger(
            core.last_confirmed, core.outbox.ledger_bytes_through(core.last_confirmed)
        )
        close = partial(
            changes.closed_by_appender,
            ledger_id=self.ledger_id,
            last_entry=closed.last_entry,
            bytes=closed.bytes,
        )
        trace.before("bookie.closed")
        try:
            await self._nodes.change(self._known, close)
        except NotFound as error:
            self._end()
            raise Fenced(
                f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id
            ) from error
        except Fenced:
            self._end()
            raise
        trace.after("bookie.closed")
        self._closed = closed
        self._delivers_until_s = self._clock.monotonic_s() + self._options.add_timeout_ms / 1000
        self._after_fact()
        return closed

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail_broken(error)
            self._after_fact()

    def _stop(self) -> None:
        self.core.stop()
        self._perform()
        self._cancel_tasks()
        self._schedule_tick()
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(self._closed_error("closed", is_sent=True))

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _end(self) -> None:
        """Nothing of it runs any more, nobody hears of it, and the store need not know it."""
        self._is_ended = True
        self._listener = None
        self.core.end()
        self._perform()
        self._cancel_tasks()
        self._cancel_handles()
        on_let_go, self._on_let_go = self._on_let_go, lambda appender: None
        on_let_go(self)

    def _cancel_handles(self) -> None:
        for handle in (self._pump_handle, self._tick_handle):
            if handle is not None:
                handle.cancel()
        self._pump_handle = self._tick_handle = None

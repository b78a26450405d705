"""Tickets: what a caller holds of a message that is on its way. Waiting works from any thread and
any event loop.

A ticket costs one small object; acknowledgement costs nothing per ticket, since the batch answers
for all. Cancelling or timing out a wait abandons the wait only: the message goes on, and the ticket
can be asked again.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, overload

from dlog.errors import DlogError, ForkedHandle, Outcome, Timeout
from dlog.ids import MessageId, Token
from dlog.writer.batch import Batch

_log = logging.getLogger("dlog.writer")


class Ticket:
    """One message on its way. `result()` blocks, `await` does not; both give its `MessageId`."""

    __slots__ = ("_batch", "_idx")

    def __init__(self, batch: Batch, idx: int) -> None:
        self._batch = batch
        self._idx = idx

    @property
    def done(self) -> bool:
        """Acknowledged or failed; then `result()` answers at once."""
        return self._batch.done

    @property
    def token(self) -> Token:
        """Names the message at once and for good: `resolve` tells what became of it, also when this
        process is gone."""
        batch = self._batch
        if batch.moved is not None and batch.moved[self._idx] is not None:
            return batch.moved[self._idx].token  # type: ignore[no-any-return]
        return Token(batch.origin.log_uid, batch.origin.epoch, batch.first_seq + self._idx)

    def result(self, timeout: float | None = None) -> MessageId:
        """Waits at most `timeout` seconds. `Timeout` says nothing of the message: ask again."""
        batch = self._batch
        if not batch.done:
            try:
                wait_for_batch(batch, timeout)
            except DlogError as error:
                raise self.named(error) from None
        return self._answer()

    def __await__(self) -> Generator[Any, None, MessageId]:
        if not self._batch.done:
            try:
                yield from until_resolved(self._batch).__await__()
            except DlogError as error:
                raise self.named(error) from None
        return self._answer()

    def add_done_callback(self, callback: Callable[[Ticket], None]) -> None:
        """Calls `callback(self)` once it is done: on the client's loop thread, or here if it is
        already. What it raises is logged: it is nobody else's."""

        def call() -> None:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - user code: it must not stop the acknowledgements
                _log.exception("a callback of %r failed", self)

        self._batch.waiters.append(call)
        if self._batch.done:
            self._batch.wake()

    def _answer(self) -> MessageId:
        batch = self._batch
        if batch.moved is not None:
            return batch.moved[self._idx]._answer()  # type: ignore[no-any-return]
        if batch.error is not None:
            batch.error_seen = True
            raise self.named(batch.error.again())
        return MessageId(batch.ledger_id, batch.entry_id, self._idx)

    def named(self, error: DlogError) -> DlogError:
        """An error that leaves open what became of the message carries its token."""
        if error.outcome is Outcome.UNKNOWN:
            error.about.setdefault("token", self.token)
        return error

    def __repr__(self) -> str:
        if not self._batch.done:
            return "<Ticket pending>"
        if self._batch.moved is not None:
            return repr(self._batch.moved[self._idx])
        if self._batch.error is not None:
            return f"<Ticket {type(self._batch.error).__name__}>"
        return f"<Ticket {self._answer()}>"


class IdRun(Sequence[MessageId]):
    """The ids of one `append_many`, made when looked at: a million messages are a few hundred
    batches."""

    __slots__ = ("_ends", "_pieces", "skipped")

    def __init__(self, pieces: list[tuple[Batch, int, int]], skipped: int = 0) -> None:
        self.skipped = skipped  # messages at the front of the run that the log had before
        self._pieces = pieces  # batch, index of the first message in it, how many
        self._ends: list[int] = []
        total = 0
        for _, _, count in pieces:
            total += count
            self._ends.append(total)

    @property
    def first(self) -> MessageId:
        return self[0]

    @property
    def last(self) -> MessageId:
        return self[-1]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> MessageId: ...

    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        length = len(self)
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError("no such message in this run")
        which = bisect.bisect_right(self._ends, index)
        batch, start, count = self._pieces[which]
        return MessageId(
            batch.ledger_id, batch.entry_id, start + index - (self._ends[which] - count)
        )

    def __repr__(self) -> str:
        return (
            f"<IdRun {self.first} … {self.last}, {len(self)}>" if self._pieces else "<IdRun empty>"
        )


def wait_for_batch(batch: Batch, timeout: float | None) -> None:
    """Block this thread until the batch is resolved. Ctrl-C gets through: a lock wait is
    interruptible."""
    _check_process(batch)
    gate = threading.Lock()
    gate.acquire()
    wake = gate.release
    batch.waiters.append(wake)
    if batch.done:
        batch.wake()
    arrived = False
    try:
        arrived = gate.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
    finally:
        if not arrived:
            batch.forget_waiter(wake)
    if not arrived:
        raise Timeout(f"no acknowledgement within {timeout} s; the message may still arrive")


async def until_resolved(batch: Batch) -> None:
    """The same for a task, on whatever loop it runs."""
    _check_process(batch)
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    waker = _waker(loop, wake)
    batch.waiters.append(waker)
    if batch.done:
        batch.wake()
    try:
        await woken
    finally:
        if not batch.done:
            batch.forget_waiter(waker)


def _check_process(batch: Batch) -> None:
    if batch.born_in != Batch.generation:
        raise ForkedHandle(
            "this message is on its way in another process: its ticket was made before a fork",
            outcome=Outcome.UNKNOWN,
        )


def _on_fork() -> None:
    Batch.generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)


def _waker(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Callable[[], None]:
    """Runs `wake` on `loop`: at once when called there, else through its mailbox."""
    thread = threading.get_ident()

    def call() -> None:
        if threading.get_ident() == thread:
            wake()
        else:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there
                loop.call_soon_threadsafe(wake)

    return call

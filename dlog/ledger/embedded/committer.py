"""The one thread that writes a ledger's file: take all that waits, write, sync, look, tell.

While one sync runs, the next entries gather, so a run of entries shares a sync (group commit) and
one call into the event loop. The order of the last three steps is what keeps a paused writer out:
**store, then look**. An entry is told as confirmed only if the fence was clear *after* it was
synced; scenario: `fenced_appender_confirms_nothing_above_the_end`.

A sync that failed ends the appender for good: the kernel may have dropped the pages, so no later
sync proves anything about them. The words say so, and recovery then ends at what was confirmed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from dlog import trace
from dlog.errors import Broken, DlogError, Fenced, Handle, Outcome, Retry, Unavailable
from dlog.ledger.embedded.datafile import reserve
from dlog.ledger.embedded.file import FrameWriter
from dlog.ledger.embedded.words import Words
from dlog.ledger.store import Buffer
from dlog.limits import KIB, MIB

_RUN_BYTES_MAX = 4 * MIB  # of one write; past it a longer run only delays its first entry
_WRITE_BUFFERS_MAX = 1024  # IOV_MAX of Linux and macOS
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Space is reserved ahead, in steps that grow with the file: a sync that need not commit a new file
# size is 0.05 to 0.1 ms faster, and a full disk shows before anything was written.
_RESERVE_FIRST_BYTES = 256 * KIB
_RESERVE_LAST_BYTES = 4 * MIB

_sync = getattr(os, "fdatasync", os.fsync)


class Waiting(NamedTuple):
    """An entry on its way to the disk."""

    entry_id: int
    last_confirmed: int
    size: int
    buffers: Sequence[Buffer]


class Confirmed(NamedTuple):
    """A run of entries is durable and the fence was clear after that."""

    last_entry: int
    offset: int  # of its frame
    last_confirmed: int  # as its frame carries it: readable from now on
    bytes_total: int


class Committer:
    """Owns the data file's descriptor and writes from a thread that starts with the first entry.

    `on_confirmed`, `on_failed` and `on_ended` are called on that thread; the appender hands them
    over to its loop. `on_ended` comes last, and exactly once.
    """

    def __init__(
        self,
        *,
        ledger_id: int,
        path: str,
        fd: int,
        words: Words,
        frames: FrameWriter,
        on_confirmed: Callable[[Confirmed], None],
        on_failed: Callable[[DlogError], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._ledger_id = ledger_id
        self._path = path
        self._fd = fd
        self._words = words
        self._frames = frames
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._reserved_end = 0
        self._reserve_bytes = _RESERVE_FIRST_BYTES

    def put(self, entry: Waiting) -> None:
        self._queue.put(entry)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._main, name=f"dlog-ledger-{self._ledger_id}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """After the write that is under way; what waits is dropped. `on_ended` follows."""
        if self._stopping:
            return
        self._stopping = True
        if self._thread is None:
            self._end()
        else:
            self._queue.put(None)

    def _main(self) -> None:
        error: DlogError | None = Broken(
            f"the committer of ledger {self._ledger_id} died", ledger_id=self._ledger_id
        )
        try:
            error = self._commit_runs()
        finally:
            if error is not None:
                self._on_failed(error)
            self._end()

    def _commit_runs(self) -> DlogError | None:
        """Until it is told to stop (None) or something fails (why)."""
        error = None
        while error is None and not self._stopping:
            # No name here holds the run, or an idle ledger would keep its last payloads alive.
            error = self._commit(self._gather())
        return error

    def _gather(self) -> list[Waiting]:
        """Waits for an entry, then takes what has gathered."""
        run: list[Waiting] = []
        size = 0
        entry = self._queue.get()
        while entry is not None:
            run.append(entry)
            size += entry.size
            if size >= _RUN_BYTES_MAX or self._queue.empty():
                break
            entry = self._queue.get()
        return run

    def _commit(self, run: list[Waiting]) -> DlogError | None:
        """Why the appender is finished; None when it goes on, or was told to stop."""
        if self._stopping:
            return None
        frames = self._frames
        begin = frames.next_offset
        buffers: list[Buffer] = []
        for entry in run:
            buffers += frames.add(entry.buffers, entry.size, entry.last_confirmed)
        written = False
        try:
            self._reserve(frames.next_offset)
            written = True
            trace.before("ledger.written")
            _write_all(self._fd, buffers, begin)
            trace.after("ledger.written")
        except OSError as error:
            return self._failure(error, "write", Outcome.UNKNOWN if written else None)
        try:
            trace.before("ledger.synced")
            _sync(self._fd)
            trace.after("ledger.synced")
        except OSError as error:
            self._words.mark_sync_failed()
            return self._failure(error, "sync", Outcome.UNKNOWN)
        trace.before("ledger.looked")
        fenced = self._words.fenced
        trace.after("ledger.looked")
        if fenced:
            return Fenced(
                f"ledger {self._ledger_id} was recovered, closed or deleted by somebody else",
                ledger_id=self._ledger_id,
            )
        # The word first: recovery must know of every entry that anybody was told of.
        self._words.confirm(frames.last_offset)
        last = run[-1]
        self._on_confirmed(
            Confirmed(last.entry_id, frames.last_offset, last.last_confirmed, frames.bytes_total)
        )
        return None

    def _reserve(self, end: int) -> None:
        if end <= self._reserved_end:
            return
        wanted = end + self._reserve_bytes
        try:
            reserve(self._fd, self._reserved_end, wanted)
        except OSError as error:
            if error.errno not in _FULL_DISK:
                raise
            # No room for a stock; the entries themselves may still fit.
            wanted = end
            reserve(self._fd, self._reserved_end, wanted)
        self._reserved_end = wanted
        self._reserve_bytes = min(_RESERVE_LAST_BYTES, self._reserve_bytes * 2)

    def _failure(self, error: OSError, step: str, outcome: Outcome | None) -> Unavailable:
        """Nothing is tried again: which bytes reached the disk is known to nobody."""
        reason = errno.errorcode.get(error.errno or 0, "an unknown error")
        failure = Unavailable(
            f"cannot {step} {self._path}: {error.strerror} ({reason})",
            retry=Retry.AFTER_REOPEN,
            outcome=outcome or Outcome.NOT_HAPPENED,
            handle=Handle.DEAD,
            path=self._path,
            ledger_id=self._ledger_id,
            missing=self._path,
        )
        failure.__cause__ = error
        return failure

    def _end(self) -> None:
        if self._fd >= 0:
            try:
                # Only zeros above everything this thread ever tried to write: no scan needs them.
                if self._reserved_end > self._frames.next_offset:
                    os.ftruncate(self._fd, self._frames.next_offset)
            except OSError:
                pass  # the slack stays: it wastes room and harms nothing
            os.close(self._fd)
            self._fd = -1
        self._on_ended()


def _write_all(fd: int, buffers: list[Buffer], offset: int) -> None:
    """All of the buffers, from `offset` on; short writes and long lists are continued."""
    at = 0
    while at < len(buffers):
        part = buffers[at : at + _WRITE_BUFFERS_MAX]
        written = os.pwritev(fd, part, offset)
        offset += written
        for buffer in part:
            size = len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
            if written < size:
                break
            written -= size
            at += 1
        if written > 0:  # cut within a buffer
            buffers[at] = memoryview(buffers[at]).cast("B")[written:]

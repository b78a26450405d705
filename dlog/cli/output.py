"""Standard output of a command, and what happens when a write to it fails: its reader has closed
the pipe, the disk is full, or the stream was closed before the command began.

The first error is noted, and nothing is written behind it. A command that changes or judges
something goes on to its end, so that no work is left half done, and then fails with exit code 1. A
command that only prints stops at the failed write, and succeeds if its reader closed the pipe.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import io
import os
import select
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from dlog.cli.interrupts import INTERRUPTS

HURRY_S = 0.5


class Unheard(enum.Enum):
    """What a command does when a write to its standard output fails."""

    FINISH = "finish"  # the command goes on to its end, and fails there
    STOP = "stop"  # the command stops at the write, and says how far it came
    DONE = "done"  # the command stops at the write, and succeeds if the reader closed the pipe


@dataclass
class Output:
    """`error` is what the first write met that could not be done."""

    unheard: Unheard = Unheard.DONE
    error: OSError | None = None

    @property
    def is_left(self) -> bool:
        """Its reader closed the pipe."""
        return isinstance(self.error, BrokenPipeError)


# Standard error: what is lost there stops nothing.
ERRORS = Output(Unheard.FINISH)


class _Raw(io.RawIOBase):
    def __init__(self, fd: int, output: Output) -> None:
        self._fd = fd
        self._output = output

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while self._output.error is None:
            try:
                self._wait_for_room()
                # Bytes that were written and then forgotten would be written twice.
                with INTERRUPTS.held():
                    return os.write(self._fd, memoryview(data)[: select.PIPE_BUF])
            except BlockingIOError:  # another process made the shared stream non-blocking
                continue
            except OSError as error:
                self._output.error = error
                if self._output.unheard is not Unheard.FINISH:
                    raise
        return memoryview(data).nbytes

    def _wait_for_room(self) -> None:
        """A signal gets through here: behind it, so much fits that a write does not block."""
        INTERRUPTS.check()
        hurry_s = HURRY_S if INTERRUPTS.arrived else None
        if not select.select([], [self._fd], [], hurry_s)[1]:
            raise TimeoutError(errno.ETIMEDOUT, "its reader takes nothing")


class _Buffer(io.BufferedWriter):
    """A signal that arrived during a write is raised when the buffer knows what was written."""

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        INTERRUPTS.check()
        return count

    def flush(self) -> None:
        super().flush()
        INTERRUPTS.check()


def take_standard_streams(output: Output) -> None:
    """From now on what is printed goes through `output`. A stream that was closed before we began
    fails when it is used, and no file that is opened later takes its number."""
    for fd, wrong_way in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        with suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, wrong_way)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)
    sys.stdout = _text(1, output, sys.stdout)
    sys.stderr = _text(2, ERRORS, sys.stderr)


def _text(fd: int, output: Output, before: TextIO | None) -> TextIO:
    raw = _Buffer(_Raw(fd, output))
    if before is None:
        return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
    before.flush()
    by_line = bool(before.line_buffering)
    return io.TextIOWrapper(raw, before.encoding, before.errors, line_buffering=by_line)


def check(output: Output) -> None:
    """Before something that only standard output will tell: `OSError` where it is lost already."""
    sys.stdout.flush()
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    found = dict(poll.poll(0)).get(1, 0)
    if fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        output.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
    elif found & (select.POLLERR | select.POLLHUP):
        output.error = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    if output.error is not None:
        raise output.error


def flush(output: Output) -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        if output.error is None:  # not ours: of a caller in Python
            output.error = error


def told(error: OSError) -> str:
    if error.errno == errno.EBADF:
        return "standard output is closed"
    if error.errno == errno.EPIPE:
        return "standard output: its reader closed the pipe"
    return f"standard output: {error.strerror}"

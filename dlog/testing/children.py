"""Programs of tests as processes of their own: started, frozen, thawed, killed by id, always
reaped.

A `CrashPoint` names a step of a protocol (`dlog.trace.POINTS`), a side of it, which hit counts and
what happens then. The child arms it from its arguments and does it to itself, on the very thread
that reached the point; the parent waits for the fact. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from dlog import trace
from dlog.errors import FormatError

PATIENCE_S = 30.0
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The `hit`-th time (from 1) that `side` of `point` is reached, `what` happens."""

    point: str
    side: str
    hit: int = 1
    what: str = "kill"  # or `freeze`

    def __post_init__(self) -> None:
        """What names nothing would never happen."""
        if self.point not in trace.KNOWN_POINTS or self.side not in ("before", "after"):
            raise FormatError(f"no crash point: {str(self)!r}")
        if self.what not in ("kill", "freeze") or self.hit < 1:
            raise FormatError(f"no crash: {str(self)!r}")

    def __str__(self) -> str:
        return f"{self.point}:{self.side}:{self.hit}:{self.what}"

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        words = text.split(":")
        if len(words) != 4 or not words[2].isdecimal():
            raise FormatError(f"no crash point: {text!r} is not POINT:SIDE:HIT:WHAT")
        return cls(words[0], words[1], int(words[2]), words[3])


Hits = Counter[tuple[str, str]]


def arm(crash: CrashPoint | None) -> Hits:
    """In the child: count what is reached from now on, and crash where told."""
    hits: Hits = Counter()
    lock = threading.Lock()

    def on_point(point: str, side: str) -> None:
        with lock:
            hits[point, side] += 1
            reached = hits[point, side]
        if crash is not None and (point, side, reached) == (crash.point, crash.side, crash.hit):
            # To this thread: a stop sent to the process may let the sender run on for a while.
            number = signal.SIGKILL if crash.what == "kill" else signal.SIGSTOP
            signal.pthread_kill(threading.get_ident(), number)

    trace.listen(on_point)
    return hits


async def pause(seconds: float) -> None:
    """For programs that must not run in step with each other."""
    await asyncio.sleep(seconds)


class Process(Protocol):
    """A child of this process, with unbuffered pipes, as `subprocess.Popen` has them."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


# Runs a module, given with its arguments, in this environment; stderr goes to the file.
Spawn = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Process]


def start_interpreter(
    words: Sequence[str],
    env: Mapping[str, str],
    stderr: IO[bytes],
    *,
    through: Sequence[str] = (),
) -> Process:
    return subprocess.Popen(
        [*through, sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        bufsize=0,
    )


class Child:
    """One running program. Its output is read line by line; what it says on stderr is kept."""

    def __init__(self, process: Process, errors: Path) -> None:
        self._errors = errors
        self._process = process
        self.pid = process.pid
        self._pending = b""
        self._end_was_heard = False
        self.lines: list[str] = []

    # What it says, and what it is told.

    def read_line(self, patience_s: float = PATIENCE_S) -> str | None:
        """The next line, None when it ended."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + patience_s
        while b"\n" not in self._pending:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(left_s, 0))
            if not ready:
                raise AssertionError(f"{self} said nothing for {patience_s} s: {self.lines[-5:]}")
            more = self._process.stdout.read(1 << 16)
            if not more:
                self._end_was_heard = True
                return None
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]

    def wait_line(self, begin: str, patience_s: float = PATIENCE_S) -> str:
        """The next line that begins so."""
        while (line := self.read_line(patience_s)) is not None:
            if line.startswith(begin):
                return line
        raise AssertionError(f"{self} ended without saying {begin!r}: {self.told_errors()}")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def told_errors(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    # Freezing and ending.

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_frozen()

    def wait_frozen(self, patience_s: float = PATIENCE_S) -> None:
        """Until it is stopped, by us or by itself."""
        deadline_s = time.monotonic() + patience_s
        flags = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            seen = os.waitid(os.P_PID, self.pid, flags)
            if seen is not None:
                if seen.si_code == os.CLD_STOPPED:
                    return
                raise AssertionError(f"{self} ended instead of freezing: {self.told_errors()}")
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{self} did not freeze within {patience_s} s")
            time.sleep(_POLL_S)

    @property
    def is_running(self) -> bool:
        """Not ended; frozen or not."""
        runs = self._process.poll() is None
        self._end_was_heard |= not runs
        return runs

    @property
    def failed_unheard(self) -> int | None:
        """The exit code, if it ended by itself with an error and the test did not notice. SIGKILL
        is no such error: crash points end programs by it."""
        code = self._process.poll()
        return None if self._end_was_heard or code in (None, 0, -signal.SIGKILL) else code

    def thaw(self) -> None:
        """Of one that is awake, or gone: nothing happens."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)

    def wait_end(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit code, minus the signal that ended it."""
        while self.read_line(patience_s) is not None:
            pass
        return self._process.wait(patience_s)

    def wait_success(self, patience_s: float = PATIENCE_S) -> None:
        code = self.wait_end(patience_s)
        assert code == 0, f"{self} ended with {code}: {self.told_errors()}"

    def reap(self) -> None:
        """Whatever it does: it is gone when this returns."""
        self.kill()
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __str__(self) -> str:
        return f"child {self.pid}"


class Children:
    """Starts programs, and leaves none behind: use as a context. It raises `AssertionError` at its
    end if a program failed and nothing waited for that. `spawn` may start them in a way that is
    quicker than an interpreter for each."""

    def __init__(
        self, errors: Path, *, python_path: Path, spawn: Spawn = start_interpreter
    ) -> None:
        errors.mkdir(parents=True, exist_ok=True)
        self._errors = errors
        self._env = {"PYTHONPATH": os.fspath(python_path)}
        self._spawn = spawn
        self._running: list[Child] = []

    def start(self, module: str, *args: str, through: Sequence[str] = ()) -> Child:
        """`through` is a command that runs the rest of its arguments, as `unshare --mount`."""
        errors = self._errors / f"stderr-{len(self._running)}.txt"
        spawn = partial(start_interpreter, through=through) if through else self._spawn
        with errors.open("ab") as stderr:
            process = spawn([module, *args], {**os.environ, **self._env}, stderr)
        child = Child(process, errors)
        self._running.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        codes = {each: each.failed_unheard for each in self._running}
        for child in self._running:
            child.reap()
        failed = [
            f"{each} ended with {code}: {each.told_errors()}"
            for each, code in codes.items()
            if code
        ]
        if failed and kind is None:
            raise AssertionError("programs failed, unheard: " + "; ".join(failed))

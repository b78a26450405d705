"""Programs of their own, for what cannot be tried inside the tests' process: signals, forks, exits.

Each gets a preamble, says lines, and is held to a deadline; what it wrote to stderr is part of what
is asserted.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pace import Deadline

ROOT = Path(__file__).parents[2]
ANSWER_S = 20.0
LOOK_AGAIN_S = 0.5

PREAMBLE = '''
import asyncio, os, sys, threading, time
import dlog
from dlog import trace

URL = sys.argv[1]
_frozen = threading.Event()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def freeze_disk():
    """From now on no entry becomes durable."""
    _frozen.set()

def _on_point(point, side):
    if _frozen.is_set() and (point, side) == ("ledger.synced", "before"):
        threading.Event().wait()

trace.listen(_on_point)

def say_when_blocked():
    """Says `blocked` when the main thread sleeps on and on in the same frame at the same place."""
    main = threading.main_thread()

    def place():
        frame = sys._current_frames()[main.ident]
        return id(frame), frame.f_lasti

    def sleeps():
        try:
            with open(f"/proc/self/task/{main.native_id}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "S"
        except FileNotFoundError:
            return True  # no Linux: standing still must do

    def watch():
        same, last = 0, None
        while same < 25:
            now = place()
            same, last = (same + 1 if now == last and sleeps() else 0), now
            time.sleep(0.004)
        say("blocked")

    threading.Thread(target=watch, daemon=True).start()
'''


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += self.process.stderr.readlines()

    def line(self, timeout_s: float = ANSWER_S) -> str:
        """The next line it says."""
        deadline = Deadline(timeout_s)
        while True:
            try:
                line = self._lines.get(timeout=LOOK_AGAIN_S)
            except queue.Empty:
                assert not deadline.passed(), f"said nothing for {timeout_s} s"
            else:
                break
        assert line is not None, f"it ended: {self.errors}"
        return line

    def interrupt(self, signal_number: int) -> float:
        self.process.send_signal(signal_number)
        return time.monotonic()

    def end(self, timeout_s: float = ANSWER_S) -> tuple[int, list[str], str]:
        """Exit code, the lines not read yet, and stderr."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        lines = []
        while (line := self._lines.get(timeout=timeout_s)) is not None:
            lines.append(line)
        return code, lines, self.errors

    @property
    def errors(self) -> str:
        return "".join(self._errors)


@contextmanager
def program(url: str, code: str, *options: str) -> Iterator[Program]:
    source = PREAMBLE + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, *options, "-c", source, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    started = Program(process)
    try:
        yield started
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(ANSWER_S)
        for reader in started._readers:
            reader.join(ANSWER_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def run(url: str, code: str, *options: str) -> tuple[int, list[str], str]:
    """From start to end."""
    with program(url, code, *options) as started:
        return started.end()

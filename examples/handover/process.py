"""A service as a child process: told words, heard line by line. Every wait has a deadline."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0

Told = dict[str, Any]


class Process:
    def __init__(self, name: str, url: str, database: str, hear: Callable[[Told], None]) -> None:
        self.name = name
        self._hear = hear
        self._child = subprocess.Popen(
            [sys.executable, "-m", "examples.handover.service", name, url, database],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[Told | None] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            told = json.loads(line)
            self._hear(told)
            self._lines.put(told)
        self._lines.put(None)

    def tell(self, word: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()

    def wait_for(self, *what: str) -> Told:
        """The next thing it says that is one of these."""
        while True:
            try:
                told = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise SystemExit(f"{self.name} never said any of {what}") from None
            if told is None:
                raise SystemExit(f"{self.name} ended before it said any of {what}")
            if told["what"] in what:
                return told

    def wait_orders(self, count: int) -> None:
        for _ in range(count):
            self.wait_for("ordered")

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(PATIENCE_S)

    def freeze(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands still."""
        os.kill(self._child.pid, signal.SIGSTOP)
        _, status = os.waitpid(self._child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise SystemExit(f"{self.name} ended instead of standing still")

    def thaw(self) -> None:
        os.kill(self._child.pid, signal.SIGCONT)

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(PATIENCE_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass

"""A child process that talks in lines of JSON, and can be frozen and thawed. Every wait has a
deadline, so that the demo ends whatever happens."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 30.0


class Process:
    """One program of this folder, running."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", f"examples.demo.{module}", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next line it says."""
        try:
            line = self._lines.get(timeout=ANSWER_S)
        except queue.Empty:
            raise SystemExit(f"the demo failed: no answer from pid {self.pid}") from None
        if line is None:
            raise SystemExit(f"the demo failed: pid {self.pid} ended early")
        told: dict[str, Any] = json.loads(line)
        return told

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.hear()

    def freeze(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise SystemExit(f"the demo failed: pid {self.pid} ended instead of standing still")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def finish(self) -> int:
        """No more to say to it; its exit code."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self._child.wait(ANSWER_S)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.poll() is None:
            self._child.kill()  # also ends one that is frozen
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # it ended before reading what was left
                    continue

    def _collect(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put(None)

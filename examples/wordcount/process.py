"""A worker as a child process: it can be killed, frozen and thawed, and what it says is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0

Said = dict[str, Any]


def wait_until(fact: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> float:
    """How long it took."""
    began_s = time.monotonic()
    while not fact():
        if time.monotonic() > began_s + patience_s:
            raise SystemExit(f"it never came true in {patience_s:g} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - began_s


class Process:
    def __init__(self, name: str, url: str, database: Path, options: Mapping[str, object]) -> None:
        self.name = name
        self.said: list[Said] = []
        words = [f"{key}={value}" for key, value in options.items()]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "examples.wordcount.worker", name, url, str(database), *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.said.append(json.loads(line))

    def all(self, what: str) -> list[Said]:
        return [each for each in self.said.copy() if each["what"] == what]

    def shards(self) -> set[str]:
        """Those that it began and did not end."""
        had: set[str] = set()
        for each in self.said.copy():
            if each["what"] == "begins":
                had.add(each["log"])
            elif each["what"] == "ends":
                had.discard(each["log"])
        return had

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.reap()

    def freeze(self, is_harmless: Callable[[], bool]) -> None:
        """Where it holds nothing that everybody needs, such as the database."""
        while True:
            self._signal(signal.SIGSTOP)
            if is_harmless():
                return
            self.thaw()
            time.sleep(0.01)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._child.poll() is None:
            os.kill(self._child.pid, number)

    def leave(self) -> None:
        """Told to leave in good order; until it has."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        if self._child.wait(PATIENCE_S) != 0:
            raise SystemExit(f"{self.name} ended with {self._child.returncode}")
        self.reap()

    def reap(self) -> None:
        self._child.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def end(self) -> None:
        """However it is."""
        if self._child.poll() is None:
            self.thaw()
            self.kill()

"""Questions to a program of ours in a process of its own, and its answers: one line of JSON each,
over its standard input and output. Questions may overlap, since one may wait for what another does;
each comes back as a future, which a loop or a plain thread can wait for. What the program refuses
is raised as `Refused`. It takes the first question once it has said {"ready": true}, and the end of
its input is its end; it also dies with us.

`Conversation.java` is a Java program's half.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dlog.errors import Unavailable
from dlog.testing.cluster import keeper

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0


class Refused(Exception):
    """What a program answered instead of an answer: the name of the exception there, and for one of
    BookKeeper's its code."""

    def __init__(self, code: int | None, name: str, message: str) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.code = code
        self.name = name


class Program:
    """One program that answers. `words` is the command; what it writes to standard error goes to
    `log_path`.

    `start()` belongs on a thread that lives as long as the program shall: the kernel ends it with
    that thread."""

    def __init__(
        self,
        name: str,
        words: Callable[[], list[str]],
        directory: Path,
        *,
        working_directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log_path = directory / "log.txt"
        self._words, self._directory = words, directory
        self._working_directory = working_directory or directory
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._hearing: threading.Thread | None = None
        self._ready: Future[None] = Future()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Returns when questions are taken."""
        self._directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *self._words()]
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._working_directory,
                start_new_session=True,
            )
        self._hearing = threading.Thread(
            target=self._hear, args=(self._child,), name=self.name, daemon=True
        )
        self._hearing.start()
        self._ready.result(START_TIMEOUT_S)

    def ask(self, what: str, **details: Any) -> Future[Any]:
        """Ask at once; the future holds the answer, or `Refused`."""
        told: Future[Any] = Future()
        with self._lock:
            child = self._child
            if child is None or child.stdin is None:
                raise Unavailable(f"{self.name} is not running")
            number = next(self._numbers)
            self._asked[number] = told
            line = json.dumps({"number": number, "what": what, **details})
            try:
                child.stdin.write(line.encode() + b"\n")
                child.stdin.flush()
            except OSError as error:
                self._asked.pop(number, None)
                raise Unavailable(f"{self.name} is gone:\n{self.log_tail()}") from error
        return told

    def tell(self, what: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **details: Any) -> Any:
        """Ask and wait on this thread."""
        return self.ask(what, **details).result(timeout_s)

    async def call(self, what: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **details: Any) -> Any:
        """Ask and wait on the loop."""
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(self.ask(what, **details))

    def stop(self) -> None:
        """kill -9 for one that does not end with its input. Idempotent."""
        with self._lock:
            child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if self._hearing is not None:
            self._hearing.join(STOP_TIMEOUT_S)
        child.stdout.close()

    def kill(self) -> None:
        """kill -9, as a crash of it."""
        child = self._child
        if child is not None:
            child.kill()
        self.stop()

    def log_tail(self, lines: int = 12) -> str:
        try:
            told = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "(it wrote no log)"
        return "\n".join(told.splitlines()[-lines:])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _hear(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            told = json.loads(line)
            if "ready" in told:
                self._ready.set_result(None)
                continue
            with self._lock:
                future = self._asked.pop(told["number"], None)
            if future is None or not future.set_running_or_notify_cancel():
                continue  # whoever asked has gone
            error = told.get("error")
            if error is None:
                future.set_result(told["answer"])
            else:
                future.set_exception(Refused(error["code"], error["name"], error["message"]))
        gone = Unavailable(f"{self.name} ended:\n{self.log_tail()}")
        with self._lock:
            left = [*self._asked.values()]
            self._asked.clear()
        if not self._ready.done():
            self._ready.set_exception(gone)
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(gone)

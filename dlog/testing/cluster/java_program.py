"""A small Java program beside us that is asked things: for tests against the stock client, and for
benchmarks of it. Its sources are compiled here, against the jars of one release, and kept in the
user's cache under their digest; then one JVM answers line by line until we are done with it.

Questions may overlap; each comes back as a future of its own, which a loop or a plain thread can
wait for. What the program refuses is raised as `JavaRefused`, with BookKeeper's code. Its half of
the conversation is `Conversation.java`, next to this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from dlog.errors import Unavailable
from dlog.testing.cluster import keeper
from dlog.testing.cluster.jars import BOOKKEEPER_DEFAULT, cache_directory, class_path, find_program
from dlog.testing.cluster.process import JavaCommand

COMPILE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
_CONVERSATION = Path(__file__).parent / "Conversation.java"


class JavaRefused(Exception):
    """What a Java program answered instead of an answer. `code` is BookKeeper's, None for other
    failures; `name` that of Java's exception."""

    def __init__(self, code: int | None, name: str, message: str) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.code = code
        self.name = name


def why_not_compiled() -> str | None:
    """One sentence when nothing can be compiled here. The servers alone need no compiler."""
    if find_program("javac", os.environ.get("JAVA_HOME")) is None:
        return "no javac on PATH (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
    return None


def compiled(sources: Sequence[Path], version: str = BOOKKEEPER_DEFAULT) -> str:
    """The class path of a program: its own classes, then all jars of that release."""
    jars = class_path(version)
    every = [_CONVERSATION, *sources]
    digest = hashlib.sha256(jars.encode())
    for source in every:
        digest.update(source.read_bytes())
    kept = cache_directory(version) / f"classes-{digest.hexdigest()[:16]}"
    if not kept.is_dir():
        _compile(every, jars, kept)
    return os.pathsep.join((str(kept), jars))


def _compile(sources: Sequence[Path], jars: str, kept: Path) -> None:
    javac = find_program("javac", os.environ.get("JAVA_HOME"))
    if javac is None:
        raise Unavailable(why_not_compiled() or "no javac on PATH", missing=["javac"])
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        made = Path(scratch) / "classes"
        command = [str(javac), "-proc:none", "-d", str(made), "-cp", jars, *map(str, sources)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"javac refused our sources:\n{done.stderr}")
        # Whole or not at all, also when two runs compile the same at once.
        with contextlib.suppress(OSError):
            made.rename(kept)


class JavaProgram:
    """One JVM that answers. `start()` belongs on a thread that lives as long as the program shall:
    the kernel ends it with that thread."""

    def __init__(
        self,
        main: str,
        arguments: Sequence[str],
        *,
        sources: Sequence[Path],
        directory: Path,
        version: str = BOOKKEEPER_DEFAULT,
        heap_mb: int = 256,
        direct_mb: int | None = None,
        quick: bool = True,
    ) -> None:
        self.name = f"Java program {main}"
        self.log_path = directory / "log.txt"
        self._directory = directory
        self._sources, self._version = sources, version
        self._main, self._arguments = main, arguments
        self._heap_mb, self._direct_mb, self._quick = heap_mb, direct_mb, quick
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
        """Compiles what is not compiled yet, starts, and waits until questions are taken."""
        self._directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
        words += JavaCommand(
            self._main,
            self._arguments,
            compiled(self._sources, self._version),
            heap_mb=self._heap_mb,
            direct_mb=self._direct_mb,
            quick=self._quick,
        ).words(self._directory)
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
            )
        self._hearing = threading.Thread(target=self._hear, name=self.name, daemon=True)
        self._hearing.start()
        self._ready.result(START_TIMEOUT_S)

    def ask(self, what: str, **details: Any) -> Future[Any]:
        """Ask at once; the future holds the answer, or `JavaRefused`."""
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
        """The end of its input ends it; kill -9 for one that does not listen."""
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

    def __enter__(self) -> JavaProgram:
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

    def _hear(self) -> None:
        child = self._child
        assert child is not None
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
            refused = told.get("error")
            if refused is None:
                future.set_result(told["answer"])
            else:
                future.set_exception(
                    JavaRefused(refused["code"], refused["name"], refused["message"])
                )
        gone = Unavailable(f"{self.name} ended:\n{self.log_tail()}")
        with self._lock:
            left = [*self._asked.values()]
            self._asked.clear()
        if not self._ready.done():
            self._ready.set_exception(gone)
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(gone)

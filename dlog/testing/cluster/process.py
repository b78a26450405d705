"""One JVM as a child of ours: a log file, a way to ask whether it serves, and the signals tests
need. It dies with its parent, also when the parent is killed -9, unless it is `detached`; then it
outlives us, and `identity()` tells later whether a pid is still that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import Unavailable
from dlog.testing.cluster import archive, keeper
from dlog.testing.cluster.jars import find_java, why_not

POLL_S = 0.05
FREEZE_POLL_S = 0.001
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux
LOG_TAIL_LINES = 12

# Netty and RocksDB ask for these; the rest makes a short life cheap: one thread of garbage
# collection, and no optimising compiler, which pays off only after minutes.
_OPENS = ("java.io", "java.util.zip", "java.nio", "jdk.internal.misc", "sun.nio.ch")
_FLAGS = (
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.jfr.enabled=false",
    "-Dlog4j2.disableJmx=true",
    "-XX:-UsePerfData",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS),
)
# What a server says while it shuts down is said, too: without `shutdownHook` log4j is gone by then,
# and a class that asks for a logger for the first time ends the shutdown half way.
_LOG4J = """status = error
shutdownHook = disable
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True)
class JavaCommand:
    """What to run: a main class with its arguments, and how much it may take."""

    main: str
    arguments: Sequence[str]
    class_path: str
    heap_mb: int
    direct_mb: int | None = None
    quick: bool = True  # no optimising compiler: right for tests, wrong for benchmarks
    properties: Sequence[str] = ()  # name=value

    def words(self, directory: Path) -> list[str]:
        java = find_java()
        if java is None:
            raise Unavailable(why_not() or "no java on PATH", missing=["java"])
        settings = directory / "log4j2.properties"
        settings.write_text(_LOG4J, encoding="utf-8")
        scratch = directory / "tmp"  # libraries unpacked by the JVM go away with the directory
        scratch.mkdir(exist_ok=True)
        return [
            str(java),
            *_FLAGS,
            f"-Xmx{self.heap_mb}m",
            *(() if self.direct_mb is None else (f"-XX:MaxDirectMemorySize={self.direct_mb}m",)),
            *(self._quick_flags(java) if self.quick else ()),
            f"-Djava.io.tmpdir={scratch}",
            f"-Dlog4j2.configurationFile={settings}",
            *(f"-D{line}" for line in self.properties),
            "-cp",
            self.class_path,
            self.main,
            *self.arguments,
        ]

    def _quick_flags(self, java: Path) -> list[str]:
        return ["-XX:TieredStopAtLevel=1", *archive.flags(java, self.main, self.class_path)]


class JavaProcess:
    """A server that can be started, killed, frozen, thawed and started again.

    `start()` belongs on a thread that lives as long as the process shall: the kernel's promise is
    tied to it. `serves` is asked again and again, and answers within a moment."""

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Callable[[], JavaCommand],
        serves: Callable[[], bool],
        *,
        detached: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory
        self.log_path = directory / "log.txt"
        self._command = command
        self._serves = serves
        self._detached = detached
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None while it is down."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> None:
        """Start it and return at once; `wait_until_serving` waits."""
        if self.pid is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        words = self._command().words(self.directory)
        if not self._detached:
            # `-I -S`: nothing of the environment, and no site packages; it takes 15 ms.
            words = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *words]
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C in a terminal is ours to handle
            )

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        end_s = time.monotonic() + timeout_s
        while not self._serves():
            if self.pid is None:
                raise Unavailable(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > end_s:
                raise Unavailable(
                    f"{self.name} does not serve after {timeout_s:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def kill(self) -> None:
        """kill -9; returns when it is gone. Also when it is frozen."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def terminate(self) -> None:
        """SIGTERM, and kill -9 for one that does not listen."""
        if self._child is None:
            return
        self._signal(signal.SIGCONT)
        self._child.terminate()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def freeze(self) -> None:
        """Returns when every thread of it stands still, which is not at once on a busy machine.
        Raises `Unavailable` for one that is down or ends meanwhile."""
        self._signal(signal.SIGSTOP)
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while (pid := self.pid) is not None:
            # WNOWAIT: its end, too, is for others to collect.
            seen = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is not None and seen.si_code == os.CLD_STOPPED:
                return
            if time.monotonic() > end_s:
                raise Unavailable(f"{self.name} is not frozen after {STOP_TIMEOUT_S:.0f} s")
            time.sleep(FREEZE_POLL_S)
        raise Unavailable(f"{self.name} is not running, so it cannot be frozen")

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def forget(self) -> None:
        """A detached process goes on without us."""
        if self._child is not None:
            self._child.returncode = 0  # or Popen would warn that it still runs
            self._child = None

    def log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return "(it wrote no log)"
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self._child is not None:
            self._child.send_signal(number)


def run_to_end(name: str, directory: Path, command: JavaCommand, *, timeout_s: float) -> str:
    """A tool that does one thing and ends; what it said."""
    directory.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
    words += command.words(directory)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=directory, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{name} did not end in {timeout_s:.0f} s") from error
    told = done.stdout + done.stderr
    if done.returncode != 0:
        tail = "\n".join(told.splitlines()[-LOG_TAIL_LINES:])
        raise Unavailable(f"{name} failed with code {done.returncode}:\n{tail}")
    return told


def identity(pid: int) -> str | None:
    """A text that only this very process has, for as long as it runs: pids come again, pids with a
    start time do not. None when there is no such process."""
    if _BOOT_ID.is_file():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return None
        # The name in parentheses may hold anything; state is the first field after it, the start
        # time the twentieth.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None

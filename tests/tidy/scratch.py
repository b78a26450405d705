"""Where a run of the tests puts its files: in memory where the machine has enough of it.

Half of the wall time of the API suite and of the servers was waiting for `fsync` of a disk. Tests
kill processes; none cuts the power, so a file system in memory keeps the same promises to them.
`make full` stays on disk. `DLOG_TEST_SCRATCH` names another directory.

    python -m tests.tidy.scratch [--disk]     # makes a directory and prints its path
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

PREFIX = "dlog-tests-"
KEPT_S = 6 * 3600.0  # longer than any run takes
ENV = "DLOG_TEST_SCRATCH"
MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 6 << 30  # of the file system and of the memory: a run needs less than half of it
_MEMINFO = Path("/proc/meminfo")


def memory_available(meminfo: Path = _MEMINFO) -> int:
    """In bytes, as the kernel estimates it. 0 where it says nothing."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    return int(found) << 10


def base(*, disk: bool, memory: Path = MEMORY, available: int | None = None) -> Path:
    """The directory to make scratch directories in."""
    if told := os.environ.get(ENV):
        return Path(told)
    fallback = Path(tempfile.gettempdir())
    if disk or not os.access(memory, os.W_OK):
        return fallback
    system = os.statvfs(memory)
    is_executable = not system.f_flag & getattr(os, "ST_NOEXEC", 0)  # servers load libraries there
    free = min(
        system.f_bavail * system.f_frsize, memory_available() if available is None else available
    )
    return memory if is_executable and free >= FREE_BYTES_MIN else fallback


def make(where: Path, now_s: float | None = None) -> Path:
    """A new directory in there. Those that failed runs kept are removed when they are old."""
    oldest_s = (time.time() if now_s is None else now_s) - KEPT_S
    for kept in where.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or just gone
            if kept.stat().st_uid == os.getuid() and kept.stat().st_mtime < oldest_s:
                shutil.rmtree(kept, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))


if __name__ == "__main__":
    sys.stdout.write(f"{make(base(disk='--disk' in sys.argv))}\n")

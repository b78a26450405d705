"""Moments of a command at which a signal can arrive: each step that `dlog.trace` announces, and
each write to standard output or standard error. A forked command counts them, and sends itself a
signal at the one that was asked for. So no test waits for a time."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlog import trace
from dlog.cli import interrupts
from dlog.cli.interrupts import INTERRUPTS

FILE, WANTED = "TEST_MOMENTS", "TEST_SIGNAL"
HANDLED_S = 60.0
STEP_S = 600.0  # however slow the machine is, a step that goes on comes to its end


def wanted(kind: str, number: int, which: signal.Signals, times: int = 1) -> str:
    """For the environment: the signal arrives at that moment of this kind, `store` or `output`."""
    return f"{kind} {number} {which.value} {times}"


def arm(environment: Mapping[str, str]) -> None:
    """In a forked command, before it runs. At its end the file has how many moments there were."""
    if FILE not in environment:
        return
    kind, number, which, times = environment.get(WANTED, "none 0 0 0").split()
    counted: Counter[str] = Counter()
    lock = threading.Lock()

    def reached(what: str) -> None:
        with lock:
            counted[what] += 1
            is_now = what == kind and counted[what] == int(number)
        if is_now:
            counted["sent"] += 1
            for _ in range(int(times)):
                _send(int(which))

    def write(fd: int, data: Any) -> int:
        if fd in (1, 2):
            reached("output")
        return really_write(fd, data)

    interrupts.STEP_S = STEP_S
    really_write, os.write = os.write, write  # type: ignore[assignment]
    trace.listen(lambda point, side: reached("store"))
    atexit.register(lambda: Path(environment[FILE]).write_text(json.dumps(counted)))


def _send(which: int) -> None:
    """Returns when the main thread has seen it."""
    before = len(INTERRUPTS.arrived)
    os.kill(os.getpid(), which)
    if threading.current_thread() is not threading.main_thread():
        until = time.monotonic() + HANDLED_S
        while len(INTERRUPTS.arrived) == before and time.monotonic() < until:
            threading.Event().wait(0.001)


def counts(file: Path) -> Counter[str]:
    return Counter(json.loads(file.read_text()))

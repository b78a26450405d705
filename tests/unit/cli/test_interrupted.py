"""Every command, and a signal at every moment of it. A command that was interrupted does not exit
with 0. What it did by then is told, and the same command completes what it left.

Each command runs once in peace, which counts its moments: steps of the stores, and writes to its
outputs. Then it is interrupted at some of them, or, in the tier `full`, at each.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dlog
from tests.unit.cli import signal_points
from tests.unit.cli.conftest import ANSWER_S, Shell
from tests.unit.cli.every_command import (
    CASES,
    Case,
    state_of,
    words_of,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TALLY = re.compile(r"(\d+) of (\d+) messages acknowledged(?:, (\d+) without an answer)?")
NOTHING = "nothing was changed|may or may not|is not written|goes on with the copy"
NOT_TWICE = ("produce", "config set", "config rollback")  # run again, they do the same once more


@pytest.fixture
def shell(shell: Shell, prepared: Path) -> Shell:
    shutil.copytree(prepared / "logs", shell.home / "as it was")
    return shell


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    counted: Counter[str]


def _run(shell: Shell, words: list[str], feed: bytes, wanted: str = "none 0 0 0") -> Ended:
    beside = shell.home.parent / f"{shell.home.name}-beside"
    beside.mkdir(exist_ok=True)
    (beside / "in").write_bytes(feed)
    counted = beside / "counted"
    counted.unlink(missing_ok=True)
    with ExitStack() as stack:
        stdin = stack.enter_context((beside / "in").open("rb"))
        out, err = (stack.enter_context((beside / name).open("wb")) for name in ("out", "err"))
        more = {signal_points.FILE: str(counted), signal_points.WANTED: wanted}
        code = shell.dlog_on([stdin, out, err], *words, more=more)
    told = [(beside / name).read_text() for name in ("out", "err")]
    assert "Traceback" not in told[1], told[1]
    assert "fault of dlog" not in told[1], told[1]
    return Ended(code, *told, signal_points.counts(counted))


def _anew(shell: Shell, kept: list[str]) -> None:
    """As it was, but for these files."""
    shutil.rmtree(shell.home / "logs", ignore_errors=True)
    for file in shell.home.iterdir():
        if file.is_file() and file.name not in kept:
            file.unlink()
    shutil.rmtree(shell.home / "there", ignore_errors=True)
    shutil.copytree(shell.home / "as it was", shell.home / "logs")


def _some(calm: Counter[str], *, tells: bool) -> list[tuple[str, int]]:
    """In the middle of the steps of the stores, and at the last output; of a command that changes
    nothing at one of them."""
    chosen = [("store", calm["store"] // 2)] if calm["store"] > 1 else []
    chosen += [("output", calm["output"])] if calm["output"] else []
    return chosen[-1:] if tells else chosen


def _all(calm: Counter[str]) -> list[tuple[str, int]]:
    return [(kind, number + 1) for kind in ("store", "output") for number in range(calm[kind])]


class Ring:
    """One command, interrupted."""

    def __init__(self, name: str, shell: Shell) -> None:
        self.name, self.case, self.shell = name, CASES[name], shell
        self.words = words_of(self.case, shell)
        _anew(shell, [])
        self.before = state_of(shell.home)
        self.calm = _run(shell, self.words, self.case.feed)
        assert self.calm.code == (1 if "damaged" in name else 0), self.calm.err
        self.wanted = state_of(shell.home)

    def interrupt(
        self,
        kind: str,
        number: int,
        which: signal.Signals,
        times: int = 1,
        *,
        is_completed: bool = True,
    ) -> None:
        _anew(self.shell, self.before["files"])
        wanted = signal_points.wanted(kind, number, which, times)
        ended = _run(self.shell, self.words, self.case.feed, wanted)
        if not ended.counted["sent"]:  # threads took turns otherwise, and there were fewer
            assert ended.code == self.calm.code
            return
        where = f"{self.name}: {which.name} at {kind} {number}: {ended}"
        assert ended.code in {128 + which, self.calm.code or 128 + which}, where
        after = state_of(self.shell.home)
        if self.case.tells:
            assert self._without_bench(after) == self.before, where
            return
        if self.name.startswith("produce"):
            self._check_tally(after, ended, where)
        elif after == self.before == self.wanted:
            pass  # it found nothing to do, or only judges
        elif after == self.before and re.search(NOTHING, ended.err):
            pass
        elif after == self.wanted and (times == 1 or self._is_told(ended)):
            assert self._is_told(ended), where
        else:
            assert times > 1 or self.name == "copy", where
            assert re.search(f"{NOTHING}|cut short", ended.err), where
        if is_completed:
            self._complete(after == self.wanted, where)

    def _without_bench(self, after: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in after.items() if "dlog-bench" not in name}

    def _check_tally(self, after: dict[str, Any], ended: Ended, where: str) -> None:
        name = "stream clicks" if "stream" in self.name else "orders"
        at = 0 if "stream" in self.name else 2
        landed = after[name][at] - self.before[name][at]
        told = TALLY.search(ended.err)
        assert told is not None, where
        acknowledged, sent, unknown = (int(each or 0) for each in told.groups())
        assert acknowledged + unknown == sent, where
        assert acknowledged <= landed <= sent, where
        if acknowledged:
            assert re.search(r"\d+:\d+:\d+", ended.err + ended.out), where

    def _is_told(self, ended: Ended) -> bool:
        """As in peace, or by a word of its own."""
        told = self.calm.out + self.calm.err
        if not told:
            return "is there" in ended.err
        if "log leaves" in self.name:  # no document is as another one
            return "left for" in ended.err
        if self.name == "copy":
            return re.search("cut short|copied|goes on", ended.err) is not None
        return all(line in ended.out + ended.err for line in self.calm.out.splitlines()) and (
            self.calm.out != "" or self.calm.err.splitlines()[-1] in ended.err
        )

    def _complete(self, is_done: bool, where: str) -> None:
        if self.name.startswith(NOT_TWICE):
            return
        words = [*self.words, *(["--force"] if "log leaves" in self.name else [])]
        again = _run(self.shell, words, self.case.feed)
        assert state_of(self.shell.home) == self.wanted, f"{where}; and again: {again}"
        assert is_done or again.code == self.calm.code, f"{where}; and again: {again}"


@pytest.mark.parametrize("name", CASES)
def test_interrupted_at_some_moments(name: str, shell: Shell) -> None:
    ring = Ring(name, shell)
    turn = list(CASES).index(name)
    for place, (kind, number) in enumerate(_some(ring.calm.counted, tells=ring.case.tells)):
        which = SIGNALS[(turn + place) % 3]
        ring.interrupt(kind, number, which, is_completed=place == 0)


@pytest.mark.tier("full", seconds=20)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_at_each_moment(name: str, times: int, shell: Shell) -> None:
    """By one signal, and by two, which leave no step the time to come to its end."""
    ring = Ring(name, shell)
    for turn, (kind, number) in enumerate(_all(ring.calm.counted)):
        ring.interrupt(kind, number, SIGNALS[turn % 3], times)


FOLLOWING = {
    "tail": ("tail -f orders", "output"),
    "tail (a stream)": ("tail -f clicks", "output"),
    "top": ("top orders --interval 100ms", "output"),
    "copy": ("copy -f {url} orders {url} copied", "store"),
}


@pytest.mark.parametrize("which", SIGNALS)
@pytest.mark.parametrize("name", FOLLOWING)
def test_what_runs_until_it_is_interrupted_ends_cleanly(
    name: str, which: signal.Signals, shell: Shell
) -> None:
    _anew(shell, [])
    told, kind = FOLLOWING[name]
    words = words_of(Case(told), shell)
    number = 1
    if kind == "store":
        calm = _run(shell, [each for each in words if each != "-f"], b"").counted
        number = calm[kind] // 2
        _anew(shell, [])
    ended = _run(shell, words, b"", signal_points.wanted(kind, number, which))
    assert (ended.code, ended.counted["sent"]) == (128 + which, 1), ended
    if name == "copy":
        assert "cut short" in ended.err or "interrupted" in ended.err


def test_a_second_signal_ends_a_step_that_does_not_end(shell: Shell) -> None:
    """It is not known then how the step ended, and that is told."""
    ring = Ring("truncate", shell)
    committed = ring.calm.counted["store"] - 1
    ring.interrupt("store", committed, signal.SIGTERM, times=2)


def test_a_signal_that_was_ignored_stays_ignored(shell: Shell) -> None:
    """As under nohup."""
    _anew(shell, [])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = shell.start("produce", "orders", "--sync")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"a\n")
    child.stdin.flush()
    assert child.stdout.readline() != b""
    child.send_signal(signal.SIGHUP)
    _, err = child.communicate(b"b\n", timeout=ANSWER_S)
    assert child.returncode == 0, err
    with dlog.connect(shell.url) as client:
        assert client.admin.status("orders").next_seq == 22


def test_a_reader_that_takes_nothing_does_not_keep_an_interrupted_command(shell: Shell) -> None:
    """Its pipe is full: the command waits in a write when the signal arrives."""
    _anew(shell, [])
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append_many([b"x" * 1000] * 1000)
    child = shell.start("tail", "orders", "-n", "1000", "-f")
    assert child.stdout is not None
    child.stdout.read(1)  # it writes now, and the pipe takes less than it has
    child.send_signal(signal.SIGTERM)
    assert child.wait(ANSWER_S) == 143

"""Runs of chosen tests in a tree with or without a mutant: how far one came, what failed first."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.draw import Mutant
from tests.mutants.mapping import end_within
from tests.mutants.patching import is_in_place
from tests.mutants.priority import keep_priority
from tests.mutants.scratch import Scratch

TOOL = Path(__file__).resolve().parents[2]
IMPORT_S = 60.0
COLLECT_S = 300.0
SLOWNESS_MAX = 8.0
_PYTEST = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]


@dataclass(slots=True)
class Ran:
    """`failed` is what failed, hung or took the process down; `ended` counts what passed."""

    failed: str | None = None
    manner: str = ""
    ended: int = 0
    finished: bool = False  # in time
    begun: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which tests are to run, and the seconds of each; none of `without`."""

    limits: Mapping[str, float]
    without: Sequence[str] = ()
    mutant: Mutant | None = None

    @property
    def module(self) -> str | None:
        if self.mutant is None:
            return None
        path = self.mutant.edit.path.removesuffix(".py").removesuffix("/__init__")
        return path.replace("/", ".")

    def write(self, scratch: Path) -> Path:
        mutant = self.mutant
        asked = scratch / "asked.json"
        told = {
            "limits": self.limits,
            "without": list(self.without),
            "modules": [self.module] if self.module else [],
            "path": mutant.edit.path if mutant else "",
            "source": mutant.source if mutant else "",
            "mutated": mutant.edit.apply(mutant.source) if mutant else "",
        }
        asked.write_text(json.dumps(told), encoding="utf-8")
        (scratch / "told").touch()
        return asked


def slowness() -> float:
    """How many times as long as on a quiet machine things take, by those that wait for a core."""
    return min(SLOWNESS_MAX, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


class Runner:
    """Runs tests of one scratch tree. What a fork of a process that has loaded everything can do is
    done so; an edit of what an import does takes a process of its own."""

    def __init__(
        self, scratch: Scratch, files: Iterable[str] = (), tier: str | None = None
    ) -> None:
        self._scratch = scratch
        self._pytest = [*_PYTEST, *(["--tier", tier] if tier else [])]
        self._files = list(files)
        self._loaded: _Loaded | None = None

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()

    def run(
        self,
        limits: Mapping[str, float],
        seconds: float,
        *,
        mutant: Mutant | None = None,
        without: Sequence[str] = (),
    ) -> Ran:
        """Run these tests, each within its limit, until one fails or the seconds are over. All
        times are those of a quiet machine."""
        slow = slowness()
        asked = Asked({name: slow * limit for name, limit in limits.items()}, without, mutant)
        with ExitStack() as stack:
            made = tempfile.TemporaryDirectory(prefix="dm-", ignore_cleanup_errors=True)
            place = Path(stack.enter_context(made))
            loaded = self._load() if mutant is None or is_in_place(mutant.edit) else None
            if mutant is not None:
                stack.enter_context(self._scratch.mutated(mutant.edit))
            if loaded is not None:
                finished = loaded.run(asked.write(place), slow * seconds)
                ran = _told(place / "told", asked.limits, finished, time.monotonic())
                if ran.manner != "unpatchable":
                    return ran
                (place / "told").unlink()
            return _run_alone(self._pytest, self._scratch.tree, asked, place, slow * seconds)

    def can_import(self, mutant: Mutant) -> bool:
        with self._scratch.mutated(mutant.edit), tempfile.TemporaryDirectory() as made:
            done = subprocess.run(
                [sys.executable, "-c", f"import {Asked({}, (), mutant).module}"],
                cwd=self._scratch.tree,
                env=environment(self._scratch.tree, Path(made)),
                capture_output=True,
                check=False,
                timeout=IMPORT_S * SLOWNESS_MAX,
            )
        return done.returncode == 0

    def _load(self) -> _Loaded | None:
        if not self._files:
            return None
        if self._loaded is None or not self._loaded.is_alive():
            self._loaded = _Loaded(self._pytest, self._scratch.tree, self._files)
        return self._loaded


def environment(tree: Path, scratch: Path) -> dict[str, str]:
    """With the tree before all else, and nothing of the caller's that tests go by."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(tree), str(TOOL)]),
        "TMPDIR": str(scratch),
        "OPENBLAS_NUM_THREADS": "1",  # what forks has one thread
    }


class _Loaded:
    """A process that has collected the tests and forks for each run: see `forking.py`."""

    def __init__(self, pytest: Sequence[str], tree: Path, files: Sequence[str]) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="dm-", ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = [*pytest, "-p", "tests.mutants.forking", "--continue-on-collection-errors"]
        command += [f"--basetemp={self._made.name}/t", *files]
        pipes = {"MUTANTS_PIPES": f"{commands},{answers}"}
        self._process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree, Path(self._made.name)) | pipes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(commands, answers),
            start_new_session=True,
            preexec_fn=keep_priority,
        )
        os.close(commands)
        os.close(answers)
        self._rest = b""
        self._expect("ready", COLLECT_S * SLOWNESS_MAX)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, asked: Path, seconds: float) -> bool:
        """Whether the run ended in time."""
        os.write(self._commands, f"{asked}\n".encode())
        child = int(self._expect("forked", IMPORT_S * SLOWNESS_MAX))
        try:
            self._expect("ended", seconds)
            return True
        except TimeoutError:
            _end_group(child)
            self._expect("ended", IMPORT_S)
            return False
        finally:
            _end_group(child)

    def close(self) -> None:
        os.close(self._commands)
        end_within(self._process, 10.0)
        os.close(self._answers)
        self._made.cleanup()

    def _expect(self, word: str, seconds: float) -> str:
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError(word)
            got = os.read(self._answers, 4096)
            if not got:
                raise RuntimeError("the process that collects the tests ended")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        told, _, value = line.decode().partition(" ")
        if told != word:
            raise RuntimeError(f"{told} came where {word} was expected")
        return value


def _run_alone(pytest: Sequence[str], tree: Path, asked: Asked, place: Path, seconds: float) -> Ran:
    told = {"MUTANTS_CHOSEN": str(asked.write(place)), "MUTANTS_TOLD": str(place / "told")}
    files = list(dict.fromkeys(name.partition("::")[0] for name in asked.limits))
    process = subprocess.Popen(
        [*pytest, "-x", "-p", "tests.mutants.chosen", f"--basetemp={place}/t", *files],
        cwd=tree,
        env=environment(tree, place) | told,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=keep_priority,
    )
    finished = end_within(process, seconds)
    return _told(place / "told", asked.limits, finished, time.monotonic())


def _end_group(leader: int) -> None:
    """Of a fork and all that it started; nobody else has the number while it lives."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _told(told: Path, limits: Mapping[str, float], finished: bool, now: float) -> Ran:
    ran = Ran(finished=finished)
    under_way, since = "", now
    complete = False
    for line in told.read_text(encoding="utf-8").splitlines():
        what, name, at = json.loads(line)
        if what == "begun":
            under_way, since = name, at
            ran.begun.append(name)
        elif what == "ended":
            under_way = ""
            ran.ended += 1
        elif what == "done":
            complete = True
        elif ran.failed is None:
            ran.failed, ran.manner = name, what
    if ran.failed is None and under_way:
        if finished:
            ran.failed, ran.manner = under_way, "ended the process"
        elif now - since > _limit(limits, under_way):
            ran.failed, ran.manner = under_way, "hangs"
    elif ran.failed is None and finished and not complete:
        ran.failed, ran.manner = next(iter(limits)), "ended the process"
    return ran


def _limit(limits: Mapping[str, float], name: str) -> float:
    return limits.get(name) or limits.get(name.partition("::")[0], 0.0)

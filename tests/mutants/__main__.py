"""Draws mutants of the production code by a seed, runs the tests that know each one's line, and
reports which ones no test noticed.

    python -m tests.mutants [--seed S] [--count N] [--rooms writer reader] [--only 3,17]
    python -m tests.mutants map [--tier check] [--seconds S] [FOLDER_OR_FILE ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import mapping, report
from tests.mutants.coverage_map import CoverageMap, MappedTest
from tests.mutants.draw import Mutant, draw, modules
from tests.mutants.runs import Runner, slowness
from tests.mutants.scratch import Scratch, copy_tree, tracked_files
from tests.mutants.trials import Unsteady, Verdict, chosen_tests, try_one
from tests.tiers import TIERS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = "writer reader ledger meta groups streams admin wire spark".split()
MAP = ROOT / ".mutants" / "map.sqlite"
COULD_NOT_RUN, MISSED = 2, 1


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", help="default: the hash of the commit before HEAD")
    parser.add_argument("--count", type=int, default=60, help="mutants to draw")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders below dlog/")
    parser.add_argument("--only", help="numbers of a seed's mutants, as 3,17 or 20-30")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the tests of a mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    _add_common(parser)
    parser.add_argument("--json", type=Path, default=ROOT / ".mutants" / "report.json")
    parser.add_argument("--at-least", type=float, help="fail below this part noticed")
    parser.add_argument(
        "--map-seconds", type=float, help="for refreshing the map; 0: use it as it is"
    )
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    return parser.parse_args(given)


def map_arguments(given: Sequence[str]) -> argparse.Namespace:
    told = "Record which test runs which lines of dlog/. What is recorded already is kept."
    parser = argparse.ArgumentParser(prog="python -m tests.mutants map", description=told)
    parser.add_argument("places", nargs="*", metavar="FOLDER_OR_FILE", default=mapping.FOLDERS)
    parser.add_argument("--seconds", type=float, help="stop then; the next run goes on from there")
    _add_common(parser)
    return parser.parse_args(given)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--map", type=Path, default=MAP, help="the file of the coverage map")
    told = "the tests that count: those of `make check`, `make test` (default) or `make full`"
    parser.add_argument("--tier", choices=TIERS, default="test", help=told)


def make_map(given: Sequence[str]) -> int:
    asked = map_arguments(given)
    try:
        files = mapping.mapped_files(ROOT, asked.tier, asked.places)
    except mapping.NotTraced as error:
        print(error, file=sys.stderr)
        return COULD_NOT_RUN
    for number in (signal.SIGINT, signal.SIGTERM):  # either ends what runs; the map keeps the rest
        signal.signal(number, signal.default_int_handler)
    try:
        return _refresh(asked.map, asked.tier, files, asked.seconds)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return COULD_NOT_RUN


def main(given: Sequence[str]) -> int:
    if given[:1] == ["map"]:
        return make_map(given[1:])
    asked = arguments(given)
    seed = asked.seed or _commit_before()
    sources = modules(ROOT, asked.rooms)
    mutants = _wanted(draw(sources, seed, asked.count), asked.only)
    if asked.list:
        for mutant in mutants:
            print(f"mutant {mutant.number}, {mutant.edit.operator}\n{mutant.diff}\n")
        return 0
    traced = mapping.mapped_files(ROOT, asked.tier)
    if asked.map_seconds != 0:
        failed = _refresh(asked.map, asked.tier, traced, asked.map_seconds)
        if failed:
            return failed
    everywhere = {**modules(ROOT, ["."]), **sources}
    known = CoverageMap(asked.map)
    unsteady = Unsteady()
    files = mapping.stale_files(ROOT, asked.map, asked.tier, traced)
    slow = slowness()
    print(f"seed {seed}: {len(mutants)} mutants; the machine is {slow:.1f} times slow", flush=True)
    verdicts = _run(mutants, known, everywhere, asked, unsteady, files)
    print("\n" + report.summary(verdicts, unsteady.names()))
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(report.as_json(seed, verdicts, unsteady.names()), encoding="utf-8")
    missed = asked.at_least is not None and report.rate(verdicts) < asked.at_least
    return MISSED if missed else 0


def _run(
    mutants: Sequence[Mutant],
    known: CoverageMap,
    sources: dict[str, str],
    asked: argparse.Namespace,
    unsteady: Unsteady,
    files: Sequence[str],
) -> list[Verdict]:
    """Each job has a tree of its own, and a process that has loaded all tests that are chosen."""
    jobs = min(asked.jobs, len(mutants))
    waiting: queue.SimpleQueue[tuple[Mutant, int, list[MappedTest]]] = queue.SimpleQueue()
    chosen_files: set[str] = set()
    for mutant in mutants:
        found = chosen_tests(known, mutant, sources, asked.seconds, ROOT, files, asked.tier)
        covering, tests = found
        waiting.put((mutant, covering, tests))
        chosen_files |= {test.file for test in tests}
    verdicts: list[Verdict] = []
    lock = threading.Lock()
    made = Path(tempfile.mkdtemp(prefix="dlog-mutants-"))
    try:
        copy_tree(ROOT, tracked_files(ROOT), made / "0", compiled=("dlog", "tests"))
        for number in range(1, jobs):
            shutil.copytree(made / "0", made / str(number), symlinks=True)

        def work(number: int) -> None:
            runner = Runner(Scratch(made / str(number)), sorted(chosen_files), asked.tier)
            while True:
                try:
                    mutant, covering, tests = waiting.get_nowait()
                except queue.Empty:
                    break
                told = try_one(runner, mutant, tests, covering, asked.seconds, unsteady)
                with lock:
                    verdicts.append(told)
                    print(report.row(told), flush=True)
            runner.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return sorted(verdicts, key=lambda verdict: verdict.mutant.number)


def _refresh(target: Path, tier: str, files: Sequence[str], seconds: float | None) -> int:
    stale = mapping.stale_files(ROOT, target, tier, files)
    kept = len(files) - len(stale)
    print(f"the map has {kept} of {len(files)} test files up to date", flush=True)
    if not stale:
        return 0
    if importlib.util.find_spec("coverage") is None:
        print("the map is not up to date, and package coverage is not installed", file=sys.stderr)
        return COULD_NOT_RUN
    print(f"{len(stale)} test files are new to the map, or changed: they run once", flush=True)
    until = None if seconds is None else time.monotonic() + seconds
    mapping.build(ROOT, target, tier, stale, until)
    return 0


def _wanted(drawn: list[Mutant], only: str | None) -> list[Mutant]:
    if only is None:
        return drawn
    numbers: set[int] = set()
    for part in only.split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return [mutant for mutant in drawn if mutant.number in numbers]


def _commit_before() -> str:
    command = ["git", "rev-parse", "HEAD~1"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

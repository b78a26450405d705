"""Runs the tests of a tier side by side, and the few that failed so once more, alone.

Some tests hold a promise against a clock, and a worker for each core leaves little of a machine to
each. So a few failures get one second try with nothing beside them, and its verdict counts.
The first failure is printed whole, and each test that passed only alone is named at the end. More
failures, a file that cannot be imported, and a run that did not reach its end get no second try.

With `--twice` the tests run a second time, as the tier `test`; a test that needed its second try in
both runs fails. That is `make full`.

    python -m tests.tidy.run [--twice] PYTEST_ARGUMENT ... [-- ARGUMENT_OF_THE_FIRST_TRY_ONLY ...]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECOND_TRIES_MAX = 3
SECOND_TRY_S = 600
TESTS_FAILED = 1  # pytest's exit code, also for a run that was given up
_COUNT = re.compile(r"(\d+) (passed|failed|errors?)")
_CLOSING = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+,? ?)+in [0-9.]+s.*?)(?: =+)?$")
_GIVEN_UP = re.compile(r"^!!!+ ")


@dataclass(slots=True)
class Ran:
    status: int
    closing: str | None = None
    given_up: bool = False
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """Of a run with its second try."""

    status: int
    unsteady: list[str] = field(default_factory=list)  # passed only alone


def pytest(cache: Path, arguments: Sequence[str]) -> Ran:
    """One run: its output passes through, its closing line and its failures are kept."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    ran = Ran(0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as run:
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", flush=True)
            closing = _CLOSING.match(line.rstrip())
            ran.closing = closing[1] if closing else ran.closing
            ran.given_up = ran.given_up or _GIVEN_UP.match(line) is not None
    ran.status = run.returncode
    failed = cache / "v" / "cache" / "lastfailed"
    if failed.exists():
        ran.failed = sorted(json.loads(failed.read_text()))
    return ran


def counted_again(closing: str, unsteady: int) -> str:
    """The closing line of the first run, after those that failed in it have passed."""
    counts = {"passed": unsteady}
    for number, what in _COUNT.findall(closing):
        if what == "passed":
            counts["passed"] += int(number)
    rest = re.sub(r"\d+ (passed|failed|errors?)(, | )", "", closing)
    return f"{counts['passed']} passed{' ' if rest.startswith('in ') else ', '}{rest}"


def may_try_again(first: Ran) -> bool:
    return (
        first.status == TESTS_FAILED
        and not first.given_up
        and first.closing is not None
        and 0 < len(first.failed) <= SECOND_TRIES_MAX
        and all("::" in name for name in first.failed)  # a file that cannot be imported stays so
    )


def run(always: Sequence[str], beside: Sequence[str], cache: Path) -> Verdict:
    """The tests side by side, and a second try where one is due."""
    first = pytest(cache, [*always, "-rxX", *beside])
    if not may_try_again(first):
        for name in first.failed:
            print(f"FAILED {name}")
        return Verdict(first.status)
    assert first.closing is not None
    print(f"\n{len(first.failed)} failed beside others. Once more, each alone:", flush=True)
    limit = f"--session-timeout={SECOND_TRY_S}"
    second = pytest(cache, [*always, "-rfExX", "--last-failed", limit])
    if second.status != 0 or second.given_up:
        return Verdict(second.status or TESTS_FAILED)
    print("\npassed only alone:")
    for name in first.failed:
        print(f"    {name}")
    print(counted_again(first.closing, len(first.failed)), flush=True)
    return Verdict(0, first.failed)


def with_tier(arguments: Sequence[str], tier: str) -> list[str]:
    """The same arguments for another tier."""
    given = list(arguments)
    if "--tier" in given:
        given[given.index("--tier") + 1] = tier
        return given
    return [*given, "--tier", tier]


def run_twice(always: Sequence[str], beside: Sequence[str], caches: Sequence[Path]) -> int:
    first = run(always, beside, caches[0])
    print("\nthe second run, of the tier test:", flush=True)
    second = run(with_tier(always, "test"), beside, caches[1])
    both = sorted(set(first.unsteady) & set(second.unsteady))
    for name in both:
        print(f"FAILED {name}: it passed only alone in both runs")
    return first.status or second.status or (TESTS_FAILED if both else 0)


def main(arguments: Sequence[str], directory: Path) -> int:
    twice = "--twice" in arguments
    given = [each for each in arguments if each != "--twice"]
    where = given.index("--") if "--" in given else len(given)
    always, beside = given[:where], given[where + 1 :]
    if twice:
        return run_twice(always, beside, [directory / "first", directory / "second"])
    return run(always, beside, directory).status


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dlog-tests-") as made:
        sys.exit(main(sys.argv[1:], Path(made)))

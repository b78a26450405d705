"""Runs the tests side by side, and those that failed so once more, alone.

Many tests hold a promise against a clock, and a worker for each core leaves little of a machine to
each. So a few failures get one second try with nothing beside them; the verdict is theirs. Nothing
of that is silent: what failed first is printed whole, and whatever passed only alone is named at
the end. More than a few are no accident, and a run that did not reach its end proves nothing: then
there is no second try.

    python -m tests.tidy.run PYTEST_ARGUMENT ... [-- ARGUMENT_OF_THE_FIRST_RUN_ONLY ...]
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

SECOND_TRIES_MAX = 10
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


def main(arguments: Sequence[str], cache: Path) -> int:
    where = arguments.index("--") if "--" in arguments else len(arguments)
    always, beside = arguments[:where], arguments[where + 1 :]
    first = pytest(cache, [*always, "-rxX", *beside])
    if not may_try_again(first):
        for name in first.failed:
            print(f"FAILED {name}")
        return first.status
    assert first.closing is not None
    print(f"\n{len(first.failed)} failed beside others. Once more, each alone:", flush=True)
    limit = f"--session-timeout={SECOND_TRY_S}"
    second = pytest(cache, [*always, "-rfExX", "--last-failed", limit])
    if second.status != 0 or second.given_up:
        return second.status or TESTS_FAILED
    print("\npassed only alone:")
    for name in first.failed:
        print(f"    {name}")
    print(counted_again(first.closing, len(first.failed)))
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dlog-tests-") as made:
        sys.exit(main(sys.argv[1:], Path(made)))

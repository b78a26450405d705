"""`python -m tests.fuzz [TARGET …] --executions N | --seconds N --seed S` fuzzes the named targets,
or all of them, and keeps what failed in `tests/fuzz/crashes`."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign, Found, shrunk
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target

CRASHES = Path(__file__).parent / "crashes"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--executions", type=int, help="of each target")
    parser.add_argument("--seconds", type=float, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    strange = sorted(set(given.target) - TARGETS.keys())
    if strange:
        parser.error(f"no target {', '.join(strange)}; there are {', '.join(TARGETS)}")
    seconds = 10.0 if given.executions is None and given.seconds is None else given.seconds
    found = 0
    for name in given.target or TARGETS:
        campaign = Campaign(TARGETS[name], given.seed)
        report = campaign.run(executions=given.executions, seconds=seconds)
        print(report, flush=True)
        for kind, each in report.findings.items():
            path = keep(TARGETS[name], each)
            print(f"  FOUND {kind}\n    {each}\n    kept in {path}", flush=True)
        found += len(report.findings)
    return 1 if found else 0


def keep(target: Target, found: Found) -> Path:
    """The input as short as it still fails, in a file that the tests try again for ever."""

    def fails(raw: bytes) -> bool:
        try:
            target.check(raw)
        except target.refusals:
            return False
        except Exception as error:
            return type(error).__name__ == found.told.partition(":")[0].rpartition(".")[2]
        return False

    raw = shrunk(found.raw, fails) if fails(found.raw) else found.raw
    folder = CRASHES / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(raw).hexdigest()[:16]
    path.write_bytes(raw)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

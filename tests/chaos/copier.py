"""The program that copies, and is killed: `python -m tests.chaos.copier SOURCE LOG TARGET CRASH`,
where CRASH names a step of it."""

from __future__ import annotations

import sys

import dlog
from dlog.testing.children import CrashPoint, arm


def main(source: str, log: str, target: str, crash: str) -> None:
    arm(CrashPoint.parse(crash))
    dlog.copy_log(source, log, target)


if __name__ == "__main__":
    main(*sys.argv[1:])

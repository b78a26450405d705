"""The programs that are killed and frozen: `python -m tests.chaos.streams.program ROLE …`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from pathlib import Path

from dlog import aio
from dlog.testing.children import CrashPoint, arm
from tests.chaos.streams.changer import change
from tests.chaos.streams.consumers import do_jobs, follow, work
from tests.chaos.streams.journal import Journal
from tests.chaos.streams.producer import produce
from tests.chaos.streams.scene import Scene

PROGRAMS = {
    "writer": produce,
    "changer": change,
    "worker": work,
    "jobs": do_jobs,
    "follower": follow,
}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", help="a program and which one of its kind, as writer1")
    parser.add_argument("launch", type=int)
    parser.add_argument("place", type=Path)
    parser.add_argument("url")
    parser.add_argument("seed")
    parser.add_argument("--crash", type=CrashPoint.parse)
    parser.add_argument("--remakes", type=int, default=0)
    parser.add_argument("--truncates", type=int, default=1)
    parser.add_argument("--change-s", type=float, default=1.0)
    parser.add_argument("--idle-s", type=float, default=0.1)
    parser.add_argument("--burst", type=int, default=800)
    parser.add_argument("--ensemble", type=int, default=3)
    parser.add_argument("--leases", default="nodes")
    parser.add_argument("--retention-bytes", type=int, default=0)
    parser.add_argument("--rest", nargs="*", default=[])
    return parser


async def main() -> None:
    given = arguments().parse_args()
    arm(given.crash)
    journal = Journal(given.place / "histories", given.role, given.launch)
    journal.note("started", crash=str(given.crash), pid=os.getpid())
    chance = random.Random(f"{given.seed}/{given.role}/{given.launch}")
    async with aio.connect(given.url) as client:
        scene = Scene(given.place, journal, client, chance, given)
        watching = asyncio.create_task(scene.only_with_parent())
        program = PROGRAMS[given.role.rstrip("0123456789")]
        await program(scene, *(given.rest or [given.role]))  # type: ignore[operator]
        watching.cancel()
    journal.note("ended")


if __name__ == "__main__":
    asyncio.run(main())

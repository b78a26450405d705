"""`python -m tests.chaos.streams --runs 10 --seconds 30 --beside 2`: streams and groups under kills
and freezes, on files or on a cluster of this machine; a line for each run, and their sums.

A run that found something keeps its files below `--keep`, and the command ends with 1."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from dlog.chance import SYSTEM_CHANCE
from dlog.testing.cluster import Cluster
from tests.chaos.streams.run import HarmServers, Outcome, Run
from tests.chaos.streams.servers import BOOKIES, harm_of, url_of

Where = Callable[[Path], str]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.streams")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of harm, in each run")
    parser.add_argument("--beside", type=int, default=1, help="so many runs at a time")
    parser.add_argument("--place", choices=("file", "cluster"), default="file")
    parser.add_argument("--seed", help="of the first run; those after it count on")
    parser.add_argument("--keep", type=Path, help="where files of runs that failed are kept")
    parser.add_argument("--scratch", type=Path, help="where runs have their files")
    return parser.parse_args()


async def one(
    seed: str,
    seconds: float,
    scratch: Path,
    keep: Path | None,
    cluster: Cluster | None,
    harm: HarmServers | None,
) -> Outcome:
    place = Path(tempfile.mkdtemp(prefix="dlog-chaos-streams-", dir=scratch))
    url = f"file:{place / 'data'}" if cluster is None else url_of(cluster, seed)
    try:
        outcome = await Run(place, url, seed).run(seconds, harm)
        print(outcome, flush=True)
        for each in outcome.violations[:20]:
            print(f"    {each[:1500]}", flush=True)
        if keep is not None and outcome.violations:
            kept = keep / seed.replace("/", "-")
            shutil.copytree(place, kept, dirs_exist_ok=True)
            (kept / "violations.json").write_text(json.dumps(outcome.violations, indent=1))
        return outcome
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.asynccontextmanager
async def servers(where: str) -> AsyncIterator[Cluster | None]:
    if where == "file":
        yield None
        return
    async with Cluster(bookies=BOOKIES) as cluster:
        yield cluster


async def main(given: argparse.Namespace) -> int:
    seed = given.seed or SYSTEM_CHANCE.token()[:8]
    print(f"to repeat: --seed {seed}", flush=True)
    harming = asyncio.Lock()  # one bookie of them all is down at a time
    room = asyncio.Semaphore(given.beside)

    async def in_turn(number: int, cluster: Cluster | None) -> Outcome:
        async with room:
            named = seed if number == 0 else f"{seed}.{number}"
            harm = None if cluster is None else harm_of(cluster, harming)
            return await one(named, given.seconds, given.scratch, given.keep, cluster, harm)

    async with servers(given.place) as cluster:
        outcomes = await asyncio.gather(*(in_turn(n, cluster) for n in range(given.runs)))
    told: Counter[str] = Counter()
    for each in outcomes:
        told.update(each.told)
    failed = [each.seed for each in outcomes if each.violations]
    print(
        f"{len(outcomes)} runs of {given.seconds:.0f} s: "
        f"{sum(each.acked for each in outcomes)} acknowledged in "
        f"{sum(each.incarnations for each in outcomes)} streams, "
        f"{sum(each.changes for each in outcomes)} changes, {dict(sorted(told.items()))}, "
        f"{len(failed)} with violations {failed or ''}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parsed())))

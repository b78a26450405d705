"""Streams and groups as processes that are killed and frozen at random, while shards are split,
merged, truncated and trimmed, and streams removed and made again.

DLOG_CHAOS_SECONDS=600 python -m pytest tests/chaos/test_streams_life.py -s      longer
DLOG_CHAOS_SEED=abc …                                                            again
python -m tests.chaos.streams --runs 100 --seconds 30 --beside 2                 many of them
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dlog.chance import SYSTEM_CHANCE
from tests.chaos.streams.run import Outcome, Run

SECONDS = float(os.environ.get("DLOG_CHAOS_SECONDS", "8"))
LONG_S = max(30.0, SECONDS)
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills and freezes by signals"),
]


async def one(place: Path, seed: str, seconds: float) -> Outcome:
    return await Run(place, f"file:{place / 'data'}", seed).run(seconds)


def judged(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        print(outcome)
        assert not outcome.violations, f"to repeat: DLOG_CHAOS_SEED={SEED}\n" + "\n".join(
            outcome.violations
        )
        assert outcome.acked > 100, "nothing was written: that proves nothing"
        assert outcome.told["deaths"] + outcome.told["freezes"] > 0, "no harm was done"


@pytest.mark.timeout(SECONDS * 2 + 400)
async def test_streams_under_kills_and_freezes(tmp_path: Path) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    judged(await one(tmp_path, SEED, SECONDS))


@pytest.mark.tier("full", seconds=40)
@pytest.mark.timeout(LONG_S * 2 + 400)
async def test_two_runs_beside_each_other(tmp_path: Path) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    runs = (one(tmp_path / name, f"{SEED}.{name}", LONG_S) for name in ("a", "b"))
    judged(*await asyncio.gather(*runs))

"""Jobs that fill and publish, killed at each of their steps: run again, every batch is there once,
whole and in order, and of what was left nothing stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import dlog
from dlog import backends, limits
from dlog.admin.jobs import Jobs
from dlog.trace import JOB_POINTS
from tests.api.adapter import AioApi, Api
from tests.api.filling import fill, values_of
from tests.api.killing import Killed, killed_at
from tests.api.planting import checked, ledger_ids, repaired, stores_of

SIDES = ("before", "after")
WORLD = "killed-jobs"
HITS = {
    "job.created": 4,
    "job.born": 4,
    "job.closed": 4,
    "publish.looked": 8,
    "publish.committed": 3,
}
CASES = [
    (point, side, hit)
    for point in sorted(JOB_POINTS)
    for side in SIDES
    for hit in range(1, 1 + HITS.get(point, 1))
]
WRITTEN = values_of("written", 5)
BATCHES = [[values_of(f"{number}.{each}", 4) for each in range(3)] for number in range(3)]
EVERYTHING = WRITTEN + [value for batch in BATCHES for values in batch for value in values]


async def _only_let_go(jobs: Jobs) -> None:
    """A process that dies deletes nothing."""
    for segment in list(jobs._open):
        segment._closed = True
        segment._filling.fail(dlog.WriterClosed("dead"))
        segment._filling._driver.let_all_go()
        segment._filling._presence.withdraw()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    monkeypatch.setattr(Jobs, "give_up_segments", _only_let_go)
    yield AioApi(f"memory:{WORLD}")
    backends._memory_worlds.pop(WORLD, None)


async def _run(api: Api, *, discards: bool) -> None:
    """Whatever of it is there already is there already."""
    async with api.connect() as connected:
        admin = connected.admin
        for number, batch in enumerate(BATCHES):
            filled = [await fill(admin, values) for values in batch]
            answer = await admin.publish_segments("log", filled, key=("query", number))
            if not answer.published:
                await admin.discard_segments(filled)
        if discards:
            wrong = await fill(admin, values_of("wrong", 3))
            await admin.discard_segments([wrong])
            await (await admin.open_segment("log", job="nothing to do")).close()


async def killed_and_run_again(api: Api, point: str, side: str, hit: int) -> None:
    writer = await api.open_writer(create=dlog.LogOptions(deletion_grace_s=0))
    await writer.append_many(WRITTEN)
    with killed_at(point, side, hit) as reached, pytest.raises(Killed):
        await _run(api, discards=True)
    assert reached.hits == hit
    for _ in range(2):
        await _run(api, discards=False)
    with contextlib.suppress(dlog.Fenced):
        await writer.close()
    assert await api.values() == EVERYTHING
    await _nothing_is_left(api)


async def _nothing_is_left(api: Api) -> None:
    report = await checked(api, grace_s=0)
    done = await repaired(api, report)
    assert done.is_complete, done
    async with api.connect() as connected:
        await connected.admin.collect("log")
        described: Any = await connected.admin.describe("log")
    async with stores_of(api) as stores:
        listed = [segment.ledger_id for segment in described.segments]
        assert (listed, described.deleting) == (await ledger_ids(stores), ())
    report = await checked(api, deep=True, grace_s=0)
    assert not report.damage, report.damage
    assert await api.values() == EVERYTHING


@pytest.mark.parametrize(("point", "side", "hit"), CASES)
async def test_killed_at_every_step_and_run_again(
    api: Api, point: str, side: str, hit: int
) -> None:
    await killed_and_run_again(api, point, side, hit)

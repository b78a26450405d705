"""What a job filled is kept until it is published or discarded, or until its client ends, whatever
call of its opening went wrong: each of them, in each way, once or for long. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog import aio
from tests.api.faulty_meta import (
    FAULTS,
    LONG_S,
    SETTLED_S,
    at_each_step,
    faulty,
    in_a_world,
    long,
    presence,
)
from tests.sim.virtual_loop import pass_time


async def nobody_takes_it(url: str, *filled: dlog.FilledSegment) -> None:
    async with aio.connect(url) as other:
        for _ in range(2):
            report = await other.admin.fsck("log", grace_s=0)
            told = {each.where.ledger_id: each.kind.value for each in report.findings}
            for each in filled:
                assert told[each.ledger_id] == "maybe_in_use"
            done = await other.admin.repair(report)
            assert not done.steps
            await pass_time(LONG_S)


async def all_is_taken(url: str) -> None:
    async with aio.connect(url) as other:
        await other.admin.repair(await other.admin.fsck("log", grace_s=0))
        stores = await other._stores(False)
        meta = await other.admin.describe("log")
        listed = [each.ledger_id for each in meta.segments]
        assert [each async for each in stores.ledgers.scan_ids()] == listed


async def filled_by(client: aio.Client, job: str = "job") -> dlog.FilledSegment:
    segment = await client.admin.open_segment("log", job=job)
    await segment.append_many([b"1", b"2"])
    return await segment.close()


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_job_filled_is_kept_for_it_whatever_went_wrong_while_it_opened(name: str) -> None:
    fault, when = FAULTS[name]

    async def story(url: str, step: int) -> bool:
        client = aio.connect(url)
        await client.admin.create("log")
        meta = await faulty(client, fault, when(step))
        try:
            segment = await client.admin.open_segment("log", job="job")
            await segment.append_many([b"1", b"2"])
            await pass_time(SETTLED_S + (LONG_S if name == "away for long" else 0))
            async with aio.connect(url) as other:
                report = await other.admin.fsck("log", grace_s=0)
                assert not (await other.admin.repair(report)).steps
            filled = await segment.close()
        except dlog.DlogError:
            await meta.settled()
            await client.close()
            await all_is_taken(url)
            return meta.hit_at is not None
        await meta.settled()
        await nobody_takes_it(url, filled)
        async with aio.connect(url) as other:
            told = await other.admin.publish_segments("log", [filled], key=("query", 0))
            assert told.published
            assert told.messages == 2
        await client.close()
        await all_is_taken(url)
        return meta.hit_at is not None

    at_each_step(story)


@pytest.mark.parametrize("fault", ["refused", "request", "late"])
def test_a_job_that_cannot_be_present_for_long_is_as_soon_as_it_can(fault: str) -> None:
    async def story(url: str) -> bool:
        client = aio.connect(url)
        await client.admin.create("log")
        meta = await faulty(client, fault, presence(long(0)))
        filled = await filled_by(client)
        assert meta.hit_at is not None
        await pass_time(LONG_S + SETTLED_S)
        await nobody_takes_it(url, filled)
        await meta.settled()
        await client.close()
        await all_is_taken(url)
        return True

    assert in_a_world(story)


def test_a_job_protects_what_its_other_processes_filled() -> None:
    """One of them has ended, with its client; the other one still works, and publishes for both."""

    async def story(url: str) -> bool:
        async with aio.connect(url) as client:
            await client.admin.create("log")
            async with aio.connect(url) as gone:
                first = await filled_by(gone)
                of_another = await filled_by(gone, "another job")
            segment = await client.admin.open_segment("log", job="job")
            await segment.append_many([b"3"])
            async with aio.connect(url) as other:
                report = await other.admin.fsck("log", grace_s=0)
                (step,) = report.plan
                assert step.where.ledger_id == of_another.ledger_id
                await other.admin.repair(report)
            last = await segment.close()
            await nobody_takes_it(url, first, last)
            done = await client.admin.publish_segments("log", [first, last], key=("query", 0))
            assert done.messages == 3
        await all_is_taken(url)
        return True

    assert in_a_world(story)


@pytest.mark.parametrize("what", ["published", "discarded"])
@pytest.mark.parametrize("by_another", [True, False], ids=["elsewhere", "here"])
def test_nobody_is_present_for_what_was_published_or_discarded(what: str, by_another: bool) -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            await client.admin.create("log")
            for number in range(3):
                filled = await filled_by(client)
                admin = other.admin if by_another else client.admin
                if what == "published":
                    await admin.publish_segments("log", [filled], key=("query", number))
                else:
                    await admin.discard_segments([filled])
            await pass_time(LONG_S)
            stores: Any = await client._stores(False)
            assert await stores.meta.children(stores.layout.jobs("log")) == []
            assert not client.admin._present
        return True

    assert in_a_world(story)

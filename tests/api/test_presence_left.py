"""No presence node outlives its handle or its log, also where the client lives for months; and a
handle whose presence is missing says so. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.errors import AuthError
from dlog.meta.memory import MemoryMetaStore
from dlog.options import FillOptions
from dlog.reason import ReasonCode
from dlog.writer import filling
from dlog.writer.filling import Filling
from dlog.writer.presence import CHECK_S, LOG_LOOKS, Presence
from tests.api.faulty_meta import LONG_S, SETTLED_S, faulty, in_a_world, long, presence
from tests.sim.virtual_loop import pass_time

NOTICED_S = (LOG_LOOKS + 2) * CHECK_S
REFUSED_S = 60.0


async def present(client: aio.Client) -> list[str]:
    """The presence nodes below all logs."""
    stores: Any = await client._stores(True)
    tree = stores.meta.inner._tree
    return [path for path, node in tree._nodes.items() if node.owner is not None]


async def removed(other: aio.Client) -> None:
    await other.admin.remove("log")


async def removed_and_made_again(other: aio.Client) -> None:
    await other.admin.remove("log")
    await other.admin.create("log")


async def taken_over_and_left(other: aio.Client) -> None:
    async with other.open_writer("log") as log:
        await log.append(b"another one")


async def terminated(other: aio.Client) -> None:
    await other.admin.terminate("log")


LOSSES = [removed, removed_and_made_again, taken_over_and_left, terminated]


@pytest.mark.parametrize("lose", LOSSES)
def test_an_idle_writer_that_lost_its_log_is_not_present_for_ever(lose: Any) -> None:
    """Nothing is told to a writer that does not append: its node stays below a log that is gone,
    or is another's, as long as its client lives."""

    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            log = await client.open_writer("log")
            await log.append(b"mine")
            assert len(await present(client)) == 1
            await lose(other)
            await pass_time(NOTICED_S)
            assert await present(client) == []
            with pytest.raises(dlog.Fenced):
                await log.append(b"late")
            await asyncio.gather(log.close(), return_exceptions=True)
        return True

    assert in_a_world(story)


def test_an_idle_writer_that_has_its_log_stays_present() -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client, client.open_writer("log") as log:
            await log.rotate()
            await pass_time(3 * NOTICED_S)
            assert len(await present(client)) == 1
            assert log.why() is None
        return True

    assert in_a_world(story)


def test_an_idle_lane_of_a_shard_that_was_trimmed_is_not_present_for_ever() -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            stream = await client.create_stream("s", shards=1)
            async with stream.open_writer() as writer:
                await writer.append(b"x", key=b"k")
                again = other.stream("s")
                await again.split(0)
                await other.admin.truncate("s/0", "latest")
                assert await again.trim() == (0,)
                await pass_time(NOTICED_S)
                assert [path for path in await present(client) if "s%2F0/" in path] == []
        return True

    assert in_a_world(story)


def test_presence_that_is_made_behind_the_removal_of_its_log_is_taken_away() -> None:
    """The node could not be made when the writer opened. It is made once the log is gone."""

    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            await faulty(client, "refused", presence(long(0)))
            log = await client.open_writer("log")
            await other.admin.remove("log")
            await pass_time(LONG_S + 3 * CHECK_S + SETTLED_S)
            assert await present(client) == []
            await asyncio.gather(log.close(), return_exceptions=True)
        return True

    assert in_a_world(story)


def test_presence_is_taken_away_once_the_store_lets_it() -> None:
    """The store refuses the deletion for want of permission, for a minute: the node would stay as
    long as the client lives, and polite openers would wait for a writer that closed."""

    async def story(url: str) -> bool:
        async with aio.connect(url) as client:
            log = await client.open_writer("log")
            stores: Any = await client._stores(True)
            store, loop = stores.meta.inner, asyncio.get_running_loop()
            genuine, until_s = store.delete, loop.time() + REFUSED_S

            async def delete(path: str, version: int) -> None:
                if loop.time() < until_s:
                    raise AuthError("no permission, says a test")
                await genuine(path, version)

            store.delete = delete
            await log.close()
            assert len(await present(client)) == 1
            await pass_time(REFUSED_S + 10)
            assert await present(client) == []
        return True

    assert in_a_world(story)


def test_presence_is_not_made_behind_its_withdrawal() -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client:
            stores: Any = await client._stores(True)
            handle = Presence(stores, stores.layout.presence("log", "token"), b"ada")
            await handle.make()
            await handle.withdrawn()
            with pytest.raises(dlog.WriterClosed):
                await handle.make()
            assert await present(client) == []
        return True

    assert in_a_world(story)


def test_a_job_whose_opening_is_cancelled_twice_is_not_present_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once while it opens, and again while the ledger that it made is deleted."""
    reached = asyncio.Event()

    async def hang(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    def no_ledger(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError
        yield

    async def story(url: str) -> bool:
        async with aio.connect(url) as client:
            await client.admin.create("log")
            stores: Any = await client._stores(True)
            job = Filling(stores, "log", "job", FillOptions())
            job._driver.appenders[7] = object()  # type: ignore[assignment]
            monkeypatch.setattr(job._driver, "perform", _first(job._driver.perform, hang))
            monkeypatch.setattr(filling, "job_ledger", no_ledger)
            opening = asyncio.create_task(job.open())
            await reached.wait()
            job._driver.appenders.clear()
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await pass_time(5 * CHECK_S)
            assert await present(client) == []
        return True

    def _first(genuine: Any, instead: Any) -> Any:
        async def perform(effect: Any) -> Any:
            if type(effect).__name__ == "DeleteLedger":
                return await instead()
            return await genuine(effect)

        return perform

    assert in_a_world(story)


@pytest.mark.parametrize("handle", ["writer", "job"])
@pytest.mark.parametrize("fault", ["refused", "request"])
def test_a_handle_whose_presence_is_missing_says_so(handle: str, fault: str) -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client:
            await client.admin.create("log")
            meta = await faulty(client, fault, presence(long(0)))
            opened: Any
            if handle == "writer":
                opened = await client.open_writer("log")
            else:
                opened = await client.admin.open_segment("log", job="job")
            await pass_time(SETTLED_S)
            reason = opened.why()
            assert reason is not None
            # Where the store answered nothing else lately, that is told as the cause.
            assert reason.evidence.get("waits", reason.code.value) == "not_present"
            assert "by a test" in str(reason)
            assert reason.since_us is not None
            await pass_time(LONG_S)
            assert opened.why() is None
            await asyncio.gather(opened.close(), meta.settled())
        return True

    assert in_a_world(story)


def test_a_writer_whose_session_was_lost_says_that_it_is_not_present() -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client, client.open_writer("log") as log:
            stores: Any = await client._stores(True)
            living = stores.sessions.living

            async def unreachable() -> Any:
                raise dlog.Unavailable("cut off by a test")

            stores.sessions.living = unreachable
            stores.meta.inner._tree.expire(stores.meta.inner._session.id)
            await pass_time(2 * CHECK_S)
            reason = log.why()
            assert reason is not None
            assert reason.code is ReasonCode.NOT_PRESENT
            stores.sessions.living = living
            await pass_time(SETTLED_S)
            assert log.why() is None
        return True

    assert in_a_world(story)


# --- what others do to a writer whose presence is missing


def test_a_polite_opener_may_fence_a_writer_that_is_not_present_and_loses_nothing() -> None:
    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            await faulty(client, "refused", presence(long(0)))
            log = await client.open_writer("log")
            await log.append(b"mine")
            async with other.open_writer("log", takeover="if_dead", owner="grace") as winner:
                await winner.append(b"hers")
                with pytest.raises(dlog.Fenced, match="grace"):
                    await log.append(b"late")
            async with other.open_reader("log") as reader:
                found = [each.value async for each in reader]
            assert found == [b"mine", b"hers"]
            await asyncio.gather(log.close(), return_exceptions=True)
        return True

    assert in_a_world(story)


def test_a_repair_leaves_a_writer_alone_that_is_present_within_a_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryMetaStore, "session_timeout_s", LONG_S + 10, raising=False)

    async def story(url: str) -> bool:
        async with aio.connect(url) as client, aio.connect(url) as other:
            await faulty(client, "refused", presence(long(0)))
            log = await client.open_writer("log")
            await log.append(b"mine")
            report = await other.admin.fsck("log", grace_s=0)
            assert [step.action.value for step in report.plan] == ["seal_tail"]
            done = await other.admin.repair(report)
            assert [step.ended.value for step in done.steps] == ["not_needed"]
            await log.append(b"it goes on")
            await log.close()
        return True

    assert in_a_world(story)

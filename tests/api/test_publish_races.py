"""What may happen while a batch is being published: replies that get lost, others who publish,
write, truncate or discard in between. It is there once, or refused and not there at all."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import dlog
from dlog import backends, limits
from dlog.admin import jobs
from dlog.drive import Driver
from dlog.effects import Effect, ReplaceNode
from dlog.errors import Conflict, Timeout, Unavailable
from dlog.meta.listed import WriterMark
from tests.api.adapter import AioApi, Api
from tests.api.filling import fill, publish, values_of
from tests.api.planting import change_meta, checked, ledger_ids, meta_of, repaired, stores_of

A, B, C = values_of("a", 6), values_of("b", 5), values_of("c", 4)
WORLD = "races"
KEY = ("query", 1)
Hook = Callable[[Driver, Effect], Awaitable[Any]]


class Meddling(Driver):
    """At one crash point, and once only, something else happens."""

    point = ""
    hook: Hook | None = None

    async def perform(self, effect: Effect) -> Any:
        hook = Meddling.hook
        if hook is not None and effect.point == Meddling.point:
            Meddling.hook = None
            return await hook(self, effect)
        return await super().perform(effect)

    async def really(self, effect: Effect) -> Any:
        return await super().perform(effect)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(jobs, "Driver", Meddling)
    monkeypatch.setattr(limits, "META_ATTEMPTS_MAX", 12)
    yield AioApi(f"memory:{WORLD}")
    Meddling.hook = None
    backends._memory_worlds.pop(WORLD, None)


@pytest.fixture(params=["sealed", "open"])
async def writer(request: pytest.FixtureRequest, api: Api) -> Any:
    """A log with messages; its writer closed it, or lives."""
    writer = await api.open_writer()
    await writer.append_many(A)
    if request.param == "sealed":
        await writer.close()
    yield writer
    with contextlib.suppress(dlog.Fenced):
        await writer.close()


def meddle(hook: Callable[[], Awaitable[Any]], point: str = "publish.committed") -> None:
    async def before(driver: Driver, effect: Effect) -> Any:
        await hook()
        assert isinstance(driver, Meddling)
        return await driver.really(effect)

    Meddling.point, Meddling.hook = point, before


def lost_reply(*, applied: bool, then: Callable[[], Awaitable[Any]] | None = None) -> None:
    async def lose(driver: Driver, effect: Effect) -> Any:
        assert isinstance(driver, Meddling)
        if applied:
            await driver.really(effect)
        if then is not None:
            await then()
        raise Timeout("no answer")

    Meddling.point, Meddling.hook = "publish.committed", lose


async def whole(api: Api, *batches: list[bytes]) -> None:
    assert await api.values() == [value for batch in batches for value in batch]
    report = await checked(api, deep=True)
    assert not report.damage, report.damage


async def written(api: Api, value: bytes = b"by another") -> None:
    async with api.open_writer() as another:
        await another.append(value)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_is_resolved_by_reading(api: Api, writer: Any, applied: bool) -> None:
    lost_reply(applied=applied)
    answer = await publish(api, B, C, key=KEY)
    assert (answer.published, answer.base_seq, answer.next_seq) == (True, 6, 15)
    await whole(api, A, B, C)


async def test_a_lost_reply_before_others_wrote_on(api: Api, writer: Any) -> None:
    lost_reply(applied=True, then=lambda: written(api))
    assert (await publish(api, B, key=KEY)).published
    await whole(api, A, B, [b"by another"])


async def test_a_lost_reply_before_others_published_on(api: Api, writer: Any) -> None:
    """The next batch of the query took the place of ours in the table."""
    lost_reply(applied=True, then=lambda: publish(api, C, key=("query", 2)))
    assert not (await publish(api, B, key=KEY)).published
    await whole(api, A, B, C)


async def test_a_lost_request_before_others_wrote(api: Api, writer: Any) -> None:
    lost_reply(applied=False, then=lambda: written(api))
    with pytest.raises(Conflict, match="run the batch again") as refused:
        await publish(api, B, key=KEY)
    assert refused.value.outcome is dlog.Outcome.NOT_HAPPENED
    assert (await publish(api, B, key=KEY)).published
    await whole(api, A, [b"by another"], B)


@pytest.mark.parametrize("point", ["publish.looked", "publish.claimed", "publish.committed"])
async def test_somebody_else_publishes_the_same_batch(api: Api, writer: Any, point: str) -> None:
    meddle(lambda: publish(api, C, key=KEY), point)
    answer = await publish(api, B, key=KEY)
    if Meddling.hook is not None:  # a log that was left sealed is not claimed first
        assert answer.published
        return
    assert not answer.published
    await whole(api, A, C)


@pytest.mark.parametrize("point", ["publish.looked", "publish.claimed", "publish.committed"])
async def test_somebody_else_opens_the_log(api: Api, writer: Any, point: str) -> None:
    meddle(lambda: written(api), point)
    refused: Conflict | None = None
    try:
        await publish(api, B, key=KEY)
    except Conflict as error:
        refused = error
    if refused is None:
        assert Meddling.hook is not None
        return
    assert refused.outcome is dlog.Outcome.NOT_HAPPENED
    await whole(api, A, [b"by another"])


@pytest.mark.parametrize("point", ["publish.looked", "publish.claimed", "publish.committed"])
async def test_somebody_truncates(api: Api, writer: Any, point: str) -> None:
    async def truncated() -> None:
        async with api.connect() as connected:
            await connected.admin.truncate("log", 3)

    meddle(truncated, point)
    assert (await publish(api, B, key=KEY)).published
    head = A if Meddling.hook is not None else A[3:]
    await whole(api, head, B)


@pytest.mark.parametrize("point", ["publish.looked", "publish.claimed", "publish.committed"])
async def test_somebody_discards_what_is_being_published(api: Api, writer: Any, point: str) -> None:
    async with api.connect() as connected:
        filled = [await fill(connected.admin, B), await fill(connected.admin, C)]

        async def discarded() -> None:
            async with api.connect() as other:
                assert len((await other.admin.discard_segments(filled)).deleted) == 2

        meddle(discarded, point)
        try:
            await connected.admin.publish_segments("log", filled, key=KEY)
        except Conflict:
            await whole(api, A)
            async with stores_of(api) as stores:
                left = set(await ledger_ids(stores)) & {each.ledger_id for each in filled}
                assert not left
                assert (await meta_of(stores)).deleting == ()
            return
    assert Meddling.hook is not None


async def test_a_request_that_comes_late_lists_nothing_that_was_discarded(
    api: Api, writer: Any
) -> None:
    """The publisher died behind its request, which the store gets when all is over."""
    late: list[ReplaceNode] = []

    async def delayed(driver: Driver, effect: Effect) -> Any:
        assert isinstance(effect, ReplaceNode)
        late.append(effect)
        raise Unavailable("gone", retry=dlog.Retry.NEVER, outcome=dlog.Outcome.UNKNOWN)

    async with api.connect() as connected:
        filled = [await fill(connected.admin, B)]
        Meddling.point, Meddling.hook = "publish.committed", delayed
        with pytest.raises(Unavailable) as lost:
            await connected.admin.publish_segments("log", filled, key=KEY)
        assert lost.value.outcome is dlog.Outcome.UNKNOWN
        assert (await connected.admin.discard_segments(filled)).deleted
    async with stores_of(api) as stores:
        (request,) = late
        with pytest.raises(Conflict):
            await stores.meta.put(request.path, request.value, request.version)
    await whole(api, A)


async def test_a_request_that_comes_late_and_lists_is_met_by_who_discards(
    api: Api, writer: Any
) -> None:
    """Between its look at the log and its mark."""
    late: list[ReplaceNode] = []

    async def delayed(driver: Driver, effect: Effect) -> Any:
        assert isinstance(effect, ReplaceNode)
        late.append(effect)
        raise Unavailable("gone", retry=dlog.Retry.NEVER, outcome=dlog.Outcome.UNKNOWN)

    async def arrived() -> None:
        async with stores_of(api) as stores:
            (request,) = late
            await stores.meta.put(request.path, request.value, request.version)

    async with api.connect() as connected:
        filled = [await fill(connected.admin, B)]
        Meddling.point, Meddling.hook = "publish.committed", delayed
        with pytest.raises(Unavailable):
            await connected.admin.publish_segments("log", filled, key=KEY)
        meddle(arrived, "discard.marked")
        assert (await connected.admin.discard_segments(filled)).deleted == ()
        assert not (await connected.admin.publish_segments("log", filled, key=KEY)).published
    await whole(api, A, B)


async def test_somebody_claims_the_log_and_dies(api: Api, writer: Any) -> None:
    """Whoever commits has to own the log."""
    claimed: list[int] = []

    async def claim() -> None:
        async with stores_of(api) as stores:
            mark = WriterMark("another", "another", 1)
            await change_meta(stores, lambda meta: meta.claimed(mark))
            claimed.append((await meta_of(stores)).epoch)

    meddle(claim)
    assert (await publish(api, B, key=KEY)).epoch == claimed[0] + 1
    await whole(api, A, B)


async def test_what_a_dead_publisher_claimed_is_opened_by_the_next(api: Api, writer: Any) -> None:
    async def die() -> None:
        raise Unavailable("gone", retry=dlog.Retry.NEVER)

    meddle(die)
    with pytest.raises(Unavailable):
        await publish(api, B, key=KEY)
    async with api.open_writer(takeover="if_dead") as another:
        await another.append(b"on")
    await whole(api, A, [b"on"])
    report = await checked(api, grace_s=0)
    assert (await repaired(api, report)).is_complete
    report = await checked(api, grace_s=0)
    assert report.is_clean, report.findings

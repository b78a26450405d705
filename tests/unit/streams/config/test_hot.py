"""A document that is followed: by watch, by looking, and while its store is away."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import pytest

import dlog
from dlog.client import Client, connect
from dlog.errors import ConfigError, Unavailable
from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.meta.store import Versioned
from dlog.streams.config.following import Plain, Ready
from dlog.streams.config.hot import HotConfig
from tests.api.waiting import eventually

LONG_MS = 3_600_000


class Ring:
    """A part as a router is one: an immutable value, and who holds it."""

    name = "ring"

    def __init__(self) -> None:
        self.servers: tuple[str, ...] = ()
        self.swaps = 0

    def prepare(self, content: Mapping[str, Any] | None) -> Ready:
        servers = tuple((content or {}).get("servers", ()))
        if len(set(servers)) != len(servers):
            raise ConfigError("a server stands there twice")

        def put() -> None:
            self.servers = servers
            self.swaps += 1

        return Ready(servers, put)


async def ring_of(client: Client, *servers: str) -> int:
    found = await client.config("prod").set("ring", {"servers": servers}, unchecked=True)
    return found.version


async def test_a_change_comes_into_force_by_watch(url: str) -> None:
    """CL-01: pushed; the time to look without being told never comes in this test."""
    async with connect(url) as client:
        ring = Ring()
        await ring_of(client, "a", "b")
        async with await client.config("prod").follow(ring, poll_ms=LONG_MS) as hot:
            assert (hot.version, ring.servers) == (1, ("a", "b"))
            version = await ring_of(client, "a", "b", "c")
            current = await hot.wait_for(version, timeout=20)
            assert (current.version, current["ring"], ring.servers) == (
                2,
                ("a", "b", "c"),
                ("a", "b", "c"),
            )


async def test_a_document_that_is_made_later_comes_into_force(url: str) -> None:
    async with connect(url) as client:
        async with client.open_writer("any"):
            ring = Ring()
        async with await client.config("prod").follow(ring, poll_ms=LONG_MS) as hot:
            assert (hot.version, ring.swaps) == (0, 1)
            await ring_of(client, "a")
            await hot.wait_for(1, timeout=20)
            assert ring.servers == ("a",)


class Deaf:
    """A store whose watches never tell anything."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.gets = 0
        self.watches = 0
        self.away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def get(self, path: str) -> Versioned:
        self.gets += 1
        if self.away:
            raise Unavailable("the store is away")
        found: Versioned = await self.inner.get(path)
        return found

    def watch(self, path: str) -> Any:
        return self

    async def __aenter__(self) -> Any:
        self.watches += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.watches -= 1

    async def wait(self, timeout_ms: float) -> bool:
        await _timer(timeout_ms)
        return False


def _timer(timeout_ms: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(timeout_ms / 1000, lambda: over.done() or over.set_result(None))
    return over


async def deaf(client: Client) -> tuple[HotConfig, Deaf, Ring]:
    stores = await client._stores(True)
    meta, ring = Deaf(stores.meta), Ring()
    own = dataclasses.replace(stores, meta=meta)  # type: ignore[arg-type]
    hot = HotConfig(own, "prod", (ring,), poll_ms=50)
    await hot.ready()
    return hot, meta, ring


async def test_a_document_that_is_followed_no_more_is_watched_no_more(memory_url: str) -> None:
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        hot, meta, _ = await deaf(client)
        assert meta.watches == 1
        await hot.close()
        assert meta.watches == 0


async def test_a_lost_watch_is_made_up_for_by_looking(memory_url: str) -> None:
    """CL-01: poll as the way out; CL-02: looks that find nothing new do nothing."""
    async with connect(memory_url) as client:
        hot, meta, ring = await deaf(client)
        version = await ring_of(client, "a")
        await hot.wait_for(version, timeout=20)
        assert ring.servers == ("a",)
        swaps, gets, fetches = ring.swaps, meta.gets, hot.status().fetches
        await eventually(lambda: meta.gets >= gets + 5)
        assert (ring.swaps, hot.status().fetches) == (swaps, fetches)
        assert hot.status().looks >= meta.gets - 1
        await hot.close()


async def test_a_watch_that_fails_is_begun_again_soon_and_not_at_the_next_look(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Deaf):
        async def wait(self, timeout_ms: float) -> bool:
            self.wait = lambda timeout_ms: _timer(timeout_ms)  # type: ignore[method-assign]
            raise Unavailable("the watch is lost")

    monkeypatch.setattr("dlog.streams.config.hot.REST_S", 0.01)
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        stores = await client._stores(True)
        meta, ring = Failing(stores.meta), Ring()
        own = dataclasses.replace(stores, meta=meta)  # type: ignore[arg-type]
        hot = HotConfig(own, "prod", (ring,), poll_ms=LONG_MS)
        await hot.ready()
        await eventually(lambda: meta.gets > 1)
        assert meta.watches == 1
        await hot.close()
        assert meta.watches == 0


async def test_a_store_that_is_away_leaves_the_old_in_force_and_says_so(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        hot, meta, ring = await deaf(client)
        assert hot.why() is None
        meta.away = True
        await eventually(lambda: hot.why() is not None)
        reason = hot.why()
        assert reason is not None
        assert reason.code is dlog.ReasonCode.METADATA_AWAY
        assert "version 1 stays in force" in reason.sentence
        assert (hot.version, ring.servers) == (1, ("a",))
        version = await ring_of(client, "b")
        with pytest.raises(dlog.Timeout, match="the store is away"):
            await hot.wait_for(version, timeout=0.2)
        meta.away = False
        await hot.wait_for(version, timeout=20)
        assert (hot.why(), ring.servers) == (None, ("b",))
        await hot.close()
    told = [each.message for each in caplog.records if each.name == "dlog.config"]
    assert sum("stays in force" in each for each in told) == 1  # once, not at every look


async def test_a_refused_version_is_told_and_the_old_one_stays(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(memory_url) as client:
        ring = Ring()
        await ring_of(client, "a", "b")
        async with await client.config("prod").follow(ring, Plain("other"), poll_ms=LONG_MS) as hot:
            await client.config("prod").replace(
                {"ring": {"servers": ["a", "a"]}, "other": {"x": 1}}, unchecked=True
            )
            await eventually(lambda: hot.why() is not None)
            reason = hot.why()
            assert reason is not None
            assert reason.code is dlog.ReasonCode.CONFIG_REFUSED
            assert (reason.evidence["refused"], reason.evidence["part"]) == (2, "ring")
            assert "a server stands there twice" in str(reason)
            status = hot.status()
            assert (status.version, status.refused_version, status.refused_part) == (
                1,
                2,
                "ring",
            )
            assert hot.current["other"] == {}
            assert ring.servers == ("a", "b")
            await client.config("prod").rollback(1)
            await hot.wait_for(3, timeout=20)
            assert hot.why() is None
    assert [each.levelno for each in caplog.records if "config.refused" in each.message] == [
        logging.WARNING
    ]


async def test_parts_that_did_not_change_are_not_touched(memory_url: str) -> None:
    """CL-02, counted."""
    async with connect(memory_url) as client:
        ring = Ring()
        await ring_of(client, "a")
        async with await client.config("prod").follow(ring, Plain("other")) as hot:
            version = 1
            for number in range(20):
                found = await client.config("prod").set("other", {"x": number}, unchecked=True)
                version = found.version
            await hot.wait_for(version, timeout=20)
            counted = {part.name: part.swapped for part in hot.status().parts}
            assert ring.swaps == counted["ring"] == 2  # without the document, and with it
            assert 2 <= counted["other"] <= 21


async def test_metrics_tell_what_happened(memory_url: str) -> None:
    heard: dict[str, float] = {}

    class Ears:
        def count(self, name: str, n: float, labels: Mapping[str, str]) -> None:
            heard[name] = heard.get(name, 0) + n

        def level(self, name: str, value: float, labels: Mapping[str, str]) -> None:
            heard[name] = value

        def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
            return

        def forget(self, labels: Mapping[str, str]) -> None:
            heard["forgotten"] = 1

    async with connect(memory_url, metrics=Ears()) as client:
        await ring_of(client, "a")
        async with await client.config("prod").follow(Ring(), poll_ms=LONG_MS) as hot:
            await ring_of(client, "a", "a")
            await eventually(lambda: hot.why() is not None)
            assert heard["dlog.config.version"] == 1
            assert heard["dlog.config.swaps"] == 1
            assert heard["dlog.config.refused"] == 1
            assert heard["dlog.config.fetches"] == 2
            assert heard["dlog.config.looks"] >= 2
    assert heard["forgotten"] == 1


async def test_following_ends_with_its_client(memory_url: str) -> None:
    client = connect(memory_url)
    await ring_of(client, "a")
    hot = await client.config("prod").follow(Ring())
    await client.close()
    reason = hot.why()
    assert reason is not None
    assert reason.code is dlog.ReasonCode.CLOSED
    with pytest.raises(ConfigError):
        await hot.wait_for(9, timeout=1)
    assert hot.current["ring"] == ("a",)


async def test_a_defect_that_ends_it_is_told(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        stores = await client._stores(False)
        source = _Broken()
        hot = HotConfig(stores, "prod", (Ring(),), source=source)
        await hot.ready()
        reason = hot.why()
        assert reason is not None
        assert reason.code is dlog.ReasonCode.LOST
        assert "a defect" in reason.sentence
        await hot.close()
    assert [each.levelno for each in caplog.records if "not followed" in each.message] == [
        logging.ERROR
    ]


class _Broken:
    def version(self, *, fresh: bool) -> Any:
        raise RuntimeError("a defect")

    def get(self) -> Any:
        raise AssertionError


async def test_a_wait_ends_when_following_does(memory_url: str) -> None:
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        hot = await client.config("prod").follow(Ring())
        waiting = asyncio.ensure_future(hot.wait_for(9))
        await asyncio.sleep(0)
        await hot.close()
        with pytest.raises(ConfigError):
            await waiting


@pytest.mark.parametrize("poll_ms", [0, 49, 1.5, 10**9])
async def test_a_time_to_look_is_bounded(memory_url: str, poll_ms: Any) -> None:
    assert CONFIG_POLL_MS_DEFAULT == 10_000
    async with connect(memory_url) as client:
        await ring_of(client, "a")
        with pytest.raises(ConfigError):
            await client.config("prod").follow(Ring(), poll_ms=poll_ms)

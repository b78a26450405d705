"""Probes that are really sent: over virtual time, and over a real connection. CL-03 to CL-06, and
that nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dlog.errors import NotFound
from dlog.metrics import CATALOGUE
from dlog.streams.health.core import HealthOptions
from dlog.streams.health.prober import Prober, TcpProbe
from tests.sim.virtual_loop import LoopClock, pass_time, run_virtually
from tests.unit.streams.health_tools import Fixed

FLEET = ["a", "b", "c", "d"]


class Probed:
    """Endpoints behind a probe that the test plays."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.down: set[str] = set()
        self.hangs: set[str] = set()
        self.changes: list[frozenset[str]] = []
        self.metered: Counter[tuple[str, str]] = Counter()

    async def __call__(self, endpoint: str) -> None:
        self.asked[endpoint] += 1
        if endpoint in self.hangs:
            await asyncio.Event().wait()
        if endpoint in self.down:
            raise ConnectionRefusedError(endpoint)

    def count(self, name: str, n: float, labels: Any) -> None:
        assert tuple(labels) == CATALOGUE[name].labels
        self.metered[name, labels["endpoint"]] += int(n)

    def level(self, *_: Any) -> None: ...

    observe = forget = level

    def prober(self, options: HealthOptions | None = None) -> Prober:
        made = Prober(
            self,
            options=options,
            on_change=self.changes.append,
            clock=LoopClock(asyncio.get_running_loop()),
            chance=Fixed(),
            metrics=self,
        )
        made.keep(FLEET)
        return made


Story = Callable[[Probed], Coroutine[Any, Any, None]]


def virtually(story: Story) -> Callable[[], None]:
    def test() -> None:
        run_virtually(story(Probed()))

    test.__doc__ = story.__doc__
    return test


@virtually
async def test_cl04_endpoints_that_carry_nothing_are_asked(probed: Probed) -> None:
    async with probed.prober():
        await pass_time(300)
        assert set(probed.asked) == set(FLEET)
        assert probed.changes == []


@virtually
async def test_cl03_there_is_no_task_while_nothing_is_to_be_asked(probed: Probed) -> None:
    before = asyncio.all_tasks()
    async with probed.prober(HealthOptions(idle_s=None)) as prober:
        for _ in range(100):
            prober.sent("a")
            await pass_time(0.1)
            prober.replied("a")
        await pass_time(20)
        assert asyncio.all_tasks() == before
        assert not probed.asked


@virtually
async def test_cl03_silence_after_something_sent_is_asked_about(probed: Probed) -> None:
    async with probed.prober() as prober:
        prober.sent("a")
        await pass_time(HealthOptions().interval_s + 0.1)
        assert probed.asked == {"a": 1}


@virtually
async def test_cl05_telling_never_waits(probed: Probed) -> None:
    """With a silent endpoint a thousand messages are told of in no time at all."""
    probed.hangs = set(FLEET)
    async with probed.prober() as prober:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(1_000):
            prober.sent("a")
        assert loop.time() == begun_s


@virtually
async def test_cl06_who_dies_is_isolated_and_who_is_back_is_used_again(probed: Probed) -> None:
    async with probed.prober() as prober:
        probed.down = {"a"}
        await pass_time(60)
        assert prober.isolated == {"a"}
        probed.down = set()
        await pass_time(60)
        assert probed.changes == [frozenset("a"), frozenset()]
        assert probed.metered["dlog.health.isolations", "a"] == 1
        assert probed.metered["dlog.health.recoveries", "a"] == 1
        for name in FLEET:
            assert probed.metered["dlog.health.pings", name] == probed.asked[name]


@virtually
async def test_cl06_one_that_takes_connections_and_hangs_is_isolated(probed: Probed) -> None:
    async with probed.prober() as prober:
        probed.hangs = {"b"}
        prober.failed("b", "no answer in time")
        await pass_time(10)
        assert prober.isolated == {"b"}


@virtually
async def test_closing_leaves_nothing_behind_in_the_middle_of_a_probe(probed: Probed) -> None:
    probed.hangs = set(FLEET)
    prober = probed.prober()
    prober.failed("a", "refused")
    await pass_time(5)
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    await prober.close()
    await prober.close()
    assert loop.time() == now_s, "nobody waits for a probe that hangs"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    prober.failed("b", "refused")  # too late, and nothing happens
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtually
async def test_a_prober_that_is_closed_asks_nobody(probed: Probed) -> None:
    """However long after, and whatever it is told: it only keeps what it knows."""
    prober = probed.prober()
    await prober.close()
    asked = +probed.asked
    await pass_time(300)  # all of them carried nothing for long
    prober.proved("a", "refuses what it is sent")
    prober.release_all("by hand")
    await pass_time(1)
    assert probed.asked == asked
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert probed.changes == [frozenset({"a"}), frozenset()]


@virtually
async def test_a_task_that_ended_is_there_again_when_it_is_needed(probed: Probed) -> None:
    before = asyncio.all_tasks()
    async with probed.prober(HealthOptions(idle_s=None)) as prober:
        for _ in range(3):
            prober.failed("a", "refused")
            await pass_time(2)
            assert asyncio.all_tasks() == before  # it answered, and all is well
        assert probed.asked["a"] == 3


@virtually
async def test_more_probes_than_places_wait_for_one(probed: Probed) -> None:
    fleet = [f"s{number}" for number in range(300)]
    async with probed.prober() as prober:
        prober.keep(fleet)
        await pass_time(31)
        assert set(probed.asked) == set(fleet)
        assert prober.core.suspects == frozenset()


def test_isolation_and_recovery_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(probed: Probed) -> None:
        async with probed.prober() as prober:
            prober.proved("a", "refuses what it is sent")
            await pass_time(30)

    with caplog.at_level(logging.INFO, "dlog.streams.health"):
        run_virtually(story(Probed()))
    assert [each.message for each in caplog.records] == [
        "a is isolated for 10.0 s: refuses what it is sent",
        "a is used again after 10.0 s: it answers",
    ]


def test_an_error_of_a_listener_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story(probed: Probed) -> None:
        prober = probed.prober()
        prober._on_change = lambda isolated: 1 / 0  # type: ignore[assignment, return-value]
        probed.down = {"a"}
        prober.failed("a", "refused")
        await pass_time(60)
        await prober.close()

    run_virtually(story(Probed()))
    assert "dlog-health has failed" in caplog.text


async def test_a_tcp_connection_is_a_sign_of_life() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        finally:
            writer.close()
            gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    probe = TcpProbe({"a": ("127.0.0.1", port)})
    await probe("a")
    await gone.wait()  # the connection does not stay
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await probe("a")
    with pytest.raises(NotFound):
        await probe("b")

"""What it costs to know who is alive, and how well it is known. Only `health_told` and
`dispatch_messages` are a matter of the machine: the others run on a clock of their own."""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Sequence

import dlog
from benchmarks.common import Finding, Setting, median
from dlog.streams.health.core import HealthCore, HealthOptions, Isolated, Ping
from dlog.streams.health.dispatch import Dispatcher
from dlog.streams.health.receive import LogsOfKeys, Receiver
from dlog.streams.routing.flight import Numbered
from dlog.streams.routing.router import Router, Routes

ENDPOINTS = 4
LOST = 0.01
RTT_S = 0.01
DEATHS = 1_000


class _Drawn:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def fraction(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return "token"


def _watch(
    core: HealthCore, until_s: float, answers: Callable[[str, float], bool]
) -> list[tuple[float, object]]:
    """All that the core told on the way, pings left out."""
    told: list[tuple[float, object]] = []
    pongs: list[tuple[float, str, int]] = []
    while True:
        now_s = min(core.next_s(), pongs[0][0] if pongs else until_s)
        if now_s >= until_s:
            return told
        heard = []
        while pongs and pongs[0][0] <= now_s:
            _, endpoint, ping_id = heapq.heappop(pongs)
            heard.append((endpoint, ping_id))
        for effect in core.pulse(now_s, heard):
            if not isinstance(effect, Ping):
                told.append((now_s, effect))
            elif answers(effect.endpoint, now_s):
                heapq.heappush(pongs, (now_s + RTT_S, effect.endpoint, effect.ping_id))


def health_losses(setting: Setting) -> list[Finding]:
    """Asked once an interval, six times as often as anybody is in fact."""
    hours = setting.pick(1_000, 10)
    options = HealthOptions(idle_s=HealthOptions().interval_s)
    core = HealthCore(options, _Drawn("losses"))
    core.keep([f"e{number}" for number in range(ENDPOINTS)], 0.0)
    draw = random.Random("which")
    told = _watch(core, hours * 3600.0, lambda endpoint, now_s: draw.random() >= LOST)
    isolations = sum(isinstance(each, Isolated) for _, each in told)
    return [
        Finding(
            "health_losses",
            f"isolations of {ENDPOINTS} endpoints in {hours} hours, {LOST:.0%} of probes lost",
            str(isolations),
            "0",
            isolations == 0,
        )
    ]


def health_deaths(setting: Setting) -> list[Finding]:
    """From the first ping that a dead endpoint does not answer."""
    options = HealthOptions()
    spans = []
    for number in range(setting.pick(DEATHS, 20)):
        core = HealthCore(options, _Drawn(f"death {number}"))
        core.keep(["dead", "alive"], 0.0)
        first_s: list[float] = []

        def answers(endpoint: str, now_s: float, first_s: list[float] = first_s) -> bool:
            if endpoint == "dead":
                first_s.append(now_s)
            return endpoint != "dead"

        told = _watch(core, 300.0, answers)
        at_s = next(at_s for at_s, each in told if isinstance(each, Isolated))
        spans.append((at_s - first_s[0]) / options.interval_s)
    return [
        Finding(
            "health_deaths",
            "from the first unanswered ping to the isolation, longest",
            f"{max(spans):.2f} intervals",
            "<= 2",
            max(spans) <= 2,
            rounds={"intervals": spans},
        )
    ]


def health_told(setting: Setting) -> list[Finding]:
    """What a message pays for that: it is told as sent, and its reply."""
    count = setting.pick(200_000, 1_000)
    rounds = []
    for _ in range(setting.rounds):
        core = HealthCore(HealthOptions(), _Drawn("told"))
        core.keep([f"e{number}" for number in range(100)], 0.0)
        begun_s = time.process_time()
        for number in range(count):
            core.on_sent("e7", number * 1e-6)
            core.on_reply("e7", number * 1e-6)
        rounds.append((time.process_time() - begun_s) / count * 1e6)
    us = median(rounds)
    what = "to tell the core of a message and its reply"
    return [Finding("health_told", what, f"{us:.2f} us", rounds={"us": rounds})]


def dispatch_messages(setting: Setting) -> list[Finding]:
    """Through two services, into logs in memory: what dispatching itself can do."""
    count = setting.pick(20_000, 100)
    rounds = [asyncio.run(_dispatch(count, number)) for number in range(setting.rounds)]
    rate = median(rounds)
    return [
        Finding(
            "dispatch_messages",
            "messages brought and settled, 16 keys, logs in memory",
            f"{rate:,.0f} /s",
            rounds={"per_s": rounds},
        )
    ]


async def _dispatch(count: int, number: int) -> float:
    async with dlog.aio.connect(f"memory:dispatch-{number}") as client:
        held = LogsOfKeys(lambda key: client.open_writer(key.decode()))
        services = {name: Receiver(held) for name in ("a", "b")}

        async def bring(
            endpoint: str, client_id: int, key: bytes, messages: Sequence[Numbered]
        ) -> int:
            return await services[endpoint].take(client_id, key, messages)

        async def probe(endpoint: str) -> None:
            return

        keys = [f"key-{index}".encode() for index in range(16)]
        routes = Routes(Router.of(list(services)))
        async with Dispatcher(routes, bring, client_id=1, probe=probe) as out:
            await asyncio.gather(*(out.send(key, b"first") for key in keys))  # opens the logs
            begun_s = time.perf_counter()
            settled = [(await out.submit(keys[at % 16], b"." * 100))[1] for at in range(count)]
            await asyncio.gather(*settled)
            took_s = time.perf_counter() - begun_s
        for service in services.values():
            await service.close()
    return count / took_s

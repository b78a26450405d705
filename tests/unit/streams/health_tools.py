"""A client, some endpoints that answer or not, and time that passes as the test says."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable

from dlog.streams.health.core import Effect, HealthCore, HealthOptions, Isolated, Ping, Recovered


class Fixed:
    """A chance that always draws the same."""

    def __init__(self, fraction: float = 0.0) -> None:
        self.value = fraction

    def fraction(self) -> float:
        return self.value

    def token(self) -> str:
        return "token"


class Watched:
    """Plays the driver: sends the pings of a core to endpoints that answer after `rtt_s`."""

    def __init__(
        self,
        endpoints: Iterable[str],
        options: HealthOptions | None = None,
        *,
        chance=None,
        rtt_s: float = 0.01,
    ) -> None:
        self.options = options or HealthOptions()
        self.core = HealthCore(self.options, chance or Fixed())
        self.now_s = 0.0
        self.rtt_s = rtt_s
        self.down: set[str] = set()
        self.loses: Callable[[], bool] = lambda: False
        self.told: list[tuple[float, Effect]] = []
        self.isolated_most = 0
        self._pongs: list[tuple[float, str, int]] = []
        self.core.keep(endpoints, self.now_s)

    def run(self, span_s: float) -> None:
        end_s = self.now_s + span_s
        while True:
            due_s = self.core.next_s()
            if self._pongs:
                due_s = min(due_s, self._pongs[0][0])
            if due_s > end_s:
                break
            self.now_s = max(self.now_s, due_s)
            pongs = []
            while self._pongs and self._pongs[0][0] <= self.now_s:
                _, endpoint, ping_id = heapq.heappop(self._pongs)
                pongs.append((endpoint, ping_id))
            self.pulse(pongs)
        self.now_s = end_s

    def pulse(self, pongs: Iterable[tuple[str, int]] = ()) -> list[Effect]:
        effects = self.core.pulse(self.now_s, pongs)
        for effect in effects:
            self.told.append((self.now_s, effect))
            if isinstance(effect, Ping) and effect.endpoint not in self.down and not self.loses():
                pong = (self.now_s + self.rtt_s, effect.endpoint, effect.ping_id)
                heapq.heappush(self._pongs, pong)
        self.isolated_most = max(self.isolated_most, len(self.core.isolated))
        return effects

    def times(self, kind: type[Effect], endpoint: str | None = None) -> list[float]:
        return [
            at_s
            for at_s, effect in self.told
            if isinstance(effect, kind) and endpoint in (None, effect.endpoint)
        ]

    @property
    def pings(self) -> Counter[str]:
        return Counter(each.endpoint for _, each in self.told if isinstance(each, Ping))

    @property
    def isolations(self) -> list[str]:
        return [each.endpoint for _, each in self.told if isinstance(each, Isolated)]

    @property
    def recoveries(self) -> list[str]:
        return [each.endpoint for _, each in self.told if isinstance(each, Recovered)]

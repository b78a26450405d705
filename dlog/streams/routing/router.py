"""Who gets a message: pins first, then the ring, without those that are isolated.

A `Router` is a value and never changes. What changes is which one stands in `Routes`, in a single
assignment: whoever takes `routes.now` once and asks that has one answer for all of its questions,
before or after a change and never between. All changes, isolation and recovery, servers that come
and go, pins, go through `Router.changed`, and each has a version of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dlog.errors import ConfigError, Unavailable
from dlog.limits import ROUTER_PINS_MAX
from dlog.streams.routing.ring import Ring

MakeRing = Callable[[Mapping[str, float]], Ring]


@dataclass(frozen=True, slots=True)
class Router:
    """Make it with `Router.of`."""

    version: int
    weights: Mapping[str, float]
    isolated: frozenset[str]
    pins: Mapping[bytes, str]
    _full: Ring = field(repr=False)  # with the isolated ones: where all stand
    _ring: Ring = field(repr=False)
    _in_use: tuple[str, ...] = field(repr=False)  # in the order of the weights
    _make: MakeRing = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        servers: Mapping[str, float] | Iterable[str],
        *,
        pins: Mapping[bytes, str] = MappingProxyType({}),
        make: MakeRing = Ring.of,
    ) -> Router:
        """Names with weights, or names of weight 1. `make=Ring.as_twemproxy` counts points as
        twemproxy does."""
        weights = _weights(servers)
        ring = make(weights)
        return cls(1, weights, frozenset(), _pins(pins, weights), ring, ring, tuple(weights), make)

    def changed(
        self,
        *,
        servers: Mapping[str, float] | Iterable[str] | None = None,
        isolated: Iterable[str] | None = None,
        pins: Mapping[bytes, str] | None = None,
    ) -> Router:
        """The next version; this one if nothing is different. What is not given stays. An isolated
        server, and the pins of one, go with it when it leaves."""
        weights = self.weights if servers is None else _weights(servers)
        wanted = self.isolated if isolated is None else frozenset(isolated)
        away = frozenset(wanted & weights.keys())
        if isolated is not None and wanted - weights.keys():
            raise ConfigError(f"not known here: {', '.join(sorted(wanted - weights.keys()))}")
        pinned = (
            MappingProxyType({key: to for key, to in self.pins.items() if to in weights})
            if pins is None
            else _pins(pins, weights)
        )
        same_servers = list(weights.items()) == list(self.weights.items())
        if same_servers and away == self.isolated and pinned == self.pins:
            return self
        full = self._full if same_servers else self._make(weights)
        same_ring = same_servers and away == self.isolated
        return Router(
            self.version + 1,
            weights,
            away,
            pinned,
            full,
            self._ring if same_ring else full.without(away) if away else full,
            tuple(name for name in weights if name not in away),
            self._make,
        )

    def owner_of(self, key: bytes) -> str:
        """`Unavailable` if all are isolated. A key that is pinned to an isolated server goes by the
        ring meanwhile."""
        if self.pins:
            pinned = self.pins.get(key)
            if pinned is not None and pinned not in self.isolated:
                return pinned
        return self._ring.owner_of_key(key)

    def owner_of_log(self, name: str) -> str:
        """The key of a log is its name."""
        return self.owner_of(name.encode())

    def owner_of_turn(self, turn: int) -> str:
        """For what has no key: one after the other."""
        if not self._in_use:
            raise Unavailable("every server is isolated", missing=sorted(self.weights), needed=1)
        return self._in_use[turn % len(self._in_use)]

    @property
    def in_use(self) -> tuple[str, ...]:
        return self._in_use

    def shares(self) -> dict[str, float]:
        """What part of all keys goes to each, pins left aside."""
        return self._ring.shares()


class Routes:
    """Holds the router of the moment. One task changes it; anybody may read it, in any thread."""

    def __init__(self, router: Router) -> None:
        self.now = router
        self._turns = itertools.count()

    def change(
        self,
        *,
        servers: Mapping[str, float] | Iterable[str] | None = None,
        isolated: Iterable[str] | None = None,
        pins: Mapping[bytes, str] | None = None,
    ) -> Router:
        self.now = made = self.now.changed(servers=servers, isolated=isolated, pins=pins)
        return made

    def owner_of(self, key: bytes | None) -> str:
        """Without a key, whose turn it is."""
        router = self.now
        return router.owner_of_turn(next(self._turns)) if key is None else router.owner_of(key)


def _weights(servers: Mapping[str, float] | Iterable[str]) -> Mapping[str, float]:
    if isinstance(servers, Mapping):
        return MappingProxyType(dict(servers))
    names = list(servers)
    if len(set(names)) < len(names):
        raise ConfigError(f"a server is named twice among {', '.join(sorted(names))}")
    return MappingProxyType(dict.fromkeys(names, 1))


def _pins(pins: Mapping[bytes, str], weights: Mapping[str, float]) -> Mapping[bytes, str]:
    if len(pins) > ROUTER_PINS_MAX:
        raise ConfigError(f"a router has {ROUTER_PINS_MAX} pins at most")
    strange = sorted({to for to in pins.values() if to not in weights})
    if strange:
        raise ConfigError(f"keys are pinned to servers that are not there: {', '.join(strange)}")
    return MappingProxyType(dict(pins))

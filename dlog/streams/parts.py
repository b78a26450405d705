"""Rooms of streams as parts of a document that changes while programs run: neither room knows of
the other, this module knows both.

`routing` holds `servers` (an object of names and weights, or a list of names) and `pins` (an object
of keys, as text, and the servers that they go to whatever the ring says); `health` holds options of
`HealthOptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dlog.errors import ConfigError
from dlog.streams.config.following import Prepared, Ready
from dlog.streams.health.core import HealthOptions
from dlog.streams.health.prober import Prober
from dlog.streams.routing.router import Router, Routes

ROUTING, HEALTH = "routing", "health"


class _Wanted(NamedTuple):
    servers: Mapping[str, float] | list[str]
    pins: Mapping[bytes, str]


class RoutingPart:
    """The ring of a program: servers, weights and pins come out of the document, who is isolated
    stays as it is. Without the part, those count that the program began with. `changed` is told
    of each change in the turn that makes it, as `Dispatcher.routes_changed` has to be."""

    name = ROUTING

    def __init__(self, routes: Routes, changed: Callable[[], None] = lambda: None) -> None:
        self.routes = routes
        self._changed = changed
        first = routes.now
        self._first = _Wanted(first.weights, first.pins)

    def prepare(self, content: Mapping[str, Any] | None) -> Prepared:
        wanted = self._first if content is None else _wanted(content)
        before = self.routes.now
        after = before.changed(servers=wanted.servers, pins=wanted.pins)

        def put() -> None:
            if self.routes.now is before:  # the ring is made already
                self.routes.now = after
            else:
                self.routes.change(servers=wanted.servers, pins=wanted.pins)
            self._changed()

        return Ready(after, put)


class HealthPart:
    """How endpoints are looked after, from the next look on: an isolation that began keeps its
    length. Without the part, what the program began with."""

    name = HEALTH

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._first = prober.core.options

    def prepare(self, content: Mapping[str, Any] | None) -> Prepared:
        options = _health_options(content or {}, self._first)

        def put() -> None:
            self._prober.core.options = options
            self._prober.wake()

        return Ready(options, put)


def check_health(content: Mapping[str, Any]) -> None:
    _health_options(content, HealthOptions())


def _health_options(content: Mapping[str, Any], first: HealthOptions) -> HealthOptions:
    known = {each.name for each in dataclasses.fields(HealthOptions)}
    if strange := sorted(content.keys() - known):
        raise ConfigError(
            f"health has no {', '.join(strange)}; there is {', '.join(sorted(known))}"
        )
    for name, value in content.items():
        whole = isinstance(getattr(first, name), int)
        never = name == "idle_s" and value is None
        if not never and type(value) not in ((int,) if whole else (int, float)):
            raise ConfigError(f"health.{name} is a number, not {value!r:.80}")
    try:
        return dataclasses.replace(first, **content)
    except ConfigError as error:
        raise ConfigError(f"health: {error.message}") from None


def check_routing(content: Mapping[str, Any]) -> None:
    """`ConfigError` for what no ring can be made of."""
    wanted = _wanted(content)
    Router.of(wanted.servers, pins=wanted.pins)


def _wanted(content: Mapping[str, Any]) -> _Wanted:
    strange = sorted(content.keys() - {"servers", "pins"})
    if strange:
        raise ConfigError(f"routing has no {', '.join(strange)}; there is pins, servers")
    servers, pins = content.get("servers"), content.get("pins", {})
    if isinstance(servers, Mapping):
        if not all(type(weight) in (int, float) for weight in servers.values()):
            raise ConfigError("routing.servers: a weight is a number")
    elif not isinstance(servers, list) or not all(isinstance(each, str) for each in servers):
        raise ConfigError("routing.servers is an object of names and weights, or a list of names")
    if not servers:
        raise ConfigError("routing.servers names nobody")
    if not isinstance(pins, Mapping) or not all(isinstance(each, str) for each in pins.values()):
        raise ConfigError("routing.pins is an object of keys and servers")
    return _Wanted(servers, {key.encode(): server for key, server in pins.items()})

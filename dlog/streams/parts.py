"""Rooms of streams as parts of a document that changes while programs run: neither room knows of
the other, this module knows both.

`routing` holds `servers` (an object of names and weights, or a list of names) and `pins` (an object
of keys, as text, and the servers that they go to whatever the ring says).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dlog.errors import ConfigError
from dlog.streams.config.following import Prepared, Ready
from dlog.streams.routing.router import Router, Routes

ROUTING = "routing"


class _Wanted(NamedTuple):
    servers: Mapping[str, float] | list[str]
    pins: Mapping[bytes, str]


class RoutingPart:
    """The ring of a program: servers, weights and pins come out of the document, who is isolated
    stays as it is. Without the part, those count that the program began with."""

    name = ROUTING

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
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

        return Ready(after, put)


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

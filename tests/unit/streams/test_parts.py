"""The ring as a part of a document: it changes together with everything else in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.streams.config.document import Document
from dlog.streams.config.following import Following, NodeSource, Plain, Ready, Refused, Taken
from dlog.streams.config.sections import check_known
from dlog.streams.health.core import HealthOptions
from dlog.streams.health.prober import Prober
from dlog.streams.parts import HealthPart, RoutingPart, check_routing
from dlog.streams.routing.router import Router, Routes

KEYS = [b"key-%d" % number for number in range(500)]


class Breaks:
    """A part whose swap fails for some values."""

    name = "last"

    def __init__(self) -> None:
        self.now: Any = None

    def prepare(self, content: Mapping[str, Any] | None) -> Ready:
        value = (content or {}).get("x")

        def put() -> None:
            if value == "breaks":
                raise RuntimeError("a defect")
            self.now = value

        return Ready(value, put)


def version(number: int, **content: Mapping[str, Any]) -> Document:
    return Document(version=number, content=content, token=f"t{number}", who="ana")


def owners(routes: Routes) -> list[str]:
    return [routes.owner_of(key) for key in KEYS]


def followed(*more: Any) -> tuple[Routes, Following]:
    routes = Routes(Router.of(["a", "b"]))
    return routes, Following(NodeSource("/x"), (RoutingPart(routes), *more))


def test_the_ring_goes_by_the_document() -> None:
    """CL-20: scale out and in by a document are the one code path of the ring's changes."""
    routes, core = followed()
    first = routes.now
    assert core.take(version(1, routing={"servers": {"a": 1, "b": 1, "c": 2}})) == Taken(
        1, ("routing",)
    )
    assert set(owners(routes)) == {"a", "b", "c"}
    assert routes.now.version == first.version + 1
    core.take(version(2, routing={"servers": ["a"], "pins": {"key-1": "a"}}))
    assert set(owners(routes)) == {"a"}
    core.take(version(3))  # the part is gone: as the program began
    assert routes.now.weights == first.weights


def test_ring_and_document_are_one() -> None:
    """CL-08, and the flaw "config version swap is not atomic with the ring": a document that is
    refused for another part, before or behind the ring, leaves the ring as it is."""
    last = Breaks()
    routes, core = followed(Plain("health"), last)
    core.take(version(1, routing={"servers": ["a", "b", "c"]}, last={"x": 1}))
    before, router = owners(routes), routes.now
    refused = core.take(version(2, routing={"servers": ["d"]}, last={"x": "breaks"}))
    assert isinstance(refused, Refused)
    assert owners(routes) == before
    assert (core.version, core.in_force["routing"].weights) == (1, router.weights)
    refused = core.take(version(3, routing={"servers": []}, last={"x": 2}))
    assert isinstance(refused, Refused)
    assert (owners(routes), last.now) == (before, 1)
    core.take(version(4, routing={"servers": ["a", "b", "d"]}, last={"x": 2}))
    assert ("d" in owners(routes), last.now) == (True, 2)


def test_an_unchanged_ring_is_not_touched() -> None:
    """CL-02: the very same value, and the same version of it."""
    routes, core = followed(Plain("health"))
    core.take(version(1, routing={"servers": ["a", "b", "c"]}, health={"x": 1}))
    router = routes.now
    core.take(version(2, routing={"servers": ["a", "b", "c"]}, health={"x": 2}))
    assert routes.now is router
    assert core.swapped["routing"] == 2  # as the program began, and version 1


def test_who_is_isolated_stays_so() -> None:
    routes, core = followed()
    routes.change(isolated=["b"])
    core.take(version(1, routing={"servers": ["a", "b", "c"]}))
    assert routes.now.isolated == {"b"}
    assert set(owners(routes)) == {"a", "c"}
    routes.change(isolated=[])
    assert set(owners(routes)) == {"a", "b", "c"}


async def test_who_looks_after_endpoints_goes_by_the_document_too() -> None:
    """CL-08, CL-20: ring and health of one version, in one turn; whoever brings messages is told
    within it."""
    routes = Routes(Router.of(["a", "b"]))
    told: list[tuple[set[str], float]] = []

    async def ping(endpoint: str) -> None:
        return None

    async with Prober(ping, options=HealthOptions(interval_s=7.0)) as prober:
        core = Following(
            NodeSource("/x"),
            (
                HealthPart(prober),
                RoutingPart(
                    routes,
                    lambda: told.append((set(routes.now.weights), prober.core.options.interval_s)),
                ),
            ),
        )
        told.clear()
        content = {"routing": {"servers": ["a", "c"]}, "health": {"interval_s": 3, "idle_s": None}}
        core.take(version(1, **content))
        assert told == [({"a", "c"}, 3)]
        assert prober.core.options == HealthOptions(interval_s=3, idle_s=None)
        refused = core.take(version(2, routing={"servers": ["a"]}, health={"interval_s": -1}))
        assert isinstance(refused, Refused)
        assert (set(routes.now.weights), prober.core.options.interval_s) == ({"a", "c"}, 3)
        core.take(version(3, routing={"servers": ["a", "c"]}))
        assert prober.core.options.interval_s == 7.0
        assert len(told) == 1  # the ring said the same


@pytest.mark.parametrize(
    "content",
    [
        {"interval": 1},
        {"interval_s": "1"},
        {"interval_s": True},
        {"interval_s": None},
        {"quick_pings": 1.5},
        {"checks_max": 1},
        {"isolated_part_max": 2},
    ],
)
def test_what_makes_no_sense_of_health_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_known({"health": content})


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"servers": []},
        {"servers": "a"},
        {"servers": [1]},
        {"servers": ["a", "a"]},
        {"servers": {"a": "1"}},
        {"servers": {"a": True}},
        {"servers": {"a": -1}},
        {"servers": ["a"], "pins": []},
        {"servers": ["a"], "pins": {"x": 1}},
        {"servers": ["a"], "pins": {"x": "b"}},
        {"servers": ["a"], "weights": {}},
    ],
)
def test_what_no_ring_can_be_made_of_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_routing(content)
    with pytest.raises(ConfigError):
        check_known({"routing": content})

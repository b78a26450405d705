"""A sink that raises harms no handle, and what is no sink is refused where it is given."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import dlog
from dlog.metrics import NO_METRICS, guarded, labelled


class Raises:
    """A sink whose four methods all fail, and count what they are asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def _fail(self, method: str) -> None:
        self.asked[method] += 1
        raise RuntimeError(f"no {method} today")

    def count(self, name: str, n: float, labels: Mapping[str, str]) -> None:
        self._fail("count")

    def level(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._fail("level")

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._fail("observe")

    def forget(self, labels: Mapping[str, str]) -> None:
        self._fail("forget")


@pytest.mark.parametrize("whose", ["client", "handle"])
async def test_a_sink_that_raises_ends_no_handle(
    whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Raises()
    of_client, of_handle = (sink, None) if whose == "client" else (NO_METRICS, sink)
    url = f"memory:a-sink-that-raises-{whose}"
    async with dlog.aio.connect(url, metrics=of_client) as client:
        async with client.open_writer("log", metrics=of_handle) as log:
            await log.append_many([b"first", b"second"])
            await log.rotate()
            await log.append(b"third")
        async with client.open_reader("log", metrics=of_handle) as reader:
            read = [message.value async for message in reader]
    assert read == [b"first", b"second", b"third"]
    assert sink.asked["count"] > 3
    assert sink.asked["forget"] > 0
    told = [each for each in caplog.records if each.name == "dlog.metrics"]
    assert {each.levelno for each in told} == {logging.ERROR}
    assert {each.getMessage().partition("(")[0] for each in told} == {
        f"the metrics' {method}" for method in sink.asked
    }


def test_the_sync_face_goes_on_too() -> None:
    with dlog.open_writer("log", url="memory:a-sync-sink-that-raises", metrics=Raises()) as log:
        log.append(b"first")
    with dlog.open_reader("log", url="memory:a-sync-sink-that-raises", metrics=Raises()) as reader:
        assert [message.value for message in reader] == [b"first"]


def test_each_kind_of_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [KeyError("a"), KeyError("b"), ValueError("c"), KeyError("d")]

    class Fails(Raises):
        def _fail(self, method: str) -> None:
            raise errors.pop(0)

    sink = guarded(Fails())
    given = ("dlog.writer.messages", 1, {"log": "orders"})
    for _ in range(4):
        sink.count(*given)
    assert errors == []
    assert [each.getMessage() for each in caplog.records] == [
        f"the metrics' count{given} failed: {error}"
        for error in ("KeyError('a')", "ValueError('c')")
    ]


def test_what_passes_through_a_guard_arrives() -> None:
    heard: list[Any] = []

    class Hears:
        def __getattr__(self, method: str) -> Any:
            return lambda *given: heard.append((method, *given))

    sink = labelled(guarded(Hears()), reader="billing")
    sink.count("a", 2, {"log": "x"})
    sink.level("b", 3, {"log": "x"})
    sink.observe("c", 4, {"log": "x"})
    sink.forget({"log": "x"})
    labels = {"log": "x", "reader": "billing"}
    assert heard == [
        ("count", "a", 2, labels),
        ("level", "b", 3, labels),
        ("observe", "c", 4, labels),
        ("forget", labels),
    ]


def test_a_guard_is_put_once_and_not_around_nothing() -> None:
    once = guarded(Raises())
    assert guarded(once) is once
    assert guarded(NO_METRICS) is NO_METRICS


def test_what_is_no_sink_is_refused() -> None:
    class Counts:
        def count(self, name: str, n: float, labels: Mapping[str, str]) -> None:
            return

    url, wrong = "memory:no-sink", Counts()
    told = "lacks the methods level, observe, forget: a sink has count, level, observe, forget"
    dlog.open_writer("log", url=url).close()
    openings: list[Callable[..., Any]] = [
        lambda **given: dlog.connect(url, **given),
        lambda **given: dlog.open_writer("log", url=url, **given),
    ]
    with dlog.connect(url) as client:
        openings.append(lambda **given: client.open_reader("log", **given))
        for opening in openings:
            with pytest.raises(dlog.ConfigError, match=told):
                opening(metrics=wrong)

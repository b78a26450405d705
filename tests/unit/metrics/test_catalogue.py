"""The list of metrics is true: what is told stands there, with its kind and labels, and all that
stands there is told. The adapters pass it on."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import dlog
from dlog.metrics import CATALOGUE, NO_METRICS, Kind, labelled
from dlog.streams.config.following import Ready
from dlog.testing.sim import Simulation, simulate
from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "how-to" / "observe.md"
ROW = re.compile(r"^\| `(dlog\.[a-z._]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)


class Heard:
    """A sink that checks each figure against the list."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.levels: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.values: defaultdict[str, list[float]] = defaultdict(list)
        self.labels: defaultdict[str, set[tuple[tuple[str, str], ...]]] = defaultdict(set)

    def _check(self, name: str, kind: Kind, value: float, labels: Mapping[str, str]) -> None:
        assert CATALOGUE[name].kind is kind, name
        assert tuple(labels) == CATALOGUE[name].labels, name
        assert all(type(each) is str for each in labels.values()), (name, labels)
        assert value >= 0, (name, value)
        self.labels[name].add(tuple(labels.items()))

    def count(self, name: str, n: float, labels: Mapping[str, str]) -> None:
        self._check(name, Kind.COUNTER, n, labels)
        self.counts[name] += int(n)

    def level(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._check(name, Kind.LEVEL, value, labels)
        self.levels[name, tuple(labels.items())] = value

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._check(name, Kind.DISTRIBUTION, value, labels)
        self.values[name].append(value)

    def forget(self, labels: Mapping[str, str]) -> None:
        wanted = set(labels.items())
        self.levels = {key: v for key, v in self.levels.items() if not wanted <= set(key[1])}


@pytest.fixture(autouse=True)
def nothing_that_is_told_is_refused(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A handle goes on behind what its sink raises, and logs it."""
    yield
    refused = [each for each in caplog.get_records("call") if each.name == "dlog.metrics"]
    assert not refused, refused[0].exc_text


async def test_what_a_writer_and_a_reader_tell() -> None:
    """DL-34: the time that a takeover took is told step by step."""
    heard = Heard()
    async with dlog.aio.connect("memory:metered", metrics=heard) as client:
        async with client.open_writer("log", entry_bytes=64) as log:
            await log.append_many([b"." * 10] * 100)
            await log.rotate()
            await log.append(b"last")
            async with client.open_reader("log") as reader:
                assert len([message async for message in reader]) == 101
            counts = heard.counts
            assert counts["dlog.reader.messages"] == 101
            assert not any(name.startswith("dlog.reader") for name, _ in heard.levels)
            assert heard.levels["dlog.writer.epoch", (("log", "log"), ("role", "writer"))] == 1
    assert counts["dlog.writer.messages"] == counts["dlog.writer.acked"] == 101
    assert counts["dlog.writer.bytes"] == 100 * 26 + 20
    assert counts["dlog.writer.entries"] == len(heard.values["dlog.writer.append"])
    assert counts["dlog.writer.rotations"] == counts["dlog.takeover.count"] == 1
    assert {dict(each)["step"] for each in heard.labels["dlog.takeover.step"]} == {
        "detect", "claim", "fence", "recover", "birth", "commit", "seam", "total",
    }  # fmt: skip
    assert counts["dlog.meta.calls"] == len(heard.values["dlog.meta.call"]) > 5
    assert counts["dlog.reader.entries"] == counts["dlog.writer.entries"]
    assert "dlog.reader.read_ahead" in heard.labels
    assert heard.levels == {}


async def test_dl_25_appends_need_no_call_of_the_metadata_store() -> None:
    """One run and twenty, in more than fifty entries, cost the calls of opening and closing."""
    calls = []
    for log, runs in (("few", 1), ("many", 20)):
        heard = Heard()
        async with dlog.aio.connect(f"memory:steady-{log}", metrics=heard) as client:
            async with client.open_writer(log, entry_bytes=8192) as writer:
                for _ in range(runs):
                    await writer.append_many([b"." * 10] * 1_000)
        calls.append(heard.counts["dlog.meta.calls"])
        entries = heard.counts["dlog.writer.entries"]
    assert entries > 50
    assert calls[0] == calls[1] > 0


async def test_handles_may_have_metrics_of_their_own() -> None:
    of_client, of_writer = Heard(), Heard()
    async with (
        dlog.aio.connect("memory:two-sinks", metrics=of_client) as client,
        client.open_writer("log", metrics=of_writer) as log,
    ):
        await log.append(b"first")
    assert of_writer.counts["dlog.writer.acked"] == 1
    assert of_client.counts["dlog.writer.acked"] == 0
    assert of_client.counts["dlog.meta.calls"] > 0


def test_the_sync_face_measures_as_well() -> None:
    heard = Heard()
    with dlog.open_writer("log", url="memory:metered-sync", metrics=heard) as log:
        log.append(b"first")
    with dlog.open_reader("log", url="memory:metered-sync", metrics=heard) as reader:
        assert len(list(reader)) == 1
    assert heard.counts["dlog.writer.acked"] == heard.counts["dlog.reader.messages"] == 1


def test_more_labels() -> None:
    heard: list[Any] = []

    class Tells:
        def count(self, *told: Any) -> None:
            heard.append(told)

        level = observe = count

        def forget(self, labels: Any) -> None:
            heard.append(labels)

    metrics = labelled(Tells(), reader="billing")
    metrics.count("a", 1, {"log": "x"})
    metrics.level("b", 2, {"log": "x"})
    metrics.observe("c", 3, {"log": "y"})
    metrics.forget({"log": "x"})
    x, y = {"log": "x", "reader": "billing"}, {"log": "y", "reader": "billing"}
    assert heard == [("a", 1, x), ("b", 2, x), ("c", 3, y), x]


def test_nothing_is_measured_by_default() -> None:
    for tell in (NO_METRICS.count, NO_METRICS.level, NO_METRICS.observe):
        tell("no name of ours", 1, {})
    NO_METRICS.forget({})


async def _read_on(reader: dlog.aio.Reader) -> None:
    while await reader.read(1):
        pass


class _Refusing:
    name = "other"

    def prepare(self, content: Any) -> Ready:
        if content:
            raise dlog.ConfigError("nothing may stand here")
        return Ready(None)


HEARD: list[Heard] = []


@simulate(histories=1, troubles="none")
async def test_everything_that_is_listed_is_told(sim: Simulation) -> None:
    """A life with lost bookies, stalls, failures, a lag: every metric is met."""
    heard = Heard()
    HEARD[:] = [heard]
    client = dlog.aio.Client(dlog.uri.parse(sim.url), heard)
    log = await client.open_writer("orders", stall_after_ms=200)
    reader = await client.open_reader("orders", follow=True, stall_after_ms=200)
    await log.append(b"first")
    core = log._engine._driver.appenders[log._engine.core.current.ledger_id].core
    ensemble = core.places.ensemble
    sim.cluster.kill(sim.cluster.servers[ensemble[0]])
    await log.append(b"one is lost")
    await sim.pass_time(1.0)
    await log.append(b"another one took its place")
    assert len(await reader.read(10)) >= 1
    await log.rotate()
    for server in sim.cluster.servers.values():
        server.stop()
    ticket = await log.submit(b"nobody takes it")
    await sim.pass_time(1.0)
    sim.heal()
    await ticket
    second = await sim.open_writer("orders", owner="ben")
    failed = await log.submit(b"it was fenced")
    with pytest.raises(dlog.DlogError):
        await failed
    with pytest.raises(dlog.NotFound):
        await client.admin.describe("nothing")
    await second.close()
    await sim.pass_time(12.0)
    late = await client.open_reader("orders", read_ahead_bytes=1, stall_after_ms=200)
    await sim.pass_time(0.1)
    for server in sim.cluster.servers.values():
        server.stop()
    with pytest.raises(dlog.Unavailable):
        await _read_on(late)
    sim.heal()
    await sim.pass_time(60.0)  # whoever was isolated is used again
    await late.close()
    document = client.config("prod")
    await document.set("writer", {"linger_ms": 0})
    await client.follow_config("prod")
    refusing = await document.follow(_Refusing())
    await document.set("other", {"x": 1}, unchecked=True)
    await sim.pass_time(1.0)
    assert refusing.why() is not None
    await _work_in_a_group(sim, client)
    await reader.close()
    await log.close()
    await client.close()


async def _work_in_a_group(sim: Simulation, client: dlog.aio.Client) -> None:
    stream = await client.create_stream("clicks", shards=1)
    is_stalled = True

    async def fail(batch: dlog.MessageBatch) -> None:
        nonlocal is_stalled
        if batch.values() == [b"stall"] and is_stalled:
            is_stalled = False
            await sim.pass_time(1.0)
        if batch.values() == [b"poison"]:
            raise ValueError("I do not like it")

    ways: dict[str, Any] = {"heart": "loop", "timeout_ms": 1_000, "stall_after_ms": 200}
    ways |= {"on_error": "dead_letter", "dead_letters": "dead", "attempts": 1}
    async with stream.open_writer() as writer:
        async with client.open_worker("billing", "clicks", fail, **ways) as worker:
            for value in (b"stall", b"poison", b"good"):
                await writer.append(value)
            await sim.pass_time(5.0)
            heart, may_deliver = worker._heart, worker._heart.may_deliver
            heart.may_deliver = lambda shard, epoch: False  # type: ignore[method-assign]
            await writer.append(b"late")
            await sim.pass_time(1.0)
            heart.may_deliver = may_deliver  # type: ignore[method-assign]
            await sim.pass_time(1.0)


def test_the_list_has_nothing_that_nobody_tells() -> None:
    test_everything_that_is_listed_is_told()
    (heard,) = HEARD
    untold = CATALOGUE.keys() - set(heard.labels)
    assert not untold


def test_the_page_has_the_same_list() -> None:
    rows = {
        name: (kind, unit, labels, meaning)
        for name, kind, unit, labels, meaning in ROW.findall(PAGE.read_text())
    }
    assert rows == {
        metric.name: (
            metric.kind.value,
            metric.unit,
            ", ".join(metric.labels),
            metric.meaning,
        )
        for metric in CATALOGUE.values()
    }


# --- adapters


def _live(metrics: Any) -> None:
    labels = {"log": "orders"}
    writer, reader = {**labels, "role": "writer"}, {**labels, "role": "reader"}
    metrics.count("dlog.writer.messages", 3, labels)
    metrics.count("dlog.writer.messages", 4, labels)
    metrics.level("dlog.writer.in_flight", 9, writer)
    metrics.level("dlog.writer.in_flight", 5, writer)
    metrics.level("dlog.reader.lag.seconds", 1.5, reader)
    metrics.observe("dlog.writer.append", 0.004, labels)


def test_prometheus() -> None:
    from prometheus_client import CollectorRegistry

    from dlog.metrics.prometheus import PrometheusMetrics, prometheus_name

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    _live(metrics)
    labels = {"log": "orders"}
    value = registry.get_sample_value
    assert value("dlog_writer_messages_total", labels) == 7
    assert value("dlog_writer_in_flight_bytes", {**labels, "role": "writer"}) == 5
    assert value("dlog_reader_lag_seconds", {**labels, "role": "reader"}) == 1.5
    assert value("dlog_writer_append_seconds_sum", labels) == 0.004
    metrics.forget({**labels, "role": "writer"})
    assert value("dlog_writer_in_flight_bytes", {**labels, "role": "writer"}) is None
    assert value("dlog_reader_lag_seconds", {**labels, "role": "reader"}) == 1.5
    assert value("dlog_writer_messages_total", labels) == 7
    metrics.level("dlog.writer.in_flight", 2, {**labels, "role": "writer"})
    assert value("dlog_writer_in_flight_bytes", {**labels, "role": "writer"}) == 2
    names = [prometheus_name(metric) for metric in CATALOGUE.values()]
    assert len(set(names)) == len(names)
    with pytest.raises(dlog.ConfigError, match="more_labels"):
        labelled(metrics, reader="billing").count("dlog.reader.messages", 1, labels)


def test_prometheus_with_more_labels() -> None:
    from prometheus_client import CollectorRegistry

    from dlog.metrics.prometheus import PrometheusMetrics

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, more_labels=["reader"])
    for reader in ("billing", "search"):
        _live(labelled(metrics, reader=reader))
    one = {"log": "orders", "reader": "billing"}
    assert registry.get_sample_value("dlog_writer_messages_total", one) == 7
    labelled(metrics, reader="billing").forget({"log": "orders", "role": "reader"})
    lag, role = "dlog_reader_lag_seconds", {"role": "reader", "log": "orders"}
    assert registry.get_sample_value(lag, {**role, "reader": "billing"}) is None
    assert registry.get_sample_value(lag, {**role, "reader": "search"}) == 1.5


def test_opentelemetry() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from dlog.metrics.opentelemetry import OpenTelemetryMetrics

    collector = InMemoryMetricReader()
    provider = MeterProvider([collector])
    metrics = OpenTelemetryMetrics(provider.get_meter("dlog"))

    def found() -> dict[str, Any]:
        data = collector.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    _live(metrics)
    told = found()
    (messages,) = told["dlog.writer.messages"].data.data_points
    assert (messages.value, dict(messages.attributes)) == (7, {"log": "orders"})
    (in_flight,) = told["dlog.writer.in_flight"].data.data_points
    assert (in_flight.value, told["dlog.writer.in_flight"].unit) == (5, "By")
    (append,) = told["dlog.writer.append"].data.data_points
    assert (append.count, append.sum) == (1, 0.004)
    metrics.forget({"log": "orders", "role": "writer"})
    told = found()
    assert "dlog.writer.in_flight" not in told
    assert told["dlog.reader.lag.seconds"].data.data_points[0].value == 1.5
    provider.shutdown()


@simulate(histories=1, troubles="none")
async def test_what_is_counted_is_told_within_a_second(sim: Simulation) -> None:
    """And not for each message: that would cost the append path what the sink costs."""
    heard = Heard()
    log = await sim.open_writer("orders", metrics=heard)
    for number in range(50):
        await log.append(b"%d" % number)
    assert heard.counts["dlog.writer.acked"] == 0
    await sim.pass_time(1.1)
    assert heard.counts["dlog.writer.acked"] == heard.counts["dlog.writer.entries"] == 50
    assert len(heard.values["dlog.writer.append"]) == 50
    await log.append_many([b"."] * 5_000, atomic=False)
    await log.close()
    assert heard.counts["dlog.writer.acked"] == 5_050

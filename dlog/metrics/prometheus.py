"""Metrics for Prometheus: `dlog[prometheus]`, which is prometheus-client.

    metrics = PrometheusMetrics()                      # in the default registry
    prometheus_client.start_http_server(8000)
    client = dlog.connect(url, metrics=metrics)

Names are those of the catalogue with underscores, and with the unit and `_total` as is the custom
there: `dlog_writer_messages_total`, `dlog_writer_append_seconds`, `dlog_reader_lag_bytes`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from dlog.errors import ConfigError
from dlog.metrics.catalogue import CATALOGUE, Kind, Metric
from dlog.metrics.sink import Labels

# From an append on one disk to a takeover that waits for sessions to end.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_UNITS = {"s": "seconds", "By": "bytes"}


def prometheus_name(metric: Metric) -> str:
    name = metric.name.replace(".", "_")
    unit = _UNITS.get(metric.unit)
    return name if unit is None or name.endswith(unit) else f"{name}_{unit}"


class PrometheusMetrics:
    """One for a registry. `more_labels`: names of labels that `labelled` adds; where it does not,
    they are empty. Safe to use from several threads."""

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, more_labels: Iterable[str] = ()
    ) -> None:
        self._more = tuple(more_labels)
        self._lock = threading.Lock()
        self._names: dict[str, tuple[str, ...]] = {}
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._levels: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, ...]] = {}
        for metric in CATALOGUE.values():
            names = (*metric.labels, *self._more)
            self._names[metric.name] = names
            told = (prometheus_name(metric), metric.meaning, names)
            if metric.kind is Kind.COUNTER:
                self._families[metric.name] = Counter(*told, registry=registry)
            elif metric.kind is Kind.LEVEL:
                self._families[metric.name] = Gauge(*told, registry=registry)
            else:
                self._families[metric.name] = Histogram(*told, registry=registry, buckets=BUCKETS_S)

    def count(self, name: str, n: float, labels: Labels) -> None:
        self._child(name, labels).inc(n)

    def level(self, name: str, value: float, labels: Labels) -> None:
        self._child(name, labels).set(value)

    def observe(self, name: str, value: float, labels: Labels) -> None:
        self._child(name, labels).observe(value)

    def forget(self, labels: Labels) -> None:
        wanted = set(labels.items())
        with self._lock:
            for key in [key for key in self._levels if wanted <= set(key[1])]:
                self._families[key[0]].remove(*self._levels.pop(key))
                del self._children[key]

    def _child(self, name: str, labels: Labels) -> Any:
        key = name, tuple(labels.items())
        child = self._children.get(key)
        return self._new_child(key, labels) if child is None else child

    def _new_child(self, key: tuple[str, tuple[tuple[str, str], ...]], labels: Labels) -> Any:
        name = key[0]
        names = self._names[name]
        unknown = labels.keys() - set(names)
        if unknown:
            raise ConfigError(
                f"the metric {name} has no label {', '.join(sorted(unknown))}: name what "
                "`labelled` adds in more_labels"
            )
        values = tuple(labels.get(each, "") for each in names)
        with self._lock:
            child = self._children[key] = self._families[name].labels(*values)
            if CATALOGUE[name].kind is Kind.LEVEL:
                self._levels[key] = values
        return child

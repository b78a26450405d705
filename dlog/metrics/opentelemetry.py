"""Metrics for OpenTelemetry: `dlog[opentelemetry]`, which is opentelemetry-api. Which SDK carries
them on, and where to, the program chooses.

    client = dlog.connect(url, metrics=OpenTelemetryMetrics())

Names, units and labels are those of the catalogue.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from dlog._version import __version__
from dlog.metrics.catalogue import CATALOGUE, Kind
from dlog.metrics.sink import Labels

_Level = tuple[tuple[str, str], ...]


class OpenTelemetryMetrics:
    """`meter` is that of the global provider, if none is given. Safe to use from several
    threads."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = get_meter("dlog", __version__) if meter is None else meter
        self._lock = threading.Lock()
        self._levels: dict[str, dict[_Level, float]] = {}
        self._instruments: dict[str, Any] = {}
        for metric in CATALOGUE.values():
            told: dict[str, Any] = {"unit": metric.unit, "description": metric.meaning}
            if metric.kind is Kind.COUNTER:
                self._instruments[metric.name] = meter.create_counter(metric.name, **told)
            elif metric.kind is Kind.DISTRIBUTION:
                self._instruments[metric.name] = meter.create_histogram(metric.name, **told)
            else:
                self._levels[metric.name] = {}
                look = partial(self._look, metric.name)
                self._instruments[metric.name] = meter.create_observable_gauge(
                    metric.name, [look], **told
                )

    def count(self, name: str, n: float, labels: Labels) -> None:
        self._instruments[name].add(n, labels)

    def level(self, name: str, value: float, labels: Labels) -> None:
        with self._lock:
            self._levels[name][tuple(labels.items())] = value

    def observe(self, name: str, value: float, labels: Labels) -> None:
        self._instruments[name].record(value, labels)

    def forget(self, labels: Labels) -> None:
        wanted = set(labels.items())
        with self._lock:
            for levels in self._levels.values():
                for key in [key for key in levels if wanted <= set(key)]:
                    del levels[key]

    def _look(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            found = list(self._levels[name].items())
        return [Observation(value, dict(key)) for key, value in found]

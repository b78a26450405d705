"""Where figures go: four methods, called on the event loop's thread of the handle that measures.

They must return at once; each costs the append path what it costs. What they raise harms no handle
(`guarded`). Names and labels are those of the catalogue. With `NO_METRICS`, the default, nothing is
measured at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dlog.errors import ConfigError

Labels = Mapping[str, str]

_log = logging.getLogger("dlog.metrics")


class Metrics(Protocol):
    def count(self, name: str, n: float, labels: Labels) -> None:
        """`n` more of something that only grows."""
        ...

    def level(self, name: str, value: float, labels: Labels) -> None:
        """It stands at `value` now."""
        ...

    def observe(self, name: str, value: float, labels: Labels) -> None:
        """One value of a distribution."""
        ...

    def forget(self, labels: Labels) -> None:
        """Levels with these labels among theirs are nobody's any more: their handle was closed."""
        ...


class _NoMetrics:
    def count(self, name: str, n: float, labels: Labels) -> None:
        return

    def level(self, name: str, value: float, labels: Labels) -> None:
        return

    def observe(self, name: str, value: float, labels: Labels) -> None:
        return

    def forget(self, labels: Labels) -> None:
        return


NO_METRICS: Metrics = _NoMetrics()


class _Labelled:
    def __init__(self, metrics: Metrics, more: Labels) -> None:
        self._metrics = metrics
        self._more = dict(more)
        # A handle has a few sets of labels and says them again and again.
        self._joined: dict[tuple[tuple[str, str], ...], Labels] = {}

    def _join(self, labels: Labels) -> Labels:
        key = tuple(labels.items())
        joined = self._joined.get(key)
        if joined is None:
            joined = self._joined[key] = {**labels, **self._more}
        return joined

    def count(self, name: str, n: float, labels: Labels) -> None:
        self._metrics.count(name, n, self._join(labels))

    def level(self, name: str, value: float, labels: Labels) -> None:
        self._metrics.level(name, value, self._join(labels))

    def observe(self, name: str, value: float, labels: Labels) -> None:
        self._metrics.observe(name, value, self._join(labels))

    def forget(self, labels: Labels) -> None:
        self._metrics.forget(self._join(labels))


def labelled(metrics: Metrics, **labels: str) -> Metrics:
    """The same, with more labels on everything: two readers of one log in one process need it, or
    their lags would stand in one place."""
    return _Labelled(metrics, labels)


class _Guarded:
    """A sink of the user's: a figure that it refuses is missing, and its error is logged once for
    each method and kind of error."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, type[Exception]]] = set()

    def count(self, name: str, n: float, labels: Labels) -> None:
        self._tell("count", self._metrics.count, name, n, labels)

    def level(self, name: str, value: float, labels: Labels) -> None:
        self._tell("level", self._metrics.level, name, value, labels)

    def observe(self, name: str, value: float, labels: Labels) -> None:
        self._tell("observe", self._metrics.observe, name, value, labels)

    def forget(self, labels: Labels) -> None:
        self._tell("forget", self._metrics.forget, labels)

    def _tell(self, name: str, method: Callable[..., None], *given: Any) -> None:
        try:
            method(*given)
        except Exception as error:  # noqa: BLE001 - a sink of somebody else's
            kind = name, type(error)
            if kind not in self._logged:
                self._logged.add(kind)
                told = "the metrics' %s%r failed: %r"
                _log.error(told, name, given, error, exc_info=error)


def guarded(metrics: Metrics) -> Metrics:
    """The same, but what it raises is logged in place of ending the handle that measures.
    ConfigError for an object that lacks one of the four methods."""
    if metrics is NO_METRICS or isinstance(metrics, _Guarded):
        return metrics
    methods = ("count", "level", "observe", "forget")
    missing = [name for name in methods if not callable(getattr(metrics, name, None))]
    if missing:
        told = f"metrics={metrics!r} lacks the methods {', '.join(missing)}"
        raise ConfigError(f"{told}: a sink has {', '.join(methods)}")
    return _Guarded(metrics)

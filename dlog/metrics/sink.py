"""Where figures go: four methods, called on the event loop's thread of the handle that measures.

They must return at once and must not raise; each costs the append path what it costs. Names and
labels are those of the catalogue. With `NO_METRICS`, the default, nothing is measured at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Labels = Mapping[str, str]


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

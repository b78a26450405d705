"""What dlog measures of itself: a protocol of four methods (`sink`), the list of everything that is
told through it (`catalogue`), and adapters for Prometheus and OpenTelemetry, which are imported
only where they are used.

    client = dlog.connect(url, metrics=dlog.metrics.prometheus.PrometheusMetrics())

Protocol and list belong to the floor; an adapter may import the package that it adapts to.
"""

from dlog.metrics.catalogue import CATALOGUE, Kind, Metric
from dlog.metrics.sink import NO_METRICS, Labels, Metrics, guarded, labelled

__all__ = ["CATALOGUE", "NO_METRICS", "Kind", "Labels", "Metric", "Metrics", "guarded", "labelled"]

"""All rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common import Finding, Setting
from benchmarks.embedded.append import append_many, append_sequential, submit
from benchmarks.embedded.history import history
from benchmarks.embedded.memory import memory
from benchmarks.embedded.metadata import metadata
from benchmarks.embedded.metering import metrics
from benchmarks.embedded.reading import iterate, read_arrow
from benchmarks.embedded.rotating import rotation
from benchmarks.embedded.startup import startup
from benchmarks.embedded.tailing import tail_latency
from benchmarks.embedded.taking_over import takeover

ROWS: dict[str, Callable[[Setting], list[Finding]]] = {
    row.__name__: row
    for row in (
        append_sequential,
        append_many,
        submit,
        tail_latency,
        read_arrow,
        iterate,
        rotation,
        takeover,
        history,
        memory,
        startup,
        metadata,
        metrics,
    )
}

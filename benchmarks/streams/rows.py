"""All rows, in the order of the table. A row is a function from a `Setting` to findings; add its
module here."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common import Finding, Setting
from benchmarks.streams.changing import stream_changes, stream_changes_bookies
from benchmarks.streams.health import (
    dispatch_messages,
    health_deaths,
    health_losses,
    health_told,
)
from benchmarks.streams.routing import route_key, route_moves, route_spread
from benchmarks.streams.writing import stream_write, stream_write_bookies

ROWS: dict[str, Callable[[Setting], list[Finding]]] = {
    row.__name__: row
    for row in (
        route_key,
        route_moves,
        route_spread,
        health_losses,
        health_deaths,
        health_told,
        dispatch_messages,
        stream_write,
        stream_write_bookies,
        stream_changes,
        stream_changes_bookies,
    )
}

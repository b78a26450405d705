"""All rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding
from benchmarks.log.appending import append_many, append_sequential, submit
from benchmarks.log.crowding import many_logs
from benchmarks.log.failing import stall, zookeeper_down
from benchmarks.log.handing_over import hand_over
from benchmarks.log.history import history
from benchmarks.log.reading import iterate, read_arrow
from benchmarks.log.rotating import rotation
from benchmarks.log.securing import tls
from benchmarks.log.tailing import tail
from benchmarks.log.taking_over import takeover

ROWS: dict[str, Callable[[Stages], list[Finding]]] = {
    row.__name__: row
    for row in (
        append_sequential,
        append_many,
        submit,
        read_arrow,
        iterate,
        tail,
        takeover,
        hand_over,
        rotation,
        history,
        stall,
        zookeeper_down,
        many_logs,
        tls,
    )
}

"""All rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bookkeeper.appending import add_large, add_pipelined, add_sequential
from benchmarks.bookkeeper.fencing import fence_crash
from benchmarks.bookkeeper.losing_zookeeper import zookeeper_down
from benchmarks.bookkeeper.reading import read_closed
from benchmarks.bookkeeper.recovering import recover
from benchmarks.bookkeeper.stage import Stages
from benchmarks.bookkeeper.stalling import stall
from benchmarks.bookkeeper.storming import storm
from benchmarks.bookkeeper.tailing import tail
from benchmarks.common import Finding

ROWS: dict[str, Callable[[Stages], list[Finding]]] = {
    row.__name__: row
    for row in (
        add_sequential,
        add_pipelined,
        add_large,
        read_closed,
        tail,
        recover,
        stall,
        storm,
        fence_crash,
        zookeeper_down,
    )
}

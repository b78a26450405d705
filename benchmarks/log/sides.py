"""Those that are compared, asked the same in turn: DistributedLog and ours, each in a process of
its own, and the stock Java client where bare adds stand beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.bookkeeper.sides import RUN_TIMEOUT_S
from benchmarks.bookkeeper.stage import Stage
from benchmarks.common import interleaved, median
from dlog.testing.cluster.conversation import Program
from dlog.testing.cluster.jars import Artifact

OURS = "dlog"
THEIRS = "DistributedLog"
SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
_NAMES = count(1)

Runs = dict[str, list[dict[str, Any]]]


def ours(stage: Stage) -> Program:
    """One more process of ours."""
    return stage.new_python("benchmarks.log.ours", stage.cluster.url)


def ours_secured(stage: Stage) -> Program:
    """One more, over TLS to everybody."""
    return stage.new_python("benchmarks.log.ours", stage.secure_url)


def distributed_log(stage: Stage) -> Program:
    """One more of theirs: 256 KB of buffer, a flush every 10 ms, no throttle. All share one
    namespace."""
    jars: tuple[Artifact, ...] = (
        ("org.apache.distributedlog", "distributedlog-core", stage.cluster.version),
    )
    cluster = stage.cluster
    uri = f"distributedlog://{cluster.zookeeper.hosts}/distributedlog"
    return stage.new_java(
        "dlog.DistributedLogPeer", uri, cluster.ledgers_root, sources=SOURCES, more=jars
    )


def fresh_name() -> str:
    """Of a log that nobody has written to."""
    return f"bench-{next(_NAMES)}"


def ask(program: Program, what: str, **details: Any) -> dict[str, Any]:
    told = program.tell(what, timeout_s=RUN_TIMEOUT_S, **details)
    return told if isinstance(told, dict) else {}


def writing(program: Program, what: str, **details: Any) -> Callable[[], dict[str, Any]]:
    """A case: one run, on a log of its own."""
    return lambda: ask(program, what, log=fresh_name(), **details)


def reading(program: Program, what: str, **details: Any) -> Callable[[], dict[str, Any]]:
    """A case: one run."""
    return partial(ask, program, what, **details)


def measured(cases: Mapping[str, Callable[[], dict[str, Any]]], rounds: int, *, warm: int) -> Runs:
    """Each once per round, behind rounds that do not count: a JVM compiles while it goes."""
    interleaved(warm, cases)
    return interleaved(rounds, cases)


def rates_of(runs: Runs) -> dict[str, list[float]]:
    return {name: [run["messages"] / run["seconds"] for run in each] for name, each in runs.items()}


def best_of(rates: Mapping[str, list[float]], but: str = OURS) -> str:
    """The fastest of the others."""
    return max((name for name in rates if name != but), key=lambda name: median(rates[name]))


def cpu_us(runs: Runs) -> dict[str, list[float]]:
    return {
        name: [run["cpu_s"] / run["messages"] * 1e6 for run in each] for name, each in runs.items()
    }


def beside(
    figures: Mapping[str, list[float]], tell: Callable[[float], str], but: str = OURS
) -> str:
    return ", ".join(
        f"{name} {tell(median(runs))}" for name, runs in figures.items() if name != but
    )

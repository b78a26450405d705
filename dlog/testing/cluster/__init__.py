"""Real ZooKeeper and real bookies on this machine, as processes that tests may kill, freeze, wipe
and fill: `Cluster` starts a set of them from the jars of Maven Central, on loopback ports, with
every sync on. `why_not()` says in one sentence why this machine cannot. The room may start
processes, and touches nothing but its own directories and the processes it started. Start reading
at `cluster`; `process` is the one place that starts and signals, `jars` the one that asks Maven."""

from __future__ import annotations

from dlog.testing.cluster.bookie import AUTO_RECOVERY, EASILY_BUSY, Bookie
from dlog.testing.cluster.cluster import Cluster
from dlog.testing.cluster.detached import DetachedCluster
from dlog.testing.cluster.jars import (
    BOOKKEEPER_VERSIONS,
    class_path,
    find_java,
    why_not,
    why_not_brought,
)
from dlog.testing.cluster.process import JavaProcess
from dlog.testing.cluster.scratch import scratch_directory
from dlog.testing.cluster.zookeeper import ZooKeeper

__all__ = [
    "AUTO_RECOVERY",
    "BOOKKEEPER_VERSIONS",
    "EASILY_BUSY",
    "Bookie",
    "Cluster",
    "DetachedCluster",
    "JavaProcess",
    "ZooKeeper",
    "class_path",
    "find_java",
    "scratch_directory",
    "why_not",
    "why_not_brought",
]

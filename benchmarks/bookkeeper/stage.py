"""What a row needs: servers, and the two clients that are compared.

Every row gets servers of its own, on an empty disk and gone afterwards, so that no row pays for the
journals of another, and none fills the disk. With `--quick` rows share one set, as far as they ask
for nothing special.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Setting
from dlog.testing.cluster import Cluster, scratch_directory
from dlog.testing.cluster.authority import Authority
from dlog.testing.cluster.conversation import Program
from dlog.testing.cluster.jars import Artifact
from dlog.testing.cluster.java_program import JavaProgram
from dlog.testing.cluster.secure import bookie_tls, zookeeper_tls

SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
BOOKIES = 4
HEAP_MB, DIRECT_MB = 512, 768
WIRES = ("v2", "v3")  # of the Java client: two protocols, of which the better one counts
SETTINGS: Mapping[str, str] = {
    "journalPreAllocSizeMB": "16",
    "journalMaxSizeMB": "256",
    "journalMaxBackups": "1",
    "logSizeLimit": str(256 << 20),
    "dbStorage_writeCacheMaxSizeMb": "128",
    "dbStorage_readAheadCacheMaxSizeMb": "64",
    "dbStorage_rocksDB_blockCacheSize": str(32 << 20),
    "dbStorage_rocksDB_writeBufferSizeMB": "16",
    # The servers' own choice for this machine, as production would leave it.
    "numReadWorkerThreads": "8",
    "numHighPriorityWorkerThreads": "8",
    "serverNumIOThreads": "4",
}


class Stage:
    """One set of servers and whoever works on it."""

    def __init__(
        self, cluster: Cluster, directory: Path, *, quick: bool, authority: Authority | None = None
    ) -> None:
        self.cluster = cluster
        self._authority = authority
        self._directory = directory
        self._quick = quick
        self._ending = contextlib.ExitStack()
        self._peer: JavaProgram | None = None
        self._ours: Program | None = None
        self._count = 0

    @property
    def secure_url(self) -> str:
        """The same logs as `cluster.url` has, and no byte that is not under TLS."""
        if self._authority is None:
            raise ValueError("these servers know no TLS: ask for it where the stage is made")
        secured = self.cluster.url.replace(
            self.cluster.zookeeper.hosts, self.cluster.zookeeper.secure_hosts
        )
        return f"{secured}&tls=required&tls_ca={self._authority.ca_file}"

    @property
    def peer(self) -> JavaProgram:
        """The Java client, started on first use, connected over both of its wires."""
        if self._peer is None:
            self._peer = self.new_peer()
        return self._peer

    @property
    def ours(self) -> Program:
        """Our client, connected."""
        if self._ours is None:
            self._ours = self.new_ours()
        return self._ours

    def new_peer(self, **settings: str) -> JavaProgram:
        uri = f"zk+hierarchical://{self.cluster.zookeeper.hosts}{self.cluster.ledgers_root}"
        peer = self.new_java("dlog.Peer", uri, sources=SOURCES)
        for wire in WIRES:
            peer.tell(
                "client",
                client=wire,
                settings={
                    "throttle": "0",  # its default of 5,000 adds a second is a hard limit
                    "useV2WireProtocol": str(wire == "v2").lower(),
                    **settings,
                },
            )
        return peer

    def new_ours(self) -> Program:
        """A process of its own that keeps one store open."""
        hosts = self.cluster.zookeeper.hosts
        return self.new_python("benchmarks.bookkeeper.ours", hosts, self.cluster.ledgers_root)

    def new_python(self, module: str, *arguments: str) -> Program:
        """A module of ours that answers, in a process of its own."""

        def words() -> list[str]:
            return [sys.executable, "-m", module, *arguments]

        directory = self._next_directory("ours")
        program = Program(f"python -m {module}", words, directory, working_directory=ROOT)
        return self._ending.enter_context(program)

    def new_java(
        self, main: str, *arguments: str, sources: Sequence[Path], more: Sequence[Artifact] = ()
    ) -> JavaProgram:
        """A Java program that answers; `more` is what it needs beside the servers' jars."""
        program = JavaProgram(
            main,
            arguments,
            sources=sources,
            directory=self._next_directory("peer"),
            version=self.cluster.version,
            heap_mb=1024,
            direct_mb=1024,
            quick=self._quick,
            more=more,
        )
        return self._ending.enter_context(program)

    def close(self) -> None:
        self._ending.close()

    def _next_directory(self, name: str) -> Path:
        self._count += 1
        return self._directory / f"{name}-{self._count}"


class Stages:
    """Makes them for rows."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._ending = contextlib.ExitStack()
        self._shared: Stage | None = None

    @contextlib.contextmanager
    def stage(
        self,
        *,
        bookies: int = BOOKIES,
        settings: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> Iterator[Stage]:
        """`settings` are keys of the bookies' configuration. With `tls` the servers offer TLS
        beside the rest, by certificates of an authority of their own."""
        if self.setting.quick and bookies == BOOKIES and settings is None and not tls:
            if self._shared is None:
                self._shared = self._start(self._ending, bookies, {})
            yield self._shared
            return
        with contextlib.ExitStack() as ending:
            yield self._start(ending, bookies, settings or {}, tls=tls)

    def close(self) -> None:
        self._ending.close()

    def _start(
        self,
        ending: contextlib.ExitStack,
        bookies: int,
        settings: Mapping[str, str],
        *,
        tls: bool = False,
    ) -> Stage:
        directory = ending.enter_context(scratch_directory(self.setting.directory))
        quick = self.setting.quick
        authority = Authority(directory / "authority") if tls else None
        zookeeper: dict[str, str] | None = None
        if authority is not None:
            ca_file = authority.ca_file
            settings = {**settings, **bookie_tls(authority.issue("bookie"), ca_file)}
            zookeeper = zookeeper_tls(authority.issue("zookeeper"), ca_file)
        memory: dict[str, Any] = {} if quick else {"heap_mb": HEAP_MB, "direct_mb": DIRECT_MB}
        cluster = ending.enter_context(
            Cluster(
                bookies=bookies,
                settings={**({} if quick else SETTINGS), **settings},
                quick=quick,
                directory=directory,
                zookeeper_tls=zookeeper,
                **memory,
            )
        )
        stage = Stage(cluster, directory, quick=quick, authority=authority)
        ending.callback(stage.close)
        return stage

"""ZooKeeper and a few bookies, started together:

    with Cluster(bookies=4) as cluster:
        dlog.open_writer("orders", url=cluster.url)
        cluster.bookies[0].kill()

`async with` does the same and leaves the loop free while the servers come up. At the end, also when
the program is killed, all of them are gone; their directories go then or at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dlog.errors import ConfigError
from dlog.testing.cluster import archive
from dlog.testing.cluster.bookie import DIRECT_MB_DEFAULT, HEAP_MB_DEFAULT, Bookie
from dlog.testing.cluster.jars import BOOKKEEPER_DEFAULT, class_path
from dlog.testing.cluster.process import JavaProcess
from dlog.testing.cluster.scratch import scratch_directory
from dlog.testing.cluster.zookeeper import TICK_MS_DEFAULT, ZooKeeper

BOOKIES_DEFAULT = 4
LEDGERS_ROOT = "/ledgers"
ROOT = "/dlog"

# A step of coming up: what to wait for. Between two steps servers are started, which is quick and
# belongs on the thread that asked: the kernel ties their lives to it.
Wait = Callable[[], None]


class Cluster:
    """`settings` are keys of the bookies' configuration, `properties` of their virtual machines;
    `secure` has those that make them want TLS. `quick=False` and larger memory suit benchmarks."""

    def __init__(
        self,
        *,
        bookies: int = BOOKIES_DEFAULT,
        version: str = BOOKKEEPER_DEFAULT,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB_DEFAULT,
        direct_mb: int = DIRECT_MB_DEFAULT,
        quick: bool = True,
        tick_ms: int = TICK_MS_DEFAULT,
        disk_bytes: int | None = None,
        directory: Path | None = None,
        detached: bool = False,
        properties: Sequence[str] = (),
        zookeeper_tls: Mapping[str, str] | None = None,
    ) -> None:
        if bookies < 0:
            raise ConfigError(f"a cluster has no {bookies} bookies")
        self.version = version
        self.bookies: list[Bookie] = []
        self._numbers = itertools.count(1)  # none comes again
        self._count = bookies
        self._settings = dict(settings or {})
        self._heap_mb, self._direct_mb, self._quick = heap_mb, direct_mb, quick
        self._tick_ms = tick_ms
        self._disk_bytes = disk_bytes
        self._own_directory = directory
        self._detached = detached
        self._properties = tuple(properties)
        self._zookeeper_tls = zookeeper_tls
        self._ending = contextlib.ExitStack()
        self._zookeeper: ZooKeeper | None = None
        self._directory: Path | None = None

    @property
    def zookeeper(self) -> ZooKeeper:
        if self._zookeeper is None:
            raise ConfigError("start the cluster first: `with Cluster() as cluster`")
        return self._zookeeper

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise ConfigError("start the cluster first: `with Cluster() as cluster`")
        return self._directory

    @property
    def ledgers_root(self) -> str:
        """Where BookKeeper keeps its nodes."""
        return LEDGERS_ROOT

    @property
    def url(self) -> str:
        """What `dlog.connect` takes."""
        return f"zk://{self.zookeeper.hosts}{ROOT}?ledgers={LEDGERS_ROOT}"

    def bookie(self, bookie_id: str) -> Bookie:
        found = next((each for each in self.bookies if each.bookie_id == bookie_id), None)
        if found is None:
            raise ConfigError(f"no bookie {bookie_id!r} in this cluster")
        return found

    def add_bookie(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        disk_bytes: int | None = None,
        version: str | None = None,
    ) -> Bookie:
        """One more, not yet started: `start()` it and wait. It may be of another release."""
        number = next(self._numbers)
        bookie = Bookie(
            f"bookie-{number}",
            self.directory / f"bookie-{number}",
            class_path(version or self.version),
            self.zookeeper,
            LEDGERS_ROOT,
            settings={**self._settings, **(settings or {})},
            heap_mb=self._heap_mb,
            direct_mb=self._direct_mb,
            quick=self._quick,
            disk_bytes=disk_bytes or self._disk_bytes,
            detached=self._detached,
            properties=self._properties,
        )
        self.bookies.append(bookie)
        self._adopt(bookie, bookie.release)
        return bookie

    def steps(self) -> Iterator[Wait]:
        """Bring it up, one wait after the other. Whoever drives this by hand ends it, too."""
        yield lambda: _bring_jars(self.version)
        jars = class_path(self.version)
        self._directory = self._own_directory or self._ending.enter_context(scratch_directory())
        zookeeper = ZooKeeper(
            self.directory / "zookeeper",
            jars,
            tick_ms=self._tick_ms,
            detached=self._detached,
            tls=self._zookeeper_tls,
        )
        self._zookeeper = zookeeper
        self._adopt(zookeeper, zookeeper.release)
        is_short_lived = self._quick and self._count > 0
        has_tree = is_short_lived and archive.copy_tree(self.version, zookeeper.data)
        zookeeper.start()
        yield zookeeper.wait_until_serving
        for _ in range(self._count):
            self.add_bookie()
        if self.bookies and not has_tree:
            yield self.bookies[0].init_cluster
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            yield bookie.wait_until_serving

    @property
    def servers(self) -> list[JavaProcess]:
        """All there are yet, ZooKeeper first."""
        return [] if self._zookeeper is None else [self._zookeeper, *self.bookies]

    def forget(self) -> None:
        """The processes of a detached cluster go on; nothing here holds them any more."""
        self._ending.close()

    def __enter__(self) -> Cluster:
        with self._torn_down_on_failure():
            for wait in self.steps():
                wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    async def __aenter__(self) -> Cluster:
        with self._torn_down_on_failure():
            for wait in self.steps():
                await asyncio.to_thread(wait)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._ending.close)

    def _adopt(self, process: JavaProcess, release: Callable[[], None]) -> None:
        self._ending.callback(release)
        # Nothing of a throw-away cluster is worth a graceful end.
        self._ending.callback(process.forget if self._detached else process.kill)

    @contextlib.contextmanager
    def _torn_down_on_failure(self) -> Iterator[None]:
        with contextlib.ExitStack() as half_made:  # an exception, also a cancellation, ends it
            half_made.callback(self._ending.close)
            yield
            half_made.pop_all()


def _bring_jars(version: str) -> None:
    """Maven may take minutes, the first time."""
    class_path(version)

"""Classes of the servers, read and checked once: an archive that the virtual machine maps instead
of doing so at every start. It saves a short-lived server about two fifths of its processor time.

One for each main class, beside the class path in the user's cache, named by all that must not have
changed: the Java, the jars. Without one a server starts as it does anywhere. It is made by running
ZooKeeper and a bookie and asking them to end; those of benchmarks start without.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path

from dlog.errors import Unavailable
from dlog.testing.cluster.jars import (
    BOOKKEEPER_DEFAULT,
    cache_directory,
    class_path,
    find_java,
    one_at_a_time,
)

BOOKIE_MAIN = "org.apache.bookkeeper.server.Main"
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_making: Path | None = None  # where servers leave theirs when they end


def flags(java: Path, main: str, class_path: str) -> list[str]:
    """For the command line of a server."""
    if main not in (BOOKIE_MAIN, ZOOKEEPER_MAIN):
        return []
    if _making is not None:
        return [f"-XX:ArchiveClassesAtExit={_making / main}"]
    archive = _directory(java, class_path) / main
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []


def make(version: str) -> None:
    """Unless it is there. One process at a time; the others wait for it."""
    from dlog.testing.cluster.cluster import Cluster

    global _making
    java, jars = find_java(), class_path(version)
    assert java is not None, "who has the jars has Java"
    directory = _directory(java, jars)
    directory.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(directory / "lock"):
        if (directory / "made").exists():
            return
        _making = directory
        try:
            with Cluster(bookies=1, version=version) as cluster:
                for bookie in cluster.bookies:
                    bookie.terminate()
                cluster.zookeeper.terminate()
        except Unavailable:
            for main in (BOOKIE_MAIN, ZOOKEEPER_MAIN):
                (directory / main).unlink(missing_ok=True)
            raise
        finally:
            _making = None
        (directory / "made").touch()


@functools.cache
def _directory(java: Path, class_path: str) -> Path:
    told = hashlib.sha256()
    for path in (java.resolve(), *map(Path, class_path.split(os.pathsep))):
        with contextlib.suppress(FileNotFoundError):
            seen = path.stat()
            told.update(f"{path} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return cache_directory(BOOKKEEPER_DEFAULT).with_name(f"classes-{told.hexdigest()[:16]}")

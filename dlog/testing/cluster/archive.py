"""What short-lived servers would do at every start, done once and kept in the user's cache, named
by all that must not have changed: the Java, the jars. It saves a third of the processor time of a
start. Without it a server starts as it does anywhere; those of benchmarks do.

- The classes of each main class, read and checked: an archive that the virtual machine maps.
- The native library of RocksDB, which a bookie would unpack.
- The tree of a new cluster, a data directory of ZooKeeper, which BookKeeper's own tool would make.

It is made by running that tool, ZooKeeper and a bookie, and asking them to end.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
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
TOOL_MAIN = "org.apache.bookkeeper.bookie.BookieShell"

_MAINS = (BOOKIE_MAIN, ZOOKEEPER_MAIN, TOOL_MAIN)
_ROCKSDB = "librocksdbjni.so"  # as the virtual machine asks for it on Linux
_TREE = "tree"  # made last

_making: Path | None = None  # where servers leave theirs when they end


def flags(java: Path, main: str, class_path: str) -> list[str]:
    """For the command line of a server."""
    if main not in _MAINS:
        return []
    if _making is not None:
        return [f"-XX:ArchiveClassesAtExit={_making / main}"]
    directory = _directory(java, class_path)
    archive = directory / main
    found = [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []
    if (directory / _ROCKSDB).is_file():
        found.append(f"-Djava.library.path={directory}")
    return found


def copy_tree(version: str, to: Path) -> bool:
    """Make `to` the data of a ZooKeeper that has the tree of a new cluster. False: there is none to
    copy."""
    java = find_java()
    kept = None if java is None else _directory(java, class_path(version)) / _TREE
    if kept is None or not kept.is_dir():
        return False
    shutil.copytree(kept, to)
    return True


def make(version: str) -> None:
    """Unless it is there. One process at a time; the others wait for it."""
    global _making
    java, jars = find_java(), class_path(version)
    assert java is not None, "who has the jars has Java"
    directory = _directory(java, jars)
    directory.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(directory / "lock"):
        if (directory / _TREE).is_dir():
            return
        _making = directory
        try:
            _make(version, directory)
        except Unavailable:
            for main in _MAINS:
                (directory / main).unlink(missing_ok=True)
            raise
        finally:
            _making = None


def _make(version: str, directory: Path) -> None:
    from dlog.testing.cluster.cluster import Cluster

    tree = directory / f"{_TREE}.new"
    shutil.rmtree(tree, ignore_errors=True)
    with Cluster(bookies=0, version=version) as cluster:
        zookeeper, bookie = cluster.zookeeper, cluster.add_bookie()
        bookie.init_cluster()
        zookeeper.terminate()
        shutil.copytree(zookeeper.data, tree)
        zookeeper.start()
        zookeeper.wait_until_serving()
        bookie.start()
        bookie.wait_until_serving()
        for unpacked in (bookie.directory / "tmp").glob("librocksdbjni*.so"):
            copied = directory / f"{_ROCKSDB}.new"
            shutil.copyfile(unpacked, copied)
            copied.rename(directory / _ROCKSDB)  # never in place: who has it mapped would crash
        bookie.terminate()
        zookeeper.terminate()
    tree.rename(directory / _TREE)


@functools.cache
def _directory(java: Path, class_path: str) -> Path:
    told = hashlib.sha256()
    for path in (java.resolve(), *map(Path, class_path.split(os.pathsep))):
        with contextlib.suppress(FileNotFoundError):
            seen = path.stat()
            told.update(f"{path} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return cache_directory(BOOKKEEPER_DEFAULT).with_name(f"classes-{told.hexdigest()[:16]}")

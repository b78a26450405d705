"""Directories that clean up after themselves, also after a run that was killed: a small process of
each watches its run and removes the directory when the run is gone. Should that be killed as well,
there is a lock that the kernel drops with its owner: whoever makes the next directory removes those
nobody holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlog.errors import AuthError
from dlog.testing.cluster import janitor
from dlog.testing.cluster.janitor import remove_tree

__all__ = ["own_directory", "remove_tree", "scratch_directory"]

_LOCK = "owner.lock"


@contextlib.contextmanager
def scratch_directory(base: Path | None = None) -> Iterator[Path]:
    """A new directory of our own, removed at the end."""
    parent = own_directory((base or Path(tempfile.gettempdir())) / f"dlog-cluster-{os.getuid()}")
    with _sweeping(parent):
        made = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        lock = _take(made)
        assert lock is not None, "a directory nobody knows of is locked"
    try:
        with _watched(made):
            yield made
    finally:
        remove_tree(made)
        os.close(lock)


def own_directory(directory: Path) -> Path:
    """Made if it is missing, for nobody else to look into."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    # In a directory that anybody may write to, somebody else may have been there first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise AuthError(f"{directory} is not a directory of ours", path=str(directory))
    return directory


@contextlib.contextmanager
def _watched(directory: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", janitor.__file__, os.fspath(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # what is sent to the run's group shall not reach it
    ) as watching:
        try:
            yield
        finally:
            watching.kill()  # what it would do is done here


@contextlib.contextmanager
def _sweeping(parent: Path) -> Iterator[None]:
    """Removes what dead runs left, and lets nobody else sweep while we make ours."""
    with (parent / _LOCK).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for left in parent.glob("run-*"):
            lock = _take(left)
            if lock is not None:
                remove_tree(left)
                os.close(lock)
        yield


def _take(directory: Path) -> int | None:
    """The descriptor that holds the lock of a directory; None if somebody else does."""
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # its janitor was quicker
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock

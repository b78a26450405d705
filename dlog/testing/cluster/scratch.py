"""Directories that clean up after themselves, also after a run that was killed: each holds a lock
that the kernel drops with its owner, and whoever makes the next one removes those nobody holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlog.errors import AuthError

_LOCK = "owner.lock"


@contextlib.contextmanager
def scratch_directory(base: Path | None = None) -> Iterator[Path]:
    """A new directory of our own, removed at the end."""
    parent = _parent(base)
    with _sweeping(parent):
        made = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        lock = _take(made)
        assert lock is not None, "a directory nobody knows of is locked"
    try:
        yield made
    finally:
        remove_tree(made)
        os.close(lock)


def remove_tree(directory: Path) -> None:
    """Also one in which something is mounted, or in which a dying process still writes."""
    for mounted in sorted(directory.rglob("*.mount"), reverse=True):
        if os.path.ismount(mounted):
            subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)


def _parent(base: Path | None) -> Path:
    parent = (base or Path(tempfile.gettempdir())) / f"dlog-cluster-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    found = parent.lstat()
    # In a directory that anybody may write to, somebody else may have been there first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise AuthError(f"{parent} is not a directory of ours", path=str(parent))
    return parent


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
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock

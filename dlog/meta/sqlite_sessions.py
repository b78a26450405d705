"""Sessions of the SQLite store: each is a lock file that the kernel lets go when its owner dies.

`sessions/<id>.lock` is held (flock, exclusive) from the first ephemeral node on until the store
closes. Anybody judges a session by trying a shared lock: refused means alive; granted, or no such
file, means dead. Ids are never drawn twice, so dead stays dead, and a verdict needs no
transaction around it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from dlog.errors import LeaseLost

_SUFFIX = ".lock"
_VERDICTS_MAX = 1_000  # remembered; forgetting one only means to judge again

# A lock belongs to the open file, which a forked child shares: unless the child lets go of its
# copies, a session would outlive its owner.
_held_fds: set[int] = set()


def _let_go_in_child() -> None:
    for fd in _held_fds:
        os.close(fd)
    _held_fds.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class SessionLocks:
    """Our own session and the verdicts on all others. Used on one thread at a time."""

    def __init__(self, directory: Path, own_id: str) -> None:
        self.own_id = own_id
        self._directory = directory
        self._fd: int | None = None
        self._released = False
        self._dead: set[str] = set()

    def hold(self) -> None:
        """Before our first ephemeral node; later calls are free. `LeaseLost` if we lost it."""
        if self._fd is not None or self._released:
            if self.lost:
                raise LeaseLost("the session is lost; it can own no node")
            return
        self._directory.mkdir(exist_ok=True)
        # Under a name that nobody judges until the lock is held: a sweeper that met the file in
        # between would take it for a dead one's.
        unborn = self._directory / f"{self.own_id}.new"
        fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(unborn, self._file(self.own_id))
        except OSError:
            os.close(fd)
            _tidy_away(unborn)
            raise
        self._fd = fd
        _held_fds.add(fd)

    @property
    def lost(self) -> bool:
        """Somebody removed our lock file: to all others we are dead, and stay it."""
        return self._released or (self._fd is not None and os.fstat(self._fd).st_nlink == 0)

    def alive(self, session_id: str) -> bool:
        if session_id == self.own_id:
            return self._fd is not None and not self.lost
        if session_id in self._dead:
            return False
        if len(self._dead) >= _VERDICTS_MAX:
            self._dead.clear()
        try:
            fd = os.open(self._file(session_id), os.O_RDONLY)
        except FileNotFoundError:
            self._dead.add(session_id)
            return False
        try:
            # Shared, so that two who judge at the same time do not take each other for the owner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        self._dead.add(session_id)
        return False

    @property
    def dead(self) -> frozenset[str]:
        """Sessions found dead whose remains may still be there."""
        return frozenset(self._dead)

    def judge_files(self) -> None:
        """Also those that left a lock file and no node."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(_SUFFIX):
                self.alive(name.removesuffix(_SUFFIX))

    def forget(self, session_id: str) -> None:
        """Remove what a dead session left, once none of its nodes is left."""
        _tidy_away(self._file(session_id))
        self._dead.discard(session_id)

    def release(self) -> None:
        """The end of our session. Idempotent."""
        self._released = True
        fd, self._fd = self._fd, None
        if fd is not None:
            _tidy_away(self._file(self.own_id))
            _held_fds.discard(fd)
            os.close(fd)

    def _file(self, session_id: str) -> Path:
        return self._directory / f"{session_id}{_SUFFIX}"


def _tidy_away(file: Path) -> None:
    with contextlib.suppress(OSError):  # what stays is found by the next sweep
        file.unlink(missing_ok=True)

"""A cluster that outlives the command that started it: what `dlog dev` hands to people. A state
file names its processes; each is recognised by its start time before it is ended, so that a pid
that came again is left alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import AlreadyExists, AuthError, FormatError, Unavailable
from dlog.testing.cluster.cluster import Cluster
from dlog.testing.cluster.process import identity
from dlog.testing.cluster.scratch import remove_tree

TICK_MS = 2000
END_TIMEOUT_S = 10.0
_FORMAT = 1


@dataclass(frozen=True)
class Member:
    """One server process, and how to know it again."""

    name: str
    pid: int
    identity: str

    @property
    def runs(self) -> bool:
        return identity(self.pid) == self.identity


@dataclass(frozen=True)
class Found:
    """What the state file says."""

    url: str
    version: str
    members: tuple[Member, ...]


class DetachedCluster:
    """At most one per user. `directory` holds its state file and all its data."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or _runtime_directory()
        self._state = self.directory / "state.json"

    def find(self) -> Found | None:
        """The cluster that was started here, running or not; None if there is none."""
        try:
            told = json.loads(self._state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise FormatError(
                f"{self._state} is not JSON: {error}", path=str(self._state)
            ) from None
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise FormatError(f"{self._state} is of another version", path=str(self._state))
        members = tuple(Member(**member) for member in told["members"])
        return Found(told["url"], told["version"], members)

    def up(self, *, bookies: int, version: str) -> Found:
        with self._alone():
            found = self.find()
            if found is not None and any(member.runs for member in found.members):
                raise AlreadyExists(f"a cluster runs already: {found.url}")
            self._end(found)
            cluster = Cluster(
                bookies=bookies,
                version=version,
                directory=self.directory / "data",
                tick_ms=TICK_MS,
                quick=False,
                detached=True,
            )
            self._start(cluster)
            told = self.find()
        if told is None:
            raise Unavailable("the cluster was ended while it started")
        return told

    def down(self) -> Found | None:
        """End it and remove its data; what there was."""
        with self._alone():
            found = self.find()
            self._end(found)
        return found

    def _start(self, cluster: Cluster) -> None:
        """The state file grows with each process, so that a start that is killed leaves nothing
        that `down` does not know."""
        try:
            for wait in cluster.steps():
                self._note(cluster)
                wait()
            self._note(cluster)
        except BaseException:
            for server in cluster.servers:
                server.kill()
            self._end(None)
            raise
        cluster.forget()

    def _note(self, cluster: Cluster) -> None:
        members = []
        for server in cluster.servers:
            own = None if server.pid is None else identity(server.pid)
            if server.pid is not None and own is not None:
                members.append(Member(server.name, server.pid, own))
        if members:
            self._write(cluster, tuple(members))

    def _write(self, cluster: Cluster, members: tuple[Member, ...]) -> None:
        told = {
            "format": _FORMAT,
            "url": cluster.url,
            "version": cluster.version,
            "members": [vars(member) for member in members],
        }
        draft = self._state.with_suffix(".new")
        draft.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._state)

    def _end(self, found: Found | None) -> None:
        members = () if found is None else found.members
        for member in reversed(members):  # bookies first: they would wait for their ZooKeeper
            if member.runs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
        end_s = time.monotonic() + END_TIMEOUT_S
        for member in members:
            while member.runs:
                if time.monotonic() > end_s:
                    raise Unavailable(f"{member.name} (pid {member.pid}) does not end")
                time.sleep(0.02)
        self._state.unlink(missing_ok=True)
        remove_tree(self.directory / "data")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One `up` or `down` at a time."""
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable("another `dlog dev` is at work") from None
            yield


def _runtime_directory() -> Path:
    """Of this user, and gone after a restart of the machine. The data is too much for
    XDG_RUNTIME_DIR, which is a small disk in memory."""
    directory = Path(tempfile.gettempdir()) / f"dlog-dev-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.lstat().st_uid != os.getuid() or directory.is_symlink():
        raise AuthError(f"{directory} is not a directory of ours", path=str(directory))
    return directory

"""A cluster that outlives the command that started it: what `dlog dev` hands to people. A state
file names its processes; each is recognised by its start time before it is ended, so that a pid
that came again is left alone. Where the file says nothing (a start that was killed before it could
write, a machine that lost power) the servers are known by their command line, which names our
directory.

What a reboot or a kill left behind is not in the way: it runs no more, so the next `up` removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dlog.errors import AlreadyExists, FormatError, Unavailable
from dlog.testing.cluster.cluster import Cluster
from dlog.testing.cluster.process import identity
from dlog.testing.cluster.scratch import own_directory, remove_tree

TICK_MS = 2000
END_TIMEOUT_S = 10.0
_FORMAT = 1
_PROC = Path("/proc")  # Linux


@dataclass(frozen=True)
class Member:
    """One server process, and how to know it again."""

    name: str = field(compare=False)
    pid: int
    identity: str

    @property
    def runs(self) -> bool:
        return identity(self.pid) == self.identity


@dataclass(frozen=True)
class Found:
    """What the state file says. `is_complete` once all servers served; a start that was killed
    leaves it false."""

    url: str
    version: str
    is_complete: bool
    members: tuple[Member, ...]


class DetachedCluster:
    """At most one in a directory, which holds its state file and all its data."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or _runtime_directory()
        self.data = self.directory / "data"
        self._state = self.directory / "state.json"

    def find(self) -> Found | None:
        """The cluster that was started here, running or not; None if there is none."""
        try:
            told = json.loads(self._state.read_text(encoding="utf-8"))
            if told["format"] != _FORMAT:
                raise ValueError(f"format {told['format']!r}")
            members = tuple(Member(**member) for member in told["members"])
            return Found(told["url"], told["version"], told["is_complete"], members)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(
                f"{self._state} is damaged or of another version: {error}", path=str(self._state)
            ) from None

    def up(self, *, bookies: int, version: str) -> Found:
        with self._alone():
            found = self._find_readable()
            if found is not None and found.is_complete and any(each.runs for each in found.members):
                raise AlreadyExists(f"a cluster runs already: {found.url}")
            self._end(found)
            cluster = Cluster(
                bookies=bookies,
                version=version,
                directory=self.data,
                tick_ms=TICK_MS,
                quick=False,
                detached=True,
            )
            return self._start(cluster)

    def down(self) -> int | None:
        """End it and remove its data; how many servers ran, None if there was nothing at all."""
        with self._alone():
            was_started = self._state.exists()
            ended = self._end(self._find_readable())
        return ended if was_started or ended else None

    def _find_readable(self) -> Found | None:
        try:
            return self.find()
        except FormatError:  # whatever runs is found without it
            return None

    def _start(self, cluster: Cluster) -> Found:
        """The state file grows with the processes, so that `status` tells of a start that was
        killed."""
        try:
            for wait in cluster.steps():
                self._note(cluster, is_complete=False)
                wait()
            found = self._note(cluster, is_complete=True)
        except BaseException:  # also Ctrl-C: nothing half-made stays
            for server in cluster.servers:
                server.kill()
            self._end(None)
            raise
        cluster.forget()
        return found

    def _note(self, cluster: Cluster, *, is_complete: bool) -> Found:
        members = []
        for server in cluster.servers:
            own = None if server.pid is None else identity(server.pid)
            if server.pid is not None and own is not None:
                members.append(Member(server.name, server.pid, own))
        url = cluster.url if members else ""  # before the first server there is no port
        found = Found(url, cluster.version, is_complete, tuple(members))
        if members:
            self._write(found)
        return found

    def _write(self, found: Found) -> None:
        told = {"format": _FORMAT, **vars(found), "members": [vars(each) for each in found.members]}
        draft = self._state.with_suffix(".new")
        draft.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._state)

    def _end(self, found: Found | None) -> int:
        # Bookies first: they would wait for their ZooKeeper.
        left = [] if found is None else [each for each in reversed(found.members) if each.runs]
        left += [each for each in self._unlisted() if each not in left]
        for member in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        end_s = time.monotonic() + END_TIMEOUT_S
        for member in left:
            while member.runs:
                if time.monotonic() > end_s:
                    raise Unavailable(f"{member.name} (pid {member.pid}) does not end")
                time.sleep(0.02)
        self._state.unlink(missing_ok=True)
        remove_tree(self.data)
        return len(left)

    def _unlisted(self) -> Iterator[Member]:
        """Servers known by their command line: the JVM is told to keep its files in our data."""
        mark = f"-Djava.io.tmpdir={self.data}{os.sep}".encode()
        for entry in _PROC.glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended, or is not ours to see
                continue
            own = identity(int(entry.name))
            if own is not None and any(word.startswith(mark) for word in words):
                yield Member("an unlisted server", int(entry.name), own)

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
    """Of this user. The data is too much for XDG_RUNTIME_DIR, which is a small disk in memory."""
    return own_directory(Path(tempfile.gettempdir()) / f"dlog-dev-{os.getuid()}")

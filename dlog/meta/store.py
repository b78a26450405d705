"""The MetaStore contract: a small versioned tree with compare-and-set, and nothing more.

Who implements it: sqlite (one host, many processes), memory (one process), zookeeper. Who uses it:
everything that must agree on something. `dlog.testing.conformance` is its only proof: a backend has
no private semantics.

- Paths are absolute (`/dlog/logs/orders`), values are bytes, versions are numbers that change with
  each write.
- One call changes one node. There is no unconditional write: `put` and `delete` name the version
  they saw.
- A refused write raises `Conflict`, `NotFound` or `AlreadyExists`: certainly not applied. `Timeout`
  and `Unavailable` say by `outcome` whether the write may have been applied; only the caller can
  tell, by a token in the value.
- Reads may be stale; `sync()` then `get()` sees every write that was answered before the call.
- A watch is a hint: it may come late, twice or never. Safety never depends on one.
- An ephemeral node lives as long as its creator's session; a session may be lost without its owner
  knowing.
"""

from __future__ import annotations

import asyncio
import functools
from types import TracebackType
from typing import NamedTuple, Protocol, runtime_checkable

from dlog.errors import ConfigError


class Versioned(NamedTuple):
    value: bytes
    version: int


class Created(NamedTuple):
    path: str  # as asked, or with the ten-digit number appended for a sequential node
    version: int


class Session(Protocol):
    """Our presence. `lost` is set once, when we know that the store gave us up; ephemeral nodes are
    gone by then."""

    id: str
    lost: asyncio.Event


class Watch(Protocol):
    """Tells that a node, or the list of its children, may have changed. Use as `async with
    store.watch(path)`."""

    async def wait(self, timeout_ms: float) -> bool:
        """True when something may have changed since the watch began or since the last True; False
        after the time."""
        ...

    async def __aenter__(self) -> Watch: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class TellsTime(Protocol):
    """A store that has a clock. Where it is a server, that is no client's."""

    async def wall_us(self, path: str) -> int:
        """Microseconds since 1970. May make a node at `path`, with a number appended, that is gone
        again when this returns."""
        ...


class MetaStore(Protocol):
    async def get(self, path: str) -> Versioned:
        """The node's value and version; `NotFound`."""
        ...

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """A new node; parents that are missing are made, empty. `AlreadyExists` when there is one.

        `sequential` appends a ten-digit number, larger than any that was ever appended below this
        parent, also after deletions. An ephemeral node can have no children.
        """
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace the value if the node is at `version`; the new version. `Conflict`,
        `NotFound`."""
        ...

    async def delete(self, path: str, version: int) -> None:
        """Remove the node if it is at `version`. `Conflict` (another version, or it has children),
        `NotFound`.

        A node made later under the same path never has a version that an earlier one had.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Names directly below, sorted; `NotFound` if the node itself is missing."""
        ...

    def watch(self, path: str) -> Watch:
        """The node need not exist; its creation is a change, too."""
        ...

    async def sync(self) -> None:
        """After this, reads see every write that was answered, to anybody, before the call."""
        ...

    async def session(self) -> Session: ...

    async def close(self) -> None:
        """Ends the session (ephemeral nodes go) and every watch. Idempotent."""
        ...


@runtime_checkable
class TellsSilence(Protocol):
    """What a store may offer beside the contract."""

    @property
    def silent_since_s(self) -> float | None:
        """Since when it gives no answer (monotonic); None: it does, as far as anybody asked."""
        ...


@runtime_checkable
class LosesSessions(Protocol):
    """What a store may offer beside the contract: its sessions can end under a living client."""

    @property
    def session_timeout_s(self) -> float:
        """How long the store believes in a silent client."""
        ...


PATH_BYTES_MAX = 4096
NODE_BYTES_MAX = 1 << 20


@functools.lru_cache(maxsize=1024)  # the same few paths, again and again
def check_path(path: str) -> str:
    """`/a/b`: absolute, no empty, `.` or `..` level, no control characters. Returned unchanged."""
    if not path.startswith("/") or not path.isprintable() or len(path.encode()) > PATH_BYTES_MAX:
        raise ConfigError(f"a metadata path is absolute and printable, not {path[:80]!r}")
    if path != "/" and any(level in ("", ".", "..") for level in path[1:].split("/")):
        raise ConfigError(f"no level of a metadata path is empty, '.' or '..': {path!r}")
    return path


def parent_of(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"

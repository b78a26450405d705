"""What one connection saw of nodes lately, so that a write that follows a read leaps at once.

A look at a node is worth something only with a look at the root that came *before* it, over the
same connection: whoever finds the root unwritten since then knows that nothing was deleted in
between, and that the node's counter still means what it meant (see `zookeeper`). So a connection
hangs the last root it saw on every node it sees after that; another connection, which may be of a
server that lags, begins with nothing. A look that turns out to be wrong costs a write that is
refused, so old ones, which are more likely to be, are not tried.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LOOKS_KEPT = 256  # nodes
LOOK_AGE_S = 10.0  # of the root in it
# Each delete of anybody writes the root, so a read asks for it once more, in the same breath. A
# write that is refused for an old one costs two round trips and the server's disk.
ROOT_AGE_S = 0.1


class Root(NamedTuple):
    value: bytes
    version: int
    seen_at_s: float

    def is_new(self, now_s: float) -> bool:
        return now_s - self.seen_at_s <= ROOT_AGE_S

    def is_recent(self, now_s: float) -> bool:
        return now_s - self.seen_at_s <= LOOK_AGE_S


class Look(NamedTuple):
    """At the root, and then at the node; its `counter` is what the server compares."""

    root: Root
    created: int
    written: int
    counter: int


class Looks:
    """Of one connection."""

    def __init__(self) -> None:
        self.root: Root | None = None  # as it was last seen, unless it is known to be written
        self._nodes: dict[str, Look] = {}

    def saw(self, wire: str, root: Root, stat: Any) -> Look:
        """`root` was seen before `stat` was asked for."""
        self.forget(wire)
        look = self._nodes[wire] = Look(root, stat.czxid, stat.mzxid, stat.version)
        if len(self._nodes) > LOOKS_KEPT:
            del self._nodes[next(iter(self._nodes))]
        return look

    def forget(self, wire: str) -> None:
        self._nodes.pop(wire, None)

    def clear(self) -> None:
        """The root was written by us."""
        self.root = None
        self._nodes.clear()

    def of(self, wire: str, version: int, now_s: float) -> Look | None:
        """The look in which the node was at `version`, if it is worth trying."""
        look = self._nodes.get(wire)
        if look is None or look.written != version or not look.root.is_recent(now_s):
            return None
        return look

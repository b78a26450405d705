"""Which features met in the same stream: the table of pairs of the world `streams-life`.

Two features meet when one happens in a stream in which the other one happened before, or is under
way. Making a stream again meets what happened to the stream before it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from dlog.testing.sim.world import World

FEATURES = (
    "split",
    "merge",
    "pin",
    "truncate",
    "retain",
    "trim",
    "terminate",
    "made again",
    "retry",
    "run again",
    "group",
    "job",
    "reader",
    "latest",
    "by time",
    "sleep",
    "death",
    "lost reply",
)
_MARK = "pair: "

PAIRS = tuple(f"{_MARK}{one} x {other}" for one, other in combinations(FEATURES, 2))
_ORDER = {feature: index for index, feature in enumerate(FEATURES)}


class Features:
    """Of one history. Each pair counts once in each stream."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, set[str]] = {}

    def happened(self, uid: str | None, feature: str) -> None:
        seen = self._seen.setdefault(uid or "", set())
        if feature in seen:
            return
        for other in sorted(seen):
            one, two = sorted((feature, other), key=_ORDER.__getitem__)
            self._world.mark(f"{_MARK}{one} x {two}")
        seen.add(feature)

    def made(self, uid: str, before: str | None) -> None:
        """A stream of the name that another one had before."""
        if before is not None:
            self.happened(before, "made again")
            self.happened(uid, "made again")


def table(marks: Mapping[str, int]) -> str:
    """How often each two features met."""
    wide = max(map(len, FEATURES))
    lines = [" " * wide + "".join(f"{name[:7]:>8}" for name in FEATURES)]
    for one in FEATURES:
        cells = []
        for other in FEATURES:
            first, second = sorted((one, other), key=_ORDER.__getitem__)
            count = marks.get(f"{_MARK}{first} x {second}", 0)
            cells.append(f"{'·' if one == other else count:>8}")
        lines.append(f"{one:<{wide}}" + "".join(cells))
    return "\n".join(lines)


def is_pair(mark: str) -> bool:
    return mark.startswith(_MARK)

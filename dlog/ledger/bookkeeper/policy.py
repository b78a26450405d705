"""Which bookies: for a new ledger, and instead of one that is lost. Advice, and replaceable.

Any answer keeps the data safe: whoever asks refuses a bookie that may not stand in an ensemble, and
takes it for "there is none". So a policy may know racks or disks, or be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from dlog.chance import Chance
from dlog.errors import Unavailable


class Bookies(Protocol):
    """What is known of the bookies at this moment. Reading it costs no message."""

    def writable(self) -> Sequence[str]:
        """Those that take adds, as far as the metadata store said so last."""
        ...

    def avoided(self) -> AbstractSet[str]:
        """Those that had trouble lately: used only if nothing else is left."""
        ...


class Placement(Protocol):
    def ensemble(
        self, size: int, *, writable: Sequence[str], avoided: AbstractSet[str]
    ) -> tuple[str, ...]:
        """`Unavailable` if there are too few."""
        ...

    def replacement(
        self, *, excluded: AbstractSet[str], writable: Sequence[str], avoided: AbstractSet[str]
    ) -> str | None:
        """One more for an ensemble, none of `excluded`; None if there is none."""
        ...


class RandomPlacement:
    """Every bookie is as good as any other."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def ensemble(
        self, size: int, *, writable: Sequence[str], avoided: AbstractSet[str] = frozenset()
    ) -> tuple[str, ...]:
        bookies = self._shuffled(writable)
        bookies.sort(key=lambda bookie: bookie in avoided)  # stable: those to avoid come last
        if len(bookies) < size:
            raise Unavailable(
                f"a ledger on {size} bookies needs {size - len(bookies)} more than the "
                f"{len(bookies)} that are writable: {', '.join(sorted(bookies)) or 'none'}",
                missing=[f"{size - len(bookies)} more bookies"],
                needed=size - len(bookies),
            )
        return tuple(bookies[:size])

    def replacement(
        self,
        *,
        excluded: AbstractSet[str],
        writable: Sequence[str],
        avoided: AbstractSet[str] = frozenset(),
    ) -> str | None:
        bookies = [bookie for bookie in self._shuffled(writable) if bookie not in excluded]
        bookies.sort(key=lambda bookie: bookie in avoided)
        return bookies[0] if bookies else None

    def _shuffled(self, writable: Sequence[str]) -> list[str]:
        # Sorted first: the outcome depends on the draws alone, not on how a set was iterated.
        bookies = sorted(set(writable))
        for last in range(len(bookies) - 1, 0, -1):
            other = int(self._chance.fraction() * (last + 1))
            bookies[last], bookies[other] = bookies[other], bookies[last]
        return bookies

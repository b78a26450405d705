"""Which bookies to leave alone for a while: what is asked of whoever decides that, and handed in.

Advice only: where too few others are left, those in trouble are used all the same, and nothing that
is safe rests on it. An operator releases all with the node `disableHealthCheck`, which the registry
watches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from dlog.wire.bookie_codes import Answer

# Returns if the bookie serves, and raises if it does not.
AskBookie = Callable[[str], Awaitable[object]]


class BookieHealth(Protocol):
    """Time comes in as an argument, in seconds that never go back. None of these waits but
    `close`."""

    def begin(self, ask: AskBookie) -> None:
        """From the event loop that the store belongs to: bookies may be asked from now on."""
        ...

    def note(self, bookie_id: str, answer: Answer, now_s: float) -> None:
        """What a bookie answered, or that it did not. What is in `BLAMELESS` is not its fault."""
        ...

    def note_unreachable(self, bookie_id: str, now_s: float) -> None:
        """It refused a connection, did not take it in time, or ended it without a word."""
        ...

    def note_lost(self, bookie_id: str, now_s: float) -> None:
        """A connection that had served ended."""
        ...

    def note_hung(self, bookie_id: str, now_s: float) -> None:
        """It had work and said nothing at all for long."""
        ...

    def avoided(self, now_s: float) -> frozenset[str]:
        """The bookies in quarantine."""
        ...

    def enable(self, is_enabled: bool) -> None:
        """Off: all are released, and nothing is counted."""
        ...

    def keep_only(self, bookie_ids: Iterable[str]) -> None:
        """These there are; all others are no longer part of the cluster."""
        ...

    async def close(self) -> None: ...


class NoQuarantine:
    """Every bookie is as good as any other."""

    def begin(self, ask: AskBookie) -> None:
        return

    def note(self, bookie_id: str, answer: Answer, now_s: float) -> None:
        return

    def note_unreachable(self, bookie_id: str, now_s: float) -> None:
        return

    def note_lost(self, bookie_id: str, now_s: float) -> None:
        return

    def note_hung(self, bookie_id: str, now_s: float) -> None:
        return

    def avoided(self, now_s: float) -> frozenset[str]:
        return frozenset()

    def enable(self, is_enabled: bool) -> None:
        return

    def keep_only(self, bookie_ids: Iterable[str]) -> None:
        return

    async def close(self) -> None:
        return

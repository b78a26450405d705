"""What an appender's core asks its driver to do, what both halves of the core share, and the
choices of whoever made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlog.errors import DlogError
from dlog.ledger.bookkeeper.core.slots import Slot
from dlog.ledger.bookkeeper.links import DataLink
from dlog.limits import (
    ADD_STALL_MS_DEFAULT,
    ADD_TIMEOUT_MS_DEFAULT,
    LAGGARD_MS_DEFAULT,
    WINDOW_BYTES_DEFAULT,
    WINDOW_ENTRIES_DEFAULT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    window_entries: int = WINDOW_ENTRIES_DEFAULT
    """Sent and not yet acked by the slowest bookie."""
    window_bytes: int = WINDOW_BYTES_DEFAULT
    laggard_ms: float = LAGGARD_MS_DEFAULT
    """A bookie so long silent that alone holds everything back is replaced."""
    add_timeout_ms: float = ADD_TIMEOUT_MS_DEFAULT
    """A bookie that owes an answer, or goes on refusing an entry, for so long is replaced."""
    stall_ms: float = ADD_STALL_MS_DEFAULT
    """Nothing confirmed for so long ends the appender."""


@dataclass(frozen=True, slots=True)
class Connect:
    """→ `on_link` or `on_no_link`."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class LetGo:
    """Hear no more of this link."""

    link: DataLink


@dataclass(frozen=True, slots=True)
class Look:
    """Read metadata freshly → `on_looked` or `on_not_looked`."""


@dataclass(frozen=True, slots=True)
class Change:
    """Name these bookies from `first_entry` on → `on_changed` or `on_not_changed`."""

    first_entry: int
    places: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class WriteLac:
    """→ `on_lac_written`."""

    slot: Slot
    last_entry: int


Effect = Connect | LetGo | Look | Change | WriteLac


@dataclass(slots=True)
class Standing:
    """Where the appender stands, as both halves of its core see it."""

    ledger_id: int
    last_confirmed: int = -1
    last_published: int = -1
    now_ms: float = 0.0  # as ticks saw time pass
    is_stopped: bool = False
    failure: DlogError | None = None
    effects: list[Effect] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.failure is not None

"""What a procedure asks of the world: frozen values over the two contracts.

A *procedure* is a core written as a generator: it yields an effect, is sent the answer (or has the
error thrown in), and decides what is next. It does no IO, knows no event loop and no clock, so a
simulator drives the very same code. `dlog.drive` is the driver that performs effects on real
stores. `point` names the crash point that stands around an effect (see `dlog.trace`); none where
losing the client there teaches nothing new; `wait` says why it is waited for, where the core knows
more than the effect itself tells (see `dlog.awaited`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dlog.ledger.store import Buffer, ClosedLedger, LedgerSpec
from dlog.reason import Wait

Answer = TypeVar("Answer")
Procedure = Generator["Effect", Any, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    point: str = ""
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class ReadNode(Effect):
    """A metadata node → `Versioned`. `fresh` reads behind a sync."""

    path: str
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class CreateNode(Effect):
    """→ the version."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceNode(Effect):
    """→ the new version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteNode(Effect):
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class ListNodes(Effect):
    """→ names of the children."""

    path: str


@dataclass(frozen=True, slots=True)
class WaitNode(Effect):
    """Until the node may have changed, or the time is over → whether it may have."""

    path: str
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class CreateLedger(Effect):
    """→ the ledger id. The driver keeps the appender."""

    spec: LedgerSpec


@dataclass(frozen=True, slots=True)
class BirthLedger(Effect):
    """Entry 0, on every replica."""

    ledger_id: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class RecoverLedger(Effect):
    """→ `ClosedLedger`. `digest` is what the log was made with; `fenced` is told as soon as its
    appender can have no more confirmed."""

    ledger_id: int
    digest: str
    fenced: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class CloseLedger(Effect):
    """Close our own ledger at its last confirmed entry → `ClosedLedger`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class DeleteLedger(Effect):
    ledger_id: int


@dataclass(frozen=True, slots=True)
class LetGo(Effect):
    """Abandon our appender of a ledger, which stays as it is: the list may name it."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReadEntries(Effect):
    """Single entries of a closed ledger → their bytes, in the order asked. `digest` is what the
    log was made with, `closed` what `RecoverLedger` just answered."""

    ledger_id: int
    digest: str
    entries: tuple[int, ...]
    closed: ClosedLedger | None = None
    bytes_max: int = 64 << 10  # in one read, of what stands together: births and seams are small


@dataclass(frozen=True, slots=True)
class Pause(Effect):
    seconds: float


@dataclass(frozen=True, slots=True)
class Drained(Effect):
    """Until everything pushed to a ledger of ours is confirmed."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Together(Effect):
    """Run all at once → their answers in order. All run to their end; then the first error, if any,
    is raised."""

    procedures: tuple[Procedure[Any], ...]


@dataclass(frozen=True, slots=True)
class SubmitEntry(Effect):
    """Hand the next entry to a ledger of ours. Performed at once, in the same turn of the loop."""

    ledger_id: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Release(Effect):
    """Tell the users of all batches that the core has released by now. Performed at once."""


@dataclass(frozen=True, slots=True)
class LookAtLedger(Effect):
    """→ `LedgerInfo`, not older than the question. With `digest`, which the log was made with,
    `AuthError` if the ledger could not be recovered with it and our password."""

    ledger_id: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class LastReadable(Effect):
    """→ the last entry that may be read now, -1 for none."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReadRun(Effect):
    """→ entries from `first_entry` on, at least one."""

    ledger_id: int
    first_entry: int
    last_entry: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class WaitPast(Effect):
    """Until more of the ledger can be read, something else became of it, `path` may have changed
    (if given), or the time is over. → as `LastReadable`, of that moment; None where the wait does
    not know, which has to be asked then."""

    ledger_id: int
    last_entry: int
    timeout_ms: float
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Deliver(Effect):
    """Batches for the user, in order. Answered when there is room for more."""

    batches: Sequence[Any]

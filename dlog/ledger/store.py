"""The LedgerStore contract: bounded, single-writer, replicated sequences of entries.

Who implements it: embedded (files), memory, bookkeeper. Who uses it: writer, reader, admin.
`dlog.testing.conformance` is its only proof. What every backend promises:

- an acknowledged ("confirmed") entry is durable and never changes; entries count 0, 1, 2 … without
  holes;
- `recover` is idempotent, also when it crashed or runs several times at once; once it returned, no
  earlier appender gets an acknowledgement for an entry above the end it decided; it never loses a
  confirmed entry;
- a closed ledger never changes; ids only grow, also after deletions; deletion is final;
- nobody reads past what its appender *published*: an entry becomes readable when a later entry that
  carries its confirmation is confirmed, or by `publish()`, or when the ledger is closed;
- every failure is definite, or says that it is not (`error.outcome`).

A backend may not be kinder than this in a way that programs could come to rely on.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dlog.errors import AuthError, DlogError
from dlog.reason import Wait

Buffer = bytes | bytearray | memoryview


class LedgerState(enum.Enum):
    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """What a new ledger is made with. One-copy backends keep the quorum numbers and ignore them."""

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: str = "crc32c"
    custom: Mapping[str, bytes] = field(
        default_factory=dict
    )  # names log, segment, epoch and creator token


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    last_entry: int  # -1 when it closed empty
    bytes: int  # payload bytes of all entries


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    ledger_id: int
    state: LedgerState
    closed: ClosedLedger | None  # exactly when the state is CLOSED
    spec: LedgerSpec
    made_us: int | None = None  # by the clock of who made it; None: nobody wrote that down
    # The option that says where ledgers are kept, with its value, where there is one.
    place: str | None = field(default=None, compare=False)


@runtime_checkable
class Explains(Protocol):
    """What an appender or a reader may offer beside its contract: what it waits for itself, None
    for nothing. For people only: nothing is decided by it."""

    def why(self) -> Wait | None: ...


@runtime_checkable
class ExplainsRecovery(Protocol):
    """The same of a store that recovers from several places."""

    def why_recovery(self, ledger_id: int) -> str | None:
        """What a recovery under way waits for, as the end of a sentence: "to be fenced by …"."""
        ...


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The bookies that a ledger needs: of all its entries, and to go on, those of the last."""

    bookies: tuple[str, ...]
    writing: tuple[str, ...]
    not_registered: tuple[str, ...]
    read_only: tuple[str, ...]
    quarantined: tuple[str, ...]  # by this client


@runtime_checkable
class TellsWhere(Protocol):
    """A store with more than one place to keep a ledger in."""

    async def whereabouts(self, ledger_id: int) -> Whereabouts:
        """`NotFound`."""
        ...


@runtime_checkable
class PrefersCopy(Protocol):
    """What a reader may offer beside its contract, where a ledger has several copies."""

    def prefer(self, copy: int) -> None:
        """Begin with this copy, counted on over those that there are. Advice only, taken before
        the first read."""
        ...


class AppenderListener(Protocol):
    """Hears facts of one appender, on the event loop's thread. A fact may arrive before the call
    that caused it returned; it never arrives from another thread. After `on_failed` nothing more
    comes."""

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        """All entries up to `last_entry` are durable. Grows; one call may stand for a whole run of
        entries."""
        ...

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        """All entries up to `last_entry` can be read by anyone who looks now. Grows; never above
        confirmed."""
        ...

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        """The appender is finished: `Fenced` when somebody recovered or closed its ledger. Entries
        that were not confirmed by now never will be, by this appender."""
        ...


class Appender(Protocol):
    """The one handle that may add to a ledger: the one that `create` returned. Not thread-safe:
    loop only."""

    ledger_id: int
    # A policy hint: publishing costs no message, so do it after every confirmation.
    publish_is_free: bool

    def listen(self, listener: AppenderListener) -> None:
        """Exactly once, before the first `submit`."""
        ...

    async def birth(self, buffers: Sequence[Buffer]) -> None:
        """Adds entry 0 and returns once *every* replica has it durable (a dead one is replaced
        first). Before it the ledger proves nothing; nothing else may be submitted earlier."""
        ...

    def submit(self, buffers: Sequence[Buffer]) -> int:
        """Queue the next entry (the concatenation of the buffers, which must not change from now
        on); its id.

        Never blocks and never fails for a reason outside the program: failures come by `on_failed`,
        also when the appender had failed before the call. Bounding what is in flight is the
        caller's duty."""
        ...

    def publish(self) -> None:
        """Make all that is confirmed visible to readers; `on_published` follows. Rising,
        idempotent."""
        ...

    async def close(self) -> ClosedLedger:
        """Close at the last *confirmed* entry. The caller drains first; what is still in flight is
        abandoned.

        Closing again returns the same. If somebody else closed it: at exactly our last confirmed
        entry → the same answer; elsewhere, or recovery is under way → `Fenced`. An unknown reply
        may be asked again."""
        ...

    def abandon(self) -> None:
        """Let go of the handle without closing the ledger: for a lost writer. Idempotent, never
        blocks."""
        ...


class LedgerReader(Protocol):
    """Reads one ledger without disturbing its appender. Not thread-safe: loop only."""

    ledger_id: int

    async def info(self) -> LedgerInfo:
        """Ledger metadata, not older than the call. `NotFound` once it was deleted."""
        ...

    async def last_readable(self) -> int:
        """The last entry this reader may read now: what was published, or the end of a closed
        ledger; -1 for none. Not older than the call. `NotFound` once it was deleted."""
        ...

    async def read(self, first_entry: int, last_entry: int, *, bytes_max: int) -> list[memoryview]:
        """Entries from `first_entry` on, contiguous: at least one, at most up to `last_entry`, and
        about `bytes_max` bytes (one entry may exceed it). `last_entry` must be readable. `Corrupt`,
        `NotFound` (deleted), `Unavailable`."""
        ...

    async def wait_past(self, last_entry: int, timeout_ms: float) -> int:
        """Waits until something after `last_entry` is readable, the ledger was closed, fenced or
        deleted, or the time is over; then the same answer as `last_readable`, but -1 for a deleted
        ledger. Returning early is allowed."""
        ...

    async def close(self) -> None: ...


class LedgerStore(Protocol):
    async def create(self, spec: LedgerSpec) -> Appender:
        """A new, open, empty ledger, with an id above every earlier one's."""
        ...

    async def open(
        self, ledger_id: int, *, digest: str | None = None, closed: ClosedLedger | None = None
    ) -> LedgerReader:
        """`NotFound` if there is none; `AuthError` if it has another digest than its log was made
        with (None: nobody knows). `closed` is what `recover` just answered: then nobody need be
        asked once more whether there is one."""
        ...

    async def info(self, ledger_id: int, *, digest: str | None = None) -> LedgerInfo:
        """`NotFound`. With `digest`, `AuthError` where `recover` would refuse an open ledger: so
        an opener learns that before it ends anybody."""
        ...

    async def recover(
        self,
        ledger_id: int,
        *,
        digest: str | None = None,
        fenced: Callable[[], None] | None = None,
    ) -> ClosedLedger:
        """Fence the appender, find the end, close. Of a closed ledger: its end. `NotFound`; of an
        open one `AuthError` as `open`.

        `fenced` is called once the appender can have no more confirmed, where this can be told
        apart from the rest; it is for measuring only."""
        ...

    async def delete(self, ledger_id: int) -> None:
        """For good, in any state. Of a missing ledger: nothing happens."""
        ...

    def scan_ids(self) -> AsyncIterator[int]:
        """All ledgers, in rising order."""
        ...

    async def close(self) -> None:
        """Abandons what is open. Idempotent."""
        ...


def check_digest(ledger_id: int, stored: str, wanted: str | None) -> None:
    """Whoever can change what is stored of a ledger could name a digest that needs no key, and put
    entries of their own under it."""
    if wanted is not None and stored != wanted:
        raise AuthError(
            f"ledger {ledger_id} should have the digest {wanted}, and its metadata says {stored}: "
            "somebody changed it, or asked for the wrong one",
            ledger_id=ledger_id,
        )

"""Why something waits: `Reason`, the answer of `writer.why()`, `reader.why()` and `dlog why`.

Whoever decides knows what is waited for and says it as a `Wait`: a code, a sentence, and evidence
in plain values. Whoever drives knows since when, and what the stores know beside: a wait *because*
of another one is told as one. A code is for programs (a metric's label, an alarm), a sentence is
for people, and the evidence is for both.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from dlog.errors import DlogError

Plain = str | int | float | bool | None | tuple[str, ...]


class ReasonCode(enum.Enum):
    # Opening, and whatever works on a log's list and its ledgers
    WRITER_PRESENT = "writer_present"  # takeover="wait": another one has the log
    METADATA = "metadata"  # an answer of the metadata store is awaited
    METADATA_AWAY = "metadata_away"  # it gave none lately
    CONTENTION = "contention"  # somebody else was faster, or an error: a short pause
    LEDGER_CREATION = "ledger_creation"  # a new ledger, and its first entry on every bookie
    LEDGER_RECOVERY = "ledger_recovery"  # fencing, and finding the end
    LEDGER_CLOSE = "ledger_close"
    LEDGER_STORE = "ledger_store"  # another answer of it
    # A writer
    UNCONFIRMED = "unconfirmed"  # entries are on their way
    UNPUBLISHED = "unpublished"  # durable, and the LAC that shows them is not out yet
    BARRIER = "barrier"  # acks of a ledger wait for the close of the one before
    BOOKIES_AWAY = "bookies_away"  # fewer take entries than have to
    BOOKIE_SLOW = "bookie_slow"  # one holds back the rest
    ENSEMBLE_CHANGE = "ensemble_change"  # other bookies are to be named first
    WINDOW_FULL = "window_full"  # back-pressure
    SEGMENT_FULL = "segment_full"  # nothing more goes into it before the rotation
    HEALING = "healing"
    ROTATION = "rotation"
    PREPARATION = "preparation"  # of the next ledger, ahead of need
    NUMBERING = "numbering"  # the log is about to say that it has producers
    NEW_OPTIONS = "new_options"  # the log's list is about to say them
    RETENTION = "retention"  # what the log keeps no longer leaves its list
    NOT_PRESENT = "not_present"  # its presence node is missing: others may take it for dead
    LINGERING = "lingering"  # for company, as `linger_ms` says
    CLOSING = "closing"
    CLOSED = "closed"
    LOST = "lost"  # what ended the handle is in the evidence
    # A reader
    FINDING = "finding"
    READING = "reading"
    AT_TAIL = "at_tail"  # nothing is to be had but what is still to be written
    IN_RECOVERY = "in_recovery"  # of the ledger, by whoever takes over
    SEGMENT_NOT_ENTERABLE = "segment_not_enterable"  # no seam yet, or a takeover may drop it
    READ_AHEAD_FULL = "read_ahead_full"  # nobody takes
    ENDED = "ended"
    # A worker of a group
    PROCESSING_FAILED = "processing_failed"  # it is tried again, or the shard stopped
    DEAD_LETTER_REFUSED = "dead_letter_refused"  # by its log: the shard waits until it takes it
    PROCESSING_STALLED = "processing_stalled"  # for long, and the worker lives
    LOOP_BLOCKED = "loop_blocked"  # the event loop of the program takes no turn
    NO_SHARDS = "no_shards"  # others have them, or there are none
    # A document that is followed
    CONFIG_REFUSED = "config_refused"  # its newest version; the one before stays in force
    # Seen from outside
    HOLDER_GONE = "holder_gone"  # it left without closing
    HELD = "held"  # a hold keeps what a truncation would take


# Nothing is in the way: these end when somebody acts, or writes, or when their time is over.
AT_REST = frozenset(
    {
        ReasonCode.LINGERING,
        ReasonCode.CLOSED,
        ReasonCode.LOST,
        ReasonCode.AT_TAIL,
        ReasonCode.READ_AHEAD_FULL,
        ReasonCode.ENDED,
        ReasonCode.HELD,
        ReasonCode.CONFIG_REFUSED,
        ReasonCode.NO_SHARDS,
    }
)

# They say where it waits, and give way to a cause that is known.
_PLACES = frozenset(
    {
        ReasonCode.UNCONFIRMED,
        ReasonCode.WINDOW_FULL,
        ReasonCode.READING,
        ReasonCode.METADATA,
        ReasonCode.LEDGER_CREATION,
        ReasonCode.LEDGER_CLOSE,
        ReasonCode.LEDGER_STORE,
    }
)
# Worth saying as evidence; not the cause of anything by themselves.
_HINTS = frozenset({ReasonCode.BOOKIE_SLOW})


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something waits. `str(reason)` is the sentence."""

    code: ReasonCode
    sentence: str
    evidence: Mapping[str, Plain] = field(default_factory=dict)
    since_us: int | None = None
    """Since when, in microseconds since 1970; None where nobody knows."""

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason in the making. `since_s` is monotonic; None: whoever drives knows."""

    code: ReasonCode
    sentence: str
    evidence: Mapping[str, Plain] = field(default_factory=dict)
    since_s: float | None = None

    def since(self, since_s: float | None) -> Wait:
        return dataclasses.replace(self, since_s=since_s) if self.since_s is None else self

    def beside(self, **evidence: Plain) -> Wait:
        """With more evidence."""
        return dataclasses.replace(self, evidence={**self.evidence, **evidence})

    def because(self, cause: Wait | None) -> Wait:
        """Told as one: what waits, and since when, is ours; the code is that of the cause where
        ours only says where it waits."""
        if cause is None:
            return self
        gives_way = self.code in _PLACES and cause.code not in _HINTS
        return Wait(
            cause.code if gives_way else self.code,
            f"{self.sentence}: {cause.sentence}",
            {**cause.evidence, **self.evidence},
            self.since_s if self.since_s is not None else cause.since_s,
        )

    def told(self, *, now_s: float, now_us: int) -> Reason:
        """For users, whose clock shows the time of day."""
        if self.since_s is None:
            return Reason(self.code, self.sentence, self.evidence)
        since_us = now_us - round(max(now_s - self.since_s, 0.0) * 1e6)
        return Reason(self.code, self.sentence, self.evidence, since_us)


def told_of(error: DlogError) -> dict[str, Plain]:
    """An error as evidence."""
    told: dict[str, Plain] = {"error": error.message, "error_kind": type(error).__name__}
    missing = error.missing
    if missing is not None:
        told["missing"] = (missing,) if isinstance(missing, str) else tuple(map(str, missing))
    if error.needed is not None:
        told["needed"] = error.needed
    if error.winner is not None:
        told["winner"] = error.winner.name
        told["winner_epoch"] = error.winner.epoch
    return told


def time_text(seconds: float) -> str:
    """So long, for people: `250 ms`, `12.3 s`, `5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 300 else f"{seconds / 60:.0f} min"


def size_text(size_bytes: int) -> str:
    """So much, for people: `1.5 MiB`."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} B"
    power = min(4, (size_bytes.bit_length() - 1) // 10)
    return f"{size_bytes / (1 << 10 * power):.1f} {'KMGT'[power - 1]}iB"

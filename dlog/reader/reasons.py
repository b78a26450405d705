"""Why a reader waits, decided from its core's state and a few facts of its driver. No IO."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DlogError
from dlog.reader.core import ReaderCore, ReaderState
from dlog.reason import Plain, ReasonCode, Wait, size_text, told_of


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """What the driver knows and the core does not."""

    ended_by: DlogError | None
    is_closed: bool
    ahead_bytes: int  # read and not taken
    ahead_bytes_max: int
    is_full: bool  # the walk rests until somebody takes
    has_messages: bool  # to hand out now
    awaited: Wait | None


def why_reader(core: ReaderCore, facts: ReaderFacts) -> Wait | None:
    """None when there is something to hand out."""
    if facts.is_closed:
        return Wait(ReasonCode.CLOSED, "the reader was closed")
    if facts.is_full:
        return Wait(
            ReasonCode.READ_AHEAD_FULL,
            f"{size_text(facts.ahead_bytes)} were read ahead, and nobody takes them",
            {"read_ahead_bytes": facts.ahead_bytes, "read_ahead_bytes_max": facts.ahead_bytes_max},
        )
    if facts.has_messages:
        return None
    if core.trouble is not None:
        return core.trouble
    if facts.ended_by is not None:
        sentence = f"the reader ended: {facts.ended_by}"
        return Wait(ReasonCode.LOST, sentence, told_of(facts.ended_by))
    match core.state:
        case ReaderState.ENDED:
            return Wait(ReasonCode.ENDED, "the reader came to its end", {"end_seq": core.end_seq})
        case ReaderState.FINDING:
            finding = Wait(ReasonCode.FINDING, "the place to read from is being looked for")
            return core.blocked or finding.because(facts.awaited)
        case ReaderState.READING:
            return _reading(core, facts)
        case ReaderState.TAILING:
            return core.recovering or _at_tail(core).because(core.unsure)
        case ReaderState.CROSSING:
            crossing = Wait(ReasonCode.FINDING, "the segment that follows is being looked for")
            return core.blocked or crossing.because(facts.awaited)


def _reading(core: ReaderCore, facts: ReaderFacts) -> Wait:
    wait = Wait(
        ReasonCode.READING,
        f"entry {core.place.entry_id} of segment {core.place.number} is being read",
        {"segment": core.place.number, "entry_id": core.place.entry_id},
    )
    ledger_id = None if facts.awaited is None else facts.awaited.evidence.get("ledger_id")
    return wait if ledger_id is None else wait.beside(ledger_id=ledger_id)


def _at_tail(core: ReaderCore) -> Wait:
    evidence: dict[str, Plain] = {
        "segment": core.place.number,
        "last_entry": core.place.entry_id - 1,
        "next_seq": core.place.seq,
    }
    return Wait(
        ReasonCode.AT_TAIL,
        "all that can be read was read: there is nothing to wait for but messages",
        evidence,
    )

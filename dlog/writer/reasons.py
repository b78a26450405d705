"""Why a writer waits, decided from its core's state and a few facts of its driver. No IO.

What is taken and not acknowledged comes first, since somebody waits for it: in order, as acks are
given. Then what could not even be sent, then the duty at hand. What the stores know of the cause is
joined to it outside.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dlog.errors import DlogError
from dlog.reason import Plain, ReasonCode, Wait, size_text, told_of
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.pipe import Pipe, PipeState
from dlog.writer.policy import Advice

ON_ITS_WAY_S = 1.0
_SENT = frozenset({ReasonCode.UNCONFIRMED, ReasonCode.UNPUBLISHED})

# Waits that may be for the metadata store, whatever they are told as.
_MAY_NEED_METADATA = frozenset(
    {
        ReasonCode.METADATA,
        ReasonCode.CONTENTION,
        ReasonCode.LEDGER_CREATION,
        ReasonCode.LEDGER_RECOVERY,
        ReasonCode.LEDGER_CLOSE,
        ReasonCode.LEDGER_STORE,
        ReasonCode.BARRIER,
        ReasonCode.SEGMENT_FULL,
        ReasonCode.HEALING,
        ReasonCode.ROTATION,
        ReasonCode.PREPARATION,
        ReasonCode.RETENTION,
        ReasonCode.NUMBERING,
        ReasonCode.CLOSING,
        ReasonCode.NOT_PRESENT,
    }
)


@dataclass(frozen=True, slots=True)
class DutyFacts:
    """A duty that is under way, or rests after a failure."""

    code: ReasonCode
    name: str
    since_s: float | None
    error: DlogError | None  # of its last try
    tries: int  # that failed


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """What the driver knows and the core does not."""

    taken_bytes: int  # and not acknowledged
    window_bytes: int
    window_entries: int
    is_full: bool  # of bytes
    has_pending: bool  # taken and not sent
    lingers: bool
    is_opening: bool
    duty: DutyFacts | None
    awaited: Wait | None  # what procedures wait for now
    metadata_away: Wait | None
    not_present: Wait | None = None  # its presence node is missing


def why_writer(core: WriterCore | None, facts: WriterFacts) -> Wait | None:
    """None when nothing is waited for."""
    return _rooted(_why(core, facts), facts.metadata_away)


def _why(core: WriterCore | None, facts: WriterFacts) -> Wait | None:
    if core is None:  # being opened: whatever the takeover waits for
        return facts.awaited
    match core.state:
        case WriterState.DEAD:
            error = core.error
            sentence = "the writer ended" if error is None else f"the writer ended: {error}"
            return Wait(ReasonCode.LOST, sentence, {} if error is None else told_of(error))
        case WriterState.CLOSED:
            return Wait(ReasonCode.CLOSED, "the writer was closed")
        case WriterState.HEALING:
            return _healing(core, facts)
        case WriterState.CLOSING:
            closing = Wait(ReasonCode.CLOSING, "the log is being closed and sealed")
            return closing.because(facts.awaited)
        case WriterState.OPEN:
            at_hand = _full(core, facts, _unacknowledged(core, facts))
            duty = _duty(facts)
            if duty is not None and _is_on_its_way(core, at_hand) and _has_failed(facts):
                return duty
            return at_hand or duty or facts.not_present


def _healing(core: WriterCore, facts: WriterFacts) -> Wait:
    failed = next((pipe for pipe in core.pipes if pipe.failed is not None), core.current)
    cause = "" if failed.failed is None else f" ({failed.failed})"
    since_s = min((pipe.sent[0].sent_s for pipe in core.pipes if pipe.sent), default=None)
    evidence: dict[str, Plain] = {"ledger_id": failed.ledger_id}
    if failed.failed is not None:
        evidence |= told_of(failed.failed)
    wait = Wait(
        ReasonCode.HEALING,
        f"ledger {failed.ledger_id} cannot go on{cause}, and another one takes its place",
        evidence,
        facts.duty.since_s if since_s is None and facts.duty is not None else since_s,
    )
    return wait.because(facts.awaited)


def _has_failed(facts: WriterFacts) -> bool:
    return facts.duty is not None and facts.duty.tries > 0


def _is_on_its_way(core: WriterCore, wait: Wait | None) -> bool:
    """An append that nobody would call late yet: under load there always is one, and it hides what
    cannot be done."""
    if wait is None or wait.since_s is None or wait.code not in _SENT:
        return False
    return core.identity.now_s() - wait.since_s < ON_ITS_WAY_S


# --- what somebody waits for


def _unacknowledged(core: WriterCore, facts: WriterFacts) -> Wait | None:
    first = core.pipes[0]
    if first.sent:
        return _in_first(core, first)
    held = [pipe for pipe in core.pipes if pipe.sent]
    if held and first.state is not PipeState.CLOSED:
        return _barrier(first, held, facts)
    fresh = core.current
    if not fresh.is_drained:
        told = f"the first entry of ledger {fresh.ledger_id} is not confirmed yet"
        return _of_ledger(ReasonCode.UNCONFIRMED, told, fresh, fresh.opened_s)
    if facts.is_opening and core.unpublished(fresh.ledger_id):
        told = f"the first entry of ledger {fresh.ledger_id} cannot be read by anyone yet"
        return _of_ledger(ReasonCode.UNPUBLISHED, told, fresh, fresh.opened_s)
    return None


def _in_first(core: WriterCore, pipe: Pipe) -> Wait | None:
    oldest = pipe.sent[0]
    if pipe.last_confirmed < oldest.entry_id:
        return _of_ledger(
            ReasonCode.UNCONFIRMED,
            f"{_entries(pipe.in_flight_entries)} of ledger {pipe.ledger_id} (from "
            f"{oldest.entry_id} on), sent and not confirmed yet",
            pipe,
            oldest.sent_s,
        )
    if core.waits_for_visibility and pipe.last_published < oldest.entry_id:
        return _of_ledger(
            ReasonCode.UNPUBLISHED,
            f"entries of ledger {pipe.ledger_id} up to {pipe.last_confirmed} are durable, and "
            f"readers see it up to {pipe.last_published}: its LAC is not published yet",
            pipe,
            oldest.sent_s,
        )
    return None


def _barrier(first: Pipe, held: list[Pipe], facts: WriterFacts) -> Wait:
    count = sum(len(pipe.sent) for pipe in held)
    wait = _of_ledger(
        ReasonCode.BARRIER,
        f"the acknowledgement of {_entries(count)} in ledger {held[0].ledger_id} waits until "
        f"ledger {first.ledger_id} before it is closed",
        first,
        held[0].sent[0].sent_s,
    ).beside(held_in=held[0].ledger_id, held_entries=count)
    return wait.because(facts.awaited)


def _of_ledger(code: ReasonCode, sentence: str, pipe: Pipe, since_s: float) -> Wait:
    evidence: dict[str, Plain] = {
        "ledger_id": pipe.ledger_id,
        "last_pushed": pipe.last_pushed,
        "last_confirmed": pipe.last_confirmed,
        "last_published": pipe.last_published,
    }
    return Wait(code, sentence, evidence, since_s)


def _full(core: WriterCore, facts: WriterFacts, wait: Wait | None) -> Wait | None:
    """With what nothing more can be sent for, if so."""
    entries = sum(pipe.in_flight_entries for pipe in core.pipes)
    has_all_entries = facts.has_pending and entries >= facts.window_entries
    if wait is None and facts.is_full:
        wait = Wait(ReasonCode.WINDOW_FULL, "what was taken is about to be sent")
    if wait is not None and (facts.is_full or has_all_entries):
        window = f"{size_text(facts.taken_bytes)} of {size_text(facts.window_bytes)}"
        code = wait.code if wait.code is not ReasonCode.UNCONFIRMED else ReasonCode.WINDOW_FULL
        return dataclasses.replace(
            wait.beside(
                window_full=True,
                taken_bytes=facts.taken_bytes,
                window_bytes=facts.window_bytes,
                in_flight_entries=entries,
                window_entries=facts.window_entries,
            ),
            code=code,
            sentence=f"the window is full ({window}, {_entries(entries)}): {wait.sentence}",
        )
    if wait is not None or not facts.has_pending:
        return wait
    if core.advice() is Advice.WAIT:
        number = core.current.number
        full = Wait(
            ReasonCode.SEGMENT_FULL,
            f"segment {number} takes no more: appends wait for the rotation",
            {"segment": number, "bytes": core.current.bytes},
        )
        return full.because(_duty(facts))
    if facts.lingers:
        return Wait(ReasonCode.LINGERING, "a message waits for company, as linger_ms says")
    return None


# --- what has to be done beside appends


def _duty(facts: WriterFacts) -> Wait | None:
    duty = facts.duty
    if duty is None:
        return None
    if duty.error is not None:
        evidence: dict[str, Plain] = {**told_of(duty.error), "tries": duty.tries}
        return Wait(duty.code, f"{duty.name} waits: {duty.error}", evidence, duty.since_s)
    wait = Wait(duty.code, f"{duty.name} is under way", {}, duty.since_s)
    return wait.because(facts.awaited)


def _rooted(wait: Wait | None, away: Wait | None) -> Wait | None:
    """The metadata store is away, and this may be all that it is about."""
    if wait is None or away is None or wait.code not in _MAY_NEED_METADATA:
        return wait
    return Wait(
        ReasonCode.METADATA_AWAY,
        f"{wait.sentence}; {away.sentence}",
        {**away.evidence, **wait.evidence, "waits": wait.code.value},
        wait.since_s if wait.since_s is not None else away.since_s,
    )


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"

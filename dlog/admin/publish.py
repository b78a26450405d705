"""Publishing: ledgers that a job filled become the newest segments of their log, all at once.
Procedures without IO.

It is a takeover whose commit lists closed ledgers instead of an open one. *Refuse* what need not
disturb anybody: a batch that is there already, a ledger that is not of this log or not closed, one
whose id is not above every id ever listed. *Claim*, *fence and recover*, *decide the end*, as every
opener does; nothing of that where all is sealed. *Commit*: one compare-and-set seals what was
recovered, lists the ledgers behind it, in the order of their ids, notes the batch, and leaves the
log to whoever comes next.

Nobody may delete a ledger that this could still list. Who wants to discard one says so in the log
meta first, where each commit finds it, and deletes it afterwards (`admin.discard`); so each commit
looks at the ledgers once more *after* it read the meta that it changes.

A lost reply is resolved by reading: the table of batches holds the token of whoever published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import (
    CreateNode,
    LookAtLedger,
    Pause,
    Procedure,
    ReadEntries,
    ReadNode,
    ReplaceNode,
    Together,
)
from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    Corrupt,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Retry,
)
from dlog.ledger.store import LedgerInfo
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.listed import Sealed
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import Cut
from dlog.meta.published import PublishedBatch
from dlog.meta.shards import refuse_unless_shard
from dlog.wire.batch import Birth, ControlKind, decode, decode_header
from dlog.writer.filled import FilledSegment
from dlog.writer.preconditions import check_ledgers
from dlog.writer.segments import BIRTH_ENTRY, decide_end
from dlog.writer.takeover import (
    Opening,
    announce,
    recover_listed,
    refuse_unless_open,
    refuse_unless_owned,
)

FIRST_ENTRY = 1  # of the messages of a job's ledger


@dataclass(frozen=True, slots=True)
class Publication:
    """Where a batch stands. `published` False: it was there already, and nothing was done; then the
    seqs are None if a later batch of the query was published since."""

    log: str
    query: str
    number: int
    published: bool
    epoch: int | None
    base_seq: int | None
    next_seq: int | None

    @property
    def messages(self) -> int | None:
        if self.base_seq is None or self.next_seq is None:
            return None
        return self.next_seq - self.base_seq


@dataclass(frozen=True, slots=True)
class Publishing:
    """Who publishes what. `segments` have messages, and stand in the order of their ids."""

    opening: Opening
    query: str
    number: int
    segments: tuple[FilledSegment, ...]
    uid: str | None  # of the log; None: nothing was filled, and any will do
    sent: list[Seen] = field(default_factory=list)  # commits whose fate nobody told
    claims: list[int] = field(default_factory=list)  # epochs that we tried to claim

    @property
    def path(self) -> str:
        return self.opening.path

    @property
    def token(self) -> str:
        return self.opening.mark.token

    @property
    def is_unknown(self) -> bool:
        """It may be there, and nobody looked since."""
        return bool(self.sent)

    def read(self, seen: Seen) -> None:
        """At another version of the same log, what was sent to an earlier one shows, or never
        will."""
        meta = seen.meta
        if meta.is_removed or self.answered(meta) is not None:
            return
        self.sent[:] = [
            each for each in self.sent if each.version == seen.version or each.meta.uid != meta.uid
        ]

    def told(self, error: DlogError) -> DlogError:
        return error.again(outcome=Outcome.UNKNOWN) if self.is_unknown else error

    def answered(self, meta: LogMeta) -> Publication | None:
        """It is there: by us, as a lost reply may have told, or before us."""
        there = meta.published.has(self.query, self.number)
        if there is None:
            return None
        is_ours = there.token == self.token and there.number == self.number
        where = (there.epoch, there.base_seq, there.next_seq)
        known = where if there.number == self.number else (None, None, None)
        return Publication(self.opening.name, self.query, self.number, is_ours, *known)

    def refuse(self, meta: LogMeta) -> None:
        """Whatever may not be listed."""
        name = self.opening.name
        refuse_unless_open(meta, name)
        if self.uid is not None and meta.uid != self.uid:
            raise NotFound(
                f"the log {name!r} that these segments were filled for was removed, and another "
                "one made",
                log=name,
            )
        doomed = {each.ledger_id for each in meta.deleting}
        for segment in self.segments:
            ledger_id = segment.ledger_id
            if ledger_id in doomed:
                raise _run_again(name, ledger_id, "it was discarded")
            if ledger_id <= meta.ledger_floor:
                why = f"ledger {meta.ledger_floor} was listed since, and ids only grow"
                raise _run_again(name, ledger_id, why)

    def listed(self, meta: LogMeta, sealed: list[Sealed]) -> LogMeta:
        """`meta`, all of whose segments are sealed, with what is published; nobody holds it."""
        base_seq = meta.end.next_seq
        for segment, each in zip(self.segments, sealed, strict=True):
            meta = meta.filled(segment.ledger_id, _placed(each, meta))
        batch = PublishedBatch(
            self.query, self.number, self.token, meta.epoch, base_seq, meta.end.next_seq
        )
        return meta.noted(batch)


def _placed(of_itself: Sealed, meta: LogMeta) -> Sealed:
    """Behind all that is there; the clock of the log does not go back for it."""
    base_seq = meta.end.next_seq
    first_us = max(of_itself.first_time_us, meta.end.last_time_us)
    return Sealed(
        of_itself.last_entry,
        of_itself.bytes,
        base_seq,
        base_seq + of_itself.next_seq,
        first_us,
        max(of_itself.last_time_us, first_us),
    )


def _run_again(name: str, ledger_id: int, why: str) -> Conflict:
    return Conflict(
        f"log {name!r}: ledger {ledger_id} cannot be published any more: {why}. Nothing was "
        "published: run the batch again, into new segments",
        retry=Retry.AFTER_REOPEN,
        log=name,
        ledger_id=ledger_id,
    )


def publish(publishing: Publishing) -> Procedure[Publication]:
    refused: DlogError | None = None
    for attempt in range(limits.META_ATTEMPTS_MAX):
        if attempt > 0:
            yield Pause(backoff_s(attempt, publishing.opening.chance))
        try:
            found = yield from _look(publishing)
        except DlogError as error:
            if not publishing.is_unknown or error.retry is not Retry.NOW:
                raise publishing.told(error) from error.__cause__
            refused = error  # whether it is there has to be found out
            continue
        if isinstance(found, Publication):
            return found
        seen, sealed = found
        try:
            if not publishing.segments:
                yield from _replace(publishing, seen, publishing.listed(seen.meta, []))
            elif seen.meta.unsealed:
                yield from _take_over(publishing, seen, sealed)
            else:
                claimed = seen.meta.claimed(publishing.opening.mark)
                yield from _commit(publishing, seen, publishing.listed(claimed, sealed))
        except (_Again, Fenced) as error:
            refused = error
        except DlogError as error:
            if not publishing.is_unknown or error.retry is not Retry.NOW:
                raise publishing.told(error) from error.__cause__
            refused = error
        # Whatever was answered, the log tells.
    assert refused is not None
    raise publishing.told(refused)


def _look(publishing: Publishing) -> Procedure[Publication | tuple[Seen, list[Sealed]]]:
    """Is it there? If not, the log that it goes into, and its ledgers as they are."""
    seen = yield from _find(publishing)
    answer = publishing.answered(seen.meta)
    if answer is not None:
        return answer
    publishing.refuse(seen.meta)
    sealed = yield from _each(publishing, lambda each: _verified(publishing, seen, each))
    return seen, sealed


class _Again(Conflict):
    """The log is no longer as we found it."""


def _find(publishing: Publishing) -> Procedure[Seen]:
    name = publishing.opening.name
    try:
        seen = yield from read_log(publishing.path)
    except NotFound:
        raise NotFound(f"there is no log {name!r}", log=name) from None
    publishing.read(seen)
    refuse_unless_open(seen.meta, name)
    refuse_unless_shard(seen.meta, None, name)
    return seen


# --- a writer may be alive


def _take_over(publishing: Publishing, seen: Seen, sealed: list[Sealed]) -> Procedure[None]:
    opening, token = publishing.opening, publishing.token
    try:
        yield from check_ledgers(opening.name, seen.meta)  # before anybody is ended for it
    except (ConfigError, Corrupt):
        if (yield from _find(publishing)).version == seen.version:
            raise
        raise _Again("its ledgers went while we looked") from None

    def claim(meta: LogMeta) -> LogMeta:
        if publishing.answered(meta) is not None:
            raise _Again("somebody else published this batch", retry=Retry.NEVER)
        publishing.refuse(meta)
        return meta.claimed(opening.mark)

    publishing.claims.append(seen.meta.epoch + 1)
    claiming = change_log(
        publishing.path,
        seen,
        claim,
        is_done=lambda meta: meta.owned_by(token) and meta.epoch > seen.meta.epoch,
        chance=opening.chance,
        point="publish.claimed",
    )
    yield from announce(opening)
    claimed = yield from claiming
    found = yield Together(
        tuple(recover_listed(opening, claimed.meta, each, []) for each in claimed.meta.unsealed)
    )
    decided = decide_end(claimed.meta.end, found)
    now_us = opening.now_us()

    def wanted(meta: LogMeta) -> LogMeta:
        for number in decided.dropped:
            meta = meta.dropped(number, now_us)
        for number, each in decided.kept:
            meta = meta.sealed(number, each)
        return publishing.listed(meta, sealed)

    for attempt in range(limits.META_ATTEMPTS_MAX):
        # Since this meta was read: who discards a ledger marks it in the meta before.
        yield from _each(publishing, lambda each: _looked(publishing, each))
        try:
            yield from _commit(publishing, claimed, wanted(claimed.meta))
            return
        except _Again:
            pass  # a truncation, the collector, somebody who claimed, or our own doing
        yield Pause(backoff_s(attempt, opening.chance))
        claimed = yield from _find(publishing)
        if publishing.answered(claimed.meta) is not None:
            return
        refuse_unless_owned(claimed.meta, token, opening.name)
        publishing.refuse(claimed.meta)
    raise _Again("the log changed again and again", retry=Retry.NOW, log=opening.name)


def _commit(publishing: Publishing, seen: Seen, wanted: LogMeta) -> Procedure[None]:
    """One try, on what was seen."""
    wanted = wanted.handed_over(None)
    unsealed = seen.meta.unsealed
    committed = unsealed[0].number if unsealed else seen.meta.next_number
    while (cut := wanted.next_cut()) is not None:
        # A page never changes: it holds only what the list has for good.
        if cut.ref.last_number >= committed:
            break
        yield from _write_page(publishing, seen, cut)
        wanted = wanted.without(cut)
    yield from _replace(publishing, seen, wanted)


def _write_page(publishing: Publishing, seen: Seen, cut: Cut) -> Procedure[None]:
    """As a writer does (see `rotation`): what a try before left is the same page, or of a list that
    a repair corrected and that never comes back; nobody names it, if the list is still the one that
    we go by after we read it."""
    layout, name = publishing.opening.layout, publishing.opening.name
    path = layout.page(name, cut.ref.number, cut.ref.level)
    value = cut.to_bytes()
    try:
        yield CreateNode(path, value, point="publish.page_written")
    except AlreadyExists:
        there = yield ReadNode(path)
        if there.value == value:
            return
        now = yield from read_log(publishing.path)
        if now.version != seen.version:
            raise _Again("the log changed", log=name) from None
        try:
            yield ReplaceNode(path, value, there.version)
        except Conflict as error:
            raise _Again(error.message, log=name) from error


def _replace(publishing: Publishing, seen: Seen, wanted: LogMeta) -> Procedure[None]:
    """`_Again` where the log has to be read to know what became of it."""
    raw = wanted.to_bytes()
    try:
        yield ReplaceNode(publishing.path, raw, seen.version, point="publish.committed")
    except DlogError as error:
        if error.outcome is Outcome.UNKNOWN:
            publishing.sent.append(seen)
        if error.retry is not Retry.NOW:
            raise publishing.told(error) from error
        raise _Again(error.message, outcome=error.outcome, **error.about) from error


# --- ledgers


def _each(
    publishing: Publishing, look: Callable[[FilledSegment], Procedure[Sealed]]
) -> Procedure[list[Sealed]]:
    found: list[Sealed] = []
    for at in range(0, len(publishing.segments), limits.PUBLISHED_LOOKS_AT_ONCE):
        some = publishing.segments[at : at + limits.PUBLISHED_LOOKS_AT_ONCE]
        found += yield Together(tuple(map(look, some)))
    return found


def _looked(publishing: Publishing, segment: FilledSegment) -> Procedure[Sealed]:
    """It is there, and closed as it was filled."""
    info = yield from _info(publishing, segment)
    assert info.closed is not None
    return Sealed(info.closed.last_entry, info.closed.bytes, 0, segment.messages, 0, 0)


def _info(publishing: Publishing, segment: FilledSegment) -> Procedure[LedgerInfo]:
    name, ledger_id = publishing.opening.name, segment.ledger_id
    try:
        info: LedgerInfo = yield LookAtLedger(ledger_id, point="publish.looked")
    except NotFound as error:
        raise _run_again(name, ledger_id, "it is not there") from error
    if info.closed is None:
        raise ConfigError(
            f"ledger {ledger_id} is not closed: only what was filled to its end is published",
            log=name,
            ledger_id=ledger_id,
        )
    if (info.closed.last_entry, info.closed.bytes) != (segment.last_entry, segment.bytes):
        told = f"entry {segment.last_entry}, {segment.bytes} bytes"
        raise _differs(segment, told, f"entry {info.closed.last_entry}, {info.closed.bytes} bytes")
    return info


def _verified(publishing: Publishing, seen: Seen, segment: FilledSegment) -> Procedure[Sealed]:
    """As it says itself: whose it is, how many messages it has, and of when."""
    info = yield from _info(publishing, segment)
    ledger_id, last_entry = segment.ledger_id, segment.last_entry
    if last_entry < FIRST_ENTRY:
        raise _differs(segment, f"{segment.messages} messages", "none")
    birth_raw, first_raw, last_raw = yield ReadEntries(
        ledger_id,
        seen.meta.digest,
        (BIRTH_ENTRY, FIRST_ENTRY, last_entry),
        closed=info.closed,
    )
    where = f"ledger {ledger_id} entry"
    birth_entry = decode(birth_raw, where=f"{where} {BIRTH_ENTRY}")
    if birth_entry.control is not ControlKind.BIRTH:
        raise Corrupt(f"{where} {BIRTH_ENTRY} should be a birth", ledger_id=ledger_id)
    birth = Birth.from_bytes(birth_entry.control_body, where=f"{where} {BIRTH_ENTRY}")
    if birth.log_uid != segment.log_uid or birth.role != "job":
        told = f"the birth of a job of log {segment.log_uid}"
        raise _differs(segment, told, f"that of a {birth.role} of log {birth.log_uid}")
    first = decode_header(first_raw, where=f"{where} {FIRST_ENTRY}")
    last = decode_header(last_raw, where=f"{where} {last_entry}")
    if (first.first_seq, last.next_seq) != (0, segment.messages):
        told = f"{first.first_seq} to {last.next_seq}"
        raise _differs(segment, f"messages 0 to {segment.messages}", told)
    return Sealed(
        last_entry,
        segment.bytes,
        0,
        last.next_seq,
        first.base_timestamp_us,
        max(first.base_timestamp_us, last.last_timestamp_us),
    )


def _differs(segment: FilledSegment, said: str, found: str) -> ConfigError:
    return ConfigError(
        f"ledger {segment.ledger_id} is said to have {said}, and has {found}",
        log=segment.log,
        ledger_id=segment.ledger_id,
    )

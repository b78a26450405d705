"""Becoming the writer: claim, fence and recover, decide the end, commit, as one procedure.

  1. *Read* the log meta, or create it. 2. *Prove* that we can finish (see `preconditions`): the
  ledgers in the list fit, and our own next ledger is made and born. A refusal here costs the old
  writer nothing. 3. *Claim*: a compare-and-set of epoch + 1 with our token; from here the old
  writer can list nothing more, so the last two ledgers are the last two. 4. *Recover* every
  unsealed segment. 5. *Decide* the end, once all of them are closed. 6. *Commit*: a compare-and-set
  that seals what stays, drops what goes and lists our ledger. Only then may the seam, then data, be
  written; `Opened` is what the core starts from.

Conflict and unknown replies are resolved by token (see `meta.cas`); a re-read that shows another
token means somebody claimed after us, and we are lost for good. One round has exactly one winner. A
log whose segments are all sealed needs no fencing: claim and commit merge into one compare-and-set
at the version read. Whoever stood by brings the log meta as it was last seen, and a ledger that was
born beforehand (`ready`): then nothing is read first, and nothing made. Safety rests on
compare-and-set and fencing alone; presence is advice, for the policies `if_dead` and `wait`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from dlog import limits, trace
from dlog.chance import Chance, backoff_s
from dlog.effects import (
    CreateNode,
    DeleteLedger,
    Pause,
    Procedure,
    ReadNode,
    Together,
    WaitNode,
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
    Unsupported,
    Winner,
)
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import End, Segment, WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ShardLog, refuse_unless_shard
from dlog.options import LogOptions, Takeover
from dlog.reason import ReasonCode, Wait
from dlog.writer.preconditions import check_ledgers, drop_ledger, prepare_ledger
from dlog.writer.present import be_present
from dlog.writer.producers import Producers, count_producers
from dlog.writer.ready import ReadyLedger
from dlog.writer.segments import Found, decide_end, ledger_gone, new_ledger, recover_segment
from dlog.writer.times import Stopwatch

_log = logging.getLogger("dlog.writer")

WAIT_POLL_MS = 1_000  # watches are hints: look again this often


@dataclass(frozen=True, slots=True)
class Opened:
    """What a won takeover hands to the writer core."""

    seen: Seen
    number: int
    ledger_id: int
    end: End  # what the seam names, and where our seqs begin
    producers: Producers = field(default_factory=Producers)


@dataclass(frozen=True, slots=True)
class StoodBy:
    """What a standby brings along."""

    ready: ReadyLedger
    seen: Seen  # may be old by now: every change is a compare-and-set
    checked: bool = False  # that the ledgers of the log fit


@dataclass(frozen=True, slots=True)
class Opening:
    """Who opens what, and how."""

    name: str
    layout: Layout
    mark: WriterMark
    policy: Takeover
    create: LogOptions | None  # options of a new log; None: it must exist
    new_uid: str
    now_us: Callable[[], int]
    chance: Chance
    stopwatch: Stopwatch
    stood_by: StoodBy | None = None
    copies: str | None = None  # uid of the log that this one is a copy of, to be gone on with
    shard: ShardLog | None = None  # which the log is; its stream made it
    ahead: ReadyLedger = field(default_factory=ReadyLedger)  # ours, born before the claim

    @property
    def path(self) -> str:
        return self.layout.log(self.name)


def take_over(opening: Opening) -> Procedure[Opened]:
    known = opening.stood_by
    try:
        opened = yield from _take_over(opening, known)
    except DlogError:
        yield from drop_ledger(opening.ahead)
        raise
    finally:
        if known is not None:
            known.ready.put_back()
    yield from drop_ledger(opening.ahead)  # the list grew past it, and names another one
    return opened


def _take_over(opening: Opening, known: StoodBy | None) -> Procedure[Opened]:
    attempt, uid = 0, opening.new_uid
    while True:
        if known is not None:
            _refuse_another_log(opening, known.seen.meta)
            seen = _Sight(known.seen.meta, known.seen.version)
        else:
            seen = yield from _find(opening, uid)
            uid = opening.chance.token()  # the one before may have been sent, and be a log's by now
        # Before any wait: a client that cannot take over is told so at once.
        if not (yield from _ledgers_fit(opening, seen)):
            yield Pause(backoff_s(attempt, opening.chance))
            attempt, known = attempt + 1, None
            continue
        try:
            waited = yield from _admit(opening, seen)
        except Conflict:
            if known is None:
                raise
            known = None  # what a standby saw may be over by now: nobody is refused for that
            continue
        if waited:  # whoever left has most likely sealed the log
            known = None
            continue
        opening.stopwatch.lap("detect")
        if seen.version is None or not seen.meta.unsealed:
            opened = yield from _open_sealed(opening, seen)
        else:
            opened = yield from _claim_and_recover(opening, seen)
        if opened is not None:
            return (yield from _with_producers(opening, opened))
        if known is None:  # else the log only changed since the standby saw it
            yield Pause(backoff_s(attempt, opening.chance))
            attempt += 1
        known = None


def _with_producers(opening: Opening, opened: Opened) -> Procedure[Opened]:
    """What their last numbers are has to be read, in a log that has producers."""
    if not opened.seen.meta.producers:
        return opened
    try:
        producers = yield from count_producers(
            opening.name, opening.layout, opened.seen, opened.number
        )
    except NotFound as error:
        now = yield from read_log(opening.path)
        refuse_unless_owned(now.meta, opening.mark.token, opening.name)
        raise Corrupt(
            f"log {opening.name!r}: a ledger of its list is missing: {error}", **error.about
        ) from error
    return dataclasses.replace(opened, producers=producers)


@dataclass(frozen=True, slots=True)
class _Sight:
    """The log as found; version None for one that is yet to be created."""

    meta: LogMeta
    version: int | None


def _find(opening: Opening, new_uid: str) -> Procedure[_Sight]:
    """`new_uid` is that of a log that is to be made."""
    try:
        seen = yield from read_log(opening.path, point="takeover.read")
    except NotFound:
        if opening.create is None:
            raise NotFound(f"there is no log {opening.name!r}", log=opening.name) from None
        return _Sight(LogMeta(uid=new_uid, options=opening.create), None)
    meta = seen.meta
    if meta.state is LogState.DELETED and opening.create is not None:
        return _Sight(meta.reborn(new_uid, opening.create), seen.version)
    _refuse_another_log(opening, meta)
    return _Sight(meta, seen.version)


def _refuse_another_log(opening: Opening, meta: LogMeta) -> None:
    if opening.shard is not None:  # first: that another log has ended says nothing of this one
        refuse_unless_shard(meta, opening.shard, opening.name)
    refuse_unless_open(meta, opening.name)
    refuse_unless_shard(meta, opening.shard, opening.name)
    known = opening.stood_by
    if known is not None and known.seen.meta.uid != meta.uid:
        raise NotFound(
            f"the log {opening.name!r} was removed, and another one made", log=opening.name
        )
    if opening.copies is not None:
        refuse_unless_copy(meta, opening.copies, opening.name)


def refuse_unless_copy(meta: LogMeta, uid: str, name: str) -> None:
    """Only a copy of the log `uid`, to which nobody added messages of their own, is gone on
    with."""
    copy_of = meta.copy_of
    if copy_of is not None and copy_of.may_go_on(uid):
        return
    if copy_of is None:
        what = "it is no copy"
    elif copy_of.uid != uid:
        what = f"it is a copy of another log, {copy_of.name!r} ({copy_of.uid})"
    else:
        what = f"in epoch {copy_of.own_epoch} it was opened for messages of its own"
    raise AlreadyExists(f"the log {name!r} cannot be copied into: {what}", log=name)


def refuse_unless_open(meta: LogMeta, name: str) -> None:
    meta.is_here(name)
    if meta.is_removed:
        raise NotFound(f"the log {name!r} was removed", log=name)
    if meta.state is LogState.TERMINATED:
        raise Unsupported(f"the log {name!r} was terminated: it takes no more messages", log=name)


def _admit(opening: Opening, seen: _Sight) -> Procedure[bool]:
    """The takeover policy: return when we may fence whoever is there, raise when we may not. True
    after a wait: what was seen is old by now."""
    holder = seen.meta.writer
    if holder is None or holder.token == opening.mark.token or opening.policy == "always":
        return False
    presence = opening.layout.presence(opening.name, holder.token)
    waited = False
    wait = Wait(
        ReasonCode.WRITER_PRESENT,
        f"the log has a writer: {holder.name}, epoch {seen.meta.epoch}",
        {"holder": holder.name, "epoch": seen.meta.epoch},
        opening.stopwatch.now_s(),
    )
    while True:
        if opening.policy != "never":
            try:
                yield ReadNode(presence)
            except NotFound:
                return waited  # its session is gone, or it left
        if opening.policy != "wait":
            raise Conflict(
                f"the log {opening.name!r} has a writer: {holder.name}, epoch {seen.meta.epoch} "
                f"(takeover={opening.policy!r})",
                retry=Retry.AFTER_REOPEN,
                log=opening.name,
                winner=Winner(holder.name, seen.meta.epoch, holder.since_us),
                epoch=seen.meta.epoch,
            )
        yield WaitNode(presence, WAIT_POLL_MS, wait=wait)
        waited = True


def _ledgers_fit(opening: Opening, seen: _Sight) -> Procedure[bool]:
    """Raise if they do not. False when the log changed while we looked: look again."""
    known = opening.stood_by
    if seen.version is None or (known is not None and known.checked):
        return True
    try:
        yield from check_ledgers(opening.name, seen.meta)
    except (ConfigError, Corrupt):
        now = yield from _find_ours(opening)
        if now is not None and now.version == seen.version:
            raise
        return False
    return True


# --- every segment is sealed: claim and commit in one


def _open_sealed(opening: Opening, seen: _Sight) -> Procedure[Opened | None]:
    """None when somebody was faster: look again."""
    before = seen.meta
    claimed = before.claimed(opening.mark, copies=opening.copies)
    if seen.version is None:
        ledger_id = yield from _born(opening, claimed)
        version = yield from _make_log(opening, before, ledger_id)
        if version is None:
            return None
        yield from announce(opening)
    else:
        version = seen.version
        ledger_id, _ = yield Together((_born(opening, claimed), announce(opening)))
    opening.stopwatch.lap("recover")
    wanted = claimed.listed(ledger_id)
    _offer(opening, ledger_id)
    try:
        after = yield from _replace_once(opening, Seen(before, version), wanted, ledger_id)
    except (Conflict, AlreadyExists) as refused:
        if refused.outcome is Outcome.NOT_HAPPENED:
            yield from _not_listed(opening, ledger_id)
        return None
    except DlogError as error:
        if error.outcome is not Outcome.UNKNOWN:
            raise
        # Whether it was listed only the node can say; a ledger that may be listed is never deleted.
        # Our token alone is no proof: an earlier try of ours may have come late, with its ledger.
        now = yield from _find_ours(opening)
        if now is None or not _is_ours(opening, now.meta, ledger_id):
            return None
        after = now
    _won(opening, ledger_id)
    return Opened(after, claimed.next_number, ledger_id, before.end)


def _make_log(opening: Opening, fresh: LogMeta, ledger_id: int) -> Procedure[int | None]:
    """A new log, which nobody writes yet; its version, or None when somebody else made one. Its
    writer is named by the next change: presence stands below the log's node, and has to be there
    before the log names us."""
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            version: int = yield CreateNode(opening.path, fresh.to_bytes())
            return version
        except (AlreadyExists, Conflict):
            break
        except DlogError as error:
            if error.retry is not Retry.NOW:
                raise
            refused = error
        yield Pause(backoff_s(attempt, opening.chance))
    else:
        raise refused
    there = yield from _find_ours(opening)
    if there is not None and there.meta == fresh:  # a try of ours, whose reply was lost
        return there.version
    yield DeleteLedger(ledger_id)
    return None


def _replace_once(opening: Opening, seen: Seen, wanted: LogMeta, ledger_id: int) -> Procedure[Seen]:
    """One version, one try: a conflict means that the log is no longer as we found it."""

    def change(meta: LogMeta) -> LogMeta:
        if meta is not seen.meta and meta != seen.meta:
            raise Conflict(
                "the log changed while it was opened", retry=Retry.AFTER_REOPEN, log=opening.name
            )
        return wanted

    return (
        yield from change_log(
            opening.path,
            seen,
            change,
            is_done=lambda meta: _is_ours(opening, meta, ledger_id),
            chance=opening.chance,
            point="takeover.committed",
        )
    )


def _is_ours(opening: Opening, meta: LogMeta, ledger_id: int) -> bool:
    return meta.owned_by(opening.mark.token) and is_listed(meta, ledger_id)


def _find_ours(opening: Opening) -> Procedure[Seen | None]:
    try:
        return (yield from read_log(opening.path))
    except NotFound:
        return None


# --- a writer may be alive


def _claim_and_recover(opening: Opening, seen: _Sight) -> Procedure[Opened | None]:
    """None when another writer came in before us, whom the policy has to admit: look again."""
    assert seen.version is not None
    token = opening.mark.token
    yield from _prepare(opening, seen.meta)

    def claim(meta: LogMeta) -> LogMeta:
        _refuse_another_log(opening, meta)
        if opening.policy != "always" and _holder(meta) != _holder(seen.meta):
            raise _Overtaken("another writer came in", retry=Retry.AFTER_REOPEN, log=opening.name)
        return meta.claimed(opening.mark, copies=opening.copies)

    claiming = change_log(
        opening.path,
        Seen(seen.meta, seen.version),
        claim,
        is_done=lambda meta: meta.owned_by(token) and meta.epoch > seen.meta.epoch,
        chance=opening.chance,
        point="takeover.claimed",
    )
    try:
        yield from announce(opening)
        claimed = yield from claiming
    except _Overtaken:
        return None
    opening.stopwatch.lap("claim")
    unsealed = claimed.meta.unsealed
    fenced: list[float] = []
    recoveries = [recover_listed(opening, claimed.meta, segment, fenced) for segment in unsealed]
    *found, ledger_id = yield Together((*recoveries, _born(opening, claimed.meta)))
    trace.before("takeover.decided")
    decided = decide_end(claimed.meta.end, found)
    trace.after("takeover.decided")
    opening.stopwatch.fenced(max(fenced, default=0.0))
    opening.stopwatch.lap("recover")
    now_us = opening.now_us()

    def commit(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, opening.name)
        # A healed writer's segment may be kept behind one that got no seam: seal in the order left.
        for number in decided.dropped:
            meta = meta.dropped(number, now_us)
        for number, sealed in decided.kept:
            meta = meta.sealed(number, sealed)
        return meta.listed(ledger_id)

    _offer(opening, ledger_id)
    try:
        committed = yield from change_log(
            opening.path,
            claimed,
            commit,
            is_done=lambda meta: _is_ours(opening, meta, ledger_id),
            chance=opening.chance,
            point="takeover.committed",
        )
    except Fenced as lost:
        if lost.outcome is Outcome.NOT_HAPPENED:
            yield from _not_listed(opening, ledger_id)
        raise
    _won(opening, ledger_id)
    return Opened(committed, claimed.meta.next_number, ledger_id, decided.end)


class _Overtaken(Conflict):
    """The log has another holder than the one we looked at."""


def _holder(meta: LogMeta) -> str | None:
    return None if meta.writer is None else meta.writer.token


def recover_listed(
    opening: Opening, claimed: LogMeta, segment: Segment, fenced: list[float]
) -> Procedure[Found]:
    watch = opening.stopwatch
    try:
        return (yield from recover_segment(claimed, segment, lambda: fenced.append(watch.now_s())))
    except NotFound as error:
        # Somebody who claimed after us may have dropped it; if the log is still ours, it is lost.
        now = yield from read_log(opening.path)
        refuse_unless_owned(now.meta, opening.mark.token, opening.name)
        raise ledger_gone(segment, opening.name) from error


# --- our own ledger


def _born(opening: Opening, claimed: LogMeta) -> Procedure[int]:
    for ready in _held(opening):
        if (ready_id := ready.take(claimed)) is not None:
            return ready_id
    watch = opening.stopwatch
    began_s = watch.now_s()
    ledger_id = yield from new_ledger(
        claimed,
        number=claimed.next_number,
        epoch=claimed.epoch,
        token=opening.mark.token,
        now_us=opening.now_us(),
        room="takeover",
    )
    watch.beside("birth", watch.now_s() - began_s)
    return ledger_id


def _prepare(opening: Opening, meta: LogMeta) -> Procedure[None]:
    """Our own ledger, born before anybody is ended for it."""
    watch = opening.stopwatch
    if not any(ready.fits(meta) for ready in _held(opening)):
        began_s = watch.now_s()
        token, now_us = opening.mark.token, opening.now_us()
        yield from prepare_ledger(opening.ahead, meta, token=token, now_us=now_us)
        watch.beside("birth", watch.now_s() - began_s)
    watch.lap("detect")


def _held(opening: Opening) -> tuple[ReadyLedger, ...]:
    """Ledgers that were born beforehand."""
    known = opening.stood_by
    return (opening.ahead,) if known is None else (known.ready, opening.ahead)


def _ready(opening: Opening, ledger_id: int) -> ReadyLedger | None:
    return next((each for each in _held(opening) if each.ledger_id == ledger_id), None)


def _offer(opening: Opening, ledger_id: int) -> None:
    """Its listing is about to be sent."""
    if (ready := _ready(opening, ledger_id)) is not None:
        ready.offered()


def _not_listed(opening: Opening, ledger_id: int) -> Procedure[None]:
    """Refused for certain: it was never listed."""
    if (ready := _ready(opening, ledger_id)) is not None:
        ready.refused()
    else:
        yield DeleteLedger(ledger_id)


def _won(opening: Opening, ledger_id: int) -> None:
    if (ready := _ready(opening, ledger_id)) is not None:
        ready.given()
    opening.stopwatch.lap("commit")


def announce(opening: Opening) -> Procedure[None]:
    """Before the log names us: who reads our name there, and is polite, looks for our presence."""
    path = opening.layout.presence(opening.name, opening.mark.token)
    return be_present(path, opening.mark.name, opening.chance, opening.stopwatch.now_s)


def is_listed(meta: LogMeta, ledger_id: int) -> bool:
    return any(segment.ledger_id == ledger_id for segment in meta.segments)


def refuse_unless_owned(meta: LogMeta, token: str, name: str) -> None:
    """`Fenced`, naming the winner, when the log is another's (or nobody's any more)."""
    if meta.owned_by(token):
        return
    raise lost_to(meta, name)


def tell_winner(path: str, token: str, name: str, error: Fenced) -> Procedure[DlogError]:
    """The same error, or one that names who has the log now."""
    if error.winner is not None:
        return error
    try:
        seen = yield from read_log(path)
    except DlogError:
        return error
    return error if seen.meta.owned_by(token) else lost_to(seen.meta, name)


def lost_to(meta: LogMeta, name: str, *, outcome: Outcome = Outcome.NOT_HAPPENED) -> Fenced:
    mark = meta.writer or meta.left_by  # the winner may have closed the log by now
    who = "another writer" if mark is None else mark.name
    did = f"took over with epoch {meta.epoch}"
    if meta.moved_to is not None:
        who, did = meta.moved_to.name, f"moved the log to {meta.moved_to.place}"
    elif meta.is_removed:
        did = "removed the log"
    elif meta.state is LogState.TERMINATED:
        did = "terminated the log"
    since_us = 0 if mark is None else mark.since_us
    return Fenced(
        f"log {name!r}: {who} {did}",
        outcome=outcome,
        log=name,
        epoch=meta.epoch,
        winner=Winner(who, meta.epoch, since_us),
    )

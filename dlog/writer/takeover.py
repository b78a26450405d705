"""Becoming the writer: claim, fence and recover, decide the end, commit, as one procedure.

  1. *Read* the log meta, or create it. 2. *Claim*: a compare-and-set of epoch + 1 with our token;
  from here the old writer can list nothing more, so the last two ledgers are the last two. 3.
  *Recover* every unsealed segment, while our own next ledger is made and born. 4. *Decide* the end,
  once all of them are closed. 5. *Commit*: a compare-and-set that seals what stays, drops what goes
  and lists our ledger. Only then may the seam, then data, be written; `Opened` is what the core
  starts from.

Conflict and unknown replies are resolved by token (see `meta.cas`); a re-read that shows another
token means somebody claimed after us, and we are lost for good. One round has exactly one winner. A
log whose segments are all sealed needs no fencing: claim and commit merge into one compare-and-set
at the version read. Safety rests on compare-and-set and fencing alone; presence is advice, for the
policies `if_dead` and `wait`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dlog import trace
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
    Conflict,
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
from dlog.meta.log_meta import End, LogMeta, LogState, Segment, WriterMark
from dlog.options import LogOptions, Takeover
from dlog.writer.segments import Found, decide_end, ledger_gone, new_ledger, recover_segment

_log = logging.getLogger("dlog.writer")

WAIT_POLL_MS = 1_000  # watches are hints: look again this often


@dataclass(frozen=True, slots=True)
class Opened:
    """What a won takeover hands to the writer core."""

    seen: Seen
    number: int
    ledger_id: int
    end: End  # what the seam names, and where our seqs begin


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

    @property
    def path(self) -> str:
        return self.layout.log(self.name)


def take_over(opening: Opening) -> Procedure[Opened]:
    attempt = 0
    while True:
        seen = yield from _find(opening)
        yield from _admit(opening, seen)
        if seen.version is None or not seen.meta.unsealed:
            opened = yield from _open_sealed(opening, seen)
        else:
            opened = yield from _claim_and_recover(opening, seen)
        if opened is not None:
            return opened
        yield Pause(backoff_s(attempt, opening.chance))
        attempt += 1


@dataclass(frozen=True, slots=True)
class _Sight:
    """The log as found; version None for one that is yet to be created."""

    meta: LogMeta
    version: int | None


def _find(opening: Opening) -> Procedure[_Sight]:
    try:
        seen = yield from read_log(opening.path, point="takeover.read")
    except NotFound:
        if opening.create is None:
            raise NotFound(f"there is no log {opening.name!r}", log=opening.name) from None
        return _Sight(LogMeta(uid=opening.new_uid, options=opening.create), None)
    meta = seen.meta
    if meta.state is LogState.DELETED and opening.create is not None:
        return _Sight(meta.reborn(opening.new_uid, opening.create), seen.version)
    refuse_unless_open(meta, opening.name)
    return _Sight(meta, seen.version)


def refuse_unless_open(meta: LogMeta, name: str) -> None:
    if meta.state in (LogState.DELETED, LogState.DELETING):
        raise NotFound(f"the log {name!r} was removed", log=name)
    if meta.state is LogState.TERMINATED:
        raise Unsupported(f"the log {name!r} was terminated: it takes no more messages", log=name)


def _admit(opening: Opening, seen: _Sight) -> Procedure[None]:
    """The takeover policy: return when we may fence whoever is there, raise when we may not."""
    holder = seen.meta.writer
    if holder is None or holder.token == opening.mark.token or opening.policy == "always":
        return
    presence = opening.layout.presence(opening.name, holder.token)
    while True:
        if opening.policy != "never":
            try:
                yield ReadNode(presence)
            except NotFound:
                return  # its session is gone, or it left
        if opening.policy != "wait":
            raise Conflict(
                f"the log {opening.name!r} has a writer: {holder.name}, epoch {seen.meta.epoch} "
                f"(takeover={opening.policy!r})",
                retry=Retry.AFTER_REOPEN,
                log=opening.name,
                winner=Winner(holder.name, seen.meta.epoch, holder.since_us),
                epoch=seen.meta.epoch,
            )
        yield WaitNode(presence, WAIT_POLL_MS)


# --- every segment is sealed: claim and commit in one


def _open_sealed(opening: Opening, seen: _Sight) -> Procedure[Opened | None]:
    """None when somebody was faster: look again."""
    before = seen.meta
    claimed = before.claimed(opening.mark)
    if seen.version is None:
        ledger_id = yield from _born(opening, claimed)
    else:
        ledger_id, _ = yield Together((_born(opening, claimed), _be_present(opening)))
    wanted = claimed.listed(ledger_id)
    try:
        if seen.version is None:
            version = yield CreateNode(opening.path, wanted.to_bytes(), point="takeover.committed")
            after = Seen(wanted, version)
            # Only now: presence stands below the log's node, and would make an empty one.
            yield from _be_present(opening)
        else:
            after = yield from _replace_once(opening, Seen(before, seen.version), wanted, ledger_id)
    except (Conflict, AlreadyExists) as refused:
        if refused.outcome is Outcome.NOT_HAPPENED:
            yield DeleteLedger(ledger_id)  # refused for certain: it was never listed
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
    return Opened(after, claimed.next_number, ledger_id, before.end)


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


def _claim_and_recover(opening: Opening, seen: _Sight) -> Procedure[Opened]:
    assert seen.version is not None
    token = opening.mark.token

    def claim(meta: LogMeta) -> LogMeta:
        refuse_unless_open(meta, opening.name)
        return meta.claimed(opening.mark)

    claimed = yield from change_log(
        opening.path,
        Seen(seen.meta, seen.version),
        claim,
        is_done=lambda meta: meta.owned_by(token) and meta.epoch > seen.meta.epoch,
        chance=opening.chance,
        point="takeover.claimed",
    )
    unsealed = claimed.meta.unsealed
    recoveries = [_recover(opening, segment) for segment in unsealed]
    presence = _be_present(opening)
    *found, ledger_id, _ = yield Together((*recoveries, _born(opening, claimed.meta), presence))
    trace.before("takeover.decided")
    decided = decide_end(claimed.meta.end, found)
    trace.after("takeover.decided")
    now_us = opening.now_us()

    def commit(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, opening.name)
        # A healed writer's segment may be kept behind one that got no seam: seal in the order left.
        for number in decided.dropped:
            meta = meta.dropped(number, now_us)
        for number, sealed in decided.kept:
            meta = meta.sealed(number, sealed)
        return meta.listed(ledger_id)

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
            yield DeleteLedger(ledger_id)  # refused for certain: it was never listed
        raise
    return Opened(committed, claimed.meta.next_number, ledger_id, decided.end)


def _recover(opening: Opening, segment: Segment) -> Procedure[Found]:
    try:
        return (yield from recover_segment(segment))
    except NotFound as error:
        # Somebody who claimed after us may have dropped it; if the log is still ours, it is lost.
        now = yield from read_log(opening.path)
        refuse_unless_owned(now.meta, opening.mark.token, opening.name)
        raise ledger_gone(segment, opening.name) from error


def _born(opening: Opening, claimed: LogMeta) -> Procedure[int]:
    return new_ledger(
        claimed,
        number=claimed.next_number,
        epoch=claimed.epoch,
        token=opening.mark.token,
        now_us=opening.now_us(),
        room="takeover",
    )


def _be_present(opening: Opening) -> Procedure[None]:
    """Where `if_dead` and `wait` look for us. Advice only: failing at it is no reason not to
    open."""
    path = opening.layout.presence(opening.name, opening.mark.token)
    try:
        yield CreateNode(path, opening.mark.name.encode(), ephemeral=True)
    except DlogError as error:
        _log.info("log %s: opened without presence: %s", opening.name, error)


def is_listed(meta: LogMeta, ledger_id: int) -> bool:
    return any(segment.ledger_id == ledger_id for segment in meta.segments)


def refuse_unless_owned(meta: LogMeta, token: str, name: str) -> None:
    """`Fenced`, naming the winner, when the log is another's (or nobody's any more)."""
    if meta.owned_by(token):
        return
    raise lost_to(meta, name)


def lost_to(meta: LogMeta, name: str, *, outcome: Outcome = Outcome.NOT_HAPPENED) -> Fenced:
    removed = meta.state in (LogState.DELETED, LogState.DELETING)
    mark = meta.writer or meta.left_by  # the winner may have closed the log by now
    who = "another writer" if mark is None else mark.name
    did = "removed the log" if removed else f"took over with epoch {meta.epoch}"
    since_us = 0 if mark is None else mark.since_us
    return Fenced(
        f"log {name!r}: {who} {did}",
        outcome=outcome,
        log=name,
        epoch=meta.epoch,
        winner=Winner(who, meta.epoch, since_us),
    )

"""A ledger that cannot go on: a fence by somebody who is not the log's new writer, a failed disk.

If the log is another's by now, the handle is lost, for good. If it is still ours: list a
successor, count no more acknowledgements of the failed ledger, recover it to its end `e`,
acknowledge what it kept, and rebuild the rest in the successor, with the same seqs; its seam says
`e`. A successor whose seam is already written and names more than `e` cannot be mended: a takeover
would drop it, so the handle is lost, with outcome unknown.

Healing needs both stores. While servers of one are away, the writer waits with a reason and tries
again until they are back; `append(timeout=)` and `close(timeout=)` bound what a caller waits. A
store that failed on this machine (a full disk) most likely keeps the next ledger from being made as
well: the handle tries for two seconds, and ends with that cause.
"""

from __future__ import annotations

import logging
import math

from dlog.chance import backoff_s
from dlog.effects import Pause, Procedure, RecoverLedger, Release, SubmitEntry
from dlog.errors import Broken, DlogError, Fenced, Outcome, Retry
from dlog.meta.cas import read_log
from dlog.reason import ReasonCode, Wait
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.rotation import list_spare, named, prepare, switch, tell_list, write_seam
from dlog.writer.segments import SEAM_ENTRY
from dlog.writer.takeover import is_listed, refuse_unless_owned

_log = logging.getLogger("dlog.writer")

TRIES_MAX = 4
PAUSE_S_MAX = 1.0  # between two tries: appends wait for them
PATIENCE_FAILED_S = 2.0  # a full disk is told soon


def heal(core: WriterCore) -> Procedure[None]:
    cause = next((pipe.failed for pipe in core.pipes if pipe.failed is not None), None)
    if cause is None:  # what failed was closed, by then, at the very end that it should have
        core.move(WriterState.OPEN)
        yield Release()
        return
    if isinstance(cause, Broken):  # a promise of ours did not hold: no reason to write on
        core.die(cause)
        return
    failures = 0
    gives_up_s = math.inf if _comes_back(cause) else core.identity.now_s() + PATIENCE_FAILED_S
    while True:
        try:
            yield from _heal_once(core)
            break
        except Fenced as lost:
            _log.info("log %s: lost: %s", core.identity.name, lost)
            core.die(lost)
            return
        except DlogError as error:
            if error.retry is not Retry.NOW or core.identity.now_s() >= gives_up_s:
                _log.warning("log %s: %s; healing failed: %s", core.identity.name, cause, error)
                core.die((yield from named(core, cause)))
                return
            waits_for = error
        if failures == 0:
            _log.warning("log %s: %s; healing waits: %s", core.identity.name, cause, waits_for)
        failures += 1
        wait = Wait(
            ReasonCode.HEALING,
            f"it could not take its place yet: {waits_for}",
            {"tries": failures, "error": waits_for.message},
        )
        yield Pause(
            backoff_s(failures, core.identity.chance, base_s=0.05, limit_s=PAUSE_S_MAX), wait=wait
        )
    if core.current.failed is not None:
        core.die(core.current.failed)
        return
    _log.warning("log %s: healed, after: %s", core.identity.name, cause)
    core.move(WriterState.OPEN)
    yield Release()


def _comes_back(cause: DlogError) -> bool:
    """The ledger was ended, or servers of the store are missing: the store itself may go on."""
    return isinstance(cause, Fenced) or cause.needed is not None


def _heal_once(core: WriterCore) -> Procedure[None]:
    """May be begun again wherever a store failed it."""
    core.seen = yield from read_log(core.identity.path)
    refuse_unless_owned(core.seen.meta, core.identity.token, core.identity.name)
    for _ in range(TRIES_MAX):
        yield from _recover_draining(core)
        if core.current.failed is None:
            break
        yield from _replace_current(core)


def _recover_draining(core: WriterCore) -> Procedure[None]:
    while len(core.pipes) > 1:
        old, new = core.pipes[0], core.pipes[1]
        closed = yield RecoverLedger(old.ledger_id, core.digest, point="heal.recovered")
        if closed.last_entry != new.predecessor[1]:
            raise Fenced(
                f"ledger {old.ledger_id} was closed at {closed.last_entry}, before the end that "
                f"its successor names ({new.predecessor[1]})",
                outcome=Outcome.UNKNOWN,
                log=core.identity.name,
                ledger_id=old.ledger_id,
            )
        core.on_closed(old, closed)


def _replace_current(core: WriterCore) -> Procedure[None]:
    old = core.current
    yield from _list_successor(core)
    closed = yield RecoverLedger(old.ledger_id, core.digest, point="heal.recovered")
    if closed.last_entry < SEAM_ENTRY:
        # Not even the seam survived: the segment goes, its successor takes its place in the chain.
        # The list must say so before anything behind is acknowledged, or no reader could get there.
        if old.number not in core.dropped:
            core.dropped.append(old.number)
        yield from tell_list(core, "heal.listed")
        predecessor, base_seq = old.predecessor, old.base_seq
    else:
        core.on_closed(old, closed)
        predecessor, base_seq = (old.ledger_id, closed.last_entry), core.closed[-1][1].next_seq
    rebuilding = core.rebuilding = old.sent.copy()
    old.sent.clear()
    new = switch(core, predecessor, base_seq)
    core.remove_pipe(old)
    before_us = rebuilding[0].timestamp_us if rebuilding else None
    yield from write_seam(core, new, "heal.rebuilt", before_us)
    while rebuilding:
        buffers = core.push_again(rebuilding[0])
        rebuilding.popleft()
        yield SubmitEntry(new.ledger_id, buffers)


def _list_successor(core: WriterCore) -> Procedure[None]:
    """A listed successor without a seam yet: one that rotation left behind, or a new one."""
    for attempt in range(TRIES_MAX):
        try:
            if core.spare is None:
                yield from prepare(core)
            if core.spare is not None and not is_listed(core.seen.meta, core.spare):
                yield from list_spare(core, "heal.listed")
            return
        except DlogError as error:
            if isinstance(error, Fenced) or attempt == TRIES_MAX - 1:
                raise
        yield Pause(backoff_s(attempt, core.identity.chance, base_s=0.05))

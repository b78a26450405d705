"""How one ledger follows another while appends go on, and how the last one ends (DL-09, DL-28).

  1. *Prepare*, ahead of need: the next ledger and its birth. Failure is a warning and another try.
  2. *List* it: one compare-and-set, which also seals what was closed before. Only with its reply in
     hand (the metadata store answers, then) do we
  3. *switch*, in one turn of the loop: nothing more to the old ledger; seam, then data, to the new.
  4. *Barrier*: the new ledger's acknowledgements wait until everything in the old one is confirmed
     and its metadata is CLOSED at exactly the last entry pushed to it.

The old segment is sealed in the list lazily, by the next compare-and-set. Each function is a
procedure over the core's state; the driver runs one at a time.
"""

from __future__ import annotations

import enum
import logging

from dlog.chance import backoff_s
from dlog.effects import (
    CloseLedger,
    CreateNode,
    DeleteLedger,
    Drained,
    Pause,
    Procedure,
    ReadNode,
    Release,
    ReplaceNode,
    SubmitEntry,
)
from dlog.errors import AlreadyExists, Conflict, DlogError, Fenced, Outcome, Retry, check
from dlog.ledger.store import ClosedLedger
from dlog.meta.cas import change_log, read_log
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import Cut
from dlog.meta.retention import is_limited
from dlog.reason import ReasonCode, Wait
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.pipe import Pipe, PipeState
from dlog.writer.segments import SEAM_ENTRY, new_ledger, seam_entry
from dlog.writer.takeover import is_listed, refuse_unless_owned, tell_winner

_log = logging.getLogger("dlog.writer")


def begin(core: WriterCore) -> Procedure[None]:
    """The seam of the first segment, right after the takeover; then the writer is open."""
    yield from write_seam(core, core.current, "takeover.seam")


def prepare(core: WriterCore) -> Procedure[None]:
    """Make the next ledger ready. Appends go on meanwhile, and also if this fails."""
    meta = core.seen.meta
    core.spare = yield from new_ledger(
        meta,
        number=meta.next_number,
        epoch=core.epoch,
        token=core.identity.token,
        now_us=core.identity.now_us(),
        room="rotate",
    )
    core.spare_is_private = True


def rotate(core: WriterCore) -> Procedure[None]:
    if core.spare is None:
        yield from prepare(core)
    assert core.spare is not None
    yield from list_spare(core, "rotate.listed")
    if core.state is not WriterState.OPEN:
        return  # a ledger failed meanwhile: healing finds the listed successor
    old = core.current
    new = switch(core, (old.ledger_id, old.last_pushed), old.next_seq)
    yield from write_seam(core, new, "rotate.switched")
    try:
        yield Drained(old.ledger_id, point="rotate.drained")
        closed = yield from close_ledger(core, old, "rotate.closed")
    except DlogError as error:
        core.on_failed(old.ledger_id, error)
        return
    core.on_closed(old, closed)
    core.retention_due = is_limited(core.seen.meta.options)
    yield Release(point="rotate.released")


def list_spare(core: WriterCore, point: str) -> Procedure[None]:
    """Add the spare ledger to the list; seals and drops, in the same change, what came before."""
    yield from write_pages(core)
    was_private, core.spare_is_private = core.spare_is_private, False
    try:
        yield from _list_spare(core, point)
    except DlogError as error:
        core.spare_is_private = was_private and error.outcome is Outcome.NOT_HAPPENED
        raise


def drop_spare(core: WriterCore) -> Procedure[None]:
    """Delete the spare ledger of a writer that was fenced. One that may be listed is left to the
    log's new writer."""
    ledger_id, core.spare = core.spare, None
    if ledger_id is None or not core.spare_is_private:
        return
    try:
        yield DeleteLedger(ledger_id)
    except DlogError as error:
        _log.info("log %s: ledger %d is left over: %s", core.identity.name, ledger_id, error)


def _list_spare(core: WriterCore, point: str) -> Procedure[None]:
    ledger_id = core.spare
    assert ledger_id is not None
    token, name = core.identity.token, core.identity.name

    def change(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, name)
        return core.settled(meta).listed(ledger_id).paged(core.pages)

    core.seen = yield from change_log(
        core.identity.path,
        core.seen,
        change,
        is_done=lambda meta: meta.owned_by(token) and is_listed(meta, ledger_id),
        chance=core.identity.chance,
        point=point,
    )
    core.pages.clear()
    core.settle()


def tell_list(core: WriterCore, point: str) -> Procedure[None]:
    """Seal and drop in the list what ended, and nothing else."""
    token, name = core.identity.token, core.identity.name

    def change(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, name)
        return core.settled(meta)

    core.seen = yield from change_log(
        core.identity.path,
        core.seen,
        change,
        is_done=lambda meta: meta.owned_by(token) and core.settled(meta) is meta,
        chance=core.identity.chance,
        point=point,
    )
    core.settle()


def tell_options(core: WriterCore) -> Procedure[None]:
    """The list says what holds of the log by now: for whoever writes it next, and whoever collects
    it."""
    wanted, identity = core.options_wanted, core.identity
    if wanted is None:
        return

    def change(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, identity.token, identity.name)
        return meta.with_options(wanted)

    core.seen = yield from change_log(
        identity.path,
        core.seen,
        change,
        is_done=lambda meta: meta.owned_by(identity.token) and meta.options == wanted,
        chance=identity.chance,
        point="options.told",
    )
    if core.options_wanted == wanted:  # else they changed once more meanwhile
        core.options_wanted = None
    core.retention_due = is_limited(wanted)


def write_pages(core: WriterCore) -> Procedure[None]:
    """History that grew long moves to pages. Each is written before the node names it."""
    meta = core.settled(core.seen.meta)
    while (cut := meta.next_cut()) is not None:
        key = cut.ref.level, cut.ref.number
        if core.pages.get(key) != cut.held:
            if not (yield from _write_page(core, cut)):
                meta = core.settled(core.seen.meta)
                continue
            core.pages[key] = cut.held
        meta = meta.without(cut)


def _write_page(core: WriterCore, cut: Cut) -> Procedure[bool]:
    """False: the list is another one by now, and perhaps another page is due.

    A try before may have written it and died, or lost its compare-and-set. That is the same page,
    unless a repair corrected an end in the list between the two. Then what is there is of a list
    that never comes back, and nobody ever names it: if we hold the log, at the very version that we
    go by, after we read the page. In the other order a successor might have named it meanwhile."""
    identity = core.identity
    path = identity.layout.page(identity.name, cut.ref.number, cut.ref.level)
    value = cut.to_bytes()
    try:
        yield CreateNode(path, value)
    except AlreadyExists:
        there = yield ReadNode(path)
        if there.value == value:
            return True
        now = yield from read_log(identity.path)
        refuse_unless_owned(now.meta, identity.token, identity.name)
        if now.version != core.seen.version:
            core.seen = now
            return False
        try:
            yield ReplaceNode(path, value, there.version)
        except Conflict:
            return False
    return True


def switch(core: WriterCore, predecessor: tuple[int, int], base_seq: int) -> Pipe:
    """From this turn on, appends go to the ledger that was listed last."""
    segment = core.seen.meta.segments[-1]
    check(segment.ledger_id == core.spare, "we switch to what we listed", segment, core.spare)
    core.spare = None
    if core.pipes and core.current.state is PipeState.CURRENT:
        core.current.state = PipeState.DRAINING
    return core.add_pipe(segment.number, segment.ledger_id, base_seq, predecessor)


def write_seam(
    core: WriterCore, pipe: Pipe, point: str, before_us: int | None = None
) -> Procedure[None]:
    """And the table of producers, if there are any. `before_us`: the time of what is rebuilt behind
    them, which they may not exceed: a search by time halves over entries."""
    now_us = core.stamp() if before_us is None else before_us
    buffers = seam_entry(
        core.seen.meta,
        number=pipe.number,
        epoch=core.epoch,
        predecessor=pipe.predecessor,
        base_seq=pipe.base_seq,
        now_us=now_us,
    )
    pipe.last_pushed = SEAM_ENTRY
    pipe.first_time_us = pipe.last_time_us = now_us
    yield SubmitEntry(pipe.ledger_id, buffers, point=point)
    if core.seen.meta.producers:
        yield from write_table(core, now_us)


def write_table(core: WriterCore, now_us: int) -> Procedure[None]:
    """Of producers, into the current ledger, in this very turn."""
    ledger_id, buffers = core.push_table(now_us)
    yield SubmitEntry(ledger_id, buffers, point="producers.tabled")


def allow_numbers(core: WriterCore) -> Procedure[None]:
    """Before the first message of the log's life that carries the number of its producer: say so in
    the log meta, so that every takeover looks for them, and write an empty table."""
    token, name = core.identity.token, core.identity.name

    def change(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, name)
        return meta.numbered()

    core.seen = yield from change_log(
        core.identity.path,
        core.seen,
        change,
        is_done=lambda meta: meta.owned_by(token) and meta.producers,
        chance=core.identity.chance,
        point="producers.marked",
    )
    if core.state is WriterState.OPEN:  # else healing writes one behind its seam
        yield from write_table(core, core.stamp())


def close_ledger(core: WriterCore, pipe: Pipe, point: str) -> Procedure[ClosedLedger]:
    """Close a drained ledger, which is at the last entry pushed. An unknown reply is asked
    again."""
    attempt = 0
    began_s = core.identity.now_s()
    while True:
        try:
            closed: ClosedLedger = yield CloseLedger(pipe.ledger_id, point=point)
        except DlogError as error:
            if error.retry is not Retry.NOW or core.state is WriterState.DEAD:
                raise
            if attempt == 0:
                _log.warning("log %s: a barrier waits: %s", core.identity.name, error)
            attempt += 1
            wait = Wait(
                ReasonCode.LEDGER_CLOSE,
                f"ledger {pipe.ledger_id} could not be closed yet: {error}",
                {"tries": attempt, "error": error.message},
                began_s,
            )
            pause_s = backoff_s(attempt, core.identity.chance, base_s=0.05, limit_s=2)
            yield Pause(pause_s, wait=wait)
            continue
        if closed.last_entry != pipe.last_pushed:
            raise Fenced(
                f"ledger {pipe.ledger_id} was closed at {closed.last_entry} by somebody else",
                ledger_id=pipe.ledger_id,
            )
        return closed


class Ending(enum.Enum):
    """What a writer leaves behind: the log as it is, for the next one, or for nobody any more."""

    CLOSE = "close"
    HAND_OVER = "hand over"
    TERMINATE = "terminate"


def close(
    core: WriterCore, ending: Ending = Ending.CLOSE, *, hand_over_to: str | None = None
) -> Procedure[DlogError | None]:
    """Close and seal, so that the next opener needs no recovery. The driver has flushed before.

    From here on the handle is dead, whatever the reply. Everything acknowledged is safe even if
    sealing fails: the next opener recovers. So that failure is returned, for the caller to judge.
    """
    core.move(WriterState.CLOSING)
    current = core.current
    try:
        if current.table_is_old:
            yield from write_table(core, core.stamp())
        yield Drained(current.ledger_id, point="close.drained")
    except DlogError as error:
        core.die((yield from named(core, error)))
        if isinstance(core.error, Fenced):
            yield from drop_spare(core)
        return core.error
    failure = None
    try:
        closed = yield from close_ledger(core, current, "close.closed")
        core.on_closed(current, closed)
        yield Release()
        yield from _seal_all(core, ending, hand_over_to)
    except DlogError as error:
        failure = yield from named(core, error)
        if isinstance(failure, Fenced):
            yield from drop_spare(core)
    if core.state is not WriterState.DEAD:
        core.move(WriterState.CLOSED)
    return failure


def _seal_all(core: WriterCore, ending: Ending, hand_over_to: str | None) -> Procedure[None]:
    token, name = core.identity.token, core.identity.name
    for_good = ending is Ending.TERMINATE

    def change(meta: LogMeta) -> LogMeta:
        refuse_unless_owned(meta, token, name)
        meta = core.settled(meta)
        for segment in meta.unsealed:  # listed and never switched to: it has no seam
            meta = meta.dropped(segment.number, core.identity.now_us())
        return meta.terminated() if for_good else meta.handed_over(hand_over_to)

    def is_done(meta: LogMeta) -> bool:
        if for_good:
            return meta.epoch == core.epoch and meta.state is LogState.TERMINATED
        return meta.epoch == core.epoch and meta.writer is None

    core.seen = yield from change_log(
        core.identity.path,
        core.seen,
        change,
        is_done=is_done,
        chance=core.identity.chance,
        point="terminate.sealed" if for_good else "close.sealed",
    )
    # A spare whose listing was never sent, or whose list now shows it nowhere, is ours to delete.
    if core.spare is not None and not any(
        d.ledger_id == core.spare for d in core.seen.meta.deleting
    ):
        yield DeleteLedger(core.spare)


def named(core: WriterCore, error: DlogError) -> Procedure[DlogError]:
    """A fence, with the name of who won; anything else as it is."""
    if not isinstance(error, Fenced):
        return error
    me = core.identity
    return (yield from tell_winner(me.path, me.token, me.name, error))

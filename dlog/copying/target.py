"""The log that is copied into: is it one that may be, and of which log is it the copy? A procedure
without IO.

A new log, or one without messages, becomes the copy: its meta names the other log and the seq that
it begins with. One that is the copy of that log already is gone on with. Everything else is
refused, since nothing that it holds could be told apart from what is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import CreateNode, Pause, Procedure, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Outcome, Unavailable
from dlog.meta.cas import read_log
from dlog.meta.listed import CopyOf
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions
from dlog.writer.takeover import refuse_unless_copy, refuse_unless_open


@dataclass(frozen=True, slots=True)
class Target:
    """What is to become the copy, and of what. `options` are those of a log that is made now."""

    name: str
    path: str
    of: CopyOf
    last_time_us: int  # of what is before its first message
    options: LogOptions
    new_uid: str
    producers: bool = False  # the other log has some


def begin_copy(target: Target, chance: Chance) -> Procedure[CopyOf]:
    """What the target is a copy of, from now on at the latest."""
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            done = yield from _try(target)
            if done is not None:
                return done
        except DlogError as error:
            # Refused by a race, or perhaps done: the node says which.
            raced = isinstance(error, Conflict) or error.outcome is Outcome.UNKNOWN
            if not raced or attempt == limits.META_ATTEMPTS_MAX - 1:
                raise
        yield Pause(backoff_s(attempt, chance))
    raise Unavailable(f"the log {target.name!r} changed under us again and again", log=target.name)


def _try(target: Target) -> Procedure[CopyOf | None]:
    """None when somebody else was faster."""
    try:
        seen = yield from read_log(target.path)
    except NotFound:
        fresh = LogMeta(uid=target.new_uid, options=target.options)
        try:
            yield CreateNode(target.path, _marked(fresh, target).to_bytes())
        except AlreadyExists:
            return None
        return target.of
    meta = seen.meta
    if meta.state is LogState.DELETED:
        meta = meta.reborn(target.new_uid, target.options)
    refuse_unless_open(meta, target.name)
    if meta.copy_of is None and meta.is_blank:
        yield ReplaceNode(target.path, _marked(meta, target).to_bytes(), seen.version)
        return target.of
    refuse_unless_copy(meta, target.of.uid, target.name)
    return meta.copy_of


def _marked(meta: LogMeta, target: Target) -> LogMeta:
    return meta.as_copy(target.of, target.last_time_us, producers=target.producers)

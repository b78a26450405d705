"""The compare-and-set loop over one log meta, as a procedure.

The rules, each learnt from a lost log: a refused write re-reads and rebuilds on what is there now;
an unknown reply is resolved by reading whether the change *is* there, and if the node is unchanged
the same change is sent again, never taken as "not applied"; who may not make the change any more
finds out inside `change`, which raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import DlogError, Outcome, Retry
from dlog.meta.log_meta import LogMeta


class Seen(NamedTuple):
    """A log meta and the version it was seen at."""

    meta: LogMeta
    version: int


def read_log(path: str, *, point: str = "") -> Procedure[Seen]:
    value, version = yield ReadNode(path, point=point)
    return Seen(LogMeta.from_bytes(value, where=path), version)


def change_log(
    path: str,
    seen: Seen | None,
    change: Callable[[LogMeta], LogMeta],
    *,
    is_done: Callable[[LogMeta], bool],
    chance: Chance,
    point: str = "",
) -> Procedure[Seen]:
    """Make one change, starting from what was `seen` (None: read first); what stands there
    afterwards.

    `change` may be called several times, each time with the newest meta; it raises when the change
    may no longer be made. `is_done` recognises our change in a meta that we read, after a reply was
    lost.
    """
    refused: DlogError | None = None
    maybe_applied = False
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            if seen is None:
                seen = yield from read_log(path)
                if is_done(seen.meta):
                    return seen
            wanted = change(seen.meta)
            version = yield ReplaceNode(path, wanted.to_bytes(), seen.version, point=point)
            return Seen(wanted, version)
        except DlogError as error:
            maybe_applied |= error.outcome is Outcome.UNKNOWN
            if maybe_applied:
                error.outcome = Outcome.UNKNOWN
            # Nothing to gain from a store that refuses for good; all else is read and tried again.
            if error.retry is not Retry.NOW:
                raise
            refused = error
        seen = None
        yield Pause(backoff_s(attempt, chance))
    assert refused is not None
    raise refused

"""The compare-and-set loop over one node, that of a log or another, as a procedure.

The rules, each learnt from a lost log: a refused write re-reads and rebuilds on what is there now;
an unknown reply is resolved by reading whether the change *is* there, and if the node is unchanged
the same change is sent again, never taken as "not applied"; who may not make the change any more
finds out inside `change`, which raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

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
    """Make one change to a log meta, starting from what was `seen` (None: read first); what stands
    there afterwards."""
    parse = _log_meta
    meta, version = yield from change_node(
        path, seen, change, parse=parse, is_done=is_done, chance=chance, point=point
    )
    return Seen(meta, version)


def _log_meta(value: bytes, path: str) -> LogMeta:
    return LogMeta.from_bytes(value, where=path)


class _Value(Protocol):
    def to_bytes(self) -> bytes: ...


_V = TypeVar("_V", bound=_Value)


def change_node(
    path: str,
    seen: tuple[_V, int] | None,
    change: Callable[[_V], _V],
    *,
    parse: Callable[[bytes, str], _V],
    is_done: Callable[[_V], bool],
    chance: Chance,
    point: str = "",
) -> Procedure[tuple[_V, int]]:
    """Make one change, starting from what was `seen` (None: read first); what stands there
    afterwards, with its version.

    `change` may be called several times, each time with the newest value; it raises when the change
    may no longer be made. `is_done` recognises our change in a value that we read, after a reply
    was lost.
    """
    refused: DlogError | None = None
    maybe_applied = False
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            if seen is None:
                raw, version = yield ReadNode(path)
                seen = parse(raw, path), version
                if is_done(seen[0]):
                    return seen
            wanted = change(seen[0])
            version = yield ReplaceNode(path, wanted.to_bytes(), seen[1], point=point)
            return wanted, version
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

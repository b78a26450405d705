"""What became of one message: was it appended, and where? A procedure without IO.

A token names the log, the epoch of the writer and the seq that the message has if it is in the log.
Seqs have no gaps and are never given twice, and one writer alone has an epoch: so the message is
there exactly if the segment that holds its seq is of its epoch. While that epoch may still add to
the log, or a takeover has yet to decide what stays of it, a seq that nobody can read is
*undecided*. Everything else is for good.

So what is seen of an open ledger must be its writer's word: strangers that recover it show entries
that may be cut off again, and a normal tail believes them. The view is strict (see
`dlog.reader.horizon`), which costs a look at the metadata of the ledger at the tail, and waits
while that is being recovered.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.effects import Procedure
from dlog.errors import ConfigError, Corrupt, NotFound, check
from dlog.ids import MessageId, Token
from dlog.meta.log_meta import LogMeta
from dlog.meta.shards import has_ended
from dlog.reader.places import find_tail, place_in, sealed_with, segment_at
from dlog.reader.segments import Entered, SegmentView


@dataclass(frozen=True, slots=True)
class Present:
    """It is in the log, for good, under this id."""

    id: MessageId


@dataclass(frozen=True, slots=True)
class Never:
    """It is not in the log and never will be: it may be sent again."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """Nobody can tell any more; `why` says what took the evidence away."""

    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """It may still appear. Opening a writer decides; `why` says who may add it."""

    why: str


Resolved = Present | Never | TooLate | Undecided


def resolve(view: SegmentView, token: Token, *, only_here: bool = False) -> Procedure[Resolved]:
    """`view` is of the log that the token names, and strict. A message that is not in a shard which
    has ended may have been sent on to the shards behind it; `only_here` asks for the shard's own
    log all the same."""
    check(view.horizon.tail == "strict", "an answer for good takes a strict view", view.name)
    name = view.name
    version: int | None = None
    while True:
        try:
            meta = yield from view.refresh()
        except NotFound as gone:  # another uid included
            return TooLate(f"the log of this token is not there: {gone.message}")
        if not 0 < token.epoch <= meta.epoch:
            raise ConfigError(
                f"a token of epoch {token.epoch}, but log {name!r} is at epoch {meta.epoch}",
                log=name,
                token=token,
            )
        assert view.seen is not None
        try:
            found = yield from _look(view, token)
            if isinstance(found, Never) and not only_here and has_ended(view.meta):
                return TooLate(
                    f"the shard {name!r} has ended without it; its writer may have sent it on to "
                    "the shards behind it: numbers of producers tell"
                )
            return found
        except NotFound as error:
            # Truncated or dropped under our eyes, then the list says so by now.
            if view.seen.version == version:
                raise Corrupt(
                    f"log {name!r}: a ledger of its list is missing: {error.message}", **error.about
                ) from error
            version = view.seen.version


def _look(view: SegmentView, token: Token) -> Procedure[Resolved]:
    meta, seq = view.meta, token.seq
    if seq < meta.truncate_before.seq:
        return _truncated(meta, seq)
    if seq < meta.end.next_seq:  # decided: the list alone knows whose it is
        segment = yield from sealed_with(view, seq)
        if segment is None or segment.sealed is None or segment.sealed.base_seq > seq:
            return _truncated(meta, seq)
        return (yield from _in_segment(view, Entered(segment, segment.sealed.base_seq), token))
    if not _may_grow(meta, token.epoch):
        return Never()
    tail = yield from find_tail(view)
    if seq < tail.next_seq:
        entered = yield from segment_at(view, seq)
        if entered is not None:
            return (yield from _in_segment(view, entered, token))
    return Undecided(_who(meta, token.epoch))


def _may_grow(meta: LogMeta, epoch: int) -> bool:
    """Whether more of this epoch may come than is sealed: its writer holds the log, or a takeover
    has not decided yet."""
    holds = meta.epoch == epoch and meta.writer is not None
    return holds or any(segment.epoch == epoch for segment in meta.unsealed)


def _in_segment(view: SegmentView, entered: Entered, token: Token) -> Procedure[Resolved]:
    meta, segment = view.meta, entered.segment
    if segment.epoch != token.epoch:
        return Never()
    place = yield from place_in(view, entered, token.seq)
    found = MessageId(segment.ledger_id, place.entry_id, place.idx)
    if meta.truncate_before.is_past(token.seq, *found):
        return _truncated(meta, token.seq)
    return Present(found)


def _truncated(meta: LogMeta, seq: int) -> TooLate:
    return TooLate(f"seq {seq} was truncated (truncation point {meta.truncate_before.seq})")


def _who(meta: LogMeta, epoch: int) -> str:
    name = "nobody" if meta.writer is None else meta.writer.name
    if meta.epoch == epoch:
        return f"its writer, {name}, still holds the log; opening another writer decides"
    return f"a takeover by {name}, epoch {meta.epoch}, has not decided yet; opening a writer does"

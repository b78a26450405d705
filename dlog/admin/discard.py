"""Discarding what a job filled: its ledgers are deleted, unless they are listed. Procedures.

A publication may be on its way whose reply nobody has, so a ledger that could still be listed is
not simply deleted: first the log meta says that it waits for its deletion, where each commit finds
it, and every commit that was sent before is refused, since the meta is another by now. Then it is
deleted, and then forgotten; a crash between leaves it to the collector. A ledger whose id does not
exceed every id ever listed can be listed by nobody, and neither can one of a log that takes no more
messages or is gone: these need no mark.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog import limits
from dlog.admin.doomed import delete_ledger
from dlog.admin.fsck.orphans import JOB, mark_of
from dlog.chance import Chance
from dlog.effects import LookAtLedger, Procedure
from dlog.errors import NotFound
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState
from dlog.reader.segments import SegmentView


@dataclass(frozen=True, slots=True)
class Discarded:
    """`kept`: listed, or not of a job of this log, or in their way out already."""

    deleted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()

    def __add__(self, other: Discarded) -> Discarded:
        return Discarded(self.deleted + other.deleted, self.kept + other.kept)


@dataclass(frozen=True, slots=True)
class Discarding:
    """Whose ledgers, and where the log is."""

    name: str
    uid: str
    layout: Layout
    now_us: int
    chance: Chance

    @property
    def path(self) -> str:
        return self.layout.log(self.name)


def discard(work: Discarding, ledger_ids: tuple[int, ...]) -> Procedure[Discarded]:
    done = Discarded()
    for at in range(0, len(ledger_ids), limits.COLLECT_AT_ONCE):
        done += yield from _discard(work, ledger_ids[at : at + limits.COLLECT_AT_ONCE])
    return done


def _discard(work: Discarding, ledger_ids: tuple[int, ...]) -> Procedure[Discarded]:
    digests: dict[int, str] = {}
    for ledger_id in ledger_ids:
        digest = yield from _digest_of_job(work, ledger_id)
        if digest is not None:
            digests[ledger_id] = digest
    while True:
        seen = yield from _find(work)
        free = yield from _unlisted(work, seen, tuple(digests))
        above: tuple[int, ...] = ()
        if seen is not None and seen.meta.state is LogState.OPEN:
            floor = seen.meta.ledger_floor
            above = tuple(each for each in free if each > floor)
            room = limits.META_DELETING_MAX - len(seen.meta.deleting)
            free = tuple(each for each in free if each <= floor or each in above[:room])
            above = above[:room]  # what finds no room, the next call takes, or fsck
        if above and seen is not None and not (yield from _mark(work, seen, above)):
            continue
        for ledger_id in free:
            yield from delete_ledger(ledger_id, digests[ledger_id], "discard.deleted")
        if above and seen is not None:
            yield from _forget(work, above)
        kept = tuple(each for each in ledger_ids if each not in free)
        return Discarded(free, kept)


def _digest_of_job(work: Discarding, ledger_id: int) -> Procedure[str | None]:
    """None: there is no such ledger, or it is not of a job of this log."""
    try:
        info = yield LookAtLedger(ledger_id)
    except NotFound:
        return None
    mark = mark_of(info, work.now_us)
    if mark is None or mark.uid != work.uid or mark.role != JOB:
        return None
    return info.spec.digest  # type: ignore[no-any-return]


def _find(work: Discarding) -> Procedure[Seen | None]:
    """None: the log that they were filled for is gone, and with it whoever could list them."""
    try:
        seen = yield from read_log(work.path)
    except NotFound:
        return None
    meta = seen.meta.is_here(work.name)
    return None if meta.uid != work.uid or meta.is_removed else seen


def _unlisted(
    work: Discarding, seen: Seen | None, ledger_ids: tuple[int, ...]
) -> Procedure[tuple[int, ...]]:
    """Those that the log, as it was seen, neither lists nor ever did."""
    if seen is None:
        return ledger_ids
    meta = seen.meta
    doomed = {each.ledger_id for each in meta.deleting}
    view = SegmentView(work.name, work.layout, work.uid)
    view.seen = seen
    free: list[int] = []
    for ledger_id in ledger_ids:
        if ledger_id in doomed or (ledger_id <= meta.ledger_floor and meta.deleting_pages):
            continue  # it, or perhaps a page that names it, waits for its deletion
        if ledger_id <= meta.ledger_floor and (yield from _is_listed(view, ledger_id)):
            continue
        free.append(ledger_id)
    if view.seen is not seen and view.meta != meta:  # a page was gone: others were looked at
        now = yield from _find(work)
        return (yield from _unlisted(work, now, ledger_ids))
    return tuple(free)


def _is_listed(view: SegmentView, ledger_id: int) -> Procedure[bool]:
    found = yield from view.find(
        lambda s: s.ledger_id >= ledger_id, lambda p: p.last_ledger >= ledger_id
    )
    return found is not None and found.ledger_id == ledger_id


def _mark(work: Discarding, seen: Seen, ledger_ids: tuple[int, ...]) -> Procedure[bool]:
    """False: the log is another by now, and perhaps they are listed."""
    wanted = set(ledger_ids)

    def is_marked(meta: LogMeta) -> bool:
        return wanted <= {each.ledger_id for each in meta.deleting}

    def change(meta: LogMeta) -> LogMeta:
        if meta is not seen.meta:
            raise _Changed(f"the log {work.name!r} changed", log=work.name)
        return meta.discarded(ledger_ids, work.now_us)

    try:
        yield from change_log(
            work.path,
            seen,
            change,
            is_done=lambda meta: meta.uid == work.uid and is_marked(meta),
            chance=work.chance,
            point="discard.marked",
        )
    except _Changed:
        return False
    return True


class _Changed(NotFound):
    """What was seen is not there any more."""


def _forget(work: Discarding, ledger_ids: tuple[int, ...]) -> Procedure[None]:
    gone = frozenset(ledger_ids)

    def is_done(meta: LogMeta) -> bool:
        return meta.uid != work.uid or not gone & {each.ledger_id for each in meta.deleting}

    def change(meta: LogMeta) -> LogMeta:
        return meta if is_done(meta) else meta.forgotten(gone, ())

    yield from change_log(
        work.path, None, change, is_done=is_done, chance=work.chance, point="discard.forgotten"
    )

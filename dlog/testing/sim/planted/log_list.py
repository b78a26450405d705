"""Bugs of the log's list of ledgers: what is on it when, its numbers, its pages, its owner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.effects import (
    DeleteLedger,
    Drained,
    Procedure,
    Release,
    ReplaceNode,
)
from dlog.errors import Conflict, DlogError, Outcome, Retry
from dlog.meta import cas
from dlog.meta.cas import Seen
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import Cut, page_to_bytes
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer import duties, rotation, segments, takeover
from dlog.writer.core import WriterCore

plants = Plants("log-abstract")
PLANTS = plants.by_name


@plants("P21, I16")
def list_after_the_first_add(patch: Patch) -> None:
    def rotate(core: WriterCore) -> Procedure[None]:
        if core.spare is None:
            yield from rotation.prepare(core)
        spare, seen, old = core.spare, core.seen, core.current
        assert spare is not None
        core.seen = Seen(core.settled(seen.meta).listed(spare), seen.version)
        new = rotation.switch(core, (old.ledger_id, old.last_pushed), old.next_seq)
        core.seen, core.spare = seen, spare
        yield from rotation.write_seam(core, new, "rotate.switched")
        yield from rotation.list_spare(core, "rotate.listed")
        core.spare = None
        yield Drained(old.ledger_id)
        core.on_closed(old, (yield from rotation.close_ledger(core, old, "rotate.closed")))
        yield Release()

    _rotate_with(patch, rotate)


def _rotate_with(patch: Patch, rotate: Any) -> None:
    patch.setattr(duties, "rotate", rotate)


@plants("P21, I16")
def seam_before_the_reply_to_the_listing(patch: Patch) -> None:
    def change_log(path: str, seen: Seen, change: Any, **others: Any) -> Procedure[Seen]:
        try:
            yield ReplaceNode(path, change(seen.meta).to_bytes(), seen.version)
        except Conflict:
            return (yield from cas.change_log(path, None, change, **others))
        except DlogError:  # no reply: go on all the same
            pass
        return Seen(change(seen.meta), seen.version)

    patch.setattr(rotation, "change_log", change_log)


def _change_log_with(patch: Patch, on_unknown: Callable[[LogMeta, Seen, DlogError], Seen]) -> None:
    def change_log(
        path: str, seen: Seen | None, change: Any, *, is_done: Any, chance: Any, point: str = ""
    ) -> Procedure[Seen]:
        while True:
            try:
                if seen is None:
                    seen = yield from cas.read_log(path)
                wanted = change(seen.meta)
                version = yield ReplaceNode(path, wanted.to_bytes(), seen.version, point=point)
                return Seen(wanted, version)
            except DlogError as error:
                if error.retry is not Retry.NOW:
                    raise
                if error.outcome is Outcome.UNKNOWN and seen is not None:
                    return on_unknown(wanted, seen, error)
                seen = None

    for room in (takeover, rotation):
        patch.setattr(room, "change_log", change_log)


@plants("P18, DL-33")
def unknown_listing_taken_as_refused(patch: Patch) -> None:
    def on_unknown(wanted: LogMeta, seen: Seen, error: DlogError) -> Seen:
        raise Conflict("refused", retry=Retry.AFTER_REOPEN)

    _change_log_with(patch, on_unknown)


@plants("P19, DL-33")
def unknown_listing_taken_as_done(patch: Patch) -> None:
    _change_log_with(patch, lambda wanted, seen, error: Seen(wanted, seen.version + 1))


@plants("P18, I24", meta_reply_lost=0.3, writers=4, incarnations=3, takeover="always", crash=0.0)
def a_ledger_is_deleted_though_its_listing_is_unknown(patch: Patch) -> None:
    real = cas.change_log

    def change_log(*arguments: Any, **others: Any) -> Procedure[Seen]:
        try:
            return (yield from real(*arguments, **others))
        except DlogError as error:
            error.outcome = Outcome.NOT_HAPPENED
            raise

    patch.setattr(takeover, "change_log", change_log)


@plants("P20")
def token_not_compared(patch: Patch) -> None:
    patch.setattr(LogMeta, "owned_by", lambda self, token: self.writer is not None)


@plants("I6, DL-13")
def floor_not_checked(patch: Patch) -> None:
    real, listed = segments.new_ledger, LogMeta.listed

    def new_ledger(meta: LogMeta, **others: Any) -> Procedure[int]:
        return real(dataclasses.replace(meta, ledger_floor=-1), **others)

    def unchecked(self: LogMeta, ledger_id: int) -> LogMeta:
        changed = listed(dataclasses.replace(self, ledger_floor=-1), ledger_id)
        return dataclasses.replace(changed, ledger_floor=max(self.ledger_floor, ledger_id))

    for room in (takeover, rotation):
        patch.setattr(room, "new_ledger", new_ledger)
    patch.setattr(LogMeta, "listed", unchecked)


@plants("P25")
def number_of_a_dropped_segment_used_again(patch: Patch) -> None:
    real = LogMeta.dropped

    def dropped(self: LogMeta, number: int, now_us: int) -> LogMeta:
        return dataclasses.replace(real(self, number, now_us), next_number=number)

    patch.setattr(LogMeta, "dropped", dropped)


@plants("I7")
def claim_keeps_the_epoch(patch: Patch) -> None:
    real = LogMeta.claimed

    def claimed(self: LogMeta, writer: Any, **others: Any) -> LogMeta:
        return dataclasses.replace(real(self, writer, **others), epoch=max(self.epoch, 1))

    patch.setattr(LogMeta, "claimed", claimed)


@plants("I6, I15", removers=1, incarnations=3, appends=8)
def a_log_made_anew_begins_at_nothing(patch: Patch) -> None:
    def reborn(self: LogMeta, uid: str, options: Any) -> LogMeta:
        return LogMeta(uid=uid, options=options)

    patch.setattr(LogMeta, "reborn", reborn)


@plants("I15", page_segments=2, rotate_every=1, appends=20)
def a_page_is_named_before_it_is_written(patch: Patch) -> None:
    def write_pages(core: WriterCore) -> Procedure[None]:
        yield from ()
        cut = core.settled(core.seen.meta).next_cut()
        if cut is not None:
            core.pages[cut.ref.level, cut.ref.number] = cut.held

    patch.setattr(rotation, "write_pages", write_pages)


@plants("I15, I8", page_segments=2, rotate_every=1, appends=20)
def a_page_lacks_its_last_segment(patch: Patch) -> None:
    patch.setattr(Cut, "to_bytes", lambda cut: page_to_bytes(cut.held[:-1]))


@plants("I15, P18", meta_reply_lost=0.6, meta_outages=True, rotate_every=1, appends=8)
def a_spare_is_deleted_though_it_is_listed(patch: Patch) -> None:
    real = rotation.list_spare

    def list_spare(core: WriterCore, point: str) -> Procedure[None]:
        try:
            yield from real(core, point)
        except DlogError:
            if core.spare is not None:
                spare, core.spare = core.spare, None
                yield DeleteLedger(spare)
            raise

    patch.setattr(rotation, "list_spare", list_spare)

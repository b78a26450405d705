"""Bugs in standing by: in what is kept ready, and in what becomes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.effects import DeleteLedger, Pause, Procedure
from dlog.errors import Corrupt, DlogError, Fenced
from dlog.meta import cas
from dlog.meta.cas import Seen, read_log
from dlog.meta.log_meta import LogMeta
from dlog.standby.core import StandbyCore
from dlog.testing.sim import log_writers
from dlog.testing.sim.planted import Patch, Plants
from dlog.wire.batch import decode
from dlog.wire.control import Birth
from dlog.writer import present, segments, takeover
from dlog.writer.ready import ReadyLedger, ReadyState

plants = Plants("log-abstract")
PLANTS = plants.by_name


@plants("log-protocol: only an id above the floor is listed", standbys=2, rotate_every=1)
def a_ready_ledger_is_listed_below_the_floor(patch: Patch) -> None:
    def fits(self: ReadyLedger, meta: LogMeta) -> bool:
        return self.state is ReadyState.READY and self._uid == meta.uid

    patch.setattr(ReadyLedger, "fits", fits)


@plants("the same, where nothing checks it at the list", standbys=2, rotate_every=1)
def the_list_takes_a_ready_ledger_below_the_floor(patch: Patch) -> None:
    a_ready_ledger_is_listed_below_the_floor(patch)
    genuine = LogMeta.listed

    def listed(self: LogMeta, ledger_id: int) -> LogMeta:
        if ledger_id > self.ledger_floor:
            return genuine(self, ledger_id)
        floor = self.ledger_floor
        lowered = dataclasses.replace(self, ledger_floor=ledger_id - 1)
        return dataclasses.replace(genuine(lowered, ledger_id), ledger_floor=floor)

    patch.setattr(LogMeta, "listed", listed)


@plants("I15: data before the commit", standbys=2)
def a_standby_writes_before_it_committed(patch: Patch) -> None:
    """It takes its claim for the whole takeover."""
    genuine = cas.change_log

    def change_log(path: str, seen: Seen, change: Callable[[LogMeta], LogMeta], **how: Any) -> Any:
        if how.get("point") == "takeover.committed":
            return _not_sent(seen, change)
        return genuine(path, seen, change, **how)

    patch.setattr(takeover, "change_log", change_log)


def _not_sent(seen: Seen, change: Callable[[LogMeta], LogMeta]) -> Procedure[Seen]:
    yield Pause(0.0)
    return Seen(change(seen.meta), seen.version)


@plants("log-protocol: never delete a ledger whose listing was sent and is not known as refused",
        standbys=2, meta_reply_lost=0.2)  # fmt: skip
def a_ledger_that_may_be_listed_is_deleted(patch: Patch) -> None:
    def leave(self: StandbyCore) -> Procedure[None]:
        ready = self.ready
        if ready.ledger_id is not None and ready.state is not ReadyState.GIVEN:
            yield DeleteLedger(ready.ledger_id)
        ready.let_go()

    patch.setattr(StandbyCore, "leave", leave)


@plants("log-protocol: a given ledger is the writer's", standbys=2)
def a_given_ledger_is_deleted_by_its_standby(patch: Patch) -> None:
    patch.setattr(ReadyLedger, "given", lambda self: setattr(self, "state", ReadyState.READY))


@plants("log-protocol: a refused ledger was never listed; one whose listing nobody knows may be",
        standbys=2, meta_reply_lost=0.2, meta_late=0.1)  # fmt: skip
def a_ledger_is_offered_twice(patch: Patch) -> None:
    """It is not minded that a listing was sent."""
    patch.setattr(ReadyLedger, "offered", lambda self: None)
    patch.setattr(ReadyLedger, "refused", lambda self: None)


@plants("a takeover begins with a compare-and-set on what is true", standbys=2)
def the_standbys_view_needs_no_recovery(patch: Patch) -> None:
    """What was ready is listed at once, beside a ledger that goes on."""
    genuine = takeover._claim_and_recover

    def claim(opening: Any, seen: Any) -> Procedure[Any]:
        if opening.stood_by is not None:
            return (yield from takeover._open_sealed(opening, seen))
        return (yield from genuine(opening, seen))

    patch.setattr(takeover, "_claim_and_recover", claim)


@plants("the birth names the log", standbys=2, removers=1, takeover="always")
def a_ledger_of_a_removed_log_is_listed(patch: Patch) -> None:
    def fits(self: ReadyLedger, meta: LogMeta) -> bool:
        return self.state is ReadyState.READY and (self.ledger_id or 0) > meta.ledger_floor

    patch.setattr(ReadyLedger, "fits", fits)
    patch.setattr(takeover, "_refuse_another_log", lambda opening, meta: None)
    patch.setattr(StandbyCore, "look", _look_anywhere)


def _look_anywhere(self: StandbyCore) -> Procedure[None]:
    seen = yield from read_log(self.post.path)
    takeover.refuse_unless_open(seen.meta, self.post.name)
    self.seen = seen


@plants("a standby's birth is no segment's", standbys=2, rotate_every=1)
def a_birth_must_be_the_segments_own(patch: Patch) -> None:
    """Whoever recovers refuses what a standby made."""
    genuine = segments.check_birth

    def check_birth(raw: Any, segment: Any, uid: str) -> None:
        birth = Birth.from_bytes(decode(raw, where="").control_body, where="")
        if birth.role != "segment":
            raise Corrupt("not the birth of a segment")
        genuine(raw, segment, uid)

    patch.setattr(segments, "check_birth", check_birth)


@plants("log-protocol: never replace what is on offer", standbys=2)
def a_standby_goes_on_preparing_while_it_takes_over(patch: Patch) -> None:
    """Its loop was just looking when it was told to stop."""
    patch.setattr(StandbyCore, "is_stopped", lambda self: False)


@plants("DL-35: a standby waits on while metadata is away", standbys=2, takeover="wait",
        meta_refused=0.2)  # fmt: skip
def a_vacancy_is_not_waited_for_without_metadata(patch: Patch) -> None:
    def until_vacant(self: StandbyCore) -> Procedure[None]:
        while not (yield from self.is_vacant()):
            yield Pause(0.1)

    patch.setattr(StandbyCore, "until_vacant", until_vacant)


@plants("K10: strangers say nothing about who has the log", standbys=2, rotate_every=1,
        foreign_recoverers=True)  # fmt: skip
def a_stranger_at_a_newborn_ledger_ends_a_standby(patch: Patch) -> None:
    genuine = segments._born_ledger

    def born_ledger(*args: Any) -> Procedure[int]:
        making = genuine(*args)
        answer, error = None, None
        while True:
            try:
                effect = making.send(answer) if error is None else making.throw(error)
            except StopIteration as stop:
                return int(stop.value)
            answer = error = None
            try:
                answer = yield effect
            except Fenced as fenced:
                raise fenced.again() from None
            except DlogError as refused:
                error = refused

    patch.setattr(segments, "_born_ledger", born_ledger)


@plants("I27: whoever died, or failed to open, is not present", takeover="wait", writers=3,
        closes=0.8)  # fmt: skip
def a_dead_writer_stays_present(patch: Patch) -> None:
    """And whoever asks politely waits for it."""

    def withdraw(path: str, chance: Any, asked: Callable[[], None]) -> Procedure[None]:
        yield Pause(0.0)
        asked()

    patch.setattr(log_writers, "withdraw", withdraw)


@plants("I27: the same, when the store did not answer the first time", takeover="wait", standbys=2,
        meta_refused=0.3)  # fmt: skip
def presence_is_withdrawn_once(patch: Patch) -> None:
    genuine = present.withdraw

    def withdraw(path: str, chance: Any, asked: Callable[[], None]) -> Procedure[None]:
        withdrawing = genuine(path, chance, asked)
        answer, error = None, None
        while True:
            try:
                effect = withdrawing.send(answer) if error is None else withdrawing.throw(error)
            except StopIteration:
                return
            if isinstance(effect, Pause):
                return
            answer = error = None
            try:
                answer = yield effect
            except DlogError as refused:
                error = refused

    patch.setattr(log_writers, "withdraw", withdraw)

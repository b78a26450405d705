"""Discarding what a job filled: what is listed, or may be, is never deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog import limits
from dlog.admin.discard import Discarded, Discarding, discard
from dlog.effects import DeleteLedger, ReplaceNode
from dlog.errors import Conflict, NotFound, Timeout, Unavailable
from dlog.meta.listed import Doomed, DoomedPage, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions
from tests.scenarios.by_hand import NoChance
from tests.unit.admin.scripted import READ, Scripted
from tests.unit.reader.small_log import BIRTH, LAYOUT, NAME, seven_segments

MARKED, DELETED, FORGOTTEN = "discard.marked", "discard.deleted", "discard.forgotten"
JOB = {"application": b"dlog", "log": b"uid", "role": b"job"}
LOST = Timeout("no reply")


@pytest.fixture
def log() -> Scripted:
    """Its segments are on ledgers 10 to 70, its floor is 70."""
    return Scripted.of(seven_segments())


def of_job(log: Scripted, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        log.ledgers.setdefault(ledger_id, [BIRTH])
        log.custom[ledger_id] = dict(JOB)


def discarded(log: Scripted, *ledger_ids: int) -> Discarded:
    work = Discarding(NAME, "uid", LAYOUT, 1_000, NoChance())
    told: Discarded = log.run(discard(work, ledger_ids))
    return told


def test_ledgers_that_nobody_can_list_are_deleted_without_a_mark(log: Scripted) -> None:
    of_job(log, 5, 25, 69)
    before = log.meta
    assert discarded(log, 5, 25, 69) == Discarded((5, 25, 69), ())
    assert log.deleted == [5, 25, 69]
    assert log.meta == before
    assert not any(isinstance(each, ReplaceNode) for each in log.done)


def test_a_ledger_as_high_as_the_floor_can_be_listed_by_nobody(log: Scripted) -> None:
    log.change(ledger_floor=80)
    of_job(log, 80, 81)
    assert discarded(log, 80, 81) == Discarded((80, 81), ())
    (mark,) = (each for each in log.done if each.point == MARKED)
    assert isinstance(mark, ReplaceNode)
    assert [each.ledger_id for each in LogMeta.from_bytes(mark.value, where="").deleting] == [81]


def test_ledgers_that_could_be_listed_are_marked_before_they_are_deleted(log: Scripted) -> None:
    of_job(log, 65, 71, 80)
    marks: list[tuple[Doomed, ...]] = []
    log.before(DELETED, lambda: marks.append(log.meta.deleting))
    assert discarded(log, 65, 71, 80) == Discarded((65, 71, 80), ())
    assert marks == [(Doomed(71, 1_000), Doomed(80, 1_000))]
    assert log.meta.deleting == (), "and forgotten afterwards"
    steps = [each.point for each in log.done if isinstance(each, (ReplaceNode, DeleteLedger))]
    assert [each for each in steps if each] == [MARKED, DELETED, DELETED, DELETED, FORGOTTEN]


@pytest.mark.parametrize("ledger_id", [10, 20, 30, 40, 50, 60, 70])
def test_what_is_listed_in_the_node_or_a_page_is_kept(log: Scripted, ledger_id: int) -> None:
    of_job(log, ledger_id, 5, 71)
    assert discarded(log, 5, ledger_id, 71) == Discarded((5, 71), (ledger_id,))
    assert ledger_id in log.ledgers


@pytest.mark.parametrize(
    "mark",
    [{}, {"log": b"another"}, {"role": b"standby"}, {"role": b""}, {"application": b"x"}],
    ids=str,
)
def test_what_is_not_of_a_job_of_this_log_is_kept(log: Scripted, mark: dict[str, bytes]) -> None:
    of_job(log, 80)
    log.custom[80] = {**JOB, **mark} if mark else {}
    assert discarded(log, 80) == Discarded((), (80,))
    assert (log.deleted, log.meta.deleting) == ([], ())


def test_what_is_gone_already_is_kept_as_it_is(log: Scripted) -> None:
    of_job(log, 81)
    assert discarded(log, 80, 81) == Discarded((81,), (80,))
    assert discarded(log, 81) == Discarded((), (81,))


def test_what_waits_for_its_deletion_already_is_left_to_the_collector(log: Scripted) -> None:
    of_job(log, 65, 80)
    log.change(deleting=(Doomed(65, 0), Doomed(80, 0)))
    assert discarded(log, 65, 80) == Discarded((), (65, 80))
    assert log.meta.deleting == (Doomed(65, 0), Doomed(80, 0))


def test_while_a_page_waits_for_its_deletion_nothing_below_the_floor_is_known(
    log: Scripted,
) -> None:
    """It may name the ledger."""
    of_job(log, 65, 70, 71)
    log.change(deleting_pages=(DoomedPage(9, 0, 0),))
    assert discarded(log, 65, 70, 71) == Discarded((71,), (65, 70))


# --- room


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_what_finds_no_room_waits_for_the_next_call(
    log: Scripted, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Of those that need a mark; the others need no room."""
    monkeypatch.setattr(limits, "META_DELETING_MAX", 2 + room)
    log.change(deleting=(Doomed(1, 0), Doomed(2, 0)))
    of_job(log, 65, 71, 72, 73)
    above = (71, 72, 73)
    assert discarded(log, 65, *above) == Discarded((65, *above[:room]), above[room:])
    assert log.meta.deleting == (Doomed(1, 0), Doomed(2, 0))


def test_many_are_discarded_some_at_a_time(log: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLLECT_AT_ONCE", 2)
    ids = (71, 72, 73, 74, 75)
    of_job(log, *ids)
    assert discarded(log, *ids, 30) == Discarded(ids, (30,))
    marks = [each for each in log.done if each.point == MARKED]
    assert len(marks) == 3


# --- others


@pytest.mark.parametrize("state", [LogState.TERMINATED, LogState.DELETING, LogState.DELETED])
def test_a_log_that_lists_nothing_more_needs_no_mark(log: Scripted, state: LogState) -> None:
    of_job(log, 65, 80)
    log.change(state=state)
    assert discarded(log, 65, 80) == Discarded((65, 80), ())
    assert not any(each.point == MARKED for each in log.done)


def test_of_a_log_that_is_gone_or_another_one_by_now_all_is_deleted(log: Scripted) -> None:
    of_job(log, 65, 70, 80)
    log.lose(READ, NotFound("there is no such log"))
    assert discarded(log, 65) == Discarded((65,), ())
    log.change(uid="another")
    before = log.meta
    assert discarded(log, 70, 80) == Discarded((70, 80), ())
    assert log.meta == before


def lists(log: Scripted, ledger_id: int) -> Callable[[], None]:
    def listing() -> None:
        end = log.meta.segments[-1]
        late = Segment(end.number + 1, ledger_id, end.epoch, None)
        log.change(
            segments=(*log.meta.segments, late),
            ledger_floor=ledger_id,
            next_number=late.number + 1,
        )

    return listing


def test_what_a_late_publication_lists_before_the_mark_is_kept(log: Scripted) -> None:
    """Its compare-and-set came first: the mark is refused, and the list looked at again."""
    of_job(log, 80, 81)
    log.before(MARKED, lists(log, 80))
    assert discarded(log, 80, 81) == Discarded((81,), (80,))
    assert 80 in log.ledgers
    assert log.meta.deleting == ()


def test_a_mark_whose_reply_is_lost_is_there_once(log: Scripted) -> None:
    for applied in (True, False):
        of_job(log, 80)
        log.lose(MARKED, LOST, applied=applied)
        assert discarded(log, 80) == Discarded((80,), ())
        assert log.meta.deleting == ()


def test_a_lost_mark_is_not_taken_for_one_in_a_log_that_was_made_anew(log: Scripted) -> None:
    """There the ledger is nobody's at all."""
    of_job(log, 80)

    def made_anew(effect: Any) -> None:
        removed = dataclasses.replace(log.meta, state=LogState.DELETED)
        anew = removed.reborn("another", LogOptions())
        log.put(dataclasses.replace(anew, deleting=(Doomed(80, 5),)))
        raise LOST

    log.hooks[MARKED].append(made_anew)
    assert discarded(log, 80) == Discarded((80,), ())
    assert log.meta.deleting == (Doomed(80, 5),), "the other log's list is not ours to change"


def test_a_mark_that_another_one_makes_is_left_to_them(log: Scripted) -> None:
    of_job(log, 80, 81)
    log.before(MARKED, lambda: log.change(deleting=(Doomed(80, 5),)))
    assert discarded(log, 80, 81) == Discarded((81,), (80,))
    assert log.meta.deleting == (Doomed(80, 5),)


def test_what_was_deleted_is_forgotten_though_the_log_changes(log: Scripted) -> None:
    of_job(log, 80)
    log.before(FORGOTTEN, lambda: log.change(epoch=log.meta.epoch + 1))
    assert discarded(log, 80) == Discarded((80,), ())
    assert log.meta.deleting == ()


@pytest.mark.parametrize("applied", [True, False])
def test_forgetting_whose_reply_is_lost_is_done_once(log: Scripted, applied: bool) -> None:
    of_job(log, 80)
    log.lose(FORGOTTEN, LOST, applied=applied)
    assert discarded(log, 80) == Discarded((80,), ())
    assert log.meta.deleting == ()


def test_nothing_is_forgotten_in_a_log_that_was_made_anew(log: Scripted) -> None:
    of_job(log, 80)

    def made_anew() -> None:
        removed = dataclasses.replace(log.meta, state=LogState.DELETED)
        anew = removed.reborn("another", LogOptions())
        log.put(dataclasses.replace(anew, deleting=(Doomed(80, 5),)))

    log.before(FORGOTTEN, made_anew)
    assert discarded(log, 80) == Discarded((80,), ())
    assert log.meta.deleting == (Doomed(80, 5),)


def test_a_ledger_that_cannot_be_deleted_now_keeps_its_mark(log: Scripted) -> None:
    """The collector deletes it."""
    of_job(log, 80)
    log.lose(DELETED, Unavailable("away"))
    with pytest.raises(Unavailable):
        discarded(log, 80)
    assert log.meta.deleting == (Doomed(80, 1_000),)


def test_a_page_that_a_truncation_deletes_meanwhile_is_read_in_the_newest_list(
    log: Scripted,
) -> None:
    """Ledger 65 was in no list; what stood in the page is judged by the list as it is now."""
    of_job(log, 5, 30, 35, 65)
    old = log.meta
    path = LAYOUT.page(NAME, 3, 0)

    def truncated() -> None:
        del log.nodes[path]
        log.put(
            dataclasses.replace(old, pages=old.pages[:1], deleting=(Doomed(30, 1), Doomed(40, 1)))
        )

    def late(effect: Any) -> Any:
        seen = log.really(effect)
        truncated()
        return seen

    log.hooks[READ].append(late)
    assert discarded(log, 30, 35, 65) == Discarded((35, 65), (30,))
    assert 30 in log.ledgers, "it waits for its deletion"


def test_a_conflict_while_it_is_marked_is_tried_again(log: Scripted) -> None:
    of_job(log, 80)
    log.lose(MARKED, Conflict("it is another one"))
    assert discarded(log, 80) == Discarded((80,), ())

"""Removing a log once, whoever goes on with it."""

from __future__ import annotations

import pytest

from dlog.effects import DeleteLedger, ReplaceNode
from dlog.errors import Conflict, NotFound, Timeout
from dlog.meta.log_meta import LogState
from tests.scenarios.by_hand import LAYOUT, NAME, PATH, ByHand


def test_all_ledgers_pages_and_holds_go_and_what_never_goes_back_stays() -> None:
    log = ByHand(3)
    log.held(5)
    before = log.meta
    log.removing().end()
    assert log.ledgers == set()
    assert log.hold_nodes() == log.pages() == []
    after = log.meta
    assert (after.state, after.epoch) == (LogState.DELETED, before.epoch + 1)
    assert (after.next_number, after.ledger_floor) == (before.next_number, before.ledger_floor)
    assert (after.segments, after.deleting, after.deleting_pages) == ((), (), ())


def test_a_removal_that_another_one_goes_on_with_takes_no_further_epoch() -> None:
    log = ByHand(3)
    log.removing().until(lambda effect: isinstance(effect, DeleteLedger))  # and dies
    marked = log.meta
    assert marked.state is LogState.DELETING
    going_on = log.removing().until(lambda effect: isinstance(effect, DeleteLedger))
    assert log.meta == marked
    going_on.end()
    assert (log.meta.state, log.meta.epoch) == (LogState.DELETED, marked.epoch)
    assert log.ledgers == set()


def test_ledgers_that_waited_for_their_deletion_go_too() -> None:
    log = ByHand(4)
    log.truncated(25)
    assert log.ledgers == {10, 20, 30, 40}
    log.removing().end()
    assert log.ledgers == set()


def test_a_log_that_changes_while_it_is_marked_is_removed_as_it_is_then() -> None:
    log = ByHand(2)
    removing = log.removing().until("remove.marked")
    log.rotate()
    removing.end()
    assert log.ledgers == set()
    assert log.meta.state is LogState.DELETED


@pytest.mark.parametrize("step", ["remove.marked", "remove.forgotten"])
def test_a_step_whose_reply_is_lost_is_done_once(step: str) -> None:
    log = ByHand(2)
    epoch = log.meta.epoch
    removing = log.removing().until(step)
    removing.lose(Timeout("no reply"))
    removing.end()
    assert (log.meta.state, log.meta.epoch) == (LogState.DELETED, epoch + 1)
    assert log.ledgers == set()


def test_a_remover_that_slept_buries_no_other_log_that_is_being_removed() -> None:
    """Its list says which ledgers are still to be deleted."""
    log = ByHand(2)
    sleeper = log.removing().until("remove.forgotten")
    log.removing().end()
    log.remade()
    log.rotate()
    log.removing().until(lambda effect: isinstance(effect, DeleteLedger))
    marked = log.meta
    sleeper.end()
    assert log.meta == marked
    assert (marked.uid, marked.state) == ("another", LogState.DELETING)
    log.removing().end()
    assert log.ledgers == set()


def test_a_hold_that_changes_while_it_is_dropped_costs_nothing() -> None:
    """It counts for nothing: its log is gone."""
    log = ByHand(2)
    for name in ("a", "b"):
        log.held(5, name)
    path = LAYOUT.hold(NAME, "a")
    removing = log.removing().until(lambda effect: getattr(effect, "path", "") == path)
    removing.step()
    removing._go_on(None, Conflict("it is another one"))
    removing.end()
    assert log.hold_nodes() == ["a"]
    assert log.meta.state is LogState.DELETED


def test_holds_of_another_log_stay_and_what_cannot_be_read_goes() -> None:
    log = ByHand(2)
    log.held(5, "ours")
    log.store(LAYOUT.hold(NAME, "garbage"), b"nonsense")
    others = log.nodes[LAYOUT.hold(NAME, "ours")].value.replace(b'"uid"', b'"other"')
    log.store(LAYOUT.hold(NAME, "others"), others)
    log.removing().end()
    assert log.hold_nodes() == ["others"]


def test_a_log_that_is_not_there_is_told() -> None:
    log = ByHand(1)
    log.removing().end()
    before = log.nodes[PATH]
    with pytest.raises(NotFound, match="was removed"):
        log.removing().end()
    assert log.nodes[PATH] == before
    del log.nodes[PATH]
    with pytest.raises(NotFound, match="there is no log"):
        log.removing().end()


def test_the_mark_is_one_compare_and_set() -> None:
    log = ByHand(2)
    removing = log.removing().until("remove.marked")
    assert isinstance(removing.effect, ReplaceNode)
    before = log.meta
    removing.step()
    assert [before.state, log.meta.state] == [LogState.OPEN, LogState.DELETING]
    assert {each.ledger_id for each in log.meta.deleting} == {10, 20}

"""Every state of every core met every input, or the pair cannot be, and `impossible` says why."""

from __future__ import annotations

import pytest

from dlog.testing.sim.coverage import TABLES, Pair, missing, report, watching
from dlog.testing.sim.impossible import RULES, why_impossible
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.world import Violation
from dlog.testing.sim.worlds import WORLDS
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import LedgerState
from dlog.writer.ready import ReadyState
from tests.sim import test_core_pairs, test_other_core_pairs
from tests.sim.test_core_pairs import possible
from tests.unit.ledger.bookkeeper.appender_tools import Bench
from tests.unit.reader import test_horizon
from tests.unit.standby import test_core as test_standby_core

# Histories that meet together what those of HISTORIES meet.
MEETING = {
    "ledger": "0 1 2 3 4 5 6 9 10 15 18 20 21 22 29 36 51 52 80 115 127 129 166 191 1015 1128 2982 "
    "3758",
    "ledger-bytes": "0 1 4 55 87 115 193",
    "log-abstract": "0 1 3 8 11 15 17 31 32 37 50 56 86",
}
HISTORIES = {"ledger": 500, "ledger-bytes": 300, "log-abstract": 300}
HISTORIES_MAX = 8_000  # of ledgers: some pairs are met once in a thousand


def _tell_all() -> None:
    for pair in possible(TABLES[0]):
        test_core_pairs.test_a_place_hears_anything_at_any_time(pair.state, pair.said)
    for pair in possible(TABLES[1]):
        test_core_pairs.test_an_appender_hears_anything_at_any_time(pair.state, pair.said)
    others = test_other_core_pairs
    for state in LedgerState:
        others.test_a_deleted_ledger_stays_deleted(state)
    others.test_a_lost_connection_means_nothing_while_a_ledger_is_fenced()
    for late in (Answer.NO_ENTRY, Answer.IO_FAILED):
        others.test_a_late_fence_changes_no_size(late)
    others.test_whatever_comes_to_a_read_that_is_over_only_teaches()
    others.test_a_connection_ends_once()
    others.test_a_connection_that_is_down_takes_adds_and_sends_nothing()
    others.test_a_dead_writer_acknowledges_nothing_more()
    others.test_a_writer_that_closed_hears_nothing_new()
    others.test_what_a_close_kept_is_acknowledged_whoever_died_meanwhile()
    for ready in ReadyState:
        test_standby_core.test_only_a_ready_ledger_is_taken_and_only_for_its_log(ready)
        test_standby_core.test_what_was_not_offered_is_put_back(ready)
    test_standby_core.test_what_failed_is_replaced_also_below_the_floor()
    test_standby_core.test_what_was_offered_is_let_go_and_never_deleted()
    test_standby_core.test_it_looks_and_hears_of_failures_while_it_takes_over()
    test_horizon.test_what_a_wait_told_is_looked_at_wherever_it_comes()


@pytest.mark.tier("full", seconds=10)
@pytest.mark.timeout(180)
def test_every_pair_was_met_or_cannot_be() -> None:
    with watching() as seen:
        _tell_all()
        for world, seeds in MEETING.items():
            for seed in map(int, seeds.split()):
                WORLDS[world](of_seed(seed))
        for world, count in HISTORIES.items():
            if missing(seen):
                for seed in range(count):
                    WORLDS[world](of_seed(seed))
        for seed in range(HISTORIES["ledger"], HISTORIES_MAX):
            if seed % 100 == 0 and not missing(seen):  # at once, most often
                break
            WORLDS["ledger"](of_seed(seed))
    print("\n".join(report(seen)))
    assert missing(seen) == []


def test_each_reason_is_about_something() -> None:
    pairs = [pair for table in TABLES for pair in table.pairs()]
    reasons = {why_impossible(*pair) for pair in pairs} - {None}
    assert reasons == {rule[3] for rule in RULES}


def test_a_pair_that_cannot_be_is_a_violation() -> None:
    bench = Bench()
    with watching() as seen, pytest.raises(Violation, match="a place is connected once"):
        bench.core.on_no_link(bench.slot("a"))
    assert seen[Pair("appender's place", "open, live", "no link")] == 1

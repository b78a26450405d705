"""What the core of the appender decides: what counts, what is sent to whom, who is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import AuthError, Broken, Fenced, Handle, NotFound, Outcome, Unavailable
from dlog.ledger.bookkeeper.core.append_effects import Change, Connect, LetGo, Look, WriteLac
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.slots import State
from dlog.limits import ADD_RUN_BYTES_MAX, ADD_RUN_ENTRIES_MAX
from dlog.wire.bookie_codes import IMPOSSIBLE, REACTIONS, Answer, Call, Reaction
from dlog.wire.ledger_metadata import LedgerState
from tests.unit.ledger.bookkeeper.appender_tools import FIXED_BYTES, Bench, Even, metadata_on

ALL = ("a", "b", "c")


# --- Acks


def test_an_entry_is_confirmed_by_enough_bookies_and_in_order() -> None:
    """DL-24: an entry counts when the ack quorum has it and every earlier entry counts."""
    bench = Bench()
    bench.put(5)
    assert bench.pump() == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4], "c": [0, 1, 2, 3, 4]}
    bench.ack("a", 0, 1, 2)
    assert bench.confirmed == -1
    bench.ack("b", 0)
    assert bench.confirmed == 0, "entry 0 is an entry"
    bench.ack("c", 0, 1, 2, 3, 4)
    assert bench.confirmed == 2
    bench.ack("b", 1, 2, 3, 4)
    assert bench.confirmed == 4


def test_two_bookies_that_hold_different_entries_confirm_nothing() -> None:
    """Acks are per entry and bookie, not a number."""
    bench = Bench()
    bench.put(4)
    bench.pump()
    bench.ack("a", 1, 2, 3)
    bench.ack("b", 0, 2, 3)
    assert bench.confirmed == -1
    bench.ack("a", 0)
    assert bench.confirmed == 0
    bench.ack("b", 1)
    assert bench.confirmed == 3


@pytest.mark.parametrize(
    "runs",
    [
        [[0, 1, 2, 3, 4, 5]],
        [[5, 4, 3, 2, 1, 0]],
        [[0, 2, 1, 3, 5, 4]],
        [[1], [0], [5, 2], [4, 3]],
        [[0, 1], [0, 1], [1, 2, 2, 3], [5, 5, 4, 4]],
        [[0, 0, 2, 3, 4, 5], [1]],
    ],
)
def test_acks_come_in_any_order_and_twice_and_settle_once(runs: list[list[int]]) -> None:
    bench = Bench()
    bench.put(6, bytes=3)
    bench.pump()
    settled = [bench.ack("a", *run) for run in runs]
    assert sum(entries for entries, _ in settled) == 6
    assert sum(size for _, size in settled) == 6 * (3 + FIXED_BYTES)
    slot = bench.slot("a")
    assert (slot.acked_to, slot.in_flight, slot.ahead) == (5, 0, set())


def test_a_run_that_looks_whole_and_is_not() -> None:
    bench = Bench()
    bench.put(4)
    bench.pump()
    bench.ack("a", 0, 1, 1, 3)
    assert (bench.slot("a").acked_to, bench.slot("a").ahead) == (1, {3})


def test_an_answer_to_what_was_never_sent_is_not_an_ack() -> None:
    bench = Bench(window_entries=2)
    bench.put(4)
    bench.pump()
    for bookie in ALL:
        assert bench.ack(bookie, 1, 2, 3)[0] == 1
        assert bench.say(bookie, Answer.BUSY, 2, 7, -1) == (0, 0), "2 is the next to be sent"
    assert bench.confirmed == -1
    assert bench.slot("a").refused == set()
    assert bench.ack("a", 0, 1, 2, 3)[0] == 1
    assert bench.slot("a").acked_to == 1
    fresh = Bench(window_entries=2)
    fresh.put(4)
    fresh.pump()
    assert fresh.ack("a", 0, 1, 2, 3)[0] == 2
    assert fresh.slot("a").acked_to == 1


def test_the_lac_of_an_entry_is_what_is_confirmed_without_a_gap() -> None:
    bench = Bench()
    bench.put(3)
    bench.pump()
    for bookie in ALL:
        bench.ack(bookie, 0, 2)
    bench.put()
    for bookie in ALL:
        bench.ack(bookie, 1)
    bench.put()
    assert bench.heads == [(0, -1), (1, -1), (2, -1), (3, 0), (4, 2)]


def test_answers_of_a_former_link_are_not_heard() -> None:
    bench = Bench(spares=())
    bench.put(2)
    bench.pump()
    former = bench.slot("a").link
    bench.down("a")
    bench.ticks(100)
    bench.link(bench.effect(Connect).slot, is_proven=True)
    bench.ack("b", 0, 1)
    bench.pump()
    assert bench.core.on_adds(former, Answer.OK, [0, 1]) == (0, 0)
    bench.core.on_down(former, Answer.FENCED)
    assert (bench.confirmed, bench.core.failure) == (-1, None)
    bench.ack("a", 0, 1)
    assert bench.confirmed == 1


# --- Sending


def test_a_bookie_that_stops_reading_is_sent_the_rest_later() -> None:
    bench = Bench()
    bench.put(3)
    slot = bench.slot("a")
    assert list(bench.core.take_run(slot) or ()) == [0, 1, 2]
    bench.put(2)
    assert bench.pump() == {"a": [3, 4], "b": [0, 1, 2, 3, 4], "c": [0, 1, 2, 3, 4]}
    assert bench.pump() == {}
    assert not bench.core.has_to_send()


def test_the_window_begins_behind_the_slowest() -> None:
    bench = Bench(window_entries=3)
    bench.put(5)
    assert bench.pump() == {key: [0, 1, 2] for key in ALL}
    bench.ack_to("a", 2)
    bench.ack_to("b", 2)
    assert bench.pump() == {}
    bench.ack("c", 0)
    assert bench.pump() == {key: [3] for key in ALL}


def test_the_window_has_a_size_and_takes_one_entry_in_any_case() -> None:
    bench = Bench(window_bytes=10)
    for size in (4, 6, 1, 100, 1):
        bench.put(bytes=size)
    assert bench.pump() == {key: [0, 1] for key in ALL}
    for bookie in ALL:
        bench.ack_to(bookie, 1)
    assert bench.pump() == {key: [2] for key in ALL}
    for bookie in ALL:
        bench.ack_to(bookie, 2)
    assert bench.pump() == {key: [3] for key in ALL}


def test_runs_are_cut_by_count_and_by_size() -> None:
    bench = Bench()
    bench.put(ADD_RUN_ENTRIES_MAX + 1)
    slot = bench.slot("a")
    assert bench.core.take_run(slot) == range(ADD_RUN_ENTRIES_MAX)
    assert bench.core.take_run(slot) == range(ADD_RUN_ENTRIES_MAX, ADD_RUN_ENTRIES_MAX + 1)
    large = Bench()
    for size in (ADD_RUN_BYTES_MAX - 1, 1, 1, 3 * ADD_RUN_BYTES_MAX, 1):
        large.put(bytes=size)
    slot = large.slot("a")
    runs = []
    while (run := large.core.take_run(slot)) is not None:
        runs.append(list(run))
    assert runs == [[0, 1], [2], [3], [4]]


def test_what_all_have_is_let_go_and_nothing_else() -> None:
    bench = Bench()
    bench.put(200)
    bench.pump()
    for last, bookie in ((150, "a"), (120, "b"), (99, "c")):
        bench.ack_to(bookie, last)
    outbox = bench.core.outbox
    assert (bench.confirmed, outbox.first) == (120, 100)
    assert outbox.joined(range(100, 102)) == b"       100x       101x"
    assert outbox.joined([199]) == b"       199x"
    assert outbox.ledger_bytes_through(99) == 100
    assert outbox.ledger_bytes_through(199) == outbox.ledger_bytes == 200
    assert outbox.frame_bytes(150, 160) == 10 * (1 + FIXED_BYTES)


def test_a_bookie_reached_later_than_the_others_gets_everything() -> None:
    bench = Bench(linked=False)
    late, *others = (effect.slot for effect in bench.effects(Connect))
    for slot in others:
        bench.link(slot, is_proven=True)
    bench.put(3)
    bench.pump()
    bench.ack_to("b", 2)
    bench.ack_to("c", 2)
    assert bench.confirmed == 2
    bench.link(late, is_proven=True)
    assert bench.pump() == {"a": [0, 1, 2]}


# --- 106


def test_refused_entries_are_sent_again_first_and_in_order() -> None:
    bench = Bench()
    bench.put(10)
    bench.pump()
    assert bench.say("a", Answer.BUSY, 3, 2, 7) == (3, 3 * (1 + FIXED_BYTES))
    assert bench.say("a", Answer.BUSY, 7) == (0, 0), "told twice, settled once"
    bench.ack("a", 0, 1, 4, 5, 6, 8, 9)
    bench.put(2)
    assert bench.pump() == {"b": [10, 11], "c": [10, 11]}, "it is left alone for a while"
    bench.ticks(50)
    assert bench.pump() == {"a": [2, 3, 7, 10, 11]}
    assert bench.ack("a", 2, 3, 7, 10, 11)[0] == 5
    assert bench.slot("a").acked_to == 11


def test_an_entry_refused_and_taken_is_there() -> None:
    bench = Bench()
    bench.put(2)
    bench.pump()
    assert bench.say("a", Answer.BUSY, 1)[0] == 1
    assert bench.ack("a", 0, 1)[0] == 1
    assert bench.slot("a").acked_to == 1
    bench.ticks(100)
    assert bench.pump() == {}
    assert bench.say("a", Answer.BUSY, 1) == (0, 0), "too late: it was taken"


def test_a_refusal_that_comes_after_the_ack_is_none() -> None:
    bench = Bench()
    bench.put(3)
    bench.pump()
    bench.ack("a", 2)
    assert bench.say("a", Answer.BUSY, 2) == (0, 0)
    assert bench.slot("a").refused == set()


def test_a_refused_entry_of_any_size_is_sent_again() -> None:
    bench = Bench()
    for size in (ADD_RUN_BYTES_MAX, 1, ADD_RUN_BYTES_MAX - 2 * FIXED_BYTES - 1, 1):
        bench.put(bytes=size)
    bench.pump()
    bench.say("a", Answer.BUSY, 0, 1, 2, 3)
    bench.ticks(100)
    slot = bench.slot("a")
    runs = [bench.core.take_run(slot) for _ in range(3)]
    assert runs == [[0], [1, 2], [3]]


def test_pauses_grow_until_something_is_taken_and_less_is_asked_at_a_time() -> None:
    bench = Bench()
    bench.put(100)
    bench.pump()
    slot = bench.slot("a")
    pauses, asked = [], []
    for _ in range(8):
        bench.say("a", Answer.BUSY, *range(slot.acked_to + 1, 100))
        pauses.append(slot.paused_until_ms - bench.core.standing.now_ms)
        bench.ticks(pauses[-1] + 25)
        asked.append(len(bench.pump()["a"]))
    assert pauses == [25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1000.0, 1000.0]
    assert asked == [8] * 8
    while slot.acked_to < 99:
        bench.ack("a", *range(slot.acked_to + 1, slot.acked_to + 1 + slot.in_flight))
        bench.pump()
    assert slot.in_flight_max > 8
    bench.put()
    bench.pump()
    bench.say("a", Answer.BUSY, 100)
    assert slot.paused_until_ms - bench.core.standing.now_ms == 25.0


def test_a_bookie_that_goes_on_refusing_is_replaced() -> None:
    bench = Bench(add_timeout_ms=1_000)
    bench.put()
    bench.pump()
    bench.ack("b", 0)
    bench.ack("c", 0)
    for _ in range(10):
        bench.say("a", Answer.BUSY, 0)
        bench.ticks(100)
        bench.pump()
    assert bench.effect(Connect).slot.bookie_id == "d"
    assert bench.confirmed == 0


def test_a_bookie_that_is_left_alone_is_not_silent() -> None:
    bench = Bench(window_entries=4)
    bench.put(8)
    bench.pump()
    bench.ack_to("a", 3)
    bench.ack_to("b", 3)
    for _ in range(4):
        bench.say("c", Answer.BUSY, 0, 1, 2, 3)
        while bench.core.standing.now_ms < bench.slot("c").paused_until_ms:
            bench.ticks(25)
        bench.pump()
    assert bench.core.standing.now_ms >= 375.0
    bench.say("c", Answer.BUSY, 0, 1, 2, 3)
    bench.ticks(400)
    assert bench.effects(Connect) == []


# --- Answers


@pytest.mark.parametrize("answer", [each for each in Answer if (Call.ADD, each) not in IMPOSSIBLE])
def test_each_answer_has_its_reaction(answer: Answer) -> None:
    bench = Bench()
    bench.put()
    bench.pump()
    bench.say("a", answer, 0)
    expected = REACTIONS[Call.ADD, answer]
    is_replaced = any(effect.slot.bookie_id == "d" for effect in bench.effects(Connect))
    assert is_replaced == (expected is Reaction.REPLACE_BOOKIE)
    assert (bench.core.failure is not None) == (expected is Reaction.STOP)
    assert bool(bench.core.slots[0].refused) == (expected is Reaction.RESEND_LATER)
    assert (bench.core.slots[0].acked_to == 0) == (expected is Reaction.TAKE)
    kinds = {Answer.FENCED: Fenced, Answer.UNAUTHORIZED: AuthError, Answer.ILLEGAL: Broken}
    if expected is Reaction.STOP:
        assert isinstance(bench.core.failure, kinds.get(answer, Unavailable))


def test_a_bookie_that_forgot_the_ledger_is_replaced_and_ends_nobody() -> None:
    bench = Bench()
    bench.put(2)
    bench.pump()
    for bookie in "abc":
        bench.ack(bookie, 0)
    assert bench.confirmed == 0
    bench.say("a", Answer.UNAUTHORIZED, 1)
    assert bench.core.failure is None
    assert [effect.slot.bookie_id for effect in bench.effects(Connect)] == ["d"]


def test_a_fence_ends_the_appender() -> None:
    """DL-24: one bookie that says fenced is enough, whatever the others confirm."""
    bench = Bench()
    bench.put(2)
    bench.pump()
    links = {slot.link for slot in bench.core.slots}
    bench.ack("a", 0, 1)
    bench.say("b", Answer.FENCED, 0)
    bench.core.on_adds(bench.core.slots[2].link, Answer.OK, [0, 1])
    assert isinstance(bench.core.failure, Fenced)
    assert bench.core.failure.ledger_id == 7
    assert bench.confirmed == -1
    effects = bench.effects()
    assert {type(effect) for effect in effects} == {LetGo}
    assert {effect.link for effect in effects} == links
    bench.put()
    assert bench.pump() == {}
    bench.core.fail(Broken("too late"))
    assert isinstance(bench.core.failure, Fenced)


def test_a_failure_takes_back_what_was_asked_for() -> None:
    bench = Bench()
    bench.down("a")
    bench.say("b", Answer.FENCED, 0)
    assert {type(effect) for effect in bench.effects()} == {LetGo}


def test_after_a_stop_nothing_is_confirmed_or_sent() -> None:
    bench = Bench()
    bench.put(2)
    bench.pump()
    bench.ack("a", 0)
    links = [slot.link for slot in bench.core.slots]
    bench.core.stop()
    for link in links:
        bench.core.on_adds(link, Answer.OK, [0, 1])
    bench.put()
    assert (bench.confirmed, bench.pump()) == (-1, {})


def test_a_stopped_appender_delivers_what_is_confirmed_and_no_more() -> None:
    bench = Bench()
    bench.put(10)
    for bookie in ("a", "b"):
        slot = bench.slot(bookie)
        assert bench.core.take_run(slot) == range(10)
        bench.ack(bookie, *range(8))
    assert bench.confirmed == 7
    bench.core.stop()
    assert not bench.core.is_delivered
    assert bench.pump() == {"c": [0, 1, 2, 3, 4, 5, 6, 7]}
    bench.say("c", Answer.BUSY, 7)
    assert bench.ack("c", *range(7))[0] == 7
    bench.ticks(100)
    assert bench.pump() == {"c": [7]}
    bench.ack("a", 8, 9)
    bench.ack("b", 8, 9)
    assert (bench.confirmed, bench.core.last_published) == (7, -1)
    assert not bench.core.is_delivered
    bench.ack("c", 7)
    assert bench.core.is_delivered


@pytest.mark.parametrize("answer", [Answer.FENCED, Answer.READ_ONLY, Answer.DISCONNECTED])
def test_a_stopped_appender_waits_for_nobody_who_is_lost(answer: Answer) -> None:
    bench = Bench()
    bench.put()
    bench.pump()
    bench.ack("a", 0)
    bench.ack("b", 0)
    bench.core.stop()
    bench.say("c", answer, 0)
    assert bench.core.is_delivered
    assert bench.core.failure is None
    assert [type(effect) for effect in bench.effects()] == [LetGo]


# --- Laggards


def busy(bench: Bench, *silent: str) -> None:
    """More than the window takes; the others ack all of it."""
    bench.put(6)
    bench.pump()
    for bookie in ALL:
        if bookie not in silent:
            bench.ack_to(bookie, 3)


def test_a_silent_bookie_that_alone_holds_back_the_window_is_replaced() -> None:
    bench = Bench(window_entries=4)
    busy(bench, "c")
    bench.ticks(475)
    assert bench.effects(Connect) == []
    bench.ticks(25)
    assert bench.slot("d").place == 2
    assert bench.pump() == {"a": [4, 5], "b": [4, 5]}, "it is waited for no longer"


def test_a_silent_bookie_that_holds_back_nothing_has_more_time() -> None:
    bench = Bench()
    busy(bench, "c")
    bench.ack_to("a", 5)
    bench.ack_to("b", 5)
    bench.ticks(4_975)
    assert bench.effects(Connect) == []
    bench.ticks(25)
    assert bench.slot("d").place == 2


def test_two_silent_bookies_are_no_lone_laggards() -> None:
    bench = Bench(window_entries=4, spares=("d", "e"))
    busy(bench, "b", "c")
    bench.ticks(4_975)
    assert bench.effects(Connect) == []
    bench.ticks(25)
    assert {effect.slot.bookie_id for effect in bench.effects(Connect)} == {"d", "e"}


def test_a_stall_of_ours_is_not_the_silence_of_a_bookie() -> None:
    bench = Bench(window_entries=4)
    busy(bench, "c")
    bench.ticks(25)
    bench.core.on_tick(60_000.0)
    assert bench.effects(Connect) == []
    assert bench.slot("c").silent_ms <= 100


def test_a_bookie_that_answers_is_no_laggard() -> None:
    bench = Bench(window_entries=4)
    busy(bench, "c")
    for entry_id in range(4):
        bench.ticks(475)
        bench.ack("c", entry_id)
    assert bench.effects(Connect) == []


def test_an_answer_that_never_comes_is_not_waited_for() -> None:
    """stuck_adds: all others do come, so the bookie is not silent."""
    bench = Bench()
    bench.put(200)
    bench.pump()
    bench.ack_to("a", 199)
    bench.ack_to("b", 199)
    for entry_id in range(1, 180):
        bench.ack("c", entry_id)
        bench.ticks(25)
    bench.ticks(600)
    assert bench.slot("d").place == 2


def test_a_laggard_that_is_needed_is_kept_while_nobody_can_replace_it() -> None:
    bench = Bench(ack_quorum=3, spares=())
    busy(bench, "c")
    bench.ack_to("a", 5)
    bench.ack_to("b", 5)
    bench.ticks(4_975)
    assert bench.slot("c").state is State.LIVE
    bench.ack("c", 0, 1, 2)
    assert bench.confirmed == 2


def test_a_laggard_that_is_not_needed_is_left_out() -> None:
    bench = Bench(window_entries=4, spares=())
    busy(bench, "c")
    bench.ticks(500)
    assert bench.core.degraded == ["c"]
    assert bench.pump() == {"a": [4, 5], "b": [4, 5]}


def test_whoever_holds_back_the_next_confirmation_is_replaced() -> None:
    """One place is vacant, so both others are needed."""
    bench = Bench(spares=())
    bench.down("a")
    bench.put()
    bench.pump()
    bench.ack("b", 0)
    bench.ticks(475)
    bench.spares.append("e")
    bench.effects()
    bench.ticks(50)
    assert "e" in [effect.slot.bookie_id for effect in bench.effects(Connect)]


# --- The birth


def test_a_birth_is_acked_by_all() -> None:
    """DL flaw 8: a new ledger is listed when every bookie of its ensemble has its first entry."""
    bench = Bench()
    bench.core.begin_birth()
    bench.put()
    bench.pump()
    bench.ack("a", 0)
    bench.ack("b", 0)
    assert (bench.confirmed, bench.core.is_born) == (-1, False)
    bench.ack("c", 0)
    assert (bench.confirmed, bench.core.is_born) == (0, True)
    bench.put()
    bench.pump()
    bench.ack("a", 1)
    bench.ack("b", 1)
    assert bench.confirmed == 1, "from here on by enough"


def test_whoever_joins_before_the_birth_is_done_gets_it() -> None:
    bench = Bench()
    bench.core.begin_birth()
    bench.put()
    bench.pump()
    bench.ack("a", 0)
    bench.ack("b", 0)
    bench.ticks(500)
    assert bench.replace("c") == "d"
    assert bench.metadata.fragments[0].ensemble == ("a", "b", "d"), "in place: it held nothing yet"
    assert not bench.core.is_born
    assert bench.pump() == {"d": [0]}
    bench.ack("d", 0)
    assert bench.core.is_born


def test_a_birth_without_a_bookie_fails_and_names_it() -> None:
    bench = Bench(spares=())
    bench.core.begin_birth()
    bench.put()
    bench.pump()
    bench.ack("a", 0)
    bench.ack("b", 0)
    bench.down("c")
    for _ in range(60):
        bench.ticks(100)
        for effect in bench.effects(Connect):
            bench.core.on_no_link(effect.slot)
    failure = bench.core.failure
    assert isinstance(failure, Unavailable)
    assert (failure.missing, failure.needed) == (["c"], 1)
    assert failure.outcome is Outcome.UNKNOWN
    assert bench.confirmed == -1


# --- Lost bookies


def test_acks_of_a_lost_bookie_are_not_its_successors() -> None:
    """completion_revoked."""
    bench = Bench()
    bench.put(4)
    bench.pump()
    bench.ack_to("a", 3)
    bench.ack_to("b", 0)
    assert bench.confirmed == 0
    bench.down("a")
    bench.ack_to("b", 3)
    assert bench.confirmed == 0, "b alone holds the rest, for all we know"
    assert bench.replace("a") == "d"
    assert bench.metadata.fragments[-1].first_entry_id == 1
    assert bench.confirmed == 0
    assert bench.pump() == {"d": [1, 2, 3]}
    bench.ack("d", 1, 2)
    assert bench.confirmed == 2


def test_nothing_counts_for_a_bookie_that_is_not_named_yet() -> None:
    """ack_before_metadata: neither old nor new; those that stay confirm."""
    bench = Bench()
    bench.put(2)
    bench.pump()
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    assert bench.pump() == {}, "it is not sent anything before it is named"
    bench.core.on_adds(bench.slot("d").link, Answer.OK, [0, 1])
    bench.ack("b", 0, 1)
    assert bench.confirmed == -1
    bench.ack("c", 0, 1)
    assert bench.confirmed == 1, "b and c are named before and after"
    bench.changed(change)
    assert bench.metadata.fragments == metadata_on("d", "b", "c").fragments
    assert bench.pump() == {"d": [0, 1]}, "kept, although confirmed: its fragment begins there"


def test_a_second_loss_waits_for_the_first_change() -> None:
    """double_ensemble_change."""
    bench = Bench(spares=("d", "e"))
    bench.put(4)
    bench.pump()
    for bookie in ALL:
        bench.ack_to(bookie, 0)
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    first = bench.effect(Change)
    bench.down("b")
    bench.link(bench.effect(Connect).slot)
    assert bench.effects(Change) == []
    bench.changed(first)
    second = bench.effect(Change)
    assert (second.first_entry, dict(second.places)) == (1, {1: "e"})
    assert bench.pump() == {"d": [1, 2, 3]}
    bench.changed(second)
    assert bench.metadata.fragments[-1].ensemble == ("d", "e", "c")
    assert bench.pump() == {"e": [1, 2, 3]}
    bench.ack_to("d", 3)
    bench.ack_to("e", 3)
    assert bench.confirmed == 3


def test_two_that_are_ready_are_named_by_one_change() -> None:
    bench = Bench(spares=("d", "e"))
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    first = bench.effect(Change)
    bench.down("b")
    bench.down("c")
    bench.spares.append("f")
    for effect in bench.effects(Connect):
        bench.link(effect.slot)
    bench.changed(first)
    ready = bench.effect(Change)
    assert set(ready.places) <= {1, 2}
    assert len(ready.places) >= 1


def test_the_successor_of_a_successor_gets_it_all() -> None:
    bench = Bench(spares=("d", "e"))
    bench.put(3)
    bench.pump()
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    bench.down("d")
    assert bench.effects(Connect) == [], "it may be named by now: that must be known first"
    bench.ack_to("b", 2)
    bench.ack_to("c", 2)
    bench.changed(change)
    slot = bench.effect(Connect).slot
    assert slot.bookie_id == "e", "d is named, and gone"
    bench.link(slot)
    bench.changed(bench.effect(Change))
    assert bench.metadata.fragments == (
        *metadata_on("d", "b", "c").fragments,
        bench.metadata.fragments[-1],
    )
    assert bench.metadata.fragments[-1].first_entry_id == 3


def test_an_unknown_change_is_asked_again_as_it_was() -> None:
    bench = Bench()
    bench.put(3)
    bench.pump()
    bench.ack_to("b", 0)
    bench.ack_to("c", 0)
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    assert change.first_entry == 1
    bench.core.on_not_changed(Unavailable("no answer", outcome=Outcome.UNKNOWN))
    bench.ack_to("b", 2)
    bench.ack_to("c", 2)
    assert bench.confirmed == 2
    bench.core.on_tick(25.0)
    bench.ticks(100)
    assert bench.effect(Change) == change
    bench.core.on_not_changed(Unavailable("not now"))
    bench.ticks(200)
    assert bench.effect(Change) == change, "once unknown, it stays unknown until it is known"
    bench.changed(change)
    assert bench.pump() == {"d": [1, 2]}


def test_what_was_unknown_once_says_nothing_of_the_next_change() -> None:
    bench = Bench(spares=("d", "e"))
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    bench.core.on_not_changed(Unavailable("no answer", outcome=Outcome.UNKNOWN))
    bench.changed(change)
    bench.down("b")
    bench.link(bench.effect(Connect).slot)
    bench.ticks(100)
    bench.effect(Change)
    bench.core.on_not_changed(Unavailable("not now"))
    assert bench.core.places.change is None


def test_a_candidate_lost_while_its_change_failed_makes_room_for_another() -> None:
    bench = Bench(spares=("d", "e"))
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    bench.effect(Change)
    bench.down("d")
    bench.core.on_not_changed(Unavailable("not now"))
    assert bench.effect(Connect).slot.bookie_id == "e"


def test_a_candidate_that_somebody_else_named_elsewhere() -> None:
    bench = Bench(spares=("d", "e", "f"))
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    bench.down("b")
    other = bench.effect(Connect).slot
    assert other.bookie_id == "e"
    bench.metadata = metadata_on("a", "b", "e")
    bench.changed(change)
    taken = {effect.slot.place: effect.slot.bookie_id for effect in bench.effects(Connect)}
    assert taken == {1: "f", 2: "e"}


def test_an_answer_to_a_candidate_is_not_about_its_adds() -> None:
    """It may stand behind a link on which it had adds in flight before."""
    bench = Bench()
    confirmed_entry(bench)
    confirmed_entry(bench)
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    bench.say("d", Answer.FENCED, 0)
    assert bench.core.failure is None


def test_the_wait_for_a_lost_bookie_grows_until_it_takes_entries() -> None:
    bench = Bench(spares=())

    def waited_ms() -> float:
        began_ms = bench.core.standing.now_ms
        while not (found := bench.effects(Connect)):
            bench.ticks(25)
        bench.link(found[0].slot, is_proven=True)
        return bench.core.standing.now_ms - began_ms

    waits = []
    for _ in range(4):
        bench.down("a")
        waits.append(waited_ms())
    assert waits == sorted(waits)
    assert waits[-1] >= 4 * waits[0]
    bench.put()
    bench.pump()
    bench.ack("a", 0)
    bench.down("a")
    assert waited_ms() == waits[0]


def test_a_change_that_certainly_was_not_stored_begins_anew() -> None:
    bench = Bench()
    bench.put(3)
    bench.pump()
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    assert bench.effect(Change).first_entry == 0
    bench.core.on_not_changed(Unavailable("not now"))
    assert isinstance(bench.core.places.meta_trouble, Unavailable)
    bench.ack_to("b", 1)
    bench.ack_to("c", 1)
    assert bench.core.outbox.first == 2, "nobody needs these any more"
    bench.ticks(100)
    change = bench.effect(Change)
    assert change.first_entry == 2
    bench.changed(change)
    assert bench.pump() == {"d": [2]}
    assert bench.core.places.meta_trouble is None


def held_by_a_change() -> tuple[Bench, Change]:
    """A window of four, all confirmed and kept for a bookie that is not named yet; more waits."""
    bench = Bench(window_entries=4, laggard_ms=500.0, spares=("d", "e"))
    bench.put(2)
    bench.pump()
    for bookie in ALL:
        bench.ack_to(bookie, 1)
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    change = bench.effect(Change)
    bench.put(20)
    bench.pump()
    bench.ack_to("b", 5)
    bench.ack_to("c", 5)
    assert (bench.confirmed, bench.core.outbox.first, bench.pump()) == (5, 2, {})
    return bench, change


def test_a_metadata_store_that_is_away_does_not_stop_those_that_stay() -> None:
    bench, change = held_by_a_change()
    bench.ticks(475)
    assert bench.pump() == {}, "soon is soon enough for a full copy"
    bench.ticks(25)
    assert bench.pump() == {"b": [6, 7, 8, 9], "c": [6, 7, 8, 9]}
    for last in (9, 13, 17):
        bench.ack_to("b", last)
        bench.ack_to("c", last)
        bench.pump()
    assert bench.confirmed == 17, "it waits once, not once for each window"
    bench.changed(change)
    assert bench.pump() == {"d": [18, 19, 20, 21]}, "d goes on behind what b and c hold"
    assert bench.metadata.fragments[-1].first_entry_id == 2
    bench.ack_to("b", 18)
    assert bench.confirmed == 17
    bench.ack_to("d", 18)
    assert bench.confirmed == 18
    bench.down("b")
    bench.link(bench.effect(Connect).slot)
    lac = bench.effect(WriteLac)
    bench.core.on_lac_written(lac.slot, lac.last_entry, Answer.OK)
    second = bench.effect(Change)
    bench.ack_to("c", 21)
    bench.ack_to("d", 21)
    bench.changed(second)
    assert bench.pump() == {"e": [19, 20, 21]}, "the next change is kept for again"


def test_a_window_that_waits_for_bookies_is_kept_for_a_change() -> None:
    bench, _ = held_by_a_change()
    bench.ticks(475)
    bench.core.on_not_changed(Unavailable("no answer", outcome=Outcome.UNKNOWN))
    bench.ticks(25)
    assert bench.core.places.kept_from is None, "unknown or under way: the same"

    bench = Bench(window_entries=4)
    bench.put(20)
    bench.pump()
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    bench.ticks(200)
    bench.ack_to("b", 3)
    bench.ticks(400)
    assert bench.core.places.kept_from == 0, "c holds it, too"
    bench.ack_to("c", 3)
    bench.ticks(475)
    assert bench.core.places.kept_from == 0
    bench.changed(bench.effect(Change))
    assert bench.pump()["d"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("gone"), Fenced),
        (Fenced("closed"), Fenced),
        (AuthError("not yours"), AuthError),
    ],
)
def test_metadata_that_may_not_be_changed_ends_the_appender(
    error: Exception, kind: type[Exception]
) -> None:
    bench = Bench()
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    bench.core.on_not_changed(error)
    failure = bench.core.failure
    assert isinstance(failure, kind)
    assert (failure.outcome, failure.handle) == (Outcome.UNKNOWN, Handle.DEAD)


def test_what_is_stored_counts_also_where_somebody_else_wrote_it() -> None:
    bench = Bench(spares=("d", "e"))
    bench.put(3)
    bench.pump()
    for bookie in ALL:
        bench.ack_to(bookie, 0)
    bench.ack_to("b", 2)
    bench.down("a")
    bench.link(bench.effect(Connect).slot)
    bench.metadata = metadata_on("a", "x", "c")
    bench.changed(bench.effect(Change))
    assert bench.core.places.ensemble == ("d", "x", "c")
    slot = bench.effect(Connect).slot
    assert (slot.place, slot.bookie_id) == (1, "x")
    assert bench.confirmed == 0
    bench.link(slot)
    assert bench.pump() == {"d": [1, 2], "x": [1, 2]}


def test_a_candidate_that_cannot_be_reached_makes_room_for_another() -> None:
    bench = Bench(spares=("d", "e"))
    bench.down("a")
    first = bench.effect(Connect).slot
    bench.core.on_no_link(first)
    second = bench.effect(Connect).slot
    assert (first.bookie_id, second.bookie_id) == ("d", "e")
    assert not bench.core.on_link(first, object()), "too late"
    bench.ticks(1_000)
    assert bench.core.slots[0].state is State.VACANT
    assert not bench.core.on_link(second, object()), "it took too long"


def test_a_vacant_place_is_filled_as_soon_as_somebody_comes() -> None:
    bench = Bench(spares=())
    bench.down("a")
    assert bench.core.degraded == ["a"]
    bench.put(2)
    bench.pump()
    bench.ack_to("b", 1)
    bench.ack_to("c", 1)
    assert bench.confirmed == 1
    assert bench.core.outbox.first == 2, "nothing is kept for nobody"
    bench.ticks(100)
    assert bench.effect(Connect).slot.bookie_id == "a", "the same one, if it is back"
    bench.core.on_no_link(bench.core.slots[0])
    bench.spares.append("e")
    bench.ticks(200)
    assert bench.replace("a") == "e"
    assert bench.metadata.fragments[-1].first_entry_id == 2
    assert bench.core.degraded == []


def test_the_same_bookie_goes_on_behind_what_is_confirmed_once_it_is_proven() -> None:
    bench = Bench(spares=())
    bench.put(2)
    bench.pump()
    bench.down("a")
    bench.ack_to("b", 1)
    bench.ack_to("c", 1)
    bench.put()
    bench.pump()
    bench.ticks(100)
    bench.link(bench.effect(Connect).slot)
    assert bench.pump() == {"a": [2]}
    bench.ack("a", 2)
    bench.ack("b", 2)
    assert bench.confirmed == 1
    look = bench.effect(Look)
    assert look == Look()
    bench.core.on_looked(bench.metadata)
    assert bench.confirmed == 2


def test_a_policy_cannot_put_one_bookie_in_two_places() -> None:
    bench = Bench(spares=("b",))
    bench.core.places._pick = lambda excluded: "b"
    bench.down("a")
    assert bench.core.slots[0].state is State.VACANT


# --- Looks


def test_an_ack_over_a_new_link_waits_for_a_look() -> None:
    """fence_forgotten."""
    bench = Bench(linked=False)
    slots = [effect.slot for effect in bench.effects(Connect)]
    bench.link(slots[0])
    bench.effect(Look)
    bench.link(slots[1])
    bench.link(slots[2])
    assert bench.effects(Look) == [], "one look at a time"
    bench.put()
    bench.pump()
    for bookie in ALL:
        bench.ack(bookie, 0)
    bench.core.on_looked(bench.metadata)
    assert bench.confirmed == -1, "the look was asked before b and c were linked"
    bench.effect(Look)
    bench.core.on_looked(bench.metadata)
    assert bench.confirmed == 0


@pytest.mark.parametrize("how", ["in recovery", "deleted"])
def test_a_look_that_finds_the_ledger_ended(how: str) -> None:
    bench = Bench(spares=())
    bench.put()
    bench.pump()
    bench.down("a")
    bench.ticks(100)
    bench.link(bench.effect(Connect).slot)
    bench.effect(Look)
    bench.pump()
    if how == "deleted":
        bench.core.on_not_looked(NotFound("gone"))
    else:
        bench.core.on_looked(replace(bench.metadata, state=LedgerState.IN_RECOVERY))
    assert isinstance(bench.core.failure, Fenced)
    bench.core.on_adds(bench.core.slots[0].link, Answer.OK, [0])
    assert bench.confirmed == -1


def test_a_look_is_asked_again_while_the_store_is_away() -> None:
    bench = Bench(linked=False)
    bench.link(bench.effects(Connect)[0].slot)
    bench.effect(Look)
    bench.core.on_not_looked(Unavailable("away"))
    assert bench.effects(Look) == []
    bench.ticks(100)
    bench.effect(Look)
    bench.core.on_not_looked(Unavailable("away"))
    assert bench.core.failure is None


def test_an_idle_appender_looks_now_and_then() -> None:
    bench = Bench()
    bench.put()
    bench.pump()
    for bookie in ALL:
        bench.ack(bookie, 0)
    looks = 0
    for _ in range(120):
        bench.core.on_tick(bench.core.tick_ms)
        for _ in bench.effects(Look):
            looks += 1
            bench.core.on_looked(bench.metadata)
    assert 2 <= looks <= 4, "every half minute, about"
    for _ in range(100):
        bench.put()
        bench.pump()
        for bookie in ALL:
            bench.ack(bookie, bench.core.outbox.end - 1)
        bench.core.on_tick(1_000.0)
    assert bench.effects(Look) == [], "who appends hears of a fence in any case"


# --- Publishing


def confirmed_entry(bench: Bench) -> None:
    bench.put()
    bench.pump()
    for bookie in ALL:
        bench.ack_to(bookie, bench.core.outbox.end - 1)


def test_published_is_what_enough_bookies_show() -> None:
    bench = Bench()
    confirmed_entry(bench)
    bench.core.publish()
    writes = bench.effects(WriteLac)
    assert [(each.slot.bookie_id, each.last_entry) for each in writes] == [(b, 0) for b in ALL]
    bench.core.on_lac_written(writes[0].slot, 0, Answer.OK)
    assert bench.core.last_published == -1
    bench.core.on_lac_written(writes[2].slot, 0, Answer.OK)
    assert bench.core.last_published == 0


def test_entries_publish_those_before_them_for_nothing() -> None:
    bench = Bench()
    confirmed_entry(bench)
    confirmed_entry(bench)
    assert (bench.confirmed, bench.core.last_published) == (1, 0)
    bench.core.publish()
    assert {each.last_entry for each in bench.effects(WriteLac)} == {1}


def test_who_learnt_it_from_an_entry_is_not_told() -> None:
    bench = Bench(ack_quorum=3)
    confirmed_entry(bench)
    bench.put()
    bench.pump()
    bench.ack("b", 1)
    bench.core.publish()
    assert [each.slot.bookie_id for each in bench.effects(WriteLac)] == ["a", "c"]


def test_one_lac_at_a_time_and_then_the_latest() -> None:
    bench = Bench()
    confirmed_entry(bench)
    bench.core.publish()
    first = bench.effects(WriteLac)
    for _ in range(3):
        confirmed_entry(bench)
        bench.core.publish()
    assert bench.effects(WriteLac) == []
    for each in first:
        bench.core.on_lac_written(each.slot, each.last_entry, Answer.OK)
    assert [each.last_entry for each in bench.effects(WriteLac)] == [3, 3, 3]


def test_publishing_survives_one_bookie() -> None:
    bench = Bench()
    confirmed_entry(bench)
    bench.core.publish()
    lost, *others = bench.effects(WriteLac)
    bench.core.on_lac_written(lost.slot, 0, Answer.DISCONNECTED)
    for each in others:
        bench.core.on_lac_written(each.slot, 0, Answer.OK)
    assert bench.core.last_published == 0
    assert lost.slot.state is State.LIVE, "its adds may go on"


def test_a_lost_lac_is_written_again_and_a_refused_one_costs_the_place() -> None:
    bench = Bench(ack_quorum=3)
    confirmed_entry(bench)
    bench.core.publish()
    for each in bench.effects(WriteLac):
        bench.core.on_lac_written(each.slot, 0, Answer.TIMED_OUT)
    assert bench.effects(WriteLac) == []
    bench.ticks(200)
    again = bench.effects(WriteLac)
    assert len(again) == 3
    bench.core.on_lac_written(again[0].slot, 0, Answer.READ_ONLY)
    assert bench.effect(Connect).slot.bookie_id == "d"


@pytest.mark.parametrize("answer", [Answer.BUSY, Answer.DISCONNECTED, Answer.TIMED_OUT])
def test_a_bookie_that_cannot_take_the_lac_now_keeps_its_place_and_its_entries(
    answer: Answer,
) -> None:
    """It is no answer to an add: the place, what is on its way and how much may be, stay."""
    bench = Bench(ack_quorum=3)
    confirmed_entry(bench)
    bench.core.publish()
    (first, *others) = bench.effects(WriteLac)
    for each in others:
        bench.core.on_lac_written(each.slot, 0, Answer.OK)
    slot, window = first.slot, first.slot.in_flight_max
    bench.core.on_lac_written(slot, 0, answer)
    assert (slot.state, slot.in_flight_max, slot.busy_count) == (State.LIVE, window, 0)
    assert slot.paused_until_ms <= bench.core.standing.now_ms
    bench.core.on_tick(25.0)
    assert bench.effects() == [], "it waits a little"
    bench.put()
    assert bench.pump() == {bookie: [1] for bookie in ALL}
    bench.ticks(200)
    assert [each.slot for each in bench.effects(WriteLac)] == [slot]
    bench.core.on_lac_written(slot, 0, Answer.OK)
    assert bench.core.last_published == 0
    assert bench.effects(Connect) == []


@pytest.mark.parametrize("answer", [Answer.BUSY, Answer.DISCONNECTED, Answer.TIMED_OUT])
def test_a_candidate_that_does_not_take_the_lac_at_once_makes_room_for_another(
    answer: Answer,
) -> None:
    bench = Bench(spares=("d", "e"))
    confirmed_entry(bench)
    bench.core.publish()
    for each in bench.effects(WriteLac):
        bench.core.on_lac_written(each.slot, 0, Answer.OK)
    bench.down("b")
    slot = bench.effect(Connect).slot
    bench.link(slot)
    bench.core.on_lac_written(slot, 0, answer)
    bench.effects()
    bench.ticks(2_000)
    assert [each.slot.bookie_id for each in bench.effects(Connect)][-1:] in (["e"], ["d"], ["b"])
    assert slot not in bench.core.slots


def test_a_bookie_that_never_takes_the_lac_is_replaced() -> None:
    bench = Bench(ack_quorum=3)
    confirmed_entry(bench)
    bench.core.publish()
    writes = bench.effects(WriteLac)
    for each in writes[1:]:
        bench.core.on_lac_written(each.slot, 0, Answer.OK)
    bench.ticks(5_000)
    assert bench.effect(Connect).slot.place == 0


def test_a_candidate_takes_the_published_lac_before_it_is_named() -> None:
    bench = Bench(spares=("d", "e"))
    confirmed_entry(bench)
    confirmed_entry(bench)
    bench.down("a")
    slot = bench.effect(Connect).slot
    bench.link(slot)
    write = bench.effect(WriteLac)
    assert (write.slot, write.last_entry) == (slot, 0)
    assert bench.effects(Change) == []
    bench.core.on_lac_written(slot, 0, Answer.TIMED_OUT)
    slot = bench.effect(Connect).slot
    assert slot.bookie_id == "e", "one that does not serve is not named"
    bench.link(slot)
    bench.core.on_lac_written(slot, bench.effect(WriteLac).last_entry, Answer.OK)
    assert dict(bench.effect(Change).places) == {0: "e"}


# --- Giving up


def test_it_gives_up_when_nothing_moves_and_names_who_is_missing() -> None:
    bench = Bench(spares=(), stall_ms=30_000)
    bench.put()
    bench.pump()
    bench.down("a")
    bench.down("b")
    bench.ack("c", 0)
    waited = 0.0
    while bench.core.failure is None:
        bench.ticks(100)
        waited += 100
        for effect in bench.effects(Connect):
            bench.core.on_no_link(effect.slot)
    failure = bench.core.failure
    assert isinstance(failure, Unavailable)
    assert 30_000 <= waited <= 30_200
    assert (sorted(failure.missing), failure.needed) == (["a", "b"], 1)
    assert failure.outcome is Outcome.UNKNOWN


def test_what_moves_slowly_is_no_stall() -> None:
    bench = Bench(stall_ms=1_000)
    bench.put(10)
    bench.pump()
    for entry_id in range(9):
        bench.ticks(800)
        for bookie in ALL:
            bench.ack(bookie, entry_id)
    assert bench.core.failure is None
    bench.ticks(1_000)
    assert bench.core.failure is not None


def test_nothing_to_do_is_no_stall() -> None:
    bench = Bench()
    confirmed_entry(bench)
    for _ in range(100):
        bench.core.on_tick(bench.core.tick_ms)
        for _ in bench.effects(Look):
            bench.core.on_looked(bench.metadata)
    assert bench.core.failure is None
    assert bench.core.tick_ms == 1_000.0


def test_the_core_makes_ledgers_of_its_own_kind_only() -> None:
    new = metadata_on("a", "b", "c")
    for other in (replace(new, write_quorum=2), replace(new, state=LedgerState.IN_RECOVERY)):
        with pytest.raises(Broken):
            AppenderCore(
                7,
                other,
                pack_front=lambda *about: b"",
                frame_fixed_bytes=FIXED_BYTES,
                pick=lambda excluded: None,
                chance=Even(),
            )


# --- Metadata that somebody else changed


def change_asked(bench: Bench) -> Change:
    """A bookie was lost, and its candidate is to be named."""
    bench.link(bench.effect(Connect).slot)
    found: Change = bench.effect(Change)
    return found


def stored(bench: Bench, change: Change, **others: str) -> None:
    """Our change is stored, and with it others of somebody else: bookies by their places."""
    places = {**change.places, **{int(place[1:]): bookie for place, bookie in others.items()}}
    bench.changed(replace(change, places=places))


def test_a_bookie_that_somebody_else_replaced_is_let_go_for_the_one_that_is_named() -> None:
    bench = Bench()
    bench.down("b")
    change = change_asked(bench)
    link = bench.slot("c").link
    bench.effects()
    stored(bench, change, p2="z")
    assert [effect.link for effect in bench.effects(LetGo)] == [link]
    (connect,) = bench.effects(Connect)
    assert (connect.slot.place, connect.slot.bookie_id) == (2, "z")
    assert {slot.bookie_id: slot.state for slot in bench.core.slots} == {
        "a": State.LIVE,
        "d": State.LIVE,
        "z": State.CONNECTING,
    }


def test_bookies_that_stay_named_keep_their_links() -> None:
    bench = Bench()
    bench.down("b")
    change = change_asked(bench)
    bench.effects()
    stored(bench, change)
    assert bench.effects(LetGo) == bench.effects(Connect) == []
    assert [slot.bookie_id for slot in bench.core.slots] == ["a", "d", "c"]


def test_a_candidate_that_was_named_in_another_place_is_none() -> None:
    """A bookie stands in one place of an ensemble only: another candidate is found."""
    bench = Bench(spares=("d", "e", "f"))
    bench.down("b")
    change = change_asked(bench)
    bench.down("c")
    candidate = bench.effect(Connect).slot
    assert (candidate.place, candidate.bookie_id) == (2, "e")
    stored(bench, change, p0="e")
    connects = {effect.slot.place: effect.slot.bookie_id for effect in bench.effects(Connect)}
    assert connects == {0: "e", 2: "f"}


def test_a_vacant_place_waits_for_its_turn_whoever_is_named_there() -> None:
    bench = Bench(spares=("d",))
    bench.down("b")
    change = change_asked(bench)
    bench.down("c")
    assert bench.effects(Connect) == []
    assert bench.core.slots[2].state is State.VACANT
    stored(bench, change, p2="z")
    assert bench.core.slots[2].state is State.VACANT
    assert bench.effects(Connect) == []
    bench.ticks(50)
    assert [effect.slot.bookie_id for effect in bench.effects(Connect)] == ["z"]


def test_a_vacant_place_waits_no_longer_when_its_bookie_was_named_elsewhere() -> None:
    bench = Bench(spares=("d",))
    bench.down("b")
    change = change_asked(bench)
    bench.down("c")
    stored(bench, change, p0="c", p2="z")
    assert [effect.slot.place for effect in bench.effects(Connect)] == [0]
    bench.ticks(50)
    (connect,) = bench.effects(Connect)
    assert (connect.slot.place, connect.slot.bookie_id) == (2, "z")

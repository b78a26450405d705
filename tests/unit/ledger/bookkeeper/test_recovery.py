"""The rules of ledger recovery, one by one, against bookies that say what a test tells them."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import AuthError, Corrupt, NotFound, Unavailable, Unsupported
from dlog.ledger.bookkeeper.core.recovery import (
    ChangeLedger,
    FenceAhead,
    FindEnd,
    ReadLedger,
    recover,
)
from dlog.ledger.bookkeeper.core.recovery_requests import LetGo, Settle
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd
from dlog.ledger.store import ClosedLedger
from dlog.limits import ADD_RUN_ENTRIES_MAX, RECOVERY_WINDOW_BYTES, RECOVERY_WINDOW_ENTRIES
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest
from dlog.wire.bookie_v2 import Flag
from dlog.wire.ledger_metadata import Fragment, LedgerState
from tests.unit.ledger.bookkeeper.recovery_tools import (
    ABC,
    DIGEST,
    LEDGER_ID,
    PASSWORD,
    Played,
    bytes_to,
    metadata,
    packet,
    packets,
    payload_of,
    poisoned,
    split,
)

NONE = Answer.NO_ENTRY
UNKNOWING = sorted(
    set(Answer)
    - {Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER}
    - {Answer.CLIENT_CLOSED, Answer.ILLEGAL},  # these end the recovery at once
    key=lambda answer: answer.name,
)


def fenced(*answers: Answer | bytes, stored: Any = None, choose: Any = None) -> Played:
    """A recovery that a and b have answered, each with its last entry; c says nothing."""
    played = Played(stored or metadata(), choose or (lambda ensemble, failed: None))
    for bookie, answer in zip("abc", answers, strict=False):
        played.fence(bookie, answer)
    return played


def settled(played: Played, bookie: str, first_entry: int, answer: Answer) -> None:
    """The answer, as often as it takes for a lost connection to count as one."""
    for _ in range(4):
        if (bookie, first_entry) not in played.asks():
            break
        played.read(bookie, first_entry, answer)
        played.later(0.5)


def big(entry_id: int, entry_bytes: int) -> bytes:
    """One of many equally large entries."""
    payload = bytes(entry_bytes)
    ledger_bytes = (entry_id + 1) * entry_bytes
    return DIGEST.pack_head(LEDGER_ID, entry_id, -1, ledger_bytes, (payload,)) + payload


# --- fencing


def test_every_bookie_is_asked_at_once_and_two_of_three_are_enough() -> None:
    played = Played(metadata())
    assert played.asks() == {("a", -1), ("b", -1), ("c", -1)}
    played.fence("a", packet(4))
    assert not played.is_covered()
    played.fence("c", NONE)
    assert played.is_covered()
    assert ("a", 4) in played.asks(), "it goes on behind the LAC"


@pytest.mark.parametrize("answer", [NONE, Answer.NO_LEDGER])
def test_a_bookie_that_has_nothing_is_known(answer: Answer) -> None:
    played = fenced(answer, answer)
    assert played.is_covered()


@pytest.mark.parametrize("answer", UNKNOWING)
def test_no_other_answer_covers(answer: Answer) -> None:
    played = Played(metadata())
    played.fence("a", NONE)
    if answer is Answer.UNAUTHORIZED:
        with pytest.raises(AuthError):
            played.fence("b", answer)
        return
    settled(played, "b", -1, answer)
    assert not played.is_covered()
    with pytest.raises(Unavailable) as caught:
        settled(played, "c", -1, answer)
    assert sorted(caught.value.missing) == ["b", "c"]
    assert caught.value.needed == 1


@pytest.mark.parametrize("raw", [packet(4)[:-1] + b"?", b"short", b""])
def test_a_broken_header_covers_nothing_and_raises_nothing(raw: bytes) -> None:
    played = Played(metadata())
    played.read("a", -1, [raw])
    played.fence("b", packet(2))
    assert not played.is_covered()
    played.fence("c", NONE)
    assert played.is_covered()
    assert ("b", 2) in played.asks(), "from b's LAC on"


@pytest.mark.parametrize("last_confirmed", [4, 9, 1 << 62])
def test_a_poisoned_header_covers_and_raises_nothing(last_confirmed: int) -> None:
    """Replicators write such ones: the fence holds there all the same."""
    played = fenced(poisoned(4, last_confirmed), packet(2))
    assert played.is_covered()
    assert ("b", 2) in played.asks()


def test_a_poisoned_copy_is_a_copy() -> None:
    played = fenced(packet(0), NONE)
    played.read("a", 0, [poisoned(0, 9)])
    assert played.written("b") == [(0, -1)]
    played.read("a", 1, NONE)
    played.read("b", 1, NONE)
    played.acks("a", 0)
    played.acks("b", 0)
    assert played.end().last_entry == 0


def test_the_floor_is_where_the_last_fragment_begins() -> None:
    played = fenced(NONE, NONE, stored=metadata((0, ABC), (6, ("a", "b", "d"))))
    assert {first for _, first in played.asks() if first >= 0} == {6}


def test_coverage_of_a_striped_ensemble_is_of_every_write_set() -> None:
    played = Played(metadata((0, ("a", "b", "c", "d")), write=3, ack=2))
    played.fence("a", NONE)
    played.fence("b", NONE)
    assert not played.is_covered(), "c and d could acknowledge"
    played.fence("c", NONE)
    assert played.is_covered()


# --- the end


def test_an_empty_ledger_ends_before_entry_0() -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, NONE)
    assert played.found() is None
    played.read("b", 0, NONE)
    found = played.found()
    assert found is not None
    assert (found.last_entry, found.bytes, found.fragments) == (-1, 0, None)
    assert found.evidence == (0, ("a", "b"), 2)


def test_one_valid_copy_is_enough_and_the_end_takes_two_denials() -> None:
    played = fenced(packet(3), packet(2))
    played.read("a", 3, [packet(3)])  # the question ahead is about 4
    assert played.written("b") == [(3, 2)]
    played.read("a", 4, NONE)
    played.read("b", 4, NONE)
    assert played.found() is None, "3 is not written back"
    played.acks("a", 3)
    assert played.found() is None
    played.acks("c", 3)
    assert (played.end().last_entry, played.end().bytes) == (3, bytes_to(3))


def test_a_denial_counts_for_its_own_entry_alone() -> None:
    """b had no entry 2 either; but it was never asked about 3 until then."""
    played = fenced(packet(2), NONE)
    played.read("b", 2, NONE)
    played.read("a", 2, [packet(2)])
    played.read("a", 3, NONE)
    played.acks("a", 2)
    played.acks("b", 2)
    assert played.found() is None
    played.read("b", 3, NONE)
    assert played.found() is not None


@pytest.mark.parametrize("answer", UNKNOWING)
def test_nothing_but_a_denial_denies(answer: Answer) -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, NONE)
    settled(played, "b", 0, answer)
    assert played.found() is None
    with pytest.raises(Unavailable) as caught:
        settled(played, "c", 0, answer)
    assert sorted(caught.value.missing) == ["b", "c"]
    assert caught.value.needed == 1


def test_a_bad_copy_is_no_copy_and_no_denial() -> None:
    played = fenced(packet(0), NONE)
    bad = packet(0)[:-1] + b"?"
    played.read("a", 0, [bad])
    played.read("b", 0, NONE)
    assert played.found() is None
    assert played.added == []
    played.read("c", 0, NONE)
    assert played.end().last_entry == -1


def test_of_a_batch_the_prefix_before_a_bad_entry_is_taken() -> None:
    played = fenced(packet(5, 0), NONE)
    played.read("a", 1, [packet(1), packet(2), packet(3)[:-1] + b"?", packet(4)])
    assert [entry for entry, _ in played.written("b")] == [1, 2]
    assert ("a", 3) not in played.asks(), "a has said what it has of 3"
    played.read("b", 1, NONE)
    assert ("b", 3) in played.asks()


def test_a_short_batch_says_nothing_about_the_next_entry() -> None:
    played = fenced(NONE, packet(9, 0))
    played.read("b", 1, packets(1, 4))
    assert ("b", 5) in played.asks()
    played.read("a", 1, NONE)
    assert ("a", 5) in played.asks()
    played.read("a", 5, NONE)
    assert played.found() is None
    played.read("b", 5, packets(5, 9))
    assert [entry for entry, _ in played.written("c")] == list(range(1, 10))


def test_answers_for_what_is_known_by_now_are_passed_over() -> None:
    played = fenced(packet(3, 0), packet(3, 0))
    played.read("a", 1, packets(1, 3))
    played.read("b", 1, packets(1, 2))
    assert [entry for entry, _ in played.written("c")] == [1, 2, 3]


def test_full_answers_let_the_others_rest_until_the_leader_is_silent() -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, [big(0, 300_000), big(1, 300_000)])
    played.read("b", 0, NONE)
    assert {ask for ask in played.asks() if ask[1] == 2} == {("a", 2)}
    played.later(0.25)
    assert {("a", 2), ("b", 2)} <= played.asks()


def test_an_end_below_what_somebody_confirmed_is_refused() -> None:
    """c answers the fence late, and knows that 4 was confirmed."""
    played = fenced(NONE, NONE)
    played.fence("c", packet(5))
    played.read("a", 0, NONE)
    played.read("b", 0, NONE)
    assert played.found() is None
    with pytest.raises(Corrupt) as caught:
        played.read("c", 0, NONE)
    assert caught.value.entry_id == 0


def test_a_late_copy_saves_what_somebody_confirmed() -> None:
    played = fenced(NONE, NONE)
    played.fence("c", packet(1))
    played.read("a", 0, NONE)
    played.read("b", 0, NONE)
    played.read("c", 0, packets(0, 1))
    assert [entry for entry, _ in played.written("a")] == [0, 1]


def test_a_lost_connection_is_asked_again_and_singly() -> None:
    played = fenced(NONE, NONE)
    (batch,) = [ask for ask in played.asked if (ask.bookie_id, ask.first_entry) == ("a", 0)]
    assert batch.is_batch
    played.read("a", 0, Answer.DISCONNECTED)
    played.later(0.05)
    (single,) = [ask for ask in played.asked if (ask.bookie_id, ask.first_entry) == ("a", 0)]
    assert not single.is_batch
    played.read("a", 0, packet(0))
    assert [
        ask.is_batch for ask in played.asked if ask.bookie_id == "a" and ask.first_entry == 1
    ] == [False]


@pytest.mark.parametrize("answer", [Answer.DISCONNECTED, Answer.BUSY])
def test_a_question_that_others_have_answered_is_not_put_again(answer: Answer) -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, answer)
    played.read("b", 0, packets(0, 3))
    played.later(0.05)
    assert ("a", 0) not in played.asks()
    assert ("a", 4) in played.asks()


def test_nobody_is_asked_twice_at_a_time() -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, packets(0, 1))
    played.read("a", 2, packets(2, 2))
    assert [first for bookie, first in played.asks() if bookie == "b"] == [0]


def test_a_leader_that_fails_is_not_waited_for() -> None:
    played = fenced(NONE, NONE)
    played.read("a", 0, [big(0, 300_000), big(1, 300_000)])
    played.read("b", 0, NONE)
    played.read("a", 2, Answer.IO_FAILED)
    assert ("b", 2) in played.asks()


@pytest.mark.parametrize("answer", [Answer.CLIENT_CLOSED, Answer.ILLEGAL])
def test_the_end_of_the_client_is_the_end_of_the_recovery(answer: Answer) -> None:
    played = fenced(NONE, NONE)
    with pytest.raises(Unavailable):
        played.read("a", 0, answer)


def test_a_striped_ledger_is_read_entry_by_entry() -> None:
    played = fenced(packet(0), packet(1, 0), stored=metadata((0, ABC), write=2, ack=2))
    asked = {ask for ask in played.asks() if ask[1] >= 0}
    assert {("b", 1), ("c", 1), ("c", 2), ("a", 2)} <= asked
    assert ("a", 1) not in asked
    assert not any(ask.is_batch for ask in played.asked)
    played.read("b", 1, packet(1, 0))
    assert played.written("b") == [(1, 0)]
    assert played.written("c") == [(1, 0)]
    assert played.written("a") == []
    played.read("a", 2, NONE)  # W - A + 1 = 1: enough
    played.acks("b", 1)
    assert played.found() is None
    played.acks("c", 1)
    assert played.end().evidence == (2, ("a",), 1)


def test_what_an_entry_behind_confirms_contradicts_a_denial() -> None:
    """Entry 3 says that 1 was confirmed; with W = A = 2 one denial would end the ledger there."""
    played = fenced(NONE, NONE, stored=metadata((0, ABC), write=2, ack=2))
    played.read("a", 3, packet(3, 1))
    played.read("a", 0, packet(0))
    played.read("b", 1, NONE)
    assert played.found() is None
    played.read("c", 1, packet(1))
    assert [entry for entry, _ in played.written("b")] == [0, 1]


def test_large_entries_of_a_striped_ledger_are_asked_for_a_few_at_a_time() -> None:
    played = fenced(NONE, NONE, stored=metadata((0, ABC), write=2, ack=2))
    for entry_id in range(5):
        bookie = "abc"[entry_id % 3]
        played.read(bookie, entry_id, [big(entry_id, 4_000_000)])
    assert max(first for _, first in played.asks()) < 5 + 3


# --- sizing


def test_the_size_of_a_ledger_that_ends_with_entry_0() -> None:
    played = fenced(NONE, NONE, stored=metadata((0, ABC), (1, ("a", "b", "d"))))
    played.read("a", 1, NONE)
    played.read("b", 1, NONE)
    played.read("a", 0, packet(0))
    assert (played.end().last_entry, played.end().bytes) == (0, bytes_to(0))


def test_the_size_comes_from_the_last_confirmed_entry_if_nothing_was_found() -> None:
    stored = metadata((0, ABC), (6, ("a", "b", "d")))
    played = fenced(NONE, NONE, stored=stored)
    played.read("a", 6, NONE)
    played.read("b", 6, NONE)
    assert played.found() is None
    assert {ask for ask in played.asks() if ask[1] == 5} == {("a", 5), ("b", 5), ("c", 5)}
    played.read("a", 5, NONE)
    played.read("b", 5, NONE)
    assert played.found() is None, "no denial makes a confirmed entry unconfirmed"
    played.read("c", 5, packet(5))
    assert (played.end().last_entry, played.end().bytes) == (5, bytes_to(5))


def test_a_confirmed_entry_that_nobody_has_is_corrupt() -> None:
    played = fenced(NONE, NONE, stored=metadata((0, ABC), (6, ("a", "b", "d"))))
    played.read("a", 6, NONE)
    played.read("b", 6, NONE)
    for bookie in "ab":
        played.read(bookie, 5, NONE)
    with pytest.raises(Corrupt) as caught:
        played.read("c", 5, NONE)
    assert caught.value.entry_id == 5


# --- writing back


def test_what_is_written_back_is_what_was_read_but_for_the_lac() -> None:
    played = fenced(packet(6, 2), NONE)
    played.read("a", 3, [packet(3, 2), packet(4, 3), packet(5, 4), packet(6, 5)])
    for bookie in "abc":
        assert played.written(bookie) == [(3, 2), (4, 2), (5, 2), (6, 2)], "the LAC is frozen"
        for add in played.added:
            for flags, entry in split(add.frames):
                assert flags == Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
                assert entry.payload == payload_of(entry.entry_id)
                assert entry.ledger_bytes == bytes_to(entry.entry_id)


def test_the_lac_of_a_fresh_fragment_is_its_floor() -> None:
    played = fenced(NONE, NONE, stored=metadata((0, ABC), (6, ("a", "b", "d"))))
    played.read("a", 6, [packet(6, 5)])
    assert played.written("d") == [(6, 5)]


def test_entries_are_written_in_order_by_a_quorum_of_each() -> None:
    played = fenced(packet(2, -1), NONE)
    played.read("a", 0, packets(0, 2))
    played.read("a", 3, NONE)
    played.read("b", 3, NONE)
    played.acks("a", 0, 1, 2)
    played.acks("b", 1, 2)
    assert played.found() is None, "0 stands on one bookie"
    played.acks("c", 0)
    assert played.found() is not None


def test_an_answer_that_comes_twice_is_one_acknowledgement() -> None:
    played = fenced(packet(0), NONE)
    played.read("a", 0, [packet(0)])
    played.read("a", 1, NONE)
    played.read("b", 1, NONE)
    played.acks("a", 0)
    played.acks("a", 0)
    assert played.found() is None


def test_a_failed_bookie_is_replaced_for_what_is_not_written() -> None:
    played = fenced(packet(2, -1), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, packets(0, 2))
    played.acks("a", 0, 1, 2)
    played.acks("c", 0)  # 0 is written
    played.acks("b", 2)
    played.down("c")
    assert LetGo("c") in played.other
    assert [entry for entry, _ in played.written("d")] == [0, 1, 2], "a run goes as a whole"
    resent = [add for add in played.added if add.bookie_id == "d"]
    assert all(flags & Flag.RECOVERY_ADD for add in resent for flags, _ in split(add.frames))
    played.read("a", 3, NONE)
    played.read("b", 3, NONE)
    played.acks("c", 1)  # too late
    assert played.found() is None
    played.acks("d", 0, 1, 2)
    assert played.end().fragments == (Fragment(0, ABC), Fragment(1, ("a", "b", "d")))


def test_acknowledgements_go_with_the_bookie_that_is_replaced() -> None:
    played = fenced(packet(1, -1), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, packets(0, 1))
    played.read("a", 2, NONE)
    played.read("b", 2, NONE)
    played.acks("a", 1)
    played.acks("c", 1)  # 1 has two, 0 none
    played.down("c")
    played.acks("a", 0)
    played.acks("b", 0)
    assert played.found() is None, "1 stands on a and on nobody else who is named"
    played.acks("b", 1)
    assert played.end().fragments == (Fragment(0, ("a", "b", "d")),)


def test_reads_stay_with_the_bookies_that_recovery_began_with() -> None:
    played = fenced(packet(0), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, [packet(0)])
    played.down("c")
    played.read("a", 1, NONE)
    assert all(bookie != "d" for bookie, _ in played.asks())


def test_without_another_bookie_a_quorum_of_the_old_ones_does() -> None:
    played = fenced(packet(0), NONE)
    played.read("a", 0, [packet(0)])
    played.down("c")
    played.read("a", 1, NONE)
    played.read("b", 1, NONE)
    played.acks("a", 0)
    played.acks("b", 0)
    assert played.end().fragments is None


def test_too_few_bookies_to_write_back_are_named() -> None:
    played = fenced(packet(0), NONE)
    played.read("a", 0, [packet(0)])
    played.down("c")
    with pytest.raises(Unavailable) as caught:
        played.down("b")
    assert (caught.value.missing, caught.value.needed) == (["b", "c"], 1)


@pytest.mark.parametrize("advice", ["a", "c", None])
def test_bad_advice_is_no_advice(advice: str | None) -> None:
    played = fenced(packet(0), NONE, choose=lambda ensemble, failed: advice)
    played.read("a", 0, [packet(0)])
    played.down("c")
    assert [add.bookie_id for add in played.added] == ["a", "b", "c"]
    with pytest.raises(Unavailable):
        played.down("b")


def test_a_silent_bookie_that_is_needed_is_replaced_and_another_is_not_waited_for() -> None:
    played = fenced(packet(0), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, [packet(0)])
    played.acks("a", 0)
    played.later(0.3)
    assert played.written("d") == []
    played.later(0.3)
    assert played.written("d") == [(0, -1)]


def test_a_busy_bookie_is_sent_the_same_again_and_given_up_in_the_end() -> None:
    played = fenced(packet(1, -1), NONE)
    played.read("a", 0, packets(0, 1))
    played.acks("c", 0, answer=Answer.BUSY)
    played.acks("c", 1)
    played.later(0.1)
    assert [entry for entry, _ in played.written("c")] == [0, 1, 0, 1]
    assert all(flags & Flag.RECOVERY_ADD for add in played.added for flags, _ in split(add.frames))
    played.acks("a", 0, 1)
    played.acks("b", 0, 1)
    for _ in range(200):
        played.acks("c", 0, answer=Answer.BUSY)
        if LetGo("c") in played.other:
            break
        played.later(0.1)
    assert LetGo("c") in played.other
    assert played.now_s < 100 + 7


@pytest.mark.parametrize("answer", [Answer.UNAUTHORIZED, Answer.FENCED, Answer.READ_ONLY])
def test_a_bookie_that_refuses_is_let_go_and_speaks_for_itself_alone(answer: Answer) -> None:
    """One in limbo says UNAUTHORIZED, one where the ledger was deleted FENCED."""
    played = fenced(packet(0), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, [packet(0)])
    played.acks("c", 0, answer=answer)
    assert LetGo("c") in played.other
    assert played.written("d") == [(0, -1)]


def test_a_bookie_that_takes_something_now_and_then_is_not_given_up() -> None:
    played = fenced(packet(1, -1), NONE)
    played.read("a", 0, packets(0, 1))
    for _ in range(20):
        played.acks("c", 0, answer=Answer.BUSY)
        played.later(0.5)
        played.acks("c", 1)
        played.acks("a", 1)
        played.acks("b", 1)
    assert LetGo("c") not in played.other


def test_a_busy_bookie_is_asked_less_and_less_often_and_for_what_it_refused() -> None:
    played = fenced(packet(1, -1), NONE)
    played.read("a", 0, packets(0, 1))
    began = len(played.added)
    for _ in range(20):
        played.acks("c", 0, answer=Answer.BUSY)
        played.acks("a", 1)
        played.acks("b", 1)
        played.later(0.1)
    assert 3 < len(played.added) - began < 8
    played.later(1.0)
    played.acks("c", 0, answer=Answer.BUSY)
    played.acks("c", 0)  # of what was sent before
    sent = len(played.added)
    played.later(2.0)
    assert LetGo("c") not in played.other
    assert len(played.added) == sent, "it has taken what it refused"


def test_a_silent_bookie_that_nothing_waits_for_is_left_alone() -> None:
    played = fenced(packet(0), NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, [packet(0)])
    played.acks("a", 0)
    played.acks("b", 0)
    played.later(1.0)
    assert LetGo("c") not in played.other
    assert played.written("d") == []


def test_a_lost_bookie_that_has_nothing_to_get_is_not_replaced() -> None:
    stored = metadata((0, ("a", "b", "c", "d")), write=2, ack=2)
    played = Played(stored, lambda ensemble, failed: "e")
    for bookie in "abc":
        played.fence(bookie, NONE)
    played.read("a", 0, packet(0))
    assert [add.bookie_id for add in played.added] == ["a", "b"]
    played.down("c")
    played.acks("a", 0)
    played.acks("b", 0)
    played.read("b", 1, NONE)
    played.read("c", 1, NONE)
    assert played.end().fragments is None


def test_what_a_recovery_has_not_written_is_bounded_in_entries() -> None:
    played = fenced(NONE, NONE)
    entry_id = 0
    while ("a", entry_id) in played.asks():
        played.read("a", entry_id, packets(entry_id, entry_id + 999))
        entry_id += 1_000
    assert RECOVERY_WINDOW_ENTRIES <= entry_id < 2 * RECOVERY_WINDOW_ENTRIES


def test_a_bookie_has_a_bounded_number_to_answer_and_is_let_go_when_it_falls_behind() -> None:
    played = fenced(NONE, NONE, choose=lambda ensemble, failed: "d")
    played.read("a", 0, packets(0, 9_999))
    sent = {bookie: len(played.written(bookie)) for bookie in "abc"}
    for count in sent.values():
        assert RECOVERY_WINDOW_ENTRIES <= count < RECOVERY_WINDOW_ENTRIES + ADD_RUN_ENTRIES_MAX
    for first_entry in range(0, 9_000, 1_000):
        for bookie in "ab":
            played.acks(bookie, *range(first_entry, first_entry + 1_000))
    assert len(played.written("a")) == 10_000
    assert LetGo("c") not in played.other
    played.acks("c", *range(100))
    assert LetGo("c") in played.other, "what it lacks was written without it"
    assert len(played.written("c")) == sent["c"]


def test_nobody_counts_on_a_bookie_that_fell_behind() -> None:
    """It would wait for acks that nobody is asked for."""
    for spare in (None, "d"):
        played = fenced(NONE, NONE, choose=lambda ensemble, failed, spare=spare: spare)
        played.read("a", 0, packets(0, 9_999))
        for first_entry in range(0, 9_000, 1_000):
            for bookie in "ab":
                played.acks(bookie, *range(first_entry, first_entry + 1_000))
        if spare is None:
            with pytest.raises(Unavailable) as raised:
                played.down("b")
            assert raised.value.missing == ["b", "c"]
            continue
        played.down("b")
        assert {LetGo("b"), LetGo("c")} <= set(played.other)
        played.acks("a", *range(9_000, 10_000))
        played.acks("d", *(entry_id for entry_id, _ in played.written("d")))
        for bookie in "bc":
            played.read(bookie, 0, NONE)  # asked long ago, and no answer about the next one
            played.read(bookie, 10_000, NONE)
        assert played.end().last_entry == 9_999


def test_it_is_said_at_once_when_a_bookie_that_fell_behind_was_all_that_is_left() -> None:
    """What b acknowledged before it was lost is written without c; the rest needs c."""
    played = fenced(NONE, NONE)
    played.read("a", 0, packets(0, 9_999))
    played.acks("b", *range(4_000))
    acked_by_b = len(played.written("b"))
    played.acks("b", *range(4_000, acked_by_b))
    played.down("b")
    played.acks("a", *range(4_000))
    played.acks("a", *range(4_000, 5_000))
    with pytest.raises(Unavailable) as raised:
        played.acks("c", *range(100))
    assert raised.value.entry_id == acked_by_b
    assert sorted(raised.value.missing) == ["b", "c"]


def test_a_bookie_has_a_bounded_number_of_bytes_to_answer() -> None:
    played = fenced(NONE, NONE)
    for entry_id in range(40):
        played.read("a", entry_id, [big(entry_id, 1_000_000)])
        played.acks("a", entry_id)
        played.acks("b", entry_id)
    sent_bytes = sum(len(add.frames) for add in played.added if add.bookie_id == "c")
    assert RECOVERY_WINDOW_BYTES <= sent_bytes < RECOVERY_WINDOW_BYTES + 3_000_000
    assert LetGo("c") in played.other


def test_everything_sent_is_settled_as_it_is_answered() -> None:
    played = fenced(packet(2, -1), NONE)
    played.read("a", 0, packets(0, 2))
    (add,) = [each for each in played.added if each.bookie_id == "a"]
    played.acks("a", 2, 0)
    assert played.other == []
    played.acks("a", 1)
    assert played.other == [Settle("a", 3, len(add.frames))]


def test_reading_waits_while_much_is_not_written_back() -> None:
    entry_bytes = 4_000_000
    played = fenced(NONE, NONE)
    entry_id = 0
    while ("a", entry_id) in played.asks():
        played.read("a", entry_id, [big(entry_id, entry_bytes)])
        entry_id += 1
    assert entry_id * entry_bytes < RECOVERY_WINDOW_BYTES + 2 * entry_bytes
    for written in range(entry_id):
        played.acks("a", written)
        played.acks("b", written)
    assert ("a", entry_id) in played.asks()


@pytest.mark.parametrize("type", list(DigestType))
def test_all_digests(type: DigestType) -> None:
    digest = EntryDigest(type, PASSWORD)
    raw = packet(0, digest=digest)
    played = fenced(raw, NONE, stored=metadata(digest_type=type))
    played.read("a", 0, [raw])
    (add, *_) = played.added
    ((_, entry),) = split(add.frames, digest)
    assert entry.payload == payload_of(0)


# --- the procedure


def answered(procedure: Any, *answers: object) -> list[object]:
    steps: list[object] = []
    answer: object = None
    for next_answer in (*answers, None):
        try:
            if isinstance(answer, Exception):
                steps.append(procedure.throw(answer))
            else:
                steps.append(procedure.send(answer))
        except StopIteration as end:
            steps.append(end.value)
            break
        answer = next_answer
    return steps


FOUND = FoundEnd(4, 40, None, evidence=(5, ("a", "b"), 2))  # type: ignore[arg-type]


def test_a_closed_ledger_is_left_alone() -> None:
    closed = metadata(state=LedgerState.CLOSED, last_entry_id=3, length_bytes=9)
    assert answered(recover(LEDGER_ID), closed) == [ReadLedger(fresh=False), ClosedLedger(3, 9)]


def test_it_marks_before_it_asks_and_asks_about_what_was_marked() -> None:
    opened, marked = metadata(state=LedgerState.OPEN), metadata((0, ABC), (3, ("a", "b", "d")))
    _, ahead, mark, find = answered(recover(LEDGER_ID), opened, None, marked)
    assert ahead == FenceAhead(opened)
    assert isinstance(mark, ChangeLedger)
    changed = mark.change(metadata(state=LedgerState.OPEN))
    assert changed is not None
    assert changed.state is LedgerState.IN_RECOVERY
    assert find == FindEnd(marked)


@pytest.mark.parametrize(
    "changed", [{"digest_type": DigestType.DUMMY}, {"password": b"another"}, {"password": None}]
)
def test_a_digest_that_changes_meanwhile_is_not_followed(changed: dict[str, Any]) -> None:
    """It was looked at before; somebody who may change metadata waits for just that moment."""
    opened = metadata(state=LedgerState.OPEN)
    _, _, mark, _, close = answered(recover(LEDGER_ID), opened, None, metadata(), FOUND)
    for step, state in ((mark, LedgerState.OPEN), (close, LedgerState.IN_RECOVERY)):
        assert isinstance(step, ChangeLedger)
        assert step.change(metadata(state=state)) is not None
        with pytest.raises(AuthError, match="somebody changed"):
            step.change(metadata(state=state, **changed))


def test_nobody_is_fenced_ahead_of_a_mark_that_stands() -> None:
    steps = answered(recover(LEDGER_ID), metadata(), metadata())
    assert [type(step) for step in steps] == [ReadLedger, ChangeLedger, FindEnd]


def test_who_closed_before_is_right() -> None:
    closed = metadata(state=LedgerState.CLOSED, last_entry_id=2, length_bytes=5)
    steps = answered(recover(LEDGER_ID), metadata(), metadata(), FOUND, closed)
    assert steps[-1] == ClosedLedger(2, 5)
    assert steps[-2].change(closed) is None  # type: ignore[attr-defined]
    assert answered(recover(LEDGER_ID), metadata(), closed)[-1] == ClosedLedger(2, 5)


def test_private_fragments_reach_the_metadata_with_the_close_and_older_ones_stay() -> None:
    began = metadata((0, ABC), (3, ("a", "b", "d")))
    found = FoundEnd(
        4,
        40,
        (Fragment(3, ("a", "b", "d")), Fragment(4, ("a", "b", "e"))),
        evidence=(5, ("a", "b"), 2),  # type: ignore[arg-type]
    )
    *_, closing = answered(recover(LEDGER_ID), began, began, found)
    repaired = metadata((0, ("a", "b", "x")), (3, ("a", "b", "d")))
    closed = closing.change(repaired)  # type: ignore[attr-defined]
    assert closed.fragments == (
        Fragment(0, ("a", "b", "x")),
        Fragment(3, ("a", "b", "d")),
        Fragment(4, ("a", "b", "e")),
    )
    assert (closed.state, closed.last_entry_id, closed.length_bytes) == (LedgerState.CLOSED, 4, 40)


def test_a_last_fragment_that_moved_is_recovered_once_more() -> None:
    moved = metadata((0, ("a", "b", "x")))
    steps = answered(recover(LEDGER_ID), metadata(), metadata(), FOUND, moved, moved)
    assert steps[3].change(moved) is None  # type: ignore[attr-defined]
    assert steps[-1] == FindEnd(moved)


def test_not_found_is_asked_once_more_of_a_server_that_knows() -> None:
    steps = answered(recover(LEDGER_ID), NotFound("no"), metadata())
    assert steps[:2] == [ReadLedger(fresh=False), ReadLedger(fresh=True)]
    with pytest.raises(NotFound):
        answered(recover(LEDGER_ID), NotFound("no"), NotFound("no"))


@pytest.mark.parametrize("lacking", [{"digest_type": None}, {"password": None}])
def test_a_ledger_without_digest_or_password_is_not_even_marked(lacking: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        answered(recover(LEDGER_ID), metadata(state=LedgerState.OPEN, **lacking))

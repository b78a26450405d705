"""The search for the end of a ledger: which answers it uses, and when it is over."""

from __future__ import annotations

from dlog.ledger.bookkeeper.core.end_search import HEDGE_S, EndSearch
from dlog.ledger.bookkeeper.core.recovery_requests import Ask
from dlog.wire.bookie_codes import Answer
from tests.unit.ledger.bookkeeper.recovery_tools import DIGEST, LEDGER_ID, metadata, packets

NONE = Answer.NO_ENTRY


def search(confirmed: int = -1) -> EndSearch:
    """From entry 0 on, with the first questions asked."""
    stored = metadata()
    found = EndSearch(
        LEDGER_ID, stored, stored.fragments[-1], DIGEST, first_entry=0, confirmed=confirmed, now_s=0
    )
    assert {ask.bookie_id for ask in found.asks(0.0)} == {"a", "b", "c"}
    return found


def found_by(searching: EndSearch) -> list[int]:
    return [entry.entry_id for entry in searching.take()]


def given(searching: EndSearch, bookie: str, first: int, last: int, *, asked: int = 0) -> None:
    ask = Ask(bookie, asked, 100, is_batch=True)
    searching.on_answer(ask, Answer.OK, packets(first, last), now_s=0.0)


def denied(searching: EndSearch, bookie: str, entry_id: int) -> None:
    searching.on_answer(Ask(bookie, entry_id, 100, is_batch=True), NONE, [], now_s=0.0)


def test_a_longer_answer_to_an_older_question_brings_what_is_new_in_it() -> None:
    searching = search()
    given(searching, "a", 0, 4)
    given(searching, "b", 0, 9)
    assert found_by(searching) == list(range(10))
    given(searching, "c", 0, 7)
    assert (found_by(searching), searching.position) == ([], 10)


def test_a_denial_of_an_entry_that_was_found_says_nothing_about_the_next_one() -> None:
    searching = search()
    given(searching, "a", 0, 4)
    denied(searching, "b", 0)
    denied(searching, "c", 0)
    assert not searching.is_over
    assert {(ask.bookie_id, ask.first_entry) for ask in searching.asks(HEDGE_S)} == {
        ("a", 5),
        ("b", 5),
        ("c", 5),
    }


def test_a_denial_of_the_next_entry_by_enough_bookies_is_the_end() -> None:
    searching = search()
    given(searching, "a", 0, 4)
    denied(searching, "b", 5)
    assert not searching.is_over
    denied(searching, "c", 5)
    assert searching.evidence is not None
    assert searching.evidence.entry_id == 5
    assert searching.evidence.denied_by == ("b", "c")
    assert searching.evidence.needed == 2


def test_nothing_is_taken_or_asked_behind_the_end() -> None:
    """An answer may still be on its way."""
    searching = search()
    denied(searching, "a", 0)
    denied(searching, "b", 0)
    evidence = searching.evidence
    assert evidence is not None
    given(searching, "c", 0, 3)
    denied(searching, "c", 0)
    assert (found_by(searching), searching.position) == ([], 0)
    assert searching.evidence == evidence
    assert searching.asks(10.0) == []


def test_an_entry_below_what_is_confirmed_is_not_the_end() -> None:
    searching = search(confirmed=1)
    denied(searching, "a", 0)
    denied(searching, "b", 0)
    assert not searching.is_over
    given(searching, "c", 0, 1)
    assert found_by(searching) == [0, 1]
    denied(searching, "a", 2)
    denied(searching, "b", 2)
    assert searching.evidence is not None
    assert searching.evidence.entry_id == 2

"""The tables of answers and reactions: total, and safe where it matters."""

from __future__ import annotations

import pytest

from dlog.errors import Broken, FormatError
from dlog.wire.bookie_codes import (
    BLAMELESS,
    IMPOSSIBLE,
    REACTIONS,
    STOCK_CODES,
    Answer,
    Call,
    Reaction,
    ReturnCode,
    StatusCode,
    answer_of_return_code,
    answer_of_status_code,
    reaction,
    worse_of,
)


def test_both_protocols_say_the_same_things() -> None:
    assert {code.name for code in ReturnCode} == {code.name for code in StatusCode}
    for code in ReturnCode:
        there = answer_of_status_code(StatusCode[code.name], "here")
        assert answer_of_return_code(code, "here") is there


@pytest.mark.parametrize("number", [-1, 3, 99, 108, 402, 1 << 31])
def test_an_unknown_return_code_is_nothing_else(number: int) -> None:
    with pytest.raises(FormatError, match=f"here.*{number}"):
        answer_of_return_code(number, "here")


@pytest.mark.parametrize("number", [-1, 1, 101, 401, 508])
def test_an_unknown_status_code_is_nothing_else(number: int) -> None:
    with pytest.raises(FormatError, match=f"here.*{number}"):
        answer_of_status_code(number, "here")


def test_every_pair_has_a_reaction_or_cannot_be() -> None:
    pairs = {(call, answer) for call in Call for answer in Answer}
    assert REACTIONS.keys() | IMPOSSIBLE == pairs
    assert not REACTIONS.keys() & IMPOSSIBLE
    assert STOCK_CODES.keys() == set(Answer)
    for call, answer in IMPOSSIBLE:
        with pytest.raises(Broken):
            reaction(call, answer)


def answers(call: Call, *wanted: Reaction) -> set[Answer]:
    return {answer for answer in Answer if REACTIONS.get((call, answer)) in wanted}


def test_only_two_answers_prove_absence() -> None:
    nothing = {Answer.NO_ENTRY, Answer.NO_LEDGER}
    assert answers(Call.RECOVERY_READ, Reaction.COUNT_MISSING) == nothing
    assert answers(Call.FENCE, Reaction.COVERED) == nothing | {Answer.OK}


def test_what_ends_a_writer() -> None:
    local = {Answer.CLIENT_CLOSED, Answer.ILLEGAL}
    assert answers(Call.ADD, Reaction.STOP) == local | {Answer.FENCED, Answer.UNAUTHORIZED}
    assert answers(Call.FENCE, Reaction.STOP) == local | {Answer.UNAUTHORIZED}
    assert answers(Call.READ, Reaction.STOP) == local
    assert answers(Call.RECOVERY_READ, Reaction.STOP) == local


def test_success_is_taken_by_all_but_a_fence_which_counts_it() -> None:
    assert [reaction(call, Answer.OK) for call in Call] == [
        Reaction.TAKE,
        Reaction.TAKE,
        Reaction.COVERED,
        Reaction.TAKE,
    ]
    assert reaction(Call.ADD, Answer.BUSY) is Reaction.RESEND_LATER


def fold(*heard: Answer) -> Answer:
    result = Answer.OK
    for answer in heard:
        result = worse_of(result, answer)
    return result


def test_what_a_failed_read_says_in_the_end() -> None:
    assert fold(Answer.NO_ENTRY, Answer.NO_LEDGER) is Answer.NO_LEDGER
    assert fold(Answer.NO_ENTRY, Answer.TIMED_OUT, Answer.NO_ENTRY) is Answer.TIMED_OUT
    assert fold(Answer.DISCONNECTED, Answer.NO_ENTRY) is Answer.DISCONNECTED
    assert fold(Answer.DISCONNECTED, Answer.BAD_DIGEST) is Answer.BAD_DIGEST
    assert fold(Answer.BAD_DIGEST, Answer.DISCONNECTED) is Answer.BAD_DIGEST
    assert fold(Answer.TIMED_OUT, Answer.LIMBO) is Answer.TIMED_OUT


def test_who_is_to_blame() -> None:
    assert Answer.TIMED_OUT not in BLAMELESS
    assert Answer.BAD_DIGEST not in BLAMELESS
    assert Answer.FENCED in BLAMELESS

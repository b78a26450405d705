"""What counts as readable, what a question to an ensemble proves, when which bookie is polled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import AuthError, Unavailable
from dlog.ledger.bookkeeper.core.tail_read import (
    HEARD_S,
    PAUSE_MS_FIRST,
    PAUSE_MS_MAX,
    POLL_MS,
    PROOF_HEDGE_MS,
    LacAnswer,
    LacRound,
    Poll,
    TailRead,
    read_lac_answer,
)
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest
from dlog.wire.bookie_v3_replies import Body, ReadBody, ReadLacBody, WriteLacBody
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState

DIGEST = EntryDigest(DigestType.CRC32C, b"")
BOOKIES = ("b0", "b1", "b2")
METADATA = LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),), digest_type=DigestType.CRC32C)


def entry(entry_id: int, lac: int | None = None) -> memoryview:
    head = DIGEST.pack_head(7, entry_id, entry_id - 1 if lac is None else lac, 100, [b"payload"])
    return memoryview(head + b"payload")


def proof(lac: int, ledger_id: int = 7) -> memoryview:
    return memoryview(DIGEST.pack_lac(ledger_id, lac))


def answered(answer: Answer, body: Body | None) -> LacAnswer:
    return read_lac_answer(answer, body, ledger_id=7, digest=DIGEST, where="b0")


def told(lac: int | None, brought: memoryview | None = None, entry_id: int = -1) -> ReadBody:
    return ReadBody(7, entry_id, brought, lac, 0)


def tail(metadata: LedgerMetadata = METADATA, *, knows: int | None = None) -> TailRead:
    """With `knows`, every bookie proved that much at second 0."""
    core = TailRead(7, metadata)
    if knows is not None:
        for bookie_id in metadata.fragments[-1].ensemble:
            core.on_lac_answer(bookie_id, LacAnswer(Answer.OK, knows), 0.0)
    return core


def polls(core: TailRead, now_s: float = 0.0) -> dict[str, Poll]:
    return {poll.bookie_id: poll for poll in core.asks(now_s)[0]}


# --- answers to READ_LAC


@pytest.mark.parametrize(
    ("answer", "body", "wanted"),
    [
        (Answer.OK, ReadLacBody(7, proof(5), entry(9, 4)), (Answer.OK, 5)),
        (Answer.OK, ReadLacBody(7, proof(3), entry(9, 4)), (Answer.OK, 4)),
        (Answer.OK, ReadLacBody(7, None, entry(0)), (Answer.OK, -1)),
        (Answer.IO_FAILED, ReadLacBody(7, proof(5), None), (Answer.OK, 5)),
        (Answer.IO_FAILED, ReadLacBody(7, None, None), (Answer.IO_FAILED, -1)),
        (Answer.IO_FAILED, ReadLacBody(7, proof(3), entry(9, 4)), (Answer.IO_FAILED, 4)),
        (Answer.NO_ENTRY, None, (Answer.NO_ENTRY, -1)),
        (Answer.TIMED_OUT, None, (Answer.TIMED_OUT, -1)),
        (Answer.OK, ReadLacBody(7, proof(5, 8), None), (Answer.BAD_DIGEST, -1)),
        (Answer.OK, ReadLacBody(7, proof(5), memoryview(b"\0" * 40)), (Answer.BAD_DIGEST, 5)),
        (Answer.OK, ReadLacBody(8, proof(5, 8), None), (Answer.BAD_REQUEST, -1)),
        (Answer.OK, WriteLacBody(7), (Answer.BAD_REQUEST, -1)),
        (Answer.OK, None, (Answer.BAD_REQUEST, -1)),
    ],
)
def test_what_an_answer_proves(
    answer: Answer, body: Body | None, wanted: tuple[Answer, int]
) -> None:
    assert answered(answer, body) == wanted


# --- a question to all


@pytest.mark.parametrize(
    ("quorums", "known", "covered"),
    [
        ((3, 3, 2), (0, 1), True),
        ((3, 3, 2), (2,), False),
        ((3, 3, 3), (1,), True),
        ((3, 3, 1), (0, 1), False),
        ((5, 3, 2), (0, 1, 3), False),
        ((5, 3, 2), (0, 1, 2, 3), True),
    ],
)
def test_a_round_is_over_when_no_others_could_know_more(
    quorums: tuple[int, int, int], known: tuple[int, ...], covered: bool
) -> None:
    bookies = tuple(f"b{place}" for place in range(quorums[0]))
    round = LacRound(LedgerMetadata(*quorums, (Fragment(0, bookies),)), ledger_id=7)
    for place in known:
        round.on_answer(place, LacAnswer(Answer.NO_ENTRY, -1))
    assert round.is_covered is round.is_over is covered
    for place in set(range(quorums[0])) - set(known):
        round.on_answer(place, LacAnswer(Answer.BUSY, -1))
    assert round.is_over
    assert round.is_covered is covered


def test_a_round_without_coverage_names_who_is_missing() -> None:
    round = LacRound(METADATA, ledger_id=7)
    round.on_answer(1, LacAnswer(Answer.OK, 5))
    round.on_answer(0, LacAnswer(Answer.BAD_DIGEST, 9))
    assert not round.is_over
    round.on_answer(2, LacAnswer(Answer.LIMBO, -1))
    error = round.error()
    assert isinstance(error, Unavailable)
    assert (error.missing, error.needed) == (["b0", "b2"], 1)
    assert "b0: bad digest" in error.message
    assert round.last_confirmed == 9, "proven all the same"


def test_a_refusal_ends_a_round() -> None:
    round = LacRound(METADATA, ledger_id=7)
    round.on_answer(0, LacAnswer(Answer.UNAUTHORIZED, -1))
    assert round.is_over
    assert not round.is_covered
    assert isinstance(round.error(), AuthError)


# --- what may be read


def test_what_is_readable_never_falls_while_the_ledger_is_open() -> None:
    core = tail(knows=5)
    core.on_lac_answer("b1", LacAnswer(Answer.OK, 3), 1.0)
    assert core.readable == 5
    core.on_lac_answer("anybody", LacAnswer(Answer.BAD_DIGEST, 7), 1.0)
    assert core.readable == 7, "a digest proves it, wherever it stands"


def test_a_later_fragment_shows_what_is_before_it() -> None:
    core = tail(
        replace(METADATA, fragments=(Fragment(0, BOOKIES), Fragment(4, ("b3", "b4", "b5"))))
    )
    assert core.readable == 3


def test_the_closed_end_is_the_answer_whatever_was_heard() -> None:
    core = tail(knows=5)
    core.on_metadata(replace(METADATA, state=LedgerState.IN_RECOVERY))
    assert (core.readable, core.is_ended, core.is_in_recovery) == (5, False, True)
    core.on_metadata(METADATA)
    assert core.is_in_recovery, "states do not go back"
    core.on_metadata(replace(METADATA, state=LedgerState.CLOSED, last_entry_id=4))
    assert (core.readable, core.is_ended) == (4, True)
    assert core.asks(100.0) == ([], [])
    core.on_deleted()
    assert (core.readable, core.is_ended) == (-1, True)


# --- polls


def test_every_bookie_is_polled_for_more_than_itself_told() -> None:
    core = tail()
    core.on_lac_answer("b0", LacAnswer(Answer.OK, 5), 0.0)
    core.on_lac_answer("b1", LacAnswer(Answer.OK, 2), 0.0)
    sent = polls(core)
    assert {id: poll.waits_past for id, poll in sent.items()} == {"b0": 5, "b1": 2, "b2": 5}
    assert polls(core, 0.5) == {}, "one at a time"
    core.on_poll(sent["b1"], Answer.OK, told(4), DIGEST, 0.6)
    assert {id: poll.waits_past for id, poll in polls(core, 0.6).items()} == {"b1": 4}
    core.on_poll(sent["b0"], Answer.OK, told(5), DIGEST, POLL_MS / 1000)
    assert set(polls(core, POLL_MS / 1000)) == {"b0"}, "at once: its time was over"


def test_a_word_is_proven_before_it_counts() -> None:
    core = tail(knows=5)
    sent = polls(core)
    core.on_poll(sent["b1"], Answer.OK, told(6), DIGEST, 0.1)
    assert core.readable == 5
    _, proofs = core.asks(0.1)
    assert proofs == [sent["b1"]]
    core.on_poll(sent["b0"], Answer.OK, told(6), DIGEST, 0.11)
    assert core.asks(0.11)[1] == [], "one proof is enough, if it comes"
    hedge_s = 0.1 + PROOF_HEDGE_MS / 1000
    assert core.look_again_s() == hedge_s
    assert core.asks(hedge_s)[1] == [sent["b0"]]
    core.on_proof_answer(sent["b0"], LacAnswer(Answer.OK, 6), 0.13)
    assert core.readable == 6
    assert core.asks(0.14)[1] == []


def test_a_word_that_is_not_proven_is_asked_for_ever_more_rarely() -> None:
    core = tail(knows=5)
    polls(core)
    (poll, *_) = core._polls.values()
    core.on_poll(poll, Answer.OK, told(1_000), DIGEST, 0.0)
    asked_at_s = []
    now_s = 0.0
    while now_s < 10.0:
        for each in core.asks(now_s)[1]:
            asked_at_s.append(now_s)
            core.on_proof_answer(each, LacAnswer(Answer.OK, 5), now_s)
        now_s += 0.001
    assert asked_at_s[1] >= PAUSE_MS_FIRST / 1000
    assert 10 <= len(asked_at_s) <= 20
    core.on_poll(poll, Answer.OK, told(6), DIGEST, 10.0)
    assert core.asks(10.0)[1] == [poll], "another word is another matter"


def test_an_entry_that_came_is_kept_until_it_may_be_read() -> None:
    core = tail(knows=5)
    sent = polls(core)
    core.on_poll(sent["b0"], Answer.OK, told(6, entry(6), 6), DIGEST, 0.1)
    assert core.take_brought(6) is None, "not proven to be readable yet"
    core.on_lac_answer("b0", LacAnswer(Answer.OK, 6), 0.1)
    assert core.take_brought(5) is None
    assert core.take_brought(6) == b"payload"
    assert core.take_brought(6) is None, "once"


@pytest.mark.parametrize(
    ("raw", "entry_id"),
    [(memoryview(b"\0" * 40), 6), (entry(7), 6), (entry(7), 7), (entry(5), 5)],
    ids=["damaged", "another", "not the next", "known"],
)
def test_an_entry_that_is_not_the_awaited_one_is_not_kept(raw: memoryview, entry_id: int) -> None:
    core = tail(knows=5)
    core.on_poll(polls(core)["b0"], Answer.OK, told(8, raw, entry_id), DIGEST, 0.1)
    core.on_lac_answer("b0", LacAnswer(Answer.OK, 8), 0.1)
    assert core.take_brought(entry_id) is None
    assert core.take_brought(6) is None


def test_a_poll_that_comes_back_early_asks_for_metadata_and_pauses() -> None:
    core = tail(knows=5)
    poll = polls(core)["b0"]
    now_s, pauses = 0.1, []
    for _ in range(10):
        core.wants_metadata = False
        core.on_poll(poll, Answer.OK, told(5), DIGEST, now_s)
        assert core.wants_metadata
        pauses.append(poll.not_before_s - now_s)
        assert polls(core, now_s) == {}
        now_s = poll.not_before_s
        assert set(polls(core, now_s)) == {"b0"}
    assert pauses[0] == pytest.approx(PAUSE_MS_FIRST / 1000)
    assert pauses[-1] == pytest.approx(PAUSE_MS_MAX / 1000)
    core.on_poll(poll, Answer.OK, told(6), DIGEST, now_s)
    assert set(polls(core, now_s)) == {"b0"}, "news end the pauses"
    core.on_poll(poll, Answer.OK, told(6), DIGEST, now_s)
    assert poll.not_before_s - now_s == pytest.approx(PAUSE_MS_FIRST / 1000)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (Answer.DISCONNECTED, None),
        (Answer.TIMED_OUT, None),
        (Answer.NO_LEDGER, None),
        (Answer.UNAUTHORIZED, None),
        (Answer.OK, told(None)),
        (Answer.OK, ReadBody(8, -1, None, 50, 0)),
        (Answer.OK, WriteLacBody(7)),
    ],
)
def test_a_poll_that_failed_pauses(answer: Answer, body: Body | None) -> None:
    core = tail(knows=5)
    poll = polls(core)["b0"]
    core.on_poll(poll, answer, body, DIGEST, 0.1)
    assert polls(core, 0.1) == {}
    assert core.look_again_s() == pytest.approx(0.1 + PAUSE_MS_FIRST / 1000)
    assert poll.told == 5


def test_any_number_is_bounded_before_it_is_used() -> None:
    core = tail(knows=5)
    sent = polls(core)
    core.on_poll(sent["b0"], Answer.OK, told((1 << 63) - 1), DIGEST, 0.1)
    core.on_poll(sent["b1"], Answer.OK, told(-(1 << 63)), DIGEST, 0.1)
    again = polls(core, 1.0)
    assert again["b0"].waits_past == (1 << 63) - 2
    assert again["b1"].waits_past == -1


def test_polls_follow_the_last_ensemble() -> None:
    core = tail(knows=5)
    before = polls(core)
    fragments = (*METADATA.fragments, Fragment(6, ("b0", "b3", "b2")))
    core.on_metadata(replace(METADATA, fragments=fragments))
    assert set(polls(core, 0.1)) == {"b3"}
    core.on_poll(before["b1"], Answer.OK, told(9), DIGEST, 0.2)
    assert core.asks(0.2) == ([], []), "nobody asks a bookie that is out"
    assert core._polls["b0"] is before["b0"]


def test_bookies_enough_were_heard_lately() -> None:
    core = tail()
    assert not core.is_heard(0.0)
    sent = polls(core)
    core.on_poll(sent["b0"], Answer.OK, told(-1), DIGEST, 1.0)
    core.on_poll(sent["b1"], Answer.TIMED_OUT, None, DIGEST, 1.0)
    assert not core.is_heard(1.0)
    core.on_lac_answer("b2", LacAnswer(Answer.NO_ENTRY, -1), 1.5)
    assert core.is_heard(1.5)
    assert core.is_heard(1.0 + HEARD_S)
    assert not core.is_heard(1.1 + HEARD_S)


def test_entry_zero_is_an_entry() -> None:
    core = tail(knows=-1)
    poll = polls(core)["b0"]
    assert poll.waits_past == -1
    core.on_poll(poll, Answer.OK, told(0, entry(0), 0), DIGEST, 0.1)
    assert core.asks(0.1)[1] == [poll]
    core.on_proof_answer(poll, LacAnswer(Answer.OK, 0), 0.1)
    assert core.readable == 0
    assert core.take_brought(0) == b"payload"
    assert poll.waits_past == 0
    core.on_poll(poll, Answer.OK, told(0), DIGEST, 1.2)
    other = tail()
    other.on_lac_answer("b0", LacAnswer(Answer.OK, 3), 0.0)
    other.on_lac_answer("b1", LacAnswer(Answer.OK, 0), 0.0)
    assert polls(other)["b1"].waits_past == 0

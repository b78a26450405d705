"""The decisions of one read: whom to ask, when to ask another, what to take, what to say."""

from __future__ import annotations

import random

import pytest

from dlog.errors import AuthError, Broken, Corrupt, ReaderClosed, Unavailable
from dlog.ledger.bookkeeper.core.entry_read import (
    HEDGE_MS_FIRST,
    HEDGE_MS_MAX,
    HEDGE_MS_MIN,
    RUN_ENTRIES_MAX,
    SINGLES_S,
    TROUBLED_S,
    Ask,
    BookieHabits,
    EntryRead,
    asking_order,
)
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, READ_TIMEOUT_MS_DEFAULT
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest

DIGEST = EntryDigest(DigestType.CRC32C, b"")
BOOKIES = ("b0", "b1", "b2")
STOPPING = {Answer.CLIENT_CLOSED, Answer.ILLEGAL}


def entry(entry_id: int, payload: bytes = b"payload") -> memoryview:
    return memoryview(DIGEST.pack_head(7, entry_id, entry_id - 1, 1 << 40, [payload]) + payload)


def new_read(
    first: int = 0,
    last: int = 9,
    *,
    bytes_max: int = 1 << 20,
    in_batches: bool = True,
    habits: BookieHabits | None = None,
    deadline_s: float = 10.0,
    bookies: tuple[str, ...] = BOOKIES,
) -> EntryRead:
    return EntryRead(
        7,
        first,
        last,
        bytes_max=bytes_max,
        bookies=bookies,
        in_batches=in_batches,
        singles_max=8,
        digest=DIGEST,
        habits=habits or BookieHabits(),
        deadline_s=deadline_s,
    )


def asked(read: EntryRead, now_s: float = 0.0) -> Ask:
    ask = read.asks(now_s)
    assert ask is not None
    return ask


def test_one_bookie_is_asked_and_its_answer_taken() -> None:
    read = new_read(5, 9)
    ask = asked(read)
    assert (ask.bookie_id, ask.count_max, ask.as_batch) == ("b0", 5, True)
    assert ask.timeout_ms == READ_TIMEOUT_MS_DEFAULT
    assert read.asks(0.0) is None, "nobody else while there is hope"
    read.on_answer(ask, Answer.OK, [entry(5), entry(6)], 0.001)
    assert read.is_over
    assert (read.winner, read.payloads) == ("b0", [b"payload", b"payload"])


@pytest.mark.parametrize("answer", sorted(set(Answer) - {Answer.OK}, key=str))
def test_every_other_answer_leads_to_the_next_bookie_or_to_the_end(answer: Answer) -> None:
    read = new_read()
    read.on_answer(asked(read), answer, [], 0.001)
    if answer in STOPPING:
        assert read.is_over
        assert isinstance(read.error(), ReaderClosed)
        return
    ask = asked(read, 0.001)
    assert ask.bookie_id == "b1"
    read.on_answer(ask, Answer.OK, [entry(0)], 0.002)
    assert read.winner == "b1"


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((Answer.NO_ENTRY,) * 3, Unavailable),
        ((Answer.BAD_DIGEST,) * 3, Corrupt),
        ((Answer.NO_ENTRY, Answer.BAD_DIGEST, Answer.NO_LEDGER), Corrupt),
        ((Answer.BAD_DIGEST, Answer.TIMED_OUT, Answer.BAD_DIGEST), Unavailable),
        ((Answer.BAD_DIGEST, Answer.LIMBO, Answer.BAD_DIGEST), Unavailable),
        ((Answer.UNAUTHORIZED,) * 3, AuthError),
        ((Answer.NO_ENTRY, Answer.UNAUTHORIZED, Answer.TIMED_OUT), AuthError),
        ((Answer.BUSY, Answer.UNAUTHORIZED, Answer.NO_ENTRY), Unavailable),
    ],
)
def test_what_is_said_when_nobody_had_it(
    answers: tuple[Answer, ...], error: type[Exception]
) -> None:
    read = new_read(3, 3)
    for answer in answers:
        read.on_answer(asked(read), answer, [], 0.0)
    assert read.is_over
    raised = read.error()
    assert type(raised) is error
    assert (raised.ledger_id, raised.entry_id) == (7, 3)
    for bookie_id, answer in zip(BOOKIES, answers, strict=True):
        assert f"{bookie_id}: {answer.value}" in raised.message
    if error is Unavailable:
        assert (raised.missing, raised.needed) == (list(BOOKIES), 1)


def test_silence_hedges_and_the_first_right_answer_wins() -> None:
    habits = BookieHabits()
    read = new_read(habits=habits)
    first = asked(read)
    hedge_s = HEDGE_MS_FIRST / 1000
    assert read.look_again_s() == hedge_s
    assert read.asks(hedge_s - 0.001) is None
    second = asked(read, hedge_s)
    assert read.asks(hedge_s + 0.001) is None, "the second one gets its time, too"
    third = asked(read, 2 * hedge_s)
    assert read.hedges == 2
    assert read.look_again_s() == 10.0, "nobody is left to ask: only the deadline counts"
    read.on_answer(third, Answer.NO_ENTRY, [], 0.6)
    assert not read.is_over
    read.on_answer(second, Answer.OK, [entry(0)], 0.7)
    assert read.winner == "b1"
    assert habits.is_troubled("b0", 0.7), "overtaken"
    assert not habits.is_troubled("b2", 0.7)
    read.on_answer(first, Answer.OK, [entry(0), entry(1)], 0.8)
    assert (read.winner, len(read.payloads)) == ("b1", 1), "an answer after the end changes nothing"


def test_a_hedge_that_is_slower_is_not_blamed() -> None:
    habits = BookieHabits()
    read = new_read(habits=habits)
    first = asked(read)
    asked(read, HEDGE_MS_FIRST / 1000)
    read.on_answer(first, Answer.OK, [entry(0)], 0.4)
    assert not habits.is_troubled("b1", 0.4)


def test_the_deadline_ends_a_read_whoever_is_silent() -> None:
    habits = BookieHabits()
    read = new_read(habits=habits, deadline_s=1.0)
    assert asked(read).timeout_ms == 1_000.0, "no request outlives its read"
    asked(read, 0.4)
    read.on_answer(asked(read, 0.8), Answer.NO_ENTRY, [], 0.9)
    assert not read.is_over
    assert read.asks(1.0) is None
    assert read.is_over
    error = read.error()
    assert isinstance(error, Unavailable)
    assert error.missing == ["b2", "b0", "b1"]
    assert habits.is_troubled("b0", 1.0)
    assert not habits.is_troubled("b2", 1.0)


def test_a_run_is_cut_where_it_goes_wrong() -> None:
    read = new_read()
    wrong = memoryview(bytes(entry(2))[:-1] + b"x")
    read.on_answer(asked(read), Answer.OK, [entry(0), entry(1), wrong, entry(3)], 0.0)
    assert read.winner == "b0"
    assert len(read.payloads) == 2


@pytest.mark.parametrize(
    "entries", [[entry(1)], [memoryview(b"\0" * 40)], []], ids=["another", "none", "empty"]
)
def test_an_answer_without_the_first_entry_is_no_answer(entries: list[memoryview]) -> None:
    read = new_read()
    read.on_answer(asked(read), Answer.OK, entries, 0.0)
    assert not read.is_over
    assert asked(read).bookie_id == "b1"


def test_payloads_are_views_of_what_was_received() -> None:
    raw = entry(0)
    read = new_read()
    read.on_answer(asked(read), Answer.OK, [raw], 0.0)
    assert read.payloads[0].obj is raw.obj


def test_what_is_asked_for_is_bounded() -> None:
    ask = asked(new_read(0, 1 << 40, bytes_max=1 << 40))
    assert ask.count_max == RUN_ENTRIES_MAX
    assert ask.frame_bytes_max == BOOKIE_FRAME_BYTES_MAX
    # One entry of 1,000 bytes: frame, its length, numbers and digest, payload.
    assert asked(new_read(bytes_max=1_000)).frame_bytes_max == 36 + 4 + 36 + 1_000
    assert asked(new_read(bytes_max=0)).frame_bytes_max == 36 + 4 + 36 + 1
    with pytest.raises(Broken):
        new_read(-1, 3)


def test_single_reads_are_bounded_in_bytes_when_they_come() -> None:
    habits = BookieHabits()
    habits.note_batch("b0", Answer.DISCONNECTED, asked_at_s=0.0, now_s=0.0)
    read = new_read(0, 99, bytes_max=25, habits=habits)
    ask = asked(read, 1.0)
    assert (ask.as_batch, ask.count_max) == (False, 8)
    read.on_answer(ask, Answer.OK, [entry(each, b"x" * 10) for each in range(32)], 1.0)
    assert len(read.payloads) == 2
    one = asked(new_read(0, 99, in_batches=False))
    assert (one.as_batch, one.count_max) == (False, 1)


# --- habits


def test_the_hedge_follows_what_answers_usually_take() -> None:
    habits = BookieHabits()
    assert habits.hedge_ms == HEDGE_MS_FIRST
    for _ in range(200):
        habits.note_time(1.0)
    assert habits.hedge_ms == HEDGE_MS_MIN
    draw = random.Random(1)
    for _ in range(200):
        habits.note_time(draw.uniform(50, 100))
    assert 95 < habits.hedge_ms <= 100
    for _ in range(200):
        habits.note_time(5_000.0)
    assert habits.hedge_ms == HEDGE_MS_MAX


def test_one_slow_answer_in_a_thousand_does_not_move_the_hedge() -> None:
    habits = BookieHabits()
    for number in range(2_000):
        habits.note_time(3_000.0 if number == 1_000 else 30.0)
        if number > 20:
            assert habits.hedge_ms == 30.0


def test_trouble_is_forgotten() -> None:
    habits = BookieHabits()
    habits.note_trouble("b0", 5.0)
    assert habits.is_troubled("b0", 5.0)
    assert not habits.is_troubled("b1", 5.0)
    assert not habits.is_troubled("b0", 5.0 + TROUBLED_S)


@pytest.mark.parametrize(
    ("answer", "is_trouble"),
    [
        (Answer.TIMED_OUT, True),
        (Answer.DISCONNECTED, True),
        (Answer.BUSY, True),
        (Answer.IO_FAILED, True),
        (Answer.NO_ENTRY, False),
        (Answer.OK, False),
    ],
)
def test_who_is_in_trouble(answer: Answer, is_trouble: bool) -> None:
    habits = BookieHabits()
    read = new_read(habits=habits)
    read.on_answer(asked(read), answer, [entry(0)], 0.0)
    assert habits.is_troubled("b0", 0.0) is is_trouble


def test_a_bookie_without_batches_is_spared_them_for_a_while() -> None:
    habits = BookieHabits()
    read = new_read(habits=habits)
    read.on_answer(asked(read), Answer.DISCONNECTED, [], 0.0)
    assert not habits.reads_batches("b0", 0.0)
    read.on_answer(asked(read), Answer.NO_ENTRY, [], 0.0)
    read.on_answer(asked(read), Answer.NO_ENTRY, [], 0.0)
    again = asked(read)
    assert (again.bookie_id, again.as_batch) == ("b0", False), "in its own way, behind the others"
    read.on_answer(again, Answer.DISCONNECTED, [], 0.0)
    assert read.is_over, "and only once"
    assert habits.reads_batches("b0", SINGLES_S)


def test_a_bookie_that_knew_batches_is_believed_once_more() -> None:
    habits = BookieHabits()
    habits.note_batch("b0", Answer.OK, asked_at_s=0.0, now_s=0.0)
    habits.note_batch("b0", Answer.DISCONNECTED, asked_at_s=0.0, now_s=1.0)
    assert habits.reads_batches("b0", 1.0)
    habits.note_batch("b0", Answer.TIMED_OUT, asked_at_s=0.0, now_s=1.0)
    assert habits.reads_batches("b0", 1.0), "silence says nothing about batches"
    habits.note_batch("b0", Answer.DISCONNECTED, asked_at_s=1.0, now_s=1.0)
    assert habits.reads_batches("b0", 1.0), "lost with the same connection"
    habits.note_batch("b0", Answer.DISCONNECTED, asked_at_s=1.5, now_s=2.0)
    assert not habits.reads_batches("b0", 2.0)


def test_no_connection_says_nothing_about_batches() -> None:
    habits = BookieHabits()
    read = new_read(habits=habits)
    read.on_unreached(asked(read), 0.0)
    assert habits.reads_batches("b0", 0.0)
    assert habits.is_troubled("b0", 0.0)
    assert asked(read).bookie_id == "b1"


@pytest.mark.parametrize(
    ("home", "in_flight", "troubled", "order"),
    [
        (None, {}, (), "b0 b1 b2"),
        ("b1", {}, (), "b1 b2 b0"),
        ("b1", {"b1": 1}, (), "b2 b0 b1"),
        ("b1", {"b1": 1, "b2": 2}, (), "b0 b1 b2"),
        ("b1", {"b1": 1, "b2": 1, "b0": 1}, (), "b1 b2 b0"),
        ("b1", {}, ("b1",), "b2 b0 b1"),
        ("b1", {"b2": 5}, ("b1", "b0"), "b2 b1 b0"),
        ("b1", {}, BOOKIES, "b1 b2 b0"),
        ("gone", {}, (), "b0 b1 b2"),
    ],
)
def test_the_order_of_asking(
    home: str | None, in_flight: dict[str, int], troubled: tuple[str, ...], order: str
) -> None:
    habits = BookieHabits()
    for bookie_id in troubled:
        habits.note_trouble(bookie_id, 0.0)
    found = asking_order(BOOKIES, home=home, in_flight=in_flight, habits=habits, now_s=1.0)
    assert " ".join(found) == order


# --- any course of events


@pytest.mark.parametrize("seed", range(300))
def test_any_course_ends_by_the_deadline_with_right_entries_or_an_error(seed: int) -> None:
    draw = random.Random(seed)
    habits = BookieHabits()
    for bookie_id in BOOKIES:
        if draw.random() < 0.2:
            habits.note_trouble(bookie_id, 0.0)
        if draw.random() < 0.2:
            habits.note_batch(bookie_id, Answer.DISCONNECTED, asked_at_s=0.0, now_s=0.0)
    read = new_read(0, draw.randrange(20), habits=habits, deadline_s=draw.uniform(0.01, 10.0))
    now_s, in_flight = 0.0, []
    while not read.is_over:
        ask = read.asks(now_s)
        if ask is not None:
            in_flight.append((now_s + draw.expovariate(3.0), ask))
        elif not read.is_over:
            at_s = min((at_s for at_s, _ in in_flight), default=1e9)
            now_s = max(now_s, min(at_s, read.look_again_s()))
        for each in [each for each in in_flight if each[0] <= now_s]:
            in_flight.remove(each)
            answer, entries = _drawn_answer(draw, each[1])
            read.on_answer(each[1], answer, entries, now_s)
        assert now_s <= read._deadline_s
    for at_s, ask in in_flight:
        read.on_answer(ask, *_drawn_answer(draw, ask), at_s)
    if read.winner is None:
        assert read.error().message
    else:
        assert read.payloads == [b"%d" % each for each in range(len(read.payloads))]
        assert read.payloads


def _drawn_answer(draw: random.Random, ask: Ask) -> tuple[Answer, list[memoryview]]:
    if draw.random() < 0.5:
        return draw.choice(sorted(set(Answer) - {Answer.OK}, key=str)), []
    entries = [entry(each, b"%d" % each) for each in range(draw.randrange(ask.count_max + 2))]
    if entries and draw.random() < 0.3:
        torn = draw.randrange(len(entries))
        entries[torn] = memoryview(bytes(entries[torn])[:-1])
    return Answer.OK, entries

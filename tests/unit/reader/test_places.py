"""Finding places: every start by seq, id, position and time in a small log, beside what a look at
each message finds."""

from __future__ import annotations

import bisect
from datetime import UTC, datetime, timedelta

import pytest

from dlog.errors import ConfigError, Corrupt, NotFound, Truncated
from dlog.ids import MessageId, Position
from dlog.meta.listed import Point
from dlog.reader.places import (
    LastMessage,
    Place,
    Start,
    Tail,
    check_start,
    find_head,
    find_head_seq,
    find_last_id,
    find_last_message,
    find_tail,
    locate,
)
from tests.unit.reader.small_log import SmallLog, seven_segments

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def found(log: SmallLog, start: Start) -> Place:
    return log.run(locate(log.view(), start))


def message_at(log: SmallLog, place: Place) -> MessageId | None:
    """The first message from a place on, read entry by entry; None at the tail."""
    for number in listed(log):
        if place.number is not None and number < place.number:
            continue
        mine = [m.id for m in log.messages if m.id.ledger_id == 10 * number]
        if number == place.number:
            mine = [id_ for id_ in mine if (id_.entry_id, id_.batch_idx) >= place_of(place)]
        if mine:
            return mine[0]
    return None


def place_of(place: Place) -> tuple[int, int]:
    return place.entry_id, place.idx


def listed(log: SmallLog) -> list[int]:
    """The numbers of all segments, those in pages included."""
    view = log.view()
    numbers = [0]
    while (segment := log.run(view.after(numbers[-1]))) is not None:
        numbers.append(segment.number)
    return numbers[1:]


def check_found(log: SmallLog, start: Start, seq: int) -> None:
    """The place is that of `seq`, by what it says and by what stands there."""
    place = found(log, start)
    assert place.seq == seq, start
    wanted = [m.id for m in log.messages if m.seq == seq]
    assert message_at(log, place) == (wanted[0] if wanted else None), start


# --- every start of a whole log


def test_every_seq_is_found() -> None:
    log = seven_segments()
    for message in log.messages:
        place = found(log, message.seq)
        assert (place.seq, place_of(place)) == (message.seq, tuple(message.id[1:]))
        assert place.number == message.id.ledger_id // 10


def test_a_seq_behind_the_tail_is_the_place_of_the_next_message() -> None:
    log = seven_segments()
    end = len(log.messages)
    for seq in (end, end + 1, end + 1000):
        place = found(log, seq)
        assert (place.number, place.entry_id, place.idx) == (7, len(log.ledgers[70]), 0)
        assert place.seq == end


def test_every_id_is_found() -> None:
    log = seven_segments()
    for message in log.messages:
        place = found(log, message.id)
        assert (place.seq, place_of(place)) == (message.seq, tuple(message.id[1:]))


def test_an_id_that_never_was_is_not_found() -> None:
    log = seven_segments()
    there = {message.id for message in log.messages}
    for ledger_id in (-1, 0, 5, *log.ledgers, 11, 71):
        for entry_id in range(-1, 9):
            for idx in (-1, 0, 1, 2, 4):
                wanted = MessageId(ledger_id, entry_id, idx)
                if wanted not in there:
                    with pytest.raises(NotFound, match="has no message"):
                        found(log, wanted)


def test_every_position_is_found() -> None:
    log = seven_segments()
    check_found(log, Position("uid", 0, None), 0)
    for message in log.messages:
        position = Position("uid", message.seq + 1, message.id)
        check_found(log, position, message.seq + 1)
        check_found(log, Position("uid", message.seq, None), message.seq)


def test_a_position_that_contradicts_the_log_is_refused() -> None:
    log = seven_segments()
    third = log.messages[2]
    for next_seq in (third.seq, third.seq + 2):
        with pytest.raises(ConfigError, match="does not agree"):
            found(log, Position("uid", next_seq, third.id))
    with pytest.raises(ConfigError, match="another log"):
        found(log, Position("another", 3, third.id))


def test_every_time_is_found() -> None:
    """Inside entries with several times, between them, before the first and behind the last."""
    log = seven_segments()
    times = [message.time_us for message in log.messages]
    for time_us in range(min(times) - 3, max(times) + 4):
        check_found(log, at(time_us), bisect.bisect_left(times, time_us))


def test_a_time_inside_an_entry_begins_at_its_first_message_from_then_on() -> None:
    log = SmallLog()
    log.begin()
    log.write(10, 10, 20, 30, 30, 30, 40)
    for time_us, idx in [(9, 0), (10, 0), (11, 2), (20, 2), (21, 3), (30, 3), (31, 6), (40, 6)]:
        place = found(log, at(time_us))
        assert (place.entry_id, place.idx, place.seq) == (2, idx, idx)
    assert place_of(found(log, at(41))) == (3, 0)


def test_a_time_is_found_behind_entries_without_messages() -> None:
    log = SmallLog()
    log.begin(at_us=1)
    log.write(5, 6)
    for time_us in (10, 11, 12):
        log.control(time_us)
    log.write(20)
    for time_us in range(7, 21):
        check_found(log, at(time_us), 2)
    log.control(30)
    for time_us in range(21, 32):
        check_found(log, at(time_us), 3)


def test_a_time_that_only_control_entries_reach_is_looked_for_in_the_next_segment() -> None:
    log = SmallLog()
    log.begin(at_us=1)
    log.write(5)
    log.control(50)
    log.seal()
    log.begin(at_us=60)
    log.write(70)
    for time_us in range(6, 71):
        check_found(log, at(time_us), 1)


def test_head_and_tail() -> None:
    log = seven_segments()
    end = len(log.messages)
    assert found(log, "earliest") == Place(1, 1, 0, 0)
    assert found(log, "latest") == Place(7, len(log.ledgers[70]), 0, end)
    assert log.run(find_last_id(log.view())) == log.messages[-1].id


@pytest.mark.parametrize("is_open", [True, False])
def test_the_last_message_stands_behind_any_number_of_segments_without_one(is_open: bool) -> None:
    log = SmallLog()
    log.begin(at_us=10)
    log.write(20, 30)
    log.control(40)
    log.seal()
    for number in range(200):
        log.begin(at_us=100 + number)
        if number % 3 == 0:
            log.control(100 + number)
        if number < 199 or not is_open:
            log.seal()
    log.page(80)
    view = log.view()
    last = log.run(find_last_message(view))
    size = len(log.ledgers[10][2]) / 2
    assert last == LastMessage(log.messages[-1].id, 30, size) == LastMessage((10, 2, 1), 30, size)
    assert len(log.asked) < 20
    log.truncate(Point(seq=2))
    assert log.run(find_last_message(log.view())) is None


def test_the_tail_is_before_what_is_behind_it_only() -> None:
    log = seven_segments()
    tail = log.run(find_tail(log.view()))
    last = tail.last_entry
    assert not tail.is_before(Place(7, last))
    assert not tail.is_before(Place(6, last + 1))
    assert not tail.is_before(Place(None))
    assert tail.is_before(Place(7, last + 1))
    assert tail.is_before(Place(8, 0))
    assert not Tail(None, -1, 0).is_before(Place(1))


def test_a_log_without_segments() -> None:
    log = SmallLog()
    nowhere = Place(None, seq=0)
    for start in ("earliest", "latest", 0, 7, at(0), Position("uid", 0, None)):
        assert found(log, start) == nowhere
    assert log.run(find_last_id(log.view())) is None
    with pytest.raises(NotFound):
        found(log, MessageId(10, 2, 0))


@pytest.mark.parametrize("sealed", [True, False])
def test_a_log_without_messages(sealed: bool) -> None:
    log = SmallLog()
    log.begin()
    if sealed:
        log.seal()
    for start in ("latest", 0, 7, at(0), at(10**15)):
        place = found(log, start)
        assert (place.number, place.entry_id, place.seq) == (1, 2, 0), start
    assert found(log, "earliest") == Place(1, 1, 0, 0)
    assert log.run(find_last_id(log.view())) is None


def test_the_last_id_is_looked_for_behind_empty_segments_and_tables() -> None:
    log = SmallLog()
    log.begin()
    log.write(1, 2, 3)
    log.control(4)
    log.seal()
    log.begin()
    log.control(5)
    log.seal()
    log.begin()
    assert log.run(find_last_id(log.view())) == MessageId(10, 2, 2)
    log.truncate(Point(seq=3))
    assert log.run(find_last_id(log.view())) is None


# --- truncated logs


POINTS = [
    *(Point(seq=seq) for seq in range(len(seven_segments().messages) + 1)),
    *(Point(0, ledger_id, entry_id, idx)
      for ledger_id in (9, 10, 11, 20, 40, 50, 70)
      for entry_id in (-1, 0, 1, 2, 3, 4, 9)
      for idx in (0, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize("sweep", [False, True], ids=["listed", "swept"])
def test_the_head_is_the_first_message_that_is_left(sweep: bool) -> None:
    for point in POINTS:
        log = seven_segments()
        log.truncate(point, sweep=sweep)
        left = log.left()
        first = left[0].seq if left else len(log.messages)
        head = log.run(find_head(log.view()))
        assert head.seq == log.run(find_head_seq(log.view())), point
        assert head.seq == first, point
        assert message_at(log, head) == (left[0].id if left else None), point


def test_a_start_that_was_truncated_is_refused_and_names_the_head() -> None:
    for point in POINTS[1::7]:
        log = seven_segments()
        log.truncate(point)
        left = {message.seq for message in log.left()}
        first = min(left, default=len(log.messages))
        view = log.view()
        for message in log.messages:
            position = Position("uid", message.seq, None)
            for start in (message.seq, message.id, position):
                if message.seq in left:
                    assert log.run(locate(view, start)).seq == message.seq
                else:
                    with pytest.raises(Truncated) as told:
                        log.run(locate(view, start))
                    assert told.value.about["new_head"] == first
            behind = Position("uid", message.seq + 1, message.id)
            if message.seq + 1 >= first:  # the one before is gone, and what follows is there
                assert log.run(locate(view, behind)).seq == message.seq + 1


def test_a_time_before_what_is_left_is_refused() -> None:
    log = seven_segments()
    times = [message.time_us for message in log.messages]
    for seq in range(1, len(times)):
        log = seven_segments()
        log.truncate(Point(seq=seq))
        for time_us in range(times[seq - 1] - 1, times[seq] + 2):
            wanted = bisect.bisect_left(times, time_us)
            if wanted < seq:
                with pytest.raises(Truncated, match="written from"):
                    found(log, at(time_us))
            elif wanted > seq:
                assert found(log, at(time_us)).seq == wanted


def test_a_swept_ledger_was_truncated_and_one_that_comes_later_never_was() -> None:
    log = seven_segments()
    log.truncate(Point(seq=log.messages[-1].seq), sweep=True)
    with pytest.raises(Truncated):
        found(log, MessageId(10, 2, 0))
    with pytest.raises(NotFound):
        found(log, MessageId(71, 2, 0))


# --- a list that lies


def test_a_list_that_ends_a_segment_too_early_is_told_so() -> None:
    log = SmallLog()
    log.begin()
    for time_us in (10, 20, 30):
        log.write(time_us, time_us)
    cut = log.ledgers[10].pop()
    log.seal()
    log.ledgers[10].append(cut)
    for start in (MessageId(10, 4, 0), 4, at(25)):
        with pytest.raises(Corrupt, match="listed up to seq 5"):
            found(log, start)
    with pytest.raises(Corrupt, match="listed up to seq 5"):
        log.run(find_last_id(log.view()))


# --- what a start may be


@pytest.mark.parametrize(
    "start",
    ["earliest", "latest", 0, 5, MessageId(1, 2, 3), Position("uid", 0, None), at(0)],
    ids=str,
)
def test_a_start(start: Start) -> None:
    assert check_start(start) is start


@pytest.mark.parametrize(
    "start", ["first", "", -1, True, 1.0, None, b"earliest", datetime(2020, 1, 1), (1, 2, 3)],
    ids=str,
)  # fmt: skip
def test_no_start(start: object) -> None:
    with pytest.raises(ConfigError, match="begin"):
        check_start(start, "begin")

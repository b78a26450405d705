"""What became of a message: the answer to every token of a small log, beside the truth of who wrote
which seq."""

from __future__ import annotations

import dataclasses

import pytest

from dlog.errors import Broken, ConfigError, Corrupt
from dlog.ids import Token
from dlog.meta.listed import Point, WriterMark
from dlog.meta.log_meta import LogState
from dlog.reader.resolve import Never, Present, Resolved, TooLate, Undecided, resolve
from tests.unit.reader.small_log import SmallLog

SECOND, THIRD = WriterMark("second", "grace", 0), WriterMark("third", "ada", 0)


def resolved(log: SmallLog, epoch: int, seq: int) -> Resolved:
    return log.run(resolve(log.view("strict"), Token("uid", epoch, seq)))


def three_writers() -> SmallLog:
    """Two segments of epoch 1, one in a page; one of epoch 2; one of epoch 3 that is written, of
    which six messages are sealed by nobody."""
    log = SmallLog()
    for number in range(2):
        log.begin()
        log.write(1 + number, 2 + number)
        log.write(5)
        log.seal()
    log.page(1)
    log.meta = log.meta.claimed(SECOND)
    log.begin()
    log.write(7, 8, 9)
    log.seal()
    log.meta = log.meta.claimed(THIRD)
    log.begin()
    log.write(10, 11, 12, 13)
    log.write(14, 15)
    return log


def test_every_token_of_a_log_that_is_written() -> None:
    log = three_writers()
    end = len(log.messages)
    for epoch in (1, 2, 3):
        for message in log.messages:
            told = resolved(log, epoch, message.seq)
            if message.epoch == epoch:
                assert told == Present(message.id)
            else:
                assert told == Never(), (epoch, message)
        for seq in (end, end + 1, end + 50):
            told = resolved(log, epoch, seq)
            if epoch == 3:
                assert isinstance(told, Undecided)
                assert "ada, still holds the log" in told.why
            else:
                assert told == Never()


def test_nothing_of_a_writer_that_left_is_undecided() -> None:
    log = three_writers()
    log.seal()
    log.meta = log.meta.handed_over(None)
    end = len(log.messages)
    assert resolved(log, 3, end - 1) == Present(log.messages[-1].id)
    for epoch in (1, 2, 3):
        for seq in (end, end + 1):
            assert resolved(log, epoch, seq) == Never()


def test_what_a_takeover_has_not_decided_is_undecided() -> None:
    """It claimed the log, and has not sealed what the writer before it left."""
    log = three_writers()
    log.meta = log.meta.claimed(WriterMark("fourth", "joan", 0))
    end = len(log.messages)
    for message in log.messages[-6:]:
        assert resolved(log, 3, message.seq) == Present(message.id)
    told = resolved(log, 3, end)
    assert isinstance(told, Undecided)
    assert "a takeover by joan, epoch 4, has not decided" in told.why
    assert resolved(log, 2, end) == Never()
    told = resolved(log, 4, end)
    assert isinstance(told, Undecided)
    assert "joan, still holds" in told.why


def test_an_unsealed_segment_of_another_epoch_has_nothing_of_ours() -> None:
    """A writer of epoch 4 lists its own ledger before the one of epoch 3 is sealed."""
    log = three_writers()
    log.meta = log.meta.claimed(WriterMark("fourth", "joan", 0))
    log.close()
    log.begin()
    log.write(20, 21)
    for message in log.messages[-2:]:
        assert resolved(log, 4, message.seq) == Present(message.id)
        assert resolved(log, 3, message.seq) == Never()


@pytest.mark.parametrize("sweep", [False, True], ids=["listed", "swept"])
def test_what_was_truncated_is_too_late(sweep: bool) -> None:
    whole = three_writers()
    points = [Point(seq=message.seq + 1) for message in whole.messages]
    points += [Point(0, *message.id) for message in whole.messages]
    for point in points:
        log = three_writers()
        log.truncate(point, sweep=sweep)
        left = log.left()
        first = left[0].seq if left else len(log.messages)
        view = log.view("strict")
        for message in log.messages:
            told = log.run(resolve(view, Token("uid", message.epoch, message.seq)))
            if message.seq >= first:
                assert told == Present(message.id)
            else:
                assert isinstance(told, TooLate), (point, message)
                assert f"seq {message.seq} was truncated" in told.why


@pytest.mark.parametrize("epoch", [-1, 0, 4, 5])
def test_an_epoch_that_the_log_has_not_reached_is_refused(epoch: int) -> None:
    with pytest.raises(ConfigError, match="is at epoch 3"):
        resolved(three_writers(), epoch, 0)


def test_a_log_that_is_gone_tells_nothing() -> None:
    log = three_writers()
    view = log.view("strict")
    log.meta = dataclasses.replace(log.meta, state=LogState.DELETED)
    told = log.run(resolve(view, Token("uid", 1, 0)))
    assert isinstance(told, TooLate)
    assert "is not there" in told.why


def test_a_ledger_that_is_missing_is_damage_where_the_list_stays_as_it_is() -> None:
    log = three_writers()
    del log.ledgers[30]
    with pytest.raises(Corrupt, match="a ledger of its list is missing"):
        resolved(log, 2, log.messages[6].seq)
    assert isinstance(resolved(log, 1, 0), Present)


def test_a_normal_view_is_refused() -> None:
    """It believes what a stranger's recovery shows."""
    log = three_writers()
    with pytest.raises(Broken, match="strict"):
        log.run(resolve(log.view(), Token("uid", 1, 0)))

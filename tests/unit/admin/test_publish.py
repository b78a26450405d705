"""Publishing a batch while replies are lost and others change the log: what is told is true."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog import limits
from dlog.admin.publish import Publication, Publishing, publish
from dlog.effects import CreateNode, Effect, LookAtLedger, Pause, ReadNode, ReplaceNode
from dlog.errors import (
    AuthError,
    ConfigError,
    Conflict,
    Corrupt,
    DlogError,
    NotFound,
    Outcome,
    Retry,
    Timeout,
    Unavailable,
    Unsupported,
)
from dlog.meta.listed import Doomed, Point, WriterMark
from dlog.meta.log_meta import LogState
from dlog.meta.published import PublishedBatch
from dlog.options import LogOptions
from dlog.wire.batch import Birth, ControlKind, encode, encode_control
from dlog.wire.control import Role
from dlog.writer.filled import FilledSegment
from dlog.writer.takeover import Opening
from dlog.writer.times import Stopwatch
from tests.scenarios.by_hand import NoChance
from tests.unit.admin.scripted import READ, Scripted
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog

MARK = WriterMark("ours", "publisher", 0)
COMMIT, CLAIM = "publish.committed", "publish.claimed"
LOST = Timeout("no reply")


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_ATTEMPTS_MAX", 5)


def birth(role: Role, number: int | None, epoch: int | None, uid: str = "uid") -> bytes:
    body = Birth(uid, role, number, epoch, "t").to_bytes()
    return b"".join(encode_control(ControlKind.BIRTH, body, first_seq=0, timestamp_us=1))


def small(*, sealed: bool) -> Scripted:
    """Two segments of two messages each, written at 100 and 200; the last one is open or sealed."""
    log = SmallLog()
    for number in (1, 2):
        ledger_id = log.begin(at_us=100 * number)
        log.ledgers[ledger_id][0] = birth("segment", number, log.meta.epoch)
        log.write(100 * number, 100 * number + 9)
        if sealed or number == 1:
            log.seal()
    return Scripted.of(log)


@pytest.fixture(params=[True, False], ids=["sealed", "open"])
def log(request: pytest.FixtureRequest) -> Scripted:
    return small(sealed=request.param)


def filled(
    log: Scripted, ledger_id: int, *counts: int, at_us: int = 300, born: bytes | None = None
) -> FilledSegment:
    """A closed ledger of a job, one entry for each count of messages, ten apart."""
    entries = [born or birth("job", None, None)]
    seq = 0
    for number, count in enumerate(counts):
        time_us = at_us + 10 * number
        entries.append(b"".join(encode([b"x"] * count, first_seq=seq, timestamp_us=time_us)))
        seq += count
    log.ledgers[ledger_id] = entries
    log.closed.add(ledger_id)
    size = sum(map(len, entries))
    last_us = at_us + 10 * (len(counts) - 1)
    return FilledSegment(NAME, "uid", "j", ledger_id, len(entries) - 1, seq, size, at_us, last_us)


def publishing(*segments: FilledSegment, number: int = 1, query: str = "q") -> Publishing:
    opening = Opening(
        NAME, LAYOUT, MARK, "always", None, "", lambda: 1_000, NoChance(), Stopwatch(lambda: 0.0)
    )
    return Publishing(opening, query, number, segments, segments[0].log_uid if segments else None)


def published(log: Scripted, *segments: FilledSegment, **key: Any) -> Publication:
    told: Publication = log.run(publish(publishing(*segments, **key)))
    return told


def batch_of(log: Scripted, query: str = "q") -> PublishedBatch | None:
    return log.meta.published.of(query)


# --- what is published


def test_segments_become_the_newest_of_the_log(log: Scripted) -> None:
    """In the order of their ledgers, each behind the one before."""
    epoch = log.meta.epoch
    told = published(log, filled(log, 50, 2, 3), filled(log, 60, 4, at_us=350))
    assert (told.published, told.query, told.number, told.messages) == (True, "q", 1, 9)
    assert (told.base_seq, told.next_seq) == (4, 13)
    assert told.epoch == log.meta.epoch
    assert log.meta.epoch > epoch
    assert not log.meta.unsealed
    assert log.meta.writer is None, "nobody has it now"
    first, second = log.meta.segments[-2:]
    assert first.sealed is not None
    assert second.sealed is not None
    assert (first.ledger_id, first.is_job, second.ledger_id, second.is_job) == (50, True, 60, True)
    assert (first.sealed.base_seq, first.sealed.next_seq, first.sealed.last_entry) == (4, 9, 2)
    assert (first.sealed.first_time_us, first.sealed.last_time_us) == (300, 310)
    assert (second.sealed.base_seq, second.sealed.next_seq, second.sealed.last_entry) == (9, 13, 1)
    assert (second.sealed.first_time_us, second.sealed.last_time_us) == (350, 350)
    assert second.sealed.bytes == sum(map(len, log.ledgers[60]))
    assert log.meta.end.next_seq == 13


def test_the_clock_of_the_log_does_not_go_back_for_older_messages(log: Scripted) -> None:
    """Nor from one published segment to the next."""
    published(log, filled(log, 50, 1, 1, at_us=205), filled(log, 60, 1, at_us=1))
    first, second = log.meta.segments[-2:]
    assert first.sealed is not None
    assert second.sealed is not None
    assert (first.sealed.first_time_us, first.sealed.last_time_us) == (209, 215)
    assert (second.sealed.first_time_us, second.sealed.last_time_us) == (215, 215)


def test_a_writer_is_fenced_only_for_messages() -> None:
    log = small(sealed=False)
    before = log.meta
    told = published(log)
    assert (told.published, told.base_seq, told.next_seq) == (True, before.end.next_seq, 2)
    assert log.meta.segments == before.segments
    assert log.meta.epoch == before.epoch


def test_a_batch_that_is_there_is_told_with_where_it_stands(log: Scripted) -> None:
    first = published(log, filled(log, 50, 2), number=3)
    again = published(log, filled(log, 60, 7), number=3)
    assert again.published, "it has our token"
    other = dataclasses.replace(publishing(number=3))
    object.__setattr__(other.opening, "mark", WriterMark("others", "other", 0))
    told = log.run(publish(other))
    assert told == dataclasses.replace(first, published=False)
    older = published(log, number=2)
    assert (older.published, older.epoch, older.messages) == (False, None, None)
    assert log.meta.segments[-1].ledger_id == 50


# --- lost replies


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_whose_reply_is_lost_is_there_once(log: Scripted, applied: bool) -> None:
    segment = filled(log, 50, 2)
    log.lose(COMMIT, LOST, applied=applied)
    told = published(log, segment)
    assert (told.published, told.base_seq, told.next_seq) == (True, 4, 6)
    assert [each.ledger_id for each in log.meta.segments].count(50) == 1


def failure(log: Scripted, *segments: FilledSegment) -> DlogError:
    with pytest.raises(DlogError) as caught:
        published(log, *segments)
    return caught.value


def test_while_a_commit_may_still_come_every_error_says_so() -> None:
    """Until the log is read at another version, where it would show."""
    log = small(sealed=True)
    log.lose(COMMIT, LOST)
    log.lose(COMMIT, AuthError("no rights"))
    assert failure(log).outcome is Outcome.UNKNOWN


def test_a_commit_that_does_not_show_at_another_version_never_will() -> None:
    log = small(sealed=True)
    log.lose(COMMIT, LOST)
    log.before(READ, lambda: None)
    log.before(READ, lambda: log.change(epoch=log.meta.epoch + 1))
    log.lose(COMMIT, AuthError("no rights"))
    assert failure(log).outcome is Outcome.NOT_HAPPENED


@pytest.mark.parametrize("state", [LogState.DELETING, LogState.DELETED])
def test_in_a_log_that_was_removed_it_may_have_been(state: LogState) -> None:
    """The table of its batches is gone, and whether the batch was in it."""
    log = small(sealed=True)
    log.lose(COMMIT, LOST)
    log.before(READ, lambda: None)
    log.before(READ, lambda: log.change(state=state))
    error = failure(log, filled(log, 50, 1))
    assert isinstance(error, NotFound)
    assert error.outcome is Outcome.UNKNOWN


def test_in_a_log_that_was_made_anew_it_may_have_been_in_the_one_before() -> None:
    log = small(sealed=True)
    log.lose(COMMIT, LOST)

    def make_anew() -> None:
        removed = dataclasses.replace(log.meta, state=LogState.DELETED)
        log.put(removed.reborn("another", LogOptions()))

    log.before(READ, lambda: None)
    log.before(READ, make_anew)
    error = failure(log, filled(log, 50, 1))
    assert isinstance(error, NotFound)
    assert error.outcome is Outcome.UNKNOWN


def test_a_log_that_cannot_be_read_after_a_lost_commit_is_asked_again() -> None:
    log = small(sealed=True)
    log.lose(COMMIT, LOST, applied=True)
    log.before(READ, lambda: None)
    log.lose(READ, Unavailable("away"))
    assert published(log, filled(log, 50, 1)).published


@pytest.mark.parametrize("error", [Unavailable("away"), AuthError("no rights")])
def test_a_log_that_cannot_be_read_at_first_is_told_at_once(error: DlogError) -> None:
    log = small(sealed=True)
    log.lose(READ, error)
    told = failure(log)
    assert (type(told), told.outcome) == (type(error), Outcome.NOT_HAPPENED)
    assert len(log.done) == 1


def test_a_log_that_may_not_be_read_after_a_lost_commit_leaves_it_unknown() -> None:
    log = small(sealed=True)
    log.lose(COMMIT, LOST, applied=True)
    log.before(READ, lambda: None)
    log.lose(READ, AuthError("no rights"))
    error = failure(log)
    assert isinstance(error, AuthError)
    assert error.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("point", [CLAIM, "takeover.recovered"])
def test_an_error_of_a_takeover_says_whether_a_commit_may_still_come(point: str) -> None:
    """First without one, then behind one that was lost."""
    for lost in (False, True):
        log = small(sealed=False)
        if lost:
            log.lose(COMMIT, LOST)
            log.before(point, lambda: None)
        for _ in range(limits.META_ATTEMPTS_MAX if lost else 1):
            log.lose(point, AuthError("no rights"))
        log.lose(COMMIT, AuthError("no rights"))
        assert failure(log, filled(log, 50, 1)).outcome is (
            Outcome.UNKNOWN if lost else Outcome.NOT_HAPPENED
        )


def test_a_log_that_changes_again_and_again_is_given_up(log: Scripted) -> None:
    for _ in range(2 * limits.META_ATTEMPTS_MAX**2):
        log.lose(COMMIT, Conflict("it changed"))
    error = failure(log, filled(log, 50, 1))
    assert isinstance(error, Conflict)
    assert error.outcome is Outcome.NOT_HAPPENED
    assert batch_of(log) is None


def test_a_commit_that_stays_unknown_is_told_as_such() -> None:
    log = small(sealed=True)
    for _ in range(limits.META_ATTEMPTS_MAX):
        log.lose(COMMIT, LOST)
    assert failure(log, filled(log, 50, 1)).outcome is Outcome.UNKNOWN


def test_it_pauses_between_two_tries_only() -> None:
    log = small(sealed=True)
    log.lose(COMMIT, Conflict("it changed"))
    published(log)
    kinds = [type(each) for each in log.done if isinstance(each, (Pause, ReadNode, ReplaceNode))]
    assert kinds[:4] == [ReadNode, ReplaceNode, Pause, ReadNode]


# --- others


def test_a_claim_whose_reply_is_lost_is_made_once() -> None:
    log = small(sealed=False)
    epoch = log.meta.epoch
    log.lose(CLAIM, LOST, applied=True)
    assert published(log, filled(log, 50, 2)).next_seq == 6
    assert log.meta.epoch == epoch + 1


def test_each_claim_of_a_publication_rises() -> None:
    """It notes what it tried, so that its presence is withdrawn afterwards."""
    log = small(sealed=False)
    work = publishing(filled(log, 50, 2))
    log.run(publish(work))
    assert work.claims == [log.meta.epoch]
    assert any(isinstance(each, CreateNode) and each.ephemeral for each in log.done)


def test_somebody_else_who_publishes_the_batch_first_is_told() -> None:
    log = small(sealed=False)
    theirs = PublishedBatch("q", 1, "theirs", 1, 0, 1)
    log.before(CLAIM, lambda: log.put(log.meta.noted(theirs)))
    told = published(log, filled(log, 50, 2))
    assert (told.published, told.base_seq, told.next_seq) == (False, 0, 1)
    assert 50 not in {each.ledger_id for each in log.meta.segments}


OTHER = WriterMark("theirs", "another writer", 0)


@pytest.mark.parametrize("step", [CLAIM, COMMIT])
def test_a_writer_that_claims_the_log_in_between_is_fenced(step: str) -> None:
    """The batch has an epoch of its own, also where a reply was lost before the other claimed."""
    log = small(sealed=False)
    epoch = log.meta.epoch

    def claim(effect: object) -> None:
        log.put(log.meta.claimed(OTHER))
        raise LOST

    log.hooks[step].append(claim)
    told = published(log, filled(log, 50, 2))
    assert told.published
    assert told.epoch is not None
    assert told.epoch == log.meta.epoch > epoch + 1
    assert told.next_seq == 6


@pytest.mark.parametrize("point", [CLAIM, "takeover.recovered"])
def test_without_a_lost_commit_an_outage_is_told_at_once(point: str) -> None:
    log = small(sealed=False)
    tries = limits.META_ATTEMPTS_MAX if point == CLAIM else 1
    for _ in range(tries):
        log.lose(point, Unavailable("away"))
    error = failure(log, filled(log, 50, 1))
    assert isinstance(error, Unavailable)
    assert batch_of(log) is None


def test_a_truncation_in_between_costs_one_more_try() -> None:
    log = small(sealed=False)
    log.before(COMMIT, lambda: log.change(truncate_before=Point(1)))
    assert published(log, filled(log, 50, 2)).next_seq == 6
    assert log.meta.truncate_before == Point(1)


class Truncating(Scripted):
    """Its open segment is ended and swept when somebody first looks at its ledger."""

    def really(self, effect: Effect) -> Any:
        if isinstance(effect, LookAtLedger) and effect.ledger_id == 20 and 20 in self.ledgers:
            self.seal()
            self.truncate(Point(4), sweep=True)
            self.put(self.meta)
            del self.ledgers[20]
        return super().really(effect)


def test_ledgers_that_leave_the_list_while_it_looks_cost_one_more_try() -> None:
    log = Truncating.of(small(sealed=False))
    assert published(log, filled(log, 50, 2)).next_seq == 6
    assert 20 not in log.ledgers


def test_a_ledger_that_is_listed_and_gone_is_told_though_it_looks_again() -> None:
    log = small(sealed=False)
    segment = filled(log, 50, 2)
    del log.ledgers[20]
    with pytest.raises(Corrupt, match="ledger 20 of segment 2 is in the list"):
        published(log, segment)
    assert log.meta.epoch == 1, "nobody was fenced for it"


@pytest.mark.parametrize("point", [CLAIM, COMMIT])
def test_a_ledger_that_is_discarded_in_between_is_not_listed(point: str) -> None:
    log = small(sealed=False)
    log.before(point, lambda: log.change(deleting=(Doomed(50, 0),)))
    error = failure(log, filled(log, 50, 2))
    assert isinstance(error, Conflict)
    assert error.retry is Retry.AFTER_REOPEN
    assert batch_of(log) is None


# --- what is refused


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"state": LogState.TERMINATED}, Unsupported),
        ({"state": LogState.DELETED}, NotFound),
        ({"uid": "another"}, NotFound),
        ({"ledger_floor": 50}, Conflict),
        ({"deleting": (Doomed(50, 0),)}, Conflict),
    ],
    ids=str,
)
def test_a_log_that_does_not_take_them_refuses(
    changes: dict[str, Any], error: type[DlogError]
) -> None:
    log = small(sealed=True)
    log.change(**changes)
    before = log.meta
    told = failure(log, filled(log, 50, 1))
    assert type(told) is error
    assert log.meta == before


def test_a_ledger_right_above_the_floor_is_taken() -> None:
    log = small(sealed=True)
    log.change(ledger_floor=49)
    assert published(log, filled(log, 50, 1)).published


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda log: log.closed.discard(50), ConfigError),
        (lambda log: log.ledgers.pop(50), Conflict),
        (lambda log: log.ledgers[50].append(b"more"), ConfigError),
        (lambda log: log.ledgers[50].__setitem__(0, log.ledgers[50][1]), Corrupt),
    ],
    ids=["open", "gone", "longer", "no birth"],
)
def test_a_ledger_that_is_not_as_it_was_filled_is_refused(wrong: Any, error: Any) -> None:
    log = small(sealed=True)
    segment = filled(log, 50, 2, 3)
    wrong(log)
    if error is Corrupt:  # so that it is as long as it is said to be
        segment = dataclasses.replace(segment, bytes=sum(map(len, log.ledgers[50])))
    told = failure(log, segment)
    assert type(told) is error
    assert told.about["ledger_id"] == 50


@pytest.mark.parametrize(
    "changes", [{"last_entry": 1}, {"bytes": 1}, {"messages": 4}, {"messages": 6}], ids=str
)
def test_a_segment_that_says_something_else_than_its_ledger_is_refused(
    changes: dict[str, Any],
) -> None:
    log = small(sealed=True)
    segment = dataclasses.replace(filled(log, 50, 2, 3), **changes)
    assert isinstance(failure(log, segment), ConfigError)
    assert batch_of(log) is None


@pytest.mark.parametrize(
    "born",
    [
        birth("job", None, None, uid="another"),
        birth("standby", None, None),
        birth("segment", 1, 1),
    ],
    ids=["another log", "standby", "writer"],
)
def test_a_ledger_that_no_job_of_this_log_filled_is_refused(born: bytes) -> None:
    log = small(sealed=True)
    assert isinstance(failure(log, filled(log, 50, 2, born=born)), ConfigError)


def test_a_segment_without_messages_is_refused() -> None:
    log = small(sealed=True)
    assert isinstance(failure(log, filled(log, 50)), ConfigError)


def test_a_ledger_whose_first_messages_are_missing_is_refused() -> None:
    log = small(sealed=True)
    segment = filled(log, 50, 2, 3)
    del log.ledgers[50][1]
    size = sum(map(len, log.ledgers[50]))
    segment = dataclasses.replace(segment, last_entry=1, bytes=size)
    assert isinstance(failure(log, segment), ConfigError)


# --- pages


def test_a_long_list_goes_to_pages_and_an_open_segment_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 1)
    log = small(sealed=False)
    published(log, filled(log, 50, 2), filled(log, 60, 1))
    numbers = [ref.number for ref in log.meta.pages] + [each.number for each in log.meta.segments]
    assert numbers == sorted(numbers) == [1, 2, 3, 4]
    assert [ref.last_number for ref in log.meta.pages] == [1], "the rest was not listed for good"
    for ref in log.meta.pages:
        assert LAYOUT.page(NAME, ref.number, ref.level) in log.nodes


@pytest.mark.parametrize("left", ["the same", "another"])
def test_a_page_that_a_try_before_left_is_the_page_or_is_replaced(
    monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 1)
    reference = small(sealed=True)
    published(reference, filled(reference, 50, 2))
    page = LAYOUT.page(NAME, 1, 0)
    log = small(sealed=True)
    log.nodes[page] = reference.nodes[page] if left == "the same" else b"another"
    told = published(log, filled(log, 50, 2))
    assert told.published
    assert log.nodes == reference.nodes


def test_a_page_is_replaced_only_in_the_list_that_it_was_cut_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another list may have named what stands there."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 1)
    log = small(sealed=True)
    page = LAYOUT.page(NAME, 1, 0)
    log.nodes[page] = b"another"
    log.before(READ, lambda: None)
    log.before(READ, lambda: log.change(epoch=log.meta.epoch + 1))
    assert published(log, filled(log, 50, 2)).published
    replaced = [each for each in log.done if isinstance(each, ReplaceNode) and each.path == page]
    assert len(replaced) == 1
    at = log.done.index(replaced[0])
    assert any(isinstance(each, Pause) for each in log.done[:at]), "it looked at the list again"
    assert log.meta.pages

"""Where a log begins: truncation, holds, the collector, step by step, with whatever may come
between two steps (log-protocol §6; DL-36e, LS-09, LS-10)."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from dlog import limits
from dlog.clock import us_datetime
from dlog.errors import ConfigError, NotFound, Outcome, Timeout, TooLarge, Truncated, Unavailable
from dlog.ids import MessageId
from dlog.meta.holds import Hold
from dlog.meta.listed import Doomed
from dlog.meta.log_meta import LogState
from dlog.reader.places import EARLIEST, LATEST
from tests.scenarios.by_hand import LAYOUT, NAME, PATH, SECOND_US, ByHand, position
from tests.scenarios.stage import Stage

HOUR_US = 3600 * SECOND_US


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 3)


# --- the point


def test_a_page_that_is_needed_is_not_trimmed(small_pages: None) -> None:
    """The numbers of producers stand in its last segment, and none behind it has messages."""
    log = ByHand(6)
    meta = log.meta.numbered()
    meta = dataclasses.replace(meta, segments=(), end=dataclasses.replace(meta.end, next_seq=30))
    log.store(PATH, meta.to_bytes())
    told = log.truncated(30)
    assert [ref.number for ref in log.meta.pages] == [1]
    assert (log.meta.deleting, log.meta.deleting_pages) == ((), ())
    assert told.reasons == (), "nothing waits for room"


def test_a_truncation_moves_the_point_and_what_is_wholly_before_it() -> None:
    """One compare-and-set: the point, and the deleting list. Exclusive: what is at it stays."""
    log = ByHand(5)
    told = log.truncated(25)
    assert (told.head_seq, told.ledgers, told.bytes, told.reasons) == (25, 2, 200, ())
    assert [segment.number for segment in log.meta.segments] == [3, 4, 5]
    assert log.meta.deleting == (Doomed(10, log.now_us), Doomed(20, log.now_us))
    assert log.ledgers == {10, 20, 30, 40, 50}, "metadata first"


def test_it_works_with_every_bookie_down() -> None:
    """DL-36e: "shrink = yes, only touches metadata". Every look at a ledger fails here."""
    log = ByHand(5)
    assert log.truncated(15).head_seq == 15
    assert log.truncated(MessageId(20, 7, 3)).point == "seq 15 and 20:7:3"
    assert log.truncated(position(33, 40, 2)).head_seq == 33
    log.store(PATH, log.meta.listed(60).to_bytes())
    everything = log.truncated(LATEST)
    assert everything.head_seq == 50
    assert "only what is sealed" in everything.reasons[0]


def test_a_time_means_whole_segments_then() -> None:
    log = ByHand(5)
    log.store(PATH, log.meta.listed(60).to_bytes())
    told = log.truncated(us_datetime(23 * SECOND_US))
    assert told.head_seq == 20
    assert "messages cannot be looked at" in told.reasons[0]
    assert log.truncated(datetime(2100, 1, 1, tzinfo=UTC)).head_seq == 50


def test_it_goes_on_for_ever_forward() -> None:
    """LS-09: a lower one changes nothing, and says so."""
    log = ByHand(5)
    log.truncated(25)
    before = log.meta
    told = log.truncated(12)
    assert (told.head_seq, told.ledgers) == (25, 0)
    assert told.reasons == ("that is truncated already, to seq 25",)
    assert log.truncated(MessageId(10, 0, 0)).head_seq == 25
    assert log.meta.truncate_before.joined(before.truncate_before) == log.meta.truncate_before


def test_what_is_still_to_come_is_never_truncated() -> None:
    log = ByHand(2)
    told = log.truncated(1_000)
    assert (told.head_seq, told.reasons) == (20, ("the log ends at seq 20",))
    told = log.truncated(MessageId(999, 0, 0))
    assert "the log ends at seq 20" in told.reasons
    log.rotate()
    assert log.truncated(0).head_seq == 20, "the next message is there"


def test_the_point_survives_the_truncation_of_everything() -> None:
    """LS-10, and seqs and ids go on."""
    log = ByHand(3)
    log.truncated(LATEST)
    assert log.meta.segments == ()
    assert log.meta.end.next_seq == 30
    log.rotate()
    assert log.truncated(0).head_seq == 30
    assert log.meta.segments[0].number == 4


def test_a_plan_changes_nothing() -> None:
    log = ByHand(5)
    before = dict(log.nodes)
    told = log.truncated(35, pretend=True)
    assert (told.done, told.head_seq, told.ledgers) == (False, 35, 3)
    assert log.nodes == before


def test_an_unknown_reply_is_looked_into() -> None:
    log = ByHand(5)
    steps = log.truncating(25).until("truncate.marked")
    steps.lose(Timeout("no reply"))
    told = steps.end()
    assert (told.head_seq, told.ledgers) == (25, 2)


# --- holds


def test_a_hold_stops_a_truncation_that_says_so() -> None:
    """I19. And another verb goes over it."""
    log = ByHand(5)
    assert log.held(24, note="billing").seq == 24
    told = log.truncated(40)
    assert (told.head_seq, told.held_by) == (24, ("h",))
    assert "keeps what is from seq 24 on" in told.reasons[0]
    assert log.truncated(MessageId(50, 0, 0)).head_seq == 24
    over = log.truncated(40, force=True)
    assert (over.head_seq, over.held_by, over.forced) == (40, ("h",), True)


def test_a_hold_made_during_a_truncation_is_not_overlooked() -> None:
    """The truncation has read all holds, and knows how far it goes; then the hold is made. Its
    compare-and-set is refused, and it looks again."""
    log = ByHand(5)
    steps = log.truncating(40).until("truncate.marked")
    log.held(15)
    told = steps.end()
    assert (told.head_seq, told.held_by) == (15, ("h",))


def test_a_hold_that_comes_too_late_is_told() -> None:
    """Its node was made behind the truncation's look, its compare-and-set behind the
    truncation's."""
    log = ByHand(5)
    truncating = log.truncating(40).until("truncate.marked")
    holding = log.holding(15).until("hold.counted")
    assert truncating.end().head_seq == 40
    with pytest.raises(Truncated) as caught:
        holding.end()
    assert caught.value.new_head == 40
    assert log.hold_nodes() == []


def test_a_hold_that_its_maker_did_not_finish_is_not_moved() -> None:
    """Its node is there, and not counted: whoever comes next under its name makes it first."""
    log = ByHand(5)
    truncating = log.truncating(40).until("truncate.marked")
    log.holding(15).until("hold.counted")  # and dies
    assert log.held(15).made
    assert truncating.end().head_seq == 15


def test_a_hold_that_is_not_made_binds_all_the_same() -> None:
    log = ByHand(5)
    log.holding(15).until("hold.counted")
    assert log.truncated(40).head_seq == 15


def test_a_hold_moves_forward_only_and_touches_no_log() -> None:
    log = ByHand(5)
    log.held(position(15, 20, 4))
    version = log.nodes[PATH].version
    assert log.held(position(25, 30, 4)).seq == 25
    assert log.nodes[PATH].version == version
    with pytest.raises(ConfigError, match="moves forward only"):
        log.held(position(20, 20, 9))
    assert log.truncated(40).head_seq == 25
    log.dropped()
    assert log.truncated(40).head_seq == 40
    with pytest.raises(NotFound, match="has no hold"):
        log.dropped()


def test_a_hold_on_what_is_gone_is_refused() -> None:
    log = ByHand(5)
    log.truncated(30)
    with pytest.raises(Truncated):
        log.held(29)
    assert log.held(EARLIEST).seq == 30
    assert log.held(position(31, 30, 0), "other").seq == 31


def test_two_makers_of_one_hold_agree() -> None:
    log = ByHand(5)
    one = log.holding(15).until("hold.created")
    assert log.held(18).seq == 18
    with pytest.raises(ConfigError, match="moves forward only"):
        one.end()
    another = log.holding(20).until("hold.moved")
    assert log.held(25).seq == 25
    with pytest.raises(ConfigError, match="moves forward only"):
        another.end()


@pytest.mark.parametrize("seq", [3, 10, 15])
def test_what_may_be_gone_is_not_held_where_nobody_can_be_asked(seq: int) -> None:
    """The point is an id: which seq it has, only a bookie knows."""
    log = ByHand(5)
    log.truncated(MessageId(20, 5, 0))
    with pytest.raises(Unavailable):
        log.held(seq)
    assert log.hold_nodes() == []
    assert log.held(25).id == MessageId(30, 0, 0), "all of its segment"


def test_a_lost_reply_makes_no_second_hold() -> None:
    log = ByHand(5)
    for point in ("hold.created", "hold.counted", "hold.made"):
        steps = log.holding(15, point).until(point)
        steps.lose(Timeout("no reply"))
        assert steps.end().made
    dropping = log.holding(16, "hold.made").until("hold.moved")
    dropping.lose(Timeout("no reply"))
    assert dropping.end().seq == 16
    assert log.hold_nodes() == ["hold.counted", "hold.created", "hold.made"]


def test_holds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_HOLDS_MAX", 2)
    log = ByHand(1)
    log.held(0, "a")
    log.held(0, "b")
    with pytest.raises(TooLarge):
        log.held(0, "c")
    assert log.held(1, "a").seq == 1


def test_a_hold_of_a_log_that_is_gone_counts_for_nothing() -> None:
    log = ByHand(5)
    log.held(5)
    path = LAYOUT.hold(NAME, "h")
    old = Hold.from_bytes(log.nodes[path].value, "h", where=path)
    log.store(path, old.to_bytes().replace(b'"uid"', b'"old"'))
    assert log.truncated(20).head_seq == 20
    assert log.held(30).since_us == log.now_us
    log.store(path, old.to_bytes().replace(b'"uid"', b'"old"'))
    assert log.collected().nodes == 1
    assert log.hold_nodes() == []


# --- pages


def test_a_page_that_the_point_reaches_into_is_cut(small_pages: None) -> None:
    log = ByHand(8)  # segments 1 to 3 in a page
    assert log.pages() == ["0000000001"]
    told = log.truncated(15)
    assert told.ledgers == 1
    assert log.pages() == ["0000000002"]
    assert [(ref.number, ref.last_number) for ref in log.meta.pages] == [(2, 3)]
    assert log.truncated(30).ledgers == 2
    assert log.meta.pages == ()
    assert [doomed.number for doomed in log.meta.deleting_pages] == [2]


def test_pages_of_pages_are_cut_down_to_a_leaf(small_pages: None) -> None:
    log = ByHand(24)
    assert [ref.level for ref in log.meta.pages] == [1, 0, 0, 0, 0]
    told = log.truncated(45)  # in segment 5, of the leaf 4 to 6, of the page 1 to 9
    assert told.ledgers == 4
    assert [(ref.level, ref.number) for ref in log.meta.pages][:3] == [(0, 5), (0, 7), (0, 10)]
    assert [(d.level, d.number) for d in log.meta.deleting_pages] == [(0, 1)]
    assert "0000000001.1" not in log.pages()
    log.now_us += HOUR_US
    assert log.collected().deleted == 4
    assert log.deleted == [40, 10, 20, 30]
    assert log.pages()[0] == "0000000005"


def test_a_crash_between_the_page_and_the_node(small_pages: None) -> None:
    """The new leaf is there, and nothing names it: the next try writes the same page."""
    log = ByHand(8)
    log.truncating(15).until("truncate.trimmed")
    assert log.pages() == ["0000000001", "0000000002"]
    assert [ref.number for ref in log.meta.pages] == [1]
    log.collected()
    assert [ref.number for ref in log.meta.pages] == [2]
    assert log.pages() == ["0000000002"]


def test_a_crash_between_the_node_and_the_old_page(small_pages: None) -> None:
    log = ByHand(8)
    log.truncating(15).until("truncate.page_deleted")
    assert log.pages() == ["0000000001", "0000000002"]
    assert log.collected().nodes == 1
    assert log.pages() == ["0000000002"]


def test_two_that_cut_the_same_page(small_pages: None) -> None:
    log = ByHand(8)
    slow = log.truncating(15).until("truncate.page_written")
    assert log.truncated(25).head_seq == 25
    assert slow.end().head_seq == 25
    assert [ref.number for ref in log.meta.pages] == [3]
    log.collected()
    assert log.pages() == ["0000000003"]


def test_a_page_that_is_gone_is_read_in_the_newest_list(small_pages: None) -> None:
    log = ByHand(8)
    reading = log.truncating(15).until(lambda effect: "/pages/" in getattr(effect, "path", ""))
    log.truncated(25)
    log.truncated(35)
    assert reading.end().head_seq == 35


# --- the collector


def test_nothing_is_deleted_in_its_grace() -> None:
    """I19: "metadata first, then grace, then deletion"."""
    log = ByHand(5, deletion_grace_s=600)
    log.truncated(25)
    log.now_us += 599 * SECOND_US
    told = log.collected()
    assert (told.deleted, told.waiting) == (0, 2)
    log.now_us += SECOND_US
    told = log.collected()
    assert (told.deleted, told.waiting) == (2, 0)
    assert log.meta.deleting == ()
    assert log.ledgers == {30, 40, 50}


def test_the_collector_twice_at_once() -> None:
    log = ByHand(6)
    log.truncated(45)
    log.now_us += HOUR_US
    one, other = log.collecting(), log.collecting()
    turn = 0
    while not (one.is_over and other.is_over):
        at = (one, other)[turn % 2]
        if not at.is_over:
            at.step()
        turn += 1
    assert sorted(log.deleted) == [10, 20, 30, 40]
    assert one.result.problems == other.result.problems == ()
    assert log.meta.deleting == ()


@pytest.mark.parametrize("steps", range(40))
def test_the_collector_killed_at_every_step(steps: int, small_pages: None) -> None:
    """DL flaw 7: the next collector deletes what one that died had left."""
    log = ByHand(24)
    log.truncated(105)
    log.now_us += HOUR_US
    collecting = log.collecting()
    for _ in range(steps):
        if not collecting.is_over:
            collecting.step()
    log.now_us += HOUR_US
    assert log.collected().problems == ()
    assert sorted(log.deleted) == [10 * number for number in range(1, 11)]
    assert (log.meta.deleting, log.meta.deleting_pages) == ((), ())
    assert min(log.pages()) == "0000000011"


def test_a_full_deleting_list_takes_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_DELETING_MAX", 2)
    log = ByHand(6)
    told = log.truncated(55)
    assert (told.head_seq, told.ledgers) == (55, 2), "the point holds all the same"
    assert "until the collector made room" in told.reasons[0]
    log.now_us += HOUR_US
    assert log.collected().deleted == 2
    log.now_us += HOUR_US
    assert log.collected().deleted == 2
    log.now_us += HOUR_US
    assert log.collected().deleted == 1
    assert log.ledgers == {60}


def test_a_ledger_that_cannot_be_deleted_holds_up_no_other() -> None:
    log = ByHand(5)
    log.truncated(35)
    log.now_us += HOUR_US
    steps = log.collecting().until("collect.ledger_deleted")
    steps._go_on(None, Timeout("no reply", outcome=Outcome.NOT_HAPPENED))
    told = steps.end()
    assert (told.deleted, told.waiting) == (2, 1)
    assert told.problems == ("no reply",)
    assert log.collected().deleted == 1


# --- a log that is removed, and made anew while its remover sleeps


@pytest.mark.parametrize("steps", range(9))
def test_a_remover_that_slept_leaves_the_next_log_alone(steps: int) -> None:
    """Wherever it slept, once it marked its own: another one went on with that, and was done."""
    log = ByHand(2)
    log.held(5)
    sleeper = log.removing().until("remove.marked")
    for _ in range(steps + 1):
        if not sleeper.is_over:
            sleeper.step()
    if log.meta.state is LogState.DELETING:
        log.removing().end()
    log.remade()
    log.rotate()
    log.held(3)
    sleeper.end()
    assert (log.meta.uid, log.meta.state) == ("another", LogState.OPEN)
    assert log.hold_nodes() == ["h"]
    assert log.ledgers == {30}


def test_a_remover_that_heard_nothing_removes_one_log() -> None:
    log = ByHand(2)
    sleeper = log.removing().until("remove.marked")
    sleeper.lose(Unavailable("no answer", outcome=Outcome.UNKNOWN))
    log.removing().end()
    log.remade()
    log.rotate()
    sleeper.end()
    assert (log.meta.uid, log.meta.state) == ("another", LogState.OPEN)
    assert log.ledgers == {30}


# --- retention


def test_retention_by_bytes_keeps_so_many() -> None:
    log = ByHand(6, retention_bytes=250)
    told = log.collected()
    assert (told.head_seq, told.truncated) == (30, 3)
    assert log.collected().truncated == 0


def test_retention_by_age_takes_whole_segments() -> None:
    log = ByHand(6, retention_age_s=30)
    log.now_us = 60 * SECOND_US
    assert log.collected().head_seq == 30
    log.now_us = 65 * SECOND_US
    assert log.collected().head_seq == 30, "some of it is younger"


def test_retention_finds_its_place_in_pages(small_pages: None) -> None:
    log = ByHand(40, retention_bytes=1_000)
    assert log.collected().head_seq == 300
    log = ByHand(40, retention_age_s=250)
    log.now_us = 400 * SECOND_US
    assert log.collected().head_seq == 150


def test_holds_keep_what_retention_would_not() -> None:
    log = ByHand(6, retention_bytes=0)
    log.held(25)
    told = log.collected()
    assert (told.head_seq, told.held_by) == (25, ("h",))
    log.dropped()
    assert log.collected().held_by == ()
    assert log.meta.segments == ()


# --- a writer, readers


def test_a_writer_goes_on_over_a_truncation_by_somebody_else() -> None:
    stage = Stage()
    writer = stage.opened("w")
    for _ in range(3):
        writer.submit(2)
        stage.go_on()
        writer.ask_rotation()
        stage.go_on()
    truncator = stage.truncate(LATEST)
    stage.until(lambda: truncator.is_done)
    writer.submit(2)
    writer.ask_rotation()
    stage.go_on()
    writer.submit(1)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.outcomes(writer) == ["acked"] * 9
    assert stage.oracle.heads.head_seq(stage.log.uid) == 6
    assert [m.seq for m in stage.oracle.truth() if m.seq >= 6] == [6, 7, 8]


def test_a_reader_that_is_behind_is_told_when_the_point_passes_it() -> None:
    """I18: "data or `Truncated`", never a skip. Its ledger is even gone."""
    stage = Stage(grace_s=0, page_segments=2)
    writer = stage.opened("w")
    reader = stage.reader(follow=True)
    writer.submit(2)
    stage.until(lambda: reader.next_seq == 2)
    reader.frozen = True
    for _ in range(8):
        writer.submit(2)
        stage.go_on()
        writer.ask_rotation()
        stage.go_on()
    truncator = stage.truncate(13)
    stage.until(lambda: truncator.is_done)
    stage.collect()
    stage.go_on()
    reader.thaw()
    stage.until(lambda: reader.next_seq == 18)
    assert stage.world.marks["a reader was told that its place was truncated"] >= 1


def test_readers_of_a_terminated_log_come_to_an_end() -> None:
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(3)
    reader = stage.reader(follow=True)
    stage.until(lambda: reader.next_seq == 3)
    stage.terminate(writer)
    stage.until(lambda: writer.is_closed)
    stage.until(lambda: reader.ended)
    assert stage.log.state.value == "terminated"
    late = stage.writer("late")
    stage.until(lambda: late.error is not None)
    assert "terminated" in str(late.error)
    assert stage.read() == [b"w.0", b"w.1", b"w.2"]

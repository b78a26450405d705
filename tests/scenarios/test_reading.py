"""Reading next to writers that rotate, die and take over (log-protocol §5)."""

from __future__ import annotations

from dlog.clock import us_datetime
from tests.scenarios.stage import Stage


def test_nothing_is_readable_before_its_writer_published_it() -> None:
    """DL-03b, I3a."""
    stage = Stage()
    writer = stage.opened("w")
    reader = stage.reader()
    stage.go_on()
    stage.newest().held = True
    writer.submit(1)
    stage.go_on(100)
    assert stage.outcomes(writer) == ["pending"]
    assert reader.next_seq is None


def test_what_is_acked_is_delivered_with_nothing_else_written() -> None:
    """DL-03a, DL flaw 1, I3c."""
    stage = Stage()
    writer = stage.opened("w")
    reader = stage.reader()
    stage.go_on()
    writer.submit(1)
    stage.until(lambda: stage.outcomes(writer) == ["acked"])
    stage.until(lambda: reader.next_seq == 1)


def test_a_reader_waits_before_a_segment_that_a_takeover_may_drop() -> None:
    """Enter "only if … its listed predecessor is CLOSED at exactly the seam's (ledger id,
    `predecessor_last`)" †: the LAC of N+1 does advance before the barrier opens."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on()
    stage.newest().held = True
    writer.submit(1)
    stage.go_on(20)
    writer.ask_rotation()
    stage.until(lambda: stage.world.points["rotate.switched"] == 1)
    stage.go_on(20)
    first, second = (stage.ledger(segment) for segment in stage.log.segments)
    assert second.committed >= 1
    second.published = second.committed
    reader = stage.reader()
    stage.go_on(3_000)
    assert reader.next_seq == 1
    # Closed short of what the seam names: still no way in, until the list changes.
    stage.close_by_a_stranger(first, first.committed)
    events = stage.world.events
    stage.go_on(10_000)
    assert reader.next_seq == 1
    assert stage.world.events - events < 1_000, "it waits, and does not ask again and again"
    writer.crash()
    new = stage.opened("new")
    new.submit(1)
    stage.until(lambda: reader.next_seq == 2)


def test_a_reader_crosses_as_the_writer_rotates() -> None:
    """I17, DL-09."""
    stage = Stage(rotate_every=1)
    writer = stage.opened("w")
    reader = stage.reader()
    for _ in range(6):
        writer.submit(2)
        stage.go_on()
    stage.until(lambda: reader.next_seq == 12)
    assert len(stage.log.segments) > 4


def test_a_reader_of_many_segments_reads_their_pages() -> None:
    stage = Stage(rotate_every=1, page_segments=2)
    writer = stage.opened("w")
    for _ in range(8):
        writer.submit(1)
        stage.go_on()
    assert stage.log.pages
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.read() == [b"w.%d" % i for i in range(8)]


def test_an_empty_log_has_an_end_too() -> None:
    stage = Stage()
    stage.opened("w")
    reader = stage.reader(follow=False)
    stage.until(lambda: reader.ended)
    assert reader.next_seq is None


def test_a_lost_watch_delays_and_loses_nothing() -> None:
    """Watches are hints: F21."""
    stage = Stage(meta_watch_lost=1.0, ledger_watch_lost=1.0)
    writer = stage.opened("w")
    reader = stage.reader()
    stage.go_on()
    writer.submit(3)
    writer.ask_rotation()
    stage.go_on()
    writer.submit(1)
    stage.until(lambda: reader.next_seq == 4)


def test_reading_resumes_behind_what_was_handed_out() -> None:
    """DL-06, DL-15: inside a batch, too. The reader of the stage leaves now and then, and comes
    back with the position it had; the oracle counts."""
    stage = Stage(leaves=0.05)
    writer = stage.opened("w")
    for _ in range(40):
        writer.submit(3)
    stage.go_on()
    reader = stage.reader()
    stage.until(lambda: reader.next_seq == 120)
    assert stage.world.marks["resumed"] > 0


def test_a_start_by_time_goes_over_what_was_healed() -> None:
    """What healing rebuilds keeps its time; the seam and the table before it may not be later, or
    the search, which halves over entries, finds them first."""
    stage = Stage()
    writer = stage.opened("w")
    stage.until(writer.allows_numbers)
    writer.submit(1)
    stage.go_on(100)
    failed = stage.newest()
    end = len(failed.stored) - 1
    failed.held = True
    writer.submit(1)
    stage.go_on(200)
    stage.close_by_a_stranger(failed, end)
    stage.until(lambda: writer.handle is not None and writer.handle.resolved == 2)
    writer.close()
    stage.until(lambda: writer.is_closed)
    second = stage.opened("v")
    stage.go_on(60_000)  # more than clocks are off
    second.submit(1)
    second.close()
    stage.until(lambda: second.is_closed)
    rebuilt, later = stage.oracle.truth()[1:]
    assert rebuilt.ledger_id > failed.id
    assert later.timestamp_us > rebuilt.timestamp_us + 2
    reader = stage.reader("by-time", us_datetime(rebuilt.timestamp_us + 1), follow=False)
    stage.until(lambda: reader.ended)
    assert [message.value for _, message in sorted(stage.oracle.delivered.items())] == [later.value]

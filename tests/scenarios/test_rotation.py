"""One ledger after another while appends go on, and ledgers that cannot go on (log-protocol §1,
§2)."""

from __future__ import annotations

import dataclasses

from dlog.errors import Fenced, Outcome
from dlog.meta.pages import page_from_bytes, page_to_bytes
from dlog.writer.core import WriterState
from tests.scenarios.stage import LAYOUT, NAME, Stage


def rotated(stage: Stage, name: str = "w") -> None:
    stage.until(lambda: stage.world.marks["rotated"] >= 1)


def test_appends_go_on_over_a_rotation_and_nothing_is_lost() -> None:
    """DL-09, DL-11, DL-28."""
    stage = Stage(ledger_store_ms=3.0)
    writer = stage.opened("w")
    for _ in range(3):
        writer.submit(2)
    writer.ask_rotation()
    for _ in range(3):
        writer.submit(2)
        stage.go_on(4)
    rotated(stage)
    writer.submit(1)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.read() == [b"w.%d" % i for i in range(13)]
    assert len(stage.log.segments) == 2


def test_acks_of_the_new_ledger_wait_until_the_old_one_is_closed() -> None:
    """DL-28, DL flaw 2, I16: "acks of the new ledger are held back until every add of the old one
    is *confirmed* and its metadata is CLOSED at exactly `predecessor_last`"."""
    stage = Stage()
    writer = stage.opened("w")
    old = stage.newest()
    old.held = True
    writer.submit(1)
    writer.ask_rotation()
    stage.until(lambda: stage.world.points["rotate.switched"] == 1)
    writer.submit(1)
    stage.go_on()
    new = stage.newest()
    assert new.committed == 2, "the new message is durable"
    assert stage.outcomes(writer) == ["pending", "pending"]
    stage.weather.ledgers.close_fails = 1.0
    old.held = False
    stage.until(lambda: stage.outcomes(writer)[0] == "acked")
    assert (old.closed is None) <= (stage.outcomes(writer)[1] == "pending")
    stage.weather.ledgers.close_fails = 0.0
    stage.until(lambda: stage.outcomes(writer) == ["acked", "acked"])
    assert old.closed is not None


def test_the_listing_seals_what_was_closed_before() -> None:
    """Rule: "the same compare-and-set seals N †: so at most two segments are ever unsealed"."""
    stage = Stage()
    writer = stage.opened("w")
    for _ in range(3):
        writer.submit(1)
        stage.go_on()
        writer.ask_rotation()
        stage.go_on()
    assert [segment.sealed is not None for segment in stage.log.segments] == [True, True, False,
                                                                              False]  # fmt: skip


def test_a_ledger_at_or_below_the_floor_is_never_listed() -> None:
    """DL-13, DL flaw 5: "otherwise create another †"."""
    stage = Stage()
    writer = stage.opened("w")
    stage.ledgers._next_id += 20
    writer.submit(1)
    stage.go_on()
    writer.ask_rotation()
    stage.go_on()
    floor = stage.log.ledger_floor
    stage.weather.ledgers.ids_go_back = 0.7
    writer.submit(1)
    writer.ask_rotation()
    stage.until(lambda: stage.log.ledger_floor > floor)
    assert stage.world.marks["id went back"] > 0
    ids = [segment.ledger_id for segment in stage.log.segments]
    assert ids == sorted(set(ids))


def test_an_unknown_listing_is_looked_for_and_sent_again() -> None:
    """Rule: "An unknown reply at an unchanged version is repeated with the same change, never
    taken as 'not applied' †"."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on()
    stage.weather.meta.request_lost = 0.8
    stage.weather.meta.reply_lost = 0.8
    writer.ask_rotation()
    stage.go_on(5_000)
    stage.weather.meta.request_lost = stage.weather.meta.reply_lost = 0.0
    rotated(stage)
    writer.submit(1)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.read() == [b"w.0", b"w.1"]


def test_no_switch_while_the_metadata_store_is_away() -> None:
    """DL-35, §2.3: "only while the metadata store answers †". Appends go on in the old ledger."""
    stage = Stage()
    writer = stage.opened("w")
    stage.meta.is_away = True
    writer.submit(1)
    writer.ask_rotation()
    stage.go_on(2_000)
    writer.submit(1)
    stage.go_on()
    assert stage.outcomes(writer) == ["acked", "acked"]
    assert len({message_id.ledger_id for message_id in stage.acked(writer)}) == 1
    stage.meta.is_away = False
    rotated(stage)


def test_a_ledger_closed_by_a_stranger_is_replaced_and_nothing_is_lost() -> None:
    """Rule: "A ledger that cannot go on … rebuild the rest in the successor with the same seqs"."""
    stage = Stage(ledger_store_ms=20.0)
    writer = stage.opened("w")
    for _ in range(4):
        writer.submit(1)
    stage.go_on(10)
    ledger = stage.newest()
    stage.close_by_a_stranger(ledger, ledger.committed)
    stage.until(lambda: stage.world.marks["healed"] >= 1)
    writer.submit(1)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.outcomes(writer) == ["acked"] * 5
    assert stage.read() == [b"w.%d" % i for i in range(5)]


def test_readers_get_past_a_segment_that_was_closed_before_its_seam() -> None:
    """Rule: "The same heals an idle successor that a foreign recoverer closed before the switch:
    take another ledger." The list drops the empty one before anything behind it is acknowledged."""
    stage = Stage()
    writer = stage.writer("w")
    stage.until(lambda: stage.oracle.now is not None and bool(stage.log.segments))
    stage.close_by_a_stranger(stage.newest(), 0)
    stage.until(lambda: writer.handle is not None)
    writer.submit(1)
    stage.go_on()
    assert stage.outcomes(writer) == ["acked"]
    assert [segment.number for segment in stage.log.segments] == [2]
    reader = stage.reader()
    stage.until(lambda: reader.next_seq == 1)


def test_a_failure_that_a_close_made_good_needs_no_healing() -> None:
    """A stranger closes the old ledger at its full end while we close it too: it counts as ours,
    whatever the appender said meanwhile."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on()
    writer.ask_rotation()
    stage.until(lambda: len(stage.log.segments) == 2)
    old = stage.ledger(stage.log.segments[0])
    stage.until(lambda: stage.world.points["rotate.closed"] == 1)  # our close is on its way
    stage.close_by_a_stranger(old)
    writer.on_failed(old.id, Fenced("the ledger is fenced", ledger_id=old.id))
    stage.go_on()
    assert writer.core is not None
    writer.submit(1)
    stage.go_on()
    assert writer.core.state is WriterState.OPEN
    assert stage.outcomes(writer) == ["acked", "acked"]


def test_a_seam_that_names_more_than_was_kept_ends_the_handle() -> None:
    """Rule: "If the successor already has a seam naming more than `e`, the handle is lost, with
    outcome unknown"."""
    stage = Stage()
    writer = stage.opened("w")
    stage.newest().held = True
    writer.submit(1)
    stage.go_on(20)
    writer.ask_rotation()
    stage.until(lambda: stage.world.points["rotate.switched"] == 1)
    stage.go_on(20)
    old = stage.ledger(stage.log.segments[0])
    stage.close_by_a_stranger(old, old.committed)
    writer.ledgers.publish(old.id)
    stage.until(lambda: writer.core is not None and writer.core.state is WriterState.DEAD)
    assert writer.core is not None
    assert writer.core.error is not None
    assert writer.core.error.outcome is Outcome.UNKNOWN
    assert stage.outcomes(writer) == ["unknown"]


def test_an_idle_old_ledger_is_published_though_the_pipe_is_not_idle() -> None:
    """Rule: "the explicit LAC is sent when *that ledger* is idle, not when the whole pipe is (a
    deadlock otherwise †)"."""
    stage = Stage(ledger_store_ms=2.0)
    writer = stage.opened("w")
    writer.submit(1)
    writer.ask_rotation()
    for _ in range(60):
        writer.submit(1)
        stage.go_on(2)
    assert stage.world.marks["rotated"] == 1
    assert stage.outcomes(writer)[0] == "acked"


def test_a_page_that_a_try_before_left_is_made_of_the_list_as_it_is() -> None:
    """It wrote the page, and did not come to name it; then a repair corrected an end in the list.
    What is there can never be right again, and nobody names it."""
    stage = Stage(rotate_every=1, page_segments=2)
    writer = stage.opened("w")
    while len([each for each in stage.log.segments if each.sealed is not None]) < 2:
        writer.submit(1)
        stage.go_on()
    assert not stage.log.pages
    first, second = stage.log.segments[:2]
    assert first.sealed is not None
    as_it_was = dataclasses.replace(first, sealed=dataclasses.replace(first.sealed, bytes=7))
    path = LAYOUT.page(NAME, first.number)
    audit, stage.meta.audit = stage.meta.audit, lambda path, value: None
    stage.meta.store(path, page_to_bytes((as_it_was, second)))
    stage.meta.audit = audit
    while not stage.log.pages:
        writer.submit(1)
        stage.go_on()
    written = stage.meta.value(path)
    assert written is not None
    assert page_from_bytes(written, where=path) == (first, second)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert stage.read() == [sent.value for sent in writer.handle.sent]

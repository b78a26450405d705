"""Taking a log over: who may write, what is kept of the one before, and what becomes of him
(log-protocol §3)."""

from __future__ import annotations

from collections import Counter

import pytest

from dlog.errors import Conflict, Corrupt, Fenced, Timeout
from dlog.meta.log_meta import LogMeta
from dlog.writer import takeover
from dlog.writer.core import WriterState
from tests.scenarios.stage import LAYOUT, NAME, Stage


def test_a_new_log_begins_with_ledger_and_last_minus_one() -> None:
    """DL-10, DL-32 with a list of length 0: `end` of a new log is (0, −1, −1, 0)."""
    stage = Stage()
    writer = stage.opened("w")
    assert writer.core is not None
    assert writer.core.epoch == 1
    assert writer.core.current.predecessor == (-1, -1)


def test_a_frozen_writer_learns_who_won_and_never_comes_back() -> None:
    """DL-05, DL-26, DL-30, DL-31: "An old writer yields for good … and reports who won"."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on()
    old.freeze()
    new = stage.opened("new")
    new.submit(1)
    old.thaw()
    old.submit(1)
    stage.go_on()
    assert old.core is not None
    assert old.core.state is WriterState.DEAD
    assert isinstance(old.core.error, Fenced)
    assert old.core.error.winner is not None
    assert (old.core.error.winner.name, old.core.error.epoch) == ("new", 2)
    assert stage.outcomes(old) == ["acked", "unknown"]
    new.close()
    stage.go_on()
    assert stage.read() == [b"old.0", b"new.0"]


def test_messages_nobody_sent_are_refused_for_certain() -> None:
    """I24: what was sent is unknown, what still waited for the window has not happened."""
    stage = Stage(window_entries=1)
    old = stage.opened("old")
    old.freeze()
    new = stage.opened("new")
    old.thaw()
    for _ in range(3):
        old.submit(1)
    stage.go_on()
    assert stage.outcomes(old) == ["unknown", "not_happened", "not_happened"]
    new.close()
    stage.go_on()
    assert stage.read() == []


def test_both_of_the_last_two_segments_are_fenced_and_recovered() -> None:
    """DL-32: a writer that died between listing the next ledger and closing the old one."""
    stage = Stage(ledger_store_ms=5.0)
    old = stage.opened("old")
    old.submit(1)
    old.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    old.crash()
    first, second = (stage.ledger(segment) for segment in stage.log.segments)
    stage.opened("new")
    assert first.fenced
    assert second.fenced
    assert first.closed is not None
    assert second.closed is not None


def test_dl_29_a_takeover_takes_the_same_steps_whether_the_old_writer_was_rotating_or_not() -> None:
    def steps(*, rotating: bool) -> set[str]:
        stage = Stage(ledger_store_ms=5.0)
        old = stage.opened("old")
        old.submit(1)
        if rotating:
            old.ask_rotation()
            stage.until(lambda: len(stage.log.unsealed) == 2)
        old.crash()
        before = Counter(stage.world.points)
        stage.opened("new")
        return {each for each in stage.world.points - before if each.startswith("takeover.")}

    assert steps(rotating=True) == steps(rotating=False)
    assert {"takeover.claimed", "takeover.recovered", "takeover.committed"} < steps(rotating=False)


def test_a_ledger_listed_between_the_look_and_the_claim_is_recovered_as_well() -> None:
    """DL flaw 3: the claim is a compare-and-set, and what it was made on counts, not what was read
    before."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on()
    new = stage.writer("new")
    stage.until(lambda: stage.world.points["takeover.read"] == 2)
    new.freeze()
    old.ask_rotation()
    stage.until(lambda: len(stage.log.segments) == 2)
    old.submit(1)
    stage.go_on()
    old.freeze()
    new.thaw()
    stage.until(lambda: new.handle is not None)
    assert all(stage.ledger(each).fenced for each in stage.log.segments[:2])
    old.thaw()
    old.submit(1)
    stage.go_on()
    assert stage.outcomes(old) == ["acked", "acked", "unknown"]
    new.close()
    stage.go_on()
    assert stage.read() == [b"old.0", b"old.1"]


def test_nothing_is_decided_before_all_are_closed() -> None:
    """Rule: "4. Decide the end, only once all of them are CLOSED †": while one ledger cannot be
    recovered, the list stays as it was claimed."""
    stage = Stage(ledger_store_ms=5.0)
    old = stage.opened("old")
    old.submit(1)
    old.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    old.crash()
    new = stage.writer("new")
    stage.until(lambda: stage.log.epoch == 2)
    while any(stage.ledger(s).closed is None for s in stage.log.unsealed):
        assert [s.number for s in stage.log.unsealed] == [1, 2]
        stage.go_on(0.2)
    stage.until(lambda: new.handle is not None)


def test_a_segment_whose_predecessor_was_cut_is_dropped() -> None:
    """Rule: "`predecessor_last` > base's last → drop it: nothing in it was acknowledged" (H3, I4b):
    its messages would otherwise stand without the earlier ones of the same writer."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on(100)
    stage.newest().held = True
    old.submit(1)  # reaches no quorum
    old.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    stage.go_on(50)
    first, second = (stage.ledger(segment) for segment in stage.log.segments)
    old.crash()
    stage.close_by_a_stranger(first, first.committed)
    stage.close_by_a_stranger(second)
    new = stage.opened("new")
    assert [segment.number for segment in stage.log.segments] == [1, 3]
    assert second.id in [doomed.ledger_id for doomed in stage.log.deleting]
    new.close()
    stage.go_on()
    assert stage.read() == [b"old.0"]


def test_a_segment_is_kept_behind_one_that_got_no_seam() -> None:
    """Rule: "last entry < 1 (no seam survived) → drop it"; the next is judged by the same base †.
    A healing writer that dies before it could tell leaves such a list: an empty segment, and behind
    it one that names the predecessor of the empty one."""
    stage = Stage()
    writer = stage.writer("w")
    stage.until(lambda: stage.oracle.now is not None and bool(stage.log.segments))
    empty = stage.newest()
    stage.close_by_a_stranger(empty, 0)
    stage.until(lambda: len(stage.log.unsealed) == 2)
    listed = stage.log
    stage.until(lambda: writer.handle is not None)
    writer.crash()
    stage.meta.store(LAYOUT.log(NAME), listed.to_bytes())
    new = stage.opened("new")
    assert [segment.number for segment in stage.log.segments] == [2, 3]
    assert stage.log.end.number == 2
    new.close()
    stage.go_on()
    assert stage.read() == []


def test_a_listed_ledger_that_is_gone_is_corrupt_if_the_log_is_still_ours() -> None:
    """Rule: "If a listed ledger is gone, re-read: another token → lost; still ours → `Corrupt`
    †"."""
    stage = Stage()
    old = stage.opened("old")
    old.crash()
    stage.newest().deleted = True
    new = stage.writer("new")
    stage.until(lambda: new.error is not None)
    assert isinstance(new.error, Corrupt)


def test_a_late_create_is_not_taken_for_the_later_one() -> None:
    """DL-33: an unknown reply is resolved by our token *and* our ledger. An earlier try of the same
    opener may arrive late, and then the list holds that try's ledger."""
    for seed in range(30):
        stage = Stage(seed, meta_late=1.0)
        writer = stage.writer("w")
        stage.until(lambda stage=stage: stage.oracle.now is not None)
        stage.weather.meta.late = 0.0
        stage.until(lambda writer=writer: writer.handle is not None)
        assert writer.core is not None
        listed = {segment.ledger_id for segment in stage.log.segments}
        assert writer.core.current.ledger_id in listed


@pytest.mark.parametrize(("policy", "error"), [("never", Conflict), ("if_dead", Conflict)])
def test_a_policy_may_refuse_to_fence_the_living(policy: str, error: type[Exception]) -> None:
    """DL flaw 4: supervised processes need not fence each other for ever."""
    stage = Stage()
    stage.opened("here")
    stage.go_on()
    other = stage.writer("other", policy=policy)
    stage.until(lambda: other.error is not None)
    assert isinstance(other.error, error)
    assert stage.log.epoch == 1


def test_waiting_ends_when_the_other_leaves() -> None:
    stage = Stage()
    here = stage.opened("here")
    stage.go_on()
    other = stage.writer("other", policy="wait")
    stage.go_on(5_000)
    assert other.handle is None
    here.close()
    stage.until(lambda: other.handle is not None)


def test_who_waited_looks_again_and_finds_nothing_to_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw before it waited is over; a claim by that would be refused, and cost its time."""
    claims: list[int | None] = []
    real = takeover._claim_and_recover
    monkeypatch.setattr(
        takeover,
        "_claim_and_recover",
        lambda opening, seen: claims.append(seen.version) or real(opening, seen),
    )
    stage = Stage()
    here = stage.opened("here")
    stage.go_on()
    other = stage.writer("other", policy="wait")
    stage.go_on(5_000)
    here.close(to="other")
    stage.until(lambda: other.handle is not None)
    assert claims == []


def test_one_round_has_one_winner() -> None:
    """DL-04, DL-27: four openers at once; each epoch is given once, the last one writes."""
    stage = Stage()
    openers = [stage.writer(f"w{i}") for i in range(4)]
    stage.until(lambda: all(each.handle or each.error for each in openers))
    stage.go_on()
    for each in openers:
        if each.takes_messages:
            each.submit(1)
    stage.go_on()
    writing = [each for each in openers if each.handle and stage.outcomes(each) == ["acked"]]
    assert len(writing) == 1
    assert stage.log.writer is not None
    assert stage.log.writer.name == writing[0].name


def test_a_log_handed_over_is_opened_without_fencing() -> None:
    """Rule: "An opener that finds every segment sealed may merge claim and commit into one
    compare-and-set"."""
    stage = Stage()
    first = stage.opened("first")
    first.submit(2)
    first.close(to="second")
    stage.until(lambda: first.is_closed)
    assert stage.log.hand_over == "second"
    assert not stage.log.unsealed
    second = stage.opened("second")
    assert stage.world.points["takeover.claimed"] == 0
    second.submit(1)
    second.close()
    stage.go_on()
    assert stage.read() == [b"first.0", b"first.1", b"second.0"]


def test_an_opener_whose_claim_is_overtaken_is_fenced_or_tries_again() -> None:
    """Rule: "Conflict and unknown as in §2.2: a re-read that shows another token means somebody
    claimed after us; we are lost"."""
    stage = Stage()
    stage.opened("old").crash()
    slow, fast = stage.writer("slow"), stage.writer("fast")
    stage.until(lambda: all(each.handle or each.error for each in (slow, fast)))
    for each in (slow, fast):
        assert each.handle is not None or isinstance(each.error, (Fenced, Timeout))
    assert isinstance(stage.log, LogMeta)


@pytest.mark.parametrize("left", ["crashed", "closed"])
@pytest.mark.parametrize("policy", ["if_dead", "never", "wait"])
def test_a_polite_opener_never_fences_a_writer_that_came_in_after_its_look(
    policy: str, left: str
) -> None:
    """Whenever it stops on its way: the writer that comes in meanwhile keeps the log."""
    looked = 0
    for step in range(40):
        stage = Stage()
        old = stage.opened("old")
        if left == "crashed":
            old.crash()
            stage.go_on(30_000)  # its session is over
        else:
            old.close()
            stage.until(lambda old=old: old.is_closed)
        polite = stage.writer("polite", policy=policy)
        stage.go_on(0.25 * step)
        if polite.error is not None or polite.handle is not None:
            break
        polite.freeze()
        other = stage.opened("other")
        other.submit(1)
        stage.go_on(100)
        polite.thaw()
        stage.go_on(5_000)
        assert stage.log.writer is not None
        assert stage.log.writer.name == "other"
        assert other.core is not None
        assert other.core.state is WriterState.OPEN
        if polite.handle is not None:  # it had won before the other one came in
            assert polite.handle.epoch < stage.log.epoch
        elif policy == "wait":
            assert polite.error is None or isinstance(polite.error, Fenced)
        else:
            assert isinstance(polite.error, (Conflict, Fenced))
        looked += 1
    assert looked > 3


@pytest.mark.parametrize(
    ("policy", "comes_in"), [("always", True), ("if_dead", True), ("wait", True), ("never", False)]
)
def test_a_writer_that_died_is_replaced_by_whoever_may(policy: str, comes_in: bool) -> None:
    """Its presence went with its session; `never` asks for no presence: the list has a writer."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on()
    old.crash()
    stage.go_on(30_000)
    other = stage.writer("other", policy=policy)
    stage.until(lambda: other.handle is not None or other.error is not None)
    assert (other.handle is not None) == comes_in
    assert stage.log.epoch == (2 if comes_in else 1)
    if not comes_in:
        assert isinstance(other.error, Conflict)
        assert other.error.winner is not None
        assert (other.error.winner.name, other.error.about["epoch"]) == ("old", 1)

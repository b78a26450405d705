"""Histories of writers, readers, removers and strangers under faults, over ledgers that are as
loose as their contract allows, and over simulated bookies: no promise breaks, and once the faults
end everything comes right. A failure names its seed and how to see it again."""

from __future__ import annotations

import pytest

from dlog import trace
from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.log import PLANTS, STRANGERS
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.world import Violation
from tests.sim.histories import Stretch, counts, play, play_and_meet, stretches

# Points of rooms that are not simulated, or that only the real drivers announce; and those of
# truncated logs, which have histories of their own.
ELSEWHERE = ("ledger.", "meta.", "recover.", "append.confirmed", "append.published")
POINTS = [point for point in trace.POINTS if not point.startswith(ELSEWHERE)]
POINTS += sorted(trace.STANDBY_POINTS)

# What must happen in a few hundred histories, or they are too tame.
OF_LOGS = (
    "a client crashes, a client freezes, a clock jumps, a reader leaves, a rotation is asked for, "
    "bounded read, closed, foreign recovery, healed, leader pause, lost, metadata outage, "
    "metadata: a session ends unnoticed, metadata: a stranger stores a node again, "
    "metadata: late write, metadata: refused, metadata: reply lost, metadata: request lost, "
    "a ready ledger was taken, a standby stands by again, a standby takes over, "
    "a takeover is cut short, remove, resumed, rotated, tail asked, the policy says wait"
).split(", ")
OF_LIFE = (
    "truncated, truncations, held, hold dropped, collected, terminated, a reader jumped, "
    "a reader was told that its place was truncated, told that a place to hold was truncated, "
    "a client crashes, a client freezes, metadata: late write, metadata: reply lost, "
    "metadata: stale read, metadata: torn listing, ledgers: a delete fails, rotated, remove"
).split(", ")
OF_CUTS = ("truncated", "held", "collected", "a reader jumped", "a client crashes")
OF_JOBS = (
    "published, published before, a batch is to be run again, truncated, a segment was discarded, "
    "none was discarded, a client crashes, rotated"
).split(", ")
OF_LOOKS = (
    "looked over, repaired: delete_ledger, truncated, collected, remove, a client crashes"
).split(", ")
OF_DAMAGE = (
    "damage: a page is lost, damage: a page is shorter, damage: a page is garbage, "
    "damage: a page is later, damage: an end is listed wrongly, "
    "repaired: write_page, repaired: reseal, a client crashes, truncated, collected"
).split(", ")
OF_ABSTRACT = (
    "append failed, id went back, ledgers: a birth fails, ledgers: a close fails, "
    "ledgers: a create fails, ledgers: a recovery stops half-way, "
    "ledgers: an idle appender notices the fence, ledgers: nobody answers, "
    "ledgers: the reply to a close is lost, ledgers: the reply to a create is lost, "
    "ledgers: the reply to a recovery is lost, recovery cut"
).split(", ")
OF_BOOKIES = (
    "a bookie is killed, a bookie is shut down, a bookie is stopped, a connection breaks, "
    "a client and a bookie are cut off, a metadata reply is lost, a poll brought the entry, "
    "an ack is never sent, an add is refused, an answer is late, an entry comes back damaged, "
    "connections are reset, recovered more than was confirmed"
).split(", ")


@stretches(200, 15_000, per_minute=5_500)
def test_no_history_over_loose_ledgers_breaks_a_promise_and_all_of_them_heal(
    stretch: Stretch,
) -> None:
    """I1–I10, I13, I15–I17, I23–I25, I27; DL-01, DL-02, DL-03a, DL-03b, DL-04, DL-05, DL-09, DL-10,
    DL-11, DL-13, DL-23, DL-26, DL-27, DL-28, DL-30, DL-31, DL-32, DL-33 in every interleaving."""
    play_and_meet("log-abstract", stretch, [*OF_LOGS, *OF_ABSTRACT], POINTS, within=300)


@stretches(200, 10_000, per_minute=2_800)
def test_no_history_over_bookies_breaks_a_promise_and_all_of_them_heal(stretch: Stretch) -> None:
    """The same and I11, I12, I14, with the BookKeeper client's cores below the log's."""
    points = [*POINTS, *trace.BOOKIE_POINTS]
    play_and_meet("log", stretch, [*OF_LOGS, *OF_BOOKIES], points, within=600)


@stretches(400, 15_000, per_minute=5_800)
def test_no_history_of_a_truncated_log_skips_loses_or_keeps_what_it_should_not(
    stretch: Stretch,
) -> None:
    """I18, I19, I26; LS-09, LS-10: truncated by seq, id, time and wholly, held, retained, collected
    and terminated, with crashes at every step."""
    play_and_meet("log-life", stretch, OF_LIFE, sorted(trace.LIFE_POINTS), within=1_200)


@stretches(60, 3_000, per_minute=1_900)
def test_no_history_of_a_truncated_log_over_bookies_breaks_a_promise(stretch: Stretch) -> None:
    play("log-life-bookies", stretch)


@stretches(140, 10_000, per_minute=4_200)
def test_no_history_of_jobs_publishes_a_batch_twice_or_in_part(stretch: Stretch) -> None:
    """I1, I2, I5, I6, I15, I29: batches are filled, published and discarded by processes that die,
    freeze and run beside each other, among writers, readers, truncations and strangers."""
    points = sorted(trace.JOB_POINTS - {"job.deleted"})
    play_and_meet("log-jobs", stretch, OF_JOBS, points, within=200)


@stretches(100, 10_000, per_minute=3_800)
def test_no_look_at_a_log_cries_wolf_or_takes_what_is_needed(stretch: Stretch) -> None:
    """I24, I26: looked over and repaired, with no grace, while everybody else works and dies."""
    play_and_meet("log-fsck", stretch, OF_LOOKS, ["repair.ledger_deleted"], within=150)


@stretches(160, 6_000, per_minute=2_400)
def test_no_damaged_list_loses_moves_or_skips_anything_and_repair_makes_it_whole(
    stretch: Stretch,
) -> None:
    """I1, I8, I15, I17, I18, I24: pages lost, changed and unreadable, and ends that are listed
    wrongly, while everybody works on the log, dies, and repairs it."""
    points = ["repair.page_written", "repair.resealed", "repair.page_deleted"]
    play_and_meet("log-repair", stretch, OF_DAMAGE, points, within=470)


@stretches(700, 40_000, per_minute=17_000)
def test_no_short_history_of_truncation_alone_breaks_a_promise(stretch: Stretch) -> None:
    play_and_meet("log-cuts", stretch, OF_CUTS, sorted(trace.LIFE_POINTS), within=1_600)


def test_a_violation_says_how_to_repeat_it() -> None:
    with planted(PLANTS["release_out_of_order"]):
        tally = run_many("log-abstract", count=50)
    with pytest.raises(Violation, match=r"I4a: .*\n.*python -m dlog\.testing\.sim tell .* \d+"):
        tally.check()


@counts(120, 1_200, seconds=18)
def test_a_strict_tail_is_never_fooled(count: int) -> None:
    """H1, H2: strangers show what they write back, and decide on another end; a normal tail
    believes them."""
    tally = run_many("log-abstract", count=count, **STRANGERS)
    tally.check()
    assert tally.marks["a stranger's write-back shows"] > count // 4
    over_bookies = run_many("log", count=count // 4, **STRANGERS)
    over_bookies.check()
    assert over_bookies.marks["a stranger's write-back shows"] > count // 20
    believes = {**STRANGERS, "tail": "normal"}
    fooled = run_many("log-abstract", count=400, stops=True, **believes)
    with pytest.raises(Violation, match=r"I9|I3"):
        fooled.check()

"""What a worker has under way: tables of what is free, what is due, and who is asked."""

from __future__ import annotations

import math

import pytest

from dlog.groups.asks import Look, OfShard, Prove, Release, Renounce, Ring, Save, Take
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.store import Held
from dlog.groups.underway import Rings, Underway
from dlog.groups.view import Move, WorkerId
from dlog.ids import Position

ANA, BOB = WorkerId("ana", "a"), WorkerId("bob", "b")
HELD = Held(Lease("s"), 1, 1)
CHECKPOINT = Checkpoint(Position("u", 1, None))


def test_a_shard_is_free_when_nothing_is_under_way_and_its_retry_has_come() -> None:
    found = Underway()
    assert found.is_free("s", 0.0)
    found.busy["s"] = Look("s")
    found.retry_s["t"] = 5.0
    rows = [("s", 4.9, False), ("s", 9.0, False), ("t", 4.9, False), ("t", 5.0, True)]
    for shard, now_s, is_free in rows:
        assert found.is_free(shard, now_s) is is_free
    found.retry_s["s"] = 7.0
    found.answered("s")
    assert found.is_free("s", 0.0), "an answer takes the wait before with it"
    found.answered("never asked")


@pytest.mark.parametrize(
    ("wanted", "due_s"),
    [
        ([], 50.0),
        ([("free", 20.0)], 20.0),
        ([("free", 50.0)], 50.0),
        ([("free", 60.0)], 50.0),
        ([("busy", 20.0)], 50.0),
        ([("failed", 20.0)], 30.0),
        ([("failed", 40.0)], 40.0),
        ([("failed for long", 20.0)], 50.0),
        ([("failed", 20.0), ("free", 25.0)], 25.0),
        ([("free", 25.0), ("failed", 20.0)], 25.0),
        ([("free", 0.0), ("free", 20.0)], 0.0),
        ([("free", math.inf)], 50.0),
    ],
)
def test_the_first_of_what_is_wanted_is_due(wanted: list[tuple[str, float]], due_s: float) -> None:
    """What is under way is due with its answer; what failed, not before it is tried again."""
    found = Underway()
    found.busy["busy"] = Look("busy")
    found.retry_s = {"failed": 30.0, "failed for long": 70.0}
    assert found.due_s(50.0, wanted) == due_s


def test_saves_take_nobody_s_place() -> None:
    """All else counts against what may move at once."""
    found = Underway()
    asks: list[OfShard] = [
        Look("a"),
        Take("b"),
        Renounce("c"),
        Save("d", HELD, CHECKPOINT),
        Prove("e", HELD),
        Release("f", HELD, None, False),
    ]
    for many, ask in enumerate(asks):
        assert found.moving() == many - (many > 3)
        found.busy[ask.shard] = ask
    assert found.moving() == 5


def test_a_worker_is_asked_for_all_shards_in_one_piece_and_once_at_a_time() -> None:
    rings = Rings()
    assert rings.due() == []
    for worker, shard in ((ANA, "x"), (BOB, "x"), (ANA, "y"), (ANA, "x")):
        rings.want(worker, shard)
    assert rings.due() == [Ring(ANA, ("x", "y")), Ring(BOB, ("x",))]
    rings.want(ANA, "z")
    rings.want(BOB, "x")
    assert rings.due() == [], "until the answer is there"
    rings.answered(BOB)
    assert rings.due() == [Ring(BOB, ("x",))]
    rings.answered(ANA)
    assert rings.due() == [Ring(ANA, ("z",))]
    rings.answered(ANA)
    rings.answered(BOB)
    assert rings.due() == []


def test_who_takes_what_was_blocked_is_told_that_it_may_be_taken() -> None:
    rings = Rings()
    moves = [Move("child", ANA, None), Move("other", BOB, None), Move("third", BOB, ANA)]
    rings.planned(moves, {"child", "third", "nobody's"})
    assert rings.due() == [Ring(ANA, ("child",)), Ring(BOB, ("third",))]


@pytest.mark.parametrize(
    ("take", "answer", "is_told"),
    [
        (Take("s", BOB, over=BOB), HELD, True),
        (Take("s", BOB, over=BOB), Lease("s"), False),
        (Take("s", BOB, over=BOB), None, False),
        (Take("s", BOB), HELD, False),
    ],
)
def test_who_was_fenced_by_force_is_told(take: Take, answer: object, is_told: bool) -> None:
    """And nobody who still has it, or handed it over by itself."""
    rings = Rings()
    rings.taken(take, answer)
    assert rings.due() == ([Ring(BOB, ("s",))] if is_told else [])

"""LH-05 to LH-07, LH-15, LH-22, LH-30 to LH-35, and flaws 3 and 6: who should have which shard, as
a pure function of what everybody sees."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.groups.plan import moves_of, plan
from dlog.groups.view import ShardView, View, WorkerId, WorkerView
from dlog.testing.group_plans import (
    after,
    check_plan_by_count,
    check_plan_by_weight,
    check_plan_over_domains,
    counts_of,
    fewest_moves,
    random_start,
    starts,
    view_of,
    worker_ids,
)

SMALL = 7  # of 12: `python -m benchmarks.groups plan` tries all


@pytest.mark.parametrize("workers", range(1, SMALL + 1))
def test_lh_22_every_small_start_ends_even_by_the_fewest_moves(workers: int) -> None:
    """LH-31, LH-32: each worker gets what is missing to its share, rounded down or up."""
    for shards in range(SMALL + 1):
        for counts, free in starts(shards, workers):
            check_plan_by_count(counts, free)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 16, 31, 50, 64])
def test_lh_22_random_starts_end_even_by_the_fewest_moves(workers: int) -> None:
    rng = random.Random(workers)
    for shards in range(0, 65, 3):
        for _ in range(3):
            check_plan_by_count(*random_start(shards, workers, rng))


@pytest.mark.parametrize("counts", [(4, 0, 0), (3, 1), (2, 2, 0), (5, 0), (1, 1, 1)])
def test_the_fewest_moves_are_the_fewest(counts: tuple[int, ...]) -> None:
    """Held against every end there is."""
    for free in range(3):
        owners = [w for w, count in enumerate(counts) for _ in range(count)] + [None] * free
        best = len(owners)
        for end in itertools.product(range(len(counts)), repeat=len(owners)):
            sizes = [end.count(w) for w in range(len(counts))]
            if max(sizes) - min(sizes) <= 1:
                moved = sum(a != b for a, b in zip(owners, end, strict=True))
                best = min(best, moved)
        assert best == fewest_moves(counts, free)


@pytest.mark.parametrize("counts", [(3, 3, 2, 2), (3, 2, 2, 2), (3, 2, 2), (2, 1, 1, 1)])
def test_lh_flaw_3_a_difference_of_one_moves_nothing(counts: tuple[int, ...]) -> None:
    """Where everybody wants the ceiling, these wander for ever."""
    assert plan(view_of(counts)) == ()


def test_lh_29_30_flaw_2_a_worker_without_shards_counts() -> None:
    assert len(plan(view_of((6, 0, 0)))) == 4
    assert len(plan(view_of((0, 0), free=6))) == 6  # nobody owns any: no division by zero


def test_lh_33_what_nobody_has_is_given_out_before_anything_is_stolen() -> None:
    moves = check_plan_by_count((4, 0, 1), 3)
    assert {move.victim for move in moves} <= {None, worker_ids(3)[0]}
    assert sum(move.victim is not None for move in moves) == 1  # 8 shards: 3, 3, 2
    assert all(move.victim is None for move in check_plan_by_count((4, 0, 0), 8))


def test_lh_34_35_one_plan_takes_all_that_is_too_much() -> None:
    """From the richest two, none of which ends below the rest."""
    moves = check_plan_by_count((10, 9, 1, 0), 0)
    assert len([m for m in moves if m.victim == worker_ids(4)[0]]) == 5
    assert len([m for m in moves if m.victim == worker_ids(4)[1]]) == 4


def test_lh_63_a_batch_is_a_round_where_one_at_a_time_is_many() -> None:
    """What a newcomer needs: one round, where a worker that steals one a round needs as many as it
    steals."""
    view = view_of((10, 10, 10, 10, 0))
    moves = moves_of(plan(view), worker_ids(5)[4])
    assert len(moves) == 8
    assert counts_of(after(view, moves)) == [8] * 5
    one_at_a_time, rounds = view, 0
    while moves := plan(one_at_a_time):
        one_at_a_time, rounds = after(one_at_a_time, moves[:1]), rounds + 1
    assert rounds == 8


def test_every_worker_computes_the_same_whatever_the_order() -> None:
    """LH-05 to LH-07: the plan is a function of the view, so no worker assigns shards to others."""
    view = view_of((7, 0, 2, 1), 5)
    other = View(tuple(reversed(view.shards)), tuple(reversed(view.workers)))
    assert plan(other) == plan(view)


def test_lh_flaw_6_new_shards_spread_without_a_herd() -> None:
    """Each is wanted by one, and not always by the same."""
    moves = plan(view_of((0,) * 8, free=64))
    assert len({move.shard for move in moves}) == len(moves) == 64
    workers = view_of((0,) * 4).workers
    firsts = {plan(View((ShardView(f"s{n}"),), workers))[0].taker for n in range(8)}
    assert len(firsts) == 1  # a single shard goes to whoever is to have the extra one
    pairs = {plan(View((ShardView(f"{n}a"), ShardView(f"{n}b")), workers[:2])) for n in range(20)}
    assert len({(a.taker, b.taker) for a, b in pairs}) == 2


def test_lh_27_who_comes_back_gets_what_it_had() -> None:
    former, me = WorkerId("ana", "1" * 32), WorkerId("ana", "2" * 32)
    others = worker_ids(2)
    shards = tuple(
        ShardView(f"s{n}", former if n < 3 else others[n % 2], former if n < 3 else others[n % 2])
        for n in range(9)
    )
    view = View(shards, tuple(WorkerView(each) for each in (me, *others)))
    assert {move.shard for move in plan(view)} == {"s0", "s1", "s2"}
    assert {move.taker for move in plan(view)} == {me}


def test_a_hand_off_under_way_counts_for_the_taker() -> None:
    a, b = worker_ids(2)
    shards = (
        ShardView("x", owner=b, consumer=a),
        ShardView("y", owner=a, consumer=a),
        ShardView("z", owner=a, consumer=a),
    )
    assert plan(View(shards, (WorkerView(a), WorkerView(b)))) == ()


def test_a_hand_off_to_one_that_died_counts_for_who_is_at_it_still() -> None:
    a, b = worker_ids(2)
    gone = WorkerId("gone", "9" * 32)
    shards = (ShardView("x", owner=gone, consumer=a), ShardView("y", owner=b, consumer=b))
    assert plan(View(shards, (WorkerView(a), WorkerView(b)))) == ()


def test_what_is_not_consumed_yet_is_taken_first() -> None:
    a, b = worker_ids(2)
    gone = WorkerId("gone", "9" * 32)
    shards = tuple(ShardView(f"s{n}", owner=a, consumer=gone if n == 2 else a) for n in range(4))
    moved = {move.shard for move in plan(View(shards, (WorkerView(a), WorkerView(b))))}
    assert "s2" in moved
    assert len(moved) == 2


# --- domains


def _fewest_over_domains(counts: list[int], free: int, domains: list[str]) -> int:
    total, many = sum(counts) + free, len(counts)
    share, extra = divmod(total, many)
    best = total
    for richer in itertools.combinations(range(many), extra):
        fair = all(
            abs(
                sum(w in richer for w in range(many) if domains[w] == d) * many
                - extra * domains.count(d)
            )
            < many
            for d in set(domains)
        )
        if fair:
            targets = [share + (w in richer) for w in range(many)]
            best = min(best, sum(max(0, t - c) for t, c in zip(targets, counts, strict=True)))
    return best


@given(st.data())
def test_domains_get_their_part_by_the_fewest_moves(data: st.DataObject) -> None:
    many = data.draw(st.integers(1, 7))
    counts = data.draw(st.lists(st.integers(0, 6), min_size=many, max_size=many))
    free = data.draw(st.integers(0, 9))
    domains = data.draw(st.lists(st.sampled_from("abc"), min_size=many, max_size=many))
    view = view_of(counts, free, domains=domains)
    moves = check_plan_over_domains(view)
    if view.shards:
        assert len(moves) == _fewest_over_domains(counts, free, domains)


def test_domains_of_one_size_differ_by_one() -> None:
    for shards in range(40):
        view = view_of((0,) * 6, free=shards, domains=["a", "a", "b", "b", "c", "c"])
        then = counts_of(after(view, plan(view)))
        sums = [sum(then[0:2]), sum(then[2:4]), sum(then[4:6])]
        assert max(sums) - min(sums) <= 1


# --- weights


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 6)), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 100),
)
def test_lh_15_weights_end_within_the_lightest_of_the_richest(
    held: list[tuple[int, int]], many: int, slack: int
) -> None:
    ids = worker_ids(many)
    shards = tuple(
        ShardView(f"s{n:02d}", ids[who] if who < many else None, None, weight)
        for n, (weight, who) in enumerate(held)
    )
    view = View(shards, tuple(WorkerView(each) for each in ids), slack)
    check_plan_by_weight(view)


def test_a_slack_keeps_lag_that_comes_and_goes_from_moving_shards() -> None:
    weights = [100, 90, 105, 80]
    view = view_of((2, 2), weights=weights, slack=60)
    assert plan(view) == ()
    assert plan(view_of((4, 0), weights=weights, slack=60)) != ()


def test_nobody_and_nothing_have_no_plan() -> None:
    assert plan(View((), ())) == ()
    assert plan(View((ShardView("s"),), ())) == ()
    assert plan(view_of((0, 0))) == ()


def test_by_weight_the_shard_moves_that_brings_both_closest_together() -> None:
    """Of two workers, wherever one shard is enough: one move, of the best shard there is."""
    tried = 0
    for slack in (0, 1, 3):
        for many in (2, 3, 4):
            for weights in itertools.combinations_with_replacement(range(1, 11), many):
                for other in (1, 4, 9):
                    gap = sum(weights) - other
                    best = min(abs(gap - 2 * weight) for weight in weights)
                    if gap <= slack or best > slack or set(weights) == {other}:
                        continue
                    tried += 1
                    ids = worker_ids(2)
                    shards = [ShardView(f"s{n}", ids[0], None, w) for n, w in enumerate(weights)]
                    shards.append(ShardView("t", ids[1], None, other))
                    workers = tuple(WorkerView(each) for each in ids)
                    (move,) = plan(View(tuple(shards), workers, slack))
                    moved = weights[int(move.shard.removeprefix("s"))]
                    assert abs(gap - 2 * moved) == best, (weights, other, slack)
    assert tried > 500

"""Every way in which a group can begin, and what has to be true of its plan: for tests and for the
benchmark that tries them all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from dlog.groups.plan import plan
from dlog.groups.view import Move, ShardView, View, WorkerId, WorkerView


@cache
def worker_ids(count: int) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(f"w{each:02d}", f"{each:032x}") for each in range(count))


def view_of(
    counts: Sequence[int],
    free: int = 0,
    *,
    domains: Sequence[str | None] = (),
    weights: Sequence[int] = (),
    slack: int = 0,
) -> View:
    """Workers that have so many shards each, and so many that nobody has."""
    ids = worker_ids(len(counts))
    owners: list[WorkerId | None] = [None] * free
    for worker, count in zip(ids, counts, strict=True):
        owners += [worker] * count
    random.Random(len(owners)).shuffle(owners)
    shards = tuple(
        ShardView(f"s{number:03d}", owner, owner, weights[number] if weights else 1)
        for number, owner in enumerate(owners)
    )
    places = domains or [None] * len(ids)
    workers = tuple(WorkerView(each, place) for each, place in zip(ids, places, strict=True))
    return View(shards, workers, slack)


def after(view: View, moves: Sequence[Move]) -> View:
    """When all of them were made."""
    takers = {move.shard: move.taker for move in moves}
    shards = []
    for each in view.shards:
        owner = takers.get(each.name, each.owner)
        shards.append(ShardView(each.name, owner, owner, each.weight))
    return View(tuple(shards), view.workers, view.slack)


def counts_of(view: View) -> list[int]:
    owned = Counter(shard.owner for shard in view.shards)
    return [owned[worker.id] for worker in view.workers]


def loads_of(view: View) -> list[int]:
    loads: Counter[WorkerId | None] = Counter()
    for shard in view.shards:
        loads[shard.owner] += shard.weight
    return [loads[worker.id] for worker in view.workers]


def fewest_moves(counts: Sequence[int], free: int) -> int:
    """Any even end has the same counts, up to renaming; who has more is filled up to more."""
    share, extra = divmod(sum(counts) + free, len(counts))
    wanted = [share + 1] * extra + [share] * (len(counts) - extra)
    return sum(
        max(0, target - count)
        for target, count in zip(wanted, sorted(counts, reverse=True), strict=True)
    )


def check_plan_by_count(counts: Sequence[int], free: int) -> tuple[Move, ...]:
    """Even, by the fewest moves, and done with it; no difference of one moves anything."""
    view = view_of(counts, free)
    moves = plan(view)
    then = after(view, moves)
    found = counts_of(then)
    about = f"{list(counts)} and {free} free"
    assert sum(found) == len(view.shards), f"{about}: a shard was left"
    assert max(found) - min(found) <= 1, f"{about}: {found}"
    assert len(moves) == fewest_moves(counts, free), f"{about}: {len(moves)} moves"
    assert not plan(then), f"{about}: it does not rest"
    has = dict(zip((each.id for each in view.workers), counts, strict=True))
    for move in moves:
        assert move.victim is None or has[move.victim] - has[move.taker] >= 2, f"{about}: {move}"
    return moves


def check_plan_by_weight(view: View) -> tuple[Move, ...]:
    """The richest above the poorest by no more than its lightest shard, or the slack; and done."""
    moves = plan(view)
    then = after(view, moves)
    loads = loads_of(then)
    assert sum(loads) == sum(shard.weight for shard in view.shards), "a shard was left"
    rich = {each.id for each, load in zip(view.workers, loads, strict=True) if load == max(loads)}
    lightest = min((shard.weight for shard in then.shards if shard.owner in rich), default=0)
    by_count = len({shard.weight for shard in view.shards}) == 1
    gap = max(loads) - min(loads)
    most = lightest if by_count else max(view.slack, lightest)
    assert gap <= most, f"{loads}: the lightest of the richest is {lightest}, of slack {view.slack}"
    assert not plan(then), f"{loads}: it does not rest"
    return moves


def check_plan_over_domains(view: View) -> tuple[Move, ...]:
    """Even, less than one shard from each domain's part; and done."""
    moves = plan(view)
    then = after(view, moves)
    counts, many = counts_of(then), len(view.workers)
    assert sum(counts) == len(view.shards), f"{counts}: a shard was left"
    domains: dict[str | None, list[int]] = {}
    for worker, count in zip(view.workers, counts, strict=True):
        domains.setdefault(worker.domain, []).append(count)
    assert max(counts) - min(counts) <= 1, f"{counts}"
    for domain, of_it in domains.items():
        off = abs(sum(of_it) * many - len(view.shards) * len(of_it))
        assert off < many, f"{domain} has {of_it} of {counts}"
    assert not plan(then), f"{counts}: it does not rest"
    return moves


def starts(shards: int, workers: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """All of them, up to renaming: who has how many, and how many nobody has."""
    for free in range(shards + 1):
        for counts in _parts(shards - free, workers, shards - free):
            yield counts, free


def _parts(total: int, places: int, largest: int) -> Iterator[tuple[int, ...]]:
    if places == 1:
        if total <= largest:
            yield (total,)
        return
    for first in range(min(total, largest), (total - 1) // places, -1):
        for rest in _parts(total - first, places - 1, first):
            yield first, *rest


def random_start(shards: int, workers: int, rng: random.Random) -> tuple[list[int], int]:
    """From nearly even to all with one."""
    counts, free = [0] * workers, 0
    crowd = rng.randint(1, workers)
    lonely = rng.choice((0.0, 0.1, 0.5, 1.0))
    for _ in range(shards):
        if rng.random() < lonely:
            free += 1
        else:
            counts[rng.randrange(crowd)] += 1
    return counts, free

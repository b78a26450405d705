"""Who should have which shard: one pure function, `plan(view)`, which every worker computes for
itself and of which it makes the moves that it takes part in as the taker.

By count (all weights alike), with S shards and W workers:

- Afterwards each has S // W shards or one more, and a second plan moves nothing.
- No plan could do with fewer moves: `extra` ones go to those who have most, so each arrival fills a
  place that has to be filled.
- What nobody has is given out first. A live owner loses one only to somebody who has at least two
  fewer: a difference of one is no reason, or shards would wander for ever.
- Over failure domains the extra ones are dealt in proportion to their workers: each domain has less
  than one shard more or less than S * its workers / W. With domains of equal size they differ by
  one at most. Of all plans that keep this, too, it is one with the fewest moves.

By weight: afterwards the richest worker is above the poorest by no more than the lightest of its
own shards (so by no more than the heaviest shard there is), or by no more than `slack`; so is each,
where several are as rich. A second plan moves nothing; each step makes the sum of the squares
smaller, so it ends. The fewest moves are not promised, and domains count for nothing: both would
cost more than they bring.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left, insort
from collections.abc import Sequence

from dlog.groups.view import Move, ShardView, View, WorkerId, WorkerView

_MASK = (1 << 64) - 1


def plan(view: View) -> tuple[Move, ...]:
    """The moves that make the view even, in a fixed order."""
    workers = sorted(view.workers, key=lambda each: each.id)
    if not workers or not view.shards:
        return ()
    hands = _Hands(workers, sorted(view.shards, key=lambda each: each.name))
    first = view.shards[0].weight
    if all(each.weight == first for each in view.shards):
        _level_by_count(hands)
    else:
        _level_by_weight(hands, view.slack)
    return hands.moves()


def moves_of(moves: Sequence[Move], me: WorkerId) -> tuple[Move, ...]:
    return tuple(each for each in moves if each.taker == me)


@functools.lru_cache(maxsize=1 << 14)
def _mark(name: str) -> int:
    """Odd, so that a product of two is as well mixed in its high bits as they are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) | 1


class _Hands:
    """Who has what, and to whom it goes. Workers by their place in the sorted list."""

    def __init__(self, workers: list[WorkerView], shards: list[ShardView]) -> None:
        self.workers = workers
        self.marks = [_mark(f"{each.id.name}~{each.id.incarnation}") for each in workers]
        places = {each.id: place for place, each in enumerate(workers)}
        self.shards = shards
        self.before: list[int | None] = []
        self.has: list[list[int]] = [[] for _ in workers]  # numbers of shards
        self.free: list[int] = []
        for number, shard in enumerate(shards):
            place = None if shard.owner is None else places.get(shard.owner)
            if place is None and shard.consumer is not None:
                place = places.get(shard.consumer)  # who was to have it died before it had it
            self.before.append(place)
            (self.free if place is None else self.has[place]).append(number)
        self.after = list(self.before)

    def give(self, number: int, place: int) -> None:
        self.after[number] = place

    def likes(self, number: int, place: int) -> int:
        """How much a shard belongs to a worker when nothing else tells: the same for everybody who
        asks, and for each shard another order of the workers."""
        return (_mark(self.shards[number].name) * self.marks[place]) & _MASK

    def favourite(self, number: int, places: Sequence[int]) -> int:
        mark, marks = _mark(self.shards[number].name), self.marks
        return max(places, key=lambda place: (mark * marks[place]) & _MASK)

    def moves(self) -> tuple[Move, ...]:
        ids = [each.id for each in self.workers]
        return tuple(
            Move(shard.name, ids[after], None if before is None else ids[before])
            for shard, before, after in zip(self.shards, self.before, self.after, strict=True)
            if after is not None and after != before
        )


# --- by count


def _level_by_count(hands: _Hands) -> None:
    counts = [len(each) for each in hands.has]
    targets = _targets(hands, counts)
    lacks = [max(0, target - count) for target, count in zip(targets, counts, strict=True)]
    takers = [place for place, lack in enumerate(lacks) if lack]

    def take(number: int, place: int) -> None:
        hands.give(number, place)
        lacks[place] -= 1
        if not lacks[place]:
            takers.remove(place)

    left = []
    for number in hands.free:
        place = _namesake(hands, number, takers)
        if place is None:
            left.append(number)
        else:
            take(number, place)
    for number in left:
        take(number, hands.favourite(number, takers))
    for place, target in enumerate(targets):
        surplus = counts[place] - target
        if surplus > 0:
            for number in _cheapest(hands, place, surplus):
                take(number, hands.favourite(number, takers))


def _targets(hands: _Hands, counts: list[int]) -> list[int]:
    """How many each shall have. The extra ones go to those who have more already."""
    total, many = len(hands.shards), len(counts)
    share, extra = divmod(total, many)
    targets = [share] * many
    by_domain: dict[str | None, list[int]] = {}
    for place, worker in enumerate(hands.workers):
        by_domain.setdefault(worker.domain, []).append(place)
    for domain, of_it in _extras(by_domain, counts, share, extra).items():
        places = by_domain[domain]
        places.sort(key=lambda place: (-counts[place], hands.marks[place], place))
        for place in places[:of_it]:
            targets[place] += 1
    return targets


def _extras(
    by_domain: dict[str | None, list[int]], counts: list[int], share: int, extra: int
) -> dict[str | None, int]:
    """How many of the extra shards each domain gets: as many as is its part, rounded down or up.
    Up goes first where it saves a move."""
    many = len(counts)
    given = {domain: extra * len(places) // many for domain, places in by_domain.items()}
    rounded = [d for d, places in by_domain.items() if extra * len(places) % many]

    def saves(domain: str | None) -> bool:
        full = sum(counts[place] > share for place in by_domain[domain])
        return full > given[domain]

    rounded.sort(key=lambda domain: (not saves(domain), _mark(domain or "")))
    for domain in rounded[: extra - sum(given.values())]:
        given[domain] += 1
    return given


def _namesake(hands: _Hands, number: int, takers: list[int]) -> int | None:
    """A worker that came back gets what it had before."""
    shard = hands.shards[number]
    names = {each.name for each in (shard.owner, shard.consumer) if each is not None}
    if not names:
        return None
    return next((place for place in takers if hands.workers[place].id.name in names), None)


def _cheapest(hands: _Hands, place: int, count: int) -> list[int]:
    """What a worker gives away: first what it does not consume yet, then what belongs to it
    least."""
    me = hands.workers[place].id

    def price(number: int) -> tuple[bool, int]:
        return hands.shards[number].consumer == me, hands.likes(number, place)

    return sorted(hands.has[place], key=price)[:count]


# --- by weight


def _level_by_weight(hands: _Hands, slack: int) -> None:
    weights = [max(1, each.weight) for each in hands.shards]
    # Each worker's shards, the lightest first.
    piles = [sorted((weights[number], number) for number in numbers) for numbers in hands.has]
    loads = [sum(weight for weight, _ in pile) for pile in piles]
    everyone = range(len(piles))
    for number in sorted(hands.free, key=lambda each: (-weights[each], each)):
        lowest = min(loads)
        at_it = [place for place in everyone if loads[place] == lowest]
        place = _namesake(hands, number, at_it)
        if place is None:
            place = hands.favourite(number, at_it)
        insort(piles[place], (weights[number], number))
        loads[place] += weights[number]
    while True:
        poor = min(everyone, key=lambda place: (loads[place], place))
        most = max(loads)
        gap = most - loads[poor]
        if gap <= slack:
            break
        # Of several that are as rich, whoever can give something.
        givers = (place for place in everyone if loads[place] == most and piles[place][0][0] < gap)
        rich = next(givers, None)
        if rich is None:
            break
        chosen = _nearest_half(piles[rich], gap)
        item = piles[rich].pop(chosen)
        insort(piles[poor], item)
        loads[rich] -= item[0]
        loads[poor] += item[0]
    for place, pile in enumerate(piles):
        for _, number in pile:
            hands.give(number, place)


def _nearest_half(pile: list[tuple[int, int]], gap: int) -> int:
    """The shard that brings the two closest together, of a pile that has one below the gap."""
    above = bisect_left(pile, (gap // 2 + 1, -1))
    if above and (above == len(pile) or gap - pile[above - 1][0] <= pile[above][0]):
        return above - 1
    return above

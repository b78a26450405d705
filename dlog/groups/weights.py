"""How heavy the shards of a group are: numbers that all of its workers plan with, in one node.

Each worker plans for itself, so what they plan with has to be the same; and lag is never the same
for two who look. So one of them measures (whoever is first among those alive; two at once do no
harm), and writes what it found down, but only if by it something should move in a group where
nothing else does: noise is not written down, and moves nothing.

A weight is in per cent of the average shard, and not below `LEAST`: a shard where nothing comes
costs something, too, and may wake up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlog import limits
from dlog.effects import CreateNode, Procedure, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, FormatError, NotFound
from dlog.groups.places import GroupPlaces
from dlog.groups.plan import plan
from dlog.groups.view import View, WorkerId
from dlog.meta.json_fields import dump, load, the_dict, the_int

FORMAT = 1
AVERAGE = 100
LEAST = 10
WEIGHT_MAX = AVERAGE * limits.GROUP_SHARDS_MAX
DIGITS_MAX = 18
SLACK_SHARE = 4  # of a worker's usual load: less of a difference is no reason to move anything


def weights_of(measured: Mapping[str, int]) -> dict[str, int]:
    """Of messages or bytes, by shard."""
    total = sum(measured.values())
    if total == 0:
        return dict.fromkeys(measured, AVERAGE)
    return {
        shard: max(LEAST, round(AVERAGE * amount * len(measured) / total))
        for shard, amount in measured.items()
    }


def slack_of(weights: list[int], workers: int) -> int:
    return sum(weights) // max(1, workers) // SLACK_SHARE


def is_worth_it(view: View, weights: Mapping[str, int]) -> bool:
    """Whether by these weights a plan would bring the richest and the poorest closer together, by
    more than a slack; in a group where nothing is to be moved as it is. (Two heavy shards would
    change places for ever otherwise, by turns a little heavier than each other.)"""
    if plan(view):
        return False
    shards = tuple(
        dataclasses.replace(each, weight=weights.get(each.name, each.weight))
        for each in view.shards
    )
    slack = slack_of([each.weight for each in shards], len(view.workers))
    weighed = View(shards, view.workers, slack)
    takers = {move.shard: move.taker for move in plan(weighed)}
    return bool(takers) and _gap(weighed, {}) - _gap(weighed, takers) > slack


def _gap(view: View, takers: Mapping[str, WorkerId]) -> int:
    """Between the richest and the poorest, when these moves were made."""
    loads = {worker.id: 0 for worker in view.workers}
    for shard in view.shards:
        owner = takers.get(shard.name, shard.owner)
        if owner in loads:
            loads[owner] += shard.weight
    return max(loads.values()) - min(loads.values())


# --- the node: by number of shard


def read_weights(places: GroupPlaces) -> Procedure[dict[int, int]]:
    """Nothing where nobody wrote any: then each weighs as much as another."""
    weights, _ = yield from _read(places)
    return weights


def write_weights(places: GroupPlaces, weights: Mapping[int, int]) -> Procedure[None]:
    """`Conflict`: somebody else did, just now, and is as right as we are."""
    found, version = yield from _read(places)
    if found == weights:
        return
    raw = dump({"format": FORMAT, "weights": {str(n): w for n, w in sorted(weights.items())}})
    try:
        if version < 0:
            yield CreateNode(places.weights, raw, point="group.weighed")
        else:
            yield ReplaceNode(places.weights, raw, version, point="group.weighed")
    except (AlreadyExists, NotFound):
        raise Conflict("the weights were written by somebody else") from None


def _read(places: GroupPlaces) -> Procedure[tuple[dict[int, int], int]]:
    try:
        raw, version = yield ReadNode(places.weights)
    except NotFound:
        return {}, -1
    return weights_from(raw, where=places.weights), version


def weights_from(raw: bytes, *, where: str) -> dict[int, int]:
    if len(raw) > limits.META_NODE_BYTES_MAX:
        raise FormatError(f"{where} has {len(raw)} bytes, more than weights can have")
    fields = load(raw, where)
    if the_int(fields, "format", where) != FORMAT:
        raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
    weights: dict[int, int] = {}
    for number, weight in the_dict(fields, "weights", where).items():
        is_number = number.isdecimal() and len(number) <= DIGITS_MAX
        if not is_number or type(weight) is not int or not 0 < weight <= WEIGHT_MAX:
            raise FormatError(f"{where}: shard {number[:80]!r} weighs {weight!r}")
        weights[int(number)] = weight
    return weights

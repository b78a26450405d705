"""The view that a worker plans with: of others it knows what their nodes say, of itself what is so.

It may be late by a renewal, and is nobody's proof: a lease decides what becomes of a move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dlog.groups.shards import ShardGraph
from dlog.groups.view import ShardView, View, WorkerId, WorkerView
from dlog.groups.weights import slack_of
from dlog.groups.workers import WorkerNode


@dataclass(slots=True)
class Outlook:
    view: View
    consumers: dict[str, WorkerId]
    unheld: set[str] = field(default_factory=set)
    """Shards of the view that nobody has who takes part."""


def look_out(
    graph: ShardGraph,
    ours: WorkerView,
    others: Mapping[WorkerId, WorkerNode],
    *,
    replaced: Collection[WorkerId],
    holds: Iterable[str],
    keeps: Iterable[str],
    coming: Mapping[str, WorkerId],
) -> Outlook:
    """`keeps`: of what we hold, what nobody asked for: who says that it comes to them says so since
    before. `coming`: the shards that we announced ourselves for, and who has them."""
    owners: dict[str, WorkerId] = {}
    consumers: dict[str, WorkerId] = {}
    for worker in sorted(others):
        node = others[worker]
        consumers.update(dict.fromkeys(node.holds, worker))
        owners.update(dict.fromkeys(node.coming, worker))
    consumers.update(dict.fromkeys(holds, ours.id))
    owners.update(dict.fromkeys(keeps, ours.id))
    for shard, victim in coming.items():
        owners[shard] = ours.id
        consumers.setdefault(shard, victim)
    shards = tuple(
        ShardView(
            each.name,
            owners.get(each.name, consumers.get(each.name)),
            consumers.get(each.name),
            each.weight,
        )
        for each in graph.consumable()
    )
    workers = [ours]
    workers += [WorkerView(w, others[w].domain) for w in sorted(others) if w not in replaced]
    known = {worker.id for worker in workers}
    unheld = {
        each.name for each in shards if each.owner not in known and each.consumer not in known
    }
    slack = slack_of([each.weight for each in shards], len(workers))
    return Outlook(View(shards, tuple(workers), slack), consumers, unheld)


def gates(graph: ShardGraph, others: Mapping[WorkerId, WorkerNode]) -> set[str]:
    """Shards that others wait for and that nobody has: they may be at their end, which their leases
    tell."""
    held = {shard for node in others.values() for shard in node.holds}
    return {
        parent
        for name in graph.shards
        if name not in graph.finished
        for parent in graph.blockers(name)
        if parent not in held
    }

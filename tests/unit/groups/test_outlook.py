"""What a worker plans with: of others what their nodes say, of itself what is so."""

from __future__ import annotations

import itertools
from typing import Any

from dlog.groups.outlook import Outlook, gates, look_out
from dlog.groups.shards import GroupShard, ShardGraph
from dlog.groups.view import WorkerId, WorkerView
from dlog.groups.weights import slack_of
from dlog.groups.workers import WorkerNode

ME, ANA, BOB = (WorkerId(name, name[0] * 4) for name in ("me", "ana", "bob"))


def node(worker: WorkerId, holds: str = "", coming: str = "", **more: Any) -> WorkerNode:
    return WorkerNode(worker, holds=tuple(holds), coming=tuple(coming), **more)


def outlook(graph: ShardGraph, *nodes: WorkerNode, **ours: Any) -> Outlook:
    given: dict[str, Any] = {"replaced": (), "holds": (), "keeps": (), "coming": {}, **ours}
    others = {each.id: each for each in nodes}
    return look_out(graph, WorkerView(ME, "here"), others, **given)


def rows(found: Outlook) -> dict[str, tuple[WorkerId | None, WorkerId | None]]:
    return {each.name: (each.owner, each.consumer) for each in found.view.shards}


def flat(names: str) -> ShardGraph:
    return ShardGraph([GroupShard(name) for name in names])


def test_each_shard_has_who_holds_it_and_who_it_goes_to() -> None:
    found = outlook(
        flat("abcdef"),
        node(ANA, "ab", "c"),
        node(BOB, "c", "b"),
        holds="de",
        keeps="d",
        coming={"a": ANA},
    )
    assert rows(found) == {
        "a": (ME, ANA),
        "b": (BOB, ANA),
        "c": (ANA, BOB),
        "d": (ME, ME),
        "e": (ME, ME),
        "f": (None, None),
    }
    assert found.unheld == {"f"}
    assert found.consumers == {"a": ANA, "b": ANA, "c": BOB, "d": ME, "e": ME}


def test_a_shard_that_was_asked_of_us_goes_to_who_asked() -> None:
    """One that we hold and nobody asked for is ours, whatever an old node says."""
    for holds, keeps in (("a", ""), ("a", "a")):
        found = outlook(flat("a"), node(ANA, "", "a"), holds=holds, keeps=keeps)
        assert rows(found) == {"a": (ME if keeps else ANA, ME)}
        assert found.unheld == set()


def test_what_we_hold_is_ours_whatever_others_say() -> None:
    found = outlook(flat("ab"), node(ANA, "ab"), holds="a", keeps="a")
    assert rows(found) == {"a": (ME, ME), "b": (ANA, ANA)}


def test_a_shard_that_comes_to_us_has_the_victim_that_we_know_where_no_node_tells() -> None:
    found = outlook(flat("a"), node(ANA), coming={"a": BOB})
    assert rows(found) == {"a": (ME, BOB)}
    assert outlook(flat("a"), node(ANA, "a"), coming={"a": BOB}).consumers == {"a": ANA}


def test_who_was_replaced_takes_part_no_more() -> None:
    """What it has is to be had."""
    found = outlook(flat("ab"), node(ANA, "a", domain="x"), node(BOB, "b"), replaced={BOB})
    assert found.view.workers == (WorkerView(ME, "here"), WorkerView(ANA, "x"))
    assert found.unheld == {"b"}
    both = outlook(flat("ab"), node(BOB, "b"), node(ANA, "a"))
    assert [each.id for each in both.view.workers] == [ME, ANA, BOB]
    assert both.unheld == set()


def test_everybody_sees_the_same_in_whatever_order_it_reads() -> None:
    graph = flat("abc")
    nodes = [node(ANA, "ab"), node(BOB, "bc"), node(WorkerId("cyd", "c"), "ac")]
    found = [outlook(graph, *order) for order in itertools.permutations(nodes)]
    assert all(each == found[0] for each in found)


def test_only_what_may_be_consumed_is_planned_with_its_weight() -> None:
    graph = ShardGraph(
        [
            GroupShard("old", weight=5),
            GroupShard("child", ("old",), 7),
            GroupShard("plain", weight=11),
            GroupShard("done", weight=13),
        ],
        finished=["done"],
    )
    found = outlook(graph, node(ANA), node(BOB))
    assert [(each.name, each.weight) for each in found.view.shards] == [("old", 5), ("plain", 11)]
    assert found.view.slack == slack_of([5, 11], 3)


def test_gates_are_parents_that_others_wait_for_and_nobody_has() -> None:
    shards = [GroupShard(name) for name in "abcd"]
    shards += [GroupShard("ab", ("a", "b")), GroupShard("cx", ("c",)), GroupShard("dx", ("d",))]
    graph = ShardGraph(shards)
    assert gates(graph, {}) == {"a", "b", "c", "d"}
    assert gates(graph, {ANA: node(ANA, "b"), BOB: node(BOB, "d", "a")}) == {"a", "c"}
    graph.finish("a")
    graph.finish("cx")
    assert gates(graph, {}) == {"b", "d"}

"""LH-15: what shards weigh, when it is worth to write that down, and the node that it stands in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import pytest

from dlog.drive import Driver
from dlog.errors import Conflict, FormatError
from dlog.groups.agenda import Agenda
from dlog.groups.membership import GroupOptions
from dlog.groups.places import GroupPlaces
from dlog.groups.plan import plan
from dlog.groups.view import View
from dlog.groups.weights import (
    AVERAGE,
    LEAST,
    WEIGHT_MAX,
    is_worth_it,
    read_weights,
    slack_of,
    weights_from,
    weights_of,
    write_weights,
)
from dlog.ledger.store import LedgerStore
from dlog.meta.json_fields import dump
from dlog.meta.layout import Layout
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.testing.group_plans import after, loads_of, view_of

PLACES = GroupPlaces(Layout(), "readers", "orders")


def test_a_weight_is_in_per_cent_of_the_average_and_never_nothing() -> None:
    assert weights_of({"a": 30, "b": 10, "c": 0}) == {"a": 225, "b": 75, "c": LEAST}
    assert weights_of({"a": 0, "b": 0}) == {"a": AVERAGE, "b": AVERAGE}
    assert weights_of({}) == {}
    most = weights_of({"heavy": 1 << 60, **{str(n): 0 for n in range(4_095)}})
    assert most["heavy"] <= WEIGHT_MAX


def weighed(view: View, *weights: int) -> dict[str, int]:
    return {shard.name: weight for shard, weight in zip(view.shards, weights, strict=True)}


def test_heavy_shards_of_one_worker_are_worth_a_move() -> None:
    view = settled(view_of((2, 2), weights=[AVERAGE] * 4))
    mine = [shard.owner == view.workers[0].id for shard in view.shards]
    assert is_worth_it(view, weighed(view, *(200 if each else LEAST for each in mine)))


def settled(view: View) -> View:
    even = after(view, plan(view))
    return dataclasses.replace(even, slack=slack_of([s.weight for s in even.shards], 2))


def test_noise_is_not() -> None:
    view = settled(view_of((2, 2), weights=[AVERAGE] * 4))
    for weights in ((101, 99, 100, 100), (90, 110, 95, 105), (120, 110, 85, 85)):
        assert not is_worth_it(view, weighed(view, *weights))


def test_two_heavy_shards_do_not_change_places_for_ever() -> None:
    """One more heavy one than the other, and by turns: no assignment is better than its mirror."""
    view = view_of((2, 2), weights=[AVERAGE] * 4)
    heavy = weighed(view, 140, 133, 127, 10)
    view = settled(
        dataclasses.replace(
            view,
            shards=tuple(dataclasses.replace(s, weight=heavy[s.name]) for s in view.shards),
        )
    )
    before = loads_of(view)
    for weights in ((126, 138, 136, 10), (133, 127, 140, 10), (127, 140, 133, 10)):
        assert not is_worth_it(view, weighed(view, *weights)), before


def test_nothing_is_weighed_anew_while_shards_are_on_their_way() -> None:
    view = view_of((4, 0), weights=[AVERAGE] * 4)
    assert plan(view)
    assert not is_worth_it(view, weighed(view, 300, 80, 10, 10))


class Metadata:
    def __init__(self) -> None:
        self.driver = Driver(MemoryMetaStore(MemoryTree()), cast(LedgerStore, None))

    async def read(self) -> dict[int, int]:
        return await self.driver.run(read_weights(PLACES))

    async def write(self, weights: dict[int, int]) -> None:
        await self.driver.run(write_weights(PLACES, weights))


async def test_what_is_written_is_read_by_all() -> None:
    meta = Metadata()
    assert await meta.read() == {}
    await meta.write({0: 150, 11: 50})
    assert await meta.read() == {0: 150, 11: 50}
    await meta.write({0: 150, 11: 50})
    await meta.write({0: 10})
    assert await meta.read() == {0: 10}


async def test_of_two_who_write_at_once_one_is_told() -> None:
    meta = Metadata()
    for found in ({}, {1: 7}):
        first = write_weights(PLACES, {1: 7 + len(found)})
        effect = next(first)
        answer = await _answered(meta, effect)
        await meta.write({1: 99 + len(found)})
        write = first.throw(answer) if isinstance(answer, Exception) else first.send(answer)
        refused = await _answered(meta, write)
        with pytest.raises(Conflict):
            first.throw(cast(Exception, refused))
    assert await meta.read() == {1: 100}


async def _answered(meta: Metadata, effect: Any) -> Any:
    try:
        return await meta.driver.perform(effect)
    except Exception as error:
        return error


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"weights": []},
        {"weights": {"x": 1}},
        {"weights": {"1" * 5_000: 1}},
        {"weights": {"1": 0}},
        {"weights": {"1": True}},
        {"weights": {"1": WEIGHT_MAX + 1}},
    ],
)
def test_what_are_no_weights_is_refused(wrong: dict[str, Any]) -> None:
    raw = dump({"format": 1, "weights": {"1": 7}, **wrong})
    with pytest.raises(FormatError):
        weights_from(raw, where="x")


def test_weights_at_their_bounds_are_taken() -> None:
    raw = dump({"format": 1, "weights": {"0": 1, "9" * 18: WEIGHT_MAX}})
    assert weights_from(raw, where="x") == {0: 1, int("9" * 18): WEIGHT_MAX}
    with pytest.raises(FormatError):
        weights_from(raw.replace(b"9" * 18, b"9" * 19), where="x")


def test_weights_of_half_a_megabyte_are_refused() -> None:
    with pytest.raises(FormatError, match="more than weights"):
        weights_from(b" " * (1 << 19), where="x")


def test_only_the_first_weighs_and_not_more_often_than_it_is_time() -> None:
    agenda = Agenda(GroupOptions(timeout_s=20.0, weigh_s=30.0), 0.0)
    assert not agenda.begins_weighing(29.0, is_first=True)
    assert not agenda.begins_weighing(30.0, is_first=False)
    assert not agenda.begins_weighing(59.0, is_first=True), "somebody else did"
    assert agenda.begins_weighing(60.0, is_first=True)
    assert not agenda.begins_weighing(100.0, is_first=True), "one at a time"
    agenda.weighed(100.0)
    assert not agenda.begins_weighing(129.0, is_first=True)
    assert agenda.begins_weighing(130.0, is_first=True)


def test_where_shards_are_counted_nobody_weighs() -> None:
    agenda = Agenda(GroupOptions(timeout_s=20.0), 0.0)
    assert not agenda.begins_weighing(1e9, is_first=True)
    assert agenda.begins_plan(0.0)
    assert agenda.due_s() == math.inf

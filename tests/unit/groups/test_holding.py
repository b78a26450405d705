"""The holds of a worker: moved behind what is kept, and never by what was kept before a loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlog.errors import ConfigError, NotFound, Unavailable
from dlog.groups.holding import LAST_TRIES, GroupHolds
from dlog.groups.places import GroupPlaces
from dlog.ids import Position
from dlog.meta.layout import Layout
from tests.api.waiting import eventually

LOG, HOLD = "orders/0", "group billing of orders"


def at(seq: int) -> Position:
    return Position("uid", seq, None)


class SlowAdmin:
    """Holds in memory. Each call waits until it is let through."""

    def __init__(self) -> None:
        self.holds: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.failures = 0

    async def _pass(self) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("the store is away")

    async def hold(self, log: str, name: str, place: Any, **_: Any) -> None:
        assert name == HOLD
        await self._pass()
        if place.next_seq < self.holds.get(log, 0):
            raise ConfigError("it moves forward only")
        self.holds[log] = place.next_seq

    async def drop_hold(self, log: str, name: str) -> None:
        assert name == HOLD
        await self._pass()
        if self.holds.pop(log, None) is None:
            raise NotFound("there is none")


def holds_of(admin: SlowAdmin, *, every_s: float = 0.0) -> GroupHolds:
    places = GroupPlaces(Layout("/dlog"), "billing", "orders")
    return GroupHolds(admin, places, "w1", every_s)  # type: ignore[arg-type]


async def test_i19_a_hold_follows_what_is_kept_and_goes_with_the_shard() -> None:
    admin = SlowAdmin()
    holds = holds_of(admin)
    await holds.begin(LOG, at(3))
    holds.move(LOG, at(7))
    await eventually(lambda: admin.holds[LOG] == 7)
    holds.drop_soon(LOG)
    await holds.close()
    assert admin.holds == {}


async def test_i19_what_was_kept_before_a_loss_moves_no_hold() -> None:
    """A reset by force puts the group back behind it: what is between would not be held."""
    admin = SlowAdmin()
    holds = holds_of(admin, every_s=3600.0)
    await holds.begin(LOG, at(3))
    holds.move(LOG, at(7))
    await eventually(lambda: admin.holds[LOG] == 7)
    holds.move(LOG, at(9))  # waits for its turn
    admin.holds[LOG] = 0  # put back
    holds.forget(LOG)
    await holds.close()
    assert admin.holds == {LOG: 0}


async def test_i19_a_shard_that_comes_again_is_held_where_it_begins() -> None:
    admin = SlowAdmin()
    holds = holds_of(admin, every_s=3600.0)
    await holds.begin(LOG, at(3))
    holds.move(LOG, at(7))
    await eventually(lambda: admin.holds[LOG] == 7)
    holds.move(LOG, at(9))
    await holds.begin(LOG, at(0))
    await holds.close()
    assert admin.holds == {LOG: 0}


@pytest.mark.parametrize("failures", [0, LAST_TRIES - 1])
async def test_whoever_ends_waits_until_its_holds_are_dropped(failures: int) -> None:
    """Nobody else would drop the hold of a shard that is done, and its log would stay."""
    admin = SlowAdmin()
    holds = holds_of(admin)
    await holds.begin(LOG, at(3))
    admin.gate.clear()
    admin.failures = failures
    holds.drop_soon(LOG)
    await eventually(lambda: admin.waiting)
    closing = asyncio.ensure_future(holds.close())
    await asyncio.sleep(0)
    assert not closing.done()
    admin.gate.set()
    await closing
    assert admin.holds == {}


async def test_an_end_waits_for_no_store_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    admin = SlowAdmin()
    holds = holds_of(admin)
    await holds.begin(LOG, at(3))
    admin.failures = 1000
    holds.drop_soon(LOG)
    await holds.close()
    assert "stays" in caplog.text

"""The holds of a worker: moved behind what is kept, and never by what was kept before a loss."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from dlog.errors import ConfigError, NotFound, Unavailable
from dlog.groups.holding import LAST_TRIES, GroupHolds
from dlog.groups.options import WorkerOptions
from dlog.groups.places import GroupPlaces
from dlog.ids import Position
from dlog.meta.layout import Layout
from dlog.testing.sim import Simulation, simulate
from tests.api.waiting import eventually

LOG, HOLD = "orders/0", "group billing of orders"
END = 1_000  # of each log


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
        if log == "gone":
            raise NotFound("it was removed")
        seq = END if place == "latest" else place.next_seq
        if seq < self.holds.get(log, 0):
            raise ConfigError("it moves forward only")
        self.holds[log] = seq

    async def drop_hold(self, log: str, name: str) -> None:
        assert name == HOLD
        await self._pass()
        if self.holds.pop(log, None) is None:
            raise NotFound("there is none")


def holds_of(admin: SlowAdmin, *, every_s: float = 0.0, is_job: bool = False) -> GroupHolds:
    places = GroupPlaces(Layout("/dlog"), "billing", "orders")
    options = WorkerOptions(flush_ms=round(every_s * 1000))
    return GroupHolds(admin, places, "w1", options, is_job)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_job", [False, True])
async def test_i19_a_hold_follows_what_is_kept_to_the_end_of_the_shard(is_job: bool) -> None:
    """There it stays, as what lets the log be truncated under the group's hold on the stream; a job
    holds no stream."""
    admin = SlowAdmin()
    holds = holds_of(admin, is_job=is_job)
    await holds.begin(LOG, at(3))
    holds.move(LOG, at(7))
    await eventually(lambda: admin.holds[LOG] == 7)
    holds.finish_soon(LOG)
    await holds.close()
    assert admin.holds == ({} if is_job else {LOG: END})


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
async def test_whoever_ends_waits_until_its_holds_let_go(failures: int) -> None:
    """Nobody else would move the hold of a shard that is done, and its log would stay."""
    admin = SlowAdmin()
    holds = holds_of(admin)
    await holds.begin(LOG, at(3))
    admin.gate.clear()
    admin.failures = failures
    holds.finish_soon(LOG)
    await eventually(lambda: admin.waiting)
    closing = asyncio.ensure_future(holds.close())
    await asyncio.sleep(0)
    assert not closing.done()
    admin.gate.set()
    await closing
    assert admin.holds == {LOG: END}


async def test_an_end_waits_for_no_store_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    admin = SlowAdmin()
    holds = holds_of(admin)
    await holds.begin(LOG, at(3))
    admin.failures = 1000
    holds.finish_soon(LOG)
    await holds.close()
    assert "stays" in caplog.text


# --- when, in virtual time


class TimedAdmin(SlowAdmin):
    """Notes when each hold was put, and where; and each that was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[float, int]] = []
        self.drops: list[tuple[float, str]] = []
        self._begun_s = asyncio.get_running_loop().time()

    @property
    def now_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self._begun_s, 3)

    async def hold(self, log: str, name: str, place: Any, **more: Any) -> None:
        seq = END if place == "latest" else place.next_seq
        self.puts.append((self.now_s, seq))
        await super().hold(log, name, place, **more)

    async def drop_hold(self, log: str, name: str) -> None:
        self.drops.append((self.now_s, log))
        await super().drop_hold(log, name)


@simulate(histories=1, troubles="none")
async def test_a_hold_is_moved_no_oftener_than_it_should_and_to_the_newest(sim: Simulation) -> None:
    admin = TimedAdmin()
    holds = holds_of(admin, every_s=9.4)
    await holds.begin(LOG, at(0))
    for seq in range(1, 25):
        holds.move(LOG, at(seq))
        await sim.pass_time(1.0)
    await sim.pass_time(20.0)
    assert admin.puts == [(0.0, 0), (0.0, 1), (9.4, 10), (18.8, 19), (28.2, 24)]
    holds.move(LOG, at(30))
    await sim.pass_time(1.0)
    assert admin.puts[-1] == (44.0, 30), "nothing was under way: at once"
    await holds.close()


@simulate(histories=1, troubles="none")
async def test_a_move_that_failed_is_tried_again_with_the_newest(sim: Simulation) -> None:
    for every_s, pause_s in ((0.0, 0.2), (3.0, 3.0)):
        admin = TimedAdmin()
        holds = holds_of(admin, every_s=every_s)
        admin.failures = 2
        holds.move(LOG, at(5))
        await sim.pass_time(0.1)
        holds.move(LOG, at(6))
        await sim.pass_time(20.0)
        assert admin.puts == [(0.0, 5), (pause_s, 6), (2 * pause_s, 6)]
        await holds.close()
        assert admin.holds == {LOG: 6}


@simulate(histories=1, troubles="none")
async def test_what_came_while_a_move_failed_is_what_is_tried_next(sim: Simulation) -> None:
    admin = TimedAdmin()
    holds = holds_of(admin)
    admin.gate.clear()
    admin.failures = 1
    holds.move(LOG, at(5))
    await sim.pass_time(1.0)
    holds.move(LOG, at(6))
    admin.gate.set()
    await sim.pass_time(5.0)
    assert admin.puts == [(0.0, 5), (1.2, 6)]
    await holds.close()


@simulate(histories=1, troubles="none")
async def test_a_shard_that_goes_elsewhere_is_moved_at_once_and_given_up_soon(
    sim: Simulation,
) -> None:
    """Who has it next moves it on."""
    admin = TimedAdmin()
    holds = holds_of(admin, every_s=3600.0)
    holds.move(LOG, at(5))
    await sim.pass_time(1.0)
    holds.move(LOG, at(6))
    await sim.pass_time(1.0)
    holds.let_go(LOG)
    holds.let_go("another")
    await sim.pass_time(1.0)
    assert admin.puts == [(0.0, 5), (2.0, 6)]
    admin.failures = 1000
    holds.move(LOG, at(7))
    holds.let_go(LOG)
    await sim.pass_time(60.0)
    assert [seq for _, seq in admin.puts[2:]] == [7] * LAST_TRIES
    await holds.close()


@simulate(histories=1, troubles="none")
async def test_a_hold_of_a_shard_that_is_done_is_dropped_however_long_that_takes(
    sim: Simulation,
) -> None:
    """With a pause that grows, up to a bound."""
    admin = TimedAdmin()
    holds = holds_of(admin, is_job=True)
    await holds.begin(LOG, at(3))
    admin.failures = 9
    holds.finish_soon(LOG)
    await sim.pass_time(100.0)
    times = [at_s for at_s, _ in admin.drops]
    pauses = [round(later - at_s, 3) for at_s, later in itertools.pairwise(times)]
    assert pauses == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]
    assert admin.holds == {}
    await holds.close()


@simulate(histories=1, troubles="none")
async def test_a_hold_begins_where_the_group_was_put_back_to(sim: Simulation) -> None:
    """One that stands further ahead is dropped first; what comes before is done, and goes to its
    end."""
    admin = TimedAdmin()
    holds = holds_of(admin)
    admin.holds = {LOG: 9, "parent": 4, "other": 5}
    await holds.begin(LOG, at(2), ["parent", "gone"])
    assert admin.holds == {LOG: 2, "other": 5, "parent": END}
    assert [log for _, log in admin.drops] == [LOG]
    await holds.begin(LOG, at(6))
    assert admin.holds[LOG] == 6
    assert len(admin.drops) == 1, "what moves forward is not dropped"
    await holds.close()

"""What users of the simulator get: their tests run through histories, and a failure that is told
well: what broke, what it takes, what happened, and how to see it again."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.testing.sim import Simulation, simulate, users
from dlog.testing.sim.simulation import Stuck, Test, run_history
from dlog.testing.sim.tape import of_seed, of_tape
from tests.tidy.source import ROOT

# Where it is installed, pytest finds the plugin by itself.
_IS_INSTALLED = any(each.name == "dlog" for each in entry_points(group="pytest11"))
_PLUGIN = () if _IS_INSTALLED else ("-p", "dlog.testing.pytest_plugin")

_HASTY = """
    import asyncio
    import dlog
    from dlog.testing.sim import simulate
    from examples.simulated.shop import orders

    @simulate(histories=40)
    async def test_hasty(sim):
        log = await sim.open_writer("orders")
        for number in range(3):
            order = b"order %d" % number
            try:
                append = asyncio.create_task(log.append(order))
                rival = asyncio.create_task(sim.take_over("orders"))
                await asyncio.sleep(0)  # both are on their way
                await sim.oversleep(sim.chance.delay(0.1))
                await append
            except dlog.Fenced:
                log = await sim.open_writer("orders")
                await log.append(order)  # wrong: it may be there
            await rival
        assert await orders(sim.url) == [b"order 0", b"order 1", b"order 2"]
"""


def _pytest(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_PLUGIN, "-p", "no:cacheprovider", "-q", *arguments],
        cwd=where,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return done.stdout + done.stderr


@pytest.fixture
def hasty(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_hasty.py").write_text(textwrap.dedent(_HASTY))
    return tmp_path


@pytest.mark.tier("test")
def test_a_failure_tells_what_broke_and_how_to_see_it_again(hasty: Path) -> None:
    told = _pytest(hasty, "--dlog-shrink", "0.3")
    found = re.search(r"test_hasty.py::test_hasty failed in history \d+ of 40 \(seed (\d+)\)", told)
    assert found, told
    assert "AssertionError" in told or "Fenced" in told
    assert "What it takes" in told
    assert "What happened" in told
    assert "Traceback" not in told
    # By its seed, and by the tape that was made small.
    again = _pytest(hasty, "--dlog-seed", found[1], "--dlog-histories", "1", "--dlog-shrink", "0.1")
    assert f"history 1 of 1 (seed {found[1]})" in again, again
    tape = re.search(r"--dlog-tape '([^']*)'", told)
    assert tape, told
    again = _pytest(hasty, "--dlog-tape", tape[1])
    assert "failed in the given tape" in again, again
    assert "1 passed" in _pytest(hasty, "--dlog-tape", "")


@pytest.mark.tier("test")
def test_the_examples_hold(tmp_path: Path) -> None:
    told = _pytest(
        ROOT, "examples/simulated", "--dlog-histories", "8", f"--basetemp={tmp_path / 't'}"
    )
    assert "3 passed" in told, told


def test_a_story_is_of_the_same_history() -> None:
    """Telling it draws nothing, and changes nothing."""

    async def test(sim: Simulation) -> None:
        log = await sim.open_writer("orders")
        for _ in range(3):
            await sim.trouble()
            await log.append(b"x")

    for seed in range(6):
        plain, told = of_seed(seed), of_seed(seed, told=True)
        first, error = run_history(test, plain)
        second, again = run_history(test, told, told=True)
        assert plain.tape.values == told.tape.values
        assert first.now_ms == second.now_ms
        assert str(error) == str(again)


@simulate(histories=10, troubles="all")
async def test_whatever_is_opened_is_opened_in_the_world(sim: Simulation) -> None:
    for _ in range(50):
        try:
            async with aio.open_writer("orders", url="file:/nowhere/at/all") as log:
                await log.append(b"x")
            break
        except (dlog.Timeout, dlog.Unavailable):  # no disk says so
            await sim.pass_time(0.2)


@simulate(histories=10, troubles="none")
async def test_a_process_that_freezes_is_fenced_when_it_wakes(sim: Simulation) -> None:
    async def work() -> None:
        async with aio.open_writer("orders", url=sim.url) as log:
            while True:
                await log.append(b"mine")
                await sim.pass_time(0.01)

    worker = sim.start(work(), name="worker")
    await sim.pass_time(1.0)
    worker.freeze(2.0)
    await sim.take_over("orders", b"theirs")
    with pytest.raises(dlog.Fenced):
        await worker.result()


class TestInAClass:
    @simulate(histories=2, troubles="none")
    async def test_fixtures_and_methods(self, sim: Simulation, tmp_path: Path) -> None:
        assert isinstance(self, TestInAClass)
        assert tmp_path.is_absolute()
        await sim.open_writer("orders")


def _failure(test: Test) -> BaseException:
    _, error = run_history(test, of_tape([]), troubles="none")
    assert error is not None
    return error


def test_who_waits_for_ever_is_told_where() -> None:
    async def test(sim: Simulation) -> None:
        await asyncio.get_running_loop().create_future()

    error = _failure(test)
    assert isinstance(error, Stuck)
    assert any(frame.filename == __file__ for frame in error.stack)


def test_what_is_left_behind_fails() -> None:
    async def test(sim: Simulation) -> None:
        asyncio.get_running_loop().call_later(5000, print)

    assert "left behind" in str(_failure(test))


def test_a_failure_nobody_heard_fails() -> None:
    async def test(sim: Simulation) -> None:
        async def fail() -> None:
            raise ValueError("unheard")

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    assert "unheard" in str(_failure(test))


async def _fail() -> None:
    raise ValueError("unheard")


@pytest.mark.parametrize("where", ["held", "another process", "a task of another process"])
def test_a_failure_that_is_held_and_nobody_awaited_fails(where: str) -> None:
    held: list[object] = []

    async def begin(sim: Simulation) -> None:
        held.append(asyncio.create_task(_fail()))
        await sim.pass_time(0.1)

    async def test(sim: Simulation) -> None:
        match where:
            case "held":
                held.append(asyncio.create_task(_fail()))
            case "another process":
                held.append(sim.start(_fail(), name="another"))
            case _:
                await sim.start(begin(sim), name="another").result()
        await sim.pass_time(1)

    assert "never awaited: ValueError('unheard')" in str(_failure(test))


def test_a_failure_of_another_process_that_nobody_held_fails() -> None:
    async def test(sim: Simulation) -> None:
        sim.start(_fail(), name="another")
        await sim.pass_time(1)

    assert "unheard" in str(_failure(test))


def test_what_was_heard_or_killed_does_not_fail() -> None:
    async def test(sim: Simulation) -> None:
        heard = sim.start(_fail(), name="heard")
        with pytest.raises(ValueError, match="unheard"):
            await heard.result()
        (told,) = await asyncio.gather(_fail(), return_exceptions=True)
        assert isinstance(told, ValueError)
        killed = sim.start(_fail(), name="killed")
        await sim.pass_time(1)
        killed.kill()

    _, error = run_history(test, of_seed(0))
    assert error is None


@pytest.mark.parametrize(
    "given",
    [{"histories": 0}, {"histories": -1}, {"histories": 2.5}, {"bookies": 0}, {"troubles": "some"}],
    ids=str,
)
def test_what_would_run_nothing_is_refused(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(dlog.ConfigError, match=f"{name}="):
        simulate(**given)


def test_options_that_would_run_nothing_are_refused(hasty: Path) -> None:
    told = _pytest(hasty, "--dlog-histories", "0")
    assert "--dlog-histories" in told
    assert "passed" not in told


def test_threads_are_refused() -> None:
    async def test(sim: Simulation) -> None:
        await asyncio.to_thread(print)

    assert "one thread" in str(_failure(test))


def test_a_skip_is_a_skip() -> None:
    @simulate(histories=3)
    async def skipped(sim: Simulation) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception):
        skipped()


def test_a_tape_reads_back_as_it_is_told(tmp_path: Path) -> None:
    values = [0.0, 0.25, 0.0, 0.9999999999999999, 0.0]
    assert users.read_tape(users.tape_text(values)) == values[:4]
    file = tmp_path / "tape.json"
    file.write_text('{"world": "drivers", "values": [0.0, 0.5]}')
    assert users.read_tape(str(file)) == [0.0, 0.5]


def test_the_plugin_loads_nothing_by_itself() -> None:
    code = "import sys, dlog.testing.pytest_plugin; print('dlog.testing.sim' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "False"


def test_what_is_cut_short_makes_no_real_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A farewell of a program that never ended may ask asyncio for a loop; a real one would be
    left open, and tell of it in the middle of another test."""
    made: list[str] = []

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            made.append("a real loop")
            raise RuntimeError("a history needs no real loop")

    async def work() -> None:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 5000)
        finally:
            await asyncio.gather(asyncio.sleep(0))

    async def test(sim: Simulation) -> None:
        sim.start(work(), name="worker")
        sim.start(work(), name="killed").kill()
        await sim.pass_time(0.1)

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Policy())
    try:
        _, error = run_history(test, of_tape([]), troubles="none")
    finally:
        asyncio.set_event_loop_policy(before)
    assert error is None
    assert not made

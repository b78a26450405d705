"""Histories of the real asyncio drivers (tier 3): programs on the public API, over the BookKeeper
client as it is, over simulated bookies, in virtual time.

While faults strike, writers take a log over from each other, readers follow it, processes freeze
and die, calls are cancelled at any await. Then all is well: every call must come to an end, a last
writer must get through, a last reader is handed the log, and whoever follows it sees its end. It
is judged beside all that anybody was told, by the checkers that also judge real servers. At the
very end every program has closed what it opened, and nothing may be left: no task, no timer, no
connection, no failure that nobody heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from dlog.client import Client
from dlog.errors import AuthError, DlogError
from dlog.testing import checkers
from dlog.testing.history import NONE, Event, Listed, Op, Phase
from dlog.testing.sim.driver_programs import LOG, Diary, Program, ReaderProgram, WriterProgram
from dlog.testing.sim.driver_standbys import StandbyProgram
from dlog.testing.sim.driver_swarm import DriverWeather, draw_driver_weather
from dlog.testing.sim.garbage import forget_frames
from dlog.testing.sim.loop_cluster import LoopCluster
from dlog.testing.sim.loop_process import LoopProcess, silence
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import Violation, World, require

HEAL_MS = 180_000.0  # virtual
SETTLE_MS = 10.0  # for the last bytes and callbacks
STRANGER_MS = 100.0  # comes when there are ledgers
_AGAIN_S = 0.5
_TRIES_MAX = 20


class Follower(NamedTuple):
    process: LoopProcess
    program: ReaderProgram
    run: asyncio.Task[None]

    @property
    def is_over(self) -> bool:
        return not self.process.is_alive or self.run.done()


class DriverHistory:
    def __init__(self, world: World, weather: DriverWeather) -> None:
        self.world = world
        self.weather = weather
        self.cluster = LoopCluster(world, weather.bookies, weather.climate)
        meta = weather.climate.meta
        self.diary = Diary(
            world,
            may_be_nameless=meta.outages
            or max(meta.refused, meta.request_lost, meta.reply_lost) > 0.0,
        )
        self._runs: list[tuple[LoopProcess, asyncio.Task[Any]]] = []
        self._clients: list[tuple[LoopProcess, Client]] = []
        self._followers: list[Follower] = []
        self._closing: set[LoopProcess] = set()
        self._final = ""
        self._reads = 0

    def run(self) -> None:
        world, weather = self.world, self.weather
        for number in range(weather.writers):
            self._at_some_time(partial(self._begin_writer, f"w{number}", 0))
        for number in range(weather.standbys):
            self._at_some_time(partial(self._begin_standby, f"s{number}"))
        for number in range(weather.readers):
            self._at_some_time(partial(self._begin_reader, f"r{number}"))
        if weather.stranger:
            world.after(STRANGER_MS, self._begin_stranger)
        world.run(until_ms=weather.span_ms)
        self.cluster.heal()
        self._wait(self._all_ended, "programs come to their end", self._who_runs)
        length = self._end()
        self._wait(partial(self._have_followed, length), "followers see the end", self._who_follows)
        self._close_all()
        self._check_nothing_is_left()
        self._judge()

    def _at_some_time(self, what: Callable[[], None]) -> None:
        """Half of them meet at the beginning."""
        spread_ms = self.world.chance.pick((0.0, self.weather.span_ms / 3), "it comes within")
        self.world.after(self.world.chance.random() * spread_ms, what)

    # --- programs

    def _client(self, name: str) -> tuple[LoopProcess, Client]:
        """Of a process of its own, or shared with another program."""
        alive = [each for each in self._clients if each[0].is_alive]
        if alive and self.world.chance.hits(self.weather.shared, f"{name} shares a client"):
            return alive[-1]
        process = self.cluster.process(name)
        made: list[Client] = []

        async def make() -> None:
            made.append(process.new_client())

        process.run_now(make())
        self._clients.append((process, made[0]))
        return process, made[0]

    def _start(self, process: LoopProcess, work: Any) -> None:
        self._runs.append((process, process.start(work)))

    def _begin_writer(self, name: str, incarnation: int) -> None:
        world, weather = self.world, self.weather
        handle = f"{name}{'abcdefgh'[incarnation]}"
        process, client = self._client(handle)
        program = WriterProgram(self.diary, weather, process, client, handle)
        self._start(process, program.run())
        self._befall(handle, process, client)
        if incarnation + 1 < weather.incarnations:
            self.world.after(
                20.0 + world.chance.delay(500.0),
                lambda: None if world.is_calm else self._begin_writer(name, incarnation + 1),
            )

    def _begin_standby(self, name: str) -> None:
        process, client = self._client(name)
        program = StandbyProgram(self.diary, self.weather, process, client, name)
        self._start(process, program.run())
        self._befall(name, process, client)

    def _befall(self, handle: str, process: LoopProcess, client: Client) -> None:
        """What may become of a process that writes."""
        world, weather = self.world, self.weather
        if world.strikes(weather.frozen, f"{handle} will freeze"):
            lasts_ms = world.chance.delay(600.0, "its sleep")
            world.after(world.chance.delay(200.0), lambda: process.freeze(lasts_ms))
        if world.strikes(weather.dies, f"{handle} will die"):
            session_ms = world.chance.delay(1_000.0)
            world.after(
                1.0 + world.chance.delay(300.0), lambda: process.kill(session_ms=session_ms)
            )
        elif world.strikes(weather.under_load, f"{handle} is closed under load"):
            world.after(
                1.0 + world.chance.delay(200.0), lambda: self._close_under_load(process, client)
            )

    def _begin_reader(self, name: str) -> None:
        process, client = self._client(name)
        follow = not self.world.chance.hits(0.3, f"{name} reads to the end only")
        program = ReaderProgram(self.diary, self.weather, process, client, name, follow=follow)
        if follow:  # for ever, unless it is closed
            self._followers.append(Follower(process, program, process.start(program.run())))
        else:
            self._start(process, program.run())

    def _begin_stranger(self) -> None:
        process = self.cluster.process("stranger")
        process.password = b"another"
        self._start(process, self._look_by(process))

    async def _look_by(self, stranger: LoopProcess) -> None:
        """Who has another password opens no ledger of this log."""
        stores = stranger.new_stores()
        try:
            async for ledger_id in stores.ledgers.scan_ids():
                try:
                    await stores.ledgers.open(ledger_id)
                except AuthError:
                    self.world.mark("a stranger is refused")
                except DlogError as error:
                    self.world.note(f"the stranger is told {error!r}")
                else:
                    raise Violation("I24", f"a stranger to its password opened ledger {ledger_id}")
        except DlogError as error:
            self.world.note(f"the stranger is told {error!r}")
        finally:
            await stores.ledgers.close()
            await stores.meta.close()

    def _close_under_load(self, process: LoopProcess, client: Client) -> None:
        if process.is_alive and process not in self._closing:
            self._closing.add(process)
            self.world.mark("closed under load")
            self._start(process, self._close(process, client))
            self.world.after(SETTLE_MS, partial(self._look_behind, process))

    def _look_behind(self, process: LoopProcess) -> None:
        """Once all of its programs are over, it has nothing any more."""
        if not process.is_alive:
            return
        works = [each.run for each in self._followers if each.process is process]
        works += [task for owner, task in self._runs if owner is process]
        if not all(task.done() for task in works):
            self.world.after(SETTLE_MS, partial(self._look_behind, process))
            return
        self.world.after(SETTLE_MS, partial(self._check_left, process))

    def _check_left(self, process: LoopProcess) -> None:
        if process.is_alive:
            left = process.left()
            require(not left, "I25", f"{process} closed everything, and left", *left[:5])

    async def _close(self, process: LoopProcess, client: Client) -> None:
        """As a program would: until it is closed."""
        program = Program(self.diary, self.weather, process)
        while True:
            try:
                await program.call(client.close())
                return
            except DlogError:
                return  # of a handle that it closed; all the same all is closed
            except Exception as error:
                if type(error).__name__ != "Cancelled":
                    raise

    def _have_followed(self, length: int) -> bool:
        return all(each.is_over or each.program.next_seq >= length for each in self._followers)

    def _who_follows(self) -> str:
        return ", ".join(
            f"{each.process} is at {each.program.next_seq}"
            for each in self._followers
            if not each.is_over
        )

    def _close_all(self) -> None:
        self._runs += [(each.process, each.run) for each in self._followers]
        for process, client in self._clients:
            if process.is_alive:
                self._start(process, self._close(process, client))
        self._wait(self._all_ended, "all is closed", self._who_runs)
        self._check_runs()

    def _all_ended(self) -> bool:
        return all(task.done() for process, task in self._runs if process.is_alive)

    def _who_runs(self) -> str:
        return "; ".join(
            f"{process}: {task.get_coro()!r} {task.get_stack(limit=1)}"
            for process, task in self._runs
            if process.is_alive and not task.done()
        )

    def _wait(
        self, fact: Callable[[], bool], what: str, why: Callable[[], str] = lambda: ""
    ) -> None:
        self.world.run(until_ms=self.world.now_ms + HEAL_MS, done=fact)
        if not fact():
            raise Violation("I27", f"after healing, not within {HEAL_MS:.0f} ms: {what} {why()}")

    # --- the end

    def forget(self) -> None:
        """What programs held that came to their end."""
        self._runs.clear()
        self._followers.clear()

    def _end(self) -> int:
        """How many messages there are, as a last reader found."""
        self._check_runs()
        last = self.cluster.process("last")
        task = last.start(self._last(last))
        self._runs.append((last, task))
        self._wait(self._all_ended, "the last writer and reader get through", self._who_runs)
        length: int = task.result()
        return length

    def _check_runs(self) -> None:
        for process, task in self._runs:
            if process.is_alive:
                require(not task.cancelled(), "I24", "a program was cancelled by nobody", process)
                task.result()

    async def _last(self, process: LoopProcess) -> int:
        client = process.new_client()
        calm = DriverWeather(appends=2, copies=self.weather.copies, acks=self.weather.acks)
        for number in range(_TRIES_MAX):  # a bookie may only just start: Unavailable, retry NOW
            handle = f"last{number}"
            await WriterProgram(self.diary, calm, process, client, handle).run()
            told = [each for each in self.diary.events if each.handle == handle]
            if not any(each.error for each in told):
                break
            await asyncio.sleep(_AGAIN_S)
        refused = [str(each) for each in told if each.error]
        require(not refused, "I27", "with all faults over, a writer gets through", *refused)
        while True:
            self._final = f"final{self._reads}"
            self._reads += 1
            reader = ReaderProgram(self.diary, calm, process, client, self._final, follow=False)
            await reader.once()
            if self.diary.events[-1].op is Op.READ and self.diary.events[-1].phase is Phase.OK:
                break
            await asyncio.sleep(_AGAIN_S)
        await self._look(client)
        await client.close()
        return reader.next_seq

    async def _look(self, client: Client) -> None:
        listed = []
        for each in await client.admin.segments(LOG):
            end = (NONE, NONE, NONE)
            if each.state == "sealed":
                assert each.last_entry is not None
                assert each.base_seq is not None
                assert each.next_seq is not None
                end = (each.last_entry, each.base_seq, each.next_seq)
            listed.append(Listed(each.number, each.ledger_id, each.epoch, *end))
        self.diary.note(Event(op=Op.LISTED, phase=Phase.OK, segments=tuple(listed)))

    def _check_nothing_is_left(self) -> None:
        self.world.run(until_ms=self.world.now_ms + SETTLE_MS)
        for process in self.cluster.processes:
            self._check_left(process)

    def _judge(self) -> None:
        last = f"{self._final}.0"
        there = [e for e in self.diary.events if e.op is Op.DELIVER and e.handle == last]
        self.diary.numbers.judge({e.name: e.id for e in there if e.id is not None})
        story = checkers.Story(self.diary.events, final=f"{self._final}.0")
        for check in checkers.CHECKERS:
            if check is checkers.acked_is_visible and self.weather.visible != "on_ack":
                continue  # later was promised; the last read shows that it came
            for found in check(story):
                raise Violation(found.invariant, str(found))


@contextlib.contextmanager
def settings(world: World) -> Iterator[list[str]]:
    """Of the interpreter, while a history runs: garbage waits for its end, so that the same tape
    runs the same way; what is told to nobody is collected; the drivers' log goes to the story."""
    told: list[str] = []
    logger = logging.getLogger("dlog")
    level, propagates, had_gc = logger.level, logger.propagate, gc.isenabled()
    handler = _Notes(world)
    hook, thread_hook = sys.unraisablehook, threading.excepthook

    def unraisable(about: Any) -> None:
        told.append(f"{about.err_msg or 'ignored'}: {about.exc_value!r} in {about.object!r}")

    def showwarning(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))

    def raised_in_thread(about: Any) -> None:
        told.append(f"{about.exc_value!r} in {about.thread!r}")

    gc.disable()
    sys.unraisablehook = unraisable
    threading.excepthook = raised_in_thread
    logger.propagate = False
    logger.setLevel(logging.INFO if world.is_told else logging.CRITICAL + 1)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = showwarning
            yield told
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
        sys.unraisablehook, threading.excepthook = hook, thread_hook
        if had_gc:
            gc.enable()


class _Notes(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(f"{record.name}: {record.getMessage()}")


def run_driver_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    """Raises `Violation` at the event that breaks a promise. `fixed` sets options of the weather
    instead of drawing them."""
    world = World(chance, told=told)
    weather = draw_driver_weather(chance)
    weather.fix(**fixed)
    with settings(world) as unheard:
        history = DriverHistory(world, weather)
        try:
            history.run()
            history.forget()
            gc.collect(0)
            require(not unheard, "I25", "a failure or a leak was told to nobody", *unheard[:5])
        finally:
            with silence():
                history.cluster.dispose()
                forget_frames(sys.exc_info()[1])
                del history
                gc.collect(1)  # what the first look kept is older by now
    return world

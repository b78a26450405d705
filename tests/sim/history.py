"""One history: actors are drawn, the safety phase runs under the weather, then the faults end, the
world heals, and everything must come right within a bound. `run_history(seed)` is all that a test
needs; a failure says how to see that very history again."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from dlog import limits, trace
from dlog.admin.describe import describe, summarize
from dlog.admin.remove import remove
from dlog.errors import DlogError, NotFound, Retry
from dlog.meta.log_meta import LogMeta, LogState, WriterMark
from dlog.reader.places import EARLIEST
from dlog.writer.core import WriterState
from tests.sim.clients import SimClient
from tests.sim.ledgers import SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.oracle import LAYOUT, NAME, Oracle, require
from tests.sim.readers import SimProber, SimReader, some_start
from tests.sim.world import Violation, World, new_world
from tests.sim.writers import SimWriter

HEAL_MS = 120_000.0  # virtual: back-off of ten seconds, several times over


class History:
    def __init__(self, world: World) -> None:
        self.world = world
        self.meta = SimMeta(world)
        self.ledgers = SimLedgers(world)
        self.oracle = Oracle(world, self.meta, self.ledgers)
        self.writers: list[SimWriter] = []
        self.readers: list[SimReader] = []
        self.clients: list[SimClient] = []
        self._span_ms = 60.0 * world.weather.appends + 100.0

    # --- the safety phase

    def run(self) -> None:
        world, weather = self.world, self.world.weather
        for i in range(weather.writers):
            begins_ms = 0.0 if i == 0 else world.chance.uniform(0, self._span_ms)
            world.after(begins_ms, functools.partial(self._start_writer, f"w{i}", 0))
        for i in range(weather.readers):
            begins_ms = world.chance.uniform(0, self._span_ms)
            world.after(begins_ms, functools.partial(self._start_reader, f"r{i}"))
        if weather.foreign_recoverers:
            world.after(world.delay(100.0), self._foreign)
        for i in range(weather.removers):
            world.after(world.chance.uniform(50, self._span_ms), lambda i=i: self._remove(f"x{i}"))
        prober = SimProber(world, self.meta, self.ledgers, self.oracle, "p")
        self.clients.append(prober)
        self._probe(prober)
        world.run(until_ms=self._span_ms)
        self._heal()

    def _start_writer(self, name: str, incarnation: int) -> None:
        world = self.world
        called = f"{name}{'abcdefgh'[incarnation]}"
        writer = SimWriter(world, self.meta, self.ledgers, self.oracle, called)
        self.writers.append(writer)
        self.clients.append(writer)
        writer.open(lambda: self._work(writer))
        # Whatever becomes of this process, another one may follow.
        if incarnation + 1 < world.weather.incarnations:
            later_ms = world.delay(150.0)
            world.after(later_ms, lambda: self._start_again(writer, name, incarnation + 1))

    def _start_again(self, old: SimWriter, name: str, incarnation: int) -> None:
        gone = not old.alive or old.is_closed or old.error is not None
        dead = old.core is not None and old.core.state is WriterState.DEAD
        if self.world.is_calm:
            return
        if gone or dead:
            self._start_writer(name, incarnation)
        else:
            later_ms = self.world.delay(150.0)
            self.world.after(later_ms, lambda: self._start_again(old, name, incarnation))

    def _work(self, writer: SimWriter) -> None:
        """What the program that opened a writer does with it."""
        world, weather = self.world, self.world.weather
        at_ms = 0.0
        for _ in range(weather.appends):
            at_ms += world.delay(world.chance.choice((0.5, 5.0, 40.0)))
            writer.after(at_ms, lambda: self._append(writer))
        if world.chance.random() < weather.closes:
            to = world.chance.choice((None, "the next one"))
            writer.after(at_ms + world.delay(20.0), lambda: writer.close(to=to))

    def _append(self, writer: SimWriter) -> None:
        if writer.takes_messages:
            writer.submit(self.world.chance.choice((1, 1, 2, 3)))
            if self.world.strikes(self.world.weather.rotations_asked):
                writer.ask_rotation()
            writer.may_be_hit()

    def _start_reader(self, name: str) -> None:
        reader = SimReader(
            self.world,
            self.meta,
            self.ledgers,
            self.oracle,
            name,
            follow=self.world.chance.random() < 0.7,
        )
        self.readers.append(reader)
        self.clients.append(reader)
        reader.begin(some_start(self.world, self.oracle))

    def _foreign(self) -> None:
        """Somebody who recovers ledgers for reasons of their own."""
        world = self.world
        if world.is_calm:
            return
        known = [each for each in self.ledgers.ledgers.values() if not each.deleted]
        if known:
            ledger = world.chance.choice(known[-4:])
            if ledger.closed is None:
                world.note(f"a foreign recoverer closes ledger {ledger.id}")
                world.mark("foreign recovery")
                ledger.fenced = True
                if world.chance.random() < 0.8:
                    self.ledgers.recover_now(ledger)
        world.after(world.delay(120.0), self._foreign)

    def _probe(self, prober: SimProber) -> None:
        if self.world.is_calm:
            return
        if self.world.chance.random() < 0.7:
            prober.ask_tail()
        else:
            prober.ask(self.world.chance.choice((describe, summarize)), lambda found: None)
        self.world.after(self.world.delay(120.0), lambda: self._probe(prober))

    def _remove(self, name: str) -> None:
        client = SimClient(self.world, self.meta, self.ledgers, name)
        self.clients.append(client)
        self._remove_by(client)

    def _remove_by(self, client: SimClient) -> None:
        self.world.mark("remove")
        mark = WriterMark(client.token(), client.name, 0)
        now_us = client.now_us()

        def done(_: Any, error: DlogError | None) -> None:
            if error is not None and not isinstance(error, NotFound):
                if error.retry is not Retry.NOW:
                    raise Violation(f"I24: a removal was told {error!r}")
                client.after(self.world.delay(30.0), lambda: self._remove_by(client))

        client.run(remove(NAME, LAYOUT, mark, now_us, client), done)

    # --- the world heals: I27

    def _heal(self) -> None:
        world = self.world
        world.note("the faults end")
        world.is_calm = True
        self.meta.heal()
        for client in self.clients:
            client.thaw()
            if type(client) is SimClient:
                client.crash()  # a removal stops half-way; below, another one ends it
        for writer in self.writers:
            if writer.handle is None:
                writer.crash()  # still opening: the last opener shall not meet it
        self._wait(self._all_resolved, "tickets resolve")
        for writer in self.writers:
            if writer.alive and writer.takes_messages:
                writer.close()
        last = self._open_last("last")
        if isinstance(last.error, NotFound):  # a removal of before stands half-way: end it first
            self._remove_by(SimClient(world, self.meta, self.ledgers, "x-last"))
            self._wait(self._is_removed, "a removal ends")
            last = self._open_last("last-again")
        if last.handle is None:
            raise Violation(f"I27: the last open failed: {last.error!r}")
        last.submit(2)
        last.close()
        self._wait(lambda: last.is_closed, "a close returns")
        require(last.error is None, "I27", "the last close failed", last.error)
        require(last.handle.resolved == 2, "I27", "the last messages were not acked")
        self._check_end(last.handle.uid)

    def _open_last(self, name: str) -> SimWriter:
        last = SimWriter(self.world, self.meta, self.ledgers, self.oracle, name)
        last.open(policy="always")
        self._wait(lambda: last.handle is not None or last.error is not None, "an open returns")
        return last

    def _is_removed(self) -> bool:
        now = self.oracle.now
        return now is not None and now.state is LogState.DELETED

    def _check_end(self, uid: str) -> None:
        log = self.oracle.truth()
        self.oracle.check_log(uid, log)
        reader = SimReader(self.world, self.meta, self.ledgers, self.oracle, "r-last", follow=False)
        reader.begin(EARLIEST)
        self.readers.append(reader)
        self._wait(
            lambda: all(each.caught_up(log) for each in self._readers_of(uid)), "readers catch up"
        )
        require(reader.next_seq == len(log), "I1", "a full read is not the log", reader.next_seq)
        for each in self._readers_of(uid):
            each.check_start(log)

    def _readers_of(self, uid: str) -> list[SimReader]:
        return [each for each in self.readers if each.uid in (None, uid)]

    def _all_resolved(self) -> bool:
        return all(
            writer.handle is None
            or not writer.alive
            or writer.handle.resolved == len(writer.handle.sent)
            for writer in self.writers
        )

    def _wait(self, fact: Any, what: str) -> None:
        self.world.run(until_ms=self.world.now_ms + HEAL_MS, done=fact)
        if not fact():
            raise Violation(f"I27: after healing, not within {HEAL_MS:.0f} ms: {what}")


@contextlib.contextmanager
def settings(world: World) -> Iterator[None]:
    """Small pages, so that short histories have some; quiet loggers, since losing is the topic."""
    logger = logging.getLogger("dlog")
    count, level, decoder = limits.META_PAGE_SEGMENTS, logger.level, LogMeta.from_bytes
    limits.META_PAGE_SEGMENTS = world.weather.page_segments
    logger.setLevel(logging.CRITICAL)
    LogMeta.from_bytes = _once_per_value(decoder)  # type: ignore[method-assign]
    # Most points stand around effects, counted by the clients; these the cores announce.
    trace.listen(lambda point, side: world.points.update((point,) if side == "before" else ()))
    try:
        yield
    finally:
        trace.listen(None)
        LogMeta.from_bytes = decoder  # type: ignore[method-assign]
        limits.META_PAGE_SEGMENTS = count
        logger.setLevel(level)


def _once_per_value(decoder: Callable[..., LogMeta]) -> Any:
    """Decoding is a third of a history, most of it the same bytes again; metas are values."""
    known: dict[bytes, LogMeta] = {}

    def from_bytes(raw: bytes, *, where: str) -> LogMeta:
        meta = known.get(raw)
        if meta is None:
            meta = known[raw] = decoder(raw, where=where)
        return meta

    return from_bytes


def run_histories(count: int, **weather: Any) -> None:
    for seed in range(count):
        run_history(seed, **weather)


def run_history(seed: int, *, noted: bool = False, **weather: Any) -> World:
    """Raises `Violation`, saying how to repeat it. `weather` fixes options instead of drawing
    them."""
    world = new_world(seed, noted=noted, **weather)
    with settings(world):
        try:
            History(world).run()
        except Exception as error:
            story = "\n".join(world.notes or ())
            raise Violation(
                f"{story}\nseed {seed}: {type(error).__name__}: {error}\n"
                f"repeat it with: python -m tests.sim {seed}"
            ) from error
    return world

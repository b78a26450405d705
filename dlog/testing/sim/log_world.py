"""One history of logs: actors are drawn, the safety phase runs under the weather, then the faults
end, the world heals, and everything must come right within a bound.

The log's own cores run over ledgers of either kind: `abstract` ones, as loose as their contract,
or `bookies`, where the BookKeeper client's cores run below them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from dlog import limits, trace
from dlog.admin.describe import describe, summarize
from dlog.admin.remove import remove
from dlog.admin.summary import Collection, LogDescription
from dlog.effects import Procedure
from dlog.errors import DlogError, NotFound, Retry, Unsupported
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions
from dlog.reader.message import Message
from dlog.reader.places import EARLIEST
from dlog.reader.resolve import resolve
from dlog.reader.segments import SegmentView
from dlog.testing.sim.abstract_ledgers import AbstractLedgers
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.log_bookies import bookie_scene
from dlog.testing.sim.log_damage import Damage
from dlog.testing.sim.log_fsck import FsckOracle, SimChecker
from dlog.testing.sim.log_job_oracle import OF_A_JOB
from dlog.testing.sim.log_jobs import Query, SimJob, check_jobs
from dlog.testing.sim.log_life import (
    DAY_US,
    SimCollector,
    SimHolder,
    SimTerminator,
    SimTruncator,
    SimWarden,
    some_end,
    some_place,
)
from dlog.testing.sim.log_oracle import LAYOUT, NAME, LogOracle, Sent
from dlog.testing.sim.log_producers import SimProducer
from dlog.testing.sim.log_readers import SimProber, SimReader, may_be_told, some_start, tail_of
from dlog.testing.sim.log_standbys import SimStandby
from dlog.testing.sim.log_swarm import LIFE_ON, LogWeather, draw_log_weather
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.metadata import SimMeta
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import Violation, World, require
from dlog.writer.core import WriterState

HEAL_MS = 120_000.0  # virtual: back-off of ten seconds, several times over
OPENS_MAX = 4  # then
HOLD_STEPS_MAX = 6
REPAIRS = 3
JOB_RUNS_MAX = 12
SETTLE_MS = 3_000.0
ONE_COPY = LogOptions(ensemble=1, write_quorum=1, ack_quorum=1, unsafe_single_copy=True)
DECODED_MAX = 1_000
STEP_MS = 2.0  # what goes on and on takes at least so long


def abstract_scene(world: World, weather: LogWeather) -> Scene:
    meta = SimMeta(world, weather.meta)
    ledgers = AbstractLedgers(world, weather.ledgers, meta)
    return Scene(world, weather, meta, ledgers, LogOracle(world, meta, ledgers), ONE_COPY)


class LogHistory:
    def __init__(self, scene: Scene) -> None:
        scene.quorum = dataclasses.replace(
            scene.quorum,
            retention_bytes=scene.weather.retention_bytes,
            retention_age_s=scene.weather.retention_age_s,
            deletion_grace_s=scene.weather.grace_s,
        )
        self.scene = scene
        self.world = scene.world
        self.weather = scene.weather
        self.meta = scene.meta
        self.oracle = scene.oracle
        self.writers: list[SimWriter] = []
        self.readers: list[SimReader] = []
        self.clients: list[SimClient] = []
        self.producers: dict[str, SimProducer] = {}  # one for all incarnations of a writer
        self._fsck_oracle = FsckOracle(scene)
        self._damage = Damage(scene) if scene.weather.damages else None
        self.queries = [Query(f"j{i}") for i in range(self.weather.publishers)]
        self._removed_by = ""  # whose removal came to its end last
        self._span_ms = (60.0 * self.weather.appends + 100.0) * self.weather.span * scene.pace

    # --- the safety phase

    def run(self) -> None:
        world, weather = self.world, self.weather
        for i in range(weather.writers):
            begins_ms = 0.0 if i == 0 else self._some_time()
            world.after(begins_ms, functools.partial(self._start_writer, f"w{i}", 0))
        for i in range(weather.standbys):
            world.after(self._some_time(), functools.partial(self._start_standby, f"s{i}"))
        for query in self.queries:
            world.after(self._some_time(), functools.partial(self._run_job, query, 0))
        self._begin_readers()
        if weather.foreign_recoverers:
            world.after(STEP_MS + world.chance.delay(100.0), self._foreign)
        self._begin_life()
        for i in range(weather.removers):
            begins_ms = 50.0 + world.chance.random() * (self._span_ms - 50.0)
            world.after(begins_ms, functools.partial(self._remove, f"x{i}"))
        prober = SimProber(self.scene, "p")
        self.clients.append(prober)
        self._probe(prober)
        if weather.resolved:
            asker = SimClient(self.scene, "q")
            self.clients.append(asker)
            self._ask_what_became(asker)
        for i in range(weather.checkers):
            world.after(self._some_time(), functools.partial(self._look_over, f"f{i}"))
        if self._damage is not None:
            for _ in range(weather.damages):
                world.after(self._some_time(), self._damage.strike)
        world.run(until_ms=self._span_ms)
        self._heal()

    def _begin_readers(self) -> None:
        for i in range(self.weather.readers):
            self.world.after(self._some_time(), functools.partial(self._start_reader, i))

    def _begin_life(self) -> None:
        world, weather = self.world, self.weather
        for i in range(weather.truncations):
            world.after(self._some_time(), functools.partial(self._truncate, f"t{i}"))
        for i in range(weather.holders):
            world.after(self._some_time(), functools.partial(self._hold, i, 0, None))
        for i in range(weather.collectors):
            world.after(self._some_time(), functools.partial(self._collect, f"c{i}"))
        for i in range(weather.terminators):
            world.after(self._some_time(), functools.partial(self._terminate, f"e{i}"))

    def _some_time(self) -> float:
        return self.world.chance.random() * self._span_ms

    def _start_writer(self, name: str, incarnation: int) -> None:
        writer = SimWriter(self.scene, f"{name}{'abcdefgh'[incarnation]}")
        self.writers.append(writer)
        self.clients.append(writer)
        writer.open(lambda: self._work(writer))
        # Whatever becomes of this process, another one may follow.
        if incarnation + 1 < self.weather.incarnations:
            self._start_later(writer, name, incarnation + 1)

    def _start_standby(self, name: str) -> None:
        standby = SimStandby(self.scene, name)
        self.writers.append(standby)
        self.clients.append(standby)
        standby.open(lambda: self._work(standby))

    def _run_job(self, query: Query, run: int) -> None:
        """One process after another, and sometimes one beside another."""
        if self.world.is_calm or run >= JOB_RUNS_MAX:
            return
        job = SimJob(self.scene, f"{query.name}.{run}", query)
        self.clients.append(job)
        job.begin()
        self._run_job_later(job, query, run)

    def _run_job_later(self, job: SimJob, query: Query, run: int) -> None:
        def look() -> None:
            beside = self.world.chance.hits(0.15, "a second driver")
            if job.is_done or not job.alive or beside:
                self._run_job(query, run + 1)
            else:
                self._run_job_later(job, query, run)

        self.world.after(STEP_MS + self.world.chance.delay(60.0), look)

    def _start_later(self, old: SimWriter, name: str, incarnation: int) -> None:
        later_ms = STEP_MS + self.world.chance.delay(150.0)
        self.world.after(later_ms, lambda: self._start_again(old, name, incarnation))

    def _start_again(self, old: SimWriter, name: str, incarnation: int) -> None:
        gone = not old.alive or old.is_closed or old.error is not None
        dead = old.core is not None and old.core.state is WriterState.DEAD
        if self.world.is_calm:
            return
        if gone or dead:
            self._start_writer(name, incarnation)
        else:
            self._start_later(old, name, incarnation)

    def _work(self, writer: SimWriter) -> None:
        """What the program that opened a writer does with it."""
        weather, chance = self.weather, self.world.chance
        at_ms = 0.0
        for _ in range(weather.appends):
            mean_ms = chance.pick((0.5, 5.0, 40.0), "milliseconds between appends")
            at_ms += chance.delay(mean_ms * self.weather.span)
            writer.after(at_ms, lambda: self._append(writer))
        if chance.hits(weather.closes, f"{writer.name} closes"):
            to = chance.pick((None, "the next one"), "hands over to")
            writer.after(at_ms + chance.delay(20.0), lambda: writer.close(to=to))

    def _append(self, writer: SimWriter) -> None:
        if writer.takes_messages:
            count = self.world.chance.pick((1, 1, 2, 3), "messages of an append")
            if self.world.strikes(self.weather.numbered, "an append has a number"):
                self._producer_of(writer).send(writer, count)
            else:
                writer.submit(count)
            if self.world.strikes(self.weather.rotations_asked, "a rotation is asked for"):
                writer.ask_rotation()
            writer.may_be_hit()

    def _producer_of(self, writer: SimWriter) -> SimProducer:
        family = writer.name[:2]
        if family not in self.producers:
            self.producers[family] = SimProducer(self.scene, len(self.producers))
        return self.producers[family]

    def _ask_what_became(self, asker: SimClient) -> None:
        """Of one message or another, while everything goes on."""
        world = self.world
        if world.is_calm:
            return
        sents = [each for each in self.oracle.by_value.values() if each.handle.epoch != OF_A_JOB]
        if sents and world.strikes(self.weather.resolved, "somebody asks for a message"):
            self._resolve(asker, world.chance.pick(sents[-8:], "which message"))
        world.after(STEP_MS + world.chance.delay(60.0), lambda: self._ask_what_became(asker))

    def _resolve(
        self, asker: SimClient, sent: Sent, told: Callable[[], None] | None = None
    ) -> None:
        seq = self.oracle.acked_seq.get(sent.handle.uid, -1)
        before = sent.id is not None and sent.seq <= seq

        def done(answer: Any, error: DlogError | None) -> None:
            if error is None:
                self.oracle.resolved(sent, answer, visible_before=before)
                if told is not None:
                    told()
                return
            require(may_be_told(self.scene, error), "I24", "a question was answered by", error)

        view = SegmentView(NAME, LAYOUT, sent.token.log_uid, tail="strict")
        asker.run(resolve(view, sent.token), done)

    def _start_reader(self, number: int) -> None:
        name = f"r{number}"
        follow = not self.world.chance.hits(0.3, f"{name} reads to the end only")
        tail = tail_of(self.weather.tail, number)
        jumps = self.world.chance.hits(self.weather.jumps, f"{name} jumps")
        reader = SimReader(self.scene, name, follow=follow, tail=tail, jumps=jumps)
        self.readers.append(reader)
        self.clients.append(reader)
        reader.begin(some_start(self.world, self.oracle))

    def _foreign(self) -> None:
        if not self.world.is_calm:
            self.scene.ledgers.recover_by_a_stranger()
            self.world.after(STEP_MS + self.world.chance.delay(120.0), self._foreign)

    def _probe(self, prober: SimProber) -> None:
        if self.world.is_calm:
            return
        if self.world.chance.hits(0.3, "somebody asks how the log is"):
            asked = self.world.chance.pick((_describe, summarize), "the question")
            prober.ask(asked, lambda found: None)
        else:
            prober.ask_tail()
        self.world.after(10 * STEP_MS + self.world.chance.delay(100.0), lambda: self._probe(prober))

    def _remove(self, name: str) -> None:
        client = SimClient(self.scene, name)
        self.clients.append(client)
        self._remove_by(client)

    def _remove_by(self, client: SimClient) -> None:
        self.world.mark("remove")
        mark = WriterMark(client.token(), client.name, 0)
        now_us = client.now_us()

        def done(_: Any, error: DlogError | None) -> None:
            if error is None or isinstance(error, NotFound):
                self._removed_by = client.name
                return
            require(error.retry is Retry.NOW, "I24", "a removal was told", error)
            again_ms = STEP_MS + self.world.chance.delay(30.0)
            client.after(again_ms, lambda: self._remove_by(client))

        client.run(remove(NAME, LAYOUT, mark, now_us, client), done)

    # --- the other end

    def _truncate(self, name: str) -> None:
        force = self.world.chance.hits(self.weather.forces, f"{name} heeds no hold")
        client = SimTruncator(self.scene, name, force=force)
        self.clients.append(client)
        client.truncate(some_end(self.world, self.oracle))

    def _hold(self, number: int, round_number: int, last: SimHolder | None) -> None:
        """A process of its own for each step, so that another one finds what a dead one left."""
        if self.world.is_calm:
            return
        later_ms = STEP_MS + self.world.chance.delay(80.0)
        if last is not None and last.alive and not last.is_done:
            self.world.after(later_ms, lambda: self._hold(number, round_number, last))
            return
        client = SimHolder(self.scene, f"h{number}-{round_number}", f"hold-{number}")
        self.clients.append(client)
        if round_number > 0 and self.world.chance.hits(0.2, "a hold is dropped"):
            client.drop()
        else:
            client.put(some_place(self.world, self.oracle))
        if round_number < HOLD_STEPS_MAX:
            self.world.after(later_ms, lambda: self._hold(number, round_number + 1, client))

    def _collect(self, name: str) -> None:
        if self.world.is_calm:
            return
        # Often its clock says that the grace is over: else little would ever be deleted.
        ahead = self.world.chance.hits(0.6, f"{name} comes behind the grace")
        client = SimCollector(self.scene, name, ahead_us=DAY_US if ahead else 0)
        self.clients.append(client)
        client.collect()
        self.world.after(STEP_MS + self.world.chance.delay(150.0), lambda: self._collect(name))

    def _look_over(self, name: str) -> None:
        if self.world.is_calm:
            return
        repairs = self.world.chance.hits(0.5, f"{name} repairs")
        client = SimChecker(self.scene, name, self._fsck_oracle, repairs=repairs)
        self.clients.append(client)
        client.look()
        self.world.after(STEP_MS + self.world.chance.delay(200.0), lambda: self._look_over(name))

    def _repair(self, damage: Damage) -> None:
        """Before anybody counts on the list again: what was found first may be in the way of more.
        Not before what the dead had sent arrived."""
        self.world.run(until_ms=self.world.now_ms + SETTLE_MS)
        for number in range(REPAIRS):
            client = SimChecker(self.scene, f"f-first-{number}", self._fsck_oracle, repairs=True)
            client.look()
            self._wait(lambda client=client: client.is_done, "a repair ends")
            if number > 0:
                damage.restore()
        damage.check_end()

    def _look_over_all(self) -> None:
        """What is left is nobody's; once that is deleted, nothing is wrong."""
        if not self.weather.checkers:
            return
        for name, repairs in (("f-repairs", True), ("f-last", False)):
            last = SimChecker(self.scene, name, self._fsck_oracle, repairs=repairs)
            last.look()
            self._wait(lambda last=last: last.is_done, "a look ends")
        damage = [each for each in last.found or () if each.is_damage]
        require(not damage, "I26", "repaired, and something is wrong still", damage)
        self._fsck_oracle.check()

    def _terminate(self, name: str) -> None:
        client = SimTerminator(self.scene, name)
        self.writers.append(client)
        self.clients.append(client)
        client.terminate()

    def _collect_all(self, uid: str) -> None:
        """One pass behind the grace leaves nothing; what it sweeps itself, or retention has it
        truncate, is in its grace, and goes in another one. Not before what the dead had sent
        arrived: a hold that goes then lets retention go on."""
        self.world.run(until_ms=self.world.now_ms + SETTLE_MS)
        if self._collect_once(SimCollector(self.scene, "c-2", ahead_us=2 * DAY_US)).truncated:
            self._collect_once(SimCollector(self.scene, "c-3", ahead_us=3 * DAY_US))
        self.oracle.heads.check_collected(uid)

    def _collect_once(self, collector: SimCollector) -> Collection:
        collector.collect()
        self._wait(lambda: collector.is_done, "a collector's pass ends")
        found = collector.found
        require(found is not None, "I26", "a last pass of the collector failed", collector.error)
        assert found is not None
        require(not found.problems, "I26", "what could not be collected", found.problems)
        return found

    # --- the world heals: I27

    def _end_faults(self) -> None:
        world = self.world
        world.note("the faults end")
        world.is_calm = True
        self.meta.heal()
        self.scene.ledgers.heal()
        for client in self.clients:
            client.thaw()
            if type(client) is SimClient or isinstance(client, (SimWarden, SimJob)):
                client.crash()  # a removal stops half-way; below, another one ends it
        if self._damage is not None:
            self._repair(self._damage)

    def _heal(self) -> None:
        self._end_faults()
        for writer in self.writers:
            if writer.handle is None:
                writer.crash()  # still opening: the last opener shall not meet it
        self._wait(self._all_resolved, "tickets resolve")
        for writer in self.writers:
            if writer.alive and writer.takes_messages:
                writer.close()
        last = self._open_last()
        if last is None:  # terminated: nobody writes any more
            now = self.oracle.now
            assert now is not None
            self._check_end(now.uid)
            return
        self._send_all_again(last)
        last.submit(2)
        last.close()
        self._wait(lambda: last.is_closed, "a close returns")
        require(last.error is None, "I27", "the last close failed", last.error)
        assert last.handle is not None
        acked = last.handle.resolved == len(last.handle.sent)
        require(acked, "I27", "the last messages were not acked")
        for producer in self.producers.values():
            told = producer.is_stuck or not producer.unanswered
            require(told, "I29", "a producer was never answered", producer.unanswered)
        self._check_end(last.handle.uid)

    def _send_all_again(self, last: SimWriter) -> None:
        if any(producer.unanswered for producer in self.producers.values()):
            self._wait(last.allows_numbers, "the log says that it has producers")
            for producer in self.producers.values():
                producer.finish(last)

    def _open_last(self) -> SimWriter | None:
        """What was under way when the world healed may still cost somebody a try, or two. Nobody
        writes any more, so who asks politely gets in as well."""
        is_polite = self.weather.takeover in ("if_dead", "wait")
        for attempt in range(OPENS_MAX):
            last = SimWriter(self.scene, f"last-{attempt}")
            last.open(policy="wait" if is_polite else "always")
            self._wait(self._is_open_or_not(last), "an open returns")
            if last.handle is not None:
                return last
            error = last.error
            assert error is not None
            last.crash()
            now = self.oracle.now
            if isinstance(error, Unsupported):
                over = now is not None and now.state is LogState.TERMINATED
                require(over, "I27", "an open was told of an end", error)
                return None
            if isinstance(error, NotFound):  # a removal stands half-way: end it first
                name = f"x-last-{attempt}"
                self._remove_by(SimClient(self.scene, name))
                # Until it ends itself: the next log shall not meet it.
                self._wait(functools.partial(self._is_removed_by, name), "a removal ends")
            elif not may_be_told(self.scene, error):
                break
        raise Violation("I27", f"the last open failed: {error!r}")

    def _is_open_or_not(self, writer: SimWriter) -> Callable[[], bool]:
        return lambda: writer.handle is not None or writer.error is not None

    def _is_removed_by(self, name: str) -> bool:
        return self._removed_by == name

    def _check_end(self, uid: str) -> None:
        self._collect_all(uid)
        self._look_over_all()
        log = self.oracle.truth()
        self.oracle.check_log(uid, log)
        check_jobs(uid, self.queries, log, self.oracle.heads.head_seq(uid))
        reader = SimReader(self.scene, "r-last", follow=False)
        reader.begin(EARLIEST)
        self.readers.append(reader)
        self._wait(
            lambda: all(each.caught_up(log) for each in self._readers_of(uid)), "readers catch up"
        )
        head_seq = self.oracle.heads.head_seq(uid)
        end_seq = log[-1].seq + 1 if log else head_seq
        all_read = reader.next_seq == (end_seq if end_seq > head_seq else None)
        require(all_read, "I1", "a full read is not the log", reader.next_seq, end_seq)
        for each in self._readers_of(uid):
            each.check_start(log)
        self._resolve_all(uid, log)
        self.scene.ledgers.check_end()

    def _resolve_all(self, uid: str, log: list[Message]) -> None:
        """Everything is sealed: nothing is undecided any more."""
        if not self.weather.resolved:
            return
        asker = SimClient(self.scene, "q-last")
        theirs = (each for each in self.oracle.by_value.values() if each.handle.uid == uid)
        sents = [each for each in theirs if each.handle.epoch != OF_A_JOB]
        told: list[None] = []
        for sent in sents:
            self._resolve(asker, sent, lambda: told.append(None))
        self._wait(lambda: len(told) == len(sents), "questions are answered")
        for sent in sents:
            told_all = sent.answer or self.oracle.heads.is_truncated(uid, sent.token.seq)
            require(bool(told_all), "I24", "undecided at the end", sent)
        self.oracle.check_log(uid, log)

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
            raise Violation("I27", f"after healing, not within {HEAL_MS:.0f} ms: {what}")


def _describe(view: SegmentView) -> Procedure[LogDescription]:
    return describe(view, LAYOUT)


@contextlib.contextmanager
def settings(world: World, weather: LogWeather) -> Iterator[None]:
    """Small pages, so that short histories have some; quiet loggers, since losing is the topic."""
    logger = logging.getLogger("dlog")
    count, level, decoder = limits.META_PAGE_ITEMS, logger.level, LogMeta.from_bytes
    known, every = limits.PRODUCERS_MAX, limits.PRODUCERS_EVERY_ENTRIES
    limits.META_PAGE_ITEMS = weather.page_segments
    limits.PRODUCERS_MAX = weather.producers_max
    limits.PRODUCERS_EVERY_ENTRIES = weather.table_every
    logger.setLevel(logging.CRITICAL)
    LogMeta.from_bytes = _once_per_value(decoder)  # type: ignore[method-assign]
    # Most points stand around effects, counted by the clients; these the cores announce.
    trace.listen(lambda point, side: world.points.update((point,) if side == "before" else ()))
    try:
        yield
    finally:
        trace.listen(None)
        LogMeta.from_bytes = decoder  # type: ignore[method-assign]
        limits.META_PAGE_ITEMS = count
        limits.PRODUCERS_MAX, limits.PRODUCERS_EVERY_ENTRIES = known, every
        logger.setLevel(level)


_decoded: dict[bytes, LogMeta] = {}


def _once_per_value(decoder: Callable[..., LogMeta]) -> Any:
    """Decoding is a third of a history, most of it the same bytes again, also from history to
    history; metas are values."""

    def from_bytes(raw: bytes, *, where: str) -> LogMeta:
        meta = _decoded.get(raw)
        if meta is None:
            if len(_decoded) >= DECODED_MAX:
                _decoded.clear()
            meta = _decoded[raw] = decoder(raw, where=where)
        return meta

    return from_bytes


def run_log_history(
    chance: Chance,
    *,
    told: bool = False,
    ledgers: str = "bookies",
    life: float = LIFE_ON,
    **fixed: Any,
) -> World:
    """Raises `Violation` at the event that breaks a promise. `fixed` sets options of the weather
    instead of drawing them."""
    world = World(chance, told=told)
    play(world, ledgers=ledgers, life=life, **fixed)
    return world


def play(world: World, *, ledgers: str, life: float = LIFE_ON, **fixed: Any) -> None:
    weather = draw_log_weather(world.chance, life=life)
    if fixed:
        weather = weather.fixed(**fixed)
    with settings(world, weather):
        LogHistory(SCENES[ledgers](world, weather)).run()


SCENES: dict[str, Callable[[World, LogWeather], Scene]] = {
    "abstract": abstract_scene,
    "bookies": bookie_scene,
}

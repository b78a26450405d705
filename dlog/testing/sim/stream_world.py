"""One history of a stream: its shards are split, merged and pinned under writers and readers, all
of whom crash, freeze and hear no answers; then the faults end, and everything must come right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dlog.effects import Procedure
from dlog.options import LogOptions
from dlog.streams.document import StreamMeta, StreamState, new_stream
from dlog.streams.reshard import make_stream, merge, pin, split, terminate_stream
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_swarm import LogWeather
from dlog.testing.sim.metadata import MetaManners, SimMeta
from dlog.testing.sim.stream_clients import (
    NAME,
    PATH,
    SimSharder,
    SimStreamReader,
    SimStreamWriter,
    StreamClient,
)
from dlog.testing.sim.stream_logs import AbstractLogs, LogManners
from dlog.testing.sim.stream_oracle import Intents, StreamOracle
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World, require

LIVE = "I27 (live after healing)"
HEAL_MS = 60_000.0
ONE_COPY = LogOptions(ensemble=1, write_quorum=1, ack_quorum=1, unsafe_single_copy=True)
KEYS = tuple(b"k%d" % n for n in range(8))
FAULT_ON = 0.3


@dataclass(slots=True)
class StreamWeather:
    """What is done in one history, and what it is hit by."""

    base: LogWeather = field(default_factory=LogWeather)
    logs: LogManners = field(default_factory=LogManners)
    shards: int = 2
    producers: int = 1
    messages: int = 8
    keyless: float = 0.0
    changes: int = 2
    pins: float = 0.3
    readers: int = 1
    bounded: int = 0
    incarnations: int = 2
    sleepers: float = 0.1  # old writers sleep until all is done
    zombies: float = 0.5  # a new incarnation begins while the old one lives
    parted: bool = False  # two writers, each with some of the shards
    terminates: bool = False

    def fixed(self, **options: Any) -> StreamWeather:
        mine = {n: v for n, v in options.items() if n in self.__dataclass_fields__}
        logs = {n[5:]: v for n, v in options.items() if n.startswith("logs_")}
        rest = {n: v for n, v in options.items() if n not in mine and not n.startswith("logs_")}
        return replace(self, base=self.base.fixed(**rest), logs=replace(self.logs, **logs), **mine)


def draw_stream_weather(chance: Chance) -> StreamWeather:
    def rate(what: str, high: float = 0.3) -> float:
        return chance.rate(0.003, high, on=FAULT_ON, what=what)

    meta = MetaManners(
        refused=rate("metadata refuses"),
        request_lost=rate("metadata requests are lost"),
        reply_lost=rate("metadata replies are lost"),
        late=rate("metadata writes arrive late"),
        outages=chance.hits(0.15, "metadata outages"),
        touched=rate("nodes are stored again by a stranger"),
    )
    base = LogWeather(
        meta=meta,
        crash=rate("clients crash", 0.05),
        freeze=rate("clients freeze", 0.1),
        slow=chance.pick((1.0, 5.0, 30.0), "links are slower, times"),
    )
    logs = LogManners(
        fails=rate("logs fail"),
        reply_lost=rate("replies of logs are lost"),
        slow_entries=rate("appends are slow"),
    )
    return StreamWeather(
        base,
        logs,
        shards=chance.pick((2, 1, 3, 4), "shards"),
        producers=chance.pick((1, 2), "producers"),
        messages=chance.pick((8, 4, 16), "messages"),
        keyless=chance.pick((0.0, 0.0, 0.3), "messages without a key"),
        changes=chance.pick((2, 1, 3, 5), "changes"),
        pins=chance.pick((0.3, 0.0, 0.7), "of them pins"),
        readers=chance.pick((1, 0, 2), "readers"),
        bounded=chance.pick((0, 1, 2), "readings to the end"),
        incarnations=chance.pick((1, 2, 3), "incarnations of a writer"),
        zombies=chance.pick((0.0, 1.0), "while the one before lives"),
        parted=chance.hits(0.15, "two writers share the shards"),
        terminates=chance.hits(0.05, "the stream is terminated"),
    )


class _NoLedgers:
    """Of logs that are abstract, there are none."""

    def of(self, client: Any) -> _NoLedgers:
        return self

    def drop(self) -> None: ...


class StreamHistory:
    def __init__(self, world: World, weather: StreamWeather) -> None:
        self.world = world
        self.weather = weather
        self.meta = SimMeta(world, weather.base.meta)
        self.logs = AbstractLogs(world, weather.logs)
        self.oracle = StreamOracle(world, self.logs, PATH)
        self.meta.audit = self.oracle.on_written
        nothing: Any = None
        self.scene = Scene(world, weather.base, self.meta, _NoLedgers(), nothing, ONE_COPY)
        self.clients: list[StreamClient] = []
        self.writers: list[SimStreamWriter] = []
        self.readers: list[SimStreamReader] = []
        self.groups: list[tuple[list[Intents], frozenset[int] | None]] = []
        self._span_ms = 40.0 * weather.messages + 60.0 * weather.changes

    def run(self) -> None:
        world, weather = self.world, self.weather
        pins = {KEYS[0]: 0} if world.chance.hits(0.3, "a key is pinned from the start") else {}
        made = new_stream(NAME, "u" * 12, ONE_COPY, shards=weather.shards, pins=pins)
        maker = self._client(StreamClient, "maker")
        maker.weather = replace(weather.base, crash=0.0, freeze=0.0)
        self.meta.store(PATH, made.to_bytes())
        maker.run(make_stream(maker.site, lambda: made), lambda answer, error: None)
        self._draw_intents()
        for index in range(len(self.groups)):
            self._start_writer(index, 0)
        for number in range(weather.changes):
            world.after(self._some_time(), functools.partial(self._change, number))
        for number in range(weather.readers):
            world.after(self._some_time(), functools.partial(self._start_reader, number, None))
        for number in range(weather.bounded):
            world.after(self._some_time(), functools.partial(self._read_once, number))
        world.run(until_ms=self._span_ms)
        self._heal()

    def _some_time(self) -> float:
        return self.world.chance.random() * self._span_ms * 0.8

    def _client(self, kind: Any, name: str, *args: Any, **options: Any) -> Any:
        client = kind(self.scene, name, self.logs, self.oracle, *args, **options)
        self.clients.append(client)
        return client

    def _draw_intents(self) -> None:
        weather, chance = self.weather, self.world.chance
        every: list[Intents] = []
        for producer_id in range(weather.producers):
            keys: list[bytes | None] = [
                None
                if weather.keyless and chance.random() < weather.keyless
                else KEYS[int(chance.random() * len(KEYS))]
                for _ in range(weather.messages)
            ]
            intents = Intents(producer_id, keys)
            self.oracle.intents[producer_id] = intents
            every.append(intents)
        if weather.parted and weather.shards > 1 and len(every) > 1:
            half = weather.shards // 2
            self.groups = [
                ([every[0]], frozenset(range(half))),
                ([every[1]], frozenset(range(half, weather.shards))),
            ]
        else:
            self.groups = [(every, None)]

    # --- writers

    def _start_writer(self, index: int, incarnation: int) -> None:
        intents, wanted = self.groups[index]
        if self.oracle.meta is None:
            self.world.after(1.0, lambda: self._start_writer(index, incarnation))
            return
        if wanted is not None:  # what it had goes on in what follows
            wanted = _followed(self.oracle.meta, wanted)
        name = f"w{index}.{incarnation}"
        writer = self._client(SimStreamWriter, name, intents, wanted)
        self.writers.append(writer)
        writer.start()
        self._watch(writer, index, incarnation)

    def _watch(self, writer: SimStreamWriter, index: int, incarnation: int) -> None:
        """A process that ended is started again, and sometimes one that did not."""
        world, weather = self.world, self.weather
        if incarnation + 1 >= weather.incarnations or world.is_calm:
            return
        gone = not writer.alive or writer.is_over
        replaced = weather.zombies > 0 and world.chance.hits(0.05, "a second process begins")
        if gone or replaced:
            self._start_writer(index, incarnation + 1)
            return
        world.after(10.0, lambda: self._watch(writer, index, incarnation))

    # --- changes

    def _change(self, number: int) -> None:
        client = self._client(SimSharder, f"c{number}")
        procedure = self._some_change(client)
        if procedure is not None:
            client.change(procedure, lambda: None)

    def _some_change(self, client: SimSharder) -> Procedure[Any] | None:
        meta, chance = self.oracle.meta, self.world.chance
        assert meta is not None
        shards = sorted(meta.open_shards, key=lambda shard: shard.range)
        if not shards:
            return None
        token = client.token()
        shard = shards[int(chance.random() * len(shards))]
        if self.weather.terminates and chance.hits(0.3, "the end of the stream"):
            self.world.mark("terminates")
            return terminate_stream(client.site)
        if chance.hits(self.weather.pins, "a pin"):
            key = KEYS[int(chance.random() * 3)]
            if key in meta.pins and chance.hits(0.5, "an unpin"):
                return pin(client.site, key, None, token)
            return pin(client.site, key, shard.number, token)
        if len(shards) > 1 and chance.hits(0.5, "a merge"):
            index = int(chance.random() * (len(shards) - 1))
            together = tuple(each.number for each in shards[index : index + 2])
            return merge(client.site, together, token)
        half = shard.range.first_hash + len(shard.range) // 2
        return split(client.site, shard.number, (half,), token)

    # --- readers

    def _start_reader(self, number: int, before: SimStreamReader | None) -> None:
        name = f"r{number}" if before is None else f"{before.name}'"
        options: dict[str, Any] = {"follow": True}
        if before is not None:
            options |= {"at": before.saved, "seen": before.saved_seen, "got": before.saved_got}
            self.world.mark("a reader comes back")
        reader = self._client(SimStreamReader, name, **options)
        self.readers.append(reader)
        if before is not None:
            reader.saved_seen, reader.saved_got = before.saved_seen, before.saved_got
            self.readers.remove(before)
        reader.start()
        self._watch_reader(number, reader)

    def _watch_reader(self, number: int, reader: SimStreamReader) -> None:
        if not reader.alive:
            self._start_reader(number, reader)
        elif not self.world.is_calm:
            self.world.after(15.0, lambda: self._watch_reader(number, reader))

    def _read_once(self, number: int) -> None:
        self._client(SimStreamReader, f"b{number}", follow=False).start()

    # --- the end

    def _heal(self) -> None:
        world = self.world
        world.is_calm = True
        world.note("calm: no more faults")
        self.meta.heal()
        for client in self.clients:
            client.thaw()
        world.run(until_ms=world.now_ms + 1_000.0)
        # Who is still on its way to new shards would be the last by right; so would one that opens.
        world.run(until_ms=world.now_ms + HEAL_MS, done=self._at_rest)
        asleep = []
        wakes = world.chance.hits(self.weather.sleepers, "sleepers wake later")
        for writer in self.writers:
            if not writer.is_open:
                writer.crash()
            elif wakes and writer.alive and not writer.is_over:
                writer.fall_asleep()
                asleep.append(writer)
        first = 3 if asleep and world.chance.hits(0.5, "shards change before others come") else 0
        for number in range(first):
            self._change(500 + number)
            world.run(until_ms=world.now_ms + 300.0)
        finals = []
        for index, (intents, wanted) in enumerate(self.groups):
            assert self.oracle.meta is not None
            own = None if wanted is None else _followed(self.oracle.meta, wanted)
            finals.append(self._last_writer(f"w{index}.last", intents, own))
        for number, reader in enumerate(list(self.readers)):
            if not reader.alive:
                self._start_reader(number, reader)
        last = self._client(SimStreamReader, "last", follow=True)
        last.start()
        readers = [*self.readers, last]
        self._until(lambda: all(self._is_done(each) for each in finals), "writers", finals)
        self._until(lambda: not any(each.catch_up() for each in readers), "readers", readers)
        for reader in readers:
            reader.is_over = True
        if asleep and len(finals) == 1:
            self._wake(asleep, finals[0])
        self.oracle.check_end()

    def _wake(self, asleep: list[SimStreamWriter], final: SimStreamWriter) -> None:
        """They slept while others went on, and shards came and went: they take nothing back."""
        world = self.world
        for number in range(2):
            self._change(1000 + number)
            world.run(until_ms=world.now_ms + 500.0)
        extra = self.oracle.intents[0]
        extra.keys.extend(KEYS)  # so that the last writer meets its new shards
        final.pump()
        self._until(lambda: self._is_done(final), "the last writer", [final])
        for number in range(2):
            self._change(2000 + number)
            world.run(until_ms=world.now_ms + 500.0)
        for writer in asleep:
            writer.wake()
        world.run(until_ms=world.now_ms + 2_000.0)
        world.mark("sleepers woke")
        extra.keys.extend(KEYS)
        final.pump()
        self._until(lambda: self._is_done(final), "the last writer", [final])

    def _at_rest(self) -> bool:
        return not any(each.is_moving for each in self.writers if each.alive and each.is_open)

    def _last_writer(
        self, name: str, intents: list[Intents], wanted: frozenset[int] | None
    ) -> SimStreamWriter:
        writer: SimStreamWriter = self._client(SimStreamWriter, name, intents, wanted)
        writer.start()
        return writer

    def _is_done(self, writer: SimStreamWriter) -> bool:
        meta = self.oracle.meta
        assert meta is not None
        if meta.state is StreamState.TERMINATED or writer.core.wanted is not None:
            return writer.is_done or writer.is_over
        require(not writer.is_over, LIVE, "the last writer is over", writer.name, writer.error)
        return writer.is_done

    def _until(self, done: Callable[[], bool], who: str, about: list[Any]) -> None:
        world = self.world
        world.run(until_ms=world.now_ms + HEAL_MS, done=done)
        require(done(), LIVE, f"{who} came to no end", about)


def _followed(meta: StreamMeta, wanted: frozenset[int]) -> frozenset[int]:
    """Shards and what follows them, first parents deciding."""
    held = set(wanted)
    for shard in meta.shards:
        if shard.parents and shard.parents[0] in held:
            held.add(shard.number)
    return frozenset(held)


def run_stream_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_stream_weather(chance).fixed(**fixed)
    if told:
        world.note(f"weather: {weather}")
    StreamHistory(world, weather).run()
    return world

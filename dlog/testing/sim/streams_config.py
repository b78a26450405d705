"""Histories of one document: editors that change it beside each other, followers that put it in
force, and a metadata store that loses, doubles and delays what it likes.

Cores are the production's own: the procedures of a change, and the one that follows for ever. The
oracle hears every write of the document as it is applied, and looks at every follower whenever it
asks for something: that is where others could see it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.effects import (
    CreateNode,
    DeleteNode,
    Effect,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
)
from dlog.errors import ConfigError, DlogError
from dlog.streams.config.changes import change_document, roll_back
from dlog.streams.config.document import Content, Document, Stamp, with_values
from dlog.streams.config.following import (
    Following,
    NodeSource,
    Ready,
    Refused,
    Taken,
    UntilTold,
    follow,
)
from dlog.testing.sim.clients import Task
from dlog.testing.sim.metadata import Answered, MetaManners, SimMeta
from dlog.testing.sim.streams_config_oracle import (
    BAD,
    BREAKS,
    PARTS,
    PATH,
    REACHED,
    ConfigOracle,
    Edit,
)
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World, require

SPAN_MS = 60.0
POLL_MS = 150.0
# From the last change on, or the end of the faults: a poll, and the ways there and back.
IN_FORCE_MS = POLL_MS + 60.0
LATE_MS = 400.0  # by then a write that was late arrived
EDIT_MS = 6_000.0  # a calm editor has long been answered by then


@dataclass(slots=True)
class ConfigWeather:
    """Rates are per event; 0 is off."""

    meta: MetaManners = field(default_factory=MetaManners)
    crash: float = 0.0
    freeze: float = 0.0
    slow: float = 1.0
    editors: int = 1
    changes: int = 1
    followers: int = 1
    history_max: int = 3
    bad: float = 0.0  # of the changes cannot be put in force

    def fixed(self, **options: Any) -> ConfigWeather:
        meta = {name[5:]: each for name, each in options.items() if name.startswith("meta_")}
        mine = {name: each for name, each in options.items() if not name.startswith("meta_")}
        return dataclasses.replace(self, meta=dataclasses.replace(self.meta, **meta), **mine)


def draw_config_weather(chance: Chance) -> ConfigWeather:
    def rate(what: str, high: float = 0.3) -> float:
        return chance.rate(0.01, high, on=0.3, what=what)

    return ConfigWeather(
        meta=MetaManners(
            refused=rate("metadata refuses"),
            request_lost=rate("metadata requests are lost"),
            reply_lost=rate("metadata replies are lost"),
            late=rate("metadata writes arrive late"),
            outages=chance.hits(0.1, "metadata outages"),
            stale=chance.pick((0.0, 1.0, 1.0), "stale reads of metadata"),
            touched=rate("nodes are stored again by a stranger"),
            watch_lost=rate("watches are lost", 0.9),
            watch_late=rate("watches are late", 0.9),
            watch_twice=rate("watches are doubled"),
        ),
        crash=rate("clients crash", 0.1),
        freeze=rate("clients freeze", 0.1),
        slow=chance.pick((1.0, 1.0, 1.0, 10.0), "slow links, times"),
        editors=chance.pick((1, 2, 2, 3), "editors"),
        changes=chance.pick((1, 1, 2, 3), "changes of each"),
        followers=chance.pick((1, 1, 2), "followers"),
        history_max=chance.pick((3, 2, 1), "versions that are kept"),
        bad=chance.pick((0.0, 0.0, 0.3), "documents are refused"),
    )


class ConfigClient:
    """A process: it may crash and freeze before and after whatever it asks for."""

    def __init__(self, history: ConfigHistory, name: str) -> None:
        self.history = history
        self.world: World = history.world
        self.meta = history.meta
        self.name = name
        self.alive = True
        self.frozen = False
        self.synced = 0
        self.meta_ms = history.weather.slow
        self._inbox: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name

    def fraction(self) -> float:
        return self.world.chance.random()

    def token(self) -> str:
        return self.world.chance.token()

    # --- life

    def receive(self, what: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(what)
        else:
            what()

    def may_be_hit(self) -> bool:
        world, weather = self.world, self.history.weather
        if world.strikes(weather.crash, "a client crashes"):
            world.note(f"{self.name} crashes")
            self.alive = False
            self._inbox.clear()
            self.on_crash()
            return True
        if world.strikes(weather.freeze, "a client freezes") and not self.frozen:
            self.frozen = True
            world.after(world.chance.delay(30.0), self.thaw)
        return False

    def on_crash(self) -> None:
        """For who is started again."""

    def thaw(self) -> None:
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for what in inbox:
            self.receive(what)

    # --- effects

    def perform_at_once(self, effect: Effect) -> bool:
        return False

    def perform(self, effect: Effect, answer: Answered) -> None:
        meta = self.meta
        match effect:
            case ReadNode(path=path, fresh=fresh):
                meta.read(self, path, fresh, answer)
            case ReplaceNode(path=path, value=value, version=version):
                meta.write(self, path, lambda: meta.put(path, value, version), answer)
            case CreateNode(path=path, value=value):
                meta.write(self, path, lambda: meta.create(path, value, None), answer)
            case DeleteNode(path=path, version=version):
                meta.write(self, path, lambda: meta.delete(path, version), answer)
            case ListNodes(path=path):
                meta.list(self, path, answer)
            case Pause(seconds=seconds):
                self.world.after(seconds * 1000, lambda: self.receive(lambda: answer(None, None)))
            case _:
                raise AssertionError(effect)

    def run(self, procedure: Procedure[Any], done: Answered) -> None:
        Task(self, procedure, done).resume(None, None)


# --- editors


class Editor(ConfigClient):
    def __init__(self, history: ConfigHistory, name: str) -> None:
        super().__init__(history, name)
        self.is_busy = False

    def edit(self, *, is_last: bool = False, done: Callable[[], None] = lambda: None) -> None:
        if not self.alive or self.frozen:
            return
        history, chance = self.history, self.world.chance
        oracle = history.oracle
        token = self.token()
        kind = "set" if is_last else chance.pick(KINDS, "what is changed")
        newest = oracle.newest.version
        if_version, to = None, None
        procedure: Procedure[Document]
        stamp = Stamp(token, self.name, int(self.world.now_ms * 1000))
        if kind == "roll back" and newest > 1:
            to = 1 + int(chance.random() * (newest - 1))
            content = oracle.documents[to].content
            edit = Edit(token, lambda _: content, None, newest, to)
            procedure = roll_back(PATH, stamp, to, chance=self)
        else:
            if kind == "if version":
                if_version = max(newest - chance.pick((0, 1), "an older version is meant"), 0)
            edit = Edit(token, self._change(kind, is_last), if_version, newest)
            procedure = change_document(
                PATH, stamp, edit.change, chance=self, if_version=if_version
            )
        oracle.on_edit(edit)
        self.is_busy = True
        history.editors.append(self)

        def over(document: Document | None, error: DlogError | None) -> None:
            self.is_busy = False
            oracle.on_told(edit, document, error)
            done()

        self.run(procedure, over)

    def _change(self, kind: str, is_last: bool) -> Callable[[Content], Content]:
        history, chance = self.history, self.world.chance
        value: Any = history.next_value()
        if not is_last and chance.hits(history.weather.bad, "what is set is refused"):
            value = chance.pick((BAD, BREAKS), "how")
        part = PARTS[1] if value in (BAD, BREAKS) else chance.pick(PARTS, "the part")
        if is_last:  # whatever was refused goes
            return lambda content: {"a": {"x": value}, "b": {"x": 0}, "c": {"x": 0}}
        if kind == "nothing new":
            return lambda content: with_values(content, part, dict(content.get(part, {"y": 1})))
        if kind == "replace":
            return lambda content: {part: {"x": value}}
        if kind == "unset":
            return lambda content: with_values(content, part, {"y": value}, ("x",))
        return lambda content: with_values(content, part, {"x": value})


KINDS = ("set", "set", "set", "replace", "unset", "if version", "roll back", "nothing new")


# --- followers


class SimPart:
    """Counts who touches it, and refuses what it cannot be."""

    def __init__(self, follower: Follower, name: str) -> None:
        self.name = name
        self.now: Any = None
        self._follower = follower

    def prepare(self, content: Mapping[str, Any] | None) -> Ready:
        value = None if content is None else dict(content)
        self._follower.oracle.on_prepare(self._follower, self.name, value)
        if value is not None and value.get("x") == BAD:
            raise ConfigError("x cannot be that")

        def put() -> None:
            self.now = value
            if value is not None and value.get("x") == BREAKS:
                raise RuntimeError("a defect of this part")

        return Ready(value, put)


class Follower(ConfigClient):
    def __init__(self, history: ConfigHistory, name: str) -> None:
        super().__init__(history, name)
        self.oracle = history.oracle
        self.parts = [SimPart(self, part) for part in PARTS]
        self.seen_version = 0
        self.news = 0  # versions that it took or refused
        self.before: Content = {}
        self.told = False
        self.fault = ""
        self.is_begun = False
        self._armed = False
        self._waits: Answered | None = None
        self._serial = 0
        self.core = Following(NodeSource(PATH), tuple(self.parts))
        self.is_begun = True

    def start(self) -> None:
        going = follow(self.core, PATH, poll_ms=POLL_MS, chance=self, heard=self.heard)
        self.run(going, self._ended)

    def _ended(self, _: Any, error: DlogError | None) -> None:
        raise AssertionError(f"it follows for ever: {error}")

    def heard(self, event: Taken | Refused | None) -> None:
        self.oracle.on_heard(self, event)

    def on_crash(self) -> None:
        self.history.restart(self)

    def perform(self, effect: Effect, answer: Answered) -> None:
        self.oracle.look_at(self)
        if isinstance(effect, UntilTold):
            self._until_told(effect.timeout_ms, answer)
            return
        if not self._armed:
            self._arm()
        super().perform(effect, answer)

    # --- one watch, which may be lost

    def _arm(self) -> None:
        self._armed = True
        self.meta.watch(PATH, lambda: self.world.after(0.1, lambda: self.receive(self._on_hint)))

    def _on_hint(self) -> None:
        self.told = True
        self._arm()
        self._wake(self._serial, True)

    def _until_told(self, timeout_ms: float, answer: Answered) -> None:
        if self.told:
            self.told = False
            self.world.after(0.0, lambda: self.receive(lambda: answer(True, None)))
            return
        self._serial += 1
        serial = self._serial
        self._waits = answer
        self.world.after(timeout_ms, lambda: self.receive(lambda: self._wake(serial, False)))

    def _wake(self, serial: int, told: bool) -> None:
        answer = self._waits
        if answer is None or serial != self._serial:
            return
        self._waits = None
        if told:
            self.told = False
        else:
            self._arm()  # it may have been lost
        answer(told, None)


# --- a history


class ConfigHistory:
    def __init__(self, world: World, weather: ConfigWeather) -> None:
        self.world = world
        self.weather = weather
        self.meta = SimMeta(world, weather.meta)
        self.oracle = ConfigOracle(world, self.meta)
        self.followers: dict[str, Follower] = {}
        self.editors: list[Editor] = []
        self._values = 0

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def run(self) -> None:
        world, weather = self.world, self.weather
        chance = world.chance
        for i in range(weather.followers):
            self._start(f"f{i}")
        for i in range(weather.editors):
            for _ in range(weather.changes):
                editor = Editor(self, f"e{i}")  # whose process may die with each of them
                world.after(chance.random() * SPAN_MS, editor.edit)
        world.run(until_ms=SPAN_MS)
        self._end_faults()
        self._make_the_last()
        last_ms = world.now_ms
        world.run(until_ms=last_ms + IN_FORCE_MS * self.weather.slow**0.5)
        for follower in self.followers.values():
            self.oracle.check_reached(follower)
            self.oracle.look_at(follower)
        self.oracle.check_end()

    def _start(self, name: str) -> None:
        follower = self.followers[name] = Follower(self, name)
        follower.start()

    def restart(self, follower: Follower) -> None:
        if not self.world.is_calm:
            self.world.after(
                1.0 + self.world.chance.delay(10.0), lambda: self._start(follower.name)
            )

    def _end_faults(self) -> None:
        self.world.is_calm = True
        self.meta.heal()
        for name, follower in list(self.followers.items()):
            if not follower.alive:
                self._start(name)
            elif follower.frozen:
                follower.thaw()
        for editor in self.editors:
            editor.thaw()
        self.world.run(
            until_ms=self.world.now_ms + EDIT_MS,
            done=lambda: not any(each.is_busy and each.alive for each in self.editors),
        )
        # What is late arrives.
        self.world.run(until_ms=self.world.now_ms + LATE_MS)

    def _make_the_last(self) -> None:
        """Valid, by an editor that nothing befalls."""
        done: list[bool] = []
        Editor(self, "last").edit(is_last=True, done=lambda: done.append(True))
        self.world.run(until_ms=self.world.now_ms + EDIT_MS, done=lambda: bool(done))
        require(bool(done), REACHED, "a calm change came to no end")


@contextmanager
def settings(weather: ConfigWeather) -> Iterator[None]:
    before = limits.CONFIG_HISTORY_MAX
    limits.CONFIG_HISTORY_MAX = weather.history_max
    try:
        yield
    finally:
        limits.CONFIG_HISTORY_MAX = before


def run_config_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_config_weather(chance)
    if fixed:
        weather = weather.fixed(**fixed)
    with settings(weather):
        ConfigHistory(world, weather).run()
    return world

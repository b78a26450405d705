"""A simulated metadata store: versioned nodes with compare-and-set, requests and replies that get
lost, outages, stale plain reads, sessions that end, watches that do not wake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    NotFound,
    Outcome,
    Timeout,
    Unavailable,
)
from dlog.meta.store import Versioned
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.clients import Answered, SimClient

_Node = tuple[bytes, int]
Audit = Callable[[str, bytes], None]


class SimMeta:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[str, _Node] = {}
        self.audit: Audit = lambda path, value: None  # hears every write that was applied
        self._owners: dict[str, SimClient] = {}
        self._past: dict[str, list[tuple[int, _Node | None]]] = {}
        self._serial = 0
        self._down = False
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        if world.weather.meta_outages:
            world.after(world.delay(100.0), self._go_down)

    def _go_down(self) -> None:
        if not self.world.is_calm:
            self.world.note("the metadata store is away")
            self._down = True
            self.world.after(self.world.delay(60.0), self._come_up)

    def _come_up(self) -> None:
        self._down = False
        if not self.world.is_calm:
            self.world.after(self.world.delay(300.0), self._go_down)

    def heal(self) -> None:
        self._down = False

    # --- the tree

    def put(self, path: str, value: bytes, version: int) -> int:
        node = self.nodes.get(path)
        if node is None:
            raise NotFound(f"no node {path}", path=path)
        if node[1] != version:
            raise Conflict(f"{path} is at version {node[1]}, not {version}", path=path)
        return self._set(path, value)

    def create(self, path: str, value: bytes, owner: SimClient | None) -> int:
        if path in self.nodes:
            raise AlreadyExists(f"there is a node {path}", path=path)
        if owner is not None:
            self._owners[path] = owner
        return self._set(path, value)

    def delete(self, path: str, version: int) -> None:
        node = self.nodes.get(path)
        if node is None:
            raise NotFound(f"no node {path}", path=path)
        if node[1] != version:
            raise Conflict(f"{path} is at version {node[1]}, not {version}", path=path)
        self._drop(path)

    def expire(self, client: SimClient) -> None:
        """The session of a client ends; what it knows of that is its own affair."""
        for path in [path for path, owner in self._owners.items() if owner is client]:
            self._drop(path)

    def _set(self, path: str, value: bytes) -> int:
        self._serial += 1
        self.nodes[path] = (value, self._serial)
        self._remember(path, self.nodes[path])
        self.audit(path, value)
        self._wake(path)
        return self._serial

    def _drop(self, path: str) -> None:
        self._serial += 1
        del self.nodes[path]
        self._owners.pop(path, None)
        self._remember(path, None)
        self._wake(path)

    def _remember(self, path: str, node: _Node | None) -> None:
        self._past.setdefault(path, []).append((self._serial, node))

    def _as_of(self, path: str, serial: int) -> _Node | None:
        past = self._past.get(path, [])
        return next((node for at, node in reversed(past) if at <= serial), None)

    # --- requests

    def write(self, client: SimClient, apply: Callable[[], Any], answer: Answered) -> None:
        world, weather = self.world, self.world.weather

        def arrive() -> None:
            if self._down or world.strikes(weather.meta_refused):
                self._reply(client, answer, None, Unavailable("the metadata store is away"))
            elif world.strikes(weather.meta_request_lost):
                world.mark("request lost")
                self._reply(client, answer, None, Timeout("no reply in time"))
            elif world.strikes(weather.meta_late):
                world.mark("late write")
                world.after(world.delay(30.0), lambda: _try(apply))
                self._reply(client, answer, None, Timeout("no reply in time"))
            else:
                value, error = _try(apply)
                if world.strikes(weather.meta_reply_lost):
                    world.mark("reply lost")
                    value, error = None, Timeout("no reply in time")
                self._reply(client, answer, value, error)

        world.after(world.delay(client.meta_ms), arrive)

    def read(self, client: SimClient, path: str, fresh: bool, answer: Answered) -> None:
        world = self.world

        def arrive() -> None:
            if fresh:
                client.synced = self._serial
            # A plain read may be as old as our last sync, never older.
            at = world.chance.randint(client.synced, self._serial)
            node = self._as_of(path, at)
            if node is None:
                self._answer_read(client, answer, None, NotFound(f"no node {path}", path=path))
            else:
                self._answer_read(client, answer, Versioned(*node), None)

        world.after(world.delay(client.meta_ms), arrive)

    def list(self, client: SimClient, path: str, answer: Answered) -> None:
        def arrive() -> None:
            below = path + "/"
            found = {each[len(below) :] for each in self.nodes if each.startswith(below)}
            names = sorted({each.split("/")[0] for each in found})
            self._answer_read(client, answer, names, None)

        self.world.after(self.world.delay(client.meta_ms), arrive)

    def _answer_read(
        self, client: SimClient, answer: Answered, value: Any, error: DlogError | None
    ) -> None:
        world, weather = self.world, self.world.weather
        if self._down or world.strikes(weather.meta_refused):
            value, error = None, Unavailable("the metadata store is away")
        elif world.strikes(weather.meta_request_lost):
            value, error = None, Timeout("no reply in time")
        elif world.strikes(weather.meta_reply_lost):
            value, error = None, Timeout("no reply in time", outcome=Outcome.NOT_HAPPENED)
        self._reply(client, answer, value, error)

    def _reply(
        self, client: SimClient, answer: Answered, value: Any, error: DlogError | None
    ) -> None:
        client.after(self.world.delay(client.meta_ms), lambda: answer(value, error))

    # --- watches: hints, which may be lost

    def wait(self, client: SimClient, path: str, timeout_ms: float, answer: Answered) -> None:
        once = _once(client, answer)
        self.watch(path, lambda: client.after(self.world.delay(client.meta_ms), once))
        client.after(timeout_ms, once)

    def watch(self, path: str, call: Callable[[], None]) -> None:
        self._watchers.setdefault(path, []).append(call)

    def _wake(self, path: str) -> None:
        for call in self._watchers.pop(path, ()):
            if not self.world.strikes(self.world.weather.watches_lost):
                call()


def _try(apply: Callable[[], Any]) -> tuple[Any, DlogError | None]:
    try:
        return apply(), None
    except DlogError as error:
        return None, error


def _once(client: SimClient, answer: Answered) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            answer(True, None)

    return call

"""A simulated metadata store: versioned nodes with compare-and-set, and all that its waist allows.

Requests get lost on their way, replies on theirs; a write may arrive after its time-out was told.
The store is away, or its leader pauses and then does everything at once. Plain reads are as old as
the client's last sync, each as it happens; listings are put together from several moments. Sessions
end while their clients sleep, or behind their backs. Watches are late, lost or doubled. A stranger
stores nodes again as they are, which costs others their compare-and-set.

Whoever knows the truth listens at `audit`; a client is whatever has a name and can be reached.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    LeaseLost,
    NotFound,
    Outcome,
    Timeout,
    Unavailable,
)
from dlog.meta.store import Versioned
from dlog.testing.sim.world import World

TRAVEL_MIN_MS = 0.05  # so that whoever tries again moves time on
LATE_MS = 30.0

Answered = Callable[[Any, DlogError | None], None]
Audit = Callable[[str, bytes], None]


@dataclass(slots=True)
class MetaManners:
    """How the store of one history behaves. Rates are per request; 0 is off."""

    refused: float = 0.0
    request_lost: float = 0.0
    reply_lost: float = 0.0
    late: float = 0.0  # a write that arrives after its time-out was told
    outages: bool = False
    pauses: bool = False
    stale: float = 0.0  # a plain read, per read
    torn: float = 0.0  # a listing of several moments
    touched: float = 0.0  # somebody stores the node again, as it is, just before a write
    sessions_lost: bool = False  # of clients that sleep
    session_ends: float = 0.0  # behind a client's back, per request
    watch_lost: float = 0.0
    watch_late: float = 0.0
    watch_twice: float = 0.0


class MetaClient(Protocol):
    """Who asks. `synced` is the store's: what the client's plain reads are not older than."""

    name: str
    meta_ms: float
    synced: int

    def receive(self, what: Callable[[], None]) -> None:
        """Something reached it: lost when it is dead, kept while it is frozen."""
        ...


@dataclass(slots=True)
class _Node:
    value: bytes
    version: int
    owner: MetaClient | None = None


@dataclass(slots=True)
class _Past:
    """What stood at a path since when; a value of None: nothing."""

    since: list[int] = field(default_factory=list)
    nodes: list[tuple[bytes, int] | None] = field(default_factory=list)

    def at(self, serial: int) -> tuple[bytes, int] | None:
        index = bisect.bisect_right(self.since, serial)
        return self.nodes[index - 1] if index else None


class SimMeta:
    def __init__(self, world: World, manners: MetaManners | None = None) -> None:
        self.world = world
        self.manners = manners or MetaManners()
        self.audit: Audit = lambda path, value: None  # hears every write that was applied
        self._nodes: dict[str, _Node] = {}
        self._past: dict[str, _Past] = {}
        self._below: dict[str, list[str]] = {}  # all paths that ever were below one, oldest first
        self._serial = 0
        self._ended: set[MetaClient] = set()  # their sessions are over
        self.written_late: set[str] = set()  # nodes whose last write came behind its time-out
        self.is_away = False
        self._held: list[Callable[[], None]] | None = None  # what arrived while the leader pauses
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        if self.manners.outages:
            world.after(1.0 + world.chance.delay(100.0), self._go_away)
        if self.manners.pauses:
            world.after(1.0 + world.chance.delay(100.0), self._pause)

    # --- the truth

    def value(self, path: str) -> bytes | None:
        node = self._nodes.get(path)
        return None if node is None else node.value

    def paths(self) -> list[str]:
        return list(self._nodes)

    def below(self, path: str) -> list[str]:
        """The names of the nodes below a path, however deep."""
        return [each[len(path) + 1 :] for each in self._nodes if each.startswith(path + "/")]

    def value_at(self, path: str, version: int) -> bytes | None:
        """What was stored as this version, if anything ever was."""
        past = self._past.get(path)
        node = None if past is None else past.at(version)
        return None if node is None or node[1] != version else node[0]

    # --- outages and pauses

    def heal(self) -> None:
        self.is_away = False
        self._go_on()

    def _go_away(self) -> None:
        if not self.world.is_calm:
            self.world.note("the metadata store is away")
            self.world.mark("metadata outage")
            self.is_away = True
            self.world.after(self.world.chance.delay(60.0), self._come_back)

    def _come_back(self) -> None:
        self.is_away = False
        if not self.world.is_calm:
            self.world.after(1.0 + self.world.chance.delay(300.0), self._go_away)

    def _pause(self) -> None:
        if not self.world.is_calm and self._held is None:
            self.world.note("the leader of the metadata store pauses")
            self.world.mark("leader pause")
            self._held = []
            self.world.after(self.world.chance.delay(40.0), self._go_on)

    def _go_on(self) -> None:
        held, self._held = self._held, None
        for arrive in held or ():
            arrive()
        if held is not None and not self.world.is_calm:
            self.world.after(1.0 + self.world.chance.delay(300.0), self._pause)

    # --- the tree

    def put(self, path: str, value: bytes, version: int) -> int:
        self._find(path, version)
        return self._set(path, value)

    def create(self, path: str, value: bytes, owner: MetaClient | None) -> int:
        if path in self._nodes:
            raise AlreadyExists(f"there is a node {path}", path=path)
        if owner in self._ended:
            raise LeaseLost("the session is lost; it can own no node", path=path)
        return self._set(path, value, owner)

    def delete(self, path: str, version: int) -> None:
        self._find(path, version)
        self._drop(path)

    def expire(self, client: MetaClient) -> None:
        """The session of a client ends; what it knows of that is its own affair."""
        self._ended.add(client)
        for path in [path for path, node in self._nodes.items() if node.owner is client]:
            self._drop(path)

    def store(self, path: str, value: bytes) -> int:
        """Whatever stands there: by a scenario, or a stranger."""
        return self._set(path, value)

    def lose(self, path: str) -> None:
        """It is gone, and nobody deleted it."""
        self._drop(path)

    def _find(self, path: str, version: int) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NotFound(f"no node {path}", path=path)
        if node.version != version:
            raise Conflict(f"{path} is at version {node.version}, not {version}", path=path)
        return node

    def _set(self, path: str, value: bytes, owner: MetaClient | None = None) -> int:
        self._serial += 1
        self.written_late.discard(path)
        node = self._nodes.get(path)
        if node is None:
            self._nodes[path] = _Node(value, self._serial, owner)
        else:
            node.value, node.version = value, self._serial
        self._remember(path, (value, self._serial))
        self.audit(path, value)
        self._wake(path)
        return self._serial

    def _drop(self, path: str) -> None:
        self._serial += 1
        del self._nodes[path]
        self._remember(path, None)
        self._wake(path)

    def _remember(self, path: str, node: tuple[bytes, int] | None) -> None:
        past = self._past.get(path)
        if past is None:
            past = self._past[path] = _Past()
            above = path.rpartition("/")[0]
            while above:
                self._below.setdefault(above, []).append(path)
                above = above.rpartition("/")[0]
        past.since.append(self._serial)
        past.nodes.append(node)

    # --- requests

    def write(
        self, client: MetaClient, path: str, apply: Callable[[], Any], answer: Answered
    ) -> None:
        world, manners = self.world, self.manners

        def late() -> None:
            _, error = _try(apply)
            if error is None:
                self.written_late.add(path)

        def arrive() -> None:
            self._maybe_end_session(client)
            if self.is_away or world.strikes(manners.refused, "metadata: refused"):
                self._reply(client, answer, None, Unavailable("the metadata store is away"))
            elif world.strikes(manners.request_lost, "metadata: request lost"):
                self._reply(client, answer, None, Timeout("no reply in time"))
            elif world.strikes(manners.late, "metadata: late write"):
                world.after(TRAVEL_MIN_MS + world.chance.delay(LATE_MS), late)
                self._reply(client, answer, None, Timeout("no reply in time"))
            else:
                self._maybe_touch(path)
                value, error = _try(apply)
                if world.strikes(manners.reply_lost, "metadata: reply lost"):
                    value, error = None, Timeout("no reply in time")
                self._reply(client, answer, value, error)

        self._send(client, arrive)

    def read(self, client: MetaClient, path: str, fresh: bool, answer: Answered) -> None:
        def arrive() -> None:
            self._maybe_end_session(client)
            if fresh:
                client.synced = self._serial
            # A plain read may be as old as our last sync, never older.
            past = self._past.get(path)
            node = None if past is None else past.at(self._moment(client, "a read"))
            if node is None:
                self._answer_read(client, answer, None, NotFound(f"no node {path}", path=path))
            else:
                self._answer_read(client, answer, Versioned(*node), None)

        self._send(client, arrive)

    def list(self, client: MetaClient, path: str, answer: Answered) -> None:
        below = path + "/"

        def arrive() -> None:
            moment = self._moment(client, "a listing")
            torn = self.world.strikes(self.manners.torn, "metadata: torn listing")
            names = set()
            for each in self._below.get(path, ()):
                if torn:
                    moment = self._moment(client, "a part of a listing")
                if self._past[each].at(moment) is not None:
                    names.add(each[len(below) :].partition("/")[0])
            self._answer_read(client, answer, sorted(names), None)

        self._send(client, arrive)

    def _moment(self, client: MetaClient, what: str) -> int:
        """As of when a client is answered."""
        world = self.world
        stale = self.manners.stale
        if client.synced == self._serial or not stale:
            return self._serial
        if not world.strikes(stale, "metadata: stale read"):
            return self._serial
        back = int(world.chance.random() * (self._serial - client.synced + 1))
        if back and world.is_told:
            world.note(f"{client.name}: {what} is {back} changes old")
        return self._serial - back

    def _send(self, client: MetaClient, arrive: Callable[[], None]) -> None:
        def there() -> None:
            if self._held is None:
                arrive()
            else:
                self._held.append(arrive)

        self.world.after(TRAVEL_MIN_MS + self.world.chance.delay(client.meta_ms), there)

    def _answer_read(
        self, client: MetaClient, answer: Answered, value: Any, error: DlogError | None
    ) -> None:
        world, manners = self.world, self.manners
        if self.is_away or (
            manners.refused and world.strikes(manners.refused, "metadata: refused")
        ):
            value, error = None, Unavailable("the metadata store is away")
        elif not (manners.request_lost or manners.reply_lost):
            pass
        elif world.strikes(manners.request_lost, "metadata: request lost") or world.strikes(
            manners.reply_lost, "metadata: reply lost"
        ):
            value, error = None, Timeout("no reply in time", outcome=Outcome.NOT_HAPPENED)
        self._reply(client, answer, value, error)

    def _reply(
        self, client: MetaClient, answer: Answered, value: Any, error: DlogError | None
    ) -> None:
        told = partial(answer, value, error)
        self.world.after(self.world.chance.delay(client.meta_ms), partial(client.receive, told))

    def _maybe_touch(self, path: str) -> None:
        node = self._nodes.get(path)
        if node is not None and self.world.strikes(
            self.manners.touched, "metadata: a stranger stores a node again"
        ):
            self._set(path, node.value)

    def _maybe_end_session(self, client: MetaClient) -> None:
        rate = self.manners.session_ends
        if rate and self.world.strikes(rate, "metadata: a session ends unnoticed"):
            self.expire(client)

    # --- watches: hints, which may be lost

    def wait(self, client: MetaClient, path: str, timeout_ms: float, answer: Answered) -> None:
        called = False

        def once() -> None:
            nonlocal called
            if not called:
                called = True
                answer(True, None)

        def wake() -> None:
            self.world.after(self.world.chance.delay(client.meta_ms), lambda: client.receive(once))

        self.watch(path, wake)
        self.world.after(timeout_ms, lambda: client.receive(once))

    def watch(self, path: str, call: Callable[[], None]) -> None:
        self._watchers.setdefault(path, []).append(call)

    def _wake(self, path: str) -> None:
        world, manners = self.world, self.manners
        for call in self._watchers.pop(path, ()):
            if world.strikes(manners.watch_lost, "metadata: watch lost"):
                continue
            if world.strikes(manners.watch_late, "metadata: watch late"):
                world.after(world.chance.delay(LATE_MS), call)
                continue
            call()
            if world.strikes(manners.watch_twice, "metadata: watch doubled"):
                call()


def _try(apply: Callable[[], Any]) -> tuple[Any, DlogError | None]:
    try:
        return apply(), None
    except DlogError as error:
        return None, error

"""Ledger metadata at its waist: what `dlog.ledger.bookkeeper.ledger_nodes` offers, as values.

Versions of each ledger, changed by compare-and-set. The store is one place that decides; what is
between it and a client loses replies (of what was applied, was not, or will be when the client has
given up already), refuses, takes its time, answers reads with an old version, and forgets watches.
A foreign actor may put what it likes: it has no client, and is not tried again.

A client's calls are the loops of the real driver: try, and if somebody was faster or a reply was
lost, look again and ask the change again. They give up after a while, and then say UNKNOWN if any
try may have been applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    NotFound,
    Outcome,
    Retry,
    Timeout,
    Unavailable,
)
from dlog.ledger.bookkeeper.ledger_nodes import Change, StoredLedger
from dlog.testing.sim.process import Machine
from dlog.testing.sim.world import World
from dlog.wire.ledger_metadata import LedgerMetadata

GIVES_UP_MS = 20.0  # about so long a client waits for a reply that was lost
BACKOFF_MS, BACKOFF_MS_MAX = 4.0, 500.0
_FATES = ("was not applied", "was applied", "is applied late")

Told = Callable[[StoredLedger | None, DlogError | None], None]


@dataclass(slots=True)
class NodeManners:
    """How the metadata store behaves. Rates are per request."""

    travel_ms: float = 0.3
    away: float = 0.0
    lost: float = 0.0  # replies to changes
    stale: float = 0.0  # reads that are not fresh
    stale_by: int = 2
    slow: float = 0.0
    slow_ms: float = 100.0
    watch_lost: float = 0.0
    tries_max: int = 30  # of one call


class NodeAudit(Protocol):
    """Who watches what becomes of metadata."""

    def on_stored(
        self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata
    ) -> None: ...

    def on_deleted(self, ledger_id: int) -> None: ...


@dataclass(slots=True)
class _Node:
    versions: list[LedgerMetadata]
    is_deleted: bool = False
    watches: list[Callable[[], None]] = field(default_factory=list)


class SimLedgerNodes:
    def __init__(self, world: World, manners: NodeManners | None = None) -> None:
        self.manners = manners or NodeManners()
        self.audit: NodeAudit | None = None
        self._world = world
        self._nodes: dict[int, _Node] = {}
        self._next_id = 0
        self._paused_until_ms = 0.0

    # --- the truth, and who changes it without asking

    def ids(self) -> list[int]:
        """Of all that are there."""
        return [ledger_id for ledger_id, node in self._nodes.items() if not node.is_deleted]

    @property
    def last_id(self) -> int:
        """The highest that was ever given."""
        return self._next_id - 1

    def truth(self, ledger_id: int) -> LedgerMetadata | None:
        node = self._nodes.get(ledger_id)
        return None if node is None or node.is_deleted else node.versions[-1]

    def put(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """By a foreign actor, which changed what stands there now."""
        self._store(ledger_id, self._nodes[ledger_id], metadata)

    def pause(self, pause_ms: float) -> None:
        """Nobody leads, and nothing is answered."""
        self._world.note(f"metadata is paused for {pause_ms:.0f} ms")
        self._paused_until_ms = self._world.now_ms + pause_ms

    def heal(self) -> None:
        self._paused_until_ms = 0.0

    # --- what clients ask

    def create(self, client: Machine, metadata: LedgerMetadata, told: Told) -> None:
        """An id that a lost reply leaves in doubt is recognised by the creator token."""
        token = int(self._world.chance.token(), 16)
        metadata = replace(metadata, creator_token=token)
        tries = self._tries(client, told)
        drawn: int | None = None

        def attempt() -> None:
            nonlocal drawn
            if drawn is None:
                drawn, self._next_id = self._next_id, self._next_id + 1
            ledger_id = drawn
            self._write(client, lambda: self._make(ledger_id, metadata), answered)

        def answered(version: int | None, error: DlogError | None) -> None:
            if isinstance(error, AlreadyExists):
                self._ask(client, lambda: self._look(drawn, 0), compared)  # type: ignore[arg-type]
            elif error is not None:
                tries.another(error, attempt)
            else:
                told(StoredLedger(drawn, metadata, 0), None)  # type: ignore[arg-type]

        def compared(stored: StoredLedger | None, error: DlogError | None) -> None:
            nonlocal drawn
            if stored is not None and stored.metadata == metadata:
                told(stored, None)
                return
            if not isinstance(error, (type(None), NotFound)):
                tries.another(error, attempt)
                return
            drawn = None
            attempt()

        attempt()

    def read(self, client: Machine, ledger_id: int, told: Told, *, fresh: bool) -> None:
        manners, world = self.manners, self._world
        if world.strikes(manners.away, "metadata is away"):
            self._later(client, lambda: told(None, Unavailable("metadata is away")))
            return

        def look() -> StoredLedger:
            old = 0
            if not fresh and world.strikes(manners.stale, "an old version is read"):
                old = 1 + world.chance.randrange(manners.stale_by)
            return self._look(ledger_id, old)

        self._ask(client, look, told)

    def change(self, client: Machine, known: StoredLedger, change: Change, told: Told) -> None:
        ledger_id = known.ledger_id
        tries = self._tries(client, told)

        def attempt(stored: StoredLedger) -> None:
            try:
                wanted = change(stored.metadata)
            except DlogError as error:
                tries.another(error, look)
                return
            if wanted is None:
                told(stored, None)
                return

            def answered(version: int | None, error: DlogError | None) -> None:
                if error is not None or version is None:
                    assert error is not None
                    tries.another(error, look)
                else:
                    told(StoredLedger(ledger_id, wanted, version), None)

            self._write(client, lambda: self._swap(ledger_id, wanted, stored.version), answered)

        def look() -> None:
            self.read(client, ledger_id, looked, fresh=True)

        def looked(stored: StoredLedger | None, error: DlogError | None) -> None:
            if stored is None:
                assert error is not None
                tries.another(error, look)
            else:
                attempt(stored)

        attempt(known)

    def delete(self, client: Machine, ledger_id: int, told: Told) -> None:
        """Of a missing ledger: nothing."""
        tries = self._tries(client, told)

        def attempt() -> None:
            self._write(client, lambda: self._remove(ledger_id), answered)

        def answered(version: int | None, error: DlogError | None) -> None:
            if error is None or isinstance(error, NotFound):
                told(None, None)
            else:
                tries.another(error, attempt)

        attempt()

    def watch(self, client: Machine, ledger_id: int, fire: Callable[[], None]) -> None:
        """One-shot. It tells nothing of what changed before."""

        def arrive() -> None:
            node = self._nodes.get(ledger_id)
            if node is not None and not node.is_deleted:
                node.watches.append(lambda: self._later(client, fire))

        self._arrive(self._travel(), arrive)

    # --- inside

    def _look(self, ledger_id: int, old: int) -> StoredLedger:
        node = self._there(ledger_id)
        version = max(0, len(node.versions) - 1 - old)
        return StoredLedger(ledger_id, node.versions[version], version)

    def _make(self, ledger_id: int, metadata: LedgerMetadata) -> int:
        if ledger_id in self._nodes:
            raise AlreadyExists(f"there is a ledger {ledger_id}", ledger_id=ledger_id)
        self._nodes[ledger_id] = _Node([metadata])
        self._world.note(f"ledger {ledger_id} is made on {', '.join(_ensemble(metadata))}")
        if self.audit is not None:
            self.audit.on_stored(ledger_id, None, metadata)
        return 0

    def _swap(self, ledger_id: int, wanted: LedgerMetadata, version: int) -> int:
        node = self._there(ledger_id)
        if version != len(node.versions) - 1:
            raise Conflict(f"ledger {ledger_id} is at another version than {version}")
        self._store(ledger_id, node, wanted)
        return version + 1

    def _store(self, ledger_id: int, node: _Node, wanted: LedgerMetadata) -> None:
        before = node.versions[-1]
        node.versions.append(wanted)
        if self._world.is_told:
            where = "; ".join(
                f"{each.first_entry_id}: {' '.join(each.ensemble)}" for each in wanted.fragments
            )
            end = f" at {wanted.last_entry_id}" if wanted.last_entry_id >= 0 else ""
            self._world.note(f"ledger {ledger_id} is {wanted.state.name}{end} ({where})")
        if self.audit is not None:
            self.audit.on_stored(ledger_id, before, wanted)
        self._fire(node)

    def _remove(self, ledger_id: int) -> int:
        node = self._there(ledger_id)
        node.is_deleted = True
        self._world.note(f"ledger {ledger_id} is deleted")
        if self.audit is not None:
            self.audit.on_deleted(ledger_id)
        self._fire(node)
        return 0

    def _there(self, ledger_id: int) -> _Node:
        node = self._nodes.get(ledger_id)
        if node is None or node.is_deleted:
            raise NotFound(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
        return node

    def _fire(self, node: _Node) -> None:
        watches, node.watches = node.watches, []
        for fire in watches:
            if not self._world.strikes(self.manners.watch_lost, "a watch is lost"):
                fire()

    def _write(
        self,
        client: Machine,
        apply: Callable[[], int],
        answered: Callable[[int | None, DlogError | None], None],
    ) -> None:
        """One try of a change, and what becomes of its reply."""
        world, manners = self._world, self.manners
        if world.strikes(manners.away, "metadata is away"):
            self._later(client, lambda: answered(None, Unavailable("metadata is away")))
            return
        if not world.strikes(manners.lost, "a metadata reply is lost"):
            self._ask(client, apply, answered)
            return
        fate = world.chance.pick(_FATES, "what was asked")
        gives_up_ms = world.chance.delay(GIVES_UP_MS)
        unknown = Timeout("no answer of the metadata store")
        client.after(gives_up_ms, lambda: answered(None, unknown))
        if fate == _FATES[0]:
            return

        def arrive() -> None:
            try:
                apply()
            except DlogError:
                pass  # nobody is told

        late_ms = gives_up_ms + world.chance.delay(GIVES_UP_MS) if fate == _FATES[2] else 0.0
        self._arrive(late_ms + self._travel(), arrive)

    def _ask(self, client: Machine, do: Callable[[], Any], told: Callable[..., None]) -> None:
        def arrive() -> None:
            value: Any = None
            error: DlogError | None = None
            try:
                value = do()
            except DlogError as failure:
                error = failure
            self._later(client, lambda: told(value, error))

        self._arrive(self._travel(), arrive)

    def _arrive(self, travel_ms: float, what: Callable[[], None]) -> None:
        def arrive() -> None:
            if self._world.now_ms < self._paused_until_ms:
                self._world.at(self._paused_until_ms, arrive)
            else:
                what()

        self._world.after(travel_ms, arrive)

    def _later(self, client: Machine, what: Callable[[], None]) -> None:
        client.after(self._travel(), what)

    def _travel(self) -> float:
        world, manners = self._world, self.manners
        mean_ms = manners.travel_ms
        if world.strikes(manners.slow, "metadata is slow"):
            mean_ms = manners.slow_ms
        return world.chance.delay(mean_ms)

    def _tries(self, client: Machine, told: Told) -> _Tries:
        return _Tries(self._world, client, told, self.manners.tries_max)


class _Tries:
    """How often one call is tried, and what its error says."""

    def __init__(self, world: World, client: Machine, told: Told, tries_max: int) -> None:
        self._world = world
        self._client = client
        self._told = told
        self._left = tries_max
        self._count = 0
        self._maybe_applied = False

    def another(self, error: DlogError, again: Callable[[], None]) -> None:
        self._count += 1
        self._left -= 1
        self._maybe_applied |= error.outcome is Outcome.UNKNOWN
        if error.retry is not Retry.NOW or self._left <= 0:
            if self._maybe_applied:
                error.outcome = Outcome.UNKNOWN
            self._told(None, error)
            return
        backoff_ms = min(BACKOFF_MS * 2**self._count, BACKOFF_MS_MAX)
        self._client.after(backoff_ms * self._world.chance.fraction(), again)


def _ensemble(metadata: LedgerMetadata) -> tuple[str, ...]:
    return metadata.fragments[-1].ensemble

"""What the simulated drivers of one client stand in: its process, its connections, metadata, and
who watches what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd
from dlog.ledger.store import ClosedLedger
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.links import SimLink, SimLinks
from dlog.testing.sim.process import Machine, reach
from dlog.testing.sim.world import World
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.ledger_metadata import LedgerMetadata


class LedgerAudit(Protocol):
    """Hears what each client does and is told, at the moment of it."""

    def on_submit(self, ledger_id: int, entry_id: int, payload: bytes) -> None: ...

    def on_born(self, ledger_id: int) -> None: ...

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None: ...

    def on_published(self, ledger_id: int, last_entry: int) -> None: ...

    def on_own_close(self, ledger_id: int, closed: ClosedLedger) -> None: ...

    def on_found_end(self, ledger_id: int, began: LedgerMetadata, found: FoundEnd) -> None: ...

    def on_recovered(self, ledger_id: int, closed: ClosedLedger) -> None: ...

    def readable_now(self, ledger_id: int) -> int:
        """What whoever asks from now on must be told at least."""
        ...

    def on_readable(
        self, ledger_id: int, last_entry: int, *, is_closed: bool, at_least: int = -1
    ) -> None: ...

    def on_read(self, ledger_id: int, first_entry: int, payloads: Sequence[bytes]) -> None: ...


class NoAudit:
    """Nobody looks."""

    def on_submit(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        pass

    def on_born(self, ledger_id: int) -> None:
        pass

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_own_close(self, ledger_id: int, closed: ClosedLedger) -> None:
        pass

    def on_found_end(self, ledger_id: int, began: LedgerMetadata, found: FoundEnd) -> None:
        pass

    def on_recovered(self, ledger_id: int, closed: ClosedLedger) -> None:
        pass

    def readable_now(self, ledger_id: int) -> int:
        return -1

    def on_readable(
        self, ledger_id: int, last_entry: int, *, is_closed: bool, at_least: int = -1
    ) -> None:
        pass

    def on_read(self, ledger_id: int, first_entry: int, payloads: Sequence[bytes]) -> None:
        pass


@dataclass(slots=True, eq=False)
class Surroundings:
    world: World
    client: Machine
    links: SimLinks
    nodes: SimLedgerNodes
    writable: Callable[[], Sequence[str]]
    """As far as the client knows, in a fixed order."""
    all_bookies: Sequence[str]
    audit: LedgerAudit = field(default_factory=NoAudit)
    options: AppendOptions = field(default_factory=AppendOptions)
    policy_errs: float = 0.0
    habits: BookieHabits = field(default_factory=BookieHabits)
    fences_ahead: bool = True
    rising_lacs: bool = False
    """Its recoveries write back as the stock client does."""

    def reach(self, point: str, what: Callable[[], None]) -> None:
        reach(self.world, self.client, point, what)

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.client.after(delay_ms, what)

    def with_link(
        self, bookie_id: str, told: Callable[[SimLink | None], None], *, recovery: bool = False
    ) -> None:
        """At once if it is up."""
        link = self.links.now(bookie_id, recovery=recovery)
        if link is not None:
            told(link)
        else:
            self.links.get(bookie_id, told, recovery=recovery)

    @property
    def now_s(self) -> float:
        return self.world.now_ms / 1000

    def pick(self, excluded: AbstractSet[str]) -> str | None:
        """Advice, and now and then bad advice: nothing may rest on it."""
        world = self.world
        if world.strikes(self.policy_errs, "bad advice"):
            return world.chance.pick(self.all_bookies, "whom it names")
        if world.strikes(self.policy_errs, "no advice"):
            return None
        left = [each for each in self.writable() if each not in excluded]
        return world.chance.pick(left, "the bookie chosen") if left else None

    def choose(self, ensemble: Sequence[str], failed: AbstractSet[str]) -> str | None:
        return self.pick(failed | set(ensemble))


_KEYS: dict[tuple[DigestType, bytes], tuple[EntryDigest, bytes]] = {}


def keys_of(metadata: LedgerMetadata) -> tuple[EntryDigest, bytes]:
    """How its entries are checked, and what bookies compare. Made once: they say the same in every
    history."""
    assert metadata.digest_type is not None
    assert metadata.password is not None
    key = metadata.digest_type, metadata.password
    found = _KEYS.get(key)
    if found is None:
        found = _KEYS[key] = EntryDigest(*key), master_key(metadata.password)
    return found

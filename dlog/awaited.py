"""What waiting for an effect means, in words: the wait of each kind, where the core that asked has
nothing better to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dlog import effects
from dlog.clock import Clock
from dlog.effects import Effect
from dlog.meta.store import MetaStore, TellsSilence
from dlog.reason import ReasonCode, Wait, time_text

METADATA_EFFECTS = (
    effects.ReadNode,
    effects.CreateNode,
    effects.ReplaceNode,
    effects.DeleteNode,
    effects.ListNodes,
)
# Performed at once, or by other effects that are told themselves.
NEVER_AWAITED = (effects.Together, effects.SubmitEntry, effects.Release, effects.LetGo)


@dataclass(frozen=True, slots=True)
class Awaited:
    """An effect under way, and since when (monotonic)."""

    effect: Effect
    since_s: float


def wait_for(awaited: Awaited) -> Wait:
    effect = awaited.effect
    wait = effect.wait or _WAITS[type(effect)](effect)
    return wait.since(awaited.since_s)


def longest(awaited: Iterable[Awaited]) -> Wait | None:
    """Of all that is under way, what is waited for longest: of what began together, whatever comes
    first in the list of codes, where answers of the metadata store are the shortest."""
    first = min(awaited, key=lambda each: (each.since_s, _is_metadata(each)), default=None)
    return None if first is None else wait_for(first)


def metadata_away(store: MetaStore, clock: Clock) -> Wait | None:
    """That the metadata store gives no answer, and since when; None while it does."""
    since_s = store.silent_since_s if isinstance(store, TellsSilence) else None
    if since_s is None:
        return None
    away_s = max(clock.monotonic_s() - since_s, 0.0)
    return Wait(
        ReasonCode.METADATA_AWAY,
        f"the metadata store has not answered for {time_text(away_s)}",
        {"metadata_away_s": round(away_s, 3)},
        since_s,
    )


def _is_metadata(awaited: Awaited) -> bool:
    return isinstance(awaited.effect, METADATA_EFFECTS)


def _metadata(what: str) -> Callable[[Any], Wait]:
    def wait(effect: Any) -> Wait:
        return Wait(
            ReasonCode.METADATA,
            f"the metadata store is to {what} {effect.path}",
            {"path": effect.path},
        )

    return wait


def _ledger(code: ReasonCode, what: str) -> Callable[[Any], Wait]:
    def wait(effect: Any) -> Wait:
        ledger_id = effect.ledger_id
        return Wait(code, f"ledger {ledger_id} {what}", {"ledger_id": ledger_id})

    return wait


_WAITS: dict[type[Effect], Callable[[Any], Wait]] = {
    effects.ReadNode: _metadata("read"),
    effects.CreateNode: _metadata("create"),
    effects.ReplaceNode: _metadata("change"),
    effects.DeleteNode: _metadata("delete"),
    effects.ListNodes: _metadata("list what is below"),
    effects.WaitNode: lambda effect: Wait(
        ReasonCode.METADATA, f"{effect.path} is to change", {"path": effect.path}
    ),
    effects.CreateLedger: lambda effect: Wait(
        ReasonCode.LEDGER_CREATION,
        f"a new ledger on {effect.spec.ensemble} bookies is being made",
        {"ensemble": effect.spec.ensemble},
    ),
    effects.BirthLedger: _ledger(
        ReasonCode.LEDGER_CREATION, "is new, and every bookie of it is to take its first entry"
    ),
    effects.RecoverLedger: _ledger(ReasonCode.LEDGER_RECOVERY, "is being fenced and recovered"),
    effects.CloseLedger: _ledger(ReasonCode.LEDGER_CLOSE, "is being closed"),
    effects.DeleteLedger: _ledger(ReasonCode.LEDGER_STORE, "is being deleted"),
    effects.ReadEntries: _ledger(ReasonCode.READING, "is being read"),
    effects.Pause: lambda effect: Wait(
        ReasonCode.CONTENTION, "a short pause, before it is tried again", {}
    ),
    effects.Drained: _ledger(ReasonCode.UNCONFIRMED, "has entries that are not confirmed yet"),
    effects.LookAtLedger: _ledger(ReasonCode.METADATA, "is to be looked up"),
    effects.LastReadable: _ledger(ReasonCode.READING, "is asked how far it may be read"),
    effects.ReadRun: _ledger(ReasonCode.READING, "is being read"),
    effects.WaitPast: lambda effect: Wait(
        ReasonCode.AT_TAIL,
        f"all of ledger {effect.ledger_id} that may be read, up to entry {effect.last_entry}, was "
        "read",
        {"ledger_id": effect.ledger_id, "last_entry": effect.last_entry},
    ),
    effects.Deliver: lambda effect: Wait(
        ReasonCode.READ_AHEAD_FULL, "as much as may be was read ahead, and nobody takes it", {}
    ),
}

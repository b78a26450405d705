"""Why entries of an appender, or reads of a reader, are not through: decided from the state of
their cores. For people; no rule of the protocol looks here. No IO."""

from __future__ import annotations

from collections.abc import Collection

from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.entry_read import EntryRead
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.reason import Plain, ReasonCode, Wait, time_text


def why_appender(core: AppenderCore, quarantined: Collection[str]) -> Wait | None:
    """None when every bookie has what was put, or it is over."""
    if core.failure is not None or not core.is_busy:
        return None
    takers = [slot for slot in core.slots if slot.counts and not core.is_silent(slot)]
    needed = len(core.slots) if core.is_being_born else core.ack_quorum
    named = core.places.ensemble
    missing = tuple(
        bookie for place, bookie in enumerate(named) if place not in {s.place for s in takers}
    )
    changing = tuple(
        f"{slot.bookie_id} for {named[slot.place]}"
        for slot in core.slots
        if slot.bookie_id != named[slot.place]
    )
    evidence: dict[str, Plain] = {
        "ledger_id": core.ledger_id,
        "ensemble": named,
        "missing": missing,
        "needed": max(needed - len(takers), 0),
        "quarantined": tuple(sorted(set(named) & set(quarantined))),
    }
    if changing:
        evidence["changing"] = changing
    if core.places.meta_trouble is not None:
        evidence["metadata_error"] = core.places.meta_trouble.message
    slowest = _slowest(core)
    if slowest is not None:
        evidence["slowest"] = named[slowest.place]
        evidence["slowest_behind_entries"] = core.outbox.end - 1 - slowest.acked_to
        evidence["slowest_silent_ms"] = round(slowest.silent_ms)
    if len(takers) < needed:
        return _too_few(core, len(takers), needed, missing, changing, evidence)
    if slowest is None:
        return None
    behind = core.outbox.end - 1 - slowest.acked_to
    silent = "" if slowest.silent_ms == 0 else f", and silent for {_ms(slowest.silent_ms)}"
    return Wait(
        ReasonCode.BOOKIE_SLOW,
        f"the slowest bookie, {named[slowest.place]}, is {behind} entries behind{silent}",
        evidence,
    )


def _too_few(
    core: AppenderCore,
    takers: int,
    needed: int,
    missing: tuple[str, ...],
    changing: tuple[str, ...],
    evidence: dict[str, Plain],
) -> Wait:
    if core.places.change is not None:
        trouble = core.places.meta_trouble
        because = "" if trouble is None else f" ({trouble})"
        return Wait(
            ReasonCode.ENSEMBLE_CHANGE,
            f"metadata is to name {', '.join(changing) or 'other bookies'} for ledger "
            f"{core.ledger_id}, and does not yet{because}",
            evidence,
        )
    return Wait(
        ReasonCode.BOOKIES_AWAY,
        f"{needed} of {', '.join(core.places.ensemble)} have to take an entry of ledger "
        f"{core.ledger_id}, {takers} do; missing: {', '.join(missing)}",
        evidence,
    )


def _slowest(core: AppenderCore) -> Slot | None:
    """The one that is furthest behind, if one is."""
    last = core.outbox.end - 1
    behind = [slot for slot in core.slots if slot.state is State.LIVE and slot.acked_to < last] or [
        slot for slot in core.slots if slot.state is not State.LIVE
    ]
    return min(behind, key=lambda slot: (slot.acked_to, -slot.silent_ms), default=None)


def why_read(reads: Collection[EntryRead], now_s: float) -> Wait | None:
    """Of reads under way. None when nobody was asked so long that it means something."""
    if not reads:
        return None
    read = min(reads, key=lambda each: each.first_entry)
    failed = {bookie: answer.value for bookie, answer in read.failed.items()}
    silent = {bookie: now_s - ask.asked_at_s for bookie, ask in read.asking.items()}
    told = [f"{bookie}: {answer}" for bookie, answer in failed.items()]
    told += [f"{bookie}: no answer for {time_text(each_s)}" for bookie, each_s in silent.items()]
    if not told:
        return None
    entry = f"entry {read.first_entry} of ledger {read.ledger_id}"
    evidence: dict[str, Plain] = {
        "ledger_id": read.ledger_id,
        "entry_id": read.first_entry,
        "asked": tuple(told),
    }
    if not failed and not read.is_hedged:
        return Wait(ReasonCode.BOOKIE_SLOW, f"{', '.join(silent)} was asked for {entry}", evidence)
    evidence["missing"] = (*failed, *silent)
    return Wait(ReasonCode.BOOKIES_AWAY, f"nobody gave {entry} yet ({', '.join(told)})", evidence)


def _ms(milliseconds: float) -> str:
    return time_text(milliseconds / 1000)

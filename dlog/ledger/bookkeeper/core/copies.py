"""Copies of the same entries, compared: which of them is not what the others say.

A copy is *good* if its digest is right and it is the entry that was asked for. Good copies of one
entry have one payload: how far the writer had confirmed stands in front of it, and a recovery that
wrote it again put another number there. If two good copies have different payloads, nobody can say
from here which of them was acknowledged: all are named, none can be mended. An answer that says
nothing about the copy (no connection, too busy) makes it *not checked*, and never good or bad.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from dlog.errors import Conflict, Unsupported, check
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.ledger.copies import CopyFault, Fault, KeptAt, Lost
from dlog.wire import Buffer
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

_MISSING: Final = frozenset({Answer.NO_ENTRY, Answer.NO_LEDGER})
# It has something there and cannot give it. Asked twice before it counts.
_UNREADABLE: Final = frozenset({Answer.IO_FAILED})


class Copy(NamedTuple):
    """What one bookie said to one entry. `payload_print` is there exactly when it is good."""

    answer: Answer
    payload_print: bytes | None = None
    payload_bytes: int = 0
    told: str = ""


def print_of(payload: Buffer) -> bytes:
    """Two payloads with the same print are the same."""
    return hashlib.blake2b(payload, digest_size=20).digest()


def fault_of(copy: Copy) -> Fault | None:
    if copy.payload_print is not None:
        return None
    if copy.answer in _MISSING:
        return Fault.MISSING
    if copy.answer in _UNREADABLE or copy.answer is Answer.BAD_DIGEST:
        return Fault.DAMAGED
    return Fault.NOT_CHECKED


def compare(
    entries: Sequence[int],
    holders: Mapping[int, Sequence[str]],
    copies: Mapping[str, Mapping[int, Copy]],
) -> list[CopyFault | Lost]:
    """`entries` follow each other; `holders` keep each; `copies` is what each of them said."""
    found: list[CopyFault | Lost] = []
    for entry_id in entries:
        said = {keeper: copies[keeper][entry_id] for keeper in holders[entry_id]}
        found += _of_entry(entry_id, said)
    return _joined(found)


def _of_entry(entry_id: int, said: Mapping[str, Copy]) -> list[CopyFault | Lost]:
    found: list[CopyFault | Lost] = []
    prints = {copy.payload_print for copy in said.values() if copy.payload_print is not None}
    for keeper, copy in said.items():
        fault = fault_of(copy)
        if fault is not None:
            mend = len(prints) == 1 and fault is not Fault.NOT_CHECKED
            told = copy.told or copy.answer.value
            found.append(CopyFault(keeper, entry_id, entry_id, fault, told, mend))
        elif len(prints) > 1:
            others = [
                other for other, its in said.items() if its.payload_print != copy.payload_print
            ]
            told = f"another payload than at {', '.join(others)}, each with a right digest"
            found.append(CopyFault(keeper, entry_id, entry_id, Fault.DIFFERS, told))
    if not prints:
        is_certain = all(fault_of(copy) is not Fault.NOT_CHECKED for copy in said.values())
        found.append(Lost(entry_id, entry_id, is_certain))
    return found


def _joined(found: list[CopyFault | Lost]) -> list[CopyFault | Lost]:
    """What is alike and follows each other, as one."""
    runs: dict[tuple[object, ...], CopyFault | Lost] = {}
    done: list[CopyFault | Lost] = []
    for each in found:
        key: tuple[object, ...]
        if isinstance(each, Lost):
            key = (each.is_certain,)
        else:
            key = (each.keeper, each.fault, each.told, each.can_be_mended)
        run = runs.get(key)
        if run is not None and run.last_entry == each.first_entry - 1:
            runs[key] = _longer(run, each.last_entry)
        else:
            if run is not None:
                done.append(run)
            runs[key] = each
    done += runs.values()
    return sorted(done, key=lambda each: each.first_entry)


def _longer(run: CopyFault | Lost, last_entry: int) -> CopyFault | Lost:
    if isinstance(run, Lost):
        return Lost(run.first_entry, last_entry, run.is_certain)
    return CopyFault(
        run.keeper, run.first_entry, last_entry, run.fault, run.told, run.can_be_mended
    )


# --- where they should be


def kept_at(metadata: LedgerMetadata, here: frozenset[str]) -> tuple[KeptAt, ...]:
    """By fragment. `here` are the bookies that are registered now."""
    is_closed = metadata.state is LedgerState.CLOSED
    ends = [after.first_entry_id - 1 for _, after in pairwise(metadata.fragments)]
    ends.append(metadata.last_entry_id if is_closed else -1)
    return tuple(
        KeptAt(
            fragment.first_entry_id,
            last_entry,
            fragment.ensemble,
            tuple(bookie for bookie in fragment.ensemble if bookie not in here),
        )
        for fragment, last_entry in zip(metadata.fragments, ends, strict=True)
        if not is_closed or fragment.first_entry_id <= last_entry
    )


def holders_of(metadata: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    ensemble = metadata.fragment_of(entry_id).ensemble
    return tuple(ensemble[place] for place in write_set(metadata, entry_id))


def moved(
    metadata: LedgerMetadata, *, ledger_id: int, first_entry: int, lost: str, to: str
) -> LedgerMetadata | None:
    """In the fragment that begins at `first_entry`, `to` in the place of `lost`: every entry of the
    fragment stands there by now. None if `lost` is not in it any more. Of closed ledgers only:
    those of an open one may still get entries."""
    if metadata.state is not LedgerState.CLOSED:
        raise Unsupported(f"ledger {ledger_id} is not closed", ledger_id=ledger_id)
    at = [fragment.first_entry_id for fragment in metadata.fragments]
    if first_entry not in at:
        raise Conflict(
            f"ledger {ledger_id} has no fragment any more that begins at {first_entry}",
            ledger_id=ledger_id,
        )
    number = at.index(first_entry)
    fragment = metadata.fragments[number]
    if lost not in fragment.ensemble:
        return None
    check(to not in fragment.ensemble, "no bookie stands twice in an ensemble", to)
    ensemble = tuple(to if bookie == lost else bookie for bookie in fragment.ensemble)
    fragments = (
        *metadata.fragments[:number],
        replace(fragment, ensemble=ensemble),
        *metadata.fragments[number + 1 :],
    )
    return replace(metadata, fragments=fragments)


def amended(
    metadata: LedgerMetadata, *, ledger_id: int, last_entry: int, bytes: int
) -> LedgerMetadata | None:
    """Closed at the end that its entries prove. None if it says so."""
    if metadata.state is not LedgerState.CLOSED:
        raise Unsupported(f"ledger {ledger_id} is not closed", ledger_id=ledger_id)
    if (metadata.last_entry_id, metadata.length_bytes) == (last_entry, bytes):
        return None
    return replace(metadata, last_entry_id=last_entry, length_bytes=bytes)

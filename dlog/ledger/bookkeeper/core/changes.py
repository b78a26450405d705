"""The changes that ledger metadata may go through, each as a function of what is stored.

Every one is written so that it can be asked again: given what it would lead to, it says that there
is nothing to do (None), so a compare-and-set loop that lost a reply converges. A change that may
not be made from here raises.

    OPEN ──► IN_RECOVERY ──► CLOSED        `marked`, then `closed` by the recoverer
    OPEN ──────────────────► CLOSED        `closed` by the appender: never over IN_RECOVERY, because
                                           readers may have seen what the recoverer wrote back
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlog.errors import Fenced, check
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState


def marked(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """In recovery: from here on the appender can change nothing. None if it is, or is closed."""
    if metadata.state is not LedgerState.OPEN:
        return None
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def closed_by_appender(
    metadata: LedgerMetadata, *, ledger_id: int, last_entry: int, bytes: int
) -> LedgerMetadata | None:
    """Closed at what the appender confirmed. None if it already ends exactly there."""
    if metadata.state is LedgerState.OPEN:
        return _closed(metadata, last_entry, bytes)
    _check_ours(metadata, ledger_id=ledger_id, last_entry=last_entry, bytes=bytes)
    return None


def closed_by_recovery(
    metadata: LedgerMetadata, *, last_entry: int, bytes: int, fragments: tuple[Fragment, ...] | None
) -> LedgerMetadata | None:
    """Closed at what recovery found; `fragments` if it had to replace bookies on the way. None if
    somebody else closed it, whose end is the end."""
    if metadata.state is LedgerState.CLOSED:
        return None
    check(metadata.state is LedgerState.IN_RECOVERY, "a recovery marks before it closes")
    if fragments is not None:
        metadata = replace(metadata, fragments=fragments)
    return _closed(metadata, last_entry, bytes)


def replaced(
    metadata: LedgerMetadata, *, ledger_id: int, first_entry: int, places: Mapping[int, str]
) -> LedgerMetadata | None:
    """The appender's change of ensemble: from `first_entry` on, other bookies in these places of
    the last fragment. None if they stand there already. `Fenced` once the ledger is not open."""
    if metadata.state is not LedgerState.OPEN:
        raise Fenced(
            f"ledger {ledger_id} is {metadata.state.name.lower()} and changes no bookies",
            ledger_id=ledger_id,
        )
    fragments = with_places(metadata.fragments, first_entry=first_entry, places=places)
    return None if fragments == metadata.fragments else replace(metadata, fragments=fragments)


def with_places(
    fragments: tuple[Fragment, ...], *, first_entry: int, places: Mapping[int, str]
) -> tuple[Fragment, ...]:
    """The last fragment changed in these places from `first_entry` on: as a new fragment, or in its
    own place if it has not held anything yet."""
    last = fragments[-1]
    ensemble = tuple(places.get(place, bookie) for place, bookie in enumerate(last.ensemble))
    if ensemble == last.ensemble:
        return fragments
    check(
        first_entry >= last.first_entry_id,
        "a fragment does not begin before the one it follows",
        first_entry,
        last.first_entry_id,
    )
    if first_entry == last.first_entry_id:
        return (*fragments[:-1], replace(last, ensemble=ensemble))
    return (*fragments, Fragment(first_entry, ensemble))


def _closed(metadata: LedgerMetadata, last_entry: int, bytes: int) -> LedgerMetadata:
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last_entry, length_bytes=bytes)


def _check_ours(metadata: LedgerMetadata, *, ledger_id: int, last_entry: int, bytes: int) -> None:
    if metadata.state is LedgerState.IN_RECOVERY:
        raise Fenced(f"ledger {ledger_id} is being recovered by somebody else", ledger_id=ledger_id)
    if metadata.last_entry_id != last_entry:
        raise Fenced(
            f"ledger {ledger_id} was closed at entry {metadata.last_entry_id} by somebody else",
            ledger_id=ledger_id,
        )
    check(metadata.length_bytes == bytes, "one end has one size", metadata.length_bytes, bytes)

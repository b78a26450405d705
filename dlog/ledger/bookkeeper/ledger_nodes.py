"""Ledger metadata in the metadata store, laid out as stock BookKeeper has it: Java reads and
changes the same nodes. Ids, paths and bytes are the business of `dlog.wire`; here they meet a
MetaStore.

Everything but reading is a loop: try, and if somebody was faster or a reply was lost, look again
and ask again whether there is anything left to do. What was lost on the way is recognised: a ledger
that we made by its creator token, a change by the change itself, which says that there is nothing
to do. A loop ends after a while; then its error says UNKNOWN if any try may have been applied.

A ledger whose metadata is of format 1 or 2 is read and deleted, never changed (`Unsupported`): the
clients that still write those formats could not read what we would make of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from dlog.chance import SYSTEM_CHANCE, Chance, backoff_s
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    FormatError,
    NotFound,
    Outcome,
    Retry,
    check,
)
from dlog.ledger.bookkeeper.ledger_ids import LedgerIds
from dlog.limits import META_ATTEMPTS_MAX, META_TIMEOUT_MS_DEFAULT
from dlog.meta.store import MetaStore, Watch, check_path, parent_of
from dlog.wire.ledger_metadata import LedgerMetadata
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.ledger_paths import (
    LAYOUT_NODE,
    TREES,
    Manager,
    ledger_id_of,
    ledger_path,
    pack_layout,
    parse_layout,
)

_log = logging.getLogger("dlog.ledger")

_TOKEN_MASK = (1 << 63) - 1
_WITH_DIRECTORIES = (Manager.HIERARCHICAL, Manager.LONG_HIERARCHICAL)  # that are pruned

# A change of `core.changes`: None when there is nothing (left) to do; may raise.
Change = Callable[[LedgerMetadata], LedgerMetadata | None]


@dataclass(frozen=True, slots=True)
class StoredLedger:
    ledger_id: int
    metadata: LedgerMetadata
    version: int


class Nodes(Protocol):
    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        """Under a new id, above every earlier one's. A lost reply is resolved by the creator
        token."""
        ...

    async def read(self, ledger_id: int) -> StoredLedger:
        """`NotFound`. May be stale."""
        ...

    async def read_fresh(self, ledger_id: int) -> StoredLedger:
        """After a `sync`: not older than the call."""
        ...

    async def change(self, known: StoredLedger, change: Change) -> StoredLedger:
        """Apply the change by compare-and-set, beginning with what is known; on conflict or an
        unknown reply re-read and ask the change again, until it is stored or says that there is
        nothing to do. What is stored then."""
        ...

    async def delete(self, ledger_id: int) -> None:
        """For good, in any state; the empty nodes above it, too. Of a missing ledger: nothing."""
        ...

    def scan_ids(self) -> AsyncIterator[int]: ...

    def watch(self, ledger_id: int) -> Watch: ...


class LedgerNodes:
    """The ledgers below `root` in `meta`, which stays the caller's to close.

    Which layout they have stands there once for all clients; where there is none yet, the first
    `create` writes the one of new clusters.
    """

    def __init__(
        self,
        meta: MetaStore,
        root: str = "/ledgers",
        *,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        timeout_ms: float = META_TIMEOUT_MS_DEFAULT,
    ) -> None:
        self._meta = meta
        self._root = check_path(root)
        self._below = "" if root == "/" else root
        self._clock = clock
        self._chance = chance
        self._timeout_ms = timeout_ms
        self._manager: Manager | None = None
        self._ids: LedgerIds | None = None

    async def create(
        self, metadata: LedgerMetadata, *, ledger_id: int | None = None
    ) -> StoredLedger:
        """With an id of the caller's choice it may be taken: `AlreadyExists`."""
        token = int(self._chance.token(), 16) & _TOKEN_MASK
        metadata = replace(metadata, creator_token=token)
        packed = pack_ledger_metadata(metadata)
        tries = self._tries()
        drawn = ledger_id
        while True:
            try:
                if drawn is None:
                    drawn = await self._draw()
                path = self._below + ledger_path(await self._layout_or_new(), drawn)
                version = await self._create_node(path, packed)
                if version is not None:
                    return StoredLedger(drawn, metadata, version)
                if ledger_id is not None:
                    raise AlreadyExists(
                        f"there is a ledger {ledger_id} already", ledger_id=ledger_id
                    )
                drawn = None  # taken, by a client that draws its ids elsewhere
            except DlogError as error:
                await tries.another(error)

    async def _draw(self) -> int:
        try:
            return await self._ids_of(await self._layout_or_new()).draw()
        except DlogError as error:
            error.outcome = Outcome.NOT_HAPPENED  # a lost number is no ledger
            raise

    async def _create_node(self, path: str, packed: bytes) -> int | None:
        """Its version; None if another ledger stands there. Whose it is, the creator token tells,
        as long as nobody changed a byte of it."""
        try:
            return (await self._meta.create(path, packed)).version
        except AlreadyExists:
            await self._meta.sync()
        try:
            found = await self._meta.get(path)
        except NotFound:
            return None  # it was there, and is deleted: its id is used up
        return found.version if found.value == packed else None

    async def read(self, ledger_id: int) -> StoredLedger:
        path = await self.path_of(ledger_id)
        try:
            found = await self._meta.get(path)
        except NotFound:
            raise _no_ledger(ledger_id) from None
        metadata = parse_ledger_metadata(found.value, where=f"ledger {ledger_id} at {path}")
        return StoredLedger(ledger_id, metadata, found.version)

    async def read_fresh(self, ledger_id: int) -> StoredLedger:
        await self._meta.sync()
        return await self.read(ledger_id)

    async def change(self, known: StoredLedger, change: Change) -> StoredLedger:
        ledger_id = known.ledger_id
        tries = self._tries()
        stored: StoredLedger | None = known
        while True:
            try:
                if stored is None:
                    stored = await self.read_fresh(ledger_id)
                wanted = change(stored.metadata)
                if wanted is None:
                    return stored
                return StoredLedger(ledger_id, wanted, await self._put(stored, wanted))
            except DlogError as error:
                await tries.another(error)
            stored = None

    async def _put(self, stored: StoredLedger, wanted: LedgerMetadata) -> int:
        packed = pack_ledger_metadata(wanted)
        try:
            path = await self.path_of(stored.ledger_id)
            return await self._meta.put(path, packed, stored.version)
        except NotFound:
            raise _no_ledger(stored.ledger_id) from None

    async def delete(self, ledger_id: int) -> None:
        tries = self._tries()
        while True:
            try:
                path = await self.path_of(ledger_id)
                await self._meta.sync()
                found = await self._meta.get(path)
                await self._meta.delete(path, found.version)
                break
            except NotFound:
                return
            except DlogError as error:
                await tries.another(error)
        if self._manager in _WITH_DIRECTORIES:
            await self._prune(parent_of(path))

    async def _prune(self, path: str) -> None:
        """The empty nodes above a ledger that was deleted. Another client may put a ledger below
        one of them at any moment: the store refuses to delete what is not empty."""
        while path != self._root:
            try:
                await self._meta.delete(path, (await self._meta.get(path)).version)
            except (Conflict, NotFound):
                return  # it is in use, or somebody else prunes
            except DlogError as error:
                _log.info("an empty node may stay behind: %s: %s", path, error)
                return
            path = parent_of(path)

    async def scan_ids(self) -> AsyncIterator[int]:
        """All ledgers, in rising order. What is made or deleted meanwhile may be there or not."""
        await self._meta.sync()
        manager = await self._layout()
        if manager is None:
            return
        for tree in TREES[manager]:
            async for path in self._walk("", [re.compile(level, re.ASCII) for level in tree]):
                try:
                    ledger_id = ledger_id_of(manager, path)
                except FormatError as error:
                    _log.warning("not listed: %s", error)
                    continue
                yield ledger_id

    async def _walk(self, path: str, levels: list[re.Pattern[str]]) -> AsyncIterator[str]:
        try:
            names = await self._meta.children(self._below + path or "/")
        except NotFound:
            return  # pruned since it was listed
        level, *deeper = levels
        # Numbers of one length sort as text; flat names may be longer, and then are larger.
        for name in sorted(filter(level.fullmatch, names), key=lambda name: (len(name), name)):
            if not deeper:
                yield f"{path}/{name}"
                continue
            async for found in self._walk(f"{path}/{name}", deeper):
                yield found

    def watch(self, ledger_id: int) -> Watch:
        """Of a ledger that was read."""
        check(self._manager is not None, "a ledger is read before it is watched", ledger_id)
        assert self._manager is not None
        return self._meta.watch(self._below + ledger_path(self._manager, ledger_id))

    async def close(self) -> None:
        """The metadata store stays open."""
        if self._ids is not None:
            await self._ids.close()

    # --- Where they are

    async def path_of(self, ledger_id: int) -> str:
        manager = self._manager or await self._layout()
        if manager is None:
            raise _no_ledger(ledger_id)
        return self._below + ledger_path(manager, ledger_id)

    async def _layout(self) -> Manager | None:
        """None where there is none yet: nor is there a ledger, then."""
        if self._manager is None:
            path = f"{self._below}/{LAYOUT_NODE}"
            try:
                found = await self._meta.get(path)
            except NotFound:
                return None
            self._manager = parse_layout(found.value, where=path)
        return self._manager

    async def _layout_or_new(self) -> Manager:
        manager = await self._layout()
        if manager is None:
            try:
                await self._meta.create(
                    f"{self._below}/{LAYOUT_NODE}", pack_layout(Manager.HIERARCHICAL)
                )
            except AlreadyExists:
                pass  # by another client, and it may have chosen otherwise
            await self._meta.sync()
            manager = await self._layout()
        check(manager is not None, "a layout that was made is there", self._root)
        assert manager is not None
        return manager

    def _ids_of(self, manager: Manager) -> LedgerIds:
        if self._ids is None:
            self._ids = LedgerIds(self._meta, self._root, manager)
        return self._ids

    def _tries(self) -> _Tries:
        return _Tries(self._clock, self._chance, self._timeout_ms)


class _Tries:
    """How often one call is tried, with growing jittered pauses, and what its error says."""

    def __init__(self, clock: Clock, chance: Chance, timeout_ms: float) -> None:
        self._clock = clock
        self._chance = chance
        self._deadline_s = clock.monotonic_s() + timeout_ms / 1000
        self._count = 0
        self._maybe_applied = False

    async def another(self, error: DlogError) -> None:
        """Returns when it is time for another try; raises the error when there is none."""
        self._count += 1
        self._maybe_applied |= error.outcome is Outcome.UNKNOWN
        out_of_time = self._clock.monotonic_s() >= self._deadline_s
        if error.retry is not Retry.NOW or out_of_time or self._count >= META_ATTEMPTS_MAX:
            if self._maybe_applied:
                error.outcome = Outcome.UNKNOWN
            raise error
        await asyncio.sleep(backoff_s(self._count, self._chance))


def _no_ledger(ledger_id: int) -> NotFound:
    return NotFound(f"there is no ledger {ledger_id}", ledger_id=ledger_id)

"""Reads one ledger on bookies beside its appender. Start here; `tail_watch` knows what may be read,
`entry_fetch` reads it.

A ledger that was deleted can still be read from its bookies for minutes. Only metadata tells, so it
is asked: by `info`, `last_readable` and a wait, by the watch behind a wait, before a read is given
up, and beside reads, every ten seconds at most, without being waited for. From the first of them
on, nothing is there any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    ConfigError,
    Corrupt,
    DlogError,
    ForkedHandle,
    NotFound,
    Unavailable,
)
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.entry_fetch import EntryFetch
from dlog.ledger.bookkeeper.info import info_of
from dlog.ledger.bookkeeper.ledger_nodes import Nodes, StoredLedger
from dlog.ledger.bookkeeper.links import Links
from dlog.ledger.bookkeeper.tail_watch import TailWatch
from dlog.ledger.store import LedgerInfo
from dlog.reason import Wait
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import LedgerMetadata


class BookKeeperReader:
    """`stored` as it was just read. `habits` are best shared by all readers of a store."""

    def __init__(
        self,
        stored: StoredLedger,
        *,
        links: Links,
        nodes: Nodes,
        digest: EntryDigest,
        habits: BookieHabits | None = None,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        on_closed: Callable[[BookKeeperReader], None] | None = None,
    ) -> None:
        self.ledger_id = stored.ledger_id
        self._pid = os.getpid()
        self._closed = False
        self._on_closed = on_closed
        self._tail = TailWatch(
            stored, links=links, nodes=nodes, digest=digest, clock=clock, chance=chance
        )
        self._entries = EntryFetch(
            stored.ledger_id,
            links=links,
            digest=digest,
            habits=habits or BookieHabits(),
            clock=clock,
            # Readers begin at different bookies; each then stays where it was answered.
            first_place=int(chance.fraction() * stored.metadata.ensemble_size),
        )

    @property
    def metadata_away(self) -> bool:
        """The metadata store gave no answer lately; what may be read is what bookies say."""
        return self._tail.metadata_away

    @property
    def answers_without_metadata(self) -> int:
        return self._tail.answers_without_metadata

    @property
    def hedges(self) -> int:
        """Requests to a further bookie because the one before was silent."""
        return self._entries.hedges

    def why(self) -> Wait | None:
        """Which bookies a read under way waits for."""
        return self._entries.why()

    def prefer(self, copy: int) -> None:
        """Begin at this bookie of the first ensemble that is read from, and stay there."""
        self._entries.prefer(copy)

    async def info(self) -> LedgerInfo:
        self._check_usable()
        return info_of(await self._tail.look())

    async def last_readable(self) -> int:
        self._check_usable()
        readable = await self._tail.last_readable()
        if self._tail.core.is_deleted:
            raise self._deleted()
        return readable

    async def wait_past(self, last_entry: int, timeout_ms: float) -> int:
        self._check_usable()
        return await self._tail.wait_past(last_entry, timeout_ms)

    async def read(self, first_entry: int, last_entry: int, *, bytes_max: int) -> list[memoryview]:
        self._check_usable()
        if not 0 <= first_entry <= last_entry:
            raise ConfigError(f"no entries to read from {first_entry} to {last_entry}")
        tail = self._tail.core
        if last_entry > tail.readable and not tail.is_deleted:
            readable = await self._tail.last_readable()
            if last_entry > readable and not tail.is_deleted:
                if self.metadata_away:  # whoever asks may have heard more than bookies tell us
                    raise Unavailable(
                        f"whether entry {last_entry} of ledger {self.ledger_id} may be read, only "
                        "metadata can tell, which gave no answer",
                        ledger_id=self.ledger_id,
                    )
                raise ConfigError(f"entry {last_entry} is not readable; the last one is {readable}")
        if tail.is_deleted:
            raise self._deleted()
        if first_entry == last_entry:
            brought = tail.take_brought(first_entry)
            if brought is not None:
                return [brought]
        self._tail.look_if_old()
        return await self._read(first_entry, last_entry, bytes_max)

    async def _read(self, first_entry: int, last_entry: int, bytes_max: int) -> list[memoryview]:
        """A ledger may move to other bookies after it was closed, and be deleted at any time: a
        read that fails is worth a look, and a second try if something changed."""
        metadata = self._tail.core.metadata
        end = _end_of_fragment(metadata, first_entry)
        try:
            return await self._entries.read(
                metadata, first_entry, min(last_entry, end), bytes_max=bytes_max
            )
        except (Unavailable, Corrupt) as error:
            changed = await self._changed(metadata, first_entry, error)
        end = _end_of_fragment(changed, first_entry)
        return await self._entries.read(
            changed, first_entry, min(last_entry, end), bytes_max=bytes_max
        )

    async def _changed(
        self, metadata: LedgerMetadata, first_entry: int, error: DlogError
    ) -> LedgerMetadata:
        """Metadata with other bookies for this entry, or the error again."""
        await self._tail.look_briefly()
        if self._tail.core.is_deleted:
            raise self._deleted()
        found = self._tail.core.metadata
        if found.fragment_of(first_entry).ensemble == metadata.fragment_of(first_entry).ensemble:
            raise error
        return found

    def _deleted(self) -> NotFound:
        return NotFound(f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            await self._tail.close()
            await self._entries.close()
        if self._on_closed is not None:
            self._on_closed(self)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"ledger {self.ledger_id} was opened by process {self._pid}, before a fork",
                ledger_id=self.ledger_id,
                pid=self._pid,
            )
        if self._closed:
            raise ConfigError(f"the reader of ledger {self.ledger_id} was closed")


def _end_of_fragment(metadata: LedgerMetadata, entry_id: int) -> int:
    """The last entry that the same bookies hold, or will hold: bookies know neither."""
    following = (
        each.first_entry_id for each in metadata.fragments if each.first_entry_id > entry_id
    )
    return next(following, 1 << 63) - 1

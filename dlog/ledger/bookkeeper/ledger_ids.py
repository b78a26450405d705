"""New ledger ids, from the counters that all clients of a cluster share.

An id is the number that the metadata store appends to a sequential node, so it is above every id
drawn before, by whom ever. The node itself has done its work then and is deleted, in the background
and a few at a time: it belongs to our session, and would go with it at the latest.

A counter ends at 2³¹ - 2. Then the lower half of ids is counted below `idgen-long`, in a directory
named after the upper half, and in the next directory when that counter ends, too. That there is an
`idgen-long` is remembered, and that there is none: it appears when the short counter ends, and that
everybody meets by himself.
"""

from __future__ import annotations

import asyncio
import logging

from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    LeaseLost,
    NotFound,
    TooLarge,
    Unsupported,
)
from dlog.limits import META_ATTEMPTS_MAX
from dlog.meta.store import Created, MetaStore
from dlog.wire.ledger_paths import (
    ID_PREFIX,
    LONG_IDS_NODE,
    SHORT_IDS_NODE,
    Manager,
    high_bits_name,
    long_id,
    parse_generated_id,
    parse_high_bits,
)

_log = logging.getLogger("dlog.ledger")

_FIRST_HIGH_BITS = 1
_HIGH_BITS_KEPT = 3  # directories; older counters have ended, and nobody draws from them
_USED_MAX = 64  # nodes that wait to be deleted, before a draw waits for them
_CLOSE_PATIENCE_S = 2.0


class LedgerIds:
    def __init__(self, meta: MetaStore, root: str, manager: Manager) -> None:
        self._meta = meta
        below = "" if root == "/" else root
        shared = manager in (Manager.HIERARCHICAL, Manager.LONG_HIERARCHICAL)
        self._short = f"{below}/{ID_PREFIX}"
        if manager is not Manager.FLAT:
            self._short = f"{below}/{SHORT_IDS_NODE}/{ID_PREFIX}"
        self._long_ids = f"{below}/{LONG_IDS_NODE}" if shared else None
        self._is_long: bool | None = None if shared else False  # None: not looked yet
        self._high_bits: int | None = None
        self._used: list[Created] = []
        self._deleting: asyncio.Task[None] | None = None
        self._closed = False

    async def draw(self) -> int:
        """A new id. If it fails, a number may be lost, and nothing else."""
        if len(self._used) >= _USED_MAX and self._deleting is not None:
            await asyncio.wait([self._deleting])
        if not await self._are_long():
            number = await self._count(self._short)
            if number is not None:
                return number
            if self._long_ids is None:
                raise Unsupported("the ledger ids of this layout are used up", path=self._short)
            await self._make(self._long_ids)
            self._is_long = True
        for _ in range(META_ATTEMPTS_MAX):
            high_bits = await self._upper_half()
            number = await self._count(f"{self._directory(high_bits)}/{ID_PREFIX}")
            if number is not None:
                return long_id(high_bits, number)
            await self._make(self._directory(high_bits + 1))
            self._high_bits = None
        raise Unsupported("the ledger ids of this layout are used up", path=self._long_ids)

    async def close(self) -> None:
        """The nodes that were drawn are deleted, if that can be done soon; nothing runs on. What is
        being drawn now goes with its session."""
        self._closed = True
        if self._deleting is not None:
            _, late = await asyncio.wait([self._deleting], timeout=_CLOSE_PATIENCE_S)
            if late:
                self._deleting.cancel()
                await asyncio.wait([self._deleting])

    async def _are_long(self) -> bool:
        if self._is_long is None:
            self._is_long = await self._is_there(self._long_ids or "")
        return self._is_long

    async def _is_there(self, path: str) -> bool:
        try:
            await self._meta.get(path)
        except NotFound:
            return False
        return True

    async def _count(self, prefix: str) -> int | None:
        """The next number; None once the counter has ended."""
        try:
            try:
                made = await self._meta.create(prefix, b"", ephemeral=True, sequential=True)
            except LeaseLost:
                # Our session is over, and this store goes on without one.
                made = await self._meta.create(prefix, b"", sequential=True)
        except TooLarge:
            # Used up, or a quota: who drew the last number has made the other counters by now.
            if self._long_ids is not None and await self._is_there(self._long_ids):
                return None
            raise
        self._used.append(made)
        if not self._closed and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.get_running_loop().create_task(self._delete_used())
        return parse_generated_id(made.path)

    async def _delete_used(self) -> None:
        while self._used:
            made = self._used.pop()
            try:
                await self._meta.delete(made.path, made.version)
            except NotFound:
                pass  # our session ended, and took it along
            except DlogError as error:
                _log.info("left behind, to go with its session: %s: %s", made.path, error)

    def _directory(self, high_bits: int) -> str:
        return f"{self._long_ids}/{high_bits_name(high_bits)}"

    async def _upper_half(self) -> int:
        """The largest there is."""
        while self._high_bits is None:
            assert self._long_ids is not None
            known = parse_high_bits(await self._meta.children(self._long_ids))
            if known:
                self._high_bits = known[-1]
                await self._tidy(known[:-_HIGH_BITS_KEPT])
            else:
                await self._make(self._directory(_FIRST_HIGH_BITS))
        return self._high_bits

    async def _tidy(self, ended: list[int]) -> None:
        for high_bits in ended:
            path = self._directory(high_bits)
            try:
                await self._meta.delete(path, (await self._meta.get(path)).version)
            except (NotFound, Conflict):
                pass  # another client does the same, or a number in it is still to be deleted
            except DlogError as error:
                _log.info("left for another time: %s: %s", path, error)

    async def _make(self, path: str) -> None:
        try:
            await self._meta.create(path, b"")
        except AlreadyExists:
            pass  # by another client that met the same end

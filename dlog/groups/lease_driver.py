"""Performs what lease stores ask for, on real stores and real logs. It decides nothing."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

from dlog.admin.admin import Admin
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.drive import Driver
from dlog.effects import Effect
from dlog.errors import DlogError, Fenced, NotFound, WriterClosed
from dlog.groups.log_leases import (
    AppendLeaseLog,
    CloseLeaseLog,
    OpenedLeaseLog,
    OpenLeaseLog,
    ReadLeaseLog,
)
from dlog.groups.places import GroupPlaces
from dlog.ids import MessageId
from dlog.ledger.store import LedgerStore
from dlog.meta.store import MetaStore
from dlog.metrics import NO_METRICS, Metrics
from dlog.opening import Opening
from dlog.reader.reader import Reader
from dlog.together import together
from dlog.writer.writer import Writer

logger = logging.getLogger("dlog.groups")


class Logs(Protocol):
    """As much of a client as leases in logs need."""

    @property
    def admin(self) -> Admin: ...

    def open_writer(self, name: str) -> Opening[Writer]: ...

    def open_reader(self, name: str, *, start: MessageId | int) -> Opening[Reader]: ...


class LeaseDriver(Driver):
    """`logs` is not needed where leases are nodes."""

    def __init__(
        self,
        meta: MetaStore,
        ledgers: LedgerStore,
        places: GroupPlaces,
        logs: Logs | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        super().__init__(meta, ledgers, clock=clock, metrics=metrics)
        self._places = places
        self._logs = logs
        self._writers: dict[tuple[str, int], Writer] = {}

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case OpenLeaseLog(shard=shard):
                return await self._open(shard)
            case AppendLeaseLog(shard=shard, epoch=epoch, value=value, cuts=cuts):
                return await self._append(shard, epoch, value, cuts)
            case CloseLeaseLog(shard=shard, epoch=epoch):
                writer = self._writers.pop((shard, epoch), None)
                if writer is not None:
                    await writer.close()
            case ReadLeaseLog(shard=shard):
                return await self._read(shard)
            case _:
                return await super().perform(effect)

    async def _open(self, shard: str) -> OpenedLeaseLog:
        assert self._logs is not None
        writer = await self._logs.open_writer(self._places.lease_log(shard))
        last = None
        try:
            at = await self._logs.admin.tail(writer.log)
            if at is not None:  # behind our fence: nobody else adds to it
                last = await self._message(shard, at)
        except BaseException:
            await writer.close()
            raise
        # Those of earlier times that we had it, and lost it without a word, are fenced by now.
        for key in [key for key in self._writers if key[0] == shard]:
            await _let_go(self._writers.pop(key))
        self._writers[shard, writer.epoch] = writer
        return OpenedLeaseLog(writer.epoch, last)

    async def _append(self, shard: str, epoch: int, value: bytes, cuts: bool) -> None:
        assert self._logs is not None
        writer = self._writers.get((shard, epoch))
        if writer is None:
            raise WriterClosed(f"the log of shard {shard!r} is not open with epoch {epoch}")
        try:
            last = await writer.append(value)
        except (Fenced, WriterClosed):
            self._writers.pop((shard, epoch), None)
            await _let_go(writer)
            raise
        if cuts:
            name = self._places.lease_log(shard)
            try:
                await self._logs.admin.truncate(name, before=last)
            except DlogError as error:
                # It is tried again behind as many messages; nothing rests on it.
                logger.warning("log %r is not truncated: %s", name, error)

    async def _read(self, shard: str) -> bytes | None:
        assert self._logs is not None
        try:
            last = await self._logs.admin.tail(self._places.lease_log(shard))
            return None if last is None else await self._message(shard, last)
        except NotFound:
            return None

    async def _message(self, shard: str, at: MessageId) -> bytes | None:
        assert self._logs is not None
        async with self._logs.open_reader(self._places.lease_log(shard), start=at) as reader:
            found = await reader.read(1)
        return found[0].value if found else None

    async def close(self) -> None:
        """Of the lease logs that are open still."""
        writers, self._writers = list(self._writers.values()), {}
        await together(*map(_let_go, writers))


async def _let_go(writer: Writer) -> None:
    """Whatever its close would tell was told."""
    with contextlib.suppress(DlogError):
        await writer.close()

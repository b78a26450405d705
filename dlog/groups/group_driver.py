"""Performs what a group asks for: of its lease store, and of the stream that it is a group of."""

from __future__ import annotations

from typing import Any

from dlog.drive import Stores
from dlog.effects import Effect
from dlog.groups.lease_driver import LeaseDriver, Logs
from dlog.groups.log_leases import LogLeases
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.places import GroupPlaces
from dlog.groups.store import LeaseStore
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import LookForLog


class GroupDriver(LeaseDriver):
    def __init__(self, stores: Stores, places: GroupPlaces, logs: Logs) -> None:
        super().__init__(
            stores.meta, stores.ledgers, places, logs, clock=stores.clock, metrics=stores.metrics
        )
        self._streams = StreamDriver(stores)

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, LookForLog):
            return await self._streams.perform(effect)
        return await super().perform(effect)


def lease_store(kind: str, places: GroupPlaces, stores: Stores, group_uid: str = "") -> LeaseStore:
    if kind == "logs":
        return LogLeases(places, stores.chance, stores.clock.wall_us)
    return MetaLeases(places, stores.chance, stores.clock.wall_us, group_uid)

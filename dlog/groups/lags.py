"""How far a group is behind, and how much comes: looks at the logs of its shards, from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import NotFound
from dlog.groups.charter import Charter, Mark
from dlog.groups.leases import Lease
from dlog.groups.store import LeaseStore
from dlog.reader.feed import look
from dlog.reader.lag import Lag, lag_of
from dlog.reader.places import find_tail
from dlog.reader.segments import SegmentView
from dlog.together import some_at_once

LOOKS_AT_ONCE = 16


async def leases_of(driver: Driver, store: LeaseStore, logs: Iterable[str]) -> dict[str, Lease]:
    names = list(logs)
    leases = await some_at_once(LOOKS_AT_ONCE, lambda log: driver.run(store.read(log)), names)
    return dict(zip(names, leases, strict=True))


async def lags_of(
    stores: Stores, charter: Charter, leases: Mapping[str, Lease], numbers: Mapping[str, int]
) -> dict[str, Lag]:
    """Behind their checkpoints, up to the end of the job if it is one; without shards whose logs
    are not made yet."""
    begin, end = charter.begin or {}, charter.end

    async def lag_in(lease: Lease) -> Lag | None:
        done = 0 if lease.checkpoint is None else lease.checkpoint.next_seq
        if lease.checkpoint is None:
            done = begin.get(numbers[lease.shard], Mark(0, is_final=False)).next_seq
        lag = await _lag(stores, lease.shard, done)
        if lag is None or end is None:
            return lag
        return _of_job(lag, done, end[numbers[lease.shard]].next_seq)

    lags = await some_at_once(LOOKS_AT_ONCE, lag_in, leases.values())
    pairs = zip(leases, lags, strict=True)
    return {log: lag for log, lag in pairs if lag is not None}


def _of_job(lag: Lag, done: int, end_seq: int) -> Lag:
    """Without what was written since: nobody will consume that."""
    messages = min(lag.messages, max(0, end_seq - done))
    if messages == 0:
        return Lag(0, 0, 0.0)
    return Lag(messages, lag.bytes * messages // lag.messages, lag.seconds)


async def _lag(stores: Stores, log: str, next_seq: int) -> Lag | None:
    view = SegmentView(log, stores.layout)
    try:
        return await look(stores, view, lag_of(view, next_seq, stores.clock.wall_us()))
    except NotFound:
        return None


class Scales:
    """Measures what shards are weighed by: `lag`, the messages that the group is behind; or
    `bytes`, those that came since it measured before."""

    def __init__(
        self,
        stores: Stores,
        driver: Driver,
        store: LeaseStore,
        charter: Charter,
        numbers: Mapping[str, int],
    ) -> None:
        self._stores = stores
        self._driver = driver
        self._store = store
        self._charter = charter
        self._numbers = numbers  # all shards of the group that are known
        self._tails: dict[str, int] = {}

    async def weigh(self) -> dict[str, int]:
        if self._charter.weigh == "bytes":
            return await self._weigh_bytes()
        leases = await leases_of(self._driver, self._store, self._numbers)
        open_ones = {log: lease for log, lease in leases.items() if not lease.is_finished}
        lags = await lags_of(self._stores, self._charter, open_ones, self._numbers)
        return {log: lag.messages for log, lag in lags.items()}

    async def _weigh_bytes(self) -> dict[str, int]:
        """Nothing, the first time."""
        logs = list(self._numbers)
        came = await some_at_once(LOOKS_AT_ONCE, self._bytes_of, logs)
        pairs = zip(logs, came, strict=True)
        found = {log: each for log, each in pairs if each is not None}
        return found if len(found) > 1 else {}

    async def _bytes_of(self, log: str) -> int | None:
        before = self._tails.get(log)
        if before is None:
            view = SegmentView(log, self._stores.layout)
            try:
                self._tails[log] = await look(self._stores, view, _tail_of(view))
            except NotFound:
                pass
            return None
        lag = await _lag(self._stores, log, before)
        if lag is None:
            return None
        self._tails[log] = before + lag.messages
        return lag.bytes


def _tail_of(view: SegmentView) -> Procedure[int]:
    yield from view.refresh()
    tail = yield from find_tail(view)
    return tail.next_seq

"""Streams and groups against the logs that they are made of: does each have the others?

A stream lists its shards, a group keeps leases in them. Where one of the three is gone and the
others are not, its metadata was lost, or a part was removed by hand. Logs are read first, then
streams, then groups: a log, and then a stream, is made before what rests on it. What looks bad is
looked at again, since a stream may be removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.admin.fsck.judge import Judge
from dlog.admin.fsck.lists import Walk
from dlog.admin.fsck.report import Finding, Kind, NotChecked, Severity, Where
from dlog.drive import Stores
from dlog.errors import DlogError, FormatError, NotFound
from dlog.findings import named
from dlog.groups.charter import Charter
from dlog.groups.leases import Lease
from dlog.meta.layout import unescape
from dlog.meta.log_meta import LogMeta
from dlog.streams.document import Shard, ShardState, StreamMeta, StreamState, was_removed

ADVICE = "put the metadata back from a copy; what is left can be read as it is"


async def look_at_wholes(stores: Stores, walks: Iterable[Walk], judge: Judge) -> None:
    await _Wholes(stores, walks, judge).run()


class _Wholes:
    def __init__(self, stores: Stores, walks: Iterable[Walk], judge: Judge) -> None:
        self._stores = stores
        self._judge = judge
        self._there: dict[str, str | None] = {}  # logs, and the stream that each says it is of
        for walk in walks:
            if walk.seen is None or not walk.meta.is_removed:
                mark = None if walk.seen is None else walk.meta.stream
                self._there[walk.name] = mark
        self._streams: dict[str, StreamMeta | None] = {}
        self._missing: set[str] = set()  # streams that are told to be
        self._lost: set[str] = set()  # logs of shards that are

    async def run(self) -> None:
        for name in await self._names(self._stores.layout.streams):
            await self._stream(name)
        await self._shards()
        for group in await self._names(self._stores.layout.groups):
            node = f"{self._stores.layout.groups}/{_node_of(self._stores, group)}"
            for stream in await self._names(node):
                await self._group(group, stream)

    # --- streams

    async def _stream(self, name: str) -> None:
        path = self._stores.layout.stream(name)
        raw = await self._get(path)
        if raw is None:
            return
        try:
            meta = self._streams[name] = StreamMeta.from_bytes(raw, path)
        except FormatError as error:
            self._streams[name] = None
            self._bad(Kind.META_UNREADABLE, error.message, path=path)
            return
        if meta.state is StreamState.DELETING:
            return
        lost = [
            (shard, told)
            for shard in meta.shards
            if not self._has(shard.log) and (told := await self._loss_of(shard)) is not None
        ]
        if lost:
            listed = await self._listed(path)  # behind the look at the logs: see a trim
            for shard, told in lost:
                if (shard.number, shard.log_uid) in listed:
                    self._lost.add(shard.log)
                    self._bad(Kind.LOG_MISSING, f"stream {name!r} {told}", log=shard.log)

    async def _loss_of(self, shard: Shard) -> str | None:
        """What is wrong with a shard whose log was not found; None if it may not be made yet."""
        raw = await self._get(self._stores.layout.log(shard.log))
        try:
            if raw is not None and shard.log_uid and was_removed(shard, raw, shard.log):
                return f"lists it as shard {shard.number}, and it was removed"
        except DlogError:
            return None  # what is wrong with it is told where it is walked
        if shard.state is ShardState.ENDED and not await self._is_made(shard.log):
            return "has it as ended, and it is not there"
        return None

    async def _listed(self, path: str) -> set[tuple[int, str]]:
        """The shards of a stream now, by their numbers and the uids of their logs."""
        raw = await self._get(path)
        try:
            meta = None if raw is None else StreamMeta.from_bytes(raw, path)
        except FormatError:
            meta = None
        if meta is None or meta.state is StreamState.DELETING:
            return set()
        return {(shard.number, shard.log_uid) for shard in meta.shards}

    async def _shards(self) -> None:
        """Logs that say that they are shards, of a stream that is not there."""
        uids = {meta.uid for meta in self._streams.values() if meta is not None}
        if None in self._streams.values():
            return  # they may be of a stream that cannot be read, which is told
        lost: dict[str, list[str]] = {}
        for log, stream in self._there.items():
            if stream is not None and stream not in uids and await self._is_made(log):
                lost.setdefault(stream, []).append(log)
        for uid, logs in lost.items():
            name = logs[0].rpartition("/")[0]
            self._missing.add(name)
            told = f"{named(logs)} are shards of stream {name!r} ({uid}), which is not there"
            self._bad(Kind.STREAM_MISSING, told, path=self._stores.layout.stream(name))

    # --- groups

    async def _group(self, group: str, stream: str) -> None:
        root = self._stores.layout.group(group, stream)
        leases = await self._names(f"{root}/leases")
        raw = await self._get(f"{root}/charter")
        if raw is None:
            if leases and await self._names(f"{root}/leases") == leases:
                told = f"group {group!r} of stream {stream!r} has leases, and not what they rest on"
                self._bad(Kind.GROUP_BROKEN, told, path=f"{root}/charter")
            return
        if stream not in self._streams and not self._has(stream):
            shards = [log for log in self._there if _is_shard(log, stream)]
            if shards and stream not in self._missing:
                told = f"group {group!r} consumes it, and its shards are there: {named(shards)}"
                self._bad(Kind.STREAM_MISSING, told, path=self._stores.layout.stream(stream))
            return
        meta = self._streams.get(stream)
        try:
            charter = Charter.from_bytes(raw, where=f"{root}/charter")
        except FormatError as error:
            self._bad(Kind.META_UNREADABLE, error.message, path=f"{root}/charter")
            return
        if meta is not None and charter.stream_uid != meta.uid:
            return  # of a stream that was removed, and its shards with it
        listed = set() if meta is None else {shard.log for shard in meta.shards if shard.is_open}
        for log in leases:
            if log in listed and not self._has(log):
                await self._lease(group, log, f"{root}/leases/{_node_of(self._stores, log)}")

    async def _lease(self, group: str, log: str, path: str) -> None:
        """Of an open shard without a log, which may not be made yet: unless the group has read
        it."""
        raw = await self._get(path)
        try:
            lease = None if raw is None else Lease.from_bytes(raw, where=path)
        except FormatError as error:
            self._bad(Kind.META_UNREADABLE, error.message, path=path)
            return
        has_read = lease is not None and (lease.checkpoint is not None or lease.is_finished)
        if has_read and log not in self._lost and not await self._is_made(log):
            told = f"group {group!r} has a place in it, and it is not there"
            self._bad(Kind.LOG_MISSING, told, log=log)

    # --- looks

    def _has(self, log: str) -> bool:
        return log in self._there

    async def _is_made(self, log: str) -> bool:
        """Now. One that was removed leaves a node that says so."""
        path = self._stores.layout.log(log)
        raw = await self._get(path)
        if raw is None:
            return False
        try:
            return not LogMeta.from_bytes(raw, where=path).is_removed
        except DlogError:
            return True  # what is wrong with it is told where it is walked

    async def _names(self, path: str) -> list[str]:
        try:
            return sorted(map(unescape, await self._stores.meta.children(path)))
        except NotFound:
            return []

    async def _get(self, path: str) -> bytes | None:
        try:
            return (await self._stores.meta.get(path)).value
        except NotFound:
            return None
        except DlogError as error:
            self._judge.not_checked.append(NotChecked(Where(path=path), error.message))
            return None

    def _bad(
        self, kind: Kind, told: str, *, log: str | None = None, path: str | None = None
    ) -> None:
        where = Where(log=log, path=path)
        self._judge.add(Finding(kind, Severity.BAD, where, told, advice=ADVICE))


def _is_shard(log: str, stream: str) -> bool:
    name, slash, number = log.rpartition("/")
    return bool(slash) and name == stream and number.isdecimal()


def _node_of(stores: Stores, name: str) -> str:
    return stores.layout.log(name).rpartition("/")[2]

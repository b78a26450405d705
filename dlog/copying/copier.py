"""Copies one log: reads here, writes there, and tells how far it came.

The writer of the copy is opened first: it fences whoever else copies into it, and its end says
where to go on. What is read is never ahead of what the other log's writer published, and strict
about strangers who recover its ledgers, since a copy cannot take back what it has copied.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dlog import limits
from dlog.copying.progress import CopyProgress
from dlog.copying.target import Target, begin_copy
from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import AlreadyExists, NotFound, Truncated
from dlog.forgotten import ALL_IDS, ForgottenIds
from dlog.meta.cas import Seen
from dlog.meta.listed import CopyOf
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions, ReaderOptions, WriterOptions
from dlog.reader.feed import look
from dlog.reader.looks import Looks
from dlog.reader.message import Message
from dlog.reader.places import EARLIEST, find_tail, locate
from dlog.reader.reader import Reader
from dlog.reader.segments import SegmentView
from dlog.writer.copy_writer import CopyWriter
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.producers import count_producers
from dlog.writer.writer import Writer

_log = logging.getLogger("dlog.copying")

INTERRUPTED_S = 10.0  # how long what was read may take to be acknowledged, when we are cancelled

Tell = Callable[[CopyProgress], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A log by name, where it is kept."""

    stores: Stores
    name: str


@dataclass(frozen=True, slots=True)
class _Source:
    """The other log as it was when the copy began."""

    meta: LogMeta
    head_seq: int
    next_seq: int


class Copier:
    def __init__(
        self,
        source: Place,
        target: Place,
        *,
        follow: bool,
        create: Callable[[LogOptions], LogOptions],
        owner: str,
        tell: Tell | None,
    ) -> None:
        self._source = source
        self._target = target
        self._follow = follow
        self._create = create
        self._owner = owner
        self._tell = tell
        self._progress = CopyProgress(target.name, 0, 0, 0, 0, 0)

    async def run(self) -> CopyProgress:
        source = await self._look()
        copy_of = await self._begin(source)
        stores = self._target.stores
        mark = new_mark(stores, self._owner)
        uid = source.meta.uid
        engine = Engine(stores, self._target.name, WriterOptions(), mark)
        engine.copies = uid
        await engine.open(None)
        opened = Writer(engine, Looks(stores, self._target.name))
        async with CopyWriter(opened, self._on_copied) as writer:
            end = writer.next_seq
            self._progress = CopyProgress(
                self._target.name, copy_of.first_seq, end, end, max(end, source.next_seq), 0
            )
            if end > copy_of.first_seq:
                await self._compare(uid, end - 1)
            try:
                await self._copy(uid, writer)
            except asyncio.CancelledError:
                await writer.close(timeout=INTERRUPTED_S)
                raise
        return self._progress

    # --- before

    async def _look(self) -> _Source:
        name, stores = self._source.name, self._source.stores
        view = SegmentView(name, stores.layout, tail="strict")
        return await look(stores, view, _look(view))

    async def _begin(self, source: _Source) -> CopyOf:
        meta = source.meta
        first = await self._message_at(self._source, source.head_seq)
        # The seam before it is stamped so, and times never fall.
        last_time_us = meta.end.last_time_us if first is None else first.timestamp_us
        stores, name = self._target.stores, self._target.name
        target = Target(
            name,
            stores.layout.log(name),
            CopyOf(
                meta.uid,
                self._source.name,
                source.head_seq,
                forgotten=await self._producers_before(source),
            ),
            last_time_us,
            self._create(meta.options),
            stores.chance.token(),
            meta.producers,
        )
        return await Driver(stores.meta, stores.ledgers).run(begin_copy(target, stores.chance))

    async def _producers_before(self, source: _Source) -> tuple[tuple[int, int], ...] | None:
        """The ids of the producers that wrote what was truncated, and of others, as ranges. None
        where that cannot be told, as where an open segment was truncated in part."""
        meta, head_seq = source.meta, source.head_seq
        if head_seq == 0 or not meta.producers:
            return ()
        if head_seq > meta.end.next_seq:
            return None
        number = meta.unsealed[0].number if meta.unsealed else meta.next_number
        stores, name = self._source.stores, self._source.name
        # The version is used by those only that change the log.
        counting = count_producers(name, stores.layout, Seen(meta, 0), number)
        try:
            producers = await Driver(stores.meta, stores.ledgers).run(counting)
        except NotFound:
            return None  # a ledger of the list was deleted meanwhile
        ids = producers.forgotten.joined(ForgottenIds.of(producers.rows))
        if not ids or ids == ALL_IDS:  # nobody: the table was truncated with a log that had ended
            return None
        return ids.coarser(limits.FORGOTTEN_RANGES_OF_COPY).ranges

    async def _compare(self, uid: str, seq: int) -> None:
        """The last message of the copy is the other log's, or the one of them is not what it was:
        restored from a backup, say."""
        try:
            there = await self._message_at(self._source, seq)
        except Truncated:
            return  # what follows it may be there yet: reading tells
        try:
            here = await self._message_at(self._target, seq)
        except Truncated:
            here = there  # nothing is left to compare it with; but the other log has to have it
        if there is None or here is None or _content(there) != _content(here):
            what = "does not have" if there is None else "has another message at"
            raise AlreadyExists(
                f"the copy {self._target.name!r} holds seq {seq}, but the log "
                f"{self._source.name!r} ({uid}) {what} it",
                log=self._target.name,
            )

    async def _message_at(self, place: Place, seq: int) -> Message | None:
        reader = Reader(place.stores, place.name, ReaderOptions(tail="strict"))
        try:
            await reader.seek(seq, end=seq + 1)
            found = await reader.read(1)
            return found[0] if found else None
        finally:
            await reader.close()

    # --- copying

    async def _copy(self, uid: str, writer: CopyWriter) -> None:
        options = ReaderOptions(follow=self._follow, tail="strict")
        name = self._source.name
        async with Reader(self._source.stores, name, options) as reader:
            await reader.seek(writer.next_seq)
            if reader.position.log_uid != uid:
                raise NotFound(f"the log {name!r} was removed, and another one made", log=name)
            self._report()  # where we are, before the first message
            async for batch in reader.batches():
                await writer.put(batch.entry, batch.start, batch.end, batch.first_seq)
            await writer.flush()

    def _on_copied(self, next_seq: int, size: int) -> None:
        before = self._progress
        self._progress = dataclasses.replace(
            before,
            next_seq=next_seq,
            end_seq=max(before.end_seq, next_seq),
            bytes=before.bytes + size,
        )
        self._report()

    def _report(self) -> None:
        if self._tell is None:
            return
        try:
            self._tell(self._progress)
        except Exception:  # noqa: BLE001 - user code: it must not stop the acknowledgements
            _log.exception("log %s: who is told of its copy failed", self._target.name)


def _look(view: SegmentView) -> Procedure[_Source]:
    meta = yield from view.refresh()
    head = yield from locate(view, EARLIEST)
    tail = yield from find_tail(view)
    assert head.seq is not None
    return _Source(meta, head.seq, max(head.seq, tail.next_seq))


def _content(message: Message) -> tuple[object, ...]:
    """All but its id and its epoch: those belong to the log that it stands in."""
    return (
        message.seq,
        message.key,
        message.value,
        message.headers,
        message.timestamp_us,
        message.event_time_us,
    )

"""Reads one ledger beside its appender: only what is published, checked frame by frame.

While no word says that the ledger is ending, the published word *is* the answer and nothing else is
asked. Once one does, metadata decides. Reading on from where the last read ended needs no search;
any other entry is found backwards from a known frame by jump pointers, in O(log² n) header reads.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable

from dlog.clock import Clock
from dlog.errors import (
    ConfigError,
    Corrupt,
    DlogError,
    ForkedHandle,
    NotFound,
    check,
)
from dlog.ledger.embedded.datafile import DataFile, disk_error
from dlog.ledger.embedded.file import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    OFFSET_END,
    Frame,
    check_file_header,
    parse_frame,
    payload_is_whole,
    salt_of,
)
from dlog.ledger.embedded.nodes import End, LedgerNodes, Node
from dlog.ledger.embedded.words import Words
from dlog.ledger.store import LedgerInfo
from dlog.limits import KIB, MIB
from dlog.nudge import Nudge, nudge_for

_RUN_BYTES_MAX = 16 * MIB  # of one buffer, whatever the caller would take
_RUN_SLACK_BYTES = 4 * KIB  # headers and paddings beside the payloads that were asked for
_PLACES_MAX = 256  # remembered frames: enough for a few scans at once
_LOOK_AGAIN_MS = 50.0  # under every nudge: a lost one costs no more than this


class EmbeddedReader:
    def __init__(
        self,
        node: Node,
        *,
        data_path: str,
        words_path: str,
        nodes: LedgerNodes,
        clock: Clock,
        on_closed: Callable[[EmbeddedReader], None],
    ) -> None:
        self.ledger_id = node.ledger_id
        self._pid = os.getpid()
        self._end: End | None = node.end
        self._uid = node.uid
        self._salt = salt_of(node.uid)
        self._data_path = data_path
        self._words_path = words_path
        self._nodes = nodes
        self._clock = clock
        self._on_closed = on_closed
        self._data: DataFile | None = None
        self._words: Words | None = None
        self._nudge: Nudge | None = None
        self._tip: Frame | None = None  # the newest published frame seen
        self._places: OrderedDict[int, int] = OrderedDict()  # entry id -> offset, least used first
        self._closed = False

    async def info(self) -> LedgerInfo:
        self._check_usable()
        node = await self._nodes.read(self.ledger_id)
        self._end = node.end
        return node.info

    async def last_readable(self) -> int:
        readable = (await self._look())[0]
        if readable < 0 and await self._is_deleted():
            raise self._not_found()
        return readable

    async def wait_past(self, last_entry: int, timeout_ms: float) -> int:
        deadline_s = self._clock.monotonic_s() + timeout_ms / 1000
        fenced_before: bool | None = None
        while True:
            nudge = self._listen()  # before the look, so that nothing falls between the two
            readable, ended = await self._look()
            words = self._words
            fenced = words is not None and words.fenced
            if fenced_before is None:
                fenced_before = fenced
            left_ms = (deadline_s - self._clock.monotonic_s()) * 1000
            if readable > last_entry or ended or fenced is not fenced_before:
                if nudge is not None:
                    nudge.found()
                return readable
            if left_ms <= 0:
                return readable
            step_ms = min(left_ms, _LOOK_AGAIN_MS)
            if nudge is not None:
                await nudge.wait(step_ms)
            else:
                await asyncio.sleep(step_ms / 1000)

    async def read(self, first_entry: int, last_entry: int, *, bytes_max: int) -> list[memoryview]:
        readable, _ = await self._look()
        if not 0 <= first_entry <= last_entry:
            raise ConfigError(f"no entries to read from {first_entry} to {last_entry}")
        if await self._is_deleted():
            raise self._not_found()
        if last_entry > readable:
            raise ConfigError(f"entry {last_entry} is not readable; the last one is {readable}")
        data, tip = self._open_data(), await self._newest_frame()
        if data is None or tip is None:
            raise self._corrupt(0, first_entry)
        entries, offset, next_offset = await data.run(
            lambda wait: self._read_run(data, tip, first_entry, last_entry, bytes_max, wait)
        )
        self._remember(first_entry, offset)
        if first_entry + len(entries) <= tip.entry_id:
            self._remember(first_entry + len(entries), next_offset)
        return entries

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid and self._nudge is not None:
            self._nudge.close()
        if self._words is not None:
            self._words.close()
        if self._data is not None:
            self._data.close()
        self._on_closed(self)

    # Looking: what may be read now.

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"ledger {self.ledger_id} was opened by process {self._pid}, before a fork",
                ledger_id=self.ledger_id,
                pid=self._pid,
            )
        if self._closed:
            raise ConfigError(f"the reader of ledger {self.ledger_id} was closed")

    async def _look(self) -> tuple[int, bool]:
        """The last readable entry, and whether there will never be another one."""
        self._check_usable()
        words = self._open_words()
        if self._end is None and (words is None or words.ending):
            try:
                self._end = (await self._nodes.read(self.ledger_id)).end
            except NotFound:
                return -1, True
        elif self._end is not None and await self._is_deleted():
            return -1, True
        if self._end is not None:
            return self._end.last_entry, True
        try:
            tip = await self._newest_frame()
        except NotFound:
            return -1, True
        return (tip.entry_id if tip is not None else -1), False

    async def _is_deleted(self) -> bool:
        words = self._open_words()
        if words is not None and not words.deleting:
            return False
        try:
            await self._nodes.read(self.ledger_id)
        except NotFound:
            return True
        return False

    async def _newest_frame(self) -> Frame | None:
        """The frame at the closed end or, in an open ledger, the published one."""
        words, end = self._open_words(), self._end
        if end is not None:
            offset, entry_id = end.offset, end.last_entry
        else:
            offset, entry_id = (words.published_offset if words is not None else 0), None
        if offset == 0:
            return None
        if self._tip is None or self._tip.offset != offset:
            data = self._open_data()
            if data is None:  # deleted since we looked, or lost
                raise self._not_found() if await self._is_deleted() else self._corrupt(0, -1)
            self._tip = await data.run(lambda wait: self._header_at(data, offset, entry_id, wait))
        return self._tip

    def _open_words(self) -> Words | None:
        """None while there are none: a creator or a deleter died between node and files."""
        if self._words is None:
            try:
                self._words = Words(self._words_path, self.ledger_id, create=False)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise disk_error(error, "open", self._words_path, self.ledger_id) from error
        return self._words

    def _open_data(self) -> DataFile | None:
        if self._data is None:
            try:
                data = DataFile(self._data_path, self.ledger_id)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise disk_error(error, "open", self._data_path, self.ledger_id) from error
            try:
                header = data.read(0, FILE_HEADER_BYTES, wait=True)
                check_file_header(header, self.ledger_id, self._uid, self._data_path)
            except OSError as error:
                data.close()
                raise disk_error(error, "read", self._data_path, self.ledger_id) from error
            except DlogError:
                data.close()
                raise
            self._data = data
        return self._data

    def _listen(self) -> Nudge | None:
        if self._nudge is None:
            try:
                self._nudge = nudge_for(self._words_path)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise disk_error(error, "watch", self._words_path, self.ledger_id) from error
        return self._nudge

    # Reading: may run on a thread, so nothing of the reader is changed from here on.

    def _read_run(
        self,
        data: DataFile,
        tip: Frame,
        first_entry: int,
        last_entry: int,
        bytes_max: int,
        wait: bool,
    ) -> tuple[list[memoryview], int, int]:
        """The entries, where the first of them begins and where the next one does."""
        offset = self._places.get(first_entry)
        if offset is None:
            offset = self._search(data, tip, first_entry, wait)
        size = min(bytes_max + _RUN_SLACK_BYTES, _RUN_BYTES_MAX, tip.end_offset - offset)
        raw = data.read(offset, max(size, FRAME_HEADER_BYTES), wait=wait)
        first = self._parse(memoryview(raw), 0, offset, first_entry)
        if first.end_offset - offset > len(raw):  # one entry may exceed what was asked for
            raw = data.read(offset, first.end_offset - offset, wait=wait)
        buffer = memoryview(raw).toreadonly()
        entries, next_offset = self._cut(buffer, first, last_entry, bytes_max)
        return entries, offset, next_offset

    def _cut(
        self, buffer: memoryview, first: Frame, last_entry: int, bytes_max: int
    ) -> tuple[list[memoryview], int]:
        """The payloads of the whole frames in the buffer, in place, and where the next one is."""
        entries: list[memoryview] = []
        base, frame, taken_bytes = first.offset, first, 0
        while True:
            at = frame.payload_offset - base
            if not payload_is_whole(frame, buffer, at):
                if entries:  # first what is good; the next read meets the bad one first
                    break
                raise self._corrupt(frame.offset, frame.entry_id)
            entries.append(buffer[at : at + frame.payload_bytes])
            taken_bytes += frame.payload_bytes
            at, offset, entry_id = frame.end_offset - base, frame.end_offset, frame.entry_id + 1
            if entry_id > last_entry or at + FRAME_HEADER_BYTES > len(buffer):
                break
            following = parse_frame(buffer, at, offset, self.ledger_id, self._salt)
            if following is None or following.entry_id != entry_id:
                break  # likewise
            check(following.previous_offset == frame.offset, "frames are contiguous", following)
            if (
                taken_bytes + following.payload_bytes > bytes_max
                or following.end_offset - base > len(buffer)
            ):
                break
            frame = following
        return entries, offset

    def _search(self, data: DataFile, tip: Frame, entry_id: int, wait: bool) -> int:
        """Backwards from the nearest frame known behind the entry."""
        frame = tip
        nearest = min((known for known in list(self._places) if known > entry_id), default=None)
        if nearest is not None and nearest < tip.entry_id:
            frame = self._header_at(data, self._places[nearest], nearest, wait)
        while frame.entry_id > entry_id:
            jump_to = frame.entry_id & (frame.entry_id - 1)
            if jump_to >= entry_id:
                frame = self._header_at(data, frame.jump_offset, jump_to, wait)
            else:
                frame = self._header_at(data, frame.previous_offset, frame.entry_id - 1, wait)
        return frame.offset

    def _header_at(self, data: DataFile, offset: int, entry_id: int | None, wait: bool) -> Frame:
        if not 0 <= offset < OFFSET_END:  # the words are damaged
            raise self._corrupt(offset, -1 if entry_id is None else entry_id)
        raw = data.read(offset, FRAME_HEADER_BYTES, wait=wait)
        return self._parse(memoryview(raw), 0, offset, entry_id)

    def _parse(self, raw: memoryview, at: int, offset: int, entry_id: int | None) -> Frame:
        frame = parse_frame(raw, at, offset, self.ledger_id, self._salt)
        if frame is None or (entry_id is not None and frame.entry_id != entry_id):
            raise self._corrupt(offset, -1 if entry_id is None else entry_id)
        return frame

    def _remember(self, entry_id: int, offset: int) -> None:
        self._places[entry_id] = offset
        self._places.move_to_end(entry_id)
        if len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)

    def _corrupt(self, offset: int, entry_id: int) -> Corrupt:
        return Corrupt(
            f"{self._data_path} is damaged at offset {offset}",
            path=self._data_path,
            offset=offset,
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )

    def _not_found(self) -> NotFound:
        return NotFound(f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id)

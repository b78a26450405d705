"""Finding the end of a ledger whose fence is set, from its file. Runs on a thread; decides nothing.

Frames are followed from the newest one known to be confirmed for as long as they fit: next id,
right place, right checksum. The first that does not ends the ledger, *unless* it had been
confirmed: by the words, or by any whole frame anywhere behind it that carries a confirmation at or
above it. Then something that was acknowledged is damaged, and that is `Corrupt`, never skipped.

The file is only read. Cutting it under a paused writer would leave a hole when it wakes and writes
on: its bytes above the end are simply never looked at.
"""

from __future__ import annotations

from dlog.errors import Corrupt
from dlog.ledger.embedded.datafile import DataFile
from dlog.ledger.embedded.file import (
    FILE_HEADER_BYTES,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    OFFSET_END,
    Frame,
    check_file_header,
    parse_frame,
    payload_is_whole,
    salt_of,
)
from dlog.ledger.embedded.nodes import EMPTY, End
from dlog.limits import KIB, MIB

_CHUNK_BYTES = 8 * MIB
_CHUNK_FIRST_BYTES = 64 * KIB
_SEARCH_BYTES = 4 * MIB

assert _CHUNK_BYTES >= FRAME_BYTES_MAX


def find_end(file: DataFile, uid: bytes, *, confirmed_offset: int, only_confirmed: bool) -> End:
    """Where the ledger ends. `confirmed_offset` is where the newest frame known to be confirmed
    begins (0: none known); `only_confirmed` says that what follows it may not be on disk."""
    scan = _Scan(file, uid)
    if confirmed_offset == 0:
        if only_confirmed or not scan.begins():
            return EMPTY
        return scan.follow(None, FILE_HEADER_BYTES)
    scan.check_begins()
    # The words may be damaged, too, and name what is no place in any file.
    is_place = 0 < confirmed_offset < OFFSET_END
    frame = scan.whole_frame(confirmed_offset) if is_place else None
    if frame is None:
        raise scan.corrupt(confirmed_offset, "the newest confirmed entry")
    if only_confirmed:
        return _end_of(frame)
    return scan.follow(frame, frame.end_offset)


def _end_of(frame: Frame) -> End:
    return End(frame.entry_id, frame.bytes_through, frame.offset)


class _Scan:
    def __init__(self, file: DataFile, uid: bytes) -> None:
        self._file = file
        self._uid = uid
        self._salt = salt_of(uid)
        self._chunk = memoryview(b"")
        self._chunk_offset = 0
        self._chunk_bytes = _CHUNK_FIRST_BYTES

    def check_begins(self) -> None:
        header = self._file.read(0, FILE_HEADER_BYTES, wait=True)
        check_file_header(header, self._file.ledger_id, self._uid, self._file.path)

    def begins(self) -> bool:
        """False for a file whose creator died before the header was on disk: then no entry was
        either."""
        begin = self._file.read(0, FILE_HEADER_BYTES, wait=True)
        if len(begin) < FILE_HEADER_BYTES:
            return False
        if not any(begin) and self._newest_confirmation(0, -1) < 0:
            return False
        self.check_begins()
        return True

    def follow(self, last: Frame | None, offset: int) -> End:
        """The chain of frames from `offset` on, behind `last`."""
        known = last.entry_id if last is not None else -1
        while True:
            frame = self.whole_frame(offset)
            if frame is None or not _fits(frame, last):
                break
            known = max(known, frame.last_confirmed)
            last, offset = frame, frame.end_offset
        bad_entry = last.entry_id + 1 if last is not None else 0
        if max(known, self._newest_confirmation(offset, bad_entry)) >= bad_entry:
            raise self.corrupt(offset, f"confirmed entry {bad_entry}", bad_entry)
        return _end_of(last) if last is not None else EMPTY

    def whole_frame(self, offset: int) -> Frame | None:
        raw, at = self._at(offset, FRAME_HEADER_BYTES)
        frame = parse_frame(raw, at, offset, self._file.ledger_id, self._salt)
        if frame is None:
            return None
        raw, at = self._at(frame.payload_offset, frame.padded_bytes)
        return frame if payload_is_whole(frame, raw, at) else None

    def _at(self, offset: int, size: int) -> tuple[memoryview, int]:
        """A buffer that holds the file from `offset` for `size` bytes, as far as there are any, and
        the index in it."""
        at = offset - self._chunk_offset
        if at < 0 or at + size > len(self._chunk):
            # Small first: mostly there is nothing behind the confirmed frame but a torn tail.
            self._chunk = memoryview(self._read(offset, max(size, self._chunk_bytes)))
            self._chunk_bytes = min(_CHUNK_BYTES, 2 * self._chunk_bytes)
            self._chunk_offset, at = offset, 0
        return self._chunk, at

    def _read(self, offset: int, size: int) -> bytearray:
        """No buffer larger than the rest of the file, which mostly is a torn tail."""
        return self._file.read(offset, max(0, min(size, self._file.size() - offset)), wait=True)

    def _newest_confirmation(self, offset: int, above_entry: int) -> int:
        """The highest LAC in any header at or behind `offset` of an entry above `above_entry`; -1
        for none. Headers have their own CRC, tied to their place, so one that fits is no accident
        and no payload that looks like one."""
        newest = -1
        begin = offset
        while (data := self._file.next_data(begin)) is not None:
            begin = data - data % 8
            chunk = self._read(begin, _SEARCH_BYTES + FRAME_HEADER_BYTES)
            view = memoryview(chunk)
            # Reserved space is all zeros, and a search for one byte goes ten times as fast.
            at = chunk.find(FRAME_MAGIC) if FRAME_MAGIC[0] in chunk else -1
            while 0 <= at < _SEARCH_BYTES:
                if at % 8 == 0:
                    frame = parse_frame(view, at, begin + at, self._file.ledger_id, self._salt)
                    if frame is not None and frame.entry_id > above_entry:
                        newest = max(newest, frame.last_confirmed)
                at = chunk.find(FRAME_MAGIC, at + 1)
            begin += _SEARCH_BYTES
        return newest

    def corrupt(self, offset: int, what: str, entry_id: int | None = None) -> Corrupt:
        path = self._file.path
        return Corrupt(
            f"{what} is damaged in {path} at offset {offset}",
            path=path,
            offset=offset,
            ledger_id=self._file.ledger_id,
            entry_id=entry_id,
        )


def _fits(frame: Frame, last: Frame | None) -> bool:
    if last is None:
        return frame.entry_id == 0 and frame.bytes_before == 0
    return (
        frame.entry_id == last.entry_id + 1
        and frame.bytes_before == last.bytes_through
        and frame.previous_offset == last.offset
    )

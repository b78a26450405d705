"""Entries to messages. `decode` checks everything once; after it no access can go wrong.

An `Entry` keeps the buffer and remembers where its columns stand; lists and Arrow arrays are made
from it when asked for. An uncompressed entry is never copied as a whole. The buffer must not change
while the entry lives; its alignment does not matter for being right, only for Arrow's speed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dlog.errors import Corrupt
from dlog.wire import Buffer, columns, layout
from dlog.wire.columns import Binary
from dlog.wire.compress import decompress
from dlog.wire.layout import Header


class Entry(Header):
    """The messages of one entry, or the body of a control entry. Columns that no message uses are
    None; times of writing are always there."""

    __slots__ = (
        "_body",
        "_event_times_at",
        "_header_lists_at",
        "_header_names",
        "_header_values",
        "_keys",
        "_timestamps_at",
        "_values",
        "control_body",
        "stored",
    )

    _keys: Binary | None

    def __init__(self, buffer: Buffer, where: str) -> None:
        super().__init__(buffer, where)
        self.stored = memoryview(buffer)  # all of it, as it was read
        body = self.stored[self.header_bytes :]
        if self.codec:
            body = memoryview(decompress(self.codec, body, self.raw_bytes, where=where))
        self._body = body
        walk = _Walk(body, where)
        if self.control is None:
            self.control_body = b""
            self._find_columns(walk)
        else:
            self.control_body = self._find_control_body(walk)
        if walk.at != walk.end and not self.attributes & layout.MAY_IGNORE:
            raise Corrupt(f"{where}: {walk.end - walk.at} bytes stand after the known columns")

    def _find_columns(self, walk: _Walk) -> None:
        count, attributes = self.count, self.attributes
        self._timestamps_at = -1
        if attributes & layout.HAS_TIMESTAMPS:
            self._timestamps_at = walk.take(8 * count, "timestamps")
            self._check_timestamps(walk.where)
        self._event_times_at = -1
        if attributes & layout.HAS_EVENT_TIMES:
            self._event_times_at = walk.take(8 * count, "event times")
            walk.take(columns.bitmap_bytes(count), "event time bits")
        self._values = walk.take_binary(
            count, "values", nullable=bool(attributes & layout.HAS_TOMBSTONES)
        )
        self._keys = None
        if attributes & layout.HAS_KEYS:
            self._keys = walk.take_binary(count, "keys", nullable=True)
        self._header_lists_at = -1
        if attributes & layout.HAS_HEADERS:
            self._find_headers(walk)

    def _check_timestamps(self, where: str) -> None:
        at, count = self._timestamps_at, self.count
        (first,) = columns.unpack_numbers(self._body, at, 1)
        (last,) = columns.unpack_numbers(self._body, at + 8 * (count - 1), 1)
        if (first, last) != (self.base_timestamp_us, self.last_timestamp_us) or (
            not columns.never_falls(self._body, at, count)
        ):
            raise Corrupt(f"{where}: the timestamps fall, or begin or end as the header does not")

    def _find_headers(self, walk: _Walk) -> None:
        self._header_lists_at, pair_count = walk.take_offsets(self.count, "header lists")
        self._header_names = walk.take_binary(pair_count, "header names")
        self._header_values = walk.take_binary(pair_count, "header values")
        if not columns.is_text(self._body, self._header_names):
            raise Corrupt(f"{walk.where}: a header name is not UTF-8")

    def _find_control_body(self, walk: _Walk) -> bytes:
        at = walk.take(layout.CONTROL_HEAD.size, "control head")
        _, size = layout.CONTROL_HEAD.unpack_from(self._body, at)
        begin = walk.take(size, "control body")
        return bytes(self._body[begin : begin + size])

    def values(self) -> list[bytes | None]:
        """None is a tombstone, `b""` is empty."""
        return columns.unpack_nullable(self._body, self._values)

    def keys(self) -> list[bytes | None] | None:
        return None if self._keys is None else columns.unpack_nullable(self._body, self._keys)

    def headers(self) -> list[tuple[tuple[str, bytes], ...]] | None:
        """In order, with repetitions; a message without headers has `()`."""
        if self._header_lists_at < 0:
            return None
        names = columns.unpack_items(self._body, self._header_names)
        text_of = {name: str(name, "utf-8") for name in set(names)}
        values = columns.unpack_items(self._body, self._header_values)
        pairs = list(zip(map(text_of.__getitem__, names), values, strict=True))
        bounds = columns.unpack_offsets(self._body, self._header_lists_at, self.count)
        return [tuple(pairs[begin:end]) for begin, end in pairwise(bounds)]

    def event_times_us(self) -> list[int | None] | None:
        at = self._event_times_at
        if at < 0:
            return None
        times = columns.unpack_numbers(self._body, at, self.count)
        present = columns.unpack_validity(self._body, at + 8 * self.count, self.count)
        return [time if there else None for time, there in zip(times, present, strict=False)]

    def timestamps_us(self) -> list[int]:
        """Never falling."""
        if self._timestamps_at < 0:
            return [self.base_timestamp_us] * self.count
        times = list(columns.unpack_numbers(self._body, self._timestamps_at, self.count))
        first_us = self.base_timestamp_us
        return times if times[0] == first_us else [max(each, first_us) for each in times]

    def not_before(self, time_us: int) -> None:
        """Messages that are older count as written at this time."""
        self.base_timestamp_us = max(self.base_timestamp_us, time_us)
        self.last_timestamp_us = max(self.last_timestamp_us, time_us)

    def arrow_columns(self) -> dict[str, Any]:
        """pyarrow arrays `value`, `key`, `headers`, `timestamp`, `event_time`, over this buffer."""
        from dlog.wire import arrow

        return arrow.arrow_columns(self)

    def to_arrow(self) -> Any:
        """A `pyarrow.RecordBatch` of these columns."""
        from dlog.wire import arrow

        return arrow.to_arrow(self)


class _Walk:
    """Goes over a body column by column and refuses what would reach beyond its end."""

    __slots__ = ("at", "body", "end", "where")

    def __init__(self, body: memoryview, where: str) -> None:
        self.body = body
        self.at = 0
        self.end = len(body)
        self.where = where

    def take(self, size: int, what: str) -> int:
        """Where a column of `size` bytes begins; the next one begins after its padding."""
        begin = self.at
        self.at = begin + size + (-size & 7)
        if self.at > self.end:
            raise Corrupt(
                f"{self.where}: {what} of {size} bytes at {begin} in a body of {self.end}"
            )
        return begin

    def take_offsets(self, count: int, what: str) -> tuple[int, int]:
        """Where the offsets of `count` items stand, and the last of them."""
        at = self.take(4 * (count + 1), f"offsets of {what}")
        last = columns.rising_to(self.body, at, count)
        if last is None:
            raise Corrupt(f"{self.where}: the offsets of {what} do not rise from 0")
        return at, last

    def take_binary(self, count: int, what: str, *, nullable: bool = False) -> Binary:
        offsets_at, data_bytes = self.take_offsets(count, what)
        data_at = self.take(data_bytes, what)
        validity_at = self.take(columns.bitmap_bytes(count), f"bits of {what}") if nullable else -1
        return Binary(count, offsets_at, data_at, data_bytes, validity_at)


def decode(buffer: Buffer, *, where: str) -> Entry:
    """The entry in `buffer`, all of it; `where` names it in errors, as "ledger 12 entry 5".

    `FormatError` for what this version does not know, `Unsupported` for what it knows and does not
    do, `Corrupt` for bytes that contradict themselves.
    """
    return Entry(buffer, where)

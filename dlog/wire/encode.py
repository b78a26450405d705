"""Messages to entries. The result is a list of buffers to be written one after the other, so that a
large payload is not copied only to stand behind its header.

Numbers, counts and sizes are checked here once more, although the writer has asked its own
questions before: an entry that cannot be read back must not exist. What the caller got wrong is a
`ConfigError`, what does not fit is `TooLarge`, and in both cases nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from struct import Struct, error, pack
from typing import cast

from dlog.errors import ConfigError, TooLarge
from dlog.limits import ENTRY_MESSAGES_MAX, HEADERS_PER_MESSAGE_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import Buffer, columns, layout
from dlog.wire.compress import Codec, compress
from dlog.wire.control import ControlKind

Headers = tuple[tuple[str, bytes], ...]

_PAD = tuple(bytes(size) for size in range(8))
_PLAIN_ONE = Struct(layout.HEADER.format + "ii")  # header and offsets of one plain message
_PLAIN_ONE_BYTES_MAX = (LEDGER_ENTRY_BYTES_MAX - _PLAIN_ONE.size) // 8 * 8  # whole words
# Joining small values costs less than handing many buffers around; large ones stay where they are.
_JOIN_ITEM_BYTES_MAX = 8 << 10


class _Body:
    """Columns as they are added, each padded to eight bytes."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.size = 0

    def add(self, column: Buffer) -> None:
        self.parts.append(column)
        self._pad(len(column))

    def add_items(self, items: Sequence[bytes | None], what: str) -> bool:
        """Offsets, then data. True when one is None: its slot is empty, and the caller says so."""
        try:
            present = cast(Sequence[bytes], items)
            try:
                offsets, total = columns.pack_offsets(present)
            except TypeError:  # None has no length; asking every item first would cost more
                present = [b"" if item is None else item for item in items]
                offsets, total = columns.pack_offsets(present)
            self.add(offsets)
            self.parts.extend(_data(present, total))
        except TypeError as wrong:
            raise ConfigError(f"{what} are bytes: {wrong}") from None
        self._pad(total)
        return present is not items

    def _pad(self, size: int) -> None:
        pad = -size & 7
        if pad:
            self.parts.append(_PAD[pad])
        self.size += size + pad


def _data(items: Sequence[bytes], total: int) -> Sequence[bytes]:
    if len(items) > 1 and total <= len(items) * _JOIN_ITEM_BYTES_MAX:
        joined = b"".join(items)
        if len(joined) != total:
            raise TypeError("not views of anything wider")
        return (joined,)
    for item in items:
        if not isinstance(item, bytes):
            raise TypeError(f"not {type(item).__name__}")
    return items


def encode(
    values: Sequence[bytes | None],
    *,
    first_seq: int,
    timestamp_us: int,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    event_times_us: Sequence[int | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int] | None = None,
) -> list[Buffer]:
    """One entry of all these messages. `first_seq` is relative to the segment; `timestamp_us`
    stamps every message, unless `timestamps_us` gives each its own, which never falls. A value of
    None is a tombstone. `producer` is its id and the number of its first message here."""
    count = len(values)
    if (
        count == 1
        and keys is headers is event_times_us is timestamps_us is producer is None
        and codec is Codec.NONE
        and type(values[0]) is bytes
    ):
        return _plain_one(values[0], first_seq, timestamp_us)
    _check_counts(count, (keys, headers, event_times_us, timestamps_us))
    body = _Body()
    attributes = 0
    base_us = last_us = timestamp_us
    if timestamps_us is not None:
        base_us, last_us = timestamps_us[0], timestamps_us[-1]
        if timestamps_us.count(base_us) != count:
            if sorted(timestamps_us) != list(timestamps_us):
                raise ConfigError("timestamps of one entry never fall")
            attributes |= layout.HAS_TIMESTAMPS
            body.add(_numbers(timestamps_us, "timestamps"))
    if event_times_us is not None and _has_any(event_times_us):
        attributes |= layout.HAS_EVENT_TIMES
        body.add(_numbers([0 if at is None else at for at in event_times_us], "event times"))
        body.add(columns.pack_validity(event_times_us))
    if body.add_items(values, "values"):
        attributes |= layout.HAS_TOMBSTONES
        body.add(columns.pack_validity(values))
    if keys is not None and _has_any(keys):
        attributes |= layout.HAS_KEYS
        body.add_items(keys, "keys")
        body.add(columns.pack_validity(keys))
    if headers is not None and any(headers):
        attributes |= layout.HAS_HEADERS
        _add_headers(body, headers)
    return _finish(body, attributes, count, first_seq, base_us, last_us, codec, producer)


def encode_control(
    kind: ControlKind, body: bytes, *, first_seq: int, timestamp_us: int
) -> list[Buffer]:
    """An entry of the log's own, with count 0. All but the birth carry the next relative seq."""
    columns_of_one = _Body()
    columns_of_one.add(layout.CONTROL_HEAD.pack(kind, len(body)))
    columns_of_one.add(body)
    return _finish(
        columns_of_one, layout.CONTROL, 0, first_seq, timestamp_us, timestamp_us, Codec.NONE, None
    )


def _plain_one(value: bytes, first_seq: int, timestamp_us: int) -> list[Buffer]:
    """The most frequent entry of a quiet log, without detours: what the long way gives, too."""
    size = len(value)
    if size > _PLAIN_ONE_BYTES_MAX:
        raise _too_large(size)
    _check_seqs(first_seq, 1)
    pad = -size & 7
    body_bytes = 8 + size + pad
    try:
        front = _PLAIN_ONE.pack(
            layout.MAGIC,
            0,
            layout.HEADER_BYTES,
            1,
            first_seq,
            timestamp_us,
            body_bytes,
            body_bytes,
            timestamp_us,
            0,
            size,
        )
    except error as wrong:
        raise ConfigError(f"a timestamp is a number of 64 bits: {wrong}") from None
    return [front, value, _PAD[pad]] if pad else [front, value]


def _has_any(column: Sequence[object]) -> bool:
    return column[0] is not None or column.count(None) != len(column)


def _numbers(numbers: Sequence[int], what: str) -> bytes:
    try:
        return columns.pack_numbers(numbers)
    except error as wrong:
        raise ConfigError(f"{what} are numbers of 64 bits: {wrong}") from None


def _add_headers(body: _Body, headers: Sequence[Headers | None]) -> None:
    """Where the pairs of each message end, then all names, then all values."""
    counts = [len(pairs) if pairs else 0 for pairs in headers]
    if max(counts) > HEADERS_PER_MESSAGE_MAX:
        raise TooLarge(
            f"a message has at most {HEADERS_PER_MESSAGE_MAX} headers, not {max(counts)}"
        )
    pairs = list(chain.from_iterable(filter(None, headers)))
    names = [name for name, _ in pairs]
    try:
        bytes_of = {name: name.encode() for name in set(names)}  # few names, used many times
    except (UnicodeEncodeError, AttributeError) as wrong:
        raise ConfigError(f"a header name is text that UTF-8 can hold: {wrong}") from None
    body.add(pack(f"<{len(counts) + 1}i", *accumulate(counts, initial=0)))
    body.add_items(list(map(bytes_of.__getitem__, names)), "header names")
    if body.add_items([value for _, value in pairs], "header values"):
        raise ConfigError("a header has a value")


def _finish(
    body: _Body,
    attributes: int,
    count: int,
    first_seq: int,
    base_us: int,
    last_us: int,
    codec: Codec,
    producer: tuple[int, int] | None,
) -> list[Buffer]:
    """Compress if that helps, and put the header in front."""
    _check_seqs(first_seq, count)
    header_bytes = layout.HEADER_BYTES
    tail = b""
    if producer is not None:
        attributes |= layout.HAS_PRODUCER
        header_bytes += layout.PRODUCER.size
        tail = _pack_producer(producer, count)
    # The bound counts the raw body, so that whether a message fits never depends on the codec.
    if header_bytes + body.size > LEDGER_ENTRY_BYTES_MAX:
        raise _too_large(body.size)
    parts, stored_bytes = body.parts, body.size
    if codec is not Codec.NONE:
        stored = compress(codec, b"".join(parts))
        if stored is not None:
            attributes |= codec
            parts, stored_bytes = [stored], len(stored)
    try:
        head = layout.HEADER.pack(
            layout.MAGIC,
            attributes,
            header_bytes,
            count,
            first_seq,
            base_us,
            stored_bytes,
            body.size,
            last_us,
        )
    except error as wrong:
        raise ConfigError(f"a timestamp is a number of 64 bits: {wrong}") from None
    return [head + tail, *parts]


def _pack_producer(producer: tuple[int, int], count: int) -> bytes:
    producer_id, first_number = producer
    if not 0 <= producer_id < layout.SEQ_END or not 0 <= first_number < layout.SEQ_END - count:
        raise ConfigError(f"a producer's id and number count from 0: {producer}")
    return layout.PRODUCER.pack(producer_id, first_number)


def _check_counts(count: int, others: tuple[Sequence[object] | None, ...]) -> None:
    if count == 0:
        raise ConfigError("an entry without messages would be a control entry")
    if count > ENTRY_MESSAGES_MAX:
        raise TooLarge(f"an entry holds {ENTRY_MESSAGES_MAX} messages, not {count}")
    for other in others:
        if other is not None and len(other) != count:
            raise ConfigError(f"{count} values beside {len(other)} keys, headers or times")


def _check_seqs(first_seq: int, count: int) -> None:
    if not 0 <= first_seq < layout.SEQ_END - count:
        raise ConfigError(f"a relative seq counts from 0, not {first_seq}")


def _too_large(size: int) -> TooLarge:
    return TooLarge(
        f"an entry with {size} bytes of content; with its header it holds at most "
        f"{LEDGER_ENTRY_BYTES_MAX}"
    )

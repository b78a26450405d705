"""Entries on their way into another ledger: the same messages, numbered for their new place.

What an entry says of its place is one number, the relative seq of its first message, and its times,
where the log counts them as later ones. Everything else is taken as it is stored, compressed or
not, so that a copy costs no encoding, and what a later version may put behind the known columns
comes along. Only a part of an entry is encoded anew.
"""

from __future__ import annotations

from dlog.errors import Unsupported
from dlog.wire import Buffer, layout
from dlog.wire.decode import Entry
from dlog.wire.encode import encode


def copied(entry: Entry, *, start: int, end: int, first_seq: int) -> list[Buffer]:
    """Messages `start` … `end`-1 of an entry, as an entry whose first relative seq is
    `first_seq`."""
    (stored_us,) = layout.TIME.unpack_from(entry.stored, layout.BASE_TIMESTAMP_AT)
    is_one_time = entry.base_timestamp_us == entry.last_timestamp_us
    has_its_times = stored_us == entry.base_timestamp_us
    has_no_column = not entry.attributes & layout.HAS_TIMESTAMPS
    if start == 0 and end == entry.count and (has_its_times or (is_one_time and has_no_column)):
        head = bytearray(entry.stored[: entry.header_bytes])
        layout.FIRST_SEQ.pack_into(head, layout.FIRST_SEQ_AT, first_seq)
        layout.TIME.pack_into(head, layout.BASE_TIMESTAMP_AT, entry.base_timestamp_us)
        layout.TIME.pack_into(head, layout.LAST_TIMESTAMP_AT, entry.last_timestamp_us)
        return [bytes(head), entry.stored[entry.header_bytes :]]
    if entry.attributes & layout.MAY_IGNORE:
        raise Unsupported(
            "a part of an entry that says more than this version understands cannot be copied"
        )
    keys, headers, event_times = entry.keys(), entry.headers(), entry.event_times_us()
    times = entry.timestamps_us()[start:end]
    return encode(
        entry.values()[start:end],
        first_seq=first_seq,
        timestamp_us=times[0],
        keys=None if keys is None else keys[start:end],
        headers=None if headers is None else headers[start:end],
        event_times_us=None if event_times is None else event_times[start:end],
        timestamps_us=times,
        codec=entry.codec,
        producer=None if entry.producer is None else (entry.producer[0], entry.producer[1] + start),
    )

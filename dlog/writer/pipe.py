"""A pipe: one ledger of ours that takes, or took, our entries. Plain state; `core` decides.

CURRENT ──switch──► DRAINING ──closed at predecessor_last──► CLOSED
    └──────────────────────recovered after a failure────────────┘
"""

from __future__ import annotations

import enum
from collections import deque

from dlog.errors import DlogError, check
from dlog.meta.log_meta import Sealed
from dlog.wire.batch import Codec, encode
from dlog.writer.batch import Batch
from dlog.writer.segments import BIRTH_ENTRY

CODECS = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class PipeState(enum.Enum):
    CURRENT = "current"
    DRAINING = "draining"
    CLOSED = "closed"


class Pipe:
    """`sent` holds the batches that are not released yet, oldest first; entry ids run up without
    holes."""

    __slots__ = (
        "base_seq",
        "bytes",
        "failed",
        "first_time_us",
        "last_confirmed",
        "last_published",
        "last_pushed",
        "last_time_us",
        "ledger_id",
        "next_seq",
        "number",
        "opened_s",
        "predecessor",
        "sent",
        "state",
    )

    def __init__(
        self, number: int, ledger_id: int, base_seq: int, predecessor: tuple[int, int], now_s: float
    ) -> None:
        self.number = number
        self.ledger_id = ledger_id
        self.base_seq = base_seq
        self.predecessor = predecessor  # ledger id and last entry pushed there: what the seam says
        self.opened_s = now_s
        self.next_seq = base_seq
        self.last_pushed = BIRTH_ENTRY
        self.last_confirmed = BIRTH_ENTRY
        self.last_published = BIRTH_ENTRY
        self.bytes = 0
        self.first_time_us = 0
        self.last_time_us = 0
        self.sent: deque[Batch] = deque()
        self.state = PipeState.CURRENT
        self.failed: DlogError | None = None

    @property
    def in_flight_entries(self) -> int:
        return self.last_pushed - self.last_confirmed

    @property
    def is_drained(self) -> bool:
        return self.last_confirmed == self.last_pushed

    @property
    def holds_messages(self) -> bool:
        return self.next_seq > self.base_seq

    def push(
        self, batch: Batch, timestamp_us: int, codec: Codec
    ) -> list[bytes | bytearray | memoryview]:
        """Number the batch as the next entry; its bytes. A batch that is rebuilt keeps its seqs and
        its time."""
        count = len(batch.values)
        check(batch.first_seq == self.next_seq, "seqs have no gaps", batch.first_seq, self.next_seq)
        batch.pad_columns()
        buffers = encode(
            batch.values,
            first_seq=self.next_seq - self.base_seq,
            timestamp_us=timestamp_us,
            keys=batch.keys,
            headers=batch.headers,
            event_times_us=batch.event_times_us,
            codec=codec,
        )
        self.last_pushed += 1
        self.next_seq += count
        self.last_time_us = timestamp_us
        self.bytes += batch.bytes
        batch.ledger_id = self.ledger_id
        batch.entry_id = self.last_pushed
        batch.timestamp_us = timestamp_us
        self.sent.append(batch)
        return buffers

    def released(self, last_entry: int) -> list[Batch]:
        """Takes the batches up to `last_entry` off the line."""
        sent = self.sent
        ready: list[Batch] = []
        while sent and sent[0].entry_id <= last_entry:
            ready.append(sent.popleft())
        return ready

    def sealed(self, *, last_entry: int, ledger_bytes: int) -> Sealed:
        """How the list will describe this segment, closed at `last_entry`; what was not kept is
        still in `sent`."""
        lost = sum(len(batch.values) for batch in self.sent)
        last_time_us = self.last_time_us if not self.sent else self.sent[0].timestamp_us
        return Sealed(
            last_entry,
            ledger_bytes,
            self.base_seq,
            self.next_seq - lost,
            self.first_time_us,
            max(last_time_us, self.first_time_us),
        )

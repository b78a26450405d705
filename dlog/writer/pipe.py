"""A pipe: one ledger of ours that takes, or took, our entries. Plain state; `core` decides.

CURRENT ──switch──► DRAINING ──closed at predecessor_last──► CLOSED
    └──────────────────────recovered after a failure────────────┘
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable

from dlog import limits
from dlog.errors import DlogError, check
from dlog.ledger.store import Buffer
from dlog.meta.listed import Sealed
from dlog.wire.batch import Codec, check_installed
from dlog.writer.batch import Batch
from dlog.writer.producers import Producers
from dlog.writer.segments import BIRTH_ENTRY

CODECS = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
NEVER = 1 << 63


def check_codec(name: str) -> None:
    """`Unsupported`, with what to install, where this process has no such codec."""
    check_installed(CODECS[name])


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
        "table_at_bytes",
        "table_at_entry",
        "table_is_old",
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
        # When the next table of producers is due, and whether a number was written since the last.
        self.table_at_bytes = self.table_at_entry = NEVER
        self.table_is_old = False

    @property
    def in_flight_entries(self) -> int:
        return self.last_pushed - self.last_confirmed

    @property
    def is_drained(self) -> bool:
        return self.last_confirmed == self.last_pushed

    @property
    def holds_messages(self) -> bool:
        return self.next_seq > self.base_seq

    def push(self, batch: Batch, timestamp_us: int, codec: Codec) -> list[Buffer]:
        """Number the batch as the next entry; its bytes. A batch that is rebuilt keeps its seqs and
        its time."""
        count = len(batch.values)
        check(batch.first_seq == self.next_seq, "seqs have no gaps", batch.first_seq, self.next_seq)
        buffers = batch.entry(self.next_seq - self.base_seq, timestamp_us, codec)
        if batch.producer is not None:
            self.table_is_old = True
        self.last_pushed += 1
        self.next_seq += count
        self.last_time_us = timestamp_us
        self.bytes += batch.bytes
        batch.ledger_id = self.ledger_id
        batch.entry_id = self.last_pushed
        batch.timestamp_us = timestamp_us
        self.sent.append(batch)
        return buffers

    def push_table(
        self, producers: Producers, sent: Iterable[Batch], timestamp_us: int
    ) -> list[Buffer]:
        """The next entry: what the log knows of its producers here."""
        buffers = producers.entry(
            sent, first_seq=self.next_seq - self.base_seq, timestamp_us=timestamp_us
        )
        self.last_pushed += 1
        self.last_time_us = timestamp_us
        self.bytes += sum(map(len, buffers))
        self.table_at_bytes = self.bytes + limits.PRODUCERS_EVERY_BYTES
        self.table_at_entry = self.last_pushed + limits.PRODUCERS_EVERY_ENTRIES
        self.table_is_old = False
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

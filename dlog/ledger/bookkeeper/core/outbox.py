"""The entries of one appender that may still have to be sent to somebody, as columns.

Entries are numbered here, for good, and keep their bytes: whoever gets one later gets the same. An
entry is let go when no bookie can need it any more. Sizes stand as running sums, so that the bytes
of a run, the end of a ledger and the edge of a window are looked up, never added up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

from dlog.ledger.store import Buffer
from dlog.limits import ADD_RUN_BYTES_MAX, ADD_RUN_ENTRIES_MAX

# Letting go moves what is kept, so it is done in portions.
_PORTION_ENTRIES = 64
_PORTION_BYTES = 256 << 10


class Outbox:
    """Kept are the entries from `first` up to `end`, without it."""

    __slots__ = ("_frames", "_lacs", "_sums", "_unheld", "end", "first", "fixed_bytes")

    def __init__(self, fixed_bytes: int) -> None:
        self.fixed_bytes = fixed_bytes  # of each frame, beside the payload
        self.first = 0
        self.end = 0
        self._unheld = 0  # entries in front that are let go, but not yet taken out
        self._frames: list[Sequence[Buffer]] = []
        self._lacs: list[int] = []
        self._sums = [0]  # payload bytes of the ledger before each kept entry, and at the end

    @property
    def ledger_bytes(self) -> int:
        """Payloads of all entries there ever were."""
        return self._sums[-1]

    def put(self, frame: Sequence[Buffer], payload_bytes: int, last_confirmed: int) -> None:
        self._frames.append(frame)
        self._lacs.append(last_confirmed)
        self._sums.append(self._sums[-1] + payload_bytes)
        self.end += 1

    def ledger_bytes_through(self, entry_id: int) -> int:
        """Of a kept entry, or the one before the first of them."""
        return self._sums[entry_id + 1 - self.first + self._unheld]

    def frame_bytes(self, first: int, end: int) -> int:
        base = self._unheld - self.first
        return self._sums[base + end] - self._sums[base + first] + (end - first) * self.fixed_bytes

    def last_confirmed_in(self, entry_id: int) -> int:
        """The LAC that the entry carries."""
        return self._lacs[entry_id - self.first + self._unheld]

    def window_end(self, bytes_max: int, entries_max: int) -> int:
        """Up to where the kept entries stay within the bounds; at least one of them does."""
        base = self._unheld
        fits = bisect_right(self._sums, self._sums[base] + bytes_max, lo=base) - 1 - base
        return self.first + min(max(fits, 1), entries_max, self.end - self.first)

    def run_end(self, first: int, end: int) -> int:
        """Where a run from `first` on is cut, to be sent in one piece: before `end` or there."""
        base = self._unheld - self.first
        limit = min(end, first + ADD_RUN_ENTRIES_MAX)
        bytes_end = self._sums[base + first] + ADD_RUN_BYTES_MAX
        if self._sums[base + limit] <= bytes_end:
            return limit
        cut = bisect_right(self._sums, bytes_end, lo=base + first, hi=base + limit) - 1 - base
        return max(cut, first + 1)

    def in_one_piece(self, entry_ids: list[int]) -> list[int]:
        """As many of them from the front as are sent in one piece; at least one."""
        room = ADD_RUN_BYTES_MAX
        for count, entry_id in enumerate(entry_ids[:ADD_RUN_ENTRIES_MAX]):
            room -= self.frame_bytes(entry_id, entry_id + 1)
            if room < 0:
                return entry_ids[: max(count, 1)]
        return entry_ids[:ADD_RUN_ENTRIES_MAX]

    def joined(self, run: Sequence[int]) -> bytes:
        """The frames of these entries, back to back."""
        base = self._unheld - self.first
        picked: Iterable[Sequence[Buffer]]
        if isinstance(run, range):
            picked = self._frames[base + run.start : base + run.stop]
        else:
            picked = [self._frames[base + entry_id] for entry_id in run]
        return b"".join(chain.from_iterable(picked))

    def let_go(self, end: int) -> None:
        """Of all entries before `end`."""
        if end <= self.first:
            return
        self._unheld += end - self.first
        self.first = end
        count = self._unheld
        if count >= _PORTION_ENTRIES or self._sums[count] - self._sums[0] >= _PORTION_BYTES:
            del self._frames[:count], self._lacs[:count], self._sums[:count]
            self._unheld = 0

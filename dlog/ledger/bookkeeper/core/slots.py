"""One place of an ensemble as an appender sees it: which bookie, how far it is, what it owes.

A slot belongs to one bookie and one link. A bookie that is replaced, or reached again over another
link, gets a slot of its own, so acks of the former can never count for the latter: acks are per
entry, slot and bookie by construction.

    VACANT ─► CONNECTING ─┬─► LIVE                                     the bookie that is named here
                          └─► PREPARING ─► READY ─► NAMING ─► LIVE     another one, to replace it

Answers come in runs and nearly always continue what was acked before; that path costs a comparison.
Bookies answer in any order, though, refuse an entry in the middle of a burst and take later ones,
and answer twice: what lies beyond a gap stands in `ahead`, what has to be sent again in `refused`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from dlog.ledger.bookkeeper.core.outbox import Outbox
from dlog.ledger.bookkeeper.links import DataLink
from dlog.limits import WINDOW_ENTRIES_DEFAULT

IN_FLIGHT_MIN = 8  # a bookie that is overloaded is never asked for less at a time


class State(enum.Enum):
    VACANT = "vacant"  # nobody to be had; tried again later
    CONNECTING = "connecting"
    PREPARING = "preparing"  # a candidate shows that it serves, by taking the published LAC
    READY = "ready"  # to be named in metadata
    NAMING = "naming"  # the change of metadata is under way, or unknown
    LIVE = "live"  # named, connected, takes entries


class Slot:
    __slots__ = (
        "acked_to",
        "ahead",
        "bookie_id",
        "busy_count",
        "in_flight_max",
        "is_proven",
        "kept_from",
        "link",
        "next_to_send",
        "paused_until_ms",
        "place",
        "refused",
        "shown",
        "silent_ms",
        "state",
        "stuck_ms",
        "unwritten_ms",
        "write_after_ms",
        "writing",
    )

    def __init__(
        self,
        place: int,
        bookie_id: str,
        state: State = State.CONNECTING,
        *,
        kept_from: int | None = None,
    ) -> None:
        self.place = place
        self.bookie_id = bookie_id
        self.state = state
        self.kept_from = kept_from  # what it must get is kept although it is not live yet
        self.link: DataLink | None = None  # told apart by identity, never used here
        self.is_proven = False  # metadata was seen open after the link was up: acks may count
        self.next_to_send = 0
        self.acked_to = -1  # all entries up to here are on this bookie, or nobody's worry any more
        self.ahead: set[int] = set()  # acked beyond a gap
        self.refused: set[int] = set()  # to be sent again, before anything else
        self.in_flight_max = WINDOW_ENTRIES_DEFAULT
        self.busy_count = 0  # pauses since it last took something
        self.paused_until_ms = 0.0
        self.silent_ms = 0.0  # without any answer though it owes one
        self.stuck_ms = 0.0  # without progress of `acked_to` though it owes one
        # Publishing: the LAC that this bookie is known to show, and the one on its way.
        self.shown = -1
        self.writing: int | None = None
        self.write_after_ms = 0.0
        self.unwritten_ms = 0.0

    def __repr__(self) -> str:
        return f"Slot({self.place}, {self.bookie_id}, {self.state.value}, {self.acked_to})"

    @property
    def counts(self) -> bool:
        return self.is_proven and self.state is State.LIVE

    def go_live(self, first: int) -> None:
        """What came before `first` is not this slot's business."""
        self.state = State.LIVE
        self.kept_from = None
        self.next_to_send = first
        self.acked_to = first - 1
        self.silent_ms = self.stuck_ms = 0.0

    # --- Sending

    @property
    def in_flight(self) -> int:
        sent = self.next_to_send - 1 - self.acked_to
        return sent - len(self.ahead) - len(self.refused)

    def wants_to_send(self, end: int, now_ms: float) -> bool:
        return (
            self.state is State.LIVE
            and (self.next_to_send < end or bool(self.refused))
            and now_ms >= self.paused_until_ms
            and self.in_flight < self.in_flight_max
        )

    def take_run(self, outbox: Outbox, end: int, now_ms: float) -> Sequence[int] | None:
        """What to send next, counted as sent: the refused entries first, then what follows."""
        if not self.wants_to_send(end, now_ms):
            return None
        room = self.in_flight_max - self.in_flight
        if self.refused:
            again = outbox.in_one_piece(sorted(self.refused)[:room])
            self.refused.difference_update(again)
            return again
        first = self.next_to_send
        self.next_to_send = outbox.run_end(first, min(end, first + room))
        return range(first, self.next_to_send)

    # --- Answers: each returns entries and frame bytes that were owed until now

    def take_acks(self, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        self.silent_ms = 0.0
        first, count = entry_ids[0], len(entry_ids)
        end = first + count
        if (
            first == self.acked_to + 1
            and entry_ids[-1] == end - 1
            and end <= self.next_to_send
            and not self.ahead
            and not self.refused
            and (count < 3 or entry_ids == list(range(first, end)))
        ):
            answered = count, outbox.frame_bytes(first, end)
            self.acked_to = end - 1
        else:
            before = self.acked_to
            answered = self._take_one_by_one(outbox, entry_ids)
            if self.acked_to == before:
                return answered
        self.stuck_ms = 0.0
        self.busy_count = 0
        if self.in_flight_max < WINDOW_ENTRIES_DEFAULT:
            self.in_flight_max += 1 + count // 4
        return answered

    def _take_one_by_one(self, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        entries = bytes = 0
        for entry_id in entry_ids:
            if not self.acked_to < entry_id < self.next_to_send or entry_id in self.ahead:
                continue  # told before, or never asked
            if entry_id in self.refused:
                self.refused.discard(entry_id)  # both was said; it is there
            else:
                entries += 1
                bytes += outbox.frame_bytes(entry_id, entry_id + 1)
            self.ahead.add(entry_id)
            while self.acked_to + 1 in self.ahead:
                self.acked_to += 1
                self.ahead.discard(self.acked_to)
        return entries, bytes

    def take_refusals(self, outbox: Outbox, entry_ids: list[int]) -> tuple[int, int]:
        self.silent_ms = 0.0
        entries = bytes = 0
        for entry_id in entry_ids:
            if (
                self.acked_to < entry_id < self.next_to_send
                and entry_id not in self.ahead
                and entry_id not in self.refused
            ):
                self.refused.add(entry_id)
                entries += 1
                bytes += outbox.frame_bytes(entry_id, entry_id + 1)
        return entries, bytes

    def pause(self, now_ms: float, pause_ms: float) -> None:
        """After a refusal: send nothing for a while, and less at a time from then on."""
        self.busy_count += 1
        self.paused_until_ms = now_ms + pause_ms
        self.in_flight_max = max(IN_FLIGHT_MIN, min(self.in_flight_max, self.in_flight) // 2)

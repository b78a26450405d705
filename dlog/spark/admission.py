"""How much of what there is a micro-batch takes. Pure: the driver brings where each log stands, and
how large its parts are.

A batch without a bound takes all. One with a bound on messages gives each log its share by what it
has, as Kafka's source does; one with a bound on bytes takes parts of all logs in turn until it is
full. Whatever the bound, a batch that has anything to take takes one message at least, so that a
query always goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlog.spark.options import Pace


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring messages of a log."""

    messages: int
    bytes: int


def is_enough(available: int, pace: Pace, waited_ms: float | None) -> bool:
    """Is there so much that a batch may begin? `waited_ms`: since the last one, None before the
    first."""
    if available == 0:
        return False
    if pace.min_messages is None or available >= pace.min_messages:
        return True
    return waited_ms is None or waited_ms >= pace.max_delay_ms


def shares(available: Mapping[str, int], max_messages: int) -> dict[str, int]:
    """How many messages of each log, so many together."""
    total = sum(available.values())
    if total <= max_messages:
        return dict(available)
    given = {log: count * max_messages // total for log, count in available.items()}
    rest = max_messages - sum(given.values())
    # What rounding left goes to those that lost most of a message by it; names decide the rest.
    by_loss = sorted(available, key=lambda log: (-(available[log] * max_messages % total), log))
    for log in by_loss:
        if rest == 0:
            break
        if given[log] < available[log]:
            given[log] += 1
            rest -= 1
    return given


def fitting(parts: Mapping[str, Sequence[Part]], max_bytes: int) -> dict[str, int]:
    """How many messages of each log, about so many bytes together."""
    taken = dict.fromkeys(parts, 0)
    left = max_bytes
    waiting = {log: list(of_log) for log, of_log in sorted(parts.items()) if of_log}
    while waiting:
        for log in list(waiting):
            part = waiting[log].pop(0)
            if part.bytes > left:
                share = part.messages * left // part.bytes
                if share == 0 and not any(taken.values()):
                    share = 1
                taken[log] += share
                return taken
            taken[log] += part.messages
            left -= part.bytes
            if not waiting[log]:
                del waiting[log]
    return taken

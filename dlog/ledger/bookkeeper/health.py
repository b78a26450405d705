"""Which bookies to leave alone for a while. Advice only: where too few others are left, they are
used all the same, and nothing that is safe rests on it.

Errors are counted per bookie and interval; at a threshold the bookie is quarantined for a jittered
while, twice as long each time in a row, up to a bound. What is not the bookie's fault is not
counted (`BLAMELESS`). Connections that fail are: a bookie that hangs, resets or refuses costs every
new ledger that meets it half a second or more. An operator releases all with the node
`disableHealthCheck`, which the registry watches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.wire.bookie_codes import BLAMELESS, Answer

INTERVAL_S_DEFAULT = 10.0
ERRORS_DEFAULT = 3
QUARANTINE_S_DEFAULT = 20.0
QUARANTINE_S_MAX = 300.0
_LOST_APART_S = 1.0


@dataclass(slots=True)
class _Record:
    errors: int = 0
    since_s: float = 0.0  # of the interval that the errors are counted in
    until_s: float = 0.0  # of the quarantine
    times: int = 0  # in quarantine, in a row
    lost_at_s: float = float("-inf")  # the last lost connection that was counted


class Health:
    """Time comes in as an argument, in seconds that never go back."""

    def __init__(
        self,
        *,
        chance: Chance = SYSTEM_CHANCE,
        errors: int = ERRORS_DEFAULT,
        interval_s: float = INTERVAL_S_DEFAULT,
        quarantine_s: float = QUARANTINE_S_DEFAULT,
    ) -> None:
        self._chance = chance
        self._errors = errors
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._records: dict[str, _Record] = {}
        self._is_enabled = True

    def note(self, bookie_id: str, answer: Answer, now_s: float) -> None:
        """What a bookie answered, or that it did not."""
        if answer not in BLAMELESS:
            self._count(bookie_id, now_s)

    def note_unreachable(self, bookie_id: str, now_s: float) -> None:
        """It refused a connection, did not take it in time, or ended it without a word."""
        self._count(bookie_id, now_s)

    def note_lost(self, bookie_id: str, now_s: float) -> None:
        """A connection that had served ended. Of those that end together one counts."""
        record = self._records.get(bookie_id)
        if record is None or now_s - record.lost_at_s >= _LOST_APART_S:
            self._count(bookie_id, now_s)
            if self._is_enabled:
                self._records[bookie_id].lost_at_s = now_s

    def note_hung(self, bookie_id: str, now_s: float) -> None:
        """It had work and said nothing at all for long: no need to see that again."""
        self._count(bookie_id, now_s, self._errors)

    def avoided(self, now_s: float) -> frozenset[str]:
        """The bookies in quarantine."""
        if not self._is_enabled:
            return frozenset()
        return frozenset(
            bookie_id for bookie_id, record in self._records.items() if record.until_s > now_s
        )

    def enable(self, is_enabled: bool) -> None:
        """Off: all are released, and nothing is counted."""
        self._is_enabled = is_enabled
        if not is_enabled:
            self._records.clear()

    def keep_only(self, bookie_ids: Iterable[str]) -> None:
        """Forget all others: they are no longer part of the cluster."""
        self._records = {
            bookie_id: self._records[bookie_id]
            for bookie_id in bookie_ids
            if bookie_id in self._records
        }

    def _count(self, bookie_id: str, now_s: float, errors: int = 1) -> None:
        if not self._is_enabled:
            return
        record = self._records.setdefault(bookie_id, _Record(since_s=now_s))
        if record.until_s > now_s:
            return  # it is known, and would only be punished for what was under way
        if now_s - record.since_s > self._interval_s:
            record.errors, record.since_s = 0, now_s
        record.errors += errors
        if record.errors >= self._errors:
            if now_s - record.until_s > 2 * self._interval_s:
                record.times = 0  # it has behaved since the last time
            length_s = min(QUARANTINE_S_MAX, self._quarantine_s * 2**record.times)
            record.until_s = now_s + length_s * (0.5 + 0.5 * self._chance.fraction())
            record.times = min(record.times + 1, 10)
            record.errors, record.since_s = 0, record.until_s

"""How far the open ledgers of a log may be read: what its writer published, and no further.

A `normal` reader takes what the ledger store shows. Where strangers recover ledgers (Java's
auto-recovery opens ledgers with recovery), that can be too much: their write-backs publish entries
one after the other, before the end of the ledger is decided, and it may be decided below them. A
`strict` reader takes an advance only if the ledger's metadata, read *afterwards* and behind a sync,
still says OPEN: whoever recovers marks it first, so what was shown before came from the writer.
Else the advance is refused, and the reader waits for CLOSED and takes the end that was decided.
An advance is looked at once, however many entries it brings.

Procedures without IO. One horizon belongs to one view of a log.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.effects import LastReadable, LookAtLedger, Pause, Procedure, WaitPast
from dlog.errors import Timeout, Unavailable
from dlog.ids import NO_ENTRY
from dlog.ledger.store import LedgerState
from dlog.options import TailMode

LEDGERS_MAX = 4  # at most two segments of a log are unsealed at any time
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0
LOOKS_MAX = 35  # with these pauses half a minute, which is what a recovery may take
AWAY_S = 0.2


@dataclass(slots=True)
class _Seen:
    accepted: int = NO_ENTRY
    refused: int = NO_ENTRY  # was shown, and nobody vouched for it


class Horizon:
    def __init__(self, tail: TailMode = "normal") -> None:
        self.tail: TailMode = tail
        # Finding a place waits for a recovery to end: behind what was acknowledged before, nothing
        # less will do. A walk goes on with what it has.
        self.waits_for_recoveries = True
        self._ledgers: dict[int, _Seen] = {}

    def last_entry(
        self, ledger_id: int, wanted: int | None = None, *, shown: int | None = None
    ) -> Procedure[int]:
        """The last entry that may be read now. With `wanted`, an earlier answer will do that
        reaches it. `shown` is what the ledger store just showed, if it was asked."""
        if self.tail == "normal":
            return (yield LastReadable(ledger_id)) if shown is None else shown
        seen = self._seen(ledger_id)
        if wanted is not None and wanted <= seen.accepted:
            return seen.accepted
        if self.waits_for_recoveries:
            yield from self._reach(ledger_id, seen)
        else:
            try:
                yield from self._try(ledger_id, seen, shown)
            except (Unavailable, Timeout):
                yield Pause(AWAY_S)  # or whoever asks again and again would do nothing else
        return seen.accepted

    def wait(self, ledger_id: int, last_entry: int, timeout_ms: float) -> Procedure[int]:
        """For something behind `last_entry`; the last entry that may be read then. Nobody is asked
        what the wait told."""
        waits_past = self._waits_past(ledger_id, last_entry)
        shown: int | None = yield WaitPast(ledger_id, waits_past, timeout_ms)
        return (yield from self.last_entry(ledger_id, shown=shown))

    def _waits_past(self, ledger_id: int, last_entry: int) -> int:
        """What was refused is no news: the entry behind which something new begins."""
        seen = self._ledgers.get(ledger_id)
        return last_entry if seen is None else max(last_entry, seen.refused)

    def _try(self, ledger_id: int, seen: _Seen, shown: int | None = None) -> Procedure[bool]:
        """False when somebody recovers the ledger."""
        if shown is None:
            shown = yield LastReadable(ledger_id)
        assert shown is not None
        if shown <= seen.accepted:
            return True
        seen.refused = max(seen.refused, shown)  # until metadata says otherwise
        info = yield LookAtLedger(ledger_id)
        if info.closed is not None:
            seen.accepted = info.closed.last_entry
        elif info.state is LedgerState.OPEN:
            seen.accepted = shown
        else:
            return False
        seen.refused = NO_ENTRY
        return True

    def _reach(self, ledger_id: int, seen: _Seen) -> Procedure[None]:
        pause_s = PAUSE_MIN_S
        for _ in range(LOOKS_MAX):
            if (yield from self._try(ledger_id, seen)):
                return
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise Unavailable(
            f"ledger {ledger_id} is being recovered: a strict reader does not know where the log "
            "ends before that is decided",
            ledger_id=ledger_id,
        )

    def _seen(self, ledger_id: int) -> _Seen:
        seen = self._ledgers.pop(ledger_id, None) or _Seen()
        if len(self._ledgers) >= LEDGERS_MAX:
            del self._ledgers[next(iter(self._ledgers))]
        self._ledgers[ledger_id] = seen  # the most recently used one is the last
        return seen

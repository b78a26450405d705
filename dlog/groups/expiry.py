"""Who is dead, as one worker judges it: by its own clock, from when it last saw a counter change.
No time that somebody else wrote is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.groups.view import WorkerId


@dataclass(slots=True)
class _Seen:
    counter: int
    since_s: float


class Expiry:
    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._seen: dict[WorkerId, _Seen] = {}

    def see(self, worker: WorkerId, counter: int, now_s: float) -> None:
        """Its counter, as just read. `now_s` is when the answer came, not when it was asked for:
        it may have been written as late as that."""
        known = self._seen.get(worker)
        if known is None:
            self._seen[worker] = _Seen(counter, now_s)
        elif known.counter != counter:
            known.counter, known.since_s = counter, now_s

    def forget(self, worker: WorkerId) -> None:
        self._seen.pop(worker, None)

    def quiet_s(self, worker: WorkerId, now_s: float) -> float:
        """How long its counter has not changed, as far as we saw."""
        known = self._seen.get(worker)
        return 0.0 if known is None else now_s - known.since_s

    def is_expired(self, worker: WorkerId, now_s: float) -> bool:
        return self.quiet_s(worker, now_s) > self.timeout_s

    def expires_s(self, worker: WorkerId) -> float | None:
        """When it will be, if nothing changes."""
        known = self._seen.get(worker)
        return None if known is None else known.since_s + self.timeout_s

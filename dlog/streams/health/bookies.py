"""Which bookies of a cluster to leave alone for a while: the policy that `dlog.ledger.bookkeeper`
asks for (`BookieHealth`), decided by the core of health.

Two kinds of trouble are told apart. *Errors*, silence under load, adds that time out are proof: a
bookie with a broken disk answers every question about itself. Some of them within ten seconds
isolate it. *Connections* that fail or end are a suspicion: some within ten seconds make the bookie
a suspect, avoided from that moment on, which is asked how it is. An answer clears it; with none it
is isolated. A bookie that comes and goes, suspected again within a minute, is isolated whatever it
answers. From all of it a bookie comes back only by an answer, once its time is over. Bookies that
nobody has trouble with are never asked: they are registered, and that says it.

At most half of all bookies are avoided: where everything fails it is our network rather than them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import Unavailable
from dlog.metrics import NO_METRICS, Metrics
from dlog.streams.health.core import HealthOptions, Standing
from dlog.streams.health.prober import Prober
from dlog.wire.bookie_codes import BLAMELESS, Answer

BOOKIE_HEALTH = HealthOptions(idle_s=None)
ERRORS_MAX = 3
INTERVAL_S = 10.0  # that they are counted in
SUSPECTED_AGAIN_S = 60.0
_LOST_APART_S = 1.0
_LONG_AGO_S = float("-inf")


@dataclass(slots=True)
class _Troubles:
    """Of one bookie."""

    errors: int = 0
    faults: int = 0  # of connections
    since_s: float = 0.0  # of the interval that both are counted in
    lost_s: float = _LONG_AGO_S  # the last lost connection that was counted
    suspected_s: float = _LONG_AGO_S


class BookieQuarantine:
    """Belongs to the event loop of `begin`; before that, nobody is asked and so nobody recovers."""

    def __init__(
        self,
        *,
        options: HealthOptions = BOOKIE_HEALTH,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._ask: Callable[[str], Awaitable[object]] | None = None
        self._prober = Prober(
            self._probe, options=options, clock=clock, chance=chance, metrics=metrics
        )
        self._core = self._prober.core
        self._troubles: dict[str, _Troubles] = {}
        self._is_enabled = True

    def begin(self, ask: Callable[[str], Awaitable[object]]) -> None:
        self._ask = ask
        self._prober.wake()

    async def close(self) -> None:
        self._ask = None
        await self._prober.close()

    def note(self, bookie_id: str, answer: Answer, now_s: float) -> None:
        if answer not in BLAMELESS:
            self._error(bookie_id, now_s, 1, f"it answers {answer.value}")

    def note_hung(self, bookie_id: str, now_s: float) -> None:
        self._error(bookie_id, now_s, ERRORS_MAX, "it has work and is silent")

    def note_unreachable(self, bookie_id: str, now_s: float) -> None:
        self._fault(bookie_id, now_s, "it takes no connections")

    def note_lost(self, bookie_id: str, now_s: float) -> None:
        """Of connections that end together one counts."""
        known = self._troubles.get(bookie_id)
        if known is None or now_s - known.lost_s >= _LOST_APART_S:
            self._fault(bookie_id, now_s, "its connections end")
            if self._is_enabled:
                self._troubles[bookie_id].lost_s = now_s

    def avoided(self, now_s: float) -> frozenset[str]:
        core = self._core
        avoided = core.isolated
        suspects = core.suspects
        if suspects:
            room = core.isolated_max - len(avoided)
            first = sorted(suspects, key=lambda each: (self._suspected_s(each), each))
            avoided |= frozenset(first[: max(0, room)])
        return avoided

    def enable(self, is_enabled: bool) -> None:
        if self._is_enabled and not is_enabled:
            self._prober.release_all("quarantine is switched off")
            self._troubles.clear()
        self._is_enabled = is_enabled

    def keep_only(self, bookie_ids: Iterable[str]) -> None:
        kept = list(bookie_ids)
        for gone in self._troubles.keys() - kept:
            del self._troubles[gone]
        self._prober.keep(kept)

    # --- counting

    def _error(self, bookie_id: str, now_s: float, count: int, why: str) -> None:
        troubles = self._counted(bookie_id, now_s)
        if troubles is None:
            return
        troubles.errors += count
        if troubles.errors >= ERRORS_MAX:
            troubles.errors = troubles.faults = 0
            self._prober.proved(bookie_id, why)

    def _fault(self, bookie_id: str, now_s: float, why: str) -> None:
        troubles = self._counted(bookie_id, now_s)
        if troubles is None or self._core.standing(bookie_id) is Standing.SUSPECT:
            return
        troubles.faults += 1
        if troubles.faults < ERRORS_MAX:
            return
        troubles.errors = troubles.faults = 0
        before_s, troubles.suspected_s = troubles.suspected_s, now_s
        if now_s - before_s <= SUSPECTED_AGAIN_S:
            self._prober.proved(bookie_id, f"{why}, time and again")
        else:
            self._prober.failed(bookie_id, why)

    def _counted(self, bookie_id: str, now_s: float) -> _Troubles | None:
        """None: nothing is counted, or it is known, and would only be punished for what was under
        way."""
        if not self._is_enabled or self._core.standing(bookie_id) is Standing.ISOLATED:
            return None
        troubles = self._troubles.get(bookie_id)
        if troubles is None:
            troubles = self._troubles[bookie_id] = _Troubles(since_s=now_s)
        if now_s - troubles.since_s > INTERVAL_S:
            troubles.errors = troubles.faults = 0
            troubles.since_s = now_s
        return troubles

    def _suspected_s(self, bookie_id: str) -> float:
        troubles = self._troubles.get(bookie_id)
        return 0.0 if troubles is None else troubles.suspected_s

    async def _probe(self, bookie_id: str) -> None:
        if self._ask is None:
            raise Unavailable("nobody can be asked yet", missing=(bookie_id,), needed=1)
        await self._ask(bookie_id)

"""The shards that a worker has, on the event loop of its user: obeys the orders of the core, and
says what each shard is at. Holds no handle, so that a worker which nobody holds can be told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from dlog.clock import Clock
from dlog.errors import DlogError
from dlog.groups.asks import Fenced, Order, ShardStopped, Shutdown, StartShard, StopFetch
from dlog.groups.consumer import StopReason
from dlog.groups.heart import Heart
from dlog.groups.hub import Hub
from dlog.groups.letters import error_text
from dlog.groups.shard_log import why_unread
from dlog.groups.shard_run import ShardRun
from dlog.groups.workers import with_cause
from dlog.reason import Plain, Reason, ReasonCode, Wait, time_text, told_of


@dataclass(frozen=True, slots=True)
class ShardAtWork:
    """A shard of a worker, as it is at this moment."""

    log: str
    token: int
    doing: str
    next_seq: int | None
    """The first message that is not processed yet."""
    failures: int
    """Of the batch at hand."""
    error: str | None
    busy_s: float | None
    """For how long the program is at one call."""


class Crew:
    def __init__(self, clock: Clock) -> None:
        self.runs: dict[str, ShardRun] = {}
        self.failure: BaseException | None = None  # that ended a job
        self.hub: Hub | None = None
        self._is_dropped = False
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._heard_s = clock.monotonic_s()

    # --- on the heart's loop

    def on_orders(self, orders: list[Order]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._obey, orders)
        except RuntimeError:  # the user's loop is over, and nobody closed us
            assert self.hub is not None
            self.hub.heart.abandon()

    # --- on the user's

    def _obey(self, orders: list[Order]) -> None:
        if self._is_dropped:
            return  # they were on their way
        hub = self.hub
        assert hub is not None
        for order in orders:
            run = self.runs.get(order.shard)
            match order:
                case StartShard(shard=shard):
                    self.runs[shard] = ShardRun(hub, order)
                    hub.reports.pop(shard, None)
                case StopFetch() if run is not None:
                    run.stop_fetch()
                case Shutdown(reason=reason) if run is not None:
                    run.shut_down(reason)
                case Fenced(epoch=epoch) if run is not None and run.epoch == epoch:
                    run.fenced()
                case ShardStopped(shard=shard, reason=reason):
                    ended = self.runs.pop(shard, None)
                    if reason is StopReason.FAILED and hub.options.stop_at_end:
                        self._end_job(hub.heart, ended)
        hub.meter.shards(len(self.runs))

    def _end_job(self, heart: Heart, run: ShardRun | None) -> None:
        """Whoever waits for it shall not wait for ever."""
        self.failure = self.failure or (None if run is None else run.error)
        heart.leave("a shard failed")

    def cut_short(self) -> None:
        for run in self.runs.values():
            run.cut_short()

    def drop(self) -> None:
        self._is_dropped = True
        for run in self.runs.values():
            run.task.cancel()

    # --- what it is at; from any thread

    def at_work(self) -> tuple[ShardAtWork, ...]:
        now_s = self._clock.monotonic_s()
        found = []
        for log, run in sorted(self.runs.copy().items()):
            since_s, error = run.busy_since_s, run.error
            found.append(
                ShardAtWork(
                    log,
                    run.epoch,
                    run.doing,
                    None if run.position is None else run.position.next_seq,
                    run.failures,
                    None if error is None else error_text(error),
                    None if since_s is None else now_s - since_s,
                )
            )
        return tuple(found)

    def waits(self, after_s: float) -> dict[str, Wait]:
        """Calls of programs that last longer, and the loop if it takes no turn, by what waits."""
        now_s = self._clock.monotonic_s()
        found: dict[str, Wait] = {}
        quiet_s = now_s - self._heard_s
        if quiet_s > after_s:
            found[""] = Wait(
                ReasonCode.LOOP_BLOCKED,
                f"the event loop of the program took no turn for {time_text(quiet_s)}; leases are "
                "renewed all the same",
                since_s=self._heard_s,
            )
        for log, run in self.runs.copy().items():
            since_s = run.busy_since_s
            if since_s is not None and now_s - since_s > after_s:
                found[log] = Wait(
                    ReasonCode.PROCESSING_STALLED,
                    f"the processor is at one call of shard {log!r} for "
                    f"{time_text(now_s - since_s)}; the worker lives, and keeps the shard",
                    {"log": log},
                    since_s,
                )
        return found

    def codes(self, after_s: float) -> dict[str, str]:
        """Of what does not get on, by shard; "": all of them. The log of the dead letters says
        itself why it takes none: that stands behind its code."""
        hub = self.hub
        assert hub is not None
        failed = ReasonCode.PROCESSING_FAILED.value
        found = {log: wait.code.value for log, wait in self.waits(after_s).items()}
        runs = self.runs.copy()
        found.update((log, failed) for log, run in runs.items() if run.failures)
        found.update((log, failed) for log in hub.heart.facts().failed)
        unread = ReasonCode.READING.value
        found.update((log, unread) for log, run in runs.items() if why_unread(run) is not None)
        refused = [(log, run.refused) for log, run in runs.items() if run.refused is not None]
        found.update((log, _code_with(cause)) for log, cause in refused[:CAUSES_MAX])
        found.update((log, _REFUSED) for log, _ in refused[CAUSES_MAX:])
        return found

    def ping(self) -> None:
        """From the heart: the loop is heard of when it takes its next turn."""

        def pong() -> None:
            self._heard_s = self._clock.monotonic_s()

        try:
            self._loop.call_soon_threadsafe(pong)
        except RuntimeError:
            assert self.hub is not None
            self.hub.heart.abandon()

    def _ended(self, heart: Heart) -> Wait | None:
        """Why the worker ended. From then on nobody asks its loop for turns."""
        if not heart.ended.done():
            return None
        error = self.failure or heart.ended.exception()
        if error is None:
            why = heart.ended.result()
            return Wait(ReasonCode.ENDED, f"the worker has ended: {why}", {"why": why})
        evidence = told_of(error) if isinstance(error, DlogError) else {"error": error_text(error)}
        return Wait(ReasonCode.LOST, f"the worker has ended: {error_text(error)}", evidence)

    def why(self, after_s: float) -> Reason | None:
        hub = self.hub
        assert hub is not None
        if (ended := self._ended(hub.heart)) is not None:
            return ended.told(now_s=self._clock.monotonic_s(), now_us=self._clock.wall_us())
        waits = list(self.waits(after_s if after_s > 0 else math.inf).values())
        facts = hub.heart.facts()
        for log in sorted(facts.failed):
            told = hub.reports.get(log, "")
            waits.append(Wait(ReasonCode.PROCESSING_FAILED, f"shard {log!r} stopped: {told}"))
        for log, run in sorted(self.runs.items()):
            if run.failures:
                error = "nothing" if run.error is None else error_text(run.error)
                sentence = f"shard {log!r} failed {run.failures} times: {error}"
                if (refused := run.refused) is not None:
                    sentence = f"shard {log!r} waits: {refused}. Its message failed with {error}"
                    about: dict[str, Plain] = {"log": log, "refused": refused}
                    waits.insert(0, Wait(ReasonCode.DEAD_LETTER_REFUSED, sentence, about))
                    continue
                waits.append(Wait(ReasonCode.PROCESSING_FAILED, sentence, {"log": log}))
            elif (unread := why_unread(run)) is not None:
                sentence = f"shard {log!r} cannot be read now: {unread}"
                waits.append(Wait(ReasonCode.READING, sentence, {"log": log, "error": unread}))
        if facts.quiet_s is not None and facts.quiet_s > hub.options.timeout_ms / 1000 * 0.6:
            sentence = f"no renewal was confirmed for {time_text(facts.quiet_s)}"
            waits.append(Wait(ReasonCode.METADATA_AWAY, sentence))
        elif not facts.is_member:
            waits.append(Wait(ReasonCode.METADATA, "the worker is not registered yet"))
        if facts.trouble is not None:
            waits.append(facts.trouble)
        if not waits and not self.runs:
            waits.append(Wait(ReasonCode.NO_SHARDS, "no shard is this worker's to consume"))
        if not waits:
            return None
        return waits[0].told(now_s=self._clock.monotonic_s(), now_us=self._clock.wall_us())


LOOKS = 4
CAUSES_MAX = 16  # told by the worker's node, which has a bound; other shards tell the code alone
CAUSE_CHARS_MAX = 300
_REFUSED = ReasonCode.DEAD_LETTER_REFUSED.value


def _code_with(cause: str) -> str:
    return with_cause(_REFUSED, cause[:CAUSE_CHARS_MAX])


async def watch_over(crew: Crew, hub: Hub, clock: Clock, log: Callable[[str], None]) -> None:
    """On the heart's loop: tells of what is stalled, once when it begins and once when it ends; and
    the worker's node of whatever does not get on."""
    after_s = hub.options.stall_after_ms / 1000 or math.inf
    every_s = min(5.0, hub.options.group_options().renew_s, max(0.02, after_s / LOOKS))
    known: dict[str, ReasonCode] = {}
    while True:
        crew.ping()
        await asyncio.sleep(every_s)
        hub.heart.tell_waits(crew.codes(after_s))
        waits = crew.waits(after_s)
        for what, wait in waits.items():
            if known.get(what) is not wait.code:
                known[what] = wait.code
                hub.meter.stalled(wait.code.value)
                log(f"group {hub.heart.group!r}: {wait.sentence}")
        for what in known.keys() - waits.keys():
            del known[what]
            log(f"group {hub.heart.group!r}: {what or 'the event loop'} goes on")

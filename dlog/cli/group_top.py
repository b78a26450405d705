"""A group, live, for `dlog top --group`: rates from looks that lie some time apart, how long it
takes to catch up, who has what, and what each waits for. Pictures are made without IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlog.cli import draw
from dlog.cli.escape import printable
from dlog.cli.group_waits import GroupWait, show_waits, waits_of
from dlog.cli.moments import moment_text
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import DlogError, Timeout, Unavailable
from dlog.reason import time_text

if TYPE_CHECKING:
    from dlog import Client, GroupDescription, Member, ShardStanding, WorkerId

# Checkpoints are written every few seconds, and a rate between two looks within would be nothing,
# and then far too much.
WINDOW_S = 30.0
NO_PROGRESS_S = 15.0
LOOKS_MAX = 400

COLUMNS = (
    draw.Column("SHARD", number=True),
    draw.Column("STATE"),
    draw.Column("WORKER"),
    draw.Column("COME/S", number=True),
    draw.Column("DONE/S", number=True),
    draw.Column("LAG", number=True),
    draw.Column("OLDEST", number=True),
    draw.Column("CATCHES UP IN", number=True),
)


@dataclass(frozen=True, slots=True)
class GroupLook:
    at_s: float
    at_us: int
    found: GroupDescription | None
    """None: the stores gave no answer."""
    error: DlogError | None = None


@dataclass(frozen=True, slots=True)
class ShardPicture:
    """Rates are messages a second since the first look that they can be told from; None: there is
    none yet."""

    number: int
    log: str
    state: str
    owner: WorkerId | None
    consumer: WorkerId | None
    next_seq: int | None
    come_s: float | None
    done_s: float | None
    lag: int | None
    oldest_s: float | None
    catch_up_s: float | None
    """None: never at these rates, or nobody knows yet."""


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    id: WorkerId
    domain: str | None
    shards: int
    coming: int
    silent_s: float
    """How long its count of renewals stands, as far as we looked."""


@dataclass(frozen=True, slots=True)
class GroupPicture:
    at_us: int
    group: str
    stream: str
    come_s: float | None
    done_s: float | None
    lag: int | None
    catch_up_s: float | None
    workers: tuple[WorkerPicture, ...]
    shards: tuple[ShardPicture, ...]
    waits: tuple[GroupWait, ...]


class GroupWatch:
    """Keeps the looks of the last seconds, and makes pictures of them."""

    def __init__(self, group: str, stream: str) -> None:
        self._group = group
        self._stream = stream
        # When, and by log: how far it was done, and where the tail was.
        self._looks: deque[tuple[float, dict[str, tuple[int, int]]]] = deque(maxlen=LOOKS_MAX)
        self._counters: dict[WorkerId, tuple[int, float]] = {}

    def look(self, client: Client) -> GroupLook:
        at_s, at_us = SYSTEM_CLOCK.monotonic_s(), SYSTEM_CLOCK.wall_us()
        try:
            return GroupLook(at_s, at_us, client.group(self._group, self._stream).describe())
        except (Unavailable, Timeout) as error:
            return GroupLook(at_s, at_us, None, error)

    def take(self, look: GroupLook) -> GroupPicture:
        found = look.found
        if found is None:
            wait = GroupWait(None, "metadata_away", f"the stores give no answer: {look.error}")
            nothing = None, None, None, None
            return GroupPicture(look.at_us, self._group, self._stream, *nothing, (), (), (wait,))
        self._looks.append((look.at_s, _places(found)))
        while look.at_s - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()
        workers = tuple(self._worker(each, look.at_s) for each in found.members)
        self._counters = {each.id: self._counters[each.id] for each in workers}
        shards = tuple(map(self._shard, found.shards))
        waits = [*waits_of(found), *self._slow(shards, found), *_silent(workers, found)]
        open_ones = [each for each in shards if each.lag]
        catches = [each.catch_up_s for each in open_ones]
        known = [each for each in catches if each is not None]
        return GroupPicture(
            look.at_us,
            self._group,
            self._stream,
            _sum([each.come_s for each in shards]),
            _sum([each.done_s for each in shards]),
            sum(each.lag or 0 for each in shards),
            max(known, default=0.0) if len(known) == len(catches) else None,
            workers,
            shards,
            tuple(waits),
        )

    def _worker(self, member: Member, at_s: float) -> WorkerPicture:
        counter, since_s = self._counters.get(member.id, (None, at_s))
        if counter != member.counter:
            since_s = at_s
        self._counters[member.id] = member.counter, since_s
        silent_s = round(at_s - since_s, 1)
        counts = len(member.shards), len(member.coming)
        return WorkerPicture(member.id, member.domain, *counts, silent_s)

    def _shard(self, now: ShardStanding) -> ShardPicture:
        come_s = done_s = None
        history = self._history(now.log)
        if len(history) > 1:
            (from_s, from_done, from_tail), (to_s, done, tail) = history[-1], history[0]
            come_s = round(max(tail - from_tail, 0) / (to_s - from_s), 1)
            done_s = round((done - from_done) / (to_s - from_s), 1)
        lag = None if now.lag is None else now.lag.messages
        return ShardPicture(
            now.number,
            now.log,
            now.state,
            now.owner,
            now.consumer,
            None if now.checkpoint is None else now.checkpoint.next_seq,
            come_s,
            done_s,
            lag,
            None if now.lag is None else round(now.lag.seconds, 1),
            _catch_up_s(lag, come_s, done_s),
        )

    def _history(self, log: str) -> list[tuple[float, int, int]]:
        """When, how far it was done, and where the tail was; the newest first. Up to where the
        checkpoint was put back, if it was."""
        history: list[tuple[float, int, int]] = []
        for at_s, places in reversed(self._looks):
            if log not in places:
                break
            done, tail = places[log]
            if history and (done > history[-1][1] or at_s >= history[-1][0]):
                break
            history.append((at_s, done, tail))
        return history

    def _slow(
        self, shards: tuple[ShardPicture, ...], found: GroupDescription
    ) -> Iterator[GroupWait]:
        alive = {member.id for member in found.members}
        told = {log for member in found.members for log in member.waits}  # by their workers
        for shard in shards:
            history = self._history(shard.log)
            if not shard.lag or shard.consumer not in alive or len(history) < 2:
                continue
            if shard.log in told:
                continue
            span_s = history[0][0] - history[-1][0]
            still = [each for each in history if each[1] == history[0][1]]
            still_s = still[0][0] - still[-1][0]
            if still_s >= NO_PROGRESS_S and all(tail > done for _, done, tail in still):
                sentence = (
                    f"its checkpoint stands for {time_text(still_s)} with messages to be done: "
                    f"{shard.consumer} is at one batch, or fails, or keeps its checkpoints to "
                    "itself; its why() says more"
                )
                yield GroupWait(shard.number, "no_progress", sentence)
            elif span_s >= NO_PROGRESS_S and (shard.come_s or 0.0) > (shard.done_s or 0.0):
                sentence = f"{shard.come_s:,.1f} messages/s come, and {shard.done_s:,.1f} are done"
                yield GroupWait(shard.number, "falls_behind", sentence)


def _places(found: GroupDescription) -> dict[str, tuple[int, int]]:
    return {
        shard.log: (shard.checkpoint.next_seq, shard.checkpoint.next_seq + shard.lag.messages)
        for shard in found.shards
        if shard.checkpoint is not None and shard.lag is not None
    }


def _silent(workers: tuple[WorkerPicture, ...], found: GroupDescription) -> Iterator[GroupWait]:
    for worker in workers:
        if worker.silent_s * 1000 > found.timeout_ms:
            sentence = (
                f"{worker.id} did not renew for {time_text(worker.silent_s)}, longer than the "
                "group's time-out: it is dead as soon as another worker takes note of it"
            )
            yield GroupWait(None, "silent", sentence)


def _catch_up_s(lag: int | None, come_s: float | None, done_s: float | None) -> float | None:
    if lag == 0:
        return 0.0
    if lag is None or come_s is None or done_s is None or done_s <= come_s:
        return None
    return round(lag / (done_s - come_s), 1)


def _sum(rates: list[float | None]) -> float | None:
    known = [each for each in rates if each is not None]
    return round(sum(known), 1) if known else None


def show_group(picture: GroupPicture) -> None:
    draw.fields(
        [
            ("group", f"{picture.group} of {picture.stream}, {moment_text(picture.at_us)}"),
            ("rate", f"{_rate(picture.come_s)} come/s, {_rate(picture.done_s)} done/s"),
            ("lag", f"{_or(picture.lag)} messages, {_catching_up(picture)}"),
        ]
    )
    for worker in picture.workers:
        domain = "" if worker.domain is None else f" in {worker.domain}"
        coming = f", {worker.coming} coming" if worker.coming else ""
        print(printable(f"worker  {worker.id}{domain}: {worker.shards} shards{coming}"))
    if picture.shards:
        print()
        draw.table(COLUMNS, [_row(shard) for shard in picture.shards])
    show_waits(picture.waits)


def _catching_up(picture: GroupPicture) -> str:
    if picture.lag == 0:
        return "caught up"
    if picture.catch_up_s is None:
        return "no time to catch up in can be told"
    return f"caught up in {time_text(picture.catch_up_s)} at these rates"


def _row(shard: ShardPicture) -> tuple[object, ...]:
    worker = "-" if shard.consumer is None else str(shard.consumer)
    if shard.owner is not None and shard.owner != shard.consumer:
        worker += f" -> {shard.owner}"
    has_lag = bool(shard.lag)
    return (
        shard.number,
        shard.state,
        worker,
        _rate(shard.come_s),
        _rate(shard.done_s),
        _or(shard.lag),
        time_text(shard.oldest_s) if has_lag and shard.oldest_s is not None else "-",
        time_text(shard.catch_up_s) if has_lag and shard.catch_up_s is not None else "-",
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"


def _or(value: object) -> object:
    return "-" if value is None else value

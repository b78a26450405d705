"""Options of a worker: a frozen value, checked when made. What all workers of a group have to agree
on (where leases are kept, the time-out, where it begins and ends) stands in the group's document,
and who comes with something else is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dlog import limits
from dlog.errors import ConfigError
from dlog.groups.membership import GroupOptions
from dlog.groups.places import check_worker_name
from dlog.ids import check_log_name
from dlog.options import OnTruncated, ReaderOptions

HeartPlace = Literal["thread", "loop"]
LeaseKind = Literal["nodes", "logs"]
OnError = Literal["retry", "dead_letter", "stop"]
Weigh = Literal["count", "lag", "bytes"]
Checkpoints = Literal["batch", "explicit"]
GroupStart = Literal["earliest", "latest"] | datetime
LEASE_KINDS: tuple[LeaseKind, ...] = ("nodes", "logs")
WEIGHS: tuple[Weigh, ...] = ("count", "lag", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One worker's ways."""

    name: str | None = None
    """Who it is, for people, and for a worker that comes again: it gets the shards back that it
    had. host:pid when not given."""
    domain: str | None = None
    """What fails together with it (a host, a rack): shards are spread over domains."""
    leases: LeaseKind = "nodes"
    """Where leases are kept: a node of the metadata store for each shard, or (`logs`) a small log
    for each, so that checkpoints ask nothing of the metadata store. The same for the whole
    group."""
    timeout_ms: int = limits.GROUP_TIMEOUT_MS_DEFAULT
    """A worker that was silent for so long is dead to the others. The same for the whole group."""
    weigh: Weigh = "count"
    """What is shared out evenly: the number of shards, the messages that the group is behind in
    them (`lag`), or the bytes that come (`bytes`). By the last two one of the workers weighs all
    shards every `weigh_ms`, and they move only if the richest worker has a quarter of the usual
    load more than the poorest; domains count for nothing then. The same for the whole group."""
    weigh_ms: int = limits.GROUP_WEIGH_MS_DEFAULT
    """How often shards are weighed, where they are."""
    start: GroupStart = "earliest"
    """Where shards begin that nobody consumed yet: what there is, what is new from when the group
    was made, or what was written since a time. What a shard is split into later begins at its
    beginning."""
    stop_at_end: bool = False
    """A bounded job: all that was there when its first worker began, and then every worker ends.
    The same for the whole group."""
    checkpoints: Checkpoints | None = None
    """`batch`: the worker takes a checkpoint behind each batch that was processed; `explicit`: only
    the processor does, by its tracker. None: explicit if `process` takes a tracker."""
    checkpoint_messages: int = 0
    """With `batch`: write the checkpoint when so many messages were processed since the last
    one, and not only as often as `flush_ms` says. 0: no."""
    flush_ms: int = limits.GROUP_FLUSH_MS_DEFAULT
    """Checkpoints that were not asked to be saved at once are written as often. A crash loses no
    more of them."""
    on_error: OnError = "retry"
    """What becomes of a batch whose processing raises: again and again with a growing pause, to the
    dead letters after `attempts`, or the shard stops, and is shown as failed. It stays with this
    worker, unless it is the one that is to be moved to another worker: which tries it once."""
    attempts: int = 3
    """How often a message is tried before it goes to the dead letters."""
    dead_letters: str | None = None
    """The log that dead letters are appended to; made if it is not there."""
    retry_pause_ms: int = 100
    """The pause before the second attempt; each is twice as long as the one before, up to 30 s."""
    hand_over_ms: int | None = limits.GROUP_TIMEOUT_MS_DEFAULT
    """How long another worker may take to hand a shard over to us before we fence it. None: as long
    as it lives."""
    threads: int = limits.GROUP_THREADS_DEFAULT
    """Processors that are plain functions run on so many threads; 0: on the event loop."""
    stall_after_ms: int = limits.STALL_AFTER_MS_DEFAULT
    """A batch that is processed for longer is told (a warning, a metric, `why()`); so is an event
    loop that is blocked for as long. 0: never."""
    heart: HeartPlace = "thread"
    """Where leases are renewed: on a thread of its own, which nothing that a processor does can
    block; `loop`, the event loop of the user, is for simulations."""
    trusts_name: bool = False
    """No other process goes by our name: what is left of it is dead, and its shards are taken
    without waiting."""
    on_truncated: OnTruncated = "raise"
    """When messages were truncated before they were consumed: the shard stops, or goes on at the
    new head."""
    read_ahead_bytes: int = limits.GROUP_READ_AHEAD_BYTES_DEFAULT
    """Bytes read and not yet processed, of each shard."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_worker_name(self.name)
        if self.domain is not None:
            check_log_name(self.domain)
        _one_of("leases", self.leases, LEASE_KINDS)
        _one_of("weigh", self.weigh, WEIGHS)
        _one_of("heart", self.heart, ("thread", "loop"))
        _one_of("on_error", self.on_error, ("retry", "dead_letter", "stop"))
        _one_of("on_truncated", self.on_truncated, ("raise", "jump"))
        if self.checkpoints is not None:
            _one_of("checkpoints", self.checkpoints, ("batch", "explicit"))
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise ConfigError("start is a time with a time zone")
        else:
            _one_of("start", self.start, ("earliest", "latest"))
        _whole("timeout_ms", self.timeout_ms, 100, 3_600_000)
        _whole("weigh_ms", self.weigh_ms, 100, 24 * 3600 * 1000)
        _whole("checkpoint_messages", self.checkpoint_messages, 0, 1 << 40)
        _whole("flush_ms", self.flush_ms, 0, 3_600_000)
        _whole("attempts", self.attempts, 1, 1_000_000)
        _whole("retry_pause_ms", self.retry_pause_ms, 1, 30_000)
        _whole("threads", self.threads, 0, 4_096)
        _whole("stall_after_ms", self.stall_after_ms, 0, 24 * 3600 * 1000)
        if self.hand_over_ms is not None:
            _whole("hand_over_ms", self.hand_over_ms, 0, 24 * 3600 * 1000)
        if (self.on_error == "dead_letter") != (self.dead_letters is not None):
            raise ConfigError("on_error='dead_letter' and dead_letters='a log' go together")
        if self.dead_letters is not None:
            check_log_name(self.dead_letters)
        for name in ("stop_at_end", "trusts_name"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} is True or False")
        if self.trusts_name and self.name is None:
            raise ConfigError("trusts_name=True is about a name: give one")
        if self.checkpoints == "explicit" and self.checkpoint_messages:
            raise ConfigError("checkpoint_messages is for checkpoints='batch'")
        self.reader_options()  # its own rules

    def group_options(self) -> GroupOptions:
        return GroupOptions(
            timeout_s=self.timeout_ms / 1000,
            flush_s=self.flush_ms / 1000,
            force_s=None if self.hand_over_ms is None else self.hand_over_ms / 1000,
            trusts_name=self.trusts_name,
            is_job=self.stop_at_end,
            weigh_s=None if self.weigh == "count" else self.weigh_ms / 1000,
            prove_s=self.timeout_ms / 2000 if self.leases == "logs" else None,
        )

    def reader_options(self) -> ReaderOptions:
        return ReaderOptions(
            follow=not self.stop_at_end,
            on_truncated=self.on_truncated,
            read_ahead_bytes=self.read_ahead_bytes,
            stall_after_ms=0,
        )


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} is a whole number from {least} to {most}, not {value!r}")

"""The sync client and its admin: one loop thread, and the async client on it."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dlog import client as aio
from dlog import uri
from dlog.admin.admin import Admin as AsyncAdmin
from dlog.admin.fsck.report import RepairReport, Report, Step
from dlog.admin.status import LogStatus
from dlog.admin.summary import (
    Collection,
    HoldSummary,
    LogDescription,
    LogSummary,
    SegmentSummary,
    Truncation,
)
from dlog.admin.why import Diagnosis
from dlog.errors import ConfigError, DlogError
from dlog.findings import Finding
from dlog.ids import MessageId, Token
from dlog.limits import (
    CONFIG_POLL_MS_DEFAULT,
    FSCK_GRACE_S_DEFAULT,
    FSCK_PARALLEL_DEFAULT,
    FSCK_SAMPLE_DEFAULT,
    RANGE_BYTES_DEFAULT,
)
from dlog.metrics import NO_METRICS, Metrics
from dlog.options import LogOptions, OnTruncated, TailMode
from dlog.reader.message import MessageBatch
from dlog.reader.places import Start
from dlog.reader.ranges import LedgerRange
from dlog.reader.resolve import Resolved
from dlog.sync.config import Config, HotConfig
from dlog.sync.jobs import Jobs
from dlog.sync.moves import MetaMoves
from dlog.sync.portal import Portal
from dlog.sync.reader import RangeBatches, Reader
from dlog.sync.standby import Standby
from dlog.sync.writer import Writer

if TYPE_CHECKING:
    from dlog.streams.document import Routing
    from dlog.sync.groups import Group, Worker
    from dlog.sync.streams import Stream


class Client:
    """One connection to where logs are kept, for programs without an event loop. Thread-safe."""

    def __init__(
        self, url: uri.Url, metrics: Metrics = NO_METRICS, config: str | None = None
    ) -> None:
        self._inner = aio.Client(url, metrics, config)  # which may refuse what it is given
        self._portal = Portal()
        self.url = self._inner.url
        self.admin = Admin(self._inner.admin, self._portal)
        self._closed = False

    def open_writer(
        self,
        name: str,
        *,
        create: bool | LogOptions = True,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Writer:
        """Become the one writer of a log; an older one is fenced (see `takeover`). A log that is
        not there is made, with `create` as its options, unless that is False. `metrics` of its own
        replace the client's."""
        opening = _opened(self._inner.open_writer, name, create=create, metrics=metrics, **options)
        return Writer(self._portal.run(opening), self._portal)

    def open_reader(
        self,
        name: str,
        *,
        start: Start = "earliest",
        end: Start | None = None,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Reader:
        """Read a log from `start`: "earliest", "latest", a MessageId, a Position, a seq or an aware
        datetime; to `end` (exclusive), by default to the tail seen now, or on and on with
        `follow`. `metrics` of its own replace the client's."""
        opening = _opened(
            self._inner.open_reader, name, start=start, end=end, metrics=metrics, **options
        )
        return Reader(self._portal.run(opening), self._portal)

    def open_standby(
        self,
        name: str,
        *,
        start: Start = "earliest",
        tail: TailMode = "normal",
        create: bool | LogOptions = True,
        **options: Any,
    ) -> Standby:
        """Stand by to become the writer, with a ledger ready; read what is written meanwhile, from
        `start` on, and believe the tail as `tail` says. `options` are those of the writer to be."""
        opening = _opened(
            self._inner.open_standby, name, start=start, tail=tail, create=create, **options
        )
        return Standby(self._portal.run(opening), self._portal)

    def read_range(self, wanted: LedgerRange, **options: Any) -> Iterator[MessageBatch]:
        """The messages of a range that `admin.plan_ranges` gave, here or in another process, as
        they lie in entries: so many, from that seq on, or `Truncated` (unless `on_truncated` is
        "jump": then what is left of them) or `Corrupt`. `options` are a reader's. Several threads
        may read a range each. After an error that may pass, the next step of the same iterator
        goes on."""
        return RangeBatches(
            wanted,
            lambda: Reader(
                self._portal.run(self._inner._open_range(wanted, options)), self._portal
            ),
        )

    # --- streams

    def stream(self, name: str) -> Stream:
        """Shards that act as one log. A plain log is a stream of one shard."""
        from dlog.sync.streams import Stream

        return Stream(self._inner.stream(name), self._portal)

    def create_stream(
        self,
        name: str,
        *,
        shards: int = 1,
        routing: Routing = "ranges",
        pins: Mapping[bytes, int] | None = None,
        weights: Sequence[int] | None = None,
        **log_options: Any,
    ) -> Stream:
        """A new stream of so many shards. A key goes to the shard that has its hash in its range
        (`routing="ranges"`, which can be split and merged), or by consistent hashing of all shards,
        with `weights` if wanted (`"ketama"`); one in `pins` to the shard named there.
        `log_options` are those of the logs that the shards are. `AlreadyExists` if there is one."""
        making = self._inner.create_stream(
            name, shards=shards, routing=routing, pins=pins, weights=weights, **log_options
        )
        self._portal.run(making)
        return self.stream(name)

    def streams(self, prefix: str = "") -> list[str]:
        """The names of streams that begin with `prefix`. A plain log is not among them."""
        return self._portal.run(self._inner.streams(prefix))

    # --- groups of workers

    def open_worker(
        self,
        group: str,
        stream: str,
        processor: Any,
        *,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Worker:
        """Consume a share of a stream's shards together with the other workers of a group, each
        shard by one of them at a time. `processor` is a function of a batch (and a tracker), an
        object with `process`, and `initialize` and `shutdown` if wanted, or a class of such: one
        for each shard; it runs on threads. Options are those of
        `dlog.groups.options.WorkerOptions`."""
        from dlog.sync.groups import Worker

        opening = _opened(
            self._inner.open_worker, group, stream, processor, metrics=metrics, **options
        )
        return Worker(self._portal.run(opening), self._portal)

    def group(self, group: str, stream: str) -> Group:
        """A group of workers, to look at and to put elsewhere."""
        from dlog.sync.groups import Group

        return Group(self._inner.group(group, stream), self._portal)

    def groups(self, stream: str | None = None) -> list[tuple[str, str]]:
        """Names of groups and of their streams; of one stream, if named."""
        return self._portal.run(self._inner.groups(stream))

    def resolve(self, name: str, token: Token) -> Resolved:
        """What became of the message of a `ticket.token` (or of an `error.token`): `Present(id)`,
        `Never`, `TooLate(why)` when the evidence is truncated or removed, or `Undecided(why)` while
        its writer may still hold the log: open a writer, and ask again."""
        return self._portal.run(self._inner.resolve(name, token))

    def config(self, name: str) -> Config:
        """A document to read, change and follow. It need not be there yet."""
        return Config(self._inner.config(name), self._portal)

    def follow_config(self, name: str, *, poll_ms: int = CONFIG_POLL_MS_DEFAULT) -> HotConfig:
        """From now on this client's writers, readers and logs go by that document, whatever is
        open already included: see docs/how-to/configure.md. `connect(config=name)` does so from
        the first handle on."""
        inner = self._portal.run(self._inner.follow_config(name, poll_ms=poll_ms))
        return HotConfig(inner, self._portal)

    @property
    def followed_config(self) -> HotConfig | None:
        """What the handles of this client go by; None while nothing is followed."""
        inner = self._inner.followed_config
        return None if inner is None else HotConfig(inner, self._portal)

    def close(self) -> None:
        """Closes what this client opened and is still open. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if not self._portal.usable:
            return
        patient = True
        try:
            self._portal.run(self._inner.close())
        except BaseException as error:
            patient = isinstance(error, DlogError)  # else Ctrl-C: it goes on without us
            raise
        finally:
            if patient:
                self._portal.stop()
            else:
                self._portal.abandon(self._inner.close())

    def abandon(self) -> None:
        """Let the loop thread end by itself, without waiting: for a client that nobody holds."""
        if not self._closed and self._portal.usable:
            self._closed = True
            self._portal.abandon(self._inner.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.abandon()

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a client cannot be pickled: pass its url and connect there")


class Admin(MetaMoves, Jobs):
    """Looks at logs, makes, truncates, ends and removes them."""

    def __init__(self, inner: AsyncAdmin, portal: Portal) -> None:
        MetaMoves.__init__(self, inner, portal)
        Jobs.__init__(self, inner, portal)
        self._inner = inner

    def create(self, name: str, **log_options: Any) -> LogDescription:
        """A new, empty log. `AlreadyExists` if there is one."""
        return self._portal.run(self._inner.create(name, **log_options))

    def list(self, prefix: str = "") -> builtins.list[LogSummary]:
        """The logs whose names begin with `prefix`, by name."""
        return self._portal.run(self._inner.list(prefix))

    def describe(self, name: str) -> LogDescription:
        return self._portal.run(self._inner.describe(name))

    def segments(self, name: str) -> tuple[SegmentSummary, ...]:
        return self._portal.run(self._inner.segments(name))

    def status(self, name: str) -> LogStatus:
        """Where the log stands now: cheap, however long its history is."""
        return self._portal.run(self._inner.status(name))

    def why(self, name: str) -> Diagnosis:
        """What the log waits for, as it can be seen from outside: its holder, its open ledgers and
        their bookies, its holds. A metadata store that is away is an answer, not an error."""
        return self._portal.run(self._inner.why(name))

    def tail(self, name: str) -> MessageId | None:
        """The last message acknowledged by anyone before this call. Linearizable."""
        return self._portal.run(self._inner.tail(name))

    def examine(self) -> tuple[Finding, ...]:
        """Is this place fit for logs? Over connections of its own, in bounded time; whatever is
        wrong there is a finding, not an error."""
        return self._portal.run(self._inner.examine())

    def unlisted(self) -> Mapping[str, Sequence[int]]:
        """Ledgers with messages whose log is not known here, by the uid of that log: its metadata
        was lost. Empty on a cluster, where another root may have it. Looks at each ledger."""
        return self._portal.run(self._inner.unlisted())

    def resolve(self, name: str, token: Token) -> Resolved:
        """What became of a message: see `Client.resolve`."""
        return self._portal.run(self._inner.resolve(name, token))

    def fsck(
        self,
        *logs: str,
        deep: bool = False,
        replication: bool = False,
        samples: int = FSCK_SAMPLE_DEFAULT,
        parallel: int = FSCK_PARALLEL_DEFAULT,
        grace_s: float = FSCK_GRACE_S_DEFAULT,
        segments: range | None = None,
    ) -> Report:
        """Are these logs whole, or all that there are? Changes nothing; what is wrong is a finding,
        what could not be looked at is told with its reason. `deep` reads every copy of every entry,
        `replication` asks only who keeps them; else `samples` entries of each segment are read.
        What a writer or standby may be about to delete is nobody's only after `grace_s`. With
        `segments` only those of these numbers are looked at, and no orphans: by as many programs
        beside each other as you like."""
        return self._portal.run(
            self._inner.fsck(
                *logs,
                deep=deep,
                replication=replication,
                samples=samples,
                parallel=parallel,
                grace_s=grace_s,
                segments=segments,
            )
        )

    def repair(self, plan: Report | Sequence[Step]) -> RepairReport:
        """Do what `fsck` found could be done, or some of it. Each step looks again, changes by
        compare-and-set, and says how it ended; nothing that cannot be proven is done."""
        return self._portal.run(self._inner.repair(plan))

    def remove(self, name: str) -> None:
        """Delete the log with everything in it, under its readers and its writer."""
        self._portal.run(self._inner.remove(name))

    def plan_ranges(
        self,
        *logs: str,
        pattern: str | None = None,
        start: Start | Mapping[str, Start] = "earliest",
        end: Start | Mapping[str, Start] = "latest",
        target_bytes: int = RANGE_BYTES_DEFAULT,
        min_ranges: int = 1,
        max_messages: int | None = None,
        on_truncated: OnTruncated = "raise",
        tail: TailMode = "normal",
    ) -> tuple[LedgerRange, ...]:
        """What these logs hold, or those whose whole name the pattern matches, in ranges that can
        be read apart from each other (`Client.read_range`), in order: from `start` to `end`
        (exclusive, at most the tail of this moment), each one place for all, or one for each log by
        its name. About `target_bytes` each, less where that makes `min_ranges`, never more than
        `max_messages`; small ledgers share one. Disturbs no writer. A start that was truncated is
        `Truncated`, or with `on_truncated="jump"` the head."""
        return self._portal.run(
            self._inner.plan_ranges(
                *logs,
                pattern=pattern,
                start=start,
                end=end,
                target_bytes=target_bytes,
                min_ranges=min_ranges,
                max_messages=max_messages,
                on_truncated=on_truncated,
                tail=tail,
            )
        )

    def truncate(self, name: str, before: Start, *, dry_run: bool = False) -> Truncation:
        """Let the log begin at a seq, a MessageId, a Position, an aware datetime, or behind all
        that can be read now ("latest"): what is there stays, what is before it is gone. As far as
        holds let it; the answer says why it went no further. `dry_run` only tells what would go."""
        return self._portal.run(self._inner.truncate(name, before, dry_run=dry_run))

    def force_truncate(self, name: str, before: Start, *, dry_run: bool = False) -> Truncation:
        """As `truncate`, and no hold stops it; the answer names those that it overran."""
        return self._portal.run(self._inner.force_truncate(name, before, dry_run=dry_run))

    def hold(
        self, name: str, hold: str, at: Start, *, note: str | None = None, who: str | None = None
    ) -> HoldSummary:
        """Keep what is at a place and behind it from being truncated, by a hold of this name: a new
        one, or one that moves forward. `Truncated` when the place is gone already."""
        return self._portal.run(self._inner.hold(name, hold, at, note=note, who=who))

    def holds(self, name: str) -> tuple[HoldSummary, ...]:
        """By name."""
        return self._portal.run(self._inner.holds(name))

    def drop_hold(self, name: str, hold: str) -> None:
        """`NotFound` when there is none of this name."""
        self._portal.run(self._inner.drop_hold(name, hold))

    def collect(self, name: str, *, dry_run: bool = False) -> Collection:
        """Apply the log's retention, and delete what was truncated once its grace is over. Can be
        run at any time, by anybody, and again after a failure. `dry_run` only tells what would
        go now, and what would have to wait."""
        return self._portal.run(self._inner.collect(name, dry_run=dry_run))

    def terminate(self, name: str) -> None:
        """No more messages, for good: a writer is fenced first, readers come to an end behind the
        last message. What is there stays readable."""
        self._portal.run(self._inner.terminate(name))


async def _opened(verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return await verb(*args, **options)


def connect(
    url: str | None = None,
    *,
    metrics: Metrics = NO_METRICS,
    config: str | None = None,
    **client_options: Any,
) -> Client:
    """A client for `url`, else for what DLOG_URL says, else for the user's own data directory.
    `metrics` hears what it and its handles measure (see `dlog.metrics`), on dlog's own thread;
    `config` names a document there that they go by, also when it changes."""
    return Client(uri.resolve(url, client_options), metrics, config)


def open_writer(
    name: str,
    url: str | None = None,
    *,
    create: bool | LogOptions = True,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Writer:
    """One log's writer, with a client of its own. Options as of `Client.open_writer`."""
    client = connect(url, metrics=metrics)
    try:
        writer = client.open_writer(name, create=create, **options)
    except BaseException:
        client.close()
        raise
    writer.own(client)
    return writer


def open_reader(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    end: Start | None = None,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Reader:
    """One log's reader, with a client of its own. Options as of `Client.open_reader`."""
    client = connect(url, metrics=metrics)
    try:
        reader = client.open_reader(name, start=start, end=end, **options)
    except BaseException:
        client.close()
        raise
    reader.own(client)
    return reader


def open_standby(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    tail: TailMode = "normal",
    create: bool | LogOptions = True,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Standby:
    """One log's standby, with a client of its own, which its writer shares. Options as of
    `Client.open_standby`."""
    client = connect(url, metrics=metrics)
    try:
        standby = client.open_standby(name, start=start, tail=tail, create=create, **options)
    except BaseException:
        client.close()
        raise
    standby.own(client)
    return standby

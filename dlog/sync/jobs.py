"""The part of the sync admin that is for jobs: segments that are filled beside the log, and
published into it at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any

from dlog.admin.discard import Discarded
from dlog.admin.jobs import Jobs as AsyncJobs
from dlog.admin.publish import Publication
from dlog.errors import ConfigError
from dlog.reason import Reason
from dlog.sync.portal import Answer, Portal
from dlog.writer import job_segment as aio
from dlog.writer.arguments import EventTime, HeadersArg
from dlog.writer.filled import FilledSegment


class JobSegment:
    """A ledger beside the log, filled by one job. Nobody reads it before it is published."""

    def __init__(self, inner: aio.JobSegment, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    @property
    def log(self) -> str:
        return self._inner.log

    @property
    def job(self) -> str:
        return self._inner.job

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def messages(self) -> int:
        """Taken so far. They are durable once `close` returned."""
        return self._portal.ask(lambda: self._inner.messages)

    @property
    def bytes_taken(self) -> int:
        """Of what was taken so far, about."""
        return self._portal.ask(lambda: self._inner.bytes_taken)

    @property
    def is_full(self) -> bool:
        """As large as the segments of the log shall be: time to close it and open another one. At
        twice that it takes no more."""
        return self._portal.ask(lambda: self._inner.is_full)

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def filled(self) -> FilledSegment | None:
        """What `close` answered."""
        return self._inner.filled

    def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        event_times: Iterable[EventTime | None] | None = None,
    ) -> None:
        """All of them, in order, each with its key, headers and event time. Waits while the window
        is full; durable once `close` returned. They are iterated over on dlog's own thread."""
        self._run(
            self._inner.append_many, values, keys=keys, headers=headers, event_times=event_times
        )

    def append_batch(self, batch: Any) -> None:
        """A pyarrow RecordBatch or Table: the column `value` (binary), and `key` (binary),
        `headers` (lists of name and value) and `event_time` (a timestamp) if they are there. What a
        reader's batches have beside these is passed over, anything else refused."""
        self._run(self._inner.append_batch, batch)

    def close(self) -> FilledSegment:
        """All that was taken is durable, and the ledger closed, once this returns: what there is to
        publish. One without messages is deleted, and says so: 0 messages."""
        return self._run(self._inner.close)

    def why(self) -> Reason | None:
        """What the segment waits for now, and since when; None when it waits for nothing."""
        return self._portal.ask(self._inner.why)

    def abort(self) -> None:
        """Delete the ledger with all that was taken. Of a closed one: nothing happens; that is for
        `admin.discard_segments`. Idempotent."""
        if self._portal.usable:
            self._run(self._inner.abort)

    def _run(
        self, verb: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **kw: Any
    ) -> Answer:
        return self._portal.run(verb(*args, **kw))

    def __enter__(self) -> JobSegment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._inner.__aexit__, kind, error, trace)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a segment that is being filled cannot be pickled; close it first")


class Jobs:
    def __init__(self, jobs: AsyncJobs, portal: Portal) -> None:
        self._jobs = jobs
        self._portal = portal

    def open_segment(self, log: str, *, job: str, **options: Any) -> JobSegment:
        """A ledger of its own, to be filled beside the log by a job; see `dlog.aio`."""

        async def opened() -> aio.JobSegment:
            return await self._jobs.open_segment(log, job=job, **options)

        return JobSegment(self._portal.run(opened()), self._portal)

    def publish_segments(
        self, log: str, segments: Iterable[FilledSegment], *, key: tuple[str, int]
    ) -> Publication:
        """All messages of these segments become the newest of the log, at once and whole. A
        takeover: a writer that has the log open is fenced. `key` is the batch (a query, and a
        number that rises): one that is there already is answered `published=False`. `Conflict`
        if the batch has to be run again. See `dlog.aio`."""
        return self._portal.run(self._jobs.publish_segments(log, segments, key=key))

    def discard_segments(self, segments: Iterable[FilledSegment]) -> Discarded:
        """Delete the ledgers of these segments, as far as they are not listed, nor ever were: safe
        whatever became of a publication of them. May be repeated."""
        return self._portal.run(self._jobs.discard_segments(segments))

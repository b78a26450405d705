"""Writing DataFrames into logs, batch and streaming, with the columns of Spark's Kafka sink.

**Exactly once.** Each task fills ledgers of its own, beside the log, where nobody sees them; what
it answers are their names. The driver's commit publishes them all by one conditional update of the
log, keyed by query and batch: a batch that is run again, after whatever failure, finds itself
published and adds nothing. What a failed batch filled is deleted; what a dead driver left is
nobody's, and the collector's. Publishing is a takeover: a program that has the log open as its
writer is fenced.

**At least once** (`delivery=atLeastOnce`). Each task in its turn is the writer of the log, as any
program, and waits for the one before it. Nothing is hidden, and a task that failed leaves what it
appended.

A message goes to one log, whole; over several logs a batch is published one after the other, each
by its own key, so that a run that was cut short in between goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import dlog
from dlog.chance import SYSTEM_CHANCE
from dlog.errors import AlreadyExists, ConfigError, DlogError, NotFound, Unsupported
from dlog.spark.options import ONE_OFF, SinkOptions
from dlog.spark.shards import refuse_streams

_PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_KINDS: Mapping[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "headers": (ArrayType(_PAIR),),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "eventTime": (TimestampType(),),
}
# The columns of a message, as dlog names them.
_MESSAGE = {"value": "value", "key": "key", "headers": "headers", "eventTime": "event_time"}
_QUERY = "sql.streaming.queryId"  # a property that Spark gives each task of a stream
_BATCH = "streaming.sql.batchId"
_log = logging.getLogger("dlog.spark")


@dataclass
class Filled(WriterCommitMessage):  # type: ignore[misc]  # pyspark's base has no types
    """What a task has to publish: names and numbers."""

    segments: list[dlog.FilledSegment] = field(default_factory=list)
    query: str | None = None


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """As Kafka's sink: `value` is needed, a log too, all else may be there."""
    for each in schema.fields:
        kinds = _KINDS.get(each.name)
        if kinds is None:
            raise ConfigError(f"no column {each.name!r} is written; there are {', '.join(_KINDS)}")
        if not any(_same(each.dataType, kind) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise ConfigError(
                f"the column {each.name} is {wanted}, not {each.dataType.simpleString()}"
            )
    if "value" not in schema.fieldNames():
        raise ConfigError("there is no column value")
    if options.log is None and "topic" not in schema.fieldNames():
        raise ConfigError("which log? Give the option topic, or a column topic")


def _same(given: DataType, kind: DataType) -> bool:
    """Whatever may be null."""
    return str(given.simpleString()) == str(kind.simpleString())


class _Writer:
    """What batch and stream have in common. It travels to the executors."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_columns(schema, options)
        self.options = options
        self._job = SYSTEM_CHANCE.token()

    def fill(self, batches: Iterator[Any]) -> Filled:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        options = self.options
        tasks = _Segments(options, self._job) if options.exactly_once else _Turns(options)
        try:
            for batch in batches:
                for log, messages in by_log(batch, options.log):
                    tasks.take(log, messages)
            return Filled(tasks.close(), query)
        except BaseException:
            tasks.abort()
            raise

    def publish(self, messages: list[Any], query: str, number: int) -> None:
        client = self.options.access.connect()
        by_name: dict[str, list[dlog.FilledSegment]] = {}
        for message in messages:
            for segment in message.segments if isinstance(message, Filled) else ():
                by_name.setdefault(segment.log, []).append(segment)
        for log, segments in sorted(by_name.items()):
            told = client.admin.publish_segments(log, segments, key=(query, number))
            if not told.published:
                _log.info("batch %d of %s was in log %r already", number, query, log)
                client.admin.discard_segments(segments)

    def discard(self, messages: list[Any]) -> None:
        """Best effort: what is left is nobody's, and the collector's."""
        segments = [
            segment
            for message in messages
            if isinstance(message, Filled)
            for segment in message.segments
        ]
        if not segments:
            return
        try:
            self.options.access.connect().admin.discard_segments(segments)
        except DlogError as error:
            _log.warning("left to the collector: %s", error)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """Spark copies it to the tasks when the write is planned, and keeps it for the commit: the job
    drawn then is the key of both, unless the user names one, which is then written once for ever:
    a log that forgot that name refuses it (`NotFound`)."""

    def write(self, batches: Iterator[Any]) -> WriterCommitMessage:
        return self.fill(batches)

    def commit(self, messages: list[Any]) -> None:
        self.publish(messages, self.options.query or f"{ONE_OFF}{self._job}", 0)

    def abort(self, messages: list[Any]) -> None:
        self.discard(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Made anew for each batch, and again for its commit, in other processes: only messages travel.
    The query's id is that of its checkpoint, and stays over restarts."""

    def write(self, batches: Iterator[Any]) -> WriterCommitMessage:
        return self.fill(batches)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        query = self._query(messages)
        if query is None:
            if any(message.segments for message in messages if isinstance(message, Filled)):
                raise Unsupported(
                    "this Spark does not say which query it is: give the option query"
                )
            return
        self.publish(messages, query, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self.discard(messages)

    def _query(self, messages: list[Any]) -> str | None:
        if self.options.query is not None:
            return self.options.query
        found = {message.query for message in messages if isinstance(message, Filled)} - {None}
        return found.pop() if len(found) == 1 else None


# --- in a task


class _Segments:
    """Ledgers beside the logs, filled and closed."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._job = f"spark {job}"
        self._client = options.access.connect()
        self._open: dict[str, Any] = {}
        self._filled: list[dlog.FilledSegment] = []

    def take(self, log: str, messages: Any) -> None:
        segment = self._open.get(log)
        if segment is not None and segment.is_full:
            self._close(log)
            segment = None
        if segment is None:
            segment = self._open[log] = self._made(log)
        segment.append_batch(messages)

    def _made(self, log: str) -> Any:
        codec = self._options.codec
        refuse_streams(self._client, log)
        try:
            return self._client.admin.open_segment(log, job=self._job, codec=codec)
        except NotFound:
            create(self._options, log)
            return self._client.admin.open_segment(log, job=self._job, codec=codec)

    def _close(self, log: str) -> None:
        filled = self._open.pop(log).close()
        if filled.messages:
            self._filled.append(filled)

    def close(self) -> list[dlog.FilledSegment]:
        for log in list(self._open):
            self._close(log)
        return self._filled

    def abort(self) -> None:
        for segment in self._open.values():
            segment.abort()
        if self._filled:
            self._client.admin.discard_segments(self._filled)


class _Turns:
    """The writer of each log, one task after the other."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._client = options.access.connect()
        self._open: dict[str, Any] = {}

    def take(self, log: str, messages: Any) -> None:
        writer = self._open.get(log)
        if writer is None:
            self._leave()  # who holds one log and waits for another may wait for ever
            writer = self._open[log] = self._opened(log)
        columns = {name: _plain(messages.column(name)) for name in messages.schema.names}
        headers = columns.get("headers")
        if headers is not None:
            headers = [None if each is None else _pairs(each) for each in headers]
        if any(each is not None for each in columns.get("event_time", ())):
            self._one_by_one(writer, columns, headers)
        else:
            writer.append_many(columns["value"], keys=columns.get("key"), headers=headers)

    @staticmethod
    def _one_by_one(writer: Any, columns: dict[str, list[Any]], headers: list[Any] | None) -> None:
        """Runs know no event times."""
        none = [None] * len(columns["value"])
        rows = zip(
            columns["value"],
            columns.get("key", none),
            headers or none,
            columns["event_time"],
            strict=True,
        )
        tickets = [
            writer.submit(value, key=key, headers=pairs, event_time=at)
            for value, key, pairs, at in rows
        ]
        for ticket in tickets:
            ticket.result()

    def _opened(self, log: str) -> Any:
        refuse_streams(self._client, log)
        return self._client.open_writer(
            log,
            create=self._options.creates,
            takeover="wait",
            open_timeout_ms=self._options.turn_timeout_ms,
            codec=self._options.codec,
        )

    def _leave(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def close(self) -> list[dlog.FilledSegment]:
        self._leave()
        return []

    def abort(self) -> None:
        self._leave()


def create(options: SinkOptions, log: str) -> None:
    if not options.creates:
        raise NotFound(f"there is no log {log!r}, and createLogs=false", log=log)
    try:
        options.access.connect().admin.create(log)
    except AlreadyExists:
        pass  # another task was quicker


def _plain(array: Any) -> list[Any]:
    """Times as microseconds: of some that a column can hold Python has no datetime."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    made: list[Any] = array.to_pylist()
    return made


def _pairs(headers: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    return [(pair["name"], pair["value"]) for pair in headers]


def by_log(batch: Any, log: str | None) -> Iterator[tuple[str, Any]]:
    """The messages of a batch by their log, with the columns that dlog takes."""
    names = batch.schema.names
    if "partition" in names:
        strange = pyarrow.compute.any(pyarrow.compute.not_equal(batch.column("partition"), 0))
        if strange.as_py():
            raise ConfigError("a plain log has shard 0 alone: the column partition is 0 or null")
    arrays = {
        ours: _column(ours, batch.column(name)) for name, ours in _MESSAGE.items() if name in names
    }
    messages = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    if log is not None:
        yield log, messages
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ConfigError("a row has no topic, and there is no option topic")
    for each in pyarrow.compute.unique(topics).to_pylist():
        yield each, messages.filter(pyarrow.compute.equal(topics, each))


def _column(name: str, array: Any) -> Any:
    if name in ("value", "key"):
        return array.cast(pa.binary())
    return _named(array) if name == "headers" else array


def _named(lists: Any) -> Any:
    """Spark's pairs have a key, ours a name; the bytes are the same."""
    pairs = lists.values
    if pairs.null_count or pairs.field(0).null_count or pairs.field(1).null_count:
        raise ConfigError("a header without a name or a value: dlog's have both")
    named = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], ["name", "value"])
    return pa.Array.from_buffers(
        pa.list_(named.type),
        len(lists),
        lists.buffers()[:2],
        offset=lists.offset,
        children=[named],
    )

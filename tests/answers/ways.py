"""Ways to ask a log or stream without Spark: readers of each kind, ranges, the command line,
copies, groups of workers, and what only counts."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow.parquet
import pytest

import dlog
from dlog.cli.main import main
from tests.answers.asking import (
    CONTENT,
    LEFT,
    OF_ONE_LOG,
    OF_STREAM,
    SENT,
    Answer,
    Answers,
    Asked,
    Row,
    is_a_stream_too,
    lenience,
    of_logs,
    of_names,
    row_of,
    shard_answers,
)
from tests.pace import waited

RUN = 50
JOB_ENDS_IN_S = 20.0
WHOLE = "rows head end"


def _read(reader: Any, rows: Iterable[Row], head: int) -> Answer:
    return Answer.of(rows=list(rows), head=head, end=reader.position.next_seq)


# --- readers of one log


def options_of(asked: Asked) -> dict[str, Any]:
    return {"start": asked.start, "end": asked.end, "on_truncated": lenience(asked.left)}


def opened(asked: Asked, log: str, **changed: Any) -> Any:
    return asked.world.client.open_reader(log, **{**options_of(asked), **changed})


def stream_opened(asked: Asked, **changed: Any) -> Any:
    stream = asked.world.client.stream(asked.name)
    options = {"start": asked.start, "on_truncated": lenience(asked.left), **changed}
    return stream.open_reader(**options)


@of_logs("reader: batches", *OF_ONE_LOG, tells=WHOLE)
def _batches(asked: Asked, log: str) -> Answer:
    with opened(asked, log) as reader:
        head = reader.position.next_seq
        rows = [row_of(each) for batch in reader.batches() for each in batch.to_pylist()]
        return _read(reader, rows, head)


@of_logs("reader: Arrow", *OF_ONE_LOG, tells=WHOLE)
def _arrow(asked: Asked, log: str) -> Answer:
    with opened(asked, log) as reader:
        head = reader.position.next_seq
        tables = [batch.to_arrow(ids=True) for batch in reader.batches()]
        return _read(reader, (row for table in tables for row in _arrow_rows(table)), head)


@of_logs("reader: short runs, each by a new one", *OF_ONE_LOG, tells=WHOLE)
def _runs(asked: Asked, log: str) -> Answer:
    rows: list[Row] = []
    at, head = asked.start, None
    while True:
        with opened(asked, log, start=at) as reader:
            head = reader.position.next_seq if head is None else head
            run = reader.read(RUN)
            rows += map(row_of, run)
            at = reader.position
            if not run:
                return _read(reader, rows, head)


@of_logs("reader: sought from elsewhere", *OF_ONE_LOG, tells=WHOLE)
def _sought(asked: Asked, log: str) -> Answer:
    with opened(asked, log, start="latest", end=None) as reader:
        reader.seek(asked.start, end=asked.end)
        head = reader.position.next_seq
        return _read(reader, map(row_of, reader), head)


@of_logs("reader: follows up to the tail", *OF_STREAM, "from zero", LEFT[1], tells=WHOLE)
def _follows(asked: Asked, log: str) -> Answer:
    """To an end that is not written yet it would wait."""
    end = asked.world.client.admin.status(log).next_seq
    with opened(asked, log, end=end, follow=True) as reader:
        head = reader.position.next_seq
        return _read(reader, map(row_of, reader), head)


@of_logs("aio: reader", *OF_ONE_LOG, tells=WHOLE)
def _aio(asked: Asked, log: str) -> Answer:
    async def read() -> Answer:
        async with dlog.aio.open_reader(log, asked.world.url, **options_of(asked)) as reader:
            head = reader.position.next_seq
            return _read(reader, [row_of(each) async for each in reader], head)

    return asyncio.run(read())


@of_logs("ranges: planned, and each read by itself", *OF_ONE_LOG, tells="rows count")
def _ranges(asked: Asked, log: str) -> Answer:
    client = asked.world.client
    end = "latest" if asked.end is None else asked.end
    options = {**options_of(asked), "end": end}
    ranges = client.admin.plan_ranges(log, target_bytes=1024, max_messages=40, **options)
    rows = {
        each.first_seq: [row_of(m) for batch in client.read_range(each) for m in batch.to_pylist()]
        for each in reversed(ranges)
    }
    in_order = [row for each in ranges for row in rows[each.first_seq]]
    return Answer.of(rows=in_order, count=sum(each.messages for each in ranges))


# --- readers of streams; a plain log is one of one shard


@of_names("stream reader: as they come", *OF_STREAM)
def _as_they_come(asked: Asked) -> Answers:
    with stream_opened(asked) as reader:
        return shard_answers((shard, row_of(message)) for shard, message in reader)


@of_names("stream reader: by time", *OF_STREAM)
def _by_time(asked: Asked) -> Answers:
    with stream_opened(asked, order="time") as reader:
        found = [(shard, row_of(message)) for shard, message in reader]
        times = [row.timestamp_us or 0 for _, row in found]
        assert times == sorted(times)
        return shard_answers(found)


@of_names("stream reader: short runs, each by a new one", *OF_STREAM)
def _stream_runs(asked: Asked) -> Answers:
    found: list[tuple[int, Row]] = []
    at = asked.start
    while True:
        with stream_opened(asked, start=at) as reader:
            run = reader.read(RUN)
            found += [(shard, row_of(message)) for shard, message in run]
            at = reader.position
        if not run:
            return shard_answers(found)


@of_names("stream reader: batches", *OF_STREAM)
def _stream_batches(asked: Asked) -> Answers:
    with stream_opened(asked) as reader:
        return shard_answers(
            (each.shard, row_of(message))
            for each in reader.batches()
            for message in each.batch.to_pylist()
        )


# --- the command line


def command(asked: Asked, *words: str, at: str | None = None, feed: bytes = b"") -> bytes:
    """What `dlog` with these words prints, run in this process."""
    fed, printed = io.TextIOWrapper(io.BytesIO(feed)), io.TextIOWrapper(io.BytesIO())
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdin", fed), ("stdout", printed), ("stderr", told)):
            patch.setattr(sys, name, stream)
        code = main([*words, "--url", at or asked.world.url])
        printed.flush()
    if code == 3:
        raise dlog.NotFound(told.getvalue())
    if code == 1 and "truncated" in told.getvalue():
        raise dlog.Truncated(told.getvalue())
    assert code == 0, (words, code, told.getvalue())
    raw: bytes = printed.buffer.getvalue()  # type: ignore[attr-defined]
    return raw


def lines(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.decode().splitlines()]


def window(asked: Asked) -> list[str]:
    """The options of commands that read a part."""
    words: list[str] = []
    if isinstance(asked.start, datetime):
        words += ["--since", asked.start.isoformat()]
    if isinstance(asked.end, datetime):
        words += ["--until", asked.end.isoformat()]
    if isinstance(asked.start, int):
        words += ["--seqs", f"{asked.start}:{'' if asked.end is None else asked.end}"]
    return words


def json_row(told: Mapping[str, Any]) -> Row:
    """Of a line that `dlog tail -o json` prints."""
    return Row(
        told["seq"],
        _json_bytes(told, "key"),
        _json_bytes(told, "value"),
        tuple((name, _header_value(value)) for name, value in told.get("headers", ())),
        told["timestamp_us"],
        told.get("event_time_us"),
        tuple(dlog.MessageId.parse(told["id"])),
        told["epoch"],
    )


def _json_bytes(told: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in told:
        return base64.b64decode(told[f"{name}_base64"])
    text = told.get(name)
    return None if text is None else text.encode()


def _header_value(told: str | dict[str, str]) -> bytes:
    return told.encode() if isinstance(told, str) else base64.b64decode(told["base64"])


def _arrow_rows(table: Any) -> Iterator[Row]:
    """Also of Parquet; times as numbers, since Python has no datetime for all of them."""
    times = [table.column(name).cast("int64").to_pylist() for name in ("timestamp", "event_time")]
    rest = table.select([n for n in table.schema.names if n not in ("timestamp", "event_time")])
    for row, at_us, event_us in zip(rest.to_pylist(), *times, strict=True):
        headers = tuple((each["name"], each["value"]) for each in row["headers"])
        place = (row["ledger_id"], row["entry_id"], row["batch_idx"])
        content = (row["seq"], row["key"], row["value"], headers)
        yield Row(*content, at_us, event_us, place, row["epoch"])


@of_names("dlog tail", "all", "since", LEFT[0], "until")
def _tail(asked: Asked) -> Answers:
    """It says on standard error what was truncated, and goes on with what is left."""
    words = window(asked) or ["--since", "1970-01-02T00:00Z"]
    return _tailed(lines(command(asked, "tail", asked.name, "-o", "json", *words)))


@of_names("dlog tail -n", "last")
def _tail_last(asked: Asked) -> Answers:
    return _tailed(lines(command(asked, "tail", asked.name, "-o", "json", "-n", str(asked.last))))


def _tailed(told: Iterable[Mapping[str, Any]]) -> Answers:
    return shard_answers((each.get("shard", 0), json_row(each)) for each in told)


@of_logs("dlog tail --seqs", "seqs", "from zero", but=is_a_stream_too)
def _tail_seqs(asked: Asked, log: str) -> Answer:
    told = lines(command(asked, "tail", log, "-o", "json", *window(asked)))
    return Answer.of(rows=list(map(json_row, told)))


STRICT = tuple(name for name in OF_ONE_LOG if name not in LEFT)


@of_logs("dlog export: JSON lines", *STRICT)
def _export_lines(asked: Asked, log: str) -> Answer:
    return Answer.of(rows=list(map(json_row, lines(command(asked, "export", log, *window(asked))))))


@of_logs("dlog export: Parquet", *STRICT)
def _export_parquet(asked: Asked, log: str) -> Answer:
    path = asked.world.scratch / f"{asked.world.fresh()}.parquet"
    command(asked, "export", log, "-o", str(path), *window(asked))
    rows = list(_arrow_rows(pyarrow.parquet.read_table(path)))
    path.unlink()
    return Answer.of(rows=rows)


@of_logs("dlog export, and dlog produce reads it back", "all", fields=SENT)
def _there_and_back(asked: Asked, log: str) -> Answer:
    target = asked.world.fresh()
    exported = command(asked, "export", log)
    command(asked, "produce", target, "--json", "-q", at=asked.world.copies_url, feed=exported)
    with asked.world.copies.open_reader(target) as reader:
        return Answer.of(rows=list(map(row_of, reader)))


# --- copies


@of_logs("copy, then read", "all", tells=WHOLE, fields=CONTENT)
def _copied(asked: Asked, log: str) -> Answer:
    target = asked.world.fresh()
    dlog.copy_log(asked.world.client, log, asked.world.copies, target)
    with asked.world.copies.open_reader(target) as reader:
        head = reader.position.next_seq
        return _read(reader, map(row_of, reader), head)


# --- groups of workers


@of_names("group: a bounded job", "all")
def _job(asked: Asked) -> Answers:
    found: list[tuple[int, Row]] = []
    lock = threading.Lock()

    def process(batch: Any, tracker: Any) -> None:
        with lock:
            found.extend((tracker.shard.number, row_of(each)) for each in batch.to_pylist())
        tracker.checkpoint()

    client = asked.world.client
    with client.open_worker(asked.world.fresh(), asked.name, process, stop_at_end=True) as worker:
        assert waited(lambda s: worker.wait(s) == "all shards are done", JOB_ENDS_IN_S)
    return shard_answers(found)


@of_names("dlog group lag: of a group that consumed nothing", "all", tells="count")
def _group_lag(asked: Asked) -> Answers:
    def process(batch: Any, tracker: Any) -> None:
        """It takes no checkpoint."""

    group = asked.world.fresh()
    asked.world.client.open_worker(group, asked.name, process).close()
    told = lines(command(asked, "group", "lag", group, asked.name, "-o", "json"))
    return {
        each["shard"]: Answer.of(count=each["messages"])
        for each in told
        if each["shard"] is not None and each["messages"] is not None
    }


# --- what tells no rows


@of_logs("admin: status", "all", tells="head end count last_time_us")
def _status(asked: Asked, log: str) -> Answer:
    found = asked.world.client.admin.status(log)
    count = found.next_seq - found.head_seq
    return Answer.of(
        head=found.head_seq, end=found.next_seq, count=count, last_time_us=found.last_time_us
    )


@of_logs("reader: lag", "all", tells="head count")
def _lag(asked: Asked, log: str) -> Answer:
    with asked.world.client.open_reader(log) as reader:
        return Answer.of(head=reader.position.next_seq, count=reader.lag().messages)


@of_logs("dlog describe", "all", tells="head end count last_time_us")
def _describe(asked: Asked, log: str) -> Answer:
    (told,) = lines(command(asked, "describe", log, "-o", "json"))
    return Answer.of(
        head=told["head_seq"],
        end=told["next_seq"],
        count=told["messages"],
        last_time_us=told["last_time_us"],
    )


@of_names("stream: tails", "all", tells="head end last_time_us")
def _tails(asked: Asked) -> Answers:
    return {
        each.number: Answer.of(
            head=each.head_seq, end=each.next_seq, last_time_us=each.last_time_us
        )
        for each in asked.world.client.stream(asked.name).tails()
    }


@of_names("dlog stream describe", "all", tells="head end last_time_us")
def _stream_describe(asked: Asked) -> Answers:
    (told,) = lines(command(asked, "stream", "describe", asked.name, "-o", "json"))
    return {
        each["number"]: Answer.of(
            head=each["head_seq"], end=each["next_seq"], last_time_us=each["last_time_us"]
        )
        for each in told["shards"]
        if each["next_seq"] is not None
    }

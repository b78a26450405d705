"""Messages of a stream for `dlog tail`: all its shards, the oldest message first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from dlog.cli.failures import say
from dlog.cli.window import Window
from dlog.clock import datetime_us
from dlog.errors import NotFound, Truncated

if TYPE_CHECKING:
    from dlog import Client, FromShard, Message, Stream, StreamPosition, StreamReader

Sharded = tuple["int | None", "Message"]
RUN_MESSAGES = 1_000


def is_stream(client: Client, name: str) -> bool:
    """More than a plain log."""
    try:
        shards = client.stream(name).shards()
    except NotFound:
        return False
    return [shard.log for shard in shards] != [name]


def stream_runs(
    client: Client, name: str, window: Window, last: int | None, count: int | None, follow: bool
) -> Iterator[list[FromShard]]:
    """Runs of messages from where the window begins to where it ends, at most `count`; or the
    `last` ones, and, with `follow`, what comes behind them."""
    if not (window.start in (None, "earliest") or isinstance(window.start, datetime)) or not (
        window.end is None or isinstance(window.end, datetime)
    ):
        raise click.UsageError(
            "seqs and ids are of one log: name a shard of the stream, as NAME/0, or say --since"
        )
    stream = client.stream(name)
    if last is None:
        start = window.start if isinstance(window.start, datetime) else "earliest"
        end_us = None if window.end is None else datetime_us(window.end)
        yield from _since(stream, start, end_us, count, follow)
        return
    with stream.open_reader(start="latest", order="time", follow=follow) as reader:
        yield _last(client, name, reader.position, last)
        if follow:
            yield from _until(reader, None, None)


def _since(
    stream: Stream, start: datetime | str, end_us: int | None, count: int | None, follow: bool
) -> Iterator[list[FromShard]]:
    """What was truncated of the messages since a time is told once, and left out. A reader finds it
    when it is opened, or when it comes to the shard."""
    at: datetime | str | StreamPosition = start
    left = count
    try:
        with stream.open_reader(start=at, order="time", follow=follow) as reader:
            at = reader.position
            for run in _until(reader, end_us, left):
                yield run
                at, left = reader.position, None if left is None else left - len(run)
            return
    except Truncated as error:
        if not isinstance(start, datetime):
            raise
        say(f"{error.message}; what is left of the stream follows")
    with stream.open_reader(start=at, order="time", follow=follow, on_truncated="jump") as reader:
        yield from _until(reader, end_us, left)


def _until(
    reader: StreamReader, end_us: int | None, count: int | None
) -> Iterator[list[FromShard]]:
    left = count
    while left is None or left > 0:
        run = reader.read(RUN_MESSAGES if left is None else min(left, RUN_MESSAGES))
        if not run:
            return
        if end_us is not None and run[-1].message.timestamp_us >= end_us:
            yield [each for each in run if each.message.timestamp_us < end_us]
            return
        left = None if left is None else left - len(run)
        yield run


def _last(client: Client, name: str, upto: StreamPosition, count: int) -> list[FromShard]:
    """The youngest so many before a place. Shards whose last message is older than all of these
    are not read."""
    from dlog import FromShard

    shards = [s for s in client.stream(name).describe().shards if s.last_time_us is not None]
    shards.sort(key=lambda shard: shard.last_time_us or 0, reverse=True)
    found: list[tuple[int, int, int, FromShard]] = []  # time, shard, seq: no two are equal
    for shard in shards:
        if len(found) >= count and (not found or found[0][0] > (shard.last_time_us or 0)):
            break
        at = upto.shards.get(shard.number)
        end = shard.next_seq if at is None else at.next_seq
        start = max(shard.head_seq or 0, (end or 0) - count)
        with client.open_reader(shard.log, start=start, end=end, on_truncated="jump") as reader:
            for message in reader:
                ours = FromShard(shard.number, message)
                heapq.heappush(found, (message.timestamp_us, shard.number, message.seq, ours))
                if len(found) > count:
                    heapq.heappop(found)
    return [ours for *_, ours in sorted(found, key=lambda each: each[:3])]

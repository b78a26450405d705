"""`dlog bench`: what this place can do, in a throw-away log. Bounded by messages and by seconds,
whichever comes first; the log is removed also after a failure."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from dlog.chance import SYSTEM_CHANCE
from dlog.cli import draw, moments
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells
from dlog.errors import NotFound

if TYPE_CHECKING:
    from dlog import Client

COLUMNS = (
    draw.Column("STEP"),
    draw.Column("MESSAGES", number=True),
    draw.Column("SECONDS", number=True),
    draw.Column("MESSAGES/S", number=True),
    draw.Column("MB/S", number=True),
    draw.Column("P50 MS", number=True),
    draw.Column("P99 MS", number=True),
)
RUN_MESSAGES = 1_000  # between two looks at the clock


@dataclass(frozen=True)
class Figures:
    """What one step reached."""

    step: str
    messages: int
    seconds: float
    messages_per_s: float
    megabytes_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@click.command("bench")
@click.option("-n", "--messages", type=click.IntRange(1, 100_000_000), default=200_000)
@click.option("-s", "--size", type=moments.size, default="100", metavar="SIZE", help="Per message.")
@click.option("--seconds", type=moments.span, default="5s", metavar="SPAN", help="Most per step.")
@click.option("--codec", type=click.Choice(["none", "lz4", "zstd"]), default="none")
@common_options
@only_tells
def command(settings: Settings, messages: int, size: int, seconds: timedelta, codec: str) -> None:
    """Measure writing and reading at the URL, in a log that is removed afterwards.

    The payload is random, so compression gains nothing here. A table goes to standard error, JSON
    to standard output.
    """
    if not 1 <= size <= 1 << 20:
        raise click.UsageError("--size is from 1 byte to 1M")
    limit_s = seconds.total_seconds()
    payload = random.Random(0).randbytes(size + 4096)
    log = f"dlog-bench-{SYSTEM_CHANCE.token()[:12]}"
    figures: list[Figures] = []
    with settings.connect() as client, _throw_away(settings, client, log), _progress() as progress:
        with client.open_writer(log, codec=codec) as writer:
            for step, run in WRITES.items():
                progress.show(f"{step} …")
                figures.append(_written(step, run, writer, payload, size, messages, limit_s))
        progress.show("reading …")
        figures.append(_read(client, log, size, "iterate messages", _iterate, limit_s))
        figures.append(_read(client, log, size, "batches", _batches, limit_s))
        url = str(client.url)
    rows = [
        (
            each.step,
            each.messages,
            f"{each.seconds:.3f}",
            f"{each.messages_per_s:,.0f}",
            f"{each.megabytes_per_s:,.1f}",
            "-" if each.p50_ms is None else f"{each.p50_ms:.3f}",
            "-" if each.p99_ms is None else f"{each.p99_ms:.3f}",
        )
        for each in figures
    ]
    draw.table(COLUMNS, rows, stream=sys.stderr)
    print_json({"url": url, "message_bytes": size, "codec": codec, "figures": figures})


@contextmanager
def _throw_away(settings: Settings, client: Client, log: str) -> Iterator[None]:
    settings.done = lambda: f"the log {log} may be there; `dlog rm {log}` removes it"
    try:
        client.admin.create(log)
        yield
    finally:
        with suppress(NotFound):
            client.admin.remove(log)
        settings.done = None


@contextmanager
def _progress() -> Iterator[draw.Progress]:
    progress = draw.Progress()
    try:
        yield progress
    finally:
        progress.done()


Timed = tuple[int, list[float]]  # messages, and seconds of each where one was timed


def _written(
    step: str,
    run: Callable[[Any, Sequence[bytes], int, float], Timed],
    writer: Any,
    payload: bytes,
    size: int,
    messages: int,
    limit_s: float,
) -> Figures:
    values = [payload[i % 4096 : i % 4096 + size] for i in range(RUN_MESSAGES)]
    began = time.perf_counter()
    count, each_s = run(writer, values, messages, began + limit_s)
    return _figures(step, count, time.perf_counter() - began, count * size, each_s)


def _append(writer: Any, values: Sequence[bytes], messages: int, until: float) -> Timed:
    each_s: list[float] = []
    while len(each_s) < messages and (now := time.perf_counter()) < until:
        writer.append(values[len(each_s) % RUN_MESSAGES])
        each_s.append(time.perf_counter() - now)
    return len(each_s), each_s


def _submit(writer: Any, values: Sequence[bytes], messages: int, until: float) -> Timed:
    count = 0
    while count < messages and time.perf_counter() < until:
        for value in values[: messages - count]:
            writer.submit(value)
        count += min(RUN_MESSAGES, messages - count)
    writer.flush()
    return count, []


def _append_many(writer: Any, values: Sequence[bytes], messages: int, until: float) -> Timed:
    count = 0
    many = list(values) * 64
    while count < messages and time.perf_counter() < until:
        count += len(writer.append_many(many[: messages - count]))
    return count, []


WRITES: dict[str, Callable[[Any, Sequence[bytes], int, float], Timed]] = {
    "append, one at a time": _append,
    "submit, a ticket each": _submit,
    "append_many": _append_many,
}


def _read(
    client: Client,
    log: str,
    size: int,
    step: str,
    run: Callable[[Any, float], int],
    limit_s: float,
) -> Figures:
    began = time.perf_counter()
    with client.open_reader(log) as reader:
        count = run(reader, began + limit_s)
    return _figures(step, count, time.perf_counter() - began, count * size, [])


def _iterate(reader: Any, until: float) -> int:
    count = 0
    for _ in reader:
        count += 1
        if count % RUN_MESSAGES == 0 and time.perf_counter() >= until:
            break
    return count


def _batches(reader: Any, until: float) -> int:
    count = 0
    for batch in reader.batches():
        count += len(batch)
        if time.perf_counter() >= until:
            break
    return count


def _figures(
    step: str, count: int, seconds: float, payload_bytes: int, each_s: Sequence[float]
) -> Figures:
    return Figures(
        step,
        count,
        round(seconds, 6),
        round(count / seconds, 1),
        round(payload_bytes / seconds / 1e6, 3),
        percentile_ms(each_s, 0.50),
        percentile_ms(each_s, 0.99),
    )


def percentile_ms(each_s: Sequence[float], share: float) -> float | None:
    """The smallest time that this share of all stays at or below; None of nothing."""
    if not each_s:
        return None
    rank = max(1, math.ceil(share * len(each_s)))
    return round(sorted(each_s)[rank - 1] * 1000, 4)

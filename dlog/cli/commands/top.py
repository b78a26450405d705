"""`dlog top`: one log, or one group, live. It looks, waits, looks again; looks make the rates."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from dlog.cli import draw, moments
from dlog.cli.commands.why import writer_text
from dlog.cli.failures import GROUPS_ADVICE
from dlog.cli.group_top import GroupWatch, show_group
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import Timeout, Unavailable

if TYPE_CHECKING:
    from dlog import Client, Reason
    from dlog.admin.status import LogStatus
    from dlog.admin.why import Diagnosis

CLEAR = "\x1b[H\x1b[J"
INTERVAL_S_MIN = 0.1


@dataclass(frozen=True)
class Picture:
    """What one look shows. Rates are those since the look before; None where that failed."""

    at_us: int
    log: str
    state: str | None
    epoch: int | None
    writer: str | None
    present: bool | None
    messages_s: float | None
    bytes_s: float | None  # about: by the size of the last messages
    head_seq: int | None
    next_seq: int | None
    tail: str | None
    last_time_us: int | None
    segments: int | None
    bytes: int | None  # of sealed segments
    holds: tuple[str, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Look:
    at_s: float
    at_us: int
    status: LogStatus | None  # None: the stores gave no answer
    why: Diagnosis


@click.command("top")
@click.argument("log")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="N", help="End after N pictures."
)
@click.option(
    "--interval",
    type=moments.span,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time between two of them.",
)
@click.option("--group", metavar="NAME", help="Of a stream in place of a log: this group.")
@output_option
@common_options
@only_tells
def command(
    settings: Settings,
    log: str,
    count: int | None,
    interval: timedelta,
    group: str | None,
    output: str,
) -> None:
    """Watch LOG: messages and bytes a second, tail, writer, holds, and why it waits.

    With --group, LOG is a stream, and what is shown is the group: for each shard who has it, how
    many messages a second come and are done, how far it is behind and how long it takes to catch
    up, and what it waits for. Rates are those of the last 30 seconds.

    On a terminal the picture is drawn anew each time; elsewhere one follows the other. With -o
    json, one object a line. It ends with Ctrl-C, or after --count. It reads the list and the last
    entry each time and no messages, so bytes a second are about: by the size of the last ones.
    """
    interval_s = interval.total_seconds()
    if interval_s < INTERVAL_S_MIN:
        raise click.UsageError(f"--interval is {INTERVAL_S_MIN:g}s at least")
    with settings.connect() as client:
        if group is not None:
            settings.lists = GROUPS_ADVICE
            watch_group(client, group, log, _every(interval_s, count), output)
            return
        before = look(client, log)
        for number in _every(interval_s, count):
            now = look(client, log)
            picture = picture_of(log, before, now)
            if output == "json":
                print_json(picture)
            else:
                show(picture, now, is_first=number == 0)
            sys.stdout.flush()
            before = now


def _every(interval_s: float, count: int | None) -> Iterator[int]:
    """The number of each picture, when it is due."""
    number = 0
    begun_s = SYSTEM_CLOCK.monotonic_s()
    while count is None or number < count:
        threading.Event().wait(max(0.0, begun_s + interval_s - SYSTEM_CLOCK.monotonic_s()))
        begun_s = SYSTEM_CLOCK.monotonic_s()
        yield number
        number += 1


def look(client: Client, log: str) -> Look:
    at_s, at_us = SYSTEM_CLOCK.monotonic_s(), SYSTEM_CLOCK.wall_us()
    try:
        status: LogStatus | None = client.admin.status(log)
    except (Unavailable, Timeout):
        status = None  # why, the diagnosis says
    return Look(at_s, at_us, status, client.admin.why(log))


def picture_of(log: str, before: Look, now: Look) -> Picture:
    status, why = now.status, now.why
    messages_s = bytes_s = None
    if status is not None and before.status is not None:
        messages = status.next_seq - before.status.next_seq
        messages_s = max(messages, 0) / (now.at_s - before.at_s)
        if messages == 0:
            bytes_s = 0.0
        elif status.message_bytes is not None:
            bytes_s = messages_s * status.message_bytes
    return Picture(
        at_us=now.at_us,
        log=log,
        state=None if status is None else status.state,
        epoch=None if status is None else status.epoch,
        writer=None if why.writer is None else why.writer.name,
        present=why.present,
        messages_s=None if messages_s is None else round(messages_s, 1),
        bytes_s=None if bytes_s is None else round(bytes_s, 1),
        head_seq=None if status is None else status.head_seq,
        next_seq=None if status is None else status.next_seq,
        tail=None if status is None or status.last_id is None else str(status.last_id),
        last_time_us=None if status is None else status.last_time_us,
        segments=None if status is None else status.segments,
        bytes=None if status is None else status.bytes,
        holds=why.holds,
        reasons=why.reasons,
    )


def watch_group(client: Client, group: str, stream: str, due: Iterator[int], output: str) -> None:
    watch = GroupWatch(group, stream)
    watch.take(watch.look(client))
    for number in due:
        picture = watch.take(watch.look(client))
        if output == "json":
            print_json(picture)
        else:
            begin_picture(is_first=number == 0)
            show_group(picture)
        sys.stdout.flush()


def begin_picture(*, is_first: bool) -> None:
    if sys.stdout.isatty():
        print(CLEAR, end="")
    elif not is_first:
        print()


def show(picture: Picture, now: Look, *, is_first: bool) -> None:
    begin_picture(is_first=is_first)
    about = "" if picture.bytes_s is None else f", about {size_text(round(picture.bytes_s))}/s"
    rate = "-" if picture.messages_s is None else f"{picture.messages_s:,.1f} messages/s{about}"
    tail = "-" if picture.next_seq is None else f"seq {picture.next_seq} comes next"
    if picture.tail is not None:
        tail = f"{picture.tail}, {tail}"
    draw.fields(
        [
            ("log", f"{picture.log}, {moment_text(picture.at_us)}"),
            ("rate", rate),
            ("tail", tail),
            ("last message", moment_text(picture.last_time_us)),
            ("head", "-" if picture.head_seq is None else f"seq {picture.head_seq}"),
            ("writer", writer_text(now.why)),
            ("epoch", "-" if picture.epoch is None else picture.epoch),
            (
                "segments",
                "-" if picture.segments is None
                else f"{picture.segments}, {size_text(picture.bytes)} in sealed ones",
            ),
            *(("hold", hold) for hold in picture.holds),
            *((reason.code.value, reason.sentence) for reason in picture.reasons),
        ]
    )  # fmt: skip

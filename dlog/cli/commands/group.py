"""`dlog group`: groups of workers from outside. Who is there, how far it is, what would move, and
putting checkpoints elsewhere."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from dlog.cli import draw, moments
from dlog.cli.agreed import agreed
from dlog.cli.failures import GROUPS_ADVICE, Told, say
from dlog.cli.group_waits import show_waits, waits_of
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import moment_text, size_text
from dlog.cli.places import Place, place
from dlog.cli.plain import plain, print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option
from dlog.errors import NotFound
from dlog.ids import MessageId
from dlog.limits import GROUP_WORKERS_MAX
from dlog.reason import time_text

if TYPE_CHECKING:
    from dlog import Checkpoint, GroupDescription, Member, Move, Reset, ShardStanding

NAMES_SHOWN = 8

GROUPS = (draw.Column("GROUP"), draw.Column("STREAM"))
SHARDS = (
    draw.Column("SHARD", number=True),
    draw.Column("STATE"),
    draw.Column("WORKER"),
    draw.Column("EPOCH", number=True),
    draw.Column("NEXT SEQ", number=True),
    draw.Column("LAG", number=True),
    draw.Column("UPDATED"),
)
LAGS = (
    draw.Column("SHARD", number=True),
    draw.Column("WORKER"),
    draw.Column("NEXT SEQ", number=True),
    draw.Column("LAG", number=True),
    draw.Column("BYTES", number=True),
    draw.Column("OLDEST", number=True),
)
MEMBERS = (
    draw.Column("WORKER"),
    draw.Column("DOMAIN"),
    draw.Column("RENEWALS", number=True),
    draw.Column("SHARDS", number=True),
    draw.Column("COMING", number=True),
    draw.Column("WHICH"),
)
MOVES = (draw.Column("SHARD"), draw.Column("FROM"), draw.Column("TO"))
RESETS = (
    draw.Column("SHARD"),
    draw.Column("BEFORE", number=True),
    draw.Column("AFTER", number=True),
    draw.Column("REFUSED"),
)


@click.group("group")
def command() -> None:
    """Groups: workers that share the shards of a stream.

    A group is named by its name and its stream. These commands look at it from outside, and take
    part in nothing.
    """
    click.get_current_context().ensure_object(Settings).lists = GROUPS_ADVICE


@command.command("ls")
@click.argument("stream", required=False)
@output_option
@common_options
@only_tells
def ls(settings: Settings, stream: str | None, output: str) -> None:
    """List the groups, or those of STREAM. With -o json, one object a line."""
    with settings.connect() as client:
        found = client.groups(stream)
    if output == "json":
        for name, of_stream in found:
            print_json({"group": name, "stream": of_stream})
    else:
        draw.table(GROUPS, found)


SHARED_OUT = {"count": "by number", "lag": "by lag", "bytes": "by the bytes that come"}


@command.command("describe")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@output_option
@common_options
@only_tells
def describe(settings: Settings, name: str, stream: str, output: str) -> None:
    """Say who is in GROUP, which shard of STREAM each of its workers has, how far each shard is
    done, and what is waited for."""
    with settings.connect() as client:
        found = client.group(name, stream).describe()
    waits = waits_of(found)
    if output == "json":
        print_json({**plain(found), "lag_messages": found.lag_messages, "waits": plain(waits)})
        return
    ways = "ends where the stream ended when it began" if found.is_job else "goes on"
    draw.fields(
        [
            ("group", f"{found.group} of {found.stream}, {ways}"),
            ("leases", f"kept in {found.leases}"),
            ("time-out", f"{time_text(found.timeout_ms / 1000)} of silence, then a worker is dead"),
            ("shared out", SHARED_OUT.get(found.weigh, found.weigh)),
            ("workers", len(found.members)),
            ("lag", f"{found.lag_messages} messages"),
        ]
    )
    print()
    draw.table(SHARDS, [_shard_row(shard) for shard in found.shards])
    show_waits(waits)


def _shard_row(shard: ShardStanding) -> tuple[object, ...]:
    return (
        shard.number,
        shard.state,
        worker_text(shard),
        shard.epoch,
        next_seq_text(shard.checkpoint),
        "-" if shard.lag is None else shard.lag.messages,
        moment_text(shard.updated_us or None),
    )


def worker_text(shard: ShardStanding) -> str:
    """Who has it; and, in a hand-over, who shall have it."""
    if shard.consumer is None:
        return "-" if shard.owner is None else f"-> {shard.owner}"
    return f"{shard.consumer} -> {shard.owner}" if shard.state == "handed_over" else (
        str(shard.consumer)
    )  # fmt: skip


def next_seq_text(checkpoint: Checkpoint | None) -> str:
    return "-" if checkpoint is None else str(checkpoint.next_seq)


@command.command("lag")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@output_option
@common_options
@only_tells
def lag(settings: Settings, name: str, stream: str, output: str) -> None:
    """Say how far GROUP is behind in each shard: behind its checkpoint, which is written every few
    seconds, so that a group at work is nearer than that.

    OLDEST is how long the first message has been there that is not done. Bytes are about. With
    -o json, one object for each shard and, without a number, one for all.
    """
    with settings.connect() as client:
        found = client.group(name, stream).describe()
    if output == "json":
        for shard in found.shards:
            print_json(
                {
                    "shard": shard.number,
                    "log": shard.log,
                    "worker": shard.consumer,
                    "next_seq": None if shard.checkpoint is None else shard.checkpoint.next_seq,
                    **_lag_fields([shard]),
                }
            )
        print_json({"shard": None, **_lag_fields(found.shards)})
        return
    rows = [
        (shard.number, worker_text(shard), next_seq_text(shard.checkpoint), *_lag_cells([shard]))
        for shard in found.shards
    ]
    draw.table(LAGS, [*rows, ("all", "", "", *_lag_cells(found.shards))])


def _lag_fields(shards: Sequence[ShardStanding]) -> dict[str, float | None]:
    """Of shards together; nothing is known of a log that is not made yet."""
    lags = [shard.lag for shard in shards if shard.lag is not None]
    return {
        "messages": sum(each.messages for each in lags) if lags else None,
        "bytes": sum(each.bytes for each in lags) if lags else None,
        "seconds": max(each.seconds for each in lags) if lags else None,
    }


def _lag_cells(shards: Sequence[ShardStanding]) -> tuple[str, str, str]:
    messages, in_bytes, seconds = _lag_fields(shards).values()
    if messages is None or in_bytes is None or seconds is None:
        return "-", "-", "-"
    return f"{messages}", size_text(int(in_bytes)), time_text(seconds) if messages else "-"


@command.command("members")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@click.option(
    "--watch",
    type=moments.span,
    metavar="TIME",
    help="Look again so much later: who did not renew in between is silent.",
)
@output_option
@common_options
@only_tells
def members(
    settings: Settings, name: str, stream: str, watch: timedelta | None, output: str
) -> None:
    """List the workers of GROUP that are registered, and what each has.

    One look cannot tell whether they live: only that the count of renewals grows. A worker renews a
    few times within the group's time-out, which `dlog group describe` shows.
    """
    with settings.connect() as client:
        group = client.group(name, stream)
        found = group.members()
        before: dict[object, int] = {}
        if watch is not None:
            before = {member.id: member.counter for member in found}
            threading.Event().wait(watch.total_seconds())
            found = group.members()
    is_silent = [before.get(each.id) == each.counter for each in found]
    if output == "json":
        for member, silent in zip(found, is_silent, strict=True):
            fields = plain(member)
            print_json(fields if watch is None else {**fields, "silent": silent})
        return
    draw.table(MEMBERS, [_member_row(member) for member in found])
    for member, silent in zip(found, is_silent, strict=True):
        if silent:
            say(f"{member.id} did not renew")


def _member_row(member: Member) -> tuple[object, ...]:
    return (
        member.id,
        member.domain or "-",
        member.counter,
        len(member.shards),
        len(member.coming),
        _some(member.shards),
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    shown = " ".join(names[:NAMES_SHOWN]) or "-"
    return f"{shown} and {more} more" if more > 0 else shown


@command.command("plan")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="+2: two workers more; +NAME: that one more; -NAME: without that one. Repeatable.",
)
@click.option("--domain", help="What the workers that would come fail together with.")
@output_option
@common_options
@only_tells
def plan(
    settings: Settings,
    name: str,
    stream: str,
    changes: tuple[str, ...],
    domain: str | None,
    output: str,
) -> None:
    """Say which shards would move between the workers of GROUP, as it is or --what-if somebody came
    or went. Moves nothing.

    Workers plan by the same function. With -o json, one object a line.
    """
    names, without = _changes(changes)
    with settings.connect() as client:
        moves = client.group(name, stream).plan(add=names, without=without, domain=domain)
    if output == "json":
        for move in moves:
            print_json(move)
        return
    if moves:
        draw.table(MOVES, [_move_row(move) for move in moves])
    else:
        say("nothing would move")


def _move_row(move: Move) -> tuple[object, ...]:
    return move.shard, "nobody" if move.victim is None else move.victim, move.taker


def _changes(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Who would come, and who would go."""
    many = 0
    names: list[str] = []
    without: list[str] = []
    for text in texts:
        sign, who = text[:1], text[1:]
        if sign not in ("+", "-") or not who:
            raise click.UsageError(f"a change reads +2, +NAME or -NAME, not {text!r}")
        if sign == "-":
            without.append(who)
        elif not (who.isascii() and who.isdecimal()):
            names.append(who)
        elif len(who) > len(str(GROUP_WORKERS_MAX)):
            many = GROUP_WORKERS_MAX + 1
        else:
            many += int(who)
    if many > GROUP_WORKERS_MAX:
        raise click.UsageError(f"a group has {GROUP_WORKERS_MAX} workers at most")
    names += [f"new-{number}" for number in range(1, many + 1)]
    return list(dict.fromkeys(names)), without


@command.command("reset")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@click.argument("to", type=place)
@click.option("--shard", "shards", type=int, multiple=True, help="Only this one; repeatable.")
@click.option("--force", is_flag=True, help="Also what a worker has: it is fenced.")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and nothing more.")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@output_option
@common_options
def reset(
    settings: Settings,
    name: str,
    stream: str,
    to: Place,
    shards: tuple[int, ...],
    force: bool,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Put the checkpoints of GROUP at TO: earliest, latest, a time (7d, 2025-03-01T12:00), or of
    one --shard a seq (1200) or a message id (12:345:6).

    First it shows where each would go. Without --yes it asks on a terminal and refuses elsewhere.
    What a worker has stays, unless by --force; what the program kept with a checkpoint is gone. The
    exit code is 1 if a shard stayed where it is.
    """
    if isinstance(to, int | MessageId) and len(shards) != 1:
        raise click.UsageError("a seq or a message id is of one log: name its --shard")
    chosen = shards or None
    with settings.connect() as client:
        group = client.group(name, stream)
        told = group.reset(to, shards=chosen, force=force, dry_run=True)
        if not dry_run and any(each.refused is None for each in told):
            _show_resets(told)
            agreed(
                yes,
                f"Put {_many(told)} of {name} elsewhere?",
                otherwise="nothing was put elsewhere",
            )
            with INTERRUPTS.step():
                told = group.reset(to, shards=chosen, force=force)
                _print_resets(told, output)
        else:
            _print_resets(told, output)
    stayed = sum(each.refused is not None for each in told)
    if stayed:
        raise Told(f"{stayed} of {len(told)} shards {'would stay' if dry_run else 'stay'}")


@command.command("set-checkpoint")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@click.argument("shard", type=int)
@click.argument("to", type=place)
@click.option("--app", default="", metavar="TEXT", help="What the program shall find with it.")
@click.option("--base64", "is_base64", is_flag=True, help="TEXT is base64.")
@click.option("--force", is_flag=True, help="Also if a worker has it: it is fenced.")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@output_option
@common_options
def set_checkpoint(
    settings: Settings,
    name: str,
    stream: str,
    shard: int,
    to: Place,
    app: str,
    is_base64: bool,
    force: bool,
    yes: bool,
    output: str,
) -> None:
    """Put the checkpoint of SHARD at TO, the next message to deliver, with what the program keeps
    beside it. Places are those of `dlog group reset`.

    First it shows where it would go. Without --yes it asks on a terminal and refuses elsewhere.
    """
    kept = _app(app, is_base64)
    with settings.connect() as client:
        group = client.group(name, stream)
        told = group.reset(to, shards=[shard], force=force, dry_run=True)
        refused = told[0].refused
        if refused is not None:
            raise Told(f"{refused}: nothing was set")
        _show_resets(told)
        question = f"Set the checkpoint of shard {shard} of {name}?"
        agreed(yes, question, otherwise="nothing was set")
        with INTERRUPTS.step():
            _print_resets([group.set_checkpoint(shard, to, app=kept, force=force)], output)


def _app(text: str, is_base64: bool) -> bytes:
    if not is_base64:
        return text.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise click.UsageError(f"{text!r} is not base64") from None


def _show_resets(told: Sequence[Reset]) -> None:
    for each in told:
        before = "nowhere yet" if each.before is None else f"seq {each.before.next_seq}"
        if each.after is None:
            say(f"{each.log} stays at {before}: {each.refused}")
            continue
        gone = ""
        if each.before is not None and each.before.app:
            gone = f"; {len(each.before.app)} bytes that the program kept with it would be gone"
        say(f"{each.log} would go from {before} to seq {each.after.next_seq}{gone}")


def _many(told: Sequence[Reset]) -> str:
    many = sum(each.refused is None for each in told)
    return f"{many} shard{'' if many == 1 else 's'}"


def _print_resets(told: Sequence[Reset], output: str) -> None:
    if output == "json":
        for each in told:
            print_json(each)
        return
    rows = [
        (
            each.log,
            next_seq_text(each.before),
            "-" if each.after is None else each.after.next_seq,
            each.refused or "-",
        )
        for each in told
    ]
    draw.table(RESETS, rows)


@command.command("rm")
@click.argument("name", metavar="GROUP")
@click.argument("stream")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def rm(settings: Settings, name: str, stream: str, yes: bool) -> None:
    """Forget GROUP: its checkpoints, and its holds on the logs of STREAM. Not while it has workers.

    First it shows what would go. Without --yes it asks on a terminal and refuses elsewhere. A
    removal that was cut short goes on when it is run again with --yes.
    """
    with settings.connect() as client:
        group = client.group(name, stream)
        try:
            goes = _what_goes(group.describe(lag=False))
        except NotFound:
            goes = "its stream is gone"
            try:
                group.charter()
            except NotFound:  # unless an earlier run did not come to its end
                if not yes:
                    raise
                goes = "what is left of it"
        say(f"removing {name} of {stream}: {goes}")
        agreed(yes, f"Remove {name} of {stream} for good?", otherwise="nothing was removed")
        with INTERRUPTS.step():
            group.remove()
            say(f"{name} of {stream} is removed")


def _what_goes(found: GroupDescription) -> str:
    kept = sum(shard.checkpoint is not None for shard in found.shards)
    workers = f", of {len(found.members)} workers" if found.members else ""
    return (
        f"{kept} checkpoints, and what they hold in the logs of {len(found.shards)} shards{workers}"
    )

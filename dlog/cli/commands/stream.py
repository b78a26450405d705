"""`dlog stream`: streams of shards, each of them one log. What they are, and changes of it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dlog.cli import draw
from dlog.cli.agreed import agreed
from dlog.cli.escape import printable, printable_bytes
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.log_options import log_options
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option
from dlog.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from dlog import Shard, ShardSummary, StreamDescription

HASHES = 1 << 32
BAR = 32  # characters for the whole hash space

COLUMNS = (
    draw.Column("SHARD", number=True),
    draw.Column("STATE"),
    draw.Column("HASHES"),
    draw.Column("PART"),
    draw.Column("SHARE", number=True),
    draw.Column("FROM"),
    draw.Column("INTO"),
    draw.Column("MESSAGES", number=True),
    draw.Column("BYTES", number=True),
    draw.Column("WRITER"),
    draw.Column("LAST MESSAGE"),
)


@click.group("stream")
def command() -> None:
    """Streams: many logs that act as one. A key goes to the shard that has its hash.

    `dlog produce` and `dlog tail` take the name of a stream as that of a log.
    """


@command.command("create")
@click.argument("name")
@click.option("--shards", type=int, default=1, show_default=True, help="How many logs.")
@click.option(
    "--routing",
    type=click.Choice(["ranges", "ketama"]),
    default="ranges",
    show_default=True,
    help="By parts of the hash space, which can be split; or by consistent hashing.",
)
@click.option("--pin", "pins", multiple=True, metavar="KEY=SHARD", help="Where a key goes.")
@click.option("--weights", metavar="N,N,…", help="Of ketama's shards, one for each.")
@log_options
@click.option("--exist-ok", is_flag=True, help="Succeed if there is such a stream already.")
@common_options
def create(
    settings: Settings,
    name: str,
    shards: int,
    routing: Any,
    pins: tuple[str, ...],
    weights: str | None,
    log_options: dict[str, Any],
    exist_ok: bool,
) -> None:
    """Create the stream NAME. The options of logs hold for all of its shards."""
    chosen = dict(map(_pin, pins))
    weighed = None if weights is None else _numbers(weights)
    with settings.connect() as client:
        with INTERRUPTS.step(f"{name} is there"):
            try:
                client.create_stream(
                    name,
                    shards=shards,
                    routing=routing,
                    pins=chosen or None,
                    weights=weighed,
                    **log_options,
                )
            except AlreadyExists:
                if not (exist_ok and name in client.streams(name)):
                    raise


@command.command("ls")
@click.argument("prefix", default="")
@output_option
@common_options
@only_tells
def ls(settings: Settings, prefix: str, output: str) -> None:
    """List the streams whose names begin with PREFIX. With -o json, one object a line."""
    with settings.connect() as client:
        found = client.streams(prefix)
    for name in found:
        if output == "json":
            print_json({"name": name})
        else:
            print(printable(name))


@command.command("describe")
@click.argument("name")
@output_option
@common_options
@only_tells
def describe(settings: Settings, name: str, output: str) -> None:
    """Say which shards NAME has: which part of the hash space each has, who came from whom, and
    where its log stands. A plain log is a stream of one shard."""
    with settings.connect() as client:
        found = client.stream(name).describe()
    if output == "json":
        pins = [{"key": key, "shard": number} for key, number in found.pins.items()]
        fields = {field: getattr(found, field) for field in found.__dataclass_fields__}
        print_json({**fields, "pins": pins})
        return
    pairs: list[tuple[str, object]] = [
        ("stream", found.name),
        ("uid", found.uid),
        ("state", found.state),
        ("routing", found.routing),
        ("version", found.version),
        ("options", _options(found)),
    ]
    if found.is_one_log:
        pairs.append(("is", "a plain log, until it is split"))
    for key, number in sorted(found.pins.items()):
        pairs.append((f"pin {printable_bytes(key)}", f"shard {number}"))
    draw.fields(pairs)
    print()
    draw.table(COLUMNS, [_row(found, shard) for shard in found.shards])


def _options(found: StreamDescription) -> str:
    names = found.options.__dataclass_fields__
    return " ".join(f"{name}={getattr(found.options, name)}" for name in names)


def _row(found: StreamDescription, shard: ShardSummary) -> tuple[object, ...]:
    by_range = found.routing == "ranges"
    messages = 0 if shard.next_seq is None else shard.next_seq - (shard.head_seq or 0)
    return (
        shard.number,
        shard.state,
        f"{shard.first_hash:08x}-{shard.last_hash:08x}" if by_range else f"weight {shard.weight}",
        _bar(shard) if by_range else "-",
        f"{shard.share:.1%}" if by_range and shard.share else "-",
        _names(shard.parents),
        _names(shard.children),
        messages,
        size_text(shard.bytes),
        shard.writer or "-",
        moment_text(shard.last_time_us),
    )


def _bar(shard: ShardSummary) -> str:
    """Which part of the hash space: `#` where it has keys, of open shards; `-` where it had."""
    first = shard.first_hash * BAR // HASHES
    last = shard.last_hash * BAR // HASHES
    mark = "#" if shard.state == "open" else "-"
    return "".join(mark if first <= at <= last else "." for at in range(BAR))


def _names(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


@command.command("split")
@click.argument("name")
@click.argument("shard", type=int)
@click.option("--parts", type=int, default=2, show_default=True, help="In so many equal parts.")
@click.option("--at", multiple=True, metavar="HASH", help="Or cut before these, as 0x40000000.")
@output_option
@common_options
def split(
    settings: Settings, name: str, shard: int, parts: int, at: tuple[str, ...], output: str
) -> None:
    """Let the keys of SHARD go on in several new shards.

    Writers and readers go on by themselves; each key stays in order.
    """
    cuts = [_hash(each) for each in at] or None
    with settings.connect() as client:
        with INTERRUPTS.step():
            _tell(client.stream(name).split(shard, at=cuts, parts=parts), output)


@command.command("merge")
@click.argument("name")
@click.argument("shards", type=int, nargs=-1, required=True)
@output_option
@common_options
def merge(settings: Settings, name: str, shards: tuple[int, ...], output: str) -> None:
    """Let the keys of SHARDS, which are neighbours, go on in one new shard."""
    with settings.connect() as client:
        with INTERRUPTS.step():
            _tell([client.stream(name).merge(*shards)], output)


@command.command("pin")
@click.argument("name")
@click.argument("key")
@click.argument("shard", type=int)
@click.option("--base64", "is_base64", is_flag=True, help="KEY is base64.")
@output_option
@common_options
def pin(settings: Settings, name: str, key: str, shard: int, is_base64: bool, output: str) -> None:
    """Let KEY go to SHARD, whatever its hash says.

    The shard that has the key, and the one that gets it, both go on in new ones.
    """
    chosen = _key(key, is_base64)
    with settings.connect() as client, INTERRUPTS.step():
        _tell(client.stream(name).pin(chosen, shard), output)


@command.command("unpin")
@click.argument("name")
@click.argument("key")
@click.option("--base64", "is_base64", is_flag=True, help="KEY is base64.")
@output_option
@common_options
def unpin(settings: Settings, name: str, key: str, is_base64: bool, output: str) -> None:
    """Let KEY go back to the shard that has its hash."""
    chosen = _key(key, is_base64)
    with settings.connect() as client, INTERRUPTS.step():
        _tell(client.stream(name).unpin(chosen), output)


def _tell(made: Sequence[Shard], output: str) -> None:
    """The new shards."""
    for shard in made:
        if output == "json":
            print_json(
                {
                    "number": shard.number,
                    "log": shard.log,
                    "first_hash": shard.range.first_hash,
                    "last_hash": shard.range.last_hash,
                    "parents": shard.parents,
                }
            )
        else:
            print(f"shard {shard.number}  {shard.range}  from {_names(shard.parents)}")
    if not made:
        say("nothing had to move")


@command.command("trim")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def trim(settings: Settings, name: str, yes: bool) -> None:
    """Forget the shards that ended and were truncated to their end, and remove their logs.

    First it shows which. Without --yes it asks on a terminal and refuses elsewhere.
    """
    with settings.connect() as client:
        stream = client.stream(name)
        gone = stream.trim(dry_run=True)
        if not gone:
            say(f"no shard of {name} is empty and over")
            if not yes:
                return
        else:
            say(f"shards {_names(gone)} of {name} are empty and over")
            agreed(yes, "Forget them?", otherwise="nothing was trimmed")
        with INTERRUPTS.step():  # also of no shard: an earlier run may have been cut short
            trimmed = stream.trim()
            if trimmed:
                print(_names(trimmed))


@command.command("terminate")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def terminate(settings: Settings, name: str, yes: bool) -> None:
    """End the stream: no shard takes more messages from anybody, for good.

    Without --yes it asks on a terminal and refuses elsewhere.
    """
    with settings.connect() as client:
        stream = client.stream(name)
        say(f"terminating {name}: {_told(stream.describe())} stay")
        agreed(yes, f"Terminate {name} for good?", otherwise="nothing was terminated")
        with INTERRUPTS.step():
            stream.terminate()
            say(f"{name} is terminated")


@command.command("rm")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def rm(settings: Settings, name: str, yes: bool) -> None:
    """Remove the stream with all its logs and all their messages, for good.

    First it shows what would go. Without --yes it asks on a terminal and refuses elsewhere. A
    removal that was cut short goes on when it is run again with --yes.
    """
    with settings.connect() as client:
        stream = client.stream(name)
        try:
            say(f"removing {name}: {_told(stream.describe())}")
        except NotFound:  # unless an earlier run did not come to its end
            if not yes:
                raise
        agreed(yes, f"Remove {name} for good?", otherwise="nothing was removed")
        with INTERRUPTS.step():
            stream.remove()
            say(f"{name} is removed")


def _told(found: StreamDescription) -> str:
    messages = sum((each.next_seq or 0) - (each.head_seq or 0) for each in found.shards)
    return f"{messages} messages in {len(found.shards)} shards"


def _pin(text: str) -> tuple[bytes, int]:
    key, separator, number = text.rpartition("=")
    if not separator or not number.isdecimal():
        raise click.UsageError(f"a pin reads KEY=SHARD, not {text!r}")
    return key.encode("utf-8", "surrogateescape"), int(number)


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise click.UsageError(f"weights read 1,2,3, not {text!r}") from None


def _hash(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise click.UsageError(f"a hash reads 0x40000000, not {text!r}") from None


def _key(text: str, is_base64: bool) -> bytes:
    if not is_base64:
        return text.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise click.UsageError(f"{text!r} is not base64") from None

"""`dlog tail`: messages on standard output, once or as they come. Where to begin and where to stop
is settled first; then each message goes through one form (text, JSON, hex, raw)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from dlog.cli import message_text
from dlog.cli.failures import say
from dlog.cli.shared import Settings, common_options, only_tells
from dlog.cli.stream_messages import Sharded, is_stream, stream_runs
from dlog.cli.window import SEQS, Window, window_of, window_options
from dlog.errors import Truncated

if TYPE_CHECKING:
    from dlog import Client, Message, Reader

FORMS = ("text", "json", "hex", "raw")
LAST_DEFAULT = 10
RUN_MESSAGES = 1_000


@dataclass(frozen=True)
class Wanted:
    """Which messages: those of the `window`, or the `last` ones before the tail; at most `count` of
    them."""

    window: Window
    last: int | None
    count: int | None


@click.command("tail")
@click.argument("log")
@click.option("-f", "--follow", is_flag=True, help="Go on as messages come, until Ctrl-C.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"The last N messages ({LAST_DEFAULT} if nothing says where to begin); with a beginning, "
    "the first N from there.",
)
@window_options
@click.option(
    "-o", "short", multiple=True, metavar="FORM|A:B", help="Short for --output or for --seqs."
)
@click.option("--output", type=click.Choice(FORMS), help="How to print. [default: text]")
@click.option("--format", "template", metavar="FORMAT", help=r"Text, as '%s %k %v\n'; see above.")
@click.option("-l", "--long", "long_form", is_flag=True, help="Id, seq, time, key and value.")
@click.option("--grep", metavar="REGEX", help="Only messages whose value matches.")
@click.option("--separator", default="\\n", help="After each value of --output raw. [default: \\n]")
@click.option("--force", is_flag=True, help="Raw bytes even onto a terminal.")
@common_options
@only_tells
def command(
    settings: Settings,
    log: str,
    follow: bool,
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    from_id: str | None,
    seqs: str | None,
    short: tuple[str, ...],
    output: str | None,
    template: str | None,
    long_form: bool,
    grep: str | None,
    separator: str,
    force: bool,
) -> None:
    r"""Print messages of LOG: its last ones, or those that the options choose.

    Of a stream: of all its shards, the oldest message first. Seqs and ids are of one log; so
    name a shard (NAME/0) for --seqs and --from.

    Text shows bytes that a terminal would obey as escapes; JSON is lossless; hex is for looking;
    raw is the exact bytes. --grep (a regular expression over the bytes of the value) chooses among
    the messages that the other options let through.

    --format: %i id, %s seq, %p epoch, %t time, %T time in microseconds, %e and %E the same of the
    event time, %k key, %v value, %K and %V their sizes, %h headers, %% a percent sign; %v{hex} and
    %v{base64} (also of %k); \n \t \\ \0 \xNN.
    """
    for given in short:
        if given in FORMS and output is None:
            output = given
        elif SEQS.fullmatch(given) and seqs is None:
            seqs = given
        else:
            raise click.UsageError(
                f"-o takes one of {', '.join(FORMS)} and one range of seqs A:B, not {given!r}"
            )
    form = _form(output, template, long_form, separator)
    if output == "raw" and sys.stdout.isatty() and not force:
        raise click.UsageError("raw bytes do not go onto a terminal, unless with --force")
    window = window_of(since, until, from_id, seqs)
    wanted = Wanted(window, None, count)
    if window.start is None:
        wanted = Wanted(window, LAST_DEFAULT if count is None else count, None)
    pattern = _pattern(grep)
    with settings.connect() as client:
        out = sys.stdout.buffer
        for run in _chosen(client, log, wanted, follow):
            shown = [(shard, each) for shard, each in run if _matches(pattern, each)]
            if output == "json":
                out.write(b"".join([message_text.json_form(e, shard=n) for n, e in shown]))
            else:
                out.write(b"".join([form(each) for _, each in shown]))
            out.flush()


def _form(
    output: str | None, template: str | None, long_form: bool, separator: str
) -> message_text.Form:
    if (template is not None) + long_form + (output not in (None, "text")) > 1:
        raise click.UsageError("--format, --long and --output exclude each other")
    if output == "json":
        return message_text.json_form
    if output == "hex":
        return message_text.hex_form
    try:
        if output == "raw":
            return message_text.raw_form(message_text.unescaped(separator))
        if long_form:
            template = message_text.LONG_FORMAT
        return message_text.percent_form("%v\\n" if template is None else template)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _pattern(grep: str | None) -> re.Pattern[bytes] | None:
    if grep is None:
        return None
    try:
        return re.compile(grep.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise click.UsageError(f"--grep {grep!r}: {error}") from None


def _matches(pattern: re.Pattern[bytes] | None, message: Message) -> bool:
    if pattern is None:
        return True
    return message.value is not None and pattern.search(message.value) is not None


def _chosen(client: Client, log: str, wanted: Wanted, follow: bool) -> Iterator[Sequence[Sharded]]:
    """Runs of the messages that are wanted; each run is printed and flushed before the next."""
    if is_stream(client, log):
        yield from stream_runs(client, log, wanted.window, wanted.last, wanted.count, follow)
        return
    left = wanted.count
    with _reader(client, log, wanted, follow) as reader:
        while left is None or left > 0:
            most = RUN_MESSAGES if left is None else min(left, RUN_MESSAGES)
            run = reader.read(most, timeout=None)
            if not run:  # the end: without --follow, or of what --until and A:B let through
                return
            left = None if left is None else left - len(run)
            yield [(None, message) for message in run]


def _reader(client: Client, log: str, wanted: Wanted, follow: bool) -> Reader:
    if wanted.last is None:
        start = "earliest" if wanted.window.start is None else wanted.window.start
        end = wanted.window.end
        try:
            return client.open_reader(log, start=start, end=end, follow=follow)
        except Truncated as error:
            if not isinstance(start, datetime):
                raise
            say(f"{log} begins at seq {error.new_head}; older messages were truncated")
            return client.open_reader(log, start=start, end=end, follow=follow, on_truncated="jump")
    reader = client.open_reader(log, start="latest", follow=follow, on_truncated="jump")
    reader.seek(max(0, reader.position.next_seq - wanted.last))
    return reader

"""`dlog tail`: messages on standard output, once or as they come. Where to begin and where to stop
is settled first; then each message goes through one form (text, JSON, hex, raw)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import click

from dlog.cli import message_text, moments
from dlog.cli.shared import Settings, common_options
from dlog.errors import FormatError
from dlog.ids import MessageId

if TYPE_CHECKING:
    from dlog import Client, Message, Reader

FORMS = ("text", "json", "hex", "raw")
LAST_DEFAULT = 10
RUN_MESSAGES = 1_000

_SEQS = re.compile(r"([0-9]{1,19})?:([0-9]{1,19})?")


Start = Literal["earliest"] | int | datetime | MessageId | None


@dataclass(frozen=True)
class Window:
    """Which messages: from `start` up to `end` (exclusive), or the `last` ones before the tail; at
    most `count` of them."""

    start: Start
    end: int | datetime | None
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
@click.option("--since", type=moments.moment, metavar="TIME", help="Begin there: 1h, or ISO 8601.")
@click.option("--until", type=moments.moment, metavar="TIME", help="Stop there, exclusively.")
@click.option("--from", "from_id", metavar="ID", help="Begin at this message id, as 12:345:6.")
@click.option("--seqs", metavar="A:B", help="From seq A up to B, exclusively; either may be left.")
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
        elif _SEQS.fullmatch(given) and seqs is None:
            seqs = given
        else:
            raise click.UsageError(
                f"-o takes one of {', '.join(FORMS)} and one range of seqs A:B, not {given!r}"
            )
    form = _form(output, template, long_form, separator)
    if output == "raw" and sys.stdout.isatty() and not force:
        raise click.UsageError("raw bytes do not go onto a terminal, unless with --force")
    window = _window(count, since, until, from_id, seqs)
    wanted = _pattern(grep)
    with settings.connect() as client:
        chosen = _chosen(client, log, window, follow)
        out = sys.stdout.buffer
        for run in chosen:
            out.write(b"".join([form(each) for each in run if _matches(wanted, each)]))
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


def _window(
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    from_id: str | None,
    seqs: str | None,
) -> Window:
    first, end = _seqs(seqs)
    begun = [each for each in (since, from_id, first) if each is not None]
    if len(begun) > 1 or (until is not None and end is not None):
        raise click.UsageError("one beginning and one end: --since, --from or A:; --until or :B")
    if from_id is not None:
        try:
            start: Start = MessageId.parse(from_id)
        except FormatError as error:
            raise click.UsageError(error.message) from None
    else:
        start = since if since is not None else first
    stop = until if until is not None else end
    if start is None and (stop is not None or seqs is not None):
        start = "earliest"
    if start is None:
        return Window(None, None, LAST_DEFAULT if count is None else count, None)
    return Window(start, stop, None, count)


def _seqs(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = _SEQS.fullmatch(text)
    if found is None:
        raise click.UsageError(f"a range of seqs reads A:B, A: or :B, not {text!r}")
    first, end = (None if part is None else int(part) for part in found.groups())
    if first is not None and end is not None and first > end:
        raise click.UsageError(f"a range of seqs begins before it ends, unlike {text}")
    return first, end


def _pattern(grep: str | None) -> re.Pattern[bytes] | None:
    if grep is None:
        return None
    try:
        return re.compile(grep.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise click.UsageError(f"--grep {grep!r}: {error}") from None


def _matches(wanted: re.Pattern[bytes] | None, message: Message) -> bool:
    if wanted is None:
        return True
    return message.value is not None and wanted.search(message.value) is not None


def _chosen(client: Client, log: str, window: Window, follow: bool) -> Iterator[list[Message]]:
    """Runs of the messages in the window; each run is printed and flushed before the next."""
    left = window.count
    with _reader(client, log, window, follow) as reader:
        while left is None or left > 0:
            wanted = RUN_MESSAGES if left is None else min(left, RUN_MESSAGES)
            run = reader.read(wanted, timeout=None)
            if not run:  # the end: without --follow, or of what --until and A:B let through
                return
            left = None if left is None else left - len(run)
            yield run


def _reader(client: Client, log: str, window: Window, follow: bool) -> Reader:
    if window.last is None:
        start = "earliest" if window.start is None else window.start
        return client.open_reader(log, start=start, end=window.end, follow=follow)
    reader = client.open_reader(log, start="latest", follow=follow, on_truncated="jump")
    reader.seek(max(0, reader.position.next_seq - window.last))
    return reader

"""`dlog produce`: messages from standard input or files. They travel pipelined; what was
acknowledged is counted message by message, so that an interrupted run says how far it came."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from dlog.cli import message_input
from dlog.cli.failures import FAILED, Told, describe, say
from dlog.cli.input_file import shown_name, why_unreadable
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.output import Unheard
from dlog.cli.output import told as lost
from dlog.cli.shared import Settings, common_options
from dlog.cli.stream_messages import is_stream
from dlog.errors import ConfigError, DlogError, TooLarge

if TYPE_CHECKING:
    from dlog import Client, MessageId, StreamWriter, Ticket, Writer


INTERRUPTED_S = 10.0  # after Ctrl-C: how long what was read may take to be acknowledged


class Tally:
    """What was handed over and what is acknowledged. Tickets of a log resolve in order, so only
    those still open are kept; the writer's window bounds how many."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.last_id: MessageId | None = None
        self._open: deque[Ticket] = deque()

    def submit(self, offer: Callable[[], Ticket]) -> Ticket:
        """A message counts as sent from here on. A signal may arrive behind its submission, and
        before we hold its ticket; then it stays without an answer."""
        self.sent += 1
        try:
            ticket = offer()
            self._open.append(ticket)
            return ticket
        except DlogError:
            self.sent -= 1  # it was not taken
            raise

    def settle(self) -> None:
        """Count what is acknowledged by now; raises the error of the first that failed."""
        while self._open and self._open[0].done:
            last_id = self._open[0].result(0)
            with INTERRUPTS.held():
                self._open.popleft()
                self.last_id = last_id
                self.acknowledged += 1
        INTERRUPTS.check()

    def told(self) -> str:
        unknown = self.sent - self.acknowledged
        more = f", {unknown} without an answer" if unknown else ""
        return f"{self.acknowledged} of {self.sent} messages acknowledged{more}"

    def told_with_id(self) -> str:
        """Where the run ends early, so that no id is printed on standard output."""
        with suppress(DlogError):  # whatever failed it is told already
            self.settle()
        return f"{self.told()}{'' if self.last_id is None else f', the last as {self.last_id}'}"


@click.command("produce")
@click.argument("log")
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Each line is a JSON object.")
@click.option("--whole", is_flag=True, help="Each file (or all of standard input) is one message.")
@click.option("-k", "--key-separator", metavar="TEXT", help="Each line is key, TEXT, value.")
@click.option(
    "-H", "--headers", "headers", multiple=True, metavar="NAME=VALUE", help="Added to each message."
)
@click.option("--sync", is_flag=True, help="Wait for each acknowledgement; print each id.")
@click.option("-q", "--quiet", is_flag=True, help="Print no id and no summary.")
@click.option(
    "--takeover",
    type=click.Choice(["always", "if_dead", "never", "wait"]),
    default="always",
    show_default=True,
    help="What to do about another writer of the log.",
)
@click.option("--owner", help="Who we are, told to whoever we fence. [default: user@host:pid]")
@click.option(
    "--codec",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression.",
)
@click.option("--linger-ms", type=int, default=0, help="Let a lone message wait for company.")
@click.option("--no-create", is_flag=True, help="Fail if there is no such log.")
@common_options
def command(
    settings: Settings,
    log: str,
    files: tuple[str, ...],
    as_json: bool,
    whole: bool,
    key_separator: str | None,
    headers: tuple[str, ...],
    sync: bool,
    quiet: bool,
    takeover: str,
    owner: str | None,
    codec: str,
    linger_ms: int,
    no_create: bool,
) -> None:
    """Append messages to LOG: each line of FILES, or of standard input.

    LOG may be a stream: a key goes to the shard that has it, what has none to each shard in turn.

    A JSON object has value (text, or null for a tombstone) and may have key, headers (an object or
    a list of pairs), event_time (ISO 8601) or event_time_us; bytes that are not text go as
    value_base64, key_base64 and {"base64": …} in a header. What `dlog tail -o json` prints is
    understood.

    Prints the id of the last message when all are acknowledged. Ctrl-C sends what was read and says
    how many were acknowledged.
    """
    if as_json + whole + (key_separator is not None) > 1:
        raise click.UsageError("--json, --whole and --key-separator exclude each other")
    if key_separator == "":
        raise click.UsageError("a key separator is not empty")
    try:
        extra = [message_input.parse_header(each) for each in headers]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings.output.unheard = Unheard.STOP
    at = message_input.At()
    drafts = _drafts(files or ("-",), as_json, whole, key_separator, at)
    _check_files(files)
    tally = Tally()
    settings.done = tally.told_with_id
    with settings.connect() as client:
        how = {"takeover": takeover, "owner": owner, "codec": codec, "linger_ms": linger_ms}
        with _writer(client, log, not no_create, how) as writer:
            try:
                _send(writer, drafts, at, extra, tally, sync and not quiet, sync)
            except KeyboardInterrupt:
                with suppress(DlogError):  # it is counted as without an answer
                    writer.flush(timeout=INTERRUPTED_S)
                raise
            except message_input.BadInput as error:
                # The input is at fault: all that was good goes out before we say so.
                writer.flush()
                raise Told(str(error), FAILED) from error
            except DlogError:
                raise
            except OSError as error:  # of standard output; a time-out of dlog is an OSError, too
                writer.flush()
                raise Told(lost(error), FAILED) from error
    if not quiet:
        if tally.last_id is not None and not sync:
            _print_last(tally)
        say(tally.told())


def _print_last(tally: Tally) -> None:
    try:
        click.echo(str(tally.last_id))
    except OSError as error:
        raise Told(lost(error), FAILED) from error


def _check_files(files: tuple[str, ...]) -> None:
    """A file that cannot be opened is refused before another writer is fenced. What comes behind
    standard input may still be made."""
    for name in takewhile(lambda each: each != "-", files):
        try:
            kind = os.stat(name).st_mode
            if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # a pipe is opened once
                with open(name, "rb"):
                    pass
        except OSError as error:
            raise Told(f"{name}: {why_unreadable(error)}; nothing was sent", FAILED) from error


def _writer(
    client: Client, log: str, create: bool, options: dict[str, Any]
) -> Writer | StreamWriter:
    if is_stream(client, log):
        return client.stream(log).open_writer(**options)
    return client.open_writer(log, create=create, **options)


def _drafts(
    files: tuple[str, ...],
    as_json: bool,
    whole: bool,
    key_separator: str | None,
    at: message_input.At,
) -> Iterator[message_input.Draft]:
    parse: message_input.Parse = message_input.plain_line
    if as_json:
        parse = message_input.json_line
    elif key_separator is not None:
        parse = message_input.separated_line(key_separator.encode("utf-8", "surrogateescape"))
    for name in files:
        shown = shown_name(name)
        try:
            with ExitStack() as stack:
                stream: BinaryIO = sys.stdin.buffer
                if name != "-":
                    stream = stack.enter_context(open(name, "rb"))
                if whole:
                    yield from message_input.whole(stream, shown, at)
                else:
                    yield from message_input.drafts(stream, shown, parse, at)
        except OSError as error:  # of the file: nothing of dlog runs inside this generator
            where = shown
            if at.name == shown and at.line:
                where += f", behind line {at.line}"
            raise message_input.BadInput(f"{where}: {why_unreadable(error)}") from error


def _send(
    writer: Writer | StreamWriter,
    drafts: Iterator[message_input.Draft],
    at: message_input.At,
    extra: message_input.Headers,
    tally: Tally,
    print_ids: bool,
    sync: bool,
) -> None:
    for draft in drafts:
        offer = functools.partial(
            writer.submit,
            draft.value,
            key=draft.key,
            headers=[*draft.headers, *extra] or None,
            event_time=draft.event_time_us,
        )
        try:
            ticket = tally.submit(offer)
        except (ConfigError, TooLarge) as error:
            raise message_input.BadInput(f"{at}: {describe(error)}") from error
        if sync:
            ticket.result()
        tally.settle()
        if print_ids:
            click.echo(str(tally.last_id))
    writer.flush()
    tally.settle()

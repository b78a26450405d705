"""The command `dlog`: a table of commands that are loaded when called, and the one place where
errors become exit codes. `dlog --help` loads click and nothing else."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterable, Sequence

import click

from dlog._version import __version__
from dlog.cli import failures
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.output import Unheard, flush, take_standard_streams, told
from dlog.cli.shared import Settings, common_options

# name -> (module below dlog.cli.commands, what `dlog --help` says about it)
COMMANDS = {
    "produce": ("produce", "Append messages: lines of standard input, JSON, or files."),
    "tail": ("tail", "Print messages: the last ones, a range, since a time, or as they come."),
    "ls": ("list_logs", "List the logs."),
    "create": ("create", "Create a log, with options of its own."),
    "stream": ("stream", "Streams of shards: make, split, merge, pin, look at them."),
    "group": ("group", "Groups of workers: who has what, how far it is, put it elsewhere."),
    "describe": ("describe", "Say everything about a log: owner, options, head and tail."),
    "segments": ("segments", "List the segments of a log."),
    "why": ("why", "Say what a log waits for: its writer, ledgers, bookies, metadata."),
    "top": ("top", "Watch a log: rates, tail, writer, and what it waits for."),
    "config": ("config", "Show or change a document that programs follow while they run."),
    "copy": ("copy", "Copy a log from one place to another, or go on with a copy."),
    "export": ("export", "Write a log, or a part of it, as JSON lines or Parquet."),
    "meta": ("meta", "Write out a log's metadata, or move it to another metadata store."),
    "fsck": ("fsck", "Check logs, copy by copy if told to, and repair what can be."),
    "truncate": ("truncate", "Let a log begin later: what is before that is gone."),
    "hold": ("hold", "Keep messages from being truncated."),
    "gc": ("gc", "Apply retention, and delete what was truncated."),
    "terminate": ("terminate", "End a log: no more messages, for good."),
    "rm": ("remove", "Remove a log and all its messages, for good."),
    "spark": ("spark", "Run a job of Spark over a log: export, import, verify, stats, compact."),
    "spark-shell": ("spark_shell", "Open a Python shell with a session of Spark that knows dlog."),
    "bench": ("bench", "Measure writing and reading in a throw-away log."),
    "dev": ("dev", "Run a BookKeeper cluster on this machine, for trying things out."),
    "doctor": ("doctor", "Check the place the logs live in and what is installed."),
}

EXIT_CODES = """\b
Exit codes:
  0    done; also when the reader of a command that only prints closed the pipe
  1    failed; the line on standard error says why and what to do
  2    wrong usage: arguments, options or URL
  3    there is no such log or message
  4    another writer has the log: it fenced us, or --takeover left it in peace
  5    unavailable or out of time; trying again may help
  129  interrupted by SIGHUP (the terminal is gone)
  130  interrupted by Ctrl-C
  143  interrupted by SIGTERM
"""


class LazyGroup(click.Group):
    """Commands by name; a module is imported when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = COMMANDS.get(cmd_name)
        if known is None:
            return None
        found = importlib.import_module(f"dlog.cli.commands.{known[0]}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


@click.group(
    cls=LazyGroup, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="dlog", message="%(prog)s %(version)s")
@common_options
def program(settings: Settings) -> None:
    """An unbounded, fenced, single-writer log.

    The logs live at the URL given by --url, else by DLOG_URL, else in your data directory. Options
    of this list may stand before or after the command.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    if "_DLOG_COMPLETE" in os.environ:  # a shell asks for completions; click answers and exits
        program.main(prog_name="dlog")
    is_program = argv is None  # else a caller in Python
    with INTERRUPTS.taken(for_good=is_program):
        settings = Settings()
        if is_program:
            take_standard_streams(settings.output)
            sys.excepthook = functools.partial(failures.report_fault, settings)
        code = _outcome(list(sys.argv[1:] if argv is None else argv), settings)
        flush(settings.output)
        return _code_with_output(code, settings)


def _code_with_output(code: int, settings: Settings) -> int:
    lost = settings.output.error
    if code != failures.OK:
        return code  # a failure was told already
    is_done = settings.output.is_left and settings.output.unheard is Unheard.DONE
    if lost is not None and not is_done:
        failures.say(told(lost))
        code = failures.FAILED
    return INTERRUPTS.code if INTERRUPTS.arrived else code


def _outcome(arguments: Iterable[str], settings: Settings) -> int:
    try:
        with INTERRUPTS.raising():
            return _run(arguments, settings)
    except failures.EXPECTED as error:
        if error is settings.output.error:
            return failures.OK  # `main` reports the lost output, and decides the exit code
        return failures.report(error, settings)


def _run(arguments: Iterable[str], settings: Settings) -> int:
    # Not click's own main: it turns a broken pipe into exit code 1 and Ctrl-C into 1.
    with program.make_context("dlog", list(arguments), obj=settings) as context:
        code = program.invoke(context)
    return code if isinstance(code, int) else failures.OK

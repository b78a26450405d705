"""`dlog spark-shell`: a Python shell with a session of Spark."""

from __future__ import annotations

import code
import sys
import traceback
from typing import Any

import click

from dlog.cli.failures import USAGE, Told
from dlog.cli.input_file import read_whole
from dlog.cli.shared import Settings, common_options

SOURCE_BYTES_MAX = 16 << 20

_BANNER = """\
spark is a session of Spark {version} on {master}; the logs are in {url}.

    logs("orders").show()                  messages of a log, as a DataFrame
    logs("a,b", includeHeaders="true")     of several, with options of the source
"""


class _Piped(code.InteractiveInterpreter):
    """Tells a traceback as a shell does, and remembers that there was one."""

    failed = False

    def showtraceback(self) -> None:
        self.failed = True
        traceback.print_exc()

    def showsyntaxerror(self, *given: Any, **more: Any) -> None:
        self.showtraceback()


def _source() -> str:
    raw = read_whole("-", SOURCE_BYTES_MAX)
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Told(f"standard input, line {line}: not UTF-8", USAGE) from None


@click.command("spark-shell")
@click.option("--master", default="local[*]", show_default=True, help="Of Spark.")
@common_options
def command(settings: Settings, master: str) -> None:
    """Open a Python shell with a session of Spark that reads logs.

    Without a terminal it runs what comes on standard input.
    """
    try:
        from dlog.spark.jobs.session import access_from, options_of, session
    except ImportError as error:
        missing = (error.name or "pyspark").partition(".")[0]
        raise click.ClickException(f"{missing} is missing: install dlog[spark]") from None
    source = "" if sys.stdin.isatty() else _source()
    access = access_from(settings.url)
    with session("shell", master) as spark:

        def logs(names: str, **options: str) -> object:
            reader = spark.read.format("dlog").options(**options_of(access)).options(**options)
            return reader.option("subscribe", names).load()

        names = {"spark": spark, "logs": logs, "__name__": "__console__"}
        if not sys.stdin.isatty():
            piped = _Piped(names)
            piped.runsource(source, "<stdin>", "exec")
            sys.exit(1 if piped.failed else 0)
        banner = _BANNER.format(version=spark.version, master=master, url=access.url)
        code.interact(banner, local=names, exitmsg="")

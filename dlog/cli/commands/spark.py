"""`dlog spark`: the ready-made jobs. Each is a program of its own, with arguments of its own."""

from __future__ import annotations

import importlib

import click

from dlog.cli.output import Unheard
from dlog.cli.shared import Settings

JOBS = {
    "export": "Write a log as Parquet by day and shard; run again, add what came since.",
    "import": "Append Parquet files to a log: all of them, once.",
    "verify": "Read every copy of every entry, and count the messages.",
    "stats": "Say how much there is, when it came, how large it is, and whose it is.",
    "compact": "Keep the latest message of each key, as Parquet or as a new log.",
}
_MODULES = {"import": "load"}  # a word of Python is no name of a module
_EXTRA = ("pyspark", "py4j", "pyarrow", "numpy")


@click.group("spark")
def command() -> None:
    """Run a job of Spark over a log, on this machine or under spark-submit.

    Each is a short program in dlog/spark/jobs, to be copied and changed. They need the extra
    dlog[spark] and Java 17.
    """


def _add(name: str) -> None:
    @command.command(
        name,
        short_help=JOBS[name],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        try:
            job = importlib.import_module(f"dlog.spark.jobs.{_MODULES.get(name, name)}")
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRA:
                raise
            raise click.ClickException(f"{missing} is missing: install dlog[spark]") from None
        settings = context.find_object(Settings)
        if settings is not None and name != "stats":
            settings.output.unheard = Unheard.FINISH
        if settings is not None and name in ("export", "import", "compact"):
            settings.done = lambda: "what was under way may or may not have happened"
        url = [] if settings is None or settings.url is None else ["--url", settings.url]
        context.exit(job.main([*url, *arguments]))  # of two addresses the later one counts


for _name in JOBS:
    _add(_name)

"""What every command takes: where the logs are, how much to say, and a client made from that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlog.cli.output import Output, Unheard

if TYPE_CHECKING:
    from dlog import Client

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Settings:
    """Collected from both places where the common options may stand; what is given later wins."""

    url: str | None = None
    debug: bool = False
    verbosity: int = 0
    output: Output = field(default_factory=Output)
    lists: str | None = None
    """What to do about something that is not there, where that is no log."""
    done: Callable[[], str] | None = None
    """What the command has done by now, for one that may end in the middle."""

    def connect(self, *, quiet: bool = False) -> Client:
        """A client for the URL. Use it in a `with`. `quiet`: the command says itself
        what is wrong."""
        import dlog  # not at the top: `dlog --help` and usage errors need no client
        from dlog.cli import diagnostics

        diagnostics.start(self.verbosity, quiet=quiet)
        return dlog.connect(self.url)


def common_options(function: Function) -> Callable[..., Any]:
    """Adds --url, --verbose and --debug, handed to the command as one `settings`."""

    @click.option(
        "-u", "--url", help="Where the logs are: file:PATH or zk://HOSTS/ROOT. [env: DLOG_URL]"
    )
    @click.option("-v", "--verbose", count=True, help="Say more on standard error; -vv: all.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(function)
    def wrapped(url: str | None, verbose: int, debug: bool, **rest: Any) -> Any:
        settings = click.get_current_context().ensure_object(Settings)
        settings.url = settings.url if url is None else url
        settings.verbosity += verbose
        settings.debug |= debug
        if not isinstance(click.get_current_context().command, click.Group):
            settings.output.unheard = Unheard.FINISH
        return function(settings=settings, **rest)

    return wrapped


def only_tells(function: Function) -> Callable[..., Any]:
    """Marks a command, below `common_options`, that changes and judges nothing: it succeeds when
    its reader closes the pipe."""

    @functools.wraps(function)
    def wrapped(settings: Settings, **rest: Any) -> Any:
        settings.output.unheard = Unheard.DONE
        return function(settings=settings, **rest)

    return wrapped


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A table for people, or JSON.",
)

"""`dlog config`: documents that programs follow while they run, and who changed what in them."""

from __future__ import annotations

import json
from typing import Any

import click

from dlog.cli import draw
from dlog.cli.escape import printable
from dlog.cli.failures import NOT_FOUND, Told, say
from dlog.cli.input_file import read_json_object
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import moment_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option
from dlog.errors import NotFound
from dlog.limits import CONFIG_BYTES_MAX

COLUMNS = (
    draw.Column("VERSION", number=True),
    draw.Column("WHO"),
    draw.Column("WHEN"),
    draw.Column("NOTE"),
)

FILE_BYTES_MAX = 4 * CONFIG_BYTES_MAX  # written with blanks, and with escapes

if_version_option = click.option(
    "--if-version", type=int, metavar="N", help="Only over this version (0: if there is none)."
)
note_option = click.option("--note", help="What the change is for.")


@click.group("config")
def command() -> None:
    """Show or change a document that programs follow while they run.

    Whoever connected with config=NAME goes by it: its parts writer, reader, log and client. Each
    change makes a version; older ones are kept, and can be gone back to.
    """


@command.command("get")
@click.argument("name")
@click.option("--version", type=int, metavar="N", help="An older version.")
@output_option
@common_options
@only_tells
def get(settings: Settings, name: str, version: int | None, output: str) -> None:
    """Show what document NAME says, and whether programs of this release would take it."""
    with settings.connect() as client:
        try:
            found = client.config(name).get(version)
        except NotFound as error:
            told = f"{error.message}; `dlog config history {name}` lists them"
            raise Told(told, NOT_FOUND) from None
    if found.version == 0:
        raise _none(name)
    if output == "json":
        print_json(found)
        return
    when = moment_text(found.at_us or 0)
    told = f"version {found.version} of {name}, by {found.who}, {when}"
    if found.restores is not None:
        told += f", as version {found.restores}"
    say(told if found.note is None else f"{told}: {found.note}")
    if found.refused is not None:
        say(f"programs of this release refuse it: {found.refused}")
    for part, values in sorted(found.content.items()):
        for key, value in sorted(values.items()):
            print_line(f"{part} {key}={json.dumps(value, ensure_ascii=False)}")


def print_line(text: str) -> None:
    click.echo(printable(text))


def _none(name: str) -> Told:
    return Told(f"there is no document {name!r}; `dlog config set` makes one", NOT_FOUND)


@command.command("set")
@click.argument("name")
@click.argument("part", required=False)
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--file", type=click.Path(allow_dash=True), help="All of it, as JSON; - is stdin.")
@click.option("--unset", multiple=True, metavar="KEY", help="Take this out of PART; repeatable.")
@if_version_option
@note_option
@click.option("--unchecked", is_flag=True, help="Let parts through that nobody here knows.")
@common_options
def set_(
    settings: Settings,
    name: str,
    part: str | None,
    values: tuple[str, ...],
    file: str | None,
    unset: tuple[str, ...],
    if_version: int | None,
    note: str | None,
    unchecked: bool,
) -> None:
    """Change document NAME: some values of a PART, or with --file all of it.

    A VALUE is JSON where it can be read as such, and text otherwise. What no program would take is
    refused before it is written.
    """
    if (file is None) == (part is None):
        raise click.UsageError("give a PART with KEY=VALUE, or --file")
    if file is not None and unset:
        raise click.UsageError("--unset goes with a PART")
    if part is not None and not values and not unset:
        raise click.UsageError(f"nothing is changed in {part}: give KEY=VALUE or --unset")
    pairs = dict(map(_pair, values))
    content = None if file is None else read_json_object(file, FILE_BYTES_MAX)
    with settings.connect() as client:
        document = client.config(name)
        with INTERRUPTS.step():
            if content is not None:
                changed = document.replace(
                    content, if_version=if_version, note=note, unchecked=unchecked
                )
            else:
                assert part is not None
                changed = document.set(
                    part,
                    pairs,
                    unset=unset,
                    if_version=if_version,
                    note=note,
                    unchecked=unchecked,
                )
            print_line(f"{name} is at version {changed.version}")


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"KEY=VALUE, not {text!r}")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


@command.command("history")
@click.argument("name")
@output_option
@common_options
@only_tells
def history(settings: Settings, name: str, output: str) -> None:
    """List the versions of document NAME that are kept, newest first."""
    with settings.connect() as client:
        found = client.config(name).history()
    if not found:
        raise _none(name)
    if output == "json":
        for each in found:
            print_json(each)
        return
    rows = []
    for each in found:
        restores = "" if each.restores is None else f"as version {each.restores}"
        note = "; ".join(told for told in (restores, each.note) if told)
        rows.append((each.version, each.who, moment_text(each.at_us), note or "-"))
    draw.table(COLUMNS, rows)


@command.command("rollback")
@click.argument("name")
@click.argument("to", type=int)
@if_version_option
@note_option
@common_options
def rollback(
    settings: Settings, name: str, to: int, if_version: int | None, note: str | None
) -> None:
    """Let document NAME say again what version TO said, as a new version."""
    with settings.connect() as client:
        with INTERRUPTS.step():
            changed = client.config(name).rollback(to, if_version=if_version, note=note)
            print_line(f"{name} is at version {changed.version}, which says what version {to} said")

"""The command line takes no secret in its arguments, where everybody on the machine could read
it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from dlog.cli.main import COMMANDS, program
from dlog.options import SECRET_OPTIONS
from tests.unit.cli.conftest import Shell

_SECRET = re.compile("passw|passphrase|secret|auth|token|credential|private")


def _parameters(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from [parameter.name or "", *parameter.opts]
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _parameters(each)


def test_no_command_has_a_parameter_for_a_secret() -> None:
    context = click.Context(program)
    names = set(_parameters(program))
    for command_name in COMMANDS:
        command = program.get_command(context, command_name)
        assert command is not None
        names |= set(_parameters(command))
    assert "--owner" in names
    assert all(_SECRET.search(name) for name in SECRET_OPTIONS)
    assert [name for name in names if _SECRET.search(name)] == []


@pytest.mark.parametrize("name", SECRET_OPTIONS)
def test_a_secret_in_a_url_is_refused_and_not_repeated(shell: Shell, name: str) -> None:
    url = f"zk://zk1/dlog?tls=required&tls_ca=/ca&{name}=canary"
    done = shell.dlog("ls", "--url", url, "--debug", expect=2)
    assert f"DLOG_{name.upper()}_FILE" in done.err
    assert "canary" not in done.out.decode() + done.err

"""`dlog create`: a new, empty log. Writing to a log that is not there creates it as well; this is
for giving it options of its own."""

from __future__ import annotations

from typing import Any

import click

from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.log_options import log_options
from dlog.cli.shared import Settings, common_options
from dlog.errors import AlreadyExists


@click.command("create")
@click.argument("log")
@log_options
@click.option("--exist-ok", is_flag=True, help="Succeed if there is such a log already.")
@common_options
def command(settings: Settings, log: str, log_options: dict[str, Any], exist_ok: bool) -> None:
    """Create LOG, with options that hold for every writer of it."""
    with settings.connect() as client:
        with INTERRUPTS.step(f"{log} is there"):
            try:
                client.admin.create(log, **log_options)
            except AlreadyExists:
                if not exist_ok:
                    raise

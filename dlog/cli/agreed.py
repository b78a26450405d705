"""A plan was shown: may it be done?"""

from __future__ import annotations

import sys

import click

from dlog.cli.escape import printable
from dlog.cli.failures import USAGE, Told


def agreed(yes: bool, question: str, *, otherwise: str) -> None:
    """Returns if so. Without --yes it asks on a terminal, and refuses elsewhere; `otherwise` says
    what was not done then."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Told(f"{otherwise}; add --yes to do it", USAGE)
    if not click.confirm(printable(question), err=True):
        raise Told(otherwise)

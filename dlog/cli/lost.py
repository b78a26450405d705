"""What commands say where ledgers are, and the metadata that lists them is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlog.errors import ConfigError, NotFound
from dlog.findings import named

if TYPE_CHECKING:
    from dlog import Client

ADVICE = "`dlog fsck --all` tells of each; put the metadata back from a copy"


def unlisted_told(client: Client, prefix: str = "") -> str | None:
    """None: nothing is lost, as far as can be told from here. With a `prefix`, only if there is no
    log at all."""
    try:
        if prefix and client.admin.list():
            return None
        found = client.admin.unlisted()
    except NotFound:  # nothing was ever kept there
        return None
    except ConfigError as error:
        if error.left is None:
            raise
        return f"{error.message}; {ADVICE}"
    if not found:
        return None
    count = sum(map(len, found.values()))
    return f"{count} ledgers with messages belong to logs that are not known: " + (
        f"{named(list(found))}; {ADVICE}"
    )

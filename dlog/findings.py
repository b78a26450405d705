"""What is found when a place for logs is looked over (`client.admin.examine()`, `dlog doctor`):
each fact with how good it is, in words for people.

`fine` needs nothing; `note` is worth knowing; `warning` works, and should not stay so; `bad` stands
in the way of logs, or leaves them to anybody. A backend that can look at itself has `examine`; one
that keeps lists of who may do what has `rights`. Both are optional: who has neither is not asked.
Looking never fails for what it finds: whatever does not answer in time is a finding itself.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

NAMED_MAX = 3  # of the things that one finding is about


class State(enum.StrEnum):
    FINE = "fine"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    told: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What the logs here are to have, unless they say otherwise."""

    ensemble: int
    ack_quorum: int


@dataclass(frozen=True, slots=True)
class Rights:
    """What a node lets everybody do, whoever they are."""

    anyone_reads: bool
    anyone_changes: bool


@runtime_checkable
class ExaminesMeta(Protocol):
    """Of a metadata store."""

    async def examine(self) -> Sequence[Finding]: ...


@runtime_checkable
class TellsRights(Protocol):
    """Of a metadata store."""

    @property
    def is_private(self) -> bool:
        """Nobody but this machine can reach it."""
        ...

    @property
    def owns_nodes(self) -> bool:
        """What we make is ours, and of those whom we name, as we say who we are."""
        ...

    async def rights(self, path: str) -> Rights:
        """Errors as of `get`."""
        ...


@runtime_checkable
class ExaminesLedgers(Protocol):
    """Of a ledger store."""

    async def examine(self, wish: Wish, ledger_ids: Sequence[int]) -> Sequence[Finding]:
        """The place, and whether these ledgers can be opened."""
        ...

    async def node_of(self, ledger_id: int) -> str:
        """Where its metadata stands in the metadata store."""
        ...


def open_to_all(is_private: bool) -> State:
    """Of what everybody can reach: where everybody is this machine, that is as it should be."""
    return State.NOTE if is_private else State.WARNING


def is_loopback(host: str) -> bool:
    """An address of this machine only, or the name that stands for one."""
    host = host.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named(things: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(things) - NAMED_MAX
    return ", ".join(things[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

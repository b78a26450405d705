"""What every kind of handle does about every call that fails: one row for each kind, one word for
each call. A kind or a call without a word fails a test, so the table outlives any driver.

A row comes with a life in `tests.handles.lives`: how it is opened, what is asked of it, and what it
is owed. Kinds whose calls are complete in themselves have their rows in `tests.handles.verbs`. A
class that needs none is in `NO_ROW`, with the reason.
"""

from __future__ import annotations

import enum
import inspect

from dlog.admin.admin import Admin
from dlog.client import Client
from tests.handles.faults import CALLS
from tests.handles.public import handle_classes


class Does(enum.Enum):
    WAITS = "it raises nothing, has a reason for as long as it waits, and goes on by itself"
    RAISES = "each call raises once that it is usable, and the next one goes on"
    IS_SPARED = "only tasks beside it ask, of its client: it raises nothing, and need not be struck"
    NEVER_ASKS = "this kind makes no such call"


def row(default: Does, **groups: str) -> dict[str, Does]:
    """Of the calls that are named (`waits="meta.get ledger.read"`); all others are `default`."""
    said = dict.fromkeys(CALLS, default)
    for word, calls in groups.items():
        for call in calls.split():
            if call not in said:
                raise KeyError(f"the contracts have no call {call!r}")
            said[call] = Does[word.upper()]
    return said


_BESIDE = "meta.children"  # which bookies there are
_READS = "meta.get meta.sync ledgers.open ledger.read ledger.last_readable"
_WATCHES = "watch.__aenter__ watch.wait"
_FOLLOWS = f"{_READS} {_WATCHES} ledger.info ledger.wait_past"
_STANDS_BY = "ledgers.create ledgers.delete appender.birth"
_MAKES_LEDGERS = "ledgers.create appender.birth meta.create meta.delete"
_FILLS = (  # a segment: what it asks as it is opened, and for its presence
    f"{_BESIDE} {_WATCHES} ledgers.create appender.birth meta.session meta.create"
)
_DELETES = "ledgers.delete meta.delete meta.get meta.sync meta.put"
_TAKES_OVER = "meta.put meta.create ledgers.recover"  # a ledger is ready
_READS_A_RANGE = f"{_READS} meta.children"  # its client is new, and has to know the bookies
_WORKS = f"{_FOLLOWS} {_BESIDE} meta.create meta.put"
_OPENS = "ledgers.info"  # of a standby: once, as it is opened

# Kinds that differ in what they promise are told apart by their way, behind a colon.
ROWS: dict[str, dict[str, Does]] = {
    "Reader: follows": row(Does.NEVER_ASKS, waits=_FOLLOWS, is_spared=_BESIDE),
    "Reader: to an end": row(
        Does.NEVER_ASKS, raises=f"{_READS} ledger.info", is_spared=f"{_BESIDE} {_WATCHES}"
    ),
    "StreamReader: follows": row(Does.NEVER_ASKS, waits=_FOLLOWS, is_spared=_BESIDE),
    "Standby: stands by": row(
        Does.NEVER_ASKS,
        waits=f"{_FOLLOWS} {_STANDS_BY} meta.create meta.put meta.delete",
        is_spared=f"{_BESIDE} {_OPENS}",
    ),
    "Standby: takes over": row(
        Does.NEVER_ASKS,
        raises=f"{_FOLLOWS} {_TAKES_OVER}",
        is_spared=f"{_BESIDE} {_OPENS} {_STANDS_BY} meta.session appender.close meta.delete",
    ),
    "Writer": row(
        Does.NEVER_ASKS,
        waits=f"{_MAKES_LEDGERS} meta.get meta.sync meta.put appender.close",
        is_spared=f"{_BESIDE} {_WATCHES} meta.session",
    ),
    "Writer: hands over": row(
        Does.NEVER_ASKS,
        waits="meta.get meta.sync meta.put meta.delete appender.close",
        is_spared=f"{_BESIDE} {_WATCHES} meta.session meta.create ledgers.create appender.birth",
    ),
    "Writer: heals": row(
        Does.NEVER_ASKS,
        waits=f"{_MAKES_LEDGERS} meta.get meta.sync meta.put ledgers.recover",
        is_spared=f"{_BESIDE} {_WATCHES} meta.session appender.close",
    ),
    "StreamWriter": row(
        Does.NEVER_ASKS,
        waits=f"{_MAKES_LEDGERS} meta.get meta.sync meta.put",
        is_spared=f"{_BESIDE} {_WATCHES} meta.session appender.close",
    ),
    "JobSegment: is filled": row(
        Does.NEVER_ASKS,
        raises="appender.close",
        waits="meta.put",
        is_spared=f"{_FILLS} meta.get meta.sync meta.delete",
    ),
    "JobSegment: stays empty": row(Does.NEVER_ASKS, raises=_DELETES, is_spared=_FILLS),
    "JobSegment: is given up": row(Does.NEVER_ASKS, raises=_DELETES, is_spared=_FILLS),
    "HotConfig": row(
        Does.NEVER_ASKS,
        waits="meta.get watch.wait",
        is_spared="meta.sync meta.create watch.__aenter__",
    ),
    "HotConfig: begins": row(
        Does.NEVER_ASKS,
        waits="meta.get meta.sync watch.__aenter__ watch.wait",
        is_spared="meta.create",
    ),
    "Client.read_range": row(Does.NEVER_ASKS, raises=_READS_A_RANGE, is_spared=_WATCHES),
    "Spark reader": row(Does.NEVER_ASKS, raises=_READS_A_RANGE, is_spared=_WATCHES),
    "Worker": row(Does.NEVER_ASKS, waits=_WORKS, is_spared="meta.delete"),
    "Tracker": row(Does.NEVER_ASKS, waits=_WORKS, is_spared="meta.delete"),
}

# No row, and why there need not be one.
NO_ROW = {
    "BlockingTracker": "the twin of Tracker, for threads",
    "Jobs": "a part of Admin",
    "MetaMoves": "a part of Admin",
    "Opening": "awaiting it is the opening that it stands for",
    "Sessions": "no program gets it",
    "Spark writer": "what it fills is a JobSegment; what failed Spark begins anew",
    "Ticket": "it waits for its writer",
}


def public_kinds() -> set[str]:
    """What the package hands out: classes that ask, and methods that are iterated over."""
    return handle_classes() | {
        f"{home.__name__}.{name}"
        for home in (Client, Admin)
        for name, call in vars(home).items()
        if not name.startswith("_") and inspect.isfunction(call)
        if "AsyncIterator" in str(inspect.signature(call).return_annotation)
    }


def kind_of(way: str) -> str:
    return way.partition(":")[0]

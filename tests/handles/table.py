"""What every kind of handle does about every call that fails: one row for each kind, one word for
each call. A kind or a call without a word fails a test, so the table outlives any driver.

A new kind of handle begins in `LATER`, which says that it has no row yet. Its row comes with a
life in `tests.handles.lives`: how it is opened, what is asked of it, and what it is owed.
"""

from __future__ import annotations

import ast
import enum
import inspect
from pathlib import Path

import dlog
from dlog.admin.admin import Admin
from dlog.client import Client
from tests.handles.faults import CALLS


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
    "Worker": row(
        Does.NEVER_ASKS,
        waits=f"{_FOLLOWS} {_BESIDE} meta.create meta.put",
        is_spared="meta.delete",
    ),
}

# No row yet, and whose it will be: to be emptied.
LATER: dict[str, str] = {
    "Client": "it hands out handles; what it asks is a call of its own",
    "Config": "its calls are complete in themselves",
    "Group": "its calls are complete in themselves",
    "Stream": "its calls are complete in themselves",
    "Tracker": "workers",
}

# No handle: nothing is asked of a store by them.
VALUES = {"IdRun", "Ticket"}


def public_kinds() -> set[str]:
    """What the package hands out: classes of `dlog.aio`, and whatever is iterated over."""
    kinds = {
        name
        for name in dlog.aio.__all__
        if inspect.isclass(getattr(dlog.aio, name)) and name not in VALUES
    }
    for home in (Client, Admin):
        kinds |= {
            f"{home.__name__}.{name}"
            for name, call in vars(home).items()
            if not name.startswith("_") and inspect.isfunction(call)
            if "AsyncIterator" in str(inspect.signature(call).return_annotation)
        }
    if _spark_readers():
        kinds.add("Spark reader")
    return kinds


def _spark_readers() -> list[str]:
    """Without Spark they cannot be imported."""
    room = Path(dlog.__file__).parent / "spark"
    return [
        f"{path.stem}.{each.name}"
        for path in room.glob("*.py")
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name.endswith("Reader")
    ]


def kind_of(way: str) -> str:
    return way.partition(":")[0]

"""dlog: an unbounded, replicated, fenced log.

    import dlog

    with dlog.open_writer("orders", url="file:./data") as log:
        first = log.append(b"paid", key=b"42")

    with dlog.open_reader("orders", url="file:./data", start=first) as log:
        for message in log:
            print(message.id, message.seq, message.key, message.value)

These are the sync names; `dlog.aio` has the same, async. Everything is imported when first used, so
that `import dlog` costs next to nothing. Start reading at `dlog.client`; docs/ARCHITECTURE.md has
the picture.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dlog._version import __version__

if TYPE_CHECKING:
    from dlog import aio
    from dlog.admin.discard import Discarded
    from dlog.admin.publish import Publication
    from dlog.copying.progress import CopyProgress
    from dlog.errors import (
        AlreadyExists,
        AuthError,
        Broken,
        BufferFull,
        ConfigError,
        Conflict,
        Corrupt,
        DlogError,
        Fenced,
        ForkedHandle,
        FormatError,
        Handle,
        LeaseLost,
        Moved,
        NotFound,
        Outcome,
        ReaderClosed,
        Retry,
        Timeout,
        TooLarge,
        Truncated,
        Unavailable,
        Unsupported,
        Winner,
        WriterClosed,
    )
    from dlog.groups.consumer import StopReason
    from dlog.groups.group import GroupDescription, Member, Reset, ShardStanding
    from dlog.groups.leases import Checkpoint
    from dlog.groups.shard_tracker import BlockingTracker, ParentShard, ShardInfo
    from dlog.groups.view import Move, WorkerId
    from dlog.ids import MessageId, Position, Token
    from dlog.options import LogOptions
    from dlog.reader.lag import Lag
    from dlog.reader.message import Message, MessageBatch
    from dlog.reader.ranges import LedgerPart, LedgerRange
    from dlog.reader.resolve import Never, Present, TooLate, Undecided
    from dlog.reason import Reason, ReasonCode
    from dlog.secret import Secret
    from dlog.streams.document import Shard
    from dlog.streams.holding import StreamHoldSummary
    from dlog.streams.places import StreamPosition
    from dlog.streams.reader import FromShard, ShardBatch
    from dlog.streams.stream import ShardSummary, StreamDescription
    from dlog.streams.tails import ShardTail
    from dlog.sync.client import Client, connect, open_reader, open_standby, open_writer
    from dlog.sync.config import Config, HotConfig
    from dlog.sync.copies import copy_log
    from dlog.sync.groups import Group, Worker
    from dlog.sync.jobs import JobSegment
    from dlog.sync.reader import Reader
    from dlog.sync.standby import Standby
    from dlog.sync.streams import Stream, StreamReader, StreamWriter
    from dlog.sync.writer import Writer
    from dlog.writer.filled import FilledSegment
    from dlog.writer.tickets import IdRun, Ticket
    from dlog.writer.times import TakeoverTimes

_HOMES = {
    "dlog.admin.discard": "Discarded",
    "dlog.admin.publish": "Publication",
    "dlog.copying.progress": "CopyProgress",
    "dlog.errors": (
        "AlreadyExists AuthError Broken BufferFull ConfigError Conflict Corrupt DlogError Fenced "
        "ForkedHandle FormatError Handle LeaseLost Moved NotFound Outcome ReaderClosed Retry "
        "Timeout TooLarge Truncated Unavailable Unsupported Winner WriterClosed"
    ),
    "dlog.groups.consumer": "StopReason",
    "dlog.groups.group": "GroupDescription Member Reset ShardStanding",
    "dlog.groups.leases": "Checkpoint",
    "dlog.groups.shard_tracker": "BlockingTracker ParentShard ShardInfo",
    "dlog.groups.view": "Move WorkerId",
    "dlog.ids": "MessageId Position Token",
    "dlog.options": "LogOptions",
    "dlog.reader.lag": "Lag",
    "dlog.reader.message": "Message MessageBatch",
    "dlog.reader.ranges": "LedgerPart LedgerRange",
    "dlog.reader.resolve": "Never Present TooLate Undecided",
    "dlog.reason": "Reason ReasonCode",
    "dlog.secret": "Secret",
    "dlog.streams.document": "Shard",
    "dlog.streams.holding": "StreamHoldSummary",
    "dlog.streams.places": "StreamPosition",
    "dlog.streams.reader": "FromShard ShardBatch",
    "dlog.streams.stream": "ShardSummary StreamDescription",
    "dlog.streams.tails": "ShardTail",
    "dlog.sync.client": "Client connect open_reader open_standby open_writer",
    "dlog.sync.config": "Config HotConfig",
    "dlog.sync.copies": "copy_log",
    "dlog.sync.groups": "Group Worker",
    "dlog.sync.jobs": "JobSegment",
    "dlog.sync.reader": "Reader",
    "dlog.sync.standby": "Standby",
    "dlog.sync.streams": "Stream StreamReader StreamWriter",
    "dlog.sync.writer": "Writer",
    "dlog.writer.filled": "FilledSegment",
    "dlog.writer.tickets": "IdRun Ticket",
    "dlog.writer.times": "TakeoverTimes",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AlreadyExists",
    "AuthError",
    "BlockingTracker",
    "Broken",
    "BufferFull",
    "Checkpoint",
    "Client",
    "Config",
    "ConfigError",
    "Conflict",
    "CopyProgress",
    "Corrupt",
    "Discarded",
    "DlogError",
    "Fenced",
    "FilledSegment",
    "ForkedHandle",
    "FormatError",
    "FromShard",
    "Group",
    "GroupDescription",
    "Handle",
    "HotConfig",
    "IdRun",
    "JobSegment",
    "Lag",
    "LeaseLost",
    "LedgerPart",
    "LedgerRange",
    "LogOptions",
    "Member",
    "Message",
    "MessageBatch",
    "MessageId",
    "Move",
    "Moved",
    "Never",
    "NotFound",
    "Outcome",
    "ParentShard",
    "Position",
    "Present",
    "Publication",
    "Reader",
    "ReaderClosed",
    "Reason",
    "ReasonCode",
    "Reset",
    "Retry",
    "Secret",
    "Shard",
    "ShardBatch",
    "ShardInfo",
    "ShardStanding",
    "ShardSummary",
    "ShardTail",
    "Standby",
    "StopReason",
    "Stream",
    "StreamDescription",
    "StreamHoldSummary",
    "StreamPosition",
    "StreamReader",
    "StreamWriter",
    "TakeoverTimes",
    "Ticket",
    "Timeout",
    "Token",
    "TooLarge",
    "TooLate",
    "Truncated",
    "Unavailable",
    "Undecided",
    "Unsupported",
    "Winner",
    "Worker",
    "WorkerId",
    "Writer",
    "WriterClosed",
    "__version__",
    "aio",
    "connect",
    "copy_log",
    "open_reader",
    "open_standby",
    "open_writer",
]


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("dlog.aio")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dlog' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next look is a plain one
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

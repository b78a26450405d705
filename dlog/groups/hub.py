"""What the shards of one worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dlog.drive import Stores
from dlog.groups.dead_letters import DeadLetters
from dlog.groups.heart import Heart
from dlog.groups.meter import GroupMeter
from dlog.groups.options import WorkerOptions
from dlog.groups.parents import Parents
from dlog.groups.processing import Program
from dlog.options import ReaderOptions
from dlog.reader.reader import Reader


@dataclass(slots=True)
class Hub:
    """Made by the worker."""

    heart: Heart
    stores: Stores
    options: WorkerOptions
    make_program: Callable[[], Program]
    dead_letters: DeadLetters | None
    meter: GroupMeter
    parents: Parents
    add_reader: Callable[[Reader, ReaderOptions], None]
    reports: dict[str, str] = field(default_factory=dict)  # why shards are stopped here

"""What every role of a run has: a client, its journal, its own chance, and the files by which the
run says that it is over."""

from __future__ import annotations

import argparse
import os
import random
from dataclasses import dataclass
from pathlib import Path

from dlog import aio
from dlog.errors import (
    AlreadyExists,
    BufferFull,
    ConfigError,
    Conflict,
    DlogError,
    Fenced,
    LeaseLost,
    NotFound,
    Timeout,
    Truncated,
    Unavailable,
    Unsupported,
    WriterClosed,
)
from dlog.testing.children import pause
from tests.chaos.streams.journal import Journal

STREAM = "clicks"
GROUP = "billing"
JOB = "job"  # how names of groups begin that are bounded jobs
TIMEOUT_MS = 1_500  # of groups
# What a program may be told while others take over, reshard, remove, freeze and are killed. All
# else (`Corrupt`, `Broken`, `FormatError`, …) is a defect, and ends it with a traceback.
EXPECTED = (
    AlreadyExists,
    BufferFull,
    ConfigError,
    Conflict,
    Fenced,
    LeaseLost,
    NotFound,
    Timeout,
    Truncated,
    Unavailable,
    Unsupported,
    WriterClosed,
)


@dataclass
class Scene:
    place: Path
    journal: Journal
    client: aio.Client
    chance: random.Random
    options: argparse.Namespace

    @property
    def stream(self) -> aio.Stream:
        return self.client.stream(STREAM)

    def group_is_there(self, uid: str) -> bool:
        """A worker of it was opened: from then on it holds the stream."""
        return any(
            line["op"] == "joined" and line["uid"] == uid for line in self.journal.others("worker*")
        )

    def is_over(self, phase: str) -> bool:
        """`stop`: no more messages and changes. `end`: everybody has read everything."""
        return (self.place / phase).exists()

    def told(self, at: str, error: BaseException) -> None:
        text = str(error)[:300]
        self.journal.note("error", at=at, error=type(error).__name__, text=text)

    async def pause(self, most_s: float) -> None:
        await pause(most_s * self.chance.random())

    async def uid(self) -> str | None:
        """Of the stream that has the name now."""
        try:
            return (await self.stream.describe()).uid
        except NotFound:
            return None
        except DlogError as error:
            self.told("describe", error)
            return None

    async def only_with_parent(self) -> None:
        """Whoever started us may have been killed; then nobody would end us."""
        parent = os.getppid()
        while os.getppid() == parent:
            await pause(0.5)
        os._exit(3)

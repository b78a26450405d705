"""What a program saw of a log, as JSON lines: one file per process, merged by the host's clock.

A process writes `invoke` before it asks for something and how that ended (`ok`, `refused`,
`unknown`) before it goes on, each as one line in one write, so that a kill at any moment leaves a
history that is true up to that moment. An operation without an end stays open: it may have happened
or not. Messages are known by a name that no other message has, and by a digest of their value; a
history holds no payloads. `checkers` judges what is written here.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dlog.errors import DlogError, FormatError, Outcome
from dlog.ids import MessageId

NONE = -1


class Op(enum.Enum):
    OPEN = "open"  # a writer; ok tells its epoch
    APPEND = "append"  # one message; ok tells its id
    READ = "read"  # a reader, from `seq` on; ok: it reached the tail that it saw when it began
    DELIVER = "deliver"  # one message, by a reader
    CLOSED = "closed"  # a ledger was seen closed, at `entry_id` with `bytes`
    LISTED = "listed"  # the log's segments were seen


class Phase(enum.Enum):
    INVOKE = "invoke"
    OK = "ok"
    REFUSED = "refused"  # certainly did not happen
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment as the list shows it; the last three are -1 while it is not sealed."""

    number: int
    ledger_id: int
    epoch: int
    last_entry: int = NONE
    base_seq: int = NONE
    next_seq: int = NONE

    @property
    def is_sealed(self) -> bool:
        return self.next_seq != NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`number` counts the messages of one writer from 0; numbers that do not apply are -1."""

    op: Op
    phase: Phase
    t_ns: int = 0
    process: str = ""
    handle: str = ""  # the writer or reader, unlike any other of the history
    name: str = ""
    digest: str = ""
    number: int = NONE
    id: MessageId | None = None
    seq: int = NONE
    epoch: int = NONE
    error: str = ""
    winner_epoch: int = NONE
    winner: str = ""
    ledger_id: int = NONE
    entry_id: int = NONE
    bytes: int = NONE
    segments: tuple[Listed, ...] = field(default=())

    def to_line(self) -> str:
        """Only what differs from the defaults, so that a line stays short."""
        told: dict[str, object] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value == each.default:
                continue
            if isinstance(value, enum.Enum):
                value = value.value
            elif each.name == "segments":
                value = [dataclasses.astuple(segment) for segment in value]
            elif isinstance(value, MessageId):
                value = str(value)
            told[each.name] = value
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Event:
        try:
            told = json.loads(line)
            told["op"], told["phase"] = Op(told["op"]), Phase(told["phase"])
            if "id" in told:
                told["id"] = MessageId.parse(told["id"])
            told["segments"] = tuple(Listed(*each) for each in told.get("segments", ()))
            return cls(**told)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"no line of a history: {line[:200]!r} ({error})") from None

    def __str__(self) -> str:
        return self.to_line()


class Recorder:
    """Writes one process's part of a history. Usable from any thread: each line is one write."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, event: Event) -> None:
        stamped = dataclasses.replace(event, t_ns=time.monotonic_ns(), process=self.process)
        line = (stamped.to_line() + "\n").encode()
        if os.write(self._fd, line) != len(line):
            raise OSError("a line of the history was cut")

    def end(self, began: Event, error: DlogError) -> None:
        """How an operation failed: as honestly as the error says it."""
        refused = error.outcome is Outcome.NOT_HAPPENED
        winner = error.winner
        self.note(
            dataclasses.replace(
                began,
                phase=Phase.REFUSED if refused else Phase.UNKNOWN,
                error=type(error).__name__,
                winner_epoch=NONE if winner is None else winner.epoch,
                winner="" if winner is None else winner.name,
            )
        )

    def close(self) -> None:
        os.close(self._fd)


def digest_of(value: bytes | None) -> str:
    """64 bits, enough to tell the messages of a test apart."""
    if value is None:
        return "tombstone"
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def load(paths: Iterable[Path]) -> list[Event]:
    """The merged history, in the order of time. A last line that a kill cut short is left out."""
    events: list[Event] = []
    for path in paths:
        text = path.read_text()
        whole, _, _ = text.rpartition("\n")
        events += [Event.from_line(line) for line in whole.splitlines()]
    return sorted(events, key=lambda event: event.t_ns)

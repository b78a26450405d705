"""What each process of a run asked for and was told: JSON lines, one file per process.

A line is written in one write, before the process goes on, so that a kill leaves a history that is
true up to that moment; a last line that was cut is left out. `t` is the host's monotonic clock, the
same in all processes. Messages are written as `producer:number`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Name = tuple[int, int]  # of a message: its producer and its number


class Journal:
    def __init__(self, directory: Path, role: str, launch: int) -> None:
        self.role = role
        self._directory = directory
        path = directory / f"{role}.{launch}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, op: str, **fields: Any) -> None:
        line = {"t": time.monotonic_ns(), "op": op, **fields}
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def before(self) -> list[Line]:
        """What this role wrote in all its lives, this one included, oldest first."""
        return list(lines_of(self._directory, self.role))

    def others(self, roles: str) -> list[Line]:
        """What others wrote, as `worker*`."""
        return list(lines_of(self._directory, roles))


def lines_of(directory: Path, role: str = "*") -> Iterator[Line]:
    """In the order in which they were written; `role` and `launch` are added to each."""
    found: list[Line] = []
    for path in directory.glob(f"{role}.*.jsonl"):
        name, launch, _ = path.name.rsplit(".", 2)
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        found += parsed(whole, name, int(launch))
    yield from sorted(found, key=lambda line: (line["t"], line["launch"]))


def parsed(whole: bytes, role: str, launch: int) -> list[Line]:
    """Lines of one file, of which none is cut."""
    lines = whole.split(b"\n") if whole else []
    return [{**json.loads(raw), "role": role, "launch": launch} for raw in lines]


def value_of(uid: str, name: Name) -> bytes:
    """Tells which message of which stream it is; the rest makes segments fill."""
    producer, number = name
    return b"%s %d %d " % (uid.encode(), producer, number) + b"." * (number * 7 % 90)


def read_value(value: bytes | None) -> tuple[str, Name]:
    assert value is not None
    uid, producer, number, _ = value.split(b" ", 3)
    name = int(producer), int(number)
    if value != value_of(uid.decode(), name):
        raise AssertionError(f"the value of {name} is damaged: {value[:80]!r}")
    return uid.decode(), name


def key_of(name: Name) -> bytes | None:
    """Of few keys each message has one, for ever; one message in 64 has none."""
    producer, number = name
    if number % 64 == 63:
        return None
    return b"key %d" % ((number * 29 + producer * 13 + number // 40) % 40)


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Sorted numbers, as first and last of each run."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] + 1 == number:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def unranged(told: Iterable[Iterable[int]]) -> Iterator[int]:
    for first, last in told:
        yield from range(first, last + 1)


def packed(names: Iterable[Name]) -> str:
    return " ".join(f"{producer}:{number}" for producer, number in names)


def unpacked(text: str) -> list[Name]:
    pairs = (each.split(":") for each in text.split())
    return [(int(producer), int(number)) for producer, number in pairs]

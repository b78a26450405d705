"""Shards are split, merged and pinned at random under load, while the writer, the changer and the
reader are killed at random and begin again. Counted: messages that are lost, that are there twice,
and keys out of order.

    python -m benchmarks.streams stream_changes stream_changes_bookies

Each role is a process of its own (`python -m benchmarks.streams.changing ROLE …`) and keeps what it
has to remember in a file, as a program would that must go on after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import dlog
from benchmarks.common import Finding, Setting
from dlog.errors import AlreadyExists, DlogError
from dlog.streams.places import StreamPosition
from dlog.testing.cluster import Cluster

STREAM = "changing"
KEYS = [b"key-%03d" % number for number in range(200)]
PRODUCERS = (1, 2)
AHEAD = 400  # messages on their way
OPEN_MAX = 12  # shards
PLACE_EVERY = 500  # messages: so often a reader notes where it is
CHANGES = 120
CHANGES_S_MAX = 600.0
ONE_COPY = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "unsafe_single_copy": True}


# --- the roles, each a process


async def write(url: str, directory: Path) -> None:
    """Sends two producers' messages in turn, from the first on that is not acknowledged; ends
    when it is told to, with everything acknowledged."""
    progress = directory / "acked"
    acked = int(progress.read_text() or "0") if progress.exists() else 0
    number, pending = acked, []
    stop = directory / "stop-writer"
    async with dlog.aio.connect(url) as client:
        stream = client.stream(STREAM)
        while True:
            try:
                async with stream.open_writer() as writer:
                    number, pending = acked, []
                    while not stop.exists() or pending:
                        while len(pending) < AHEAD and not stop.exists():
                            pending.append(await _submit(writer, number))
                            number += 1
                        await _acknowledged(pending[0])
                        del pending[0]
                        acked += 1
                        if acked % 50 == 0 or not pending:
                            _keep(progress, str(acked))
                    _keep(progress, str(acked))
                    return
            except DlogError as error:
                print(f"writer: {error!r}", file=sys.stderr)
                await asyncio.sleep(0.2)


async def _submit(writer: object, number: int) -> object:
    """Message `number` of all: each producer has every second one."""
    producer, own = PRODUCERS[number % 2], number // 2
    key = KEYS[random.Random(number).randrange(len(KEYS))]
    try:
        return await writer.submit(  # type: ignore[attr-defined]
            b"%d:%d" % (producer, own), key=key, producer=(producer, own)
        )
    except AlreadyExists:
        return None


async def _acknowledged(ticket: object) -> None:
    if ticket is not None:
        with contextlib.suppress(AlreadyExists):
            await ticket  # type: ignore[misc]


async def change(url: str, directory: Path) -> None:
    chance = random.Random(os.getpid())
    async with dlog.aio.connect(url) as client:
        stream = client.stream(STREAM)
        while not (directory / "stop-changer").exists():
            shards = sorted(
                (s for s in await stream.shards() if s.is_open), key=lambda shard: shard.range
            )
            what = "nothing"
            try:
                if chance.random() < 0.2:
                    what = "pin"
                    key = chance.choice(KEYS[:5])
                    await stream.pin(key, chance.choice(shards).number)
                elif len(shards) >= OPEN_MAX or (len(shards) > 1 and chance.random() < 0.5):
                    what = "merge"
                    at = chance.randrange(len(shards) - 1)
                    await stream.merge(shards[at].number, shards[at + 1].number)
                else:
                    what = "split"
                    await stream.split(chance.choice(shards).number)
            except DlogError as error:
                print(f"changer: {what}: {error!r}", file=sys.stderr)
            else:
                with (directory / "changes").open("a") as told:
                    told.write(what + "\n")
            await asyncio.sleep(chance.random() * 0.4)


async def read(url: str, directory: Path) -> None:
    """Follows, and notes its place behind every few messages; what is behind the last place is
    read again after a crash."""
    file = directory / "read"
    lines = file.read_text().splitlines() if file.exists() else []
    while lines and not lines[-1].startswith("{"):
        lines.pop()
    start: object = StreamPosition.parse(lines[-1]) if lines else "earliest"
    with file.open("w") as told:
        told.write("".join(line + "\n" for line in lines))
        async with dlog.aio.connect(url) as client:
            async with client.stream(STREAM).open_reader(follow=True, start=start) as reader:
                behind = 0
                while True:
                    messages = await reader.read(500, timeout=1.0)
                    for shard, message in messages:
                        told.write(f"{message.value.decode()} {message.key.decode()} {shard}\n")
                    behind += len(messages)
                    if behind >= PLACE_EVERY or (behind and not messages):
                        told.write(reader.position.to_text() + "\n")
                        behind = 0
                    told.flush()


def _keep(file: Path, text: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


# --- the run


@dataclass
class Outcome:
    changes: Counter[str]
    kills: Counter[str]
    acked: int
    lost: int
    doubled: int
    disordered: int
    followed_lost: int
    seconds: float

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.followed_lost)


class Roles:
    """The processes; each is begun again when it is killed."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()

    def start(self, role: str) -> None:
        command = [sys.executable, "-m", "benchmarks.streams.changing", role, self._url]
        log = (self._directory / f"{role}.log").open("ab")
        self._running[role] = subprocess.Popen(
            [*command, str(self._directory)], stdout=log, stderr=log
        )

    def kill(self, role: str) -> None:
        process = self._running[role]
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            self.kills[role] += 1
        process.wait()
        self.start(role)

    def mind(self) -> None:
        for role, process in self._running.items():
            if process.poll() not in (None, 0):
                self.start(role)

    def wait(self, role: str, timeout_s: float) -> None:
        self._running[role].wait(timeout_s)

    def end(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def run(url: str, directory: Path, changes: int, options: dict[str, object]) -> Outcome:
    began = time.monotonic()
    asyncio.run(_make(url, options))
    roles = Roles(url, directory)
    chance = random.Random(7)
    due = {role: began + 3 + 3 * chance.random() for role in ("write", "change", "read")}
    try:
        for role in due:
            roles.start(role)
        while _lines(directory / "changes") < changes:
            if time.monotonic() - began > CHANGES_S_MAX:
                raise TimeoutError(f"only {_lines(directory / 'changes')} changes in time")
            time.sleep(0.1)
            roles.mind()
            for role, at_s in due.items():
                if time.monotonic() >= at_s:
                    roles.kill(role)
                    due[role] = time.monotonic() + 1 + 4 * chance.random()
        (directory / "stop-changer").touch()
        roles.wait("change", 60)
        (directory / "stop-writer").touch()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                roles.wait("write", 5)
                roles.mind()
                if (directory / "stop-writer").exists() and roles._running["write"].poll() == 0:
                    break
        acked = int((directory / "acked").read_text())
        there = asyncio.run(_read_all(url))
        _until_followed(directory / "read", len(there))
    finally:
        roles.end()
    followed = _followed(directory / "read")
    wanted = {(PRODUCERS[n % 2], n // 2) for n in range(acked)}
    seen = Counter((producer, number) for producer, number, _ in there)
    return Outcome(
        Counter((directory / "changes").read_text().split()),
        roles.kills,
        acked,
        len(wanted - set(seen)),
        sum(count - 1 for count in seen.values()),
        _disordered(there) + _disordered(followed),
        len(set(seen) - {(producer, number) for producer, number, _ in followed}),
        time.monotonic() - began,
    )


def _disordered(messages: list[tuple[int, int, str]]) -> int:
    last: dict[tuple[int, str], int] = {}
    wrong = 0
    for producer, number, key in messages:
        if number <= last.get((producer, key), -1):
            wrong += 1
        last[producer, key] = number
    return wrong


def _followed(file: Path) -> list[tuple[int, int, str]]:
    lines = file.read_text().splitlines()
    return [_told(line) for line in lines if line and not line.startswith("{")]


def _told(line: str) -> tuple[int, int, str]:
    value, key, _ = line.split()
    producer, _, number = value.partition(":")
    return int(producer), int(number), key


def _until_followed(file: Path, count: int) -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        lines = file.read_text().splitlines()
        if sum(1 for line in lines if not line.startswith("{")) >= count:
            return
        time.sleep(0.5)


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


async def _make(url: str, options: dict[str, object]) -> None:
    async with dlog.aio.connect(url) as client:
        await client.create_stream(STREAM, shards=4, **options)


async def _read_all(url: str) -> list[tuple[int, int, str]]:
    found = []
    async with dlog.aio.connect(url) as client:
        async with client.stream(STREAM).open_reader() as reader:
            async for _, message in reader:
                producer, _, number = message.value.decode().partition(":")
                found.append((int(producer), int(number), message.key.decode()))
    return found


# --- the rows


def stream_changes(setting: Setting) -> list[Finding]:
    with setting.scratch() as directory:
        url = f"file:{directory / 'logs'}"
        return _row(setting, "stream_changes", url, directory, "embedded", ONE_COPY)


def stream_changes_bookies(setting: Setting) -> list[Finding]:
    made = Cluster(bookies=3, quick=setting.quick)
    with setting.scratch() as directory, made as cluster:
        where = "three bookies"
        return _row(setting, "stream_changes_bookies", cluster.url, directory, where, {})


def _row(
    setting: Setting,
    row: str,
    url: str,
    directory: Path,
    where: str,
    options: dict[str, object],
) -> list[Finding]:
    outcome = run(url, directory, setting.pick(CHANGES, 6), options)
    kills = ", ".join(f"{count} of {role}" for role, count in sorted(outcome.kills.items()))
    changes = ", ".join(f"{count} {what}s" for what, count in sorted(outcome.changes.items()))
    return [
        Finding(
            row,
            f"{changes} under load, {where}; kills: {kills or 'none'}",
            f"{outcome.acked:,} messages: {outcome.lost} lost, {outcome.doubled} doubled, "
            f"{outcome.disordered} out of order, {outcome.followed_lost} not followed",
            "0 violations, 0 lost, 0 doubled over >= 100 changes",
            outcome.is_clean and sum(outcome.changes.values()) >= setting.pick(100, 1),
            f"{outcome.seconds:.0f} s",
            {"acked": outcome.acked, "changes": sum(outcome.changes.values())},
        )
    ]


if __name__ == "__main__":
    role, url, directory = sys.argv[1:]
    asyncio.run({"write": write, "change": change, "read": read}[role](url, Path(directory)))

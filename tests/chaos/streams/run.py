"""One run: everybody at work on one stream while processes are killed and frozen; then all go on in
peace until everything is consumed; then the histories are judged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlog import aio
from dlog.admin.fsck.report import Kind, Report
from dlog.errors import Conflict, DlogError, NotFound
from dlog.testing.children import Children, pause
from tests.chaos.streams.crowd import MODULE, Crowd
from tests.chaos.streams.journal import Line, parsed, read_value
from tests.chaos.streams.judge import Final, Judge, Story
from tests.chaos.streams.scene import GROUP, STREAM, TIMEOUT_MS
from tests.forks import Forks
from tests.pace import Deadline
from tests.tidy.source import ROOT

START_S = 60.0
STOP_S = 60.0  # until producers and the changer are done, when nothing is in their way any more
DRAIN_S = 60.0
POLL_S = 0.25

HarmServers = Callable[[random.Random], Coroutine[Any, Any, None]]
ORPHANS = {"orphan", "maybe_in_use", "tail_unsealed", "waits_for_deletion", "ledger_not_closed"}


@dataclass
class Outcome:
    seed: str
    seconds: float
    acked: int = 0
    incarnations: int = 0
    changes: int = 0
    told: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    ledgers_left: int = 0
    phases: dict[str, float] = field(default_factory=dict)  # seconds

    def __str__(self) -> str:
        verdict = "ok" if not self.violations else f"{len(self.violations)} VIOLATIONS"
        return (
            f"{self.seed}: {self.acked} acknowledged in {self.incarnations} streams, "
            f"{self.changes} changes, {self.told.get('kills', 0)} kills, "
            f"{self.told.get('deaths', 0)} deaths, {self.told.get('freezes', 0)} freezes, "
            f"{self.ledgers_left} ledgers left, {self.seconds:.0f} s {self.phases}: {verdict}"
        )


class Histories:
    """Of a run, read as they grow."""

    def __init__(self, directory: Path) -> None:
        self.story = Story()
        self._directory = directory
        self._read: dict[Path, int] = {}

    def read(self) -> Story:
        fresh: list[Line] = []
        for path in self._directory.glob("*.jsonl"):
            role, launch, _ = path.name.rsplit(".", 2)
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if not whole:
                continue
            self._read[path] = self._read.get(path, 0) + len(whole) + 1
            fresh += parsed(whole, role, int(launch))
        self.story.take(sorted(fresh, key=lambda line: line["t"]))
        return self.story


def options_of(seed: str, **given: object) -> dict[str, object]:
    """What a run is like, by its seed."""
    chance = random.Random(f"{seed}/options")
    return {
        "remakes": int(chance.random() < 0.5),
        "truncates": int(chance.random() < 0.75),
        "change_s": chance.choice((0.3, 0.7, 1.5)),
        "idle_s": chance.choice((0.02, 0.1, 0.2)),
        "leases": chance.choice(("nodes", "nodes", "logs")),
        "retention_bytes": chance.choice((0, 0, 30_000)),
        "burst": chance.choice((300, 800, 2_000)),
        **given,
    }


class Run:
    def __init__(self, place: Path, url: str, seed: str, **options: object) -> None:
        self.place = place
        self.url = url
        self.seed = seed
        self.options = options_of(seed, **options)
        self.chance = random.Random(f"{seed}/run")
        self.histories = Histories(place / "histories")
        self.outcome = Outcome(seed, 0.0)
        (place / "histories").mkdir(parents=True)

    async def run(self, seconds: float, harm_servers: HarmServers | None = None) -> Outcome:
        began_s = time.monotonic()
        errors = self.place / "errors"
        with (
            Forks(MODULE) as forks,
            Children(errors, python_path=ROOT, spawn=forks.spawn) as children,
        ):
            crowd = Crowd(children, self.place, self.url, self.seed, self.options)
            try:
                crowd.add("changer")
                await self._until(crowd, self._is_made, START_S, "made")
                self._start(crowd)
                await self._until(crowd, self._is_at_work, START_S, "begin")
                crowd.is_calm = False
                async with self._harming(harm_servers):
                    await crowd.harm(seconds)
                final = await self._bring_to_an_end(crowd)
            except Stuck as stuck:
                self.outcome.violations.append(f"stuck: {stuck}")
                final = None
            self.outcome.told = dict(crowd.told)
            self.outcome.violations += crowd.broke
        story = self.histories.read()
        if final is not None:
            self.outcome.violations += Judge(
                story, final, bool(self.options["retention_bytes"])
            ).judge()
            await self._clean_up()
        self._count(story)
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    def _start(self, crowd: Crowd) -> None:
        crowd.add("writer1", "1", "2")
        crowd.add("writer2", "3")
        for number in range(self.chance.randint(1, 3)):
            crowd.add(f"worker{number + 1}")
        crowd.add("follower")
        if self.chance.random() < 0.5:
            crowd.add("jobs")

    def _is_made(self) -> bool:
        return any(line["op"] == "changed" for line in self.histories.read().lines)

    def _is_at_work(self) -> bool:
        story = self.histories.read()
        return bool(story.acked and story.done and story.read)

    @contextlib.asynccontextmanager
    async def _harming(self, harm: HarmServers | None) -> AsyncIterator[None]:
        """`harm` of servers heals what it broke when it is cancelled."""
        task = None if harm is None else asyncio.create_task(harm(self.chance))
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    # --- to an end

    async def _bring_to_an_end(self, crowd: Crowd) -> Final:
        (self.place / "stop").touch()
        makers = ("writer", "changer", "jobs")
        await self._until(crowd, lambda: crowd.is_done(*makers), STOP_S, "makers")
        async with aio.connect(self.url) as client:
            final = await read_all(client)
            there = {name for _, _, _, name in final.messages}
            acked = self.histories.read().acked[final.uid]

            def missing() -> tuple[int, int]:
                story = self.histories.read()
                done = story.done_names[GROUP, final.uid]
                read = story.read_names[final.uid]
                return len(acked.keys() - done), len(there - read)

            try:
                await self._until(crowd, lambda: missing() == (0, 0), DRAIN_S, "consumers")
            except Stuck as stuck:
                why = await self._why(client)
                raise Stuck(f"{stuck}: (group, follower) lack {missing()}; {why}") from None
        (self.place / "end").touch()
        await self._until(crowd, lambda: crowd.is_done(""), STOP_S, "end")
        return final

    async def _until(
        self, crowd: Crowd, is_so: Callable[[], bool], seconds: float, what: str
    ) -> None:
        deadline, began_s = Deadline(seconds), time.monotonic()
        while not is_so():
            self.outcome.phases[what] = round(time.monotonic() - began_s, 1)
            crowd.look_after()
            if crowd.broke:
                raise Stuck(f"somebody broke while waiting for {what}")
            if deadline.passed():
                at_work = [role for role in crowd.running if not crowd.is_done(role)]
                raise Stuck(f"{what}, of {at_work}, after {seconds} s")
            await pause(POLL_S)

    async def _why(self, client: aio.Client) -> str:
        try:
            told = await client.group(GROUP, STREAM).describe()
        except DlogError as error:
            return f"the group cannot be described: {error!r}"
        return f"{told.members}; {told.shards}"

    # --- behind it

    async def _clean_up(self) -> None:
        """All is whole, and nothing is left when the stream is removed."""
        say = self.outcome.violations.append
        async with aio.connect(self.url) as client:
            uid = (await client.stream(STREAM).describe()).uid
            groups = [client.group(name, STREAM) for name, _ in await client.groups(STREAM)]
            old = [each for each in groups if not await self._is_of(each, uid)]
            for group in old:
                await self._remove_group(group)
            for finding in (await client.admin.fsck(grace_s=0)).findings:
                if finding.is_damage and finding.kind.value not in ORPHANS:
                    say(f"fsck: {finding}")
            for group in groups:
                if group not in old:
                    await self._remove_group(group)
            await client.stream(STREAM).remove()
            left = await left_behind(client)
            if left:
                say(f"left behind: {left[:20]}")
            report: Report = await client.admin.fsck(grace_s=0)
            await client.admin.repair(report)
            report = await client.admin.fsck(grace_s=0)
            for finding in report.findings:
                # Made by a writer that was killed, or fenced, before it could list it: of a log
                # that is gone nobody can tell whether another root has it.
                if finding.kind is Kind.UNKNOWN_LEDGER:
                    self.outcome.ledgers_left += 1
                else:
                    say(f"fsck, when all was removed: {finding}")

    async def _is_of(self, group: Any, uid: str) -> bool:
        """A group without a charter is of no stream: who made or removed it was killed half way."""
        try:
            return bool((await group.charter()).stream_uid == uid)
        except NotFound:
            return False

    async def _remove_group(self, group: Any) -> None:
        """One whose last worker was killed has to see first that it is gone."""
        deadline = Deadline(4 * TIMEOUT_MS / 1000 + 10)
        while True:
            try:
                await group.remove()
                return
            except Conflict as error:
                if deadline.passed():
                    self.outcome.violations.append(f"{group} cannot be removed: {error!r}")
                    return
                await pause(POLL_S)

    def _count(self, story: Story) -> None:
        self.outcome.acked = sum(len(each) for each in story.acked.values())
        self.outcome.incarnations = len(story.acked)
        self.outcome.changes = sum(line["op"] == "changed" for line in story.lines)


class Stuck(Exception):
    """Something did not come to be in time."""


async def read_all(client: aio.Client) -> Final:
    stream = client.stream(STREAM)
    messages = []
    async with stream.open_reader() as reader:
        async for shard, message in reader:
            uid, name = read_value(message.value)
            messages.append((shard, message.seq, uid, name))
        uid = reader.position.stream_uid
    told = await stream.describe()
    assert told.uid == uid
    return Final(uid, messages, {shard.number: shard.head_seq for shard in told.shards})


async def left_behind(client: aio.Client) -> list[str]:
    """Logs, and nodes of streams, of what holds them and of groups."""
    stores = await client._stores(False)
    layout = stores.layout
    found = [f"log {each.name}" for each in await client.admin.list()]
    for root in (layout.streams, layout.stream_holders, layout.groups):
        found += await nodes_below(stores.meta, root)
    return found


async def nodes_below(meta: Any, path: str) -> list[str]:
    try:
        names = await meta.children(path)
    except DlogError:
        return []
    found: list[str] = []
    for name in names:
        found += [f"{path}/{name}", *(await nodes_below(meta, f"{path}/{name}"))]
    return found

"""Real workers in virtual time, over simulated bookies and metadata: processes that are killed and
frozen in the middle of their work, and replies that get lost. What the program's effects are
guarded by a token for comes once, and nothing is left out."""

from __future__ import annotations

import contextlib
from typing import Any

from dlog import uri
from dlog.client import Client
from dlog.errors import DlogError, LeaseLost
from dlog.testing.sim import Simulation, simulate

MESSAGES, SHARDS = 60, 3
WAYS: dict[str, Any] = {"heart": "loop", "threads": 0, "timeout_ms": 500, "flush_ms": 50}


class Guarded:
    """What a database would be: it refuses smaller tokens, and knows how far it is."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.next_seq: dict[str, int] = {}
        self.values: list[bytes] = []
        self.refused = 0

    def begin(self, log: str, token: int) -> None:
        assert token not in (0, self.tokens.get(log)), "I20: a token is given twice"
        if token < self.tokens.get(log, 0):
            raise LeaseLost("somebody else was here")
        self.tokens[log] = token

    def add(self, log: str, token: int, batch: Any) -> None:
        if token < self.tokens.get(log, 0):
            self.refused += 1
            raise LeaseLost("somebody else was here")
        for message in batch.to_pylist():
            at = self.next_seq.get(log, 0)
            assert message.seq <= at, "nothing is left out"
            if message.seq == at:
                self.values.append(message.value)
                self.next_seq[log] = at + 1


class Program:
    def __init__(self, sim: Simulation, database: Guarded) -> None:
        self._sim = sim
        self._database = database

    async def initialize(self, shard: Any) -> None:
        self._shard = shard
        self._database.begin(shard.log, shard.token)

    async def process(self, batch: Any, tracker: Any) -> None:
        await self._sim.pass_time(0.02)
        self._database.add(self._shard.log, self._shard.token, batch)
        tracker.checkpoint()


async def _work(sim: Simulation, database: Guarded, seconds: float) -> None:
    """As long as it is told, and again when it fails."""
    async with Client(uri.parse(sim.url)) as client:
        while True:
            with contextlib.suppress(DlogError):
                async with client.open_worker("g", "s", lambda: Program(sim, database), **WAYS):
                    await sim.pass_time(seconds)
                return


@simulate(histories=3, troubles="bookies")
async def test_effects_come_once_whatever_becomes_of_workers(sim: Simulation) -> None:
    """LH-01, LH-02, LH-12, LH-14, LH-52, I20, I22."""
    client = sim.connect()
    database = Guarded()
    with contextlib.suppress(DlogError):
        await client.create_stream("s", shards=SHARDS)
    sent: list[bytes] = []

    async def write() -> None:
        async with Client(uri.parse(sim.url)) as own:
            async with own.stream("s").open_writer() as writer:
                for number in range(MESSAGES):
                    await writer.append(b"%d" % number, key=b"%d" % (number % 9))
                    sent.append(b"%d" % number)

    sim.heal()
    await sim.start(write(), name="writer").result()
    workers = [sim.start(_work(sim, database, 6.0), name=f"w{n}") for n in range(2)]
    await sim.pass_time(0.3 + sim.chance.random())
    workers[0].kill()
    await sim.pass_time(0.3 + sim.chance.random())
    workers[1].freeze(1.0)
    third = sim.start(_work(sim, database, 4.0), name="w2")
    await third.result()
    for _ in range(400):
        if len(database.values) >= MESSAGES:
            break
        await sim.pass_time(0.1)
    assert sorted(database.values) == sorted(sent)
    await workers[1].result()

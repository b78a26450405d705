"""The real writers and readers of streams in virtual time, over simulated bookies: processes that
are killed, shards that change under them, takeovers of single shards, metadata that gives no
answer. Each key stays in order, and nothing is lost or there twice."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from dlog import uri
from dlog.client import Client
from dlog.errors import AlreadyExists, DlogError, Unavailable
from dlog.testing.sim import Simulation, simulate

KEYS = [b"k%d" % number for number in range(6)]
MESSAGES = 60
PRODUCER = 7


class Sender:
    """What outlives its process: which messages are acknowledged."""

    def __init__(self, sim: Simulation) -> None:
        self.acked: set[int] = set()
        self._sim = sim

    async def send(self, url: str, messages: int) -> None:
        async with Client(uri.parse(url)) as client:
            while len(self.acked) < messages:
                with contextlib.suppress(DlogError):
                    await self._send_rest(client, messages)
                await self._sim.pass_time(0.05)

    async def _send_rest(self, client: Client, messages: int) -> None:
        first = next(n for n in range(messages + 1) if n not in self.acked)
        async with client.stream("s").open_writer() as writer:
            tickets = []
            for number in range(first, messages):
                key = KEYS[number * 7 % len(KEYS)]
                try:
                    sending = writer.submit(b"%d" % number, key=key, producer=(PRODUCER, number))
                    tickets.append((number, await sending))
                except AlreadyExists:
                    self.acked.add(number)
                await self._sim.pass_time(0.001)
            for number, ticket in tickets:
                with contextlib.suppress(AlreadyExists):
                    await ticket
                self.acked.add(number)


async def _change(sim: Simulation, client: Client) -> None:
    stream = client.stream("s")
    chance = sim.chance
    with contextlib.suppress(DlogError):
        shards = sorted((s for s in await stream.shards() if s.is_open), key=lambda s: s.range)
        at = int(chance.random() * len(shards))
        if chance.random() < 0.3:
            await stream.pin(KEYS[0], shards[at].number)
        elif len(shards) > 1 and chance.random() < 0.5:
            at = min(at, len(shards) - 2)
            await stream.merge(shards[at].number, shards[at + 1].number)
        else:
            await stream.split(shards[at].number)


async def _check(sim: Simulation, client: Client) -> None:
    numbers: dict[bytes | None, list[int]] = defaultdict(list)
    async with client.stream("s").open_reader() as reader:
        async for _, message in reader:
            assert message.value is not None
            numbers[message.key].append(int(message.value))
    for key, found in numbers.items():
        assert found == sorted(set(found)), f"{key!r} came as {found}"
    there = sorted(number for found in numbers.values() for number in found)
    assert there == list(range(MESSAGES)), "each message once"


@simulate(histories=12)
async def test_shards_change_under_writers_that_are_killed(sim: Simulation) -> None:
    client = sim.connect()
    await client.create_stream("s", shards=2)
    sender = Sender(sim)
    working = sim.start(sender.send(sim.url, MESSAGES), name="sender")
    for turn in range(4):
        await _change(sim, client)
        await sim.trouble()
        if turn == 1:
            working.kill()
            working = sim.start(sender.send(sim.url, MESSAGES), name="sender'")
    sim.heal()
    await working.result()
    await _check(sim, client)


@simulate(histories=8, troubles="all")
async def test_shards_change_while_metadata_gives_no_answer(sim: Simulation) -> None:
    client = sim.connect()
    await _create(sim, client)
    sender = Sender(sim)
    working = sim.start(sender.send(sim.url, MESSAGES), name="sender")
    for _ in range(3):
        await _change(sim, client)
        await sim.trouble()
    sim.heal()
    await working.result()
    await _check(sim, client)


async def _create(sim: Simulation, client: Client) -> None:
    while True:
        try:
            await client.create_stream("s", shards=3)
            return
        except AlreadyExists:
            return
        except DlogError:
            await sim.pass_time(0.1)


@simulate(histories=8)
async def test_a_reader_follows_over_changes(sim: Simulation) -> None:
    client = sim.connect()
    await client.create_stream("s", shards=2)
    sender = Sender(sim)
    working = sim.start(sender.send(sim.url, MESSAGES), name="sender")
    got: dict[bytes | None, list[int]] = defaultdict(list)
    reader = await client.stream("s").open_reader(follow=True)
    try:
        for _ in range(3):
            await _change(sim, client)
            await sim.trouble()
        sim.heal()
        await working.result()
        while sum(map(len, got.values())) < MESSAGES:
            try:
                messages = await reader.read(timeout=5.0)
            except Unavailable:  # of a single copy: who follows comes back where it was
                position = reader.position
                await reader.close()
                reader = await client.stream("s").open_reader(follow=True, start=position)
                continue
            for _, message in messages:
                assert message.value is not None
                got[message.key].append(int(message.value))
        for key, found in got.items():
            assert found == sorted(set(found)), f"{key!r} came as {found}"
    finally:
        await reader.close()

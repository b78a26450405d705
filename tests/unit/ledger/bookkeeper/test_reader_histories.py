"""Readers beside a writer, under faults, for thousands of virtual seconds: the real drivers on a
simulated network. What was never published is never handed out, what is handed out is right, every
call ends, no news is lost, and once the faults end everything can be read."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from dlog.errors import Corrupt, NotFound, Timeout, Unavailable
from dlog.ledger.bookkeeper.core.tail_read import POLL_MS
from dlog.ledger.bookkeeper.reader import BookKeeperReader
from dlog.wire.bookie_digest import DigestType
from tests.sim.reading_world import Weather, World
from tests.sim.virtual_loop import pass_time, run_virtually

HISTORIES = 150
CALL_ENDS_S = 45.0  # connect, ask, look at metadata, ask again: each with its own bound
HEALED_S = 60.0
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (4, 4, 3), (2, 2, 1), (1, 1, 1))


class Follower:
    """One reader and what it has seen; every answer is judged."""

    def __init__(self, world: World, reader: BookKeeperReader, facts: Counter[str]) -> None:
        self.world = world
        self.reader = reader
        self.facts = facts
        self.readable = -1
        self.next_entry = 0

    async def act(self, chosen: float, timeout_ms: float) -> None:
        world = self.world
        begun_s, lowest = world.loop.time(), world.visible
        alone = self.reader.answers_without_metadata
        try:
            if self.next_entry <= self.readable and chosen < 0.6:
                await self.read(chosen)
            elif chosen < 0.8:
                self.judge(await self.reader.wait_past(self.readable, timeout_ms), -1)
            else:
                answer = await self.reader.last_readable()
                with_metadata = alone == self.reader.answers_without_metadata
                self.judge(answer, min(lowest, world.visible) if with_metadata else -1)
        except (Unavailable, Timeout):
            self.facts["unavailable"] += 1
        except Corrupt:
            assert world.weather.harmed, "nothing was harmed"
            self.facts["corrupt"] += 1
        except NotFound:
            assert world.nodes.is_deleted
            self.facts["not found"] += 1
        assert world.loop.time() - begun_s <= CALL_ENDS_S + timeout_ms / 1000

    def judge(self, answer: int, at_least: int) -> None:
        if self.world.nodes.is_deleted and answer == -1:
            return
        assert answer <= self.world.may_be_read, "more than was ever published"
        assert answer >= at_least, "less than everybody could see"
        assert answer >= self.readable, "an answer fell"
        self.readable = answer

    async def read(self, chosen: float) -> None:
        first = self.next_entry if chosen < 0.5 else int(self.next_entry * chosen)
        run = await self.reader.read(first, self.readable, bytes_max=int(1 + 200 * chosen))
        assert run, "a read returns at least one entry"
        assert first + len(run) - 1 <= self.readable
        assert [bytes(each) for each in run] == self.world.payloads[first : first + len(run)]
        if first == self.next_entry:
            self.next_entry += len(run)


def drawn_weather(draw: random.Random) -> Weather:
    def rate(most: float) -> float:
        return draw.random() * most if draw.random() < 0.3 else 0.0

    return Weather(
        slow=rate(0.1),
        lost=rate(0.1),
        cut=rate(0.2),
        busy=rate(0.2),
        harmed=rate(0.2),
        lag=rate(0.5),
        meta_away=rate(0.3),
        watch_lost=rate(1.0),
    )


async def live(seed: int, facts: Counter[str]) -> None:
    draw = random.Random(seed)
    ensemble, write_quorum, ack_quorum = draw.choice(QUORUMS)
    world = World(
        seed,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        weather=drawn_weather(draw),
        digest=draw.choice([DigestType.CRC32C] * 3 + [DigestType.HMAC, DigestType.CRC32]),
    )
    for bookie in world.bookies.values():
        bookie.batches = draw.random() < 0.9
    followers = [Follower(world, world.reader(), facts) for _ in range(draw.choice((1, 2)))]
    ending = asyncio.Event()

    async def follow(follower: Follower) -> None:
        while not ending.is_set():
            await follower.act(draw.random(), draw.choice((0.0, 5.0, 300.0, 5_000.0)))
            await pass_time(draw.choice((0.0, 0.0, 0.01, 1.0)))

    following = [asyncio.ensure_future(follow(each)) for each in followers]
    await write(world, draw, facts)
    ending.set()
    await asyncio.gather(*following)
    heal(world)
    if not world.nodes.is_deleted:
        async with asyncio.timeout(HEALED_S):
            for follower in followers:
                await catch_up(world, follower)
    await world.end_readers()
    facts += world.marks


async def write(world: World, draw: random.Random, facts: Counter[str]) -> None:
    """The life of the ledger, and of its bookies."""
    spares = [id for id in world.bookies if id not in world.metadata.fragments[-1].ensemble]
    for _ in range(draw.randrange(5, 60)):
        chosen = draw.random()
        if chosen < 0.5:
            for _ in range(draw.randrange(1, 8)):
                world.add()
        elif chosen < 0.7:
            world.publish()
        elif chosen < 0.75 and spares:
            facts["ensemble change"] += 1
            place = draw.randrange(world.metadata.ensemble_size)
            await world.change_ensemble(place, spares.pop())
        elif chosen < 0.8:
            bookie = draw.choice(list(world.bookies.values()))
            bookie.hangs = not bookie.hangs
        elif chosen < 0.85:
            bookie = draw.choice(list(world.bookies.values()))
            bookie.is_up = not bookie.is_up
        elif chosen < 0.87:
            facts["bare word"] += 1  # a number that one damaged header can leave behind
            draw.choice(world.ensemble).rise(1_000)
        elif chosen < 0.9:
            world.nodes.away = not world.nodes.away
            world.nodes.hangs = draw.random() < 0.5
        await pass_time(draw.choice((0.0, 0.001, 0.01, 0.1, 3.0)))
    chosen = draw.random()
    if chosen < 0.25:
        facts["closed"] += 1
        await world.close()
    elif chosen < 0.5:
        facts["recovered"] += 1
        await world.recover(draw.choice((0.0, 0.1, 5.0)))
    elif chosen < 0.6:
        facts["deleted"] += 1
        await world.nodes.delete(7)
    await pass_time(draw.choice((0.0, 1.0, 20.0)))


def heal(world: World) -> None:
    world.weather = Weather()
    world.nodes.away = False
    for bookie in world.bookies.values():
        bookie.is_up, bookie.hangs = True, False
    # What never reached a bookie: the writer, or a recovery, puts it there.
    for entry_id in range(world.confirmed + 1):
        fragment = world.metadata.fragment_of(entry_id)
        holders = [world.bookies[id] for id in fragment.ensemble]
        packet = next((b.packets[entry_id] for b in holders if entry_id in b.packets), None)
        assert packet is not None
    if world.end is None:
        world.publish()


async def catch_up(world: World, follower: Follower) -> None:
    """All that is visible by then, without any further fault."""
    await pass_time(0.1)
    while follower.readable < world.visible or follower.next_entry <= follower.readable:
        if follower.next_entry <= follower.readable:
            await follower.read(0.0)
        else:
            last = await follower.reader.wait_past(follower.readable, 1_000.0)
            follower.judge(last, -1)


@pytest.mark.timeout(240)
def test_no_history_shows_what_was_not_published_or_ends_in_silence() -> None:
    facts: Counter[str] = Counter()
    for seed in range(HISTORIES):
        try:
            run_virtually(live(seed, facts))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    print(dict(facts))
    wanted = {
        *("slow", "lost", "cut", "busy", "harmed", "lag", "meta_away", "watch_lost"),
        *(
            "ensemble change",
            "bare word",
            "closed",
            "recovered",
            "deleted",
            "unavailable",
            "not found",
        ),
    }
    assert wanted <= facts.keys(), f"never bit: {wanted - facts.keys()}"


async def wait_for_news(seed: int) -> float:
    """The longest time that anything was visible and a waiting reader did not know."""
    draw = random.Random(seed)
    world = World(seed, weather=Weather(lag=0.3))
    world.fill(1)
    reader = world.reader()
    latest_s = 0.0
    seen_at_s: dict[int, float] = {}  # when an entry was visible at first

    async def write() -> None:
        for _ in range(25):
            world.add()
            await pass_time(draw.choice((0.002, 0.02, 0.7)))
            world.publish()
            await pass_time(draw.choice((0.0, 0.005, 0.5)))
        await pass_time(10.0)  # for what lags behind
        world.publish()
        await pass_time(10.0)

    async def monitor() -> None:
        while True:
            for entry_id in range(len(seen_at_s), world.visible + 1):
                seen_at_s[entry_id] = world.loop.time()
            await pass_time(0.005)

    watching, writing = asyncio.ensure_future(monitor()), asyncio.ensure_future(write())
    known = -1
    while known < 25:
        found = await reader.wait_past(known, 60_000.0)
        if found > known and known + 1 in seen_at_s:
            latest_s = max(latest_s, world.loop.time() - seen_at_s[known + 1])
        known = found
        await pass_time(draw.choice((0.0, 0.01)))
    await writing
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await reader.close()
    await world.end_readers()
    return latest_s


@pytest.mark.parametrize("seed", range(8))
def test_no_news_waits_longer_than_the_safety_net(seed: int) -> None:
    assert run_virtually(wait_for_news(seed)) <= POLL_MS / 1000 + 0.1

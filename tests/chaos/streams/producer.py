"""A program that numbers its messages and contends with others of its kind for the writer. After
each failure, and after each kill, it sends again from the first number on that it does not know to
be acknowledged; what is there already says so, and counts as acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from dlog import aio
from dlog.errors import AlreadyExists
from tests.chaos.streams.journal import Name, key_of, ranges, unranged, value_of
from tests.chaos.streams.scene import EXPECTED, Scene

CHUNK = 100
AHEAD_MAX = 600


class Producer:
    """Of one incarnation of the stream."""

    def __init__(self, scene: Scene, uid: str, producer: int) -> None:
        self.uid = uid
        self.id = producer
        self._scene = scene
        self._acked: set[int] = set()
        self.first = 0  # not known to be acknowledged
        self.submitted = 0  # numbers below were, in any life
        for line in scene.journal.before():
            if line.get("uid") != uid or line.get("p") != producer:
                continue
            if line["op"] == "ack":
                self._acked.update(unranged(line["n"]))
            elif line["op"] == "sent":
                self.submitted = max(self.submitted, line["to"])
        self._advance()

    @property
    def is_done(self) -> bool:
        return self.first >= self.submitted

    def _advance(self) -> None:
        while self.first in self._acked:
            self._acked.discard(self.first)
            self.first += 1

    def acked(self, numbers: list[int], how: str) -> None:
        if numbers:
            told = ranges(numbers)
            self._scene.journal.note("ack", uid=self.uid, p=self.id, n=told, how=how)
            self._acked.update(numbers)
            self._advance()

    def about_to_send(self, to: int) -> None:
        if to > self.submitted:
            self.submitted = to
            self._scene.journal.note("sent", uid=self.uid, p=self.id, to=to)

    def message(self, number: int) -> dict[str, Any]:
        name: Name = (self.id, number)
        return {"value": value_of(self.uid, name), "key": key_of(name), "producer": name}


async def again(producer: Producer, writer: aio.StreamWriter) -> None:
    """What may be there or not, as one call: what is missing is appended."""
    while not producer.is_done:
        numbers = range(producer.first, min(producer.submitted, producer.first + CHUNK))
        rows = [producer.message(number) for number in numbers]
        try:
            await writer.append_many(
                [row["value"] for row in rows],
                keys=[row["key"] for row in rows],
                producer=(producer.id, numbers[0]),
            )
        except AlreadyExists:
            pass
        producer.acked(list(numbers), "many")


async def run(producer: Producer, writer: aio.StreamWriter, upto: int) -> None:
    """Submits from the first unknown number on, tickets waited for in order."""
    sent: deque[tuple[int, Any]] = deque()
    number = producer.first
    try:
        while number < upto:
            end = min(number + CHUNK, upto)
            producer.about_to_send(end)
            known: list[int] = []
            try:
                for each in range(number, end):
                    row = producer.message(each)
                    try:
                        sent.append((each, await writer.submit(row.pop("value"), **row)))
                    except AlreadyExists:
                        known.append(each)
            finally:
                producer.acked(known, "known")
            number = end
            if len(sent) > AHEAD_MAX:
                await settle(producer, sent, len(sent) - AHEAD_MAX // 2)
            await producer._scene.pause(producer._scene.options.idle_s)
    finally:
        await settle(producer, sent, len(sent))


async def settle(producer: Producer, sent: deque[tuple[int, Any]], count: int) -> None:
    """Waits for the oldest; raises the first failure, behind all of them."""
    failure: BaseException | None = None
    acked: dict[str, list[int]] = {"new": [], "known": []}
    for _ in range(count):
        number, ticket = sent.popleft()
        try:
            await ticket
            acked["new"].append(number)
        except AlreadyExists:
            acked["known"].append(number)
        except EXPECTED as error:
            failure = failure or error
    for how, numbers in acked.items():
        producer.acked(numbers, how)
    if failure is not None:
        raise failure


async def one_turn(scene: Scene, ids: list[int]) -> bool:
    """As the writer; whether all that these producers sent is acknowledged."""
    chance = scene.chance
    uid = await scene.uid()
    if uid is None:
        return scene.is_over("stop")
    if scene.options.retention_bytes and not scene.group_is_there(uid):
        await scene.pause(0.2)
        return False  # what it does not hold yet, retention takes
    producers = [Producer(scene, uid, each) for each in ids]
    is_over = scene.is_over("stop")
    if is_over and all(each.is_done for each in producers):
        return True
    takeover = chance.choice(("always", "always", "always", "wait", "if_dead"))
    if is_over:
        takeover = "always"
    writer = await scene.stream.open_writer(takeover=takeover, open_timeout_ms=20_000)
    try:
        if await scene.uid() != uid:  # which of the two this writer is of, nobody knows
            return False
        for producer in producers:
            scene.journal.note("open", uid=uid, p=producer.id, first=producer.first)
        if chance.random() < 0.5:
            for producer in producers:
                await again(producer, writer)
        for _ in range(chance.randint(1, 6)):
            if scene.is_over("stop"):
                break
            many = chance.randint(10, scene.options.burst)
            upto = [max(each.submitted, each.first + many) for each in producers]
            await together(*(run(p, writer, n) for p, n in zip(producers, upto, strict=True)))
        else:
            is_over = False
        if is_over:
            await together(*(run(p, writer, p.submitted) for p in producers))
    finally:
        await writer.close(timeout=30)
    return is_over and all(each.is_done for each in producers)


async def together(*runs: Any) -> None:
    """All of them to their ends; then the first failure."""
    for answer in await asyncio.gather(*runs, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def produce(scene: Scene, *ids: str) -> None:
    while True:
        try:
            if await one_turn(scene, [int(each) for each in ids]):
                return
        except EXPECTED as error:
            scene.told("produce", error)
        await scene.pause(0.4)

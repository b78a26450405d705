"""Producers that number their messages, and send again whatever they were not told of. Their notes
survive their processes; an heir may go on while the process before it is only asleep."""

from __future__ import annotations

import asyncio

from dlog.client import Client
from dlog.errors import AlreadyExists, DlogError, NotFound, Unsupported
from dlog.ids import Token
from dlog.reader.resolve import Never, Present
from dlog.streams.writer import StreamWriter
from dlog.testing.sim.streams_life_process import LifeProcess
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import ACKED, NEVER, NUMBERS, STREAM, TOLD, Name
from dlog.writer.tickets import Ticket

RUN_MAX = 5
WINDOW = 4
_LIVES_MAX = 4


class Senders:
    """Processes that send what all producers have, through one writer; mostly one at a time."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.producers = [Producer(scene, id) for id in range(scene.weather.producers)]
        self.lives = 0

    def begin(self) -> None:
        scene, number = self.scene, self.lives
        self.lives += 1
        process = scene.process(f"p{'abcdefgh'[number]}")
        on_trouble = process.on_trouble

        def trouble(what: str) -> None:
            on_trouble(what)
            may_follow = what == "death" or scene.world.chance.hits(scene.weather.heirs, "an heir")
            if may_follow and self.lives < _LIVES_MAX:
                scene.world.after(1.0 + scene.world.chance.delay(20.0), self.begin)

        process.on_trouble = trouble
        scene.start(process, self._run(process))

    async def _run(self, process: LifeProcess) -> None:
        client = process.new_client()
        pause_ms = 5.0
        try:
            while not self._is_over():
                now = self.scene.truth.now
                if now is None or not self._wants(now.uid):
                    await self.scene.pause(10.0)
                    continue
                try:
                    await self._session(process, client)
                except DlogError as error:
                    self.scene.check_expected(process.name, error)
                    self._learn()
                    await self.scene.pause(pause_ms)
                    pause_ms *= 1.5
        finally:
            await client.close()

    def _wants(self, uid: str) -> bool:
        return any(each.wants(uid) for each in self.producers)

    def _is_over(self) -> bool:
        now = self.scene.truth.now
        return self.scene.is_ending and (now is None or not self._wants(now.uid))

    def _learn(self) -> None:
        """To a stream that takes no more messages, no writer is opened again."""
        now = self.scene.truth.now
        if now is not None and (now.removed != NEVER or not now.is_open):
            for producer in self.producers:
                producer.done.add(now.uid)

    async def _session(self, process: LifeProcess, client: Client) -> None:
        writer = await client.stream(STREAM).open_writer()
        uid = writer._following.core.meta.uid  # type: ignore[union-attr]
        self.scene.truth.require(uid in self.scene.truth.streams, TOLD, f"a writer of {uid}")
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(producer.send(writer, uid))
            for producer in self.producers
            if producer.wants(uid)
        ]
        try:
            if tasks:
                await together(tasks)
        finally:
            try:
                await writer.close()
            except DlogError as error:
                self.scene.check_expected(process.name, error)


async def together(tasks: list[asyncio.Task[None]]) -> None:
    """Until all are done, or one has failed: then the others are not waited for."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:  # the first that failed, in each process the same one
        if task in done:
            task.result()


class Producer:
    """`next` is the first number, of each stream, that was not acknowledged. It is kept on disk."""

    def __init__(self, scene: Scene, id: int) -> None:
        self.scene = scene
        self.id = id
        self.next: dict[str, int] = {}
        self.sent: dict[str, int] = {}  # up to which number anything was ever sent
        self.done: set[str] = set()  # streams that take no more of it

    def wants(self, uid: str) -> bool:
        return uid not in self.done and self.next.get(uid, 0) < self.scene.weather.messages

    async def send(self, writer: StreamWriter, uid: str) -> None:
        scene, chance = self.scene, self.scene.world.chance
        try:
            while self.wants(uid):
                if chance.hits(scene.weather.many, "a run"):
                    await self._send_run(writer, uid)
                else:
                    await self._send_some(writer, uid)
                if not scene.world.is_calm:
                    await scene.pause(1.5 * scene.weather.span_ms / scene.weather.messages)
                if chance.hits(scene.weather.reopens, "the writer is opened again"):
                    break
        except (NotFound, Unsupported) as error:
            self._on_end(uid, error)

    def _on_end(self, uid: str, error: DlogError) -> None:
        """The stream takes no more, or we were forgotten."""
        scene = self.scene
        scene.check_expected(f"p{self.id}", error)
        is_over = scene.truth.is_removed(uid) or not scene.truth.streams[uid].is_open
        is_forgotten = isinstance(error, NotFound) and scene.weather.forgets
        if is_forgotten and not is_over:
            scene.world.mark("a producer was forgotten")
        told = f"p{self.id} is told {error!r}, and the stream is there"
        scene.truth.require(is_over or is_forgotten, TOLD, told)
        self.done.add(uid)

    def _message(self, uid: str, number: int) -> tuple[bytes, bytes | None]:
        keys = self.scene.weather.keys
        key = None if number % 6 == 5 else b"k%d" % ((5 * number + 3 * self.id) % keys)
        if number < self.sent.get(uid, 0):
            self.scene.happened("retry", uid)
        self.sent[uid] = max(self.sent.get(uid, 0), number + 1)
        return Name(uid, self.id, number).to_bytes(), key

    async def _send_run(self, writer: StreamWriter, uid: str) -> None:
        scene, first = self.scene, self.next.get(uid, 0)
        count = min(scene.weather.messages - first, 1 + int(RUN_MAX * scene.world.chance.random()))
        while True:
            if first < self.sent.get(uid, 0):
                scene.happened("run again", uid)
            rows = [self._message(uid, number) for number in range(first, first + count)]
            try:
                ids = await writer.append_many(
                    [value for value, _ in rows],
                    keys=[key for _, key in rows],
                    producer=(self.id, first),
                )
                skipped = set(ids.skipped)
            except AlreadyExists:
                skipped = set(range(count))
            for number in range(first, first + count):
                self._answered(uid, number, is_known=number - first in skipped)
            if not scene.world.strikes(scene.weather.again, "a run is sent again"):
                return

    async def _send_some(self, writer: StreamWriter, uid: str) -> None:
        scene, first = self.scene, self.next.get(uid, 0)
        count = 1 + int(WINDOW * scene.world.chance.random())
        tickets: list[tuple[int, Ticket | None, Token | None]] = []
        for number in range(first, min(first + count, scene.weather.messages)):
            ticket = await self._submit(writer, uid, number)
            tickets.append((number, ticket, None if ticket is None else ticket.token))
        for number, ticket, token in tickets:
            is_known = ticket is None
            if ticket is not None and token is not None:
                try:
                    await ticket
                    if writer.moves and scene.world.chance.hits(0.3, "it is asked for"):
                        await self._ask(writer, token, Name(uid, self.id, number))
                except AlreadyExists:
                    is_known = True
                except DlogError:
                    await self._ask(writer, token, Name(uid, self.id, number))
                    raise
            self._answered(uid, number, is_known=is_known)
        if self.next.get(uid) and scene.world.strikes(
            scene.weather.again, "a number is sent again"
        ):
            number = int(scene.world.chance.random() * self.next[uid])
            ticket = await self._submit(writer, uid, number)
            if ticket is not None:
                try:
                    await ticket
                except AlreadyExists:
                    pass
                self._answered(uid, number, is_known=False)

    async def _ask(self, writer: StreamWriter, token: Token, name: Name) -> None:
        """What became of it, by the token that was kept when it was submitted."""
        scene, truth = self.scene, self.scene.truth
        if scene.weather.senders > 1 or scene.weather.heirs:
            return  # another one may have sent it
        try:
            found = await writer.resolve(token)
            await scene.pause(3.0)
        except DlogError as error:
            scene.check_expected(f"who asks for {name}", error)
            return
        sent = truth.find(name)
        scene.world.mark(f"a message is {type(found).__name__}")
        if isinstance(found, Never):
            truth.require(sent is None, ACKED, f"{name} is said never to be there, and is {sent}")
        elif isinstance(found, Present):
            is_there = sent is not None and sent.id == tuple(found.id)
            truth.require(is_there, ACKED, f"{name} is said to be at {found.id}, and is {sent}")

    async def _submit(self, writer: StreamWriter, uid: str, number: int) -> Ticket | None:
        """None: it is known."""
        value, key = self._message(uid, number)
        try:
            return await writer.submit(value, key=key, producer=(self.id, number))
        except AlreadyExists:
            return None

    def _answered(self, uid: str, number: int, *, is_known: bool) -> None:
        truth = self.scene.truth
        sent = truth.find(Name(uid, self.id, number))
        if is_known:
            truth.require(
                sent is not None, NUMBERS, f"{self.id}:{number} is said to be there, and is not"
            )
        truth.require(sent is not None, ACKED, f"{self.id}:{number} is acknowledged, and not there")
        assert sent is not None
        sent.acked = min(sent.acked, truth.tick())
        self.next[uid] = max(self.next.get(uid, 0), number + 1)

"""Programs on the public async API, as users write them, and what each of them saw.

A program opens, appends, reads, rotates, closes; a part of its calls is cancelled at some await, or
given a time-out. Whatever it is told is taken at its word and written into the history: an id is an
acknowledgement, an error that says "did not happen" is a refusal, and everything else is neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dlog.client import Client
from dlog.errors import (
    AlreadyExists,
    DlogError,
    Fenced,
    Handle,
    Outcome,
    ReaderClosed,
    Retry,
    Timeout,
    WriterClosed,
)
from dlog.ids import MessageId
from dlog.reader.message import Message
from dlog.reader.reader import Reader
from dlog.testing.history import NONE, Event, Op, Phase, digest_of
from dlog.testing.sim.driver_numbers import Numbers
from dlog.testing.sim.driver_swarm import DriverWeather
from dlog.testing.sim.loop_process import LoopProcess
from dlog.testing.sim.world import World, require
from dlog.writer.tickets import Ticket
from dlog.writer.writer import Writer

T = TypeVar("T")

LOG = "orders"
_ROOMY_BYTES = 1 << 16  # a window that these histories cannot fill
_FILL_BYTES = 300  # so that short histories fill windows and segments


class Cancelled(Exception):
    """We gave up waiting; our call was cancelled."""


class Diary:
    """What all programs saw, in the order in which they saw it."""

    def __init__(self, world: World, *, may_be_nameless: bool = False) -> None:
        """`may_be_nameless`: the metadata store, which knows the winner, may be away when asked."""
        self.world = world
        self.may_be_nameless = may_be_nameless
        self.events: list[Event] = []
        self.numbers = Numbers(world)

    def note(self, event: Event) -> Event:
        stamped = dataclasses.replace(event, t_ns=len(self.events))
        self.events.append(stamped)
        if self.world.is_told:
            self.world.note(_in_words(stamped))
        return stamped

    def end(self, began: Event, error: DlogError) -> None:
        winner = error.winner
        name = type(error).__name__
        if isinstance(error, Fenced) and winner is None and self.may_be_nameless:
            name = "Fenced by nobody knows whom"
        self.note(
            dataclasses.replace(
                began,
                phase=Phase.REFUSED if error.outcome is Outcome.NOT_HAPPENED else Phase.UNKNOWN,
                error=name,
                winner_epoch=NONE if winner is None else winner.epoch,
                winner="" if winner is None else winner.name,
            )
        )

    def delivered(self, handle: str, message: Message) -> None:
        value = message.value or b""
        self.note(
            Event(
                op=Op.DELIVER,
                phase=Phase.OK,
                handle=handle,
                name=value.split(b":")[0].decode("ascii", "replace"),
                digest=digest_of(value),
                id=message.id,
                seq=message.seq,
                epoch=message.epoch,
            )
        )


def _in_words(event: Event) -> str:
    about = event.name or event.handle
    told = f"{event.handle}: {event.op.value} {about} {event.phase.value}"
    if event.id is not None:
        told += f" at {event.id}"
    if event.error:
        told += f" ({event.error})"
    return told


class Program:
    """What writers and readers share: calls that may be cut short."""

    def __init__(self, diary: Diary, weather: DriverWeather, process: LoopProcess) -> None:
        self.diary = diary
        self.world = diary.world
        self.weather = weather
        self.process = process

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Maybe cancelled after a while: then `Cancelled`, and nothing else may come of it but the
        answer. Nobody but us cancels."""
        if not self.world.strikes(self.weather.cancelled, "a call is cancelled"):
            return await work
        return await self._cut_short(self.process.loop.create_task(work))

    async def _cut_short(self, task: asyncio.Task[T]) -> T:
        chance = self.world.chance
        if chance.hits(0.5, "after a few turns"):
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
        else:
            await asyncio.wait([task], timeout=chance.delay(20.0) / 1000)
        was_done = task.done()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            return task.result()
        require(not was_done, "I24", "nobody but the caller cancels a call", task.get_coro())
        raise Cancelled

    def timeout(self) -> float | None:
        if self.world.strikes(self.weather.hurried, "a call is given a time-out"):
            return self.world.chance.pick((5.0, 0.1, 0.0), "the time-out")
        return None

    async def pause(self) -> None:
        await asyncio.sleep(self.world.chance.delay(self.weather.pause_ms) / 1000)


class WriterProgram(Program):
    def __init__(
        self,
        diary: Diary,
        weather: DriverWeather,
        process: LoopProcess,
        client: Client,
        handle: str,
    ) -> None:
        super().__init__(diary, weather, process)
        self.handle = handle
        self.client = client
        self._number = 0
        self._tickets: dict[tuple[int, int], Ticket] = {}  # by the number of a producer
        self._waits: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        began = self.diary.note(Event(op=Op.OPEN, phase=Phase.INVOKE, handle=self.handle))
        try:
            log = await self.call(self._opening())
        except Cancelled:
            return
        except DlogError as error:
            self.diary.end(began, error)
            return
        self.diary.note(Event(op=Op.OPEN, phase=Phase.OK, handle=self.handle, epoch=log.epoch))
        try:
            await self._work(log)
        finally:
            await self._close(log)
            await asyncio.gather(*self._waits)

    async def _opening(self) -> Writer:
        return await self.client.open_writer(
            LOG, create=log_options(self.weather), owner=self.handle, **self.options()
        )

    def options(self) -> dict[str, Any]:
        weather = self.weather
        return {
            "window_bytes": weather.window_bytes,
            "window_entries": weather.window_entries,
            "on_full": weather.on_full,
            "visible": weather.visible,
            "linger_ms": weather.linger_ms,
            "entry_bytes": 1024,
        }

    async def _work(self, log: Writer) -> None:
        weather = self.weather
        for _ in range(weather.appends):
            await self.pause()
            try:
                if self.world.strikes(weather.numbered, "a number"):
                    await self._submit_numbered(log)
                elif self.world.strikes(weather.many, "append_many"):
                    if not await self._append_many(log):
                        return
                else:
                    await self._submit(log)
                if self.world.strikes(weather.rotated, "rotate"):
                    await self.call(log.rotate(timeout=self.timeout()))
                if self.world.strikes(weather.flushed, "flush"):
                    await self.call(log.flush(timeout=self.timeout()))
            except Cancelled:
                pass
            except DlogError as error:
                if error.handle is Handle.DEAD:
                    return

    def _message(self) -> tuple[Event, bytes]:
        name = f"{self.handle}.{self._number}"
        value = name.encode() + b":" + b"." * self.world.chance.randrange(_FILL_BYTES)
        began = self.diary.note(
            Event(
                op=Op.APPEND,
                phase=Phase.INVOKE,
                handle=self.handle,
                name=name,
                digest=digest_of(value),
                number=self._number,
            )
        )
        self._number += 1
        return began, value

    async def _submit(self, log: Writer) -> None:
        """A submit that was cut short sent nothing; only then is the program told at once."""
        began, value = self._message()
        roomy = self.weather.window_bytes > _ROOMY_BYTES
        if roomy and self.world.chance.hits(0.3, "append"):
            task = self.process.loop.create_task(log.append(value, timeout=self.timeout()))
            await asyncio.sleep(0)  # it is on its way, before whatever comes next
            self._wait(self._append(began, task))
            return
        try:
            ticket = await self.call(log.submit(value, timeout=self.timeout()))
        except Cancelled:
            self._refused(began)
            return
        except DlogError as error:
            self.diary.end(began, error)
            raise
        self._wait(self._answer(began, ticket))

    async def _submit_numbered(self, log: Writer) -> None:
        """The oldest that nobody told us of, if it was another process that sent it; else the next
        one, or, now and then, one of ours again."""
        numbers, mine = self.diary.numbers, zlib.crc32(self.handle[:-1].encode())
        lost = [n for n in numbers.unanswered(mine) if (mine, n) not in self._tickets]
        again = sorted(n for of, n in self._tickets if of == mine)
        if lost:
            number = mine, lost[0]
        elif again and self.world.chance.hits(0.3, "a number again"):
            number = mine, self.world.chance.pick(again, "which number")
        else:
            number = mine, numbers.next_of(mine)
        began, value = self._message()
        try:
            ticket = await self.call(log.submit(value, producer=number, timeout=self.timeout()))
        except Cancelled:
            self._refused(began)
            return
        except AlreadyExists as there:
            self.diary.end(began, there)
            numbers.answer(number, there.id)
            return
        except DlogError as error:
            self.diary.end(began, error)
            raise
        first = self._tickets.get(number)
        if first is not None:
            same = ticket.token == first.token
            require(same, "I29", "a number was taken again", number, ticket.token, first.token)
            self._refused(began)  # this one was not sent
            return
        self._tickets[number] = ticket
        numbers.sent.setdefault(number, []).append(began.name)
        self._wait(self._answer_numbered(began, ticket, number, log))

    async def _answer_numbered(
        self, began: Event, ticket: Ticket, number: tuple[int, int], log: Writer
    ) -> None:
        numbers = self.diary.numbers
        asks = self.world.strikes(self.weather.asked, "what became of it")
        if asks and self.world.chance.hits(0.5, "before it is told"):
            await self._ask(began.name, ticket, log)
        await self._answer(began, ticket)
        try:
            numbers.answer(number, ticket.result(0))
        except DlogError:
            pass
        if asks:
            await self._ask(began.name, ticket, log)

    async def _ask(self, name: str, ticket: Ticket, log: Writer) -> None:
        acked = None
        if ticket.done and self.weather.visible == "on_ack":
            with contextlib.suppress(DlogError):
                acked = ticket.result(0)
        try:
            answer = await self.call(log.resolve(ticket.token))
        except Cancelled:
            return
        except DlogError as error:
            self.world.note(f"{self.handle} asked for {name}: {error!r}")
            return
        self.diary.numbers.resolved(name, answer, acked=acked)

    async def _append(self, began: Event, task: asyncio.Task[MessageId]) -> None:
        async def wait() -> MessageId:
            if self.world.strikes(self.weather.cancelled, "an append is cancelled"):
                return await self._cut_short(task)
            return await task

        try:
            await self._told(began, wait)
        except Timeout:
            pass  # our time was over; nothing was told of the message itself

    async def _answer(self, began: Event, ticket: Ticket) -> None:
        while not await self._told(began, lambda: self.call(_awaited(ticket))):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # asked again, as often as we gave up

    async def _told(self, began: Event, ask: Callable[[], Coroutine[Any, Any, MessageId]]) -> bool:
        """False: nothing was told, since we gave up waiting."""
        try:
            id = await ask()
        except Cancelled:
            return False
        except DlogError as error:
            if isinstance(error, Timeout) and "not done within" in error.message:
                raise
            self.diary.end(began, error)
            return True
        self._acked(began, id)
        return True

    async def _append_many(self, log: Writer) -> bool:
        """False: how much of the run is on its way is unknown, so the program ends."""
        messages = [self._message() for _ in range(1 + self.world.chance.randrange(5))]
        work = log.append_many([value for _, value in messages], timeout=self.timeout())
        try:
            ids = await self.call(work)
        except Cancelled:
            return False
        except DlogError as error:
            if error.outcome is Outcome.NOT_HAPPENED:
                for began, _ in messages:
                    self.diary.end(began, error)
            return False
        for (began, _), id in zip(messages, ids, strict=True):
            self._acked(began, id)
        return True

    def _acked(self, began: Event, id: MessageId) -> None:
        self.diary.note(dataclasses.replace(began, phase=Phase.OK, id=id))

    def _refused(self, began: Event) -> None:
        self.diary.note(dataclasses.replace(began, phase=Phase.REFUSED, error="Cancelled"))

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        self._waits.append(self.process.loop.create_task(work))

    async def _close(self, log: Writer) -> None:
        if self.world.strikes(self.weather.handed_over, "the log is handed over"):
            try:
                await self.call(log.hand_over("anybody", timeout=self.timeout()))
            except (Cancelled, DlogError):
                pass
        while True:
            try:
                await self.call(log.close(timeout=self.timeout()))
                return
            except Cancelled:
                continue  # it goes on; ask again
            except DlogError:
                return


class ReaderProgram(Program):
    """Reads, by one way or another, from the head or from where the one before it stopped."""

    def __init__(
        self,
        diary: Diary,
        weather: DriverWeather,
        process: LoopProcess,
        client: Client,
        handle: str,
        *,
        follow: bool,
    ) -> None:
        super().__init__(diary, weather, process)
        self.handle = handle
        self.client = client
        self.follow = follow
        self.next_seq = 0
        self._times = 0

    async def run(self) -> None:
        while not await self.once():  # noqa: ASYNC110 - it waits for nobody's fact
            await asyncio.sleep(0.001)

    async def once(self) -> bool:
        """True at the end, or when there is nothing to go on with."""
        handle = f"{self.handle}.{self._times}"
        self._times += 1
        self.diary.note(Event(op=Op.READ, phase=Phase.INVOKE, handle=handle, seq=self.next_seq))
        try:
            reader = await self.call(self._opening())
        except Cancelled:
            return False
        except DlogError as error:
            return error.handle is Handle.DEAD or not await self._again(error)
        try:
            return await self._read(reader, handle)
        finally:
            await reader.close()
            walk = reader._feed._task
            require(walk is None or walk.done(), "I25", "a closed reader goes on reading", handle)

    async def _opening(self) -> Reader:
        return await self.client.open_reader(LOG, start=self.next_seq, follow=self.follow)

    async def _again(self, error: DlogError) -> bool:
        self.world.note(f"{self.handle} is told {error!r}")
        if self.world.is_calm and not self.follow and error.retry is Retry.NEVER:
            return False
        if isinstance(error, (ReaderClosed, WriterClosed)) or _is_closed(self.client):
            return False
        await asyncio.sleep(0.2)
        return True

    async def _read(self, reader: Reader, handle: str) -> bool:
        """True at the end, or when there is nothing to go on with."""
        while True:
            try:
                timeout = None
                if self.world.chance.hits(0.1, "a batch"):
                    messages = await self.call(_first_batch(reader))
                else:
                    timeout = self.timeout()
                    most = 1 + self.world.chance.randrange(20)
                    messages = await self.call(reader.read(most, timeout=timeout))
            except Cancelled:
                continue
            except DlogError as error:
                if error.handle is Handle.DEAD:
                    return True
                return not await self._again(error)
            for message in messages:
                self.diary.delivered(handle, message)
                self.next_seq = message.seq + 1
            if not messages and not self.follow and timeout is None:
                if (
                    reader.closed
                ):  # with its client, under us: that is the end of it, not of the log
                    return True
                self.diary.note(Event(op=Op.READ, phase=Phase.OK, handle=handle))
                return True
            if self.world.chance.hits(0.02, "it begins anew"):
                return False


async def _first_batch(reader: Reader) -> list[Message]:
    async for batch in reader.batches():
        return batch.to_pylist()
    return []


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _is_closed(client: Client) -> bool:
    return "closed" in repr(client)


def log_options(weather: DriverWeather) -> Any:
    from dlog.options import LogOptions

    return LogOptions(
        ensemble=weather.copies,
        write_quorum=weather.copies,
        ack_quorum=weather.acks,
        unsafe_single_copy=weather.acks == 1,
        segment_bytes=weather.segment_bytes,
    )

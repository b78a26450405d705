"""Writers and readers that write down what they ask for and what they are told, for the checkers.

Every message has a name no other has, as its key; its value follows from the name, so that bytes
can be judged without keeping them. The same actors serve child programs and the tests themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from dlog import Message, aio
from dlog.effects import Procedure
from dlog.errors import DlogError, NotFound
from dlog.options import LogOptions, TailMode
from dlog.reader.feed import ReaderDriver
from dlog.reader.segments import SegmentView
from dlog.testing.history import NONE, Event, Listed, Op, Phase, Recorder, digest_of

LOG = "orders"
PRODUCER = 7
SMALL = LogOptions(segment_bytes=4096)  # the smallest there is: rotations happen by themselves
VALUE_BYTES = 500
THE_END = "the-end"  # names the message that ends a following reader


def value_of(name: str, size: int) -> bytes:
    return (name.encode() + b" ") * (size // (len(name) + 1) + 1)


def url_of(place: Path | str, **parameters: int) -> str:
    """Of a directory, or of a cluster whose URL it is."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    url = f"file:{place}" if isinstance(place, Path) else place
    return url + (("&" if "?" in url else "?") + query if query else "")


class RecordedWriter:
    """Open it, append; all is in the history. `error` is what ended it, if something did."""

    def __init__(self, stage: Stage, handle: str) -> None:
        self.handle = handle
        self.writer: aio.Writer | None = None
        self.error: DlogError | None = None
        self._stage = stage
        self._number = 0

    async def open(
        self, *, create: LogOptions = SMALL, standby: aio.Standby | None = None, **options: Any
    ) -> None:
        began = Event(op=Op.OPEN, phase=Phase.INVOKE, handle=self.handle)
        recorder = self._stage.recorder
        recorder.note(began)
        try:
            if standby is not None:
                self.writer = await standby.take_over()
            else:
                self.writer = await self._stage.client.open_writer(LOG, create=create, **options)
        except DlogError as error:
            recorder.end(began, error)
            raise
        recorder.note(dataclasses.replace(began, phase=Phase.OK, epoch=self.writer.epoch))

    async def append(
        self,
        count: int = 1,
        *,
        size: int = VALUE_BYTES,
        named: str = "",
        numbered: bool = False,
    ) -> None:
        """One after the other, each acknowledged before the next; raises the first failure."""
        for _ in range(count):
            await self.append_together(1, size=size, named=named, numbered=numbered)

    async def append_together(
        self, count: int, *, size: int = VALUE_BYTES, named: str = "", numbered: bool = False
    ) -> None:
        """All on their way before the first is waited for; `numbered` as of a producer."""
        assert self.writer is not None
        sent: list[tuple[Event, Any]] = []
        try:
            for _ in range(count):
                began = self._begin(size, named)
                value = value_of(began.name, size)
                try:
                    producer = (PRODUCER, self._stage.next_number()) if numbered else None
                    ticket = await self.writer.submit(
                        value, key=began.name.encode(), producer=producer
                    )
                except DlogError as error:
                    self._failed(began, error)
                    break
                sent.append((began, ticket))
        finally:
            for began, ticket in sent:
                await self._settle(began, ticket)
        if self.error is not None:
            raise self.error

    def _begin(self, size: int, named: str) -> Event:
        name = f"{self.handle}/{named or self._number}"
        began = Event(
            op=Op.APPEND,
            phase=Phase.INVOKE,
            handle=self.handle,
            name=name,
            number=self._number,
            digest=digest_of(value_of(name, size)),
        )
        self._number += 1
        self._stage.recorder.note(began)
        return began

    async def _settle(self, began: Event, ticket: Any) -> None:
        try:
            message_id = await ticket
        except DlogError as error:
            self._failed(began, error)
        else:
            self._stage.recorder.note(dataclasses.replace(began, phase=Phase.OK, id=message_id))

    def _failed(self, began: Event, error: DlogError) -> None:
        self._stage.recorder.end(began, error)
        if self.error is None:
            self.error = error

    async def rotate(self) -> None:
        assert self.writer is not None
        await self.writer.rotate()

    async def close(self, *, hand_over: bool = False) -> None:
        assert self.writer is not None
        await (self.writer.hand_over("whoever comes") if hand_over else self.writer.close())


class Stage:
    """One process's place in a test: a client, and where it writes its history."""

    def __init__(self, place: Path | str, history: Path, process: str, **parameters: int) -> None:
        self.place = place
        self.recorder = Recorder(history, process)
        self.client = aio.connect(url_of(place, **parameters))
        self._writers: list[RecordedWriter] = []  # held until the client closes what is open
        self._handles = 0
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _handle(self) -> str:
        self._handles += 1
        return f"{self.recorder.process}.{self._handles}"

    async def open_writer(self, **options: Any) -> RecordedWriter:
        writer = RecordedWriter(self, self._handle())
        await writer.open(owner=writer.handle, **options)
        self._writers.append(writer)
        return writer

    async def read(
        self,
        handle: str | None = None,
        *,
        start: Any = "earliest",
        first_seq: int = 0,
        batches: bool = False,
        until: str | None = None,
        tail: TailMode = "normal",
        taken: list[Message] | None = None,
    ) -> list[Message]:
        """To the tail, or, following, until the message of that name was delivered. What came
        before a failure is in `taken`, if that was given."""
        handle = handle or self._handle()
        began = Event(op=Op.READ, phase=Phase.INVOKE, handle=handle, seq=first_seq)
        self.recorder.note(began)
        taken = [] if taken is None else taken
        follow = until is not None
        async with self.client.open_reader(LOG, start=start, follow=follow, tail=tail) as reader:
            if batches:
                async for batch in reader.batches():
                    for message in batch.to_pylist():
                        self._deliver(handle, message)
                        taken.append(message)
            else:
                async for message in reader:
                    self._deliver(handle, message)
                    taken.append(message)
                    if until is not None and message.key.endswith(f"/{until}".encode()):
                        break
            # A position resumes right behind what was delivered.
            last_seq = first_seq if not taken else taken[-1].seq + 1
            assert reader.position.next_seq == last_seq
        self.recorder.note(dataclasses.replace(began, phase=Phase.OK))
        return taken

    def _deliver(self, handle: str, message: Message) -> None:
        assert message.key is not None
        self.recorder.note(
            Event(
                op=Op.DELIVER,
                phase=Phase.OK,
                handle=handle,
                name=message.key.decode(),
                digest=digest_of(message.value),
                id=message.id,
                seq=message.seq,
                epoch=message.epoch,
            )
        )

    async def look(self) -> tuple[Listed, ...]:
        """What the list shows now, and which of its ledgers are closed, and where."""
        stores = await self.client._stores(False)
        view = SegmentView(LOG, stores.layout)
        driver = ReaderDriver(stores, view)
        try:
            segments = await driver.run(_segments(view))
            self.recorder.note(Event(op=Op.LISTED, phase=Phase.OK, segments=segments))
            for segment in segments:
                try:
                    closed = (await stores.ledgers.info(segment.ledger_id)).closed
                except NotFound:
                    continue  # dropped since
                if closed is not None:
                    self.recorder.note(
                        Event(
                            op=Op.CLOSED,
                            phase=Phase.OK,
                            ledger_id=segment.ledger_id,
                            entry_id=closed.last_entry,
                            bytes=closed.bytes,
                        )
                    )
        finally:
            await driver.close()
        return segments

    async def survey(self, final: str) -> None:
        """When all faults are over: open anew, append, read everything twice, resume."""
        try:
            await self.look()
        except NotFound:
            pass  # whoever should have made the log never came that far
        writer = await self.open_writer()
        await writer.append(2)
        await writer.append_together(3)
        await writer.append(named=THE_END)
        await self.look()
        everything = await self.read(final)
        await self.read("again", batches=True)
        middle = everything[len(everything) // 2]
        await self.read("from-id", start=middle.id, first_seq=middle.seq)
        await self.read("from-seq", start=middle.seq, first_seq=middle.seq)
        async with self.client.open_reader(LOG, end=middle.seq) as reader:
            while await reader.read(max_messages=7):
                pass
            position = reader.position
        assert position.next_seq == middle.seq
        await self.read("resumed", start=position, first_seq=middle.seq)
        await writer.close()
        await self.look()

    async def close(self) -> None:
        await self.client.close()
        self.recorder.close()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.close())


def _segments(view: SegmentView) -> Procedure[tuple[Listed, ...]]:
    yield from view.refresh()
    found: list[Listed] = []
    segment = yield from view.first()
    while segment is not None:
        sealed = segment.sealed
        end = (
            (NONE, NONE, NONE)
            if sealed is None
            else (sealed.last_entry, sealed.base_seq, sealed.next_seq)
        )
        found.append(Listed(segment.number, segment.ledger_id, segment.epoch, *end))
        segment = yield from view.after(segment.number)
    return tuple(found)


async def open_ledger(stage: Stage) -> int:
    """The ledger that the log's writer writes now."""
    return (await stage.look())[-1].ledger_id


async def recover_as_a_stranger(stage: Stage, ledger_id: int) -> None:
    """As a repair tool would: through the ledger store, without claiming the log."""
    stores = await stage.client._stores(False)
    await stores.ledgers.recover(ledger_id)

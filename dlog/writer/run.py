"""One `append_many` on its way into the batcher: block by block, as much as there is room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from dlog.errors import AlreadyExists, ConfigError, DlogError, Outcome
from dlog.wire.batch import Headers
from dlog.writer.arguments import (
    EventTime,
    HeadersArg,
    Producer,
    as_bytes,
    as_event_time_us,
    as_headers,
    payload_bytes,
    refuse_too_large,
)
from dlog.writer.batch import Batch
from dlog.writer.batcher import MESSAGE_BYTES, Batcher
from dlog.writer.tickets import IdRun

BLOCK_MESSAGES = 8192  # looked at together

# Value, key, headers, event time.
Message = tuple[bytes | None, bytes | None, Headers | None, int | None]


class Run:
    def __init__(
        self,
        batcher: Batcher,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None,
        headers: Iterable[HeadersArg | None] | None,
        *,
        event_times: Iterable[EventTime | None] | None = None,
        producer: Producer | None = None,
        atomic: bool,
    ) -> None:
        self._batcher = batcher
        self._pieces: list[tuple[Batch, int, int]] = []
        self._values = _iterate("values", values)
        self._keys = None if keys is None else _iterate("keys", keys)
        self._headers = None if headers is None else _iterate("headers", headers)
        self._times = None if event_times is None else _iterate("event times", event_times)
        self._block: list[Any] = []
        self._sizes: list[int] | None = None
        self._at = 0
        self._producer = producer
        self._skipped = 0  # at the front: the log has them
        self._there: AlreadyExists | None = None
        self._whole = self._one_batch() if atomic else None

    def step(self) -> bool:
        """True when all is taken, False when the window is full."""
        try:
            return self._take()
        except DlogError as error:
            raise self.cut_short(error) from error.__cause__

    def _take(self) -> bool:
        if self._whole is not None:
            return self._whole.done or not self._whole.values or self._offer_whole()
        while True:
            if self._at == len(self._block) and not self._next_block():
                if self._there is not None and not self._pieces:
                    raise self._there
                return True
            if self._sizes is not None:
                self._at = self._batcher.offer_run(self._block, self._sizes, self._at, self._pieces)
                if self._at < len(self._block):
                    return False
            elif not self._offer_singly():
                return False

    def _next_block(self) -> bool:
        """All of a block is checked before any of it is on its way."""
        block = list(islice(self._values, BLOCK_MESSAGES))
        self._at = 0
        self._sizes = None
        columns = (self._keys, self._headers, self._times, self._producer)
        is_plain = all(each is None for each in columns)
        if is_plain and set(map(type, block)) <= {bytes}:
            self._sizes = [len(value) + MESSAGE_BYTES for value in block if value is not None]
            if block and max(self._sizes) > self._batcher.entry_bytes:
                refuse_too_large(1, max(self._sizes), 0)
            self._block = block
        else:
            self._block = self._checked(block)
            for message in self._block:
                refuse_too_large(1, payload_bytes(*message[:3]), len(message[2] or ()))
        return bool(block)

    def _checked(self, values: list[Any]) -> list[Message]:
        keys = self._column(self._keys, "keys", len(values))
        headers = self._column(self._headers, "headers", len(values))
        times = self._column(self._times, "event times", len(values))
        return [
            (
                as_bytes("a value", value),
                as_bytes("a key", key),
                as_headers(pairs),
                as_event_time_us(at),
            )
            for value, key, pairs, at in zip(values, keys, headers, times, strict=True)
        ]

    def _column(self, items: Iterator[Any] | None, what: str, count: int) -> list[Any]:
        """What belongs to the next `count` values; a block that is not full is the last one."""
        if items is None:
            return [None] * count
        column = list(islice(items, count + 1 if count < BLOCK_MESSAGES else count))
        if len(column) != count:
            raise ConfigError(f"append_many needs as many {what} as values")
        return column

    def _offer_singly(self) -> bool:
        block = self._block
        while self._at < len(block):
            value, key, headers, at_us = block[self._at]
            try:
                ticket = self._batcher.offer_marked(
                    value, key, headers, at_us, producer=self._producer
                )
            except AlreadyExists as there:
                if self._pieces:  # somebody else sends with these numbers
                    raise
                self._skipped, self._there = self._skipped + 1, there
            else:
                if ticket is None:
                    return False
                self._note(ticket._batch, ticket._idx)
            self._at += 1
            if self._producer is not None:
                self._producer = self._producer[0], self._producer[1] + 1
        return True

    def _note(self, batch: Batch, idx: int) -> None:
        if self._pieces:
            last, first, count = self._pieces[-1]
            if last is batch and first + count == idx:
                self._pieces[-1] = batch, first, count + 1
                return
        self._pieces.append((batch, idx, 1))

    def _one_batch(self) -> Batch:
        batch = Batch([], 0)
        payload = pairs = 0
        while True:
            values = list(islice(self._values, BLOCK_MESSAGES))
            for value, key, headers, at_us in self._checked(values):
                payload += payload_bytes(value, key, headers)
                pairs += len(headers or ())
                batch.append(value, key, headers, at_us)
            refuse_too_large(len(batch.values), payload, pairs)
            if len(values) < BLOCK_MESSAGES:
                break
        batch.bytes = payload + MESSAGE_BYTES * len(batch.values)
        batch.producer = self._producer
        return batch

    def _offer_whole(self) -> bool:
        assert self._whole is not None
        taken = self._batcher.offer_whole(self._whole)
        if taken is None:
            return False
        self._whole = taken
        self._pieces.append((self._whole, 0, len(self._whole.values)))
        return True

    def forget(self) -> None:
        """What was taken so far: nobody will ask for its ids."""
        self._pieces.clear()

    def cut_short(self, error: DlogError) -> DlogError:
        """What to raise when no more of it is taken: of a run that began, some will be there,
        whatever the error says of the rest."""
        return self._partly(error, self._pieces, "on their way")

    def _partly(
        self, error: DlogError, pieces: list[tuple[Batch, int, int]], where: str
    ) -> DlogError:
        if not pieces:
            return error
        told = error.again()
        told.outcome = Outcome.UNKNOWN
        count = sum(count for _, _, count in pieces)
        told.args = (f"{error.message}; the first {count} messages of the run are {where}",)
        return told

    def batches(self) -> list[Batch]:
        return [batch for batch, _, _ in self._pieces]

    def ids(self) -> IdRun:
        """Of a run that is all acknowledged; raises the first failure."""
        for number, (batch, _, _) in enumerate(self._pieces):
            if batch.error is not None:
                for failed, _, _ in self._pieces[number:]:
                    failed.error_seen = True
                raise self._partly(batch.error.again(), self._pieces[:number], "there")
        return IdRun(self._pieces, self._skipped)


def _iterate(what: str, items: Iterable[Any]) -> Iterator[Any]:
    if not isinstance(items, Iterable):
        raise ConfigError(f"append_many takes {what} to iterate over, not {items!r}")
    return iter(items)

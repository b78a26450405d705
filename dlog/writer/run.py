"""One `append_many` on its way into the batcher: block by block, as much as there is room for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from dlog.errors import BufferFull, DlogError, Outcome, Timeout
from dlog.writer.arguments import (
    HeadersArg,
    as_bytes,
    as_headers,
    payload_bytes,
    refuse_too_large,
)
from dlog.writer.batch import Batch
from dlog.writer.batcher import MESSAGE_BYTES, Batcher
from dlog.writer.tickets import IdRun

BLOCK_MESSAGES = 8192  # looked at together


class Run:
    def __init__(
        self,
        batcher: Batcher,
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None,
        headers: Iterable[HeadersArg | None] | None,
        *,
        atomic: bool,
    ) -> None:
        self._batcher = batcher
        self._pieces: list[tuple[Batch, int, int]] = []
        self._values = iter(values)
        self._others = None
        if keys is not None or headers is not None:
            self._others = (_column(keys), _column(headers))
        self._block: list[Any] = []
        self._sizes: list[int] | None = None
        self._at = 0
        self._whole = self._one_batch() if atomic else None

    def step(self) -> bool:
        """True when all is taken, False when the window is full."""
        if self._whole is not None:
            return self._whole.done or not self._whole.values or self._offer_whole()
        while True:
            if self._at == len(self._block) and not self._next_block():
                return True
            if self._sizes is not None:
                self._at = self._batcher.offer_run(self._block, self._sizes, self._at, self._pieces)
                if self._at < len(self._block):
                    return False
            elif not self._offer_singly():
                return False

    def _next_block(self) -> bool:
        block = list(islice(self._values, BLOCK_MESSAGES))
        self._at = 0
        self._sizes = None
        if self._others is None and set(map(type, block)) <= {bytes}:
            self._sizes = [len(value) + MESSAGE_BYTES for value in block if value is not None]
            if block and max(self._sizes) > self._batcher.entry_bytes:
                refuse_too_large(1, max(self._sizes), 0)
            self._block = block
        elif self._others is None:
            self._block = [(value, None, None) for value in block]
        else:
            keys, headers = self._others
            self._block = [(value, next(keys, None), next(headers, None)) for value in block]
        return bool(block)

    def _offer_singly(self) -> bool:
        block = self._block
        while self._at < len(block):
            value, key, headers = block[self._at]
            ticket = self._batcher.offer(value, key, headers)
            if ticket is None:
                return False
            self._pieces.append((ticket._batch, ticket._idx, 1))
            self._at += 1
        return True

    def _one_batch(self) -> Batch:
        batch = Batch([], 0)
        payload = pairs = 0
        columns = self._others or (iter(()), iter(()))
        for value in self._values:
            checked = as_bytes("a value", value)
            key, headers = (
                as_bytes("a key", next(columns[0], None)),
                as_headers(next(columns[1], None)),
            )
            payload += payload_bytes(checked, key, headers)
            pairs += len(headers or ())
            batch.append(checked, key, headers, None)
            refuse_too_large(len(batch.values), payload, pairs)
        batch.bytes = payload + MESSAGE_BYTES * len(batch.values)
        return batch

    def _offer_whole(self) -> bool:
        assert self._whole is not None
        if not self._batcher.offer_whole(self._whole):
            return False
        self._pieces.append((self._whole, 0, len(self._whole.values)))
        return True

    def cut_short(self, full: BufferFull | Timeout) -> DlogError:
        """What to raise when there was no room in time: of a run that began, some will be there."""
        if not self._pieces:
            return full
        taken = sum(count for _, _, count in self._pieces)
        return type(full)(
            f"no room in the window for all of the run; {taken} messages of it are on their way",
            outcome=Outcome.UNKNOWN,
        )

    def batches(self) -> list[Batch]:
        return [batch for batch, _, _ in self._pieces]

    def ids(self) -> IdRun:
        """Of a run that is all acknowledged; raises the first failure."""
        for batch, _, _ in self._pieces:
            if batch.error is not None:
                batch.error_seen = True
                raise batch.error.again()
        return IdRun(self._pieces)


def _column(items: Iterable[Any] | None) -> Any:
    return iter(()) if items is None else iter(items)

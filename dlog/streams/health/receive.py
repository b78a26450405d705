"""The other end of `dispatch`: a service that takes messages of keys, each once, although they come
twice, and although another service may have been at the same key a moment ago.

    receiver = Receiver(LogsOfKeys(lambda key: client.open_writer("user/" + key.hex())))
    taken = await receiver.take(client_id, key, messages)   # what the transport brought
    await receiver.close()

What makes this safe is the log: to open its writer fences whoever had it, and the log knows the
last number of each client. So a message that an isolated service took after all, or takes late, is
in the log once or is refused there. The first message of a key opens its log; a service that was
fenced opens it again with the next message, which the clients bring to where their routes say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dlog.errors import AlreadyExists, DlogError, Handle, Outcome, Retry, WriterClosed
from dlog.limits import RECEIVER_KEYS_MAX
from dlog.streams.health.dispatch import Refusal
from dlog.streams.routing.flight import Numbered
from dlog.writer.writer import Writer

_log = logging.getLogger("dlog.streams.health")


class HeldKey(Protocol):
    """The right to take messages of a key, until somebody else gets it."""

    async def submit(self, client_id: int, message: Numbered) -> Awaitable[object]:
        """On its way, in the order of these calls; it is there once what comes back is done.
        `AlreadyExists` if it is there already."""
        ...

    async def close(self) -> None: ...


Hold = Callable[[bytes], Awaitable[HeldKey]]


class LogsOfKeys:
    """A log for each key: what `Receiver` is to hold."""

    def __init__(self, open_writer: Callable[[bytes], Awaitable[Writer]]) -> None:
        self._open_writer = open_writer

    async def __call__(self, key: bytes) -> HeldKey:
        return _HeldLog(key, await self._open_writer(key))


class _HeldLog:
    def __init__(self, key: bytes, writer: Writer) -> None:
        self._key = key
        self._writer = writer

    async def submit(self, client_id: int, message: Numbered) -> Awaitable[object]:
        return await self._writer.submit(
            message.value, key=self._key, producer=(client_id, message.number)
        )

    async def close(self) -> None:
        await self._writer.close()


class _Key:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # fair: who came first submits first
        self.held: HeldKey | None = None
        self.takers = 0


class Receiver:
    """Belongs to one event loop. Holds `keys_max` keys at most; of more, those that were idle
    longest are let go."""

    def __init__(self, hold: Hold, *, keys_max: int = RECEIVER_KEYS_MAX) -> None:
        self._hold = hold
        self._keys_max = keys_max
        self._keys: dict[bytes, _Key] = {}  # the longest idle first
        self._closed = False

    async def take(self, client_id: int, key: bytes, messages: Sequence[Numbered]) -> int:
        """How many are in the log, from the first on, now or since before. `Refusal` if one of them
        never will be."""
        if self._closed:
            raise _closed()
        state = self._keys.pop(key, None) or _Key()
        self._keys[key] = state
        state.takers += 1
        try:
            return await self._take(state, client_id, key, messages)
        finally:
            state.takers -= 1
            await self._let_idle_go()

    async def _take(
        self, state: _Key, client_id: int, key: bytes, messages: Sequence[Numbered]
    ) -> int:
        waits: list[Awaitable[object] | None] = []  # None: it was there
        refusal: str | None = None
        async with state.turn:
            if self._closed:
                raise _closed()
            if state.held is None:
                state.held = await self._hold(key)
            held = state.held
            for message in messages:
                try:
                    waits.append(await held.submit(client_id, message))
                except AlreadyExists:
                    waits.append(None)
                except DlogError as error:
                    if _is_final(error):
                        refusal = error.message
                    else:
                        _log.info("key %r is not held any more: %s", key, error)
                        await self._let_go(state, held)
                    break
        taken = 0
        for wait in waits:  # in their order: what is behind one that failed has failed, too
            try:
                if wait is not None:
                    await wait
            except AlreadyExists:
                pass
            except DlogError as error:
                _log.info("key %r is not held any more: %s", key, error)
                async with state.turn:
                    await self._let_go(state, held)
                return taken
            taken += 1
        if refusal is not None:
            raise Refusal(taken, refusal)
        return taken

    async def _let_go(self, state: _Key, held: HeldKey) -> None:
        if state.held is held:
            state.held = None
            await _close(held)

    async def _let_idle_go(self) -> None:
        while len(self._keys) > self._keys_max:
            idle = next((key for key, each in self._keys.items() if not each.takers), None)
            if idle is None:
                return
            state = self._keys.pop(idle)
            if state.held is not None:
                await _close(state.held)

    async def close(self) -> None:
        """Lets all keys go. Idempotent."""
        self._closed = True
        keys, self._keys = self._keys, {}
        for state in keys.values():
            async with state.turn:
                if state.held is not None:
                    await self._let_go(state, state.held)


async def _close(held: HeldKey) -> None:
    try:
        await held.close()
    except DlogError as error:  # of what it had on its way its takers were told
        _log.debug("a key was let go: %s", error)


def _is_final(error: DlogError) -> bool:
    return (
        error.retry is Retry.NEVER
        and error.outcome is Outcome.NOT_HAPPENED
        and error.handle is Handle.USABLE
    )


def _closed() -> WriterClosed:
    return WriterClosed("this receiver is closed", outcome=Outcome.NOT_HAPPENED)

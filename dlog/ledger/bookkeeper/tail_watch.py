"""Hears of what becomes readable in one ledger: the driver of `core.tail_read`.

Metadata is watched and every bookie of the ensemble is polled, from the first wait until the end of
the ledger or of the reader. Polls are sent only while somebody waits; the last ones end by
themselves, a second later at most.

While the metadata store is away, readers go on with what bookies say: `metadata_away` is set,
`answers_without_metadata` counts, and nobody waits for metadata again until it was there once more.
Such an answer may be behind a ledger that was closed meanwhile; it is never ahead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from dlog.chance import Chance, backoff_s
from dlog.clock import Clock
from dlog.errors import DlogError, NotFound, ReaderClosed, Timeout, Unavailable
from dlog.ledger.bookkeeper.core.tail_read import (
    POLL_MS,
    LacAnswer,
    LacRound,
    Poll,
    TailRead,
    read_lac_answer,
)
from dlog.ledger.bookkeeper.ledger_nodes import Nodes, StoredLedger
from dlog.ledger.bookkeeper.links import Links
from dlog.limits import READ_TIMEOUT_MS_DEFAULT
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.bookie_v3 import pack_long_poll, pack_read_lac
from dlog.wire.bookie_v3_replies import Body, Response

LAC_TIMEOUT_MS: Final = float(READ_TIMEOUT_MS_DEFAULT)
POLL_TIMEOUT_MS: Final = POLL_MS + 1_000.0  # after this a bookie is silent, not waiting
# So long metadata is waited for when bookies have answered already.
METADATA_GRACE_S: Final = 2.0
# Metadata is looked at so often without any sign of a change: a watch is a hint.
LOOK_AGAIN_MS: Final = 10_000.0
_RETRY_LIMIT_S: Final = 1.0

_OnAnswer = Callable[[Answer, Body | None], None]


class TailWatch:
    """One for a reader."""

    def __init__(
        self,
        stored: StoredLedger,
        *,
        links: Links,
        nodes: Nodes,
        digest: EntryDigest,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.core = TailRead(stored.ledger_id, stored.metadata)
        self.metadata_away = False
        self.answers_without_metadata = 0
        self._ledger_id = stored.ledger_id
        self._links = links
        self._nodes = nodes
        self._digest = digest
        self._clock = clock
        self._chance = chance
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[DlogError | None] | None = None
        self._looked_at_s = clock.monotonic_s()
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order of their coming
        self._rounds: dict[asyncio.Future[None], None] = {}

    # --- metadata

    async def look(self) -> StoredLedger:
        """Metadata, not older than the call."""
        try:
            stored = await self._nodes.read_fresh(self._ledger_id)
        except NotFound:
            self.metadata_away = False
            self.core.on_deleted()
            raise
        except (Unavailable, Timeout):
            self.metadata_away = True
            raise
        finally:
            self._looked_at_s = self._clock.monotonic_s()
            self._wake()
        self.metadata_away = False
        self.core.on_metadata(stored.metadata)
        return stored

    async def look_briefly(self) -> None:
        """What `core` knows is not older than the call, unless `metadata_away`."""
        if self.metadata_away:
            self._probe()
        else:
            await self._wait_for(self._start(self._try_look()), METADATA_GRACE_S)

    def look_if_old(self) -> None:
        """A closed ledger changes no more, but it may be deleted, or move to other bookies."""
        if (self._clock.monotonic_s() - self._looked_at_s) * 1000 > LOOK_AGAIN_MS:
            self._probe()

    async def _try_look(self) -> DlogError | None:
        try:
            await self.look()
        except DlogError as error:
            return error
        return None

    def _probe(self) -> None:
        """A look that nobody waits for, one at a time."""
        if self._probing is None or self._probing.done():
            self._looked_at_s = self._clock.monotonic_s()
            self._probing = self._start(self._try_look())

    # --- the question

    async def last_readable(self) -> int:
        """Not older than the call, unless `metadata_away`. Metadata and bookies are asked at once:
        metadata says whether the right bookies were asked, and whether their answer counts."""
        if self.metadata_away:
            self._probe()
        # On its way back it may still hang: nobody waits for it twice.
        look = None if self.metadata_away else self._start(self._try_look())
        ensemble = self.core.metadata.fragments[-1].ensemble
        lacs = None if self.core.is_ended else self._start(self._try_ask_lacs())
        if look is None and lacs is None:
            # Nobody is asked, and nothing waited for. Whoever asks again and again would keep the
            # loop to himself, and the metadata store could not even be heard to be back.
            await asyncio.sleep(0)
        try:
            if look is not None:
                await self._see_metadata(look, lacs)
            if self.metadata_away:
                self.answers_without_metadata += 1
            if lacs is not None and not self.core.is_ended:
                if ensemble == self.core.metadata.fragments[-1].ensemble:
                    await asyncio.wait({lacs})
                    self._check_open()
                await self._take_lacs(lacs, ensemble)
            return self.core.readable
        finally:
            if lacs is not None:
                lacs.cancel()

    async def _take_lacs(
        self, lacs: asyncio.Task[DlogError | None], asked: tuple[str, ...]
    ) -> None:
        """Metadata may have come back in the meantime, and know better."""
        if self.core.is_ended:
            return
        if asked != self.core.metadata.fragments[-1].ensemble:
            await self._ask_lacs()
        elif (error := lacs.result()) is not None:
            raise error

    async def _see_metadata(
        self,
        look: asyncio.Task[DlogError | None],
        lacs: asyncio.Task[DlogError | None] | None,
    ) -> None:
        """Wait for it, but not long when bookies have answered. Where they did not, only metadata
        can help: it may be closed."""
        if lacs is not None:
            await asyncio.wait({look, lacs}, return_when=asyncio.FIRST_COMPLETED)
            self._check_open()
        answered = lacs is None or (lacs.done() and lacs.result() is None)
        await self._wait_for(look, METADATA_GRACE_S if answered else None)

    async def _wait_for(
        self, look: asyncio.Task[DlogError | None], timeout_s: float | None
    ) -> None:
        await asyncio.wait({look}, timeout=timeout_s)
        self._check_open()
        if not look.done():
            self.metadata_away = True
            self._probing = look
            return
        error = look.result()
        if error is not None and not isinstance(error, (NotFound, Unavailable, Timeout)):
            raise error

    async def _try_ask_lacs(self) -> DlogError | None:
        try:
            await self._ask_lacs()
        except DlogError as error:
            return error
        return None

    async def _ask_lacs(self) -> None:
        """Until bookies enough answered for the last word of the writer to be among them."""
        round = LacRound(self.core.metadata, ledger_id=self._ledger_id)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def heard(place: int, lac: LacAnswer) -> None:
            round.on_answer(place, lac)
            self.core.on_lac_answer(round.bookies[place], lac, self._clock.monotonic_s())
            if round.is_over:
                _settle(over)

        for place, bookie_id in enumerate(round.bookies):
            self._ask_lac(bookie_id, partial(heard, place))
        self._rounds[over] = None
        try:
            await over
        finally:
            self._rounds.pop(over, None)
        self._check_open()
        if not round.is_covered:
            raise round.error()

    def _ask_lac(self, bookie_id: str, on_lac: Callable[[LacAnswer], None]) -> None:
        def on_answer(answer: Answer, body: Body | None) -> None:
            on_lac(
                read_lac_answer(
                    answer,
                    body,
                    ledger_id=self._ledger_id,
                    digest=self._digest,
                    where=bookie_id,
                )
            )

        self._ask(
            bookie_id,
            lambda txn_id: pack_read_lac(txn_id, self._ledger_id),
            on_answer,
            LAC_TIMEOUT_MS,
        )

    # --- waiting

    async def wait_past(self, last_entry: int, timeout_ms: float) -> int:
        """News may be as old as the answer that brought it; without any, everybody is asked."""
        core = self.core
        deadline_s = self._clock.monotonic_s() + timeout_ms / 1000
        was_in_recovery = core.is_in_recovery
        if not core.is_heard(self._clock.monotonic_s()):
            try:
                readable = await self.last_readable()
            except (Unavailable, Timeout):
                if self._clock.monotonic_s() >= deadline_s:
                    raise
            else:
                if self._clock.monotonic_s() >= deadline_s:
                    return readable
        if not core.is_ended:
            self._watch()
        while True:
            self._check_open()
            fenced_now = core.is_in_recovery and not was_in_recovery
            if core.readable > last_entry or core.is_ended or fenced_now:
                return core.readable
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                return await self.last_readable()
            self._send(now_s)
            await self._heard(min(deadline_s, core.look_again_s()) - now_s)

    def _send(self, now_s: float) -> None:
        if self.core.wants_metadata:
            self.core.wants_metadata = False
            self._probe()
        polls, proofs = self.core.asks(now_s)
        for poll in polls:
            self._send_poll(poll)
        for poll in proofs:
            self._ask_lac(poll.bookie_id, partial(self._on_proof, poll))

    def _send_poll(self, poll: Poll) -> None:
        waits_past = poll.waits_past

        def pack(txn_id: int) -> bytes:
            return pack_long_poll(
                txn_id, self._ledger_id, previous_lac=waits_past, timeout_ms=POLL_MS
            )

        def on_answer(answer: Answer, body: Body | None) -> None:
            self.core.on_poll(poll, answer, body, self._digest, self._clock.monotonic_s())
            self._wake()

        self._ask(poll.bookie_id, pack, on_answer, POLL_TIMEOUT_MS)

    def _on_proof(self, poll: Poll, lac: LacAnswer) -> None:
        self.core.on_proof_answer(poll, lac, self._clock.monotonic_s())
        self._wake()

    async def _heard(self, timeout_s: float) -> None:
        """Something came, or the time is over."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), _settle, waiter)
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def _wake(self) -> None:
        for waiter in self._waiters:
            _settle(waiter)

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = self._start(self._watch_metadata())

    async def _watch_metadata(self) -> None:
        failures = 0
        while not self.core.is_ended:
            try:
                async with self._nodes.watch(self._ledger_id) as watch:
                    # What changed before the watch began, it does not tell.
                    while not self.core.is_ended:
                        await self.look()
                        await watch.wait(LOOK_AGAIN_MS)
                        failures = 0
            except NotFound:
                return
            except DlogError:
                # It is away, or holds what we cannot read; whoever asks for it is told why.
                await asyncio.sleep(backoff_s(failures, self._chance, limit_s=_RETRY_LIMIT_S))
                failures += 1

    # --- asking bookies

    def _ask(
        self, bookie_id: str, pack: Callable[[int], bytes], on_answer: _OnAnswer, timeout_ms: float
    ) -> None:
        """`on_answer` comes once, and not from inside this call; after `close` not at all."""

        def on_response(response: Response) -> None:
            if not self._closed:
                on_answer(response.answer, response.body)

        link = self._links.control_now(bookie_id)
        if link is not None:
            link.ask_soon(pack, on_response, timeout_ms=timeout_ms)
        else:
            self._start(self._connect_and_ask(bookie_id, pack, on_response, on_answer, timeout_ms))

    async def _connect_and_ask(
        self,
        bookie_id: str,
        pack: Callable[[int], bytes],
        on_response: Callable[[Response], None],
        on_answer: _OnAnswer,
        timeout_ms: float,
    ) -> None:
        try:
            link = await self._links.control(bookie_id)
        except DlogError:
            on_answer(Answer.DISCONNECTED, None)
            return
        link.ask_soon(pack, on_response, timeout_ms=timeout_ms)

    # --- life

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosed(
                f"the reader of ledger {self._ledger_id} was closed", ledger_id=self._ledger_id
            )

    async def close(self) -> None:
        """Whoever waits comes back. Polls that stand at bookies end there by themselves."""
        self._closed = True
        for future in self._waiters | self._rounds:
            _settle(future)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

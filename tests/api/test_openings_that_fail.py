"""Openings that fail beside a writer that works: it goes on, unless the opener really took over."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections import Counter
from typing import Any

import pytest

from dlog import aio
from dlog.client import Client
from dlog.drive import Stores
from dlog.errors import AuthError, DlogError, Fenced, Outcome, Timeout, Unavailable
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from tests.tiers import in_full

NAME = "orders"
OPENINGS_OF_A_LOG = 60  # each adds segments, and each look at the log reads the list of them
META_CALLS = ("get", "put", "create", "delete", "sync")
LEDGER_CALLS = ("create", "info", "recover", "open", "delete")
# What an opening needs of the ledger store before it claims the log.
BEFORE = {"ledgers.create", "ledgers.info", "birth"}


class Faults:
    """Strikes call number `at` of the opener, or each call of that name from then on."""

    def __init__(self, draw: random.Random) -> None:
        self.at = draw.randrange(24)
        self.is_lasting = draw.random() < 0.3
        self.is_applied = draw.random() < 0.3
        self.error: DlogError = draw.choice(
            [Unavailable("away"), Timeout("no reply"), AuthError("not you")]
        )
        self.calls = itertools.count()
        self.struck: set[str] = set()

    async def around(self, name: str, call: Any, args: Any, options: Any) -> Any:
        strikes = next(self.calls) == self.at or (self.is_lasting and name in self.struck)
        if not strikes:
            return await call(*args, **options)
        self.struck.add(name)
        if self.is_applied:
            await call(*args, **options)
            raise self.error.again(outcome=Outcome.UNKNOWN)
        raise self.error.again()


class Wrong(Faults):
    """A client whose options do not fit what is there: the same at each call."""

    def __init__(self, names: set[str], error: DlogError) -> None:
        super().__init__(random.Random(0))
        self.at, self.is_lasting, self.is_applied = -1, True, False
        self.struck, self.error = names, error


class Faulty:
    """A store, or an appender, with these calls through `faults`."""

    def __init__(self, inner: Any, room: str, calls: tuple[str, ...], faults: Faults) -> None:
        self._inner, self._room, self._calls, self._faults = inner, room, calls, faults

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in self._calls:
            return real

        async def call(*args: Any, **options: Any) -> Any:
            answer = await self._faults.around(f"{self._room}{name}", real, args, options)
            if self._room == "ledgers." and name == "create":
                return Faulty(answer, "", ("birth",), self._faults)
            return answer

        return call


async def client_with(url: str, **changed: Any) -> Client:
    client = aio.connect(url)
    client._opened = dataclasses.replace(await client._stores(True), **changed)
    return client


async def faulty_client(url: str, faults: Faults) -> Client:
    client = aio.connect(url)
    stores: Stores = await client._stores(True)
    meta: Any = Faulty(stores.meta, "meta.", META_CALLS, faults)
    ledgers: Any = Faulty(stores.ledgers, "ledgers.", LEDGER_CALLS, faults)
    client._opened = dataclasses.replace(stores, meta=meta, ledgers=ledgers)
    return client


def drawn(number: int) -> tuple[str, Faults]:
    draw = random.Random(number)
    wrong = [
        ("no bookies", Wrong({"ledgers.create"}, Unavailable("too few bookies"))),
        ("a bookie is dead", Wrong({"birth"}, Unavailable("one does not answer"))),
        ("wrong password", Wrong({"ledgers.info", "ledgers.recover"}, AuthError("not yours"))),
    ]
    if draw.random() < 0.3:
        return draw.choice(wrong)
    return "a fault", Faults(draw)


async def attempt(client: Client, name: str, *, stands_by: bool) -> Any:
    """The writer, or None when the opening failed."""
    try:
        if not stands_by:
            return await client.open_writer(name, create=False, open_timeout_ms=2_000)
        async with client.open_standby(name, create=False, open_timeout_ms=2_000) as standby:
            return await standby.take_over()
    except DlogError:
        return None


async def openings_that_fail(home: Client, name: str, numbers: range) -> Counter[str]:
    """Beside a writer of `name`, and what became of each."""
    came: Counter[str] = Counter()
    writer = await home.open_writer(name)
    for number in numbers:
        what, faults = drawn(number)
        other = await faulty_client(home.url, faults)
        opened = await attempt(other, name, stands_by=number % 4 == 3)
        lost = (await home.admin.describe(name)).epoch != writer.epoch
        if opened is None and lost:
            assert what == "a fault", (number, what)
            assert not faults.struck & BEFORE, (number, faults.struck)
        came[f"{what}: {'opened' if opened else 'took over' if lost else 'refused'}"] += 1
        await close_quietly(other)
        if lost:
            await close_quietly(writer)
            writer = await home.open_writer(name)  # whatever it left behind
        await writer.append(b"%d" % number)
        await writer.rotate()
        await writer.append(b"%d again" % number)
    await writer.close()
    return came


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", in_full([1_000, 60], but=[60], seconds=30))
async def test_a_writer_goes_on_beside_openings_that_fail(url: str, count: int) -> None:
    came: Counter[str] = Counter()
    async with aio.connect(url) as home:
        for first in range(0, count, OPENINGS_OF_A_LOG):
            name = f"{NAME}-{first}"
            numbers = range(first, min(first + OPENINGS_OF_A_LOG, count))
            came += await openings_that_fail(home, name, numbers)
            async with home.open_reader(name) as reader:
                kept = [message.value async for message in reader]
            assert kept == [each for n in numbers for each in (b"%d" % n, b"%d again" % n)]
    print(dict(sorted(came.items())))
    for what in ("no bookies", "a bookie is dead", "wrong password", "a fault"):
        assert came[f"{what}: refused"] > 0, came
    assert came["a fault: took over"] > 0, came


async def close_quietly(handle: Any) -> None:
    try:
        await handle.close()
    except DlogError:
        pass  # it lost what it was told that it lost


@pytest.mark.parametrize("stands_by", [False, True])
async def test_a_client_that_finds_none_of_the_ledgers_ends_nobody(
    url: str, stands_by: bool
) -> None:
    async with aio.connect(url) as home, home.open_writer(NAME) as writer:
        await writer.append(b"one")
        elsewhere: Any = MemoryLedgerStore(MemoryLedgers())
        other = await client_with(url, ledgers=elsewhere)
        assert await attempt(other, NAME, stands_by=stands_by) is None
        await other.close()
        await writer.append(b"two")
        await writer.rotate()
        await writer.append(b"three")


async def test_an_opener_that_is_fenced_before_it_is_open_is_told_by_whom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ledger is fenced or deleted behind its claim: the ledger does not know by whom, the log
    does."""
    from dlog.writer import engine

    claimed, taken_over = asyncio.Event(), asyncio.Event()
    genuine = engine.WriterDriver.run

    async def run(self: Any, procedure: Any) -> Any:
        if procedure.__name__ == "begin" and not claimed.is_set():
            claimed.set()
            await taken_over.wait()
            procedure.close()
            raise Fenced("ledger 3 was deleted", ledger_id=3)
        return await genuine(self, procedure)

    monkeypatch.setattr(engine.WriterDriver, "run", run)
    async with aio.connect("memory:fenced-before-it-is-open") as client:
        slow = asyncio.create_task(client.open_writer("orders", owner="slow").__aenter__())
        await claimed.wait()
        async with client.open_writer("orders", owner="quick") as winner:
            taken_over.set()
            with pytest.raises(Fenced) as told:
                await slow
        assert told.value.winner is not None
        assert (told.value.winner.name, told.value.winner.epoch) == ("quick", winner.epoch)

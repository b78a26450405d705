"""What every LedgerStore does, as checks named after behaviours: the only proof of the contract.

A check is an async function that takes `make`, which gives a further store on the same ledgers (as
another process would be). `ALL` holds every check, by name. A check fails by `AssertionError` or by
the error that should not have come; it never sleeps: it waits for the fact, with a bound.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from dlog.errors import (
    ConfigError,
    DlogError,
    Fenced,
    NotFound,
    TooLarge,
    WriterClosed,
)
from dlog.ledger.store import (
    Appender,
    Buffer,
    ClosedLedger,
    LedgerReader,
    LedgerSpec,
    LedgerState,
    LedgerStore,
)
from dlog.limits import LEDGER_ENTRY_BYTES_MAX, MIB

Make = Callable[[], Awaitable[LedgerStore]]
Check = Callable[[Make], Awaitable[None]]
T = TypeVar("T")

ALL: dict[str, Check] = {}

SPEC = LedgerSpec(custom={"application": b"dlog", "token": bytes(range(8))})
_PATIENCE_S = 20.0
_LONG_MS = 10_000.0
_ANY_BYTES = 64 * MIB


def behaviour(check: Check) -> Check:
    ALL[check.__name__] = check
    return check


class Heard:
    """A listener that keeps every fact, in order, and the thread it came on."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, int]] = []
        self.threads: set[int] = set()
        self.confirmed = -1
        self.published = -1
        self.failed: DlogError | None = None
        self._changed = asyncio.Event()

    def _hear(self, what: str, entry: int) -> None:
        assert self.failed is None, f"{what} after on_failed"
        self.facts.append((what, entry))
        self.threads.add(threading.get_ident())
        self._changed.set()

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        self._hear("confirmed", last_entry)
        assert last_entry > self.confirmed, "confirmations rise"
        self.confirmed = last_entry

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        self._hear("published", last_entry)
        assert self.published < last_entry <= self.confirmed, "published follows confirmed"
        self.published = last_entry

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        self._hear("failed", -1)
        self.failed = error

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_failed(self) -> None:
        await self.until(lambda: self.failed is not None)

    async def until_confirmed(self, entry: int) -> None:
        await self.until(lambda: self.confirmed >= entry or self.failed is not None)
        if self.failed is not None:
            raise self.failed


@asynccontextmanager
async def refused(kind: type[DlogError]):  # type: ignore[no-untyped-def]
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")


async def new_ledger(store: LedgerStore) -> tuple[Appender, Heard]:
    appender = await store.create(SPEC)
    heard = Heard()
    appender.listen(heard)
    return appender, heard


async def filled(
    store: LedgerStore, entries: Sequence[bytes], *, publish: bool = True
) -> tuple[Appender, Heard]:
    appender, heard = await new_ledger(store)
    for entry in entries:
        appender.submit([entry])
    await heard.until_confirmed(len(entries) - 1)
    if publish:
        appender.publish()
        await heard.until(lambda: heard.published == len(entries) - 1)
    return appender, heard


async def read_all(reader: LedgerReader, last_entry: int) -> list[bytes]:
    entries: list[bytes] = []
    while len(entries) <= last_entry:
        run = await reader.read(len(entries), last_entry, bytes_max=_ANY_BYTES)
        assert run, "a read returns at least one entry"
        entries += map(bytes, run)
    return entries


async def ids_of(store: LedgerStore) -> list[int]:
    return [ledger_id async for ledger_id in store.scan_ids()]


def numbered(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


# Appending.


@behaviour
async def entries_count_from_zero_without_holes(make: Make) -> None:
    appender, heard = await new_ledger(await make())
    assert [appender.submit([entry]) for entry in numbered(50)] == list(range(50))
    await heard.until_confirmed(49)


@behaviour
async def facts_come_in_order_on_the_loops_thread(make: Make) -> None:
    appender, heard = await new_ledger(await make())
    for entry in numbered(200):
        appender.submit([entry])
        if len(heard.facts) % 3 == 0:
            await asyncio.sleep(0)
        appender.publish()
    await heard.until_confirmed(199)
    appender.publish()
    await heard.until(lambda: heard.published == 199)
    assert heard.threads == {threading.get_ident()}


@behaviour
async def birth_returns_when_entry_0_is_confirmed(make: Make) -> None:
    appender, heard = await new_ledger(await make())
    await appender.birth([b"bi", b"rth"])
    assert heard.confirmed <= 0
    await heard.until_confirmed(0)
    assert appender.submit([b"next"]) == 1
    await heard.until_confirmed(1)
    appender.publish()
    assert await read_all(await (await make()).open(appender.ledger_id), 1) == [b"birth", b"next"]


@behaviour
async def birth_is_entry_0_or_refused(make: Make) -> None:
    appender, heard = await new_ledger(await make())
    appender.submit([b"first"])
    async with refused(ConfigError):
        await appender.birth([b"late"])
    await heard.until_confirmed(0)


@behaviour
async def birth_in_a_recovered_ledger_is_fenced(make: Make) -> None:
    store = await make()
    appender, _ = await new_ledger(store)
    assert await (await make()).recover(appender.ledger_id) == ClosedLedger(-1, 0)
    async with refused(Fenced):
        await appender.birth([b"too late"])


@behaviour
async def an_appender_has_one_listener_before_its_entries(make: Make) -> None:
    store = await make()
    appender, _ = await new_ledger(store)
    async with refused(ConfigError):
        appender.listen(Heard())
    async with refused(ConfigError):
        (await store.create(SPEC)).submit([b"nobody would hear"])


@behaviour
async def any_buffers_make_one_entry(make: Make) -> None:
    store = await make()
    appender, heard = await new_ledger(store)
    parts: list[list[Buffer]] = [
        [],
        [b""],
        [b"a", bytearray(b"bc"), memoryview(b"def")],
        [memoryview(b"12345678").cast("q")],
        [*(bytes([number]) for number in range(256))] * 9,
    ]
    for buffers in parts:
        appender.submit(buffers)
    await heard.until_confirmed(4)
    appender.publish()
    wanted = [b"", b"", b"abcdef", b"12345678", bytes(range(256)) * 9]
    assert await read_all(await store.open(appender.ledger_id), 4) == wanted
    assert await appender.close() == ClosedLedger(4, 6 + 8 + 256 * 9)


@behaviour
async def the_largest_entry_fits_and_a_larger_one_does_not(make: Make) -> None:
    store = await make()
    appender, heard = await new_ledger(store)
    largest = bytes(range(256)) * (LEDGER_ENTRY_BYTES_MAX // 256)
    largest += bytes(LEDGER_ENTRY_BYTES_MAX - len(largest))
    appender.submit([largest])
    async with refused(TooLarge):
        appender.submit([largest, b"1"])
    assert appender.submit([b"goes on"]) == 1, "a refused entry takes no number"
    await heard.until_confirmed(1)
    appender.publish()
    reader = await store.open(appender.ledger_id)
    (entry,) = await reader.read(0, 1, bytes_max=1)
    assert entry == largest
    assert await read_all(reader, 1) == [largest, b"goes on"]


@behaviour
async def submit_after_a_failure_is_silent(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(3))
    await store.recover(appender.ledger_id)
    appender.submit([b"late"])
    await heard.until_failed()
    assert isinstance(heard.failed, Fenced)
    assert appender.submit([b"later"]) == 4
    facts = len(heard.facts)
    await (await store.open(appender.ledger_id)).wait_past(9, 20)
    assert len(heard.facts) == facts, "after on_failed nothing more comes"


@behaviour
async def an_abandoned_appender_leaves_the_ledger_open(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(2))
    appender.submit([b"may be lost"])
    facts = len(heard.facts)
    appender.abandon()
    appender.abandon()
    assert (await store.info(appender.ledger_id)).state is LedgerState.OPEN
    async with refused(WriterClosed):
        appender.submit([b"no"])
    closed = await (await make()).recover(appender.ledger_id)
    assert closed.last_entry >= 1
    assert len(heard.facts) == facts, "an abandoned appender tells nothing"


# Publishing and reading.


@behaviour
async def nothing_is_readable_before_it_is_published(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(3), publish=False)
    reader = await (await make()).open(appender.ledger_id)
    readable = await reader.last_readable()
    assert readable < 2, "the last entry was confirmed, and not published"
    assert readable == heard.published
    async with refused(ConfigError):
        await reader.read(2, 2, bytes_max=_ANY_BYTES)
    appender.publish()
    await heard.until(lambda: heard.published == 2)
    assert await reader.last_readable() == 2
    assert await read_all(reader, 2) == numbered(3)


@behaviour
async def a_later_entry_publishes_what_it_saw_confirmed(make: Make) -> None:
    store = await make()
    appender, heard = await new_ledger(store)
    reader = await (await make()).open(appender.ledger_id)
    for entry in range(4):
        appender.submit([b"one by one"])
        await heard.until_confirmed(entry)
        await heard.until(lambda seen=entry: heard.published == seen - 1)  # type: ignore[misc]
        assert await reader.last_readable() == entry - 1


@behaviour
async def publishing_again_changes_nothing(make: Make) -> None:
    appender, heard = await filled(await make(), numbered(2))
    facts = list(heard.facts)
    appender.publish()
    assert heard.facts == facts


@behaviour
async def publishing_an_empty_ledger_tells_nothing(make: Make) -> None:
    store = await make()
    appender, heard = await new_ledger(store)
    appender.publish()
    assert heard.facts == []
    assert await (await store.open(appender.ledger_id)).last_readable() == -1


@behaviour
async def a_read_is_bounded_by_entry_and_by_bytes(make: Make) -> None:
    entries = [bytes([number]) * 100 for number in range(20)]
    store = await make()
    appender, _ = await filled(store, entries)
    reader = await (await make()).open(appender.ledger_id)
    assert [bytes(e) for e in await reader.read(3, 5, bytes_max=_ANY_BYTES)] == entries[3:6]
    assert [bytes(e) for e in await reader.read(7, 19, bytes_max=1)] == entries[7:8]
    run = await reader.read(2, 19, bytes_max=500)
    assert 1 <= len(run) <= 6, "about 500 bytes are about 5 entries"
    assert [bytes(entry) for entry in run] == entries[2 : 2 + len(run)]


@behaviour
async def any_entry_can_be_read_from_anywhere(make: Make) -> None:
    entries = [b"%d" % number * (number % 7) for number in range(300)]
    store = await make()
    appender, _ = await filled(store, entries)
    order = sorted(range(300), key=lambda number: number * 7919 % 300)
    for number in order:
        reader = await store.open(appender.ledger_id)
        (entry,) = await reader.read(number, number, bytes_max=1)
        assert entry == entries[number]
        await reader.close()


@behaviour
async def a_bad_range_is_refused(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    reader = await store.open(appender.ledger_id)
    for first, last in ((-1, 1), (2, 1), (0, 3), (3, 3)):
        async with refused(ConfigError):
            await reader.read(first, last, bytes_max=_ANY_BYTES)


@behaviour
async def a_reader_follows_a_writer(make: Make) -> None:
    store, other = await make(), await make()
    appender, heard = await new_ledger(store)
    reader = await other.open(appender.ledger_id)
    wanted = numbered(200)

    async def write() -> None:
        for number, entry in enumerate(wanted):
            appender.submit([entry])
            if number % 10 == 9:
                await heard.until_confirmed(number)
                appender.publish()

    async def read() -> list[bytes]:
        seen: list[bytes] = []
        while len(seen) < len(wanted):
            last = await reader.wait_past(len(seen) - 1, _LONG_MS)
            while len(seen) <= last:
                seen += map(bytes, await reader.read(len(seen), last, bytes_max=100))
        return seen

    async with asyncio.timeout(_PATIENCE_S):
        _, seen = await asyncio.gather(write(), read())
    assert seen == wanted


@behaviour
async def a_deleted_or_unknown_ledger_is_not_found(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    reader = await (await make()).open(appender.ledger_id)
    await read_all(reader, 2)
    await store.delete(appender.ledger_id)
    async with refused(NotFound):
        await reader.info()
    async with refused(NotFound):
        await reader.read(0, 2, bytes_max=_ANY_BYTES)
    for ledger_id in (appender.ledger_id, appender.ledger_id + 1_000_000):
        async with refused(NotFound):
            await store.open(ledger_id)
        async with refused(NotFound):
            await store.info(ledger_id)
        async with refused(NotFound):
            await store.recover(ledger_id)


# Waiting.


async def _wakes(
    reader: LedgerReader, last_entry: int, act: Callable[[], Awaitable[object]]
) -> int:
    """What a wait that began before `act` comes back with, long before its time is over."""
    waiting = asyncio.create_task(reader.wait_past(last_entry, 60_000))
    await asyncio.sleep(0)
    await reader.last_readable()  # the wait is under way by now, on every backend
    early = waiting.done()  # allowed; then the next wait must see it
    await act()
    async with asyncio.timeout(_PATIENCE_S):
        last = await waiting
        return await reader.wait_past(last_entry, 60_000) if early else last


@behaviour
async def a_wait_wakes_on_publish(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(1), publish=False)
    reader = await (await make()).open(appender.ledger_id)

    async def publish() -> None:
        appender.publish()

    assert await _wakes(reader, -1, publish) == 0


@behaviour
async def a_wait_wakes_on_a_later_entry(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(1), publish=False)
    reader = await (await make()).open(appender.ledger_id)

    async def submit() -> None:
        appender.submit([b"carries the confirmation of entry 0"])

    assert await _wakes(reader, -1, submit) == 0


@behaviour
async def a_wait_wakes_on_close(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await (await make()).open(appender.ledger_id)
    assert await _wakes(reader, 1, appender.close) == 1


@behaviour
async def a_wait_wakes_on_recovery(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2), publish=False)
    reader = await store.open(appender.ledger_id)
    other = await make()
    ledger_id = appender.ledger_id

    async def recover() -> None:
        await other.recover(ledger_id)

    await _wakes(reader, 1, recover)
    assert await reader.last_readable() == 1


@behaviour
async def a_wait_wakes_on_deletion(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await (await make()).open(appender.ledger_id)
    last = await _wakes(reader, 1, lambda: store.delete(appender.ledger_id))
    assert last in (-1, 1), "woken by the fence, or by the deletion itself"
    assert await reader.wait_past(1, _LONG_MS) == -1


@behaviour
async def a_wait_ends_with_its_time(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await store.open(appender.ledger_id)
    async with asyncio.timeout(_PATIENCE_S):
        assert await reader.wait_past(1, 30) == 1
        assert await reader.wait_past(1, 0) == 1


@behaviour
async def a_wait_for_what_is_there_returns_at_once(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    reader = await store.open(appender.ledger_id)
    async with asyncio.timeout(_PATIENCE_S):
        assert await reader.wait_past(0, 600_000) == 2
        await appender.close()
        assert await reader.wait_past(2, 600_000) == 2, "a closed ledger has no more to wait for"


# Closing.


@behaviour
async def a_closed_ledger_is_readable_to_its_end_and_never_changes(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(5), publish=False)
    early = await (await make()).open(appender.ledger_id)
    closed = await appender.close()
    assert closed == ClosedLedger(4, sum(map(len, numbered(5))))
    assert await early.last_readable() == 4, "closing publishes"
    assert await read_all(early, 4) == numbered(5)
    info = await (await make()).info(appender.ledger_id)
    assert (info.state, info.closed) == (LedgerState.CLOSED, closed)
    assert await (await make()).recover(appender.ledger_id) == closed
    late = await (await make()).open(appender.ledger_id)
    assert await read_all(late, 4) == numbered(5)


@behaviour
async def closing_again_returns_the_same(make: Make) -> None:
    appender, _ = await filled(await make(), numbered(2))
    first, second = await asyncio.gather(appender.close(), appender.close())
    assert first == second == await appender.close()
    async with refused(WriterClosed):
        appender.submit([b"after close"])


@behaviour
async def an_empty_ledger_closes_empty(make: Make) -> None:
    store = await make()
    appender = await store.create(SPEC)
    assert await appender.close() == ClosedLedger(-1, 0)
    reader = await store.open(appender.ledger_id)
    assert await reader.last_readable() == -1
    assert await reader.wait_past(-1, _LONG_MS) == -1


@behaviour
async def close_counts_every_confirmed_entry_and_no_other(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(3))
    for entry in numbered(100):
        appender.submit([entry])
    closed = await appender.close()
    assert closed.last_entry == heard.confirmed >= 2
    last = closed.last_entry
    entries = await read_all(await store.open(appender.ledger_id), last)
    assert entries == (numbered(3) + numbered(100))[: last + 1]
    assert closed.bytes == sum(map(len, entries))


@behaviour
async def a_close_at_the_same_end_is_the_same_close(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    closed = await (await make()).recover(appender.ledger_id)
    assert await appender.close() == closed == ClosedLedger(2, sum(map(len, numbered(3))))


@behaviour
async def a_close_of_a_deleted_ledger_is_fenced(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    await (await make()).delete(appender.ledger_id)
    async with refused(Fenced):
        await appender.close()


@behaviour
async def close_and_recovery_agree(make: Make) -> None:
    store, other = await make(), await make()
    for burst in range(12):
        appender, heard = await filled(store, numbered(2))
        for entry in numbered(burst):
            appender.submit([entry])
        closing, recovered = await asyncio.gather(
            appender.close(), other.recover(appender.ledger_id), return_exceptions=True
        )
        assert isinstance(recovered, ClosedLedger)
        assert (await other.info(appender.ledger_id)).closed == recovered
        assert recovered.last_entry >= heard.confirmed
        if isinstance(closing, Fenced):
            continue
        assert closing == recovered


# Recovering.


@behaviour
async def recovered_ledger_refuses_its_old_appender(make: Make) -> None:
    store = await make()
    old, heard = await filled(store, numbered(3))
    closed = await (await make()).recover(old.ledger_id)
    assert closed == ClosedLedger(2, sum(map(len, numbered(3))))
    old.submit([b"late"])
    await heard.until_failed()
    assert isinstance(heard.failed, Fenced)
    assert heard.confirmed == 2
    reader = await store.open(old.ledger_id)
    assert await reader.last_readable() == 2
    async with refused(ConfigError):
        await reader.read(3, 3, bytes_max=_ANY_BYTES)


@behaviour
async def recovery_keeps_every_confirmed_entry(make: Make) -> None:
    store, other = await make(), await make()
    for round_number in range(8):
        appender, heard = await new_ledger(store)
        wanted = [b"%d" % number for number in range(64)]
        for entry in wanted:
            appender.submit([entry])
        await heard.until_confirmed(round_number)
        closed = await other.recover(appender.ledger_id)
        # Facts on their way when recovery returned must not be above its end.
        if closed.last_entry < 63:
            await heard.until_failed()
        assert heard.confirmed <= closed.last_entry
        entries = await read_all(await other.open(appender.ledger_id), closed.last_entry)
        assert entries == wanted[: closed.last_entry + 1]
        assert closed.bytes == sum(map(len, entries))


@behaviour
async def recovery_is_idempotent(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(4))
    first = await store.recover(appender.ledger_id)
    assert first.last_entry == 3
    assert await store.recover(appender.ledger_id) == first
    assert await (await make()).recover(appender.ledger_id) == first


@behaviour
async def five_recoverers_at_once_agree(make: Make) -> None:
    store = await make()
    stores = [await make() for _ in range(5)]
    for _ in range(5):
        appender, heard = await new_ledger(store)
        for entry in numbered(40):
            appender.submit([entry])
        await heard.until_confirmed(3)
        ends = await asyncio.gather(*(other.recover(appender.ledger_id) for other in stores))
        assert len(set(ends)) == 1
        assert ends[0].last_entry >= heard.confirmed


@behaviour
async def an_empty_ledger_recovers_empty(make: Make) -> None:
    store = await make()
    appender = await store.create(SPEC)
    assert await (await make()).recover(appender.ledger_id) == ClosedLedger(-1, 0)


@behaviour
async def entry_0_alone_survives_recovery(make: Make) -> None:
    store = await make()
    appender, heard = await new_ledger(store)
    await appender.birth([b"only"])
    assert await (await make()).recover(appender.ledger_id) == ClosedLedger(0, 4)
    assert await read_all(await store.open(appender.ledger_id), 0) == [b"only"]
    del heard


@behaviour
async def recovery_makes_unpublished_entries_readable(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3), publish=False)
    reader = await store.open(appender.ledger_id)
    await (await make()).recover(appender.ledger_id)
    assert await reader.last_readable() == 2
    assert await read_all(reader, 2) == numbered(3)


# Ids, metadata, deletion, the store.


@behaviour
async def ids_only_grow_also_after_deletions(make: Make) -> None:
    store, other = await make(), await make()
    seen: list[int] = []
    for number in range(6):
        appender = await (store if number % 2 == 0 else other).create(SPEC)
        seen.append(appender.ledger_id)
        if number % 3 == 2:
            await store.delete(appender.ledger_id)
    assert seen == sorted(set(seen))


@behaviour
async def a_new_ledger_is_open_and_keeps_its_spec(make: Make) -> None:
    store = await make()
    appender = await store.create(SPEC)
    reader = await (await make()).open(appender.ledger_id)
    for info in (await store.info(appender.ledger_id), await reader.info()):
        assert info.ledger_id == appender.ledger_id == reader.ledger_id
        assert (info.state, info.closed) == (LedgerState.OPEN, None)
        assert info.spec == SPEC
    await appender.close()
    assert (await reader.info()).spec == SPEC, "closing keeps what the ledger was made with"


@behaviour
async def scan_lists_every_ledger_in_rising_order(make: Make) -> None:
    store = await make()
    made = [(await store.create(SPEC)).ledger_id for _ in range(12)]
    await store.delete(made[4])
    assert await ids_of(await make()) == made[:4] + made[5:]


@behaviour
async def deletion_is_final_in_any_state(make: Make) -> None:
    store = await make()
    open_one, _ = await filled(store, numbered(2))
    closed_one, _ = await filled(store, numbered(2))
    await closed_one.close()
    for ledger_id in (open_one.ledger_id, closed_one.ledger_id):
        await (await make()).delete(ledger_id)
        await store.delete(ledger_id)
        async with refused(NotFound):
            await store.info(ledger_id)
    assert await ids_of(store) == []


@behaviour
async def the_appender_of_a_deleted_ledger_is_fenced(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(2))
    await (await make()).delete(appender.ledger_id)
    appender.submit([b"into nothing"])
    await heard.until_failed()
    assert isinstance(heard.failed, Fenced)
    assert heard.confirmed == 1


@behaviour
async def ledgers_do_not_mix(make: Make) -> None:
    store = await make()
    appenders = [await new_ledger(store) for _ in range(4)]
    for entry in range(20):
        for appender, _ in appenders:
            appender.submit([b"%d of %d" % (entry, appender.ledger_id)])
    for appender, heard in appenders:
        await heard.until_confirmed(19)
        appender.publish()
        entries = await read_all(await store.open(appender.ledger_id), 19)
        assert entries == [b"%d of %d" % (entry, appender.ledger_id) for entry in range(20)]


@behaviour
async def closing_the_store_abandons_what_is_open(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await store.open(appender.ledger_id)
    await store.close()
    await store.close()
    async with refused(WriterClosed):
        appender.submit([b"no"])
    async with refused(ConfigError):
        await reader.last_readable()
    async with refused(ConfigError):
        await store.create(SPEC)
    other = await make()
    assert (await other.info(appender.ledger_id)).state is LedgerState.OPEN
    assert (await other.recover(appender.ledger_id)).last_entry == 1


@behaviour
async def a_closed_reader_is_refused_and_closes_again(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await store.open(appender.ledger_id)
    await reader.close()
    await reader.close()
    async with refused(ConfigError):
        await reader.read(0, 0, bytes_max=1)


@behaviour
async def cancelling_a_wait_hurts_nobody(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(1))
    reader = await store.open(appender.ledger_id)
    for _ in range(3):
        waiting = asyncio.create_task(reader.wait_past(0, 60_000))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    appender.submit([b"still works"])
    await heard.until_confirmed(1)
    appender.publish()
    assert await reader.wait_past(0, _LONG_MS) == 1

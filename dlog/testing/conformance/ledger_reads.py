"""What a reader sees, and when it wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dlog.errors import (
    AuthError,
    ConfigError,
    NotFound,
)
from dlog.ledger.store import (
    LedgerReader,
)
from dlog.testing.conformance.ledger_tools import (
    ANY_BYTES,
    LONG_MS,
    Make,
    behaviour,
    filled,
    in_time,
    new_ledger,
    numbered,
    read_all,
    refused,
)


@behaviour
async def nothing_is_readable_before_it_is_published(make: Make) -> None:
    store = await make()
    appender, heard = await filled(store, numbered(3), publish=False)
    reader = await (await make()).open(appender.ledger_id)
    readable = await reader.last_readable()
    assert readable < 2, "the last entry was confirmed, and not published"
    assert readable == heard.published
    async with refused(ConfigError):
        await reader.read(2, 2, bytes_max=ANY_BYTES)
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
    assert [bytes(e) for e in await reader.read(3, 5, bytes_max=ANY_BYTES)] == entries[3:6]
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
            await reader.read(first, last, bytes_max=ANY_BYTES)


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
            last = await reader.wait_past(len(seen) - 1, LONG_MS)
            while len(seen) <= last:
                seen += map(bytes, await reader.read(len(seen), last, bytes_max=100))
        return seen

    async with in_time():
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
        await reader.last_readable()
    async with refused(NotFound):
        await reader.read(0, 2, bytes_max=ANY_BYTES)
    for ledger_id in (appender.ledger_id, appender.ledger_id + 1_000_000):
        async with refused(NotFound):
            await store.open(ledger_id)
        async with refused(NotFound):
            await store.info(ledger_id)
        async with refused(NotFound):
            await store.recover(ledger_id)


@behaviour
async def another_digest_than_the_log_was_made_with_is_refused(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    for call in (store.open, (await make()).recover):
        async with refused(AuthError):
            await call(appender.ledger_id, digest="hmac")
    reader = await store.open(appender.ledger_id, digest="crc32c")
    await reader.close()
    closed = await (await make()).recover(appender.ledger_id, digest="crc32c")
    assert closed.last_entry == 2
    async with refused(AuthError):
        await store.open(appender.ledger_id, digest="hmac")


async def _wakes(
    reader: LedgerReader, last_entry: int, act: Callable[[], Awaitable[object]]
) -> int:
    """What a wait that began before `act` comes back with, long before its time is over."""
    waiting = asyncio.create_task(reader.wait_past(last_entry, 60_000))
    await asyncio.sleep(0)
    await reader.last_readable()  # the wait is under way by now, on every backend
    early = waiting.done()  # allowed; then the next wait must see it
    await act()
    async with in_time():
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
    assert await reader.wait_past(1, LONG_MS) == -1


@behaviour
async def a_wait_ends_with_its_time(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(2))
    reader = await store.open(appender.ledger_id)
    async with in_time():
        assert await reader.wait_past(1, 30) == 1
        assert await reader.wait_past(1, 0) == 1


@behaviour
async def a_wait_for_what_is_there_returns_at_once(make: Make) -> None:
    store = await make()
    appender, _ = await filled(store, numbered(3))
    reader = await store.open(appender.ledger_id)
    async with in_time():
        assert await reader.wait_past(0, 600_000) == 2
        await appender.close()
        assert await reader.wait_past(2, 600_000) == 2, "a closed ledger has no more to wait for"

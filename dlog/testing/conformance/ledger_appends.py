"""What a ledger's appender does, until it is closed."""

from __future__ import annotations

import asyncio
import threading

from dlog.errors import (
    ConfigError,
    Fenced,
    TooLarge,
    WriterClosed,
)
from dlog.ledger.store import (
    Buffer,
    ClosedLedger,
    LedgerState,
)
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.testing.conformance.ledger_tools import (
    SPEC,
    Heard,
    Make,
    behaviour,
    filled,
    new_ledger,
    numbered,
    published,
    read_all,
    refused,
)


@behaviour
async def entries_count_from_zero_without_holes(make: Make) -> None:
    """DL-14: entry ids begin at 0 and are contiguous."""
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
    await published(appender, heard)
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
    await published(appender, heard)
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
    await published(appender, heard)
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

"""How a ledger ends: closed, recovered, deleted; and what is left of it then."""

from __future__ import annotations

import asyncio

from dlog.errors import (
    ConfigError,
    Fenced,
    NotFound,
    WriterClosed,
)
from dlog.ledger.store import (
    ClosedLedger,
    LedgerState,
)
from dlog.testing.conformance.ledger_tools import (
    ANY_BYTES,
    LONG_MS,
    SPEC,
    Make,
    behaviour,
    filled,
    ids_of,
    new_ledger,
    numbered,
    published,
    read_all,
    refused,
)


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
    assert await reader.wait_past(-1, LONG_MS) == -1


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
        await reader.read(3, 3, bytes_max=ANY_BYTES)


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


@behaviour
async def ids_only_grow_also_after_deletions(make: Make) -> None:
    """DL-01, DL-02, DL-13: no id is given twice."""
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
        await published(appender, heard)
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
    assert await reader.wait_past(0, LONG_MS) == 1

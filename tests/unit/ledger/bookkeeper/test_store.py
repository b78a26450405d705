"""What the store decides itself, without any bookie to talk to: what it makes, whose password fits,
what a deletion does, how it ends."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from dlog.clock import SystemClock
from dlog.errors import AuthError, ConfigError, NotFound, Unavailable, Unsupported, WriterClosed
from dlog.ledger.bookkeeper.health import NoQuarantine
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerSpec, LedgerState
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.wire import ledger_metadata
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata
from tests.unit.ledger.bookkeeper.meddling import Meddling

# Registered, and nobody listens there.
BOOKIES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4")
OPEN = LedgerMetadata(
    3, 3, 2, (Fragment(0, BOOKIES[:3]),), digest_type=DigestType.CRC32C, password=b"ours"
)
CLOSED = replace(OPEN, state=ledger_metadata.LedgerState.CLOSED, last_entry_id=4, length_bytes=20)


@pytest.fixture
async def meta() -> AsyncIterator[Meddling]:
    meta = Meddling(MemoryTree())
    await meta.create("/ledgers/available/readonly", b"")
    for bookie_id in BOOKIES:
        await meta.create(f"/ledgers/available/{bookie_id}", b"", ephemeral=True)
    yield meta
    await meta.close()


@pytest.fixture
async def store(meta: Meddling) -> AsyncIterator[BookKeeperLedgerStore]:
    store = BookKeeperLedgerStore(meta, password=b"ours", recovery_timeout_ms=500)
    yield store
    await store.close()


async def ledger_on(meta: Meddling, metadata: LedgerMetadata) -> int:
    return (await LedgerNodes(meta).create(metadata)).ledger_id


async def ids_of(store: BookKeeperLedgerStore) -> list[int]:
    return [ledger_id async for ledger_id in store.scan_ids()]


# --- Open


async def test_what_it_just_closed_is_opened_without_another_look_once(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    """Who takes over a log reads the ledger that was recovered, and nobody waits longer than need
    be. Any other reader is asked for, and has to be there."""
    ledger_id = await ledger_on(meta, CLOSED)
    nodes = LedgerNodes(meta)
    store._recovery.remember(await nodes.read(ledger_id))
    await nodes.delete(ledger_id)  # by somebody else
    with pytest.raises(NotFound):
        await store.open(ledger_id)
    reader = await store.open(ledger_id, closed=ClosedLedger(4, 20))
    with pytest.raises(NotFound):
        await reader.info()
    await reader.close()
    with pytest.raises(NotFound):
        await store.open(ledger_id, closed=ClosedLedger(4, 20))


# --- Create


async def test_a_new_ledger_stands_in_metadata_as_asked(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    spec = LedgerSpec(4, 4, 3, digest="hmac", custom={"b": b"\x00\xff", "a": b""})
    appender = await store.create(spec)
    stored = (await LedgerNodes(meta).read(appender.ledger_id)).metadata
    assert sorted(stored.fragments[0].ensemble) == sorted(BOOKIES)
    assert (stored.password, stored.digest_type) == (b"ours", DigestType.HMAC)
    assert stored.custom == (CustomPair("b", b"\x00\xff"), CustomPair("a", b""))
    info = await store.info(appender.ledger_id)
    assert (info.ledger_id, info.state, info.closed) == (
        appender.ledger_id,
        LedgerState.OPEN,
        None,
    )
    assert info.spec == spec


async def test_a_new_ledger_says_when_it_was_made(meta: Meddling) -> None:
    """By the clock of whoever made it, in milliseconds."""

    class Clock(SystemClock):
        def wall_us(self) -> int:
            return 1_700_000_000_123_456

    store = BookKeeperLedgerStore(meta, password=b"ours", clock=Clock())
    appender = await store.create(LedgerSpec())
    stored = (await LedgerNodes(meta).read(appender.ledger_id)).metadata
    assert stored.ctime_ms == 1_700_000_000_123
    assert (await store.info(appender.ledger_id)).made_us == 1_700_000_000_123_000
    await store.close()


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac"])
async def test_every_digest_comes_back_by_its_name(
    store: BookKeeperLedgerStore, digest: str
) -> None:
    spec = LedgerSpec(digest=digest)
    appender = await store.create(spec)
    assert (await store.info(appender.ledger_id)).spec == spec


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (LedgerSpec(3, 2, 2), Unsupported),
        (LedgerSpec(digest="none"), ConfigError),
        (LedgerSpec(digest="dummy"), ConfigError),
        (LedgerSpec(digest="md5"), ConfigError),
        (LedgerSpec(0, 0, 0), ConfigError),
        (LedgerSpec(2, 2, 3), ConfigError),
        (LedgerSpec(2, 2, 0), ConfigError),
    ],
)
async def test_a_ledger_that_cannot_be_is_refused_before_it_costs_an_id(
    meta: Meddling, store: BookKeeperLedgerStore, spec: LedgerSpec, error: Any
) -> None:
    with pytest.raises(error):
        await store.create(spec)
    assert meta.count_of("draw") == 0
    assert await ids_of(store) == []


async def test_too_few_bookies_are_named_and_cost_no_id(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    with pytest.raises(Unavailable, match=r"2 more than the 4.*127\.0\.0\.1:1") as caught:
        await store.create(LedgerSpec(6, 6, 2))
    assert caught.value.needed == 2
    assert meta.count_of("draw") == 0


async def test_a_bookie_that_came_just_now_is_found(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    await store.create(LedgerSpec())
    meta._tree._watches.clear()  # nobody is told
    await meta.create("/ledgers/available/127.0.0.1:5", b"", ephemeral=True)
    appender = await store.create(LedgerSpec(5, 5, 3))
    assert len((await LedgerNodes(meta).read(appender.ledger_id)).metadata.fragments) == 1


@pytest.mark.parametrize("place", range(4))
async def test_a_new_ledger_leaves_a_bookie_in_quarantine_alone(meta: Meddling, place: int) -> None:
    class Quarantine(NoQuarantine):
        def avoided(self, now_s: float) -> frozenset[str]:
            return frozenset({BOOKIES[place]})

    store = BookKeeperLedgerStore(meta, health=Quarantine())
    appender = await store.create(LedgerSpec())
    stored = await LedgerNodes(meta).read(appender.ledger_id)
    assert set(stored.metadata.fragments[0].ensemble) == set(BOOKIES) - {BOOKIES[place]}
    await store.close()


async def test_the_policy_that_was_given_places_the_ledger(meta: Meddling) -> None:
    class Last:
        def ensemble(
            self, size: int, *, writable: Sequence[str], avoided: AbstractSet[str]
        ) -> tuple[str, ...]:
            return tuple(writable[-size:])

        def replacement(self, **_: object) -> None:
            return None

    store = BookKeeperLedgerStore(meta, placement=Last())
    for _ in range(5):
        appender = await store.create(LedgerSpec(2, 2, 2))
        stored = await LedgerNodes(meta).read(appender.ledger_id)
        assert stored.metadata.fragments[0].ensemble == BOOKIES[-2:]
    await store.close()


async def test_where_no_cluster_is_it_says_so() -> None:
    meta = MemoryMetaStore(MemoryTree())
    store = BookKeeperLedgerStore(meta, ledgers_root="/elsewhere")
    with pytest.raises(ConfigError, match=r"ledgers='/elsewhere': no BookKeeper cluster"):
        await store.create(LedgerSpec())
    assert await meta.children("/") == []
    await store.close()


# --- Foreign ledgers


async def test_another_password_opens_and_recovers_nothing(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    for password in (b"", b"theirs"):
        ledger_id = await ledger_on(meta, replace(OPEN, password=password))
        for call in (store.open, store.recover):
            with pytest.raises(AuthError) as caught:
                await call(ledger_id)
            assert "ours" not in str(caught.value)
        stored = await LedgerNodes(meta).read(ledger_id)
        assert stored.metadata.state is ledger_metadata.LedgerState.OPEN
        assert (await store.info(ledger_id)).state is LedgerState.OPEN


@pytest.mark.parametrize("password", [b"ours", b"theirs", None])
async def test_a_closed_ledger_tells_its_end_to_anybody(
    meta: Meddling, store: BookKeeperLedgerStore, password: bytes | None
) -> None:
    ledger_id = await ledger_on(meta, replace(CLOSED, password=password))
    assert await store.recover(ledger_id) == ClosedLedger(4, 20)
    assert (await store.info(ledger_id)).closed == ClosedLedger(4, 20)


async def test_a_ledger_older_than_digests_is_shown_and_not_opened(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    ledger_id = await ledger_on(meta, replace(OPEN, password=None, digest_type=None))
    assert (await store.info(ledger_id)).spec.digest == "none"
    for call in (store.open, store.recover):
        with pytest.raises(Unsupported):
            await call(ledger_id)


async def test_striped_ledgers_are_shown_as_they_are(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    ledger_id = await ledger_on(meta, replace(OPEN, write_quorum=2))
    spec = (await store.info(ledger_id)).spec
    assert (spec.ensemble, spec.write_quorum, spec.ack_quorum) == (3, 2, 2)
    await store.open(ledger_id)


async def test_a_ledger_that_is_not_seen_yet_is_looked_for(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    ledger_id = await ledger_on(meta, CLOSED)
    path = f"/ledgers/00/0000/L{ledger_id:04d}"
    for call in (store.open, store.info, store.recover):
        meta.old[path] = None
        await call(ledger_id)


async def test_who_opens_a_ledger_knows_its_bookies_without_zookeeper(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    moved = replace(OPEN, fragments=(OPEN.fragments[0], Fragment(7, BOOKIES[1:])))
    ledger_id = await ledger_on(meta, moved)
    await store.open(ledger_id)
    meta.away |= {"get", "children", "sync"}
    for bookie_id in BOOKIES:
        assert (await store._registry.resolve(bookie_id)).host == "127.0.0.1"


async def test_a_ledger_of_bookies_that_are_gone_can_be_opened(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    gone = replace(CLOSED, fragments=(Fragment(0, ("b1:1", "b2:1", "b3:1")),))
    reader = await store.open(await ledger_on(meta, gone))
    assert await reader.last_readable() == 4


# --- Delete


async def test_a_closed_ledger_is_deleted_without_a_bookie(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    ledger_id = await ledger_on(meta, CLOSED)
    await store.delete(ledger_id)
    await store.delete(ledger_id)
    assert await ids_of(store) == []
    assert meta.calls, "and nobody looked for one"
    assert not any("/available" in path for name, path in meta.calls if name != "create")


async def test_an_open_ledger_is_fenced_or_says_that_it_was_not(
    meta: Meddling, store: BookKeeperLedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_id = await ledger_on(meta, OPEN)
    before_delete: list[LedgerMetadata] = []

    async def look() -> None:
        before_delete.append((await LedgerNodes(Meddling(meta._tree)).read(ledger_id)).metadata)

    await store.create(LedgerSpec())  # draws, and deletes what it drew
    await asyncio.sleep(0)
    meta.before["delete"].append(look)
    await store.delete(ledger_id)
    assert ledger_id not in await ids_of(store)
    assert f"ledger {ledger_id} is deleted open" in caplog.text
    # Marked all the same: an appender that looks finds that out before it finds nothing.
    assert before_delete[0].state is ledger_metadata.LedgerState.IN_RECOVERY


# --- The end


async def test_a_closed_store_refuses_everything(meta: Meddling) -> None:
    store = BookKeeperLedgerStore(meta)
    appender = await store.create(LedgerSpec())
    reader = await store.open(appender.ledger_id)
    await asyncio.gather(store.close(), store.close())
    with pytest.raises(ConfigError, match="closed"):
        await reader.last_readable()
    with pytest.raises(WriterClosed):
        await store._links.data(BOOKIES[0])
    for call in (
        store.create(LedgerSpec()),
        store.open(appender.ledger_id),
        store.info(appender.ledger_id),
        store.recover(appender.ledger_id),
        store.delete(appender.ledger_id),
        ids_of(store),
    ):
        with pytest.raises(ConfigError, match="was closed"):
            await call
    assert await meta.children("/ledgers"), "the metadata store is not ours to close"


async def test_an_unused_store_closes(meta: Meddling) -> None:
    await BookKeeperLedgerStore(meta).close()


async def test_nothing_runs_on_behind_a_closed_store(meta: Meddling) -> None:
    before = asyncio.all_tasks()
    store = BookKeeperLedgerStore(meta)
    for _ in range(5):
        appender = await store.create(LedgerSpec())
        await store.open(appender.ledger_id)
    recovering = asyncio.create_task(store.recover(appender.ledger_id))
    await meta.sync()
    await store.close()
    with pytest.raises((ConfigError, Unavailable)):
        await recovering
    assert asyncio.all_tasks() == before


async def test_a_close_waits_for_what_is_tidied_behind_a_create(meta: Meddling) -> None:
    store = BookKeeperLedgerStore(meta)
    gate = asyncio.Event()
    meta.before["delete"].append(gate.wait)
    await store.create(LedgerSpec())
    closing = asyncio.create_task(store.close())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await closing
    assert await meta.children("/ledgers/idgen") == []


async def test_a_store_closed_while_it_makes_a_ledger(meta: Meddling) -> None:
    store = BookKeeperLedgerStore(meta)
    await store.create(LedgerSpec())
    meta.before["draw"].append(store.close)
    with pytest.raises(ConfigError):
        await store.create(LedgerSpec())
    assert not store._appenders


async def test_a_store_closed_while_it_begins(meta: Meddling) -> None:
    before = asyncio.all_tasks()
    store = BookKeeperLedgerStore(meta)
    meta.before["children"].append(store.close)
    with pytest.raises(ConfigError):
        await store.create(LedgerSpec())
    assert asyncio.all_tasks() == before


async def test_a_store_dropped_without_close_says_so(meta: Meddling) -> None:
    stores = [BookKeeperLedgerStore(meta)]
    with pytest.raises(NotFound):
        await stores[0].open(77)
    registry = stores[0]._registry
    with pytest.warns(ResourceWarning, match="without close"):
        stores.clear()
    await registry.close()


async def test_an_unused_store_may_be_dropped(meta: Meddling) -> None:
    store = BookKeeperLedgerStore(meta)
    assert await ids_of(store) == []
    del store
    gc.collect()


async def test_a_store_is_not_used_behind_a_fork(
    meta: Meddling, store: BookKeeperLedgerStore
) -> None:
    await store.create(LedgerSpec())
    child = os.fork()
    if child == 0:
        # Never again through the loop of the parent.
        try:
            store.info(0).send(None)
        except BaseException as error:
            os._exit(0 if "the ledger store at /ledgers was opened by" in str(error) else 1)
        os._exit(2)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

"""Which passwords and digests the store takes: of new ledgers, and of those that are there."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import AuthError, ConfigError
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes, StoredLedger
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import LedgerSpec
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.secret import Secret
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata

BOOKIES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
OPEN = LedgerMetadata(
    3, 3, 2, (Fragment(0, BOOKIES),), digest_type=DigestType.HMAC, password=b"ours"
)


@pytest.fixture
async def meta() -> AsyncIterator[MemoryMetaStore]:
    meta = MemoryMetaStore(MemoryTree())
    await meta.create("/ledgers/available/readonly", b"")
    for bookie_id in BOOKIES:
        await meta.create(f"/ledgers/available/{bookie_id}", b"", ephemeral=True)
    yield meta
    await meta.close()


def stored(**changes: Any) -> StoredLedger:
    return StoredLedger(7, replace(OPEN, **changes), 0)


async def test_without_a_password_each_ledger_gets_a_strong_one_of_its_own(
    meta: MemoryMetaStore,
) -> None:
    store = BookKeeperLedgerStore(meta)
    ids = [(await store.create(LedgerSpec())).ledger_id for _ in range(3)]
    passwords = [(await LedgerNodes(meta).read(each)).metadata.password for each in ids]
    assert len(set(passwords)) == 3
    assert all(password is not None and len(password) == 32 for password in passwords)
    # Another store, which was told nothing either, opens them all.
    other = BookKeeperLedgerStore(meta)
    for ledger_id in ids:
        await (await other.open(ledger_id)).close()
    stranger = BookKeeperLedgerStore(meta, password=b"theirs")
    with pytest.raises(AuthError):
        await stranger.open(ids[0])
    for each in (store, other, stranger):
        await each.close()


async def test_an_empty_password_is_refused_before_anything_is_made(meta: MemoryMetaStore) -> None:
    with pytest.raises(ConfigError, match="empty password"):
        BookKeeperLedgerStore(meta, password=b"")
    store = BookKeeperLedgerStore(meta, password=Secret(lambda: b""))
    with pytest.raises(ConfigError, match="empty password"):
        await store.create(LedgerSpec())
    assert [ledger_id async for ledger_id in store.scan_ids()] == []
    await store.close()
    unsafe = BookKeeperLedgerStore(meta, password=b"", unsafe_empty_password=True)
    appender = await unsafe.create(LedgerSpec())
    assert (await LedgerNodes(meta).read(appender.ledger_id)).metadata.password == b""
    await unsafe.close()


async def test_a_ledger_with_an_empty_password_is_opened_only_by_who_says_so(
    meta: MemoryMetaStore,
) -> None:
    made = await LedgerNodes(meta).create(replace(OPEN, password=b""))
    safe = BookKeeperLedgerStore(meta)
    for call in (safe.open, safe.recover):
        with pytest.raises(AuthError, match="empty password"):
            await call(made.ledger_id)
    await safe.close()
    unsafe = BookKeeperLedgerStore(meta, unsafe_empty_password=True)
    await (await unsafe.open(made.ledger_id)).close()
    await unsafe.close()


async def test_a_password_is_asked_for_when_it_is_needed(meta: MemoryMetaStore) -> None:
    answers = iter([b"first", b"second"])
    store = BookKeeperLedgerStore(meta, password=lambda: next(answers))
    for wanted in (b"first", b"second"):
        appender = await store.create(LedgerSpec())
        assert (await LedgerNodes(meta).read(appender.ledger_id)).metadata.password == wanted
    await store.close()


def test_passwords_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []

    def compare(a: Any, b: Any) -> bool:
        asked.append((a, b))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with pytest.raises(AuthError, match="another password"):
        Passwords(b"theirs").digest_of(stored())
    assert asked == [(b"ours", b"theirs")]


@pytest.mark.parametrize("said", [DigestType.CRC32C, DigestType.CRC32, DigestType.DUMMY])
def test_a_digest_that_was_changed_in_the_metadata_is_not_followed(said: DigestType) -> None:
    passwords = Passwords(b"ours", unsafe_no_digest=True)
    assert passwords.digest_of(stored(), "hmac").type is DigestType.HMAC
    with pytest.raises(AuthError, match="should have the digest hmac"):
        passwords.digest_of(stored(digest_type=said), "hmac")


def test_a_ledger_that_nothing_checks_is_refused() -> None:
    dummy = stored(digest_type=DigestType.DUMMY)
    with pytest.raises(AuthError, match="nothing checks"):
        Passwords(b"ours").digest_of(dummy)
    with pytest.raises(ConfigError, match="dummy"):
        Passwords(b"ours").check_new(LedgerSpec(digest="dummy"))
    unsafe = Passwords(b"ours", unsafe_no_digest=True)
    unsafe.check_new(LedgerSpec(digest="dummy"))
    assert unsafe.digest_of(dummy).type is DigestType.DUMMY


async def test_a_store_that_was_told_a_digest_knows_no_other(meta: MemoryMetaStore) -> None:
    """Whatever the log and the ledger say: both stand where somebody may have changed them."""
    plain = BookKeeperLedgerStore(meta)
    made = (await plain.create(LedgerSpec(digest="crc32c"))).ledger_id
    told = BookKeeperLedgerStore(meta, digest="hmac")
    for call in (told.open, told.recover):
        for pinned in (None, "crc32c"):
            with pytest.raises(AuthError, match="should have the digest hmac"):
                await call(made, digest=pinned)
    with pytest.raises(AuthError, match="the log says crc32c"):
        await told.create(LedgerSpec(digest="crc32c"))
    ours = (await told.create(LedgerSpec(digest="hmac"))).ledger_id
    await (await told.open(ours, digest="hmac")).close()
    with pytest.raises(AuthError, match="should have the digest crc32c"):
        await told.open(ours, digest="crc32c")
    for each in (plain, told):
        await each.close()
    with pytest.raises(ConfigError, match="a digest is one of"):
        BookKeeperLedgerStore(meta, digest="none")

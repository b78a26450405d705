"""Reading cold files, vanishing files and long ledgers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import Corrupt, NotFound, Outcome, Unavailable
from dlog.ledger.embedded import EmbeddedLedgerStore, datafile
from dlog.ledger.embedded.datafile import DataFile
from dlog.ledger.embedded.file import FRAME_HEADER_BYTES
from dlog.testing.conformance.ledger_tools import filled, new_ledger, numbered, published, read_all

MakeEmbedded = Callable[[], EmbeddedLedgerStore]


async def test_a_cold_read_hops_to_a_thread(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(50))
    threads: set[int] = set()
    real = DataFile.read

    def spy(self: DataFile, offset: int, size: int, *, wait: bool) -> bytearray:
        if wait:
            threads.add(threading.get_ident())
        return real(self, offset, size, wait=wait)

    reader = await store.open(appender.ledger_id)
    assert await reader.last_readable() == 49
    monkeypatch.setattr(datafile, "_NOWAIT", None)  # nothing is ever said to be in memory
    monkeypatch.setattr(DataFile, "read", spy)
    assert await read_all(reader, 49) == numbered(50)
    assert threads, "somebody read, and could have waited"
    assert threading.get_ident() not in threads, "never on the loop"


async def test_a_cancelled_cold_read_keeps_its_descriptor_to_the_end(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(5))
    reader = await store.open(appender.ledger_id)
    await reader.last_readable()
    began, go_on = threading.Event(), threading.Event()
    done: list[bytearray] = []
    real = DataFile.read

    def slow(self: DataFile, offset: int, size: int, *, wait: bool) -> bytearray:
        if not wait:
            raise datafile.WouldWait
        began.set()
        assert go_on.wait(10)
        done.append(real(self, offset, size, wait=wait))
        return done[-1]

    monkeypatch.setattr(DataFile, "read", slow)
    reading = asyncio.create_task(reader.read(0, 4, bytes_max=1000))
    await asyncio.get_running_loop().run_in_executor(None, began.wait, 10)
    reading.cancel()
    await asyncio.wait([reading])
    await reader.close()
    assert reader._data is not None
    assert reader._data._fd >= 0, "closed under a thread that reads it, it could be another file"
    go_on.set()
    async with asyncio.timeout(10):
        while reader._data._fd >= 0:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    assert len(done) >= 1


async def test_files_that_vanish_with_their_ledger_are_not_damage(make: MakeEmbedded) -> None:
    store = make()
    appender, _ = await filled(store, numbered(3))
    await appender.close()
    reader = await make().open(appender.ledger_id)  # has not opened a file yet
    await store.delete(appender.ledger_id)
    with pytest.raises(NotFound):
        await reader.last_readable()
    with pytest.raises(NotFound):
        await reader.read(0, 2, bytes_max=100)


async def test_a_disk_error_is_named_and_the_reader_lives(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(3))
    reader = await store.open(appender.ledger_id)
    await reader.last_readable()

    def broken(*args: object) -> int:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(Unavailable, match="EIO") as caught:
            await reader.read(0, 2, bytes_max=100)
    assert caught.value.outcome is Outcome.NOT_HAPPENED
    assert caught.value.path == reader._data_path
    assert await read_all(reader, 2) == numbered(3)


async def test_a_search_reads_few_headers(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O(log² n): walking back from the end of 20,000 entries would be 10,000 reads on average."""
    count = 20_000
    store = make()
    appender, _ = await filled(store, [b"%d" % number for number in range(count)])
    headers = 0
    real = DataFile.read

    def counted(self: DataFile, offset: int, size: int, *, wait: bool) -> bytearray:
        nonlocal headers
        headers += size == FRAME_HEADER_BYTES
        return real(self, offset, size, wait=wait)

    monkeypatch.setattr(DataFile, "read", counted)
    most = 0
    for entry in [0, 1, 4_095, 4_096, 8_191, 12_287, count - 2, count - 1, *range(7, count, 999)]:
        headers = 0
        reader = await store.open(appender.ledger_id)
        (found,) = await reader.read(entry, entry, bytes_max=1)
        assert found == b"%d" % entry
        await reader.close()
        most = max(most, headers)
    assert 1 <= most <= 15 * 15


async def test_reading_on_needs_no_search(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(1000))
    reader = await store.open(appender.ledger_id)
    entries = [*map(bytes, await reader.read(0, 999, bytes_max=1000))]

    def no_search(*args: object) -> int:
        raise AssertionError("searched for the entry that follows the last one read")

    monkeypatch.setattr(type(reader), "_search", no_search)
    while len(entries) < 1000:
        entries += map(bytes, await reader.read(len(entries), 999, bytes_max=1000))
    assert entries == numbered(1000)


async def test_a_data_file_that_is_lost_under_a_reader_is_damage(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    """The reader looked while nothing was written, and meets the loss with the first entries."""
    store = make()
    appender, heard = await new_ledger(store)
    reader = await make().open(appender.ledger_id)
    assert await reader.last_readable() == -1
    for entry in numbered(3):
        appender.submit([entry])
    await heard.until_confirmed(2)
    await published(appender, heard)
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.ledger"
    path.unlink()
    with pytest.raises(Corrupt) as caught:
        await reader.last_readable()
    assert (caught.value.path, caught.value.ledger_id) == (str(path), appender.ledger_id)
    assert (caught.value.offset, caught.value.entry_id) == (0, -1), "no entry of it is known"
    with pytest.raises(Corrupt):
        await reader.read(0, 2, bytes_max=1000)


async def test_a_ledger_that_is_deleted_under_a_reader_is_not_found(make: MakeEmbedded) -> None:
    store = make()
    appender, heard = await new_ledger(store)
    reader = await make().open(appender.ledger_id)
    assert await reader.last_readable() == -1
    for entry in numbered(3):
        appender.submit([entry])
    await heard.until_confirmed(2)
    await published(appender, heard)
    await store.delete(appender.ledger_id)
    with pytest.raises(NotFound):
        await reader.last_readable()
    with pytest.raises(NotFound):
        await reader.read(0, 2, bytes_max=1000)

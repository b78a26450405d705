"""What is on disk before anybody hears of it: the order of syncs, metadata and what is told."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlog import trace
from dlog.errors import Outcome, Unavailable
from dlog.ledger.embedded import EmbeddedLedgerStore, committer, datafile, words
from dlog.ledger.embedded.words import CONFIRMED, Words
from dlog.ledger.store import ClosedLedger, LedgerState
from dlog.testing.conformance.ledger_tools import filled, numbered, read_all

MakeEmbedded = Callable[[], EmbeddedLedgerStore]


class Disk:
    """Watches the calls that make something durable; the real calls are made, too."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.fails = False
        patch.setattr(datafile, "os", SimpleNamespace(**{**vars(os), "fdatasync": self._sync}))
        patch.setattr(committer, "_sync", self._sync)
        steps = self.steps

        class Map(mmap.mmap):
            def flush(self, *args: int) -> None:
                steps.append("sync of words")
                super().flush(*args)

        patch.setattr(words, "mmap", SimpleNamespace(mmap=Map))
        trace.listen(lambda point, side: self.steps.append(f"{side} {point}"))

    def _sync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        name = os.readlink(f"/proc/self/fd/{fd}").rsplit(".", 1)[-1]
        os.fdatasync(fd)
        self.steps.append(f"sync of {name}")

    def order(self, *steps: str) -> list[int]:
        """Where each first stands."""
        return [self.steps.index(step) for step in steps]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    yield Disk(monkeypatch)
    trace.listen(None)


async def unconfirmed(store: EmbeddedLedgerStore, entries: int, confirmed: int) -> int:
    """A ledger of so many written entries, of which the words know the first few only: as if its
    appender had died between its write and its sync."""
    appender, _ = await filled(store, numbered(entries))
    path = store._words_path(appender.ledger_id)
    known = Words(path, appender.ledger_id, create=False)
    end = known.confirmed_offset
    offsets = [64]
    for entry in numbered(entries):
        offsets.append(offsets[-1] + 64 + len(entry) + -len(entry) % 8)
    assert offsets[entries - 1] == end
    known._words[CONFIRMED] = offsets[confirmed - 1] if confirmed > 0 else 0
    known.close()
    appender.abandon()
    await appender.ended.wait()
    return int(appender.ledger_id)


@pytest.mark.parametrize("confirmed", [0, 1, 3, 4])
async def test_a_recovery_syncs_what_it_counts_before_it_decides_the_end(
    make: MakeEmbedded, disk: Disk, confirmed: int
) -> None:
    ledger_id = await unconfirmed(make(), 5, confirmed)
    disk.steps.clear()
    closed = await make().recover(ledger_id)
    assert closed.last_entry == 4
    order = disk.order(
        "sync of words",
        "after ledger.fenced",
        "before recover.scanned",
        "sync of ledger",
        "after recover.scanned",
        "before recover.closed",
    )
    assert order == sorted(order)


async def test_what_is_known_to_be_on_disk_is_not_synced_again(
    make: MakeEmbedded, disk: Disk
) -> None:
    ledger_id = await unconfirmed(make(), 5, 5)
    disk.steps.clear()
    assert (await make().recover(ledger_id)).last_entry == 4
    assert "sync of ledger" not in disk.steps


@pytest.mark.parametrize("confirmed", [0, 2])
async def test_a_recovery_that_cannot_sync_decides_nothing(
    make: MakeEmbedded, disk: Disk, confirmed: int
) -> None:
    ledger_id = await unconfirmed(make(), 5, confirmed)
    disk.fails = True
    with pytest.raises(Unavailable, match="EIO"):
        await make().recover(ledger_id)
    assert (await make().info(ledger_id)).state is LedgerState.OPEN
    disk.fails = False
    assert (await make().recover(ledger_id)).last_entry == 4


async def test_a_sync_that_fails_while_a_recovery_reads_leaves_what_was_confirmed(
    make: MakeEmbedded, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The appender's sync may fail between the two: its pages may be gone although a later sync
    says nothing."""
    store = make()
    ledger_id = await unconfirmed(store, 5, 2)
    path = store._words_path(ledger_id)
    sync = disk._sync

    def fails_beside(fd: int) -> None:
        sync(fd)
        beside = Words(path, ledger_id, create=False)
        beside.mark_sync_failed()
        beside.close()

    monkeypatch.setattr(datafile, "os", SimpleNamespace(**{**vars(os), "fdatasync": fails_beside}))
    size = sum(map(len, numbered(2)))
    assert await make().recover(ledger_id) == ClosedLedger(1, size)
    assert await read_all(await make().open(ledger_id), 1) == numbered(2)


async def test_an_entry_is_synced_and_then_the_fence_is_looked_at_and_then_it_is_told(
    make: MakeEmbedded, disk: Disk
) -> None:
    store = make()
    appender, heard = await filled(store, numbered(1))
    disk.steps.clear()
    told = heard.confirmed
    appender.submit([b"next"])
    await heard.until_confirmed(told + 1)
    steps = [step for step in disk.steps if "ledger." in step or "sync" in step]
    assert steps == [
        "before ledger.written",
        "after ledger.written",
        "before ledger.synced",
        "sync of ledger",
        "after ledger.synced",
        "before ledger.looked",
        "after ledger.looked",
    ]
    await appender.close()


async def test_a_deletion_is_marked_on_disk_before_anything_goes(
    make: MakeEmbedded, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(2))
    ledger_id = appender.ledger_id
    disk.steps.clear()
    real: Any = store._nodes.delete

    async def delete(which: int) -> None:
        disk.steps.append("the node goes")
        await real(which)

    monkeypatch.setattr(store._nodes, "delete", delete)
    await store.delete(ledger_id)
    order = disk.order("sync of words", "the node goes")
    assert order == sorted(order)


async def test_the_names_of_a_new_ledger_are_synced(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A crash of the host must not lose the file of entries that were told."""
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store = make()
    appender, _ = await filled(store, numbered(1))
    assert str(tmp_path / "ledgers") in synced
    names = sorted(os.listdir(tmp_path / "ledgers"))
    assert len([name for name in names if name.endswith((".ledger", ".words"))]) == 2
    await appender.close()


async def test_a_failed_sync_of_an_entry_is_unknown_and_recovery_leaves_it_out(
    make: MakeEmbedded, disk: Disk
) -> None:
    appender, heard = await filled(make(), numbered(2))
    disk.fails = True
    appender.submit([b"lost?"])
    await heard.until_failed()
    assert heard.failed.outcome is Outcome.UNKNOWN
    disk.fails = False
    closed = await make().recover(appender.ledger_id)
    assert closed.last_entry == 1

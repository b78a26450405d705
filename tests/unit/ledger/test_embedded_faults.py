"""A disk that fails: nothing acknowledged is lost, the error says what is known, nobody retries."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlog.errors import Handle, Outcome, Retry, Unavailable
from dlog.ledger.embedded import EmbeddedLedgerStore, committer
from dlog.ledger.store import LedgerSpec
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.testing.conformance.ledger_tools import filled, numbered, read_all

MakeEmbedded = Callable[[], EmbeddedLedgerStore]


def failing(code: int) -> Callable[..., None]:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def os_with(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(os), **changed})


async def failed_append(
    store: EmbeddedLedgerStore, monkeypatch: pytest.MonkeyPatch, **changed: object
) -> tuple[int, Unavailable]:
    """Three entries, then one that meets the fault."""
    appender, heard = await filled(store, numbered(3))
    for name, change in changed.items():
        monkeypatch.setattr(committer, name, change)
    appender.submit([b"x" * 1_000_000])
    await heard.until_failed()
    monkeypatch.undo()
    assert heard.confirmed == 2
    assert isinstance(heard.failed, Unavailable)
    assert (heard.failed.handle, heard.failed.retry) == (Handle.DEAD, Retry.AFTER_REOPEN)
    assert heard.failed.path.endswith(f"{appender.ledger_id:010d}.ledger")
    return appender.ledger_id, heard.failed


async def test_a_full_disk_found_when_reserving_wrote_nothing(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id, error = await failed_append(make(), monkeypatch, reserve=failing(errno.ENOSPC))
    assert error.outcome is Outcome.NOT_HAPPENED
    assert "ENOSPC" in error.message
    assert (await make().recover(ledger_id)).last_entry == 2


async def test_the_stock_of_disk_grows_with_the_ledger_and_is_bounded(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a ledger takes beyond its entries: little at first, and never more than 4 MiB."""
    reserved: list[tuple[int, int]] = []
    monkeypatch.setattr(committer, "reserve", lambda fd, begin, end: reserved.append((begin, end)))
    size = 1 << 20
    appender, heard = await filled(make(), [])
    written: list[int] = []
    for entry_id in range(24):
        asked = len(reserved)
        appender.submit([b"x" * size])
        await heard.until_confirmed(entry_id)
        written += [(entry_id + 1) * size] * (len(reserved) - asked)
    stocks = [(end - sent) / size for (_, end), sent in zip(reserved, written, strict=True)]
    assert [round(stock, 2) for stock in stocks[:6]] == [0.25, 0.5, 1, 2, 4, 4]
    assert all(later[0] == earlier[1] for earlier, later in itertools.pairwise(reserved))
    await appender.close()


async def test_a_failed_write_is_of_unknown_outcome(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id, error = await failed_append(
        make(), monkeypatch, os=os_with(pwritev=failing(errno.EIO))
    )
    assert error.outcome is Outcome.UNKNOWN
    assert "EIO" in error.message
    assert (await make().recover(ledger_id)).last_entry == 2


async def test_a_failed_sync_kills_the_appender_and_recovery_trusts_nothing_behind_it(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id, error = await failed_append(make(), monkeypatch, _sync=failing(errno.EIO))
    assert error.outcome is Outcome.UNKNOWN
    closed = await make().recover(ledger_id)
    assert closed.last_entry == 2, "the entry is in the page cache, and maybe nowhere else"
    assert await read_all(await make().open(ledger_id), 2) == numbered(3)


async def test_an_appender_that_failed_can_be_closed_at_what_it_confirmed(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    appender, heard = await filled(store, numbered(2))
    monkeypatch.setattr(committer, "_sync", failing(errno.EIO))
    appender.submit([b"lost"])
    await heard.until_failed()
    closed = await appender.close()
    assert closed.last_entry == 1
    assert await make().recover(appender.ledger_id) == closed


async def test_short_writes_are_continued(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may write less than it was given, at any byte."""
    real = os.pwritev
    steps = [1, 7, 63, 64, 65, 100, 1000]

    def short(fd: int, buffers: list[bytes], offset: int) -> int:
        budget = steps[offset % len(steps)]
        part = []
        for buffer in buffers:
            part.append(memoryview(buffer).cast("B")[:budget])
            budget -= len(part[-1])
            if budget == 0:
                break
        return real(fd, part, offset)

    monkeypatch.setattr(committer, "os", os_with(pwritev=short))
    entries = [bytes([number]) * (number * 13) for number in range(60)]
    store = make()
    appender, _ = await filled(store, entries)
    assert await read_all(await store.open(appender.ledger_id), 59) == entries
    await appender.close()


async def test_a_write_of_more_buffers_than_the_kernel_takes(make: MakeEmbedded) -> None:
    store = make()
    entries = [b"%d" % number for number in range(3000)]
    appender, _ = await filled(store, entries)
    reader = await store.open(appender.ledger_id)
    assert await read_all(reader, 2999) == entries


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "dlog-test", str(mount)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("full disk: there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"full disk: cannot mount a small tmpfs here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


async def test_a_really_full_disk(small_disk: Path) -> None:
    tree = MemoryTree()
    meta = MemoryMetaStore(tree)
    store = EmbeddedLedgerStore(small_disk, meta)
    appender, heard = await filled(store, numbered(3))
    for _ in range(100):
        appender.submit([os.urandom(100_000)])
    await heard.until_failed()
    assert isinstance(heard.failed, Unavailable)
    assert "ENOSPC" in heard.failed.message
    assert heard.confirmed >= 2

    async def create_many() -> None:
        for _ in range(2_000):  # more words files than pages are left
            (await store.create(LedgerSpec())).abandon()

    with pytest.raises(Unavailable):
        await create_many()
    closed = await store.recover(appender.ledger_id)
    assert closed.last_entry >= heard.confirmed
    assert len(await read_all(await store.open(appender.ledger_id), closed.last_entry)) > 3
    await store.close()
    await meta.close()

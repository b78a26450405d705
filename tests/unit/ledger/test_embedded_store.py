"""The embedded store's own duties: files beside nodes, every order of steps, no leaks."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog import trace
from dlog.errors import (
    AuthError,
    ConfigError,
    Corrupt,
    Fenced,
    ForkedHandle,
    FormatError,
    NotFound,
    Outcome,
    Unavailable,
)
from dlog.ledger.embedded import EmbeddedLedgerStore
from dlog.ledger.embedded.background import in_background
from dlog.ledger.embedded.words import CONFIRMED, FENCE, PUBLISHED, Words
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerSpec, LedgerState
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.testing.conformance import ledger_ends, ledger_tools
from dlog.testing.conformance.ledger_tools import filled, new_ledger, numbered, read_all

MakeEmbedded = Callable[[], EmbeddedLedgerStore]


class Pause:
    """Holds whoever reaches a crash point on another thread: a process that sleeps there."""

    def __init__(self, point: str, side: str, skip: int = 0) -> None:
        self._at = (point, side)
        self._skip = skip
        self._go = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        trace.listen(self._on_point)

    def _on_point(self, point: str, side: str) -> None:
        if (point, side) == self._at:
            self._skip -= 1
            if self._skip < 0:
                trace.listen(None)
                self._loop.call_soon_threadsafe(self.reached.set)
                assert self._go.wait(20), "nobody let the paused thread go on"

    def go_on(self) -> None:
        self._go.set()


STEPS = [
    ("ledger.written", "before"),
    ("ledger.written", "after"),
    ("ledger.synced", "before"),
    ("ledger.synced", "after"),
    ("ledger.looked", "before"),
    ("ledger.looked", "after"),
]


@pytest.mark.parametrize(("point", "side"), STEPS)
async def test_fenced_appender_confirms_nothing_above_the_end(
    make: MakeEmbedded, point: str, side: str
) -> None:
    appender, heard = await filled(make(), numbered(3))
    pause = Pause(point, side)
    appender.submit([b"asleep"])
    await pause.reached.wait()
    closed = await make().recover(appender.ledger_id)
    assert heard.confirmed == 2
    pause.go_on()
    appender.submit([b"after"])
    await heard.until_failed()
    assert isinstance(heard.failed, Fenced)
    written = (point, side) != ("ledger.written", "before")
    assert closed.last_entry == (3 if written else 2)
    looked = (point, side) == ("ledger.looked", "after")
    assert heard.confirmed == (3 if looked else 2) <= closed.last_entry
    assert await make().recover(appender.ledger_id) == closed
    entries = await read_all(await make().open(appender.ledger_id), closed.last_entry)
    assert entries == [*numbered(3), b"asleep"][: closed.last_entry + 1]


async def test_without_the_look_the_suite_fails(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: an appender that stores and never looks."""
    monkeypatch.setattr(Words, "fenced", property(lambda self: False))

    async def make_store() -> EmbeddedLedgerStore:
        return make()

    monkeypatch.setattr(ledger_tools, "_PATIENCE_S", 1.0)
    with pytest.raises((AssertionError, TimeoutError)):
        await ledger_ends.recovered_ledger_refuses_its_old_appender(make_store)


async def test_without_a_fence_the_suite_fails(
    make: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: a recoverer that scans and never fences."""
    monkeypatch.setattr(Words, "fence", lambda self: None)

    async def make_store() -> EmbeddedLedgerStore:
        return make()

    monkeypatch.setattr(ledger_tools, "_PATIENCE_S", 1.0)
    with pytest.raises((AssertionError, TimeoutError)):
        await ledger_ends.recovered_ledger_refuses_its_old_appender(make_store)


@pytest.mark.parametrize(
    ("point", "side"), [("ledger.file_created", "before"), ("ledger.file_created", "after")]
)
async def test_a_creator_that_slept_through_a_recovery_is_fenced(
    make: MakeEmbedded, point: str, side: str
) -> None:
    store, other = make(), make()
    pause = Pause(point, side)
    creating = asyncio.create_task(store.create(LedgerSpec()))
    await pause.reached.wait()
    (ledger_id,) = await ledger_tools.ids_of(other)
    assert await other.recover(ledger_id) == ClosedLedger(-1, 0)
    pause.go_on()
    appender = await creating
    with pytest.raises(Fenced):
        await appender.birth([b"birth"])
    assert (await other.info(ledger_id)).closed == ClosedLedger(-1, 0)


@pytest.mark.parametrize(
    ("point", "side"), [("ledger.file_created", "before"), ("ledger.file_created", "after")]
)
async def test_a_creator_that_slept_through_a_deletion_is_fenced(
    make: MakeEmbedded, tmp_path: Path, point: str, side: str
) -> None:
    store, other = make(), make()
    pause = Pause(point, side)
    creating = asyncio.create_task(store.create(LedgerSpec()))
    await pause.reached.wait()
    (ledger_id,) = await ledger_tools.ids_of(other)
    await other.delete(ledger_id)
    pause.go_on()
    with pytest.raises(Fenced):
        await creating
    assert os.listdir(tmp_path / "ledgers") == ["store"], "no files without a node"


async def test_a_node_without_files_is_an_empty_ledger(make: MakeEmbedded, tmp_path: Path) -> None:
    store = make()
    appender = await store.create(LedgerSpec())
    appender.abandon()
    for name in os.listdir(tmp_path / "ledgers"):
        if name != "store":
            (tmp_path / "ledgers" / name).unlink()
    reader = await make().open(appender.ledger_id)
    assert await reader.last_readable() == -1
    assert await reader.wait_past(-1, 5) == -1
    assert (await make().info(appender.ledger_id)).state is LedgerState.OPEN
    assert await make().recover(appender.ledger_id) == ClosedLedger(-1, 0)
    assert await reader.wait_past(-1, 5_000) == -1
    assert (await reader.info()).closed == ClosedLedger(-1, 0)


async def test_a_deletion_that_died_is_finished_and_nothing_else_goes(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    store = make()
    kept, _ = await filled(store, numbered(2))
    ledgers = tmp_path / "ledgers"
    (ledgers / "0000000777.ledger").write_bytes(b"half deleted")
    marked = Words(str(ledgers / "0000000777.words"), 777, create=True)
    marked.mark_deleting()
    marked.close()
    # Without a node, but nobody said that it may go: an older copy of the metadata was put back.
    (ledgers / "0000000778.ledger").write_bytes(b"all that is left")
    Words(str(ledgers / "0000000778.words"), 778, create=True).close()
    (ledgers / "0000000779.words").write_bytes(b"who knows")
    before = {"store", f"{kept.ledger_id:010d}.ledger", f"{kept.ledger_id:010d}.words"}
    assert await ledger_tools.ids_of(make()) == [kept.ledger_id]
    left = {"0000000778.ledger", "0000000778.words", "0000000779.words"}
    assert set(os.listdir(ledgers)) == before | left


async def test_files_of_another_metadata_store_are_not_touched(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    await filled(make(), numbered(2))
    before = sorted(os.listdir(tmp_path / "ledgers"))
    meta = MemoryMetaStore(MemoryTree())
    store = EmbeddedLedgerStore(tmp_path, meta)
    with pytest.raises(ConfigError, match="belong to metadata store"):
        await ledger_tools.ids_of(store)
    (tmp_path / "ledgers" / "store").unlink()
    with pytest.raises(ConfigError, match="holds ledgers"):
        await ledger_tools.ids_of(store)
    before.remove("store")
    assert sorted(os.listdir(tmp_path / "ledgers")) == before
    await store.close()
    await meta.close()


async def test_unknown_metadata_fields_survive_a_close(
    make: MakeEmbedded, tree: MemoryTree
) -> None:
    store, meta = make(), MemoryMetaStore(tree)
    appender, _ = await filled(store, numbered(2))
    path = f"/ledgers/ledger-{appender.ledger_id:010d}"
    found = await meta.get(path)
    fields = {**json.loads(found.value), "from_the_future": [1, 2]}
    await meta.put(path, json.dumps(fields).encode(), found.version)
    assert (await appender.close()).last_entry == 1
    closed = json.loads((await meta.get(path)).value)
    assert closed["from_the_future"] == [1, 2]
    assert closed["state"] == "closed"
    await meta.close()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": True},
        {"state": "melted"},
        {"state": "closed"},
        {"uid": 5},
        {"uid": "xyz"},
        {"uid": "00ff"},
        *(
            {"state": "closed", "closed": {"last_entry": last, "bytes": size, "offset": offset}}
            for last, size, offset in (
                (-2, 0, 0),
                (-1, 0, 64),
                (-1, 9, 0),
                (0, 1, 0),
                (0, 1, -64),
                (0, -1, 64),
                (1 << 63, 1, 64),
                (1, 1, 1 << 63),
            )
        ),
        {"spec": None},
        {"created_us": "noon"},
    ],
)
async def test_metadata_we_do_not_know_is_refused_by_name(
    make: MakeEmbedded, tree: MemoryTree, change: dict[str, object]
) -> None:
    store, meta = make(), MemoryMetaStore(tree)
    appender = await store.create(LedgerSpec())
    path = f"/ledgers/ledger-{appender.ledger_id:010d}"
    found = await meta.get(path)
    fields = {**json.loads(found.value), **change}
    await meta.put(path, json.dumps(fields).encode(), found.version)
    with pytest.raises(FormatError, match=path):
        await store.info(appender.ledger_id)
    await meta.close()


async def test_metadata_nested_for_ever_is_refused_by_name(
    make: MakeEmbedded, tree: MemoryTree
) -> None:
    store, meta = make(), MemoryMetaStore(tree)
    appender = await store.create(LedgerSpec())
    path = f"/ledgers/ledger-{appender.ledger_id:010d}"
    found = await meta.get(path)
    await meta.put(path, b"[" * 100_000, found.version)
    with pytest.raises(FormatError, match=path):
        await store.info(appender.ledger_id)
    await meta.close()


async def test_a_lost_data_file_is_named(make: MakeEmbedded, tmp_path: Path) -> None:
    store = make()
    appender, _ = await filled(store, numbered(3))
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.ledger"
    path.unlink()
    with pytest.raises(Corrupt) as caught:
        await make().recover(appender.ledger_id)
    assert caught.value.path == str(path)
    reader = await make().open(appender.ledger_id)
    with pytest.raises(Corrupt):
        await reader.last_readable()


async def test_a_damaged_entry_is_named_and_its_neighbours_are_read(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    store = make()
    appender, _ = await filled(store, [bytes([number]) * 50 for number in range(9)])
    await appender.close()
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.ledger"
    raw = bytearray(path.read_bytes())
    at = raw.index(bytes([5]) * 50)
    raw[at + 7] ^= 1
    path.write_bytes(raw)
    reader = await make().open(appender.ledger_id)
    assert len(await reader.read(0, 4, bytes_max=1 << 20)) == 5
    assert len(await reader.read(6, 8, bytes_max=1 << 20)) == 3
    with pytest.raises(Corrupt) as caught:
        await reader.read(5, 5, bytes_max=1 << 20)
    assert (caught.value.entry_id, caught.value.offset) == (5, at - 64)
    assert caught.value.path == str(path)


async def test_entries_are_read_aligned_and_read_only(make: MakeEmbedded) -> None:
    store = make()
    appender, _ = await filled(store, [bytes(number) for number in range(1, 30)])
    reader = await store.open(appender.ledger_id)
    for first in (0, 13):
        for entry in await reader.read(first, 28, bytes_max=1 << 20):
            assert entry.readonly
            assert address_of(entry) % 8 == 0


def address_of(view: memoryview) -> int:
    import numpy

    return int(numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data)


async def test_words_lost_by_a_crash_of_the_host_lose_nothing(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(40))
    appender.abandon()
    words = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.words"
    words.write_bytes(bytes(64))
    closed = await make().recover(appender.ledger_id)
    assert closed == ClosedLedger(39, sum(map(len, numbered(40))))
    assert await read_all(await make().open(appender.ledger_id), 39) == numbered(40)


async def test_a_closer_that_died_behind_its_compare_and_set_has_closed(
    make: MakeEmbedded,
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(3), publish=False)
    reader = await make().open(appender.ledger_id)
    died: list[str] = []

    def die(point: str, side: str) -> None:
        if (point, side) == ("recover.closed", "after"):
            died.append(point)
            raise KeyError("the process is gone")

    trace.listen(die)
    with pytest.raises(KeyError):
        await make().recover(appender.ledger_id)
    trace.listen(None)
    assert died
    assert await reader.last_readable() == 2, "nobody rang, and the reader knows"


async def test_a_fence_without_a_close_does_not_make_waiting_spin(make: MakeEmbedded) -> None:
    appender, _ = await filled(make(), numbered(2))
    reader = await make().open(appender.ledger_id)
    words = Words(reader._words_path, appender.ledger_id, create=False)
    words.fence()
    words.close()
    began = asyncio.get_running_loop().time()
    assert await reader.wait_past(1, 40) == 1
    assert asyncio.get_running_loop().time() - began >= 0.035, "it waited for a further change"


async def test_a_forked_handle_is_refused(make: MakeEmbedded) -> None:
    store = make()
    appender, _ = await filled(store, numbered(2))
    reader = await store.open(appender.ledger_id)
    real_pid = os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: real_pid + 1)
        with pytest.raises(ForkedHandle):
            appender.submit([b"from a child"])
        with pytest.raises(ForkedHandle):
            await reader.last_readable()
        with pytest.raises(ForkedHandle):
            await store.info(appender.ledger_id)
        with pytest.raises(ForkedHandle):
            await appender.close()
        appender.abandon()
        await store.close()
    assert appender.submit([b"from the parent"]) == 2
    assert (await appender.close()).last_entry >= 1


def open_files() -> list[str]:
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in list_fds())


def list_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


def mapped_words() -> int:
    return Path("/proc/self/maps").read_text().count(".words")


def ledger_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "dlog-ledger" in thread.name]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("ending", ["close", "abandon", "fenced", "store"])
async def test_nothing_is_left_open(make: MakeEmbedded, ending: str) -> None:
    store, other = make(), make()
    await ledger_tools.ids_of(store)
    await ledger_tools.ids_of(other)
    gc.collect()
    before = open_files()
    for _ in range(3):
        appender, heard = await filled(store, numbered(3))
        reader = await other.open(appender.ledger_id)
        await reader.wait_past(0, 1)
        await read_all(reader, 2)
        await reader.wait_past(2, 1)
        if ending == "close":
            await appender.close()
        elif ending == "fenced":
            await other.recover(appender.ledger_id)
            appender.submit([b"late"])
            await heard.until_failed()
            assert (await appender.close()).last_entry == 2, "recovered at our own end"
        elif ending == "abandon":
            appender.abandon()
            await appender.ended.wait()
            await asyncio.sleep(0)
        await reader.close()
    if ending == "store":
        await store.close()
    await asyncio.sleep(0)
    assert open_files() == before
    assert mapped_words() == 0
    # A thread tells that it ended just before it does.
    for thread in threading.enumerate():
        if "dlog-ledger" in thread.name:
            thread.join(5)
    assert ledger_threads() == []


async def test_slack_is_given_back_at_close(make: MakeEmbedded, tmp_path: Path) -> None:
    store = make()
    appender, _ = await filled(store, [b"12345678"] * 4)
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.ledger"
    await appender.close()
    assert path.stat().st_size == 64 + 4 * (64 + 8)


async def test_a_birth_that_is_not_waited_for_still_happens(make: MakeEmbedded) -> None:
    store = make()
    appender, heard = await new_ledger(store)
    waiting = asyncio.create_task(appender.birth([b"birth"]))
    await asyncio.sleep(0)
    waiting.cancel()
    await heard.until_confirmed(0)
    assert appender.submit([b"goes on"]) == 1
    await heard.until_confirmed(1)


async def test_a_cancelled_creation_leaks_nothing(make: MakeEmbedded) -> None:
    store = make()
    await ledger_tools.ids_of(store)
    before = open_files()
    for turns in range(8):
        creating = asyncio.create_task(store.create(LedgerSpec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.wait([creating])
        if not creating.cancelled():
            creating.result().abandon()
    for ledger_id in await ledger_tools.ids_of(store):
        assert await store.recover(ledger_id) == ClosedLedger(-1, 0)
    await asyncio.sleep(0)
    assert open_files() == before


async def test_the_sealed_word_is_seen_at_once(make: MakeEmbedded) -> None:
    """The fence is one mapped word: no call into the store is needed to see it."""
    appender, _ = await filled(make(), numbered(1))
    other = Words(appender._words.path, appender.ledger_id, create=False)
    assert not appender._words.fenced
    other._words[FENCE] = 1
    assert appender._words.fenced
    other.close()


@pytest.mark.parametrize("offset", [-64, -(1 << 63), 8, 1 << 40, (1 << 63) - 1])
async def test_words_that_name_no_place_are_corrupt(make: MakeEmbedded, offset: int) -> None:
    """And no disk that is away for a while: asking again would never help."""
    store = make()
    appender, _ = await filled(store, numbered(3))
    words = Words(store._words_path(appender.ledger_id), appender.ledger_id, create=False)
    words._words[PUBLISHED] = words._words[CONFIRMED] = offset
    words.close()
    reader = await store.open(appender.ledger_id)
    with pytest.raises(Corrupt) as caught:
        await reader.last_readable()
    assert caught.value.offset == offset
    with pytest.raises(Corrupt) as caught:
        await store.recover(appender.ledger_id)
    assert caught.value.offset == offset


async def test_words_of_another_ledger_are_refused(make: MakeEmbedded) -> None:
    appender, _ = await filled(make(), numbered(1))
    with pytest.raises(Corrupt):
        Words(appender._words.path, appender.ledger_id + 1, create=False)


async def test_an_unknown_id_makes_no_files(make: MakeEmbedded, tmp_path: Path) -> None:
    store = make()
    for call in (store.recover, store.open, store.info):
        with pytest.raises(NotFound):
            await call(12)
    await store.delete(12)
    assert os.listdir(tmp_path / "ledgers") == ["store"]


async def test_a_ledger_keeps_the_digest_that_it_was_made_with(make: MakeEmbedded) -> None:
    """Whatever a log was told, the same is asked for when the ledger is opened or recovered."""
    store = make()
    spec = LedgerSpec(5, 4, 3, digest="hmac", custom={"log": b"\x00\xff", "": b""})
    appender = await store.create(spec)
    ledger_id = appender.ledger_id
    appender.abandon()
    for other in (store, make()):
        assert (await other.info(ledger_id)).spec == spec
        for call in (other.open, other.recover):
            with pytest.raises(AuthError, match="should have the digest crc32c"):
                await call(ledger_id, digest="crc32c")
        await (await other.open(ledger_id, digest="hmac")).close()
    assert (await make().info(ledger_id)).state is LedgerState.OPEN
    await make().recover(ledger_id, digest="hmac")
    assert (await make().info(ledger_id)).spec == spec


@pytest.mark.parametrize("entry", [0, 3, 4, 8])
async def test_a_damaged_header_is_named_with_its_entry(
    make: MakeEmbedded, tmp_path: Path, entry: int
) -> None:
    store = make()
    appender, _ = await filled(store, [bytes([number]) * 64 for number in range(9)])
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.ledger"
    raw = bytearray(path.read_bytes())
    offset = 64 + entry * 128
    raw[offset + 9] ^= 1
    path.write_bytes(raw)
    if entry == 8:  # the newest one, of which only the place is known
        reader = await store.open(appender.ledger_id)
        with pytest.raises(Corrupt) as caught:
            await reader.last_readable()
        assert (caught.value.entry_id, caught.value.offset) == (-1, offset)
    await appender.close()
    reader = await make().open(appender.ledger_id)
    with pytest.raises(Corrupt) as caught:
        await reader.read(entry, entry, bytes_max=1)
    assert (caught.value.entry_id, caught.value.offset) == (entry, offset)


@pytest.mark.parametrize("suffix", ["ledger", "words"])
async def test_a_file_that_cannot_be_opened_is_named_and_may_be_asked_again(
    make: MakeEmbedded, tmp_path: Path, suffix: str
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(3))
    await appender.close()
    path = tmp_path / "ledgers" / f"{appender.ledger_id:010d}.{suffix}"
    there = path.with_suffix(".away")
    path.rename(there)
    path.symlink_to(path)  # a loop, which no user may open
    reader = await make().open(appender.ledger_id)
    with pytest.raises(Unavailable, match="ELOOP") as caught:
        await reader.read(0, 2, bytes_max=1 << 20)
    assert (caught.value.path, caught.value.ledger_id) == (str(path), appender.ledger_id)
    assert caught.value.outcome is Outcome.NOT_HAPPENED
    path.unlink()
    there.rename(path)
    assert await read_all(reader, 2) == numbered(3)


async def test_files_of_no_ledger_are_told_with_their_sizes(
    make: MakeEmbedded, tmp_path: Path
) -> None:
    store = make()
    appender, _ = await filled(store, numbered(2))
    await appender.close()
    ledgers = tmp_path / "ledgers"
    odd = {"0000000778.ledger": 5, "0000000779.words": 64, "notes.ledger": 1, "17": 2, "x.txt": 3}
    for name, size in odd.items():
        (ledgers / name).write_bytes(bytes(size))
    (ledgers / "store.tmp").write_bytes(b"of the store itself")
    found = {os.path.basename(stray.path): stray.bytes for stray in await make().strays()}
    assert found == odd


async def test_a_step_is_done_at_once_when_the_pool_of_threads_is_closed() -> None:
    """As at the end of a program."""
    await asyncio.get_running_loop().shutdown_default_executor()
    assert await in_background(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_background(lambda: 1 // 0)


@pytest.mark.parametrize("kind", ["embedded", "memory"])
async def test_a_listener_may_come_behind_the_birth_and_no_second_one(
    make: MakeEmbedded, kind: str
) -> None:
    store = make() if kind == "embedded" else MemoryLedgerStore(MemoryLedgers())
    appender = await store.create(LedgerSpec())
    await appender.birth([b"birth"])
    heard = ledger_tools.Heard()
    appender.listen(heard)
    assert appender.submit([b"1"]) == 1
    await heard.until_confirmed(1)
    with pytest.raises(ConfigError):
        appender.listen(ledger_tools.Heard())
    await appender.close()


@pytest.mark.parametrize("file", [None, "/data/some.words"])
async def test_a_disk_error_names_the_file_or_else_the_directory(
    make: MakeEmbedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    """What was being changed may have been."""
    store = make()

    def fail(*about: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), file)

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(Unavailable, match="EIO") as caught:
        await store.create(LedgerSpec())
    assert caught.value.path == (file or str(tmp_path / "ledgers"))
    assert caught.value.outcome is Outcome.UNKNOWN

"""The SQLite store among real processes: races, kill -9 and SIGSTOP inside a transaction, and
sessions that end with their process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.errors import AlreadyExists, NotFound, Outcome, Retry, Unavailable
from tests.pace import within
from tests.unit.meta.conftest import OpenStore, StartChild

PATIENCE_S = 20.0

POINTS = [
    ("meta.begun", "before", False),
    ("meta.begun", "after", False),
    ("meta.committed", "before", False),
    ("meta.committed", "after", True),
]
INSIDE = [("meta.begun", "after"), ("meta.committed", "before")]


def wait_stopped(child: subprocess.Popen[str]) -> None:
    pid, status = os.waitpid(child.pid, os.WUNTRACED)
    assert pid == child.pid
    assert os.WIFSTOPPED(status), f"the child ended instead of stopping: {status}"


@contextlib.contextmanager
def open_shared(lock: Path) -> Iterator[None]:
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    yield
    os.close(fd)


def is_sound(directory: Path) -> bool:
    """Only while no store of this process is open: see the note on locks in sqlite_file."""
    connection = sqlite3.connect(directory / "meta.db")
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


async def test_racing_processes_lose_no_update_even_on_a_store_that_all_of_them_make(
    open_store: OpenStore, start_child: StartChild, directory: Path
) -> None:
    children = [start_child("increment", 25) for _ in range(5)]
    for child in children:
        out, _ = await asyncio.to_thread(child.communicate)
        assert out == "done\n"
    store = open_store()
    assert (await store.get("/n")).value == b"125"
    await store.close()
    assert is_sound(directory)


@pytest.mark.chaos
@pytest.mark.parametrize(("point", "side", "applied"), POINTS)
async def test_kill_inside_a_write_leaves_it_applied_or_not_and_the_store_usable(
    open_store: OpenStore,
    start_child: StartChild,
    directory: Path,
    point: str,
    side: str,
    applied: bool,
) -> None:
    store = open_store()
    created = await store.create("/a", b"before")
    child = start_child("put_and_stop_at", point, side)
    wait_stopped(child)
    child.kill()
    child.wait()
    other = open_store()
    for reader in (store, other):
        assert (await reader.get("/a")).value == (b"from the child" if applied else b"before")
    seen = await store.get("/a")
    assert (seen.version != created.version) == applied
    await other.put("/a", b"after", seen.version)
    assert (await store.get("/a")).value == b"after"
    await store.close()
    await other.close()
    assert is_sound(directory)


@pytest.mark.chaos
@pytest.mark.parametrize(("point", "side"), INSIDE)
async def test_a_process_frozen_inside_a_write_is_named_and_stops_nobody_after_it_thaws(
    open_store: OpenStore, start_child: StartChild, point: str, side: str
) -> None:
    store = open_store(timeout_ms=600)
    created = await store.create("/a", b"before")
    child = start_child("put_and_stop_at", point, side)
    wait_stopped(child)

    assert (await store.get("/a")).value == b"before", "reads go on"
    began = time.monotonic()
    puts = [store.put("/a", b"%d" % i, created.version) for i in range(10)]
    errors = await asyncio.gather(*puts, return_exceptions=True)
    assert within(time.monotonic() - began, 5.0), "the deadline of 600 ms bounds the wait"
    for error in errors:
        assert isinstance(error, Unavailable), error
        assert error.outcome is Outcome.NOT_HAPPENED
        assert error.retry is Retry.NOW
        assert error.pid == child.pid
        assert f"process {child.pid} (it is stopped)" in error.message
        assert str(store.path) in error.message

    child.send_signal(signal.SIGCONT)
    out, _ = await asyncio.to_thread(child.communicate)
    assert out.startswith("put ")
    seen = await store.get("/a")
    assert seen.value == b"from the child", "none of the refused writes happened"
    await store.put("/a", b"after", seen.version)


@pytest.mark.chaos
async def test_a_write_that_waits_goes_through_when_the_frozen_process_thaws_in_time(
    open_store: OpenStore, start_child: StartChild
) -> None:
    store = open_store(timeout_ms=PATIENCE_S * 1000)
    await store.create("/a", b"before")
    child = start_child("put_and_stop_at", "meta.committed", "before")
    wait_stopped(child)
    waiting = asyncio.ensure_future(store.create("/b", b""))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    child.send_signal(signal.SIGCONT)
    assert (await waiting).path == "/b"


@pytest.mark.chaos
async def test_close_does_not_wait_for_a_frozen_process(
    open_store: OpenStore, start_child: StartChild
) -> None:
    store = open_store(timeout_ms=PATIENCE_S * 1000)
    await store.create("/a", b"before")
    child = start_child("put_and_stop_at", "meta.begun", "after")
    wait_stopped(child)
    waiting = asyncio.ensure_future(store.create("/b", b""))
    await asyncio.wait([waiting], timeout=0.05)
    began = time.monotonic()
    await store.close()
    assert within(time.monotonic() - began, PATIENCE_S / 4)
    with pytest.raises(Exception, match="closed") as caught:
        await waiting
    assert caught.value.outcome is Outcome.NOT_HAPPENED  # type: ignore[attr-defined]


@pytest.mark.chaos
async def test_a_process_that_locks_everybody_out_of_the_file_is_named_too(
    open_store: OpenStore, start_child: StartChild
) -> None:
    """As whoever closes last does for a moment: not even a read gets in."""
    first = open_store()
    await first.create("/a", b"")
    await first.close()
    child = start_child("lock_file")
    assert child.stdout is not None
    await asyncio.to_thread(child.stdout.readline)
    store = open_store(timeout_ms=600)
    with pytest.raises(Unavailable) as caught:
        await store.get("/a")
    assert caught.value.pid == child.pid
    await asyncio.to_thread(child.communicate, "let go\n")
    assert (await store.get("/a")).value == b""


@pytest.mark.chaos
async def test_a_presence_ends_with_kill_9(
    open_store: OpenStore, start_child: StartChild, directory: Path
) -> None:
    store = open_store()
    child = start_child("presence", "/dir/e")
    assert child.stdout is not None
    _, session_id = (await asyncio.to_thread(child.stdout.readline)).split()
    lock = directory / "sessions" / f"{session_id}.lock"
    first = await store.get("/dir/e")
    assert await store.children("/dir") == ["e"]
    with pytest.raises(AlreadyExists):
        await store.create("/dir/e", b"", ephemeral=True)
    async with store.watch("/dir/e") as node, store.watch("/dir") as parent:
        child.kill()
        child.wait()
        with pytest.raises(NotFound):  # at once: the kernel let go of the lock
            await store.get("/dir/e")
        assert await node.wait(PATIENCE_S * 1000)
        assert await parent.wait(PATIENCE_S * 1000)
    assert await store.children("/dir") == []
    with open_shared(lock):  # as somebody who judges at the same moment
        with pytest.raises(NotFound):
            await open_store().get("/dir/e")
    again = await store.create("/dir/e", b"", ephemeral=True)
    assert again.version > first.version
    assert not lock.exists(), "the next write clears up after the dead"


@pytest.mark.chaos
async def test_any_first_write_sweeps_what_dead_sessions_left(
    open_store: OpenStore, start_child: StartChild, directory: Path
) -> None:
    children = [start_child("presence", f"/e{i}") for i in range(3)]
    for child in children:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)
    for child in children[:2]:
        child.kill()
        child.wait()
    store = open_store()
    await store.create("/elsewhere", b"")
    assert len(list((directory / "sessions").iterdir())) == 1
    assert await store.children("/") == ["e2", "elsewhere"]
    await store.close()
    connection = sqlite3.connect(directory / "meta.db")
    rows = connection.execute("SELECT path FROM node WHERE session NOT NULL").fetchall()
    connection.close()
    assert rows == [("/e2",)], "rows of the dead are gone, the living one's stays"


@pytest.mark.chaos
async def test_a_forked_child_does_not_keep_its_parents_session_alive(
    open_store: OpenStore, start_child: StartChild
) -> None:
    store = open_store()
    child = start_child("presence_with_a_fork", "/e")
    assert child.stdout is not None
    _, grandchild = (await asyncio.to_thread(child.stdout.readline)).split()
    assert (await store.get("/e")).value == b"here"
    child.kill()
    child.wait()
    os.kill(int(grandchild), 0)  # it is still there
    with pytest.raises(NotFound):
        await store.get("/e")


async def test_a_program_that_leaves_without_closing_ends(start_child: StartChild) -> None:
    child = start_child("leave_open")
    out, _ = await asyncio.to_thread(child.communicate, timeout=PATIENCE_S)
    assert out == "leaving\n"
    assert child.returncode == 0

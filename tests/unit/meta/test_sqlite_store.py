"""The SQLite store from its caller's side: deadlines, cancelling, closing, leaks, forks."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import dlog.meta.sqlite
import dlog.meta.sqlite_sessions
import dlog.meta.sqlite_worker
from dlog import trace
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import (
    AlreadyExists,
    Broken,
    ForkedHandle,
    NotFound,
    Outcome,
    Timeout,
    Unavailable,
    WriterClosed,
)
from dlog.meta import sqlite_errors
from dlog.meta.sqlite import SqliteMetaStore
from tests.pace import within
from tests.unit.meta.conftest import OpenStore

PATIENCE_S = 20.0
THREAD_NAME = "dlog-meta-sqlite"


class Gate:
    """Holds the worker of whoever reaches a crash point, until it is opened."""

    def __init__(self, point: str, side: str) -> None:
        self._at = (point, side)
        self._arrived = threading.Event()
        self._open = threading.Event()

    def listener(self, point: str, side: str) -> None:
        if (point, side) == self._at:
            self._arrived.set()
            assert self._open.wait(PATIENCE_S)

    async def arrival(self) -> None:
        assert await asyncio.to_thread(self._arrived.wait, PATIENCE_S)

    def open(self) -> None:
        trace.listen(None)
        self._open.set()


@pytest.fixture
async def gate_at() -> AsyncIterator[Callable[[str, str], Gate]]:
    gates = []

    def gate_at(point: str, side: str) -> Gate:
        gate = Gate(point, side)
        gates.append(gate)
        trace.listen(gate.listener)
        return gate

    yield gate_at
    for gate in gates:
        gate.open()


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def descriptors_of(directory: Path) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(directory)):
            found.append(target)
    return found


# --- Deadlines --------------------------------------------------------------------------------


async def test_a_write_that_hangs_in_its_commit_is_unknown_and_may_come_true(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store(timeout_ms=500)
    created = await store.create("/a", b"0")
    gate = gate_at("meta.committed", "before")
    with pytest.raises(Timeout) as caught:
        await store.put("/a", b"1", created.version)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.elapsed_ms == 500
    gate.open()
    assert (await store.get("/a")).value == b"1"


async def test_a_write_that_hangs_before_its_commit_certainly_never_happens(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store(timeout_ms=500)
    created = await store.create("/a", b"0")
    gate = gate_at("meta.begun", "after")
    with pytest.raises(Timeout) as caught:
        await store.put("/a", b"1", created.version)
    assert caught.value.outcome is Outcome.NOT_HAPPENED
    gate.open()
    assert await store.get("/a") == (b"0", created.version)


async def test_calls_queued_behind_a_hanging_one_end_in_time_and_are_skipped(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store(timeout_ms=500)
    await store.open()
    gate = gate_at("meta.committed", "before")
    hanging = asyncio.ensure_future(store.create("/hanging", b""))
    await gate.arrival()
    answers = await asyncio.gather(
        store.create("/b", b""), store.get("/hanging"), return_exceptions=True
    )
    for answer in answers:
        assert isinstance(answer, Timeout)
        assert answer.outcome is Outcome.NOT_HAPPENED
    with pytest.raises(Timeout):
        await hanging
    gate.open()
    assert await store.children("/") == ["hanging"]


async def test_no_more_calls_are_queued_than_a_bound(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlog.meta.sqlite_worker, "QUEUE_MAX", 3)
    store = open_store()
    await store.open()
    gate = gate_at("meta.committed", "before")
    first = asyncio.ensure_future(store.create("/first", b""))
    await gate.arrival()
    queued = [asyncio.ensure_future(store.get("/first")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="3 calls wait") as caught:
        await store.get("/first")
    assert caught.value.outcome is Outcome.NOT_HAPPENED
    gate.open()
    await asyncio.gather(first, *queued)


async def test_trouble_with_a_lock_file_is_typed_and_leaves_the_store_usable(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, store = open_store(), open_store()
    await owner.create("/e", b"", ephemeral=True)
    await store.create("/a", b"")

    def no_descriptor_left(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with store.watch("/e") as watch:
        with monkeypatch.context() as patch:
            patch.setattr(dlog.meta.sqlite_sessions.os, "open", no_descriptor_left)
            with pytest.raises(Unavailable, match="Too many open files"):
                await store.get("/e")
            with pytest.raises(Unavailable, match="Too many open files") as caught:
                await store.create("/e/c", b"")
            assert caught.value.outcome is Outcome.NOT_HAPPENED
            with pytest.raises(Unavailable, match="Too many open files"):
                await store.create("/f", b"", ephemeral=True)
            assert await watch.wait(PATIENCE_S * 1000), "look for yourself"
        assert (await store.get("/e")).value == b""
    await store.create("/f", b"", ephemeral=True)


async def test_a_cancelled_write_that_has_not_begun_never_happens(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store()
    await store.open()
    gate = gate_at("meta.committed", "before")
    first = asyncio.ensure_future(store.create("/first", b""))
    await gate.arrival()
    queued = asyncio.ensure_future(store.create("/queued", b""))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    gate.open()
    await first
    assert await store.children("/") == ["first"]


async def test_a_cancelled_write_inside_its_transaction_is_rolled_back(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store()
    await store.open()
    gate = gate_at("meta.begun", "after")
    write = asyncio.ensure_future(store.create("/a", b""))
    await gate.arrival()
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    gate.open()
    with pytest.raises(NotFound):
        await store.get("/a")
    await store.create("/b", b"")


# --- The lock's holder ------------------------------------------------------------------------


async def test_a_write_that_waits_for_another_store_of_this_process_names_this_process(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    holder, waiting = open_store(), open_store(timeout_ms=500)
    await holder.open()
    await waiting.open()
    gate = gate_at("meta.committed", "before")
    held = asyncio.ensure_future(holder.create("/held", b""))
    await gate.arrival()
    with pytest.raises(Unavailable) as caught:
        await waiting.create("/b", b"")
    assert caught.value.pid == os.getpid()
    assert caught.value.outcome is Outcome.NOT_HAPPENED
    assert 0 < caught.value.elapsed_ms <= 500
    gate.open()
    await held
    await waiting.create("/b", b"")


async def test_whoever_is_in_the_way_is_named_also_when_the_worker_comes_late(
    open_store: OpenStore,
    gate_at: Callable[[str, str], Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, waiting = open_store(), open_store(timeout_ms=200)
    await holder.open()
    await waiting.open()

    told = threading.Event()

    def rest(self: dlog.meta.sqlite_worker.Worker, attempt: int) -> None:
        assert told.wait(PATIENCE_S)  # as on a machine with too much to do

    monkeypatch.setattr(dlog.meta.sqlite_worker.Worker, "rest", rest)
    gate = gate_at("meta.committed", "before")
    held = asyncio.ensure_future(holder.create("/held", b""))
    await gate.arrival()
    with pytest.raises(Unavailable) as caught:
        await waiting.create("/b", b"")
    told.set()
    assert (caught.value.pid, caught.value.outcome) == (os.getpid(), Outcome.NOT_HAPPENED)
    gate.open()
    await held


async def test_a_holder_that_cannot_be_found_out_is_said_to_be_so(
    open_store: OpenStore,
    gate_at: Callable[[str, str], Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, waiting = open_store(), open_store(timeout_ms=500)
    await holder.open()
    await waiting.open()
    monkeypatch.setattr(sqlite_errors, "lock_holder", lambda database: None)
    gate = gate_at("meta.committed", "before")
    held = asyncio.ensure_future(holder.create("/held", b""))
    await gate.arrival()
    with pytest.raises(Unavailable, match="cannot be found out") as caught:
        await waiting.create("/b", b"")
    assert caught.value.pid is None
    gate.open()
    await held


def test_only_an_exclusive_lock_on_the_right_byte_of_the_right_file_counts() -> None:
    def holder(line: str) -> int | None:
        return sqlite_errors._holder_in(line, inode=77, wanted_byte=120)

    assert holder("1: POSIX  ADVISORY  WRITE 4075 fe:00:77 120 120") == 4075
    assert holder("1: POSIX  ADVISORY  WRITE 4075 fe:00:77 0 EOF") == 4075
    assert holder("1: POSIX  ADVISORY  READ 4075 fe:00:77 120 120") is None
    assert holder("1: POSIX  ADVISORY  WRITE 4075 fe:00:77 121 127") is None
    assert holder("1: POSIX  ADVISORY  WRITE 4075 fe:00:77 100 119") is None
    assert holder("1: POSIX  ADVISORY  WRITE 4075 fe:00:177 120 120") is None
    assert holder("1: FLOCK  ADVISORY  WRITE 4075 fe:00:77 0 EOF") is None
    assert holder("1: -> POSIX  ADVISORY  WRITE 4075 fe:00:77 120 120") is None
    assert holder("1: POSIX  ADVISORY  WRITE 0 fe:00:77 120 120") is None
    assert holder("") is None


# --- Closing ----------------------------------------------------------------------------------


async def test_nothing_is_left_after_close(open_store: OpenStore, directory: Path) -> None:
    before = len(workers())
    for _ in range(5):
        store = open_store()
        await store.create("/e", b"", ephemeral=True)
        async with store.watch("/e") as watch:
            assert not await watch.wait(1)
        assert descriptors_of(directory)
        await store.close()
    assert len(workers()) == before
    assert descriptors_of(directory) == []
    assert os.listdir(directory / "sessions") == []
    assert sorted(os.listdir(directory)) == ["meta.db", "sessions"]


async def test_closing_a_store_that_did_nothing_starts_nothing(open_store: OpenStore) -> None:
    before = len(workers())
    store = open_store()
    await store.session()
    await store.close()
    await store.close()
    assert len(workers()) == before
    with pytest.raises(WriterClosed):
        await store.get("/")


async def test_close_leaves_a_worker_behind_that_hangs_in_a_sync(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlog.meta.sqlite, "CLOSE_PATIENCE_S", 0.1)
    store, other = open_store(), open_store()
    await store.create("/e", b"", ephemeral=True)
    gate = gate_at("meta.committed", "before")
    hanging = asyncio.ensure_future(store.create("/hanging", b""))
    await gate.arrival()
    await store.close()
    with pytest.raises(NotFound):  # the session ended all the same
        await other.get("/e")
    threads = workers()
    gate.open()
    await hanging
    assert (await other.get("/hanging")).value == b""
    await other.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert workers() == []


async def test_a_store_dropped_open_says_so_and_its_thread_ends(directory: Path) -> None:
    store = SqliteMetaStore(directory, SYSTEM_CLOCK, SYSTEM_CHANCE)
    await store.create("/e", b"", ephemeral=True)
    threads = workers()
    assert threads
    stores = [store]
    del store
    with pytest.warns(ResourceWarning, match="dropped without close"):
        stores.clear()
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert workers() == []
    assert descriptors_of(directory) == []


async def test_calls_under_way_end_when_the_thread_breaks(
    open_store: OpenStore,
    listen: Callable[[Callable[[str, str], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug of ours in the thread is a typed error to its callers, not a hang."""
    broken: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: broken.append(args.exc_value))
    store = open_store()
    await store.open()

    def bug(point: str, side: str) -> None:
        raise ZeroDivisionError

    listen(bug)
    with pytest.raises(Broken) as caught:
        await store.create("/a", b"")
    assert caught.value.outcome is Outcome.UNKNOWN
    store._worker.join(PATIENCE_S)
    assert len(broken) == 1
    assert isinstance(broken[0], ZeroDivisionError)
    trace.listen(None)
    with pytest.raises(Broken):
        await store.get("/")


# --- Forks, threads and loops -----------------------------------------------------------------


def test_a_forked_child_may_not_use_the_store_and_does_it_no_harm(directory: Path) -> None:
    with asyncio.Runner() as runner:
        store = SqliteMetaStore(directory, SYSTEM_CLOCK, SYSTEM_CHANCE)
        runner.run(store.create("/e", b"", ephemeral=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a thread
            child = os.fork()
        if child == 0:
            verdict = 1
            try:
                store.watch("/e")
            except ForkedHandle:
                try:
                    store._check_open()
                except ForkedHandle:
                    verdict = 0
            finally:
                del store
                gc.collect()
                os._exit(verdict)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        other = SqliteMetaStore(directory, SYSTEM_CLOCK, SYSTEM_CHANCE)
        assert runner.run(other.get("/e")).value == b"", "our session outlives the child"
        runner.run(store.create("/b", b""))
        runner.run(other.close())
        runner.run(store.close())


def test_one_store_serves_several_loops(directory: Path) -> None:
    store = SqliteMetaStore(directory, SYSTEM_CLOCK, SYSTEM_CHANCE)
    failures: list[BaseException] = []

    async def work(worker: int) -> None:
        for index in range(20):
            await store.create(f"/w{worker}/{index}", b"")

    def run(worker: int) -> None:
        try:
            asyncio.run(work(worker))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with asyncio.Runner() as runner:
        for worker in range(4):
            assert len(runner.run(store.children(f"/w{worker}"))) == 20
        runner.run(store.close())


async def test_many_stores_make_one_new_database_at_once(
    open_store: OpenStore, directory: Path
) -> None:
    stores = [open_store() for _ in range(8)]
    await asyncio.gather(*(store.create(f"/s{i}", b"") for i, store in enumerate(stores)))
    assert await stores[0].children("/") == [f"s{i}" for i in range(8)]


# --- Rows -------------------------------------------------------------------------------------


async def test_sequential_numbers_survive_their_parent(open_store: OpenStore) -> None:
    store = open_store()
    last = ""
    for _ in range(4):
        created = await store.create("/q/n-", b"", sequential=True)
        assert created.path > last
        last = created.path
        await store.delete(created.path, created.version)
        await store.delete("/q", (await store.get("/q")).version)


async def test_a_refused_sequential_create_burns_nothing_it_shall_not_keep(
    open_store: OpenStore,
) -> None:
    store = open_store()
    await store.create("/e", b"", ephemeral=True)
    with pytest.raises(Exception, match="no children"):
        await store.create("/e/n-", b"", sequential=True)
    created = await store.create("/q/n-", b"", sequential=True)
    with pytest.raises(AlreadyExists):
        await store.create(created.path, b"")
    assert await store.children("/q") == [created.path.removeprefix("/q/")]


# --- Watching ---------------------------------------------------------------------------------


async def test_watching_costs_nothing_when_nobody_waits(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    original = dlog.meta.sqlite_file.DatabaseFile.stamp

    def counted(*args: object) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dlog.meta.sqlite_file.DatabaseFile, "stamp", counted)
    store = open_store()
    await store.create("/a", b"")
    async with store.watch("/a") as watch:
        assert looks == 0
        assert not await watch.wait(100)
        assert 2 <= looks <= 21, "it polls while somebody waits, ever more slowly"
        await store.get("/a")  # the worker notices that the wait is over
        seen = looks
        for _ in range(50):
            await store.get("/a")
        assert looks == seen
    assert store._worker._vigils == []


async def test_a_watch_that_met_trouble_says_so_and_becomes_quiet_again(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    await store.create("/a", b"")

    def trouble(*args: object) -> tuple[int, int]:
        raise Unavailable("a disk that stutters")

    async with store.watch("/a") as watch:
        with monkeypatch.context() as patch:
            patch.setattr(dlog.meta.sqlite_file.DatabaseFile, "stamp", trouble)
            assert await watch.wait(PATIENCE_S * 1000)
            assert await watch.wait(PATIENCE_S * 1000)
        assert await watch.wait(PATIENCE_S * 1000), "what changed meanwhile is not known"
        assert not await watch.wait(30)


async def test_a_change_is_told_within_the_polling_interval(open_store: OpenStore) -> None:
    """Not a benchmark: it fails when a watch only ever hears of changes at its time-out."""
    store, other = open_store(), open_store()
    version = (await other.create("/a", b"")).version
    async with store.watch("/a") as watch:
        for _ in range(5):
            waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
            began = time.monotonic()
            version = await other.put("/a", b"", version)
            assert await waiting
            assert within(time.monotonic() - began, PATIENCE_S / 4)


async def test_a_wait_ends_in_time_behind_a_hanging_write(
    open_store: OpenStore, gate_at: Callable[[str, str], Gate]
) -> None:
    store = open_store()
    await store.create("/a", b"")
    async with store.watch("/a") as watch:
        gate = gate_at("meta.committed", "before")
        hanging = asyncio.ensure_future(store.create("/b", b""))
        await gate.arrival()
        assert not await watch.wait(50)
        gate.open()
        await hanging

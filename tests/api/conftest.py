"""Both APIs over both local backends, and a look after each test at what it left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dlog import backends, trace
from tests.api.adapter import AioApi, Api, SyncApi
from tests.api.waiting import DEADLINE_S, eventually

_worlds = itertools.count()
# Of a test marked `crosswise`, these run in `make full`: without them it has run on both backends
# and through both faces all the same.
IN_FULL = {("aio", "memory"), ("sync", "file")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("crosswise")
        if mark is not None and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            params = item.callspec.params
            if (params.get("make_api"), params.get("url")) in IN_FULL:
                item.add_marker(pytest.mark.tier("full", seconds=mark.kwargs["seconds"]))


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file:{tmp_path / 'data'}"
        return
    name = f"world-{os.getpid()}-{next(_worlds)}"
    yield f"memory:{name}"
    backends._memory_worlds.pop(name, None)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'data'}"


@pytest.fixture(params=["aio", "sync"])
def make_api(request: pytest.FixtureRequest) -> type[Api]:
    return AioApi if request.param == "aio" else SyncApi


@pytest.fixture
def api(make_api: type[Api], url: str) -> Api:
    return make_api(url)


@pytest.fixture
def file_api(make_api: type[Api], file_url: str) -> Api:
    return make_api(file_url)


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("dlog")}


def open_files() -> set[str]:
    """What this process holds open of files, eventfds and the like; the directory itself is not
    counted."""
    if not os.path.isdir("/proc/self/fd"):
        return set()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(autouse=True, scope="module")
def what_was_there_is_frozen() -> Iterator[None]:
    """The collector, which is called until nothing is left of a test, goes only through what the
    tests of this module made: not through all modules and items of the run."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task, thread or descriptor outlives the test that made it."""
    threads, files = our_threads(), open_files()
    mine = asyncio.current_task()
    yield
    trace.listen(None)

    def leftovers() -> list[object]:
        tasks = [each for each in asyncio.all_tasks() if each not in (mine, asyncio.current_task())]
        return [*tasks, *(our_threads() - threads), *(open_files() - files)]

    def nothing() -> bool:
        if leftovers():  # what another thread has just dropped may wait for the collector
            gc.collect()
        return not leftovers()

    await eventually(nothing, lambda: f"left behind: {leftovers()}", DEADLINE_S / 4)

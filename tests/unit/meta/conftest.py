"""Stores and processes that are always closed and reaped, however a test ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dlog import trace
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.meta.sqlite import SqliteMetaStore

ROOT = Path(__file__).parents[3]

OpenStore = Callable[..., SqliteMetaStore]
StartChild = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "meta"


@pytest.fixture
async def open_store(directory: Path) -> AsyncIterator[OpenStore]:
    stores = []

    def open_store(where: Path = directory, timeout_ms: float = 10_000) -> SqliteMetaStore:
        store = SqliteMetaStore(where, SYSTEM_CLOCK, SYSTEM_CHANCE, timeout_ms=timeout_ms)
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        await store.close()


@pytest.fixture
def start_child(directory: Path) -> Iterator[StartChild]:
    children = []

    def start(
        program: str, *arguments: object, where: Path = directory, before: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [
                *before,
                sys.executable,
                "-m",
                "tests.unit.meta.sqlite_child",
                program,
                str(where),
                *map(str, arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.communicate()


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[str, str], None]], None]]:
    yield trace.listen
    trace.listen(None)

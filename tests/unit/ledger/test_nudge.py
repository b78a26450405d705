"""Waiting on a file that somebody rings: heard, shared, bounded, and cleaned up."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dlog import nudge
from dlog.nudge import InotifyNudge, PollingNudge, nudge_for, ring

LONG_MS = 10_000.0

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "some.words"
    path.write_bytes(bytes(64))
    return path


@linux
async def test_a_ring_wakes_who_waits(words: Path) -> None:
    heard = nudge_for(words)
    assert isinstance(heard, InotifyNudge)
    waiting = asyncio.create_task(heard.wait(LONG_MS))
    await asyncio.sleep(0)
    assert not waiting.done()
    ring(words)
    assert await waiting is True
    heard.close()


@linux
async def test_a_ring_between_two_waits_is_not_lost(words: Path) -> None:
    heard = nudge_for(words)
    fd = os.open(words, os.O_RDONLY)
    ring(fd)
    assert await heard.wait(LONG_MS) is True
    assert await heard.wait(1) is False
    os.close(fd)
    heard.close()


@linux
async def test_everyone_who_waits_is_woken_and_nobody_else(words: Path, tmp_path: Path) -> None:
    other_path = tmp_path / "other.words"
    other_path.write_bytes(bytes(64))
    first, second, other = nudge_for(words), nudge_for(words), nudge_for(other_path)
    both = asyncio.gather(first.wait(LONG_MS), first.wait(LONG_MS), second.wait(LONG_MS))
    await asyncio.sleep(0)
    ring(words)
    assert (await both)[2] is True
    assert await other.wait(1) is False
    first.close()
    ring(words)
    assert await second.wait(LONG_MS) is True, "closing one leaves the other"
    second.close()
    other.close()


@linux
async def test_a_removed_file_rings(words: Path) -> None:
    heard = nudge_for(words)
    os.unlink(words)
    assert await heard.wait(LONG_MS) is True
    heard.close()


@linux
async def test_the_last_close_gives_the_descriptor_back(words: Path) -> None:
    before = os.listdir("/proc/self/fd")
    nudges = [nudge_for(words) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1, "one for the whole loop"
    for each in nudges:
        each.close()
        each.close()
    assert os.listdir("/proc/self/fd") == before
    again = nudge_for(words)
    ring(words)
    assert await again.wait(LONG_MS) is True
    again.close()


async def test_closing_ends_a_wait(words: Path) -> None:
    heard = nudge_for(words)
    waiting = asyncio.create_task(heard.wait(50 if isinstance(heard, PollingNudge) else LONG_MS))
    await asyncio.sleep(0)
    heard.close()
    async with asyncio.timeout(5):
        await waiting


async def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        nudge_for(tmp_path / "none.words")


async def test_without_inotify_it_polls(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nudge, "_hub_of_running_loop", lambda: None)
    polling = nudge_for(words)
    assert isinstance(polling, PollingNudge)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert [await polling.wait(LONG_MS) for _ in range(4)] == [True] * 4
    assert loop.time() - began >= 0.014, "1 + 2 + 4 + 8 ms"
    polling.found()
    assert await polling.wait(0.5) is False
    polling.close()


def test_importing_it_is_light() -> None:
    import subprocess

    code = (
        "import sys; before = set(sys.modules); import dlog.nudge; "
        "print(*({'ctypes', 'asyncio', 'numpy'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

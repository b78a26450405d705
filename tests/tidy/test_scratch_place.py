"""The files of a run are in memory only where there is enough of it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from tests.tidy import scratch


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(scratch.ENV, raising=False)


def test_memory_is_taken_where_there_is_enough(tmp_path: Path) -> None:
    disk = Path(tempfile.gettempdir())
    assert scratch.base(disk=True, memory=tmp_path, available=1 << 50) == disk
    assert scratch.base(disk=False, memory=tmp_path / "none", available=1 << 50) == disk
    assert scratch.base(disk=False, memory=tmp_path, available=scratch.FREE_BYTES_MIN - 1) == disk


def test_a_directory_that_is_named_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(scratch.ENV, str(tmp_path))
    assert scratch.base(disk=False) == scratch.base(disk=True) == tmp_path


def test_the_memory_that_is_left_is_read(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  999 kB\nMemAvailable:   2048 kB\n")
    assert scratch.memory_available(told) == 2 << 20
    assert scratch.memory_available(tmp_path / "none") == 0


def test_what_failed_runs_kept_is_removed_when_it_is_old(tmp_path: Path) -> None:
    first = scratch.make(tmp_path)
    (first / "history.jsonl").write_text("kept")
    second = scratch.make(tmp_path)
    assert first.exists()
    third = scratch.make(tmp_path, time.time() + scratch.KEPT_S + 60)
    assert list(tmp_path.iterdir()) == [third] != [second]

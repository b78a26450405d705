"""Editors killed at every step of a change, as real processes on a real file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlog
from benchmarks.common import ROOT
from dlog import limits, trace
from dlog.streams.config.changes import history_path

EDITOR = """
import os, signal, sys
import dlog
from dlog import trace
url, point, side, at = *sys.argv[1:4], int(sys.argv[4])
count = 0
def listen(reached, reached_side):
    global count
    if (reached, reached_side) == (point, side):
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
with dlog.connect(url) as client:
    document = client.config("prod")
    trace.listen(listen)
    for number in range(100):
        document.set("writer", {"linger_ms": number + 1})
"""
STEPS = [
    (point, side, at)
    for point in sorted(trace.CONFIG_POINTS)
    if point.startswith("config.")
    for side in ("before", "after")
    for at in (1, 3)
]


@pytest.mark.parametrize(("point", "side", "at"), STEPS)
def test_killed_at_every_step_and_nothing_is_half(
    tmp_path: Path, point: str, side: str, at: int
) -> None:
    """I23 for documents: whatever is named can be read, and the next change goes on from there."""
    url = f"file:{tmp_path / 'logs'}"
    done = subprocess.run(
        [sys.executable, "-c", EDITOR, url, point, side, str(at)],
        cwd=ROOT,
        timeout=50,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with dlog.connect(url) as client:
        with client.open_writer("any"):  # the place is there, even where nothing was made
            document = client.config("prod")
        before = document.get()
        for change in document.history():
            old = document.get(change.version)
            assert old.content == {"writer": {"linger_ms": change.version}}
        after = document.set("writer", {"linger_ms": 1000})
        assert after.version == before.version + 1
        kept = document.history()
        assert len(kept) == min(after.version, limits.CONFIG_HISTORY_MAX + 1)
        if before.version:
            assert document.get(before.version).content == before.content
        stores = client._portal.run(client._inner._stores(False))
        if len(kept) > 1:
            below = history_path(stores.layout.config("prod"))
            names = client._portal.run(stores.meta.children(below))
            assert [int(name) for name in names] == sorted(each.version for each in kept[1:])

"""A copy that is killed at a step, goes on, is killed behind that step, and goes on: equal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import dlog
from dlog.testing.children import Children, CrashPoint

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills by signals"),
]

LOG = "log"
# What a copy does to its target, and at which hit it is worth dying there.
STEPS = {
    "takeover.created": 1,
    "takeover.committed": 1,
    "takeover.seam": 1,
    "rotate.born": 1,
    "rotate.listed": 1,
    "rotate.switched": 1,
    "rotate.drained": 1,
    "rotate.closed": 1,
    "append.pushed": 7,
    "append.confirmed": 3,
    "append.acked": 2,
    "ledger.written": 4,
    "ledger.synced": 4,
    "meta.committed": 6,
    "close.closed": 1,
    "close.sealed": 1,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"file:{tmp_path_factory.mktemp('source')}"
    options = dlog.LogOptions(segment_bytes=64 << 10)
    with dlog.open_writer(LOG, url=url, create=options) as log:
        for i in range(40):
            log.append_many([b"%d.%d" % (i, j) * 40 for j in range(50)], atomic=True)
            log.append(None, key=b"%d" % i, headers=[("n", b"x")], event_time=i)
    return url


def entries(url: str) -> list[list[tuple[object, ...]]]:
    with dlog.open_reader(LOG, url=url) as reader:
        return [[message[3:9] for message in batch.to_pylist()] for batch in reader.batches()]


@pytest.mark.parametrize("point", STEPS)
def test_killed_at_a_step_it_goes_on(
    source: str, point: str, children: Children, tmp_path: Path
) -> None:
    there = f"file:{tmp_path / 'there'}"
    for side in ("before", "after"):
        crash = CrashPoint(point, side, STEPS[point])
        child = children.start("tests.chaos.copier", source, LOG, there, str(crash))
        code = child.wait_end()
        assert code in (0, -signal.SIGKILL), child.told_errors()
        # What is left to copy by then may be too little for a rotation.
        surely = side == "before" or point.startswith(("takeover.", "close."))
        assert code != 0 or not surely, f"{crash} was not reached"
    done = dlog.copy_log(source, LOG, there)
    assert entries(there) == entries(source)
    assert done.next_seq == 40 * 51

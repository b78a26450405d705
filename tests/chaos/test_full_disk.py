"""A small disk fills up under appends, a rotation, a takeover: typed errors, nothing acked is lost,
and once there is room again a new writer goes on. The disk lives and dies with the child."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from dlog.testing.checkers import assert_holds
from tests.chaos.arena import FINAL, Arena

SIZE = "3m"
ROOM = "1000k"  # given back to go on with
MOUNT = 'mount -t tmpfs -o size={size} none "{data}" && head -c {room} /dev/zero > "{data}/room"'


def small_disk_is_allowed() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(
        not small_disk_is_allowed(), reason="a full disk needs the right to mount a small one"
    ),
]


# A rotation waits until it can be made, or its caller gives up; all else says what is full.
TOLD = {
    "append": "Unavailable unknown",
    "rotation": "Timeout",
    "takeover": "Unavailable not_happened",
}


@pytest.mark.parametrize("when", TOLD)
async def test_a_full_disk(arena: Arena, when: str) -> None:
    arena.data.mkdir()
    mount = MOUNT.format(size=SIZE, data=arena.data, room=ROOM)
    through = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    child = arena.start("fill", when, FINAL, through=through)
    full = child.wait_line("full")
    child.wait_success()
    assert full.startswith(f"full {TOLD[when]}"), full
    assert when == "rotation" or "no space left" in full.lower(), full
    assert "went on" in child.lines
    story = assert_holds(arena.events(), final=FINAL)
    failed = [append for append in story.appends.values() if not append.is_acked]
    assert bool(failed) is (when == "append")

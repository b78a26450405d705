"""Which file system a directory lies on: told by the mount table, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.cli.mounts import Mount, mount_of

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /home rw shared:2 master:1 - nfs4 server:/home rw
31 22 0:26 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:27 / /with\040space rw - tmpfs tmpfs rw
33 22 0:28 / /odd rw - exoticfs none rw
34 31 0:29 / /home/local rw - btrfs /dev/sdc1 rw
a broken line
35 22 0:30 / /cut rw -
"""


@pytest.mark.parametrize(
    ("path", "point", "kind", "network"),
    [
        ("/var/lib", "/", "ext4", False),
        ("/home/me/data", "/home", "nfs4", True),
        ("/homestead", "/", "ext4", False),
        ("/home/local/data", "/home/local", "btrfs", False),
        ("/with space/x", "/with space", "tmpfs", False),
        ("/odd", "/odd", "exoticfs", None),
        ("/cut", "/", "ext4", False),
    ],
)
def test_the_closest_mount_counts(path: str, point: str, kind: str, network: bool | None) -> None:
    found = mount_of(Path(path), TABLE)
    assert found == Mount(point, kind)
    assert found is not None
    assert found.is_network is network


def test_an_empty_table_tells_nothing() -> None:
    assert mount_of(Path("/x"), "") is None

"""Which file system a directory lies on, and whether it is of this machine. The embedded backend
needs a local one: its fence is a mapped byte, and a network file system may show it late."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

# Shared between machines, or served by one: locks, mapped pages and fsync are not what a local
# kernel makes of them.
NETWORK = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs 9p afs ceph ceph-fuse glusterfs fuse.glusterfs lustre "
    "gpfs beegfs ocfs2 gfs2 orangefs pvfs2 coda ncpfs davfs fuse.sshfs fuse.s3fs fuse.rclone "
    "fuse.gcsfuse fuse.davfs2 fuse.cephfs fuse.juicefs fuse.moosefs fuse.mfs vboxsf "
    "fuse.vmhgfs-fuse virtiofs".split()
)
LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs apfs hfs ntfs ntfs3 fuseblk exfat "
    "vfat overlay tmpfs ramfs bcache".split()
)
VOLATILE = frozenset({"tmpfs", "ramfs"})

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """Where a file system is mounted, and its type as the kernel names it."""

    point: str
    kind: str

    @property
    def is_network(self) -> bool | None:
        """None when this program cannot tell, which is not the same as no."""
        if self.kind in NETWORK:
            return True
        return False if self.kind in LOCAL else None


def mount_of(path: Path, table: str | None = None) -> Mount | None:
    """The mount that holds a path (existing or not); None where the system does not say.

    `table` is the text of /proc/self/mountinfo, for tests."""
    if table is None:
        if not sys.platform.startswith("linux"):
            return None
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    wanted = path.resolve()
    best: Mount | None = None
    for line in table.splitlines():
        mount = _parse(line)
        if mount is None or not wanted.is_relative_to(mount.point):
            continue
        # Later lines lie over earlier ones of the same point.
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best


def _parse(line: str) -> Mount | None:
    """`36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda rw`: the optional fields end at
    the dash."""
    words = line.split(" ")
    if len(words) < 7 or "-" not in words[6:]:
        return None
    dash = words.index("-", 6)
    if dash + 1 >= len(words):
        return None
    point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4])
    return Mount(point, words[dash + 1])

"""One bookie: stock server, journal synced before each answer, data in a directory of its own.

Ledgers are kept by DbLedgerStorage (RocksDB), not by the server's default: it is what production
runs and what the protocol facts were checked against. A bookie counts as serving when it is
registered in ZooKeeper *and* answers a read: one that restarts accepts connections and resets them
for seconds before it serves, and the registration of one that was killed outlives it.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlog.errors import ConfigError, Unavailable
from dlog.testing.cluster.archive import BOOKIE_MAIN, TOOL_MAIN
from dlog.testing.cluster.ports import LOOPBACK, Port
from dlog.testing.cluster.process import JavaCommand, JavaProcess, run_to_end
from dlog.testing.cluster.zookeeper import ZooKeeper

DB_LEDGER_STORAGE = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
HEAP_MB_DEFAULT = 192
DIRECT_MB_DEFAULT = 192
TOOL_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 0.5

# A read of an entry that nobody has, in the binary protocol: version 2, opcode 2, no flags. Any
# whole answer says that the server behind the port works.
_PROBE = struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, (1 << 62) - 1, 0)
_PROBE_ANSWER_BYTES = 28

SETTINGS_DEFAULT: Mapping[str, str] = {
    "allowLoopback": "true",
    "advertisedAddress": LOOPBACK,
    "listeningInterface": "lo",  # without it the server listens on every address of the machine
    "httpServerEnabled": "false",
    "zkTimeout": "4000",  # a restarted bookie waits for its old registration to expire
    "journalSyncData": "true",
    # Old journals are kept for nobody: a run of many tests shall not fill the disk with them.
    "journalPreAllocSizeMB": "4",
    "journalMaxSizeMB": "32",
    "journalMaxBackups": "0",
    "logSizeLimit": str(64 << 20),
    "entryLogFilePreallocationEnabled": "false",
    "ledgerStorageClass": DB_LEDGER_STORAGE,
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(8 << 20),
    "dbStorage_rocksDB_writeBufferSizeMB": "4",
    "numReadWorkerThreads": "2",
    "numHighPriorityWorkerThreads": "2",
    "serverNumIOThreads": "2",
    # A busy disk of the host must not turn every bookie read-only.
    "diskUsageThreshold": "0.999",
    "diskUsageWarnThreshold": "0.998",
    "diskUsageLwmThreshold": "0.997",
}
# A disk of its own may be filled at will, which is to be noticed soon.
_DISK_SETTINGS: Mapping[str, str] = {"diskCheckInterval": "500"}

# Settings for some tests. A short queue refuses adds (106) in the middle of any burst; a small
# write cache does not, it only makes them wait.
EASILY_BUSY: Mapping[str, str] = {"maxPendingAddRequestsPerThread": "64"}
# Each bookie also looks for ledgers that lost a copy, and copies them to where there is none.
AUTO_RECOVERY: Mapping[str, str] = {"autoRecoveryDaemonEnabled": "true"}


class Bookie(JavaProcess):
    """A bookie named `bookie_id`. `settings` are the server's own keys and win over ours; what is
    changed in them counts from the next start."""

    def __init__(
        self,
        bookie_id: str,
        directory: Path,
        class_path: str,
        zookeeper: ZooKeeper,
        ledgers_root: str,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB_DEFAULT,
        direct_mb: int = DIRECT_MB_DEFAULT,
        quick: bool = True,
        disk_bytes: int | None = None,
        detached: bool = False,
        properties: Sequence[str] = (),
    ) -> None:
        self.bookie_id = bookie_id
        self._properties = tuple(properties)
        self.settings = dict(settings or {})
        self.disk_bytes = disk_bytes
        self._class_path = class_path
        self._zookeeper = zookeeper
        self._ledgers_root = ledgers_root
        self._heap_mb, self._direct_mb, self._quick = heap_mb, direct_mb, quick
        self._read_only = False
        self._port = Port()
        self._heard_before_thaw: tuple[str, int] | None = None
        super().__init__(
            f"bookie {bookie_id}", directory, self._java_command, self._is_up, detached=detached
        )

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def ledgers_directory(self) -> Path:
        # On a disk of its own the name tells the cleaner that something is mounted here.
        return self.directory / ("data" if self.disk_bytes is None else "data.mount")

    @property
    def filler_path(self) -> Path:
        return self.ledgers_directory / "filler"

    def is_registered(self, *, read_only: bool = False) -> bool:
        """In ZooKeeper, as writable or as read-only. One that was killed stays so for a while."""
        return self._zookeeper.has_ephemeral(self._node(read_only=read_only))

    def answers(self) -> bool:
        """Whether it answers a request, not only a connection."""
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT_S) as connection:
                connection.sendall(_PROBE)
                answer = b""
                while len(answer) < _PROBE_ANSWER_BYTES:
                    piece = connection.recv(_PROBE_ANSWER_BYTES - len(answer))
                    if not piece:
                        return False
                    answer += piece
        except OSError:
            return False
        return True

    def start_read_only(self) -> None:
        """Start it, after a stop, so that it refuses adds and serves reads."""
        self._read_only = True
        self.start()

    def start_writable(self) -> None:
        self._read_only = False
        self.start()

    def thaw(self) -> None:
        """Serves from when its session in ZooKeeper is known to live: the registration from before
        may be about to expire."""
        if self.pid is not None and self._zookeeper.ask("srvr"):
            self._heard_before_thaw = self._zookeeper.heard_of_owner(self._node())
        super().thaw()

    def wipe(self) -> None:
        """A stopped bookie loses everything and may come back under its id, as after the loss of
        its disks. The cookie in ZooKeeper goes as well, or the cluster would refuse it."""
        if self.pid is not None:
            raise ConfigError(f"stop {self.name} before it is wiped")
        self.tool("bookieformat", "-nonInteractive", "-force", "-deleteCookie")

    def init_cluster(self) -> None:
        """The tree of a new cluster, before the first start of any bookie."""
        self.tool("initnewcluster")

    def fill_disk(self) -> None:
        """Leave no byte free for ledgers (`disk_bytes` only): the bookie turns read-only."""
        if self.disk_bytes is None:
            raise ConfigError(f"{self.name} has no disk of its own; give it disk_bytes")
        block = bytes(1 << 16)
        with self.filler_path.open("ab", buffering=0) as filler:
            try:
                while filler.write(block):
                    pass
            except OSError:  # full, as was wanted
                return

    def empty_disk(self) -> None:
        self.filler_path.unlink(missing_ok=True)

    def tool(self, *words: str) -> str:
        """One command of BookKeeper's own shell with this bookie's configuration; what it said."""
        return run_to_end(
            f"BookieShell {words[0]}",
            self.directory / "tool",
            JavaCommand(
                TOOL_MAIN,
                ["-conf", str(self._write_config()), *words],
                self._class_path,
                heap_mb=self._heap_mb,
            ),
            timeout_s=TOOL_TIMEOUT_S,
        )

    def release(self) -> None:
        """After the last stop: the port may go to others."""
        self._port.release()

    def _is_up(self) -> bool:
        return (
            self.is_registered(read_only=self._read_only)
            and self.answers()
            and self._lives_since_thaw()
        )

    def _lives_since_thaw(self) -> bool:
        if self._heard_before_thaw is not None:
            heard = self._zookeeper.heard_of_owner(self._node(read_only=self._read_only))
            if heard is None or heard[1] == 0 or heard == self._heard_before_thaw:
                return False
            self._heard_before_thaw = None
        return True

    def _node(self, *, read_only: bool = False) -> str:
        folder = "available/readonly" if read_only else "available"
        return f"{self._ledgers_root}/{folder}/{self.bookie_id}"

    def _java_command(self) -> JavaCommand:
        return JavaCommand(
            BOOKIE_MAIN,
            ["--conf", str(self._write_config())],
            self._class_path,
            heap_mb=self._heap_mb,
            direct_mb=self._direct_mb,
            quick=self._quick,
            properties=self._properties,
        )

    def _write_config(self) -> Path:
        data = self.ledgers_directory
        data.mkdir(parents=True, exist_ok=True)
        if self.disk_bytes is not None and not data.is_mount():
            _mount_memory(data, self.disk_bytes)
        settings = {
            **SETTINGS_DEFAULT,
            **({} if self.disk_bytes is None else _DISK_SETTINGS),
            "bookieId": self.bookie_id,
            "bookiePort": str(self.port),
            "metadataServiceUri": f"zk+hierarchical://{self._zookeeper.hosts}{self._ledgers_root}",
            "journalDirectories": str(self.directory / "journal"),
            "ledgerDirectories": str(data / "ledgers"),
            "indexDirectories": str(data / "ledgers"),
            "forceReadOnlyBookie": str(self._read_only).lower(),
            **self.settings,
        }
        config = self.directory / "bookie.conf"
        config.write_text("".join(f"{k}={v}\n" for k, v in settings.items()), encoding="utf-8")
        return config


def _mount_memory(directory: Path, size_bytes: int) -> None:
    """A small file system of its own, in memory: the one disk that can be filled at will."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(
            f"no small disk could be mounted (it takes root): {done.stderr.strip()}",
            missing=["mount"],
        )

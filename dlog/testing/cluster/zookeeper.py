"""One ZooKeeper server on a port that stays its own: kill it, freeze it, start it again on the same
data. Every write is synced. Ticks are short by default, so that tests of expiring sessions are."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from dlog.errors import ConfigError, Unavailable
from dlog.testing.cluster.archive import ZOOKEEPER_MAIN
from dlog.testing.cluster.ports import LOOPBACK, Port
from dlog.testing.cluster.process import POLL_S, JavaCommand, JavaProcess

TICK_MS_DEFAULT = 200  # sessions of 0.4 to 10 s
SESSION_TICKS = (2, 50)
HEAP_MB = 128
ANSWER_TIMEOUT_S = 1.0
ANSWER_BYTES_MAX = 1 << 20
DUMP_TIMEOUT_S = 15.0
DUMP_SIGN = "Connections dump:"  # the heading that follows the ephemeral nodes

_CONFIG = """tickTime={tick_ms}
dataDir={data}
clientPort={port}
clientPortAddress={host}
minSessionTimeout={least_ms}
maxSessionTimeout={most_ms}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""


class ZooKeeper(JavaProcess):
    """A stand-alone server. `hosts` is what clients are given."""

    def __init__(
        self,
        directory: Path,
        class_path: str,
        *,
        tick_ms: int = TICK_MS_DEFAULT,
        detached: bool = False,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        self._tls = tls
        self._secure_port = None if tls is None else Port()
        self._class_path = class_path
        self._tick_ms = tick_ms
        self._port = Port()
        super().__init__("ZooKeeper", directory, self._java_command, self._is_ok, detached=detached)

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def secure_hosts(self) -> str:
        """For clients that speak TLS."""
        if self._secure_port is None:
            raise ConfigError("this ZooKeeper was started without TLS")
        return f"{LOOPBACK}:{self._secure_port.number}"

    @property
    def data(self) -> Path:
        """Its directory of logs and snapshots."""
        return self.directory / "data"

    def ask(self, word: str) -> str:
        """One of ZooKeeper's four-letter words, as `dump`; "" when there is no answer."""
        answer = b""
        try:
            with socket.create_connection((LOOPBACK, self.port), ANSWER_TIMEOUT_S) as connection:
                connection.sendall(word.encode("ascii"))
                while piece := connection.recv(1 << 16):
                    answer += piece
                    if len(answer) > ANSWER_BYTES_MAX:
                        break
        except OSError:
            return ""
        return answer.decode("utf-8", "replace")

    def has_ephemeral(self, path: str) -> bool:
        """Whether some session keeps this node alive. A server that says nothing does not say no:
        it is asked again, and in the end it is `Unavailable`."""
        return path in (line.strip() for line in self._dump().splitlines())

    def heard_of_owner(self, path: str) -> tuple[str, int] | None:
        """The session that keeps this node alive, and how many requests came by its connection (0
        without one): a second answer that differs says that it lives. None: there is no node. A
        server that says nothing is `Unavailable`."""
        owner = None
        for line in self._dump().splitlines():
            if line.startswith("0x"):
                owner = line.rstrip(":")
            elif line.strip() == path and owner is not None:
                found = re.search(rf"recved=(\d+),.*\bsid={owner},", self.ask("cons"))
                return owner, int(found[1]) if found else 0
        return None

    def _dump(self) -> str:
        end_s = time.monotonic() + DUMP_TIMEOUT_S
        while DUMP_SIGN not in (told := self.ask("dump")):
            if time.monotonic() > end_s:
                raise Unavailable(f"ZooKeeper at {self.hosts} does not tell who is registered")
            time.sleep(POLL_S)
        return told

    def release(self) -> None:
        """After the last stop: the port may go to others."""
        self._port.release()
        if self._secure_port is not None:
            self._secure_port.release()

    def _is_ok(self) -> bool:
        return "standalone" in self.ask("srvr")

    def _java_command(self) -> JavaCommand:
        config = self.directory / "zoo.cfg"
        self.data.mkdir(exist_ok=True)
        least, most = SESSION_TICKS
        secure = dict(self._tls or {})
        if self._secure_port is not None:
            secure["secureClientPort"] = str(self._secure_port.number)
            secure["secureClientPortAddress"] = LOOPBACK
        config.write_text(
            _CONFIG.format(
                tick_ms=self._tick_ms,
                data=self.data,
                port=self.port,
                host=LOOPBACK,
                least_ms=least * self._tick_ms,
                most_ms=most * self._tick_ms,
            )
            + "".join(f"{key}={value}\n" for key, value in secure.items()),
            encoding="utf-8",
        )
        return JavaCommand(
            ZOOKEEPER_MAIN,
            [str(config)],
            self._class_path,
            heap_mb=HEAP_MB,
            properties=["zookeeper.preAllocSize=1024"],  # KiB; the default writes 64 MiB of zeros
        )

"""The stock Java client, driven from here: one JVM, several clients with settings of their own, any
number of handles. Nothing is hidden: what Java refuses is raised as `Refused` with its code.

Payloads may be given as `Seeded`: both sides make the same bytes of it, and what Java reads comes
back as sizes and digests, so that no megabyte travels between us.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dlog.testing.cluster import Cluster
from dlog.testing.cluster.java_program import JavaProgram

SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))

# BookKeeper's codes that tests ask for; the whole list is in its BKException.
LEDGER_RECOVERY = -10
LEDGER_CLOSED = -11
NO_SUCH_ENTRY = -13
INCORRECT_PARAMETER = -14
METADATA_VERSION = -17
NO_SUCH_LEDGER = -25
LEDGER_FENCED = -101
UNAUTHORIZED = -102

# Its names of our digests.
DIGESTS = {"crc32c": "CRC32C", "crc32": "CRC32", "hmac": "MAC", "dummy": "DUMMY"}
CLIENTS: Mapping[str, Mapping[str, str]] = {
    "v2": {"useV2WireProtocol": "true", "throttle": "0"},
    "v3": {"useV2WireProtocol": "false", "throttle": "0"},
    "publishing": {"throttle": "0", "explicitLacInterval": "1"},
}
_BLOCK_BYTES = 32


class Seeded(NamedTuple):
    """So many bytes that follow from the seed."""

    seed: str
    size: int

    def to_bytes(self) -> bytes:
        blocks = range((self.size + _BLOCK_BYTES - 1) // _BLOCK_BYTES)
        made = b"".join(hashlib.sha256(f"{self.seed}:{n}".encode()).digest() for n in blocks)
        return made[: self.size]


Payload = Seeded | bytes


class ReadEntry(NamedTuple):
    """An entry as Java tells it. `ledger_bytes` stood in its head."""

    entry_id: int
    size: int
    sha256: str
    ledger_bytes: int


class Added(NamedTuple):
    """The last entry that was acknowledged, and the code of what came instead of the next."""

    acked: int
    code: int | None


def bytes_of(payload: Payload) -> bytes:
    return payload.to_bytes() if isinstance(payload, Seeded) else payload


def as_read(payloads: Sequence[Payload], *, first: int = 0, bytes_before: int = 0) -> list[Any]:
    """What Java should read of these."""
    told = []
    for entry_id, payload in enumerate(map(bytes_of, payloads), first):
        bytes_before += len(payload)
        sha256 = hashlib.sha256(payload).hexdigest()
        told.append(ReadEntry(entry_id, len(payload), sha256, bytes_before))
    return told


class JavaHandle:
    """One of its handles: a writer's or a reader's. What it knew when it was opened stays here."""

    def __init__(self, program: JavaProgram, told: Mapping[str, Any]) -> None:
        self._program = program
        self._number = told["handle"]
        self.ledger_id: int = told["ledger"]
        self.last: int = told.get("last", -1)
        self.bytes: int = told.get("bytes", 0)
        self.is_closed: bool = told.get("closed", False)

    async def add(self, *payloads: Payload, first: int = 0) -> Added:
        """All at once. `first` counts for handles whose ids the caller chooses, and only there."""
        told = await self._call("add", payloads=[_told(each) for each in payloads], first=first)
        return _added(told)

    def add_soon(self, *payloads: Payload) -> Future[Any]:
        return self._program.ask(
            "add", handle=self._number, payloads=[_told(each) for each in payloads], first=0
        )

    async def read(
        self, first: int, last: int, *, how: str = "confirmed", bytes_max: int = 0
    ) -> list[ReadEntry]:
        """`how`: confirmed, unconfirmed, or batch, which may give fewer."""
        told = await self._call("read", first=first, last=last, how=how, bytes_max=bytes_max)
        return [ReadEntry(*each) for each in told]

    async def last_confirmed(self, *, any: bool = False) -> int:
        """Of a quorum; with `any`, of the first that knows more."""
        return int((await self._call("last_confirmed", any=any))["last"])

    async def tail(self, entry_id: int, *, timeout_ms: int = 1_000) -> tuple[int, ReadEntry | None]:
        """Long poll for one entry: the LAC then, and the entry if it came."""
        told = await self._call("tail", entry=entry_id, timeout_ms=timeout_ms)
        return told["last"], None if told["entry"] is None else ReadEntry(*told["entry"])

    async def state(self) -> dict[str, Any]:
        return dict(await self._call("state"))

    async def close(self) -> dict[str, Any]:
        """The ledger's metadata as it stands then."""
        return dict(await self._call("close"))

    async def forget(self) -> None:
        """Never close it: as if its program had died, only that its connections live on."""
        await self._call("forget")

    async def _call(self, what: str, **details: Any) -> Any:
        return await self._program.call(what, handle=self._number, **details)


class JavaLedgers:
    """The clients of one cluster. Start it on the main thread; see `JavaProgram`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        uri = f"zk+hierarchical://{cluster.zookeeper.hosts}{cluster.ledgers_root}"
        self._program = JavaProgram(
            "dlog.JavaLedgers",
            [uri],
            sources=SOURCES,
            directory=directory,
            version=cluster.version,
        )

    @property
    def pid(self) -> int | None:
        return self._program.pid

    def start(self) -> None:
        self._program.start()
        for name, settings in CLIENTS.items():
            self.add_client(name, settings)

    def stop(self) -> None:
        self._program.stop()

    def kill(self) -> None:
        self._program.kill()

    def add_client(self, name: str, settings: Mapping[str, str]) -> None:
        """One more under this name. `settings` are the client's own keys."""
        self._program.tell("client", client=name, settings=dict(settings))

    async def create(
        self,
        client: str = "v2",
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
    ) -> JavaHandle:
        """With a `ledger_id` the caller chooses the ids of entries, too."""
        told = await self._program.call(
            "create",
            client=client,
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=DIGESTS[digest],
            password=password.hex(),
            custom={key: value.hex() for key, value in (custom or {}).items()},
            ledger=ledger_id,
        )
        return JavaHandle(self._program, told)

    async def open(
        self,
        ledger_id: int,
        client: str = "v2",
        *,
        recovery: bool = False,
        digest: str = "crc32c",
        password: bytes = b"",
        admin: bool = False,
    ) -> JavaHandle:
        """With `recovery` it fences and closes the ledger. As `admin`, with the metadata's own
        password, as replicators do."""
        told = await self._program.call(
            "open",
            client=client,
            ledger=ledger_id,
            recovery=recovery,
            digest=DIGESTS[digest],
            password=password.hex(),
            admin=admin,
        )
        return JavaHandle(self._program, told)

    @asynccontextmanager
    async def reading(self, ledger_id: int, client: str = "v2", **how: Any) -> AsyncIterator[Any]:
        handle = await self.open(ledger_id, client, **how)
        try:
            yield handle
        finally:
            await handle.close()

    async def delete(self, ledger_id: int, client: str = "v2") -> None:
        await self._program.call("delete", client=client, ledger=ledger_id)

    async def parse(self, ledger_id: int, raw: bytes) -> dict[str, Any]:
        """What Java makes of the bytes of a ledger's node; `raw` what it would write for that."""
        told = await self._program.call("parse", ledger=ledger_id, raw=raw.hex())
        return {**told, "raw": bytes.fromhex(told["raw"])}

    async def replace_bookie(self, ledger_id: int, bookie_id: str, client: str = "v3") -> None:
        """Copy what a lost bookie held of a ledger to another, as auto-recovery does."""
        await self._program.call(
            "replace_bookie", client=client, ledger=ledger_id, bookie=bookie_id
        )


def _told(payload: Payload) -> Any:
    return list(payload) if isinstance(payload, Seeded) else payload.hex()


def added(future: Future[Any]) -> Added:
    """Of an `add_soon` that is done."""
    return _added(future.result())


def _added(told: Mapping[str, Any]) -> Added:
    error = told.get("error")
    return Added(told["acked"], None if error is None else error["code"])

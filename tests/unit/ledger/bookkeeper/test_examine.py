"""A cluster looked over, with bookies that the test plays on real sockets: good, older than batch
reads, silent, gone, and some that do not let everybody in."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest

from dlog.errors import AuthError, Unavailable
from dlog.findings import Finding, State, Wish
from dlog.ledger.bookkeeper import examine
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.store import Versioned
from dlog.wire.bookie_codes import StatusCode
from dlog.wire.bookie_digest import DigestType
from dlog.wire.bookie_service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from dlog.wire.bookie_v3 import Operation
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata
from dlog.wire.ledger_paths import Manager, pack_layout
from dlog.wire.protobuf import pack_bytes, pack_number
from tests.pace import within
from tests.unit.ledger.bookkeeper.link_tools import framed

WISH = Wish(ensemble=3, ack_quorum=2)
OLD, SILENT, LOCKED = "old", "silent", "locked"
_BATCH_READ_REPLY = struct.Struct(">Iiqqq")


def info_response(txn_id: int, status: int) -> bytes:
    header = pack_number(1, 3) + pack_number(2, Operation.GET_BOOKIE_INFO) + pack_number(3, txn_id)
    body = pack_number(1, status) + pack_number(2, 100 << 30) + pack_number(3, 40 << 30)
    return framed(pack_bytes(1, header) + pack_number(2, status) + pack_bytes(105, body))


class Bookie:
    """Answers how much disk it has, and batch reads, unless its mood is another."""

    def __init__(self, mood: str = "") -> None:
        self.mood = mood
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                body = await reader.readexactly(length)
                if self.mood == SILENT:
                    continue
                if body[0] == 2:  # the binary protocol: a batch read
                    if self.mood == OLD:
                        break
                    writer.write(self._no_ledger(body))
                else:
                    refused = self.mood == LOCKED
                    status = StatusCode.EUA if refused else StatusCode.EOK
                    writer.write(info_response(body[7], status))  # small numbers are one byte
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.transport.abort()

    def _no_ledger(self, body: bytes) -> bytes:
        ledger_id, entry_id, request_id = struct.unpack_from(">qqq", body, 4)
        return framed(_BATCH_READ_REPLY.pack(2 << 24 | 7 << 16, 1, ledger_id, entry_id, request_id))


class Meta(MemoryMetaStore):
    """Refuses, or fails, where the test says."""

    def __init__(self) -> None:
        super().__init__(MemoryTree())
        self.refuses = ""
        self.is_away = False

    async def get(self, path: str) -> Versioned:
        self._check(path)
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self._check(path)
        return await super().children(path)

    def _check(self, path: str) -> None:
        if self.is_away:
            raise Unavailable("ZooKeeper is away")
        if self.refuses and path.startswith(self.refuses):
            raise AuthError(f"no permission for {path}", path=path)


class Place:
    def __init__(self) -> None:
        self.meta = Meta()
        self.store = BookKeeperLedgerStore(self.meta, password=b"ours", connect_timeout_ms=500)
        self.bookies: list[Bookie] = []

    async def begin(self) -> None:
        await self.meta.create("/ledgers/available/readonly", b"")
        await self.meta.create("/ledgers/LAYOUT", pack_layout(Manager.HIERARCHICAL))
        await self.meta.create("/ledgers/INSTANCEID", b"an-instance")

    async def add(
        self, name: str, mood: str = "", *, folder: str = "available", version: str = ""
    ) -> Bookie:
        bookie = Bookie(mood)
        await bookie.start()
        self.bookies.append(bookie)
        endpoint = Endpoint("bookie", "127.0.0.1", bookie.port, BOOKIE_RPC, extensions=("tls",))
        properties = (("version", version),) if version else ()
        info = BookieServiceInfo((endpoint,), properties).to_bytes()
        await self.meta.create(f"/ledgers/{folder}/{name}", info, ephemeral=True)
        await self.meta.create(f"/ledgers/cookies/{name}", b"")
        return bookie

    async def found(self, ledger_ids: tuple[int, ...] = ()) -> dict[str, Finding]:
        return {f.check: f for f in await self.store.examine(WISH, ledger_ids)}

    async def end(self) -> None:
        await self.store.close()
        for bookie in self.bookies:
            await bookie.stop()
        await self.meta.close()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    await place.begin()
    yield place
    await place.end()


async def test_a_good_place(place: Place) -> None:
    for name in ("b1", "b2", "b3", "b4"):
        await place.add(name, version="4.18.0")
    found = await place.found()
    assert found["bookkeeper"].told == "/ledgers, hierarchical, instance an-instance"
    assert found["bookie b1"].state is State.FINE
    assert "40% of 100.0 GiB free" in found["bookie b1"].told
    assert found["quorums"].state is State.FINE
    assert found["bookie versions"] == Finding("bookie versions", State.FINE, "4.18.0")
    assert "offered by b1, b2, b3 and 1 more" in found["bookie tls"].told
    assert "warning" not in {f.state for f in found.values()}


async def test_bookies_that_tell_no_version_are_tried_with_a_batch_read(place: Place) -> None:
    for name in ("b1", "b2", "b3"):
        await place.add(name)
    versions = (await place.found())["bookie versions"]
    assert versions.state is State.NOTE
    assert "by what they can do 4.17 or later" in versions.told


async def test_one_is_silent_one_old_one_read_only_one_gone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "EXAMINE_TIMEOUT_MS", 500)
    await place.add("b1")
    await place.add("b2", SILENT)
    await place.add("b3", OLD)
    await place.add("b4", folder="available/readonly")
    await (await place.add("b5")).stop()
    await place.meta.create("/ledgers/cookies/b0", b"")
    found = await place.found()
    states = {check: f.state for check, f in found.items() if check.startswith("bookie b")}
    warned = {f"bookie b{n}" for n in (0, 2, 4, 5)}
    assert {check for check, state in states.items() if state is State.WARNING} == warned
    assert "answers nothing" in found["bookie b2"].told
    assert "read-only" in found["bookie b4"].told
    assert "could not be reached" in found["bookie b5"].told
    assert "not registered" in found["bookie b0"].told
    assert "b3 (before 4.17)" in found["bookie versions"].told
    assert found["quorums"].state is State.BAD
    assert found["quorums"].told.startswith("2 bookies take entries")


async def test_bookies_that_want_to_know_who_we_are(place: Place) -> None:
    await place.add("b1", LOCKED)
    found = await place.found()
    assert "bookie_auth" in found["bookie b1"].told
    assert "no bookie serves us" in found["bookie auth"].told


async def test_many_silent_bookies_take_no_longer_than_the_bound(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "EXAMINE_TIMEOUT_MS", 400)
    monkeypatch.setattr(examine, "EXAMINE_BOOKIES_TIMEOUT_MS", 600)
    for number in range(40):
        await place.add(f"b{number:02}", SILENT)
    begin_s = time.monotonic()
    found = await place.found()
    assert within(time.monotonic() - begin_s, 5)
    told = [found[f"bookie b{number:02}"].told for number in range(40)]
    assert any("answers nothing" in each for each in told)
    assert any("was not asked" in each for each in told)


async def test_the_password_is_tried_on_ledgers(place: Place) -> None:
    await place.add("b1")
    nodes = LedgerNodes(place.meta)

    async def ledger(password: bytes) -> int:
        fragments = (Fragment(0, ("b1",)),)
        metadata = LedgerMetadata(
            1, 1, 1, fragments, digest_type=DigestType.CRC32C, password=password
        )
        return (await nodes.create(metadata)).ledger_id

    ours, theirs = await ledger(b"ours"), await ledger(b"theirs")
    assert (await place.found((ours, 77)))["ledger passwords"].state is State.NOTE
    refused = (await place.found((ours, theirs)))["ledger passwords"]
    assert refused.state is State.BAD
    assert f"ledger {theirs} has another password" in refused.told
    assert await place.store.node_of(theirs) == f"/ledgers/00/0000/L{theirs:04}"


async def test_no_cluster_at_this_root() -> None:
    meta = Meta()
    store = BookKeeperLedgerStore(meta, ledgers_root="/elsewhere")
    found = await store.examine(WISH, [])
    assert [(f.check, f.state) for f in found] == [("bookkeeper", State.BAD)]
    assert "/elsewhere (ledgers=)" in found[0].told
    await store.close()
    await meta.close()


async def test_metadata_that_is_away_or_closed_to_us_is_said(place: Place) -> None:
    await place.add("b1")
    place.meta.refuses = "/ledgers/cookies"
    assert (await place.found())["bookie b1"].state is State.FINE
    place.meta.refuses = "/ledgers/available"
    found = await place.found()
    assert found["bookkeeper"].state is State.BAD
    assert "no permission for /ledgers/available" in found["bookkeeper"].told
    place.meta.refuses, place.meta.is_away = "", True
    assert "ZooKeeper is away" in (await place.found())["bookkeeper"].told


async def test_a_layout_that_nobody_knows_is_bad(place: Place) -> None:
    node = await place.meta.get("/ledgers/LAYOUT")
    await place.meta.put("/ledgers/LAYOUT", b"9\nstrange:1", node.version)
    assert (await place.found())["bookkeeper"].state is State.BAD

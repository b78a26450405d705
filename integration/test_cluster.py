"""The test cluster itself: what it can do to its servers, as the servers themselves tell, and that
nothing of it stays behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.errors import ConfigError, Unavailable
from dlog.testing.cluster import AUTO_RECOVERY, EASILY_BUSY, Bookie, Cluster, ZooKeeper, zookeeper
from dlog.testing.cluster.ports import listens
from dlog.testing.cluster.process import identity
from dlog.testing.faulty_proxy import FaultyProxy
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v2 import AddReplies, ReadReply, Reply, pack_add, pack_read, parse_reply
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.ledger_paths import Manager, ledger_path
from integration.conftest import OwnCluster
from integration.zookeeper_tools import advertise, raw_client
from tests.pace import Deadline

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
DIGEST = EntryDigest(DigestType.CRC32C, b"")
KEY = master_key(b"")
LEDGER_BYTES = 1 << 20  # what each entry says of its ledger; nobody here compares it

# Of ledgers that no metadata store knows: a bookie takes their entries all the same.
_ledger_ids = itertools.count(1 << 40)


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = Deadline(PATIENCE_S)
    pause = socket.socketpair()  # something to wait on that never comes
    pause[0].settimeout(0.05)
    try:
        while not fact():
            assert not deadline.passed(), f"still not so: {what}"
            try:
                pause[0].recv(1)
            except TimeoutError:
                continue
    finally:
        for end in pause:
            end.close()


def frame(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    head = DIGEST.pack_head(ledger_id, entry_id, entry_id - 1, LEDGER_BYTES, [payload])
    return pack_add(head, payload_bytes=len(payload), master_key=KEY) + payload


def ask(bookie: Bookie, requests: bytes, count: int) -> list[Reply]:
    """What the server says to bytes, past every client."""
    splitter, replies = FrameSplitter(bookie.name), list[Reply]()
    with socket.create_connection(("127.0.0.1", bookie.port), PATIENCE_S) as connection:
        # Sent apart: the bookie would stop reading while nobody takes its answers.
        sending = threading.Thread(target=connection.sendall, args=(requests,))
        sending.start()
        while len(replies) < count:
            chunk = connection.recv(1 << 16)
            assert chunk, f"{bookie.name} closed the connection"
            splitter.feed(chunk)
            while (run := splitter.next_run()) is not None:
                replies += [parse_reply(body, bookie.name) for body in run.bodies()]
        sending.join()
    return replies


def add(bookie: Bookie, ledger_id: int) -> Answer:
    (reply,) = ask(bookie, frame(ledger_id, 0, b"kept"), 1)
    assert isinstance(reply, AddReplies)
    return reply.answer


def read(bookie: Bookie, ledger_id: int) -> Answer:
    (reply,) = ask(bookie, pack_read(ledger_id, 0), 1)
    assert isinstance(reply, ReadReply)
    assert reply.entry is None or bytes(reply.entry).endswith(b"kept")
    return reply.answer


# --- A cluster that is up ---


def test_a_cluster_is_up_when_it_says_so(cluster: Cluster) -> None:
    assert len(cluster.bookies) == 4
    assert cluster.url.startswith(f"zk://{cluster.zookeeper.hosts}/dlog?ledgers=/ledgers")
    for bookie in cluster.bookies:
        assert bookie.is_registered()
        assert bookie.answers()


def test_each_server_is_a_process_of_its_own(cluster: Cluster) -> None:
    pids = {server.pid for server in cluster.servers}
    assert len(pids) == 5
    assert None not in pids
    assert os.getpid() not in pids


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux has /proc")
def test_servers_listen_on_loopback_alone(cluster: Cluster) -> None:
    ports = {cluster.zookeeper.port, *(bookie.port for bookie in cluster.bookies)}
    seen = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) in ports:
                seen.append(address)
    assert seen == ["0100007F"] * 5


def test_every_answer_of_a_bookie_is_behind_a_sync(cluster: Cluster) -> None:
    for bookie in cluster.bookies:
        settings = (bookie.directory / "bookie.conf").read_text().splitlines()
        assert "journalSyncData=true" in settings
        assert "journalWriteData=false" not in settings


def test_bookkeepers_own_client_can_use_it(cluster: Cluster) -> None:
    told = cluster.bookies[0].tool(
        *"simpletest -ensemble 4 -writeQuorum 3 -ackQuorum 2 -numEntries 50".split()
    )
    assert "50 entries written" in told


@pytest.fixture
def ledger_id() -> int:
    return next(_ledger_ids)


@pytest.fixture
def one_more(cluster: Cluster) -> Iterator[Callable[..., Bookie]]:
    """Adds bookies that are gone again when the test ends, also from what a doctor looks at."""
    before = list(cluster.bookies)
    yield cluster.add_bookie
    with raw_client(cluster.zookeeper.hosts) as zookeeper:
        for bookie in cluster.bookies[len(before) :]:
            bookie.terminate()
            until(lambda: not bookie.is_registered(), "its registration is gone")  # noqa: B023
            cookie = f"{cluster.ledgers_root}/cookies/{bookie.bookie_id}"
            if zookeeper.exists(cookie):
                zookeeper.delete(cookie)
    cluster.bookies[:] = before


def test_a_silent_zookeeper_does_not_say_that_nobody_is_registered(
    own_zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_zookeeper.has_ephemeral("/nobody") is False
    own_zookeeper.freeze()
    monkeypatch.setattr(zookeeper, "DUMP_TIMEOUT_S", 0.0)
    with pytest.raises(Unavailable, match="does not tell"):
        own_zookeeper.has_ephemeral("/nobody")


# --- What is done to a bookie ---


def test_a_killed_bookie_keeps_port_and_data_and_comes_back(
    cluster: Cluster, ledger_id: int
) -> None:
    bookie = cluster.bookies[3]
    port, pid = bookie.port, bookie.pid
    assert add(bookie, ledger_id) is Answer.OK
    bookie.kill()
    assert not listens(port)
    assert not bookie.answers()
    bookie.start()
    bookie.wait_until_serving()
    assert bookie.port == port
    assert bookie.pid not in (None, pid)
    assert read(bookie, ledger_id) is Answer.OK


def test_a_frozen_bookie_accepts_and_does_not_answer(cluster: Cluster) -> None:
    bookie = cluster.bookies[3]
    bookie.freeze()
    try:
        assert listens(bookie.port)
        assert not bookie.answers()
    finally:
        before = cluster.zookeeper.heard_of_owner(f"{cluster.ledgers_root}/available/bookie-4")
        bookie.thaw()
    bookie.wait_until_serving()
    after = cluster.zookeeper.heard_of_owner(f"{cluster.ledgers_root}/available/bookie-4")
    assert None not in (before, after)
    assert after != before, "its session is known to live, not only to have been there"


def test_a_bookie_may_be_read_only_and_writable_again(cluster: Cluster, ledger_id: int) -> None:
    bookie = cluster.bookies[3]
    assert add(bookie, ledger_id) is Answer.OK
    bookie.terminate()
    bookie.start_read_only()
    bookie.wait_until_serving()
    assert bookie.is_registered(read_only=True)
    until(lambda: not bookie.is_registered(), "the old registration expires")
    assert add(bookie, ledger_id) is Answer.READ_ONLY
    assert read(bookie, ledger_id) is Answer.OK
    bookie.kill()
    bookie.start_writable()
    bookie.wait_until_serving()
    assert add(bookie, ledger_id) is Answer.OK


def test_a_wiped_bookie_comes_back_empty(cluster: Cluster, ledger_id: int) -> None:
    bookie = cluster.bookies[3]
    assert add(bookie, ledger_id) is Answer.OK
    with pytest.raises(ConfigError):
        bookie.wipe()
    bookie.kill()
    bookie.wipe()
    bookie.start()
    bookie.wait_until_serving()
    assert read(bookie, ledger_id) is Answer.NO_LEDGER


def test_a_new_bookie_whose_disk_fills_up_turns_read_only(
    one_more: Callable[..., Bookie], ledger_id: int
) -> None:
    bookie = one_more(disk_bytes=96 << 20)
    try:
        bookie.start()
    except Unavailable as error:
        pytest.skip(error.message)
    bookie.wait_until_serving()
    assert add(bookie, ledger_id) is Answer.OK
    bookie.fill_disk()
    until(lambda: bookie.is_registered(read_only=True), "a full bookie is read-only")
    until(lambda: not bookie.is_registered(), "and no longer writable: for a moment it is both")
    until(lambda: add(bookie, ledger_id) is Answer.READ_ONLY, "it says so to whoever adds")
    assert read(bookie, ledger_id) is Answer.OK
    bookie.empty_disk()
    until(bookie.is_registered, "it is writable again")
    until(lambda: add(bookie, ledger_id) is Answer.OK, "and says so to whoever adds")


def test_a_bookie_of_a_short_queue_refuses_in_the_middle_of_a_burst(
    one_more: Callable[..., Bookie], ledger_id: int
) -> None:
    bookie = one_more(settings=EASILY_BUSY)
    bookie.start()
    bookie.wait_until_serving()
    burst = b"".join(frame(ledger_id, entry_id, bytes(1000)) for entry_id in range(3000))
    answers = {r.answer for r in ask(bookie, burst, 3000) if isinstance(r, AddReplies)}
    assert answers == {Answer.OK, Answer.BUSY}


async def test_a_network_between_clients_and_one_bookie(cluster: Cluster) -> None:
    """Which the stock client goes through, too."""
    bookie = cluster.bookies[0]
    words = "simpletest -ensemble 4 -writeQuorum 4 -ackQuorum 4 -numEntries 5".split()
    async with FaultyProxy(bookie.port) as proxy:
        await advertise(cluster, bookie, proxy.port)
        assert "5 entries written" in await asyncio.to_thread(bookie.tool, *words)
        assert proxy.connections_made > 0
        await advertise(cluster, bookie, bookie.port)
        before = proxy.connections_made
        assert "5 entries written" in await asyncio.to_thread(bookie.tool, *words)
        assert proxy.connections_made == before


def test_auto_recovery_copies_what_a_lost_bookie_had(own_cluster: OwnCluster) -> None:
    repairing = own_cluster(bookies=3, settings=AUTO_RECOVERY)
    ledger_id = 7
    kept, lost, spare = repairing.bookies
    assert (add(kept, ledger_id), add(lost, ledger_id)) == (Answer.OK, Answer.OK)
    path = repairing.ledgers_root + ledger_path(Manager.HIERARCHICAL, ledger_id)
    metadata = LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(0, (kept.bookie_id, lost.bookie_id)),),
        state=LedgerState.CLOSED,
        last_entry_id=0,
        length_bytes=LEDGER_BYTES,
        digest_type=DIGEST.type,
        password=b"",
    )
    with raw_client(repairing.zookeeper.hosts) as client:
        client.create(path, pack_ledger_metadata(metadata), makepath=True)

        def ensemble() -> tuple[str, ...]:
            stored, _ = client.get(path)
            return parse_ledger_metadata(stored, where=path).fragments[-1].ensemble

        lost.kill()
        until(lambda: ensemble() == (kept.bookie_id, spare.bookie_id), "the spare one has a copy")
    assert read(spare, ledger_id) is Answer.OK


# --- Releases ---


def test_a_cluster_of_each_release(
    cluster: Cluster, own_cluster: OwnCluster, bookkeeper_version: str
) -> None:
    if bookkeeper_version != cluster.version:
        cluster = own_cluster(bookies=1, version=bookkeeper_version)
    jars = Path(f"/proc/{cluster.bookies[0].pid}/cmdline").read_bytes().decode()
    assert f"bookkeeper-server-{bookkeeper_version}.jar" in jars
    assert add(cluster.bookies[0], next(_ledger_ids)) is Answer.OK


def test_a_bookie_of_another_release_joins(
    one_more: Callable[..., Bookie], bookkeeper_version: str, ledger_id: int
) -> None:
    bookie = one_more(version=bookkeeper_version)
    bookie.start()
    bookie.wait_until_serving()
    assert add(bookie, ledger_id) is Answer.OK


def test_a_release_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4\.18\.0"), Cluster(version="1.0"):
        pass


# --- Its end ---


async def test_a_cluster_comes_up_beside_the_loop(jars: str) -> None:
    async with Cluster(bookies=0) as small:
        assert small.zookeeper.pid is not None
        zookeeper, directory = small.zookeeper, small.directory
    assert zookeeper.pid is None
    assert not listens(zookeeper.port)
    assert not directory.exists()


def test_a_server_that_does_not_start_is_told_with_its_log(jars: str) -> None:
    with (
        pytest.raises(Unavailable, match="ended while starting"),
        Cluster(bookies=1, settings={"ledgerStorageClass": "no.such.Class"}) as never,
    ):
        assert never is None


def test_nothing_outlives_a_killed_run(jars: str, tmp_path: Path) -> None:
    """Neither processes nor files nor the small disk that was mounted."""
    program = (
        "import sys\n"
        "from dlog.errors import Unavailable\n"
        "from dlog.testing.cluster import Cluster\n"
        "with Cluster(bookies=1) as cluster:\n"
        "    try:\n"
        "        cluster.add_bookie(disk_bytes=64 << 20).start()\n"
        "    except Unavailable:\n"
        "        pass  # nobody may mount here\n"
        "    pids = [server.pid for server in cluster.servers if server.pid is not None]\n"
        "    print(cluster.directory, *pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    with run.stdin, run.stdout:
        directory, *pids = run.stdout.readline().split()
        known = {int(pid): identity(int(pid)) for pid in pids}
        assert len(known) >= 2
        assert None not in known.values()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    until(
        lambda: all(identity(pid) != own for pid, own in known.items()),
        "the servers die with their run",
    )
    until(lambda: not Path(directory).exists(), "its directory is removed")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()

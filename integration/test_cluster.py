"""The test cluster itself: what it can do to its servers, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import ConfigError, Unavailable
from dlog.testing.cluster import BOOKKEEPER_VERSIONS, Cluster, class_path, scratch_directory
from dlog.testing.cluster.ports import Port, listens
from dlog.testing.cluster.process import identity

ROOT = Path(__file__).parents[1]
PATIENCE_S = 30.0


def until(fact: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    pause = socket.socketpair()  # something to wait on that never comes
    pause[0].settimeout(0.05)
    try:
        while not fact():
            assert time.monotonic() < end_s, f"still not so: {what}"
            try:
                pause[0].recv(1)
            except TimeoutError:
                continue
    finally:
        for end in pause:
            end.close()


def test_a_cluster_is_up_when_it_says_so(cluster: Cluster) -> None:
    assert len(cluster.bookies) == 4
    assert cluster.url.startswith(f"zk://{cluster.zookeeper.hosts}/dlog?ledgers=/ledgers")
    for bookie in cluster.bookies:
        assert bookie.is_registered()
        assert bookie.answers()


def test_bookkeepers_own_client_can_use_it(cluster: Cluster) -> None:
    told = cluster.bookies[0].tool(
        *"simpletest -ensemble 4 -writeQuorum 3 -ackQuorum 2 -numEntries 50".split()
    )
    assert "50 entries written" in told


def test_a_killed_bookie_keeps_its_port_and_comes_back(cluster: Cluster) -> None:
    bookie = cluster.bookies[3]
    port, pid = bookie.port, bookie.pid
    bookie.kill()
    assert bookie.pid is None
    assert not listens(port)
    assert not bookie.answers()
    bookie.start()
    bookie.wait_until_serving()
    assert bookie.port == port
    assert bookie.pid not in (None, pid)


def test_a_frozen_bookie_accepts_and_does_not_answer(cluster: Cluster) -> None:
    bookie = cluster.bookies[3]
    bookie.freeze()
    try:
        assert listens(bookie.port)
        assert not bookie.answers()
    finally:
        bookie.thaw()
    until(bookie.answers, "it answers again")


def test_a_bookie_may_be_read_only_and_writable_again(cluster: Cluster) -> None:
    bookie = cluster.bookies[3]
    bookie.terminate()
    bookie.start_read_only()
    bookie.wait_until_serving()
    assert bookie.is_registered(read_only=True)
    until(lambda: not bookie.is_registered(), "the old registration expires")
    bookie.kill()
    bookie.start_writable()
    bookie.wait_until_serving()


def test_a_wiped_bookie_comes_back_empty(cluster: Cluster) -> None:
    bookie = cluster.bookies[3]
    with pytest.raises(ConfigError):
        bookie.wipe()
    bookie.kill()
    bookie.wipe()
    assert not (bookie.directory / "journal").exists()
    bookie.start()
    bookie.wait_until_serving()


def test_a_new_bookie_whose_disk_fills_up_turns_read_only(jars: str) -> None:
    with Cluster(bookies=1) as small:
        bookie = small.add_bookie(disk_bytes=96 << 20)
        try:
            bookie.start()
        except Unavailable as error:
            pytest.skip(error.message)
        bookie.wait_until_serving()
        bookie.fill_disk()
        until(lambda: bookie.is_registered(read_only=True), "a full bookie is read-only")
        bookie.empty_disk()
        until(bookie.is_registered, "it takes adds again")
        directory = small.directory
    assert not directory.exists()


@pytest.mark.parametrize("version", [each for each in BOOKKEEPER_VERSIONS if each != "4.18.0"])
def test_older_releases_run_too(version: str, jars: str) -> None:
    try:
        class_path(version)
    except Unavailable as error:
        pytest.skip(error.message)
    with Cluster(bookies=1, version=version) as small:
        assert small.bookies[0].is_registered()
        assert small.bookies[0].answers()


async def test_a_cluster_comes_up_beside_the_loop(jars: str) -> None:
    async with Cluster(bookies=0) as small:
        assert small.zookeeper.pid is not None
        zookeeper = small.zookeeper
    assert zookeeper.pid is None
    assert not listens(zookeeper.port)


def test_a_release_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4\.18\.0"), Cluster(version="1.0"):
        pass


def test_a_server_that_does_not_start_is_told_with_its_log(jars: str) -> None:
    with (
        pytest.raises(Unavailable, match="ended while starting"),
        Cluster(bookies=1, settings={"ledgerStorageClass": "no.such.Class"}) as never,
    ):
        assert never is None


def test_nothing_outlives_a_killed_run(jars: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from dlog.testing.cluster import Cluster\n"
        "with Cluster(bookies=0) as cluster:\n"
        "    print(cluster.zookeeper.pid, cluster.directory, flush=True)\n"
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
        pid, directory = run.stdout.readline().split()
        known = identity(int(pid))
        assert known is not None
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        until(lambda: identity(int(pid)) != known, "the server dies with its run")
        assert Path(directory).is_dir(), "a killed run cannot clean up"
        with scratch_directory(tmp_path) as next_one:
            assert not Path(directory).exists(), "the next run sweeps"
            assert next_one.is_dir()


def test_a_directory_in_use_is_not_swept(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as first, scratch_directory(tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
    assert list(tmp_path.glob("*/run-*")) == []


def test_a_reserved_port_is_only_for_a_server() -> None:
    with Port() as port, socket.socket() as plain, socket.socket() as server:
        with pytest.raises(OSError):
            plain.bind(("127.0.0.1", port.number))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port.number))
        server.listen()
        assert listens(port.number)
    with Port() as first, Port() as second:
        assert first.number != second.number

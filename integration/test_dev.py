"""`dlog dev` as people use it: up, status, down, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.cli.failures import FAILED, NOT_FOUND, OK
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import DetachedCluster
from dlog.testing.cluster.detached import Member
from dlog.testing.cluster.process import identity

ROOT = Path(__file__).parents[1]
Dlog = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dlog(jars: str, tmp_path: Path) -> Iterator[Dlog]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dlog", "dev", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    yield run
    run("down")


def _state(tmp_path: Path) -> Path:
    return tmp_path / f"dlog-dev-{os.getuid()}" / "state.json"


async def test_up_status_down(dlog: Dlog, tmp_path: Path) -> None:
    assert dlog("status").returncode == NOT_FOUND
    assert dlog("down").returncode == NOT_FOUND
    started = dlog("up", "--bookies", "1")
    assert started.returncode == OK, started.stderr
    assert started.stdout.startswith("export DLOG_URL='zk://127.0.0.1:")
    hosts = started.stdout.split("zk://")[1].split("/")[0]
    store = ZooKeeperMetaStore(hosts)
    assert "bookie-1" in await store.children("/ledgers/available")
    await store.close()

    again = dlog("up")
    assert again.returncode == FAILED
    assert "runs already" in again.stderr

    told = dlog("status")
    assert told.returncode == OK
    assert told.stdout.count("runs") == 2
    members = json.loads(_state(tmp_path).read_text())["members"]
    os.kill(members[1]["pid"], signal.SIGKILL)
    told = dlog("status")
    assert told.returncode == FAILED
    assert "ended" in told.stdout

    assert dlog("down").returncode == OK
    assert [identity(member["pid"]) for member in members] == [None, None]
    assert not _state(tmp_path).exists()
    assert not (_state(tmp_path).parent / "data").exists()


def test_a_pid_that_came_again_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        own = identity(stranger.pid)
        assert own is not None
        assert Member("it", stranger.pid, own).runs
        state = {"name": "ZooKeeper", "pid": stranger.pid, "identity": own + "0"}
        found = {"format": 1, "url": "zk://x", "version": "4.18.0", "members": [state]}
        (tmp_path / "state.json").write_text(json.dumps(found))
        assert DetachedCluster(tmp_path).down() is not None
        assert identity(stranger.pid) == own
        stranger.kill()


def test_a_start_that_is_interrupted_leaves_nothing(dlog: Dlog, tmp_path: Path) -> None:
    starting = subprocess.Popen(
        [sys.executable, "-m", "dlog", "dev", "up"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    members = _wait_for_members(tmp_path, starting)
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(30) != OK
    assert not _state(tmp_path).exists()
    assert [identity(member["pid"]) for member in members] == [None] * len(members)


def _wait_for_members(tmp_path: Path, starting: subprocess.Popen[bytes]) -> list[dict[str, int]]:
    for _ in range(600):
        try:
            found: list[dict[str, int]] = json.loads(_state(tmp_path).read_text())["members"]
        except FileNotFoundError:
            try:
                starting.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("it ended before it started anything") from None
        return found
    raise AssertionError("no server was started")

"""`dlog dev` as people use it: up, status, down, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.cli.failures import FAILED, NOT_FOUND, OK, USAGE
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster.process import identity

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120
DLOG = [sys.executable, "-m", "dlog", "dev"]

Dlog = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / f"dlog-dev-{os.getuid()}" / "state.json"


@pytest.fixture
def dlog(jars: str, tmp_path: Path, environment: dict[str, str]) -> Iterator[Dlog]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DLOG, *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    yield run
    run("down")


def members(state: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(state.read_text())["members"]
    return found


def alive(servers: list[dict[str, Any]]) -> list[bool]:
    return [identity(server["pid"]) == server["identity"] for server in servers]


async def registered(url: str) -> list[str]:
    store = ZooKeeperMetaStore(url.removeprefix("zk://").split("/")[0])
    try:
        return await store.children("/ledgers/available")
    finally:
        await store.close()


def test_up_status_down(
    dlog: Dlog, tmp_path: Path, environment: dict[str, str], state: Path
) -> None:
    assert dlog("status").returncode == NOT_FOUND
    assert dlog("down").returncode == NOT_FOUND
    assert dlog("up", "--version", "1.0").returncode == USAGE

    # What a crash of the machine left; nothing of it is in the way.
    left = state.parent / "data" / "zookeeper" / "data" / "myid"
    left.parent.mkdir(parents=True)
    left.write_text("7")
    gone = {"name": "ZooKeeper", "pid": os.getpid(), "identity": "of-another-boot:1"}
    told = {"format": 1, "url": "zk://x", "version": "4.18.0", "is_complete": True}
    state.write_text(json.dumps({**told, "members": [gone]}))
    ended = dlog("status")
    assert (ended.returncode, ended.stdout.count("ended")) == (FAILED, 1)

    # In a shell that is closed afterwards, with everything it started.
    script = 'eval "$("$@")"; echo "$DLOG_URL"; sleep 1000'
    shell = subprocess.Popen(
        ["sh", "-c", script, "sh", *DLOG, "up", "--bookies", "1"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also under nohup
    )
    try:
        assert shell.stdout is not None
        url = shell.stdout.readline().strip()
    finally:
        os.killpg(shell.pid, signal.SIGHUP)
        shell.communicate(timeout=PATIENCE_S)
    assert url.startswith("zk://127.0.0.1:")
    assert url.endswith("/dlog?ledgers=/ledgers")
    assert not left.exists()
    assert asyncio.run(registered(url)) == ["bookie-1", "readonly"]

    again = dlog("up")
    assert again.returncode == FAILED
    assert f"runs already: {url}" in again.stderr

    shown = dlog("status")
    assert shown.returncode == OK
    assert shown.stdout.count("runs") == 2
    assert url in shown.stdout
    servers = members(state)
    os.kill(servers[1]["pid"], signal.SIGKILL)
    shown = dlog("status")
    assert shown.returncode == FAILED
    assert "ended" in shown.stdout

    assert dlog("down").returncode == OK
    assert not any(alive(servers))
    assert sorted(each.name for each in state.parent.iterdir()) == ["lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_broken_off_leaves_nothing_that_stays(
    number: signal.Signals, dlog: Dlog, tmp_path: Path, environment: dict[str, str], state: Path
) -> None:
    starting = subprocess.Popen(
        [*DLOG, "up"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    servers = wait_for_members(state, starting)
    starting.send_signal(number)
    assert starting.wait(PATIENCE_S) != OK
    if number is signal.SIGKILL:
        assert any(alive(servers)), "a killed command cannot end what it started"
        assert "never up" in dlog("status").stderr
        assert dlog("down").returncode == OK
    assert not any(alive(servers))
    assert sorted(each.name for each in state.parent.iterdir()) == ["lock"]


def wait_for_members(state: Path, starting: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    for _ in range(600):
        try:
            return members(state)
        except FileNotFoundError:
            try:
                starting.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("it ended before it started anything") from None
    raise AssertionError("no server was started")

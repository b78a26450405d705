"""What `dlog dev` does about state that a crash, a reboot or another program left: no Java
needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import FormatError, Unavailable
from dlog.testing.cluster import DetachedCluster
from dlog.testing.cluster.detached import Member
from dlog.testing.cluster.process import identity


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    program = "import sys; print('runs', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"runs\n"
            yield child
        finally:
            child.kill()


def write_state(directory: Path, *members: dict[str, Any], **other: Any) -> None:
    told = {"format": 1, "url": "zk://x", "version": "4.18.0", "is_complete": True}
    (directory / "state.json").write_text(json.dumps({**told, "members": members, **other}))
    (directory / "data" / "bookie-1").mkdir(parents=True)


def test_a_listed_server_is_ended_and_its_data_goes(tmp_path: Path) -> None:
    with running() as server:
        own = identity(server.pid)
        assert own is not None
        write_state(tmp_path, {"name": "ZooKeeper", "pid": server.pid, "identity": own})
        found = DetachedCluster(tmp_path).find()
        assert found is not None
        assert found.members[0].runs
        assert DetachedCluster(tmp_path).down() == 1
        assert identity(server.pid) is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lock"]
    assert DetachedCluster(tmp_path).down() is None


def test_a_pid_that_came_again_is_left_alone(tmp_path: Path) -> None:
    """Also after a reboot, whose processes have the pids of the one before."""
    with running() as stranger:
        own = identity(stranger.pid)
        assert own is not None
        assert Member("it", stranger.pid, own).runs
        write_state(tmp_path, {"name": "ZooKeeper", "pid": stranger.pid, "identity": own + "0"})
        assert DetachedCluster(tmp_path).down() == 0
        assert stranger.poll() is None
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 9}', '{"format": 1, "members": [{"pid": 1}]}', "\0"]
)
def test_a_damaged_state_is_told_and_is_not_in_the_way(tmp_path: Path, text: str) -> None:
    cluster = DetachedCluster(tmp_path)
    write_state(tmp_path)
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(FormatError, match=r"state\.json is damaged"):
        cluster.find()
    assert cluster.down() == 0
    assert cluster.find() is None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="only Linux has /proc")
def test_a_server_that_no_state_names_is_known_by_its_command_line(tmp_path: Path) -> None:
    cluster = DetachedCluster(tmp_path)
    with (
        running(f"-Djava.io.tmpdir={cluster.data}/bookie-1/tmp") as server,
        running(f"-Djava.io.tmpdir={cluster.data}-of-others/bookie-1/tmp") as stranger,
        running(f"less {cluster.data}/bookie-1/log.txt") as reader,
    ):
        assert cluster.down() == 1
        assert server.wait(10) == -9
        assert stranger.poll() is None
        assert reader.poll() is None


def test_one_command_at_a_time(tmp_path: Path) -> None:
    cluster = DetachedCluster(tmp_path)
    with cluster._alone(), pytest.raises(Unavailable, match="at work"):
        DetachedCluster(tmp_path).down()
    assert cluster.down() is None

"""Nothing of a test cluster stays behind on the disk, and its ports are its own: no Java needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import AuthError
from dlog.testing.cluster import scratch_directory
from dlog.testing.cluster.ports import Port, listens
from dlog.testing.cluster.scratch import own_directory
from tests.pace import Deadline

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = Deadline(PATIENCE_S)
    while not fact():
        assert not deadline.passed(), f"still not so: {what}"


def killed_in_its_directory(base: Path, preamble: str = "") -> Path:
    """The directory of a run that ends without a chance to clean up."""
    program = (
        f"import sys\nfrom pathlib import Path\n{preamble}\n"
        "from dlog.testing.cluster import scratch_directory\n"
        "with scratch_directory(Path(sys.argv[1])) as made:\n"
        "    (made / 'journal').write_bytes(bytes(100))\n"
        "    print(made, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, os.fspath(base)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        made = Path(run.stdout.readline().strip())
        assert (made / "journal").exists()
        os.kill(run.pid, signal.SIGKILL)
    return made


def test_a_directory_goes_with_its_run(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as made:
        (made / "data").mkdir()
    assert not made.exists()


def test_a_directory_goes_at_once_when_its_run_is_killed(tmp_path: Path) -> None:
    made = killed_in_its_directory(tmp_path)
    until(lambda: not made.exists(), "the janitor removes it")


def test_the_next_run_sweeps_when_the_janitor_was_killed_too(tmp_path: Path) -> None:
    no_janitor = "from dlog.testing.cluster import janitor\njanitor.__file__ = '/dev/null'"
    made = killed_in_its_directory(tmp_path, no_janitor)
    assert made.exists()
    with scratch_directory(tmp_path) as next_one:
        assert not made.exists()
        assert next_one.is_dir()


def test_a_directory_in_use_is_not_swept(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as first, scratch_directory(tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
    assert list(tmp_path.glob("*/run-*")) == []


def test_a_directory_is_nobody_elses(tmp_path: Path) -> None:
    assert own_directory(tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(AuthError):
        own_directory(tmp_path / "link")


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

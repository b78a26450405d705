"""`dlog copy`, as a process: killed, interrupted, run again, and what it says of itself."""

from __future__ import annotations

import signal
import subprocess

import dlog
from tests.pace import Deadline
from tests.unit.cli.conftest import ANSWER_S, Shell

SMALL = dlog.LogOptions(segment_bytes=1 << 20)


def fill(shell: Shell, entries: int = 20) -> None:
    with dlog.open_writer("orders", url=shell.url, create=SMALL) as log:
        for i in range(entries):
            log.append_many([b"%d" % i * 100] * 50, atomic=True)


def contents(url: str, log: str = "orders") -> list[tuple[object, ...]]:
    with dlog.open_reader(log, url=url) as reader:
        return [message[3:9] for message in reader]


def came_to(url: str, wanted: int, child: subprocess.Popen[bytes]) -> int:
    """How far the copy is, once it is as far as that or its process has ended."""
    deadline = Deadline(ANSWER_S)
    seq = 0
    while seq < wanted and child.poll() is None:
        assert not deadline.passed(), f"the copy stays at {seq}"
        try:
            with dlog.connect(url) as client:
                seq = client.admin.describe("orders").next_seq
        except dlog.DlogError:
            seq = 0
    return seq


def test_what_it_says(shell: Shell) -> None:
    fill(shell)
    there = f"file:{shell.home / 'there'}"
    done = shell.dlog("copy", shell.url, "orders", there)
    assert done.out == b""
    assert done.err.startswith("dlog: copied: 1000 messages, ")
    assert done.err.endswith("; orders has seqs 0 up to 1000\n")
    assert contents(there) == contents(shell.url)
    again = shell.dlog("copy", shell.url, "orders", there)
    assert "copied: 0 messages, 0 B, going on at seq 1000; orders has" in again.err
    assert shell.dlog("copy", shell.url, "orders", there, "b", "-q").err == ""
    assert contents(there, "b") == contents(shell.url)


def test_how_far_it_is_on_a_terminal(shell: Shell) -> None:
    fill(shell, entries=400)
    shown = shell.on_a_terminal("copy", shell.url, "orders", f"file:{shell.home / 'there'}")
    assert b"copied: 20000 messages" in shown


def test_killed_it_goes_on(shell: Shell) -> None:
    fill(shell, entries=600)
    there = f"file:{shell.home / 'there'}"
    words = ("copy", shell.url, "orders", there, "-q")
    for wanted in (1, 10_000):
        child = shell.start(*words)
        came_to(there, wanted, child)
        child.kill()
        child.wait()
    shell.dlog(*words)
    assert contents(there) == contents(shell.url)


def test_interrupted_it_says_what_is_there(shell: Shell) -> None:
    fill(shell)
    there = f"file:{shell.home / 'there'}"
    child = shell.start("copy", shell.url, "orders", there, "--follow")
    assert came_to(there, 1000, child) == 1000
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=ANSWER_S)
    assert child.returncode == 130
    assert b"cut short: 1000 messages" in said
    assert b"Traceback" not in said
    with dlog.connect(there) as client:
        states = {segment.state for segment in client.admin.segments("orders")}
    assert states == {"sealed"}, "it was left so that the next one need not recover it"


def test_what_is_refused(shell: Shell) -> None:
    fill(shell, entries=1)
    there = f"file:{shell.home / 'there'}"
    with dlog.open_writer("orders", url=there) as log:
        log.append(b"mine")
    refused = shell.dlog("copy", shell.url, "orders", there, expect=1)
    assert "it is no copy" in refused.err
    assert "third" in shell.dlog("copy", "-u", "x", shell.url, "orders", there, expect=2).err
    shell.dlog("copy", shell.url, "nothing", there, expect=3)

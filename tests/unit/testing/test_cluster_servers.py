"""Servers that are not there, say nothing or end: a test hears of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.errors import ConfigError, DlogError, Unavailable
from dlog.testing.cluster import Cluster, JavaProcess, ZooKeeper, jars, zookeeper
from dlog.testing.cluster.__main__ import main
from dlog.testing.cluster.conversation import Program, Refused
from dlog.testing.cluster.process import run_to_end
from dlog.testing.cluster.secure import bookie_users


def _command(code: str) -> Any:
    """In place of a Java program."""
    return SimpleNamespace(words=lambda directory: [sys.executable, "-c", code])


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    made: list[JavaProcess] = []

    def start(code: str) -> JavaProcess:
        made.append(JavaProcess("a server", tmp_path, lambda: _command(code), lambda: False))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.kill()


def _wait_for_its_end(server: JavaProcess) -> None:
    assert server._child is not None
    server._child.wait(60)


def test_one_that_ends_while_starting_says_why(servers: Any) -> None:
    with pytest.raises(Unavailable, match=r"(?s)a server ended while starting.*it went wrong"):
        servers("import sys; sys.exit('it went wrong')").wait_until_serving()


def test_one_that_does_not_serve_is_not_waited_for_for_ever(servers: Any) -> None:
    with pytest.raises(Unavailable, match="does not serve"):
        servers("import signal; signal.pause()").wait_until_serving(0)


def test_what_has_ended_is_not_frozen(servers: Any) -> None:
    server = servers("")
    _wait_for_its_end(server)
    with pytest.raises(Unavailable, match="is not running"):
        server.freeze()
    server.kill()
    with pytest.raises(Unavailable, match="is not running"):
        server.freeze()


def test_what_ends_while_it_is_frozen_is_not_frozen(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("import signal; signal.pause()")
    real = server._signal

    def killed_instead(number: Any) -> None:
        os.kill(server.pid, 9)
        real(number)

    monkeypatch.setattr(server, "_signal", killed_instead)
    with pytest.raises(Unavailable, match="is not running"):
        server.freeze()


def test_a_tool_that_fails_or_hangs_raises(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"(?s)failed with code 1.*it went wrong"):
        run_to_end(
            "a tool", tmp_path, _command("import sys; sys.exit('it went wrong')"), timeout_s=60
        )
    with pytest.raises(Unavailable, match="did not end"):
        run_to_end("a tool", tmp_path, _command("import signal; signal.pause()"), timeout_s=0.01)


def test_a_zookeeper_that_says_nothing_does_not_say_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "DUMP_TIMEOUT_S", 0.0)
    server = ZooKeeper(tmp_path, "")
    try:
        for ask in (server.has_ephemeral, server.heard_of_owner):
            with pytest.raises(Unavailable, match="does not tell who is registered"):
                ask("/ledgers/available/b0")
        with pytest.raises(ConfigError, match="without TLS"):
            _ = server.secure_hosts
    finally:
        server.release()


def test_a_release_that_is_not_known_is_refused() -> None:
    for ask in (jars.why_not, jars.why_not_brought, jars.class_path):
        with pytest.raises(ConfigError, match=r"no cluster of BookKeeper '0\.0'"):
            ask("0.0")


def test_a_cluster_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1 bookies"):
        Cluster(bookies=-1)
    cluster = Cluster(bookies=0)
    for ask in (lambda: cluster.url, lambda: cluster.directory, cluster.add_bookie):
        with pytest.raises(ConfigError, match="start the cluster first"):
            ask()
    with pytest.raises(ConfigError, match="no bookie 'b9'"):
        cluster.bookie("b9")


def test_the_command_refuses_what_it_does_not_know() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["everything"])
    assert ended.value.code == 2


def test_the_command_fails_where_no_cluster_can_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dlog.testing.cluster.__main__.why_not_brought", lambda version: "no java")
    assert main([]) == 1
    assert "no java" in capsys.readouterr().out


ANSWERS = """
import json, sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["what"] == "end":
        sys.exit("it went wrong")
    refusal = {"code": None, "name": "No", "message": "not that"}
    print(json.dumps({"number": asked["number"], "error": refusal}), flush=True)
"""


def test_a_program_that_refuses_or_ends_is_heard(tmp_path: Path) -> None:
    with Program("it", lambda: [sys.executable, "-c", ANSWERS], tmp_path) as program:
        with pytest.raises(Refused, match="not that"):
            program.tell("something")
        with pytest.raises(Unavailable, match=r"(?s)it ended.*it went wrong"):
            program.tell("end")
    with pytest.raises(Unavailable, match="is not running"):
        program.tell("more")


def test_a_program_that_ends_before_it_is_ready_is_heard(tmp_path: Path) -> None:
    with pytest.raises(DlogError, match="it ended"):
        Program("it", lambda: [sys.executable, "-c", ""], tmp_path).__enter__()


def test_a_password_with_a_quote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quote"):
        bookie_users({"me": 'se"cret'}, tmp_path / "jaas")

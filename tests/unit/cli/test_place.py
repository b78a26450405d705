"""Where the logs are, `dlog doctor`, `dlog bench`, and what every command has in common."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from pathlib import Path

import pytest

import dlog
from dlog.cli.commands import doctor
from dlog.cli.commands.bench import percentile_ms
from dlog.cli.mounts import Mount
from tests.unit.cli.conftest import Shell


def _findings(shell: Shell, *words: str, expect: int = 0) -> dict[str, tuple[str, str]]:
    done = shell.dlog("doctor", "-o", "json", *words, expect=expect)
    assert done.err == "", "what is wrong is a finding"
    told = [json.loads(line) for line in done.lines]
    return {each["check"]: (each["state"], each["told"]) for each in told}


def test_doctor_finds_a_good_place_good(shell: Shell) -> None:
    shell.dlog("create", "orders")
    found = _findings(shell)
    assert found["url"] == ("fine", f"{shell.url} (from DLOG_URL)")
    assert found["backend"][0] == "fine"
    assert found["file system"][0] in ("fine", "warning")  # warning: tests may run on tmpfs
    assert found["permission"][0] in ("fine", "note")
    assert "p50" in found["write and sync"][1]
    assert found["opens"] == ("fine", "1 logs")
    assert found["crc32c"][1].split()[0].rstrip(";") in ("fastcrc", "google-crc32c", "crcmod")
    assert found["click"][0] == "fine" if "click" in found else True
    assert {"dlog", "python", "sqlite", "numpy", "free space"} <= found.keys()


def test_doctor_leaves_nothing_behind_where_nothing_is(shell: Shell) -> None:
    found = _findings(shell, "--url", f"file:{shell.home}/not/yet")
    assert "is not there yet" in found["permission"][1]
    assert found["url"][1].endswith("(from --url)")


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_ledgers_without_their_metadata_are_told_by_every_command(
    shell: Shell, is_made_anew: bool
) -> None:
    """All of it was removed, and then perhaps made anew, empty, by something older than this."""
    for log in ("orders", "clicks"):
        shell.dlog("produce", log, feed=b"1\n2\n")
    directory = shell.home / "logs"
    for path in sorted(directory.glob("meta.db*")):
        path.rename(shell.home / path.name)
    if is_made_anew:
        other = dlog.connect(f"file:{shell.home / 'other'}")
        other.admin.create("x")
        other.close()
        (shell.home / "other" / "meta.db").rename(directory / "meta.db")
    assert "2 ledgers" in shell.dlog("fsck", "--all", expect=1).out.decode()
    (finding,) = json.loads(shell.dlog("fsck", "--all", "-o", "json", expect=1).out)["findings"]
    assert finding["kind"] == "metadata_lost"
    assert "2 ledgers, by their marks of logs " in finding["told"]
    state, told = _findings(shell, expect=1)["opens"]
    assert state == "bad"
    assert str(directory / "ledgers") in told
    if not is_made_anew:
        assert "2 ledgers" in shell.dlog("ls", expect=1).err
        assert "2 ledgers" in shell.dlog("produce", "orders", feed=b"3\n", expect=1).err
        assert not (directory / "meta.db").exists(), "none is made in its place"
        for path in shell.home.glob("meta.db*"):
            path.rename(directory / path.name)
        assert len(shell.dlog("ls").lines) == 3
        assert shell.dlog("tail", "orders").out == b"1\n2\n"


def test_ls_says_that_no_log_is_known_where_ledgers_are(shell: Shell) -> None:
    shell.dlog("produce", "orders", feed=b"1\n2\n")
    with sqlite3.connect(shell.home / "logs" / "meta.db") as database:
        database.execute("DELETE FROM node WHERE path LIKE '/dlog/logs/%'")
    database.close()
    done = shell.dlog("ls", expect=1)
    assert "1 ledgers with messages belong to logs that are not known" in done.err
    assert done.out == b""
    assert _findings(shell, expect=1)["opens"][0] == "bad"
    shell.dlog("fsck", "--all", expect=1)
    shell.dlog("produce", "clicks", feed=b"1\n")
    assert len(shell.dlog("ls").lines) == 2
    shell.dlog("ls", "nothing")


def test_doctor_draws_a_table(shell: Shell) -> None:
    shown = shell.dlog("doctor").lines
    assert shown[0].split() == ["CHECK", "STATE", "FOUND"]


def test_doctor_calls_a_world_writable_directory_bad(shell: Shell) -> None:
    shell.dlog("create", "orders")
    (shell.home / "logs").chmod(0o777)
    assert _findings(shell, expect=1)["permission"][0] == "bad"
    (shell.home / "logs").chmod(0o755)
    assert _findings(shell)["permission"][0] == "note"


def test_doctor_calls_a_place_without_permission_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root may write everywhere, so the system's answer is put in its mouth."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert doctor._permission(tmp_path, tmp_path).state == "bad"


def test_doctor_of_a_file_says_so_and_ends(shell: Shell) -> None:
    (shell.home / "logs").write_text("not a directory")
    found = _findings(shell, expect=1)
    assert found["permission"] == ("bad", f"{shell.home}/logs is there and is no directory")


@pytest.mark.parametrize(
    ("kind", "state"),
    [("nfs4", "bad"), ("9p", "bad"), ("exotic", "warning"), ("tmpfs", "warning"), ("ext4", "fine")],
)
def test_doctor_never_calls_a_network_file_system_fine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda path: Mount("/somewhere", kind))
    finding = doctor._file_system(tmp_path, tmp_path)
    assert finding.state == state
    assert kind in finding.told


def test_doctor_does_not_guess_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda path: None)
    assert doctor._file_system(tmp_path, tmp_path).state == "note"


def test_doctor_says_that_memory_does_not_last(shell: Shell) -> None:
    found = _findings(shell, "--url", "memory:here")
    assert found["backend"] == ("warning", "memory: lives and dies with its process")


def test_doctor_of_a_cluster_that_nobody_runs(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # and one that takes and does not answer
        port = silent.getsockname()[1]
        url = f"zk://127.0.0.1:1,127.0.0.1:{port}/logs"
        found = _findings(shell, "--url", url, expect=1)
    assert found["backend"][0] == "fine"
    refused, hung = found["zookeeper 127.0.0.1:1"], found[f"zookeeper 127.0.0.1:{port}"]
    assert refused == ("warning", "cannot be reached: Connection refused")
    assert hung[0] == "warning"
    assert "answers none within 5 s" in hung[1]
    assert found["zookeeper"][0] == found["logs"][0] == "bad"
    assert found["zookeeper tls"][0] == "note", "all of it is this machine"
    assert "crc32c" in found


@pytest.mark.parametrize(
    ("query", "variables", "told"),
    [
        ("?tls=required&tls_ca=/nowhere", {}, "/nowhere: No such file or directory"),
        ("", {"DLOG_ZK_AUTH": "secret-without-a-colon"}, "user:password"),
        ("", {"DLOG_ZK_AUTH_FILE": "/nowhere"}, "no secret could be read from /nowhere"),
    ],
)
def test_doctor_of_a_cluster_whose_files_and_secrets_are_not_there(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    variables: dict[str, str],
    told: str,
) -> None:
    url = f"zk://127.0.0.1:1/logs{query}"
    monkeypatch.setattr(Shell, "environment", shell.environment | variables)
    found = _findings(shell, "--url", url, expect=1)
    assert found["opens"][0] == "bad"
    assert told in found["opens"][1]
    assert "secret-without" not in str(found)


def test_bench_measures_and_cleans_up(shell: Shell) -> None:
    done = shell.dlog("bench", "-n", "500", "--seconds", "2s", "--size", "50")
    told = json.loads(done.out)
    assert told["message_bytes"] == 50
    steps = {each["step"]: each for each in told["figures"]}
    assert steps["append_many"]["messages"] == 500
    assert steps["append, one at a time"]["p50_ms"] > 0
    written = sum(steps[step]["messages"] for step in list(steps)[:3])
    assert steps["iterate messages"]["messages"] == written
    assert steps["batches"]["messages"] == written
    assert "MESSAGES/S" in done.err
    assert shell.dlog("ls", "-o", "json").out == b""


@pytest.mark.parametrize(
    "words", [("-n", "0"), ("--size", "0"), ("--size", "2M"), ("--codec", "x")]
)
def test_bench_is_bounded(shell: Shell, words: tuple[str, ...]) -> None:
    shell.dlog("bench", *words, expect=2)


def test_percentiles() -> None:
    assert percentile_ms([], 0.5) is None
    assert percentile_ms([0.001], 0.99) == 1.0
    assert percentile_ms([n / 1000 for n in range(1, 101)], 0.50) == 50.0
    assert percentile_ms([n / 1000 for n in range(1, 101)], 0.99) == 99.0


def test_the_url_may_stand_before_or_after_the_command(shell: Shell) -> None:
    other = f"file:{shell.home}/other"
    shell.dlog("--url", other, "create", "a")
    assert shell.dlog("ls", "-u", other, "-o", "json").lines
    assert shell.dlog("ls", "-o", "json").lines == []
    assert shell.dlog("-u", "file:/nowhere", "ls", "--url", other, "-o", "json").lines


@pytest.mark.parametrize(
    "url", ["nonsense", "http://x", "file:", "file:./a?color=red", "file://elsewhere/x"]
)
def test_urls_that_make_no_sense(shell: Shell, url: str) -> None:
    done = shell.dlog("ls", "--url", url, expect=2)
    assert done.out == b""
    assert done.err.count("\n") == 1


def test_a_file_where_a_directory_should_be(shell: Shell) -> None:
    (shell.home / "logs").write_text("not a directory")
    done = shell.dlog("produce", "orders", feed=b"a\n", expect=2)
    assert "logs is no directory" in done.err
    assert done.err.count("\n") == 1


def test_debug_shows_where(shell: Shell) -> None:
    assert "Traceback" in shell.dlog("describe", "nothing", "--debug", expect=3).err


def test_help_and_version(shell: Shell) -> None:
    shown = shell.dlog("--help").out.decode()
    for command in ("produce", "tail", "ls", "create", "describe", "segments", "rm", "bench"):
        assert f"\n  {command} " in shown
        assert b"Usage:" in shell.dlog(command, "-h").out
    assert "Exit codes:" in shown
    assert shell.dlog("--version").lines[0].startswith("dlog ")
    assert "No such command" in shell.dlog("dance", expect=2).err

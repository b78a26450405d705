"""`dlog ls`, `create`, `describe`, `segments`, `rm`, as processes."""

from __future__ import annotations

import json

import pytest

import dlog
from tests.unit.cli.conftest import Shell


def test_create_ls_and_prefixes(shell: Shell) -> None:
    for log in ("b/two", "a", "b/one"):
        shell.dlog("create", log)
    assert [json.loads(line)["name"] for line in shell.dlog("ls", "-o", "json").lines] == [
        "a", "b/one", "b/two",
    ]  # fmt: skip
    shown = shell.dlog("ls", "b/").lines
    assert shown[0].split()[0] == "LOG"
    assert [line.split()[0] for line in shown[1:]] == ["b/one", "b/two"]


def test_ls_of_nothing(shell: Shell) -> None:
    assert shell.dlog("ls", "-o", "json").out == b""
    assert len(shell.dlog("ls").lines) == 1


def test_create_twice(shell: Shell) -> None:
    shell.dlog("create", "a")
    assert "a" in shell.dlog("create", "a", expect=1).err
    shell.dlog("create", "a", "--exist-ok")


def test_options_of_a_log_are_stored(shell: Shell) -> None:
    shell.dlog("create", "a", "--segment-bytes", "1.5M", "--segment-age", "90s")
    told = json.loads(shell.dlog("describe", "a", "-o", "json").out)
    assert told["options"]["segment_bytes"] == 3 << 19
    assert told["options"]["segment_age_s"] == 90
    for bad in (("--segment-bytes", "1"), ("--segment-bytes", "x"), ("--ensemble", "0")):
        shell.dlog("create", "b", *bad, expect=2)
    shell.dlog("describe", "b", expect=3)


def test_describe_and_segments(shell: Shell) -> None:
    shell.dlog("create", "orders", "--segment-bytes", "4K")
    with dlog.open_writer("orders", url=shell.url, owner="ana") as log:
        for _ in range(20):
            log.append(b"x" * 1000)
        last = log.last_id
        shown = shell.dlog("describe", "orders").out.decode()
        assert "ana" in shown
        assert str(last) in shown
    told = json.loads(shell.dlog("describe", "orders", "-o", "json").out)
    assert told["name"] == "orders"
    assert told["epoch"] == 1
    assert told["next_seq"] == 20
    assert told["tail"] == str(last)
    segments = [json.loads(line) for line in shell.dlog("segments", "orders", "-o", "json").lines]
    assert len(segments) > 2
    assert [each["number"] for each in segments] == sorted(each["number"] for each in segments)
    table = shell.dlog("segments", "orders").lines
    assert table[0].split()[:2] == ["SEGMENT", "LEDGER"]
    assert len(table) == len(segments) + 1


def test_tables_on_a_terminal_are_drawn(shell: Shell) -> None:
    shell.dlog("create", "orders")
    shown = shell.on_a_terminal("ls").decode()
    assert "orders" in shown
    assert "─" in shown


@pytest.mark.parametrize("command", ["describe", "segments", "tail", "rm"])
def test_a_log_that_is_not_there(shell: Shell, command: str) -> None:
    shell.dlog("create", "something")
    done = shell.dlog(command, "nothing", expect=3)
    assert done.out == b""
    assert done.err.count("\n") == 1
    assert "nothing" in done.err


def test_rm_shows_the_plan_and_refuses_without_yes(shell: Shell) -> None:
    shell.dlog("produce", "orders", feed=b"a\nb\n")
    done = shell.dlog("rm", "orders", expect=2)
    assert "2 messages" in done.err
    assert "nothing was removed" in done.err
    shell.dlog("describe", "orders")
    assert "orders is removed" in shell.dlog("rm", "orders", "--yes").err
    shell.dlog("describe", "orders", expect=3)


def test_rm_asks_on_a_terminal(shell: Shell) -> None:
    shell.dlog("create", "orders")
    assert b"nothing was removed" in shell.on_a_terminal("rm", "orders", types=b"n\n", expect=1)
    shell.dlog("describe", "orders")
    shell.on_a_terminal("rm", "orders", types=b"y\n")
    shell.dlog("describe", "orders", expect=3)


@pytest.mark.parametrize("name", ["", "a//b", "../x", "a\nb", "x" * 300])
def test_names_that_are_none(shell: Shell, name: str) -> None:
    shell.dlog("create", "something")
    for command in ("create", "describe", "tail", "segments"):
        assert shell.dlog(command, name, expect=2).out == b""

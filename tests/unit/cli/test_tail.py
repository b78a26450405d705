"""`dlog tail`, as a process: the right messages, in the form asked for, safe to look at."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

import dlog
from tests.unit.cli.conftest import ANSWER_S, Shell, read_lines

COUNT = 25


@pytest.fixture
def orders(shell: Shell) -> list[dlog.Message]:
    """m0 … m24, each with its number as key."""
    with dlog.open_writer("orders", url=shell.url) as log:
        for number in range(COUNT):
            log.append(b"m%d" % number, key=b"%d" % number)
    with dlog.open_reader("orders", url=shell.url) as reader:
        return list(reader)


def _m(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), range(15, 25)),
        (("-n", "3"), range(22, 25)),
        (("-n", "0"), range(0)),
        (("-n", "1000"), range(25)),
        (("-o", "3:6"), range(3, 6)),
        (("-o", "22:"), range(22, 25)),
        (("-o", ":2"), range(2)),
        (("-o", ":"), range(25)),
        (("-o", "3:3"), range(0)),
        (("--seqs", "3:", "-n", "2"), range(3, 5)),
        (("-o", "0:", "-n", "0"), range(0)),
        (("--since", "1h"), range(25)),
        (("--until", "1h"), range(0)),
        (("--since", "1h", "-n", "1"), range(1)),
        (("-o", "90:"), range(0)),
        (("-o", "0:", "--grep", "m.?[34]$"), (3, 4, 13, 14, 23, 24)),
        (("-n", "5", "--grep", "m2[0-2]"), (20, 21, 22)),
    ],
)
@pytest.mark.usefixtures("orders")
def test_which_messages(shell: Shell, words: tuple[str, ...], numbers: range) -> None:
    assert shell.dlog("tail", "orders", *words).lines == _m(*numbers)


def test_by_id_and_by_time(shell: Shell, orders: list[dlog.Message]) -> None:
    assert shell.dlog("tail", "orders", "--from", str(orders[7].id)).lines == _m(*range(7, COUNT))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=orders[20].timestamp_us)
    same = [m.seq for m in orders if m.timestamp_us >= orders[20].timestamp_us]
    assert shell.dlog("tail", "orders", "--since", moment.isoformat()).lines == _m(*same)
    before = [m.seq for m in orders if m.timestamp_us < orders[20].timestamp_us]
    assert shell.dlog("tail", "orders", "--until", moment.isoformat()).lines == _m(*before)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("-o", "xml"), 2),
        (("-o", "json", "-o", "text"), 2),
        (("-o", "1:2", "-o", "3:4"), 2),
        (("-o", "6:3"), 2),
        (("--seqs", "-1:"), 2),
        (("--since", "soon"), 2),
        (("--since", "1h", "-o", "3:"), 2),
        (("--from", "1:2"), 2),
        (("--from", "99:2:0"), 3),
        (("--grep", "("), 2),
        (("--format", "%q"), 2),
        (("--format", "%v{rot13}"), 2),
        (("--format", "%v", "-l"), 2),
        (("-o", "raw", "--separator", "\\q"), 2),
        (("-n", "-1"), 2),
    ],
)
def test_what_is_not_understood_is_refused(shell: Shell, words: tuple[str, ...], code: int) -> None:
    done = shell.dlog("tail", "orders", *words, expect=code)
    assert done.out == b""
    assert done.err


def test_a_log_that_is_not_there(shell: Shell) -> None:
    assert "no logs are kept" in shell.dlog("tail", "nothing", expect=3).err
    shell.dlog("create", "something")
    done = shell.dlog("tail", "nothing", expect=3)
    assert done.out == b""
    assert "nothing" in done.err
    assert done.err.count("\n") == 1


def test_an_empty_log_is_no_error(shell: Shell) -> None:
    shell.dlog("create", "orders")
    for words in ((), ("-o", "0:"), ("-o", "json"), ("--since", "1h")):
        assert shell.dlog("tail", "orders", *words).out == b""


HOSTILE = b"\x1b]0;owned\x07\x1b[2J\xff\xc2\x9b31m\n\xe2\x80\xae"


@pytest.fixture
def hostile(shell: Shell) -> dlog.MessageId:
    with dlog.open_writer("orders", url=shell.url) as log:
        return log.append(HOSTILE, key=b"\x1b[k", headers=[("h\x1b", b"\x07")])


def _obeyed(shown: bytes) -> list[str]:
    """Characters a terminal would obey; line ends are ours."""
    text = shown.decode("utf-8")
    return [
        character for character in text if not character.isprintable() and character not in "\r\n"
    ]


@pytest.mark.parametrize(
    "words",
    [(), ("-l",), ("-o", "json"), ("-o", "hex"), ("--format", "%k %v %h\\n")],
)
@pytest.mark.usefixtures("hostile")
def test_nothing_obeyed_reaches_a_terminal_or_a_pipe(shell: Shell, words: tuple[str, ...]) -> None:
    piped = shell.dlog("tail", "orders", *words).out
    shown = shell.on_a_terminal("tail", "orders", *words)
    assert not _obeyed(piped)
    assert not _obeyed(shown)
    assert shown.replace(b"\r\n", b"\n") == piped


@pytest.mark.usefixtures("hostile")
def test_raw_is_exact_and_not_for_terminals(shell: Shell) -> None:
    assert shell.dlog("tail", "orders", "-o", "raw").out == HOSTILE + b"\n"
    assert shell.dlog("tail", "orders", "-o", "raw", "--separator", "").out == HOSTILE
    assert shell.dlog("tail", "orders", "-o", "raw", "--separator", "\\0\\xfe").out == (
        HOSTILE + b"\0\xfe"
    )
    refused = shell.on_a_terminal("tail", "orders", "-o", "raw", expect=2)
    assert not _obeyed(refused)
    assert b"--force" in refused
    assert b"\x1b[2J" in shell.on_a_terminal("tail", "orders", "-o", "raw", "--force")


def test_json_is_lossless(shell: Shell, hostile: dlog.MessageId) -> None:
    (line,) = shell.dlog("tail", "orders", "-o", "json").lines
    told = json.loads(line)
    assert base64.b64decode(told["value_base64"]) == HOSTILE
    assert told["key"] == "\x1b[k"
    assert told["headers"] == [["h\x1b", "\x07"]]
    assert told["id"] == str(hostile)
    assert (told["seq"], told["epoch"]) == (0, 1)
    assert abs(told["timestamp_us"] / 1e6 - datetime.now().timestamp()) < 600


def test_formats(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url) as log:
        first = log.append(b"v\xff", key=b"k", headers=[("a", b"1"), ("b", b"2")], event_time=0)
        log.append(None)
    template = "%i|%s|%p|%e|%E|%k|%v|%v{hex}|%k{base64}|%K|%V|%h|%%|\\t\\x41\\n"
    assert shell.dlog("tail", "orders", "--format", template).lines == [
        f"{first}|0|1|1970-01-01T00:00:00.000Z|0|k|v\\xff|76ff|aw==|1|2|a=1 b=2|%|\tA",
        f"{first._replace(entry_id=first.entry_id + 1)}|1|1|-|-|-|(tombstone)|(tombstone)|-|-1|-1|"
        "|%|\tA",
    ]


def test_hex(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append(bytes(range(20)))
        log.append(None)
    lines = shell.dlog("tail", "orders", "-o", "hex").lines
    assert lines[0].endswith("-  20 bytes")
    assert lines[1] == (
        "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|"
    )
    assert lines[2] == f"00000010  10 11 12 13{' ' * 39}|....|"
    assert lines[3].endswith("-  (tombstone)")


def test_following_shows_what_others_append(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append(b"before")
        child = shell.start("tail", "orders", "-f")
        assert read_lines(child, 1) == [b"before"]
        log.append(b"after")
        assert read_lines(child, 1) == [b"after"]
    shell.dlog("produce", "orders", feed=b"from another process\n")
    assert read_lines(child, 1) == [b"from another process"]
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=ANSWER_S)
    assert child.returncode == 130
    assert (out, err) == (b"", b"")


@pytest.mark.usefixtures("orders")
def test_following_from_a_beginning_can_be_counted(shell: Shell) -> None:
    child = shell.start("tail", "orders", "-f", "-o", "24:", "-n", "2")
    assert read_lines(child, 1) == [b"m24"]
    shell.dlog("produce", "orders", feed=b"m25\nm26\n")
    out, _ = child.communicate(timeout=ANSWER_S)
    assert (child.returncode, out) == (0, b"m25\n")


def test_a_closed_pipe_is_the_end_and_no_error(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append_many([b"x" * 1000] * 5_000)
    child = shell.start("tail", "orders", "-o", "0:")
    assert child.stdout is not None
    assert child.stdout.readline() == b"x" * 1000 + b"\n"
    child.stdout.close()
    assert child.wait(ANSWER_S) == 0
    assert child.stderr is not None
    assert child.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.usefixtures("orders")
def test_a_full_disk_is_an_error(shell: Shell) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            shell._command("tail", "orders"),
            env=shell.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=ANSWER_S,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == 1

"""Input that cannot be read or understood, at its first line, in the middle and at its last one.
What was good before is in the log, what is told names the line, and nothing else is changed."""

from __future__ import annotations

import os
import pty
import shutil
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import IO, Any

import click
import pytest

import dlog
from dlog.cli.main import program
from tests.unit.cli.conftest import Shell
from tests.unit.cli.every_command import commands

GOOD = b'{"value": "good"}'
LINES = 4
BAD = {
    "not UTF-8": (b'{"value": "\xff"}', "not UTF-8"),
    "UTF-16": ('{"value": "a"}'.encode("utf-16"), "not UTF-8"),
    "not JSON": (b"value", "not JSON"),
    "cut": (b'{"value": "a', "not JSON"),
    "brackets": (b"[" * 100_000, "not JSON"),
    "empty": (b"", "not JSON"),
    "no object": (b'["a"]', "a message is a JSON object"),
    "a number": (b'{"value": 1}', "value is text"),
    "a key of another type": (b'{"value": "a", "key": ["k"]}', "key is text"),
    "headers of another type": (b'{"value": "a", "headers": 5}', "headers are"),
    "not base64": (b'{"value_base64": "?"}', "not base64"),
    "a time that is none": (b'{"value": "a", "event_time": "soon"}', "ISO 8601"),
    "an unknown field": (b'{"value": "a", "vlaue": "b"}', "unknown field"),
}
READ_INPUT = {"produce", "config set", "meta import"}
READ_ELSEWHERE = {"spark import", "spark-shell"}  # with Spark


def test_every_command_that_reads_a_file_is_here() -> None:
    def takes_a_file(name: str) -> bool:
        found: Any = program
        for word in name.split():
            found = found.get_command(click.Context(found), word)
        return any(
            isinstance(each.type, click.Path) and each.name != "output" for each in found.params
        )

    assert {name for name in commands(program) if takes_a_file(name)} == READ_INPUT


def _next_seq(shell: Shell, log: str) -> int:
    with dlog.connect(shell.url) as client:
        if log == "clicks":
            return sum(each.next_seq or 0 for each in client.stream("clicks").describe().shards)
        try:
            return client.admin.status(log).next_seq
        except dlog.NotFound:
            return 0


IN_FULL = pytest.mark.tier("full", seconds=1)
# Each kind at one line, and in the tier `full` at the others.
AT_LINES = [
    pytest.param(bad, at, marks=() if (turn + place) % 3 == 0 else IN_FULL)
    for turn, bad in enumerate(BAD)
    for place, at in enumerate((1, 2, LINES))
]


@pytest.mark.parametrize(("bad", "at"), AT_LINES)
def test_a_line_that_is_not_understood(shell: Shell, bad: str, at: int) -> None:
    line, why = BAD[bad]
    with dlog.connect(shell.url) as client:
        client.create_stream("clicks", shards=2)
    ways = [*product(("orders", "clicks"), ((), ("--sync",)), ("-", "lines"))]
    log, sync, source = ways[(list(BAD).index(bad) + 3 * at) % len(ways)]
    lines = [GOOD] * LINES
    lines[at - 1] = line
    feed = b"\n".join(lines) + b"\n"
    (shell.home / "lines").write_bytes(feed)
    done = shell.dlog("produce", log, "--json", *sync, source, feed=feed, expect=1)
    shown = "standard input" if source == "-" else "lines"
    assert f"{shown}, line {at}: " in done.err
    assert why in done.err
    assert f"{at - 1} of {at - 1} messages acknowledged" in done.err
    assert ("the last as " in done.err) is (at > 1)
    assert len(done.lines) == (at - 1 if sync else 0)
    assert _next_seq(shell, log) == at - 1


@contextmanager
def _cut_short(feed: bytes) -> Iterator[IO[bytes]]:
    """Reading it gives these bytes, and then an error, as a disk or a terminal that is gone."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.write(slave, feed)
    os.close(slave)
    with open(master, "rb", buffering=0) as stream:
        yield stream


def _run_on(shell: Shell, stdin: IO[bytes], *words: str) -> tuple[int, str]:
    out, err = shell.home / "out", shell.home / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        code = shell.dlog_on([stdin, stdout, stderr], *words)
    assert "Traceback" not in err.read_text()
    assert "fault of dlog" not in err.read_text()
    return code, err.read_text()


@pytest.mark.parametrize("form", [(), ("--json",), ("--sync",), ("--whole",)], ids=" ".join)
@pytest.mark.parametrize("good", [0, 3])
def test_an_input_that_ends_in_an_error(shell: Shell, form: tuple[str, ...], good: int) -> None:
    with _cut_short((GOOD + b"\n") * good) as stdin:
        code, err = _run_on(shell, stdin, "produce", "orders", *form)
    landed = 0 if "--whole" in form else good
    where = f", behind line {good}" if landed else ""
    assert code == 1
    assert f"standard input{where}: Input/output error" in err
    assert f"{landed} of {landed} messages acknowledged" in err
    assert _next_seq(shell, "orders") == landed


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("missing", "No such file"),
        ("folder", "Is a directory"),
        ("/proc/self/mem", "Input/output error"),
        pytest.param(
            "locked",
            "Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file"),
        ),
    ],
)
def test_a_file_that_cannot_be_read(shell: Shell, file: str, why: str) -> None:
    (shell.home / "folder").mkdir()
    (shell.home / "locked").touch(mode=0)
    for words in (("config", "set", "app", "--file", file), ("meta", "import", file, "--yes")):
        done = shell.dlog(*words, expect=1)
        assert f"{file}: {why}" in done.err
    (shell.home / "good").write_bytes(b"a\nb\n")
    done = shell.dlog("produce", "orders", "-", file, feed=b"a\n", expect=1)
    assert f"{file}: {why}" in done.err
    assert "1 of 1 messages acknowledged" in done.err
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append(b"b")
        if not file.startswith("/"):  # which only reading tells
            done = shell.dlog("produce", "orders", "good", file, expect=1)
            assert f"{file}: {why}" in done.err
            log.append(b"the writer was not fenced")
    with dlog.connect(shell.url) as client:
        assert client.config("app").get().version == 0


DOCUMENTS = {
    "empty": b"",
    "not UTF-8": b'{\n"writer": {"owner": "\xff"}}',
    "UTF-16": '{"writer": {}}'.encode("utf-16"),
    "not JSON": b'{\n"writer": }',
    "cut": b'{\n"writer": {"linger_ms": 1',
    "brackets": b"[" * 100_000,
    "many digits": b'{"writer": {"linger_ms": ' + b"1" * 5000 + b"}}",
    "a list": b"[]",
    "a number": b"7",
    "a part that is a number": b'{"writer": 7}',
    "a value that is a list": b'{"writer": {"linger_ms": []}}',
    "no number": b'{"writer": {"linger_ms": NaN}}',
    "half a character": b'{"writer": {"owner": "\\ud800"}}',
    "large": b'{"writer": {"owner": "' + b"x" * 1_000_000 + b'"}}',
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_that_is_not_understood(shell: Shell, document: str) -> None:
    raw = DOCUMENTS[document]
    (shell.home / "document").write_bytes(raw)
    with dlog.connect(shell.url) as client:
        client.config("app").set("writer", {"linger_ms": 3})
    done = shell.dlog("config", "set", "app", "--file", "document", expect=2)
    if b"\n" in raw:
        assert "document, line 2: not " in done.err
    done = shell.dlog("meta", "import", "document", "--yes", expect=1)
    assert "fault of dlog" not in done.err
    if len(raw) % 4 == 0:
        with _cut_short(raw[:1000]) as stdin:
            code, err = _run_on(shell, stdin, "config", "set", "app", "--file", "-")
        assert (code, "standard input: Input/output error" in err) == (1, True), err
    else:
        shell.dlog("config", "set", "app", "--file", "-", feed=raw, expect=2)
    with dlog.connect(shell.url) as client:
        assert [each.version for each in client.config("app").history()] == [1]
        assert client.admin.list() == []


@pytest.mark.parametrize(
    "words",
    [
        ("config", "set", "app", "writer", "linger_ms=\udcff"),
        ("config", "set", "app", "writer", "\udcff=1"),
        ("config", "set", "app", "writer", "linger_ms=" + "[" * 100_000),
        ("config", "set", "app", "writer", "linger_ms=1", "--note", "\udcff"),
        ("config", "set", "\udcff", "writer", "linger_ms=1"),
        ("create", "\udcff"),
        ("stream", "create", "\udcff"),
        ("hold", "set", "orders", "\udcff"),
        ("hold", "set", "orders", "keep", "--note", "\udcff"),
        ("produce", "orders", "--owner", "\udcff"),
        ("produce", "\udcff"),
        ("group", "rm", "\udcff", "orders", "--yes"),
        ("rm", "\udcff", "--yes"),
        ("copy", "file:a", "orders", "file:b", "\udcff"),
        ("copy", "{url}", "orders", "file:b", "--owner", "\udcff"),
    ],
    ids=lambda words: ascii(" ".join(words))[:60],
)
def test_arguments_that_are_no_text_are_refused(shell: Shell, words: tuple[str, ...]) -> None:
    shell.dlog("create", "orders")
    before = shutil.copytree(shell.home / "logs", shell.home / "before")
    with open(os.devnull, "rb") as nothing:
        code, err = _run_on(shell, nothing, *(each.replace("{url}", shell.url) for each in words))
    assert code in (1, 2, 3), err
    with dlog.connect(shell.url) as client, dlog.connect(f"file:{before}") as as_it_was:
        assert client.admin.list() == as_it_was.admin.list()
        assert client.config("app").get().version == 0
        assert client.admin.holds("orders") == ()
    assert Path(shell.home / "b").exists() is False

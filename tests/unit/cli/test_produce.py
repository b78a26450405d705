"""`dlog produce`, as a process: what goes in is in the log, and what is said about it is true."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import dlog
from tests.unit.cli.conftest import ANSWER_S, Shell, read_lines


def _values(shell: Shell, log: str = "orders") -> list[bytes | None]:
    with dlog.open_reader(log, url=shell.url) as reader:
        return [message.value for message in reader]


def test_lines_become_messages_and_the_last_id_is_printed(shell: Shell) -> None:
    done = shell.dlog("produce", "orders", feed=b"a\n\nzur\xffich\nlast")
    assert _values(shell) == [b"a", b"", b"zur\xffich", b"last"]
    with dlog.open_reader("orders", url=shell.url) as reader:
        ids = [message.id for message in reader]
    assert done.lines == [str(ids[-1])]
    assert done.err == "dlog: 4 of 4 messages acknowledged\n"


def test_nothing_in_is_nothing_out(shell: Shell) -> None:
    done = shell.dlog("produce", "orders")
    assert done.out == b""
    assert "0 of 0 messages" in done.err
    assert _values(shell) == []


def test_quiet_says_nothing(shell: Shell) -> None:
    done = shell.dlog("produce", "orders", "-q", feed=b"a\n")
    assert (done.out, done.err) == (b"", "")


def test_sync_prints_each_id(shell: Shell) -> None:
    done = shell.dlog("produce", "orders", "--sync", feed=b"a\nb\nc\n")
    ids = [dlog.MessageId.parse(line) for line in done.lines]
    assert len(ids) == 3
    assert ids == sorted(set(ids))


def test_files_in_order_and_standard_input_among_them(shell: Shell) -> None:
    (shell.home / "one").write_bytes(b"1\n")
    (shell.home / "two").write_bytes(b"2\n3")
    shell.dlog("produce", "orders", "one", "-", "two", feed=b"in\n")
    assert _values(shell) == [b"1", b"in", b"2", b"3"]


def test_whole_files_are_messages(shell: Shell) -> None:
    (shell.home / "one").write_bytes(b"1\n2\n")
    shell.dlog("produce", "orders", "--whole", "one", "-", feed=b"\x00\n")
    assert _values(shell) == [b"1\n2\n", b"\x00\n"]


def test_keys_and_headers(shell: Shell) -> None:
    shell.dlog(
        "produce", "orders", "-k", "::", "-H", "by=web", "-H", "by=shop=2", feed=b"k::v::w\n"
    )
    with dlog.open_reader("orders", url=shell.url) as reader:
        (message,) = list(reader)
    assert (message.key, message.value) == (b"k", b"v::w")
    assert list(message.headers) == [("by", b"web"), ("by", b"shop=2")]


def test_what_tail_prints_as_json_produce_reads_back(shell: Shell) -> None:
    with dlog.open_writer("from", url=shell.url) as log:
        log.append(b"text \xc3\xbc\x1b", key=b"\xff\x00", headers=[("a", b"\xfe"), ("a", b"ok")])
        log.append(None, key=b"gone", event_time=-5)
        log.append(b"")
        log.append(b"\xff")
    told = shell.dlog("tail", "from", "-o", "json").out
    shell.dlog("produce", "to", "--json", feed=told)
    with (
        dlog.open_reader("from", url=shell.url) as first,
        dlog.open_reader("to", url=shell.url) as second,
    ):
        before = [(m.key, m.value, list(m.headers), m.event_time_us) for m in first]
        after = [(m.key, m.value, list(m.headers), m.event_time_us) for m in second]
    assert len(before) == 4
    assert after == before


@pytest.mark.parametrize(
    ("words", "feed", "told"),
    [
        (("--json",), b'{"value": "a"}\n{"value": 1}\n', "standard input, line 2: value is text"),
        (("-k", ":"), b"k:v\nkv\n", "standard input, line 2: there is no ':'"),
        (("-", "missing"), b"a\n", "missing: No such file or directory"),
        ((), b"a\n" + b"x" * 6_000_000 + b"\n", "does not fit one entry"),
    ],
)
def test_what_was_good_is_acknowledged_before_the_bad_line_is_named(
    shell: Shell, words: tuple[str, ...], feed: bytes, told: str
) -> None:
    done = shell.dlog("produce", "orders", *words, feed=feed, expect=1)
    assert told in done.err
    assert "1 of 1 messages acknowledged" in done.err
    assert done.out == b""
    assert len(_values(shell)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sends_what_was_read_and_says_how_far_it_came(
    shell: Shell, number: signal.Signals
) -> None:
    child = shell.start("produce", "orders", "--sync")
    assert child.stdin is not None
    child.stdin.write(b"a\nb\n")
    child.stdin.flush()
    assert len(read_lines(child, 2)) == 2  # it waits for the third line now
    child.send_signal(number)
    _, err = child.communicate(timeout=ANSWER_S)
    assert child.returncode == 128 + number
    assert "interrupted: 2 of 2 messages acknowledged" in err.decode()
    assert "Traceback" not in err.decode()
    assert _values(shell) == [b"a", b"b"]


def test_a_fenced_producer_says_so_by_its_exit_code(shell: Shell) -> None:
    child = shell.start("produce", "orders", "--sync", "--owner", "first")
    assert child.stdin is not None
    child.stdin.write(b"a\n")
    child.stdin.flush()
    read_lines(child, 1)
    with dlog.open_writer("orders", url=shell.url, owner="second") as log:
        log.append(b"b")
        out, err = child.communicate(b"c\n", timeout=ANSWER_S)
    assert child.returncode == 4, err
    assert out == b""
    assert "second" in err.decode()
    assert "1 of " in err.decode()
    assert _values(shell) == [b"a", b"b"]


def test_a_present_writer_is_respected_when_asked(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append(b"a")
        done = shell.dlog("produce", "orders", "--takeover", "never", feed=b"b\n", expect=4)
        assert done.out == b""
        log.append(b"c")
    assert _values(shell) == [b"a", b"c"]


def test_no_create_wants_the_log_to_be_there(shell: Shell) -> None:
    shell.dlog("create", "something")
    done = shell.dlog("produce", "orders", "--no-create", feed=b"a\n", expect=3)
    assert "orders" in done.err
    assert "dlog ls" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "-k", ":"),
        ("-k", ""),
        ("-H", "by"),
        ("--takeover", "maybe"),
        ("--linger-ms", "x"),
    ],
)
def test_wrong_usage(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.dlog("produce", "orders", *words, feed=b"a\n", expect=2)
    assert done.out == b""
    assert shell.dlog("ls", "-o", "json").out == b""


def test_options_out_of_range_are_usage_errors_too(shell: Shell) -> None:
    done = shell.dlog("produce", "orders", "--linger-ms", "999999", feed=b"a\n", expect=2)
    assert "linger_ms" in done.err


def test_codec(shell: Shell) -> None:
    shell.dlog("produce", "orders", "--codec", "zstd", feed=b"a\n" * 1000)
    assert _values(shell) == [b"a"] * 1000


def test_many_lines_pass_through_a_bounded_window(shell: Shell, tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    done = shell.dlog("produce", "orders", feed=lines)
    assert "100000 of 100000" in done.err
    shown = shell.dlog("tail", "orders", "-o", "0:", "--output", "json").lines
    assert [json.loads(line)["value"] for line in shown] == lines.decode().split()

"""Every command whose output is lost: its reader has gone, its disk is full, it was closed before
the command began. Exit code 0 never hides work that was not done, or not told.

Each command runs once with somebody who listens. What it prints and changes then is what it has to
change in every other case; only a command that changes nothing may take a reader who left for
success.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import pytest

import dlog
from dlog.cli.main import main, program
from tests.pace import Deadline
from tests.unit.cli.conftest import ANSWER_S, Shell


@dataclass(frozen=True)
class Case:
    """`tells`: it changes and judges nothing. `feed`: its standard input."""

    words: str
    tells: bool = False
    feed: bytes = b""
    stops: bool = False  # at the first write that is lost: what it did by then is told


CASES = {
    "produce": Case("produce orders", feed=b"a\nb\nc\n"),
    "produce (each id)": Case("produce orders --sync", feed=b"a\nb\nc\n", stops=True),
    "produce (a stream)": Case("produce clicks", feed=b"a\nb\nc\n"),
    "tail": Case("tail orders", tells=True),
    "ls": Case("ls", tells=True),
    "create": Case("create new"),
    "stream create": Case("stream create new --shards 2"),
    "stream describe": Case("stream describe clicks", tells=True),
    "stream ls": Case("stream ls", tells=True),
    "stream merge": Case("stream merge clicks 0 1"),
    "stream pin": Case("stream pin clicks k 1"),
    "stream rm": Case("stream rm clicks --yes"),
    "stream split": Case("stream split clicks 0"),
    "stream terminate": Case("stream terminate clicks --yes"),
    "stream trim": Case("stream trim clicks --yes"),
    "stream unpin": Case("stream unpin pinned k"),
    "group describe": Case("group describe billing clicks", tells=True),
    "group lag": Case("group lag billing clicks", tells=True),
    "group ls": Case("group ls", tells=True),
    "group members": Case("group members billing clicks", tells=True),
    "group plan": Case("group plan billing clicks", tells=True),
    "group reset": Case("group reset billing clicks earliest --yes"),
    "group rm": Case("group rm billing clicks --yes"),
    "group set-checkpoint": Case("group set-checkpoint billing clicks 0 0 --yes"),
    "describe": Case("describe orders", tells=True),
    "segments": Case("segments orders", tells=True),
    "why": Case("why orders", tells=True),
    "top": Case("top orders --count 1", tells=True),
    "config get": Case("config get app", tells=True),
    "config history": Case("config history app", tells=True),
    "config rollback": Case("config rollback app 1"),
    "config set": Case("config set app writer linger_ms=7"),
    "copy": Case("copy {url} orders {url} copied"),
    "export": Case("export orders", tells=True),
    "export (to a file)": Case("export orders -o exported.jsonl"),
    "meta export": Case("meta export orders", tells=True),
    "meta export (the log leaves)": Case(
        "meta export orders --freeze --to file:{home}/there --yes"
    ),
    "fsck": Case("fsck orders"),
    "fsck (damaged)": Case("fsck damaged"),
    "truncate": Case("truncate orders 5 --yes"),
    "hold drop": Case("hold drop orders keep"),
    "hold ls": Case("hold ls orders", tells=True),
    "hold set": Case("hold set orders another"),
    "gc": Case("gc orders"),
    "terminate": Case("terminate orders --yes"),
    "rm": Case("rm orders --yes"),
    "bench": Case("bench --messages 100", tells=True),
    "doctor": Case("doctor"),
}
# They start servers or Java, or need a second metadata store over the same ledgers, and print
# nothing that anybody could lose but lines for people on standard error.
ELSEWHERE = {
    "meta import", "dev down", "dev status", "dev up", "spark compact", "spark export",
    "spark import", "spark stats", "spark verify", "spark-shell",
}  # fmt: skip


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _commands(found, (*path, name))


def test_every_command_has_a_case() -> None:
    named = {name.partition(" (")[0] for name in CASES}
    assert named | ELSEWHERE == set(_commands(program))


# --- the place


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every command finds."""
    home = tmp_path_factory.mktemp("prepared")
    with dlog.connect(f"file:{home}/logs") as client:
        for name in ("orders", "damaged"):
            with client.open_writer(name) as log:
                log.append_many([b"%d" % number for number in range(20)])
        for name in ("clicks", "pinned"):
            client.create_stream(name, shards=2)
            with client.stream(name).open_writer() as log:
                log.append_many([b"%d" % number for number in range(20)])
        client.stream("pinned").pin(b"k", 1)
        with client.open_worker("billing", "clicks", lambda batch: None):
            deadline = Deadline(30)
            while client.group("billing", "clicks").describe().lag_messages != 0:
                assert not deadline.passed()
        client.admin.hold("orders", "keep", 3)
        config = client.config("app")
        for linger_ms in (1, 2):
            config.set("writer", {"linger_ms": linger_ms})
        damaged = client.admin.segments("damaged")[0].ledger_id
    (ledger,) = (home / "logs").rglob(f"*{damaged:x}*.ledger")
    raw = bytearray(ledger.read_bytes())
    raw[len(raw) // 2] ^= 1
    ledger.write_bytes(raw)
    return home


@pytest.fixture
def shell(shell: Shell, prepared: Path) -> Shell:
    shutil.copytree(prepared / "logs", shell.home / "logs")
    return shell


def _words(case: Case, shell: Shell) -> list[str]:
    return [word.format(url=shell.url, home=shell.home) for word in case.words.split()]


def _state(home: Path) -> dict[str, Any]:
    """All that a command may change, without what differs from run to run."""
    state: dict[str, Any] = {}
    with dlog.connect(f"file:{home}/logs") as client:
        for log in client.admin.list():
            holds = () if log.state == "unreadable" else client.admin.holds(log.name)
            state[log.name] = log.state, log.head_seq, log.messages, [each.name for each in holds]
        for name in client.streams():
            shards = client.stream(name).describe().shards
            messages = sum(state.pop(each.log, (0, 0, 0))[2] for each in shards)
            state[f"stream {name}"] = messages, [(each.number, each.state) for each in shards]
        for group, stream in client.groups():
            state[f"group {group}"] = None
            with suppress(dlog.NotFound):  # its stream is gone
                told = client.group(group, stream).describe()
                places = [each.checkpoint and each.checkpoint.next_seq for each in told.shards]
                state[f"group {group}"] = places
        state["config"] = [each.version for each in client.config("app").history()]
    state["files"] = sorted(each.name for each in home.iterdir() if each.is_file())
    return state


# --- the streams


@contextmanager
def _left() -> Iterator[IO[bytes]]:
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as stream:
        yield stream


@contextmanager
def _kept(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb", buffering=0) as stream:
        yield stream


def _run(shell: Shell, case: Case, lost: str | None) -> tuple[int, bytes, str]:
    """Exit code, and what arrived on standard output and standard error."""
    out, err, feed = (shell.home.parent / f"{shell.home.name}-{name}" for name in ("o", "e", "i"))
    feed.write_bytes(case.feed)
    with ExitStack() as stack:
        enter = stack.enter_context
        stdin: IO[bytes] = enter(feed.open("rb"))
        stdout, stderr = enter(_kept(out)), enter(_kept(err))
        match lost:
            case "left":
                stdout = enter(_left())
            case "full":
                stdout = enter(open("/dev/full", "wb", buffering=0))
            case "closed":  # as `>&-` is for a program that takes care
                stdout = enter(open(os.devnull, "rb", buffering=0))
            case "errors":
                stderr = enter(_left())
            case "both":
                stdout, stderr = enter(_left()), enter(_left())
        code = shell.dlog_on([stdin, stdout, stderr], *_words(case, shell))
    return code, out.read_bytes(), err.read_text()


@pytest.mark.parametrize("name", CASES)
def test_exit_code_0_hides_nothing(name: str, shell: Shell) -> None:
    case = CASES[name]
    before = _state(shell.home)
    as_it_was = (shell.home / "logs").rename(shell.home / "as it was")
    wanted: dict[str, Any] = {}
    heard, usual = b"", 0
    for lost in (None, "left", "full", "closed", "errors", "both"):
        shutil.copytree(as_it_was, shell.home / "logs")
        code, out, err = _run(shell, case, lost)
        assert "fault of dlog" not in err
        assert "Traceback" not in err
        after = _state(shell.home)
        if lost is None:
            wanted, heard, usual = after, out, code
            assert code == (1 if "damaged" in name else 0), err
            finds_nothing = name.startswith(("fsck", "gc", "doctor", "stream trim"))
            assert (wanted == before) is (case.tells or finds_nothing)
        elif lost == "errors" or not heard:
            assert (code, bool(out)) == (usual, bool(heard)), err
            assert after == wanted
        elif case.tells and lost in ("left", "both"):
            assert code == 0, err
        elif case.stops:
            assert code == 1
            landed = after["orders"][2] - before["orders"][2]
            assert 0 < landed < 3
            assert lost == "both" or f"{landed} of {landed} messages acknowledged" in err
        else:
            assert code == 1
            assert lost == "both" or "standard output" in err or usual == 1, err
            is_refused = "leaves" in name and lost != "full"  # which nobody knows before
            assert after == (before if is_refused else wanted)
        shutil.rmtree(shell.home / "logs")
        for file in set(wanted["files"]) - set(before["files"]):
            (shell.home / file).unlink(missing_ok=True)


# --- streams that are closed, and input that is not understood


def _closed(
    shell: Shell, *words: str, closed: str, feed: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """As a shell runs `dlog … >&-`: there is no such stream at all."""
    command = shlex.join([sys.executable, "-m", "dlog", *words])
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {command} {closed}"],
        input=feed,
        cwd=shell.home,
        env=shell.environment,
        capture_output=True,
        check=False,
        timeout=ANSWER_S,
    )


def test_streams_that_are_closed_are_named(shell: Shell) -> None:
    done = _closed(shell, "produce", "orders", closed=">&-", feed=b"a\nb\n")
    assert done.returncode == 1
    told = b"dlog: standard output is closed; 2 of 2 messages acknowledged, the last as 6:"
    assert done.stderr.startswith(told)
    done = _closed(shell, "produce", "orders", closed="<&-")
    assert done.returncode == 1
    assert done.stderr.startswith(b"dlog: standard input: it is closed; 0 of 0 messages")
    done = _closed(shell, "produce", "orders", closed="2>&-", feed=b"a\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"8:2:0\n", b"")
    done = _closed(shell, "ls", closed="<&- >&- 2>&-")
    assert done.returncode == 1
    with dlog.connect(shell.url) as client:
        assert client.admin.status("orders").next_seq == 23


def test_a_failure_is_told_on_standard_output_where_standard_error_is_lost(shell: Shell) -> None:
    done = _closed(shell, "produce", "orders", "--json", closed="2>&-", feed=b'{"value":"a"}\nb\n')
    assert done.returncode == 1
    assert b"line 2: this is not JSON; 1 of 1 messages acknowledged, the last as" in done.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"value": "a", "event_time_us": 99999999999999999999}', "an event time"),
        (b'{"value": "a", "event_time_us": -99999999999999999999}', "an event time"),
        (b'{"value": "a", "headers": {"\\ud800": "x"}}', "a header's name"),
        (b'{"value": "' + b"v" * 6_000_000 + b'"}', ""),
    ],
    ids=["late", "early", "half a character", "large"],
)
@pytest.mark.parametrize("at", [1, 3])
def test_a_message_that_no_log_takes_is_named_by_its_line(
    shell: Shell, line: bytes, told: str, at: int
) -> None:
    good = [b'{"value": "good"}'] * (at - 1)
    done = shell.dlog(
        "produce", "new", "--json", feed=b"\n".join([*good, line, b'{"value": 1}']), expect=1
    )
    assert f"standard input, line {at}: {told}" in done.err
    assert f"{at - 1} of {at - 1} messages acknowledged" in done.err
    assert "without an answer" not in done.err


def test_a_log_does_not_leave_for_a_file_that_cannot_be_written(shell: Shell) -> None:
    (shell.home / "there.json").write_text("kept")
    (shell.home / "folder").mkdir()
    words = ("meta", "export", "orders", "--freeze", "--to", f"file:{shell.home}/there", "--yes")
    for file, force in (("there.json", ()), ("folder", ("--force",)), ("no/such/folder", ())):
        shell.dlog(*words, "-o", file, *force, expect=1 if "/" in file else 2)
        with dlog.open_writer("orders", url=shell.url) as log:
            log.append(b"the log is here")
    assert (shell.home / "there.json").read_text() == "kept"


@pytest.mark.usefixtures("own_logger")
def test_a_time_out_of_dlog_is_not_told_as_a_lost_output(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python counts both among the errors of its operating system."""

    def late(*_: Any, **__: Any) -> Any:
        raise dlog.Timeout("no room in the window")

    monkeypatch.setattr(dlog.Writer, "submit", late)
    (shell.home / "lines").write_text("a\n")
    code = main(["-u", shell.url, "produce", "orders", str(shell.home / "lines")])
    told = capsys.readouterr().err
    assert code == 5
    assert "no room in the window" in told
    assert "standard output" not in told

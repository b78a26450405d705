"""A case for each command, what the commands find, and what they may change. For tests that run
every command in some way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import dlog
from tests.pace import Deadline
from tests.unit.cli.conftest import Shell


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


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def prepare(home: Path) -> None:
    """What every command finds, below `home`."""
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


def words_of(case: Case, shell: Shell) -> list[str]:
    return [word.format(url=shell.url, home=shell.home) for word in case.words.split()]


def state_of(home: Path) -> dict[str, Any]:
    """All that a command may change, without what differs from run to run."""
    state: dict[str, Any] = {}
    with dlog.connect(f"file:{home}/logs") as client:
        for log in client.admin.list():
            holds = () if log.state == "unreadable" else client.admin.holds(log.name)
            state[log.name] = log.state, log.head_seq, log.messages, [each.name for each in holds]
        for name in client.streams():
            try:
                shards = client.stream(name).describe().shards
            except dlog.NotFound:  # its removal was begun
                continue
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

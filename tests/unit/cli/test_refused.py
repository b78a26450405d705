"""Commands with a step that cannot be taken back. What can be refused is refused before it: a
missing yes, a wrong argument, a name that is not there, a file that cannot be written or read."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import dlog
from dlog.cli.main import program
from dlog.spark.access import close_all
from tests.unit.cli.conftest import Shell
from tests.unit.cli.every_command import CASES, commands, state_of, words_of
from tests.unit.cli.test_interrupted import Ring

# Verbs that take back nothing, and ask for no yes.
UNASKED = ("stream split", "stream merge", "stream pin", "stream unpin", "config rollback", "copy",
    "hold drop")  # fmt: skip
FINAL = [name for name in CASES if "--yes" in CASES[name].words or name.startswith(UNASKED)]
ELSEWHERE = {"meta import"}  # below; it needs a log that left


def _takes(name: str, option: str) -> bool:
    found: Any = program
    for word in name.partition(" (")[0].split():
        found = found.get_command(click.Context(found), word)
    return any(each.name == option for each in found.params)


@pytest.fixture(scope="module", autouse=True)
def clients_of_jobs_end() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def shell(shell: Shell, prepared: Path) -> Shell:
    shutil.copytree(prepared / "logs", shell.home / "logs")
    shutil.copytree(prepared / "logs", shell.home / "as it was")
    return shell


def test_every_command_that_asks_is_here() -> None:
    asking = {name for name in commands(program) if _takes(name, "yes")} - ELSEWHERE
    named = {name.partition(" (")[0] for name in FINAL}
    assert asking - named <= {"fsck", "gc"}  # they show first what there is to do
    assert asking | set(UNASKED) >= named


@pytest.mark.parametrize("name", FINAL)
def test_what_can_be_refused_is_refused_first(name: str, shell: Shell) -> None:
    words = words_of(CASES[name], shell)
    before = state_of(shell.home)

    def refused(*given: str, codes: tuple[int, ...]) -> None:
        with open(os.devnull, "r+b") as null, (shell.home.parent / "err").open("wb") as err:
            code = shell.dlog_on([null, null, err], *given)
        assert code in codes, given

    if "--yes" in words:
        has_nothing_to_do = name == "stream trim"
        without = [each for each in words if each != "--yes"]
        refused(*without, codes=(0,) if has_nothing_to_do else (2,))
    refused(*words, "--no-such-option", codes=(2,))
    refused(*words, "one", "argument", "more", codes=(1, 2))
    if _takes(name, "output") and "meta" not in name:
        refused(*words, "--output", "nonsense", codes=(2,))
    there = {"orders", "clicks", "pinned", "billing", "app", "keep"}
    for place, word in enumerate(words):
        if word in there:
            changed = [*words[:place], "missing", *words[place + 1 :]]
            refused(*changed, codes=(1, 2, 3))
        elif word.isdecimal():
            refused(*[*words[:place], "nonsense", *words[place + 1 :]], codes=(1, 2, 3))
            if name != "truncate":  # it goes as far as there is something
                refused(*[*words[:place], "999999", *words[place + 1 :]], codes=(1, 2, 3))
    assert state_of(shell.home) == before


@pytest.mark.parametrize("name", ["rm", "stream rm", "group rm", "truncate", "terminate"])
def test_what_was_cut_short_is_completed_by_the_same_command(name: str, shell: Shell) -> None:
    """Two signals leave a step no time to come to its end."""
    ring = Ring(name, shell)
    steps = ring.calm.counted["store"]
    for number in (steps // 2, steps - 2):
        ring.interrupt("store", number, signal.SIGTERM, times=2)


def test_a_removal_that_was_begun_elsewhere_is_not_finished_without_a_yes(shell: Shell) -> None:
    shell.dlog("rm", "missing", expect=3)
    shell.dlog("rm", "missing", "--yes", expect=3)
    shell.dlog("stream", "rm", "missing", "--yes", expect=3)
    shell.dlog("group", "rm", "missing", "clicks", "--yes", expect=3)


def test_a_log_that_cannot_be_written_out_does_not_leave(shell: Shell) -> None:
    """Its list names a page, or a hold, that is damaged."""
    import sqlite3

    (database,) = (shell.home / "logs").rglob("meta.db")
    with sqlite3.connect(database) as opened:
        changed = opened.execute(
            "UPDATE node SET value = ? WHERE path LIKE '%holds%keep%'", (b"{",)
        ).rowcount
    opened.close()
    assert changed == 1
    words = ("meta", "export", "orders", "--freeze", "--to", f"file:{shell.home}/there", "--yes")
    shell.dlog(*words, "-o", "document", expect=1)
    with dlog.connect(shell.url) as client:
        with pytest.raises(dlog.DlogError):
            client.admin.move_meta("orders", f"file:{shell.home}/there")
        with client.open_writer("orders") as log:
            log.append(b"the log is here")


def test_meta_import_refuses_before_it_brings_anything(shell: Shell) -> None:
    there = f"file:{shell.home}/there"
    words = ("meta", "export", "orders", "--freeze", "--to", there, "--yes", "-o", "document")
    shell.dlog(*words)
    shutil.copytree(shell.home / "logs", shell.home / "there")
    document = (shell.home / "document").read_bytes()
    (shell.home / "changed").write_bytes(document.replace(b'"orders"', b'"others"', 1))
    bring = ("meta", "import", "-u", there)
    shell.dlog(*bring, "changed", "--yes", expect=1)
    shell.dlog(*bring, "document", expect=2)
    shell.dlog(*bring, "document", "--output", "json", "--yes", expect=2)
    shell.dlog("meta", "import", "document", "--yes", expect=2)
    with dlog.connect(there) as client:
        assert "orders" not in [each.name for each in client.admin.list()]
    shell.dlog(*bring, "document", "--yes")


def test_a_reset_is_refused_as_a_whole(shell: Shell) -> None:
    """Of one shard the place is truncated: the other one stays where it is, too."""
    with dlog.connect(shell.url) as client:
        group = client.group("billing", "clicks")
        second = client.stream("clicks").shards()[1].log
        client.admin.force_truncate(second, 3)
        before = [each.checkpoint for each in group.describe().shards]
        with pytest.raises(dlog.Truncated):
            group.reset(0)
        assert [each.checkpoint for each in group.describe().shards] == before


def test_compacting_into_a_log_refuses_a_source_that_is_not_there(shell: Shell) -> None:
    pytest.importorskip("pyspark")
    from dlog.spark.jobs.compact import to_log

    with pytest.raises(dlog.NotFound):
        to_log(None, {"url": shell.url}, "missing", "made")
    with dlog.connect(shell.url) as client:
        assert "made" not in [each.name for each in client.admin.list()]

"""`dlog fsck`, as a process: what it says, what it repairs when told to, and its exit codes."""

from __future__ import annotations

import asyncio
import json

import dlog
from tests.api.adapter import AioApi
from tests.api.planting import change_meta, meta_of, new_ledger, stores_of, with_segment
from tests.api.test_corruption import flip
from tests.unit.cli.conftest import Shell


def fill(shell: Shell) -> list[dlog.MessageId]:
    with dlog.open_writer("log", url=shell.url) as log:
        return [log.append(b"message %d" % number) for number in range(6)]


def plant(shell: Shell) -> None:
    """An orphan of an epoch that is over, and a list that says something else than the ledger."""

    async def planted() -> None:
        async with stores_of(AioApi(shell.url)) as stores:
            meta = await meta_of(stores)
            await new_ledger(stores, log=meta.uid.encode(), number=b"9", epoch=b"0")
            await change_meta(stores, with_segment(1, bytes=1))

    asyncio.run(planted())


def test_nothing_wrong_is_exit_code_0(shell: Shell) -> None:
    fill(shell)
    done = shell.dlog("fsck", "log")
    assert done.lines == []
    assert "1 logs, 1 segments" in done.err
    assert "nothing wrong" in done.err
    told = json.loads(shell.dlog("fsck", "--all", "--deep", "-o", "json").out)
    assert (told["findings"], told["not_checked"], told["plan"]) == ([], [], [])
    assert told["logs"] == [{"name": "log", "segments": 1, "pages": 0}]


def test_usage(shell: Shell) -> None:
    fill(shell)
    for words in (
        (),
        ("log", "--all"),
        ("log", "--yes"),
        ("log", "--deep", "--replication"),
        ("log", "--sample", "-1"),
        ("log", "--parallel", "0"),
    ):
        shell.dlog("fsck", *words, expect=2)
    shell.dlog("fsck", "other", expect=3)


def test_what_is_found_is_repaired_when_told_to(shell: Shell) -> None:
    fill(shell)
    plant(shell)
    done = shell.dlog("fsck", "--all", expect=1)
    assert [line.split()[:2] for line in done.lines[1:]] == [
        ["bad", "end_differs"],
        ["warning", "orphan"],
    ]
    planned = shell.dlog("fsck", "--all", "--repair", expect=1)
    assert any(line.startswith("delete_ledger ") for line in planned.lines)
    assert any(line.startswith("reseal ") for line in planned.lines)
    assert "nothing was changed; add --yes" in planned.err
    shell.dlog("fsck", "--all", expect=1)
    done = shell.dlog("fsck", "--all", "--repair", "--yes")
    assert sum(" done " in line for line in done.lines) == 2
    assert "nothing wrong" in done.err.splitlines()[-1]
    shell.dlog("fsck", "--all")
    assert "nothing that could be repaired" in shell.dlog("fsck", "--all", "--repair").err


def test_json_is_an_object_a_line(shell: Shell) -> None:
    fill(shell)
    plant(shell)
    done = shell.dlog("fsck", "log", "--repair", "-y", "-o", "json")
    before, repaired, after = (json.loads(line) for line in done.lines)
    assert {each["kind"] for each in before["findings"]} == {"end_differs", "orphan"}
    assert [each["ended"] for each in repaired["steps"]] == ["done", "done"]
    assert after["findings"] == []


def test_what_is_lost_is_named_and_exit_code_1(shell: Shell) -> None:
    ids = fill(shell)
    flip(AioApi(shell.url), ids[2].entry_id)
    done = shell.dlog("fsck", "log", "--deep", "--repair", "--yes", expect=1)
    (line,) = done.lines[1:]
    assert f"entry {ids[2].entry_id}, seqs 2 to 2" in line
    assert line.split()[:2] == ["bad", "entry_damaged"]
    assert "nothing that could be repaired" in done.err


def test_what_could_not_be_checked_is_exit_code_5(shell: Shell) -> None:
    fill(shell)
    done = shell.dlog("fsck", "log", "--replication", expect=5)
    assert "one copy" in done.lines[1]
    assert "1 things not checked" in done.err

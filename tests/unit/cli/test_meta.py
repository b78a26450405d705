"""`dlog meta`, as a process: plans first, and a log that is at one place at a time."""

from __future__ import annotations

import json
import shutil

import dlog
from tests.unit.cli.conftest import Shell


def fill(shell: Shell, url: str, *values: bytes) -> None:
    with dlog.open_writer("orders", url=url) as log:
        log.append_many(values)


def test_a_document_to_look_at(shell: Shell) -> None:
    fill(shell, shell.url, b"a", b"b")
    shown = json.loads(shell.dlog("meta", "export", "orders").out)
    assert shown["node"]["state"] == "open"
    assert shown["node"]["end"]["next_seq"] == 2
    shell.dlog("meta", "export", "orders", "-o", "doc")
    refused = shell.dlog("meta", "import", "doc", "--yes", expect=2)
    assert "--freeze" in refused.err
    shell.dlog("meta", "export", "nothing", expect=3)


def test_a_log_leaves_and_arrives(shell: Shell) -> None:
    fill(shell, shell.url, b"a", b"b")
    to = f"file:{shell.home / 'there'}"
    leave = ("meta", "export", "orders", "--freeze", "--to", to, "-o", "doc")
    plan = shell.dlog(*leave, expect=2).err
    assert f"orders leaves {shell.url} for {to}: 2 messages in 1 segments" in plan
    assert "nothing was changed; add --yes" in plan
    fill(shell, shell.url, b"c")
    asked = shell.on_a_terminal(*leave, types=b"n\n", expect=1)
    assert b"Let orders leave" in asked
    fill(shell, shell.url, b"d")
    shell.dlog(*leave, "--yes")
    told = shell.dlog("produce", "orders", feed=b"late\n", expect=3).err
    assert to in told
    assert shell.dlog("ls").out.count(b"orders") == 0
    shell.dlog(*leave, "--yes", "--force")  # the document was lost, say
    shutil.copytree(shell.home / "logs", shell.home / "there")
    plan = shell.dlog("meta", "import", "doc", "-u", to, expect=2).err
    assert f"orders comes from {shell.url} to {to}: " in plan
    refused = shell.dlog("meta", "import", "doc", expect=2).err
    assert f"left for {to}" in refused
    shell.dlog("meta", "import", "doc", "-u", to, "--yes")
    assert shell.dlog("tail", "orders", "-u", to).out == b"a\nb\nc\nd\n"
    again = shell.dlog("meta", "import", "doc", "-u", to, "--yes", expect=1).err
    assert "here already" in again


def test_what_goes_together(shell: Shell) -> None:
    fill(shell, shell.url, b"a")
    export = ("meta", "export", "orders")
    assert "together" in shell.dlog(*export, "--freeze", expect=2).err
    assert "together" in shell.dlog(*export, "--to", "file:x", expect=2).err
    assert "--freeze" in shell.dlog(*export, "--retarget", expect=2).err
    other = f"file:{shell.home / 'other'}"
    fill(shell, other, b"x")
    refused = shell.dlog(*export, "--freeze", "--to", other, "--yes", expect=1).err
    assert "already" in refused
    assert shell.dlog("tail", "orders").out == b"a\n", "it did not leave"
    wrong, right = f"file:{shell.home / 'wrong'}", f"file:{shell.home / 'logs'}"
    shell.dlog(*export, "--freeze", "--to", wrong, "--yes")
    assert wrong in shell.dlog(*export, "--freeze", "--to", right, "--yes", expect=1).err
    home = ("--freeze", "--to", right, "--retarget", "--yes", "-o", "home")
    shell.dlog(*export, *home)
    shell.dlog("meta", "import", "home", "--yes")
    assert shell.dlog("tail", "orders").out == b"a\n"

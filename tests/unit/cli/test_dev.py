"""`dlog dev` where it cannot work, and where nothing was started. What it does with real servers is
in integration/test_dev.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shell


@pytest.fixture
def without_java(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    for name in ("JAVA_HOME", "MAVEN_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return shell


def test_what_is_missing_is_said_with_how_to_get_it(without_java: Shell) -> None:
    done = without_java.dlog("dev", "up", expect=5)
    assert "no java on PATH" in done.err
    assert "apt-get install" in done.err
    assert done.out == b""


@pytest.mark.parametrize("word", ["status", "down"])
def test_nothing_was_started(without_java: Shell, word: str) -> None:
    assert "`dlog dev up` starts one" in without_java.dlog("dev", word, expect=3).err


def test_a_damaged_state_is_told_with_what_to_do(without_java: Shell, tmp_path: Path) -> None:
    state = tmp_path / f"dlog-dev-{os.getuid()}" / "state.json"
    state.parent.mkdir(mode=0o700)
    state.write_text("{")
    assert "`dlog dev down` clears it" in without_java.dlog("dev", "status", expect=1).err
    without_java.dlog("dev", "down")
    without_java.dlog("dev", "status", expect=3)


def test_no_cluster_has_no_bookies(without_java: Shell) -> None:
    without_java.dlog("dev", "up", "--bookies", "0", expect=2)

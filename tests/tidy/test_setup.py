"""Set-up from nothing: the lock files are complete and name no index; a machine without Python is
told so in one sentence; the first Python that works is taken."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

LOCKS = ("requirements-build.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _pinned(lock: str) -> set[str]:
    found = re.findall(r"^([\w.-]+)==", (ROOT / lock).read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-") for name in found}


def _names(wanted: list[str]) -> set[str]:
    found = {re.split(r"[\s<>=!~\[;]", each)[0].lower() for each in wanted}
    return found - {"dlog"}  # an extra that is the sum of others


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes_and_nothing_names_an_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "index-url" not in text
    for entry in re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_the_locks_pin_all_that_the_project_asks_for() -> None:
    project = PROJECT["project"]
    wanted = _names(project["dependencies"]) | _names(PROJECT["dependency-groups"]["dev"])
    for extra in project["optional-dependencies"].values():
        wanted |= _names(extra)
    assert not wanted - _pinned("requirements-dev.lock")
    assert not _names(PROJECT["dependency-groups"]["build"]) - _pinned("requirements-build.lock")


def _set_up_with(tmp_path: Path, stubs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`.ci/venv` of a bare copy, with these programs as all the Pythons there are."""
    copy, programs = tmp_path / "copy", tmp_path / "bin"
    (copy / ".ci").mkdir(parents=True)
    programs.mkdir()
    for name in (".ci/venv", *LOCKS, "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    for tool in ("sh", "cat", "cksum", "tr", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (programs / tool).symlink_to(found)
    for name, body in stubs.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        [str(programs / "sh"), str(copy / ".ci" / "venv")],
        env={"PATH": str(programs), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_machine_without_python_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    done = _set_up_with(tmp_path, {"python3": "exit 1"})
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no Python 3.11 or newer with venv and ensurepip" in done.stderr


def test_the_first_python_that_works_is_taken(tmp_path: Path) -> None:
    works = 'case "$1" in -c) exit 0;; -V) echo "Python of $0";; *) exit 3;; esac'
    stubs = {"python3.13": "exit 1", "python3.12": works, "python3": works}
    done = _set_up_with(tmp_path, stubs)
    assert done.returncode == 3  # the stub makes no environment
    assert "python3.12" in done.stderr

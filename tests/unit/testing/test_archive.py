"""Which servers are started with an archive of their classes, and when one is still good."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.testing.cluster import archive
from dlog.testing.cluster.archive import BOOKIE_MAIN, ZOOKEEPER_MAIN


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A Java and a class path, and a cache without any archive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("java", "one.jar", "two.jar"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path / "java", os.pathsep.join(str(tmp_path / jar) for jar in ("one.jar", "two.jar"))


def _keep(place: tuple[Path, str], main: str) -> Path:
    archive._directory.cache_clear()
    path = archive._directory(*place) / main
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_without_an_archive_nothing_is_asked_for(place: tuple[Path, str]) -> None:
    archive._directory.cache_clear()
    assert archive.flags(place[0], BOOKIE_MAIN, place[1]) == []


def test_each_server_has_its_own(place: tuple[Path, str]) -> None:
    kept = _keep(place, BOOKIE_MAIN)
    assert archive.flags(place[0], BOOKIE_MAIN, place[1]) == [f"-XX:SharedArchiveFile={kept}"]
    assert archive.flags(place[0], ZOOKEEPER_MAIN, place[1]) == []
    assert archive.flags(place[0], "org.example.Main", place[1]) == []


@pytest.mark.parametrize("changed", ["java", "two.jar"])
def test_one_of_another_java_or_other_jars_is_not_used(
    place: tuple[Path, str], changed: str
) -> None:
    _keep(place, BOOKIE_MAIN)
    (place[0].parent / changed).write_bytes(b"another one")
    archive._directory.cache_clear()
    assert archive.flags(place[0], BOOKIE_MAIN, place[1]) == []


def test_a_bookie_finds_the_library_that_it_would_unpack(place: tuple[Path, str]) -> None:
    kept = _keep(place, "librocksdbjni.so")
    assert archive.flags(place[0], BOOKIE_MAIN, place[1]) == [f"-Djava.library.path={kept.parent}"]


def test_the_tree_of_a_new_cluster_is_copied_if_there_is_one(
    place: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "find_java", lambda: place[0])
    monkeypatch.setattr(archive, "class_path", lambda version: place[1])
    archive._directory.cache_clear()
    assert not archive.copy_tree("4.18.0", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    _keep(place, "tree/version-2/log.1")
    assert archive.copy_tree("4.18.0", tmp_path / "data")
    assert (tmp_path / "data" / "version-2" / "log.1").is_file()

"""Fixtures of the chaos tests: children that are always reaped, and an arena per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.testing.children import Children
from tests.chaos.arena import PROGRAM, Arena
from tests.forks import Forks
from tests.tidy.source import ROOT


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks(PROGRAM) as made:
        yield made


@pytest.fixture
def children(tmp_path: Path, forks: Forks) -> Iterator[Children]:
    with Children(tmp_path, python_path=ROOT, spawn=forks.spawn) as running:
        yield running


@pytest.fixture
def arena(tmp_path: Path, children: Children) -> Arena:
    return Arena(tmp_path, children)

"""Fixtures of the chaos tests: children that are always reaped, and an arena per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.testing.children import Children
from tests.chaos.arena import Arena
from tests.tidy.source import ROOT


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path, python_path=ROOT) as running:
        yield running


@pytest.fixture
def arena(tmp_path: Path, children: Children) -> Arena:
    return Arena(tmp_path, children)

"""A place in memory, and both backends of one host, of their own for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog import backends

_worlds = itertools.count()


@pytest.fixture
def memory_url() -> Iterator[str]:
    name = f"config-{os.getpid()}-{next(_worlds)}"
    yield f"memory:{name}"
    backends._memory_worlds.pop(name, None)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, memory_url: str, tmp_path: Path) -> str:
    return memory_url if request.param == "memory" else f"file:{tmp_path / 'data'}"

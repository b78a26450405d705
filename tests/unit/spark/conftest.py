from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the package pyspark is not installed")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of logs in files. The clients that the source opened in this process are closed behind it."""
    from dlog.spark.access import close_all

    yield f"file:{tmp_path / 'data'}"
    close_all()

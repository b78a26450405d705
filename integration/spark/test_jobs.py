"""Jobs on bookies, where a log has several copies to verify."""

from __future__ import annotations

from typing import Any

from dlog.spark.jobs import verify
from tests.spark.test_jobs import (
    fill,
    test_an_export_adds_what_came_since,
    test_there_and_back,
)

__all__ = ["test_an_export_adds_what_came_since", "test_there_and_back"]


def test_every_copy_is_read(spark: Any, url: str) -> None:
    fill(url, 300)
    found = verify.verify(spark, {"url": url}, "orders")
    assert found.is_whole, found
    assert found.messages == 300
    assert found.copies == 3 * found.entries

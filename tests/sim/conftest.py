"""Collects what each simulated test leaves behind, before the next one begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlog.testing.sim.garbage import collected_at_the_end


@pytest.fixture(autouse=True)
def nothing_is_told_later() -> Iterator[None]:
    """A story that fails as it should keeps its history until the test is over."""
    with collected_at_the_end():
        yield

"""What holds for every test of tests/ and integration/: its tier (`tests/tiers.py`)."""

from __future__ import annotations

import pytest

from tests.tiers import TIERS, select


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "run the tests of this tier and those before it (default: whatever is named)"
    parser.addoption("--tier", choices=TIERS, help=told)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier is None:
        return
    kept, left = select(items, tier)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept

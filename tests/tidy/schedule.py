"""Which worker gets which tests: files that wait for servers beside files that compute.

A file stays in one worker, so that its tests share their servers; so do some folders, whose servers
are of a kind of their own, and all of Spark, so that one virtual machine serves it. Every second
worker takes files that mostly wait (real servers, Spark, killed processes) as long as there are
any, the others take files that compute: so neither the cores nor the waits stand idle. The longest
begin first. `make` loads it as a pytest plugin.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

# What waits, in the order in which it begins. Inside a folder files come as pytest collects them.
WAITING = ("tests/spark/", "integration/", "tests/chaos/", "tests/fuzz/")
# Of what computes: these have the longest files.
FIRST = ("tests/sim/", "tests/api/", "tests/conformance/")
# By folder, the one with which it stays in one worker.
TOGETHER = {
    "tests/spark/": "tests/spark/",
    "integration/spark/": "tests/spark/",
    "integration/interop/": "integration/interop/",
    "integration/secured/": "integration/secured/",
}


def scope_of(nodeid: str) -> str:
    """What stays in one worker."""
    for folder, scope in TOGETHER.items():
        if nodeid.startswith(folder):
            return scope
    return nodeid.partition("::")[0]


def waits(scope: str) -> bool:
    return scope.startswith(WAITING)


def rank_of(nodeid: str) -> int:
    """Smaller begins earlier."""
    scope = scope_of(nodeid)
    order = (*WAITING, *FIRST)
    return next((at for at, folder in enumerate(order) if scope.startswith(folder)), len(order))


class WaitingBesideComputing(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        takes_waiting = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        for scope in self.workqueue:
            if waits(scope) == takes_waiting:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # by number of tests says nothing of time
    return WaitingBesideComputing(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank_of(item.nodeid))

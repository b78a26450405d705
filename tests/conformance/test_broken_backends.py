"""Each check of each contract fails a backend that is broken: one that died, and one whose stores
do not come at all. A check that stays green proves nothing of any backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest

from dlog.errors import Outcome, Unavailable
from dlog.groups.view import WorkerId
from dlog.testing.conformance import leases as lease_store
from dlog.testing.conformance import ledger_appends, ledger_ends, ledger_reads, ledger_store
from dlog.testing.conformance.ledger_tools import behaviour
from dlog.testing.conformance.meta_store import CHECKS, LOSS_CHECKS


class Dead:
    """A store that answers each call in this way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: Any, **__: Any) -> NoReturn:
            raise self._error

        return call


class DeadMember:
    """Of a group. Its procedures can be made, and none of them comes to its end."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.id = WorkerId("w", "0" * 32)
        self.store = MagicMock()

    async def run(self, procedure: Any) -> NoReturn:
        raise self._error


DEATHS: dict[str, Exception] = {
    "it died": Unavailable("it died", outcome=Outcome.UNKNOWN),
    "it refuses": Unavailable("it refuses", outcome=Outcome.NOT_HAPPENED),
}
SUITES: dict[str, list[Any]] = {
    "meta": [*CHECKS, *LOSS_CHECKS],
    "ledgers": [*ledger_store.ALL.values()],
    "leases": [*lease_store.CHECKS],
}


class Bench:
    """What a check of leases gets, and what makes stores for the others."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def member(self) -> Any:
        return DeadMember(self._error)

    async def make(self) -> Any:
        return Dead(self._error)

    async def lose(self, store: Any) -> None:
        return None


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize(
    ("suite", "check"),
    [
        pytest.param(suite, each, id=f"{suite} {each.__name__}")
        for suite, checks in SUITES.items()
        for each in checks
    ],
)
async def test_a_broken_backend_fails_each_check(suite: str, check: Any, death: str) -> None:
    bench = Bench(DEATHS[death])
    given = (bench,) if suite == "leases" else (bench.make, bench.lose)
    with pytest.raises((AssertionError, Unavailable, BaseExceptionGroup)):
        await check(*given[: len(inspect.signature(check).parameters)])


@pytest.mark.parametrize("module", [ledger_appends, ledger_ends, ledger_reads])
def test_every_check_of_ledgers_is_registered(module: ModuleType) -> None:
    written = {
        name
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value) and value.__module__ == module.__name__
        if not name.startswith("_") and "make" in inspect.signature(value).parameters
    }
    assert written <= ledger_store.ALL.keys()
    assert all(ledger_store.ALL[name] is getattr(module, name) for name in written)


def test_two_checks_of_one_name_are_refused() -> None:
    check = next(iter(ledger_store.ALL.values()))
    with pytest.raises(ValueError, match="two checks have one name"):
        behaviour(check)

"""Every call of the two store contracts, and stores of which one call at a time fails.

The calls are read from the contracts themselves: a new one is a new fault, which every kind of
handle has to bear. A call that fails takes a moment first, as all calls do.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

from dlog.drive import Sessions, Stores
from dlog.errors import DlogError
from dlog.ledger.store import Appender, LedgerReader, LedgerStore
from dlog.meta.attended import AttendedMetaStore
from dlog.meta.layout import Layout
from dlog.meta.store import MetaStore, Watch
from dlog.testing.sim.loop_process import LoopProcess

FAILS_AFTER_S = 0.001

_CONTRACTS = {
    "meta": MetaStore,
    "watch": Watch,
    "ledgers": LedgerStore,
    "appender": Appender,
    "ledger": LedgerReader,
}
# Closing a store, a reader or a watch is the end of it: nothing goes on.
_ENDS = {"meta.close", "watch.__aexit__", "ledgers.close", "ledger.close"}


def _waits(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or "AsyncIterator" in str(
        inspect.signature(call).return_annotation
    )


CALLS = sorted(
    f"{room}.{name}"
    for room, contract in _CONTRACTS.items()
    for name, call in vars(contract).items()
    if inspect.isfunction(call) and f"{room}.{name}" not in _ENDS and _waits(call)
    if not name.startswith("_") or name == "__aenter__"
)


EVERY_CALL = "every call"


class Faults:
    """Of the stores of one handle: which call fails now, and how."""

    def __init__(self, pass_time: Callable[[float], Awaitable[None]]) -> None:
        self._pass_time = pass_time
        self.asked: Counter[str] = Counter()
        self.struck = 0
        self._call = ""
        self._error: Callable[[], DlogError] | None = None
        self._times: int | None = None
        self._is_done = False

    def begin(
        self,
        call: str,
        error: Callable[[], DlogError],
        times: int | None,
        *,
        is_done: bool = False,
    ) -> None:
        """From now on that one fails, or `EVERY_CALL`: so many times, or (None) until `end`. With
        `is_done` it is done, and its answer is lost."""
        self._call, self._error, self._times, self.struck = call, error, times, 0
        self._is_done = is_done

    def end(self) -> None:
        self._error = None

    async def strike(self, call: str, *, is_done: bool = False) -> None:
        self.asked[call] += not is_done
        error = self._error
        if error is None or is_done is not self._is_done:
            return
        if self._call not in (call, EVERY_CALL) or self._times == self.struck:
            return
        self.struck += 1
        await self._pass_time(FAILS_AFTER_S)
        raise error()


def stores_of(process: LoopProcess, faults: Faults) -> Stores:
    """Those of a real client of the simulated cluster, with these faults."""
    meta: Any = _Faulty(process.new_meta(), "meta", faults)
    attended = AttendedMetaStore(meta, process.clock)
    ledgers: Any = _Faulty(process.new_ledgers(attended), "ledgers", faults)
    sessions = Sessions(meta, process.new_meta)
    return Stores(attended, ledgers, Layout(), process.clock, process.chance, sessions)


def faulty(stores: Stores, faults: Faults) -> Stores:
    """These, with these faults."""
    meta: Any = _Faulty(stores.meta, "meta", faults)
    ledgers: Any = _Faulty(stores.ledgers, "ledgers", faults)
    return dataclasses.replace(stores, meta=meta, ledgers=ledgers)


class _Faulty:
    """Whatever it stands for, whose waiting calls may fail. What they return may fail as well."""

    def __init__(self, inner: Any, room: str, faults: Faults) -> None:
        self.inner = inner
        self._room = room
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        call = f"{self._room}.{name}"
        if call == "meta.watch":
            return lambda path: _Faulty(found(path), "watch", self._faults)
        if call not in CALLS:
            return found
        if "AsyncIterator" in str(inspect.signature(found).return_annotation):
            return lambda *args, **how: self._iterate(call, found(*args, **how))

        async def asked(*args: Any, **how: Any) -> Any:
            await self._faults.strike(call)
            answer = await found(*args, **how)
            await self._faults.strike(call, is_done=True)
            made = {"ledgers.create": "appender", "ledgers.open": "ledger"}.get(call)
            return answer if made is None else _Faulty(answer, made, self._faults)

        return asked

    async def _iterate(self, call: str, found: AsyncIterator[Any]) -> AsyncIterator[Any]:
        await self._faults.strike(call)
        async for each in found:
            yield each

    async def __aenter__(self) -> _Faulty:
        await self._faults.strike(f"{self._room}.__aenter__")
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)

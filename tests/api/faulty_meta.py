"""A metadata store in the hands of a test: one of its calls, or all of them for a while, goes
wrong."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from dlog import aio, backends
from dlog.errors import Outcome, Timeout, Unavailable
from tests.sim.virtual_loop import pass_time, run_virtually

CALLS = ("get", "put", "create", "delete", "children", "sync")
WRITES = ("put", "create", "delete")
SLOW_S = 3.0
NAP_S = 5.0
LONG_S = 20.0
SETTLED_S = 2.0
STEPS_MAX = 60


class FaultyMeta:
    """Counts the calls of one client, and has `fault` for those that `hits` says."""

    def __init__(self, inner: Any, fault: str, hits: Callable[[FaultyMeta, str, bool], bool]):
        self.inner = inner
        self.calls = 0
        self.hit_at: float | None = None  # on the loop's clock
        self._fault = fault
        self._hits = hits
        self._late: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        genuine = getattr(self.inner, name)
        if name not in CALLS:
            return genuine

        async def call(*args: Any, **how: Any) -> Any:
            is_hit = self._hits(self, name, bool(how.get("ephemeral")))
            self.calls += 1
            if not is_hit:
                return await genuine(*args, **how)
            if self.hit_at is None:
                self.hit_at = asyncio.get_running_loop().time()
            return await self._wrong(name, lambda: genuine(*args, **how))

        return call

    async def _wrong(self, name: str, ask: Callable[[], Any]) -> Any:
        fault = self._fault
        if fault == "nap":
            await pass_time(NAP_S)
            return await ask()
        if fault == "slow":
            answer = await ask()
            await pass_time(SLOW_S)
            return answer
        if fault == "session":
            self.inner._tree.expire(self.inner._session.id)
            return await ask()
        if fault == "reply" and name in WRITES:
            await ask()
        if fault == "late" and name in WRITES:
            self._late.add(asyncio.ensure_future(self._in_a_while(ask)))
        if fault == "refused" or name not in WRITES:
            raise Unavailable("refused by a test", outcome=Outcome.NOT_HAPPENED)
        raise Timeout("not answered, by a test")

    async def settled(self) -> None:
        """What was late has come."""
        await asyncio.gather(*self._late)

    async def _in_a_while(self, ask: Callable[[], Any]) -> None:
        await pass_time(0.3)
        await asyncio.gather(ask(), return_exceptions=True)


def once(step: int) -> Callable[[FaultyMeta, str, bool], bool]:
    return lambda meta, name, ephemeral: meta.calls == step


def long(step: int) -> Callable[[FaultyMeta, str, bool], bool]:
    """From that call on, for a long time."""

    def hits(meta: FaultyMeta, name: str, ephemeral: bool) -> bool:
        now_s = asyncio.get_running_loop().time()
        began_s = now_s if meta.hit_at is None else meta.hit_at
        return meta.calls >= step and now_s - began_s < LONG_S

    return hits


def presence(hits: Callable[[FaultyMeta, str, bool], bool]) -> Any:
    """Of the calls that make a node of a session, alone."""
    return lambda meta, name, ephemeral: ephemeral and hits(meta, name, ephemeral)


async def faulty(client: aio.Client, fault: str, hits: Any) -> FaultyMeta:
    stores: Any = await client._stores(True)
    stores.meta.inner = meta = FaultyMeta(stores.meta.inner, fault, hits)
    return meta


FAULTS = {
    "refused once": ("refused", once),
    "request lost": ("request", once),
    "reply lost": ("reply", once),
    "comes late": ("late", once),
    "answered slowly": ("slow", once),
    "session lost": ("session", once),
    "away for long": ("refused", long),
}
_worlds = itertools.count()


def in_a_world(story: Callable[[str], Awaitable[bool]]) -> bool:
    """In virtual time, with logs of its own."""
    name = f"presence-ring-{next(_worlds)}"

    async def run() -> bool:
        return await story(f"memory:{name}")

    try:
        return run_virtually(run())
    finally:
        backends._memory_worlds.pop(name, None)


def at_each_step(story: Callable[[str, int], Awaitable[bool]]) -> None:
    """`story` says whether its fault was met."""
    for step in range(STEPS_MAX):
        if not in_a_world(lambda url, step=step: story(url, step)):  # type: ignore[misc]
            assert step > 3
            return
    raise AssertionError("it never ends")

"""The program of a user on one shard, whatever form it has: a function, an object, a class or a
factory; async, or plain and then on a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dlog.errors import ConfigError
from dlog.groups.letters import error_text

RunPlain = Callable[[Callable[[], Any]], Awaitable[Any]]
_VERBS = ("initialize", "process", "shutdown")


class Program:
    """`process` and, where the user has them, `initialize` and `shutdown`, of one shard."""

    def __init__(self, made: Any, run_plain: RunPlain) -> None:
        self._made = made
        self._run_plain = run_plain
        process = _verb(made, "process")
        assert process is not None
        self.takes_tracker = _takes(process) >= 2
        self.is_async = is_async(process)

    async def initialize(self, shard: object) -> None:
        await self._call("initialize", shard)

    async def process(self, batch: object, tracker: object) -> None:
        args = (batch, tracker) if self.takes_tracker else (batch,)
        await self._call("process", *args)

    async def shutdown(self, tracker: object, reason: object) -> None:
        await self._call("shutdown", tracker, reason)

    async def _call(self, name: str, *args: object) -> None:
        verb = _verb(self._made, name)
        if verb is None:
            return
        if is_async(verb):
            await verb(*args)
            return
        found = await self._run_plain(partial(verb, *args))
        if inspect.isawaitable(found):  # a plain function that made one
            await found


def program_maker(processor: Any, run_plain: RunPlain) -> Callable[[], Program]:
    """One program for each shard where there is a class or a factory, else the same for all."""
    if isinstance(processor, type):
        if _verb(processor, "process") is None:
            raise ConfigError(f"the class {processor.__name__} has no method `process`")
        return lambda: Program(processor(), run_plain)
    if _verb(processor, "process") is None:
        raise ConfigError(
            "a processor is a function of a batch (and a tracker), an object with `process`, a "
            f"class of such, or a function without parameters that makes one; not {processor!r}"
        )
    if not hasattr(processor, "process") and _takes(processor) == 0:
        return partial(_made_by, processor, run_plain)
    return lambda: Program(processor, run_plain)


def _made_by(factory: Callable[[], Any], run_plain: RunPlain) -> Program:
    made = factory()
    if _verb(made, "process") is None:
        raise ConfigError(f"{factory!r} made {made!r}, which is no processor")
    return Program(made, run_plain)


def _verb(made: Any, name: str) -> Callable[..., Any] | None:
    """A function is its own `process`, unless it has one."""
    found = getattr(made, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if name == "process" and callable(made) and not isinstance(made, type):
        return made  # type: ignore[no-any-return]
    return None


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    called = type(function).__call__ if not inspect.isroutine(function) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _takes(function: Callable[..., Any]) -> int:
    """How many arguments it takes, by place."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C
        return 2
    count = 0
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            return 2
        count += each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    return count


class Threads:
    """For plain functions. Made when the first one is called."""

    def __init__(self, many: int) -> None:
        self._many = many
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        if self._many == 0:
            return function()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._many, thread_name_prefix="dlog-worker")
        context = contextvars.copy_context()
        call = asyncio.get_running_loop().run_in_executor(self._pool, context.run, _call, function)
        return await asyncio.shield(call)  # a thread cannot be cut short

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _call(function: Callable[[], Any]) -> Any:
    """What means something to an event loop means nothing when a thread raises it: it would end the
    loop, or never come to whoever waits."""
    try:
        return function()
    except _NOT_FOR_LOOPS as error:
        raise RuntimeError(f"the processor raised {error_text(error)}") from error


_NOT_FOR_LOOPS = (StopIteration, asyncio.CancelledError, futures.CancelledError, SystemExit)

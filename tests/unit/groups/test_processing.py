"""The forms that a program may have, and on what each is called."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.groups.processing import Threads, program_maker

CALLS: list[tuple[Any, ...]] = []


def one(batch: Any) -> None:
    CALLS.append(("one", batch, threading.current_thread().name))


def two(batch: Any, tracker: Any) -> None:
    CALLS.append(("two", batch, tracker))


async def two_async(batch: Any, tracker: Any) -> None:
    CALLS.append(("two_async", batch, tracker))


class Full:
    def initialize(self, shard: Any) -> None:
        CALLS.append(("initialize", shard))

    async def process(self, batch: Any, tracker: Any) -> None:
        CALLS.append(("process", batch, tracker))

    def shutdown(self, tracker: Any, reason: Any) -> None:
        CALLS.append(("shutdown", tracker, reason))


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


async def test_a_function_of_one_and_of_two() -> None:
    """LH-04, LH-61: whoever takes a tracker takes checkpoints by it."""
    threads = Threads(1)
    for function, takes, is_async in (
        (one, False, False),
        (two, True, False),
        (two_async, True, True),
        (partial(two_async), True, True),
        (lambda *args: two(*args), True, False),
    ):
        program = program_maker(function, threads.run)()
        assert (program.takes_tracker, program.is_async) == (takes, is_async)
        await program.initialize("shard")
        await program.process("batch", "tracker")
        await program.shutdown("tracker", "reason")
    assert [each[:2] for each in CALLS] == [
        ("one", "batch"),
        *[("two", "batch")],
        *[("two_async", "batch")] * 2,
        ("two", "batch"),
    ]
    assert CALLS[0][2].startswith("dlog-worker")
    threads.close()


async def test_an_object_is_shared_and_a_class_is_not() -> None:
    threads = Threads(0)
    shared = program_maker(Full(), threads.run)
    made = program_maker(Full, threads.run)
    by_factory = program_maker(lambda: Full(), threads.run)
    assert shared()._made is shared()._made
    assert made()._made is not made()._made
    assert by_factory()._made is not by_factory()._made
    program = made()
    await program.initialize("shard")
    await program.process("batch", "tracker")
    await program.shutdown("tracker", "reason")
    assert [each[0] for each in CALLS] == ["initialize", "process", "shutdown"]


@pytest.mark.parametrize("wrong", [7, "x", object(), int, None])
def test_what_is_no_processor_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        program_maker(wrong, Threads(0).run)


def test_a_factory_of_nonsense_is_refused_when_it_is_called() -> None:
    with pytest.raises(ConfigError, match="no processor"):
        program_maker(lambda: 7, Threads(0).run)()


async def test_a_plain_function_that_makes_something_to_wait_for_is_waited_for() -> None:
    threads = Threads(0)
    program = program_maker(lambda batch, tracker: two_async(batch, tracker), threads.run)()
    assert (program.is_async, program.takes_tracker) == (False, True)
    await program.process("batch", "tracker")
    assert CALLS == [("two_async", "batch", "tracker")]


class Called:
    async def __call__(self, batch: Any) -> None:
        CALLS.append(("called", batch))


def none() -> Any:
    return Called()


def by_keyword(batch: Any, *, tracker: Any = None) -> None:
    CALLS.append(("by keyword", batch, tracker))


@pytest.mark.parametrize(
    ("processor", "takes", "is_async", "called"),
    [
        (Called(), False, True, ("called", "batch")),
        (partial(Called()), False, True, ("called", "batch")),
        (none, False, True, ("called", "batch")),
        (by_keyword, False, False, ("by keyword", "batch", None)),
        (partial(two, tracker="bound"), False, False, ("two", "batch", "bound")),
        (Full().process, True, True, ("process", "batch", "tracker")),
    ],
)
async def test_each_form_is_called_with_what_it_takes(
    processor: Any, takes: bool, is_async: bool, called: tuple[Any, ...]
) -> None:
    program = program_maker(processor, Threads(0).run)()
    assert (program.takes_tracker, program.is_async) == (takes, is_async)
    await program.initialize("shard")
    await program.process("batch", "tracker")
    await program.shutdown("tracker", "reason")
    assert CALLS == [called]


def test_a_class_without_process_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="class int has no method `process`"):
        program_maker(int, Threads(0).run)


@pytest.mark.parametrize(
    "error", [StopIteration(), asyncio.CancelledError(), SystemExit(3), ValueError("mine")]
)
async def test_what_a_thread_raises_cannot_end_the_loop(error: BaseException) -> None:
    """What means something to a loop comes as an error of the program's; all else as it is."""
    threads = Threads(1)

    def fails() -> None:
        raise error

    with pytest.raises(Exception) as told:
        await threads.run(fails)
    if isinstance(error, ValueError):
        assert told.value is error
    else:
        assert isinstance(told.value, RuntimeError)
        assert type(error).__name__ in str(told.value)
    threads.close()
    Threads(1).close()

"""The forms that a program may have, and on what each is called."""

from __future__ import annotations

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

"""When a signal raises: where it arrives, behind a step, or when the step takes too long."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dlog.cli import interrupts
from dlog.cli.interrupts import SIGNALS, Interrupted, Interrupts
from tests.unit.cli.conftest import ANSWER_S


@pytest.fixture
def taken() -> Iterator[Interrupts]:
    before = [signal.getsignal(each) for each in (*SIGNALS, signal.SIGALRM)]
    made = Interrupts()
    with made.taken(for_good=False):
        yield made
    assert [signal.getsignal(each) for each in (*SIGNALS, signal.SIGALRM)] == before


@contextmanager
def _interrupted(taken: Interrupts) -> Iterator[None]:
    """A block that a signal interrupts."""
    try:
        with taken.raising():
            yield
    except Interrupted:
        return
    pytest.fail("no signal was raised")


def _send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_it_raises_where_it_arrives(taken: Interrupts, number: int) -> None:
    with _interrupted(taken):
        _send(number)
        pytest.fail("it went on")
    assert taken.code == 128 + number
    assert taken.told == "nothing was changed"


def test_what_arrives_too_early_or_too_late_is_counted(taken: Interrupts) -> None:
    _send()
    assert taken.arrived == [signal.SIGTERM]
    with pytest.raises(Interrupted), taken.raising():
        pytest.fail("it arrived before")
    _send()
    assert taken.code == 143


def test_a_step_comes_to_its_end(taken: Interrupts) -> None:
    ended = []
    with _interrupted(taken):
        with taken.step():
            _send()
            taken.check()
            ended.append("the step")
        ended.append("what follows")
    assert ended == ["the step"]
    assert taken.told == "what was told is done"


def test_a_second_signal_cuts_a_step_short(taken: Interrupts) -> None:
    with _interrupted(taken), taken.step():
        _send()
        _send(signal.SIGINT)
        pytest.fail("it went on")
    assert taken.code == 143
    assert "may or may not" in taken.told


def test_a_step_that_takes_too_long_is_cut_short(
    taken: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "STEP_S", 0.01)
    with _interrupted(taken), taken.step():
        _send()
        threading.Event().wait(ANSWER_S)
        pytest.fail("it went on")
    assert "may or may not" in taken.told


def test_lines_that_belong_together_are_not_parted(taken: Interrupts) -> None:
    done = []
    with _interrupted(taken):
        with taken.held():
            _send()
            done.append("held")
        taken.check()
    assert done == ["held"]


def test_no_other_thread_is_interrupted(taken: Interrupts) -> None:
    with taken.raising():
        with taken.held():
            _send()
            raised: list[BaseException] = []

            def check() -> None:
                try:
                    taken.check()
                except BaseException as error:
                    raised.append(error)

            thread = threading.Thread(target=check)
            thread.start()
            thread.join(ANSWER_S)
        with pytest.raises(Interrupted):
            taken.check()
    assert raised == []


def test_a_loop_is_cancelled_and_ends_first(taken: Interrupts) -> None:
    import asyncio

    ended = []

    async def work() -> None:
        try:
            _send()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    with _interrupted(taken):
        taken.run(work())
    assert ended == ["cleaned up"]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        made = Interrupts()
        with made.taken(for_good=False), made.raising():
            _send(signal.SIGHUP)
        assert made.arrived == []
    finally:
        signal.signal(signal.SIGHUP, before)

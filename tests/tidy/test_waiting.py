"""What tests wait with, and what looks at them, can fail: a fact that never comes, a question that
nobody asked, a gate that nothing reaches, a thread and a logger that a module leaves."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dlog import trace
from dlog.errors import DlogError, Handle, Retry, Unavailable
from tests import leftovers, pace
from tests.api.waiting import eventually, held_at, until
from tests.handles import test_go_on
from tests.handles.faults import Faults
from tests.handles.lives import Life
from tests.handles.table import Does


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "slowness", lambda: 1.0)


async def test_what_never_happens_fails() -> None:
    with pytest.raises(AssertionError, match="the door is shut"):
        await eventually(lambda: False, lambda: "the door is shut", deadline_s=0)

    async def never() -> bool:
        return False

    with pytest.raises(AssertionError, match="it did not happen"):
        await until(never, deadline_s=0)


async def test_a_question_that_is_not_asked_is_no_fact() -> None:
    """A coroutine is true, whatever it would have said."""

    async def never() -> bool:
        return False

    asked = never()
    with pytest.raises(AssertionError, match="true before it is asked"):
        await eventually(lambda: asked)
    asked.close()


@pytest.mark.parametrize(("point", "side"), [("ledger.sinked", "before"), ("ledger.synced", "at")])
def test_a_gate_that_nothing_reaches_is_refused(point: str, side: str) -> None:
    with pytest.raises(AssertionError), held_at(point, side):
        pass


def test_a_gate_that_is_never_opened_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.api.waiting.waited", lambda wait, seconds: wait(0))
    assert "ledger.synced" in trace.KNOWN_POINTS
    with held_at("ledger.synced") as gate, pytest.raises(AssertionError, match="never opened"):
        gate.pass_through()
    assert gate.reached.is_set()


def test_a_module_that_leaves_a_logger_fails() -> None:
    logger, handler = logging.getLogger("dlog"), logging.NullHandler()
    with pytest.raises(AssertionError, match="left the logger 'dlog'"), leftovers.logging_kept():
        logger.addHandler(handler)
    logger.removeHandler(handler)
    with leftovers.logging_kept():
        pass


def test_a_module_that_leaves_a_thread_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "left_over", lambda before: ["thread 'left'"])
    with pytest.raises(AssertionError, match="left threads behind:\nthread 'left'"):
        with leftovers.threads_ended():
            pass


# --- the judges of handles


def test_what_comes_twice_or_out_of_order_fails() -> None:
    life: Any = Life.__new__(Life)
    for given in ([b"1"], [b"0", b"0"], [b"0", b"1", b"2"]):
        life.owed = [b"0", b"1"]
        with pytest.raises(AssertionError, match="each message once, in order"):
            life.given(given)
    assert not life.is_well


USABLE = Unavailable("it is away")
TOLD: dict[str, tuple[list[DlogError], Does, int | None]] = {
    "an error where it waits": ([USABLE], Does.WAITS, None),
    "an error where it is spared": ([USABLE], Does.IS_SPARED, None),
    "two errors for one": ([USABLE, USABLE], Does.RAISES, 1),
    "a dead handle": ([Unavailable("it is away", handle=Handle.DEAD)], Does.RAISES, None),
    "no retry": ([Unavailable("it is away", retry=Retry.NEVER)], Does.RAISES, None),
}


@pytest.mark.parametrize("what", TOLD)
def test_an_error_that_the_table_does_not_allow_fails(what: str) -> None:
    with pytest.raises(AssertionError):
        test_go_on._check_told(*TOLD[what])
    test_go_on._check_told([USABLE], Does.RAISES, 1)


async def test_a_handle_that_waits_without_a_reason_fails() -> None:
    life: Any = Life.__new__(Life)
    life.owed, life.why = [b"0"], lambda: None
    says = test_go_on._Says(life)
    says._since_s -= 1.0
    with pytest.raises(AssertionError, match="has a reason"):
        says.check()


async def test_a_handle_that_does_not_go_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_go_on, "GOES_ON_S", 0.0)
    life: Any = Life.__new__(Life)
    life.owed, life.why = [b"0"], lambda: None
    with pytest.raises(AssertionError, match="it goes on within"):
        await test_go_on._until_well(life)


async def test_a_call_that_is_to_fail_fails_so_many_times() -> None:
    async def pass_time(seconds: float) -> None:
        pass

    faults = Faults(pass_time)
    faults.begin("meta.get", lambda: USABLE, 1)
    with pytest.raises(Unavailable):
        await faults.strike("meta.get")
    await faults.strike("meta.get")
    assert (faults.struck, faults.asked["meta.get"]) == (1, 2)

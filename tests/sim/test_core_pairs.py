"""Each input that an appender's core may get in each of its states, one by one, also those that
histories meet once in a million: nothing raises, nothing is confirmed that was not, and unless the
input ends the appender, the story comes to its good end afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import Conflict, DlogError, Fenced, Retry, Unavailable
from dlog.ledger.bookkeeper.core.append_effects import Change, Connect, Look, WriteLac
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.testing.sim import coverage
from dlog.testing.sim.coverage import Pair, Table, watching
from dlog.testing.sim.impossible import why_impossible
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import LedgerState
from tests.unit.ledger.bookkeeper.appender_tools import Bench, PaperLink, metadata_on

LAST = 3
ANSWERS = {
    "acks": Answer.OK,
    "busy": Answer.BUSY,
    "refusal": Answer.IO_FAILED,
    "fatal refusal": Answer.FENCED,
    "LAC written": Answer.OK,
    "LAC lost": Answer.TIMED_OUT,
    "LAC refused": Answer.READ_ONLY,
}
ENDS_IT = ("fatal refusal",)


def possible(table: Table) -> list[Pair]:
    return [pair for pair in table.pairs() if why_impossible(*pair) is None]


# --- the places


def begun(*, published: bool = False, birth: bool = False) -> Bench:
    """Entry 0 is confirmed by all, three more are on their way to a, b and c."""
    bench = Bench(spares=("d", "e", "f", "g"))
    if birth:
        bench.core.begin_birth()
    bench.put(1)
    bench.pump()
    if not birth:
        for bookie in "abc":
            bench.ack(bookie, 0)
    if published:
        bench.core.publish()
        for effect in bench.effects(WriteLac):
            bench.core.on_lac_written(effect.slot, effect.last_entry, Answer.OK)
    bench.put(LAST)
    bench.pump()
    return bench


def at_place(state: str) -> tuple[Bench, Slot, Any]:
    """A bench whose slot is in this state, and a link to speak of."""
    bench = begun(published=state == "preparing")
    link: Any
    if state == "live":
        slot = bench.slot("a")
        return bench, slot, slot.link
    if state == "vacant":
        bench.spares.clear()
        bench.down("a")
        return bench, bench.core.slots[0], PaperLink("a")
    if state == "ready":
        bench.down("b")
        bench.link(bench.effect(Connect).slot)  # whose change is under way
    former, link = bench.slot("a"), bench.slot("a").link
    bench.down("a")
    slot = bench.effect(Connect).slot
    if state == "gone":
        return bench, former, link
    if state != "connecting":
        link = bench.link(slot)
    return bench, slot, link


def say(bench: Bench, slot: Slot, link: Any, said: str) -> None:
    core: Any = bench.core
    if said == "link":
        core.on_link(slot, PaperLink(slot.bookie_id), is_proven=True)
    elif said == "no link":
        core.on_no_link(slot)
    elif said == "down":
        core.on_down(link, Answer.DISCONNECTED)
    elif said.startswith("LAC"):
        bench.effects(WriteLac)  # which is what this answers
        core.on_lac_written(slot, 0, ANSWERS[said])
    else:
        core.on_adds(link, ANSWERS[said], [1])


def well(bench: Bench) -> None:
    """Every bookie that is wanted is there, and answers; metadata is stored. For as long as the
    appender wants anything."""
    core: Any = bench.core
    bench.spares += ["x", "y", "z"]
    for _ in range(600):
        for effect in bench.effects():
            if isinstance(effect, Connect):
                if core.places.is_current(effect.slot) and effect.slot.state is State.CONNECTING:
                    bench.link(effect.slot, is_proven=True)
            elif isinstance(effect, WriteLac):
                core.on_lac_written(effect.slot, effect.last_entry, Answer.OK)
            elif isinstance(effect, Change):
                bench.changed(effect)
            elif isinstance(effect, Look):
                core.on_looked(bench.metadata)
        bench.pump()
        for slot in core.slots:
            if slot.state is State.LIVE and slot.next_to_send - 1 > slot.acked_to:
                core.on_adds(
                    slot.link, Answer.OK, list(range(slot.acked_to + 1, slot.next_to_send))
                )
        core.on_tick(25.0)


PLACE_PAIRS = possible(coverage.TABLES[0])


@pytest.mark.parametrize(
    ("state", "said"), [(pair.state, pair.said) for pair in PLACE_PAIRS], ids=str
)
def test_a_place_hears_anything_at_any_time(state: str, said: str) -> None:
    phase, place = state.split(", ")
    # A stop and a failure leave places: what stands in them before may be anything.
    bench, slot, link = at_place("preparing" if phase != "open" and place == "vacant" else place)
    if phase == "stopped":
        bench.core.stop()
    elif phase == "failed":
        bench.core.fail(Unavailable("the end of it"))
    failure, confirmed = bench.core.failure, bench.confirmed
    with watching() as seen:
        say(bench, slot, link, said)
    assert seen[Pair("appender's place", state, said)] == 1
    assert bench.confirmed == confirmed, "one bookie alone confirms nothing"
    if phase == "open" and place == "live" and said in ENDS_IT:
        assert bench.core.failure is not None
    else:
        assert bench.core.failure is failure
        if phase == "open":
            well(bench)
            assert bench.confirmed == LAST
            assert bench.core.degraded == []


# --- the whole


def at_phase(state: str) -> Bench:
    phase, _, changing = state.partition(", ")
    bench = begun(birth=phase == "being born")
    if changing:
        bench.down("a")
        bench.link(bench.effect(Connect).slot)
        assert any(isinstance(effect, Change) for effect in bench.core.effects)
    if phase == "stopped":
        bench.core.stop()
    elif phase == "failed":
        bench.core.fail(Unavailable("the end of it"))
    return bench


def _rewritten(bench: Bench) -> Any:
    change = bench.core.places.change
    bench.core.on_changed(metadata_on("d", "b", "c") if change is not None else bench.metadata)


FOR_NOW: DlogError = Conflict("another version")
FOR_GOOD: DlogError = Unavailable("no such thing", retry=Retry.NEVER)

INPUTS: dict[str, Callable[[Bench], Any]] = {
    "put": lambda bench: bench.put(),
    "publish": lambda bench: bench.core.publish(),
    "changed": _rewritten,
    "not changed for now": lambda bench: bench.core.on_not_changed(FOR_NOW),
    "not changed for good": lambda bench: bench.core.on_not_changed(FOR_GOOD),
    "looked": lambda bench: bench.core.on_looked(bench.metadata),
    "not looked for now": lambda bench: bench.core.on_not_looked(FOR_NOW),
    "not looked for good": lambda bench: bench.core.on_not_looked(FOR_GOOD),
    "tick": lambda bench: bench.core.on_tick(25.0),
    "stop": lambda bench: bench.core.stop(),
}


@pytest.mark.parametrize(
    ("state", "said"),
    [(pair.state, pair.said) for pair in possible(coverage.TABLES[1])],
    ids=str,
)
def test_an_appender_hears_anything_at_any_time(state: str, said: str) -> None:
    bench = at_phase(state)
    confirmed = bench.confirmed
    failure = bench.core.failure
    if "changed" in said:
        bench.effects(Change)  # which is what this answers
    with watching() as seen:
        INPUTS[said](bench)
    assert seen[Pair("appender", state, said)] == 1
    assert bench.confirmed == confirmed
    is_over = state in ("stopped", "failed")
    if said.endswith("for good") and not is_over:
        assert bench.core.failure is not None
    else:
        assert bench.core.failure is failure
    if not is_over and bench.core.failure is None and said != "stop":
        if said == "changed":
            bench.metadata = metadata_on("d", "b", "c")
        well(bench)
        assert bench.confirmed >= LAST
        assert bench.core.degraded == []


def test_an_end_that_somebody_else_made_is_the_end() -> None:
    for state in ("open", "being born"):
        bench = at_phase(state)
        ended = dataclasses.replace(bench.metadata, state=LedgerState.IN_RECOVERY)
        bench.core.on_looked(ended)
        assert isinstance(bench.core.failure, Fenced)

"""`StandbyCore` effect by effect: what it keeps ready, what it deletes, lets go of and never
touches, and what it looks at. And every move of the ledger that is ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dlog.effects import (
    BirthLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    Effect,
    LetGo,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
    WaitNode,
)
from dlog.errors import (
    AlreadyExists,
    Broken,
    Conflict,
    DlogError,
    Fenced,
    NotFound,
    Unavailable,
)
from dlog.meta.layout import Layout
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.store import Versioned
from dlog.options import LogOptions
from dlog.standby.core import LOOK_MS, Post, StandbyCore
from dlog.writer.ready import ReadyLedger, ReadyState
from tests.unit.writer.test_core import Even

META = LogMeta("uid", LogOptions()).claimed(WriterMark("other", "o", 0)).listed(3)
ROTATED = META.listed(8)
MINE = 5


def node(meta: LogMeta, version: int) -> Versioned:
    return Versioned(meta.to_bytes(), version)


def play(
    asking: Procedure[Any], answers: Iterable[object], *, birth: DlogError | None = None
) -> tuple[Any, list[Effect]]:
    """What it came to, and what it asked; births, deletions and pauses answer by themselves."""
    asked: list[Effect] = []
    left = iter(answers)
    answer: object = None
    try:
        while True:
            if isinstance(answer, DlogError):
                effect = asking.throw(answer)
            else:
                effect = asking.send(answer)
            asked.append(effect)
            if isinstance(effect, BirthLedger):
                answer = birth
            else:
                by_itself = isinstance(effect, (DeleteLedger, LetGo, Pause))
                answer = None if by_itself else next(left)
    except StopIteration as stop:
        return stop.value, asked


def kinds(asked: list[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in asked]


def standing(*, meta: LogMeta = META) -> StandbyCore:
    core = StandbyCore(Post("log", Layout(), "token", lambda: 7, Even()))
    play(core.begin(None, "new"), [node(meta, 1), MINE])
    assert core.is_ready
    return core


def brought(core: StandbyCore) -> ReadyLedger:
    """To a takeover, which is over again."""
    core.taking_over = True
    ready = core.brings().ready
    core.taking_over = False
    return ready


def held(state: ReadyState) -> ReadyLedger:
    """A ledger in this state, by the moves that lead there."""
    ready = ReadyLedger()
    if state is not ReadyState.NONE:
        ready.made(MINE, META)
    if state not in (ReadyState.NONE, ReadyState.READY):
        assert ready.take(META) == MINE
    if state in (ReadyState.OFFERED, ReadyState.GIVEN):
        ready.offered()
    if state is ReadyState.GIVEN:
        ready.given()
    assert ready.state is state
    return ready


# --- the ready ledger


@pytest.mark.parametrize("state", list(ReadyState))
def test_only_a_ready_ledger_is_taken_and_only_for_its_log(state: ReadyState) -> None:
    ready = held(state)
    for other in (META.listed(MINE), LogMeta("another", LogOptions())):
        assert ready.take(other) is None
    taken = ready.take(META)
    assert taken == (MINE if state is ReadyState.READY else None)
    assert ready.state is (ReadyState.TAKEN if taken is not None else state)


@pytest.mark.parametrize("state", list(ReadyState))
def test_what_was_not_offered_is_put_back(state: ReadyState) -> None:
    ready = held(state)
    ready.put_back()
    assert ready.state is (ReadyState.READY if state is ReadyState.TAKEN else state)


@pytest.mark.parametrize("state", list(ReadyState))
def test_only_what_nobody_took_may_be_deleted(state: ReadyState) -> None:
    ready = held(state)
    assert ready.let_go() == (MINE if state is ReadyState.READY else None)
    assert ready.state is ReadyState.NONE
    assert ready.ledger_id is None


def test_what_was_refused_is_as_good_as_before() -> None:
    ready = held(ReadyState.OFFERED)
    ready.refused()
    assert ready.take(META) == MINE


@pytest.mark.parametrize(
    ("move", "lawful"),
    [
        (lambda ready: ready.made(9, META), ReadyState.NONE),
        (ReadyLedger.offered, ReadyState.TAKEN),
        (ReadyLedger.refused, ReadyState.OFFERED),
    ],
)
@pytest.mark.parametrize("state", list(ReadyState))
def test_other_moves_are_refused(
    move: Callable[[ReadyLedger], None], lawful: ReadyState, state: ReadyState
) -> None:
    if state is lawful:
        move(held(state))
        return
    with pytest.raises(Broken):
        move(held(state))


# --- the beginning


def beginning() -> StandbyCore:
    return StandbyCore(Post("log", Layout(), "token", lambda: 7, Even()))


GONE = NotFound("no node")
FRESH = LogMeta("new", LogOptions())
DELETED = dataclasses.replace(META, state=LogState.DELETED)


def test_a_log_that_is_not_there_is_made_only_where_that_is_wanted() -> None:
    with pytest.raises(NotFound, match="no log 'log'"):
        play(beginning().begin(None, "new"), [GONE])
    core = beginning()
    _, asked = play(core.begin(LogOptions(), "new"), [GONE, GONE, 0, node(FRESH, 1), 4])
    assert kinds(asked) == [
        *(ReadNode, ReadNode, CreateNode, Pause, ReadNode),
        *(CreateLedger, BirthLedger),
    ]
    (made,) = [each for each in asked if isinstance(each, CreateNode)]
    assert (made.path, LogMeta.from_bytes(made.value, where="x")) == (Layout().log("log"), FRESH)
    assert core.is_ready


def test_a_log_that_was_deleted_is_born_again() -> None:
    """At the version that was read, with all that its ids were counted up to."""
    core = beginning()
    answers = [node(DELETED, 6), node(DELETED, 6), 7, node(FRESH, 7), 4]
    _, asked = play(core.begin(LogOptions(), "new"), answers)
    (reborn,) = [each for each in asked if isinstance(each, ReplaceNode)]
    assert reborn.version == 6
    assert LogMeta.from_bytes(reborn.value, where="x") == DELETED.reborn("new", LogOptions())


@pytest.mark.parametrize("refusal", [AlreadyExists("one"), Conflict("changed"), GONE])
def test_a_log_that_somebody_else_makes_meanwhile_is_taken_as_it_is(refusal: DlogError) -> None:
    core = beginning()
    play(core.begin(LogOptions(), "new"), [GONE, GONE, refusal, node(META, 1), 4])
    assert core.meta == META


def test_a_log_that_others_make_and_remove_all_the_time_is_given_up() -> None:
    core = beginning()
    with pytest.raises(NotFound):
        play(core.begin(LogOptions(), "new"), [GONE, GONE, AlreadyExists("one")] * 10 + [GONE])


# --- standing by


def test_it_stands_by_until_it_is_told_to_stop_or_the_log_is_gone() -> None:
    core = standing()
    answers = [True, node(ROTATED, 2), 9, True, node(ROTATED, 2), False, node(META, 1), True, GONE]
    procedure = core.stand_by()
    with pytest.raises(NotFound):
        play(procedure, answers)
    assert core.ready.ledger_id == 9


def test_it_stands_by_while_metadata_is_away() -> None:
    """And waits longer from try to try, until a look is through."""
    core, away = standing(), Unavailable("metadata is away")
    waits: list[float] = []
    procedure = core.stand_by()
    answers = iter([away, away, away, True, node(META, 1), away, GONE])
    effect, answer = next(procedure), None
    with pytest.raises(NotFound):  # noqa: PT012 - a conversation
        while True:
            if isinstance(effect, Pause):
                waits.append(effect.seconds)
                answer = None
            else:
                answer = next(answers)
            is_error = isinstance(answer, DlogError)
            effect = procedure.throw(answer) if is_error else procedure.send(answer)
            if isinstance(answer, NotFound):
                break
    assert len(waits) == 4
    assert waits[0] < waits[1] < waits[2]
    assert waits[3] == waits[0], "begun anew behind a look that was through"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_is_told_to_stop_makes_nothing_more(steps: int) -> None:
    """Before the wait, during it, and during the look."""
    core = standing()
    procedure = core.stand_by()
    asked: list[Effect] = []
    answers: list[Any] = [True, node(ROTATED, 2)]
    with pytest.raises(StopIteration):  # noqa: PT012 - a conversation
        for number in range(3):
            core.stopped = number == steps
            answer = None if number == 0 else answers[number - 1]
            asked.append(procedure.send(answer))
    assert kinds(asked) == [WaitNode, ReadNode][:steps]
    assert core.ready.ledger_id == MINE


def test_what_fell_below_the_floor_is_deleted_and_replaced() -> None:
    core = standing()
    play(core.look(), [node(ROTATED, 2)])
    assert not core.is_ready
    _, asked = play(core.prepare(), [9])
    assert kinds(asked) == [DeleteLedger, CreateLedger, BirthLedger]
    assert core.ready.ledger_id == 9
    assert core.is_ready


def test_what_failed_is_replaced_also_below_the_floor() -> None:
    for meta in (META, ROTATED):
        core = standing()
        play(core.look(), [node(meta, 2)])
        core.on_failed(Fenced("by a stranger"))
        assert not core.is_ready
        assert brought(core).take(META) is None, "what failed is not brought along"
        _, asked = play(core.prepare(), [9])
        assert kinds(asked) == [DeleteLedger, CreateLedger, BirthLedger]
        assert core.is_ready


def test_what_was_offered_is_let_go_and_never_deleted() -> None:
    core = standing()
    brought(core).take(META)
    core.ready.offered()
    _, asked = play(core.prepare(), [9])
    assert kinds(asked) == [LetGo, CreateLedger, BirthLedger]
    brought(core).take(META)
    core.ready.offered()
    assert kinds(play(core.leave(), [])[1]) == [LetGo]


def test_what_was_given_is_the_writers() -> None:
    core = standing()
    brought(core).take(META)
    core.ready.offered()
    core.ready.given()
    assert kinds(play(core.leave(), [])[1]) == []


def test_nothing_is_replaced_while_a_takeover_has_it() -> None:
    core = standing()
    core.taking_over = True
    core.brings().ready.take(META)
    core.on_failed(Fenced("by a stranger"))
    play(core.look(), [node(ROTATED, 2)])
    with pytest.raises(Broken):
        play(core.prepare(), [])


def test_of_two_looks_the_newer_counts() -> None:
    core = standing()
    play(core.look(), [node(ROTATED, 5)])
    play(core.look(), [node(META, 4)])
    assert core.seen is not None
    assert core.seen.version == 5
    assert core.meta.ledger_floor == 8


def test_a_vacancy_is_waited_for_while_metadata_is_away() -> None:
    core, away = standing(), Unavailable("metadata is away")
    _, asked = play(
        core.until_vacant(),
        [away, node(META, 1), Versioned(b"", 1), True, node(META, 1), away, away, node(META, 1),
         NotFound("gone")],
    )  # fmt: skip
    assert kinds(asked) == [
        *(ReadNode, Pause),
        *(ReadNode, ReadNode, WaitNode),
        *(ReadNode, ReadNode, Pause),
        *(ReadNode, Pause),
        *(ReadNode, ReadNode),
    ]
    wait = asked[4]
    assert isinstance(wait, WaitNode)
    assert wait == WaitNode(Layout().presence("log", "other"), LOOK_MS)


def test_a_log_that_is_gone_is_no_vacancy() -> None:
    core = standing()
    with pytest.raises(NotFound):
        play(core.until_vacant(), [node(LogMeta("another", LogOptions()), 1)])


def test_a_stranger_that_ends_newborn_ledgers_costs_others_and_is_named_at_last() -> None:
    core = StandbyCore(Post("log", Layout(), "token", lambda: 7, Even()))
    stranger = Fenced("bookie b1 says 'fenced'")
    beginning = core.begin(None, "new")
    with pytest.raises(Unavailable, match=r"before they are born: bookie b1 says 'fenced'"):
        play(beginning, [node(META, 1), 5, 6, 7], birth=stranger)
    assert core.ready.state is ReadyState.NONE


def test_it_looks_and_hears_of_failures_while_it_takes_over() -> None:
    """What was under way when it was told to stop comes to its end."""
    core = standing()
    core.taking_over = True
    brought = core.brings()
    play(core.look(), [node(ROTATED, 2)])
    core.on_failed(Fenced("by a stranger"))
    assert brought.seen.version == 1
    assert core.failed is not None
    assert brought.ready.take(META) == MINE, "healing replaces it, where it was listed"

"""Each change that a writer makes to the list of its log, under each fate of its request: it is
made once, or the writer is told who has the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from dlog.effects import (
    CloseLedger,
    DeleteLedger,
    Drained,
    Effect,
    Pause,
    Procedure,
    ReadNode,
    Release,
    ReplaceNode,
    SubmitEntry,
)
from dlog.errors import Conflict, DlogError, Fenced, Outcome, Timeout, Winner
from dlog.ledger.store import ClosedLedger
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import End, WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.store import Versioned
from dlog.options import LogOptions, WriterOptions
from dlog.writer.batch import Batch
from dlog.writer.core import Identity, WriterCore, WriterState
from dlog.writer.rotation import (
    Ending,
    allow_numbers,
    close,
    list_spare,
    named,
    tell_list,
    tell_options,
)
from dlog.writer.segments import SEAM_ENTRY
from dlog.writer.takeover import Opened

FIRST, SPARE = 5, 9
RIVAL = WriterMark("rival", "grace", 70)
WANTED = LogOptions(segment_age_s=77)


class Even:
    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "token"


class Scene:
    """A writer with one message in ledger 5, and the node of its log."""

    def __init__(self) -> None:
        meta = LogMeta("uid", LogOptions()).claimed(WriterMark("token", "ada", 0)).listed(FIRST)
        identity = Identity("log", "token", Layout(), lambda: 1000, lambda: 0.0, Even())
        opened = Opened(Seen(meta, 1), 1, FIRST, End())
        self.core = WriterCore(identity, opened, WriterOptions())
        self.core.current.last_pushed = SEAM_ENTRY
        self.core.push(Batch([b"a"], 1))
        self.meta, self.version = meta, 1
        self.replaced = 0
        self.deleted: list[int] = []
        self.submitted = 0

    def store(self, meta: LogMeta) -> None:
        self.meta, self.version = meta, self.version + 1

    def perform(self, effect: Effect, fate: str) -> Any:
        match effect:
            case ReadNode():
                return Versioned(self.meta.to_bytes(), self.version)
            case ReplaceNode(value=value, version=version):
                return self._replace(LogMeta.from_bytes(value, where=""), version, fate)
            case CloseLedger():
                return ClosedLedger(self.core.current.last_pushed, 100)
            case DeleteLedger(ledger_id=ledger_id):
                self.deleted.append(ledger_id)
            case SubmitEntry():
                self.submitted += 1
            case Drained() | Pause() | Release():
                pass
            case _:
                raise AssertionError(effect)
        return None

    def _replace(self, meta: LogMeta, version: int, fate: str) -> int:
        self.replaced += 1
        assert self.replaced < 5, "the same is tried again and again"
        if self.replaced == 1:
            if fate == "lost":
                raise Timeout("no reply", outcome=Outcome.UNKNOWN)
            if fate.startswith("done"):
                assert version == self.version
                self.store(meta)
                if "another writer" in fate and meta.state is LogState.OPEN:
                    self.store(meta.claimed(RIVAL))
                if fate.endswith("that left"):
                    self.store(self.meta.handed_over(None))
                if fate != "done":
                    raise Timeout("no reply", outcome=Outcome.UNKNOWN)
                return self.version
            if fate == "another writer":
                self.store(self.meta.claimed(RIVAL))
            if fate == "another change":
                self.store(self.meta.held())
        if version != self.version:
            raise Conflict("another version", outcome=Outcome.NOT_HAPPENED)
        self.store(meta)
        return self.version

    def run(self, procedure: Procedure[Any], fate: str) -> Any:
        answer: Any = None
        error: DlogError | None = None
        try:
            while True:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
                answer, error = None, None
                try:
                    answer = self.perform(effect, fate)
                except DlogError as refused:
                    error = refused
        except StopIteration as stop:
            return stop.value


def _list(scene: Scene) -> Procedure[Any]:
    core = scene.core
    core.spare = SPARE
    core.on_closed(core.current, ClosedLedger(2, 100))
    return list_spare(scene.core, "rotate.listed")


def _tell(scene: Scene) -> Procedure[Any]:
    core = scene.core
    core.seen = Seen(core.seen.meta.listed(SPARE), 1)
    scene.meta = core.seen.meta
    core.add_pipe(2, SPARE, 1, (FIRST, 2))
    core.on_closed(core.pipes[0], ClosedLedger(2, 100))
    return tell_list(core, "heal.listed")


def _options(scene: Scene) -> Procedure[Any]:
    scene.core.options_wanted = WANTED
    return tell_options(scene.core)


def _numbers(scene: Scene) -> Procedure[Any]:
    return allow_numbers(scene.core)


def _close(scene: Scene) -> Procedure[Any]:
    return close(scene.core)


def _hand_over(scene: Scene) -> Procedure[Any]:
    return close(scene.core, Ending.HAND_OVER, hand_over_to="joan")


def _terminate(scene: Scene) -> Procedure[Any]:
    return close(scene.core, Ending.TERMINATE)


CHANGES: dict[
    str, tuple[Callable[[Scene], Procedure[Any]], Callable[[LogMeta], object], object]
] = {
    "list": (_list, lambda m: [s.ledger_id for s in m.segments], [FIRST, SPARE]),
    "tell the list": (_tell, lambda m: [s.number for s in m.unsealed], [2]),
    "options": (_options, lambda m: m.options, WANTED),
    "numbers": (_numbers, lambda m: m.producers, True),
    "close": (_close, lambda m: (m.unsealed, m.writer, m.hand_over), ((), None, None)),
    "hand over": (_hand_over, lambda m: (m.unsealed, m.writer, m.hand_over), ((), None, "joan")),
    "terminate": (_terminate, lambda m: (m.unsealed, m.state), ((), LogState.TERMINATED)),
}
ENDINGS = ("close", "hand over", "terminate")


def played(change: str, fate: str) -> tuple[Scene, DlogError | None]:
    """What a closing writer came to is returned, and all else is raised."""
    scene = Scene()
    begin = CHANGES[change][0]
    try:
        told = scene.run(begin(scene), fate)
    except DlogError as error:
        return scene, error
    return scene, told if isinstance(told, DlogError) else None


@pytest.mark.parametrize("fate", ["", "done", "done, no reply", "lost", "another change"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_happens_once_whatever_became_of_its_request(change: str, fate: str) -> None:
    scene, error = played(change, fate)
    assert error is None
    _, of, wanted = CHANGES[change]
    assert of(scene.meta) == wanted
    assert scene.core.seen == (scene.meta, scene.version)
    assert scene.replaced == (2 if fate in ("lost", "another change") else 1)
    assert scene.meta.holds == (1 if fate == "another change" else 0)
    assert scene.meta.epoch == 1
    if change in ("list", "tell the list"):
        assert scene.core.closed == [], "it need not be told again"
        assert scene.meta.segments[0].sealed is not None
    assert scene.deleted == []
    if change in ENDINGS:
        assert scene.core.state is WriterState.CLOSED


LOST = ["another writer", "done, then another writer", "done, then another writer that left"]


@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("change", CHANGES)
def test_who_lost_the_log_meanwhile_is_told_by_whom(change: str, fate: str) -> None:
    if change == "terminate" and fate.startswith("done"):
        return  # nobody comes after that
    scene, error = played(change, fate)
    assert isinstance(error, Fenced)
    assert error.winner is not None
    assert (error.winner.name, error.winner.epoch, error.winner.since_us) == ("grace", 2, 70)
    happened = Outcome.UNKNOWN if fate.startswith("done") else Outcome.NOT_HAPPENED
    assert error.outcome is happened
    assert scene.meta.writer == (None if fate.endswith("that left") else RIVAL)
    assert scene.replaced == 1


def test_a_writer_that_closes_deletes_the_ledger_that_it_made_ready_and_never_listed() -> None:
    scene = Scene()
    scene.core.spare = SPARE
    assert scene.run(close(scene.core), "") is None
    assert scene.deleted == [SPARE]


def test_a_listed_ledger_without_a_seam_leaves_the_list_when_its_writer_closes() -> None:
    """It waits for its deletion there, so the writer itself does not delete it."""
    scene = Scene()
    scene.core.spare = SPARE
    scene.run(list_spare(scene.core, "rotate.listed"), "")
    assert scene.run(close(scene.core), "") is None
    assert [each.ledger_id for each in scene.meta.deleting] == [SPARE]
    assert [each.ledger_id for each in scene.meta.segments] == [FIRST]
    assert scene.deleted == []


def test_options_that_changed_once_more_meanwhile_are_still_to_be_told() -> None:
    scene = Scene()
    core = scene.core
    core.options_wanted = WANTED
    telling = tell_options(core)
    next(telling)
    newer = dataclasses.replace(WANTED, retention_bytes=5)
    core.options_wanted = newer
    with pytest.raises(StopIteration):
        telling.send(2)
    assert core.options_wanted == newer
    assert core.retention_due is False
    assert scene.run(tell_options(core), "") is None
    assert core.options_wanted is None
    assert core.retention_due is True


def test_nothing_is_told_of_options_that_did_not_change() -> None:
    scene = Scene()
    assert scene.run(tell_options(scene.core), "") is None
    assert scene.replaced == 0


def test_a_fence_gets_the_name_of_who_won() -> None:
    scene = Scene()
    scene.store(scene.meta.claimed(RIVAL))
    told = scene.run(named(scene.core, Fenced("gone")), "")
    assert isinstance(told, Fenced)
    assert told.winner is not None
    assert told.winner.name == "grace"


@pytest.mark.parametrize(
    "error", [Timeout("away"), Fenced("gone", winner=Winner("joan", 3, 4))], ids=["other", "named"]
)
def test_what_has_a_name_or_is_no_fence_stays_as_it_is(error: DlogError) -> None:
    scene = Scene()
    scene.store(scene.meta.claimed(RIVAL))
    assert scene.run(named(scene.core, error), "") is error


def test_a_fence_by_a_stranger_stays_one_while_the_log_is_ours() -> None:
    scene = Scene()
    error = Fenced("gone")
    assert scene.run(named(scene.core, error), "") is error
    naming = named(scene.core, error)
    next(naming)
    with pytest.raises(StopIteration) as told:
        naming.throw(Timeout("metadata is away"))
    assert told.value.value is error

"""Every wait of a writer has a code and a sentence: by state of its core, by duty, by effect."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from dlog import awaited, effects
from dlog.awaited import NEVER_AWAITED, Awaited, longest, wait_for
from dlog.effects import Effect
from dlog.errors import Fenced, Timeout, Unavailable, Winner
from dlog.ledger.store import LedgerSpec
from dlog.options import WriterOptions
from dlog.reason import AT_REST, Reason, ReasonCode, Wait, size_text, time_text
from dlog.writer.batch import Batch
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.duties import Duty
from dlog.writer.pipe import PipeState
from dlog.writer.policy import Advice
from dlog.writer.reasons import ON_ITS_WAY_S, DutyFacts, WriterFacts, why_writer
from dlog.writer.watch import _DUTIES
from tests.tidy.source import sources
from tests.unit.writer.test_core import FIRST, SECOND, Scene

AWAY = Unavailable("bookie b2 is away", missing=["b2"], needed=1)
CREATING = Wait(ReasonCode.LEDGER_CREATION, "a new ledger is being made", {"ensemble": 3}, 5.0)
SILENT_STORE = Wait(
    ReasonCode.METADATA_AWAY, "the metadata store has not answered for 9 s", {}, 1.0
)


def facts(**known: Any) -> WriterFacts:
    options = WriterOptions()
    nothing: dict[str, Any] = {
        "taken_bytes": 0,
        "window_bytes": options.window_bytes,
        "window_entries": options.window_entries,
        "is_full": False,
        "has_pending": False,
        "lingers": False,
        "is_opening": False,
        "duty": None,
        "awaited": None,
        "metadata_away": None,
    }
    return WriterFacts(**{**nothing, **known})


def duty(error: Any = None, code: ReasonCode = ReasonCode.ROTATION) -> DutyFacts:
    return DutyFacts(code, "a rotation", 3.0, error, 0 if error is None else 2)


def told(core: WriterCore | None, **known: Any) -> Wait:
    wait = why_writer(core, facts(**known))
    assert wait is not None
    assert wait.sentence
    return wait


def core_in(state: WriterState) -> WriterCore:
    core = Scene().core
    if state is WriterState.DEAD:
        core.die(Fenced("ben took over", winner=Winner("ben", 7, 0)))
    elif state is WriterState.HEALING:
        core.on_failed(FIRST, AWAY)
    else:
        core.state = state
    return core


# --- states


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (WriterState.HEALING, ReasonCode.HEALING),
        (WriterState.CLOSING, ReasonCode.CLOSING),
        (WriterState.CLOSED, ReasonCode.CLOSED),
        (WriterState.DEAD, ReasonCode.LOST),
    ],
)
def test_every_state_but_open_has_its_reason(state: WriterState, code: ReasonCode) -> None:
    wait = told(core_in(state), awaited=CREATING)
    assert wait.code is code
    if code not in AT_REST:
        assert CREATING.sentence in wait.sentence


def test_no_state_is_missing_above() -> None:
    spoken_of = {WriterState.HEALING, WriterState.CLOSING, WriterState.CLOSED, WriterState.DEAD}
    assert set(WriterState) - spoken_of == {WriterState.OPEN}


def test_what_ended_the_handle_is_the_evidence() -> None:
    lost = told(core_in(WriterState.DEAD))
    assert (lost.evidence["winner"], lost.evidence["winner_epoch"]) == ("ben", 7)
    healing = told(core_in(WriterState.HEALING))
    assert healing.evidence["missing"] == ("b2",)
    assert healing.evidence["ledger_id"] == FIRST


def test_an_open_writer_waits_for_nothing() -> None:
    scene = Scene()
    assert why_writer(scene.core, facts()) is None
    scene.push(b"a")
    scene.see(FIRST, 2)
    assert why_writer(scene.core, facts()) is None


def test_before_there_is_a_core_the_takeover_says_it() -> None:
    assert told(None, awaited=CREATING) is CREATING
    assert why_writer(None, facts()) is None


# --- of an open writer: what somebody waits for


def test_unconfirmed() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.push(b"b")
    wait = told(scene.core)
    assert wait.code is ReasonCode.UNCONFIRMED
    assert wait.evidence["last_pushed"] == 3
    assert "2 entries" in wait.sentence
    assert wait.since_s == 0.0


def test_the_lac_is_not_published_yet() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.core.on_confirmed(FIRST, 2)
    wait = told(scene.core)
    assert wait.code is ReasonCode.UNPUBLISHED
    assert (wait.evidence["last_confirmed"], wait.evidence["last_published"]) == (2, 1)


def test_who_does_not_wait_for_readers_waits_for_no_lac() -> None:
    scene = Scene(visible="within:50ms")
    scene.push(b"a")
    scene.core.on_confirmed(FIRST, 2)
    assert why_writer(scene.core, facts()) is None


def test_a_barrier_names_the_ledger_that_it_waits_for() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.see(FIRST, 2)
    scene.rotate()
    scene.see(SECOND, 1)
    scene.push(b"b")
    scene.see(SECOND, 2)
    assert scene.released() == [b"a"]
    wait = told(scene.core, awaited=Wait(ReasonCode.LEDGER_CLOSE, "it is being closed", {}, 9.0))
    assert wait.code is ReasonCode.BARRIER
    assert (wait.evidence["ledger_id"], wait.evidence["held_in"]) == (FIRST, SECOND)
    assert "it is being closed" in wait.sentence
    scene.core.pipes[0].state = PipeState.CLOSED


def test_back_pressure_says_how_many_bytes() -> None:
    scene = Scene()
    scene.push(b"a" * 2048)
    wait = told(scene.core, is_full=True, taken_bytes=2048, window_bytes=1024)
    assert wait.code is ReasonCode.WINDOW_FULL
    assert (wait.evidence["taken_bytes"], wait.evidence["window_bytes"]) == (2048, 1024)
    assert "2.0 KiB of 1.0 KiB" in wait.sentence


def test_back_pressure_in_entries() -> None:
    scene = Scene()
    scene.push(b"a")
    assert told(scene.core, has_pending=True, window_entries=1).code is ReasonCode.WINDOW_FULL
    assert told(scene.core, has_pending=True, window_entries=2).code is ReasonCode.UNCONFIRMED


def test_a_window_that_is_full_of_what_was_not_sent_yet() -> None:
    wait = told(Scene().core, is_full=True, has_pending=True, taken_bytes=2048, window_bytes=1024)
    assert wait.code is ReasonCode.WINDOW_FULL
    assert wait.evidence["taken_bytes"] == 2048


def test_a_window_that_is_full_behind_something_else_says_both() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.core.on_confirmed(FIRST, 2)
    wait = told(scene.core, is_full=True, taken_bytes=1)
    assert wait.code is ReasonCode.UNPUBLISHED
    assert wait.evidence["window_full"] is True


def test_a_full_segment_waits_for_its_rotation() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.see(FIRST, 2)
    scene.policy.advice = Advice.WAIT
    assert why_writer(scene.core, facts()) is None  # nobody wants to append
    wait = told(scene.core, has_pending=True, duty=duty(AWAY))
    assert wait.code is ReasonCode.SEGMENT_FULL
    assert wait.evidence["missing"] == ("b2",)
    assert wait.since_s == 3.0


def test_company_is_waited_for() -> None:
    assert told(Scene().core, has_pending=True, lingers=True).code is ReasonCode.LINGERING


def test_the_first_entry_of_a_ledger() -> None:
    scene = Scene()
    scene.core.pipes[0].last_confirmed = 0
    assert told(scene.core).code is ReasonCode.UNCONFIRMED
    scene.core.pipes[0].last_confirmed = 1
    scene.core.pipes[0].last_published = 0
    assert told(scene.core, is_opening=True).code is ReasonCode.UNPUBLISHED
    assert why_writer(scene.core, facts()) is None


# --- duties


@pytest.mark.parametrize("which", Duty)
def test_every_duty_has_its_reason(which: Duty) -> None:
    code, name = _DUTIES[which]
    works = told(Scene().core, duty=DutyFacts(code, name, 3.0, None, 0), awaited=CREATING)
    assert (works.code, works.since_s) == (code, 3.0)
    assert works.sentence == f"{name} is under way: {CREATING.sentence}"
    rests = told(Scene().core, duty=DutyFacts(code, name, 3.0, AWAY, 2))
    assert rests.sentence == f"{name} waits: {AWAY}"
    assert rests.evidence["tries"] == 2
    assert rests.evidence["error_kind"] == "Unavailable"


def test_an_append_on_its_way_hides_no_duty_that_fails() -> None:
    """Under load there always is one."""
    scene = Scene()
    batch = scene.push(b"a")
    assert told(scene.core, duty=duty(AWAY)).code is ReasonCode.ROTATION
    assert told(scene.core, duty=duty()).code is ReasonCode.UNCONFIRMED, "it is under way as well"
    batch.sent_s -= ON_ITS_WAY_S
    assert told(scene.core, duty=duty(AWAY)).code is ReasonCode.UNCONFIRMED, "late itself"


def test_the_metadata_store_is_the_root_of_what_needs_it_alone() -> None:
    rotation = told(Scene().core, duty=duty(Timeout("no answer")), metadata_away=SILENT_STORE)
    assert rotation.code is ReasonCode.METADATA_AWAY
    assert rotation.evidence["waits"] == "rotation"
    assert rotation.since_s == 3.0
    assert rotation.sentence.startswith("a rotation waits: no answer; the metadata store has not")
    scene = Scene()
    scene.push(b"a")
    appends = told(scene.core, metadata_away=SILENT_STORE)  # which go on without it
    assert appends.code is ReasonCode.UNCONFIRMED


# --- effects, which a takeover and every duty consist of


def _effect_types() -> list[type[Effect]]:
    found = [each for _, each in inspect.getmembers(effects, inspect.isclass)]
    return [each for each in found if issubclass(each, Effect) and each is not Effect]


def _sample(kind: type[Effect]) -> Effect:
    values = {"spec": LedgerSpec(), "path": "/dlog/logs/a", "procedures": ()}
    needed = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    return kind(**{name: values.get(name, 7) for name in needed})


@pytest.mark.parametrize("kind", _effect_types(), ids=lambda kind: kind.__name__)
def test_every_effect_that_is_waited_for_has_a_reason(kind: type[Effect]) -> None:
    if issubclass(kind, NEVER_AWAITED):
        assert kind not in awaited._WAITS
        return
    wait = wait_for(Awaited(_sample(kind), 2.0))
    assert wait.sentence
    assert wait.since_s == 2.0


def test_what_a_core_says_of_its_effect_counts_more() -> None:
    own = Wait(ReasonCode.WRITER_PRESENT, "ana has it", {}, 1.0)
    assert wait_for(Awaited(effects.WaitNode("/x", 5.0, wait=own), 2.0)) is own


def test_of_several_effects_the_longest_is_told() -> None:
    slow = Awaited(effects.RecoverLedger(3, "crc32c"), 2.0)
    quick = Awaited(effects.ReadNode("/x"), 2.0)
    late = Awaited(effects.BirthLedger(4, ()), 2.5)
    wait = longest([quick, slow, late])
    assert wait is not None
    assert wait.code is ReasonCode.LEDGER_RECOVERY
    assert longest([]) is None


# --- reasons themselves


def test_no_code_is_one_that_nothing_says() -> None:
    text = "\n".join(each.text for each in sources("dlog") if each.where != "dlog/reason.py")
    silent = [
        code.name for code in ReasonCode if not re.search(rf"ReasonCode\.{code.name}\b", text)
    ]
    assert not silent


def test_a_reason_is_its_sentence_and_since_when_by_the_clock_on_the_wall() -> None:
    reason = Wait(ReasonCode.BARRIER, "it waits", {"a": 1}, 10.0).told(now_s=12.5, now_us=10**7)
    assert isinstance(reason, Reason)
    assert str(reason) == "it waits"
    assert reason.since_us == 10**7 - 2_500_000
    assert Wait(ReasonCode.CLOSED, "closed").told(now_s=1.0, now_us=5).since_us is None


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (ReasonCode.BOOKIES_AWAY, ReasonCode.BOOKIES_AWAY),
        (ReasonCode.ENSEMBLE_CHANGE, ReasonCode.ENSEMBLE_CHANGE),
        (ReasonCode.BOOKIE_SLOW, ReasonCode.WINDOW_FULL),  # a hint
    ],
)
def test_a_place_gives_way_to_a_cause(cause: ReasonCode, code: ReasonCode) -> None:
    full = Wait(ReasonCode.WINDOW_FULL, "full", {"ledger_id": 3}, 4.0)
    joined = full.because(Wait(cause, "b2 is away", {"missing": ("b2",)}))
    assert joined.code is code
    assert joined.sentence == "full: b2 is away"
    assert joined.evidence == {"ledger_id": 3, "missing": ("b2",)}
    assert joined.since_s == 4.0


def test_times_and_sizes_read_well() -> None:
    assert [time_text(each) for each in (0.25, 12.34, 301)] == ["250 ms", "12.3 s", "5 min"]
    assert [size_text(each) for each in (12, 1536, 3 << 40)] == ["12 B", "1.5 KiB", "3.0 TiB"]


def test_a_batch_knows_when_it_was_sent() -> None:
    assert Batch([], 0).sent_s == 0.0

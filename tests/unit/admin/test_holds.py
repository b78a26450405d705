"""Where a hold stands for each kind of place, and holds that several makers change at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlog import limits
from dlog.admin.holds import NOTE_CHARACTERS_MAX, Holding, check_note, drop_hold, put_hold
from dlog.clock import us_datetime
from dlog.effects import (
    CreateNode,
    Effect,
    LastReadable,
    ListNodes,
    LookAtLedger,
    Pause,
    ReadNode,
    ReadRun,
    ReplaceNode,
)
from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    DlogError,
    NotFound,
    Outcome,
    Timeout,
    Truncated,
    Unavailable,
)
from dlog.ids import MessageId, Position
from dlog.meta.holds import Hold
from dlog.meta.listed import Point
from dlog.meta.sweep import Site
from dlog.reader.places import EARLIEST, LATEST, Start
from tests.scenarios.by_hand import LAYOUT as BY_HAND_LAYOUT
from tests.scenarios.by_hand import NAME as BY_HAND_NAME
from tests.scenarios.by_hand import ByHand, NoChance, Steps
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog, seven_segments

PATH = LAYOUT.log(NAME)
BY_HAND_HOLD = BY_HAND_LAYOUT.hold(BY_HAND_NAME, "h")


class Scene:
    """A small log in which holds can be made; its bookies may be away."""

    def __init__(self, log: SmallLog) -> None:
        self.log = log
        self.bookies_are_away = False
        self._names = iter(range(1_000_000))

    def held(self, at: Start) -> Hold:
        """A new hold at the place."""
        site = Site(NAME, LAYOUT, self.log.meta.uid, NoChance())
        holding = Holding(site, f"h{next(self._names)}", "me", None, lambda: 0)
        procedure = put_hold(self.log.view(), holding, at)
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as stop:
                hold: Hold = stop.value
                return hold
            answer, error = None, None
            try:
                answer = self._perform(effect)
            except DlogError as failed:
                error = failed

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case LastReadable() | LookAtLedger() | ReadRun() if self.bookies_are_away:
                raise Unavailable("no bookie answers")
            case ReadNode(path=path) if path.startswith(LAYOUT.holds(NAME)):
                raise NotFound("there is no such hold")
            case ListNodes():
                raise NotFound("there are no holds")
            case Pause() | CreateNode() | ReplaceNode():
                return 1
            case _:
                return self.log.perform(effect)


@pytest.fixture
def scene() -> Scene:
    return Scene(seven_segments())


@pytest.mark.parametrize("way", ["seq", "id", "position", "bare position", "time"])
def test_every_message_from_the_place_on_is_held_and_none_before_it(scene: Scene, way: str) -> None:
    """A truncation by seq, and one by id, may go as far as to the message, and no further."""
    messages = scene.log.messages
    by_way: dict[str, Callable[[int], Start]] = {
        "seq": lambda at: messages[at].seq,
        "id": lambda at: messages[at].id,
        "position": lambda at: Position("uid", at, messages[at - 1].id),
        "bare position": lambda at: Position("uid", at, None),
        "time": lambda at: us_datetime(messages[at].time_us),
    }
    for at in range(1, len(messages)):
        hold = scene.held(by_way[way](at))
        assert hold.seq == messages[at].seq
        assert messages[at - 1].id < hold.id <= messages[at].id


def test_a_hold_on_the_tail_holds_what_comes_next(scene: Scene) -> None:
    count = len(scene.log.messages)
    for at in (LATEST, count, count + 5):
        hold = scene.held(at)
        assert hold.seq == (count if at == LATEST else at)
        assert hold.id > scene.log.messages[-1].id
        assert hold.made


def test_a_hold_on_a_log_without_segments_holds_its_first_message() -> None:
    log = SmallLog()
    hold = Scene(log).held(EARLIEST)
    log.begin()
    log.write(1)
    assert hold.seq == 0
    assert hold.id <= log.messages[0].id


def test_a_hold_on_a_log_that_lost_all_its_segments_is_above_what_was_truncated() -> None:
    """Else a truncation by id of what is gone anyway would seem to break it."""
    log = SmallLog()
    log.begin()
    log.write(1, 2)
    log.seal()
    log.truncate(Point(2), sweep=True)
    assert not log.meta.segments
    hold = Scene(log).held(EARLIEST)
    assert hold.seq == 2
    assert log.messages[-1].id < hold.id
    log.begin()
    log.write(3)
    assert hold.id <= log.messages[-1].id


@pytest.mark.parametrize("sweep", [True, False])
def test_a_place_before_the_head_is_refused_and_the_head_is_not(scene: Scene, sweep: bool) -> None:
    messages = scene.log.messages
    scene.log.truncate(Point(9), sweep=sweep)
    for at in (8, messages[8].id, Position("uid", 8, messages[7].id), Position("uid", 8, None)):
        with pytest.raises(Truncated) as caught:
            scene.held(at)
        assert caught.value.new_head == 9
    for start in (9, messages[9].id, Position("uid", 9, messages[8].id), EARLIEST):
        hold = scene.held(start)
        assert hold.seq == 9
        assert messages[8].id < hold.id <= messages[9].id


def test_a_hold_never_stands_below_an_id_that_truncated_more(scene: Scene) -> None:
    """Of two points, by seq and by id, the one that took more counts."""
    messages = scene.log.messages
    scene.log.truncate(Point(0, *messages[12].id))
    hold = scene.held(EARLIEST)
    assert (hold.seq, hold.id) == (12, messages[12].id)


@pytest.mark.parametrize("after", [None, MessageId(10, 1, 0)])
def test_a_position_of_another_log_is_refused(scene: Scene, after: MessageId | None) -> None:
    with pytest.raises(ConfigError, match="another log"):
        scene.held(Position("another", 3, after))


def test_without_bookies_a_hold_on_a_seq_keeps_all_of_its_segment(scene: Scene) -> None:
    """Also at both ends of each segment, in the list and in pages."""
    messages = scene.log.messages
    sealed = [each for each in messages if each.id.ledger_id < 70]
    scene.bookies_are_away = True
    for message in sealed:
        hold = scene.held(message.seq)
        assert (hold.seq, hold.id) == (message.seq, MessageId(message.id.ledger_id, 0, 0))


def test_without_bookies_nothing_is_held_that_only_they_know_of(scene: Scene) -> None:
    """A seq that is not sealed yet; any place that is no seq."""
    open_seq = next(each.seq for each in scene.log.messages if each.id.ledger_id == 70)
    scene.bookies_are_away = True
    for at in (open_seq, 10_000, scene.log.messages[0].id, us_datetime(0), LATEST):
        with pytest.raises(Unavailable):
            scene.held(at)


def test_without_bookies_a_position_behind_a_message_is_held(scene: Scene) -> None:
    """A consumer's checkpoint is held while all bookies are down."""
    messages = scene.log.messages
    scene.bookies_are_away = True
    hold = scene.held(Position("uid", 6, messages[5].id))
    assert hold.seq == 6
    assert messages[5].id < hold.id <= messages[6].id


@pytest.mark.parametrize(
    ("point", "held"),
    [
        ((20, 0, 0), {10: False, 20: True, 30: True}),
        ((20, 1, 0), {10: False, 20: False, 30: True}),
        ((20, 0, 1), {10: False, 20: False, 30: True}),
        ((21, 0, 0), {10: False, 20: False, 30: True}),
    ],
)
def test_without_bookies_a_segment_that_a_truncation_by_id_reaches_into_is_not_held(
    point: tuple[int, int, int], held: dict[int, bool]
) -> None:
    log = ByHand(4)
    log.truncated(MessageId(*point))
    for ledger_id, is_held in held.items():
        seq = ledger_id - 5  # in the middle of its segment
        if is_held:
            assert log.held(seq, f"h{ledger_id}").id == MessageId(ledger_id, 0, 0)
        else:
            with pytest.raises((Unavailable, Truncated)):
                log.held(seq, f"h{ledger_id}")


# --- notes


def test_a_note_is_short_printable_text() -> None:
    longest = "n" * NOTE_CHARACTERS_MAX
    assert [check_note(each) for each in (None, "n", longest)] == [None, "n", longest]
    for wrong in ("", longest + "n", "a\nb", 7, b"note"):
        with pytest.raises(ConfigError, match="the note of a hold"):
            check_note(wrong)


def test_a_hold_that_moves_keeps_its_note_and_its_age_unless_it_gets_others() -> None:
    log = ByHand(4)
    made = log.held(10, note="billing")
    log.now_us += 5
    moved = log.held(20)
    assert (moved.note, moved.since_us, moved.moved_us) == ("billing", made.since_us, log.now_us)
    assert moved.id == MessageId(30, 0, 0)
    log.now_us += 5
    noted = log.held(20, note="audit")
    assert (noted.note, noted.moved_us) == ("audit", moved.moved_us), "it did not move"
    stored = Hold.from_bytes(log.nodes[BY_HAND_HOLD].value, "h", where="h")
    assert stored == noted


# --- beside others


def refuse(steps: Steps, error: DlogError) -> Steps:
    """The next effect is refused, and nothing done."""
    steps._go_on(None, error)
    return steps


def test_a_hold_that_is_dropped_while_it_moves_is_made_again() -> None:
    log = ByHand(4)
    log.held(10)
    moving = log.holding(20).until("hold.moved")
    log.dropped()
    hold = moving.end()
    assert (hold.seq, hold.made) == (20, True)
    assert log.hold_nodes() == ["h"]
    assert log.truncated(40).head_seq == 20


def test_a_hold_that_somebody_else_makes_meanwhile_is_moved() -> None:
    log = ByHand(4)
    making = log.holding(20).until("hold.created")
    log.held(10)
    hold = making.end()
    assert (hold.seq, hold.made) == (20, True)
    assert log.truncated(40).head_seq == 20


def test_the_hold_of_a_log_that_was_removed_is_replaced() -> None:
    """It stands under the name; the new hold is of the log that is there, and counted."""
    log = ByHand(4)
    log.held(30)
    old = log.nodes[BY_HAND_HOLD].value.replace(b'"uid"', b'"old"')
    log.store(BY_HAND_HOLD, old)
    before = log.meta.holds
    hold = log.held(20)
    assert (hold.seq, hold.log_uid, hold.made) == (20, "uid", True)
    assert log.meta.holds == before + 1
    assert log.truncated(40).head_seq == 20


def test_a_hold_is_not_counted_in_a_log_that_was_made_anew() -> None:
    log = ByHand(4)
    making = log.holding(20).until("hold.counted")
    log.removing().end()
    log.remade()
    before = log.meta.holds
    with pytest.raises(NotFound):
        making.end()
    assert log.meta.holds == before


def test_a_hold_that_cannot_be_read_is_told_by_its_node() -> None:
    log = ByHand(2)
    log.store(BY_HAND_HOLD, b"nonsense")
    with pytest.raises(DlogError, match=BY_HAND_HOLD):
        log.held(10)


def test_an_error_names_the_log() -> None:
    log = ByHand(4)
    log.held(30)
    with pytest.raises(ConfigError) as caught:
        log.held(20)
    assert caught.value.about["log"] == BY_HAND_NAME
    with pytest.raises(NotFound) as missing:
        log.dropped("other")
    assert missing.value.about["log"] == BY_HAND_NAME


def test_a_hold_that_changes_again_and_again_is_given_up_with_what_refused_it() -> None:
    log = ByHand(2)
    steps = log.holding(10)

    def without_a_node() -> None:
        while not steps.is_over:
            if isinstance(steps.effect, CreateNode):
                refuse(steps, AlreadyExists("there is one"))
            else:
                steps.step()

    with pytest.raises(Conflict, match="made meanwhile") as caught:
        without_a_node()
    assert caught.value.about["log"] == BY_HAND_NAME


def test_the_next_maker_of_an_unfinished_hold_moves_it_to_its_own_place() -> None:
    log = ByHand(4)
    log.holding(15).until("hold.counted")  # and dies
    hold = log.held(25)
    assert (hold.seq, hold.id, hold.made) == (25, MessageId(30, 0, 0), True)
    assert log.truncated(40).head_seq == 25


def test_a_hold_whose_count_may_not_be_stored_is_counted_again() -> None:
    """Else a truncation that looked before the hold was there could still go past it."""
    log = ByHand(4)
    before = log.meta.holds
    steps = log.holding(15).until("hold.counted")
    refuse(steps, Timeout("no reply", outcome=Outcome.UNKNOWN))
    assert steps.end().made
    assert log.meta.holds > before


def test_a_drop_whose_reply_is_lost_is_done() -> None:
    log = ByHand(4)
    log.held(15)
    holding = Holding(log.site(), "h", "", None, lambda: 0)
    dropping = Steps(log, drop_hold(holding)).until("hold.dropped")
    dropping.lose(Timeout("no reply", outcome=Outcome.UNKNOWN))
    assert dropping.end() is None
    assert log.hold_nodes() == []


def test_a_drop_that_may_be_done_stays_so_whatever_comes_after() -> None:
    """The first reply is lost, the second try refused: then somebody drops it."""
    log = ByHand(4)
    log.held(15)
    holding = Holding(log.site(), "h", "", None, lambda: 0)
    dropping = Steps(log, drop_hold(holding)).until("hold.dropped")
    refuse(dropping, Timeout("no reply", outcome=Outcome.UNKNOWN))
    dropping.until("hold.dropped")
    refuse(dropping, Conflict("it changed"))
    log.dropped()
    assert dropping.end() is None


def test_without_bookies_a_seq_that_is_truncated_is_not_held_while_its_segment_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "META_DELETING_MAX", 0)  # so that all segments stay in the list
    log = ByHand(4)
    log.truncated(MessageId(10, 5, 0))
    log.truncated(25)
    assert log.meta.segments[0].ledger_id == 10
    for seq in (22, 24):
        with pytest.raises((Unavailable, Truncated)):
            log.held(seq)
    assert log.held(25).id == MessageId(30, 0, 0)

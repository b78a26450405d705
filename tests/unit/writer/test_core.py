"""`WriterCore` fact by fact: every move of its table, the barrier, what is released when, and what
a core that failed or died still hears."""

from __future__ import annotations

import itertools

import pytest

from dlog.errors import Broken, Fenced, Outcome, Timeout
from dlog.ledger.store import ClosedLedger
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import End, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions, WriterOptions
from dlog.wire.batch import decode
from dlog.writer.batch import Batch
from dlog.writer.core import MOVES, Identity, WriterCore, WriterState
from dlog.writer.pipe import PipeState
from dlog.writer.policy import Advice
from dlog.writer.segments import SEAM_ENTRY
from dlog.writer.takeover import Opened

FIRST, SECOND = 5, 9  # ledger ids


class Even:
    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "token"


class Says:
    def __init__(self) -> None:
        self.advice = Advice.STAY

    def advise(self, *, segment_bytes: int, entries: int, age_s: float) -> Advice:
        return self.advice


class Scene:
    """A core whose seam is written and visible, on ledger 5; times are what a test says."""

    def __init__(self, **options: object) -> None:
        self.now_us = 1000
        self.policy = Says()
        mark = WriterMark("token", "w", 0)
        meta = LogMeta("uid", LogOptions()).claimed(mark).listed(FIRST)
        identity = Identity("log", "token", Layout(), lambda: self.now_us, lambda: 0.0, Even())
        self.core = WriterCore(
            identity,
            Opened(Seen(meta, 1), 1, FIRST, End()),
            WriterOptions(**options),  # type: ignore[arg-type]
            policy=self.policy,
        )
        self.core.current.last_pushed = SEAM_ENTRY
        self.see(FIRST, SEAM_ENTRY)

    def see(self, ledger_id: int, last_entry: int) -> None:
        self.core.on_confirmed(ledger_id, last_entry)
        self.core.on_published(ledger_id, last_entry)

    def push(self, *values: bytes) -> Batch:
        batch = Batch(list(values), sum(map(len, values)))
        self.core.push(batch)
        return batch

    def rotate(self) -> None:
        """What `rotation.switch` and its seam leave behind."""
        core = self.core
        old = core.current
        old.state = PipeState.DRAINING
        core.add_pipe(2, SECOND, old.next_seq, (FIRST, old.last_pushed))
        core.current.last_pushed = SEAM_ENTRY

    def released(self) -> list[bytes | None]:
        return [value for batch in self.core.take_released() for value in batch.values]


# --- the table


@pytest.mark.parametrize(
    ("before", "after"), [*itertools.product(WriterState, WriterState)], ids=lambda s: s.value
)
def test_every_move_is_in_the_table_or_broken(before: WriterState, after: WriterState) -> None:
    core = Scene().core
    core.state = before
    if (before, after) in MOVES:
        core.move(after)
        assert core.state is after
    else:
        with pytest.raises(Broken, match="no such move"):
            core.move(after)


def test_what_ended_stays_ended() -> None:
    """DL-30, DL-31: no move leads out of CLOSED or DEAD."""
    ends = {WriterState.CLOSED, WriterState.DEAD}
    assert not [move for move in MOVES if move[0] in ends]


# What each input does in each state: the state afterwards, or None for `Broken`.
OPEN, HEALING, CLOSING, CLOSED, DEAD = WriterState
EFFECTS = {
    "push": {OPEN: OPEN, HEALING: None, CLOSING: None, CLOSED: None, DEAD: None},
    "confirmed": {s: s for s in WriterState},
    "published": {s: s for s in WriterState},
    "failed": {**{s: s for s in WriterState}, OPEN: HEALING},
    "die": {OPEN: DEAD, HEALING: DEAD, CLOSING: DEAD, CLOSED: CLOSED, DEAD: DEAD},
    "give up": {OPEN: None, HEALING: None, CLOSING: None, CLOSED: None, DEAD: DEAD},
}
PAIRS = [(name, state) for name in EFFECTS for state in WriterState]


@pytest.mark.parametrize(("name", "state"), PAIRS, ids=lambda each: getattr(each, "value", each))
def test_each_input_in_each_state(name: str, state: WriterState) -> None:
    scene = Scene()
    core = scene.core
    scene.push(b"a")
    core.state = state
    inputs = {
        "push": lambda: core.push(Batch([b"b"], 1)),
        "confirmed": lambda: core.on_confirmed(FIRST, 2),
        "published": lambda: core.on_published(FIRST, SEAM_ENTRY),
        "failed": lambda: core.on_failed(FIRST, Fenced("gone")),
        "die": lambda: core.die(Fenced("gone")),
        "give up": core.take_unacknowledged,
    }
    after = EFFECTS[name][state]
    if after is None:
        with pytest.raises(Broken):
            inputs[name]()
        assert core.state is state
    else:
        inputs[name]()
        assert core.state is after


# --- numbers and stamps


def test_messages_are_numbered_when_their_entry_is_built() -> None:
    scene = Scene()
    first, second = scene.push(b"a", b"b"), scene.push(b"c")
    assert (first.first_seq, first.entry_id) == (0, 2)
    assert (second.first_seq, second.entry_id) == (2, 3)


def test_no_data_before_the_seam() -> None:
    """I16."""
    core = Scene().core
    core.current.last_pushed = 0
    assert not core.room()
    with pytest.raises(Broken, match="seam comes before"):
        core.push(Batch([b"a"], 1))


def test_stamps_never_go_back() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.now_us = 10
    assert scene.push(b"b").timestamp_us == 1000
    scene.now_us = 1001
    assert scene.push(b"c").timestamp_us == 1001


def test_a_rebuilt_batch_keeps_its_seqs_and_its_time() -> None:
    scene = Scene()
    core = scene.core
    batch = scene.push(b"a", b"b")
    core.add_pipe(2, SECOND, 0, (FIRST, SEAM_ENTRY))
    core.current.last_pushed = SEAM_ENTRY
    scene.now_us = 5000
    entry = decode(b"".join(core.push_again(batch)), where="")
    assert (batch.ledger_id, batch.entry_id, batch.first_seq) == (SECOND, 2, 0)
    assert entry.base_timestamp_us == 1000


def test_a_rebuilt_batch_fits_or_is_broken() -> None:
    scene = Scene()
    scene.push(b"a")
    second = scene.push(b"b")
    scene.core.add_pipe(2, SECOND, 0, (FIRST, SEAM_ENTRY))
    with pytest.raises(Broken, match="seqs have no gaps"):
        scene.core.push_again(second)


# --- acknowledgements


def test_a_message_is_released_once_it_is_visible() -> None:
    """DL-03a, DL flaw 1: confirmed is not enough, since no reader sees it yet."""
    scene = Scene()
    scene.push(b"a")
    scene.core.on_confirmed(FIRST, 2)
    assert scene.released() == []
    assert scene.core.unpublished(FIRST)
    scene.core.on_published(FIRST, 2)
    assert scene.released() == [b"a"]
    assert not scene.core.unpublished(FIRST)


def test_within_a_bound_confirmed_is_enough() -> None:
    scene = Scene(visible="within:50ms")
    scene.push(b"a")
    scene.core.on_confirmed(FIRST, 2)
    assert scene.released() == [b"a"]


def test_one_fact_may_stand_for_a_run() -> None:
    scene = Scene()
    for value in (b"a", b"b", b"c"):
        scene.push(value)
    scene.see(FIRST, 3)
    assert scene.released() == [b"a", b"b"]
    scene.see(FIRST, 4)
    assert scene.released() == [b"c"]


@pytest.mark.parametrize("last_entry", [SEAM_ENTRY - 1, 3])
def test_a_confirmation_that_falls_or_runs_ahead_is_broken(last_entry: int) -> None:
    scene = Scene()
    scene.push(b"a")
    with pytest.raises(Broken):
        scene.core.on_confirmed(FIRST, last_entry)


def test_publishing_what_is_not_confirmed_is_broken() -> None:
    scene = Scene()
    scene.push(b"a")
    with pytest.raises(Broken, match="only what is confirmed"):
        scene.core.on_published(FIRST, 2)


def test_the_barrier_waits_for_the_close_not_for_the_last_confirmation() -> None:
    """I16, DL-28: all of the old ledger is visible, and still nothing of the new one is acked."""
    scene = Scene()
    scene.push(b"old")
    scene.rotate()
    scene.push(b"new")
    scene.see(SECOND, 2)
    assert scene.released() == []
    scene.see(FIRST, 2)
    assert scene.released() == [b"old"]
    scene.core.on_closed(scene.core.pipes[0], ClosedLedger(2, 10))
    assert scene.released() == [b"new"]


def test_closed_counts_as_published() -> None:
    scene = Scene()
    scene.push(b"old")
    scene.rotate()
    scene.core.on_closed(scene.core.pipes[0], ClosedLedger(2, 10))
    assert scene.released() == [b"old"]


def test_ledgers_are_closed_in_order() -> None:
    scene = Scene()
    scene.rotate()
    with pytest.raises(Broken, match="closed in order"):
        scene.core.on_closed(scene.core.current, ClosedLedger(1, 0))


def test_a_failed_ledger_is_heard_no_more() -> None:
    """Whatever it says after its failure, nothing is acked before it is recovered."""
    scene = Scene()
    scene.push(b"a")
    scene.core.on_failed(FIRST, Timeout("away"))
    scene.see(FIRST, 2)
    assert scene.core.pipes[0].last_confirmed < 2
    assert scene.released() == []
    assert scene.core.state is WriterState.HEALING
    scene.core.on_closed(scene.core.pipes[0], ClosedLedger(2, 10))
    assert scene.released() == [b"a"]


def test_a_failure_that_came_before_the_switch_counts_behind_it() -> None:
    """I27: it is told once. Forgotten, the writer would wait for confirmations for ever."""
    scene = Scene()
    scene.push(b"old")
    scene.core.on_failed(SECOND, Timeout("away"))
    assert scene.core.state is WriterState.OPEN
    scene.rotate()
    assert scene.core.state is WriterState.HEALING
    with pytest.raises(Timeout):
        scene.core.drained(SECOND)


def test_a_failure_of_the_old_ledger_holds_the_new_one_back() -> None:
    scene = Scene()
    scene.push(b"old")
    scene.rotate()
    scene.push(b"new")
    scene.core.on_failed(FIRST, Timeout("away"))
    scene.see(SECOND, 2)
    assert scene.released() == []
    with pytest.raises(Timeout):
        scene.core.drained(FIRST)


def test_facts_about_strangers_are_ignored() -> None:
    scene = Scene()
    scene.see(77, 5)
    scene.core.on_failed(77, Fenced("gone"))
    assert scene.core.state is WriterState.OPEN
    assert not scene.core.unpublished(77)
    assert not scene.core.is_ledger_idle(77)


# --- room


def test_the_window_counts_entries_of_all_pipes() -> None:
    """I25."""
    scene = Scene(window_entries=2)
    scene.push(b"a")
    scene.rotate()
    assert not scene.core.room()  # one entry of the old ledger, the seam of the new one
    scene.see(SECOND, SEAM_ENTRY)
    assert scene.core.room()


def test_the_hard_limit_makes_messages_wait() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.policy.advice = Advice.WAIT
    assert not scene.core.room()


def test_an_empty_segment_is_never_rotated() -> None:
    scene = Scene()
    scene.policy.advice = Advice.ROTATE
    assert scene.core.advice() is Advice.STAY


# --- the end


def test_a_dead_core_gives_up_all_it_sent_in_order() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.see(FIRST, 2)
    scene.push(b"b")
    scene.rotate()
    scene.push(b"c")
    first = Fenced("gone", outcome=Outcome.UNKNOWN)
    scene.core.die(first)
    scene.core.die(Timeout("later"))
    assert scene.core.error is first
    left = [value for batch in scene.core.take_unacknowledged() for value in batch.values]
    assert left == [b"a", b"b", b"c"]
    assert scene.core.take_unacknowledged() == []


def test_what_a_recovery_did_not_keep_is_not_counted() -> None:
    scene = Scene()
    scene.push(b"a", b"b")
    scene.push(b"c")
    scene.core.on_closed(scene.core.pipes[0], ClosedLedger(2, 10))
    number, sealed = scene.core.closed[0]
    assert (number, sealed.last_entry, sealed.next_seq) == (1, 2, 2)
    told = scene.core.settled(scene.core.seen.meta)
    assert told.segments[0].sealed == sealed
    scene.core.seen = Seen(told, 2)
    scene.core.settle()
    assert scene.core.closed == []
    assert scene.core.settled(told) is told


def test_what_was_closed_and_is_not_in_the_list_yet_is_kept_to_be_told() -> None:
    """By whichever change of the list comes next; what the list knows is told once."""
    scene = Scene()
    core = scene.core
    core.seen = Seen(core.seen.meta.listed(SECOND), 2)
    scene.push(b"a", b"b")
    scene.rotate()
    scene.push(b"c")
    core.on_closed(core.pipes[0], ClosedLedger(2, 10))
    core.settle()
    assert [number for number, _ in core.closed] == [1]
    told = core.settled(core.seen.meta)
    assert [each.number for each in told.unsealed] == [2]
    assert told.end.next_seq == 2
    core.seen = Seen(told, 3)
    core.settle()
    assert core.closed == []


def test_a_segment_without_a_seam_is_dropped_from_the_list_once() -> None:
    scene = Scene()
    core = scene.core
    core.seen = Seen(core.seen.meta.listed(SECOND), 2)
    core.dropped = [2]
    core.settle()
    assert core.dropped == [2]
    told = core.settled(core.seen.meta)
    assert [each.number for each in told.segments] == [1]
    assert [(each.ledger_id, each.since_us) for each in told.deleting] == [(SECOND, scene.now_us)]
    core.seen = Seen(told, 3)
    core.settle()
    assert core.dropped == []
    assert core.settled(told) is told


def test_a_ledger_that_was_closed_and_left_is_a_stranger() -> None:
    scene = Scene()
    scene.push(b"old")
    scene.rotate()
    scene.core.on_closed(scene.core.pipes[0], ClosedLedger(2, 10))
    assert [pipe.ledger_id for pipe in scene.core.pipes] == [SECOND]
    scene.see(FIRST, 1)
    scene.core.on_failed(FIRST, Timeout("late"))
    assert not scene.core.is_ledger_idle(FIRST)
    assert scene.core.state is WriterState.OPEN

"""Each checker holds on a good history and objects to a bad one made by hand, by its name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import Fenced, FormatError, Unavailable, Winner
from dlog.ids import MessageId
from dlog.testing.checkers import CHECKERS, Story, assert_holds, violations
from dlog.testing.history import Event, Listed, Op, Phase, Recorder, digest_of, load

GOOD_LIST = (Listed(1, 10, 1, 3, 0, 2), Listed(2, 11, 2, 4, 2, 4), Listed(3, 12, 2))


class Told:
    """A history written by hand; time is the order of telling."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._clock = itertools.count(1)

    def add(self, **fields: object) -> None:
        self.events.append(Event(t_ns=next(self._clock), **fields))  # type: ignore[arg-type]

    def opening(self, handle: str) -> None:
        self.add(op=Op.OPEN, phase=Phase.INVOKE, handle=handle)

    def opened(self, handle: str, epoch: int) -> None:
        self.add(op=Op.OPEN, phase=Phase.OK, handle=handle, epoch=epoch)

    def append(self, name: str) -> None:
        handle, number = name.split("/")
        self.add(
            op=Op.APPEND,
            phase=Phase.INVOKE,
            handle=handle,
            name=name,
            number=int(number),
            digest=digest_of(name.encode()),
        )

    def ended(self, name: str, phase: Phase = Phase.OK, **fields: object) -> None:
        handle, number = name.split("/")
        self.add(op=Op.APPEND, phase=phase, handle=handle, name=name, number=int(number), **fields)

    def acked(self, name: str, ledger: int, entry: int) -> None:
        self.ended(name, id=MessageId(ledger, entry, 0))

    def reading(self, handle: str, seq: int = 0) -> None:
        self.add(op=Op.READ, phase=Phase.INVOKE, handle=handle, seq=seq)

    def read(self, handle: str) -> None:
        self.add(op=Op.READ, phase=Phase.OK, handle=handle)

    def delivered(self, handle: str, name: str, place: tuple[int, int, int, int]) -> None:
        """`place`: ledger, entry, seq and epoch."""
        ledger, entry, seq, epoch = place
        self.add(
            op=Op.DELIVER,
            phase=Phase.OK,
            handle=handle,
            name=name,
            digest=digest_of(name.encode()),
            id=MessageId(ledger, entry, 0),
            seq=seq,
            epoch=epoch,
        )

    def closed(self, ledger: int, last: int, size: int = 100) -> None:
        self.add(op=Op.CLOSED, phase=Phase.OK, ledger_id=ledger, entry_id=last, bytes=size)

    def listed(self, *segments: Listed) -> None:
        self.add(op=Op.LISTED, phase=Phase.OK, segments=segments)


PLACES = {
    "a/0": (10, 2, 0, 1),
    "a/1": (10, 3, 1, 1),
    "b/0": (11, 2, 2, 2),
    "b/1": (11, 4, 3, 2),
}


def good() -> Told:
    """a appends two; b takes over and appends two; a is fenced; one tails, one reads at the end."""
    told = Told()
    told.opening("a")
    told.opened("a", 1)
    told.reading("tail")
    for name in ("a/0", "a/1"):
        told.append(name)
        told.acked(name, *PLACES[name][:2])
        told.delivered("tail", name, PLACES[name])
    told.listed(Listed(1, 10, 1))
    told.opening("b")
    told.closed(10, 3)
    told.opened("b", 2)
    told.append("b/0")
    told.append("b/1")
    told.acked("b/0", 11, 2)
    told.acked("b/1", 11, 4)
    told.append("a/2")
    told.ended("a/2", Phase.UNKNOWN, error="Fenced", winner="b", winner_epoch=2)
    told.closed(10, 3)
    told.listed(*GOOD_LIST)
    told.reading("final")
    for name, place in PLACES.items():
        told.delivered("final", name, place)
    told.read("final")
    return told


def objections(events: list[Event]) -> set[str]:
    return {each.invariant for each in violations(events, final="final")}


def test_a_good_history_holds() -> None:
    story = assert_holds(good().events, final="final")
    assert [event.name for event in story.log] == list(PLACES)


# --- bad ones: each changes the good history in one way

Change = Callable[[Event], "Event | None"]


def changed(change: Change) -> list[Event]:
    """`change` gives another event, or None to leave it out."""
    found = [change(event) for event in good().events]
    assert found != good().events, "the change must change something"
    return [event for event in found if event is not None]


def without(op: Op, phase: Phase, name: str, handle: str | None = None) -> Change:
    def change(event: Event) -> Event | None:
        this = (event.op, event.phase, event.name) == (op, phase, name)
        return None if this and handle in (None, event.handle) else event

    return change


def with_fields(op: Op, was: Phase, name: str, handle: str = "", **fields: object) -> Change:
    def change(event: Event) -> Event:
        this = (event.op, event.phase, event.name) == (op, was, name)
        if this and handle in ("", event.handle):
            return dataclasses.replace(event, **fields)  # type: ignore[arg-type]
        return event

    return change


def delivered_with(name: str, **fields: object) -> Change:
    return with_fields(Op.DELIVER, Phase.OK, name, "final", **fields)


BAD: dict[str, tuple[str, Change]] = {
    "lost at the end": ("I1", without(Op.DELIVER, Phase.OK, "b/1", "final")),
    "at another id": ("I1", delivered_with("b/1", id=MessageId(11, 5, 0))),
    "never appended": ("I2", without(Op.APPEND, Phase.INVOKE, "b/1")),
    "refused": (
        "I2",
        with_fields(Op.APPEND, Phase.OK, "b/1", phase=Phase.REFUSED, error="Unavailable", id=None),
    ),
    "delivered too early": ("I2", delivered_with("b/1", t_ns=0)),
    "other bytes": ("I13", delivered_with("b/0", digest=digest_of(b"else"))),
    "two at one id": (
        "I3b",
        with_fields(Op.DELIVER, Phase.OK, "a/1", "tail", id=MessageId(10, 2, 0)),
    ),
    "two at one seq": ("I5", with_fields(Op.DELIVER, Phase.OK, "a/1", "tail", seq=0)),
    "delivered, then gone": ("I9", without(Op.DELIVER, Phase.OK, "a/1", "final")),
    "acks out of order": ("I4a", with_fields(Op.APPEND, Phase.OK, "b/0", id=MessageId(11, 9, 0))),
    "acked behind a failure": (
        "I4a",
        with_fields(Op.APPEND, Phase.OK, "b/0", phase=Phase.UNKNOWN, error="Timeout", id=None),
    ),
    "a hole in a writer's messages": ("I4b", without(Op.DELIVER, Phase.OK, "a/0", "final")),
    "ids fall along the log": ("I6", delivered_with("b/0", id=MessageId(10, 1, 0))),
    "a gap in the seqs": ("I6", delivered_with("b/1", seq=9)),
    "ids fall in time": ("I6", with_fields(Op.APPEND, Phase.OK, "b/0", id=MessageId(9, 2, 0))),
    "one epoch for two": ("I7", with_fields(Op.OPEN, Phase.OK, "", "b", epoch=1)),
    "a lower epoch later": ("I7", with_fields(Op.OPEN, Phase.OK, "", "b", epoch=0)),
    "epochs fall along the log": ("I7", delivered_with("b/1", epoch=1)),
    "another writer's epoch": ("I7", delivered_with("a/1", epoch=2)),
    "a closed end that moves": (
        "I8",
        lambda e: dataclasses.replace(e, entry_id=4) if e.op is Op.CLOSED and e.t_ns > 15 else e,
    ),
    "closed bytes that change": (
        "I8",
        lambda e: dataclasses.replace(e, bytes=9) if e.op is Op.CLOSED and e.t_ns > 15 else e,
    ),
    "closed below an ack": (
        "I9",
        lambda e: dataclasses.replace(e, entry_id=2) if e.op is Op.CLOSED else e,
    ),
    "a reader that begins late": (
        "I17",
        lambda e: None if (e.op, e.handle, e.name) == (Op.DELIVER, "tail", "a/0") else e,
    ),
    "fenced by nobody": (
        "I24",
        with_fields(Op.APPEND, Phase.UNKNOWN, "a/2", winner="", winner_epoch=-1),
    ),
    "fenced by a lower epoch": (
        "I24",
        with_fields(Op.APPEND, Phase.UNKNOWN, "a/2", winner_epoch=1),
    ),
    "an end without a beginning": ("I24", without(Op.APPEND, Phase.INVOKE, "a/2")),
}


@pytest.mark.parametrize(("invariant", "change"), BAD.values(), ids=BAD)
def test_a_bad_history_is_refused(invariant: str, change: Change) -> None:
    events = changed(change)
    assert invariant in objections(events)
    with pytest.raises(AssertionError, match=f"{invariant}: "):
        assert_holds(events, final="final")


LISTS: dict[str, tuple[str, tuple[Listed, ...]]] = {
    "a number used again": ("I15", (Listed(1, 9, 1, 3, 0, 2), *GOOD_LIST[1:])),
    "ledgers that fall": ("I15", (*GOOD_LIST[:2], Listed(3, 5, 2))),
    "numbers that fall": ("I15", (*GOOD_LIST[:2], Listed(2, 12, 2))),
    "epochs that fall": ("I15", (*GOOD_LIST[:2], Listed(3, 12, 1))),
    "ends that do not chain": ("I15", (GOOD_LIST[0], Listed(2, 11, 2, 4, 3, 5), GOOD_LIST[2])),
    "sealed behind unsealed": ("I15", (Listed(1, 10, 1), *GOOD_LIST[1:])),
    "three unsealed": ("I15", (Listed(1, 10, 1), Listed(2, 11, 2), Listed(3, 12, 2))),
    "an acked ledger not listed": ("I15", (GOOD_LIST[0], GOOD_LIST[2])),
    "a sealed end that changes": ("I8", (Listed(1, 10, 1, 4, 0, 2), *GOOD_LIST[1:])),
}


@pytest.mark.parametrize(("invariant", "segments"), LISTS.values(), ids=LISTS)
def test_a_bad_list_is_refused(invariant: str, segments: tuple[Listed, ...]) -> None:
    told = good()
    told.listed(*segments)
    assert invariant in objections(told.events)


def test_a_number_that_comes_late_is_refused() -> None:
    told = good()
    told.listed(*GOOD_LIST, Listed(5, 20, 2))
    told.listed(*GOOD_LIST, Listed(4, 19, 2), Listed(5, 20, 2))
    assert objections(told.events) == {"I15"}


def a_blind_read() -> list[Event]:
    told = good()
    told.reading("blind")
    for name in ("a/0", "a/1", "b/0"):
        told.delivered("blind", name, PLACES[name])
    told.read("blind")
    return told.events


def test_a_read_that_lacks_what_was_acked_before_is_refused() -> None:
    assert objections(a_blind_read()) == {"I3c"}


def test_a_message_begun_after_the_takeover_is_refused() -> None:
    told = good()
    del told.events[-1 - len(PLACES) - 1 :]
    told.reading("final")
    told.opening("c")
    told.opened("c", 3)
    told.append("b/2")
    for name, place in {**PLACES, "b/2": (11, 5, 4, 2)}.items():
        told.delivered("final", name, place)
    told.read("final")
    assert objections(told.events) == {"I7"}


@pytest.mark.parametrize(
    ("name", "place"), [("a/1", PLACES["a/1"]), ("b/1", PLACES["b/1"])], ids=["repeats", "skips"]
)
def test_a_reader_that_repeats_or_skips_is_refused(
    name: str, place: tuple[int, int, int, int]
) -> None:
    told = good()
    told.delivered("tail", name, place)
    assert "I17" in objections(told.events)


def test_an_append_that_ends_twice_is_refused() -> None:
    told = good()
    told.acked("b/1", 11, 4)
    assert "I24" in objections(told.events)


def test_a_final_read_that_stopped_early_is_refused() -> None:
    told = good()
    assert "I24" in objections(told.events[:-1])


def test_a_final_read_that_failed_is_refused() -> None:
    told = good()
    told.events[-1] = dataclasses.replace(told.events[-1], phase=Phase.UNKNOWN, error="Unavailable")
    assert "I24" in objections(told.events)


def test_a_reader_that_begins_or_ends_twice_is_refused() -> None:
    told = good()
    told.read("final")
    assert "I24" in objections(told.events)
    told = good()
    told.reading("tail")
    assert "I24" in objections(told.events), "what it delivered before would not be judged"


def test_an_opening_that_ends_twice_is_refused() -> None:
    told = good()
    told.opened("b", 3)
    assert "I24" in objections(told.events)


def test_a_history_without_an_append_proves_nothing() -> None:
    told = Told()
    told.reading("final")
    told.read("final")
    with pytest.raises(AssertionError, match="nothing was appended"):
        assert_holds(told.events, final="final")
    for events in ([], [*told.events[1:]]):
        with pytest.raises((ValueError, KeyError)):
            assert_holds(events, final="final")


def test_every_checker_objects_to_something() -> None:
    bad = [changed(change) for _, change in BAD.values()]
    told = good()
    told.listed(*reversed(GOOD_LIST))
    bad += [told.events, a_blind_read()]
    for check in CHECKERS:
        hit = any(list(check(Story(events, final="final"))) for events in bad)
        assert hit, f"{check.__name__} objects to none of the bad histories"


# --- the history itself


def test_a_line_says_what_the_event_says(tmp_path: Path) -> None:
    events = good().events
    assert [Event.from_line(event.to_line()) for event in events] == events
    for line in ("", "{}", "[]", '{"op":"open"}', '{"op":"x","phase":"ok"}'):
        with pytest.raises(FormatError):
            Event.from_line(line)
    with pytest.raises(FormatError):
        Event.from_line('{"op":"open","phase":"ok","strange":1}')


def test_histories_are_merged_in_time_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    one, two = (Recorder(tmp_path / name, name) for name in ("one", "two"))
    began = Event(op=Op.OPEN, phase=Phase.INVOKE, handle="x")
    one.note(began)
    two.note(began)
    one.end(began, Unavailable("no"))
    two.end(began, Fenced("yes", winner=Winner("w", 7, 0)))
    for recorder in (one, two):
        recorder.close()
    with (tmp_path / "one").open("a") as file:
        file.write('{"op":"op')
    events = load([tmp_path / "one", tmp_path / "two"])
    assert [event.process for event in events] == ["one", "two", "one", "two"]
    assert [event.phase for event in events[2:]] == [Phase.REFUSED, Phase.UNKNOWN]
    assert (events[3].winner, events[3].winner_epoch, events[3].error) == ("w", 7, "Fenced")


def test_a_recorder_that_cannot_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "history", "one")
    event = Event(op=Op.OPEN, phase=Phase.INVOKE, handle="x")
    with monkeypatch.context() as cut:
        cut.setattr("dlog.testing.history.os.write", lambda fd, line: len(line) - 1)
        with pytest.raises(OSError, match="was cut"):
            recorder.note(event)
    recorder.close()
    with pytest.raises(OSError, match="descriptor"):
        recorder.note(event)


def test_a_history_that_is_not_there_or_damaged_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load([tmp_path / "nothing"])
    (tmp_path / "damaged").write_text("{}\n")
    with pytest.raises(FormatError):
        load([tmp_path / "damaged"])
    with pytest.raises(ValueError, match="no reader"):
        assert_holds(load([]), final="final")

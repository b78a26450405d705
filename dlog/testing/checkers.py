"""Judges a history against the invariants of docs/INVARIANTS.md, as far as they show from outside.

`Story` sorts a merged history once; each checker walks it once, in O(n), and yields what clashes:
the invariant, a sentence, and the events. The log itself, `L`, is what the reader named in `final`
delivered: a complete read made when all faults were over. Recorded times are sound for every check:
an `invoke` is written before the call and an end after it, so "recorded before" implies "was
before".

Each checker has a hand-made bad history that it must object to, in tests/unit/testing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

from dlog.ids import MessageId
from dlog.testing.history import NONE, Event, Listed, Op, Phase

PER_CHECKER_MAX = 5  # clashes told: the first few say what is wrong


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    told: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.invariant}: {self.told}", *map(str, self.events)])


@dataclass(slots=True)
class Append:
    """One message that somebody tried to append, and how that ended, if it did."""

    began: Event
    end: Event | None = None

    @property
    def is_acked(self) -> bool:
        return self.end is not None and self.end.phase is Phase.OK

    @property
    def is_refused(self) -> bool:
        return self.end is not None and self.end.phase is Phase.REFUSED


@dataclass(slots=True)
class Reading:
    """One reader: where it began, what it delivered, and whether it reached its tail."""

    began: Event
    delivered: list[Event] = field(default_factory=list)
    end: Event | None = None


@dataclass(slots=True)
class Writing:
    """One writer: its opening and its appends, in the order they began."""

    began: Event
    opened: Event | None = None
    appends: list[Append] = field(default_factory=list)


class Story:
    """A history, sorted by what it is about."""

    def __init__(self, events: Iterable[Event], *, final: str) -> None:
        self.events = list(events)
        self.appends: dict[str, Append] = {}
        self.writers: dict[str, Writing] = {}
        self.readers: dict[str, Reading] = {}
        self.closed: list[Event] = []
        self.lists: list[Event] = []
        self.strange: list[Violation] = []  # what no honest program can have written
        for event in self.events:
            self._sort(event)
        if final not in self.readers:
            raise ValueError(f"no reader {final!r} in this history")
        self.log = self.readers[final].delivered
        read = self.readers[final]
        if read.end is None or read.end.phase is not Phase.OK:
            ended = () if read.end is None else (read.end,)
            self._object("the final read did not reach the tail", read.began, *ended)
        self.place = {event.name: at for at, event in enumerate(self.log)}

    def _sort(self, event: Event) -> None:
        match event.op:
            case Op.OPEN:
                self._sort_open(event)
            case Op.APPEND:
                self._sort_append(event)
            case Op.READ if event.phase is Phase.INVOKE:
                if event.handle in self.readers:
                    self._object("two readers have one name", event)
                self.readers[event.handle] = Reading(event)
            case Op.READ:
                if (ended := self.readers[event.handle].end) is not None:
                    self._object("a read ended twice", ended, event)
                self.readers[event.handle].end = event
            case Op.DELIVER:
                self.readers[event.handle].delivered.append(event)
            case Op.CLOSED:
                self.closed.append(event)
            case Op.LISTED:
                self.lists.append(event)

    def _sort_open(self, event: Event) -> None:
        if event.phase is Phase.INVOKE:
            if event.handle in self.writers:
                self._object("two writers have one name", event)
            self.writers[event.handle] = Writing(event)
        elif event.phase is Phase.OK:
            if (opened := self.writers[event.handle].opened) is not None:
                self._object("an opening ended twice", opened, event)
            self.writers[event.handle].opened = event

    def _sort_append(self, event: Event) -> None:
        known = self.appends.get(event.name)
        if event.phase is Phase.INVOKE:
            if known is not None:
                self._object("two messages have one name", known.began, event)
            made = self.appends[event.name] = Append(event)
            self.writers[event.handle].appends.append(made)
        elif known is None:
            self._object("an append ended that never began", event)
        elif known.end is not None:
            self._object("an append ended twice", known.end, event)
        else:
            known.end = event

    def _object(self, told: str, *events: Event) -> None:
        self.strange.append(Violation("I24", told, events))

    def epoch_of(self, event: Event) -> int:
        """Of the writer that an append belongs to; -1 when its opening was never told."""
        opened = self.writers[event.handle].opened
        return NONE if opened is None else opened.epoch


Checker = Callable[[Story], Iterator[Violation]]


def acked_is_durable(story: Story) -> Iterator[Violation]:
    """I1: each acked message is in the log, at the id that was told."""
    for append in story.appends.values():
        if not append.is_acked:
            continue
        assert append.end is not None
        at = story.place.get(append.began.name)
        if at is None:
            yield Violation("I1", "an acked message is not in the log", (append.began, append.end))
        elif story.log[at].id != append.end.id:
            yield Violation("I1", "an acked message has another id", (append.end, story.log[at]))


def acked_is_visible(story: Story) -> Iterator[Violation]:
    """I1, I3c: a complete read that began after an ack delivers the message, with nothing else
    written."""
    ends = sorted(
        (append.end for append in story.appends.values() if append.is_acked and append.end),
        key=lambda end: end.t_ns,
    )
    reads = sorted(
        (each for each in story.readers.values() if each.end is not None and each.end.error == ""),
        key=lambda each: each.began.t_ns,
    )
    newest: Event | None = None
    at = 0
    for read in reads:
        while at < len(ends) and ends[at].t_ns < read.began.t_ns:
            if newest is None or _id(ends[at]) > _id(newest):
                newest = ends[at]
            at += 1
        if newest is None:
            continue
        last = story.place.get(newest.name, NONE)
        if last == NONE or story.log[last].seq < read.began.seq:
            continue  # lost altogether is I1's to tell; else the reader began behind it
        if not read.delivered or _id(read.delivered[-1]) < _id(newest):
            yield Violation("I3c", "a read that began after an ack lacks it", (newest, read.began))


def no_phantom(story: Story) -> Iterator[Violation]:
    """I2, I13: what is delivered was appended before, by these very bytes; never what was
    refused."""
    for reading in story.readers.values():
        for event in reading.delivered:
            append = story.appends.get(event.name)
            if append is None:
                yield Violation("I2", "delivered, but never appended", (event,))
            elif append.began.t_ns > event.t_ns:
                yield Violation("I2", "delivered before it was appended", (event, append.began))
            elif append.is_refused:
                assert append.end is not None
                yield Violation("I2", "refused, but delivered", (append.end, event))
            elif append.began.digest != event.digest:
                yield Violation("I13", "delivered with other bytes", (append.began, event))


def delivery_is_repeatable(story: Story) -> Iterator[Violation]:
    """I3b, I5: readers agree: at one id and at one seq stands one message, for everybody and
    always."""
    by_id: dict[MessageId, Event] = {}
    by_seq: dict[int, Event] = {}
    for reading in story.readers.values():
        for event in reading.delivered:
            there = by_id.setdefault(_id(event), event)
            if there.name != event.name or there.seq != event.seq:
                yield Violation("I3b", "two messages stand at one id", (there, event))
            there = by_seq.setdefault(event.seq, event)
            if there.name != event.name:
                yield Violation("I5", "two messages stand at one seq", (there, event))
    for event in by_id.values():
        if event.name not in story.place:
            yield Violation("I9", "a delivered message is not in the log", (event,))


def acks_are_in_order(story: Story) -> Iterator[Violation]:
    """I4a: ids rise with the numbers of one writer, and nothing is acked behind what failed."""
    for writing in story.writers.values():
        before: Event | None = None
        failed: Event | None = None
        for append in writing.appends:
            end = append.end
            if end is None or end.phase is Phase.REFUSED:
                continue
            if end.phase is Phase.UNKNOWN:
                failed = failed or end
                continue
            if failed is not None:
                yield Violation("I4a", "acked behind one that failed", (failed, end))
            if before is not None and _id(before) >= _id(end):
                yield Violation("I4a", "ids fall along one writer", (before, end))
            before = end


def prefixes_survive(story: Story) -> Iterator[Violation]:
    """I4b: with a message of a writer, every earlier one of it that was not refused is in the
    log."""
    for writing in story.writers.values():
        missing: Event | None = None
        for append in writing.appends:
            if append.began.name in story.place:
                if missing is not None:
                    yield Violation("I4b", "kept, and an earlier one lost", (missing, append.began))
            elif not append.is_refused:
                missing = missing or append.began


def ids_only_grow(story: Story) -> Iterator[Violation]:
    """I6: along the log (with seqs that have no gaps), and in time from ack to invoke."""
    for earlier, later in pairwise(story.log):
        if _id(later) <= _id(earlier) or _id(later).bytes <= _id(earlier).bytes:
            yield Violation("I6", "ids fall along the log", (earlier, later))
        if later.seq != earlier.seq + 1:
            yield Violation("I6", "seqs have a gap", (earlier, later))
    newest: Event | None = None
    floor: dict[str, Event | None] = {}
    for event in story.events:
        if event.op is not Op.APPEND:
            continue
        if event.phase is Phase.INVOKE:
            floor[event.name] = newest
        elif event.phase is Phase.OK:
            before = floor.get(event.name)
            if before is not None and _id(event) <= _id(before):
                yield Violation("I6", "an id below one acked before it began", (before, event))
            if newest is None or _id(event) > _id(newest):
                newest = event


def one_effective_writer(story: Story) -> Iterator[Violation]:
    """I7: epochs are given once, rise in time and never fall along the log; what an earlier writer
    began after a later one was open is not in it."""
    by_epoch: dict[int, Event] = {}
    newest: Event | None = None
    floor: dict[str, Event | None] = {}
    for event in story.events:
        if event.op is Op.OPEN and event.phase is Phase.INVOKE:
            floor[event.handle] = newest
        elif event.op is Op.OPEN and event.phase is Phase.OK:
            twin = by_epoch.setdefault(event.epoch, event)
            if twin is not event:
                yield Violation("I7", "one epoch, two writers", (twin, event))
            before = floor.get(event.handle)
            if before is not None and before.epoch >= event.epoch:
                yield Violation("I7", "a later opening got no higher epoch", (before, event))
            if newest is None or event.epoch > newest.epoch:
                newest = event
        elif event.op is Op.APPEND and event.phase is Phase.INVOKE and event.name in story.place:
            epoch = story.epoch_of(event)
            if newest is not None and NONE < epoch < newest.epoch:
                yield Violation("I7", "a message begun after the takeover got in", (newest, event))
    yield from _epochs_along_the_log(story)


def _epochs_along_the_log(story: Story) -> Iterator[Violation]:
    for earlier, later in pairwise(story.log):
        if later.epoch < earlier.epoch:
            yield Violation("I7", "epochs fall along the log", (earlier, later))
    for event in story.log:
        append = story.appends.get(event.name)
        epoch = NONE if append is None else story.epoch_of(append.began)
        if append is not None and epoch not in (NONE, event.epoch):
            yield Violation("I7", "delivered with another writer's epoch", (append.began, event))


def closed_is_closed(story: Story) -> Iterator[Violation]:
    """I8: the end of a closed ledger, once seen, never changes; sealed in the list, neither."""
    ends: dict[int, Event] = {}
    for event in story.closed:
        there = ends.setdefault(event.ledger_id, event)
        if (there.entry_id, there.bytes) != (event.entry_id, event.bytes):
            yield Violation("I8", "a closed ledger changed", (there, event))
    sealed: dict[int, tuple[Listed, Event]] = {}
    for event in story.lists:
        for segment in event.segments:
            if not segment.is_sealed:
                continue
            was, seen = sealed.setdefault(segment.number, (segment, event))
            if was != segment:
                yield Violation("I8", f"sealed segment {segment.number} changed", (seen, event))
            end = ends.get(segment.ledger_id)
            if end is not None and end.entry_id != segment.last_entry:
                yield Violation("I8", "sealed elsewhere than it is closed", (end, event))


def recovery_loses_nothing(story: Story) -> Iterator[Violation]:
    """I9: a ledger is closed at or above everything that was acked or delivered in it."""
    highest: dict[int, Event] = {}
    for event in story.events:
        told = event.op is Op.APPEND and event.phase is Phase.OK
        if event.id is not None and (told or event.op is Op.DELIVER):
            there = highest.get(event.id.ledger_id)
            if there is None or event.id.entry_id > _id(there).entry_id:
                highest[event.id.ledger_id] = event
    for event in story.closed:
        top = highest.get(event.ledger_id)
        if top is not None and event.entry_id < _id(top).entry_id:
            yield Violation("I9", "closed below a message", (top, event))


def list_is_well_formed(story: Story) -> Iterator[Violation]:
    """I15: numbers and ledgers rise, numbers are never used again, sealed ends chain; the newest
    list holds every ledger with an acked message."""
    ledgers: dict[int, tuple[int, Event]] = {}
    highest = NONE
    for event in story.lists:
        yield from _one_list(event)
        for segment in event.segments:
            ledger_id, seen = ledgers.setdefault(segment.number, (segment.ledger_id, event))
            if ledger_id != segment.ledger_id:
                yield Violation("I15", f"number {segment.number} was used again", (seen, event))
            elif seen is event and segment.number <= highest:
                yield Violation("I15", f"number {segment.number} came late", (event,))
        highest = max([highest, *(segment.number for segment in event.segments)])
    if not story.lists:
        return
    newest = story.lists[-1]
    listed = {segment.ledger_id for segment in newest.segments}
    for append in story.appends.values():
        end = append.end
        if end is not None and append.is_acked and end.t_ns < newest.t_ns:
            if _id(end).ledger_id not in listed:
                yield Violation("I15", "acked in a ledger that is not listed", (end, newest))


def _one_list(event: Event) -> Iterator[Violation]:
    for earlier, later in pairwise(event.segments):
        rises = later.number > earlier.number and later.ledger_id > earlier.ledger_id
        if not rises or later.epoch < earlier.epoch:
            yield Violation("I15", "the list does not rise", (event,))
        if later.is_sealed and not earlier.is_sealed:
            yield Violation("I15", "sealed behind an unsealed segment", (event,))
        if later.is_sealed and later.base_seq != earlier.next_seq:
            yield Violation("I15", "sealed ends do not chain", (event,))
    if sum(not segment.is_sealed for segment in event.segments) > 2:
        yield Violation("I15", "more than two segments are unsealed", (event,))


def readers_are_exact(story: Story) -> Iterator[Violation]:
    """I17, I5: from where it began, a reader delivers the log's messages, each once, in order."""
    for reading in story.readers.values():
        if reading.delivered and reading.delivered[0].seq != reading.began.seq != NONE:
            first = reading.delivered[0]
            yield Violation(
                "I17", "a reader did not begin where it was told", (reading.began, first)
            )
        for earlier, later in pairwise(reading.delivered):
            if later.seq != earlier.seq + 1:
                what = "skipped" if later.seq > earlier.seq else "repeated"
                yield Violation("I17", f"a reader {what}", (earlier, later))
            if story.place.get(later.name, NONE) != story.place.get(earlier.name, NONE) + 1:
                yield Violation("I5", "a reader saw another order than the log", (earlier, later))


def outcomes_are_honest(story: Story) -> Iterator[Violation]:
    """I24: each operation ends at most once; who lost to another writer is told to whom, with a
    higher epoch. (Fenced by nobody is only who was fenced while the log was still its own.)"""
    yield from story.strange
    newest: Event | None = None
    floor: dict[str, Event | None] = {}
    for event in story.events:
        if event.op is Op.OPEN and event.phase is Phase.OK:
            if newest is None or event.epoch > newest.epoch:
                newest = event
        elif event.phase is Phase.INVOKE:
            floor[event.name or event.handle] = newest
        if event.error != "Fenced":
            continue
        own, before = story.writers[event.handle].opened, floor.get(event.name or event.handle)
        epoch = NONE if own is None else own.epoch
        if event.winner_epoch == NONE or not event.winner:
            if before is not None and before.epoch > epoch:
                yield Violation("I24", "fenced, and not told by whom", (before, event))
        elif event.winner_epoch <= epoch:
            yield Violation("I24", "fenced by an epoch that is not higher", (event,))


CHECKERS: tuple[Checker, ...] = (
    acked_is_durable,
    acked_is_visible,
    no_phantom,
    delivery_is_repeatable,
    acks_are_in_order,
    prefixes_survive,
    ids_only_grow,
    one_effective_writer,
    closed_is_closed,
    recovery_loses_nothing,
    list_is_well_formed,
    readers_are_exact,
    outcomes_are_honest,
)


def violations(events: Iterable[Event], *, final: str) -> list[Violation]:
    story = Story(events, final=final)
    return [found for check in CHECKERS for found in islice(check(story), PER_CHECKER_MAX)]


def assert_holds(events: Iterable[Event], *, final: str) -> Story:
    """Raises `AssertionError` that tells what clashes, or gives the story."""
    story = Story(events, final=final)
    found = [each for check in CHECKERS for each in islice(check(story), PER_CHECKER_MAX)]
    if not story.appends:
        found.append(Violation("I24", "nothing was appended: this history proves nothing"))
    if found:
        raise AssertionError("\n".join(["the history breaks promises:", *map(str, found)]))
    return story


def _id(event: Event) -> MessageId:
    assert event.id is not None
    return event.id

"""The oracle of logs: sees the truth of both stores and everything that clients were told, and
knows what may never be. Each check names its promise (docs/INVARIANTS.md); `tests/sim/
test_log_oracle.py` shows each of them a bad history that it must refuse.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dlog.errors import DlogError, Outcome
from dlog.ids import MessageId, Token
from dlog.ledger.store import ClosedLedger
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Point, Sealed, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_from_bytes, refs_from_bytes
from dlog.reader.message import Message
from dlog.reader.resolve import Never, Present, Resolved, TooLate, Undecided
from dlog.testing.sim.log_heads import HeadOracle
from dlog.testing.sim.log_job_oracle import OF_A_JOB, JobOracle
from dlog.testing.sim.metadata import SimMeta
from dlog.testing.sim.world import World, require
from dlog.wire.batch import ControlKind, Seam, decode
from dlog.writer.core import WriterCore

if TYPE_CHECKING:
    from dlog.testing.sim.log_damage import Damage

NAME = "orders"
LAYOUT = Layout()
PATH = LAYOUT.log(NAME)
PIPES_MAX = 2
UNTOLD_MAX = 4  # segments that ended, until the next compare-and-set
BEFORE_ALL = MessageId(-1, -1, -1)
NO_POINT = Point()
_KNOWN = (
    "handles by_value acked_id acked_seq tail_id last_acked spans below "
    "was_terminated taken _now _paged _numbers _number_of _sealed _ends _at _listed"
).split()


@dataclass(slots=True)
class Sent:
    """One message that a writer handle took, and what it said of it."""

    value: bytes
    handle: Handle
    idx: int
    after: MessageId  # the largest id acknowledged to anyone before
    token: Token
    number: tuple[int, int] | None = None  # of its producer, which may send it by several handles
    id: MessageId | None = None
    seq: int = -1
    error: DlogError | None = None
    answer: Resolved | None = None  # the last one that is for good


@dataclass(slots=True, eq=False)
class Handle:
    """One open writer."""

    name: str
    epoch: int
    uid: str
    sent: list[Sent] = field(default_factory=list)
    resolved: int = 0  # so many of `sent`, from the first on
    failed: bool = False


class LedgerTruth(Protocol):
    """What is so with the ledgers, whoever knows it."""

    audit: Any

    def closed_end(self, ledger_id: int) -> ClosedLedger | None: ...
    def is_gone(self, ledger_id: int) -> bool: ...
    def is_durable(self, ledger_id: int, entry_id: int) -> bool: ...
    def is_readable(self, ledger_id: int, entry_id: int) -> bool: ...
    def entry(self, ledger_id: int, entry_id: int) -> bytes | None: ...


class LogOracle:
    def __init__(self, world: World, meta: SimMeta, ledgers: LedgerTruth) -> None:
        self.world = world
        self.meta = meta
        self.ledgers = ledgers
        meta.audit = self._on_node
        ledgers.audit = self
        self.handles: list[Handle] = []
        self.by_value: dict[bytes, Sent] = {}
        self.delivered: dict[tuple[str, int], Message] = {}
        self.last_delivered: dict[int, int] = {}  # per ledger, the highest entry
        self.last_acked: dict[int, int] = {}
        self.acked_id = BEFORE_ALL
        self.acked_seq: dict[str, int] = {}  # per uid, acked and visible
        self.tail_id: dict[str, MessageId] = {}  # the same as ids
        self.heads = HeadOracle(self)
        self.spans: dict[tuple[int, int], tuple[int, int]] = {}  # of pages: first and last segment
        self.below: dict[tuple[int, int], set[tuple[int, int]]] = {}  # the pages that a page names
        self._now: LogMeta | None = None  # the log meta as it truly is
        self._paged: dict[int, Segment] = {}
        self._numbers: dict[int, int] = {}  # segment number -> ledger id, for ever
        self._number_of: dict[int, int] = {}  # and back
        self._sealed: dict[int, Sealed] = {}
        self._ends: dict[int, ClosedLedger] = {}  # of ledgers, stored or told
        self._at: dict[MessageId, bytes] = {}  # what was acked where
        self._listed: set[int] = set()
        # Numbers of producers that somebody was told are there, per log, with their ids if known.
        self.taken: dict[tuple[str, int, int], MessageId | None] = {}
        self._numbers_there: dict[tuple[int, int], Message] = {}  # in the truth
        self.was_terminated = False
        self.damage: Damage | None = None  # that somebody does to the list
        self.jobs = JobOracle(self)

    def begin_as(self, other: LogOracle) -> None:
        """What another one knows of a log that was copied into our stores, all of it over by now:
        nothing changes in its handles and messages any more."""
        for name in _KNOWN:
            setattr(self, name, copy.copy(getattr(other, name)))
        self.heads.begin_as(other.heads)

    def is_of_the_log(self, path: str) -> bool:
        return path == PATH or path.startswith((self.pages_path + "/", self.holds_path + "/"))

    @property
    def now(self) -> LogMeta | None:
        return self._now

    def is_current(self, uid: str) -> bool:
        """Is the log of this uid there, and not being removed?"""
        return self._now is not None and self._now.uid == uid and not self._now.is_removed

    # --- metadata: I15

    def _on_node(self, path: str, raw: bytes) -> None:
        if path.startswith(self.pages_path):
            self._on_page(path[len(self.pages_path) + 1 :], raw)
        elif path.startswith(self.holds_path) and self.world.is_told:
            self.world.note(f"hold {path[len(self.holds_path) + 1 :]}: {raw.decode()}")
        if path == PATH:
            self._on_log(LogMeta.from_bytes(raw, where=PATH))

    def _on_page(self, name: str, raw: bytes) -> None:
        if self.damage is not None and self.damage.is_of(f"{self.pages_path}/{name}", raw):
            return
        number, _, level = name.partition(".")
        if level:
            refs = refs_from_bytes(raw, where=name)
            self.spans[int(level), int(number)] = refs[0].number, refs[-1].last_number
            self.below[int(level), int(number)] = {(ref.level, ref.number) for ref in refs}
        else:
            segments = self._true(page_from_bytes(raw, where=name))
            for segment in segments:
                assert segment.sealed is not None
                before = self._sealed.get(segment.number, segment.sealed)
                # Of a page that was written again, nobody tells when what was lost was sent.
                may_differ = {"last_time_us": before.last_time_us}
                agrees = before == dataclasses.replace(segment.sealed, **may_differ)
                require(agrees, "I8", "a page says something else", before, segment)
            self.spans[0, int(number)] = segments[0].number, segments[-1].number
            self._paged.update((segment.number, segment) for segment in segments)

    def _true(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return segments if self.damage is None else self.damage.truth(segments)

    def _on_log(self, new: LogMeta) -> None:
        new = dataclasses.replace(new, segments=self._true(new.segments))
        old, self._now = self._now, new
        if self.world.is_told:
            self.world.note(_told(new))
        if new == old:
            return
        require(len(new.unsealed) <= 2, "I15", "more than two segments are unsealed", new.unsealed)
        for segment in new.segments:
            ledger_id = self._numbers.setdefault(segment.number, segment.ledger_id)
            require(ledger_id == segment.ledger_id, "I15", "a number was used again", segment)
            number = self._number_of.setdefault(segment.ledger_id, segment.number)
            require(number == segment.number, "I23", "a ledger was listed twice", segment)
            if segment.sealed is not None:
                self._check_sealed(segment, segment.sealed)
            if segment.ledger_id not in self._listed and (not segment.sealed or segment.is_job):
                require(
                    segment.ledger_id > max(self._listed, default=-1),
                    "I6",
                    "a listed ledger id does not exceed all before",
                    segment,
                )
                self._listed.add(segment.ledger_id)
                self.heads.on_listed(new.uid, segment.ledger_id)
        for page in new.pages:
            span = self.spans.get((page.level, page.number))
            there = span == (page.number, page.last_number)
            require(there, "I15", "a page is not what the list says", page, span)
            self._check_ref(page)
        for before, after in itertools.pairwise(self._ends_listed(new)):
            require(before[1] == after[0], "I15", "the list has a gap", new.pages, new.segments)
        self.heads.on_log(old, new)
        self.was_terminated |= new.state is LogState.TERMINATED
        if old is None:
            return
        for name in ("epoch", "next_number", "ledger_floor"):
            before, after = getattr(old, name), getattr(new, name)
            require(after >= before, "I15", f"{name} went back", before, after)
        if new.uid == old.uid and not new.is_removed:
            over = old.state is LogState.TERMINATED
            require(not over or old.end == new.end, "I7", "a terminated log goes on", old, new)
            self._check_losses(old, new)

    def _check_ref(self, page: PageRef) -> None:
        if page.level > 0 or (self.damage is not None and self.damage.spoils(page)):
            return
        first, last = page.number, page.last_number
        held = tuple(s for n, s in sorted(self._paged.items()) if first <= n <= last)
        require(PageRef.of_segments(held) == page, "I15", "a page sums up something else", page)

    def _ends_listed(self, meta: LogMeta) -> list[tuple[int, int]]:
        ends: list[tuple[int, int]] = [(page.base_seq, page.next_seq) for page in meta.pages]
        sealed = (segment.sealed for segment in meta.segments)
        return ends + [(each.base_seq, each.next_seq) for each in sealed if each is not None]

    def _check_sealed(self, segment: Segment, sealed: Sealed) -> None:
        before = self._sealed.setdefault(segment.number, sealed)
        require(before == sealed, "I8", "a sealed segment changed", before, sealed)
        closed = self.ledgers.closed_end(segment.ledger_id) or self._ends.get(segment.ledger_id)
        require(
            closed is not None and closed.last_entry == sealed.last_entry,
            "I15",
            "a segment is sealed where its ledger is not closed",
            segment,
            closed,
        )

    def _check_losses(self, old: LogMeta, new: LogMeta) -> None:
        kept = {segment.number for segment in self.listed(new)}
        for segment in self.listed(old):
            if segment.number in kept:
                continue
            if segment.sealed is not None:
                self.heads.check_left(new, segment)
            else:
                acked = self.last_acked.get(segment.ledger_id)
                require(acked is None, "I1", "a segment with an acked message left", segment)
                seen = self.last_delivered.get(segment.ledger_id)
                require(seen is None, "I3b", "a segment with a delivered message left", segment)

    def listed(self, meta: LogMeta | None = None) -> list[Segment]:
        """All segments of the log as it truly is (or was), oldest first."""
        meta = meta or self._now
        if meta is None:
            return []
        if not meta.pages:
            return list(meta.segments)
        first_inline = meta.segments[0].number if meta.segments else meta.next_number
        first = meta.pages[0].number
        pages = [s for n, s in sorted(self._paged.items()) if first <= n < first_inline]
        return [*pages, *meta.segments]

    def sealed_before(self, number: int) -> int | None:
        """The segment before, whether it is in the list still or not."""
        return max((each for each in self._sealed if each < number), default=None)

    def number_of(self, ledger_id: int) -> int | None:
        """Of a ledger that is, or was, in the list."""
        return self._number_of.get(ledger_id)

    @property
    def ever_listed(self) -> list[int]:
        return sorted(self._listed)

    def on_seen(self, who: str, seen: Seen) -> None:
        """What a loop of compare-and-set came back with was stored, as that very version."""
        raw = self.meta.value_at(PATH, seen.version)
        there = None if raw is None else LogMeta.from_bytes(raw, where=PATH)
        require(there == seen.meta, "I23", "nothing like this was stored", who, seen, there)

    def on_step(self, who: str, core: WriterCore, window_entries: int) -> None:
        """Nothing that a writer holds grows with what happens to it."""
        in_flight = sum(pipe.in_flight_entries for pipe in core.pipes)
        # Seams and tables of producers ask nobody for room.
        tables = len(core.pipes) + 1 if core.seen.meta.producers else 0
        at_most = window_entries + len(core.pipes) + tables
        require(in_flight <= at_most, "I25", "more in flight than may be", who, in_flight)
        require(len(core.pipes) <= PIPES_MAX, "I25", "too many ledgers at once", who, core.pipes)
        untold = len(core.closed) + len(core.dropped)
        require(untold <= UNTOLD_MAX, "I25", "too much that the list was not told", who, untold)

    # --- ledgers: I9, I10, I16

    def on_submit(self, ledger_id: int, entry_id: int) -> None:
        if entry_id > 0:
            listed = ledger_id in self._listed or ledger_id in self.jobs.ledgers
            require(listed, "I16", "an entry went to a ledger that no list held", ledger_id)

    def on_close(self, ledger_id: int, closed: ClosedLedger) -> None:
        last_entry = closed.last_entry
        self._agree(ledger_id, closed, "a ledger was closed twice")
        acked = self.last_acked.get(ledger_id, -1)
        kept = last_entry >= acked
        require(kept, "I9", "a ledger was closed below an acked entry", ledger_id, closed, acked)
        seen = self.last_delivered.get(ledger_id, -1)
        kept = last_entry >= seen
        require(kept, "I9", "a ledger was closed below a delivered entry", ledger_id, closed, seen)

    def on_end_told(self, who: str, ledger_id: int, closed: ClosedLedger) -> None:
        """The answer to a close, or to a recovery."""
        self._agree(ledger_id, closed, f"{who} was told another end")

    def _agree(self, ledger_id: int, closed: ClosedLedger, what: str) -> None:
        before = self._ends.setdefault(ledger_id, closed)
        require(before == closed, "I10", what, ledger_id, before, closed)

    def on_delete(self, ledger_id: int) -> None:
        meta = self._now
        if meta is not None and not meta.is_removed:
            listed = any(segment.ledger_id == ledger_id for segment in self.listed())
            require(not listed, "I15", "a listed ledger was deleted", ledger_id)
        self.heads.on_delete(ledger_id)

    # --- writers: I4a, I7, I16, I24

    def opened(self, name: str, epoch: int, uid: str) -> Handle:
        require(
            epoch not in {handle.epoch for handle in self.handles},
            "I7",
            "an epoch was given twice",
            epoch,
        )
        if self.is_current(uid):
            for segment in self.listed():
                ended = segment.epoch >= epoch or segment.ledger_id in self._ends
                require(ended, "I7", "a writer opened beside a ledger that goes on", name, segment)
        handle = Handle(name, epoch, uid)
        self.handles.append(handle)
        self.world.note(f"{name} is open, epoch {epoch}")
        return handle

    def invoked(
        self, handle: Handle, value: bytes, seq: int, number: tuple[int, int] | None = None
    ) -> Sent:
        token = Token(handle.uid, handle.epoch, seq)
        sent = Sent(value, handle, len(handle.sent), self.acked_id, token, number)
        handle.sent.append(sent)
        self.by_value[value] = sent
        return sent

    def acked(self, sent: Sent, message_id: MessageId, seq: int, *, visible: bool) -> None:
        handle = sent.handle
        self._in_order(sent)
        require(not handle.failed, "I4a", "an ack after a failure", sent.value)
        require(message_id > sent.after, "I6", "an id is not above all acked before", message_id)
        before = self._at.setdefault(message_id, sent.value)
        require(before == sent.value, "I6", "an id was given twice", message_id, before)
        sent.id, sent.seq = message_id, seq
        require(seq == sent.token.seq, "I24", "a token named another seq", sent.token, seq)
        require(sent.answer in (None, Present(message_id)), "I24", "an ack after", sent.answer)
        if sent.number is not None:
            key = handle.uid, *sent.number
            told = self.taken.get(key)
            once = told in (None, message_id)
            require(once, "I29", "a number was acked again", key, told, message_id)
            self.taken[key] = message_id
        if self.world.is_told:
            self.world.note(f"{handle.name}: {sent.value!r} acked at {message_id}, seq {seq}")
        self.acked_id = max(self.acked_id, message_id)
        if visible:  # what any reader may count on from now on
            self.acked_seq[handle.uid] = max(seq, self.acked_seq.get(handle.uid, -1))
            self.tail_id[handle.uid] = max(message_id, self.tail_id.get(handle.uid, BEFORE_ALL))
        if self.is_current(handle.uid) and not self.heads.is_truncated(handle.uid, seq):
            self._check_ack(message_id, visible)

    def _check_ack(self, message_id: MessageId, visible: bool) -> None:
        ledger_id, entry_id, _ = message_id
        self.last_acked[ledger_id] = max(entry_id, self.last_acked.get(ledger_id, -1))
        durable = self.ledgers.is_durable(ledger_id, entry_id)
        require(durable, "I1", "an entry was acked that is not durable", message_id)
        readable = not visible or self.ledgers.is_readable(ledger_id, entry_id)
        require(readable, "I3c", "an entry was acked that nobody can read", message_id)
        listed = self.listed()
        place = next((i for i, s in enumerate(listed) if s.ledger_id == ledger_id), None)
        require(place is not None, "I15", "an acked ledger is not in the list", message_id)
        for segment in listed[:place]:
            closed = self.ledgers.closed_end(segment.ledger_id)
            # A successor of ours that never got a seam may stand before it, recovered to its birth.
            require(closed is not None, "I16", "an ack before all before is closed", message_id)

    def told_there(self, handle: Handle, number: tuple[int, int], id: MessageId | None) -> None:
        """`AlreadyExists`."""
        key = handle.uid, *number
        before = self.taken.setdefault(key, id)
        agrees = id is None or before in (None, id)
        require(agrees, "I29", "a number is there, but elsewhere than acked", key, before, id)
        if before is None:
            self.taken[key] = id
        self.world.note(f"{handle.name}: number {number[1]} of {number[0]} is there, at {id}")

    def resolved(self, sent: Sent, answer: Resolved, *, visible_before: bool) -> None:
        """What somebody was told who asked for a message; `visible_before`: it was acked, and to be
        read by anybody, when they asked."""
        self.world.note(f"{sent.value!r} is {answer}")
        self.world.mark(f"resolved: {type(answer).__name__.lower()}")
        if isinstance(answer, Undecided):
            there = visible_before and self.is_current(sent.handle.uid)
            require(not there, "I24", "undecided, and it was acked", sent)
            # Not yet acked, it may be there for one who asked and not for the next: both are right.
        elif isinstance(answer, TooLate):
            uid = sent.handle.uid
            gone = not self.is_current(uid) or self.heads.is_truncated(uid, sent.token.seq)
            require(gone, "I24", "too late to tell, and the log is there", sent, answer)
        else:
            require(
                sent.answer in (None, answer), "I24", "another answer than before", sent, answer
            )
            sent.answer = answer
            self._check_answer(sent, sent.id)

    def _check_answer(self, sent: Sent, id: MessageId | None) -> None:
        """`id`: where it is, as far as that is known."""
        if isinstance(sent.answer, Present):
            refused = sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED
            require(not refused, "I24", "present, and it was refused", sent)
            require(id in (None, sent.answer.id), "I24", "present elsewhere", sent, id)
        elif isinstance(sent.answer, Never):
            require(id is None, "I24", "never, and it is there", sent, id)

    def refused(self, sent: Sent, error: DlogError) -> None:
        self._in_order(sent)
        sent.error = error
        sent.handle.failed = True
        self.world.note(f"{sent.handle.name}: {sent.value!r} {error.outcome.value}: {error}")
        self.check_phantom(sent)

    def _in_order(self, sent: Sent) -> None:
        handle = sent.handle
        require(sent.idx == handle.resolved, "I4a", "tickets resolve out of order", sent.value)
        handle.resolved += 1

    def check_phantom(self, sent: Sent) -> None:
        if sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED:
            there = any(message.value == sent.value for message in self.delivered.values())
            require(not there, "I2", "a refused message was delivered", sent.value)

    # --- readers: I2, I3b, I5, I6, I13

    pages_path = LAYOUT.pages(NAME)
    holds_path = LAYOUT.holds(NAME)

    def on_delivered(
        self, reader: str, uid: str, message: Message, point: Point = NO_POINT
    ) -> None:
        """`point`: where the log begins as far as the reader knows."""
        if self.world.is_told:
            self.world.note(f"{reader}: {message.value!r} at {message.id}, seq {message.seq}")
        kept = point == NO_POINT or message.seq >= self.heads.head_of(uid, point)
        require(kept, "I18", "what the reader knew to be truncated was delivered", message, point)
        assert message.value is not None
        there = self._at.get(message.id, message.value)
        whole = there == message.value and message.key is None and not message.headers
        require(whole, "I13", "not the bytes that were appended there", message, there)
        sent = self.by_value.get(message.value)
        require(sent is not None, "I2", "a message was delivered that nobody sent", message)
        assert sent is not None
        refused = sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED
        require(not refused, "I2", "a refused message was delivered", message)
        is_right = sent.handle.epoch in (message.epoch, OF_A_JOB)
        require(is_right, "I7", "another writer's epoch", message)
        if sent.id is not None:
            require(sent.id == message.id, "I1", "delivered elsewhere than acked", message, sent.id)
        before = self.delivered.setdefault((uid, message.seq), message)
        require(before == message, "I3b", "two messages at one seq", before, message)
        last = max(message.entry_id, self.last_delivered.get(message.ledger_id, -1))
        self.last_delivered[message.ledger_id] = last

    # --- the end: everything against the log as it truly is

    def truth(self) -> list[Message]:
        """The log, read from the entries themselves. All of it must be sealed."""
        found: list[Message] = []
        self._numbers_there = {}
        end: tuple[int, int] | None = None
        for segment in self.listed():
            sealed = segment.sealed
            require(sealed is not None, "I27", "a segment is not sealed at the end", segment)
            assert sealed is not None
            ledger_id = segment.ledger_id
            gone = self.ledgers.is_gone(ledger_id)
            require(not gone, "I1", "a listed ledger is gone", segment)
            for entry_id in range(sealed.last_entry + 1):
                raw = self.ledgers.entry(ledger_id, entry_id)
                require(raw is not None, "I8", "an entry of a closed ledger is gone", entry_id)
                assert raw is not None
                entry = decode(raw, where=f"{ledger_id}:{entry_id}")
                if entry.control is ControlKind.SEAM:
                    seam = Seam.from_bytes(entry.control_body, where="")
                    named = (seam.predecessor_ledger, seam.predecessor_last)
                    require(end in (None, named), "I4b", "a seam names another end", end, named)
                if entry.control is not None:
                    continue
                base = sealed.base_seq + entry.first_seq
                for i, (value, at) in enumerate(
                    zip(entry.values(), entry.timestamps_us(), strict=True)
                ):
                    found.append(
                        Message(ledger_id, entry_id, i, base + i, None, value, (),
                                max(at, segment.not_before_us), None,
                                segment.epoch)
                    )  # fmt: skip
                if entry.producer is not None:
                    producer_id, first_number = entry.producer
                    for i, message in enumerate(found[-entry.count :]):
                        number = producer_id, first_number + i
                        before = self._numbers_there.setdefault(number, message)
                        require(before is message, "I29", "a number is there twice", number)
            end = (ledger_id, sealed.last_entry)
        return found

    def check_log(self, uid: str, log: list[Message]) -> None:
        """I1, I2, I4b, I5, I6, I7, I24 and the stamps, over the whole log."""
        base_seq = log[0].seq if log else self.heads.head_seq(uid)
        head_seq = self.heads.head_seq(uid)
        require(
            base_seq <= head_seq, "I19", "messages behind the head are gone", base_seq, head_seq
        )
        for seq, message in enumerate(log, base_seq):
            require(message.seq == seq, "I5", "seqs have a gap", seq, message)
        for before, after in itertools.pairwise(log):
            require(before.id < after.id, "I6", "ids do not grow", before, after)
            require(before.epoch <= after.epoch, "I7", "epochs go back", before, after)
            stamped = before.timestamp_us <= after.timestamp_us
            require(stamped, "DL-02", "timestamps go back", before, after)
        at = {message.value: message for message in log}
        require(len(at) == len(log), "I5", "a message is there twice", len(at), len(log))
        for handle in self.handles:
            if handle.uid == uid:
                self._check_handle(handle, at, head_seq)
        for (of, seq), message in self.delivered.items():
            if of == uid and seq >= base_seq:
                there = seq < base_seq + len(log) and log[seq - base_seq][:4] == message[:4]
                require(there, "I3b", "a delivered message is not in the log", message)
        for message in log:
            self._check_sent(message)
        for (of, *number), id in self.taken.items():
            if of == uid:
                found = self._numbers_there.get((number[0], number[1]))
                if found is None and head_seq > 0:  # truncated
                    continue
                require(found is not None, "I29", "a number was answered and is lost", number)
                assert found is not None
                require(id in (None, found.id), "I29", "a number is elsewhere", number, id, found)

    def _check_handle(self, handle: Handle, at: dict[bytes | None, Message], head_seq: int) -> None:
        missing: Sent | None = None
        last: Message | None = None
        for sent in handle.sent:
            there = at.get(sent.value)
            if there is None and head_seq > 0:  # truncated, or perhaps so: nothing is there before
                if sent.seq < head_seq if sent.id is not None else last is None:
                    continue
            if sent.number is not None and there is not None:
                found = self._numbers_there.get(sent.number)
                require(found == there, "I29", "a number was lost", sent, found)
            if isinstance(sent.answer, Present):
                require(there is not None, "I24", "present, and it is not there", sent)
            self._check_answer(sent, None if there is None else there.id)
            if sent.id is not None:
                require(there is not None, "I1", "an acked message is lost", sent.value, sent.id)
                assert there is not None
                exact = (there.id, there.seq) == (sent.id, sent.seq)
                require(exact, "I1", "acked elsewhere", sent.value, sent.id, sent.seq, there)
            if there is None:
                missing = missing or sent
                continue
            require(missing is None, "I4b", "later without earlier", missing, sent.value)
            in_order = last is None or last.seq < there.seq
            require(in_order, "I4a", "not in the order of submits", sent.value)
            last = there

    def _check_sent(self, message: Message) -> None:
        assert message.value is not None
        sent = self.by_value.get(message.value)
        require(sent is not None, "I2", "a message is in the log that nobody sent", message)
        assert sent is not None
        refused = sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED
        require(not refused, "I24", "what was refused for certain is in the log", message)
        require(message.id > sent.after, "I6", "an id is not above all acked before", message)


def _told(meta: LogMeta) -> str:
    writer = None if meta.writer is None else meta.writer.name
    segments = (f"{s.number}:{s.ledger_id}{'' if s.sealed else '*'}" for s in meta.segments)
    return (
        f"log meta: epoch {meta.epoch}, writer {writer}, {meta.state.value}, segments "
        + " ".join(segments)
    )

"""The oracle: sees the truth of both stores and everything that clients were told, and knows what
may never be. Each check names its promise (docs/INVARIANTS.md); `tests/sim/test_oracle.py` shows
each of them a bad history that it must refuse."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from dlog.errors import DlogError, Outcome
from dlog.ids import MessageId
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState, Sealed, Segment, page_from_bytes
from dlog.reader.message import Message
from dlog.wire.batch import ControlKind, Seam, decode
from tests.sim.ledgers import SimLedger, SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.world import Violation, World

NAME = "orders"
LAYOUT = Layout()
PATH = LAYOUT.log(NAME)
BEFORE_ALL = MessageId(-1, -1, -1)


@dataclass(slots=True)
class Sent:
    """One message that a writer handle took, and what it said of it."""

    value: bytes
    handle: Handle
    idx: int
    after: MessageId  # the largest id acknowledged to anyone before
    id: MessageId | None = None
    seq: int = -1
    error: DlogError | None = None


@dataclass(slots=True, eq=False)
class Handle:
    """One open writer."""

    name: str
    epoch: int
    uid: str
    sent: list[Sent] = field(default_factory=list)
    resolved: int = 0  # so many of `sent`, from the first on
    failed: bool = False
    epochs_open: int = 0  # the largest epoch whose open had returned when this opened


class Oracle:
    def __init__(self, world: World, meta: SimMeta, ledgers: SimLedgers) -> None:
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
        self.epoch_open = 0  # the largest epoch whose open has returned
        self._now: LogMeta | None = None  # the log meta as it truly is
        self._paged: dict[int, Segment] = {}
        self._numbers: dict[int, int] = {}  # segment number -> ledger id, for ever
        self._sealed: dict[int, Sealed] = {}
        self._listed: set[int] = set()

    @property
    def now(self) -> LogMeta | None:
        return self._now

    def is_current(self, uid: str) -> bool:
        """Is the log of this uid there, and not being removed?"""
        return self._now is not None and self._now.uid == uid and self._now.state is LogState.OPEN

    # --- metadata: I15

    def _on_node(self, path: str, raw: bytes) -> None:
        if path.startswith(PATH + "/pages/"):
            for segment in page_from_bytes(raw, where=path):
                self._paged[segment.number] = segment
        if path == PATH:
            self._on_log(LogMeta.from_bytes(raw, where=PATH))

    def _on_log(self, new: LogMeta) -> None:
        old, self._now = self._now, new
        writer = None if new.writer is None else new.writer.name
        self.world.note(
            f"log meta: epoch {new.epoch}, writer {writer}, {new.state.value}, segments "
            + " ".join(f"{s.number}:{s.ledger_id}{'' if s.sealed else '*'}" for s in new.segments)
        )
        require(len(new.unsealed) <= 2, "I15", "more than two segments are unsealed", new.unsealed)
        for segment in new.segments:
            ledger_id = self._numbers.setdefault(segment.number, segment.ledger_id)
            require(ledger_id == segment.ledger_id, "I15", "a number was used again", segment)
            if segment.sealed is not None:
                self._check_sealed(segment, segment.sealed)
            elif segment.ledger_id not in self._listed:
                require(
                    segment.ledger_id > max(self._listed, default=-1),
                    "I6",
                    "a listed ledger id does not exceed all before",
                    segment,
                )
                self._listed.add(segment.ledger_id)
        if old is None:
            return
        for name in ("epoch", "next_number", "ledger_floor"):
            before, after = getattr(old, name), getattr(new, name)
            require(after >= before, "I15", f"{name} went back", before, after)
        if new.uid == old.uid and new.state is LogState.OPEN:
            self._check_losses(old, new)

    def _check_sealed(self, segment: Segment, sealed: Sealed) -> None:
        before = self._sealed.setdefault(segment.number, sealed)
        require(before == sealed, "I8", "a sealed segment changed", before, sealed)
        ledger = self.ledgers.ledgers[segment.ledger_id]
        closed = ledger.closed
        require(
            closed is not None and closed.last_entry == sealed.last_entry,
            "I15",
            "a segment is sealed where its ledger is not closed",
            segment,
            closed,
        )

    def _check_losses(self, old: LogMeta, new: LogMeta) -> None:
        kept = {segment.number for segment in new.segments}
        last_page = new.pages[-1].last_number if new.pages else 0
        for segment in old.segments:
            if segment.number in kept:
                continue
            if segment.sealed is not None:
                paged = segment.number <= last_page and segment.number in self._paged
                require(paged, "I15", "a sealed segment left the list", segment)
            else:
                acked = self.last_acked.get(segment.ledger_id)
                require(acked is None, "I1", "a segment with an acked message left", segment)
                seen = self.last_delivered.get(segment.ledger_id)
                require(seen is None, "I3b", "a segment with a delivered message left", segment)

    def listed(self) -> list[Segment]:
        """All segments of the log as it truly is, oldest first."""
        meta = self._now
        if meta is None:
            return []
        first_inline = meta.segments[0].number if meta.segments else meta.next_number
        first = meta.pages[0].number if meta.pages else first_inline
        pages = [s for n, s in sorted(self._paged.items()) if first <= n < first_inline]
        return [*pages, *meta.segments] if meta.pages else list(meta.segments)

    # --- ledgers: I9, I16

    def on_submit(self, ledger: SimLedger, entry_id: int) -> None:
        if entry_id > 0:
            listed = ledger.id in self._listed
            require(listed, "I16", "an entry went to a ledger that no list held", ledger.id)

    def on_close(self, ledger: SimLedger) -> None:
        assert ledger.closed is not None
        last_entry = ledger.closed.last_entry
        require(
            last_entry >= self.last_acked.get(ledger.id, -1),
            "I9",
            "a ledger was closed below an acked entry",
            ledger.id,
            last_entry,
        )
        require(
            last_entry >= self.last_delivered.get(ledger.id, -1),
            "I9",
            "a ledger was closed below a delivered entry",
            ledger.id,
            last_entry,
        )

    def on_delete(self, ledger: SimLedger) -> None:
        meta = self._now
        if meta is not None and meta.state is LogState.OPEN:
            listed = any(segment.ledger_id == ledger.id for segment in self.listed())
            require(not listed, "I15", "a listed ledger was deleted", ledger.id)

    # --- writers: I4a, I7, I16, I24

    def opened(self, name: str, epoch: int, uid: str) -> Handle:
        require(
            epoch not in {handle.epoch for handle in self.handles},
            "I7",
            "an epoch was given twice",
            epoch,
        )
        handle = Handle(name, epoch, uid, epochs_open=self.epoch_open)
        self.handles.append(handle)
        self.epoch_open = max(self.epoch_open, epoch)
        self.world.note(f"{name} is open, epoch {epoch}")
        return handle

    def invoked(self, handle: Handle, value: bytes) -> Sent:
        sent = Sent(value, handle, len(handle.sent), self.acked_id)
        handle.sent.append(sent)
        self.by_value[value] = sent
        return sent

    def acked(self, sent: Sent, message_id: MessageId, seq: int, *, visible: bool) -> None:
        handle = sent.handle
        self._in_order(sent)
        require(not handle.failed, "I4a", "an ack after a failure", sent.value)
        require(message_id > sent.after, "I6", "an id is not above all acked before", message_id)
        sent.id, sent.seq = message_id, seq
        self.world.note(f"{handle.name}: {sent.value!r} acked at {message_id}, seq {seq}")
        self.acked_id = max(self.acked_id, message_id)
        if visible:  # what any reader may count on from now on
            self.acked_seq[handle.uid] = max(seq, self.acked_seq.get(handle.uid, -1))
            self.tail_id[handle.uid] = max(message_id, self.tail_id.get(handle.uid, BEFORE_ALL))
        if self.is_current(handle.uid):
            self._check_ack(message_id, visible)

    def _check_ack(self, message_id: MessageId, visible: bool) -> None:
        ledger_id, entry_id, _ = message_id
        self.last_acked[ledger_id] = max(entry_id, self.last_acked.get(ledger_id, -1))
        ledger = self.ledgers.ledgers[ledger_id]
        require(
            entry_id <= (ledger.committed if ledger.closed is None else ledger.closed.last_entry),
            "I1",
            "an entry was acked that is not durable",
            message_id,
        )
        readable = ledger.readable >= entry_id or not visible
        require(readable, "I3c", "an entry was acked that nobody can read", message_id)
        listed = self.listed()
        place = next((i for i, s in enumerate(listed) if s.ledger_id == ledger_id), None)
        require(place is not None, "I15", "an acked ledger is not in the list", message_id)
        for segment in listed[:place]:
            closed = self.ledgers.ledgers[segment.ledger_id].closed
            # A successor of ours that never got a seam may stand before it, recovered to its birth.
            require(closed is not None, "I16", "an ack before all before is closed", message_id)

    def refused(self, sent: Sent, error: DlogError) -> None:
        self._in_order(sent)
        sent.error = error
        sent.handle.failed = True
        self.world.note(f"{sent.handle.name}: {sent.value!r} {error.outcome.value}: {error}")
        self._check_phantom(sent)

    def _in_order(self, sent: Sent) -> None:
        handle = sent.handle
        require(sent.idx == handle.resolved, "I4a", "tickets resolve out of order", sent.value)
        handle.resolved += 1

    def _check_phantom(self, sent: Sent) -> None:
        if sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED:
            there = any(message.value == sent.value for message in self.delivered.values())
            require(not there, "I2", "a refused message was delivered", sent.value)

    # --- readers: I2, I3b, I5, I6, I13

    def on_delivered(self, reader: str, uid: str, message: Message) -> None:
        self.world.note(f"{reader}: {message.value!r} at {message.id}, seq {message.seq}")
        assert message.value is not None
        sent = self.by_value.get(message.value)
        require(sent is not None, "I2", "a message was delivered that nobody sent", message)
        assert sent is not None
        refused = sent.error is not None and sent.error.outcome is Outcome.NOT_HAPPENED
        require(not refused, "I2", "a refused message was delivered", message)
        require(sent.handle.epoch == message.epoch, "I7", "another writer's epoch", message)
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
        end: tuple[int, int] | None = None
        for segment in self.listed():
            sealed = segment.sealed
            require(sealed is not None, "I27", "a segment is not sealed at the end", segment)
            assert sealed is not None
            ledger = self.ledgers.ledgers[segment.ledger_id]
            require(not ledger.deleted, "I1", "a listed ledger is gone", segment)
            for entry_id in range(sealed.last_entry + 1):
                entry = decode(ledger.stored[entry_id], where=f"{segment.ledger_id}:{entry_id}")
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
                        Message(ledger.id, entry_id, i, base + i, None, value, (), at, None,
                                segment.epoch)
                    )  # fmt: skip
            end = (ledger.id, sealed.last_entry)
        return found

    def check_log(self, uid: str, log: list[Message]) -> None:
        """I1, I2, I4b, I5, I6, I7, I24 and the stamps, over the whole log."""
        for seq, message in enumerate(log):
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
                self._check_handle(handle, at)
        for (of, seq), message in self.delivered.items():
            if of == uid:
                there = seq < len(log) and log[seq][:4] == message[:4]
                require(there, "I3b", "a delivered message is not in the log", message)
        for message in log:
            self._check_sent(message)

    def _check_handle(self, handle: Handle, at: dict[bytes | None, Message]) -> None:
        missing: Sent | None = None
        last: Message | None = None
        for sent in handle.sent:
            there = at.get(sent.value)
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


def require(holds: bool, promise: str, what: str, *evidence: object) -> None:
    if not holds:
        raise Violation(f"{promise}: {what}: {', '.join(map(repr, evidence))}")

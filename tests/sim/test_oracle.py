"""A silent checker is the worst bug: each check of the oracle refuses a history made to break
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from dlog.errors import Outcome, Timeout, WriterClosed
from dlog.ids import MessageId
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.meta.log_meta import LogMeta, Sealed, WriterMark
from dlog.options import LogOptions
from dlog.reader.message import Message
from tests.sim.ledgers import SimLedger, SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.oracle import PATH, Handle, Oracle, Sent
from tests.sim.world import Violation, Weather, World, new_world

UID = "u"
META = LogMeta(UID, LogOptions(), epoch=1, writer=WriterMark("t", "w", 0)).listed(5)


class Scene:
    """A log with one open segment, ledger 5, and one writer."""

    def __init__(self) -> None:
        quiet = {f.name: f.default for f in dataclasses.fields(Weather)}
        self.world: World = new_world(0, **quiet)
        self.meta = SimMeta(self.world)
        self.ledgers = SimLedgers(self.world)
        self.oracle = Oracle(self.world, self.meta, self.ledgers)
        self.ledger = self.ledgers.ledgers[5] = SimLedger(5, LedgerSpec())
        self.ledger.stored = [b""] * 10
        self.ledger.committed = self.ledger.published = 9
        self.write(META)
        self.handle: Handle = self.oracle.opened("w", 1, UID)
        self.first: Sent = self.oracle.invoked(self.handle, b"a")
        self.second: Sent = self.oracle.invoked(self.handle, b"b")

    def write(self, meta: LogMeta) -> None:
        self.meta._set(PATH, meta.to_bytes())

    def ack(self, sent: Sent, entry_id: int, seq: int = 0) -> None:
        self.oracle.acked(sent, MessageId(5, entry_id, 0), seq, visible=True)

    def message(self, value: bytes, entry_id: int, seq: int, epoch: int = 1) -> Message:
        return Message(5, entry_id, 0, seq, None, value, (), 7, None, epoch)

    def deliver(self, message: Message) -> None:
        self.oracle.on_delivered("r", UID, message)

    def log(self, *messages: Message) -> None:
        self.oracle.check_log(UID, list(messages))


def _refused() -> WriterClosed:
    return WriterClosed("closed")


def _two_acks(scene: Scene) -> None:
    scene.ack(scene.first, 2, 0)
    scene.ack(scene.second, 3, 1)


def _lost_ack(scene: Scene) -> None:
    _two_acks(scene)
    scene.log(scene.message(b"a", 2, 0))


def _acked_elsewhere(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.log(scene.message(b"a", 3, 0))


def _not_durable(scene: Scene) -> None:
    scene.ledger.committed = 1
    scene.ack(scene.first, 2)


def _not_visible(scene: Scene) -> None:
    scene.ledger.published = 1
    scene.ack(scene.first, 2)


def _delivered_after_refusal(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.deliver(scene.message(b"a", 2, 0))


def _refused_after_delivery(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 2, 0))
    scene.oracle.refused(scene.first, _refused())


def _refused_in_the_log(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.log(scene.message(b"a", 2, 0))


def _later_without_earlier(scene: Scene) -> None:
    for sent in (scene.first, scene.second):
        scene.oracle.refused(sent, Timeout("?", outcome=Outcome.UNKNOWN))
    scene.log(scene.message(b"b", 2, 0))


def _ack_after_failure(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.ack(scene.second, 2)


def _ids_go_back(scene: Scene) -> None:
    scene.ack(scene.first, 3)
    late = scene.oracle.invoked(scene.handle, b"c")
    scene.handle.resolved = late.idx
    scene.ack(late, 2)


def _delivered_twice(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 2, 0))
    scene.deliver(scene.message(b"b", 3, 0))


def _delivered_then_gone(scene: Scene) -> None:
    scene.deliver(scene.message(b"b", 2, 0))
    scene.log()


def _epochs_go_back(scene: Scene) -> None:
    scene.log(scene.message(b"a", 2, 0, epoch=2), scene.message(b"b", 3, 1))


def _number_again(scene: Scene) -> None:
    scene.write(dataclasses.replace(META, segments=(), ledger_floor=-1, next_number=1).listed(6))


def _sealed_open(scene: Scene) -> None:
    scene.write(META.sealed(1, Sealed(4, 0, 0, 2, 0, 0)))


def _sealed_changes(scene: Scene) -> None:
    scene.ledger.closed = ClosedLedger(4, 0)
    scene.write(META.sealed(1, Sealed(4, 0, 0, 2, 0, 0)))
    scene.write(META.sealed(1, Sealed(4, 0, 0, 3, 0, 0)))


def _acked_segment_dropped(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.write(META.dropped(1, 0))


def _closed_below(scene: Scene) -> None:
    scene.ack(scene.first, 3)
    scene.ledgers.close_at(scene.ledger, 2)


BAD: list[tuple[str, Callable[[Scene], None]]] = [
    ("I1: an acked message is lost", _lost_ack),
    ("I1: acked elsewhere", _acked_elsewhere),
    ("I1: an entry was acked that is not durable", _not_durable),
    ("I3c", _not_visible),
    ("I2: a refused message was delivered", _delivered_after_refusal),
    ("I2: a refused message was delivered", _refused_after_delivery),
    ("I24", _refused_in_the_log),
    ("I2", lambda scene: scene.deliver(scene.message(b"nobody's", 2, 0))),
    ("I4b", _later_without_earlier),
    ("I4a: an ack after a failure", _ack_after_failure),
    ("I4a: tickets resolve out of order", lambda scene: scene.ack(scene.second, 2)),
    ("I6", _ids_go_back),
    ("I3b: two messages at one seq", _delivered_twice),
    ("I3b: a delivered message is not in the log", _delivered_then_gone),
    ("I5: seqs have a gap", lambda scene: scene.log(scene.message(b"a", 2, 1))),
    ("I7: epochs go back", _epochs_go_back),
    ("I7: an epoch was given twice", lambda scene: scene.oracle.opened("v", 1, UID)),
    ("I15: a number was used again", _number_again),
    ("I15: a segment is sealed where", _sealed_open),
    ("I15: a listed ledger was deleted", lambda scene: scene.ledgers._delete(5)),
    ("I8", _sealed_changes),
    ("I1: a segment with an acked message left", _acked_segment_dropped),
    ("I9", _closed_below),
    ("I16", lambda scene: scene.oracle.on_submit(SimLedger(6, LedgerSpec()), 1)),
    ("I15: epoch went back", lambda scene: scene.write(dataclasses.replace(META, epoch=0))),
]


@pytest.mark.parametrize(
    ("promise", "history"), BAD, ids=[f"{p}-{i}" for i, (p, _) in enumerate(BAD)]
)
def test_a_bad_history_is_refused(promise: str, history: Callable[[Scene], None]) -> None:
    with pytest.raises(Violation, match=promise):
        history(Scene())


def test_a_good_history_passes() -> None:
    scene = Scene()
    _two_acks(scene)
    messages = [scene.message(b"a", 2, 0), scene.message(b"b", 3, 1)]
    for message in messages:
        scene.deliver(message)
    scene.log(*messages)

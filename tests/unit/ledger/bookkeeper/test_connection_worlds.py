"""Connections under everything a bookie may do, at random: answers late, double, never, in any
order, cut at any byte, with the end at any moment. Each request is answered exactly once, and by
its own answer."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest

from dlog.ledger.bookkeeper.core.connection import SWEEP_S
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, Opcode, ReadReply
from dlog.wire.bookie_v3 import pack_write_lac
from dlog.wire.bookie_v3_replies import Response
from tests.unit.ledger.bookkeeper.link_tools import (
    KEY,
    Control,
    Data,
    Sink,
    add_frame,
    add_reply,
    batch_reply,
    entry_of,
    lac_response,
    read_reply,
)

STEPS = 300
SEEDS = 150


@dataclass
class Asked:
    """One request of ours. Its key, which only bookies look at, is its name: they answer with
    it."""

    key: bytes
    deadline_s: float
    answers: list[tuple[Answer, list[bytes]]] = field(default_factory=list)

    def on_read(self, reply: ReadReply) -> None:
        self.answers.append((reply.answer, [] if reply.entry is None else [bytes(reply.entry)]))

    def on_batch(self, reply: BatchReadReply) -> None:
        self.answers.append((reply.answer, [bytes(entry) for entry in reply.entries]))


class Bookie:
    """Reads what was sent, and owes an answer to each of it."""

    def __init__(self, link: Data, chance: random.Random) -> None:
        self.link = link
        self.chance = chance
        self.read_count = 0
        self.owed: list[bytes] = []

    def hear(self) -> None:
        for frame in self.link.sent[self.read_count :]:
            if frame[5] == Opcode.READ:
                ledger_id, entry_id = struct.unpack_from(">qq", frame, 8)
                self.owed.append(read_reply(ledger_id, entry_id, entry_of(frame[-20:])))
            elif frame[5] == Opcode.BATCH_READ:
                ledger_id, first, request_id, count = struct.unpack_from(">qqqi", frame, 8)
                entries = [entry_of(frame[-20:])] * self.chance.randint(1, count)
                self.owed.append(batch_reply(ledger_id, first, request_id, entries))
        self.read_count = len(self.link.sent)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_read_is_answered_once_and_by_its_own_answer(seed: int) -> None:
    chance = random.Random(seed)
    link, sink = Data(may_fence=True), Sink()
    bookie = Bookie(link, chance)
    asked: list[Asked] = []
    stream = bytearray()
    doubles: list[bytes] = []
    now_s = 0.0
    lost = chance.choice((0.0, 0.0, 0.2))  # of its answers
    acks = 0
    link.attach(5, sink)

    def arrive(bytes_max: int) -> None:
        while stream and bytes_max > 0:
            count = min(len(stream), chance.choice((1, 3, 27, 28, 29, 200, 5000)))
            bytes_max -= count
            piece = bytes(stream[:count])
            del stream[:count]
            link.receive(piece)

    for step in range(STEPS):
        bookie.hear()
        dice = chance.random()
        if dice < 0.40:
            mine = Asked(step.to_bytes(20, "big"), now_s + chance.choice((0.1, 0.5, 5.0)))
            asked.append(mine)
            if dice < 0.30:
                link.read(
                    7,
                    chance.choice((-1, 0, 0, 1, 2)),
                    deadline_s=mine.deadline_s,
                    fence_key=mine.key,
                    on_reply=mine.on_read,
                )
            else:
                link.batch_read(
                    7,
                    chance.choice((0, 0, 4)),
                    count_max=3,
                    deadline_s=mine.deadline_s,
                    fence_key=mine.key,
                    on_reply=mine.on_batch,
                )
        elif dice < 0.70 and bookie.owed:
            reply = bookie.owed.pop(chance.randrange(len(bookie.owed)))
            if chance.random() >= lost:
                stream += reply
            if reply[5] == Opcode.BATCH_READ:
                doubles.append(reply)
        elif dice < 0.73 and doubles:
            stream += chance.choice(doubles)
        elif dice < 0.80:
            link.send_adds(5, add_frame(), entries=1, bytes=5)
            stream += add_reply(5, acks) + add_reply(6, acks)
            acks += 1
        elif dice < 0.95:
            arrive(chance.choice((1, 40, 1000)))
        else:
            now_s += chance.choice((SWEEP_S, 0.3))
            link.sweep(now_s)
            assert all(mine.answers for mine in asked if mine.deadline_s <= now_s)

    if chance.random() < 0.5:
        arrive(1 << 30)
    link.down(Answer.DISCONNECTED)
    for mine in asked:
        assert len(mine.answers) == 1
        answer, entries = mine.answers[0]
        assert (answer is Answer.OK) is bool(entries)
        assert set(entries) <= {entry_of(mine.key)}
        assert answer is not Answer.TIMED_OUT or mine.deadline_s <= now_s
    told = [entry for _, run in sink.told for entry in run]
    assert told == list(range(len(told)))


@pytest.mark.parametrize("seed", range(SEEDS // 3))
def test_every_question_is_answered_once_and_by_its_own_answer(seed: int) -> None:
    chance = random.Random(seed)
    link = Control()
    answers: list[list[Response]] = []
    owed: list[bytes] = []
    stream = bytearray()
    now_s = 0.0
    for _ in range(STEPS):
        dice = chance.random()
        if dice < 0.4:
            mine: list[Response] = []
            answers.append(mine)
            txn_id = len(answers)
            link.ask(
                lambda txn_id: pack_write_lac(txn_id, 7, 3, bytes(20), master_key=KEY),
                deadline_s=now_s + chance.choice((0.1, 1.0)),
                on_answer=mine.append,
            )
            owed.append(lac_response(txn_id, ledger_id=txn_id))
        elif dice < 0.7 and owed:
            reply = owed.pop(chance.randrange(len(owed)))
            stream += reply * chance.choice((0, 1, 1, 1, 2))
        elif dice < 0.9:
            count = min(len(stream), chance.choice((1, 10, 1000)))
            piece = bytes(stream[:count])
            del stream[:count]
            link.receive(piece)
        else:
            now_s += 0.1
            link.sweep(now_s)
    link.down(Answer.DISCONNECTED)
    for txn_id, mine in enumerate(answers, 1):
        assert len(mine) == 1
        assert mine[0].txn_id == txn_id
        assert mine[0].body is None or mine[0].body.ledger_id == txn_id  # type: ignore[union-attr]

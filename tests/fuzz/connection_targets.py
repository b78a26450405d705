"""The cores of connections, fed with answers that are nearly right: the input is the stream that a
bookie sends while reads, adds and questions are in flight.

A plain model says what each answer must come to. Whatever comes, every request is answered exactly
once, by an answer to it or by the end; an answer that nobody waits for changes nothing; after bytes
that are no answer the connection is at its end.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Any, ClassVar

from dlog.errors import Corrupt, FormatError
from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.data_connection import DataConnection
from dlog.wire import bookie_v3
from dlog.wire.bookie_auth import AuthMessage
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import master_key
from dlog.wire.bookie_v2 import AddReplies, BatchReadReply, ReadReply, pack_add, parse_reply
from dlog.wire.bookie_v3_replies import Response, parse_response
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target, require
from tests.fuzz.wire_targets import (
    CRC32C,
    HERE,
    LEDGER,
    V2_WORDS,
    V3_WORDS,
    cuts_of,
    framed,
    naive_frames,
    stored,
    v2_add,
    v2_auth,
    v2_batch,
    v2_bodies,
    v2_read,
    v3_bodies,
    v3_reply,
)

_CAP = 5 * (1 << 20) + 1024
_KEY = master_key(b"secret")
_FRAME = (
    pack_add(CRC32C.pack_head(LEDGER, 3, 2, 9, [b"x"]), payload_bytes=1, master_key=_KEY) + b"x"
)

# Asked, in this order; the last read waits behind the first one.
_READS = ((LEDGER, 3), (LEDGER, 4), (LEDGER, -1), (8, 0), (LEDGER, 3))
_BATCHES = {1: (LEDGER, 0, 3), 2: (LEDGER, 4, 1)}
_ATTACHED = (LEDGER, 8)

Event = tuple[Any, ...]


def _ignore(*_: object) -> None:
    pass


class _Sink:
    def __init__(self, events: list[Event], ledger_id: int) -> None:
        self._events = events
        self._ledger_id = ledger_id

    def on_adds(self, link: object, answer: Answer, entry_ids: list[int]) -> None:
        self._events += [("add", self._ledger_id, answer, each) for each in entry_ids]

    def on_room(self, link: object) -> None:
        pass

    def on_down(self, link: object, answer: Answer) -> None:
        self._events.append(("down", self._ledger_id))


class DataConnections(Target):
    name = "data-connection"
    dictionary = (
        *V2_WORDS,
        framed(v2_add(0, LEDGER, 3)),
        framed(v2_read(2, LEDGER, 4)),
    )

    def seeds(self) -> list[bytes]:
        bodies = v2_bodies()
        adds = b"".join(framed(v2_add(0, LEDGER + entry % 2, entry)) for entry in range(5))
        return [
            adds,
            b"".join(map(framed, bodies[5:9])) + adds[:56],
            framed(v2_read(0, LEDGER, 3, stored(3, b"one"))) * 3 + framed(bodies[9]),
            framed(v2_read(1, LEDGER, 4)) + framed(v2_read(0, LEDGER, -1, stored(5, b"last"))),
            framed(v2_batch(0, 4, 2, [stored(4, b"a")])) + framed(bodies[9]) + framed(bodies[11]),
            framed(v2_auth("p", b"x")) + framed(v2_read(2, 8, 0)) + framed(v2_batch(1, 0, 1)),
            *(framed(body) for body in bodies),
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: object) -> bytes:
        return _mutate_bodies(mutator, raw, corpus)  # type: ignore[arg-type]

    def check(self, raw: bytes) -> str:
        expected, strays, broken = self._model(raw)
        events: list[Event] = []
        down: list[Event] = []
        core = DataConnection(
            None,  # type: ignore[arg-type]
            HERE,
            send=_ignore,
            note=_ignore,
            on_hung=_ignore,
            on_room=_ignore,
            may_fence=False,
        )
        for ledger_id in _ATTACHED:
            core.attach(ledger_id, _Sink(events, ledger_id))
        core.send_adds(LEDGER, _FRAME, entries=1, bytes=len(_FRAME))
        for index, (ledger_id, entry_id) in enumerate(_READS):
            core.read(
                ledger_id,
                entry_id,
                deadline_s=9.0,
                fence_key=None,
                on_reply=partial(self._on_read, events, index),
            )
        for ledger_id, first, count in _BATCHES.values():
            core.batch_read(
                ledger_id,
                first,
                count_max=count,
                deadline_s=9.0,
                on_reply=partial(self._on_batch, events, first),
            )
        error: Exception | None = None
        try:
            for chunk in cuts_of(raw):
                core.receive(chunk)
        except (Corrupt, FormatError) as refused:
            error = refused
        require((error is not None) == broken, "what is no answer ends the connection", error)
        # Answers to adds are given ledger by ledger; the order within a ledger is what counts.
        # A run whose frames are broken further behind may be refused before its first one.
        _compare(events, expected, broken)
        if not broken:
            require(core.strays == strays, "answers nobody waits for are counted", core.strays)
            answered = sum(event[0] in ("read", "batch") for event in expected)
            require(
                core._waiting() == len(_READS) + len(_BATCHES) - answered,
                "what was not answered is waited for",
                core._waiting(),
            )
        require(core.entries_in_flight == 1, "no answer settles by itself", core.entries_in_flight)
        told = len(events)
        core.down(Answer.DISCONNECTED)
        down = events[told:]
        each = Counter(event[1] for event in events if event[0] == "read")
        require(sorted(each.elements()) == list(range(5)), "each read is answered once", events)
        batches = sorted(event[1] for event in events if event[0] == "batch")
        require(batches == [0, 4], "each batch read is answered once", events)
        ends = sorted(event[1] for event in down if event[0] == "down")
        require(ends == [7, 8], "each ledger hears of the end once", down)
        require(core._waiting() == 0 and core.is_idle(), "nothing is left")
        if error is not None:
            raise error
        return f"{'answers' if events[:told] else 'strays'} {min(4, told)}"

    def _on_read(self, events: list[Event], index: int, reply: ReadReply) -> None:
        require(
            (reply.ledger_id, reply.entry_id) == _READS[index],
            "a read is answered as it was asked",
            reply,
        )
        require((reply.entry is not None) == (reply.answer is Answer.OK), "bytes with OK", reply)
        events.append(("read", index, reply.answer, reply.entry and bytes(reply.entry)))

    def _on_batch(self, events: list[Event], first: int, reply: BatchReadReply) -> None:
        require(reply.first_entry == first, "a batch read is answered as it was asked", reply)
        events.append(("batch", first, reply.answer, len(reply.entries)))

    def _model(self, raw: bytes) -> tuple[list[Event], Counter[str], bool]:
        """What must come of it, frame by frame; whether it breaks at its end."""
        events: list[Event] = []
        strays: Counter[str] = Counter()
        waiting: dict[tuple[int, int], deque[int]] = {}
        for index, key in enumerate(_READS):
            waiting.setdefault(key, deque()).append(index)
        batches = dict(_BATCHES)
        bodies, fatal = naive_frames(raw, _CAP)
        for body in bodies:
            try:
                reply = parse_reply(memoryview(body), HERE)
            except (Corrupt, FormatError):
                return events, strays, True
            if isinstance(reply, AuthMessage):
                strays["authentication"] += 1
            elif isinstance(reply, AddReplies):
                ledger_id, entry_id = reply.ledger_ids[0], reply.entry_ids[0]
                if ledger_id in _ATTACHED:
                    events.append(("add", ledger_id, reply.answer, entry_id))
                else:
                    strays["add"] += 1
            elif isinstance(reply, ReadReply):
                queue = waiting.get((reply.ledger_id, reply.entry_id))
                if not queue:
                    strays["read"] += 1
                    continue
                entry = reply.entry and bytes(reply.entry)
                events.append(("read", queue.popleft(), reply.answer, entry))
            elif reply.request_id not in batches:
                strays["batch read"] += 1
            else:
                ledger_id, first, count = batches[reply.request_id]
                if (reply.ledger_id, reply.first_entry) != (ledger_id, first) or (
                    len(reply.entries) > count
                ):
                    return events, strays, True
                del batches[reply.request_id]
                events.append(("batch", first, reply.answer, len(reply.entries)))
        return events, strays, fatal


def _compare(events: list[Event], expected: list[Event], broken: bool) -> None:
    if broken:
        events, expected = events[:], expected[:]
    for kind in ("read", "batch", *_ATTACHED):
        ours = [
            event for event in events if kind in (event[0], event[1] if event[0] == "add" else "")
        ]
        model = [
            event for event in expected if kind in (event[0], event[1] if event[0] == "add" else "")
        ]
        require(ours == model, "answers reach those who asked, in order", ours, model)


def _mutate_bodies(mutator: Mutator, raw: bytes, corpus: list[bytes]) -> bytes:
    """One of the frames, with its length put right; or the stream as it stands; or two streams."""
    drawn = mutator.random()
    if drawn < 0.15:
        return raw + mutator.choice(corpus)
    if drawn < 0.65:
        bodies, fatal = naive_frames(raw, 1 << 16)
        if bodies and not fatal:
            at = mutator.below(len(bodies))
            bodies[at] = mutator.mutate(bodies[at], bodies)
            return b"".join(map(framed, bodies))
    return mutator.mutate(raw, corpus)


class ControlConnections(Target):
    """Questions 1 to 6 are asked; an answer to another number is dropped."""

    name = "control-connection"
    dictionary = (
        *V3_WORDS,
        *map(framed, v3_bodies()[:4]),
    )

    _asked: ClassVar = {
        1: bookie_v3.Operation.READ,
        2: bookie_v3.Operation.READ,
        3: bookie_v3.Operation.WRITE_LAC,
        4: bookie_v3.Operation.READ_LAC,
        5: bookie_v3.Operation.FORCE,
        6: bookie_v3.Operation.GET_BOOKIE_INFO,
    }

    def seeds(self) -> list[bytes]:
        bodies = v3_bodies()
        by_operation = {1: bodies[0], 6: bodies[6], 7: bodies[7], 8: bodies[8], 10: bodies[10]}
        answers = []
        for txn_id, operation in self._asked.items():
            body = by_operation[int(operation)]
            # The header is field 1, and the number in it the only thing that differs.
            answers.append(self._numbered(body, int(operation), txn_id))
        streams = [b"".join(map(framed, answers)), b"".join(map(framed, reversed(answers)))]
        streams += [framed(answers[0]) * 2, framed(answers[1]) + framed(bodies[3])]
        return streams + [
            framed(each) for each in (*answers, *bodies[:3], v3_reply(10, 5, 505, None))
        ]

    def _numbered(self, body: bytes, operation: int, txn_id: int) -> bytes:
        header = v3_reply(operation, txn_id, 0, None)
        front = 2 + header[1]
        return header[:front] + body[2 + body[1] :]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: object) -> bytes:
        drawn = mutator.random()
        if drawn < 0.5:
            bodies, fatal = naive_frames(raw, 1 << 16)
            if bodies and not fatal:
                at = mutator.below(len(bodies))
                bodies[at] = mutator.mutate_fields(bodies[at])
                return b"".join(map(framed, bodies))
        return _mutate_bodies(mutator, raw, corpus)  # type: ignore[arg-type]

    def check(self, raw: bytes) -> str:
        expected, strays, broken = self._model(raw)
        events: list[Event] = []
        core = ControlConnection(HERE, send=_ignore, note=_ignore)
        packs = {
            bookie_v3.Operation.READ: lambda txn: bookie_v3.pack_read(txn, LEDGER, 3),
            bookie_v3.Operation.WRITE_LAC: lambda txn: bookie_v3.pack_write_lac(
                txn, LEDGER, 2, b"proof", master_key=_KEY
            ),
            bookie_v3.Operation.READ_LAC: lambda txn: bookie_v3.pack_read_lac(txn, LEDGER),
            bookie_v3.Operation.FORCE: lambda txn: bookie_v3.pack_force(txn, LEDGER),
            bookie_v3.Operation.GET_BOOKIE_INFO: bookie_v3.pack_get_bookie_info,
        }
        for txn_id, operation in self._asked.items():
            core.ask(
                packs[operation],
                deadline_s=9.0,
                on_answer=partial(self._on_answer, events, txn_id),
            )
        error: Exception | None = None
        try:
            for chunk in cuts_of(raw):
                core.receive(chunk)
        except (Corrupt, FormatError) as refused:
            error = refused
        require((error is not None) == broken, "what is no answer ends the connection", error)
        require(events == expected, "answers reach those who asked, in order", events, expected)
        if not broken:
            require(core.strays["response"] == strays, "others are counted", core.strays)
            waiting = len(self._asked) - len(expected)
            require(core._waiting() == waiting, "what was not answered is waited for", waiting)
        told = len(events)
        core.down(Answer.DISCONNECTED)
        require(
            sorted(event[0] for event in events) == [*self._asked],
            "each question is answered once",
            events,
        )
        require(core.is_idle(), "nothing is left")
        if error is not None:
            raise error
        return f"{'answers' if told else 'strays'} {told}"

    def _on_answer(self, events: list[Event], txn_id: int, response: Response) -> None:
        require(response.operation is self._asked[txn_id], "the answer to the question", response)
        events.append((txn_id, response))

    def _model(self, raw: bytes) -> tuple[list[Event], int, bool]:
        events: list[Event] = []
        strays = 0
        waiting = dict(self._asked)
        bodies, fatal = naive_frames(raw, _CAP)
        for body in bodies:
            try:
                response = parse_response(body, HERE)
            except (Corrupt, FormatError):
                return events, strays, True
            operation = waiting.get(response.txn_id)
            if operation is None:
                strays += 1
            elif operation is not response.operation:
                return events, strays, True
            else:
                del waiting[response.txn_id]
                events.append((response.txn_id, response))
        return events, strays, fatal


TARGETS = (DataConnections(), ControlConnections())

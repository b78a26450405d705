"""One script for a real bookie and a simulated one: same requests, same answers.

A script is a list of steps, drawn from a tape or written by hand: adds of every kind, reads, batch
reads, fences, LACs written and read, long polls, a kill or a shutdown with a restart. A `Subject`
answers one request at a time, as bytes; what the codecs make of its answers is the transcript, and
that of the simulated bookie must be that of the real one, line by line.

What is left out is what a real bookie may answer in two ways: the last entry while entries that
were added again are in its write cache, and what was on its way to the disk when it was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dlog.testing.sim.bookie import SimBookie
from dlog.testing.sim.server import WARM_UP_MS, Manners, Server
from dlog.testing.sim.tape import Chance, of_tape
from dlog.testing.sim.wire_server import WireServer
from dlog.testing.sim.world import World
from dlog.wire import bookie_v2, bookie_v3
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v2 import AddReplies, BatchReadReply, Flag, ReadReply
from dlog.wire.bookie_v3_replies import ReadBody, ReadLacBody, parse_response

POLL_MS = 100
_PASSWORD, _OTHER_PASSWORD = b"ours", b"theirs"
_DIGEST = EntryDigest(DigestType.CRC32C, _PASSWORD)


class Subject(Protocol):
    """A bookie under test, with connections of its own that are made anew after a restart."""

    def ask(self, frame: bytes, *, binary: bool) -> bytes | None:
        """The answer's frame without its length; None if it closes the connection instead."""
        ...

    def kill(self) -> None:
        """-9, and up again."""
        ...

    def shut_down(self) -> None:
        """SIGTERM, and up again."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What is done, in words, and how."""

    words: str
    run: Callable[[Subject], str]


def play(steps: list[Step], subject: Subject) -> list[str]:
    return [f"{step.words} → {step.run(subject)}" for step in steps]


# --- steps


def add(
    ledger_id: int,
    entry_id: int,
    last_confirmed: int,
    *,
    recovery: bool = False,
    other_key: bool = False,
    payload: bytes | None = None,
) -> Step:
    payload = b"entry %d" % entry_id if payload is None else payload
    head = _DIGEST.pack_head(ledger_id, entry_id, last_confirmed, 1 << 20, (payload,))
    flags = Flag.RECOVERY_ADD if recovery else Flag.NONE
    key = master_key(_OTHER_PASSWORD if other_key else _PASSWORD)
    frame = bookie_v2.pack_add(head, payload_bytes=len(payload), master_key=key, flags=flags)
    words = f"add {entry_id} of {ledger_id} with LAC {last_confirmed}"
    words += " by a recovery" * recovery + " with another key" * other_key
    return Step(words, partial(_ask_binary, frame + payload))


def read(ledger_id: int, entry_id: int, *, fence: bool = False, other_key: bool = False) -> Step:
    key = master_key(_OTHER_PASSWORD if other_key else _PASSWORD) if fence else None
    frame = bookie_v2.pack_read(ledger_id, entry_id, fence_key=key)
    words = f"read {entry_id} of {ledger_id}"
    words += " and fence" * fence + " with another key" * (fence and other_key)
    return Step(words, partial(_ask_binary, frame))


def batch_read(
    ledger_id: int, first_entry: int, count_max: int, frame_bytes_max: int, *, fence: bool = False
) -> Step:
    frame = bookie_v2.pack_batch_read(
        ledger_id,
        first_entry,
        request_id=1,
        count_max=count_max,
        frame_bytes_max=frame_bytes_max,
        fence_key=master_key(_PASSWORD) if fence else None,
    )
    words = f"read {count_max} from {first_entry} of {ledger_id} in {frame_bytes_max} bytes"
    return Step(words + " and fence" * fence, partial(_ask_binary, frame))


def write_lac(ledger_id: int, last_confirmed: int, *, other_key: bool = False) -> Step:
    frame = bookie_v3.pack_write_lac(
        1,
        ledger_id,
        last_confirmed,
        _DIGEST.pack_lac(ledger_id, last_confirmed),
        master_key=master_key(_OTHER_PASSWORD if other_key else _PASSWORD),
    )
    words = f"write LAC {last_confirmed} of {ledger_id}" + " with another key" * other_key
    return Step(words, partial(_ask_protobuf, frame))


def read_lac(ledger_id: int) -> Step:
    frame = bookie_v3.pack_read_lac(1, ledger_id)
    return Step(f"read LAC of {ledger_id}", partial(_ask_protobuf, frame))


def long_poll(ledger_id: int, previous_lac: int) -> Step:
    frame = bookie_v3.pack_long_poll(1, ledger_id, previous_lac=previous_lac, timeout_ms=POLL_MS)
    return Step(f"poll {ledger_id} past {previous_lac}", partial(_ask_protobuf, frame))


def force(ledger_id: int) -> Step:
    return Step(f"force {ledger_id}", partial(_ask_protobuf, bookie_v3.pack_force(1, ledger_id)))


def kill() -> Step:
    def run(subject: Subject) -> str:
        subject.kill()
        return "up"

    return Step("kill -9, restart", run)


def shut_down() -> Step:
    def run(subject: Subject) -> str:
        subject.shut_down()
        return "up"

    return Step("SIGTERM, restart", run)


def _ask_binary(frame: bytes, subject: Subject) -> str:
    raw = subject.ask(frame, binary=True)
    if raw is None:
        return "closed"
    reply = bookie_v2.parse_reply(memoryview(raw), "the bookie")
    if isinstance(reply, AddReplies):
        return f"{reply.answer.value} {reply.entry_ids}"
    if isinstance(reply, ReadReply):
        return f"{reply.answer.value} {_entry(reply.entry)}"
    assert isinstance(reply, BatchReadReply)
    return f"{reply.answer.value} {[_entry(entry) for entry in reply.entries]}"


def _ask_protobuf(frame: bytes, subject: Subject) -> str:
    raw = subject.ask(frame, binary=False)
    if raw is None:
        return "closed"
    response = parse_response(raw, "the bookie")
    body = response.body
    if isinstance(body, ReadBody):
        told = f"{body.entry_id} {_entry(body.entry)}, LAC {body.last_confirmed}"
    elif isinstance(body, ReadLacBody):
        proof = None if body.proof is None else bytes(body.proof).hex()
        told = f"proof {proof}, last {_entry(body.last_entry)}"
    else:
        told = ""
    return f"{response.answer.value} {told}".rstrip()


def _entry(raw: memoryview | None) -> str:
    return "nothing" if raw is None else bytes(raw).hex()


# --- scripts


def written(ledger_id: int) -> list[Step]:
    """What matters most, in one story. Five ledgers from `ledger_id` on."""
    a, b, c, d, e = range(ledger_id, ledger_id + 5)
    return [
        read(a, 0),
        read(a, -1),
        batch_read(a, 0, 10, 1 << 20),
        read_lac(a),
        long_poll(a, -1),
        force(a),
        # a: an ordinary ledger
        add(a, 0, -1),
        add(a, 1, 0),
        add(a, 3, 1),
        read(a, 1),
        read(a, 2),
        read(a, -1),
        batch_read(a, 0, 10, 1 << 20),
        batch_read(a, 0, 10, 120),
        batch_read(a, 0, 10, 1),
        batch_read(a, 2, 10, 1 << 20),
        add(a, 4, 3, other_key=True),
        write_lac(a, 1, other_key=True),
        read_lac(a),
        long_poll(a, 0),
        long_poll(a, 1),
        write_lac(a, 2),
        read_lac(a),
        write_lac(a, 1),
        read_lac(a),
        long_poll(a, 1),
        long_poll(a, 2),
        add(a, 1, 0, payload=b"again, and another one"),
        read(a, 1),
        read(a, 3, fence=True, other_key=True),
        add(a, 4, 3),
        read(a, -1, fence=True),
        add(a, 5, 4),
        add(a, 5, 3, recovery=True),
        read(a, 5),
        long_poll(a, 4),
        # b: fenced before it is known
        read(b, -1, fence=True),
        add(b, 0, -1),
        add(b, 0, -1, recovery=True),
        read(b, 0),
        add(b, 1, 0, other_key=True, recovery=True),
        # c: only a LAC
        write_lac(c, -1),
        read_lac(c),
        read(c, -1),
        batch_read(c, 0, 3, 1 << 20, fence=True),
        add(c, 0, -1),
        # d: LACs that no header may carry drive its own idea
        add(d, 0, -1),
        write_lac(d, 7),
        long_poll(d, 3),
        long_poll(d, 7),
        add(d, 1, 0),
        long_poll(d, -1),
        # e: a fence with an ordinary entry, over kills; b has none
        add(e, 0, -1),
        read(e, 0, fence=True),
        kill(),
        add(e, 1, 0),
        read(e, -1),
        add(b, 2, 0),
        read(b, -1),
        read_lac(a),
        long_poll(a, 0),
        read(d, -1),
        read(b, -1, fence=True),
        shut_down(),
        add(b, 3, 0),
        read(b, 2),
        add(e, 1, 0, recovery=True),
        read(e, -1),
    ]


def drawn(chance: Chance, first_ledger: int, count: int) -> list[Step]:
    """Anything, on a few ledgers from `first_ledger` on, without restarts."""
    steps: list[Step] = []
    highest: dict[int, int] = {}
    for _ in range(count):
        ledger_id = first_ledger + chance.randrange(3)
        last = highest.get(ledger_id, -1)
        kind = chance.randrange(10)
        if kind < 4:
            # Rising ids, with gaps: what was added again may or may not be "the last".
            entry_id = last + 1 + chance.pick((0, 0, 1))
            lac = min(entry_id - 1, chance.randrange(entry_id + 1) - 1)
            is_recovery, is_other = chance.hits(0.2), chance.hits(0.1)
            steps.append(add(ledger_id, entry_id, lac, recovery=is_recovery, other_key=is_other))
            if not is_other:
                highest[ledger_id] = entry_id
        elif kind < 6:
            entry_id = chance.randrange(last + 3) - 1
            is_fence = chance.hits(0.1)
            steps.append(
                read(ledger_id, entry_id, fence=is_fence, other_key=is_fence and chance.hits(0.3))
            )
        elif kind == 6:
            first_entry = chance.randrange(last + 2)
            steps.append(
                batch_read(
                    ledger_id,
                    first_entry,
                    1 + chance.randrange(5),
                    chance.pick((1 << 20, 100, 200)),
                    fence=chance.hits(0.05),
                )
            )
        elif kind == 7:
            lac = chance.randrange(last + 2) - 1
            steps.append(write_lac(ledger_id, lac, other_key=chance.hits(0.1)))
        elif kind == 8:
            steps.append(read_lac(ledger_id))
        else:
            steps.append(long_poll(ledger_id, chance.randrange(last + 2) - 1))
    return steps


# --- the simulated one


class SimSubject:
    """A bookie without faults, each request in its own moment."""

    def __init__(self) -> None:
        self._world = World(of_tape(()))
        self._server = Server(self._world, SimBookie("b0"), Manners())
        self._streams: dict[bool, _Stream] = {}

    def ask(self, frame: bytes, *, binary: bool) -> bytes | None:
        stream = self._streams.get(binary)
        if stream is None or not stream.peer.is_up:
            stream = self._streams[binary] = _Stream(self._server)
        stream.answers.clear()
        self._server.hear(stream.peer, partial(stream.peer.receive, frame))
        self._world.run(done=lambda: bool(stream.answers) or not stream.peer.is_up)
        self._world.run(until_ms=self._world.now_ms + 10.0)
        return stream.answers[0] if stream.answers else None

    def kill(self) -> None:
        self._again(self._server.kill)

    def shut_down(self) -> None:
        self._again(self._server.terminate)

    def _again(self, end: Callable[[], None]) -> None:
        end()
        self._server.start()
        self._world.run(until_ms=self._world.now_ms + WARM_UP_MS + 1.0)


class _Stream:
    def __init__(self, server: Server) -> None:
        self.answers: list[bytes] = []
        self._splitter = FrameSplitter("the simulated bookie")
        self.peer = WireServer(server, send=self._receive, reset=lambda: None)

    def _receive(self, data: bytes) -> None:
        self._splitter.feed(data)
        while (run := self._splitter.next_run()) is not None:
            self.answers += [bytes(body) for body in run.bodies()]

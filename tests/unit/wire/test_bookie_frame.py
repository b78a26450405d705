"""The frame splitter: the same frames for any cuts, bounded memory, nothing after a fatal error."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Broken, FormatError
from dlog.limits import BOOKIE_REPLY_BYTES_MAX, MIB
from dlog.wire.bookie_frame import ALIKE_BYTES, FrameSplitter
from tests.unit.wire.bookie_tools import UNHURRIED, frame, runs

ACK = frame("v2", "add_reply")
BODIES = st.lists(st.binary(min_size=4, max_size=40), max_size=30)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def ack(entry_id: int, code: int = 0) -> bytes:
    return struct.pack(">iIiqq", 24, 0x02010000, code, 7, entry_id)


def split(*chunks: bytes, body_bytes_max: int = BOOKIE_REPLY_BYTES_MAX) -> list[bytes]:
    splitter = FrameSplitter("here", body_bytes_max=body_bytes_max)
    return [
        bytes(body) for chunk in chunks for run in runs(splitter, chunk) for body in run.bodies()
    ]


@UNHURRIED
@given(BODIES, st.data())
def test_any_cuts_give_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert split(stream) == bodies  # whole
    assert split(*(stream[at : at + 1] for at in range(len(stream)))) == bodies  # byte by byte
    assert split(*chunks) == bodies
    assert split(stream + b"\0\0\0\x09tail") == bodies  # with a beginning behind


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), max_size=12),
    st.tuples(st.integers(0, 2), st.integers(0, 27)),
)
def test_runs_hold_what_looks_alike(groups: list[tuple[int, int]], last: tuple[int, int]) -> None:
    cut = ack(0, last[0])[: last[1]]  # begins as those before it, and is not whole
    codes = [code for code, count in groups for _ in range(count)]
    stream = b"".join(ack(at, code) for at, code in enumerate(codes))
    splitter = FrameSplitter("here")
    seen = []
    for run in runs(splitter, stream + cut):
        heads = {bytes(run.view[at : at + ALIKE_BYTES]) for at in range(0, len(run.view), 28)}
        assert len(heads) == 1
        assert len(run.view) == run.frame_bytes * run.frame_count
        seen += [int.from_bytes(body[4:8], "big") for body in run.bodies()]
    assert seen == codes
    assert splitter.waiting_bytes == len(cut)


def test_a_whole_read_of_acks_is_one_run_without_a_copy() -> None:
    chunk = b"".join(map(ack, range(500)))
    (run,) = runs(FrameSplitter("here"), chunk)
    assert (run.frame_count, run.frame_bytes) == (500, 28)
    assert run.view.obj is chunk


def test_alike_frames_behind_others_are_runs_too() -> None:
    chunk = b"".join([framed(b"other"), *map(ack, range(3)), framed(b"other"), *map(ack, range(4))])
    counts = [run.frame_count for run in runs(FrameSplitter("here"), chunk)]
    assert counts == [1, 3, 1, 4]


@pytest.mark.parametrize("cut", range(ALIKE_BYTES, len(ACK)))
def test_a_frame_alike_that_has_not_come_whole_is_not_handed_out(cut: int) -> None:
    """Also in a read that is known to hold several runs."""
    frames = [ack(0), ack(1), ack(2, 1), ack(3, 1)]
    stream = b"".join(frames)
    end = len(stream) - len(ACK) + cut
    assert split(stream[:end], stream[end:]) == [each[4:] for each in frames]


def test_what_came_early_is_not_changed_by_what_comes_later() -> None:
    splitter = FrameSplitter("here")
    first, second = framed(b"first"), framed(b"second")
    assert list(runs(splitter, first[:3])) == []
    (run,) = runs(splitter, first[3:] + second[:5])
    (later,) = runs(splitter, second[5:])
    assert [bytes(body) for body in run.bodies()] == [b"first"]
    assert [bytes(body) for body in later.bodies()] == [b"second"]
    assert splitter.waiting_bytes == 0


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 3, BOOKIE_REPLY_BYTES_MAX + 1, 0x7FFFFFFF])
@pytest.mark.parametrize("cut", [0, 2, 28, 30])
def test_a_length_that_cannot_be_ends_the_stream(length: int, cut: int) -> None:
    stream = ACK + struct.pack(">i", length) + ACK
    splitter = FrameSplitter("bookie b1")
    frames, told = 0, ""
    for chunk in (stream[:cut], stream[cut:]):
        splitter.feed(chunk)
        try:
            while (run := splitter.next_run()) is not None:
                frames += run.frame_count
        except FormatError as error:
            told = str(error)
    assert frames == 1
    assert splitter.waiting_bytes == 0
    assert f"bookie b1: a frame of {length} bytes" in told
    splitter.feed(ACK)
    for _ in range(2):
        with pytest.raises(FormatError):
            splitter.next_run()


def test_the_largest_frame_is_taken() -> None:
    body = bytes(BOOKIE_REPLY_BYTES_MAX)
    stream = framed(body)
    assert split(stream[: 3 * MIB], stream[3 * MIB :]) == [body]


def test_memory_grows_with_what_came_not_with_what_is_claimed() -> None:
    splitter = FrameSplitter("here")
    tracemalloc.start()
    assert list(runs(splitter, struct.pack(">i", BOOKIE_REPLY_BYTES_MAX) + bytes(1000))) == []
    for _ in range(1000):
        assert list(runs(splitter, b"x")) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert splitter.waiting_bytes == 2004
    assert peak < 64 << 10


class Watched(bytes):
    """Bytes that count how many of them were looked at by slicing."""

    looked_at = 0

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        Watched.looked_at += len(found) if isinstance(where, slice) else 1
        return found


def test_a_mixed_read_costs_linear_time() -> None:
    """Pairs of alike frames: each pair begins a run, none may look at all that is behind it."""
    chunk = Watched(b"".join(ack(at, at >> 1 & 1) for at in range(20_000)))
    assert len(list(runs(FrameSplitter("here"), chunk))) == 10_000
    assert 0 < Watched.looked_at < len(chunk)


def test_limits_can_change_between_frames() -> None:
    splitter = FrameSplitter("here", body_bytes_max=8)
    (run,) = runs(splitter, framed(b"12345678"))
    assert run.frame_count == 1
    splitter.limit_bodies(100)
    (run,) = runs(splitter, framed(bytes(100)))
    with pytest.raises(FormatError):
        list(runs(splitter, framed(bytes(101))))


def test_feeding_before_draining_is_a_mistake() -> None:
    splitter = FrameSplitter("here")
    splitter.feed(ACK)
    with pytest.raises(Broken):
        splitter.feed(ACK)

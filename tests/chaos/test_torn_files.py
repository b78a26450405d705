"""The last ledger file cut at every byte of its last frames, and bits of it flipped, below the
whole stack: every acked message is kept, or `Corrupt` names file and offset. Never a silent
loss."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlog import aio
from dlog.errors import Corrupt
from dlog.ids import MessageId
from dlog.ledger.embedded.file import Frame
from dlog.testing.children import CrashPoint
from dlog.testing.history import Op, Phase
from tests.chaos.actors import LOG, url_of, value_of
from tests.chaos.arena import Arena
from tests.chaos.frames import frames_of, last_ledger_file

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills by signals"),
]

VALUE_BYTES = 8
FRAMES = 2  # at the end of the file
# With one in flight the frame before it is an acked one.
WITH_UNACKED = [
    pytest.param(False, id="all acked", marks=pytest.mark.tier("full", seconds=5)),
    pytest.param(True, id="one in flight"),
]


@dataclass
class Wreck:
    """What a killed writer left: its directory, its last ledger file, what it had been told."""

    data: Path
    file: Path
    frames: list[Frame]
    acked: dict[str, MessageId]
    asked: list[str]

    @property
    def confirmed_end(self) -> int:
        """Behind the last frame that holds an acked message."""
        last = max(message_id.entry_id for message_id in self.acked.values())
        return self.frames[last].end_offset

    @property
    def places(self) -> range:
        return range(self.frames[-FRAMES].offset, self.frames[-1].end_offset)


def wreck(arena: Arena, *, with_unacked: bool) -> Wreck:
    if with_unacked:
        crash = CrashPoint("ledger.written", "after", 8)
        child = arena.start("write", 400, 1, VALUE_BYTES, crash=crash)
    else:
        child = arena.start("idle", VALUE_BYTES)
        child.wait_line("idle")
        child.kill()
    assert child.wait_end() == -signal.SIGKILL
    appends = [each for each in arena.events() if each.op is Op.APPEND]
    acked = {each.name: each.id for each in appends if each.phase is Phase.OK}
    asked = [each.name for each in appends if each.phase is Phase.INVOKE]
    file = last_ledger_file(arena.data)
    return Wreck(arena.data, file, frames_of(file), acked, asked)


Taken = list[tuple[str, MessageId, bytes | None]]


async def reopened(found: Wreck, data: Path) -> Corrupt | None:
    """Take the damaged log over, append, read everything: what was acked is there, or why not."""
    taken: Taken = []
    corrupt = await _append_and_read(data, taken)
    after = [] if corrupt is not None else [taken.pop()]
    names = [name for name, _, _ in taken]
    assert names == found.asked[: len(names)], "what comes before the damage is as it was"
    assert all(value == value_of(name, VALUE_BYTES) for name, _, value in taken)
    if corrupt is None:
        assert after[0][0] == "after"
        there = {name: message_id for name, message_id, _ in taken}
        assert there == {**there, **found.acked}, "an acked message is gone, and nobody said so"
    return corrupt


async def _append_and_read(data: Path, taken: Taken) -> Corrupt | None:
    try:
        async with aio.connect(url_of(data)) as client:
            async with client.open_writer(LOG) as writer:
                await writer.append(b"after", key=b"after")
            async with client.open_reader(LOG) as reader:
                async for message in reader:
                    taken += [(message.key.decode(), message.id, message.value)]
    except Corrupt as corrupt:
        return corrupt
    return None


def damaged_copy(found: Wreck, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(found.data, to)
    return to / found.file.relative_to(found.data)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("with_unacked", WITH_UNACKED)
async def test_cut_at_every_byte(arena: Arena, tmp_path: Path, with_unacked: bool) -> None:
    found = wreck(arena, with_unacked=with_unacked)
    for size in found.places:
        file = damaged_copy(found, tmp_path / "copy")
        os.truncate(file, size)
        corrupt = await reopened(found, tmp_path / "copy")
        is_needed = size < found.confirmed_end
        assert (corrupt is not None) is is_needed, f"cut at {size}: {corrupt!r}"
        if corrupt is not None:
            assert corrupt.path == str(file)
            assert corrupt.offset in [f.offset for f in found.frames if f.end_offset > size]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("with_unacked", WITH_UNACKED)
async def test_a_bit_flipped_in_every_byte(
    arena: Arena, tmp_path: Path, with_unacked: bool
) -> None:
    found = wreck(arena, with_unacked=with_unacked)
    whole = found.file.read_bytes()
    outcomes: Counter[bool] = Counter()
    for place in found.places:
        file = damaged_copy(found, tmp_path / "copy")
        with file.open("r+b") as raw:
            raw.seek(place)
            raw.write(bytes([whole[place] ^ 1 << place % 8]))
        corrupt = await reopened(found, tmp_path / "copy")
        assert (corrupt is not None) is (place < found.confirmed_end), f"at {place}: {corrupt!r}"
        outcomes[corrupt is not None] += 1
        if corrupt is not None:
            assert corrupt.path == str(file)
            (hit,) = [f for f in found.frames if f.offset <= place < f.end_offset]
            assert hit.offset <= corrupt.offset <= place
    assert outcomes[True] > 0
    assert (outcomes[False] > 0) is with_unacked

"""What the writer's core does with entries of another log: their seqs, their times, their bytes."""

from __future__ import annotations

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.errors import Broken
from dlog.meta.cas import Seen
from dlog.meta.layout import Layout
from dlog.meta.listed import CopyOf, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions, WriterOptions
from dlog.wire.batch import Codec, Entry, decode, encode
from dlog.writer.batch import CopiedBatch
from dlog.writer.core import Identity, WriterCore
from dlog.writer.rotation import switch, write_seam
from dlog.writer.segments import SEAM_ENTRY
from dlog.writer.takeover import Opened

NOW_US = 9_000_000


def opened() -> WriterCore:
    """Of a copy that begins at seq 40, behind time 30."""
    mark = WriterMark("token", "w", 0)
    blank = LogMeta("uid", LogOptions()).as_copy(CopyOf("other", "orders", 40), 30)
    meta = blank.claimed(mark, copies="other").listed(5)
    identity = Identity(
        "log", "token", Layout(), lambda: NOW_US, lambda: 0.0, SYSTEM_CHANCE, is_copy=True
    )
    return WriterCore(identity, Opened(Seen(meta, 1), 1, 5, blank.end), WriterOptions())


def entry(*times_us: int, codec: Codec = Codec.NONE) -> Entry:
    values: list[bytes | None] = [b"%d" % time * 50 for time in times_us]
    buffers = encode(
        values, first_seq=7, timestamp_us=times_us[0], timestamps_us=times_us, codec=codec
    )
    return decode(b"".join(buffers), where="there")


def seam(core: WriterCore) -> Entry:
    effect = next(write_seam(core, core.current, "takeover.seam"))
    return decode(b"".join(effect.buffers), where="seam")  # type: ignore[attr-defined]


def test_seams_are_not_newer_than_what_follows_them() -> None:
    core = opened()
    assert seam(core).base_timestamp_us == 30
    core.push(CopiedBatch(entry(50, 60), 0, 2, 40))
    old = core.current
    core.seen = Seen(core.seen.meta.listed(9), 2)
    core.spare = 9
    switch(core, (old.ledger_id, old.last_pushed), old.next_seq)
    assert seam(core).base_timestamp_us == 60
    assert core.current.first_time_us == 60


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_an_entry_keeps_its_bytes_and_its_times(codec: Codec) -> None:
    core = opened()
    seam(core)
    there = entry(50, 60, codec=codec)
    _, buffers = core.push(CopiedBatch(there, 0, 2, 40))
    here = decode(b"".join(map(bytes, buffers)), where="here")
    assert (here.first_seq, here.codec) == (0, codec)
    assert bytes(here.stored)[16:] == bytes(there.stored)[16:]
    assert core.current.last_time_us == 60
    _, buffers = core.push(CopiedBatch(entry(70, 80, 90), 1, 3, 42))
    part = decode(b"".join(map(bytes, buffers)), where="here")
    assert (part.first_seq, part.count, part.timestamps_us()) == (2, 2, [80, 90])
    assert core.current.next_seq == 44


def test_rebuilt_elsewhere_it_is_the_same_but_for_its_place() -> None:
    """Its ledger did not keep it: same seqs, same times, in the next one."""
    core = opened()
    seam(core)
    first, second = CopiedBatch(entry(50), 0, 1, 40), CopiedBatch(entry(60, 70), 0, 2, 41)
    core.push(first)
    core.push(second)
    core.add_pipe(2, 9, 41, (5, SEAM_ENTRY + 1)).last_pushed = SEAM_ENTRY
    again = decode(b"".join(map(bytes, core.push_again(second))), where="here")
    assert (again.first_seq, again.timestamps_us()) == (0, [60, 70])
    assert (second.ledger_id, second.first_seq, second.timestamp_us) == (9, 41, 70)


def test_a_gap_is_never_written() -> None:
    core = opened()
    seam(core)
    with pytest.raises(Broken, match="keeps its seqs"):
        core.push(CopiedBatch(entry(50), 0, 1, 41))

"""What proves that a ledger is a segment's: its birth and its seam, and what they may say."""

from __future__ import annotations

import pytest

from dlog.errors import Corrupt
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions
from dlog.wire.batch import encode_control
from dlog.wire.control import Birth, ControlKind
from dlog.writer.segments import check_birth, decode_seam, seam_entry

SEGMENT = Segment(number=4, ledger_id=9, epoch=2)
META = LogMeta("uid", LogOptions())


def entry(kind: ControlKind, body: bytes) -> bytes:
    return b"".join(bytes(each) for each in encode_control(kind, body, first_seq=0, timestamp_us=1))


def birth(uid: str = "uid", role: str = "segment", number: int = 4, epoch: int = 2) -> bytes:
    place = (number, epoch) if role == "segment" else (None, None)
    return entry(ControlKind.BIRTH, Birth(uid, role, *place, "token").to_bytes())  # type: ignore[arg-type]


def seam(number: int = 4, epoch: int = 2) -> bytes:
    raw = seam_entry(META, number=number, epoch=epoch, predecessor=(3, 7), base_seq=20, now_us=5)
    return b"".join(bytes(each) for each in raw)


@pytest.mark.parametrize("raw", [birth(), birth(role="standby")])
def test_a_segment_is_born_by_its_writer_or_by_a_standby_of_the_log(raw: bytes) -> None:
    check_birth(raw, SEGMENT, "uid")


@pytest.mark.parametrize(
    "raw",
    [
        birth(uid="another"),
        birth(uid="another", role="standby"),
        birth(number=3),
        birth(epoch=1),
        birth(role="job"),
        seam(),
    ],
    ids=["another log", "a standby of another log", "number", "epoch", "a job", "no birth"],
)
def test_a_ledger_that_was_born_for_something_else_is_refused(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="ledger 9 entry 0"):
        check_birth(raw, SEGMENT, "uid")


def test_a_seam_says_where_its_segment_begins() -> None:
    found, at_us = decode_seam(seam(), SEGMENT)
    assert (found.predecessor_ledger, found.predecessor_last, found.base_seq) == (3, 7, 20)
    assert at_us == 5


@pytest.mark.parametrize("raw", [seam(number=3), seam(epoch=1), birth()])
def test_the_seam_of_another_segment_is_refused(raw: bytes) -> None:
    """Also in a ledger of a standby, whose birth names no place: there only the seam does."""
    with pytest.raises(Corrupt, match="ledger 9 entry 1"):
        decode_seam(raw, SEGMENT)

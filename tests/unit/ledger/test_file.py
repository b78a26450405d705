"""The bytes of the data file: golden, refused when damaged, tied to their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Corrupt, FormatError
from dlog.ledger.embedded.file import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Frame,
    FrameWriter,
    check_file_header,
    encode_file_header,
    parse_frame,
    payload_is_whole,
    salt_of,
)
from dlog.wire.crc32c import crc32c

VECTORS = Path(__file__).parents[2] / "vectors" / "embedded"
UID = bytes(range(16))


def build(ledger_id: int, uid: bytes, entries: list[bytes], created_us: int = 0) -> bytes:
    writer = FrameWriter(ledger_id, uid)
    raw = bytearray(encode_file_header(ledger_id, uid, created_us))
    for number, entry in enumerate(entries):
        raw += b"".join(writer.add([entry], len(entry), number - 1))
    return bytes(raw)


def frames_of(raw: bytes, ledger_id: int, uid: bytes) -> list[Frame]:
    frames, offset = [], FILE_HEADER_BYTES
    while (frame := parse_frame(raw, offset, offset, ledger_id, salt_of(uid))) is not None:
        assert payload_is_whole(frame, memoryview(raw), frame.payload_offset)
        frames.append(frame)
        offset = frame.end_offset
    assert offset == len(raw)
    return frames


def test_the_golden_file_is_what_we_write() -> None:
    told = json.loads((VECTORS / "three_entries.json").read_text())
    golden = (VECTORS / "three_entries.ledger").read_bytes()
    entries = [bytes.fromhex(entry) for entry in told["entries"]]
    uid = bytes.fromhex(told["uid"])
    assert build(told["ledger_id"], uid, entries, told["created_us"]) == golden
    check_file_header(golden, told["ledger_id"], uid, "golden")
    assert [frame.offset for frame in frames_of(golden, told["ledger_id"], uid)] == told["offsets"]


@given(st.lists(st.binary(max_size=40), max_size=70))
def test_frames_come_back_and_point_to_each_other(entries: list[bytes]) -> None:
    raw = build(7, UID, entries)
    frames = frames_of(raw, 7, UID)
    assert [
        raw[frame.payload_offset : frame.payload_offset + frame.payload_bytes] for frame in frames
    ] == entries
    before = 0
    for number, frame in enumerate(frames):
        assert frame.entry_id == number
        assert frame.last_confirmed == number - 1
        assert frame.bytes_before == before
        assert frame.payload_offset % 8 == 0
        before = frame.bytes_through
        if number == 0:
            assert (frame.previous_offset, frame.jump_offset) == (0, 0)
        else:
            assert frame.previous_offset == frames[number - 1].offset
            assert frame.jump_offset == frames[number & (number - 1)].offset


def test_a_frame_elsewhere_is_no_frame() -> None:
    raw = build(7, UID, [b"payload"])
    at, salt = FILE_HEADER_BYTES, salt_of(UID)
    assert parse_frame(raw, at, at, 7, salt) is not None
    assert parse_frame(raw, at, at + 8, 7, salt) is None, "copied to another place"
    assert parse_frame(raw, at, at, 8, salt) is None, "of another ledger"
    assert parse_frame(raw, at, at, 7, salt_of(bytes(16))) is None, "of an earlier file"
    assert parse_frame(raw[: at + FRAME_HEADER_BYTES - 1], at, at, 7, salt) is None, "cut"


def test_every_bit_of_a_frame_counts() -> None:
    raw = build(7, UID, [b"seven b"])
    for bit in range(FILE_HEADER_BYTES * 8, len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        frame = parse_frame(flipped, FILE_HEADER_BYTES, FILE_HEADER_BYTES, 7, salt_of(UID))
        assert frame is None or not payload_is_whole(
            frame, memoryview(flipped), frame.payload_offset
        ), f"bit {bit}"


def test_every_bit_of_the_file_header_counts() -> None:
    raw = encode_file_header(7, UID, 1)
    check_file_header(raw, 7, UID, "f")
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            check_file_header(flipped, 7, UID, "f")


def test_a_newer_file_is_refused_by_name() -> None:
    raw = bytearray(encode_file_header(7, UID, 1))
    raw[8] = 2
    raw[60:] = crc32c(bytes(raw[:60])).to_bytes(4, "little")
    with pytest.raises(FormatError, match=r"some/path.*version 2"):
        check_file_header(raw, 7, UID, "some/path")


@pytest.mark.parametrize(("ledger_id", "uid"), [(8, UID), (7, bytes(16))])
def test_another_ledgers_file_is_refused(ledger_id: int, uid: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        check_file_header(encode_file_header(7, UID, 1), ledger_id, uid, "f")
    assert caught.value.path == "f"


@pytest.mark.parametrize("damage", ["magic", "checksum", "another ledger", "cut"])
def test_a_bad_header_is_told_with_its_file_and_ledger(damage: str) -> None:
    raw = bytearray(encode_file_header(7, UID, 1))
    ledger_id = 7
    if damage == "magic":
        raw[0] ^= 1
    elif damage == "checksum":
        raw[-1] ^= 1
    elif damage == "cut":
        del raw[-1]
    else:
        ledger_id = 8
    with pytest.raises(Corrupt) as caught:
        check_file_header(raw, ledger_id, UID, "/some/path")
    error = caught.value
    assert (error.path, error.offset, error.ledger_id) == ("/some/path", 0, ledger_id)

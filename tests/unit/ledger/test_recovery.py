"""Finding the end of damaged files: a valid prefix with all that was acknowledged, or `Corrupt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.errors import Corrupt
from dlog.ledger.embedded.datafile import DataFile
from dlog.ledger.embedded.file import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FrameWriter,
    encode_file_header,
)
from dlog.ledger.embedded.nodes import EMPTY, End
from dlog.ledger.embedded.recovery import find_end

UID = bytes(range(100, 116))
ENTRIES = [b"entry %d" % number * (number % 3) for number in range(6)]


class Image:
    """A data file in memory, and what recovery makes of it on disk."""

    def __init__(self, path: Path, entries: list[bytes] = ENTRIES, lag: int = 1) -> None:
        self.path = path
        self.raw = bytearray(encode_file_header(3, UID, 0))
        self.offsets: list[int] = []
        writer = FrameWriter(3, UID)
        for number, entry in enumerate(entries):
            self.raw += b"".join(writer.add([entry], len(entry), max(-1, number - lag)))
            self.offsets.append(writer.last_offset)
        self.entries = entries

    def end(self, raw: bytes, *, confirmed: int = -1, only_confirmed: bool = False) -> End:
        self.path.write_bytes(raw)
        file = DataFile(str(self.path), 3)
        try:
            offset = self.offsets[confirmed] if confirmed >= 0 else 0
            return find_end(file, UID, confirmed_offset=offset, only_confirmed=only_confirmed)
        finally:
            file.close()

    def at(self, last_entry: int) -> End:
        if last_entry < 0:
            return EMPTY
        size = sum(map(len, self.entries[: last_entry + 1]))
        return End(last_entry, size, self.offsets[last_entry])


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "3.ledger")


@pytest.mark.parametrize("confirmed", [-1, 0, 3, 5])
def test_a_whole_file_ends_at_its_last_frame(image: Image, confirmed: int) -> None:
    assert image.end(image.raw, confirmed=confirmed) == image.at(5)


@pytest.mark.parametrize("confirmed", [-1, 0, 3, 5])
def test_reserved_space_is_no_entry(image: Image, confirmed: int) -> None:
    assert image.end(image.raw + bytes(10_000), confirmed=confirmed) == image.at(5)


@pytest.mark.parametrize("confirmed", range(-1, 6))
def test_cut_at_every_byte_with_words(image: Image, confirmed: int) -> None:
    ends = [*image.offsets[1:], len(image.raw)]
    for size in range(len(image.raw)):
        whole = sum(1 for end in ends if end <= size)  # frames that survived
        if whole > confirmed and (size >= FILE_HEADER_BYTES or confirmed < 0):
            assert image.end(image.raw[:size], confirmed=confirmed) == image.at(whole - 1)
        else:
            with pytest.raises(Corrupt) as caught:
                image.end(image.raw[:size], confirmed=confirmed)
            assert caught.value.path == str(image.path)
            assert caught.value.offset in (0, image.offsets[confirmed])


def test_torn_at_every_byte_by_a_power_cut(image: Image) -> None:
    """The size is right and the bytes from some place on are zero; the words are lost."""
    for size in range(FILE_HEADER_BYTES, len(image.raw)):
        torn = image.raw[:size] + bytes(len(image.raw) - size)
        end = image.end(torn)
        assert end == image.at(end.last_entry)
        first_lost = sum(1 for offset in image.offsets if offset <= size) - 1
        assert first_lost - 1 <= end.last_entry <= first_lost


@pytest.mark.parametrize("confirmed", [-1, 2, 5])
def test_every_bit_flip_shortens_the_tail_or_is_named(image: Image, confirmed: int) -> None:
    start = image.offsets[confirmed] if confirmed >= 0 else 0
    for bit in range(len(image.raw) * 8):
        place = bit // 8
        flipped = bytearray(image.raw)
        flipped[place] ^= 1 << bit % 8
        if FILE_HEADER_BYTES <= place < start:
            assert image.end(flipped, confirmed=confirmed) == image.at(5), "not looked at"
            continue
        hit = sum(1 for offset in image.offsets if offset <= place) - 1
        # Entry n carries n - 1 as confirmed: all but the last entry are known to be confirmed.
        if hit == 5 and confirmed < 5:
            assert image.end(flipped, confirmed=confirmed) == image.at(4)
            continue
        with pytest.raises(Corrupt) as caught:
            image.end(flipped, confirmed=confirmed)
        assert caught.value.offset == (image.offsets[hit] if hit >= 0 else 0)


def test_a_hole_above_everything_confirmed_ends_the_ledger(tmp_path: Path) -> None:
    image = Image(tmp_path / "3.ledger", lag=4)  # entry 5 carries 1
    for hole in (2, 3, 4):
        image.raw[image.offsets[hole] + FRAME_HEADER_BYTES - 1] ^= 1
        assert image.end(image.raw) == image.at(hole - 1)
        image.raw[image.offsets[hole] + FRAME_HEADER_BYTES - 1] ^= 1
    image.raw[image.offsets[1] + 20] ^= 1
    with pytest.raises(Corrupt) as caught:
        image.end(image.raw)
    assert (caught.value.offset, caught.value.entry_id) == (image.offsets[1], 1)


def test_a_confirmation_far_behind_the_damage_is_found(tmp_path: Path) -> None:
    """Over a reading step of the search, and with magics in the payloads."""
    entries = [b"\xd1ogf" * 300_000 for _ in range(8)]
    image = Image(tmp_path / "3.ledger", entries, lag=5)  # entry 7 carries 2
    image.raw[image.offsets[2] + 100] ^= 1
    with pytest.raises(Corrupt):
        image.end(image.raw)
    assert image.end(image.raw[: image.offsets[7]]) == image.at(1)


def test_a_ledger_inside_a_payload_is_only_a_payload(tmp_path: Path) -> None:
    """A log that stores copies of its own files does not confuse recovery."""
    inner = Image(tmp_path / "3.ledger", [b"inner"] * 9)
    outer = Image(tmp_path / "3.ledger", [b"a", bytes(inner.raw), b"b"], lag=9)
    outer.raw[outer.offsets[1] + FRAME_HEADER_BYTES] ^= 1
    assert outer.end(outer.raw) == outer.at(0)


def test_after_a_failed_sync_only_the_confirmed_counts(image: Image) -> None:
    assert image.end(image.raw, confirmed=2, only_confirmed=True) == image.at(2)
    assert image.end(image.raw, confirmed=-1, only_confirmed=True) == EMPTY


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_file_whose_creator_died_is_empty(image: Image, size: int) -> None:
    assert image.end(bytes(size)) == EMPTY
    assert image.end(image.raw[:size]) == EMPTY


def test_a_header_of_zeros_above_confirmed_entries_is_damage(image: Image) -> None:
    assert image.end(bytes(4096)) == EMPTY
    with pytest.raises(Corrupt):
        image.end(bytes(FILE_HEADER_BYTES) + image.raw[FILE_HEADER_BYTES:])


def test_frames_of_another_file_are_not_taken_over(tmp_path: Path) -> None:
    """As a file system may show freed blocks behind the end."""
    image = Image(tmp_path / "3.ledger")
    stale = bytearray(image.raw)
    writer = FrameWriter(3, bytes(16))
    for entry in ENTRIES:
        frame = b"".join(writer.add([entry], len(entry), -1))
        stale[writer.last_offset : writer.last_offset + len(frame)] = frame
    assert image.end(image.raw[: image.offsets[3]] + stale[image.offsets[3] :]) == image.at(2)

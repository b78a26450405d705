"""Bits that flipped on the disk are named, delivered to nobody, and passed only when told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.ledger.embedded import file
from dlog.ledger.embedded.file import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from dlog.wire.crc32c import crc32c
from tests.api.adapter import Api, rest_of

COUNT = 6


@pytest.fixture
async def ids(file_api: Api) -> list[dlog.MessageId]:
    """A sealed segment of six entries with one message each."""
    async with file_api.open_writer() as log:
        return [await log.append(b"message %d" % number * 10) for number in range(COUNT)]


def frames(path: Path) -> dict[int, file.Frame]:
    raw = path.read_bytes()
    salt = file.salt_of(file.check_file_header.__globals__["_FILE"].unpack_from(raw)[3])
    found: dict[int, file.Frame] = {}
    offset = FILE_HEADER_BYTES
    while (frame := file.parse_frame(memoryview(raw), offset, offset, 0, salt)) is not None:
        found[frame.entry_id] = frame
        offset = frame.end_offset
        if offset + FRAME_HEADER_BYTES > len(raw):
            break
    return found


def ledger_file(api: Api) -> Path:
    return Path(api.url.removeprefix("file:")) / "ledgers" / "0000000000.ledger"


def flip(api: Api, entry_id: int) -> None:
    """Change one byte of an entry's payload; the frame's own checksum is left as it was."""
    path = ledger_file(api)
    frame = frames(path)[entry_id]
    raw = bytearray(path.read_bytes())
    raw[frame.payload_offset + 9] ^= 0x40
    path.write_bytes(raw)


def garble(api: Api, entry_id: int) -> None:
    """An entry that the ledger store holds to be good, and that is none: its magic is wrong."""
    path = ledger_file(api)
    frame = frames(path)[entry_id]
    raw = bytearray(path.read_bytes())
    raw[frame.payload_offset] = 0x7F
    payload = raw[frame.payload_offset : frame.payload_offset + frame.payload_bytes]
    header = bytearray(raw[frame.offset : frame.payload_offset])
    header[12:16] = crc32c(bytes(payload)).to_bytes(4, "little")
    uid = file.check_file_header.__globals__["_FILE"].unpack_from(raw)[3]
    place = frame.offset.to_bytes(8, "little")
    header[4:8] = crc32c(bytes(header[8:]) + place, file.salt_of(uid)).to_bytes(4, "little")
    raw[frame.offset : frame.payload_offset] = header
    path.write_bytes(raw)


async def values_and_error(reader: Any) -> tuple[list[bytes], dlog.DlogError | None]:
    got: list[bytes] = []
    try:
        while messages := await reader.read():
            got += [message.value for message in messages]
    except dlog.DlogError as error:
        return got, error
    return got, None


def values(*numbers: int) -> list[bytes]:
    return [b"message %d" % number * 10 for number in numbers]


@pytest.mark.parametrize("bad", [0, 2, COUNT - 1])
@pytest.mark.parametrize("damage", [flip, garble])
async def test_what_is_before_comes_and_what_is_behind_can_be_had(
    file_api: Api, ids: list[dlog.MessageId], bad: int, damage: Any
) -> None:
    entry_id = ids[bad].entry_id
    damage(file_api, entry_id)
    async with file_api.open_reader() as reader:
        got, error = await values_and_error(reader)
        assert got == values(*range(bad))
        assert isinstance(error, dlog.Corrupt | dlog.FormatError)
        assert error.ledger_id == 0
        assert error.entry_id == entry_id
        if damage is flip:
            assert error.path == str(ledger_file(file_api))
            assert isinstance(error.offset, int)
        else:
            assert error.raw[0] == 0x7F
        assert reader.position.next_seq == bad
        again, same = await values_and_error(reader)
        assert (again, type(same)) == ([], type(error))
        await reader.skip()
        got, error = await values_and_error(reader)
        assert error is None
        assert got == values(*range(bad + 1, COUNT))
        with pytest.raises(dlog.ConfigError):
            await reader.skip()


async def test_two_bad_entries_are_two_skips(file_api: Api, ids: list[dlog.MessageId]) -> None:
    for number in (1, 2, 4):
        flip(file_api, ids[number].entry_id)
    skipped = 0
    got: list[bytes] = []
    async with file_api.open_reader() as reader:
        while True:
            some, error = await values_and_error(reader)
            got += some
            if error is None:
                break
            await reader.skip()
            skipped += 1
    assert skipped == 3
    assert got == values(0, 3, 5)


async def test_skip_without_a_bad_entry_is_refused(
    file_api: Api, ids: list[dlog.MessageId]
) -> None:
    async with file_api.open_reader() as reader:
        with pytest.raises(dlog.ConfigError, match="skip"):
            await reader.skip()
        assert len(await rest_of(reader)) == COUNT


async def test_a_reader_of_what_is_behind_never_meets_it(
    file_api: Api, ids: list[dlog.MessageId]
) -> None:
    flip(file_api, ids[1].entry_id)
    assert await file_api.values(start=ids[2]) == values(2, 3, 4, 5)
    assert await file_api.values(end=1) == values(0)


async def test_following_goes_on_behind_a_skip(file_api: Api, ids: list[dlog.MessageId]) -> None:
    flip(file_api, ids[-1].entry_id)
    async with file_api.open_reader(follow=True, start=ids[4]) as reader:
        assert [m.value for m in await reader.read()] == values(4)
        with pytest.raises(dlog.Corrupt):
            await reader.read()
        await reader.skip()
        assert await reader.read(timeout=0.02) == []
        async with file_api.open_writer() as log:
            await log.append(b"new")
        (message,) = await reader.read()
        assert (message.value, message.seq) == (b"new", COUNT)

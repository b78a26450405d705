from __future__ import annotations

import random
import struct
import sys
import threading

import lz4.block
import pytest
import zstandard

from dlog.errors import Corrupt, Unsupported
from dlog.limits import DECOMPRESS_RATIO_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import compress as compress_module
from dlog.wire.compress import Codec, compress, decompress

TEXT = b"a line like most lines, number %d\n"
LINES = b"".join(TEXT % number for number in range(500))
CODECS = (Codec.LZ4, Codec.ZSTD)


@pytest.mark.parametrize("codec", CODECS)
def test_round_trip_from_any_buffer(codec: Codec) -> None:
    stored = compress(codec, LINES)
    assert stored is not None
    assert len(stored) < len(LINES) / 2
    for view in (stored, bytearray(stored), memoryview(b"?" + stored)[1:]):
        assert decompress(codec, view, len(LINES), where="here") == LINES


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_shrink_is_not_compressed(codec: Codec) -> None:
    assert compress(codec, random.Random(1).randbytes(1000)) is None


def test_what_shrinks_like_a_bomb_is_not_compressed() -> None:
    zeros = bytes(1 << 20)
    assert len(zeros) > DECOMPRESS_RATIO_MAX * len(zstandard.compress(zeros))
    assert compress(Codec.ZSTD, zeros) is None


def test_none_compresses_nothing() -> None:
    assert compress(Codec.NONE, LINES) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", [-1, 1, 1000, -1000])
def test_a_lying_length_is_corrupt(codec: Codec, lie: int) -> None:
    stored = compress(codec, LINES)
    assert stored is not None
    with pytest.raises(Corrupt, match="ledger 12 entry 5"):
        decompress(codec, stored, len(LINES) + lie, where="ledger 12 entry 5")


@pytest.mark.parametrize("codec", CODECS)
def test_cut_and_lengthened_bodies_are_corrupt(codec: Codec) -> None:
    stored = compress(codec, LINES)
    assert stored is not None
    for wrong in (b"", stored[:1], stored[:-1], stored + b"\x00", stored + stored):
        with pytest.raises(Corrupt):
            decompress(codec, wrong, len(LINES), where="here")


@pytest.mark.parametrize("codec", CODECS)
def test_a_ratio_beyond_the_limit_is_refused_before_decompressing(codec: Codec) -> None:
    with pytest.raises(Corrupt, match=str(DECOMPRESS_RATIO_MAX)):
        decompress(codec, b"\x00" * 10, 10 * DECOMPRESS_RATIO_MAX + 1, where="here")


@pytest.mark.parametrize("codec", CODECS)
def test_a_size_beyond_the_cap_is_refused_before_decompressing(codec: Codec) -> None:
    with pytest.raises(Corrupt, match=str(LEDGER_ENTRY_BYTES_MAX)):
        decompress(codec, bytes(1 << 20), LEDGER_ENTRY_BYTES_MAX + 1, where="here")


def test_a_ratio_just_within_the_limit_is_read() -> None:
    raw = bytes(17 * DECOMPRESS_RATIO_MAX)
    stored = zstandard.compress(raw)
    assert 17 <= len(stored) <= 20
    assert decompress(Codec.ZSTD, stored, len(raw), where="here") == raw


def test_a_zstd_frame_that_claims_gigabytes_allocates_nothing() -> None:
    # magic, descriptor (8-byte content size, single segment), 1 TiB
    frame = struct.pack("<IBQ", 0xFD2FB528, 0b1110_0000, 1 << 40) + b"\x01\x00\x00"
    with pytest.raises(Corrupt, match=str(1 << 40)):
        decompress(Codec.ZSTD, frame, 1000, where="here")


def test_a_zstd_frame_must_state_its_size() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(LINES)
    with pytest.raises(Corrupt, match="frame says"):
        decompress(Codec.ZSTD, frame, len(LINES), where="here")


def test_an_lz4_block_larger_than_declared_never_grows() -> None:
    bomb = lz4.block.compress(bytes(1 << 20), store_size=False)
    with pytest.raises(Corrupt):
        decompress(Codec.LZ4, bomb, 1 << 19, where="here")


@pytest.mark.parametrize(
    ("codec", "module", "extra"),
    [(Codec.LZ4, "lz4.block", "dlog[lz4]"), (Codec.ZSTD, "zstandard", "dlog[zstd]")],
)
def test_a_missing_library_names_its_extra(
    codec: Codec, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found: list[BaseException] = []

    def both() -> None:  # on a fresh thread: contexts live per thread
        for call in (
            lambda: compress(codec, LINES),
            lambda: decompress(codec, b"1234567890", 20, where="here"),
        ):
            try:
                call()
            except Unsupported as error:
                found.append(error)

    thread = threading.Thread(target=both)
    thread.start()
    thread.join()
    assert len(found) == 2
    assert all(extra in str(error) for error in found)


def test_threads_do_not_share_contexts() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        raw = random.Random(seed).randbytes(500) * 20
        for _ in range(200):
            stored = compress(Codec.ZSTD, raw)
            if stored is None or decompress(Codec.ZSTD, stored, len(raw), where="t") != raw:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("codec", CODECS)
def test_both_sides_agree_on_the_largest_ratio(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compressed at exactly the limit is read, and what is one byte beyond is not made."""
    size = next(
        size
        for size in range(1000, 20_000)
        if size % len(compress(codec, bytes(size)) or b"x" * 999_999) == 0
    )
    stored = compress(codec, bytes(size))
    assert stored is not None
    ratio = size // len(stored)
    monkeypatch.setattr(compress_module, "DECOMPRESS_RATIO_MAX", ratio)
    assert compress(codec, bytes(size)) == stored
    assert decompress(codec, stored, size, where="here") == bytes(size)
    monkeypatch.setattr(compress_module, "DECOMPRESS_RATIO_MAX", ratio - 1)
    assert compress(codec, bytes(size)) is None
    with pytest.raises(Corrupt, match="beyond the cap"):
        decompress(codec, stored, size, where="here")

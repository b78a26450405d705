"""Compression of entry bodies: none, lz4, zstd. The codec's id stands in the entry header.

lz4 is used in its *block* form: a frame would add its own sizes and checksums, which the entry
header and the ledger digest already have, and would let a second, contradicting size in. zstd runs
at level 1: higher levels cost half the speed for a tenth of the size. Its frame must state the size
of its content, because the library allocates what the frame states, and never more, whatever window
it asks for; we compare before we call.

Decompression is bounded three times before a byte is produced: by the size the header declares, by
the largest body any entry may have, and by the ratio. Anything else is `Corrupt`. Contexts are kept
per thread: making one costs more than compressing a small entry, and they cannot be shared.
"""

from __future__ import annotations

import enum
import threading
from typing import Any

from dlog.errors import Corrupt, Unsupported
from dlog.limits import DECOMPRESS_RATIO_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import Buffer


class Codec(enum.IntEnum):
    """Two bits of the entry header; 3 is free."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_ZSTD_LEVEL = 1
_contexts = threading.local()


def check_installed(codec: Codec) -> None:
    """`Unsupported`, with what to install, where the codec's package is missing."""
    if codec is Codec.LZ4:
        _lz4()
    elif codec is Codec.ZSTD:
        _zstd()


def compress(codec: Codec, raw: Buffer) -> bytes | None:
    """The compressed body, or None where storing it as it is serves better: it would not shrink, or
    it shrinks so far that our own decoder would take it for a bomb."""
    if codec is Codec.NONE:
        return None
    stored = _lz4_compress(raw) if codec is Codec.LZ4 else _zstd_compress(raw)
    if len(stored) >= len(raw) or len(raw) > len(stored) * DECOMPRESS_RATIO_MAX:
        return None
    return stored


def decompress(codec: Codec, stored: Buffer, raw_bytes: int, *, where: str) -> bytes:
    """The body of exactly `raw_bytes` bytes; `Corrupt` if `stored` holds anything else."""
    if raw_bytes > LEDGER_ENTRY_BYTES_MAX or raw_bytes > len(stored) * DECOMPRESS_RATIO_MAX:
        raise Corrupt(
            f"{where}: {len(stored)} compressed bytes claim to be {raw_bytes}, beyond the cap of "
            f"{LEDGER_ENTRY_BYTES_MAX} bytes and {DECOMPRESS_RATIO_MAX} for one"
        )
    if codec is Codec.LZ4:
        raw = _lz4_decompress(stored, raw_bytes, where)
    else:
        raw = _zstd_decompress(stored, raw_bytes, where)
    if len(raw) != raw_bytes:
        raise Corrupt(f"{where}: the body has {len(raw)} bytes, its header says {raw_bytes}")
    return raw


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError:
        raise Unsupported("lz4 entries need the package lz4: install dlog[lz4]") from None
    return lz4.block


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise Unsupported("zstd entries need the package zstandard: install dlog[zstd]") from None
    return zstandard


def _lz4_compress(raw: Buffer) -> bytes:
    stored: bytes = _lz4().compress(raw, store_size=False)
    return stored


def _lz4_decompress(stored: Buffer, raw_bytes: int, where: str) -> bytes:
    lz4 = _lz4()
    try:
        raw: bytes = lz4.decompress(stored, uncompressed_size=raw_bytes)
    except lz4.LZ4BlockError as error:
        raise Corrupt(f"{where}: the body is no lz4 block of {raw_bytes} bytes: {error}") from None
    return raw


def _zstd_compress(raw: Buffer) -> bytes:
    compressor = getattr(_contexts, "compressor", None)
    if compressor is None:
        compressor = _zstd().ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True)
        _contexts.compressor = compressor
    stored: bytes = compressor.compress(raw)
    return stored


def _zstd_decompress(stored: Buffer, raw_bytes: int, where: str) -> bytes:
    zstd = _zstd()
    decompressor = getattr(_contexts, "decompressor", None)
    if decompressor is None:
        decompressor = zstd.ZstdDecompressor()
        _contexts.decompressor = decompressor
    try:
        content_bytes = zstd.get_frame_parameters(stored).content_size
        if content_bytes != raw_bytes:
            raise Corrupt(
                f"{where}: the zstd frame says {content_bytes} bytes, the header {raw_bytes}"
            )
        raw: bytes = decompressor.decompress(stored, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise Corrupt(f"{where}: the body is no zstd frame: {error}") from None
    return raw

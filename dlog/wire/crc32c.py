"""CRC32C, the checksum of ledger digests and segment files, at the best speed this machine has.

The choice falls once, when this module is imported, and `IMPLEMENTATION` names it: fastcrc (any
buffer, 20 GB/s), else google-crc32c (as fast, but copies whatever is not `bytes`), else crcmod,
which is always installed and may be as slow as 20 MB/s without its C extension. `crc32c` is the
library's own function wherever possible: a wrapper would cost more than the checksum of a short
entry.
"""

from __future__ import annotations

from typing import Protocol

from dlog.wire import Buffer


class Crc32c(Protocol):
    def __call__(self, data: Buffer, start: int = 0, /) -> int:
        """The CRC32C of `data`, continuing from `start`, the CRC32C of what stands before it."""
        ...


def from_fastcrc() -> Crc32c | None:
    try:
        from fastcrc import crc32
    except ImportError:
        return None
    function: Crc32c = crc32.iscsi
    return function


def from_google_crc32c() -> Crc32c | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    if google_crc32c.implementation != "c":  # its Python path is slower than crcmod's
        return None
    extend = google_crc32c.extend

    def crc32c(data: Buffer, start: int = 0, /) -> int:
        checksum: int = extend(start, data if type(data) is bytes else bytes(data))
        return checksum

    return crc32c


def from_crcmod() -> Crc32c:
    import crcmod.predefined

    function: Crc32c = crcmod.predefined.mkCrcFun("crc-32c")
    return function


def choose() -> tuple[str, Crc32c]:
    if found := from_fastcrc():
        return "fastcrc", found
    if found := from_google_crc32c():
        return "google-crc32c", found
    return "crcmod", from_crcmod()


IMPLEMENTATION, crc32c = choose()

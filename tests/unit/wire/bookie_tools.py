"""What the tests of the bookie protocol share: vectors, and ways to harm bytes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import settings

from dlog.errors import Corrupt, FormatError
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_frame import FrameRun, FrameSplitter

VECTORS = Path(__file__).parents[2] / "vectors" / "bookie"
# For every @given: how long an example takes says more about the machine than about the code.
UNHURRIED = settings(deadline=None)

DOCUMENTED = (Corrupt, FormatError)
KEY = master_key(b"secret")
CRC32C = EntryDigest(DigestType.CRC32C, b"secret")
PAYLOAD = b"hello"
HEAD = CRC32C.pack_head(7, 3, 2, 25, [PAYLOAD])


@functools.cache
def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def frame(protocol: str, name: str) -> bytes:
    return bytes.fromhex(vectors("frames")[protocol][name])


def body(protocol: str, name: str) -> memoryview:
    """Without the length in front."""
    return memoryview(frame(protocol, name))[4:]


def runs(splitter: FrameSplitter, chunk: bytes) -> Iterator[FrameRun]:
    splitter.feed(chunk)
    while (run := splitter.next_run()) is not None:
        yield run


def harmed(raw: bytes) -> Iterator[bytes]:
    """Cut at every byte, with every bit flipped, and with something behind."""
    for end in range(len(raw)):
        yield raw[:end]
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        yield bytes(flipped)
    for tail in (b"\0", b"\xff" * 9, raw):
        yield raw + tail


def verdicts(parse: Callable[[bytes], object], raw: bytes) -> tuple[int, int]:
    """How many harmed forms are taken and how many refused; any error but the documented ones
    comes out."""
    taken = refused = 0
    for each in harmed(raw):
        try:
            parse(each)
            taken += 1
        except DOCUMENTED:
            refused += 1
    return taken, refused

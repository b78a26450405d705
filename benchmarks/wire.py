"""How fast entries are encoded and decoded, here and now.

    python benchmarks/wire.py [--seconds 0.2]

Payloads are random bytes, uncompressed where no codec is named; each figure is the best of seven
repetitions. The last 64 results of each case stay alive, as in a writer's window: freeing every
buffer at once measures how fast the system hands out pages, not how fast we encode. A table goes to
stdout, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import timeit
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dlog.wire import columns
from dlog.wire.batch import Codec, decode, decode_header, encode
from dlog.wire.crc32c import IMPLEMENTATION, crc32c

REPETITIONS = 7
Case = tuple[str, int, int, Callable[[], object]]  # name, messages, bytes, what is timed


def json_lines(count: int, size: int, chance: random.Random) -> list[bytes | None]:
    """Text that compresses as events do."""
    words = ["paid", "shipped", "returned", "cancelled", "created"]
    return [
        json.dumps({"order": chance.randrange(10**9), "state": chance.choice(words)})
        .ljust(size)
        .encode()
        for _ in range(count)
    ]


def cases() -> Iterator[Case]:
    chance = random.Random(7)
    stamp: dict[str, Any] = {"first_seq": 0, "timestamp_us": 1_700_000_000_000_000}
    for count, size in ((1, 1024), (64, 100), (256, 1024), (2_600, 100), (65_536, 16)):
        values: list[bytes | None] = [chance.randbytes(size) for _ in range(count)]
        keys = [chance.randbytes(16) for _ in range(count)]
        headers = [(("by", b"web"),)] * count
        raw = b"".join(encode(values, **stamp))
        entry = decode(raw, where="bench")
        shape = f"{count} x {size} B"

        def encode_plain(values: Any = values) -> object:
            return encode(values, **stamp)

        def encode_keys(values: Any = values, keys: Any = keys) -> object:
            return encode(values, keys=keys, **stamp)

        def encode_headers(
            values: Any = values, keys: Any = keys, headers: Any = headers
        ) -> object:
            return encode(values, keys=keys, headers=headers, **stamp)

        def check(raw: bytes = raw) -> object:
            return decode(raw, where="bench")

        def check_header(raw: bytes = raw) -> object:
            return decode_header(raw, where="bench")

        def to_values(raw: bytes = raw) -> object:
            return decode(raw, where="bench").values()

        def checksum(raw: bytes = raw) -> object:
            return crc32c(raw)

        yield f"encode {shape}", count, len(raw), encode_plain
        yield f"encode {shape}, keys", count, len(raw) + 16 * count, encode_keys
        yield f"encode {shape}, keys, 1 header", count, len(raw) + 21 * count, encode_headers
        yield f"decode {shape}", count, len(raw), check
        yield f"decode header {shape}", count, len(raw), check_header
        yield f"decode {shape} to list", count, len(raw), to_values
        yield f"crc32c {shape}", count, len(raw), checksum
        if has_pyarrow():
            yield f"decode {shape} to Arrow", count, len(raw), entry.to_arrow
    text = json_lines(2_600, 100, chance)
    for codec in (Codec.LZ4, Codec.ZSTD):
        packed = b"".join(encode(text, codec=codec, **stamp))
        name = f"2600 x 100 B of JSON, {codec.name.lower()} ({len(packed) / 268_048:.0%})"

        def compressing(codec: Codec = codec) -> object:
            return encode(text, codec=codec, **stamp)

        def decompressing(packed: bytes = packed) -> object:
            return decode(packed, where="bench").values()

        yield f"encode {name}", 2_600, 260_000, compressing
        yield f"decode {name} to list", 2_600, 260_000, decompressing


def has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def best_us(work: Callable[[], object], seconds: float) -> float:
    window: deque[object] = deque(maxlen=64)

    def once() -> None:
        window.append(work())

    number = max(1, int(seconds / max(timeit.timeit(once, number=3) / 3, 1e-9)))
    return min(timeit.repeat(once, number=number, repeat=REPETITIONS)) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.05, help="per repetition")
    seconds = parser.parse_args().seconds
    results = []
    print(f"{'case':58} {'us':>10} {'Mmsg/s':>9} {'MB/s':>9}")
    for name, count, size, work in cases():
        took_us = best_us(work, seconds)
        results.append({"case": name, "us": round(took_us, 3), "messages": count, "bytes": size})
        print(f"{name:58} {took_us:10.2f} {count / took_us:9.2f} {size / took_us:9.0f}")
    setting = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "numpy": columns.numpy() is not None,
        "crc32c": IMPLEMENTATION,
    }
    print(json.dumps({"setting": setting, "results": results}))


if __name__ == "__main__":
    main()

"""How fast the bookie protocol is packed, parsed and verified, here and now.

    python benchmarks/bookie_wire.py [--seconds 0.05]

Payloads are random bytes. An add frame is packed up to its payload, which is never copied, and its
digest covers the payload: the line with the digest NONE is the cost of the frame itself. Each
figure is the best of seven repetitions, per entry where a case has many. A table goes to stdout,
then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import struct
import timeit
from collections.abc import Callable, Iterator

from dlog.wire import bookie_v2 as v2
from dlog.wire import bookie_v3 as v3
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v3_replies import parse_response
from dlog.wire.crc32c import IMPLEMENTATION
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.protobuf import pack_bytes, pack_number

REPETITIONS = 7
PASSWORD = b"secret"
KEY = master_key(PASSWORD)
Case = tuple[str, int, Callable[[], object]]  # name, entries, what is timed


def add_replies(count: int, *, ledgers: int = 1) -> bytes:
    return b"".join(
        struct.pack(">iIiqq", 24, 0x02010000, 0, 7 + at % ledgers, 1000 + at) for at in range(count)
    )


def split(chunk: bytes, splitter: FrameSplitter) -> int:
    splitter.feed(chunk)
    seen = 0
    while (run := splitter.next_run()) is not None:
        replies = v2.parse_adds(run, "bench")
        if replies is None:
            seen += sum(v2.parse_reply(body, "bench") is not None for body in run.bodies())
        else:
            seen += len(replies.entry_ids)
    return seen


def packing(payload: bytes) -> Iterator[Case]:
    size = len(payload)
    for type in (DigestType.DUMMY, DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC):
        digest = EntryDigest(type, PASSWORD)
        raw = digest.pack_head(7, 3, 2, size, [payload]) + payload

        def add(digest: EntryDigest = digest) -> object:
            head = digest.pack_head(7, 3, 2, size, (payload,))
            return v2.pack_add(head, payload_bytes=size, master_key=KEY)

        def verify(digest: EntryDigest = digest, raw: bytes = raw) -> object:
            return digest.verify(raw, ledger_id=7, entry_id=3)

        name = "NONE" if type is DigestType.DUMMY else type.name
        yield f"v2 add of {size} B, {name}", 1, add
        yield f"verify an entry of {size} B, {name}", 1, verify


def cases() -> Iterator[Case]:
    chance = random.Random(7)
    payload = chance.randbytes(1024)
    yield from packing(payload)
    yield from packing(chance.randbytes(64 << 10))

    crc32c = EntryDigest(DigestType.CRC32C, PASSWORD)
    head = crc32c.pack_head(7, 3, 2, 1024, [payload])
    entry = head + payload
    yield (
        "v3 add of 1024 B, head given",
        1,
        lambda: v3.pack_add(3, 7, 3, head, payload_bytes=1024, master_key=KEY),
    )
    yield "v3 long poll", 1, lambda: v3.pack_long_poll(3, 7, previous_lac=2, timeout_ms=1000)

    header = pack_bytes(1, bytes.fromhex("080310021803")) + pack_number(2, 0)
    ok = header + pack_bytes(101, bytes.fromhex("080010071803"))
    yield "v3 answer to an add", 1, lambda: parse_response(ok, "bench")

    splitter = FrameSplitter("bench")
    for name, chunk in (
        ("one read", add_replies(500)),
        ("one read, 50 ledgers", add_replies(500, ledgers=50)),
    ):
        yield f"500 answers to adds in {name}", 500, lambda chunk=chunk: split(chunk, splitter)
    chunk = add_replies(500)
    cut = [chunk[:14], chunk[14:]]
    yield "500 answers to adds in two reads, cut", 500, lambda: [split(c, splitter) for c in cut]
    one = add_replies(1)
    yield "1 answer to an add", 1, lambda: split(one, splitter)

    reply = struct.pack(">Iiqq", 0x02020000, 0, 7, 3) + entry
    read = struct.pack(">i", len(reply)) + reply
    yield "answer to a read of 1024 B", 1, lambda: split(read, splitter)
    many = struct.pack(">Iiqqq", 0x02070000, 0, 7, 3, 1)
    many += (struct.pack(">i", len(entry)) + entry) * 900
    view = memoryview(many)

    def batch() -> object:
        answer = v2.parse_reply(view, "bench")
        assert isinstance(answer, v2.BatchReadReply)
        return [crc32c.verify(each, ledger_id=7, entry_id=3) for each in answer.entries]

    yield "batch read of 900 x 1024 B, parsed", 900, lambda: v2.parse_reply(view, "bench")
    yield "batch read of 900 x 1024 B, verified", 900, batch

    ensemble = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=tuple(Fragment(at * 1000, ensemble) for at in range(3)),
        digest_type=DigestType.CRC32C,
        password=PASSWORD,
    )
    stored = pack_ledger_metadata(metadata)
    yield (
        "ledger metadata of 3 fragments, parse",
        1,
        lambda: parse_ledger_metadata(stored, where="bench"),
    )
    yield "ledger metadata of 3 fragments, pack", 1, lambda: pack_ledger_metadata(metadata)


def best_us(work: Callable[[], object], seconds: float) -> float:
    number = max(1, int(seconds / max(timeit.timeit(work, number=3) / 3, 1e-9)))
    return min(timeit.repeat(work, number=number, repeat=REPETITIONS)) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.05, help="per repetition")
    seconds = parser.parse_args().seconds
    results = []
    print(f"{'case':48} {'us':>10} {'us/entry':>10}")
    for name, entries, work in cases():
        took_us = best_us(work, seconds)
        results.append({"case": name, "us": round(took_us, 3), "entries": entries})
        print(f"{name:48} {took_us:10.2f} {took_us / entries:10.3f}")
    setting = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "crc32c": IMPLEMENTATION,
    }
    print(json.dumps({"setting": setting, "results": results}))


if __name__ == "__main__":
    main()

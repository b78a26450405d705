"""Reading a sealed log from the page cache.

- `read_arrow`: from `open_reader` to the last batch, each batch turned into an Arrow record batch;
  payload bytes (1 KB) and messages (100 B) by that time. Beside it the plain file, read in 4 MB
  blocks and looked at by nobody; peers make an Arrow array of every 256 KiB of values.
- `iterate`: `for message in reader`, each message's value looked at; messages by the time of the
  loop.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlog
from benchmarks.common import (
    KIB,
    MIB,
    Finding,
    Setting,
    interleaved,
    median,
    random_values,
)
from benchmarks.embedded.peers import BATCH_BYTES, BareFile, batches_of, peers

ARROW_BYTES_S = 1e9
ARROW_MESSAGES_S = 10e6
ITERATE_MESSAGES_S = 1e6


def read_arrow(setting: Setting) -> list[Finding]:
    return [_read_arrow(setting, size) for size in (KIB, 100)]


def _read_arrow(setting: Setting, size: int) -> Finding:
    import pyarrow

    count = setting.pick(256 * MIB, MIB) // size

    def read_log(directory: Path) -> float:
        began = time.perf_counter()
        seen = 0
        with dlog.open_reader("bench", url=f"file:{directory}") as log:
            for batch in log.batches():
                seen += batch.to_arrow().num_rows
            taken = time.perf_counter() - began
        assert seen == count
        return taken

    def read_peer(peer: Any) -> float:
        began = time.perf_counter()
        values, seen = peer.values(), 0
        while block := list(itertools.islice(values, max(1, BATCH_BYTES // size))):
            seen += len(pyarrow.array(block, pyarrow.binary()))
        assert seen == count
        return time.perf_counter() - began

    taken = _measured(setting, count, size, read_log, read_peer)
    rates = {name: [count / s for s in runs] for name, runs in taken.items()}
    rate = median(rates["dlog"])
    if size == KIB:
        figure, passed = "≥ 1 GB/s", rate * size >= ARROW_BYTES_S
    else:
        figure, passed = "≥ 10 M/s", rate >= ARROW_MESSAGES_S
    return Finding(
        "read_arrow",
        f"batches() to Arrow, {'1 KB' if size == KIB else f'{size} B'}",
        f"{rate * size / 1e9:.2f} GB/s = {rate / 1e6:.2f} M/s",
        figure,
        passed,
        beside=", ".join(
            f"{name} {median(rates[name]) * size / 1e9:.2f} GB/s"
            for name in rates
            if name != "dlog"
        ),
        values={"messages_s": rate, "bytes_s": rate * size},
        rounds={f"{name} messages/s": runs for name, runs in rates.items()},
    )


def iterate(setting: Setting) -> list[Finding]:
    size, count = 100, setting.pick(2_000_000, 5_000)

    def read_log(directory: Path) -> float:
        seen = 0
        with dlog.open_reader("bench", url=f"file:{directory}") as log:
            began = time.perf_counter()
            for message in log:
                seen += len(message.value)
            taken = time.perf_counter() - began
        assert seen == size * count
        return taken

    def read_peer(peer: Any) -> float:
        seen = 0
        began = time.perf_counter()
        for value in peer.values():
            seen += len(value)
        assert seen == size * count
        return time.perf_counter() - began

    taken = _measured(setting, count, size, read_log, read_peer)
    rates = {name: [count / s for s in runs] for name, runs in taken.items() if name != "bare"}
    rate = median(rates["dlog"])
    return [
        Finding(
            "iterate",
            "for message in reader, 100 B",
            f"{rate / 1e6:.2f} M/s",
            "≥ 1 M/s",
            rate >= ITERATE_MESSAGES_S,
            beside=", ".join(
                f"{name}, values only {median(rates[name]) / 1e6:.2f} M/s"
                for name in rates
                if name != "dlog"
            ),
            values={"messages_s": rate},
            rounds={f"{name} messages/s": runs for name, runs in rates.items()},
        )
    ]


def _measured(
    setting: Setting,
    count: int,
    size: int,
    read_log: Callable[[Path], float],
    read_peer: Callable[[Any], float],
) -> dict[str, list[float]]:
    """Fill everybody, read once to have all in the page cache, then measure turn by turn."""
    values = random_values(count, size)
    with setting.scratch() as directory:
        with dlog.open_writer("bench", url=f"file:{directory}") as log:
            log.append_many(values)
        bare = BareFile(directory)
        bare.append_blocks(memoryview(b"".join(values)))
        filled = {name: make(directory) for name, make in peers().items()}
        for peer in filled.values():
            for batch in batches_of(values):
                peer.append_batch(batch)
        del values

        def read_bare() -> float:
            began = time.perf_counter()
            assert bare.read_all() == count * size
            return time.perf_counter() - began

        cases: dict[str, Callable[[], float]] = {
            "bare": read_bare,
            "dlog": lambda: read_log(directory),
        }
        for name, peer in filled.items():
            cases[name] = lambda peer=peer: read_peer(peer)
        interleaved(1, cases)
        taken = interleaved(setting.rounds, cases)
        bare.close()
        for peer in filled.values():
            peer.close()
    return taken

"""Writing: one at a time, many at once, and a ticket each.

- `append_sequential`: p50 of one `append` of 1 KB that waits for its acknowledgement, beside p50 of
  write + fdatasync of the same bytes to a plain file that grows.
- `append_many`: all bytes by the time from the call to its return, beside a plain file written and
  synced in 1 MB blocks. Peers commit one transaction per 256 KiB.
- `submit`: messages by the time from the first `submit` to the return of `flush`; one thread, the
  tickets are kept.
"""

from __future__ import annotations

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
    median_ratio,
    quantile,
    random_values,
)
from benchmarks.embedded.peers import BareFile, batches_of, peers

FIGURED_BYTES = 100  # the size that the figure of append_many is about
APPEND_MANY_SHARE = 0.6
APPEND_MANY_MESSAGES_S = 2_000_000
SUBMIT_MESSAGES_S = 600_000
APPEND_SLACK_S, APPEND_RATIO = 0.0003, 1.3


def append_sequential(setting: Setting) -> list[Finding]:
    values = random_values(setting.pick(1_500, 20), KIB)

    def each(append: Callable[[bytes], Any]) -> list[float]:
        taken = []
        for value in values:
            began = time.perf_counter()
            append(value)
            taken.append(time.perf_counter() - began)
        return taken

    with setting.scratch() as directory:
        cases = _cases(directory, each)
        cases["dlog"] = lambda: _with_writer(directory, lambda log: each(log.append))
        results = interleaved(setting.rounds, cases)
    p50 = {name: [quantile(run, 0.5) for run in runs] for name, runs in results.items()}
    p99 = {name: [quantile(run, 0.99) for run in runs] for name, runs in results.items()}
    slack_s = median([our - bare for our, bare in zip(p50["dlog"], p50["bare"], strict=True)])
    ratio = median_ratio(p50["dlog"], p50["bare"])
    return [
        Finding(
            "append_sequential",
            "append 1 KB, p50",
            f"{_ms(median(p50['dlog']))} (p99 {_ms(median(p99['dlog']))})",
            "≤ bare + 0.3 ms or 1.3 x",
            slack_s <= APPEND_SLACK_S or ratio <= APPEND_RATIO,
            beside=", ".join(
                f"{name} {_ms(median(p50[name]))}" for name in cases if name != "dlog"
            ),
            values={"ratio": ratio, "slack_ms": slack_s * 1e3},
            rounds={f"{name} p50 s": runs for name, runs in p50.items()}
            | {f"{name} p99 s": runs for name, runs in p99.items()},
        )
    ]


def append_many(setting: Setting) -> list[Finding]:
    return [_append_many(setting, size) for size in (FIGURED_BYTES, KIB)]


def _append_many(setting: Setting, size: int) -> Finding:
    values = random_values(setting.pick(192 * MIB, MIB) // size, size)
    total_bytes = len(values) * size
    blocks = memoryview(b"".join(values))

    def write_batches(peer: Any) -> float:
        began = time.perf_counter()
        for batch in batches_of(values):
            peer.append_batch(batch)
        return time.perf_counter() - began

    def write_bare(directory: Path) -> float:
        bare = BareFile(directory)
        began = time.perf_counter()
        bare.append_blocks(blocks)
        taken = time.perf_counter() - began
        bare.close()
        return taken

    def write_log(log: dlog.Writer) -> float:
        began = time.perf_counter()
        log.append_many(values)
        return time.perf_counter() - began

    cases: dict[str, Callable[[], float]] = {}
    with setting.scratch() as directory:
        cases["bare"] = lambda: write_bare(directory)
        cases["dlog"] = lambda: _in_fresh(directory, lambda d: _with_writer(d, write_log))
        for name, make in peers().items():
            cases[name] = lambda make=make: _in_fresh(
                directory, lambda d: _with_peer(make, d, write_batches)
            )
        taken = interleaved(setting.rounds, cases)
    speeds = {name: [total_bytes / s for s in runs] for name, runs in taken.items()}
    share = median_ratio(speeds["dlog"], speeds["bare"])
    messages_s = median(speeds["dlog"]) / size
    reached = share >= APPEND_MANY_SHARE or messages_s >= APPEND_MANY_MESSAGES_S
    return Finding(
        "append_many",
        f"append_many {_size(size)}",
        f"{_mb(median(speeds['dlog']))} = {messages_s / 1e6:.2f} M/s, {share:.0%} of bare",
        "≥ 60 % of bare or 2 M/s" if size == FIGURED_BYTES else "",
        None if size != FIGURED_BYTES else reached,
        beside=", ".join(f"{name} {_mb(median(speeds[name]))}" for name in cases if name != "dlog"),
        values={"share": share, "messages_s": messages_s},
        rounds={f"{name} bytes/s": runs for name, runs in speeds.items()},
    )


def submit(setting: Setting) -> list[Finding]:
    values = random_values(setting.pick(1_000_000, 5_000), 100)

    def submit_all(log: dlog.Writer) -> float:
        put = log.submit
        began = time.perf_counter()
        tickets = [put(value) for value in values]
        log.flush()
        taken = time.perf_counter() - began
        assert len({tickets[0].result(), tickets[-1].result()}) == 2
        return taken

    def one_by_one(peer: Any) -> float:
        """Their nearest twin: a call per message, a transaction per 256 KiB."""
        began = time.perf_counter()
        for batch in batches_of(values):
            peer.append_batch(batch)
        return time.perf_counter() - began

    with setting.scratch() as directory:
        cases: dict[str, Callable[[], float]] = {
            "dlog": lambda: _in_fresh(directory, lambda d: _with_writer(d, submit_all))
        }
        for name, make in peers().items():
            cases[name] = lambda make=make: _in_fresh(
                directory, lambda d: _with_peer(make, d, one_by_one)
            )
        taken = interleaved(setting.rounds, cases)
    rates = {name: [len(values) / s for s in runs] for name, runs in taken.items()}
    rate = median(rates["dlog"])
    return [
        Finding(
            "submit",
            "submit 100 B, a ticket each",
            f"{rate:,.0f}/s",
            f"≥ {SUBMIT_MESSAGES_S:,}/s",
            rate >= SUBMIT_MESSAGES_S,
            beside=", ".join(
                f"{name}, batches {median(rates[name]):,.0f}/s" for name in cases if name != "dlog"
            ),
            values={"messages_s": rate},
            rounds={f"{name} messages/s": runs for name, runs in rates.items()},
        )
    ]


def _cases(
    directory: Path, each: Callable[[Callable[[bytes], Any]], list[float]]
) -> dict[str, Callable[[], list[float]]]:
    def bare() -> list[float]:
        file = BareFile(directory)
        taken = each(file.append)
        file.close()
        return taken

    cases: dict[str, Callable[[], list[float]]] = {"bare": bare}
    for name, make in peers().items():
        cases[name] = lambda make=make: _in_fresh(
            directory, lambda d: _with_peer(make, d, lambda peer: each(peer.append))
        )
    return cases


def _in_fresh(directory: Path, act: Callable[[Path], Any]) -> Any:
    """In a directory of its own, removed afterwards: a round leaves nothing for the next."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=directory) as name:
        return act(Path(name))


def _with_peer(make: Callable[[Path], Any], directory: Path, act: Callable[[Any], Any]) -> Any:
    peer = make(directory)
    try:
        return act(peer)
    finally:
        peer.close()


def _with_writer(directory: Path, act: Callable[[dlog.Writer], Any]) -> Any:
    with dlog.open_writer("bench", url=f"file:{directory}") as log:
        log.append(b"warm")
        return act(log)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _mb(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:.0f} MB/s"


def _size(size: int) -> str:
    return f"{size} B" if size < KIB else f"{size // KIB} KB"

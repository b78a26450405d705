"""How soon a change of a document is in force everywhere, and what of it is touched.

python -m benchmarks.streams.config [--zookeeper | --url URL] [--processes 4] [--followers 25]
                                    [--changes 20] [--json FILE]

Followers are `HotConfig`s in processes of their own, each with a part that changes and one that
does not. A change is timed from the moment its editor begins it to the moment each follower says
that it is in force, by the one clock of this machine. Changes come one after the other, each when
the one before is in force everywhere, so that none is passed over; *by watch* the time to look
without being told is an hour, *without* the watches are thrown away.

Figures: in force everywhere within 1 s by watch, within the poll interval without; a part that
says the same is never touched; an unchanged version is asked for and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.common import ROOT, Finding, Setting, machine, median, print_table, quantile
from benchmarks.common import write_json as write_findings

DOCUMENT = "bench"
JSON_PATH = ROOT / "build" / "benchmarks" / "streams-config.json"
WATCHED_POLL_MS = 3_600_000
DEAF_POLL_MS = 1_000
WITHIN_S = 1.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Load:
    url: str
    processes: int
    followers: int  # of each process
    changes: int


# --- a follower's process


class Timed:
    """A part that tells when it was put in force, and counts that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.swaps = 0
        self.at_ns: dict[int, int] = {}

    def prepare(self, content: Any) -> Any:
        from dlog.streams.config.following import Ready

        number = (content or {}).get("number", 0)

        def put() -> None:
            self.swaps += 1
            self.at_ns[number] = time.time_ns()

        return Ready(number, put)


class DeafStore:
    """A metadata store whose watches never tell anything."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, path: str) -> DeafStore:
        return self

    async def __aenter__(self) -> DeafStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def wait(self, timeout_ms: float) -> bool:
        await asyncio.sleep(timeout_ms / 1000)
        return False


async def follow(url: str, followers: int, is_deaf: bool, poll_ms: int) -> None:
    """Says `ready`, then for each version it is asked for what it knows, until its input ends."""
    from dlog.client import connect
    from dlog.streams.config.hot import HotConfig

    async with connect(url) as client:
        stores = await client._stores(False)
        if is_deaf:
            stores = dataclasses.replace(stores, meta=DeafStore(stores.meta))
        parts = [(Timed("moving"), Timed("resting")) for _ in range(followers)]
        hots = [HotConfig(stores, DOCUMENT, pair, poll_ms=poll_ms) for pair in parts]
        await asyncio.gather(*(hot.ready() for hot in hots))
        _say({"ready": followers})
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            await asyncio.gather(*(hot.wait_for(asked["version"], PATIENCE_S) for hot in hots))
            _say(
                {
                    "at_ns": [moving.at_ns[asked["number"]] for moving, _ in parts],
                    "moving": [moving.swaps for moving, _ in parts],
                    "resting": [resting.swaps for _, resting in parts],
                    "looks": [hot.status().looks for hot in hots],
                    "fetches": [hot.status().fetches for hot in hots],
                }
            )
        for hot in hots:
            await hot.close()


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


# --- the editor's


@dataclass
class Told:
    """What all followers said after the last change."""

    took_s: list[float]  # of each follower and change
    all_s: list[float]  # of each change: until the last follower had it
    edit_s: list[float]
    moving: list[int]
    resting: list[int]
    looks: list[int]
    fetches: list[int]


def measure(load: Load, *, is_deaf: bool) -> Told:
    import dlog

    told = Told([], [], [], [], [], [], [])
    with dlog.connect(load.url) as client, _started(load, is_deaf=is_deaf) as children:
        document = client.config(DOCUMENT)
        for number in range(load.changes):
            began_ns, began_s = time.time_ns(), time.perf_counter()
            value = {"number": began_ns}
            version = document.set("moving", value, unchecked=True).version
            told.edit_s.append(time.perf_counter() - began_s)
            answers = _ask(children, {"version": version, "number": began_ns})
            took = [(at - began_ns) / 1e9 for answer in answers for at in answer["at_ns"]]
            told.took_s += took
            told.all_s.append(max(took))
            if number == load.changes - 1:
                for name in ("moving", "resting", "looks", "fetches"):
                    setattr(told, name, [n for answer in answers for n in answer[name]])
    return told


@contextlib.contextmanager
def _started(load: Load, *, is_deaf: bool) -> Iterator[list[subprocess.Popen[str]]]:
    poll_ms = DEAF_POLL_MS if is_deaf else WATCHED_POLL_MS
    words = ["--child", str(load.followers), str(poll_ms), "deaf" if is_deaf else "hears"]
    command = [sys.executable, "-m", "benchmarks.streams.config", "--url", load.url, *words]
    children = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(load.processes)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            _heard(child.stdout)
        yield children
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        for child in children:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _ask(children: Sequence[subprocess.Popen[str]], asked: dict[str, Any]) -> list[Any]:
    for child in children:
        assert child.stdin is not None
        child.stdin.write(json.dumps(asked) + "\n")
        child.stdin.flush()
    answers = []
    for child in children:
        assert child.stdout is not None
        answers.append(_heard(child.stdout))
    return answers


def _heard(stream: IO[str]) -> Any:
    line = stream.readline()
    assert line, "a follower's process ended"
    return json.loads(line)


def findings_of(load: Load, where: str) -> list[Finding]:
    import dlog

    with dlog.connect(load.url) as client:  # both parts are there before anybody follows
        content = {"moving": {"number": 0}, "resting": {"number": 0}}
        client.config(DOCUMENT).replace(content, unchecked=True)
    many = f"{load.processes * load.followers} followers, {load.processes} processes, {where}"
    watched = measure(load, is_deaf=False)
    deaf = measure(dataclasses.replace(load, changes=min(load.changes, 5)), is_deaf=True)
    poll_s = DEAF_POLL_MS / 1000
    return [
        _in_force("by_watch", f"in force everywhere, by watch; {many}", watched, WITHIN_S),
        _in_force("by_poll", f"the same without watches, a poll of {poll_s:g} s", deaf, poll_s),
        _counted("untouched", watched, load.changes),
    ]


def _in_force(row: str, what: str, told: Told, figure_s: float) -> Finding:
    worst_s = max(told.all_s)
    return Finding(
        row,
        what,
        f"worst {worst_s * 1000:.0f} ms",
        f"≤ {figure_s * 1000:.0f} ms",
        worst_s <= figure_s,
        f"each: p50 {median(told.took_s) * 1000:.1f} ms, "
        f"p99 {quantile(told.took_s, 0.99) * 1000:.1f} ms; "
        f"the change itself {median(told.edit_s) * 1000:.1f} ms",
        {"worst_s": worst_s, "p50_s": median(told.took_s), "p99_s": quantile(told.took_s, 0.99)},
        {"all_s": told.all_s, "edit_s": told.edit_s},
    )


def _counted(row: str, told: Told, changes: int) -> Finding:
    """Each part is swapped twice before: as the program begins, and for the first document."""
    touched = sum(told.resting) - 2 * len(told.resting)
    moved = sum(told.moving) - 2 * len(told.moving)
    wanted = changes * len(told.moving)
    return Finding(
        row,
        "swaps of a part that says the same, while another changes",
        f"{touched} of {wanted}",
        "0",
        touched == 0 and moved == wanted,
        f"the other: {moved}; documents fetched: {sum(told.fetches)}, looks: {sum(told.looks)}",
        {"touched": touched, "moved": moved, "fetches": sum(told.fetches)},
        {"resting": [float(each) for each in told.resting]},
    )


@contextlib.contextmanager
def _place(chosen: argparse.Namespace) -> Iterator[tuple[str, str]]:
    if chosen.url:
        yield chosen.url, chosen.url
    elif chosen.zookeeper:
        from dlog.testing.cluster import Cluster

        with Cluster(bookies=0) as cluster:
            yield f"zk://{cluster.zookeeper.hosts}/dlog", "ZooKeeper"
    else:
        with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="dlog-bench-") as name:
            yield f"file:{name}/logs", "file:"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.config")
    parser.add_argument("--url", help="where; a directory of its own by default")
    parser.add_argument("--zookeeper", action="store_true", help="a real ZooKeeper, started here")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--followers", type=int, default=25, help="in each of them")
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="for what needs a disk")
    parser.add_argument("--json", type=Path, default=JSON_PATH, help="where all samples go")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        followers, poll_ms, hearing = chosen.child
        asyncio.run(follow(chosen.url, int(followers), hearing == "deaf", int(poll_ms)))
        return
    where = machine(chosen.directory)
    for name, value in where.items():
        print(f"{name:14} {value}")
    with _place(chosen) as (url, told):
        load = Load(url, chosen.processes, chosen.followers, chosen.changes)
        findings = findings_of(load, told)
    print()
    print_table(findings)
    write_findings(chosen.json, Setting(chosen.directory, 1), findings, machine=where)
    print(f"\nall samples: {chosen.json}")


if __name__ == "__main__":
    main()

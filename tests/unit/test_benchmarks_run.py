"""Each row of the benchmarks runs, with tiny sizes, and tells what it should: so the commands of
docs/PERFORMANCE.md cannot rot. Nothing here looks at a time. The rows of streams are in
tests/unit/streams, those that need real servers in integration/interop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bookie_kills
from benchmarks.bookie_kills import BookieKills
from benchmarks.common import ROOT, slope_per_minute
from benchmarks.embedded.memory import floors_of
from benchmarks.embedded.rotating import Spans
from benchmarks.embedded.rows import ROWS
from tests.tiers import in_full

pytest.importorskip("pyarrow")  # two rows read into Arrow
pytestmark = pytest.mark.tier("test")

EXPECTED_FINDINGS = {
    "append_many": 2,
    "read_arrow": 2,
    "takeover": 2,
    "history": 2,
    "memory": 3,
    "startup": 3,
    "metrics": 2,
}


def run_quick(where: Path, *rows: str, table: str = "embedded") -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", f"benchmarks.{table}", *rows]
    told = where / "told.json"
    command += ["--quick", "--rounds", "1", "--directory", str(where), "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text()), done.stdout


@pytest.mark.parametrize(
    "row", in_full(ROWS, but=[row for row in ROWS if row != "memory"], seconds=3)
)
def test_a_row_runs_alone(row: str, tmp_path: Path) -> None:
    told, table = run_quick(tmp_path, row)
    findings = told["findings"]
    assert [each["row"] for each in findings] == [row] * EXPECTED_FINDINGS.get(row, 1)
    for each in findings:
        assert each["what"] in table
        assert each["measured"] in table
        assert all(each["rounds"].values()), "samples are told, not only their median"
    assert told["machine"]["crc32c"] in table
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"], "scratch is cleaned up"


def test_a_row_of_workers_runs_alone(tmp_path: Path) -> None:
    told, table = run_quick(tmp_path, "throughput", table="workers")
    assert told["findings"]
    for each in told["findings"]:
        assert each["row"] == "throughput"
        assert each["measured"] in table
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"], "scratch is cleaned up"


def test_shards_that_change_while_all_are_killed(tmp_path: Path) -> None:
    """Few changes here; the row by itself makes a hundred and more."""
    told, _ = run_quick(tmp_path, "stream_changes", table="streams")
    (finding,) = told["findings"]
    assert finding["verdict"] == "passed", finding["measured"]
    assert finding["values"]["acked"] > 0


def test_metadata_is_not_asked_while_appending(tmp_path: Path) -> None:
    """The one row that counts, so that it holds on any machine."""
    told, _ = run_quick(tmp_path, "metadata")
    assert told["findings"][0]["values"] == {"reads": 0, "writes": 0, "wal_bytes": 0}


@pytest.mark.parametrize(
    ("table", "known"), [("embedded", "append_sequential"), ("bookkeeper", "add_pipelined")]
)
def test_an_unknown_row_is_refused(table: str, known: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{table}", "appending"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 2
    assert known in done.stderr


def test_the_longest_append_around_a_moment() -> None:
    spans = Spans()
    for begin, end in [(0.0, 0.01), (0.9, 0.93), (0.94, 0.96), (1.04, 1.2), (1.06, 1.9)]:
        spans.add(begin, end)
    assert spans.longest_around([1.0, 5.0]) == [pytest.approx(0.16), 0.0]


def test_a_slope_is_told_per_minute() -> None:
    assert slope_per_minute([0.0, 30.0, 60.0], [5.0, 6.0, 7.0]) == pytest.approx(2.0)
    assert slope_per_minute([0.0, 15.0, 30.0, 45.0, 60.0], [5.0, 9.0, 9.0, 9.0, 9.0]) == 0.0


def test_the_floor_is_what_memory_falls_back_to() -> None:
    samples = [(0.0, 50.0), (1.0, 20.0), (4.9, 90.0), (5.0, 21.0), (9.0, 80.0)]
    assert floors_of(samples) == [(1.0, 20.0), (5.0, 21.0)]


def test_a_copy_that_is_killed_is_equal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.copying", "--bytes", "2000000", "--kills", "1"]
    command += ["--directory", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"]
    assert list(tmp_path.iterdir()) == [], "scratch is cleaned up"


class StandIn:
    """A bookie that takes a while to come back."""

    looks_until_back = 3

    def __init__(self, name: str) -> None:
        self.name = self.bookie_id = name
        self.pid: int | None = 1
        self.away = 0  # looks until it serves
        self.is_frozen = False

    def kill(self) -> None:
        self.pid, self.away = None, self.looks_until_back

    def start(self) -> None:
        self.pid = 1

    def freeze(self) -> None:
        self.is_frozen, self.away = True, self.looks_until_back

    def thaw(self) -> None:
        self.is_frozen = False

    def is_registered(self) -> bool:
        return self.pid is not None and not self.is_frozen

    def answers(self) -> bool:
        self.away = max(0, self.away - 1)
        return self.away == 0

    def log_tail(self) -> str:
        return ""


def test_no_two_bookies_are_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(bookie_kills.time, "monotonic", lambda: now_s)
    bookies = [StandIn(f"bookie-{number}") for number in range(4)]
    cluster: Any = type("ClusterOfThem", (), {"bookies": bookies})()
    harm = BookieKills(cluster, "a seed")

    def tick() -> None:
        nonlocal now_s
        now_s += 0.05
        harm.tick()

    for _ in range(5_000):
        tick()
        assert sum(each.away > 0 or not each.is_registered() for each in bookies) <= 1
    assert harm.kills > harm.freezes > 10
    assert len(harm.of) == len(bookies)
    monkeypatch.setattr(StandIn, "start", StandIn.kill)

    def tick_on() -> None:
        while True:
            tick()

    with pytest.raises(TimeoutError, match="does not come back"):
        tick_on()

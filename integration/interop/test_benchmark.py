"""The benchmarks on bookies run, of ledgers and of logs, with tiny sizes, and what must hold at any
size holds. Nothing here looks at a time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bookkeeper.rows import ROWS as LEDGER_ROWS
from benchmarks.common import ROOT
from benchmarks.log.rows import ROWS as LOG_ROWS
from dlog.testing.cluster.java_program import why_not_compiled

TIMEOUT_S = 360  # all rows of a table take a minute on a quiet machine
TABLES = {
    "bookkeeper": (
        LEDGER_ROWS,
        {"add_pipelined": 2, "recover": 2, "stall": 2, "fence_crash": 2},
    ),
    "log": (
        LOG_ROWS,
        {"append_many": 2, "read_arrow": 2, "takeover": 4, "hand_over": 3, "history": 2, "tls": 4},
    ),
}
NOUGHTS = ("lost", "zombie_acks", "failures")
EVERY_ROW = [(table, row) for table, (rows, _) in TABLES.items() for row in rows]

pytestmark = [pytest.mark.tier("full", seconds=30), pytest.mark.timeout(TIMEOUT_S + 30)]


async def run_quick(table_name: str, where: Path, *rows: str) -> list[dict[str, Any]]:
    """What the command finds, after a look at what must hold for each finding."""
    missing = why_not_compiled()
    if missing is not None:
        pytest.skip(missing)
    told = where / "told.json"
    command = [sys.executable, "-m", f"benchmarks.{table_name}", *rows, "--quick", "--rounds", "1"]
    command += ["--directory", str(where), "--json", str(told)]
    run = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            table, complaints = await run.communicate()
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    assert run.returncode == 0, complaints.decode()
    findings: list[dict[str, Any]] = json.loads(told.read_text())["findings"]
    findings_of = TABLES[table_name][1]
    assert [each["row"] for each in findings] == [
        row for row in rows for _ in range(findings_of.get(row, 1))
    ]
    for each in findings:
        assert each["measured"] in table.decode()
        assert all(each["rounds"].values()), "samples are told, not only their median"
        for what in NOUGHTS:
            assert each["values"].get(what, 0) == 0, each
    return findings


@pytest.mark.parametrize(("table_name", "row"), EVERY_ROW)
async def test_every_row_runs(table_name: str, row: str, jars: str, tmp_path: Path) -> None:
    assert await run_quick(table_name, tmp_path, row)

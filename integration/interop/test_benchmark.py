"""The benchmarks on bookies run, of ledgers and of logs, with tiny sizes, and what must hold at any
size holds. Nothing here looks at a time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks.bookkeeper.rows import ROWS as LEDGER_ROWS
from benchmarks.common import ROOT
from benchmarks.log.rows import ROWS as LOG_ROWS
from dlog.testing.cluster.java_program import why_not_compiled

TIMEOUT_S = 360  # a minute on a quiet machine
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


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("table_name", TABLES)
async def test_every_row_runs(table_name: str, jars: str, tmp_path: Path) -> None:
    rows, findings_of = TABLES[table_name]
    missing = why_not_compiled()
    if missing is not None:
        pytest.skip(missing)
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", f"benchmarks.{table_name}", "--quick", "--rounds", "1"]
    command += ["--directory", str(tmp_path), "--json", str(told)]
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
    findings = json.loads(told.read_text())["findings"]
    assert [each["row"] for each in findings] == [
        row for row in rows for _ in range(findings_of.get(row, 1))
    ]
    for each in findings:
        assert each["measured"] in table.decode()
        assert all(each["rounds"].values()), "samples are told, not only their median"
        for what in NOUGHTS:
            assert each["values"].get(what, 0) == 0, each

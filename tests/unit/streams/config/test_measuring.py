"""The command that measures documents runs, with tiny sizes; nothing here looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.common import ROOT


def test_the_command_runs_and_counts(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    sizes = ["--processes", "2", "--followers", "2", "--changes", "2"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.streams.config",
            *sizes,
            "--directory",
            str(tmp_path),
            "--json",
            str(told),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    findings = {each["row"]: each for each in json.loads(told.read_text())["findings"]}
    assert set(findings) == {"by_watch", "by_poll", "untouched"}
    assert findings["untouched"]["values"] == {"touched": 0, "moved": 8, "fetches": 12}
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"]

"""Runs pytest in a directory of planted tests, with our plugins and nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tidy.source import ROOT


def run_pytest(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir=.", *arguments],
        cwd=where,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

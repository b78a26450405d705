"""A pytest plugin that ends every run with the truth about what did not run: each skipped test by
name with its reason, each expected failure, and the counts. `make test` loads it."""

from __future__ import annotations

import pytest


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", "")) or "no reason given"


def lines(stats: dict[str, list[object]]) -> list[str]:
    """What the report says about these pytest statistics."""
    kinds = (("skipped", "skipped"), ("xfailed", "expected to fail"))
    told = []
    for kind, words in kinds:
        for report in stats.get(kind, []):
            assert isinstance(report, pytest.TestReport | pytest.CollectReport)
            told.append(f"{words}: {report.nodeid}: {_reason(report)}")
    names = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "deselected")
    counts = ", ".join(f"{len(stats.get(name, []))} {name}" for name in names)
    return [*sorted(told), f"counts: {counts}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("what did not run")
    for line in lines(terminalreporter.stats):
        terminalreporter.line(line)

"""A pytest plugin that ends every run with the truth about what did not run: each skipped test and
each expected failure by name, below the reason they share, and the counts. `make test` loads it."""

from __future__ import annotations

import pytest


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", "")) or "no reason given"


def lines(stats: dict[str, list[object]]) -> list[str]:
    """What the report says about these pytest statistics."""
    told = []
    for kind, words in (("skipped", "skipped"), ("xfailed", "expected to fail")):
        names_by_reason: dict[str, list[str]] = {}
        for report in stats.get(kind, []):
            assert isinstance(report, pytest.TestReport | pytest.CollectReport)
            names_by_reason.setdefault(_reason(report), []).append(report.nodeid)
        for reason, names in sorted(names_by_reason.items()):
            told += [f"{len(names)} {words}: {reason}", *(f"    {name}" for name in sorted(names))]
    kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "deselected")
    counts = ", ".join(f"{len(stats.get(kind, []))} {kind}" for kind in kinds)
    return [*told, f"counts: {counts}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("what did not run")
    for line in lines(terminalreporter.stats):
        terminalreporter.line(line)

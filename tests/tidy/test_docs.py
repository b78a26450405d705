"""The documentation is true: its links lead somewhere, its commands exist and run, its Python runs,
and every promise names a test that speaks of it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dlog.cli.main import COMMANDS, EXIT_CODES, program
from dlog.options import SECRET_OPTIONS, ClientOptions
from tests.launcher import Launcher
from tests.tidy.pages import blocks, name, pages, shell_lines, with_language
from tests.tidy.source import ROOT

LINK = re.compile(r"\[[^]\n]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED_TEST = re.compile(r"((?:tests|integration)/[\w/]+\.py)::(test_\w+)")
RULE = re.compile(r"\b(?:I\d{1,2}[abc]?|DL-\d{2}[a-f]?|CL-\d{2})\b")
SECURITY_LINE = re.compile(r"\bS\d{1,2}\b")
INVARIANTS, SECURITY = ROOT / "docs" / "INVARIANTS.md", ROOT / "SECURITY.md"
ROW = re.compile(r"^\| (?P<ids>[^|]+) \| (?P<told>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
COMMAND_LINE_PAGE = ROOT / "docs" / "how-to" / "command-line.md"
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
NAMED_HERE = "tests/tidy/test_docs.py::test_a_test_that_is_not_there_is_named"
RUN_S = 110  # one of them starts Spark
SESSION_S = 110  # one of them starts a cluster


def _broken_links(page: Path, text: str) -> list[str]:
    targets = [found for found in LINK.findall(text) if "://" not in found]
    return [
        f"{name(page)}: nothing at {target}"
        for target in targets
        if not (page.parent / target).exists()
    ]


def test_links_lead_somewhere() -> None:
    broken = [each for page in pages() for each in _broken_links(page, page.read_text())]
    assert not broken, "\n".join(broken)


def test_a_link_that_leads_nowhere_is_named() -> None:
    text = "[a](ARCHITECTURE.md#x) [b](gone.md) [c](https://example.org/gone.md) [d](how-to/gone)"
    assert _broken_links(INVARIANTS, text) == [
        "docs/INVARIANTS.md: nothing at gone.md",
        "docs/INVARIANTS.md: nothing at how-to/gone",
    ]


def _missing_commands(page: Path, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    missing = [f"make {each}" for each in re.findall(r"\bmake ([\w-]+)", text)
               if each not in MAKE_TARGETS]  # fmt: skip
    missing += [f"dlog {each}" for each in re.findall(r"\bdlog (\w+)", text)
                if each not in COMMANDS]  # fmt: skip
    return [f"{name(page)}: no `{each}`" for each in missing]


def test_commands_of_the_docs_exist() -> None:
    shown = with_language("sh", "console")
    assert shown
    missing = [
        each
        for page in shown
        for each in _missing_commands(page, [y for x in blocks(page) for y in shell_lines(x)])
    ]
    assert not missing, "\n".join(missing)


def test_a_command_that_is_not_there_is_named() -> None:
    lines = ["make test PYTEST_ARGS='-x'", "make coffee", "dlog produce x | dlog brew"]
    assert _missing_commands(INVARIANTS, lines) == [
        "docs/INVARIANTS.md: no `make coffee`",
        "docs/INVARIANTS.md: no `dlog brew`",
    ]


@pytest.fixture(scope="module")
def dlog_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("launcher"), ["dlog"])
    yield launcher
    launcher.end()


@pytest.mark.tier("test")  # sessions start clusters and Spark
@pytest.mark.timeout(SESSION_S + 10)
@pytest.mark.parametrize("page", with_language("console"), ids=name)
def test_shell_sessions_of_the_docs_run(
    page: Path, tmp_path: Path, dlog_launcher: Launcher
) -> None:
    lines = [
        line for block in blocks(page) if block.language == "console" for line in shell_lines(block)
    ]
    python = str(dlog_launcher.path)
    script = f'set -eu -o pipefail\ndlog() {{ {python!r} -m dlog "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-x", "-c", script + "\n".join(lines)],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=SESSION_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.tier("test")
@pytest.mark.timeout(RUN_S + 10)
@pytest.mark.parametrize("page", with_language("python"), ids=name)
def test_python_of_the_docs_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page, in order, as one program, each at its own line for tracebacks."""
    program = ""
    for block in blocks(page):
        if block.language == "python":
            program += "\n" * (block.line - program.count("\n")) + block.text
    path = tmp_path / "page.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    assert done.returncode == 0, f"{name(page)}: {done.stderr[-2000:]}"


def _commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, those of groups by both names."""
    for command_name in COMMANDS:
        command = program.get_command(context, command_name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{command_name} {n}", each) for n, each in command.commands.items())
        else:
            yield command_name, command


def test_tests_that_the_docs_name_are_there() -> None:
    gone = [each for page in pages() for each in _missing_tests(page, page.read_text())]
    assert not gone, "\n".join(gone)


def test_a_test_that_is_not_there_is_named() -> None:
    text = "tests/tidy/test_docs.py::test_of_nothing and tests/tidy/test_gone.py::test_x"
    assert _missing_tests(INVARIANTS, f"{text}, {NAMED_HERE}") == [
        "docs/INVARIANTS.md: no tests/tidy/test_docs.py::test_of_nothing",
        "docs/INVARIANTS.md: no tests/tidy/test_gone.py::test_x",
    ]


def _missing_tests(page: Path, text: str) -> list[str]:
    return [
        f"{name(page)}: no {where}::{test}"
        for where, test in NAMED_TEST.findall(text)
        if not (ROOT / where).exists() or f"def {test}(" not in (ROOT / where).read_text()
    ]


def test_every_command_and_option_is_on_its_page() -> None:
    page = COMMAND_LINE_PAGE.read_text()
    context = click.Context(program)
    missing = []
    for command_name, command in _commands(context):
        assert command.params, command_name
        if not re.search(rf"dlog {command_name}[ `]", page):
            missing.append(f"dlog {command_name}")
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                missing += [
                    f"dlog {command_name} {flag}"
                    for flag in parameter.opts
                    if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", page)
                ]
    assert not missing, f"{name(COMMAND_LINE_PAGE)} does not speak of {missing}"


def test_every_option_of_clusters_is_told_of() -> None:
    """As a parameter of URLs, or as a secret with its places in the environment."""
    told = "".join(page.read_text() for page in (ROOT / "docs" / "how-to").glob("*.md"))
    wanted = {field.name for field in dataclasses.fields(ClientOptions)}
    wanted |= {f"DLOG_{name.upper()}" for name in SECRET_OPTIONS}
    wanted |= {f"DLOG_{name.upper()}_FILE" for name in SECRET_OPTIONS}
    assert "tls_cert" in wanted
    missing = sorted(name for name in wanted if not re.search(rf"`{name}[`=]", told))
    assert not missing, f"docs/how-to does not speak of {missing}"


def test_the_table_of_commands_says_what_each_says_itself() -> None:
    context = click.Context(program)
    for command_name in COMMANDS:
        command = program.get_command(context, command_name)
        assert command is not None
        assert command.name == command_name


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    pages_there = sorted(page.name for page in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    missing = [page for page in pages_there if f"({page})" not in listed]
    assert pages_there
    assert not missing, f"docs/adr/README.md does not list {missing}"


def test_exit_codes_of_page_and_help_agree() -> None:
    page = COMMAND_LINE_PAGE.read_text().split("## Exit codes")[1]
    in_page = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
               for code in row.split(",")}  # fmt: skip
    in_help = {int(code) for code in re.findall(r"^ +(\d+) |\((\d+):", EXIT_CODES, re.MULTILINE)
               for code in code if code}  # fmt: skip
    assert in_page == in_help


def _promises(text: str, rule: re.Pattern[str] = RULE) -> list[tuple[str, str, str]]:
    """(rule id, file, function) of every test that a row of the page names."""
    return [
        (rule_id, path, function)
        for row in ROW.finditer(text)
        for rule_id in rule.findall(row["ids"])
        for path, function in re.findall(r"`([\w/]+\.py)::(\w+)`", row["tests"])
    ]


def _empty(promises: list[tuple[str, str, str]]) -> list[str]:
    return [
        f"{rule}: {path}::{function}"
        for rule, path, function in promises
        if function not in _functions(path)
    ]


@functools.cache
def _functions(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.exists():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_promise_names_a_test_that_exists() -> None:
    promises = _promises(INVARIANTS.read_text())
    assert len(promises) > 50, "the rows of INVARIANTS are not understood"
    assert not (empty := _empty(promises)), "\n" + "\n".join(empty)


def test_every_rule_that_the_page_speaks_of_has_a_test() -> None:
    text = INVARIANTS.read_text().split("## Not yet")[0]
    proven = {rule for rule, _, _ in _promises(text)}
    assert set(RULE.findall(text)) == proven
    wanted = {f"I{n}" for n in (1, 2, 5, 6, 7, 8, 9, 13, 15, 16, 17, 23, 24, 25, 27, 28)}
    wanted |= {"I3a", "I3b", "I3c", "I4a", "I4b"}
    assert wanted <= proven


def _lines_left_open(text: str) -> list[str]:
    """Lines of SECURITY that have no row, or one without a test and without a reason."""
    rows = {row["ids"]: row for row in ROW.finditer(text) if SECURITY_LINE.fullmatch(row["ids"])}
    proven = {line for line, _, _ in _promises(text, SECURITY_LINE)}
    known = [f"S{n}" for n in (*range(1, 21), *range(28, 32))]
    return [
        line
        for line in known
        if line not in rows or (line not in proven and "not yet: " not in rows[line]["tests"])
    ]


def test_every_line_of_security_has_a_test_that_exists_or_a_reason() -> None:
    text = SECURITY.read_text()
    promises = _promises(text, SECURITY_LINE)
    assert len(promises) > 50, "the rows of SECURITY are not understood"
    assert not (empty := _empty(promises)), "\n" + "\n".join(empty)
    assert _lines_left_open(text) == []
    assert _lines_left_open(re.sub(r"`[\w/]+\.py::test_the_example_of_the_rfc`", "", text)) == []
    without = re.sub(r"^\| S17 \|.*\n", "", text, flags=re.MULTILINE)
    unproven = re.sub(r"`tests/tidy/[\w.:/]+`", "by nothing", without)
    assert _lines_left_open(unproven.replace("not yet: it", "later: it")) == ["S17", "S18", "S19"]


def _environment(tmp_path: Path) -> dict[str, str]:
    """The caller's, but nothing of dlog's; a home of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DLOG")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "DLOG_URL": f"file:{tmp_path / 'logs'}",
    }

"""Rules about the text of the code: each can fail, and each exception is listed with a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.source import Source, called, imports, sources

LINES_MAX = 600
SENTENCE_CHARACTERS_MIN = 30  # of a module
PARAGRAPH_CHARACTERS_MIN = 120  # of a folder
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError|NotImplemented\b(?!Type))")

# Who may read a real clock or draw real chance, besides clock.py and chance.py, and why. What is
# in dlog/testing waits for facts of real processes with a deadline, as tests do.
CLOCK_READERS = {
    "dlog/cli/commands/bench.py": "measures elapsed time, for people",
    "dlog/cli/commands/doctor.py": "measures the latency of the disk, for people",
    "dlog/cli/moments.py": "`--since 1h` means an hour before now",
}
CHANCE_DRAWERS: dict[str, str] = {
    "dlog/cli/commands/bench.py": "random payload, so that no compression flatters the figures",
}

_CLOCK_CALLS = re.compile(
    r"(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|process_time)"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today))$"
)
_CHANCE_MODULES = {"random", "secrets", "uuid"}
_FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
_FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "__import__"}

# Broken hashes, and whose formats want them. Nothing of our own may rest on one.
BROKEN_HASHES = {
    "sha1": {"dlog/wire/bookie_digest.py": "BookKeeper's keys and its HMAC"},
    "md5": {
        "dlog/wire/digest_md5.py": "the mechanism of that name",
        "dlog/streams/routing/hashing.py": "where twemproxy's ring puts servers and keys",
    },
}

# Programs of tests that sleep for a reason of their own.
SLEEPERS = {
    "tests/api/waiting.py": "the one place of its tests that polls for a fact, with a deadline",
    "tests/unit/meta/sqlite_child.py": "backs off between compare-and-sets, as the product does",
}

# Words of the glossary that name something else here; a public name may not use them.
BANNED_WORDS = set(
    "topic topics broker brokers partition partitions lsn dlsn manifest watermark cursor "
    "failover election leader packet packets record records trim purge isr".split()
)
BANNED_EXCEPTIONS = {
    "dlog/reader/arrow.py:record_batch": "the word is Arrow's",
    "dlog/streams/stream.py:trim": "whole shards, over and empty; what lies in logs is truncated",
    "dlog/sync/streams.py:trim": "the same",
    "dlog/cli/commands/stream.py:trim": "the same",
    "dlog/spark/batch.py:partitions": "the word is Spark's",
    "dlog/spark/stream.py:partitions": "the word is Spark's",
    "dlog/cli/diagnostics.py:record": "the parameter is named by logging.Handler.emit",
}


def _ids(found: tuple[Source, ...]) -> list[str]:
    return [source.where for source in found]


EVERY_MODULE = pytest.mark.parametrize("source", sources("dlog"), ids=_ids(sources("dlog")))


@EVERY_MODULE
def test_a_module_is_small(source: Source) -> None:
    lines = source.text.count("\n")
    assert lines <= LINES_MAX, f"{source.where} has {lines} lines; {LINES_MAX} is the most"


@EVERY_MODULE
def test_nothing_is_left_for_later(source: Source) -> None:
    found = [
        f"{source.where}:{number}: {line.strip()}"
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


@EVERY_MODULE
def test_a_module_says_what_it_is_for(source: Source) -> None:
    if source.module == "dlog._version":
        return  # one assignment, read by the build
    told = ast.get_docstring(source.tree) or ""
    folder = source.path.name == "__init__.py"
    least = PARAGRAPH_CHARACTERS_MIN if folder else SENTENCE_CHARACTERS_MIN
    assert len(told) >= least, f"{source.where} does not say what it is for"


def test_every_folder_says_what_it_is_for() -> None:
    folders = {source.path.parent for source in sources("dlog")}
    silent = sorted(str(each) for each in folders if not (each / "__init__.py").exists())
    assert not silent, f"no __init__.py, so no paragraph, in {silent}"


@EVERY_MODULE
def test_nothing_runs_foreign_bytes(source: Source) -> None:
    bad = [name for name, _ in imports(source) if name.split(".")[0] in _FORBIDDEN_MODULES]
    bad += [name for name in _calls(source) if name in _FORBIDDEN_CALLS]
    assert not bad, f"{source.where} uses {bad}"


@EVERY_MODULE
def test_time_is_an_argument(source: Source) -> None:
    if source.where in {"dlog/clock.py", *CLOCK_READERS} or "dlog/testing/" in source.where:
        return
    assert not _clock_reads(source), f"{source.where} reads a clock: {_clock_reads(source)}"


@EVERY_MODULE
def test_chance_is_an_argument(source: Source) -> None:
    if source.where in {"dlog/chance.py", *CHANCE_DRAWERS} or "dlog/testing/" in source.where:
        return
    assert not _chance_draws(source), f"{source.where} draws: {_chance_draws(source)}"


@EVERY_MODULE
def test_nothing_of_our_own_rests_on_a_broken_hash(source: Source) -> None:
    used = {name for name in BROKEN_HASHES if re.search(rf"\b{name}\b(?!\w)", _code(source))}
    bad = {name for name in used if source.where not in BROKEN_HASHES[name]}
    assert not bad, f"{source.where} uses {bad}"


@EVERY_MODULE
def test_public_names_keep_to_the_glossary(source: Source) -> None:
    bad = sorted(
        name
        for name in _public_names(source.tree)
        if _words(name) & BANNED_WORDS and f"{source.where}:{name}" not in BANNED_EXCEPTIONS
    )
    assert not bad, f"{source.where}: {bad} use words the glossary keeps for something else"


def test_listed_exceptions_are_still_needed() -> None:
    known = {source.where: source for source in sources("dlog")}
    stale = [where for where in CLOCK_READERS if not _clock_reads(known[where])]
    stale += [
        where
        for name, places in BROKEN_HASHES.items()
        for where in places
        if name not in _code(known[where])
    ]
    stale += [where for where in CHANCE_DRAWERS if not _chance_draws(known[where])]
    stale += [
        place
        for place in BANNED_EXCEPTIONS
        if place.split(":")[1] not in _public_names(known[place.split(":")[0]].tree)
    ]
    assert not stale, f"no reason is left to list {stale}"


_TESTS = sources("tests") + sources("integration")


@pytest.mark.parametrize("source", _TESTS, ids=_ids(_TESTS))
def test_no_test_sleeps(source: Source) -> None:
    if source.where in SLEEPERS or _marked_chaos_as_a_whole(source.tree):
        return
    found = [f"{source.where}:{line}" for line in _sleeps(source.tree)]
    assert not found, f"wait for the fact instead of sleeping: {found}"


def test_the_rules_notice_what_they_forbid() -> None:
    text = (
        "import time, random\nfrom time import monotonic as now\nasync def topic_of(record):\n"
        "    time.monotonic()\n    await asyncio.sleep(1)\n    await asyncio.sleep(0)\n"
        "@pytest.mark.chaos\ndef kill():\n    time.sleep(1)\n"
    )
    probe = Source(sources("dlog")[0].path, text, ast.parse(text))
    assert _clock_reads(probe) == ["from time import monotonic", "time.monotonic"]
    assert _chance_draws(probe) == ["random"]
    assert _sleeps(probe.tree) == [5]
    weak = Source(probe.path, "", ast.parse('"""md5"""\nhashlib.new("sha1")\nhashlib.md5(b"")'))
    assert re.findall(r"\b(sha1|md5)\b", _code(weak)) == ["sha1", "md5"]
    assert {name for name in _public_names(probe.tree) if _words(name) & BANNED_WORDS} == {
        "topic_of",
        "record",
    }
    assert UNFINISHED.search("raise NotImplementedError")
    assert UNFINISHED.search("# TODO: x")


def _code(source: Source) -> str:
    """Without comments and docstrings."""
    tree = ast.parse(ast.unparse(source.tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _calls(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield called(node)


def _clock_reads(source: Source) -> list[str]:
    """Calls of clocks, and clocks imported by name (which would hide the call)."""
    by_name = [
        f"from {node.module} import {alias.name}"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    ]
    return by_name + [name for name in _calls(source) if _CLOCK_CALLS.search(name)]


def _chance_draws(source: Source) -> list[str]:
    drawn = [name for name, _ in imports(source) if name.split(".")[0] in _CHANCE_MODULES]
    return drawn + [name for name in _calls(source) if name == "os.urandom"]


def _sleeps(tree: ast.AST) -> list[int]:
    """Lines that sleep for longer than one turn of the loop, outside what is marked chaos."""
    found: list[int] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and any(
            "chaos" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            continue
        if isinstance(node, ast.Call) and called(node).split(".")[-1] == "sleep":
            one_turn = (
                len(node.args) == 1
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value == 0
            )
            found += [] if one_turn else [node.lineno]
        found += _sleeps(node)
    return found


def _marked_chaos_as_a_whole(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)
        and "chaos" in ast.unparse(node.value)
        for node in tree.body
    )


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def _public_names(tree: ast.AST) -> set[str]:
    """Names that others can say: functions, classes, their fields and parameters, constants."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") or node.name == "__init__":
                every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                found |= {node.name} | {each.arg for each in every}
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found |= {node.name} | _public_names(node)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_") or name == "__init__"}

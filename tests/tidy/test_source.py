"""Rules about the text of the code: each is one test that names every offender, each can fail, and
each exception is listed with a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

import pytest

from tests.tidy.source import ROOT, Source, called, imports, sources

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


def _modules_that_are_long(source: Source) -> list[str]:
    lines = source.text.count("\n")
    return [f"{lines} lines; {LINES_MAX} is the most"] if lines > LINES_MAX else []


def _lines_left_for_later(source: Source) -> list[str]:
    return [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def _missing_docstring(source: Source) -> list[str]:
    if source.module == "dlog._version":
        return []  # one assignment, read by the build
    docstring = ast.get_docstring(source.tree) or ""
    folder = source.path.name == "__init__.py"
    least = PARAGRAPH_CHARACTERS_MIN if folder else SENTENCE_CHARACTERS_MIN
    return ["does not say what it is for"] if len(docstring) < least else []


def _foreign_bytes(source: Source) -> list[str]:
    bad = [name for name, _ in imports(source) if name.split(".")[0] in _FORBIDDEN_MODULES]
    return bad + [name for name in _calls(source) if name in _FORBIDDEN_CALLS]


def _clock_reads_of_its_own(source: Source) -> list[str]:
    if source.where in {"dlog/clock.py", *CLOCK_READERS} or "dlog/testing/" in source.where:
        return []
    return [f"reads a clock: {name}" for name in _clock_reads(source)]


def _chance_draws_of_its_own(source: Source) -> list[str]:
    if source.where in {"dlog/chance.py", *CHANCE_DRAWERS} or "dlog/testing/" in source.where:
        return []
    return [f"draws: {name}" for name in _chance_draws(source)]


def _broken_hashes(source: Source) -> list[str]:
    used = [name for name in BROKEN_HASHES if _speaks_of(source, name)]
    return [name for name in used if source.where not in BROKEN_HASHES[name]]


def _names_outside_the_glossary(source: Source) -> list[str]:
    return sorted(
        name
        for name in _public_names(source.tree)
        if _words(name) & BANNED_WORDS and f"{source.where}:{name}" not in BANNED_EXCEPTIONS
    )


def _sleeps_of_its_own(source: Source) -> list[str]:
    if "sleep" not in source.text:
        return []  # nothing to parse the file for
    if source.where in SLEEPERS or _marked_chaos_as_a_whole(source.tree):
        return []
    return [f"line {line}: waits for no fact" for line in _sleeps(source.tree)]


Rule = Callable[[Source], list[str]]


def _offenders(rule: Rule, found: Iterable[Source]) -> str:
    """One line for each offender: the file and what is wrong with it."""
    return "\n".join(f"{source.where}: {reason}" for source in found for reason in rule(source))


def test_a_module_is_small() -> None:
    assert not (bad := _offenders(_modules_that_are_long, sources("dlog"))), bad


def test_nothing_is_left_for_later() -> None:
    assert not (bad := _offenders(_lines_left_for_later, sources("dlog"))), bad


def test_a_module_says_what_it_is_for() -> None:
    assert not (bad := _offenders(_missing_docstring, sources("dlog"))), bad


def test_every_folder_says_what_it_is_for() -> None:
    folders = {source.path.parent for source in sources("dlog")}
    silent = sorted(str(each) for each in folders if not (each / "__init__.py").exists())
    assert not silent, f"no __init__.py, so no paragraph, in {silent}"


def test_nothing_runs_foreign_bytes() -> None:
    assert not (bad := _offenders(_foreign_bytes, sources("dlog"))), bad


def test_time_is_an_argument() -> None:
    assert not (bad := _offenders(_clock_reads_of_its_own, sources("dlog"))), bad


def test_chance_is_an_argument() -> None:
    assert not (bad := _offenders(_chance_draws_of_its_own, sources("dlog"))), bad


def test_nothing_of_our_own_rests_on_a_broken_hash() -> None:
    assert not (bad := _offenders(_broken_hashes, sources("dlog"))), bad


def test_public_names_keep_to_the_glossary() -> None:
    assert not (bad := _offenders(_names_outside_the_glossary, sources("dlog"))), bad


def test_no_test_sleeps() -> None:
    tests = [*sources("tests"), *sources("integration")]
    assert not (bad := _offenders(_sleeps_of_its_own, tests)), bad


def test_listed_exceptions_are_still_needed() -> None:
    known = {source.where: source for source in sources("dlog")}
    stale = [where for where in CLOCK_READERS if not _clock_reads(known[where])]
    stale += [
        where
        for name, places in BROKEN_HASHES.items()
        for where in places
        if not _speaks_of(known[where], name)
    ]
    stale += [where for where in CHANCE_DRAWERS if not _chance_draws(known[where])]
    stale += [
        place
        for place in BANNED_EXCEPTIONS
        if place.split(":")[1] not in _public_names(known[place.split(":")[0]].tree)
    ]
    assert not stale, f"no reason is left to list {stale}"


PLANTED: list[tuple[Rule, str, list[str]]] = [
    (_modules_that_are_long, "x = 1\n" * (LINES_MAX + 1), ["601 lines; 600 is the most"]),
    (_modules_that_are_long, "x = 1\n" * LINES_MAX, []),
    (_lines_left_for_later, "x = 1\n# TODO: y\n", ["line 2: # TODO: y"]),
    (
        _lines_left_for_later,
        "raise NotImplementedError",
        ["line 1: raise NotImplementedError"],
    ),
    (_missing_docstring, '"""Too short."""\nx = 1', ["does not say what it is for"]),
    (_missing_docstring, "x = 1  # and not a word", ["does not say what it is for"]),
    (_missing_docstring, f'"""{"Enough of it. " * 3}"""', []),
    (_foreign_bytes, "import pickle\neval('1')", ["pickle", "eval"]),
    (
        _clock_reads_of_its_own,
        "from time import monotonic as now\nimport time\ntime.monotonic()",
        ["reads a clock: from time import monotonic", "reads a clock: time.monotonic"],
    ),
    (
        _chance_draws_of_its_own,
        "import random, os\nos.urandom(8)",
        ["draws: random", "draws: os.urandom"],
    ),
    (_broken_hashes, 'hashlib.new("sha" "1")\nhashlib.md5(b"")', ["sha1", "md5"]),
    (_broken_hashes, '"""Neither md5."""\ndef f():\n    """Nor sha1."""  # md5', []),
    (
        _names_outside_the_glossary,
        "async def topic_of(record): ...\nclass _Topic: ...",
        ["record", "topic_of"],
    ),
    (
        _sleeps_of_its_own,
        "async def f():\n    await asyncio.sleep(1)\n    await asyncio.sleep(0)\n"
        "@pytest.mark.chaos\ndef kill():\n    time.sleep(1)\n",
        ["line 2: waits for no fact"],
    ),
]


@pytest.mark.parametrize(("rule", "text", "named"), PLANTED)
def test_a_rule_notices_what_it_forbids(rule: Rule, text: str, named: list[str]) -> None:
    probe = Source(ROOT / "dlog" / "probe.py", text)
    assert rule(probe) == named
    assert _offenders(rule, [probe, probe]).count("dlog/probe.py: ") == 2 * len(named)


def test_an_exception_holds_for_the_file_that_it_names() -> None:
    """The same text is an offence everywhere else."""
    clock = Source(ROOT / "dlog" / "cli" / "moments.py", "time.time()")
    assert _clock_reads_of_its_own(clock) == []
    chance = Source(ROOT / "dlog" / "cli" / "commands" / "bench.py", "import random")
    assert _chance_draws_of_its_own(chance) == []
    weak = Source(ROOT / "dlog" / "wire" / "digest_md5.py", "hashlib.md5(hashlib.sha1())")
    assert _broken_hashes(weak) == ["sha1"]
    named = Source(ROOT / "dlog" / "spark" / "batch.py", "def partitions(topic): ...")
    assert _names_outside_the_glossary(named) == ["topic"]


def test_a_folder_has_more_to_say_than_a_module() -> None:
    text = f'"""{"Enough for a module. " * 3}"""'
    folder = Source(ROOT / "dlog" / "probe" / "__init__.py", text)
    assert _missing_docstring(folder) == ["does not say what it is for"]


def _speaks_of(source: Source, name: str) -> bool:
    """Whether code names it, as an identifier or in a string that is no docstring."""
    pattern = re.compile(rf"\b{name}\b")
    docstrings = {id(node.value) for body in _bodies(source) for node in body if _is_text(node)}
    spelled = source.nodes if name in source.text else ()  # an identifier is in the text as it is
    strings = (node for node in source.nodes if type(node) is ast.Constant)
    return any(
        pattern.search(str(value))
        for node in (*spelled, *strings)
        if id(node) not in docstrings
        for value in vars(node).values()
        if isinstance(value, str | bytes)
    )


def _bodies(source: Source) -> Iterator[list[ast.stmt]]:
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


def _is_text(node: ast.stmt) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _calls(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Call):
            yield called(node)


def _clock_reads(source: Source) -> list[str]:
    """Calls of clocks, and clocks imported by name (which would hide the call)."""
    by_name = [
        f"from {node.module} import {alias.name}"
        for node in source.nodes
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

"""Which tests a mutant meets, and in which order: those that know its line best, then the quickest.

Of a line that two thousand tests run, two thousand near-equal tests would use up the time. So each
further test of one function, and of one file, counts as slower than it is.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from tests.mutants.coverage_map import CoverageMap, MappedTest
from tests.mutants.edits import Edit
from tests.tiers import TIERS

# Tests whose production code runs in processes that the tracer does not see, by where it stands.
UNSEEN = {
    "dlog/spark/": ("tests/spark/",),
    "dlog/writer/": ("tests/chaos/",),
    "dlog/ledger/embedded": ("tests/chaos/",),
    "dlog/meta/sqlite": ("tests/chaos/",),
}
# Recorded histories of a simulated world see what no other test sees, and take seconds.
HISTORIES = re.compile(r"tests/sim/test_corpus")
HISTORIES_AFTER_S = 4.0
WAVE_S = 5.0  # within so much of the order a file's tests stand together
UNMAPPED_S, UNMAPPED_BREADTH = 2.0, 50  # what is assumed of a whole test file
EACH_S = 0.03  # what any test costs, however quick it is
FILE_S = 0.3  # and what the first one of a file costs


def select(
    known: CoverageMap, edit: Edit, sources: dict[str, str], tiers: Sequence[str] = TIERS
) -> list[MappedTest]:
    """In no order. First those that run the edited lines; if there are none, wider ones."""
    source = sources[edit.path]
    found: list[MappedTest] = []
    if edit.function is None:
        found = _of_users(known, edit, sources, tiers)
    else:
        inside = edit.function[0] <= edit.statement[0] <= edit.function[1]
        spans = (edit.lines, edit.statement) if inside else (edit.function,)  # else a default
        for first, last in spans:
            tests = known.tests_of(edit.path, source, range(first, last + 1))
            found = found or [test for test in tests if test.tier in tiers]
    for place, folders in UNSEEN.items():
        if edit.path.startswith(place):
            seen = {test.name for test in found}
            for folder in folders:
                found += [test for test in known.tests_in(folder) if test.name not in seen]
    return [test for test in found if test.tier in tiers]


def unmapped(edit: Edit, files: Iterable[str]) -> list[MappedTest]:
    """Of test files that the map does not know as they are now, those of the module's room, each as
    a whole."""
    room = edit.path.split("/")[1]
    folders = (f"tests/unit/{room}/", "tests/scenarios/")
    near = [file for file in files if file.startswith(folders)]
    return [MappedTest(file, UNMAPPED_S, True, UNMAPPED_BREADTH) for file in near]


def order(tests: Iterable[MappedTest], path: str, seconds: float) -> list[MappedTest]:
    """The ones that are worth starting within these seconds, best first."""
    functions: Counter[str] = Counter()
    files: Counter[str] = Counter()
    ranked: list[tuple[float, str, MappedTest]] = []
    for test in sorted(tests, key=lambda test: (_cost(test, path), test.name)):
        if HISTORIES.search(test.name):
            continue
        functions[test.function] += 1
        files[test.file] += 1
        cost = _cost(test, path) * functions[test.function] + 0.005 * files[test.file]
        ranked.append((cost, test.name, test))
    ranked.sort()
    histories = [test for test in tests if HISTORIES.search(test.name)]
    histories.sort(key=lambda test: (test.seconds, test.name))
    return _waves([test for _, _, test in ranked], histories, seconds)


def mirrors(test: MappedTest, path: str) -> bool:
    """`tests/unit/writer/test_core.py` mirrors `dlog/writer/core.py`."""
    module = PurePosixPath(path)
    words = set(module.with_suffix("").parts[1:])
    told = PurePosixPath(test.file)
    stem = told.stem.removeprefix("test_")
    own = stem == module.stem and stem not in ("core", "__init__")
    return stem in words and (own or module.parent.name in told.parts)


def _cost(test: MappedTest, path: str) -> float:
    cost = test.seconds + EACH_S + 0.001 * test.breadth
    return cost / 4 if mirrors(test, path) else cost


def _waves(
    ranked: Sequence[MappedTest], histories: Sequence[MappedTest], seconds: float
) -> list[MappedTest]:
    waves: list[list[MappedTest]] = [[]]
    files: set[str] = set()
    spent = wave_s = 0.0
    waiting = list(histories)
    for test in ranked:
        if spent > HISTORIES_AFTER_S and waiting:
            waves += [waiting, []]
            spent += sum(each.seconds for each in waiting)
            waiting, wave_s = [], 0.0
        cost = test.seconds + EACH_S + (0 if test.file in files else FILE_S)
        if spent + cost > seconds and spent > 0:
            continue
        files.add(test.file)
        spent, wave_s = spent + cost, wave_s + cost
        waves[-1].append(test)
        if wave_s > WAVE_S:
            waves.append([])
            wave_s = 0.0
    waves.append(waiting)
    ordered: list[MappedTest] = []
    for wave in waves:
        first = {test.file: place for place, test in reversed(list(enumerate(wave)))}
        ordered += sorted(wave, key=lambda test: first[test.file])
    return ordered


def _of_users(
    known: CoverageMap, edit: Edit, sources: dict[str, str], tiers: Sequence[str]
) -> list[MappedTest]:
    """What runs at import is met where its name is used; failing that, anywhere in its module."""
    found: dict[str, MappedTest] = {}
    names = set(edit.names)
    for path, source in sources.items() if names else ():
        if any(name in source for name in names):
            lines = _uses(source, names)
            tests = known.tests_of(path, source, lines)
            found |= {test.name: test for test in tests if test.tier in tiers}
    if not found:
        source = sources[edit.path]
        every = range(1, source.count("\n") + 2)
        found = {test.name: test for test in known.tests_of(edit.path, source, every)}
    return list(found.values())


def _uses(source: str, names: set[str]) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        named = getattr(node, "id", None) or getattr(node, "attr", None)
        if named in names and isinstance(getattr(node, "ctx", None), ast.Load):
            lines.add(node.lineno)  # type: ignore[attr-defined]
        elif isinstance(node, ast.keyword) and node.arg in names:
            lines.add(node.lineno)
    return lines

"""The tests of the project by name, without importing one: what each says of itself, its tier, and
whether it runs at all. What the pages name as proof is held against this."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.tidy.source import ROOT, Source, sources
from tests.tiers import tier_of_folder

SUITES = "dlog/testing/conformance/"
IN_MAKE_TEST = ("check", "test")
NAMED = re.compile(r"`(?P<where>[\w./]+\.py)::(?P<name>\w+)(?:\[(?P<parameters>[^\]`]+)\])?`")
_NEVER_RUN = {"skip", "xfail"}
_CHECKS = {"check", "behaviour"}  # decorators that put a function into its suite

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Proof:
    """One test function, or one check of a conformance suite."""

    where: str
    name: str
    docstring: str
    tier: str
    runs: bool  # on some machine: a test that needs servers does, one marked `skip` does not
    parametrized: bool

    @property
    def full_name(self) -> str:
        return f"{self.where}::{self.name}"

    @property
    def in_make_test(self) -> bool:
        return self.runs and self.tier in IN_MAKE_TEST


def proofs_of(source: Source) -> list[Proof]:
    """The tests of a module; of a conformance suite its checks, as the tests that run it run."""
    if source.where.startswith(SUITES):
        checks = [e for e in source.tree.body if isinstance(e, Function) and _is_a_check(e)]
        runs = proofs_of(_runner(source))[0] if checks else None
        return [
            Proof(source.where, each.name, _doc(each), runs.tier, runs.runs, True)
            for each in checks
            if runs is not None
        ]
    marks = [m for each in source.tree.body if _is_pytestmark(each) for m in _marks(each.value)]
    return list(_proofs(source, source.tree.body, marks))


def _runner(suite: Source) -> Source:
    """What runs a suite where no server is needed: `test_meta_store` runs `meta_races`."""
    contract = suite.path.stem.split("_")[0]
    (found,) = (
        each
        for each in sources("tests/conformance")
        if each.path.stem.startswith(f"test_{contract}")
    )
    return found


def _doc(node: Function) -> str:
    return ast.get_docstring(node) or ""


def _proofs(source: Source, body: list[ast.stmt], above: list[ast.expr]) -> Iterator[Proof]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = [m for each in node.body if _is_pytestmark(each) for m in _marks(each.value)]
            yield from _proofs(source, node.body, [*above, *inner, *node.decorator_list])
        elif isinstance(node, Function) and node.name.startswith("test_"):
            marks = [*above, *node.decorator_list]
            yield Proof(
                source.where,
                node.name,
                _doc(node),
                _tier(marks) or tier_of_folder(source.where),
                not any(_mark_name(mark) in _NEVER_RUN for mark in marks),
                any(_mark_name(mark) == "parametrize" for mark in marks),
            )


def _is_a_check(node: Function) -> bool:
    return not node.name.startswith("_") and any(
        isinstance(each, ast.Name) and each.id in _CHECKS for each in node.decorator_list
    )


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _marks(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _mark_name(mark: ast.expr) -> str:
    """`tier` of `pytest.mark.tier("full")`."""
    target = mark.func if isinstance(mark, ast.Call) else mark
    return target.attr if isinstance(target, ast.Attribute) else ""


def _tier(marks: list[ast.expr]) -> str | None:
    """What the closest mark says; marks come from the module inwards."""
    said = [
        mark.args[0].value
        for mark in marks
        if isinstance(mark, ast.Call) and _mark_name(mark) == "tier" and mark.args
        if isinstance(mark.args[0], ast.Constant)
    ]
    return str(said[-1]) if said else None


def _holders() -> Iterator[Source]:
    """Every file that may hold proofs: of tests, and of the conformance suites."""
    for source in (*sources("tests"), *sources("integration"), *sources(SUITES)):
        if source.path.name.startswith("test_") or source.where.startswith(SUITES):
            yield source


@functools.cache
def of_file(where: str) -> tuple[Proof, ...]:
    return tuple(each for found in _holders() if found.where == where for each in proofs_of(found))


def in_files_with(pattern: re.Pattern[str]) -> list[Proof]:
    """All proofs of the files in whose text this is found; no other file is parsed."""
    found = (source for source in _holders() if pattern.search(source.text))
    return [proof for source in found for proof in of_file(source.where)]


@functools.cache
def helpers(where: str) -> frozenset[str]:
    """Functions of a file that is no test: a checker that tests call."""
    path = ROOT / where
    if not path.is_file():
        return frozenset()
    nodes = Source(path, path.read_text(encoding="utf-8")).nodes
    return frozenset(node.name for node in nodes if isinstance(node, Function))


@dataclass(frozen=True, slots=True)
class Named:
    """A proof as a page names it: `where::name`, or `where::name[parameters]`."""

    where: str
    name: str
    parameters: str

    def __str__(self) -> str:
        return f"{self.where}::{self.name}" + (f"[{self.parameters}]" if self.parameters else "")

    @property
    def proof(self) -> Proof | None:
        return next((each for each in of_file(self.where) if each.name == self.name), None)

    @property
    def is_there(self) -> bool:
        """A checker that tests call is there, and proves nothing by itself."""
        proof = self.proof
        if proof is None:
            return not self.where.startswith(("tests/", "integration/", SUITES)) and (
                self.name in helpers(self.where)
            )
        return not self.parameters or (proof.parametrized and self._spells_its_parameters())

    def _spells_its_parameters(self) -> bool:
        text = (ROOT / self.where).read_text(encoding="utf-8")
        return all(part in text for part in self.parameters.split("-"))


def named_in(text: str) -> list[Named]:
    return [Named(m["where"], m["name"], m["parameters"] or "") for m in NAMED.finditer(text)]

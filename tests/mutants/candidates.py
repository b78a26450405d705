"""All edits of a module: each operator at each node whose meaning, not wording, it would change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.mutants.edits import Edit, Span, Text
from tests.mutants.operators import OPERATORS
from tests.mutants.surroundings import Surroundings, Types

_TOLD_ONLY = {"__repr__", "__str__", "__format__", "__dir__", "__del__"}
_DECLARATIONS = {"__all__", "__slots__", "__match_args__", "__version__"}
_ABSTRACT = re.compile(r"abstractmethod|overload")
_WORDING = re.compile(r"(^|\.)_?(log|logger|logging|warnings)\.|^(cast|typing\.cast|TypeVar)$")


def candidates(path: str, source: str) -> list[Edit]:
    """In the order of the text. Ask `compiles` of the ones that are wanted: it takes its time."""
    tree = ast.parse(source)
    finder = _Finder(path, source, Types.of(tree))
    found: dict[tuple[int, int, str], Edit] = {}
    for edit in finder.block(tree.body, None, ()):
        found.setdefault((edit.start, edit.end, edit.text), edit)
    return [found[key] for key in sorted(found)]


def compiles(edit: Edit, source: str) -> bool:
    """Whether the mutant is Python, and differs from the source."""
    mutated = edit.apply(source)
    if mutated == source:
        return False
    try:
        compile(mutated, edit.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    def __init__(self, path: str, source: str, types: Types) -> None:
        self._path = path
        self._text = Text(source)
        self._types = types

    def block(
        self, body: list[ast.stmt], function: _Function, names: tuple[str, ...]
    ) -> Iterator[Edit]:
        for node in body:
            yield from self._statement(node, function, names)

    def _statement(
        self, node: ast.stmt, function: _Function, names: tuple[str, ...]
    ) -> Iterator[Edit]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._function(node, function, names)
        elif isinstance(node, ast.ClassDef):
            if not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from self.block(node.body, function, (*names, node.name))
        elif not _left_out(node):
            yield from self._plain(node, function, names)

    def _function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        outer: _Function,
        names: tuple[str, ...],
    ) -> Iterator[Edit]:
        if node.name in _TOLD_ONLY or any(
            _ABSTRACT.search(ast.unparse(each)) for each in node.decorator_list
        ):
            return
        body = (node.body[0].lineno, node.body[-1].end_lineno or node.lineno)
        header = (node.lineno, max(node.lineno, body[0] - 1))
        defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each]
        around = Surroundings(self._types, outer)
        for default in defaults:  # a default is met where the function runs
            yield from self._expression(default, around, header, body, ())
        yield from self.block(node.body, node, ())

    def _plain(self, node: ast.stmt, function: _Function, names: tuple[str, ...]) -> Iterator[Edit]:
        around = Surroundings(self._types, function)
        inside = _span(function) if function is not None else None
        defined = (*names, *_defined(node)) if function is None else ()
        lines = _header(node)
        yield from self._at(node, around, lines, lines, inside, defined)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._statement(child, function, names)
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from self.block(child.body, function, names)
                    if isinstance(child, ast.match_case) and child.guard is not None:
                        guard = child.guard
                        yield from self._expression(guard, around, lines, inside, defined)
                elif isinstance(child, ast.AST):
                    yield from self._expression(child, around, lines, inside, defined)

    def _expression(
        self,
        node: ast.AST,
        around: Surroundings,
        statement: Span,
        inside: Span | None,
        names: tuple[str, ...],
    ) -> Iterator[Edit]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.Call) and _WORDING.search(ast.unparse(node.func)):
            return
        lines = _lines(node, statement)
        yield from self._at(node, around, lines, statement, inside, names)
        for child in ast.iter_child_nodes(node):
            called = isinstance(node, ast.Call) and child is node.func
            beside = Surroundings(self._types, around.function, called)
            yield from self._expression(child, beside, statement, inside, names)

    def _at(
        self,
        node: ast.AST,
        around: Surroundings,
        lines: Span,
        statement: Span,
        inside: Span | None,
        names: tuple[str, ...],
    ) -> Iterator[Edit]:
        for operator, apply in OPERATORS.items():
            for start, end, text in apply(node, self._text, around):
                yield Edit(self._path, operator, start, end, text, lines, statement, inside, names)


_Function = ast.FunctionDef | ast.AsyncFunctionDef | None


def _left_out(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.Global, ast.Nonlocal)):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True  # a docstring, or `...`
        call = node.value
        return isinstance(call, ast.Call) and _WORDING.search(ast.unparse(call.func)) is not None
    return bool(set(_defined(node)) & _DECLARATIONS)


def _defined(node: ast.stmt) -> tuple[str, ...]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    every = (each for target in targets for each in ast.walk(target))
    return tuple(each.id for each in every if isinstance(each, ast.Name))


def _span(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Span:
    return function.body[0].lineno, function.end_lineno or function.lineno


def _header(node: ast.stmt) -> Span:
    """The lines of a statement without the blocks below it."""
    blocks = getattr(node, "body", None) or getattr(node, "cases", None)
    if not blocks:
        return node.lineno, node.end_lineno or node.lineno
    first = blocks[0]
    below = first.pattern.lineno if isinstance(first, ast.match_case) else first.lineno
    return node.lineno, max(node.lineno, below - 1)


def _lines(node: ast.AST, statement: Span) -> Span:
    first = getattr(node, "lineno", None)
    return statement if first is None else (first, getattr(node, "end_lineno", None) or first)

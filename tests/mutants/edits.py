"""An edit: one segment of a module's text, and what stands there in the mutant."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

Span = tuple[int, int]  # first and last line, both included


@dataclass(frozen=True, slots=True)
class Edit:
    """`start` and `end` count bytes. `lines` hold the edited expression or statement itself,
    `statement` the statement around it, without the blocks below it."""

    path: str
    operator: str
    start: int
    end: int
    text: str
    lines: Span
    statement: Span
    function: Span | None  # the body around it; None for what runs when the module is imported
    names: tuple[str, ...] = ()  # what an import-time statement defines

    @property
    def line(self) -> int:
        return self.lines[0]

    def apply(self, source: str) -> str:
        before = source.encode()
        return (before[: self.start] + self.text.encode() + before[self.end :]).decode()

    def diff(self, source: str) -> str:
        old, new = source.splitlines(), self.apply(source).splitlines()
        told = difflib.unified_diff(old, new, self.path, self.path, lineterm="", n=2)
        return "\n".join(told)


class Text:
    """The bytes of a module, by the positions that `ast` gives."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode()

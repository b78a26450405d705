"""Gives functions that are loaded the code that a mutant of their module would give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from tests.mutants.edits import Edit

Key = tuple[str, int]  # qualified name and first line, as the module was loaded


def is_in_place(edit: Edit) -> bool:
    """The edit is in a function's body, so that nothing of what an import did is another."""
    return edit.function is not None and edit.function[0] <= edit.statement[0] <= edit.function[1]


def changed_code(path: str, source: str, mutated: str) -> dict[Key, CodeType] | None:
    """The code of each function that is another in the mutant; None if they cannot be paired."""
    before = compile(source, path, "exec", dont_inherit=True)
    after = compile(mutated, path, "exec", dont_inherit=True)
    try:
        pairs = list(_pairs(before, after))
    except ValueError:
        return None
    return {(old.co_qualname, old.co_firstlineno): new for old, new in pairs if old != new}


def patch(functions: Iterable[FunctionType], changed: dict[Key, CodeType]) -> bool:
    """False if no function takes new code, or one cannot: it needs other variables around it."""
    patched = 0
    for function in functions:
        code = function.__code__
        new = changed.get((code.co_qualname, code.co_firstlineno))
        if new is None:
            continue
        if len(new.co_freevars) != len(code.co_freevars):
            return False
        function.__code__ = new
        patched += 1
    return patched > 0


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    yield old, new
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new)]
    for one, other in zip(*inner, strict=True):
        if one.co_name != other.co_name:
            raise ValueError(one.co_name)
        yield from _pairs(one, other)

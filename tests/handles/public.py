"""Every class that a program can get from the package and that asks a store for something.

Found in the text of the package, without importing it: Spark need not be there. It begins with the
public names, and follows what their functions and methods return, what their public attributes are,
and what they are made of.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import dlog

ROOM = Path(dlog.__file__).parent
_NOT_OFFERED = ("testing", "cli")
_ASKS = {"__anext__", "__next__", "__await__", "__iter__", "__aiter__"}


@functools.cache
def _definitions() -> dict[str, list[tuple[Path, ast.ClassDef | ast.AST]]]:
    """Of classes and functions of modules, and of other names for types, by name."""
    found: dict[str, list[tuple[Path, ast.ClassDef | ast.AST]]] = {}
    for path in sorted(ROOM.rglob("*.py")):
        where = path.relative_to(ROOM)
        if where.parts[0] in _NOT_OFFERED:
            continue
        for each in ast.parse(path.read_text()).body:
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(each.name, []).append((where, each))
            elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                found.setdefault(each.targets[0].id, []).append((where, each.value))
    return found


def handle_classes() -> set[str]:
    """Names of classes; a twin has the name of its class."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [*dlog.__all__, *dlog.aio.__all__]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        for where, each in _definitions().get(name, []):
            left += _leads_to(each)
            if isinstance(each, ast.ClassDef) and _asks(where, each):
                found.add(name)
    return found | _of_spark()


def _leads_to(each: ast.AST) -> Iterator[str]:
    if isinstance(each, ast.ClassDef):
        for base in each.bases:
            yield from _names(base)
        for part in each.body:
            if isinstance(part, ast.AnnAssign) and _is_public(_name_of(part.target)):
                yield from _names(part.annotation)
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                if part.name == "__init__":
                    yield from _made_in(part)
                elif _is_public(part.name) or part.name in _ASKS:
                    yield from _names(part.returns)
    elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _names(each.returns)
    elif isinstance(each, ast.Subscript | ast.BinOp | ast.Name):
        yield from _names(each)  # another name for types


def _made_in(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Public attributes that it makes."""
    for each in ast.walk(init):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            target = each.targets[0]
            if isinstance(target, ast.Attribute) and _is_public(target.attr):
                yield from _names(each.value.func)


def _asks(where: Path, each: ast.ClassDef) -> bool:
    if any(_name_of(base) == "Protocol" for base in each.bases):
        return False
    for part in each.body:
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not (_is_public(part.name) or part.name in _ASKS):
            continue
        if isinstance(part, ast.AsyncFunctionDef) or part.name in ("__anext__", "__await__"):
            return True
        waits = {"_portal", "result"} if where.parts[0] in ("sync", "groups") else set()
        if any(isinstance(n, ast.Attribute) and n.attr in waits for n in ast.walk(part)):
            return True
    return False


def _of_spark() -> set[str]:
    """Spark makes them, by the methods of its base classes."""
    return {
        f"Spark {kind.lower()}"
        for path in (ROOM / "spark").glob("*.py")
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef)
        for kind in ("Reader", "Writer")
        if each.name.endswith(kind)
    }


def _names(annotation: ast.AST | None) -> Iterator[str]:
    for each in ast.walk(annotation) if annotation is not None else ():
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def _name_of(node: ast.AST) -> str:
    return next(iter(_names(node)), "")


def _is_public(name: str) -> bool:
    return not name.startswith("_")

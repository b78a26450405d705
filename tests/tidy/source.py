"""What the tidy tests look at: the Python files of the project, each parsed once at most, with the
imports of each module resolved to module names."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def _no_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Source:
    path: Path
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        with _no_collector():  # half of the time goes to it: nothing here is ever garbage
            return ast.parse(self.text, str(self.path))

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, in the order of `ast.walk`."""
        with _no_collector():
            return tuple(ast.walk(self.tree))

    @functools.cached_property
    def where(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """`dlog/wire/batch.py` is `dlog.wire.batch`; a folder's `__init__.py` is the folder."""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def sources(folder: str) -> tuple[Source, ...]:
    """Every Python file below a folder of the project."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return tuple(Source(path, path.read_text(encoding="utf-8")) for path in paths)


@functools.cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources("dlog"))


@functools.cache
def imports(source: Source) -> tuple[tuple[str, int], ...]:
    """(module, line) of every import, wherever it stands: at the top, in a function, for types
    only. `from dlog import limits` counts as `dlog.limits`, since that is what is loaded."""
    found: list[tuple[str, int]] = []
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(source, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append((inner if inner in modules() else base, node.lineno))
    return tuple(found)


def _base(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    if source.path.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, node.module] if node.module else package)


def called(node: ast.Call) -> str:
    """The dotted name a call is made by, as far as it is written out: `asyncio.sleep`."""
    parts: list[str] = []
    target: ast.expr = node.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    if isinstance(target, ast.Name):
        parts.append(target.id)
    return ".".join(reversed(parts))

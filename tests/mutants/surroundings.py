"""What an operator must know beyond a node: the function around it, and the types that names and
attributes are annotated with."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field

_ANNOUNCEMENTS = re.compile(
    r"(^|\.)_?(log|logger|logging|trace|warnings|step|announce\w*)(\.|$)|assert_never|^super\(\)"
)
_IMPOSSIBLE = re.compile(r"AssertionError|NotImplementedError|_unreachable|assert_never")
_WORDING = {"where", "what", "told", "text", "reason", "why"}  # what messages are made of
_TOO_WIDE = {"", "Any", "object", "None"}


@dataclass(slots=True)
class Types:
    """Annotations of the attributes of each class of a module, and what is read of what."""

    attributes: dict[str, dict[str, str]] = field(default_factory=dict)  # class: attribute: type
    uses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    called: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, tree: ast.Module) -> Types:
        types = cls()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                types.attributes[node.name] = _annotated(node)
            elif isinstance(node, ast.Attribute):
                types.uses[ast.unparse(node.value)].add(node.attr)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                types.called.add(node.func.attr)
        return types

    def alike(self, name: str) -> set[str]:
        """Attributes that one class declares beside `name`, with the same annotation."""
        found: set[str] = set()
        for declared in self.attributes.values():
            kind = declared.get(name, "")
            if kind not in _TOO_WIDE:
                found |= {other for other, type_ in declared.items() if type_ == kind}
        return found - {name}

    def kind(self, name: str) -> str:
        kinds = {declared[name] for declared in self.attributes.values() if name in declared}
        return kinds.pop() if len(kinds) == 1 else ""


@dataclass(slots=True)
class Surroundings:
    types: Types
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    called: bool = False  # the node is what a call calls

    @property
    def returns(self) -> str:
        known = self.function is not None and self.function.returns is not None
        return ast.unparse(self.function.returns) if known else ""  # type: ignore[union-attr,arg-type]

    @property
    def parameters(self) -> dict[str, str]:
        if self.function is None:
            return {}
        arguments = self.function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return {each.arg: ast.unparse(each.annotation) for each in every if each.annotation}

    def is_type(self, node: ast.BinOp) -> bool:
        """`A | B` of two classes, which is a type."""
        return isinstance(node.op, ast.BitOr) and any(
            re.fullmatch(r"(\w+\.)*_?[A-Z]\w*[a-z]\w*(\[.*\])?|None|int|str|bytes|float", told)
            for told in (ast.unparse(node.left), ast.unparse(node.right))
        )

    def is_typing(self, test: ast.expr) -> bool:
        return "TYPE_CHECKING" in ast.unparse(test)

    def is_announcement(self, call: ast.expr) -> bool:
        """A call that only logs, or that tells tests how far a protocol came."""
        told = ast.unparse(call.func if isinstance(call, ast.Call) else call)
        return _ANNOUNCEMENTS.search(told) is not None

    def is_construction(self, node: ast.Assign) -> bool:
        """`self.x = x` in `__init__`: without it nothing works, which shows nothing."""
        return self.function is not None and self.function.name == "__init__"

    def is_impossible(self, node: ast.Raise) -> bool:
        return node.exc is not None and _IMPOSSIBLE.search(ast.unparse(node.exc)) is not None

    def is_last(self, node: ast.stmt) -> bool:
        return self.function is not None and self.function.body[-1] is node

    def other_attributes(self, node: ast.Attribute) -> list[str]:
        """Those of the same type; of those that no class here declares, the ones that are read of
        the same object and share a word of the name."""
        here = self.types.uses[ast.unparse(node.value)] - {node.attr}
        alike = self.types.alike(node.attr)
        if not alike and not self.types.kind(node.attr):
            alike = {other for other in here if share_a_word(other, node.attr)}
        calls = node.attr in self.types.called
        return sorted(each for each in alike & here if (each in self.types.called) == calls)

    def other_parameters(self, name: str) -> list[str]:
        kind = self.parameters.get(name, "")
        if kind in _TOO_WIDE or name in _WORDING:
            return []
        alike = [each for each, other in self.parameters.items() if other == kind]
        return [each for each in alike if each != name and each not in _WORDING]

    def may_be_swapped(self, left: ast.expr, right: ast.expr) -> bool:
        plain = (ast.Name, ast.Attribute)
        if not isinstance(left, plain) or not isinstance(right, plain):
            return False
        if ast.unparse(left) == ast.unparse(right) or {_last(left), _last(right)} & _WORDING:
            return False
        kinds = self._kind(left), self._kind(right)
        if all(kinds):
            return kinds[0] == kinds[1]
        return share_a_word(_last(left), _last(right))

    def _kind(self, node: ast.Name | ast.Attribute) -> str:
        if isinstance(node, ast.Name):
            return self.parameters.get(node.id, "")
        return self.types.kind(node.attr)


def share_a_word(one: str, other: str) -> bool:
    return bool((set(one.split("_")) & set(other.split("_"))) - {""})


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _annotated(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = ast.unparse(each.annotation)
        elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
            found |= _given(each)
        elif isinstance(each, ast.FunctionDef) and each.returns is not None:
            if any(ast.unparse(decorator) == "property" for decorator in each.decorator_list):
                found[each.name] = ast.unparse(each.returns)
    return found


def _given(init: ast.FunctionDef) -> dict[str, str]:
    """`self.x = x` and `self.x: int = 0`."""
    every = [*init.args.args, *init.args.kwonlyargs]
    kinds = {each.arg: ast.unparse(each.annotation) for each in every if each.annotation}
    found: dict[str, str] = {}
    for node in ast.walk(init):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            found[node.target.attr] = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target, value = node.targets[0].attr, node.value
            if isinstance(value, ast.Name) and value.id in kinds:
                found[target] = kinds[value.id]
            elif isinstance(value, ast.Constant) and type(value.value) in (int, float, bool):
                found[target] = type(value.value).__name__
    return found

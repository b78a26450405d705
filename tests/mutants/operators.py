"""The operators: what each makes of a node, as replacements of source segments.

An operator gets a node and its surroundings, and yields (start, end, text). It changes meaning,
never wording: messages, logs and annotations are left out by `candidates.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.mutants.edits import Text
from tests.mutants.surroundings import Surroundings

Replacement = tuple[int, int, str]
Operator = Callable[[ast.AST, Text, Surroundings], Iterator[Replacement]]

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_EXACT = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_CALCULATED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "//"),
    ast.LShift: (r"<<", ">>"),
    ast.RShift: (r">>", "<<"),
    ast.BitAnd: (r"&", "|"),
    ast.BitOr: (r"\|", "&"),
}
_MIRRORED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def compare(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """`<` becomes `<=`, `==` becomes `!=`, `is` becomes `is not`, `in` becomes `not in`."""
    if not isinstance(node, ast.Compare):
        return
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        pattern, other = _COMPARED[type(operator)]
        yield from _swapped(text, left, right, pattern, other)
        left = right


def off_by_one(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """`x + 1` becomes `x`, and an integer becomes the next one; a bound with a name does not, since
    one more of many tries or bytes is no bug."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        if _whole(node.right) == 1:
            yield text.end(node.left), text.end(node), _closing(text, node)
    elif isinstance(node, ast.Constant) and (value := _whole(node)) is not None:
        if around.function is not None or value < 2:
            yield text.start(node), text.end(node), str(value + 1)


def constant(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """True becomes False, a number the double or 1, and bytes lose their last one."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield text.start(node), text.end(node), str(not value)
    elif isinstance(value, (int, float)) and value not in (0, 1):
        yield text.start(node), text.end(node), repr(value * 2)
    elif isinstance(value, float):
        yield text.start(node), text.end(node), repr(value + 1)
    elif isinstance(value, bytes) and value:
        yield text.start(node), text.end(node), repr(value[:-1])


def calculation(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """`+` becomes `-`, `*` becomes `//`, `&` becomes `|`, also in `+=` and the like."""
    if isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
        if not _is_text(node.left) and not _is_text(node.right) and not around.is_type(node):
            yield from _swapped(text, node.left, node.right, *_CALCULATED[type(node.op)])
    elif isinstance(node, ast.AugAssign) and type(node.op) in _CALCULATED:
        if not _is_text(node.value):
            yield from _swapped(text, node.target, node.value, *_CALCULATED[type(node.op)])


def connective(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """`and` becomes `or`, and `or` becomes `and`."""
    if isinstance(node, ast.BoolOp):
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _swapped(text, left, right, rf"\b{word}\b", other)


def operand(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """Of `a and b` only one is left."""
    if not isinstance(node, ast.BoolOp):
        return
    word = " and " if isinstance(node.op, ast.And) else " or "
    for left_out in node.values:
        kept = [_grouped(text, value) for value in node.values if value is not left_out]
        told = word.join(kept)
        yield text.start(node), text.end(node), f"({told})" if len(kept) > 1 else told


def condition(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """A condition becomes its opposite, so that the branches swap."""
    tests: list[ast.expr] = []
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _EXACT):
            continue  # `compare` makes the same of it
        if isinstance(test, ast.Constant) or around.is_typing(test):
            continue
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield text.start(test), text.end(test), _grouped(text, test.operand)
        else:
            yield text.start(test), text.end(test), f"not ({text.of(test)})"


def statement(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """A call, an assignment to an attribute or item, a raise or a jump does not happen."""
    if isinstance(node, ast.Expr):
        dropped = isinstance(node.value, ast.Call) and not around.is_announcement(node.value)
    elif isinstance(node, ast.Assign):
        dropped = all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in node.targets)
        dropped = dropped and not around.is_construction(node)
    elif isinstance(node, ast.Return):
        dropped = node.value is None and not around.is_last(node)
    elif isinstance(node, ast.Continue):
        dropped = not around.is_last(node)
    elif isinstance(node, ast.Raise):
        dropped = not around.is_impossible(node)
    else:
        dropped = isinstance(node, (ast.AugAssign, ast.Delete, ast.Break))
    if dropped and isinstance(node, ast.stmt):
        yield text.start(node), text.end(node), "pass"


def awaited(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """A statement that only waits for something does not happen."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
        if not around.is_announcement(node.value.value):
            yield text.start(node), text.end(node), "pass"


def returned(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """A function returns None, the opposite, or nothing of a list in place of its value."""
    if not isinstance(node, ast.Return) or node.value is None:
        return
    if isinstance(node.value, ast.Constant):
        return  # None already, or `constant` changes it
    kind = around.returns
    start, end = text.start(node.value), text.end(node.value)
    if kind == "bool":
        if not isinstance(node.value, ast.Compare):  # `compare` makes the same of it
            yield start, end, f"not ({text.of(node.value)})"
    elif kind.startswith("list["):
        yield start, end, "[]"
    elif kind == "int":
        yield start, end, "0"
    elif "None" in kind and kind != "None":
        yield start, end, "None"


def mirrored(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """`min` becomes `max`, `any` becomes `all`, and the other way round."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if (other := _MIRRORED.get(node.func.id)) is not None:
            yield text.start(node.func), text.end(node.func), other


def attribute(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """Another attribute of the same type and object is read: `last_entry` for `first_entry`."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for other in around.other_attributes(node):
            yield text.end(node) - len(node.attr), text.end(node), other


def name(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """Another parameter of the same type is read."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for other in around.other_parameters(node.id):
            yield text.start(node), text.end(node), other


def argument(node: ast.AST, text: Text, around: Surroundings) -> Iterator[Replacement]:
    """Two arguments that stand beside each other, and may be of one type, are swapped."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in _MIRRORED:
        return  # `min` and `max` take them in any order
    for left, right in zip(node.args, node.args[1:], strict=False):
        if around.may_be_swapped(left, right):
            gap = text.between(text.end(left), text.start(right))
            yield text.start(left), text.end(right), text.of(right) + gap + text.of(left)


OPERATORS: dict[str, Operator] = {
    "comparison": compare,
    "off by one": off_by_one,
    "constant": constant,
    "calculation": calculation,
    "connective": connective,
    "operand": operand,
    "condition": condition,
    "statement": statement,
    "await": awaited,
    "return": returned,
    "min/max": mirrored,
    "attribute": attribute,
    "name": name,
    "arguments": argument,
}


def _swapped(
    text: Text, left: ast.expr, right: ast.expr, pattern: str, other: str
) -> Iterator[Replacement]:
    start = text.end(left)
    between = text.between(start, text.start(right))
    if "#" in between:
        return
    found = list(re.finditer(pattern, between))
    if len(found) == 1:
        first, last = found[0].span()  # all ASCII here: characters are bytes
        yield start + first, start + last, other


def _grouped(text: Text, value: ast.expr) -> str:
    plain = isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript))
    return text.of(value) if plain else f"({text.of(value)})"


def _closing(text: Text, node: ast.BinOp) -> str:
    """The parentheses that close the left operand of `(x) + 1`."""
    between = text.between(text.end(node.left), text.start(node.right))
    return between[: between.rfind(")") + 1]


def _whole(node: ast.AST) -> int | None:
    """The integer that stands there; True and False are none."""
    known = isinstance(node, ast.Constant) and type(node.value) is int
    return int(node.value) if known else None  # type: ignore[attr-defined]


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    listed = isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict))
    return listed or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))

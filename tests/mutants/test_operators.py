"""Each operator changes what it says, and nothing that only words a message is changed."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.mutants.candidates import candidates, compiles
from tests.mutants.operators import OPERATORS

COUNTED = """
class Window:
    first_entry: int
    last_entry: int

    def __init__(self, first_entry: int, last_entry: int) -> None:
        self.first_entry = first_entry
        self.last_entry = last_entry

    def span(self) -> int:
        return self.last_entry - self.first_entry
"""


def _mutants(operator: str, source: str) -> set[str]:
    """The changed lines that an operator makes of a source."""
    text = textwrap.dedent(source).lstrip("\n")
    before = text.splitlines()
    found = set()
    for edit in candidates("dlog/x.py", text):
        if edit.operator == operator and compiles(edit, text):
            after = edit.apply(text).splitlines()
            changed = [new for old, new in zip(before, after, strict=True) if old != new]
            assert len(changed) == 1
            found.add(changed[0].strip())
    return found


def _of_body(operator: str, body: str, returns: str = "object") -> set[str]:
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return _mutants(operator, f"async def f(self, low: int, high: int) -> {returns}:\n{lines}\n")


@pytest.mark.parametrize(
    ("operator", "body", "made"),
    [
        ("comparison", "x = low < high", {"x = low <= high"}),
        (
            "comparison",
            "x = low <= y is not None",
            {"x = low < y is not None", "x = low <= y is None"},
        ),
        ("comparison", "x = low not in (high)", {"x = low in (high)"}),
        ("off by one", "x = (low) + 1", {"x = (low)", "x = (low) + 2"}),
        ("off by one", "x = low[high - 1]", {"x = low[high]", "x = low[high - 2]"}),
        ("constant", "x = True", {"x = False"}),
        ("constant", "x = 30", {"x = 60"}),
        ("calculation", "x = low + high", {"x = low - high"}),
        ("calculation", "low -= high", {"low += high"}),
        ("connective", "x = low and high or z", {"x = low or high or z", "x = low and high and z"}),
        ("operand", "x = low and not high", {"x = low", "x = (not high)"}),
        ("condition", "x = 1 if low else 2", {"x = 1 if not (low) else 2"}),
        ("condition", "while not low.done():\n    low()", {"while low.done():"}),
        ("condition", "x = [y for y in low if y > 3]", {"x = [y for y in low if not (y > 3)]"}),
        ("statement", "self.pump(low)\nreturn high", {"pass"}),
        ("statement", "self.x = low\nreturn high", {"pass"}),
        ("statement", "if low:\n    raise ValueError('no')", {"pass"}),
        ("statement", "for x in low:\n    break", {"pass"}),
        ("statement", "if low:\n    return\nhigh()", {"pass"}),
        ("await", "await self.sync()", {"pass"}),
        ("min/max", "x = min(low, 7)", {"x = max(low, 7)"}),
        ("min/max", "x = any(low)", {"x = all(low)"}),
        ("name", "x = low.y", {"x = high.y"}),
        ("arguments", "x = f(low, high)", {"x = f(high, low)"}),
    ],
)
def test_an_operator_changes_what_it_says(operator: str, body: str, made: set[str]) -> None:
    assert made <= _of_body(operator, body)


@pytest.mark.parametrize(
    ("returns", "made"),
    [("bool", "return not (low())"), ("int", "return 0"), ("list[int]", "return []")],
)
def test_what_a_function_returns_is_changed_by_its_type(returns: str, made: str) -> None:
    assert _of_body("return", "return low()", returns) == {made}


def test_a_bound_with_a_name_is_doubled_and_not_off_by_one() -> None:
    assert _mutants("off by one", "TRIES = 4\nFIRST = 0\n") == {"FIRST = 1"}
    assert _mutants("constant", "TRIES = 4\nFIRST = 0\n") == {"TRIES = 8"}


def test_another_attribute_of_the_same_type_is_read() -> None:
    made = {
        "return self.first_entry - self.first_entry",
        "return self.last_entry - self.last_entry",
    }
    assert _mutants("attribute", COUNTED) == made


@pytest.mark.parametrize(
    "body",
    [
        '"""Wait for 2 of 3 and no more."""',
        "log.info('%d of %d', low + 1, high)",
        "self._logger.warning('late by', low < high)",
        "x: Annotated[int, 1]",
        "assert low < high",
        "raise AssertionError",
        "trace.before('append.sent')",
        "x = f'{low + 1}'",
        "import x",
    ],
)
def test_nothing_is_made_of_wording_annotations_and_what_cannot_be(body: str) -> None:
    text = f"def f(low: int, high: int) -> None:\n    {body}\n"
    assert candidates("dlog/x.py", text) == []


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    x = 1\n",
        "__all__ = [1]\n",
        "class A:\n    def __repr__(self) -> str:\n        return 1\n",
        "class A(Protocol):\n    x = 1\n",
        "class A:\n    @abstractmethod\n    def f(self) -> int:\n        return 1\n",
    ],
)
def test_nothing_is_made_of_declarations(source: str) -> None:
    assert candidates("dlog/x.py", source) == []


def test_an_operator_without_a_node_of_its_kind_makes_nothing() -> None:
    assert candidates("dlog/x.py", "import x\n\n\ndef f() -> None:\n    return\n") == []


def test_all_but_the_edited_segment_stays_byte_by_byte() -> None:
    source = "# ä\r\nx = 'ö' if  y==1 else z  # ü\r\n"
    (edit,) = [each for each in candidates("dlog/x.py", source) if each.operator == "comparison"]
    assert edit.apply(source) == source.replace("==", "!=")
    assert edit.line == 2


def test_an_edit_says_where_its_lines_run() -> None:
    source = "class A:\n    x: int = 1\n\n    def f(\n        y: int = 0\n    ) -> int:\n"
    source += "        return y + 3\n"
    edits = {edit.text: edit for edit in candidates("dlog/x.py", source)}
    assert edits["2"].function is None
    assert edits["2"].names == ("A", "x")
    assert edits["1"].function == (7, 7)  # a default counts where the body runs
    assert edits["4"].lines == edits["4"].statement == (7, 7)


def test_every_operator_says_what_it_does() -> None:
    for name, operator in OPERATORS.items():
        assert operator.__doc__, name


def test_a_diff_is_a_line_or_two() -> None:
    (edit,) = [each for each in candidates("dlog/x.py", "x = a < b\n")]
    assert ast.parse(edit.apply("x = a < b\n"))
    assert edit.diff("x = a < b\n").splitlines()[3:] == ["-x = a < b", "+x = a <= b"]


def test_arguments_whose_order_means_nothing_are_not_swapped() -> None:
    for body in ("x = min(low, high)", "x = max(low, high)"):
        assert _of_body("arguments", body) == set()

"""Functions that are loaded take the code that a mutant would give them, or it is said that they
cannot."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from tests.mutants.edits import Edit
from tests.mutants.patching import changed_code, is_in_place, patch

SOURCE = """
def made(limit):
    def fits(count):
        return count <= limit
    return fits

class Window:
    def is_empty(self, size):
        return (
            size == 0
        )

    def other(self):
        return 1
"""


def _loaded() -> tuple[dict[str, Any], list[FunctionType]]:
    module: dict[str, Any] = {}
    exec(compile(SOURCE, "x.py", "exec"), module)
    return module, [module["made"], module["Window"].is_empty, module["Window"].other]


def _patched(old: str, new: str, *more: FunctionType) -> dict[str, Any]:
    module, functions = _loaded()
    changed = changed_code("x.py", SOURCE, SOURCE.replace(old, new))
    assert changed is not None
    assert patch([*functions, *more], changed)
    return module


def test_a_method_runs_its_new_code() -> None:
    window = _patched("size == 0", "size != 0")["Window"]()
    assert window.is_empty(3)
    assert window.other() == 1


def test_a_function_within_another_one_runs_its_new_code() -> None:
    assert not _patched("count <= limit", "count < limit")["made"](3)(3)


def test_a_closure_that_was_made_before_runs_its_new_code() -> None:
    fits: Callable[[int], bool] = _loaded()[0]["made"](3)
    assert isinstance(fits, FunctionType)
    _patched("count <= limit", "count < limit", fits)
    assert not fits(3)


def test_a_mutant_with_fewer_lines_changes_nothing_below() -> None:
    window = _patched("(\n            size == 0\n        )", "size")["Window"]()
    assert window.is_empty(3) == 3
    assert window.other() == 1


@pytest.mark.parametrize(
    ("old", "new"), [("count <= limit", "count"), ("    return fits", "    return lambda: fits")]
)
def test_what_cannot_be_patched_is_said(old: str, new: str) -> None:
    """A closure needs its variable; a function more cannot be paired."""
    module, functions = _loaded()
    fits = module["made"](3)
    changed = changed_code("x.py", SOURCE, SOURCE.replace(old, new))
    assert changed is None or not patch([*functions, fits], changed)


def test_nothing_patched_is_no_success() -> None:
    changed = changed_code("x.py", SOURCE, SOURCE.replace("return 1", "return 2"))
    assert changed is not None
    assert not patch([], changed)


def test_what_an_import_does_cannot_be_patched() -> None:
    edit = Edit("x.py", "constant", 0, 1, "2", (3, 3), (3, 3), (3, 9))
    assert is_in_place(edit)
    default = Edit("x.py", "constant", 0, 1, "2", (2, 2), (2, 2), (3, 9))
    assert not is_in_place(default)
    assert not is_in_place(Edit("x.py", "constant", 0, 1, "2", (1, 1), (1, 1), None))

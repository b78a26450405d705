"""Collects what a simulated history leaves behind, before the next test runs.

A history that breaks off, or kills a process, leaves coroutines that were never awaited, and some
that refuse to be closed. Python reports them when it collects them. Without this module that is in
the middle of a later test, which then fails.
"""

from __future__ import annotations

import gc
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_inside = 0  # of how many


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """Collects what became garbage inside, and only that, in silence. Inside another one, what was
    there before the outer one stays frozen until that one ends."""
    global _inside
    if not _inside:
        gc.freeze()
    _inside += 1
    try:
        yield
    finally:
        _inside -= 1
        hook = sys.unraisablehook
        sys.unraisablehook = _ignore
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()
        finally:
            sys.unraisablehook = hook
            if not _inside:
                gc.unfreeze()


def forget_frames(error: BaseException | None) -> None:
    """The frames of an error hold the history that it is of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _ignore(_: sys.UnraisableHookArgs) -> None:
    """In place of a report on standard error."""

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


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """Collects what became garbage inside, and only that, in silence."""
    gc.freeze()
    try:
        yield
    finally:
        hook = sys.unraisablehook
        sys.unraisablehook = _ignore
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()
        finally:
            sys.unraisablehook = hook
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

"""What a test module must not leave to those behind it: threads that run dlog's or kazoo's code,
and a logger that is set up otherwise.

Such a thread draws random numbers, opens sockets and files, and fails a later test that watches for
these, which then passes alone. A client whose servers are gone does so for ever. A logger that was
set up for a command hides from later tests what they wait for.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kazoo
import pytest

import dlog
from tests.pace import Deadline

OURS = tuple(f"{Path(str(package.__file__)).parent}/" for package in (dlog, kazoo))
# What listens to the servers of a whole run lives as long as they do.
SERVERS = OURS[0] + "testing/"
ENDS_IN_S = 5.0
POLL_S = 0.02


def threads_of_ours() -> dict[threading.Thread, str]:
    """With the stack of each."""
    frames = sys._current_frames()
    found = {}
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is None or thread is threading.current_thread():
            continue
        stack = traceback.extract_stack(frame)
        files = [each.filename for each in stack if each.filename.startswith(OURS)]
        if any(not each.startswith(SERVERS) for each in files):
            found[thread] = "".join(traceback.format_list(stack))
    return found


def left_over(before: Iterable[threading.Thread], ends_in_s: float = ENDS_IN_S) -> list[str]:
    """Those that are not of `before` and do not end by themselves, which takes a moment."""
    known = set(before)
    deadline = Deadline(ends_in_s)
    while True:
        left = {each: told for each, told in threads_of_ours().items() if each not in known}
        if not left or deadline.passed():
            return [f"thread {each.name!r}:\n{told}" for each, told in left.items()]
        next(iter(left)).join(POLL_S)


def logging_of_ours() -> tuple[object, ...]:
    """How the logger `dlog`, above all of ours, is set up."""
    logger = logging.getLogger("dlog")
    return logger.level, logger.propagate, logger.disabled, tuple(logger.handlers)


@contextmanager
def logging_kept() -> Iterator[None]:
    before = logging_of_ours()
    yield
    after = logging_of_ours()
    assert after == before, f"this module left the logger 'dlog' as {after}, and found {before}"


@contextmanager
def threads_ended() -> Iterator[None]:
    before = threads_of_ours()
    yield
    left = left_over(before)
    assert not left, "this module left threads behind:\n" + "\n".join(left)


@pytest.fixture(scope="module", autouse=True)
def logging_stays_as_it_was() -> Iterator[None]:
    with logging_kept():
        yield


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    with threads_ended():
        yield

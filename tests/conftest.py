"""What holds for every test, however the run was started."""

from __future__ import annotations

import signal

from tests.leftovers import logging_stays_as_it_was, no_thread_is_left

__all__ = ["logging_stays_as_it_was", "no_thread_is_left"]


def pytest_configure() -> None:
    """A shell that starts us in the background, without job control, has us ignore Ctrl-C. So would
    every program that a test starts, since that is inherited where a handler is not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""A session of its own has a priority of its own: Linux schedules by session (`autogroup`).

What the tool starts in sessions of their own gives way to other programs as the tool itself does.
"""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/proc/self/autogroup")  # "/autogroup-12 nice 19"


def nice_of_session() -> int:
    """0 where the kernel does not schedule by session."""
    try:
        return int(_GROUP.read_text(encoding="ascii").rpartition(" ")[2])
    except (OSError, ValueError):
        return 0


_CALLERS = nice_of_session()


def keep_priority() -> None:
    """Called in a process that has just begun its session."""
    try:
        _GROUP.write_text(str(_CALLERS), encoding="ascii")
    except OSError:
        pass


def give_way() -> None:
    """As `keep_priority`, and behind all else that runs in the session."""
    keep_priority()
    os.nice(10)

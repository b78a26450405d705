"""Options of a worker that make no sense are refused at once, and none does nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.groups.options import WorkerOptions

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"leases": "files"}, "leases is one of"),
    ({"on_error": "skip"}, "on_error is one of"),
    ({"heart": "process"}, "heart is one of"),
    ({"checkpoints": "never"}, "checkpoints is one of"),
    ({"on_truncated": "skip"}, "on_truncated is one of"),
    ({"start": "now"}, "start is one of"),
    ({"start": datetime(2025, 1, 1)}, "time zone"),
    ({"timeout_ms": 99}, "timeout_ms is a whole number"),
    ({"timeout_ms": 1_000.0}, "timeout_ms is a whole number"),
    ({"flush_ms": -1}, "flush_ms is a whole number"),
    ({"attempts": 0}, "attempts is a whole number"),
    ({"hand_over_ms": -1}, "hand_over_ms is a whole number"),
    ({"threads": True}, "threads is a whole number"),
    ({"stop_at_end": 1}, "stop_at_end is True or False"),
    ({"on_error": "dead_letter"}, "go together"),
    ({"dead_letters": "dead"}, "go together"),
    ({"trusts_name": True}, "is about a name"),
    ({"checkpoints": "explicit", "checkpoint_messages": 10}, "checkpoint_messages is for"),
    ({"name": ""}, "name"),
    ({"name": "n" * 129}, "128 characters"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=lambda each: str(each)[:40])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WorkerOptions(**wrong)


def test_what_is_told_reaches_the_core() -> None:
    options = WorkerOptions(name="w1", trusts_name=True, hand_over_ms=None, stop_at_end=True)
    group = options.group_options()
    assert (group.trusts_name, group.force_s, group.is_job) == (True, None, True)
    assert WorkerOptions(hand_over_ms=0).group_options().force_s == 0.0

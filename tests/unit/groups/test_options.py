"""Options of a worker that make no sense are refused at once, and none does nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.groups.membership import GroupOptions
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


DAY_MS = 24 * 3600 * 1000
BOUNDS: list[tuple[str, int, int]] = [
    ("timeout_ms", 100, 3_600_000),
    ("weigh_ms", 100, DAY_MS),
    ("checkpoint_messages", 0, 1 << 40),
    ("flush_ms", 0, 3_600_000),
    ("attempts", 1, 1_000_000),
    ("retry_pause_ms", 1, 30_000),
    ("threads", 0, 4_096),
    ("stall_after_ms", 0, DAY_MS),
    ("hand_over_ms", 0, DAY_MS),
]


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_each_number_has_its_bounds(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(WorkerOptions(**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"{name} is a whole number from {least} to {most}"):
            WorkerOptions(**{name: value})


@pytest.mark.parametrize(
    "right",
    [
        {"start": "latest"},
        {"start": datetime(2025, 1, 1, tzinfo=UTC)},
        {"on_error": "dead_letter", "dead_letters": "dead"},
        {"on_error": "stop"},
        {"checkpoints": "batch", "checkpoint_messages": 10},
        {"checkpoints": "explicit"},
        {"name": "w", "trusts_name": True},
        {"weigh": "bytes", "leases": "logs", "heart": "loop", "on_truncated": "jump"},
        {"hand_over_ms": None, "name": None, "domain": "rack-1"},
    ],
)
def test_what_makes_sense_is_taken_as_it_is(right: dict[str, Any]) -> None:
    options = WorkerOptions(**right)
    assert {name: getattr(options, name) for name in right} == right


@pytest.mark.parametrize("weigh", ["count", "lag", "bytes"])
@pytest.mark.parametrize("leases", ["nodes", "logs"])
def test_each_option_of_the_core_comes_from_its_own(weigh: Any, leases: Any) -> None:
    """Times in seconds; shards are weighed, and leases proven, only where that is wanted."""
    options = WorkerOptions(
        timeout_ms=4_000,
        flush_ms=700,
        hand_over_ms=900,
        weigh=weigh,
        weigh_ms=30_000,
        leases=leases,
    )
    assert options.group_options() == GroupOptions(
        timeout_s=4.0,
        flush_s=0.7,
        force_s=0.9,
        trusts_name=False,
        is_job=False,
        weigh_s=None if weigh == "count" else 30.0,
        prove_s=2.0 if leases == "logs" else None,
    )


@pytest.mark.parametrize("stop_at_end", [False, True])
def test_a_job_reads_to_the_end_and_all_others_follow(stop_at_end: bool) -> None:
    reading = WorkerOptions(
        stop_at_end=stop_at_end, on_truncated="jump", read_ahead_bytes=1 << 20
    ).reader_options()
    assert reading.follow is not stop_at_end
    assert (reading.on_truncated, reading.read_ahead_bytes) == ("jump", 1 << 20)
    assert reading.stall_after_ms == 0


def test_what_is_told_reaches_the_core() -> None:
    options = WorkerOptions(name="w1", trusts_name=True, hand_over_ms=None, stop_at_end=True)
    group = options.group_options()
    assert (group.trusts_name, group.force_s, group.is_job) == (True, None, True)
    assert WorkerOptions(hand_over_ms=0).group_options().force_s == 0.0

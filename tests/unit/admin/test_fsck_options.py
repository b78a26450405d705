"""What may be asked of a check."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.admin.fsck.run import FsckOptions
from dlog.errors import ConfigError
from dlog.limits import FSCK_PARALLEL_MAX, FSCK_SAMPLE_MAX

PLAIN: dict[str, Any] = {"samples": 10, "parallel": 4}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"samples": -1}, f"samples is a number from 0 to {FSCK_SAMPLE_MAX}"),
        ({"samples": FSCK_SAMPLE_MAX + 1}, "samples is a number"),
        ({"samples": True}, "samples is a number"),
        ({"parallel": 0}, f"parallel is a number from 1 to {FSCK_PARALLEL_MAX}"),
        ({"parallel": FSCK_PARALLEL_MAX + 1}, "parallel is a number"),
        ({"parallel": 1.0}, "parallel is a number"),
        ({"grace_s": -0.1}, "grace_s is a number of seconds"),
        ({"grace_s": float("nan")}, "grace_s is a number of seconds"),
        ({"grace_s": "1"}, "grace_s is a number of seconds"),
        ({"deep": True, "replication_only": True}, "choose one"),
        ({"segments": 5}, "segments is a range"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        FsckOptions(**{**PLAIN, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"samples": 0, "parallel": 1, "grace_s": 0},
        {"samples": FSCK_SAMPLE_MAX, "parallel": FSCK_PARALLEL_MAX, "grace_s": 0.5},
        {"deep": True, "segments": range(1, 3)},
        {"replication_only": True},
    ],
)
def test_all_up_to_the_bounds_is_taken(changes: dict[str, Any]) -> None:
    options = FsckOptions(**{**PLAIN, **changes})
    assert all(getattr(options, name) == value for name, value in changes.items())

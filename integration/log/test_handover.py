"""The example of a hand-over between two services, on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.chaos.test_handover import ACTS, play


@pytest.mark.chaos
def test_two_services_hand_one_log_over(cluster: Cluster, tmp_path: Path) -> None:
    """A killed writer is missed once its session ended, so sessions are short."""
    url = cluster.url.replace("/dlog?", "/handover?") + "&session_timeout_ms=2000"
    told = play(tmp_path, url, timeout_s=120)
    assert [act for act in ACTS if act not in told] == []
    assert told.count("  ok  ") == 7
